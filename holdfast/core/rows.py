"""The rows of one source partition as a fold sees them: a dict-like overlay that remembers what changed."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import chain
from typing import Generic, Protocol, TypeVar, overload

from holdfast.core.codec import ROW, WAKE, RowCodec, decode_due, row_key, text_key
from holdfast.errors import FoldError

R = TypeVar("R")
D = TypeVar("D")

NEVER = 1 << 62


class Store(Protocol):
    """Where committed rows lie. RocksDB live, a dict on Spark and in tests."""

    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield committed (key, value) pairs with *prefix* in key order."""
        ...


class _Gone:
    """Marks a key known to have no row, in a cache whose misses mean 'not looked up yet'."""

    __slots__ = ()


_GONE = _Gone()


class Rows(Generic[R]):
    """Rows of one partition: `get`, `[]`, `in`, `del`, `scan`, and timers by `wake_at`.

    Rows must be immutable; change one by setting another in its place. Reads see this transaction's own changes. Keys are `str`.

    Committed rows are cached decoded in two generations (a full young one becomes the old one), which costs one dict look-up on
    the hot path and bounds memory at about *cache_rows* rows. Changed rows are always in the young generation until they are
    committed, so the cache alone answers for them.
    """

    __slots__ = (
        "_changed",
        "_codec",
        "_heap",
        "_limit",
        "_old",
        "_store",
        "_undo_wakes",
        "_wakes",
        "_wakes_changed",
        "_young",
        "next_wake_ms",
    )

    def __init__(self, store: Store, codec: RowCodec[R], cache_rows: int) -> None:
        self._store, self._codec, self._limit = store, codec, max(1, cache_rows // 2)
        self._young: dict[str, R | _Gone] = {}
        self._old: dict[str, R | _Gone] = {}
        self._changed: dict[str, R | None] = {}
        self._wakes = {text_key(key): decode_due(value) for key, value in store.scan(WAKE)}
        self._wakes_changed: dict[str, int | None] = {}
        self._undo_wakes: dict[str, int | None] = {}
        self._heap = [(at_ms, key) for key, at_ms in self._wakes.items()]
        heapify(self._heap)
        self.next_wake_ms = self._heap[0][0] if self._heap else NEVER

    @overload
    def get(self, key: str) -> R | None: ...
    @overload
    def get(self, key: str, default: D) -> R | D: ...
    def get(self, key: str, default: D | None = None) -> R | D | None:
        """Return the row of *key*, or *default*."""
        row = self._young.get(key)
        if row is None:
            row = self._load(key)
        return default if row is _GONE else row  # type: ignore[return-value]

    def _load(self, key: str) -> R | _Gone:
        row = self._old.get(key)
        if row is None:
            value = self._store.get(row_key(key))
            row = _GONE if value is None else self._codec.decode(value)
        self._young[key] = row
        return row

    def __getitem__(self, key: str) -> R:
        row = self.get(key)
        if row is None:
            raise KeyError(key)
        return row

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def __setitem__(self, key: str, row: R) -> None:
        self._young[key] = self._changed[key] = row

    def __delitem__(self, key: str) -> None:
        if self.get(key) is None:
            raise KeyError(key)
        self._young[key] = _GONE
        self._changed[key] = None

    def scan(self, prefix: str = "") -> Iterator[tuple[str, R]]:
        """Yield (key, row) with *prefix* in the order of the keys' UTF-8 bytes, changes of this transaction included.

        What the caller changes while scanning is not seen by that scan.
        """
        changed = {row_key(key): row for key, row in self._changed.items() if key.startswith(prefix)}
        overlay = iter(sorted(changed))
        ahead = next(overlay, None)
        for stored, value in self._store.scan(ROW + prefix.encode()):
            while ahead is not None and ahead < stored:
                if (row := changed[ahead]) is not None:
                    yield text_key(ahead), row
                ahead = next(overlay, None)
            if stored not in changed:
                yield text_key(stored), self._codec.decode(value)
        for key in chain(() if ahead is None else (ahead,), overlay):
            if (row := changed[key]) is not None:
                yield text_key(key), row

    def wake_at(self, key: str, at_ms: int | None) -> None:
        """Have `on_wake(rows, key, at_ms)` called when a record appended at or after *at_ms* arrives, before that record is folded.

        One timer per key: another call replaces it, None cancels it. A time already passed fires at the next later append time.
        """
        if at_ms is not None and not -NEVER < at_ms < NEVER:
            raise FoldError(f"wake_at({key!r}, {at_ms}): not a time in ms")
        if key not in self._undo_wakes:
            self._undo_wakes[key] = self._wakes.get(key)
        self._set_wake(key, at_ms)
        self._wakes_changed[key] = at_ms

    def _set_wake(self, key: str, at_ms: int | None) -> None:
        if at_ms is None:
            self._wakes.pop(key, None)
            return
        self._wakes[key] = at_ms
        heappush(self._heap, (at_ms, key))
        self.next_wake_ms = self._heap[0][0]

    def due(self, now_ms: int) -> tuple[str, int] | None:
        """Take the earliest timer due at *now_ms*: (key, due time), or None. Ties go by key. For the folder only."""
        while self._heap and self._heap[0][0] <= now_ms:
            at_ms, key = heappop(self._heap)
            self.next_wake_ms = self._heap[0][0] if self._heap else NEVER
            if self._wakes.get(key) == at_ms:
                self.wake_at(key, None)
                return key, at_ms
        return None

    def changed(self) -> tuple[dict[str, R | None], dict[str, int | None]]:
        """Return what this transaction changed so far: rows and timers by key, None for a removed one. For the folder only."""
        return self._changed, self._wakes_changed

    def commit(self) -> None:
        """Take the changes as committed to the store. For the folder only."""
        self._changed.clear()
        self._wakes_changed.clear()
        self._undo_wakes.clear()
        if len(self._young) > self._limit:
            self._old, self._young = self._young, {}

    def rollback(self) -> None:
        """Forget the changes since the last commit. For the folder only."""
        for key in self._changed:
            self._young.pop(key, None)
            self._old.pop(key, None)
        self._changed.clear()
        for key, at_ms in self._undo_wakes.items():
            self._set_wake(key, at_ms)
        self._wakes_changed.clear()
        self._undo_wakes.clear()


class JournaledRows(Rows[R]):
    """The same rows, shared with *base* for one transaction, but able to undo one record at a time.

    Slower; used where a record may be refused or where each change is to be told. `before` holds what this record changed: the
    row it found and whether an earlier record of the transaction had changed it.
    """

    __slots__ = ("_base", "before", "wakes_before")

    def __init__(self, base: Rows[R]) -> None:
        for name in Rows.__slots__:
            setattr(self, name, getattr(base, name))
        self._base = base
        self.before: dict[str, tuple[R | None, bool]] = {}
        self.wakes_before: dict[str, tuple[int | None, bool, int | None]] = {}

    def _note(self, key: str) -> None:
        if key not in self.before:
            self.before[key] = (self.get(key), key in self._changed)

    def __setitem__(self, key: str, row: R) -> None:
        self._note(key)
        super().__setitem__(key, row)

    def __delitem__(self, key: str) -> None:
        self._note(key)
        super().__delitem__(key)

    def wake_at(self, key: str, at_ms: int | None) -> None:
        if key not in self.wakes_before:
            self.wakes_before[key] = (self._wakes.get(key), key in self._wakes_changed, self._wakes_changed.get(key))
        super().wake_at(key, at_ms)

    def keep(self) -> None:
        """Accept what this record changed."""
        self.before.clear()
        self.wakes_before.clear()
        self._base.next_wake_ms = self.next_wake_ms

    def undo(self) -> None:
        """Take back what this record changed."""
        for key, (row, was_changed) in self.before.items():
            self._young[key] = _GONE if row is None else row
            if was_changed:
                self._changed[key] = row
            else:
                del self._changed[key]
        for key, (at_ms, was_changed, change) in self.wakes_before.items():
            self._set_wake(key, at_ms)
            if was_changed:
                self._wakes_changed[key] = change
            else:
                del self._wakes_changed[key]
        self.keep()
