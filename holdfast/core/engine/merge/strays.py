"""Finds changelog records that no worker wrote, and the records that restore the last committed state.

A worker writes transactions only, each of rows and timers and, last, the position marker. Whatever else a
reader of committed records is shown is a stray. A value that a stray hid comes from the log itself where it
is still there. Compaction drops values that it takes for replaced: then only a replay of the source has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.core.engine.fold.stepping import WATERMARKS
from holdfast.core.engine.origins import decode_clock
from holdfast.core.engine.positions import Position, PositionFormat, goes_back, plain_format
from holdfast.core.engine.state.base import BASE, decode_base
from holdfast.core.engine.state.codec import (
    APPLIED,
    EVENT,
    FORMAT,
    META,
    NAMED,
    ROW_KINDS,
    TICK,
    TIMER_KINDS,
    WAKE,
)
from holdfast.core.engine.state.evolution import ROW_TYPES, decode_row_types
from holdfast.core.engine.state.handover import HANDOVER, decode_handover
from holdfast.core.engine.state.lost_heads import LOST_HEADS, decode_lost_heads
from holdfast.core.engine.state.passing_refusals import is_refusal_note, refusals_in
from holdfast.core.engine.state.recovery import RECOVERY, decode_recovery
from holdfast.core.engine.state.source_ids import SOURCE_IDS, decode_source_ids
from holdfast.core.kafka.record_batch import NO_PRODUCER, ControlType, RecordBatch, control_of
from holdfast.errors import ChangelogError

_DUE_BYTES = 8


class Stray(NamedTuple):
    """A record that no worker wrote, and *why* that is known.

    *producer_id* is None for one written by no transactional or idempotent producer.
    """

    offset: int
    key: bytes | None
    value: bytes | None
    producer_id: int | None
    why: str


class _Written(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None


class _Seen(NamedTuple):
    """The last record of a key: a worker's, or a stray."""

    offset: int
    value: bytes | None
    stray: bool


@dataclass(slots=True, kw_only=True)
class Mending:
    """The records that restore the last state of a worker.

    *unknown* are keys whose value the log has lost; *marker* None: the log has lost the position.
    """

    puts: dict[bytes, bytes | None]
    marker: Position | None
    unknown: tuple[bytes, ...] = ()
    clean: bool = False
    """True if a reader is shown no stray at the end: there are none, or all were written over."""


