"""Judges whether an owner keeps up with its partition, by the velocities of both (PROTOCOL.md#health).

The Go library's rules, exactly, if the user's state is unknown (`at_work_s` None). An owner with a message in
hand is at work, not wedged: that has a deadline of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from math import inf

import msgspec

RING_SLOTS = 10
LIMIT_CYCLES_BEHIND = 3
PREDICTED_CYCLES = 2


def velocity(ring: Sequence[int]) -> float:
    """Return how many offsets a ring of samples gained per heartbeat; slots of 0 are not filled yet, or at
    offset 0.

    >>> velocity([1, 21, 21, 0, 0, 0, 0, 0, 0, 0]), velocity([21, 0, 0, 0, 0, 0, 0, 0, 0, 0])
    (10.0, 0.0)
    """
    filled = [sample for sample in ring if sample > 0]
    if len(filled) < 2:
        return 0.0
    return (max(filled) - min(filled)) / (len(filled) - 1)


class ClaimVerdict(StrEnum):
    """The outcome of a check of a claim."""

    NONE = "none"
    KEEP = "keep"
    EXPIRED = "expired"
    PAUSED = "paused"
    OVERDUE = "overdue"
    WEDGED = "wedged"
    BEHIND = "behind"


class Sample(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The input of a check. Ages are of the last heartbeat that counted and of the last message.

    *at_work_s* is how long the user has been at work on the first unfinished message, or has let messages
    wait; None if no message is in hand or waits, or if that is not measured.
    """

    terminated: bool
    heartbeat_age_s: float
    group_paused: bool
    idle_s: float
    release_if_behind: bool
    whole_topic: bool
    current: int
    latest: int
    at_work_s: float | None = None


class Health:
    """The rings of one claim, and the number of consecutive checks that found it lagging."""

    __slots__ = ("_at", "current_ring", "cycles_behind", "latest_ring")

    def __init__(self) -> None:
        self.current_ring = [0] * RING_SLOTS
        self.latest_ring = [0] * RING_SLOTS
        self.cycles_behind = 0
        self._at = 0

    def note(self, current: int, latest: int) -> None:
        """Put one sample into the rings, once per heartbeat."""
        self.current_ring[self._at] = current
        self.latest_ring[self._at] = latest
        self._at = (self._at + 1) % RING_SLOTS

    def check(
        self, sample: Sample, *, expired_after_s: float, idle_after_s: float, overdue_after_s: float = inf
    ) -> ClaimVerdict:
        """Return the verdict on the claim, and count the checks that find it lagging.

        The rules in order; the first that fits decides.
        """
        if sample.terminated:
            return ClaimVerdict.NONE
        if sample.heartbeat_age_s > expired_after_s:
            return ClaimVerdict.EXPIRED
        if sample.group_paused:
            return ClaimVerdict.PAUSED
        if sample.release_if_behind and sample.at_work_s is not None and sample.at_work_s > overdue_after_s:
            return ClaimVerdict.OVERDUE
        consumer = partition = None
        if sample.release_if_behind and sample.idle_s > idle_after_s and sample.at_work_s is None:
            consumer, partition = velocity(self.current_ring), velocity(self.latest_ring)
            if consumer == 0 and (partition > 0 or sample.latest > sample.current):
                return ClaimVerdict.WEDGED
        if sample.whole_topic or not sample.release_if_behind:
            return ClaimVerdict.KEEP
        if sample.current >= sample.latest:
            self.cycles_behind = 0  # no prediction is needed, and velocities are what a check costs
            return ClaimVerdict.KEEP
        if consumer is None or partition is None:
            consumer, partition = velocity(self.current_ring), velocity(self.latest_ring)
        at_first = (
            sample.at_work_s is not None and consumer == 0
        )  # a message that takes long: no velocity is known yet
        if (
            at_first
            or sample.current + int(PREDICTED_CYCLES * consumer) >= sample.latest
            or partition < consumer
        ):
            self.cycles_behind = 0
            return ClaimVerdict.KEEP
        self.cycles_behind += 1
        return ClaimVerdict.BEHIND if self.cycles_behind >= LIMIT_CYCLES_BEHIND else ClaimVerdict.KEEP
