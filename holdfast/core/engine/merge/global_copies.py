"""A copy of a global table: folded partition by partition, and read as of any position that is still in
use.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from heapq import merge
from itertools import accumulate
from operator import itemgetter
from typing import Any, Protocol
from weakref import WeakSet

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.declared.global_tables import Global
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.fold.folding import Changes, Folder
from holdfast.core.engine.fold.patience import OnLater, never_wait
from holdfast.core.engine.fold.stepping import Refused
from holdfast.core.engine.fold.stretches import Portion, Stretch
from holdfast.core.engine.state.codec import text_key
from holdfast.core.engine.state.global_rows import Vector, covers, trimmed
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.core.engine.state.rows import Store
from holdfast.errors import FoldError, GlobalsError, Later

FOLD_RECORDS = 1_000
"""Records of a partition that change a copy at once. Readers wait for the whole change."""
CACHE_ROWS = 2_000
"""The number of rows that the fold of each partition caches decoded."""

_BY_KEY = itemgetter(0)
_MISSING = object()


class CopyStore(Store, Protocol):
    """The store of the rows of a copy. A scan yields the rows as of its start."""

    def apply(self, puts: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Take changes, all at once; None removes."""


def folded_by(table: Global[Any]) -> Processor[Any, Any]:
    """Return a processor that folds a partition of *table*'s topic; ConfigError if it is declared wrong."""
    return Processor(name=table.name, on={table.source: table.fold}, row=table.row)


def _prefix(partition: int) -> bytes:
    return partition.to_bytes(2, "big")


def key_in_copy(partition: int, key: bytes) -> bytes:
    """Return the key under which a copy's store has the row of a stored *key* that a partition has made."""
    return _prefix(partition) + key


def key_in_part(key: bytes) -> bytes:
    """Return the stored key that lies under *key* in a copy's store.

    >>> key_in_part(key_in_copy(7, b"\\x02ada"))
    b'\\x02ada'
    """
    return key[len(_prefix(0)) :]


class PartStore:
    """The rows of one partition of a copy, under the keys that they would have in a store of their own."""

    __slots__ = ("_prefix", "_store")

    def __init__(self, store: Store, partition: int) -> None:
        self._store, self._prefix = store, _prefix(partition)

    def get(self, key: bytes) -> bytes | None:
        return self._store.get(self._prefix + key)

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        cut = len(self._prefix)
        found = self._store.scan(self._prefix + prefix, self._prefix + start)
        return ((key[cut:], value) for key, value in found)


class GlobalView:
    """A copy as of *vector*, whatever is applied to it since.

    It keeps the rows that the copy overwrites, each key once, for as long as the view is referenced: at most
    the table's size. *stream_ms* is the highest append time among the records in it, -1 for none.
    """

    __slots__ = ("__weakref__", "_copy", "stream_ms", "undone", "vector")

    def __init__(self, copy: GlobalCopy, vector: Vector, stream_ms: int) -> None:
        self._copy, self.vector, self.stream_ms = copy, vector, stream_ms
        self.undone: dict[bytes, bytes | None] = {}

    def get(self, key: bytes) -> bytes | None:
        """Return the stored row of a stored key; raises FoldError when two partitions have one."""
        found: bytes | None = None
        with self._copy.lock:
            for partition in range(len(self.vector)):
                full = _prefix(partition) + key
                value: Any = self.undone.get(full, _MISSING)
                if value is _MISSING:
                    value = self._copy.store.get(full)
                if value is None:
                    continue
                if found is not None:
                    raise self._copy.in_two(key)
                found = value
        return found

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield stored (key, row) with *prefix* in key order, from *start* on; raises FoldError when two
        partitions have one.
        """
        with self._copy.lock:
            parts = [self._scan_one(partition, prefix, start) for partition in range(len(self.vector))]
        last: bytes | None = None
        for key, value in merge(*parts, key=_BY_KEY):
            if key == last:
                raise self._copy.in_two(key)
            last = key
            yield key, value

    def _scan_one(self, partition: int, prefix: bytes, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Begin to read the rows of one partition as they are now, without the changes since the view's
        position.
        """
        within, first = _prefix(partition) + prefix, _prefix(partition) + start
        cut = len(within) - len(prefix)
        undone = sorted(
            (key, value) for key, value in self.undone.items() if key.startswith(within) and key >= first
        )
        return _overlaid(self._copy.store.scan(within, first), undone, cut)


