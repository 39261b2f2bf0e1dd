"""Lag by the minute: what groups had committed, joined with where partitions ended."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.pipeline.reporting.ownership import ms_of
from holdfast.pipeline.reporting.slices import DerivedRow

MINUTE_MS = 60_000
Series = Sequence[tuple[int, int | None]]
"""(minute in ms, value from the end of that minute on), ascending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LagOverTime:
    """How far a group was behind in a partition at the end of each minute in which either moved, as (minute in ms, records).

    *silent_ms* is how long ago, by the end of what is known, it had committed last.
    """

    group: str
    topic: str
    partition: int
    lags: Sequence[tuple[int, int]]
    silent_ms: int

    @property
    def worst(self) -> int:
        return max((lag for _, lag in self.lags), default=0)

    @property
    def last(self) -> int:
        return self.lags[-1][1] if self.lags else 0

    def at(self, minute_ms: int) -> int:
        """Return the lag at the end of a minute, 0 before anything is known."""
        found = bisect_right(self.lags, minute_ms, key=lambda each: each[0])
        return self.lags[found - 1][1] if found else 0


def lag_by_minute(
    commits: Iterable[DerivedRow], ends: Mapping[str, Iterable[DerivedRow]]
) -> list[LagOverTime]:
    """Return the lag of each group in each partition, the largest last lag first. *commits* are rows of `lag.commits`, *ends* rows of `lag.ends` by topic;
    groups of other topics are left out. Of rows that are the last of a part of the time, `until_ms` is the last minute of that.
    """
    ended = defaultdict[tuple[str, int], list[tuple[int, int | None]]](list)
    made = defaultdict[tuple[str, str, int], list[tuple[int, int | None]]](list)
    last = defaultdict[tuple[str, str, int], int](int)
    known_ms = 0
    for topic, rows in ends.items():
        for row in rows:
            ended[topic, row["partition"]].append((_told_at(row), row["end_offset"]))
            known_ms = max(known_ms, ms_of(row["minute"]))
    for row in commits:
        place = row["group_id"], row["topic"], row["topic_partition"]
        if row["topic"] in ends:
            made[place].append((_told_at(row), row["offset"]))
            last[place] = max(last[place], ms_of(row["minute"]))
    known_ms = max([known_ms, *last.values()])
    found = [
        _lag(*place, _ordered(each), _ordered(ended[place[1:]]), known_ms - last[place])
        for place, each in made.items()
    ]
    return sorted(found, key=lambda each: (-each.last, -each.worst, each.group, each.topic, each.partition))


def _told_at(row: DerivedRow) -> int:
    found: int = row["until_ms"] if "until_ms" in row else ms_of(row["minute"])
    return found


def _ordered(series: Series) -> Series:
    return sorted(series, key=lambda each: each[0])


def _lag(group: str, topic: str, partition: int, made: Series, ended: Series, silent_ms: int) -> LagOverTime:
    """Walk both series, each value holding until the next."""
    minutes = sorted({minute for minute, _ in (*made, *ended)})
    lags = []
    for minute in minutes:
        committed, end = _value(made, minute), _value(ended, minute)
        if committed is not None and end is not None:
            # What is committed may lie behind control records, which no row tells of.
            lags.append((minute, max(0, end - committed)))
        elif lags:  # its coordinator forgot the group: nobody is behind
            lags.append((minute, 0))
    return LagOverTime(group=group, topic=topic, partition=partition, lags=lags, silent_ms=silent_ms)


def _value(series: Series, minute_ms: int) -> int | None:
    found = bisect_right(series, minute_ms, key=lambda each: each[0])
    return series[found - 1][1] if found else None


def total_over_time(
    lags: Iterable[LagOverTime], groups: Sequence[str], others: str, parts: Sequence[tuple[int, int]]
) -> Mapping[str, list[float]]:
    """Return how many records each group was behind in all its partitions, in each part of the time: the last value of the part."""
    found = {name: [0.0] * len(parts) for name in (*groups, others)}
    named = set(groups)
    for each in lags:
        series = found[each.group if each.group in named else others]
        for at, (_, until) in enumerate(parts):
            series[at] += each.at(until - MINUTE_MS)
    return {name: values for name, values in found.items() if any(values)}
