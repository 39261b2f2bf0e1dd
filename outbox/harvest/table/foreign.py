"""Other programs' marks in the table of a `fenced` harvester: reapers (or harvesters of strategy `mark`) that
still run publish the same rows.

A reaper marks rows, publishes and deletes them. It heeds no marks but its own, so nothing in the table can
keep it off; the harvester can only see it at work and leave the rows to it. Marks that no longer change are
left over from a reaper that ended: after a while these rows are published as all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.clock import Clock, system_clock
from holdfast.outbox.harvest.table.rows import OutboxRows
from holdfast.outbox.schema.layouts import OutboxRow

QUIET_S = 10.0
"""The time without a row marked, or a marked one taken away, after which this harvester publishes."""

Mark = tuple[int, str]


class ForeignMarks:
    """The marks in a table whose rows this harvester publishes without marking them."""

    def __init__(self, clock: Clock = system_clock, quiet_s: float | None = None) -> None:
        self._clock, self._quiet_s = clock, QUIET_S if quiet_s is None else quiet_s
        self._moved_s: float | None = None
        self._seen: frozenset[Mark] = frozenset()
        self._left_behind: frozenset[Mark] = frozenset()

    def look(self, rows: Iterable[OutboxRow]) -> None:
        """Note the marks of the lowest rows, as they were just taken."""
        found = frozenset((row.id, row.mark) for row in rows if row.mark is not None) - self._left_behind
        if found != self._seen:
            self._seen = found
            self.moved()

    def moved(self) -> None:
        """Another program was seen at work."""
        self._moved_s = self._clock.monotonic_s()

    def others(self, marks: Iterable[Mark]) -> bool:
        """Return whether there are marks among these that are not known to be left over."""
        return not self._left_behind.issuperset(marks)

    @property
    def refusal(self) -> str | None:
        """Return why nothing may be published now; None when no other program is at work."""
        if self._moved_s is None:
            return None
        quiet_s = self._clock.monotonic_s() - self._moved_s
        if quiet_s >= self._quiet_s:
            return None
        return (
            "rows bear marks in leader_id that are not this harvester's: a goharvest reaper, or a harvester"
            " of strategy mark, works on the same table, and rows would be published twice. Stop it;"
            f" {self._quiet_s:g} s after its last mark this one goes on"
        )

    def settled(self, left_behind: Iterable[Mark]) -> None:
        """No other program has been at work for long: *left_behind* are all marks that are still there."""
        self._left_behind, self._seen, self._moved_s = frozenset(left_behind), frozenset(), None

    @property
    def waits(self) -> bool:
        """Return whether another program was at work, and `settled` was not called since."""
        return self._moved_s is not None


def delete_watching(rows: OutboxRows, published: Sequence[OutboxRow]) -> tuple[int, list[Mark]]:
    """Delete published rows, and return how many were there and which bore a mark by now."""
    marks = rows.marks([row.id for row in published])
    return rows.delete(published), marks
