"""Rows: the overlay over a store, its cache, its timers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.core.engine.state.codec import RowCodec, encode_due, row_key, wake_key
from holdfast.core.engine.state.rows import LIMIT_KEY_BYTES, NEVER, CanonicalRows, JournaledRows, Rows
from holdfast.core.engine.state.timers import TimerTable
from holdfast.errors import ChangelogError, FoldError, StoreError
from tests.support.scale import scaled


class Total(msgspec.Struct, frozen=True):
    count: int = 0


CODEC: RowCodec[Total] = RowCodec(Total)


class DictStore(dict[bytes, bytes]):
    """A store that counts look-ups."""

    looked_up = 0

    def get(self, key: bytes) -> bytes | None:  # type: ignore[override]
        self.looked_up += 1
        return super().get(key)

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        yield from [(key, self[key]) for key in sorted(self) if key.startswith(prefix) and key >= start]

    def take(self, rows: Rows[Any]) -> None:
        """Write what *rows* changed, then let them take it as committed."""
        changed, wakes = rows.changed()
        values = {row_key(key): None if row is None else CODEC.encode(row) for key, row in changed.items()}
        values |= {
            wake_key(key): None if at_ms is None else encode_due(at_ms) for key, at_ms in wakes.items()
        }
        for key, value in values.items():
            if value is None:
                self.pop(key, None)
            else:
                self[key] = value
        rows.commit()


def rows_over(store: DictStore | None = None, cache_rows: int = 100) -> Rows[Total]:
    return Rows(DictStore() if store is None else store, CODEC, cache_rows)


def stored(**counts: int) -> DictStore:
    return DictStore({row_key(key): CODEC.encode(Total(count)) for key, count in counts.items()})


# -- reading and writing


def test_rows_behave_like_a_dict() -> None:
    rows = rows_over(stored(a=1))
    assert rows.get("a") == rows["a"] == Total(1)
    assert "a" in rows
    assert "b" not in rows
    assert rows.get("b") is None
    assert rows.get("b", Total(9)) == Total(9)
    with pytest.raises(KeyError, match="b"):
        rows["b"]
    rows["b"] = Total(2)
    del rows["a"]
    assert "a" not in rows
    assert rows.get("a", "none") == "none"
    assert list(rows.scan()) == [("b", Total(2))]
    with pytest.raises(KeyError):
        del rows["a"]


@pytest.mark.parametrize("kind", [Rows, CanonicalRows])
def test_setting_a_row_to_none_removes_it_at_once_and_after_the_commit(kind: type[Rows[Total]]) -> None:
    store = stored(a=1)
    rows = kind(store, CODEC, 100)
    rows["a"] = None  # type: ignore[assignment]
    for _ in range(2):
        assert rows.get("a", "none") == "none"
        assert "a" not in rows
        with pytest.raises(KeyError):
            rows["a"]
        store.take(rows)


@pytest.mark.parametrize(
    ("name", "cure"),
    [("items", "rows.scan(prefix)"), ("pop", "del rows[key]"), ("append", "rows[key] = row")],
)
def test_a_method_that_rows_lack_is_refused_with_its_replacement(name: str, cure: str) -> None:
    with pytest.raises(AttributeError, match=f"rows have no {name}: .*{re.escape(cure)}"):
        getattr(rows_over(), name)
    assert not hasattr(Rows, "__getattr__"), "it would slow down each look-up of an attribute"


def test_setting_none_removes_the_row_even_one_that_only_the_store_has() -> None:
    rows = rows_over(stored(a=1))
    rows["a"] = None  # type: ignore[assignment]
    assert rows.get("a") is None
    assert "a" not in rows
    assert list(rows.scan()) == []
    assert rows.changed()[0] == {"a": None}


def test_a_rollback_brings_back_the_committed_rows() -> None:
    store = stored(a=1)
    rows = rows_over(store)
    rows["a"], rows["b"] = Total(2), Total(2)
    store.take(rows)
    rows["a"] = Total(3)
    del rows["b"]
    rows["c"] = Total(3)
    rows.wake_at("a", 10)
    rows.rollback()
    assert list(rows.scan()) == [("a", Total(2)), ("b", Total(2))]
    assert [rows.get(key) for key in "abc"] == [Total(2), Total(2), None]
    assert rows.changed() == ({}, {})
    assert rows.due(NEVER) == []


def test_a_scan_gives_this_transactions_rows_in_the_order_of_their_utf8_bytes() -> None:
    # UTF-16 would put the emoji before U+FFFF
    rows = rows_over(DictStore({row_key(key): CODEC.encode(Total(0)) for key in ("a", "\uffff", "ab", "é")}))
    rows["\U0001f600"], rows["aa"] = Total(1), Total(1)
    del rows["ab"]
    assert [key for key, _ in rows.scan()] == ["a", "aa", "é", "\uffff", "\U0001f600"]
    assert [key for key, _ in rows.scan("a")] == ["a", "aa"]


def test_a_scan_does_not_see_changes_made_while_it_runs() -> None:
    rows = rows_over(stored(a=1, c=1))
    seen = []
    for key, row in rows.scan():
        seen.append((key, row.count))
        rows["b"], rows["c"], rows["d"] = Total(2), Total(2), Total(2)
    assert seen == [("a", 1), ("c", 1)]


@pytest.mark.parametrize("key", [5, None, b"a", "\ud800", "a\udfff"])
def test_a_key_that_is_not_text_is_refused_with_a_word_about_it(key: Any) -> None:
    rows = rows_over()
    with pytest.raises(FoldError, match="is not text"):
        rows.get(key)
    with pytest.raises(FoldError, match="is not text"):
        rows.wake_at(key, 1)
    with pytest.raises(FoldError, match="is not text"):
        row_key(key)
    assert rows.due(NEVER) == []


# -- the cache


def test_the_cache_holds_about_as_many_rows_as_it_was_given() -> None:
    store = stored(**{f"k{at}": at for at in range(1000)})
    rows = rows_over(store, cache_rows=100)
    for at in range(1000):
        assert rows.get(f"k{at}") == Total(at)
        rows.commit()
        assert len(rows._young) + len(rows._old) <= 102


def test_rows_in_use_stay_cached_over_a_change_of_generations() -> None:
    store = stored(**{f"k{at}": at for at in range(1000)})
    rows = rows_over(store, cache_rows=100)
    for at in range(1000):
        rows.get("k0")
        rows.get(f"k{at}")
        rows.commit()
    assert store.looked_up == 1000


def test_rows_are_held_once_though_a_transaction_replaces_them() -> None:
    """Rows committed before are let go as the transaction continues, and its changed rows are the cache
    when it closes.
    """
    store = stored()
    rows = rows_over(store, cache_rows=1_000)
    for at in range(100):
        rows[f"k{at}"] = Total(at)
    store.take(rows)
    for replaced in (30, 100):
        for at in range(replaced):
            rows[f"k{at}"] = Total(at + 1)
        rows.forget_replaced()
        assert (len(rows._young), len(rows._changed)) == (100 - replaced, replaced)
    del rows["k7"]
    store.take(rows)
    assert [rows.get(f"k{at}") for at in range(100)] == [
        None if at == 7 else Total(at + 1) for at in range(100)
    ]
    assert (len(rows._young), store.looked_up) == (100, 0)


@pytest.mark.parametrize("replaced", [2, 8])
def test_few_changes_and_many_are_found_by_later_transactions(replaced: int) -> None:
    store = stored(**{f"k{at}": at for at in range(10)})
    rows = rows_over(store)
    for at in range(10):
        rows.get(f"k{at}")
    for value in (50, 60):
        for at in range(replaced):
            rows[f"k{at}"] = Total(value)
        store.take(rows)
        assert [rows[f"k{at}"].count for at in range(10)] == [value] * replaced + list(range(replaced, 10))
    assert store.looked_up == 10


@pytest.mark.parametrize("let_go", [False, True])
def test_a_rollback_does_not_bring_back_a_row_older_than_the_last_commit(let_go: bool) -> None:
    store = stored(k=1, x=1, y=1)
    rows = rows_over(store, cache_rows=4)
    for key in "kxy":
        rows.get(key)
    rows.commit()  # these become the old generation
    rows["k"] = Total(2)
    store.take(rows)
    rows["k"] = Total(3)
    if let_go:
        rows.forget_replaced()
    rows.rollback()
    assert rows.get("k") == Total(2)


def test_a_missing_row_is_looked_up_once() -> None:
    store = stored(other=1)
    rows = rows_over(store)
    assert [rows.get("a") for _ in range(3)] == [None] * 3
    assert store.looked_up == 1


def test_a_store_that_began_empty_is_asked_for_nothing_until_rows_are_dropped() -> None:
    store = DictStore()
    rows = rows_over(store, cache_rows=4)
    for key in "abc":
        assert rows.get(key) is None
        rows[key] = Total(1)
    store.take(rows)
    assert store.looked_up == 0
    for key in "defghi":  # two changes of generations: "a" is dropped
        rows[key] = Total(2)
    store.take(rows)
    rows["j"] = Total(3)
    store.take(rows)
    assert rows.get("a") == Total(1)
    assert store.looked_up == 1


def test_a_store_that_began_empty_is_asked_again_after_a_rollback() -> None:
    store = DictStore()
    rows = rows_over(store)
    rows["a"] = Total(1)
    store.take(rows)
    rows["a"] = Total(2)
    rows.rollback()
    assert rows.get("a") == Total(1)


def test_rows_of_a_type_with_several_forms_are_the_stored_one_at_once() -> None:
    class Means(msgspec.Struct, frozen=True):
        mean: float
        seen: dict[str, int]

    rows: Rows[Means] = CanonicalRows(DictStore(), RowCodec(Means), 10)
    rows["a"] = Means(1, {"z": 1, "b": 2})
    assert repr(rows["a"]) == "Means(mean=1.0, seen={'b': 2, 'z': 1})"


# -- a store that fails


def test_what_the_store_raises_is_kept_even_when_a_fold_swallows_it() -> None:
    class Failing(DictStore):
        failing = False

        def get(self, key: bytes) -> bytes | None:  # type: ignore[override]
            raise StoreError("gone")

        def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
            if self.failing:
                raise StoreError("gone")
            return super().scan(prefix, start)

    store = Failing({row_key("b"): b""})
    rows = rows_over(store)
    store.failing = True
    for read in (lambda: rows.get("a"), lambda: list(rows.scan())):
        with pytest.raises(StoreError):
            read()
        assert len(rows.failures) == 1
        rows.rollback()
        assert rows.failures == []


def test_a_stored_row_of_another_type_is_the_stores_failure() -> None:
    rows = rows_over(
        DictStore({row_key("a"): b"\x01" + msgspec.msgpack.encode("text"), row_key("b"): b"\x07"})
    )
    with pytest.raises(ChangelogError, match="does not fit its type"):
        rows.get("a")
    with pytest.raises(ChangelogError, match="format 07"):
        list(rows.scan("b"))
    assert len(rows.failures) == 2


# -- timers


def fire_all(rows: Rows[Any], now_ms: int) -> list[tuple[str, int]]:
    return [(key, due_ms) for key, due_ms in rows.due(now_ms) if rows.fire(key, due_ms)]


def test_timers_come_due_in_order_of_time_then_key_and_once() -> None:
    rows = rows_over()
    for key, at_ms in (("b", 5), ("a", 5), ("c", 4), ("late", 9)):
        rows.wake_at(key, at_ms)
    assert rows.next_wake_ms == 4
    assert fire_all(rows, 3) == []
    assert fire_all(rows, 5) == [("c", 4), ("a", 5), ("b", 5)]
    assert fire_all(rows, 5) == []
    assert rows.next_wake_ms == 9


def test_a_timer_replaced_or_cancelled_does_not_fire_at_its_old_time() -> None:
    rows = rows_over()
    rows.wake_at("a", 5)
    rows.wake_at("a", 8)
    rows.wake_at("b", 5)
    rows.wake_at("b", None)
    rows.wake_at("c", 5)
    rows.wake_at("c", 3)
    assert fire_all(rows, 6) == [("c", 3)]
    assert fire_all(rows, 8) == [("a", 8)]


def test_timers_are_there_again_after_a_restart() -> None:
    store = DictStore()
    rows = rows_over(store)
    rows.wake_at("a", -5)
    rows.wake_at("b", 1 << 40)
    store.take(rows)
    assert fire_all(rows_over(store), 1 << 41) == [("a", -5), ("b", 1 << 40)]


def test_a_rollback_puts_back_timers_that_were_taken_but_had_not_fired() -> None:
    store = DictStore()
    rows = rows_over(store)
    rows.wake_at("a", 5)
    rows.wake_at("b", 6)
    store.take(rows)
    ready = rows.due(10)
    assert rows.fire(*ready[0])
    rows.rollback()
    assert rows.next_wake_ms == 5
    assert fire_all(rows, 10) == [("a", 5), ("b", 6)]


def test_timers_pushed_back_again_and_again_do_not_pile_up() -> None:
    rows = rows_over()
    rows.wake_at("other", 7)
    for at in range(100_000):
        rows.wake_at("session", 1_000_000 + at)
    assert len(rows._wakes._heap) < 200
    assert fire_all(rows, 2_000_000) == [("other", 7), ("session", 1_099_999)]


@pytest.mark.parametrize("at_ms", [1.5, "5", NEVER, -NEVER, float("nan")])
def test_a_time_that_is_not_whole_ms_is_refused(at_ms: Any) -> None:
    rows = rows_over()
    with pytest.raises(FoldError, match="not a time in whole ms"):
        rows.wake_at("a", at_ms)
    assert rows.changed()[1] == {}


def test_a_timer_key_has_a_limit() -> None:
    rows = rows_over()
    rows.wake_at("k" * (LIMIT_KEY_BYTES - 1), 1)
    with pytest.raises(FoldError, match="longer than 32768 bytes"):
        rows.wake_at("k" * LIMIT_KEY_BYTES, 1)


# -- one record undone


def test_undo_takes_back_one_record_and_leaves_the_earlier_ones() -> None:
    rows = rows_over(stored(a=1, b=1))
    rows.wake_at("a", 5)
    rows.commit()
    journaled = JournaledRows(rows)
    journaled["a"] = Total(2)
    journaled.wake_at("a", 6)
    journaled.keep()
    journaled["a"], journaled["c"] = Total(3), Total(3)
    del journaled["b"]
    journaled.wake_at("a", None)
    journaled.wake_at("c", 1)
    journaled.undo()
    assert list(rows.scan()) == [("a", Total(2)), ("b", Total(1))]
    assert rows.changed() == ({"a": Total(2)}, {"a": 6})
    assert fire_all(rows, 10) == [("a", 6)]


def test_undo_after_a_deletion_of_nothing_changes_nothing() -> None:
    journaled = JournaledRows(rows_over())
    with pytest.raises(KeyError):
        del journaled["a"]
    with pytest.raises(FoldError):
        journaled.wake_at("a", 0.5)  # type: ignore[arg-type]
    with pytest.raises(FoldError):
        journaled["a"] = Total("x")  # type: ignore[arg-type]
    journaled.undo()
    assert journaled.changed() == ({}, {})


keys = st.sampled_from(["a", "ab", "b", "é", "\uffff", "\U0001f600", ""])


class OverlayAgainstADict(RuleBasedStateMachine):
    """Rows with a journal, over a tiny cache, against copies of a dict."""

    @initialize(cache_rows=st.integers(1, 6))
    def start(self, cache_rows: int) -> None:
        self.store = DictStore()
        self.rows = rows_over(self.store, cache_rows)
        self.journaled = JournaledRows(self.rows)
        self.committed: tuple[dict[str, int], dict[str, int]] = ({}, {})
        self.kept, self.now = self.committed, self.copy(self.committed)

    @staticmethod
    def copy(state: tuple[dict[str, int], dict[str, int]]) -> tuple[dict[str, int], dict[str, int]]:
        return dict(state[0]), dict(state[1])

    @rule(key=keys, count=st.integers(0, 3))
    def set(self, key: str, count: int) -> None:
        self.journaled[key] = Total(count)
        self.now[0][key] = count

    @rule(key=keys)
    def delete(self, key: str) -> None:
        if key in self.now[0]:
            del self.journaled[key], self.now[0][key]
        else:
            with pytest.raises(KeyError):
                del self.journaled[key]

    @rule(key=keys, at_ms=st.none() | st.integers(0, 5))
    def wake_at(self, key: str, at_ms: int | None) -> None:
        self.journaled.wake_at(key, at_ms)
        self.now[1].pop(key, None)
        if at_ms is not None:
            self.now[1][key] = at_ms

    @rule(now_ms=st.integers(0, 6))
    def wake(self, now_ms: int) -> None:
        ready = self.journaled.due(now_ms)
        assert ready == sorted(
            [(key, at) for key, at in self.now[1].items() if at <= now_ms],
            key=lambda each: (each[1], each[0]),
        )
        for key, at_ms in ready:
            assert self.journaled.fire(key, at_ms)
            del self.now[1][key]

    @rule()
    def keep(self) -> None:
        self.journaled.keep()
        self.kept = self.copy(self.now)

    @rule()
    def undo(self) -> None:
        self.journaled.undo()
        self.now = self.copy(self.kept)

    @rule()
    def commit(self) -> None:
        self.keep()
        self.store.take(self.rows)
        self.committed = self.copy(self.now)
        self.journaled = JournaledRows(self.rows)

    @rule(late=st.booleans())
    def rollback(self, late: bool) -> None:
        if late:  # as when the transaction could not be written
            self.rows.forget_replaced()
        self.rows.rollback()
        self.now, self.kept = self.copy(self.committed), self.copy(self.committed)
        self.journaled = JournaledRows(self.rows)

    @precondition(lambda self: hasattr(self, "rows"))
    @invariant()
    def the_same(self) -> None:
        found = {key: row.count for key, row in self.journaled.scan()}
        assert list(found) == sorted(found, key=str.encode)
        assert found == self.now[0]
        for key in self.now[0]:
            assert self.journaled.get(key) == Total(self.now[0][key])
        assert self.journaled._wakes.held == self.now[1]
        assert self.journaled.next_wake_ms <= min(self.now[1].values(), default=NEVER)


OverlayAgainstADict.TestCase.settings = settings(max_examples=scaled(100), stateful_step_count=30)
TestOverlay = OverlayAgainstADict.TestCase


@given(
    store=st.dictionaries(keys, st.integers(0, 9)),
    overlay=st.dictionaries(keys, st.none() | st.integers(0, 9)),
    prefix=keys,
)
def test_a_prefix_scan_is_a_filter_of_all_rows(
    store: dict[str, int], overlay: dict[str, int | None], prefix: str
) -> None:
    rows = rows_over(DictStore({row_key(key): CODEC.encode(Total(count)) for key, count in store.items()}))
    for key, count in overlay.items():
        rows[key] = None if count is None else Total(count)  # type: ignore[assignment]
    assert list(rows.scan(prefix)) == [(key, row) for key, row in rows.scan() if key.startswith(prefix)]


# -- the clock of ticks


@pytest.mark.parametrize(
    ("clock", "why"),
    [
        ("tick", "only processors declared with on= and on_tick="),
        ("event", "only processors declared with on_event= and time="),
        ("wall", "the clocks are append, event and tick"),
    ],
)
def test_rows_of_one_source_have_the_clock_of_append_time_only(clock: Any, why: str) -> None:
    rows = rows_over()
    with pytest.raises(FoldError, match=why):
        rows.wake_at("a", 5, clock=clock)
    assert rows.changed() == ({}, {})


def test_timers_of_both_clocks_do_not_affect_one_another() -> None:
    rows: Rows[Total] = Rows(DictStore(), CODEC, 100, TimerTable())
    assert rows.ticks is not None
    rows.wake_at("a", 5)
    rows.wake_at("a", 7, clock="tick")
    assert (rows.changed()[1], rows.ticks.changed) == ({"a": 5}, {"a": 7})
    rows.rollback()
    assert (rows.due(9), rows.ticks.due(9)) == ([], [])


# -- rows that pass


def passing_over(store: DictStore, cache_rows: int = 100) -> Rows[Total]:
    return Rows(store, CODEC, cache_rows, passing=True)


def lasting(rows: Rows[Total]) -> dict[str, Total | None]:
    return dict(rows.lasting([*rows.changed()[0].items()]))


def test_a_row_that_comes_and_goes_in_one_transaction_is_not_stored_as_gone() -> None:
    store = stored(a=1)
    rows = passing_over(store)
    rows["a"], rows["b"], rows["c"] = None, Total(2), Total(3)  # type: ignore[assignment]
    rows["b"] = None  # type: ignore[assignment]
    assert lasting(rows) == {"a": None, "c": Total(3)}
    store.take(rows)
    rows["c"] = None  # type: ignore[assignment]
    assert lasting(rows) == {"c": None}


def test_other_rows_are_stored_as_gone_in_any_case() -> None:
    rows = rows_over()
    rows["b"] = None  # type: ignore[assignment]
    assert lasting(rows) == {"b": None}


def test_rows_that_are_gone_take_no_room_in_the_cache_of_all_rows() -> None:
    store = stored()
    rows = passing_over(store, cache_rows=20)
    for at in range(1_000):
        rows[f"k{at}"] = Total(at)
        if at:
            rows[f"k{at - 1}"] = None  # type: ignore[assignment]
        store.take(rows)
    assert [*rows._young] == ["k999"]
    assert (rows.get("k999"), rows.get("k998"), store.looked_up) == (Total(999), None, 0)


class PassingAgainstADict(RuleBasedStateMachine):
    """The parts left out of stored rows depend on the committed rows alone, whatever is cached of them."""

    keys = st.sampled_from("abcd")

    def __init__(self) -> None:
        super().__init__()
        self.store = DictStore()
        self.rows = passing_over(self.store, cache_rows=4)

    @rule(key=keys, count=st.none() | st.just(1), careful=st.booleans())
    def put(self, key: str, count: int | None, careful: bool) -> None:
        rows = JournaledRows(self.rows) if careful else self.rows
        rows[key] = None if count is None else Total(count)  # type: ignore[assignment]

    @rule(key=keys)
    def get(self, key: str) -> None:
        changed, stored = self.rows.changed()[0], self.store.get(row_key(key))
        committed = None if stored is None else CODEC.decode(stored)
        assert self.rows.get(key) == changed.get(key, committed)

    @rule()
    def step(self) -> None:
        self.rows.forget_replaced()

    @rule()
    def commit(self) -> None:
        changed = self.rows.changed()[0]
        wanted = {
            key: row for key, row in changed.items() if row is not None or row_key(key) in [*self.store]
        }
        assert lasting(self.rows) == wanted
        self.store.take(self.rows)

    @rule(late=st.booleans())
    def rollback(self, late: bool) -> None:
        if late:  # as when the transaction could not be written
            lasting(self.rows)
        self.rows.rollback()

    @rule()
    def restart(self) -> None:
        self.commit()
        self.rows = passing_over(self.store, cache_rows=4)


PassingAgainstADict.TestCase.settings = settings(max_examples=scaled(200), stateful_step_count=40)
TestPassing = PassingAgainstADict.TestCase
