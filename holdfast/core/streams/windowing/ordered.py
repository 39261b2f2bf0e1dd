"""Ordered windows: their records are kept in rows until the windows close, then folded in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec

from holdfast.core.engine.declared.sources import DecoderInput
from holdfast.core.engine.state.rows import Rows
from holdfast.core.streams.windowing.rows import (
    DIGITS,
    HELD,
    HELD_TAIL,
    OFFSET_DIGITS,
    HeldRecord,
)

_AT_ONCE = 4_096
"""The most kept records that are looked up by one scan."""
_encode = msgspec.msgpack.Encoder().encode


def held_key(key: str, time_ms: int, origin: int, offset: int) -> str:
    """Return the row key of a record, which sorts by event time, origin, offset.

    >>> held_key("ada", 70, 3, 12)
    '\\x00held/ada@0000000000000070/0000004/0000000000000000012'
    """
    return f"{HELD}{key}@{time_ms:016d}/{origin + 1:07d}/{offset:019d}"


class Ordered:
    """The records of one declaration of ordered windows, as they are kept until their windows close.

    *decode* makes an event from the columns *inputs* of a record of *topic*. Where *mixed*, the records of an
    origin come through several logs, so their offsets depend on pace: those of one time are then ordered by
    their bytes.
    """

    __slots__ = ("_decode", "_inputs", "_mixed", "_only_value", "_topic")

    def __init__(
        self, decode: Callable[..., Any], inputs: Sequence[DecoderInput], topic: str, *, mixed: bool
    ) -> None:
        self._decode, self._inputs, self._topic, self._mixed = decode, tuple(inputs), topic, mixed
        self._only_value = self._inputs == ("value",)

    def kept(self, columns: Sequence[Any]) -> HeldRecord:
        """Return a record as it is kept, with the columns that its decoder takes."""
        if self._only_value:
            return HeldRecord(columns[0])
        told = dict(zip(self._inputs, columns, strict=True))
        return HeldRecord(
            told.get("value"),
            told.get("key"),
            tuple(map(tuple, told.get("headers", ()))),
            told.get("timestamp", -1),
            told.get("partition", -1),
        )

    def event(self, name: str, held: HeldRecord) -> Any:
        """Return the event of a record that was kept under *name*."""
        if self._only_value:
            return self._decode(held.value)
        told = {
            "value": held.value,
            "key": held.key,
            "headers": held.headers,
            "timestamp": held.timestamp,
            "partition": held.partition,
            "offset": int(name[-OFFSET_DIGITS:]),
            "topic": self._topic,
        }
        return self._decode(*[told[each] for each in self._inputs])

    def within(
        self, rows: Rows[Any], key: str, first_ms: int, last_ms: int
    ) -> Iterator[tuple[str, HeldRecord]]:
        """Yield the names and records of *key* with event times in [first_ms, last_ms], in order."""
        found = _within(rows, f"{HELD}{key}@", max(0, first_ms), last_ms)
        if not self._mixed:
            yield from found
            return
        for _, alike in groupby(found, _before_offset):
            yield from sorted(alike, key=_content)


def time_of(name: str) -> int:
    """Return the event time of a record that is kept under *name*."""
    return int(name[1 - HELD_TAIL : 1 - HELD_TAIL + DIGITS])


def _within(rows: Rows[Any], prefix: str, first_ms: int, last_ms: int) -> Iterator[tuple[str, HeldRecord]]:
    length, following = len(prefix) - 1 + HELD_TAIL, f"{prefix}{first_ms:016d}"
    beyond = f"{prefix}{last_ms + 1:016d}"
    while True:
        some: list[tuple[str, HeldRecord]] = []
        for name, row in rows.scan(prefix, start=following):
            if name >= beyond:
                break
            if len(name) == length and isinstance(row, HeldRecord):  # else of a key that begins alike
                some.append((name, row))
                if len(some) == _AT_ONCE:
                    break
        yield from some
        if len(some) < _AT_ONCE:
            return
        following = some[-1][0] + "\x00"


def _before_offset(found: tuple[str, HeldRecord]) -> str:
    return found[0][:-OFFSET_DIGITS]


def _content(found: tuple[str, HeldRecord]) -> bytes:
    held = found[1]
    return _encode((held.value, held.key, held.headers))
