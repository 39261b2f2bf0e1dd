"""The folder against a model too simple to be wrong: one record at a time over plain dicts, undone by putting
a copy back.

Whatever the cut into batches, slices and transactions, the restarts, rollbacks and refusals, both must agree
after every commit on rows, timers, position, stream time, emits, refusals, and in the end on the digest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.core.engine.declared.processor import Emit, Processor
from holdfast.core.engine.fold.folding import Batch, Changes, Folder, Transition
from holdfast.core.engine.positions import decode_position
from holdfast.core.engine.state.codec import APPLIED, META, digest
from holdfast.errors import FoldError, StoreError
from tests.support.scale import scaled

LIMIT_BYTES = 200
EMITS = ("out", "seen", "woken")
KEYS = ("a", "ab", "b", "é", "\U0001f600", "\uffff", "raises", "again", "past", "later", "meddles", "")
PREFIXES = ("", "a", "\U0001f600", "r")


class Plain(msgspec.Struct, frozen=True, array_like=True):
    n: int = 0
    text: str = ""
    seen: tuple[int, ...] = ()


class Loose(msgspec.Struct, frozen=True):
    """Takes values in more than one form: an int as *n*, *seen* in any order."""

    n: float = 0
    text: str = ""
    seen: frozenset[float] = frozenset()


class BrokenStore(dict[bytes, bytes]):
    """Committed state in memory; raises at the read after *reads_left* more."""

    reads_left = 1 << 60

    def _read(self) -> None:
        self.reads_left -= 1
        if self.reads_left < 0:
            raise StoreError("the disk is gone")

    def get(self, key: bytes) -> bytes | None:  # type: ignore[override]
        self._read()
        return super().get(key)

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        for key in sorted(self):
            if key.startswith(prefix) and key >= start:
                self._read()
                yield key, self[key]


# -- the processor under test: an event is a list of operations


def decode(value: Any) -> Any:
    if value == "undecodable":
        raise ValueError("undecodable")
    return value


def _grow(rows: Any, row: type[Any], key: Any, by: int) -> None:
    before = rows.get(key) or row()
    if row is Plain:
        rows[key] = Plain(before.n + by, before.text, (*before.seen[-3:], by))
    else:
        rows[key] = Loose(before.n + by, before.text, frozenset({by, *before.seen}))


def _act(rows: Any, row: type[Any], operation: tuple[Any, ...], at_ms: int) -> Iterator[Emit]:
    match operation:
        case ("grow", key, by):
            _grow(rows, row, key, by)
        case ("text", key, length):
            rows[key] = row(text="x" * length)
        case ("unencodable", key):
            rows[key] = row(n=object())
        case ("unreadable", key):
            rows[key] = row(n="no number")
        case ("none", key):
            rows[key] = None
        case ("delete", key):
            del rows[key]
        case ("discard", key):
            try:
                del rows[key]
            except KeyError:
                yield Emit("out", "missing", key.encode())
        case ("look", key):
            yield Emit("out", key, repr((key in rows, rows.get(key, "nothing"))).encode())
        case ("scan", prefix):
            seen = []
            for key, found in rows.scan(prefix):
                seen.append((key, found))
                if found.n < 3:
                    _grow(rows, row, key, 1)
            yield Emit("out", None, repr(seen).encode()[: LIMIT_BYTES - 10])
        case ("wake", key, after_ms):
            rows.wake_at(key, None if after_ms is None else at_ms + after_ms)
        case ("wake event", key, when):
            rows.wake_at(key, when, clock="event")
        case ("wake badly", key, when):
            rows.wake_at(key, when)
        case ("at", _):
            pass
        case ("emit", what):
            yield what
        case ("change in place", key):
            seen = rows.get(key).seen
            (seen.append if hasattr(seen, "append") else seen.add)(1)
        case ("raise",):
            raise RuntimeError("the fold failed")


def fold_with(row: type[Any]) -> Callable[[Any, Any, int], Iterator[Emit]]:
    def fold(rows: Any, event: Any, at_ms: int) -> Iterator[Emit]:
        for operation in event:
            yield from _act(rows, row, operation, at_ms)
            if len(operation) > 1 and operation[1] in KEYS:  # whatever a fold could see is to be the same
                yield Emit("seen", operation[1], repr(rows.get(operation[1])).encode()[:LIMIT_BYTES])

    return fold


def time_of(event: Any) -> Any:
    """Return an event's own time: that of its first "at"."""
    return next((operation[1] for operation in event if operation[0] == "at"), 5)


