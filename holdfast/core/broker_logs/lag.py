"""Judges whether a consumer group keeps up with its partitions, by its commits: the rules of Burrow.

A threshold of lag says nothing without the traffic of the topic. These rules look at the last commits of a
group in a partition, oldest first, with the lag that each left:

1. No lag now: OK.
2. Nothing committed for longer than the commits span, nor was the group level a short while ago: STOP. Before
   the rest, for a group that was
   level at each commit may have died since.
3. An offset before the one committed earlier, not reached again since: REWIND.
4. A lag of 0 at one of them: OK.
5. The same offset each time: STALL.
6. A lag that never falls from one to the next: WARN.

The first that holds counts. Source: LinkedIn's Burrow, `core/internal/evaluator/caching.go`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

import msgspec

from holdfast.core.broker_logs.folds import (
    OFFSETS_TOPIC,
    GroupEvent,
    OffsetNote,
    decode_group,
    offset_key,
)
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.state.rows import Rows

LIMIT_COMMITS = 10
"""The number of commits that are examined, as Burrow does by default."""
RECENT_MS = 120_000
"""The age up to which a level group counts as alive, whatever it commits: an idle group has no reason to
commit.
"""
RECENT_COMMITS = "recent-commits"


class LagStanding(StrEnum):
    """A group's state in one partition, and as a whole; from WARN on it needs a person."""

    OK = "OK"
    WARN = "WARN"
    STOP = "STOP"
    STALL = "STALL"
    REWIND = "REWIND"
    ERR = "ERR"
    """Of a group: one of its partitions is at STOP, STALL or REWIND."""


class CommitMade(msgspec.Struct, frozen=True, array_like=True):
    """An offset as it was committed, and when."""

    offset: int
    at_ms: int


class RecentCommits(msgspec.Struct, frozen=True, array_like=True):
    """The last commits of a group in one partition, oldest first."""

    commits: tuple[CommitMade, ...]


@dataclass(frozen=True, slots=True)
class LaggingCommit:
    """A commit, and the lag that it left, in records."""

    offset: int
    at_ms: int
    lag: int


def standing(
    commits: Sequence[LaggingCommit], *, lag: int, now_ms: int, recently_level: bool = False
) -> LagStanding:
    """Return the state of a group with these commits, oldest first, and a lag of *lag* records at *now_ms*.

    *recently_level*: its last commit was the end of the log RECENT_MS ago.

    >>> steps = [LaggingCommit(offset, at_ms, 5) for offset, at_ms in ((10, 0), (20, 1_000))]
    >>> standing(steps, lag=5, now_ms=1_500), standing(steps, lag=5, now_ms=2_500)
    (<LagStanding.WARN: 'WARN'>, <LagStanding.STOP: 'STOP'>)
    """
    if lag <= 0 or not commits:
        return LagStanding.OK
    first_ms, last_ms = commits[0].at_ms, commits[-1].at_ms
    if now_ms - last_ms > last_ms - first_ms and not recently_level:
        return LagStanding.STOP
    if _has_gone_back(commits):
        return LagStanding.REWIND
    if any(commit.lag <= 0 for commit in commits):
        return LagStanding.OK
    steps = list(pairwise(commits))
    if all(after.offset == before.offset for before, after in steps):
        return LagStanding.STALL
    if all(after.lag >= before.lag for before, after in steps):
        return LagStanding.WARN
    return LagStanding.OK


def _has_gone_back(commits: Sequence[LaggingCommit]) -> bool:
    """Return True if an offset went back, and no commit since has reached the one before: a rebalance may
    repeat a few.
    """
    for number, (before, after) in enumerate(pairwise(commits), 1):
        if after.offset < before.offset:
            return all(commit.offset < before.offset for commit in commits[number:])
    return False


def of_group(standings: Iterable[LagStanding]) -> LagStanding:
    """Return the state of a group as a whole.

    >>> of_group([LagStanding.OK, LagStanding.WARN]), of_group([LagStanding.STALL, LagStanding.WARN]), of_group([])
    (<LagStanding.WARN: 'WARN'>, <LagStanding.ERR: 'ERR'>, <LagStanding.OK: 'OK'>)
    """  # noqa: E501
    found = set(standings)
    if found - {LagStanding.OK, LagStanding.WARN}:
        return LagStanding.ERR
    return LagStanding.WARN if LagStanding.WARN in found else LagStanding.OK


def fold_recent(rows: Rows[RecentCommits], event: GroupEvent, at_ms: int) -> None:
    """Keep the last commits of each group in each partition."""
    if not isinstance(event, OffsetNote):
        return
    key = offset_key(event.group, event.topic, event.partition)
    before = rows.get(key)
    if event.noted is None:
        if before is not None:
            del rows[key]
        return
    commits = (*(before.commits if before else ()), CommitMade(event.noted.offset, event.noted.at_ms))
    rows[key] = RecentCommits(commits[-LIMIT_COMMITS:])


def recent_commits() -> Processor[GroupEvent, RecentCommits]:
    """Return the fold of `__consumer_offsets` that keeps what the rules look at, for replays."""
    return Processor(
        name=RECENT_COMMITS,
        source=OFFSETS_TOPIC,
        decode=decode_group,
        inputs=("key", "value"),
        fold=fold_recent,
        row=RecentCommits,
    )
