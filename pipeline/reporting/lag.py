"""The lag of groups, by the rows of `lag.by_minute`."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.pipeline.reporting.ownership import ms_of
from holdfast.pipeline.reporting.slices import DerivedRow

MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LagOverTime:
    """The lag of a group in a partition, as (minute in ms, records from its end on until the next).

    *silent_ms* is how long ago, by the end of the known period, it had committed last; None where it has not
    in the time.
    """

    group: str
    topic: str
    partition: int
    lags: Sequence[tuple[int, int]]
    silent_ms: int | None

    @property
    def worst(self) -> int:
        return max(lag for _, lag in self.lags)

    @property
    def last(self) -> int:
        return self.lags[-1][1]

    def at(self, minute_ms: int) -> int:
        """Return the lag at the end of a minute, 0 before anything is known."""
        found = bisect_right(self.lags, minute_ms, key=lambda each: each[0])
        return self.lags[found - 1][1] if found else 0


def lags_over_time(rows: Iterable[DerivedRow], commits: Iterable[DerivedRow]) -> list[LagOverTime]:
    """Return the lag of each group in each partition, the largest last lag first. *rows* are those of
    `lag.by_minute`, with their topic in `of_topic`; of those that are the last of a part of the time,
    `until_ms` is the last minute of that. *commits* are the last rows of `lag.commits`.
    """
    found = defaultdict[tuple[str, str, int], list[tuple[int, int | None]]](list)
    last = dict[tuple[str, str, int], int]()
    known_ms = 0
    for row in commits:
        last[row["group_id"], row["topic"], row["topic_partition"]] = ms_of(row["minute"])
        known_ms = max(known_ms, ms_of(row["minute"]))
    for row in rows:
        told_ms = row["until_ms"] if "until_ms" in row else ms_of(row["minute"])
        found[row["group_id"], row["of_topic"], row["partition"]].append((told_ms, row["lag"]))
        known_ms = max(known_ms, ms_of(row["minute"]))
    lags = [
        LagOverTime(
            group=place[0],
            topic=place[1],
            partition=place[2],
            # A group that its coordinator forgot has no lag.
            lags=[(ms, lag or 0) for ms, lag in sorted(each, key=lambda one: one[0])],
            silent_ms=known_ms - last[place] if place in last else None,
        )
        for place, each in found.items()
        if any(lag is not None for _, lag in each)
    ]
    return sorted(lags, key=lambda each: (-each.last, -each.worst, each.group, each.topic, each.partition))


def total_over_time(
    lags: Iterable[LagOverTime], groups: Sequence[str], others: str, parts: Sequence[tuple[int, int]]
) -> Mapping[str, list[float]]:
    """Return the lag of each group in all its partitions, in records, for each part of the time: the last
    value of the part.
    """
    found = {name: [0.0] * len(parts) for name in (*groups, others)}
    named = set(groups)
    for each in lags:
        series = found[each.group if each.group in named else others]
        for at, (_, until) in enumerate(parts):
            series[at] += each.at(until - MINUTE_MS)
    return {name: values for name, values in found.items() if any(values)}
