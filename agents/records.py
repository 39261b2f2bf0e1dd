"""Fetched records as columns: what a folder takes, and what is left to tell of a record that it refuses."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from operator import itemgetter
from typing import Any, cast

from confluent_kafka import Message

from holdfast.core.folding import Batch
from holdfast.core.processor import Headers, Input

_AT_MS = itemgetter(1)


@dataclass(frozen=True, slots=True)
class Record:
    """One record as it was fetched; *at_ms* is its timestamp, -1 for none."""

    value: bytes | None
    key: bytes | None
    headers: Headers
    at_ms: int


@dataclass(slots=True)
class Records:
    """Consecutive records of one partition as columns of equal length, offsets ascending.

    Messages are taken apart as they come and then let go: they are three times as large as what is kept of them, and the next ones are
    made in the same memory, which the processor's cache still has.
    """

    offsets: Sequence[int] = ()
    times_ms: list[int] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    headers: list[Headers] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.values)

    def take(self, messages: Sequence[Message]) -> None:
        """Append *messages*, at least one, which follow those taken before."""
        self._take_offsets(messages)
        self.times_ms += map(_AT_MS, map(Message.timestamp, messages))
        self.values += map(Message.value, messages)
        self.keys += map(Message.key, messages)
        headers = list(map(Message.headers, messages))
        if any(headers):
            self.headers += [cast(Headers, tuple(each or ())) for each in headers]
        else:
            self.headers += repeat((), len(headers))

    def _take_offsets(self, messages: Sequence[Message]) -> None:
        first, end = messages[0].offset() or 0, (messages[-1].offset() or 0) + 1
        known = self.offsets
        if end - first == len(messages) and (not known or (isinstance(known, range) and known.stop == first)):
            self.offsets = range(known[0] if known else first, end)  # no offset is missing: neither compacted nor transactional
            return
        self.offsets = offsets = known if isinstance(known, list) else list(known)
        offsets.extend(message.offset() or 0 for message in messages)

    def batch(self, partition: int, inputs: Sequence[Input]) -> Batch:
        """Return the columns that a processor of *inputs* takes."""
        columns: dict[Input, Callable[[], Sequence[Any]]] = {
            "value": lambda: self.values,
            "key": lambda: self.keys,
            "headers": lambda: self.headers,
            "offset": lambda: self.offsets,
            "partition": lambda: [partition] * len(self),
        }
        return Batch(self.offsets, self.times_ms, tuple(columns[name]() for name in inputs))

    def at(self, offset: int) -> Record:
        """Return the record at *offset*, which must be one of these."""
        at = bisect_left(self.offsets, offset)
        return Record(self.values[at], self.keys[at], self.headers[at], self.times_ms[at])
