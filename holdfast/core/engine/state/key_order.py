"""The keys that a transaction has changed, in order, for scans."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

_AFTER = b"\xff"
"""No byte of UTF-8 is as high, so this after a prefix comes after all that begins with it."""
_FEW = 512


class KeyOrder:
    """A sorted set of stored keys that grows a key at a time between many look-ups.

    New keys go to a short list, since an insertion into a long one moves all that follow; a full short list
    is merged into the long.
    """

    __slots__ = ("_long", "_short")

    def __init__(self) -> None:
        self._long: list[bytes] = []
        self._short: list[bytes] = []

    def __len__(self) -> int:
        return len(self._long) + len(self._short)

    def add(self, keys: Iterable[bytes]) -> None:
        """Add keys that are not in it."""
        fresh = list(keys)
        if len(self._short) + len(fresh) > _FEW:
            self._long += self._short
            self._long += fresh
            self._long.sort()  # finds the sorted runs and merges them
            self._short.clear()
        else:
            for key in fresh:
                insort(self._short, key)

    def discard(self, key: bytes) -> None:
        """Remove a key if it is in it."""
        for keys in (self._long, self._short):
            at = bisect_left(keys, key)
            if at < len(keys) and keys[at] == key:
                del keys[at]

    def within(self, prefix: bytes, start: bytes = b"") -> list[bytes]:
        """Return the keys that begin with *prefix*, from *start* on, in order."""
        first, after, keys, short = max(prefix, start), prefix + _AFTER, self._long, self._short
        found = keys[bisect_left(keys, first) : bisect_left(keys, after)]
        if fresh := short[bisect_left(short, first) : bisect_left(short, after)]:
            found += fresh
            found.sort()
        return found

    def clear(self) -> None:
        self._long.clear()
        self._short.clear()
