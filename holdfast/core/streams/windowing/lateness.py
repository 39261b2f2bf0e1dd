"""Explains why a record is late: the times by which its fold judged it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.core.streams.windowing.rows import OriginRow


class JudgedRecord(NamedTuple):
    """The values by which a fold of windows or of an interval join judges a record; times are event times in
    ms.

    It is late once the watermark of its own origin reaches *late_from_ms*, which is *grace_ms* after
    *end_ms*. No window or join takes it once stream time reaches *over_from_ms*. For windows, [*start_ms*,
    *end_ms*) is the last one that the record can be in. For a join, *end_ms* is the first ms after the
    record, and *reach_ms* is how long after it a partner may come. *origin* and *before_ms* are those in the
    record's header, None without one. *row_prefix* begins the keys of the rows that the record sets.
    """

    key: str
    time_ms: int
    start_ms: int
    end_ms: int
    grace_ms: int
    reach_ms: int
    origin: int | None
    before_ms: int | None
    row_prefix: str

    @property
    def late_from_ms(self) -> int:
        return self.end_ms + self.grace_ms

    @property
    def over_from_ms(self) -> int:
        return self.late_from_ms + self.reach_ms


class PartitionTime(msgspec.Struct, frozen=True, kw_only=True):
    """The event time of a partition, as its row has it: *stream_ms*, the watermarks of its sources if the row
    has them, which of these have let go (*ended*, a bit each), and the numbers of late records.
    """

    stream_ms: int
    watermarks: tuple[int | None, ...] = ()
    ended: int = 0
    late: int = 0
    partly_late: int = 0


class Lateness(NamedTuple):
    """Reads the values by which records of one processor are judged late.

    *judged* takes the number of a source, the fold's arguments without rows and stream time, and the stream
    time by append time; it returns None for a mark, or a record without a value. *time* decodes the row under
    `stream_key(partition)` from JSON, and *origin* one under `origin_key`.
    """

    judged: Callable[[int, Sequence[Any], int], JudgedRecord | None]
    time: Callable[[str], PartitionTime]

    @staticmethod
    def origin(text: str) -> OriginRow:
        return _decode_origin(text)


_decode_origin = msgspec.json.Decoder(OriginRow).decode