def event_with(row: type[Any]) -> Callable[[Any, str, int], Iterator[Emit]]:
    def on_event(rows: Any, key: str, due_ms: int) -> Iterator[Emit]:
        _grow(rows, row, key, 9)
        yield Emit("woken", key, b"event %d" % due_ms)
        if key in ("again", "past", "later"):
            rows.wake_at(key, due_ms + {"again": 0, "past": -1, "later": 5}[key], clock="event")
        if key == "meddles":
            rows.wake_at("raises", None, clock="event")
            rows.wake_at("b", due_ms)
        if key == "raises":
            rows.wake_at("later", due_ms + 1, clock="event")
            raise RuntimeError("on_event failed")

    return on_event


def wake_with(row: type[Any]) -> Callable[[Any, str, int], Iterator[Emit]]:
    def on_wake(rows: Any, key: str, due_ms: int) -> Iterator[Emit]:
        _grow(rows, row, key, 7)
        yield Emit("woken", key, b"%d" % due_ms)
        if key in ("again", "past", "later"):
            rows.wake_at(key, due_ms + {"again": 0, "past": -1, "later": 5}[key])
        if key == "meddles":
            rows.wake_at("raises", None)
            rows.wake_at("b", due_ms)
        if key == "raises":
            rows.wake_at("later", due_ms + 1)
            rows.wake_at("past", None)
            raise RuntimeError("on_wake failed")

    return on_wake


# -- the model


class NaiveRows:
    """The same interface over plain dicts.

    Rows are kept as bytes: what a later reader finds is what everyone finds.
    """

    def __init__(self, row: type[Any], clocks: tuple[str, ...]) -> None:
        self.row, self.stored = row, dict[str, bytes]()
        self.timers: dict[str, dict[str, int]] = {clock: {} for clock in clocks}

    def get(self, key: str, default: Any = None) -> Any:
        self._key(key)
        return msgspec.msgpack.decode(self.stored[key], type=self.row) if key in self.stored else default

    def __contains__(self, key: str) -> bool:
        return key in self.stored

    def __setitem__(self, key: str, row: Any) -> None:
        self._key(key)
        if row is None:
            self.stored.pop(key, None)
            return
        read = msgspec.msgpack.decode(msgspec.msgpack.encode(row, order="deterministic"), type=self.row)
        self.stored[key] = msgspec.msgpack.encode(read, order="deterministic")
        if 1 + len(self.stored[key]) > LIMIT_BYTES:
            raise FoldError("too large")

    def __delitem__(self, key: str) -> None:
        del self.stored[key]

    def scan(self, prefix: str) -> Iterator[tuple[str, Any]]:
        keys = sorted((key for key in self.stored if key.startswith(prefix)), key=str.encode)
        yield from [(key, self.get(key)) for key in keys]

    def wake_at(self, key: str, at_ms: Any, *, clock: str = "append") -> None:
        self._key(key)
        if clock not in self.timers:
            raise FoldError("no such clock")
        if at_ms is None:
            self.timers[clock].pop(key, None)
        elif isinstance(at_ms, int) and abs(at_ms) < 1 << 62:
            self.timers[clock][key] = at_ms
        else:
            raise FoldError("not a time")

    @staticmethod
    def _key(key: str) -> None:
        if not isinstance(key, str) or len(key.encode()) >= 32_768:
            raise FoldError("not a key")


