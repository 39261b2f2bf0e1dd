"""Burrow's rules, each by a history in which it alone decides, and the fold that keeps what they look at."""

from __future__ import annotations

import pytest

from holdfast.core.broker_logs.folds import Committed, OffsetNote, OtherNote, offset_key
from holdfast.core.broker_logs.lag import (
    LIMIT_COMMITS,
    CommitMade,
    LaggingCommit,
    LagStanding,
    RecentCommits,
    fold_recent,
    standing,
)

SECOND = 1_000


def history(*offsets_and_lags: tuple[int, int]) -> list[LaggingCommit]:
    """Give commits a second apart."""
    return [LaggingCommit(offset, at * SECOND, lag) for at, (offset, lag) in enumerate(offsets_and_lags)]


@pytest.mark.parametrize(
    ("commits", "lag", "expected"),
    [
        pytest.param([], 9, LagStanding.OK, id="nothing is known"),
        pytest.param(history((1, 5), (1, 6), (1, 7)), 0, LagStanding.OK, id="no lag now"),
        pytest.param(history((1, 5), (6, 0), (6, 7)), 7, LagStanding.OK, id="no lag once"),
        pytest.param(history((9, 5), (3, 11), (4, 10)), 10, LagStanding.REWIND, id="offsets go back"),
        pytest.param(
            history((4, 5), (4, 6), (4, 7)), 7, LagStanding.STALL, id="the same offset again and again"
        ),
        pytest.param(history((4, 5), (5, 5), (6, 7)), 7, LagStanding.WARN, id="the lag never falls"),
        pytest.param(history((4, 5), (5, 4), (6, 7)), 7, LagStanding.OK, id="the lag falls once"),
        pytest.param(
            history((4, 5), (4, 4), (4, 3)), 7, LagStanding.STALL, id="stalled while records expire"
        ),
        pytest.param(history((4, 5)), 5, LagStanding.STOP, id="one commit spans no time"),
    ],
)
def test_the_first_rule_that_holds_counts(
    commits: list[LaggingCommit], lag: int, expected: LagStanding
) -> None:
    now_ms = commits[-1].at_ms + 1 if commits else 0
    assert standing(commits, lag=lag, now_ms=now_ms) is expected


@pytest.mark.parametrize(("silent_s", "expected"), [(2, LagStanding.WARN), (3, LagStanding.STOP)])
def test_a_group_has_stopped_that_is_silent_for_longer_than_its_commits_span(
    silent_s: int, expected: LagStanding
) -> None:
    commits = history((4, 5), (5, 5), (6, 5))
    assert standing(commits, lag=5, now_ms=commits[-1].at_ms + silent_s * SECOND) is expected


@pytest.mark.parametrize(("recently_level", "expected"), [(True, LagStanding.OK), (False, LagStanding.STOP)])
def test_a_group_that_was_level_at_each_commit_and_died_has_stopped(
    expected: LagStanding, *, recently_level: bool
) -> None:
    commits = history((4, 0), (5, 0), (6, 0))
    now_ms = commits[-1].at_ms + 3_600 * SECOND
    assert standing(commits, lag=5, now_ms=now_ms, recently_level=recently_level) is expected


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [
        ((9, 3, 4), LagStanding.REWIND),
        ((9, 3, 9), LagStanding.OK),
        ((9, 8, 12), LagStanding.OK),
        ((9, 12, 1), LagStanding.REWIND),
    ],
)
def test_a_group_that_is_back_where_it_was_has_not_gone_back(
    offsets: tuple[int, ...], expected: LagStanding
) -> None:
    commits = history(*((offset, 20 - offset) for offset in offsets))
    assert standing(commits, lag=5, now_ms=commits[-1].at_ms + 1) is expected


def test_a_group_that_was_level_and_went_back_has_gone_back() -> None:
    commits = history((8, 1), (9, 0), (2, 7))
    assert standing(commits, lag=7, now_ms=commits[-1].at_ms + 1) is LagStanding.REWIND


def test_the_fold_keeps_the_last_commits_of_each_partition() -> None:
    rows: dict[str, RecentCommits] = {}

    def commit(partition: int, offset: int | None) -> None:
        noted = None if offset is None else Committed(offset=offset, at_ms=offset * 10)
        fold_recent(rows, OffsetNote(group="g", topic="t", partition=partition, noted=noted), 0)  # type: ignore[arg-type]

    for offset in range(LIMIT_COMMITS + 3):
        commit(0, offset)
    commit(1, 7)
    commit(2, 1)
    commit(2, None)  # forgotten
    commit(3, None)  # never known
    fold_recent(rows, OtherNote(kind=3), 0)  # type: ignore[arg-type]
    assert rows == {
        offset_key("g", "t", 0): RecentCommits(
            tuple(CommitMade(n, n * 10) for n in range(3, LIMIT_COMMITS + 3))
        ),
        offset_key("g", "t", 1): RecentCommits((CommitMade(7, 70),)),
    }