def _overlaid(
    stored: Iterator[tuple[bytes, bytes]], undone: Sequence[tuple[bytes, bytes | None]], cut: int
) -> Iterator[tuple[bytes, bytes]]:
    replaced = {key for key, _ in undone}
    kept = ((key[cut:], value) for key, value in stored if key not in replaced)
    before = ((key[cut:], value) for key, value in undone if value is not None)
    return merge(kept, before, key=_BY_KEY)


class GlobalCopy:
    """The rows of a global up to a position, which only increases; `view` keeps the current one readable.

    One thread applies; any may read, where a *lock* is given. *on_refused* gets refused records with their
    partition; *on_later* is called where a fold has to wait, as often as it has.

    >>> from holdfast.core.engine.declared.serdes import Text
    >>> from holdfast.core.engine.declared.sources import FoldWith, Source
    >>> def keep(rows, event, at_ms, key): rows[key] = event
    >>> copy = GlobalCopy(Global("names", Source("names", Text()), FoldWith(keep, ("key",)), row=str))
    >>> copy.apply(1, Batch([0], [5], ([b"Ada"], [b"a"])))
    >>> before = copy.view()
    >>> copy.apply(1, Batch([3], [6], ([b"Eve"], [b"a"])))
    >>> before.vector, before.get(b"\\x02a"), copy.vector, copy.view().get(b"\\x02a")
    ((-1, 0), b'\\x01\\xa3Ada', (-1, 3), b'\\x01\\xa3Eve')
    """

    def __init__(
        self,
        table: Global[Any],
        store: CopyStore | None = None,
        on_refused: Callable[[int, Refused], None] = lambda partition, refused: None,
        lock: AbstractContextManager[Any] | None = None,
        on_later: OnLater = never_wait,
    ) -> None:
        self.table, self.store, self._on_later = table, DictStore() if store is None else store, on_later
        self.lock: AbstractContextManager[Any] = nullcontext() if lock is None else lock
        """Held while the copy changes, and while one row of it is looked up; a thread that holds it may take
        it again.
        """
        self._processor, self._on_refused = folded_by(table), on_refused
        self.inputs = self._processor.folds[0].inputs
        """The columns that batches must have."""
        self._folders: dict[int, Folder[Any]] = {}
        self._applied: list[int] = []
        self._stream_ms = -1
        self._views: WeakSet[GlobalView] = WeakSet()

    @property
    def vector(self) -> Vector:
        """Return the position."""
        with self.lock:
            return trimmed(self._applied)

    def view(self) -> GlobalView:
        """Return the copy as of now. It costs memory for each later change, until it is released."""
        with self.lock:
            vector = trimmed(self._applied)
            for each in self._views:
                if each.vector == vector:
                    return each
            made = GlobalView(self, vector, self._stream_ms)
            self._views.add(made)
            return made

    def apply(self, partition: int, batch: Batch) -> None:
        """Fold records of *partition* that follow those folded before; earlier ones are passed over."""
        folder = self._folders.get(partition)
        if folder is None:
            folder = self._folders[partition] = Folder(
                self._processor, PartStore(self.store, partition), cache_rows=CACHE_ROWS
            )
        fresh = batch.after(folder.marker.applied[0])
        for start in range(0, len(fresh.offsets), FOLD_RECORDS):
            self._fold(partition, folder, fresh.slice(start, start + FOLD_RECORDS))

    def _fold(self, partition: int, folder: Folder[Any], batch: Batch) -> None:
        reached = [*accumulate(batch.times_ms, max, initial=folder.marker.reached_ms[0])][1:]
        changes = self._patiently(
            partition, folder, Stretch((Portion(batch, reached),), bytes(len(reached)), reached)
        )
        prefix = _prefix(partition)
        with self.lock:
            self._put(partition, [(prefix + key, value) for key, value in changes.puts], batch.offsets[-1])
            self._stream_ms = max(self._stream_ms, reached[-1])
        folder.commit()
        for each in changes.refused:
            self._on_refused(partition, each)

    def _patiently(self, partition: int, folder: Folder[Any], stretch: Stretch) -> Changes:
        while True:
            try:
                changes = folder.fold([stretch])
            except Later as later:
                offset = "" if later.at is None else f"/{later.at[1]}"
                self._on_later(
                    later, f"global table {self.table.name}: {self.table.topic}/{partition}{offset}"
                )
            else:
                assert changes is not None, "a stretch is never empty"
                return changes

    def _put(self, partition: int, puts: list[tuple[bytes, bytes | None]], applied: int) -> None:
        with self.lock:
            views = [*self._views]
            if views:
                for key, _ in puts:
                    before = self.store.get(key)
                    for each in views:
                        each.undone.setdefault(key, before)
            self.store.apply(puts)
            self._note(partition, applied)

    def _note(self, partition: int, applied: int) -> None:
        self._applied += [-1] * (partition + 1 - len(self._applied))
        self._applied[partition] = applied

    def passed(self, vector: Vector) -> None:
        """Move the position to *vector*. All records up to it are applied; the last one of a partition may be
        compacted away.
        """
        with self.lock:
            for partition, applied in enumerate(vector):
                self._note(partition, max(applied, trimmed_at(self._applied, partition)))

    def in_two(self, key: bytes) -> FoldError:
        """Return the error of a key that has rows in two partitions."""
        return FoldError(
            f"global table {self.table.name} has rows of {text_key(key)!r:.200} in two partitions of"
            f" {self.table.topic}, and no order between them: records of one key must lie in one partition;"
            " write the topic anew, since partitions that are added move keys"
        )


