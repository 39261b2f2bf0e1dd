"""The state of one partition of the ranges' log: the rows whose records are in it, and how much of it they
need.
"""

from __future__ import annotations

from holdfast.core.ranges import Base, Horizon, RangeRow, Wish, fold_range


class RangeHome:
    """One partition of the ranges' log as far as it is folded: all before `next` (-1: nothing yet)."""

    def __init__(self, lease_ms: int) -> None:
        self._lease_ms = lease_ms
        self._keys: dict[str, int] = {}
        self._key_of: dict[int, str] = {}
        self.forget()

    def add(self, key: str, partition: int) -> None:
        """Have the row of *partition* here, whose records have *key*: the log is to be read again from its
        beginning.
        """
        self._keys[key], self._key_of[partition] = partition, key

    def forget(self) -> None:
        """Reset to the state before anything was read."""
        self.rows: dict[int, RangeRow] = {}
        self.horizon = Horizon()
        self.next = -1
        self.trimmed = 0
        """The offset before which we had the broker delete all."""

    def fold(self, key: str, wish: Wish, offset: int, at_ms: int) -> bool:
        """Fold a record; return whether it counted."""
        previous = self.horizon.note(key, wish, offset, at_ms)
        partition = self._keys.get(key)
        if partition is None:
            return False
        before = self.rows.get(partition)
        row = fold_range(before, wish, offset, at_ms, self._lease_ms, previous)
        if row is None or row is before:
            return False
        self.rows[partition] = row
        return True

    def has_missed(self, begin: int, end: int) -> bool:
        """Return whether the log, from *begin* to before *end* now, has lost unread records, or is another
        one than was read.
        """
        return 0 <= self.next < begin or end < self.next

    def is_begun_by(self, key: str, wish: Wish) -> bool:
        """Return whether a record's writer found no row where we have one."""
        return isinstance(wish, Base) and wish.after < 0 and self._keys.get(key) in self.rows

    def lacks(self, partition: int, begin: int) -> bool:
        """Return whether who begins to read at *begin* lacks records of a row that we have."""
        return self.horizon.lacks(self._key_of[partition], begin)

    def base(self, partition: int) -> Base:
        """Return the record that writes a row again, for every reader if it directly follows the row's
        last.
        """
        return Base(self.horizon.last(self._key_of[partition]), self.rows[partition].row)