class Naive:
    """Folds one record at a time."""

    def __init__(self, row: type[Any], *, timed: bool) -> None:
        self.fold, self.timed = fold_with(row), timed
        self.calls = {"append": wake_with(row), "event": event_with(row)}
        self.rows = NaiveRows(row, ("append", "event") if timed else ("append",))
        self.stream_ms, self.event_ms = -1, -(1 << 62)
        self.emits: list[Emit] = []
        self.refused: list[tuple[int, str]] = []

    def record(self, offset: int, at_ms: int, value: Any) -> None:
        if at_ms > self.stream_ms:
            self.stream_ms = at_ms
            self._ring("append", offset, at_ms)
        own = None if value == "undecodable" else time_of(value)
        if own is None or (self.timed and (type(own) is not int or abs(own) >= 1 << 62)):
            self.refused.append((offset, "decode"))
            return
        if self.timed and own > self.event_ms:
            self.event_ms = own
            self._ring("event", offset, own)
        self._attempt(offset, "fold", lambda: self.fold(self.rows, value, self.stream_ms))

    def _ring(self, clock: str, offset: int, now_ms: int) -> None:
        timers = self.rows.timers[clock]
        for due_ms, key in sorted((due_ms, key) for key, due_ms in timers.items() if due_ms <= now_ms):
            if self.rows.timers[clock].get(key) == due_ms:  # other dicts after one that failed
                del self.rows.timers[clock][key]
                act = partial(self.calls[clock], self.rows, key, due_ms)
                self._attempt(offset, "wake", act)

    def _attempt(self, offset: int, stage: str, act: Callable[[], Iterator[Emit]]) -> None:
        before = deepcopy((self.rows.stored, self.rows.timers))
        try:
            emits = list(act())
            for emit in emits:
                if (
                    not isinstance(emit, Emit)
                    or len(emit.value or b"") > LIMIT_BYTES
                    or emit.topic not in EMITS
                ):
                    raise FoldError("not to be emitted")
        except Exception:  # noqa: BLE001  as the folder does
            self.rows.stored, self.rows.timers = before
            self.refused.append((offset, stage))
        else:
            self.emits += emits


# -- the machine

keys = st.sampled_from(KEYS[:2]) | st.sampled_from(KEYS)
good = st.one_of(
    st.tuples(st.just("grow"), keys, st.integers(1, 3)),
    st.tuples(st.just("text"), keys, st.integers(0, 30)),
    st.tuples(st.sampled_from(["delete", "discard", "look", "none"]), keys),
    st.tuples(st.just("scan"), st.sampled_from(PREFIXES)),
    st.tuples(st.just("wake"), keys, st.none() | st.integers(-12, 12)),
    st.tuples(st.just("wake event"), keys, st.none() | st.integers(-4, 40)),
    st.tuples(st.just("at"), st.integers(-4, 40)),
    st.just(("emit", Emit("out", "k", b"v"))),
)
bad = st.one_of(
    st.tuples(st.just("text"), keys, st.just(LIMIT_BYTES)),
    st.tuples(st.sampled_from(["unencodable", "unreadable"]), keys),
    st.tuples(st.sampled_from(["grow", "wake"]), st.sampled_from(["\ud800", 5, None, b"a"]), st.just(1)),
    st.tuples(st.just("wake badly"), keys, st.sampled_from([1.5, "soon", 1 << 62, -(1 << 62)])),
    st.tuples(
        st.just("emit"),
        st.sampled_from(
            [7, None, "out", Emit("out", "k", b"v" * (LIMIT_BYTES + 1)), Emit("undeclared", "k")]
        ),
    ),
    st.tuples(st.just("change in place"), keys),
    st.tuples(st.just("at"), st.sampled_from([1.5, "soon", True, 1 << 62, -(1 << 62)])),
    st.just(("raise",)),
)
events = st.one_of(
    st.lists(good, min_size=1, max_size=4),
    st.lists(good, min_size=1, max_size=4),
    st.lists(good, min_size=1, max_size=4),
    st.builds(
        lambda before, it, after: [*before, it, *after],
        st.lists(good, max_size=3),
        bad,
        st.lists(good, max_size=2),
    ),
    st.just("undecodable"),
)
Record = tuple[int, int, Any]


