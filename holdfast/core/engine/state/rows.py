"""The rows of one source partition as a fold sees them: a dict-like overlay that remembers what changed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice, repeat
from typing import Any, Generic, Literal, Protocol, TypeVar, overload

from holdfast.core.engine.state.codec import ROW, WAKE, RowCodec, row_key, row_keys, text_key, wake_key
from holdfast.core.engine.state.global_rows import GlobalTables
from holdfast.core.engine.state.key_order import KeyOrder
from holdfast.core.engine.state.timers import NEVER, TimerTable, timers_in
from holdfast.errors import FoldError

__all__ = ["LIMIT_KEY_BYTES", "NEVER", "CanonicalRows", "Clock", "JournaledRows", "Rows", "Store"]

R = TypeVar("R")
D = TypeVar("D")

Clock = Literal["append", "event", "tick"]
LIMIT_KEY_BYTES = 32_768
TOLD_PARTITION = "told-partition"
"""In `Rows.derived`: the partition, where a fold reports its progress."""


class Store(Protocol):
    """The store of committed rows.

    RocksDB live, a dict on Spark and in tests. What it raises stops the folder: no record is to blame.
    """

    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield committed (key, value) pairs with *prefix* in key order, from the key *start* on."""
        ...


class _Unknown:
    """The result of a look-up if nothing is known of a key; None is known to be no row."""

    __slots__ = ()


_UNKNOWN = _Unknown()


_NO_TABLES: Mapping[str, Rows[Any]] = {}
_NO_GLOBALS = GlobalTables()


_SCANS = "write `for key, row in rows.scan(prefix):`, which goes through the keys with a prefix"
_CURES = {
    **dict.fromkeys(("items", "keys", "values"), _SCANS),
    "pop": "write `row = rows.get(key)`, then `del rows[key]`",
    "setdefault": "write `row = rows.get(key) or Row()`, then `rows[key] = ...`",
    **dict.fromkeys(("update", "set", "append", "add"), "write `rows[key] = row`"),
    "clear": "delete each row: `del rows[key]`",
    "delete": "write `del rows[key]`",
}
"""Replacements for methods of a dict."""


class _MissingMethod:
    """A method that rows do not have: AttributeError that names its replacement.

    Instead of a `__getattr__`, which would make every other attribute of the class a tenth of a fold slower:
    the interpreter caches no look-ups of a class that has one.
    """

    def __init__(self, name: str, cure: str) -> None:
        self._name, self._cure = name, cure

    def __get__(self, rows: object, _: type | None = None) -> Any:
        raise AttributeError(f"rows have no {self._name}: {self._cure}", name=self._name, obj=rows)


