"""The table `lag.by_minute`: the lag of groups in a topic, joined of `lag.commits` and `lag.ends` as far as
both are known.

Neither log shows when the other's minute is over, and neither is in the other's partitions. So a row is over
once both logs have come to a later minute, by stream time; the other rows are joined again each time, from
the data read before and the new data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import msgspec
import pyarrow as pa

from holdfast.core.broker_logs.folds import OFFSETS_TOPIC
from holdfast.pipeline.derived.lag_tables import MINUTE_MS
from holdfast.pipeline.derived.table import row_batches, time_at
from holdfast.pipeline.histories.row_columns import row_column

BY_MINUTE = "lag.by_minute"
Series = Sequence[tuple[int, int | None]]
"""(minute since the epoch, what holds from its end on until the next), ascending."""


class LagMinute(msgspec.Struct, frozen=True):
    """The lag of a group in a partition from the end of *minute* until that of *until*: *end_offset* less the
    offset *committed*, and not below 0.

    *lag* is None where the group has nothing committed, since its coordinator forgot it, or where no end is
    known. *until* None: nothing else is known since.
    """

    group_id: str
    minute: datetime
    until: datetime | None
    committed: int | None
    end_offset: int | None
    lag: int | None
    offsets_partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LagTable:
    """The table of one topic. Unlike a `DerivedTable`, it is not folded of one log, but joined of two
    tables.
    """

    topic: str
    name: str = BY_MINUTE

    @property
    def path(self) -> str:
        return f"{self.name}/{self.topic}"

    @property
    def sources(self) -> tuple[str, ...]:
        return (OFFSETS_TOPIC, self.topic)

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([*row_column(LagMinute).type])

    def batches(self, rows: Iterator[LagMinute]) -> Iterator[pa.RecordBatch]:
        """Yield *rows* as Arrow has them."""
        return row_batches(LagMinute, rows)


class Standing(NamedTuple):
    """A group's offset *committed* in a partition, and the partition's end, at the end of a *minute*."""

    minute: int
    committed: int | None
    end: int | None


def joined(before: Sequence[Standing], commits: Series, ends: Series, from_minute: int) -> list[Standing]:
    """Return *before*, which reaches up to *from_minute*, with its continuation: an entry for each minute at
    whose end something differed from before.

    Both series may begin earlier. Where partitions end counts only once the group has committed there, and no
    more when its coordinator has forgotten it.

    >>> joined([], [(1, 5), (4, None)], [(0, 3), (2, 9), (6, 11)], 0)
    [Standing(minute=1, committed=5, end=3), Standing(minute=2, committed=5, end=9), Standing(minute=4, committed=None, end=9)]
    """  # noqa: E501
    found = [*before]
    changes = sorted({minute for minute, _ in (*commits, *ends) if minute >= from_minute})
    committed, end = _Walk(commits), _Walk(ends)
    for minute in changes:
        now = Standing(minute, committed.at(minute), end.at(minute))
        last = found[-1] if found else Standing(minute, None, None)
        if now.committed is None and last.committed is None:
            continue
        if now[1:] != last[1:]:
            found.append(now)
    return found


class _Walk:
    """Finds the values at minutes that are asked for in their order."""

    def __init__(self, series: Series) -> None:
        self._series, self._next = series, 0
        self._value: int | None = None

    def at(self, minute: int) -> int | None:
        while self._next < len(self._series) and self._series[self._next][0] <= minute:
            self._value = self._series[self._next][1]
            self._next += 1
        return self._value


def lag_rows(group: str, standings: Sequence[Standing], offsets_partition: int) -> Iterator[LagMinute]:
    """Yield what a group's standings say, each up to the next."""
    for at, each in enumerate(standings):
        until = standings[at + 1].minute if at + 1 < len(standings) else None
        known = each.committed is not None and each.end is not None
        yield LagMinute(
            group_id=group,
            minute=time_at(each.minute * MINUTE_MS),
            until=None if until is None else time_at(until * MINUTE_MS),
            committed=each.committed,
            end_offset=each.end,
            # The committed offset may be after control records, which no row shows.
            lag=max(0, each.end - each.committed) if known else None,  # type: ignore[operator]
            offsets_partition=offsets_partition,
        )


def settled(standings: Sequence[Standing], before_minute: int) -> int:
    """Return the number of *standings* that are over: they and the one after them are of minutes before
    *before_minute*, which both logs have passed.
    """
    return max(0, sum(each.minute < before_minute for each in standings) - 1)
