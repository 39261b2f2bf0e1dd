"""A folder, by example; `test_folding_model.py` does the rest."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

import msgspec
import pytest

from holdfast.core.engine.declared.processor import Emit, Processor
from holdfast.core.engine.fold.folding import LIMIT_BYTES, STEP_RECORDS, Batch, Changes, Folder, Transition
from holdfast.core.engine.positions import Position, decode_position
from holdfast.core.engine.state.codec import APPLIED, META, row_key, wake_key
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.core.engine.state.rows import LIMIT_KEY_BYTES, Rows
from holdfast.errors import ChangelogError, ConfigError, StoreError


class Total(msgspec.Struct, frozen=True):
    count: int = 0
    text: str = ""


class Store(dict[bytes, bytes]):
    broken = False

    def get(self, key: bytes) -> bytes | None:  # type: ignore[override]
        if self.broken:
            raise StoreError("the disk is gone")
        return super().get(key)

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        yield from [(key, self[key]) for key in sorted(self) if key.startswith(prefix) and key >= start]

    def take(self, changes: Changes) -> None:
        for key, value in changes.stored():
            if value is None:
                self.pop(key, None)
            else:
                self[key] = value


def count(rows: Rows[Total], key: Any, at_ms: int) -> None:
    rows[key] = Total((rows.get(key) or Total()).count + 1, str(at_ms))


def decoded(value: Any) -> Any:
    if value == "bad":
        raise ValueError("bad")
    return value


def processor(fold: Any = count, **more: Any) -> Processor[Any, Total]:
    return Processor(
        name="t", source="s", decode=decoded, fold=fold, row=Total, **{"emits": ("out", "woken"), **more}
    )


def batch(*events: Any, first: int = 0, times_ms: Sequence[int] | None = None) -> Batch:
    return Batch(range(first, first + len(events)), times_ms or [0] * len(events), (events,))


def folded(folder: Folder[Any], store: Store, *batches: Batch) -> Changes:
    changes = folder.fold(batches)
    assert changes is not None
    store.take(changes)
    folder.commit()
    return changes


def refusals(fold: Any, *events: Any, **more: Any) -> list[tuple[int, str, str]]:
    changes = Folder(processor(fold, **more), Store()).fold([batch(*events)])
    assert changes is not None
    return [(each.offset, each.stage, each.reason) for each in changes.refused]


# -- one transaction


def test_rows_changed_many_times_are_written_once_and_the_marker_comes_last() -> None:
    changes = Folder(processor(), Store()).fold([batch("a", "b", "a", times_ms=[5, 7, 6])])
    assert changes is not None
    assert [key for key, _ in changes.stored()] == [b"\x02a", b"\x02b", APPLIED]
    assert changes.marker == Position((2,), 7, 1)
    assert changes.records == 3


def test_a_record_that_was_applied_before_is_not_applied_again() -> None:
    store = Store()
    folder = Folder(processor(), store)
    folded(folder, store, batch("a", "a"))
    assert folder.fold([batch("a", "a")]) is None
    changes = folded(folder, store, batch("a", "a", "a"), batch("a", "a", first=2))
    assert changes.records == 2
    assert folder.rows["a"].count == 4
    assert folder.marker.applied[0] == 3


@pytest.mark.parametrize("records", [1, 63, 65, 100, 129, 5 * STEP_RECORDS + 3])
def test_a_batch_longer_than_a_step_is_folded_in_slices_each_record_once(records: int) -> None:
    folder = Folder(processor(), Store())
    yields = len(list(folder.steps([batch(*["a"] * records)])))
    assert yields >= records // STEP_RECORDS
    assert folder.changes is not None
    assert folder.changes.records == folder.rows["a"].count == records


@pytest.mark.parametrize("events", [["a"], ["bad", *["a"] * 99]], ids=["fast", "record by record"])
def test_a_slow_fold_makes_steps_short_and_a_quick_one_long_again(events: list[str]) -> None:
    folds = 0

    def fold(rows: Rows[Total], event: str, at_ms: int) -> Any:
        nonlocal folds
        folds += 1
        return count(rows, event, at_ms)

    folder = Folder(processor(fold), Store())

    def steps_of(record_s: float, first: int) -> list[int]:
        lengths, before = list[int](), folds
        for _ in folder.steps([batch(*events * (6_000 // len(events)), first=first)]):
            lengths.append(folds - before)
            folder.stepped((folds - before) * record_s)
            before = folds
        folder.commit()
        return lengths

    assert max(steps_of(0.002, 0)) <= 50, "100 ms at most, from the first on"
    assert max(steps_of(0.002, 6_000)[3:]) <= 25, "50 ms each, once it is known"
    assert max(steps_of(0.000_001, 12_000)) > 400


@pytest.mark.parametrize(
    "events",
    [["a"] * 100, ["bad", *["a"] * 99], [*["a"] * 9, "bad", *["a"] * 90]],
    ids=["fast", "bad", "bad later"],
)
@pytest.mark.parametrize("record_s", [0.001, 0.01, 0.05, 0.2, 2.0])
def test_the_first_steps_of_a_slow_fold_are_short_too(events: list[str], record_s: float) -> None:
    folds = 0

    def fold(rows: Rows[Total], event: str, at_ms: int) -> Any:
        nonlocal folds
        folds += 1
        return count(rows, event, at_ms)

    folder = Folder(processor(fold), Store())
    before = 0
    for _ in folder.steps([batch(*events)]):
        assert folds - before <= max(2, round(0.1 / record_s)), (
            "0.1 s; a record, or two after one that was refused at once"
        )
        folder.stepped((folds - before) * record_s)
        before = folds


def test_stream_time_is_the_highest_append_time_and_never_goes_back() -> None:
    store = Store()
    folder = Folder(processor(), store)
    folded(folder, store, batch("a", "b", "c", "d", times_ms=[-1, 9, 4, -1]))
    assert [folder.rows[key].text for key in "abcd"] == ["-1", "9", "9", "9"]
    folded(folder, store, batch("a", first=4, times_ms=[3]))
    assert folder.rows["a"].text == "9"
    assert decode_position(store[APPLIED]).stream_ms == 9


def test_a_rollback_keeps_the_stream_time_of_the_committed_records() -> None:
    store = Store()
    folder = Folder(processor(), store)
    folded(folder, store, batch("a", times_ms=[9]))
    folder.rollback()
    assert folder.stream_ms == 9
    assert folder.fold([batch("a", times_ms=[50])]) is None
    folder.rollback()
    assert folder.stream_ms == 9
    folder.fold([batch("a", first=1, times_ms=[50])])
    folder.rollback()
    assert folder.stream_ms == 9
    assert folder.rows["a"].count == 1


def counted_with_timers(rows: Rows[Total], key: str, at_ms: int) -> list[Emit]:
    rows[key] = Total((rows.get(key) or Total()).count + 1, str(at_ms))
    rows.wake_at(key, at_ms + 40)
    return [Emit("no topic!" if key == "ill" else "out", key, str(at_ms).encode())]


def rung(rows: Rows[Total], key: str, at_ms: int) -> list[Emit]:
    return [Emit("woken", key, str(at_ms).encode())]


@pytest.mark.parametrize("bad", [0.0, 0.01])
@pytest.mark.parametrize("seed", range(5))
def test_transactions_closed_early_come_to_the_same_as_one_that_is_not(seed: int, bad: float) -> None:
    chance = Random(seed)
    events = [
        chance.choice(["bad", "ill"]) if chance.random() < bad else chance.choice("abcdefgh")
        for _ in range(6 * STEP_RECORDS)
    ]
    whole = batch(*events, times_ms=[at * 3 + chance.randrange(50) for at in range(len(events))])
    cuts = sorted(chance.sample(range(1, len(events)), chance.randrange(5)))
    batches = [whole.slice(start, stop) for start, stop in zip([0, *cuts], [*cuts, len(events)], strict=True)]
    proof: list[tuple[Store, list[Emit], list[int]]] = []
    transactions = 0
    for often in (0.0, 0.5):
        store, emits, refused = Store(), list[Emit](), list[int]()
        folder = Folder(processor(counted_with_timers, on_wake=rung), store)
        while folder.marker.applied[0] < len(events) - 1:
            for _ in folder.steps(batches):
                if chance.random() < often:
                    folder.close_early()
            assert folder.changes is not None
            assert folder.changes.marker.applied[0] == folder.marker.applied[0] + folder.changes.records
            emits += folder.changes.emits
            refused += [each.offset for each in folder.changes.refused]
            store.take(folder.changes)
            folder.commit()
            transactions += 1
        proof.append((store, emits, refused))
    assert proof[0] == proof[1]
    assert transactions > 2, "the second was cut"


@pytest.mark.parametrize("events", [["a"], ["bad", *["a"] * 99]], ids=["fast", "record by record"])
def test_a_batch_is_asked_for_when_those_before_it_are_folded_and_after_an_early_close_not_at_all(
    events: list[str],
) -> None:
    folder, asked, length = Folder(processor(), Store()), list[int](), 4_000

    def batches() -> Iterator[Batch]:
        for number in range(3):
            asked.append(number)
            yield batch(*events * (length // len(events)), first=number * length)

    seen: list[int] = []
    for _ in folder.steps(batches()):
        seen.append(len(asked))
        if len(asked) == 2:
            folder.close_early()
    assert seen[0] == 1
    assert asked == [0, 1]
    assert folder.changes is not None
    assert length <= folder.changes.marker.applied[0] < 2 * length - 1
    assert folder.changes.records == folder.changes.marker.applied[0] + 1
    assert len(folder.changes.refused) == sum(
        event == "bad" for event in (events * length)[: folder.changes.records]
    )


def test_a_transaction_left_open_is_not_folded_over() -> None:
    folder = Folder(processor(), Store())
    next(iter(folder.steps([batch("a")])))
    with pytest.raises(AssertionError, match="commit or roll back"):
        folder.fold([batch("b")])
    folder.rollback()
    assert folder.fold([batch("b")]) is not None


def test_an_event_can_take_several_columns() -> None:
    told: Processor[Any, Total] = Processor(
        name="t",
        source="s",
        inputs=("key", "offset"),
        decode=lambda key, offset: (key, offset),
        fold=lambda rows, event, _: rows.__setitem__(event[0], Total(event[1])),
        row=Total,
    )
    folder = Folder(told, Store())
    folder.fold([Batch([3, 5], [0, 0], (["a", "b"], [3, 5]))])
    assert dict(folder.rows.scan()) == {"a": Total(3), "b": Total(5)}


def test_columns_that_do_not_match_are_a_bug_not_a_bad_record() -> None:
    for columns, times_ms in ((["a"], [0, 0]), (["a", "b"], [0])):
        with pytest.raises((IndexError, ValueError)):
            Folder(processor(), Store()).fold([Batch(range(2), times_ms, (columns,))])


# -- refusals


def test_a_bad_record_is_refused_and_its_neighbours_are_not() -> None:
    def fold(rows: Rows[Total], key: str, at_ms: int) -> Iterator[Emit]:
        count(rows, key, at_ms)
        rows.wake_at(key, 50)
        yield Emit("out", key)
        if key == "raises":
            del rows["a"]
            raise RuntimeError("half-way")

    folder = Folder(processor(fold), Store())
    changes = folder.fold([batch("a", "bad", "raises", "a", times_ms=[1, 2, 3, 4])])
    assert changes is not None
    assert [(each.offset, each.stage, each.error, each.reason) for each in changes.refused] == [
        (1, "decode", "ValueError", "bad"),
        (2, "fold", "RuntimeError", "half-way"),
    ]
    assert dict(folder.rows.scan()) == {"a": Total(2, "4")}
    assert [key for key, _ in changes.puts] == [b"\x02a", b"\x01a"]
    assert [emit.key for emit in changes.emits] == ["a", "a"]
    assert changes.marker.applied[0] == 3


def oversize_then_shrink(rows: Rows[Total], length: int, _: int) -> None:
    rows["a"] = Total(length, "x" * length)


def test_an_oversized_row_is_refused_even_when_a_later_record_of_the_transaction_replaces_it() -> None:
    whole = Folder(processor(oversize_then_shrink), Store())
    changes = whole.fold([batch(1, LIMIT_BYTES, 2)])
    assert changes is not None
    assert [each.offset for each in changes.refused] == [1]
    assert f"the limit is {LIMIT_BYTES}" in changes.refused[0].reason


def bool_then_int(rows: Rows[Any], count: Any, _: int) -> None:
    rows["k"] = Total(count)


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_wrong_type_is_refused_even_when_a_later_record_of_the_transaction_replaces_it(cut: int) -> None:
    store = Store()
    folder: Folder[Any] = Folder(processor(bool_then_int), store)
    events = [True, 1, "two", 3, None]
    changes = [
        folded(folder, store, batch(*events[first : first + cut], first=first))
        for first in range(0, len(events), cut)
    ]
    assert [each.offset for one in changes for each in one.refused] == [0, 2, 4]
    assert folder.rows["k"] == Total(3)


def test_a_row_of_exactly_the_limit_is_kept() -> None:
    for spare, refused in ((0, []), (1, [0])):
        fold = lambda rows, length, _: rows.__setitem__("a", Total(0, "x" * length))
        empty = len(msgspec.msgpack.encode(Total(0, "x" * 40))) + 1 - 40
        folder: Folder[Total] = Folder(processor(fold), Store(), limit_bytes=200)
        changes = folder.fold([batch(200 - empty + spare)])
        assert changes is not None
        assert [each.offset for each in changes.refused] == refused


@pytest.mark.parametrize(
    "row",
    [Total(1 << 70), Total(object()), Total("text"), Total(0, "\ud800"), 5, "text"],  # type: ignore[arg-type]
)
def test_a_row_that_cannot_be_written_or_read_again_is_refused(row: Any) -> None:
    def fold(rows: Rows[Any], event: Any, _: int) -> None:
        rows["a"] = row if event == "x" else Total(1)

    assert [each[:2] for each in refusals(fold, "ok", "x")] == [(1, "fold")]


@pytest.mark.parametrize("key", [5, None, b"a", "\ud800", "k" * LIMIT_KEY_BYTES, ["unhashable"]])
def test_a_row_key_that_cannot_be_stored_is_refused(key: Any) -> None:
    def blind(rows: Rows[Any], event: Any, _: int) -> None:
        rows[key] = Total(1)

    def then_deleted(rows: Rows[Any], event: Any, _: int) -> None:
        rows[key] = Total(1)
        del rows[key]

    def timer(rows: Rows[Any], event: Any, _: int) -> None:
        rows.wake_at(key, 5)
        rows.wake_at(key, None)

    for fold in (blind, then_deleted, timer):
        assert [each[:2] for each in refusals(fold, "x")] == [(0, "fold")]


def test_deleting_a_row_that_is_not_there_refuses_the_record() -> None:
    def fold(rows: Rows[Any], key: str, _: int) -> None:
        rows["seen"] = Total(1)
        del rows[key]

    assert refusals(fold, "a", "seen") == [(0, "fold", "'a'")]


@pytest.mark.parametrize(
    "emitted",
    [
        "text",
        None,
        Emit("no such name!"),
        Emit(".."),
        Emit(7),  # type: ignore[arg-type]
        Emit("out", 7),  # type: ignore[arg-type]
        Emit("out", "\ud800"),
        Emit("out", None, "text"),  # type: ignore[arg-type]
        Emit("out", None, b"x" * (LIMIT_BYTES + 1)),
        Emit("out", "é" * (LIMIT_BYTES // 2 + 1)),
        Emit("out", partition=-1),
        Emit("out", partition=True),
        Emit("out", partition=1 << 31),
        Emit("out", headers=None),  # type: ignore[arg-type]
        Emit("out", headers=iter([("a", b"")])),  # type: ignore[arg-type]
        Emit("out", headers=(("a", "text"),)),  # type: ignore[arg-type]
        Emit("out", headers=((b"a", b""),)),  # type: ignore[arg-type]
        Emit("out", headers=(("\ud800", b""),)),
        Emit("out", headers=("ab",)),  # type: ignore[arg-type]
        Emit("out", headers=(("a", b"x" * LIMIT_BYTES),)),
    ],
)
def test_an_emit_that_no_producer_would_take_is_refused(emitted: Any) -> None:
    def fold(rows: Rows[Any], event: Any, _: int) -> list[Any]:
        return [emitted] if event == "x" else [Emit("out", "k", b"v", (("a", None), ("b", b"c")), 3)]

    changes = Folder(processor(fold), Store()).fold([batch("ok", "x", "ok")])
    assert changes is not None
    assert [(each.offset, each.stage) for each in changes.refused] == [(1, "fold")]
    assert len(changes.emits) == 2


@pytest.mark.parametrize("declared", [(), ("out",), ["out", "other"]])
def test_an_emit_to_a_topic_that_is_not_declared_is_refused_whatever_topics_there_are(declared: Any) -> None:
    def fold(rows: Rows[Any], event: Any, _: int) -> list[Emit]:
        rows[event] = Total(1)
        return [Emit("undeclared", "k", b"v")] if event == "x" else []

    changes = Folder(processor(fold, emits=declared), Store()).fold([batch("ok", "x", "ok")])
    assert changes is not None
    (refused,) = changes.refused
    assert (refused.offset, refused.stage, refused.error) == (1, "fold", "FoldError")
    assert (
        f"emit to 'undeclared': not among the emits of processor t ({', '.join(declared) or 'none'})"
        in refused.reason
    )
    assert changes.emits == []
    assert [key for key, _ in changes.puts] == [row_key("ok")]


def test_an_on_wake_that_emits_to_a_topic_not_declared_is_refused_and_has_fired() -> None:
    def fold(rows: Rows[Any], event: Any, at_ms: int) -> None:
        if event == "set":
            rows.wake_at("k", at_ms + 1)

    changes = Folder(processor(fold, emits=(), on_wake=lambda *_: [Emit("woken")]), Store()).fold(
        [batch("set", "x", times_ms=[0, 9])]
    )
    assert changes is not None
    assert [(each.offset, each.stage) for each in changes.refused] == [(1, "wake")]
    assert dict(changes.puts)[wake_key("k")] is None


class Basket(msgspec.Struct, frozen=True):
    """A row whose field a fold may set to a list all the same: only a type checker would object."""

    items: tuple[int, ...] = ()


def append_in_place(rows: Rows[Any], event: Any, _: int) -> None:
    """Set a list, append to it in place with the next record, and fail at the third."""
    match event:
        case "set":
            rows["a"] = Basket([1])  # type: ignore[arg-type]
        case "append":
            rows["a"].items.append(2)
        case "fail":
            rows["a"].items.append(3)
            raise ValueError("fail")


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_list_instead_of_a_tuple_cannot_be_changed_wherever_the_log_is_cut(cut: int) -> None:
    basket = Processor(name="t", source="s", decode=decoded, fold=append_in_place, row=Basket)
    store, refused = Store(), list[int]()
    folder: Folder[Any] = Folder(basket, store)
    log = ["set", "append", "fail", "set", "append"]
    for first in range(0, len(log), cut):
        refused += [
            each.offset
            for each in folded(folder, store, batch(*log[first : first + cut], first=first)).refused
        ]
        assert folder.rows.get("a") == Basket((1,)), "no reader sees another row than the next owner does"
    assert refused == [1, 2, 4]


class Blob(msgspec.Struct, frozen=True):
    data: bytes = b""


class Pair(NamedTuple):
    first: int
    second: int


@dataclass(frozen=True)
class Uncompared:
    items: tuple[int, ...] = field(default=(), compare=False)


def grow_bytes(rows: Rows[Any], event: str, _: int) -> None:
    if (held := rows.get("a")) is None:
        rows["a"] = Blob(bytearray(b"1"))  # type: ignore[arg-type]
    elif isinstance(held.data, bytearray):
        held.data.extend(b"2")


def grow_and_replace(rows: Rows[Any], event: str, _: int) -> None:
    match event:
        case "1":
            rows["a"] = Basket([1])  # type: ignore[arg-type]
        case "2":
            if isinstance(items := rows["a"].items, list):
                items.append(2)
            rows["seen"] = Basket(tuple(items))
        case _:
            rows["a"] = Basket((9,))


def grow_uncompared(rows: Rows[Any], event: str, _: int) -> None:
    if (held := rows.get("a")) is None:
        rows["a"] = Uncompared([1])  # type: ignore[arg-type]
    elif isinstance(held.items, list):
        held.items.append(2)


def bare_tuple(rows: Rows[Any], event: str, _: int) -> None:
    held = rows.get("a")
    rows["a"] = (1, 2) if held is None else Pair(held.first + 1, 2)


@pytest.mark.parametrize(
    ("row", "fold"),
    [(Blob, grow_bytes), (Basket, grow_and_replace), (Uncompared, grow_uncompared), (Pair, bare_tuple)],
)
def test_values_that_only_equal_those_of_the_declared_type_give_the_same_wherever_the_log_is_cut(
    row: Any, fold: Any
) -> None:
    """And the same as a worker that restarts after each transaction."""
    log, found = ["1", "2", "3"], []
    for cut, restarts in ((1, True), (1, False), (2, False), (3, False)):
        store, refused = Store(), list[int]()
        told: Processor[Any, Any] = Processor(name="t", source="s", decode=decoded, fold=fold, row=row)
        folder: Folder[Any] = Folder(told, store)
        for first in range(0, len(log), cut):
            refused += [
                each.offset
                for each in folded(folder, store, batch(*log[first : first + cut], first=first)).refused
            ]
            folder = Folder(told, store, marker=folder.marker) if restarts else folder
        found.append(({key: value for key, value in store.items() if key[:1] != META}, refused))
    assert found == [found[0]] * len(found)


def test_a_row_that_could_be_changed_in_place_would_make_live_and_replay_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Listed(msgspec.Struct, frozen=True):
        items: list[int] = []

    def fold(rows: Rows[Any], event: int, _: int) -> None:
        held = rows.get("a") or Listed([])
        held.items.append(event)
        rows["a"] = held
        if event == 0:
            raise ValueError

    with pytest.raises(ConfigError, match=r"Listed\.items is a list"):
        Processor(name="t", source="s", decode=int, fold=fold, row=Listed)
    monkeypatch.setattr("holdfast.core.engine.declared.processor.why_unfit", lambda row: None)
    accepted: Processor[int, Any] = Processor(name="t", source="s", decode=int, fold=fold, row=Listed)
    found = []
    for cut in (1, 3):
        store = Store()
        folder: Folder[Any] = Folder(accepted, store)
        for first in range(0, 3, cut):
            folded(folder, store, batch(*[1, 0, 2][first : first + cut], first=first))
        found.append(store[row_key("a")])
    assert found[0] != found[1], "which is why such a type is refused"


def test_a_fold_that_returns_no_collection_is_refused() -> None:
    assert [each[:2] for each in refusals(lambda *_: 5, "x")] == [(0, "fold")]
    assert [each[:2] for each in refusals(lambda *_: Emit("out"), "x")] == [(0, "fold")]


def test_errors_that_cannot_be_printed_or_sent_are_refusals_like_others() -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def fold(rows: Rows[Any], event: Any, _: int) -> None:
        raise MuteError if event == "mute" else ValueError("\ud800" * 5000)

    (_, _, mute), (_, _, torn) = refusals(fold, "mute", "torn")
    assert mute == "(the error cannot be printed)"
    assert torn.startswith("\\ud800")


@pytest.mark.parametrize("where", ["decode", "fold"])
def test_a_stop_iteration_ends_one_record_not_the_batch(where: str) -> None:
    def stop(*_: Any) -> Any:
        raise StopIteration

    folder = Folder(
        Processor(
            name="t",
            source="s",
            row=Total,
            decode=stop if where == "decode" else decoded,
            fold=stop if where == "fold" else count,
        ),
        Store(),
    )
    changes = folder.fold([batch("a", "b")])
    assert changes is not None
    assert [(each.offset, each.stage) for each in changes.refused] == [(0, where), (1, where)]
    assert changes.records == 2


# -- trouble that no record is to blame for


def test_a_store_that_fails_stops_the_folder_and_refuses_nothing() -> None:
    def swallow(rows: Rows[Total], key: str, at_ms: int) -> list[Emit]:
        try:
            count(rows, key, at_ms)
        except Exception:  # noqa: BLE001
            return [Emit("out", key)]
        return []

    for fold in (count, swallow):
        store = Store()
        folder = Folder(processor(fold), store)
        folded(folder, store, batch("a", "bad"))
        for events in (("b",), ("bad", "b")):
            store.broken = True
            with pytest.raises(StoreError, match="the disk is gone"):
                folder.fold([batch(*events, first=2)])
            store.broken = False
            folder.rollback()
        assert folded(folder, store, batch("b", first=2)).refused == []
        assert dict(folder.rows.scan()) == {"a": Total(1, "0"), "b": Total(1, "0")}


def test_a_stored_row_of_another_type_stops_the_folder_and_refuses_nothing() -> None:
    folder = Folder(processor(), Store({b"\x02a": b"\x01\xa1x"}))
    with pytest.raises(ChangelogError, match="raise the processor's version"):
        folder.fold([batch("a")])


def test_code_that_exits_refuses_its_record_and_ends_no_process() -> None:
    def fold(rows: Rows[Total], event: Any, at_ms: int) -> None:
        count(rows, "a" if event is not True else sys.exit("enough"), at_ms)

    assert refusals(fold, "a", True, "a") == [(1, "fold", "enough")]


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_running_out_of_memory_or_being_interrupted_blames_no_record(error: type[BaseException]) -> None:
    def fold(rows: Rows[Total], event: Any, at_ms: int) -> None:
        count(rows, "a", at_ms)
        if event is True:
            raise error

    store = Store()
    folder = Folder(processor(fold), store)
    for events in (("a", True), ("bad", True)):
        with pytest.raises(error):
            folder.fold([batch(*events, times_ms=[5, 6])])
        folder.rollback()
        assert folder.stream_ms == -1
    folded(folder, store, batch("a"))
    assert folder.rows["a"].count == 1


# -- timers


def arm(rows: Rows[Total], event: Any, at_ms: int) -> None:
    for key, due_ms in event:
        rows.wake_at(key, due_ms)


def woken(store: Store, wake: Any, *records: tuple[int, Any]) -> list[tuple[Any, ...]]:
    """Fold (append time, timers to set) one by one in a transaction; return the emits of on_wake, by
    record.
    """
    out: list[tuple[Any, ...]] = []
    folder = Folder(processor(arm, on_wake=wake), store)
    for offset, (at_ms, event) in enumerate(records):
        changes = folded(folder, store, batch(event, first=offset, times_ms=[at_ms]))
        out.append(tuple((emit.key, int(emit.value or b"")) for emit in changes.emits))
    return out


def tell(rows: Rows[Total], key: str, due_ms: int) -> Iterator[Emit]:
    yield Emit("out", key, b"%d" % due_ms)


def test_timers_fire_before_the_record_that_passes_them_in_order() -> None:
    assert woken(Store(), tell, (0, [("b", 5), ("a", 5), ("c", 3)]), (4, []), (5, [("a", 6)]), (6, [])) == [
        (),
        (("c", 3),),
        (("a", 5), ("b", 5)),
        (("a", 6),),
    ]


def test_a_time_already_passed_fires_at_the_next_later_append_time() -> None:
    assert woken(Store(), tell, (10, [("a", 3)]), (10, []), (-1, []), (9, []), (11, [])) == [
        (),
        (),
        (),
        (),
        (("a", 3),),
    ]


@pytest.mark.parametrize("back_ms", [0, 1, 1_000_000])
def test_an_on_wake_that_sets_itself_again_in_the_past_fires_once_per_append_time(back_ms: int) -> None:
    def again(rows: Rows[Total], key: str, due_ms: int) -> Iterator[Emit]:
        rows.wake_at(key, due_ms - back_ms)
        yield Emit("out", key, b"0")

    records = [(0, [("a", 1)]), (1, []), (1, []), (900, []), (901, [])]
    assert woken(Store(), again, *records) == [(), (("a", 0),), (), (("a", 0),), (("a", 0),)]


def test_an_on_wake_may_cancel_or_move_timers_that_are_due_with_it() -> None:
    def meddle(rows: Rows[Total], key: str, due_ms: int) -> Iterator[Emit]:
        yield from tell(rows, key, due_ms)
        if key == "a":
            rows.wake_at("b", None)
            rows.wake_at("c", 2)

    due = [("a", 1), ("b", 1), ("c", 1)]
    assert woken(Store(), meddle, (0, due), (5, []), (6, [])) == [(), (("a", 1),), (("c", 2),)]


def test_a_timer_whose_on_wake_raises_has_fired_and_is_refused_by_name() -> None:
    def failing(rows: Rows[Total], key: str, due_ms: int) -> None:
        rows["half"] = Total(1)
        raise RuntimeError("no")

    folder = Folder(processor(arm, on_wake=failing), Store())
    changes = folder.fold([batch([("a", 1)], [], [], times_ms=[0, 1, 2])])
    assert changes is not None
    assert [(each.offset, each.stage, each.reason) for each in changes.refused] == [
        (1, "wake", "timer 'a' due at 1: no")
    ]
    assert dict(folder.rows.scan()) == {}


def test_timers_without_an_on_wake_are_refused_with_a_word_about_it() -> None:
    folder = Folder(processor(arm), Store())
    changes = folder.fold([batch([("a", 1)], [], times_ms=[0, 1])])
    assert changes is not None
    assert "declares no on_wake" in changes.refused[0].reason


# -- the same state, reported change by change


def test_a_trace_has_each_change_and_no_change_of_a_refused_record() -> None:
    def fold(rows: Rows[Total], key: str, at_ms: int) -> None:
        if key == "clear":
            del rows["a"]
        else:
            rows["passing"] = Total(1)
            del rows["passing"]
            count(rows, key, at_ms)
        if key == "raises":
            raise RuntimeError

    told: list[Transition[Total]] = []
    folder = Folder(processor(fold), Store(), trace=told.append)
    folder.fold([batch("a", "raises", "a", "clear", times_ms=[1, 2, 3, 4])])
    one, two = Total(1, "1"), Total(2, "3")
    assert [(each.offset, each.at_ms, each.key, each.before, each.after) for each in told] == [
        (0, 1, "a", None, one),
        (2, 3, "a", one, two),
        (3, 4, "a", two, None),
    ]


def test_the_next_transaction_meets_a_row_as_a_restarted_worker_would() -> None:
    class Seen(msgspec.Struct, frozen=True):
        events: tuple[str, ...]

    def fold(rows: Rows[Any], key: str, _: int) -> list[Emit]:
        before = rows.get("a")
        rows["a"] = Seen([key])  # type: ignore[arg-type]
        return [Emit("out", None, repr(before).encode())]

    store = Store()
    folder: Folder[Any] = Folder(
        Processor(name="t", source="s", decode=decoded, fold=fold, row=Seen, emits=("out",)), store
    )
    folded(folder, store, batch("x"))
    (kept,) = folded(folder, store, batch("y", first=1)).emits
    assert kept.value == b"Seen(events=('x',))"


def test_bookkeeping_is_not_state() -> None:
    changes = Folder(processor(), Store()).fold([batch("a")])
    assert changes is not None
    assert [key for key, _ in changes.stored() if key[:1] == META] == [APPLIED]


@pytest.mark.parametrize("error", [asyncio.CancelledError, GeneratorExit])
@pytest.mark.parametrize("where", ["decode", "fold", "emits", "wake"])
@pytest.mark.parametrize("before", [0, 3])
def test_a_fold_that_raises_what_ends_tasks_and_generators_is_one_that_fails(
    error: type[BaseException], where: str, before: int
) -> None:
    def fail(at: str, event: bytes) -> None:
        if at == where and event == b"bad":
            raise error("no such task")

    def decode(value: bytes) -> bytes:
        fail("decode", value)
        return value

    def fold(rows: Rows[int], event: bytes, at_ms: int) -> Iterator[Emit]:
        rows["seen"] = (rows.get("seen") or 0) + 1
        if event == b"bad":
            rows.wake_at("bad", at_ms + 1)
        fail("fold", event)
        yield Emit("out", value=event)
        fail("emits", event)

    def on_wake(rows: Rows[int], key: str, at_ms: int) -> None:
        fail("wake", key.encode())

    processor = Processor(
        name="ends", source="in", decode=decode, fold=fold, on_wake=on_wake, row=int, emits=("out",)
    )
    values = [b"x"] * before + [b"bad", b"x", b"x"]
    folder: Folder[int] = Folder(processor, DictStore())
    changes = folder.fold([Batch(range(len(values)), [*range(len(values))], (values,))])
    assert changes is not None
    (refused,) = changes.refused
    assert refused.error == "FoldError"
    assert f"it raised {error.__name__}: no such task" in refused.reason
    assert folder.rows["seen"] == len(values) - (where != "wake")


def test_a_caller_may_give_up_in_the_middle_of_a_transaction() -> None:
    def fold(rows: Rows[int], event: bytes, at_ms: int) -> None:
        rows["seen"] = (rows.get("seen") or 0) + 1

    processor = Processor(name="left", source="in", decode=bytes, fold=fold, row=int)
    folder: Folder[int] = Folder(processor, DictStore())
    for trace in (False, True):
        steps = folder.steps([Batch(range(2_000), [*range(2_000)], ([b"x"] * 2_000,))])
        next(steps)
        steps.close()  # type: ignore[attr-defined]
        folder.rollback()
        folder._trace = (lambda each: None) if not trace else None
    assert folder.rows.get("seen") is None