def trimmed_at(applied: Sequence[int], partition: int) -> int:
    """Return the last offset applied of *partition*, -1 for one that is not known."""
    return applied[partition] if partition < len(applied) else -1


@dataclass(slots=True)
class GlobalLog:
    """The records of one partition, and the offset before which all that there were are among them."""

    batches: Iterable[Batch]
    end: int


class _Cursor:
    """The unread rest of the log of one partition."""

    __slots__ = ("_batches", "_log", "_pending", "last")

    def __init__(self, log: GlobalLog) -> None:
        self._log, self._batches, self._pending = log, iter(log.batches), Batch((), (), ())
        self.last = -1

    def has_read(self, offset: int) -> bool:
        """Return whether nothing is left to read up to *offset*: its record may be gone."""
        return self.last >= offset or bool(self._pending.offsets) or self._log.end > offset

    def upto(self, offset: int) -> Iterator[Batch]:
        """Yield the records up to *offset* that were not yielded before."""
        while self.last < offset:
            if not self._pending.offsets:
                batch = next(self._batches, None)
                if batch is None:
                    return
                self._pending = batch
                continue
            cut = bisect_right(self._pending.offsets, offset)
            if not cut:
                return  # the record itself is gone, and those that follow are there
            taken, self._pending = (
                self._pending.slice(0, cut),
                self._pending.slice(cut, len(self._pending.offsets)),
            )
            self.last = taken.offsets[-1]
            yield taken


OpenLogs = Callable[[int], Mapping[int, GlobalLog]]


class GlobalReplay:
    """Globals read from their logs, from the beginning, up to exactly each position that was recorded.

    *open_logs* gives the log of each partition of the global with that number; it is asked once, when the
    first row is looked up. Positions of the open transaction stay readable, since that may be folded twice.
    *stores* are where the copies lie, in memory without. *on_later* is as that of `GlobalCopy`.
    """

    def __init__(
        self,
        reads: Sequence[Global[Any]],
        open_logs: OpenLogs,
        stores: Sequence[CopyStore] | None = None,
        on_later: OnLater = never_wait,
    ) -> None:
        self._tables = [
            _ReplayedTable(
                GlobalCopy(table, None if stores is None else stores[number], on_later=on_later),
                partial(open_logs, number),
            )
            for number, table in enumerate(reads)
        ]

    def move(self, number: int, vector: Vector) -> None:
        self._tables[number].move(vector)

    def view(self, number: int, vector: Vector) -> GlobalView:
        return self._tables[number].view(vector)

    def settle(self, number: int, vector: Vector) -> None:
        self._tables[number].settle(vector)

    def read(self, number: int, vector: Vector) -> None:
        """Apply the records up to *vector* that the logs hold now. Positions of the open transaction stay
        readable.
        """
        self._tables[number].read(vector)


