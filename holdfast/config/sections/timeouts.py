"""Settings of how long a worker and a broker may be silent, and how often records may be refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.config.sections.section import Section, setting


@dataclass(frozen=True, kw_only=True)
class TimeoutSettings(Section):
    """Deadlines of the group, of requests, of transactions, and of a worker without progress."""

    session_timeout_s: float = setting(
        10.0, "a worker silent for this long loses its partitions", low=1, high=1_800
    )
    heartbeat_interval_s: float = setting(
        0.0, "group heartbeat; at most a third of the session, default 0.3 of it", low=0, high=600
    )
    rebalance_timeout_s: float = setting(60.0, "longest a member may take to rejoin", low=1, high=3_600)
    request_timeout_s: float = setting(30.0, "longest wait for one reply of a broker", low=1, high=300)
    transaction_timeout_s: float = setting(
        15.0, "the broker aborts a transaction left open for this long", low=1, high=900
    )
    commit_timeout_s: float = setting(30.0, "longest wait for a commit, retries included", low=1, high=900)
    stall_timeout_s: float = setting(
        60.0, "a worker without progress for this long exits", low=1, high=86_400
    )
    fold_limit_s: float = setting(
        10.0,
        "a fold that has not returned after this time is logged with its record and its stack, and the worker"
        " is not ready",
        low=1,
        high=86_400,
    )
    metadata_interval_s: float = setting(
        30.0,
        "how often a worker looks whether a topic has got more partitions or was made again",
        low=1,
        high=300,
    )
    later_timeout_s: float = setting(
        600.0,
        "a worker or replay ends when what a fold needs (errors.Later) is away for this long",
        low=1,
        high=2_592_000,
    )
    quarantine_limit: int = setting(
        10_000,
        "a partition stands still after this many quarantined records in a row; 0: never",
        low=0,
        high=1_000_000_000,
    )

    def problems(self) -> Iterator[str]:
        for smaller, larger, why, factor in (
            ("heartbeat_interval_s", "session_timeout_s", "a worker must be able to miss two heartbeats", 3),
            ("session_timeout_s", "request_timeout_s", "a request may wait as long as a session", 1),
            ("commit_timeout_s", "rebalance_timeout_s", "a rebalance waits for the commit in flight", 1),
            ("commit_timeout_s", "stall_timeout_s", "one slow commit must not end a worker", 1),
        ):
            yield from self.at_most(smaller, larger, why, factor)
