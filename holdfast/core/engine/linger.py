"""The time for which a worker lets a trickle of records gather before it folds and commits them."""

from __future__ import annotations

FEW_RECORDS = 1_000
"""Fewer than this are a trickle, and may gather: what a wake-up and a transaction cost does not depend on
their size.
"""
SHARE = 0.385
"""The share of a core that a worker may spend, all in all, while records trickle."""
LEAST_WAIT_S = 0.008
"""Shorter waits would burden the broker, which has others to serve."""
PAUSE_S = 0.1
_GAIN, _MOST_OVER = 0.1, 2.0


class AdaptiveLinger:
    """The wait that lets a trickle of records gather before it is folded and committed.

    What a round of transactions costs hardly depends on how much is in them, but it does on the machine and
    its hour. So the wait is what keeps the process at `SHARE` of a core: short, and the records soon visible,
    where rounds are cheap; up to *most_s* where they are dear, or where the process has other work.
    """

    __slots__ = ("_cpu_s", "_most_s", "_now_s", "_wait_s")

    def __init__(self, most_s: float) -> None:
        self._most_s, self._wait_s = most_s, min(LEAST_WAIT_S, most_s)
        self._now_s = self._cpu_s = 0.0

    def wait_s(self, now_s: float, cpu_s: float) -> float:
        """Return how long to wait after a round that ends at *now_s* (monotonic), when the process has
        used *cpu_s* of CPU so far.
        """
        past_s, spent_s = now_s - self._now_s, cpu_s - self._cpu_s
        self._now_s, self._cpu_s = now_s, cpu_s
        if 0.0 < past_s < PAUSE_S:  # a longer time was a pause, and shows the cost of idling
            over = min(_MOST_OVER, spent_s / past_s / SHARE)
            wait_s = self._wait_s * (1.0 + _GAIN * (over - 1.0))
            self._wait_s = min(self._most_s, max(min(LEAST_WAIT_S, self._most_s), wait_s))
        return self._wait_s
