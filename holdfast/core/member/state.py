"""The state shared by a member's decisions: its topics and their logs, its claims and when to attend to them,
the partitions it may claim, and its requests to its shell.
"""

from __future__ import annotations

from math import inf
from typing import Protocol

from holdfast.core.claims.claim_keys import claim_key
from holdfast.core.claims.claim_rows import Claim
from holdfast.core.kafka.topic_partition import TopicPartition
from holdfast.core.member.claim.local_claims import LocalClaim, Pool
from holdfast.core.member.claim.stages import ClaimStage
from holdfast.core.member.logs.claimed_topics import ClaimedTopics
from holdfast.core.member.schedule import ClaimSchedule
from holdfast.core.member.settings import (
    ATTEMPT_INTERVALS,
    CLAIM_LOOP_INTERVALS,
    JITTER_HIGH_INTERVALS,
    JITTER_LOW_INTERVALS,
    MemberSettings,
)
from holdfast.core.member.shell_requests import ShellRequests, WallClock


class Draws(Protocol):
    """The source of chance: `random.Random(seed)` fits."""

    def uniform(self, a: float, b: float, /) -> float: ...


class ClaimState:
    """The parts that hold a member's state, and what needs several of them. No decisions.

    *loop_at_s* is when the claim loop runs next, *targets* what may be claimed in a balanced group.
    """

    def __init__(
        self,
        settings: MemberSettings,
        *,
        coordination_partitions: int,
        draws: Draws,
        now_s: float,
        unix_s: float,
    ) -> None:
        self.settings = settings
        self.interval_s = settings.heartbeat_interval_s
        self.me = (settings.client_id, settings.instance_id)
        self.draws = draws
        self.wall = WallClock(unix_s - now_s)
        self.shell = ShellRequests(settings, self.wall)
        self.topics = ClaimedTopics(settings, coordination_partitions)
        self.claims: dict[TopicPartition, LocalClaim] = {}
        self.schedule = ClaimSchedule()
        self.pool = Pool()
        self.loop_at_s = inf
        self.paused, self.paused_until_s = False, inf
        self.ending = self.failed = False
        self.targets: frozenset[TopicPartition] | None = None

    def jitter_s(self) -> float:
        return self.draws.uniform(JITTER_LOW_INTERVALS, JITTER_HIGH_INTERVALS) * self.interval_s

    def patience_s(self, now_s: float) -> float:
        """Return until when an attempt that begins at *now_s* (monotonic) waits for the log to show it."""
        return now_s + ATTEMPT_INTERVALS * self.interval_s

    def new_claim(self, place: TopicPartition, stage: ClaimStage) -> LocalClaim:
        key = claim_key(self.settings.group_id, *place)
        claim = LocalClaim(place, key, self.topics.numbers[place.topic], stage)
        self.claims[place] = claim
        self.pool.discard(place)
        return claim

    def row(self, claim: LocalClaim) -> Claim | None:
        return self.topics.logs[claim.coordination].row(claim.place)

    def mine(self, row: Claim | None) -> bool:
        """Return whether *row* names this very instance as its owner."""
        return (
            row is not None and row.heartbeat_at_s is not None and (row.client_id, row.instance_id) == self.me
        )

    def sort(self, place: TopicPartition, now_s: float) -> None:
        """Put *place*, not claimed by this member, where it belongs in the pool."""
        if place in self.claims:
            return
        if not self.topics.claimable(place):
            self.pool.discard(place)
            return
        wait_s = self.topics.log(place.topic).busy_for_s(place, now_s, self.wall.unix_s(now_s))
        wait_s = max(wait_s, self.pool.cools_for_s(place, now_s))
        if wait_s > 0:
            self.pool.busy(place, now_s + wait_s + 0.001)
        elif self.pool.free(place):
            self.wake_loop(now_s)

    def wake_loop(self, now_s: float) -> None:
        """Run the loop soon: members that see the same partition go free should not all claim it, so each
        waits a little by chance.
        """
        wait_s = 0.0 if self.aims() else self.draws.uniform(0.0, CLAIM_LOOP_INTERVALS) * self.interval_s
        self.loop_at_s = min(self.loop_at_s, now_s + wait_s)

    def aims(self) -> bool:
        return self.targets is not None or self.settings.balanced
