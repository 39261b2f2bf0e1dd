"""Records of a step's topic in columns: what windows fold many of at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any, NamedTuple

from holdfast.core.engine.declared.serdes import decode_all
from holdfast.core.engine.emits import Headers
from holdfast.core.engine.origins import NAMELESS, UNHEARD, all_told, highest_of, is_mark, mark_of, plain
from holdfast.errors import DecodeError

_OF_A_MARK = NAMELESS, UNHEARD, UNHEARD
RUN_RECORDS = 16
"""The fewest records of one origin that are folded as a run: to begin one costs as much as a few records."""


class ArrivedRun(NamedTuple):
    """Events with their origins, as `told_of` reads them, of records in columns. *at_ms* are the highest
    append times so far. *raw* has the columns of keys, values and headers if late records are sent on.
    """

    events: list[Any]
    told: list[tuple[int, int, int]]
    partition: int
    at_ms: Sequence[int]
    raw: Sequence[Sequence[Any]] | None

    def arrived(self, at: int) -> tuple[Any, int, tuple[Any, ...] | None, tuple[int, int, int]]:
        """Return a record as its decoder does."""
        raw = None
        if self.raw is not None:
            keys, values, headers = self.raw
            raw = keys[at], values[at], plain(headers[at])
        return self.events[at], self.partition, raw, self.told[at]


class RunReader:
    """Reads records in columns, as the decoder of the same fold reads one: *decode* takes the first *inputs*
    of them.
    """

    __slots__ = ("_decode", "_inputs", "_raw")

    def __init__(self, decode: Callable[..., Any], inputs: int, *, raw: bool) -> None:
        self._decode, self._inputs, self._raw = decode, inputs, raw

    def read(
        self, columns: Sequence[Sequence[Any]], times_ms: Sequence[int], append_ms: int
    ) -> ArrivedRun | None:
        """Return the records in *columns*; None if they are few, or one of them that is no mark has not the
        header of an origin alone.
        """
        rest = columns[self._inputs :]
        headers = rest[2] if self._raw else rest[1]
        told = all_told(headers) if len(headers) >= RUN_RECORDS else None
        if told is not None:
            events = self._events(columns)
        elif (woven := self._among_marks(columns, headers)) is not None:
            events, told = woven
        else:
            return None
        at_ms = highest_of(append_ms, times_ms)[1:]
        partition = (rest[3] if self._raw else rest[0])[0]
        return ArrivedRun(events, told, partition, at_ms, rest[:3] if self._raw else None)

    def _events(self, columns: Sequence[Sequence[Any]]) -> list[Any]:
        decode = self._decode
        serde: Any = getattr(decode, "__self__", None)
        if self._inputs == 1 and getattr(serde, "decode", None) == decode:
            events = [*decode_all(serde, columns[0])]
            if len(events) < len(columns[0]):
                raise DecodeError("its decoder raised StopIteration")
            return events
        if self._inputs == 1:
            return [decode(each) for each in columns[0]]
        return [decode(*each) for each in zip(*columns[: self._inputs], strict=True)]

    def _among_marks(
        self, columns: Sequence[Sequence[Any]], headers: Sequence[Headers]
    ) -> tuple[list[Any], list[tuple[int, int, int]]] | None:
        """Return events, a `Mark` for each mark, and origins, NAMELESS for it; None as `read`."""
        are_records = [not is_mark(each) for each in headers]
        if all(are_records) or sum(are_records) < RUN_RECORDS:
            return None
        told = all_told([*compress(headers, are_records)])
        if told is None:
            return None
        events = iter(self._events([[*compress(each, are_records)] for each in columns]))
        known = iter(told)
        woven = [
            (next(events), next(known)) if is_record else (mark_of(each), _OF_A_MARK)
            for each, is_record in zip(headers, are_records, strict=True)
        ]
        return [event for event, _ in woven], [each for _, each in woven]
