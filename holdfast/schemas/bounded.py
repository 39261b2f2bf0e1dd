"""A cache with a limit, for what never changes."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Bounded(OrderedDict[K, V]):
    """At most *limit* entries; those that were read longest ago go first.

    >>> cache = Bounded[int, str](2)
    >>> cache[1], cache[2] = "a", "b"
    >>> cache.used(1), cache.used(3)
    ('a', None)
    >>> cache[3] = "c"
    >>> [*cache]
    [1, 3]
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def used(self, key: K) -> V | None:
        """Return the entry of *key* and note that it was read; None for none."""
        found = self.get(key)
        if found is not None:
            with suppress(KeyError):  # another thread may have put it out
                self.move_to_end(key)
        return found

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        if len(self) > self._limit:
            self.popitem(last=False)