class FoldedAnyway(RuleBasedStateMachine):
    """Cut, stopped, restarted and rolled back at will; only commits may move it, and always to where the
    model is.
    """

    row: type[Any] = Plain

    @initialize(cache_rows=st.sampled_from([1, 4, 8, 1000]), timed=st.booleans())
    def start(self, cache_rows: int, timed: bool) -> None:
        self.log: list[Record] = []
        self.naive, self.store, self.cache_rows = Naive(self.row, timed=timed), BrokenStore(), cache_rows
        self.done = 0
        self.processor: Processor[Any, Any] = Processor(
            name="t",
            source="s",
            decode=decode,
            fold=fold_with(self.row),
            time=time_of if timed else None,
            on_wake=wake_with(self.row),
            on_event=event_with(self.row) if timed else None,
            row=self.row,
            emits=EMITS,
        )
        self.restart()

    @rule()
    def restart(self) -> None:
        marker = decode_position(self.store[APPLIED]) if APPLIED in self.store else None
        self.folder: Folder[Any] = Folder(
            self.processor,
            self.store,
            marker=marker,
            cache_rows=self.cache_rows,
            limit_bytes=LIMIT_BYTES,
        )

    @rule(
        records=st.lists(
            st.tuples(st.integers(1, 3), st.sampled_from([-1, *range(0, 60, 4)]), events),
            min_size=1,
            max_size=8,
        )
    )
    def append(self, records: list[Record]) -> None:
        for gap, at_ms, event in records:
            self.log.append(((self.log[-1][0] if self.log else -1) + gap, at_ms, event))

    def batches(self, count: int, again: int, cuts: list[int]) -> list[Batch]:
        """Return the next *count* records in batches, cut at will, after *again* records that were applied
        before.
        """
        start, stop = max(0, self.done - again), self.done + count
        edges = sorted({start, stop, *(min(stop, start + cut) for cut in cuts)})
        parts = [self.log[a:b] for a, b in pairwise(edges)]
        return [Batch([r[0] for r in part], [r[1] for r in part], ([r[2] for r in part],)) for part in parts]

    @precondition(lambda self: self.done < len(self.log))
    @rule(
        data=st.data(),
        again=st.integers(0, 2),
        cuts=st.lists(st.integers(0, 9), max_size=3),
        steps=st.integers(0, 3),
    )
    def roll_back(self, data: st.DataObject, again: int, cuts: list[int], steps: int) -> None:
        count = data.draw(st.integers(1, len(self.log) - self.done))
        for step, _ in enumerate(self.folder.steps(self.batches(count, again, cuts))):
            if step == steps:
                break
        self.folder.rollback()

    @rule()
    def roll_back_nothing(self) -> None:
        assert self.folder.fold(self.batches(0, 2, [1])) is None
        self.folder.rollback()

    @precondition(lambda self: self.done < len(self.log))
    @rule(data=st.data(), reads=st.integers(0, 5))
    def break_the_store(self, data: st.DataObject, reads: int) -> None:
        count = data.draw(st.integers(1, len(self.log) - self.done))
        self.store.reads_left = reads
        try:
            self.folder.fold(self.batches(count, 0, []))
        except StoreError:
            pass
        finally:
            self.store.reads_left = 1 << 60
            self.folder.rollback()

    @precondition(lambda self: self.done < len(self.log))
    @rule(data=st.data(), again=st.integers(0, 2), cuts=st.lists(st.integers(0, 9), max_size=3))
    def transact(self, data: st.DataObject, again: int, cuts: list[int]) -> None:
        count = data.draw(st.integers(1, len(self.log) - self.done))
        changes = self.folder.fold(self.batches(count, again, cuts))
        self.naive.emits, self.naive.refused = [], []
        for record in self.log[self.done : self.done + count]:
            self.naive.record(*record)
        self.done += count
        assert changes is not None
        assert changes.records == count
        assert changes.marker.applied[0] == self.log[self.done - 1][0]
        assert changes.marker.stream_ms == self.naive.stream_ms
        assert changes.marker.event_ms == (self.naive.event_ms if self.naive.timed else None)
        assert changes.emits == self.naive.emits
        assert [(each.offset, each.stage) for each in changes.refused] == self.naive.refused
        write(self.store, changes)
        self.folder.commit()

    @rule(key=keys)
    def look(self, key: str) -> None:
        assert repr(self.folder.rows.get(key)) == repr(self.naive.rows.get(key))

    @invariant()
    def agrees_with_the_model(self) -> None:
        if not hasattr(self, "folder"):
            return
        assert state(self.store) == model_state(self.naive)
        assert self.folder.stream_ms == self.naive.stream_ms
        assert self.folder.event_ms == self.naive.event_ms

    def teardown(self) -> None:
        """Fold all of it once more, in one transaction and in many with a trace: same bytes, and
        transitions that end in the state.
        """
        if not getattr(self, "done", 0):
            return
        told: list[Transition[Any]] = []
        for size, trace in ((self.done, None), (1, told.append), (self.done, lambda _: None)):
            store = BrokenStore()
            folder: Folder[Any] = Folder(self.processor, store, limit_bytes=LIMIT_BYTES, trace=trace)
            records, self.done = self.done, 0
            for self.done in range(0, records, size):
                changes = folder.fold(self.batches(min(size, records - self.done), 0, []))
                assert changes is not None
                write(store, changes)
                folder.commit()
            self.done = records
            assert digest(sorted(store.items())) == digest(sorted(self.store.items()))
        last = {each.key: each.after for each in told}
        assert repr({key: row for key, row in sorted(last.items()) if row is not None}) == repr(
            {key: self.naive.rows.get(key) for key in sorted(self.naive.rows.stored)}
        )
        for earlier, later in chained(told):
            assert repr(earlier.after) == repr(later.before)


