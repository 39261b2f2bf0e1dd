"""When each claim of a member is to be attended to."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from math import inf

from holdfast.core.member.claim.local_claims import LocalClaim

LIMIT_DUE = 100
"""Claims attended to in one tick: the rest in the next, which is due at once.

Keeps a tick short after a stall.
"""


class ClaimSchedule:
    """Claims by the time that is planned for them, one time each: the latest `plan` counts."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, LocalClaim]] = []
        self._heap_id = 0

    def plan(self, claim: LocalClaim, at_s: float) -> None:
        """Attend to *claim* at *at_s*, and not before."""
        claim.due_s = at_s
        if at_s < inf:
            self._heap_id += 1
            heappush(self._heap, (at_s, self._heap_id, claim))

    def plan_next(self, claim: LocalClaim) -> None:
        """Attend to *claim* at its next heartbeat, or when patience with its stage ends."""
        self.plan(claim, min(claim.beat_at_s, claim.stage.until_s))

    def due(self, now_s: float) -> Iterable[LocalClaim]:
        """Take the claims that are to be attended to, the earliest first, no more than LIMIT_DUE."""
        taken: list[LocalClaim] = []
        while self._heap and self._heap[0][0] <= now_s and len(taken) < LIMIT_DUE:
            at_s, _, claim = heappop(self._heap)
            if claim.due_s == at_s:
                claim.due_s = inf
                taken.append(claim)
        return taken

    def next_due_s(self) -> float:
        while self._heap and self._heap[0][2].due_s != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else inf
