"""The watermarks of origins, as a table of windows or of a join stores them in rows."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from holdfast.core.engine.origins import NAMELESS, HeldBack, Mark, OriginWatermarks
from holdfast.core.engine.state.rows import Rows
from holdfast.core.streams.windowing.rows import ORIGINS, OriginRow, origin_key, stream_key


class RowsOfOrigins:
    """The watermarks of one source of a partition, in memory over its rows. The rows are set when the
    transaction ends, or at once where each record's changes must be visible.

    Records without the header have the origin NAMELESS.
    """

    __slots__ = ("_counts", "_name", "_source", "changed", "is_named", "stream", "watermarks")

    def __init__(self, rows: Rows[Any], partition: int, source: int, name: str) -> None:
        self._source, self._name = (partition, source), name
        self.watermarks = found = OriginWatermarks()
        self.is_named = False
        """True once a record or mark with a header was met: before that there are no rows of origins."""
        self.stream: Any = None
        """The partition's `StreamRow` that is to be set with the rows of origins; None where the fold sets it
        itself.
        """
        self._counts: dict[int, tuple[int, int, int]] = {}
        self.changed: set[int] = set()
        """The origins whose rows are yet to be set, when the transaction ends."""
        for key, row in rows.scan(name):
            origin = int(key[len(name) :])
            found.restore(origin, row.watermark_ms, has_ended=row.has_ended, origins=row.origins)
            self._counts[origin] = row.origins, row.late, row.late_after_idle
            self.is_named |= origin != NAMELESS

    @property
    def source(self) -> int:
        """Return the number of the source."""
        return self._source[1]

    @property
    def late_after_idle(self) -> int:
        """Return how many records were late only because other origins advanced after theirs had let go."""
        return sum(each[2] for each in self._counts.values())

    @property
    def held_back(self) -> list[HeldBack]:
        """Return the origin that holds the watermark of the source back; empty without one."""
        held = self.watermarks.held_back
        if held is None:
            return []
        origin, lag_ms = held
        return [HeldBack(self.source, origin, None if origin is None else lag_ms)]

    def begin(self, rows: Rows[Any], nameless_ms: int) -> None:
        """Handle the first header; records without one had come to *nameless_ms*."""
        self.is_named = True
        if nameless_ms >= 0:
            self.hear(rows, NAMELESS, nameless_ms)

    def hear(self, rows: Rows[Any], origin: int, watermark_ms: int) -> None:
        """Advance *origin* to *watermark_ms*, which it has reached with a record."""
        if self.watermarks.hear(origin, watermark_ms):
            self.note(rows, origin)

    def note(self, rows: Rows[Any], origin: int) -> None:
        """Have the row of *origin* set, whose watermark has changed; callers may skip one that is in
        `changed`.
        """
        self.changed.add(origin)
        self._set(rows)

    def count(self, rows: Rows[Any], origin: int, *, after_idle: bool) -> None:
        """Count a late record of *origin*; *after_idle*, only since others advanced without it."""
        origins, late, idle = self._counts.get(origin, _NOTHING)
        self._counts[origin] = origins, late + (not after_idle), idle + after_idle
        self.changed.add(origin)
        self._set(rows)

    def mark(self, rows: Rows[Any], mark: Mark) -> None:
        """Apply a mark to the watermark of its origin."""
        self.watermarks.mark(mark)
        origins, late, idle = self._counts.get(mark.origin, _NOTHING)
        self._counts[mark.origin] = max(origins, mark.origins), late, idle
        self.changed.add(mark.origin)
        self._set(rows)

    def set_stream(self, rows: Rows[Any], stream: Any) -> None:
        """Have the row of the partition's stream time set with those of origins."""
        self.stream = stream
        self._set(rows)

    def _set(self, rows: Rows[Any]) -> None:
        if rows.deferred is None:
            self._write(rows)
        else:
            rows.deferred[self._name] = self._write

    def _write(self, rows: Rows[Any]) -> None:
        of = self.watermarks
        for origin in sorted(self.changed):
            name = origin_key(*self._source, origin)
            row = OriginRow(of.marks[origin], origin in of.ended, *self._counts.get(origin, _NOTHING))
            if row != rows.get(name):
                rows[name] = row
        self.changed.clear()
        if self.stream is not None and self.stream != rows.get(name := stream_key(self._source[0])):
            rows[name] = self.stream


_NOTHING = (-1, 0, 0)


@lru_cache(maxsize=4_096)
def origins_prefix(partition: int, source: int = 0) -> str:
    """Return the prefix of the keys of the rows of origins, which is also their key in `Rows.derived`."""
    return f"{ORIGINS}{partition}/{source}/"


def origins_of(rows: Rows[Any], partition: int, source: int = 0) -> RowsOfOrigins:
    """Return the origins of a source of a partition, which are kept in memory with the rows."""
    name = origins_prefix(partition, source)
    found: RowsOfOrigins | None = rows.derived.get(name)
    if found is None:
        found = rows.derived[name] = RowsOfOrigins(rows, partition, source, name)
    return found
