"""Committed rows of one partition in memory: what Spark tasks, the local engine and the test kit fold
into.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from holdfast.core.engine.state.codec import META


class DictStore:
    """Committed rows of one partition in memory; scans are in key order, as RocksDB's are."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._order: list[bytes] = []
        self._stale = False

    def get(self, key: bytes) -> bytes | None:
        return self._values.get(key)

    def apply(self, puts: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Take a transaction's changes; None removes."""
        values = self._values
        before = len(values)
        for key, value in puts:
            if value is None:
                self._stale |= values.pop(key, None) is not None
            else:
                values[key] = value
        self._stale |= len(values) != before

    def _sorted(self) -> list[bytes]:
        # Sorted again only when keys came or went since: a fold that scans on each record pays for one sort a
        # transaction.
        if self._stale or len(self._order) != len(self._values):
            self._order, self._stale = sorted(self._values), False
        return self._order

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        order = self._sorted()
        for at in range(bisect_left(order, max(prefix, start)), len(order)):
            if not order[at].startswith(prefix):
                return
            yield order[at], self._values[order[at]]

    def everything(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield all rows and timers in key order."""
        return ((key, self._values[key]) for key in self._sorted() if key[:1] != META)
