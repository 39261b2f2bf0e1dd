"""The fold of a partition: batches of records in, one transaction's worth of changes out. Live, local and Spark all run this."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from holdfast.core.codec import APPLIED, NOTHING_APPLIED, Marker, RowCodec, encode_due, encode_marker, row_key, wake_key
from holdfast.core.processor import _TOPIC, Emit, Emits, Processor
from holdfast.core.rows import JournaledRows, Rows, Store
from holdfast.errors import FoldError

R = TypeVar("R")

Stage = Literal["decode", "fold", "wake"]
STEP_RECORDS = 512
LIMIT_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive records of one partition as columns of equal length, offsets ascending.

    *columns* are the processor's inputs in its order. *times_ms* are append times as the broker gave them (-1 for none).
    """

    offsets: Sequence[int]
    times_ms: Sequence[int]
    columns: tuple[Sequence[Any], ...]

    def after(self, applied: int) -> Batch:
        """Return the part of the batch whose offsets are above *applied*."""
        if not self.offsets or self.offsets[0] > applied:
            return self
        cut = bisect_right(self.offsets, applied)
        return self.slice(cut, len(self.offsets))

    def slice(self, start: int, stop: int) -> Batch:
        return Batch(self.offsets[start:stop], self.times_ms[start:stop], tuple(column[start:stop] for column in self.columns))


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A record (or, at stage "wake", a timer met at that record) that changed nothing because decoding or folding it failed."""

    offset: int
    stage: Stage
    error: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition(Generic[R]):
    """One change of one row: what the record at *offset* made of it; None for no row."""

    offset: int
    at_ms: int
    key: str
    before: R | None
    after: R | None


@dataclass(slots=True, kw_only=True)
class Changes:
    """What one transaction writes: stored keys with new values (None deletes), records to emit, records refused.

    *marker* closes the transaction: everything up to `marker.applied` is in the state once this is applied.
    """

    marker: Marker
    records: int
    puts: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    emits: list[Emit] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)

    def stored(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield every (key, value) of the changelog's part of the transaction, the marker last."""
        yield from self.puts
        yield APPLIED, encode_marker(self.marker)