class _ReplayedTable:
    """One global of a replay, with the positions from the beginning of the transaction on: *path*."""

    def __init__(self, copy: GlobalCopy, open_logs: Callable[[], Mapping[int, GlobalLog]]) -> None:
        self._copy, self._open_logs = copy, open_logs
        self._logs: dict[int, _Cursor] | None = None
        self._path: dict[Vector, GlobalView | None] = {(): None}

    def move(self, vector: Vector) -> None:
        self._path.setdefault(vector, None)

    def settle(self, vector: Vector) -> None:
        self._path.setdefault(vector, None)
        for each in [*self._path]:
            if each == vector:
                return
            del self._path[each]

    def view(self, vector: Vector) -> GlobalView:
        for each in [*self._path]:
            if self._path[each] is None:
                self._path[each] = self._advance(each)
            if each == vector:
                break
        found = self._path.get(vector)
        assert found is not None, "move to a position before it is looked at"
        return found

    def _advance(self, vector: Vector) -> GlobalView:
        copy = self._copy
        if not covers(vector, copy.vector):
            raise GlobalsError(
                f"global table {copy.table.name} was read up to {list(copy.vector)} and cannot be shown at"
                f" {list(vector)}: positions never go back; give the processor another name"
            )
        logs = self.read(vector)
        for partition, last in enumerate(vector):
            cursor = logs.get(partition)
            if last >= 0 and (cursor is None or not cursor.has_read(last)):
                raise GlobalsError(
                    f"{copy.table.topic} partition {partition} ends before offset {last}, up to which global"
                    f" table {copy.table.name} had been read: its topic must be kept whole (retention.ms=-1,"
                    " cleanup.policy=delete), as long as the sources"
                )
        copy.passed(vector)
        return copy.view()

    def read(self, vector: Vector) -> Mapping[int, _Cursor]:
        """Apply the records of the logs up to *vector*, and return the rest of the logs."""
        if self._logs is None:
            self._logs = {number: _Cursor(log) for number, log in self._open_logs().items()}
        for partition, last in enumerate(vector):
            if partition in self._logs:
                for batch in self._logs[partition].upto(last):
                    self._copy.apply(partition, batch)
        return self._logs


class WorkerGlobals:
    """The globals of one partition on a worker: *copies* of the whole tables, which change independently of
    its transactions.

    `pin` before each transaction, and `see` what it gives. While recorded choices are obeyed, which name
    positions that the copies have passed, *history* shows those.
    """

    def __init__(self, copies: Sequence[GlobalCopy]) -> None:
        self._copies = copies
        self._pinned: list[GlobalView] = []
        self.history: GlobalReplay | None = None

    def reach(self, vectors: Sequence[Vector]) -> bool:
        """Return whether the copies have come to *vectors*: a transaction may not see less than the one
        before it.
        """
        return all(covers(copy.vector, vector) for copy, vector in zip(self._copies, vectors, strict=True))

    def pin(self) -> tuple[Vector, ...]:
        """Keep the copies readable as they are now, and return where that is."""
        self._pinned = [copy.view() for copy in self._copies]
        return tuple(each.vector for each in self._pinned)

    def release(self) -> None:
        """Release the pinned views: the transaction has ended."""
        self._pinned = []

    def move(self, number: int, vector: Vector) -> None:
        if self.history is not None:
            self.history.move(number, vector)

    def settle(self, number: int, vector: Vector) -> None:
        if self.history is not None:
            self.history.settle(number, vector)

    def view(self, number: int, vector: Vector) -> GlobalView:
        if self.history is not None:
            return self.history.view(number, vector)
        if self._pinned and (found := self._pinned[number]).vector == vector:
            return found
        raise GlobalsError(
            f"global table {self._copies[number].table.name} is not pinned at {list(vector)}: no transaction"
            " is open there"
        )