class Rows(Generic[R]):
    """Rows of one partition: `get`, `[]`, `in`, `del`, `scan`, and timers by `wake_at`. `table` gives those
    of a named table.

    Rows must be immutable; change one by setting another instead (or None, which removes it). Reads see
    this transaction's own changes. Keys are `str`.

    What this transaction changed is looked up first: in a large one most rows are changed again and again,
    and that one dict is all they touch. Committed rows are cached decoded in two generations (a full young
    one becomes the old one), which bounds memory at about *cache_rows* rows; those that the transaction
    replaces are let go while it is folded. Over a store that began empty the cache holds every row until it
    first drops some, and until then no row is looked for in the store.

    `put` lists every row set since the folder last looked: a row that the same transaction replaces must be
    refused for what another cut of the log would have refused it for. `failures` holds what the store raised,
    even when a fold swallowed it. In `derived` a declaration of ours may remember what it would find again in
    rows by looking: it is emptied whenever changes are taken back. What it has put into `deferred` sets rows
    of it when the transaction ends; None where each record's changes must be seen at once. `globals` has the
    global tables that the processor reads.

    With *passing* a row that comes and goes within one transaction leaves no trace in the stored rows.
    """

    __slots__ = (
        "_all_cached",
        "_born",
        "_changed",
        "_codec",
        "_limit",
        "_name",
        "_old",
        "_order",
        "_replaced",
        "_store",
        "_tables",
        "_unsure",
        "_wakes",
        "_young",
        "deferred",
        "derived",
        "events",
        "failures",
        "globals",
        "next_wake_ms",
        "put",
        "ticks",
    )

    def __init__(
        self,
        store: Store,
        codec: RowCodec[R],
        cache_rows: int,
        ticks: TimerTable | None = None,
        *,
        events: TimerTable | None = None,
        name: str = "",
        tables: Mapping[str, Rows[Any]] = _NO_TABLES,
        passing: bool = False,
    ) -> None:
        self._name, self._tables = name, tables
        self._store, self._codec, self._limit = store, codec, max(1, cache_rows // 2)
        self._young: dict[str, R | None] = {}
        self._old: dict[str, R | None] = {}
        self._all_cached = next(store.scan(ROW), None) is None
        self._changed: dict[str, R | None] = {}
        self._order = KeyOrder()
        self._replaced = 0
        self._born: set[str] | None = set() if passing else None
        self._unsure: set[str] = set()
        self.put: list[R] = []
        self.failures: list[Exception] = []
        for each in tables.values():
            each.failures = self.failures  # whichever table's store fails, the folder looks here
        self.derived: dict[str, Any] = {}
        self.deferred: dict[str, Callable[[Rows[Any]], None]] | None = {}
        self.globals = _NO_GLOBALS
        self.ticks, self.events = ticks, events
        self._wakes = timers_in(store, WAKE)
        self._wakes.journaled = False
        self.next_wake_ms = self._wakes.next_ms

    def table(self, name: str) -> Rows[Any]:
        """Return the rows of the named table that the processor declares in `tables`; raises FoldError for
        any other name.

        They are of the same partition and of the same transaction; timers are set on the processor's own
        rows alone.
        """
        found = self._tables.get(name)
        if found is None:
            raise FoldError(
                f"no table {name!r:.200}; the tables declared are {', '.join(self._tables) or 'none'}: write"
                " Processor(..., tables={name: Row})"
            )
        return found

    def every(self) -> tuple[Rows[Any], ...]:
        """Return these rows and those of each named table, in the order of their declaration. For the folder
        only.
        """
        return (self, *self._tables.values())

    @overload
    def get(self, key: str) -> R | None: ...
    @overload
    def get(self, key: str, default: D) -> R | D: ...
    def get(self, key: str, default: D | None = None) -> R | D | None:
        """Return the row of *key*, or *default*."""
        row = self._changed.get(key, _UNKNOWN)
        if row is _UNKNOWN:
            try:
                row = self._young[
                    key
                ]  # cheaper than its get() where it hits, and a miss costs a read of the store anyway
            except KeyError:
                row = self._load(key)
        return default if row is None else row  # type: ignore[return-value]

    def _load(self, key: str) -> R | None:
        found = self._old.get(key, _UNKNOWN)
        if isinstance(found, _Unknown):
            stored = row_key(key)
            try:
                value = None if self._all_cached else self._store.get(stored)
                found = None if value is None else self._codec.decode(value)
            except Exception as error:
                self.failures.append(error)
                raise
        self._young[key] = found
        return found

    def __getitem__(self, key: str) -> R:
        row = self.get(key)
        if row is None:
            raise KeyError(key)
        return row

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def __iter__(self) -> Iterator[str]:
        raise FoldError(f"rows cannot be gone through, there can be millions: {_SCANS}")

    def __len__(self) -> int:
        raise FoldError(f"rows are not counted, there can be millions: keep a count in a row, or {_SCANS}")

    def __bool__(self) -> bool:
        return True

    def __setitem__(self, key: str, row: R) -> None:
        self._changed[key] = row
        self.put.append(row)

    def note(self, key: str, row: R | None) -> None:
        """Set a row of our own, or None: one that is small, and that every reader finds as it is."""
        self._changed[key] = row

    def __delitem__(self, key: str) -> None:
        if self.get(key) is None:
            raise KeyError(key)
        self._changed[key] = None

    def scan(self, prefix: str = "", *, start: str = "") -> Iterator[tuple[str, R]]:
        """Yield (key, row) with *prefix* in the order of the keys' UTF-8 bytes, changes of this transaction
        included; those before *start* are passed over.

        What the caller changes while scanning is not seen by that scan.
        """
        within, first = row_key(prefix), row_key(start)
        changed = self._changed_within(within, first)
        names = [stored[1:].decode() for stored in changed]
        rows = [*map(self._changed.__getitem__, names)]
        at, end = 0, len(changed)
        try:
            for stored, value in self._store.scan(within, first):
                while at < end and changed[at] < stored:
                    if (row := rows[at]) is not None:
                        yield names[at], row
                    at += 1
                if at == end or changed[at] != stored:
                    yield text_key(stored), self._codec.decode(value)
        except Exception as error:
            self.failures.append(error)
            raise
        for name, row in zip(names[at:], rows[at:], strict=True):
            if row is not None:
                yield name, row

    def _changed_within(self, prefix: bytes, start: bytes) -> list[bytes]:
        """Return the stored keys under *prefix*, from *start* on, that this transaction changed, in order.

        The order is made when the first scan asks for it and takes in the keys changed since: those are
        the last of the dict, since a key keeps its position there when its row changes again, and an undone
        record's keys are taken out of both.
        """
        order, fresh = self._order, len(self._changed) - len(self._order)
        if fresh:
            order.add(row_keys(list(islice(reversed(self._changed), fresh))))
        return order.within(prefix, start)

    def wake_at(self, key: str, at_ms: int | None, *, clock: Clock = "append") -> None:
        """Have `on_wake(rows, key, at_ms)` called when a record appended at or after *at_ms* arrives, before
        that record is folded.

        One timer per key: another call replaces it, None cancels it. A time already passed fires at the next
        later append time, so an `on_wake` that sets a time not after the record's (its own again, say) is
        called for it once per append time, not for ever.

        With *clock* "tick" it is `on_tick` that is called, at the first tick at or after *at_ms*: the
        worker's own clock, which moves without records too, as the partition's choices have it. With *clock*
        "event" it is `on_event`, when event time, the highest of the records' own times, gets to *at_ms*:
        before the record is folded that moves it there. Each clock has timers of its own, one per key.
        """
        if at_ms is not None and not (isinstance(at_ms, int) and -NEVER < at_ms < NEVER):
            raise FoldError(f"wake_at({key!r:.200}, {at_ms!r:.200}): not a time in whole ms")
        if len(wake_key(key)) > LIMIT_KEY_BYTES:
            raise FoldError(f"timer key {key[:80]!r} is longer than {LIMIT_KEY_BYTES} bytes")
        if self._name:
            raise FoldError(
                f"wake_at({key!r:.200}) on the rows of table {self._name}: timers are the processor's, call"
                " rows.wake_at"
            )
        if clock != "append":
            self._clock(key, clock).set(key, at_ms)
            return
        self._wakes.set(key, at_ms)
        if at_ms is not None and at_ms < self.next_wake_ms:
            self.next_wake_ms = at_ms

    def _clock(self, key: str, clock: str) -> TimerTable:
        """Return the timers of *clock*, which is not that of append time; FoldError where there are none."""
        match clock:
            case "tick" if self.ticks is not None:
                return self.ticks
            case "event" if self.events is not None:
                return self.events
            case "tick":
                why = "clock='tick'): only processors declared with on= and on_tick= have ticks"
            case "event":
                why = "clock='event'): only processors declared with on_event= and time= have event time"
            case _:
                why = f"clock={clock!r:.80}): the clocks are append, event and tick"
        raise FoldError(f"wake_at({key!r:.200}, {why}")

    def _clocks(self) -> tuple[TimerTable, ...]:
        """Return the timers of the clocks besides append time."""
        return tuple(each for each in (self.ticks, self.events) if each is not None)

    def due(self, now_ms: int) -> list[tuple[str, int]]:
        """Take the timers due at *now_ms*, each as (key, due time), the earliest first, ties by key. For the
        folder only.

        `fire` each in turn. Timers set while these fire wait for another call, which is what ends an
        `on_wake` that sets its own again.
        """
        ready = self._wakes.due(now_ms)
        self.next_wake_ms = self._wakes.next_ms
        return ready

    def fire(self, key: str, due_ms: int) -> bool:
        """Remove a timer taken by `due`; False when an earlier one's `on_wake` cancelled or replaced it.

        For the folder only.
        """
        return self._wakes.fire(key, due_ms)

    def changed(self) -> tuple[dict[str, R | None], dict[str, int | None]]:
        """Return the changes of this transaction so far: rows and timers by key, None for a removed one.

        For the folder only.
        """
        return self._changed, self._wakes.changed

    def lasting(self, changed: list[tuple[str, R | None]]) -> list[tuple[str, R | None]]:
        """Return those of the *changed* rows that are to be stored. For the folder only, when all is folded.

        The rows left out depend on the rows that are committed, not on those that are cached.
        """
        if self._born is None:
            return changed
        self.forget_replaced()
        born, unsure = self._born, self._unsure
        return [
            each
            for each in changed
            if each[1] is not None
            or (each[0] not in born and (each[0] not in unsure or self._is_stored(each[0])))
        ]

    def _is_stored(self, key: str) -> bool:
        return self._store.get(row_key(key)) is not None

    def forget_replaced(self) -> None:
        """Drop the committed rows that this transaction has replaced so far, while the processor's cache
        has them. For the folder only.
        """
        fresh = len(self._changed) - self._replaced
        if fresh:
            keys = islice(reversed(self._changed), fresh)
            if self._born is None:
                deque(map(self._young.pop, keys, repeat(None)), 0)
            else:
                self._note_born(self._born, [*keys])
            self._replaced = len(self._changed)
        for each in self._tables.values():
            each.forget_replaced()

    def _note_born(self, born: set[str], keys: list[str]) -> None:
        """Forget *keys* that are replaced, and note those of which no row is committed, or of which that is
        not known.
        """
        before = [*map(self._young.pop, keys, repeat(_UNKNOWN))]
        born.update(key for key, row in zip(keys, before, strict=True) if row is None)
        for key in [key for key, row in zip(keys, before, strict=True) if row is _UNKNOWN]:
            row = self._old.get(key, _UNKNOWN)
            if row is None or (row is _UNKNOWN and self._all_cached):
                born.add(key)
            elif row is _UNKNOWN:
                self._unsure.add(key)

    def commit(self) -> None:
        """Take the changes as committed to the store. For the folder only."""
        self.forget_replaced()
        if self._born is not None:
            self._born.clear()
            self._unsure.clear()
            if self._all_cached:
                self._let_go()
        # They have no key in common now, so the larger takes in the smaller: a large transaction has often
        # replaced every row.
        few, many = sorted((self._young, self._changed), key=len)
        many.update(few)
        self._young, self._changed, self._replaced = many, {}, 0
        self._order.clear()
        self._wakes.commit()
        self._wakes.journaled = False
        for clock in self._clocks():
            clock.commit()
        self.put.clear()
        if len(self._young) > self._limit:
            self._all_cached = self._all_cached and not self._old
            self._old, self._young = self._young, {}
        for each in self._tables.values():
            each.commit()

    def _let_go(self) -> None:
        """Forget rows that are gone: where all others are cached, that says it."""
        for key in [key for key, row in self._changed.items() if row is None]:
            del self._changed[key]
            self._old.pop(key, None)

    def set_deferred(self) -> None:
        """Set the rows that were left to the end of the transaction. For the folder only."""
        if self.deferred:
            for each in self.deferred.values():
                each(self)
            self.deferred.clear()

    def rollback(self) -> None:
        """Forget the changes since the last commit. For the folder only."""
        self._all_cached = self._all_cached and not self._changed
        for key in self._changed:
            self._old.pop(key, None)  # older than the one that was let go
        self._changed.clear()
        self._order.clear()
        self._replaced = 0
        if self._born is not None:
            self._born.clear()
            self._unsure.clear()
        self.put.clear()
        self.failures.clear()
        self.derived.clear()
        assert self.deferred is not None, "of the base"
        self.deferred.clear()
        self._wakes.rollback()
        self._wakes.journaled = False
        self.next_wake_ms = self._wakes.next_ms
        for clock in self._clocks():
            clock.rollback()
        for each in self._tables.values():
            each.rollback()


for _name, _cure in _CURES.items():
    setattr(Rows, _name, _MissingMethod(_name, _cure))


class CanonicalRows(Rows[R]):
    """Rows of a type that takes more than one form of a value: each row set is at once the one a later
    reader would find.
    """

    __slots__ = ()

    def __setitem__(self, key: str, row: R) -> None:
        if row is not None:
            row = self._codec.canonical(row)
        self._note(key)
        super().__setitem__(key, row)

    def note(self, key: str, row: R | None) -> None:
        self[key] = row  # type: ignore[assignment]

    def _note(self, key: str) -> None:
        """Called before the row of *key* changes."""


class JournaledRows(CanonicalRows[R]):
    """The same rows, shared with *base* for one transaction, but able to undo one record at a time.

    Slower; used where a record may be refused or where each change is to be traced. `before` holds the
    changes of this record: the row it found and whether an earlier record of the transaction had changed it.
    """

    __slots__ = ("_base", "_journals", "before")

    def __init__(self, base: Rows[R]) -> None:
        for name in Rows.__slots__:
            setattr(self, name, getattr(base, name))
        self._base, self.deferred = base, None
        self._journals = {name: JournaledRows(each) for name, each in base._tables.items()}
        self._tables = self._journals
        self.before: dict[str, tuple[R | None, bool]] = {}
        self._wakes.journaled = True

    def journals(self) -> tuple[JournaledRows[Any], ...]:
        """Return the rows of `every`, as these journals."""
        return (self, *self._journals.values())

    def _note(self, key: str) -> None:
        if key not in self.before:
            self.before[key] = (self.get(key), key in self._changed)

    def __delitem__(self, key: str) -> None:
        if key in self:  # else the KeyError below changes nothing, and there is nothing to undo
            self._note(key)
        super().__delitem__(key)

    def keep(self) -> None:
        """Accept what this record changed."""
        self.before.clear()
        self._wakes.keep()
        for clock in self._clocks():
            clock.keep()
        self.put.clear()
        self._base.next_wake_ms = self.next_wake_ms
        for each in self._journals.values():
            each.keep()

    def undo(self) -> None:
        """Take back what this record changed."""
        self.derived.clear()
        for key, (row, was_changed) in self.before.items():
            if was_changed:
                self._changed[key] = row
            else:
                del self._changed[key]
                if self._order:
                    self._order.discard(row_key(key))
        self._wakes.undo()
        self.next_wake_ms = self._wakes.next_ms
        for clock in self._clocks():
            clock.undo()
        for each in self._journals.values():
            each.undo()
        self.keep()