@dataclass(slots=True, kw_only=True)
class ForeignRecords:
    """One partition of a changelog as it lies there."""

    strays: list[Stray]
    marker: Position | None
    disowned_at: int | None
    open_at: int | None
    end: int
    _seen: dict[bytes, _Seen] = field(default_factory=dict)
    _good: dict[bytes, _Written] = field(default_factory=dict)
    _first_hole: float = inf
    _positions: PositionFormat = field(default_factory=lambda: plain_format(0))

    def row_keys(self) -> Iterable[bytes]:
        """Return every key but that of the position marker, those of strays too."""
        return (key for key in self._seen if key != APPLIED)

    def state(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values as a reader of committed records finds them, but for the marker."""
        return (
            (key, each.value) for key, each in self._seen.items() if each.value is not None and key != APPLIED
        )

    def changes_to(self, wanted: Mapping[bytes, bytes]) -> dict[bytes, bytes | None]:
        """Return the changes after which a reader finds *wanted* and nothing else, except the marker."""
        gone = dict.fromkeys(key for key in self.row_keys() if key not in wanted)
        ours = dict(self.state())
        return {**gone, **{key: value for key, value in wanted.items() if ours.get(key) != value}}

    def notes(self) -> dict[bytes, bytes]:
        """Return the notes as the last worker left them, by key."""
        return {
            key: value
            for key, seen in self._seen.items()
            if key[:1] == META and key != APPLIED
            if (value := self._last_good(key, seen)) is not None
        }

    def _last_good(self, key: bytes, seen: _Seen) -> bytes | None:
        if not seen.stray:
            return seen.value
        good = self._good.get(key)
        return None if good is None else good.value

    def mend(self) -> Mending:
        """Return the records that restore the state that the last worker left."""
        puts: dict[bytes, bytes | None] = {}
        unknown: list[bytes] = []
        for key, seen in self._seen.items():
            if not seen.stray or key == APPLIED:
                continue
            puts[key] = self._last_good(key, seen)
            if (
                key not in self._good
                and (key == WATERMARKS or key[:1] in _kinds(self._positions))
                and self._first_hole < seen.offset
            ):
                unknown.append(key)
        marker = self._seen.get(APPLIED)
        clean = not puts and (marker is None or not marker.stray)
        return Mending(puts=puts, marker=self._position(), unknown=tuple(sorted(unknown)), clean=clean)

    def _position(self) -> Position | None:
        if self.marker is not None:
            return self.marker
        seen = self._seen.get(APPLIED)
        if seen is None and not self._good:
            return replace(self._positions.start, version=0)
        if seen is not None and seen.stray and self._first_hole > seen.offset and not self._good:
            return replace(self._positions.start, version=0)
        return None


class Audit:
    """Takes whole batches of one partition in their order, from the beginning of the log, and finds the
    strays. *positions* is how the table's workers write theirs: of one source unless it is given.
    """

    def __init__(self, version: int, positions: PositionFormat | None = None) -> None:
        self._version, self._positions = version, positions or plain_format(version)
        self._open: dict[int, list[_Written]] = {}
        self._strays: list[Stray] = []
        self._seen: dict[bytes, _Seen] = {}
        self._good: dict[bytes, _Written] = {}
        self._marker: Position | None = None
        self._marker_at = -1
        self._disowned_at: int | None = None
        self._next = 0
        self._first_hole: float = inf
        self._last_hole = -1

    def add(self, batch: RecordBatch) -> None:
        """Take the next batch."""
        for record in batch.records:
            offset = batch.base_offset + record.offset_delta
            self._note_hole(offset)
            self._next = offset + 1
            if batch.is_control:
                kind = control_of(batch, record).type
                if kind in (ControlType.COMMIT, ControlType.ABORT):
                    self._end(batch.producer_id, commit=kind is ControlType.COMMIT)
            elif batch.is_transactional:
                self._open.setdefault(batch.producer_id, []).append(
                    _Written(offset, record.key, record.value)
                )
            else:
                producer = None if batch.producer_id == NO_PRODUCER else batch.producer_id
                self._stray(
                    _Written(offset, record.key, record.value), producer, "not written in a transaction"
                )
        self._note_hole(batch.last_offset + 1)
        self._next = max(self._next, batch.last_offset + 1)

    def _note_hole(self, offset: int) -> None:
        if offset > self._next:
            self._first_hole = min(self._first_hole, self._next)
            self._last_hole = offset - 1

    def findings(self) -> ForeignRecords:
        """Return the strays and the state of the log up to here."""
        opened = [records[0].offset for records in self._open.values() if records]
        disowned = (
            self._disowned_at
            if self._disowned_at is not None and self._disowned_at > self._marker_at
            else None
        )
        return ForeignRecords(
            strays=sorted(self._strays),
            marker=self._marker,
            disowned_at=disowned,
            open_at=min(opened, default=None),
            end=self._next,
            _seen=self._seen,
            _good=self._good,
            _first_hole=self._first_hole,
            _positions=self._positions,
        )

    def _end(self, producer_id: int, *, commit: bool) -> None:
        records = self._open.pop(producer_id, [])
        if not records or not commit:
            return
        if (why := self._objection(records)) is not None:
            for each in records:
                self._stray(each, producer_id, why)
            return
        for each in records:
            assert each.key is not None
            self._see(each, stray=False)
            if each.key != APPLIED:
                before = self._good.get(each.key)
                if before is None or before.offset < each.offset:
                    self._good[each.key] = each
            elif each.value is None:
                self._disowned_at = each.offset
            elif each.offset > self._marker_at:
                self._marker, self._marker_at = self._positions.decode(each.value), each.offset

    def _objection(self, records: list[_Written]) -> str | None:
        """Return why no worker wrote this transaction, None when one may have.

        What compaction took out of it is not missed.
        """
        last = records[-1]
        for each in records:
            if (why := _unfit(each, self._positions)) is not None:
                return why
            if each.key == APPLIED and each is not last and each.value is not None:
                return "a position marker that does not end its transaction"
        if last.key == APPLIED:
            # A repair that goes back takes the position away first.
            is_repair = any(each.key == APPLIED for each in records[:-1])
            return (
                None
                if last.value is None
                else self._marker_objection(self._positions.decode(last.value), may_go_back=is_repair)
            )
        if self._last_hole < last.offset:
            return "no position marker ends its transaction"
        return None

    def _marker_objection(self, marker: Position, *, may_go_back: bool) -> str | None:
        if marker.version != self._version:
            return f"its position marker is of version {marker.version}"
        if not may_go_back and self._marker is not None and goes_back(self._marker, marker):
            before, now = (", ".join(map(str, each.applied)) for each in (self._marker, marker))
            return f"its position goes back from {before} to {now}"
        return None

    def _stray(self, written: _Written, producer_id: int | None, why: str) -> None:
        self._strays.append(Stray(written.offset, written.key, written.value, producer_id, why))
        self._see(written, stray=True)

    def _see(self, written: _Written, *, stray: bool) -> None:
        if written.key is None:
            return
        before = self._seen.get(written.key)
        if before is None or before.offset < written.offset:
            self._seen[written.key] = _Seen(written.offset, written.value, stray)


def _kinds(positions: PositionFormat) -> tuple[bytes, ...]:
    """Return the kinds of keys that are rows and timers: those of ticks and of event time where there may be
    any.
    """
    ticks = (TICK,) if positions.start.reached_ms else ()
    events = () if positions.start.event_ms is None else (EVENT,)
    return (*ROW_KINDS, WAKE, *ticks, *events)


def _unfit(written: _Written, positions: PositionFormat) -> str | None:
    """Return why no worker writes such a record, None when it fits."""
    key, value = written.key, written.value
    if key is None:
        return "a record without a key"
    if value is None:
        return None  # also under keys of no row: a repair removes strays so
    if key == APPLIED:
        return _unfit_marker(value, positions)
    if key in _NOTES or is_refusal_note(key):
        return _unfit_note(key, value)
    if key[:1] not in _kinds(positions):
        return f"a key of unknown kind {key[:1].hex() or 'none'}"
    try:
        key[1:].decode()
    except UnicodeDecodeError:
        return "a key that is not text"
    if key[:1] == NAMED and b"\x00" not in key:
        return "a row of a table without a name"
    if key[:1] in TIMER_KINDS and len(value) != _DUE_BYTES:
        return f"a timer of {len(value)} bytes"
    if key[:1] in ROW_KINDS and value[:1] != FORMAT:
        return f"a row of unknown format {value[:1].hex() or 'none'}"
    return None


_NOTES: dict[bytes, tuple[str, Callable[[bytes], object]]] = {
    BASE: ("the base", decode_base),
    HANDOVER: ("the handover", decode_handover),
    LOST_HEADS: ("lost heads", decode_lost_heads),
    RECOVERY: ("the recovery", decode_recovery),
    ROW_TYPES: ("row types", decode_row_types),
    SOURCE_IDS: ("the sources' ids", decode_source_ids),
    WATERMARKS: ("watermarks", decode_clock),
}


def _unfit_note(key: bytes, value: bytes) -> str | None:
    of, decode = _NOTES.get(key, ("a refusal", lambda _: refusals_in([key])))
    try:
        decode(value)
    except ChangelogError:
        return f"a note of {of} that cannot be read"
    return None


def _unfit_marker(value: bytes, positions: PositionFormat) -> str | None:
    try:
        positions.decode(value)
    except ChangelogError:
        return "a position marker that cannot be read"
    return None


__all__ = ["Audit", "ForeignRecords", "Mending", "Stray"]
