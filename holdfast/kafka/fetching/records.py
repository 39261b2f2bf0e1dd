"""Fetched records as columns: the input of a folder, and the details that describe a refused record."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, NamedTuple

from holdfast.core.engine.declared.processor import Headers, Input
from holdfast.core.engine.fold.folding import Batch


@dataclass(frozen=True, slots=True)
class FetchedRecord:
    """One record as it was fetched; *at_ms* is its timestamp, -1 for none."""

    value: bytes | None
    key: bytes | None
    headers: Headers
    at_ms: int


class BatchOrigin(NamedTuple):
    """The clock that stamped a batch's records, and the epoch of the leader that took it."""

    broker_time: bool
    leader_epoch: int


UNTOLD = BatchOrigin(broker_time=False, leader_epoch=-1)


@dataclass(slots=True)
class Records:
    """Consecutive records of one partition as columns of equal length, offsets ascending. *origins* has, for
    each run of records of one origin, the number of all records up to its end, and the origin.

    Records are decoded a handful at a time and then released: the next handful reuses the same memory, which
    is still in the processor's cache.
    """

    offsets: Sequence[int] = ()
    times_ms: list[int] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    headers: list[Headers] = field(default_factory=list)
    origins: list[tuple[int, BatchOrigin]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.values)

    def append(
        self,
        offsets: Sequence[int],
        times_ms: Sequence[int],
        values: Iterable[bytes | None],
        keys: Iterable[bytes | None],
        headers: Sequence[Headers] | None,
        origin: BatchOrigin = UNTOLD,
    ) -> None:
        """Append columns of records, at least one, of one *origin* that follow those taken before; *headers*
        None stands for none at all.
        """
        self._append_offsets(offsets)
        self.times_ms += times_ms
        self.values += values
        self.keys += keys
        self.headers += repeat((), len(offsets)) if headers is None else headers
        if self.origins and self.origins[-1][1] == origin:
            self.origins.pop()
        self.origins.append((len(self), origin))

    def _append_offsets(self, offsets: Sequence[int]) -> None:
        known = self.offsets
        if not known:
            self.offsets = offsets
        elif isinstance(known, range) and isinstance(offsets, range) and known.stop == offsets.start:
            self.offsets = range(
                known.start, offsets.stop
            )  # no offset is missing: neither compacted nor transactional
        else:
            self.offsets = every = known if isinstance(known, list) else list(known)
            every.extend(offsets)

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

    def before(self, end: int) -> Records:
        """Return those below offset *end*."""
        count = bisect_left(self.offsets, end)
        if count == len(self):
            return self
        return Records(
            self.offsets[:count],
            self.times_ms[:count],
            self.values[:count],
            self.keys[:count],
            self.headers[:count],
            [(min(stop, count), origin) for start, (stop, origin) in self._runs() if start < count],
        )

    def _runs(self) -> Iterator[tuple[int, tuple[int, BatchOrigin]]]:
        return zip((0, *(stop for stop, _ in self.origins)), self.origins, strict=False)

    def at(self, offset: int) -> FetchedRecord:
        """Return the record at *offset*, which must be one of these."""
        at = bisect_left(self.offsets, offset)
        return FetchedRecord(self.values[at], self.keys[at], self.headers[at], self.times_ms[at])
