"""The rows and timers of live partitions: in memory up to a limit that they share, and all in a temporary
file where there are more.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Mapping

from holdfast.pipeline.folds.spilling import SpillingStore

PLACE_BYTES = 4


class LiveRows(Mapping[bytes, bytes]):
    """The rows of one partition in a store shared with other partitions; they come in key order.

    The opener of the store closes it, after which rows cannot be read.
    """

    def __init__(self, store: SpillingStore, partition: int) -> None:
        self._store, self._place = store, partition.to_bytes(PLACE_BYTES, "big")

    def apply(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Take changes; None removes."""
        self._store.apply((self._place + key, value) for key, value in changes.items())

    def __getitem__(self, key: bytes) -> bytes:
        found = self._store.get(self._place + key)
        if found is None:
            raise KeyError(key)
        return found

    def __contains__(self, key: object) -> bool:
        return isinstance(key, bytes) and self._store.get(self._place + key) is not None

    def __iter__(self) -> Iterator[bytes]:
        return (key for key, _ in self.scan())

    def __len__(self) -> int:
        """Return the number of rows, which reads them all."""
        return sum(1 for _ in self.scan())

    def __bool__(self) -> bool:
        return next(self.scan(), None) is not None

    def items(self) -> ItemsView[bytes, bytes]:
        return _InOrder(self)

    def scan(self, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield key and value from *start* on, in key order."""
        found = self._store.scan(self._place, self._place + start)
        return ((key[PLACE_BYTES:], value) for key, value in found)


class _InOrder(ItemsView[bytes, bytes]):
    """Reads each row once, where that of a mapping would look each key up."""

    def __init__(self, rows: LiveRows) -> None:
        super().__init__(rows)
        self._rows = rows

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return self._rows.scan()


def apart(
    ours: Iterable[tuple[bytes, bytes]], theirs: Iterable[tuple[bytes, bytes]]
) -> tuple[bytes, bytes | None, bytes | None] | None:
    """Return the first key, and both values, at which rows in key order differ; None where they are the same.

    >>> apart([(b"a", b"1"), (b"b", b"2")], [(b"a", b"1"), (b"c", b"2")])
    (b'b', b'2', None)
    """
    left, right = iter(ours), iter(theirs)
    one, two = next(left, None), next(right, None)
    while one is not None or two is not None:
        if one != two:
            key = min(each[0] for each in (one, two) if each is not None)
            values = [None if each is None or each[0] != key else each[1] for each in (one, two)]
            return key, values[0], values[1]
        one, two = next(left, None), next(right, None)
    return None