class FoldedAnywayLoose(FoldedAnyway):
    row = Loose


def chained(told: list[Transition[Any]]) -> Iterator[tuple[Transition[Any], Transition[Any]]]:
    last: dict[str, Transition[Any]] = {}
    for each in told:
        if each.key in last:
            yield last[each.key], each
        last[each.key] = each


def write(store: dict[bytes, bytes], changes: Changes) -> None:
    for key, value in changes.stored():
        if value is None:
            store.pop(key, None)
        else:
            store[key] = value


def state(store: dict[bytes, bytes]) -> dict[bytes, bytes]:
    return {key: value for key, value in store.items() if key[:1] != META}


def model_state(naive: Naive) -> dict[bytes, bytes]:
    rows = {b"\x02" + key.encode(): b"\x01" + value for key, value in naive.rows.stored.items()}
    return rows | {
        kind + key.encode(): at_ms.to_bytes(8, "big", signed=True)
        for kind, clock in ((b"\x01", "append"), (b"\x05", "event"))
        for key, at_ms in naive.rows.timers.get(clock, {}).items()
    }


machine_settings = settings(
    max_examples=scaled(120),
    stateful_step_count=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
FoldedAnyway.TestCase.settings = machine_settings
FoldedAnywayLoose.TestCase.settings = machine_settings
TestPlainRows = pytest.mark.timeout(240)(FoldedAnyway.TestCase)
TestLooseRows = pytest.mark.timeout(240)(FoldedAnywayLoose.TestCase)
