"""When to begin the next small transaction: not before the broker has finished the last, and not so often
that they take a whole core.
"""

from __future__ import annotations

FEW_RECORDS = 1_000
"""Fewer than this are no backlog: they may gather, since what a wake-up and a transaction cost does not
depend on their size.
"""
SENT_BACK_S = 0.020
"""librdkafka's wait before it asks again whether a partition may join a transaction, after
CONCURRENT_TRANSACTIONS.
"""
LEAST_S, MOST_S = 0.001, 0.008


class TransactionPacing:
    """How long one of librdkafka's producers rests between small transactions.

    A broker answers a commit once it is decided, and writes the transaction's markers after that: 1 ms later
    when it is at leisure, 8 ms when it is new or busy. What begins before is sent back and comes again 20 ms
    later; a producer with waiting rows begins the next one at once too, and is sent back again. A
    rest of some ms ends this. Doubled whenever a transaction took so long that it may have been sent back, it
    shrinks slowly otherwise. Before many records there is no rest: handing them over takes longer.

    >>> pace = TransactionPacing()
    >>> pace.ended(10.0, 10.025, records=3)
    >>> round(pace.rest_s(10.026, records=5), 3), pace.rest_s(10.026, records=20_000), pace.rest_s(10.030, records=5)
    (0.001, 0.0, 0.0)
    """  # noqa: E501

    __slots__ = ("_markers_s", "_rested_s")

    def __init__(self) -> None:
        self._markers_s, self._rested_s = LEAST_S, 0.0

    def ended(self, began_s: float, ended_s: float, *, records: int) -> None:
        """Note that a transaction of *records*, begun at *began_s*, was committed at *ended_s*
        (monotonic).
        """
        if records < FEW_RECORDS:  # how long a large one takes says nothing
            sent_back = ended_s - began_s >= SENT_BACK_S
            self._markers_s = (
                min(MOST_S, 2 * self._markers_s) if sent_back else max(LEAST_S, 0.95 * self._markers_s)
            )
        self._rested_s = ended_s + self._markers_s

    def rest_s(self, now_s: float, *, records: int) -> float:
        """Return how long to wait yet before a transaction of *records* begins."""
        return max(0.0, self._rested_s - now_s) if records < FEW_RECORDS else 0.0


SHARE = 0.385
"""What a worker may spend of a core, all in all, while records trickle."""
LEAST_WAIT_S = 0.008
"""Shorter waits would burden the broker, which has others to serve."""
PAUSE_S = 0.1
_GAIN, _MOST_OVER = 0.1, 2.0


class AdaptiveLinger:
    """How long to let a trickle gather before it is folded and committed.

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
        if 0.0 < past_s < PAUSE_S:  # a longer one was a pause, and tells what idling costs
            over = min(_MOST_OVER, spent_s / past_s / SHARE)
            wait_s = self._wait_s * (1.0 + _GAIN * (over - 1.0))
            self._wait_s = min(self._most_s, max(min(LEAST_WAIT_S, self._most_s), wait_s))
        return self._wait_s
