"""Membership in the group: whether the assigned partitions must still be this worker's, decided by the
group's answers and by the times at which these were asked for.
"""

from __future__ import annotations

import math

from holdfast.clock import Clock, system_clock

NO_TERM = 0
FROZEN_S = 0.5
"""A thread that had no turn for so long may have an answer in its socket that it has not read."""


class Membership:
    """The worker's membership in its group. The consumer's thread writes it, any thread reads it.

    A term begins with an assignment that the group gave (a Sync it answered), and partitions are owned in the
    term that was adopted last. It ends when the group begins the next generation, and when it refuses this
    member: another worker may own the partitions from then on. Within a term they are owned for a session
    after the *sending* of the last request that the group granted: the broker began to wait for the next one
    no earlier. The clock must advance while the process is frozen, as CLOCK_MONOTONIC does on SIGSTOP.

    >>> from holdfast.clock import ManualClock
    >>> clock = ManualClock(); membership = Membership(session_s=6, rebalance_s=60, clock=clock)
    >>> membership.synced(0.0); membership.adopt(membership.term); membership.owns()
    True
    >>> clock.advance_ms(5_000); membership.granted(4.0, rebalancing=False); clock.advance_ms(4_999); membership.owns()
    True
    >>> clock.advance_ms(1); membership.owns()
    False
    >>> membership.granted(9.9, rebalancing=False); membership.owns()
    True
    >>> membership.refused(membership.term), membership.owns()
    (True, False)
    """  # noqa: E501

    __slots__ = (
        "_adopted",
        "_begun",
        "_clock",
        "_granted_s",
        "_joining",
        "_looked_s",
        "_rebalance_s",
        "_session_s",
        "_steady_s",
        "_turn_s",
        "term",
    )

    def __init__(self, *, session_s: float, rebalance_s: float, clock: Clock = system_clock) -> None:
        self._session_s, self._rebalance_s, self._clock = session_s, rebalance_s, clock
        self._granted_s = self._steady_s = self._looked_s = self._turn_s = -math.inf
        self._joining = False
        self.term = self._adopted = self._begun = NO_TERM

    def synced(self, sent_s: float) -> None:
        """Begin a term: the group has answered a Sync that was sent at *sent_s* (monotonic)."""
        self._granted_s, self._steady_s = max(self._granted_s, sent_s), max(self._steady_s, sent_s)
        self._begun += 1
        self.term = self._begun

    def granted(self, sent_s: float, *, rebalancing: bool) -> None:
        """Note that the group granted a heartbeat sent at *sent_s*.

        While *rebalancing*, the group grants every heartbeat, but waits for this member's Join no longer than
        a rebalance may take.
        """
        self._granted_s = max(self._granted_s, sent_s)
        if not rebalancing:
            self._steady_s = max(self._steady_s, sent_s)

    def joining(self) -> None:
        """Note that a Join is about to be sent.

        The next generation may begin at any moment from here on, and only its answer shows that.
        """
        self._looked_s = self._turn_s = self._clock.monotonic_s()
        self._joining = True

    def looked(self) -> None:
        """Note, now and then while a Join is not answered, that the thread that waits for the answer has its
        turns.

        A turn that comes late does not count: data that arrived before it is read in the same turn, and
        handled after it.
        """
        now_s = self._clock.monotonic_s()
        if now_s - self._turn_s < FROZEN_S:
            self._looked_s = now_s
        self._turn_s = now_s

    def answered(self) -> None:
        """Note that no Join is awaited any more."""
        self._joining = False

    def joined(self) -> None:
        """End the term: the group has begun its next generation.

        Partitions are owned again once that one's assignment is adopted.
        """
        self.term = NO_TERM

    def refused(self, term: int) -> bool:
        """End the *term* in which a request was sent that the group refused: it does not know this member,
        or not in this generation. Return whether it was the term until now.
        """
        if self.term != term or term == NO_TERM:
            return False
        self.term = NO_TERM
        return True

    def adopt(self, term: int) -> None:
        """Adopt *term*: the partitions that it assigned are served from here on."""
        self._adopted = term

    def owns(self) -> bool:
        """Return whether the partitions adopted must still be this worker's."""
        if self.term == NO_TERM or self.term != self._adopted:
            return False
        now_s = self._clock.monotonic_s()
        if self._joining and now_s - self._looked_s >= FROZEN_S:
            return False
        return now_s - self._granted_s < self._session_s and now_s - self._steady_s < self._rebalance_s
