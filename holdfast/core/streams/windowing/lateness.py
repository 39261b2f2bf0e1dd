"""Lateness: what decides whether a record is late, as the fold that judged it reads the record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.core.streams.windowing.rows import OriginRow


class JudgedRecord(NamedTuple):
    """What a fold of windows, or of an interval join, judges a record by; times are event times in ms.

    It is late once the watermark of its own origin is at *late_from_ms*, which is *grace_ms* after *end_ms*,
    and nothing takes it once stream time is at *over_from_ms*. Of windows [*start_ms*, *end_ms*) is the last
    one that the record can be in. Of a join *end_ms* is behind the record itself, and *reach_ms* is how long
    after it a partner may be. *origin* and *before_ms* are as the record tells them, None without its header.
    *row_prefix* is what the keys of the rows that it sets begin with.
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
    """The event time of a partition, as a row of it has it: *stream_ms*, the watermarks of its sources where
    the row has those, which of them let go, and how many records were late so far.
    """

    stream_ms: int
    watermarks: tuple[int | None, ...] = ()
    ended: int = 0
    late: int = 0
    partly_late: int = 0


class Lateness(NamedTuple):
    """Reads what decides that records of one processor are late.

    *judged* takes the number of a source, what its fold is given behind rows and stream time, and the stream
    time by append time; it returns None for a mark, or a record without a value. *time* reads the row under
    `stream_key(partition)` as JSON has it, and *origin* one under `origin_key`.
    """

    judged: Callable[[int, Sequence[Any], int], JudgedRecord | None]
    time: Callable[[str], PartitionTime]

    @staticmethod
    def origin(text: str) -> OriginRow:
        return _decode_origin(text)


_decode_origin = msgspec.json.Decoder(OriginRow).decode