class Folder(Generic[R]):
    """State of one partition between transactions: its rows, its position, its stream time.

    A transaction is first folded at full speed. If anything in it fails, it is rolled back and folded again record by record, each
    undone on failure: because folds are pure, the records before the bad one give the same rows again, and a healthy stream
    pays nothing for being able to refuse one record.

    With *trace*, every transaction is folded record by record and each change of a row is told.
    """

    def __init__(
        self,
        processor: Processor[Any, R],
        store: Store,
        *,
        applied: int = NOTHING_APPLIED,
        stream_ms: int = -1,
        cache_rows: int = 200_000,
        limit_bytes: int = LIMIT_BYTES,
        trace: Callable[[Transition[R]], None] | None = None,
    ) -> None:
        self.processor = processor
        self.applied, self.stream_ms, self._before_ms = applied, stream_ms, stream_ms
        self._codec: RowCodec[R] = RowCodec(processor.row)
        self.rows: Rows[R] = Rows(store, self._codec, cache_rows)
        self._limit_bytes, self._trace = limit_bytes, trace
        self._emits: list[Emit] = []
        self._refused: list[Refused] = []
        self.changes: Changes | None = None

    def fold(self, batches: Iterable[Batch]) -> Changes | None:
        """Fold *batches* as one transaction; None when all of it was applied before. Follow with `commit` or `rollback`."""
        for _ in self.steps(batches):
            pass
        return self.changes

    def steps(self, batches: Iterable[Batch]) -> Iterator[None]:
        """Fold *batches* as one transaction, yielding now and then so that a caller can let others work; then see `changes`."""
        assert self.changes is None, "commit or roll back the transaction before folding the next"
        fresh = [batch for batch in (each.after(self.applied) for each in batches) if batch.offsets]
        if not fresh:
            return
        self._before_ms = self.stream_ms
        if self._trace is None:
            try:
                yield from self._fast(fresh)
                return
            except MemoryError:
                raise
            except Exception:  # noqa: BLE001  any failure of user code
                self.rollback()
        yield from self._careful(fresh)

    def commit(self) -> None:
        """Take `changes` as durable: the position moves and the rows become readable by later transactions' look-ups."""
        assert self.changes is not None
        self.applied = self.changes.marker.applied
        self.rows.commit()
        self._forget()

    def rollback(self) -> None:
        """Forget the transaction in progress."""
        self.stream_ms = self._before_ms
        self.rows.rollback()
        self._forget()

    def _forget(self) -> None:
        self._emits, self._refused, self.changes = [], [], None

    # -- at full speed

    def _fast(self, batches: list[Batch]) -> Iterator[None]:
        for batch in batches:
            if len(batch.offsets) <= STEP_RECORDS:
                self._fast_step(batch)
                yield
                continue
            for start in range(0, len(batch.offsets), STEP_RECORDS):
                self._fast_step(batch.slice(start, start + STEP_RECORDS))
                yield
        yield from self._close(batches, checked=False)

    def _fast_step(self, batch: Batch) -> None:
        rows, fold, emit, now_ms = self.rows, self.processor.fold, self._emits.extend, self.stream_ms
        for event, at_ms in zip(map(self.processor.decode, *batch.columns), batch.times_ms, strict=True):
            if at_ms > now_ms:
                now_ms = at_ms
                if rows.next_wake_ms <= now_ms:
                    self._wake_fast(rows, now_ms)
            emits = fold(rows, event, now_ms)
            if emits is not None:
                emit(emits)
        self.stream_ms = now_ms

    def _wake_fast(self, rows: Rows[R], now_ms: int) -> None:
        while (due := rows.due(now_ms)) is not None:
            self._emits.extend(self._on_wake(rows, *due) or ())

    def _on_wake(self, rows: Rows[R], key: str, at_ms: int) -> Emits:
        if self.processor.on_wake is None:
            raise FoldError(f"processor {self.processor.name} sets timers (key {key!r}) but declares no on_wake")
        return self.processor.on_wake(rows, key, at_ms)

    # -- record by record

    def _careful(self, batches: list[Batch]) -> Iterator[None]:
        rows = JournaledRows(self.rows)
        for batch in batches:
            for at, (offset, at_ms) in enumerate(zip(batch.offsets, batch.times_ms, strict=True)):
                self._careful_record(rows, offset, at_ms, [column[at] for column in batch.columns])
                if at % STEP_RECORDS == STEP_RECORDS - 1:
                    yield
            yield
        yield from self._close(batches, checked=True)

    def _careful_record(self, rows: JournaledRows[R], offset: int, at_ms: int, inputs: list[Any]) -> None:
        if at_ms > self.stream_ms:
            self.stream_ms = at_ms
            while (due := rows.due(at_ms)) is not None:
                rows.keep()  # a timer that fails has fired all the same
                key, due_ms = due
                self._attempt(rows, offset, "wake", lambda key=key, due_ms=due_ms: self._on_wake(rows, key, due_ms))  # type: ignore[misc]
        try:
            event = self.processor.decode(*inputs)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001  any failure of user code
            self._refuse(offset, "decode", error)
            return
        self._attempt(rows, offset, "fold", lambda: self.processor.fold(rows, event, self.stream_ms))

    def _attempt(self, rows: JournaledRows[R], offset: int, stage: Stage, act: Callable[[], Emits]) -> None:
        try:
            emits = list(act() or ())
            for emit in emits:
                self._check_emit(emit)
            for key in rows.before:
                self._encoded(key, rows.get(key))
            for key in rows.wakes_before:
                wake_key(key)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001  any failure of user code
            rows.undo()
            self._refuse(offset, stage, error)
            return
        self._emits.extend(emits)
        if self._trace is not None:
            for key, (before, _) in rows.before.items():
                self._trace(Transition(offset=offset, at_ms=self.stream_ms, key=key, before=before, after=rows.get(key)))
        rows.keep()

    def _refuse(self, offset: int, stage: Stage, error: Exception) -> None:
        self._refused.append(Refused(offset=offset, stage=stage, error=type(error).__name__, reason=str(error)[:1000]))

    # -- the end of a transaction

    def _close(self, batches: list[Batch], *, checked: bool) -> Iterator[None]:
        if not checked:
            for emit in self._emits:
                self._check_emit(emit)
        rows, wakes = self.rows.changed()
        puts: list[tuple[bytes, bytes | None]] = []
        for key, row in rows.items():
            puts.append(self._encoded(key, row))
            if len(puts) % STEP_RECORDS == 0:
                yield
        puts.extend((wake_key(key), None if at_ms is None else encode_due(at_ms)) for key, at_ms in wakes.items())
        marker = Marker(batches[-1].offsets[-1], self.stream_ms, self.processor.version)
        records = sum(len(batch.offsets) for batch in batches)
        self.changes = Changes(marker=marker, records=records, puts=puts, emits=self._emits, refused=self._refused)

    def _encoded(self, key: str, row: R | None) -> tuple[bytes, bytes | None]:
        stored = row_key(key)
        if row is None:
            return stored, None
        value = self._codec.encode(row)
        if len(stored) + len(value) > self._limit_bytes:
            raise FoldError(f"row {key[:80]!r} takes {len(stored) + len(value)} bytes, the limit is {self._limit_bytes}")
        return stored, value

    def _check_emit(self, emit: Emit) -> None:
        if not isinstance(emit, Emit):
            raise FoldError(f"a fold may emit only Emit, not {type(emit).__name__}")
        if not isinstance(emit.topic, str) or not _TOPIC.fullmatch(emit.topic):
            raise FoldError(f"emit to {emit.topic!r}: not a valid topic name")
        if not isinstance(emit.key, str | bytes | type(None)) or not isinstance(emit.value, bytes | type(None)):
            raise FoldError(f"emit to {emit.topic}: key must be str or bytes and value bytes, or None")
        size = len(emit.key or b"") + len(emit.value or b"") + sum(len(name) + len(value or b"") for name, value in emit.headers)
        if size > self._limit_bytes:
            raise FoldError(f"emit to {emit.topic} takes {size} bytes, the limit is {self._limit_bytes}")
