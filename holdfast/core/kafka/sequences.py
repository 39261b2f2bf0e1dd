"""The arithmetic of sequences: after 2147483647 comes 0 (KIP-98).

No other module knows this rule; every user imports it.
"""

from __future__ import annotations

MAX_SEQUENCE = (1 << 31) - 1
NO_SEQUENCE = -1
MAX_EPOCH = (1 << 15) - 1
NO_EPOCH = -1


def advance(sequence: int, by: int) -> int:
    """Return the sequence *by* records after *sequence*.

    >>> advance(2147483647, 1), advance(2147483646, 3), advance(5, 0)
    (0, 1, 5)
    """
    return sequence + by & MAX_SEQUENCE


def distance(first: int, last: int) -> int:
    """Return how many records after *first* the record *last* is, the shorter way round; negative when it is
    before.

    >>> distance(3, 5), distance(5, 3), distance(2147483647, 0), distance(0, 2147483647)
    (2, -2, 1, -1)
    """
    ahead = last - first & MAX_SEQUENCE
    return ahead if ahead <= MAX_SEQUENCE >> 1 else ahead - MAX_SEQUENCE - 1


def follows(last: int, sequence: int) -> bool:
    """Return whether *sequence* is the one after *last*."""
    return sequence == advance(last, 1)
