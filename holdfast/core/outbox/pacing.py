"""When to begin the next small transaction: not before the broker has finished the last."""

from __future__ import annotations

FEW_RECORDS = 1_000
"""Fewer than this are no backlog, and may wait for the broker."""
SENT_BACK_S = 0.020
"""librdkafka's wait before it asks again whether a partition may join a transaction, after
CONCURRENT_TRANSACTIONS.
"""
LEAST_S, MOST_S = 0.001, 0.008


class TransactionPacing:
    """The rest of one of librdkafka's producers between small transactions.

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
