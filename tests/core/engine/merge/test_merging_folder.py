"""A folder of several sources, by example; tests/choices does the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import msgspec
import pytest

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.choices import Choice
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.serdes import Json
from holdfast.core.engine.declared.sources import FoldWith, Source, fingerprint
from holdfast.core.engine.declared.streams import Stream
from holdfast.core.engine.fold.folding import Changes, Folder
from holdfast.core.engine.fold.stepping import Transition
from holdfast.core.engine.fold.stretches import Stretch
from holdfast.core.engine.merge.merging import Merger, replayed
from holdfast.core.engine.positions import Position, decode_position, start_of
from holdfast.core.engine.state.codec import APPLIED, row_key, tick_key, wake_key
from holdfast.core.engine.state.rows import NEVER, Rows
from holdfast.errors import ChangelogError, ChoicesError, StoreError
from tests.choices.world import MemoryStore


class Customer(msgspec.Struct, frozen=True):
    number: str
    name: str


class JoinedOrder(msgspec.Struct, frozen=True):
    number: str
    customer: str
    at_ms: int = 0


class Known(msgspec.Struct, frozen=True):
    name: str = ""
    orders: tuple[str, ...] = ()


customers: Source[Customer] = Source("customers", Json(Customer))
orders: Source[JoinedOrder] = Source("orders", Json(JoinedOrder), time=lambda order: order.at_ms)
enriched = Stream("enriched", Json(str))


def keep(rows: Rows[Known], customer: Customer, at_ms: int) -> None:
    before = rows.get(customer.number) or Known()
    rows[customer.number] = Known(customer.name, before.orders)


def enrich(rows: Rows[Known], order: JoinedOrder, at_ms: int) -> Iterator[Any]:
    who = rows.get(order.customer) or Known()
    rows[order.customer] = Known(who.name, (*who.orders, order.number))
    if order.number == "bad":
        raise RuntimeError("the fold failed")
    yield enriched.emit(order.number, who.name)


def joined(**more: Any) -> Processor[Any, Known]:
    declared: dict[str, Any] = {"on": {customers: keep, orders: enrich}, "emits": (enriched,)}
    return Processor(name="enrich", row=Known, **(declared | more))


def batch(*records: tuple[int, Any], first: int = 0) -> Batch:
    values = [each if isinstance(each, bytes) else msgspec.json.encode(each) for _, each in records]
    return Batch(range(first, first + len(records)), [at_ms for at_ms, _ in records], (values,))


ANN, BOB = Customer("1", "Ann"), Customer("2", "Bob")


def stretches(
    processor: Processor[Any, Any], logs: Mapping[int, Batch], *, tick_ms: int = -1
) -> list[Stretch]:
    """Return all of *logs* merged, after a tick at *tick_ms*."""
    merger = Merger(start_of(processor))
    if tick_ms >= 0:
        merger.tick(tick_ms)
    for source, log in logs.items():
        merger.offer(source, log)
    return list(iter(partial(merger.take, [0] * len(processor.topics)), None))


def changes_of(processor: Processor[Any, Any], logs: Mapping[int, Batch]) -> Changes:
    changes = Folder(processor, MemoryStore()).fold(stretches(processor, logs))
    assert changes is not None
    return changes


def test_a_stream_is_joined_with_a_table_in_one_step() -> None:
    logs = {
        0: batch((5, ANN), (20, Customer("1", "Anna"))),
        1: batch((10, JoinedOrder("x", "1")), (30, JoinedOrder("y", "1"))),
    }
    changes = changes_of(joined(), logs)
    assert [(each.topic, each.key, each.value) for each in changes.emits] == [
        ("enriched", b"x", b'"Ann"'),
        ("enriched", b"y", b'"Anna"'),
    ]
    assert [key for key, _ in changes.stored()] == [row_key("1"), APPLIED]
    assert changes.choices == []
    assert changes.records == 4
    sources = fingerprint(["customers", "orders"])
    assert changes.marker == Position((1, 1), 30, 1, (20, 30), 1, -NEVER, 0, sources)
    assert decode_position(dict(changes.stored())[APPLIED] or b"") == changes.marker


def test_a_refused_record_names_its_source() -> None:
    logs = {
        0: batch((5, ANN), (6, b"{")),
        1: batch((5, JoinedOrder("x", "1")), (7, JoinedOrder("bad", "1")), (8, JoinedOrder("y", "1"))),
    }
    changes = changes_of(joined(), logs)
    assert [(each.topic, each.offset, each.stage, each.error) for each in changes.refused] == [
        ("customers", 1, "decode", "DecodeError"),
        ("orders", 1, "fold", "RuntimeError"),
    ]
    assert dict(changes.puts)[row_key("1")] == b"\x01" + msgspec.msgpack.encode(Known("Ann", ("x", "y")))
    assert changes.marker.applied == (1, 2)


def test_an_emit_to_a_stream_that_is_not_declared_is_refused() -> None:
    changes = changes_of(joined(emits=("other",)), {0: batch((5, ANN)), 1: batch((6, JoinedOrder("x", "1")))})
    (refused,) = changes.refused
    assert refused.reason.startswith("emit to 'enriched': not among the emits of processor enrich (other)")


def test_an_emit_of_another_type_is_refused() -> None:
    def wrong(rows: Rows[Known], order: JoinedOrder, at_ms: int) -> Iterator[Any]:
        yield enriched.emit(order.number, 7)  # type: ignore[arg-type]

    changes = changes_of(joined(on={orders: wrong}), {0: batch((6, JoinedOrder("x", "1")))})
    assert [(each.error, each.reason) for each in changes.refused] == [
        ("FoldError", "7 cannot be written as Json(str): it is of type int")
    ]


def test_a_fold_gets_the_inputs_it_asks_for_and_in_its_order() -> None:
    seen: list[tuple[Any, ...]] = []
    asked = FoldWith(
        lambda rows, event, at_ms, *more: seen.append((event.number, at_ms, *more)),
        ("offset", "key", "headers", "timestamp", "topic", "partition", "event_ms"),
    )
    processor = joined(on={orders: asked})
    assert processor.folds[0].inputs == ("value", "offset", "key", "headers", "partition")
    values = [msgspec.json.encode(JoinedOrder("x", "1", 77)), msgspec.json.encode(JoinedOrder("y", "1", 78))]
    log = Batch((3, 4), (9, 8), (values, (3, 4), (b"k", None), ((("h", b"v"),), ()), (2, 2)))
    assert changes_of(processor, {0: log}).refused == []
    assert seen == [
        ("x", 9, 3, "k", (("h", b"v"),), 9, "orders", 2, 77),
        ("y", 9, 4, None, (), 8, "orders", 2, 78),
    ]


def test_what_a_fold_asks_for_may_be_what_refuses_the_record() -> None:
    source = Source("orders", Json(JoinedOrder), time=lambda order: order.number)  # type: ignore[arg-type, return-value]
    columns = [msgspec.json.encode(JoinedOrder("x", "1"))], [b"\xff"]
    for asked, taken, why in (("event_ms", 1, "time of orders gives 'x'"), ("key", 2, "not Text()")):
        told = FoldWith(lambda rows, event, at_ms, more: None, (asked,))  # type: ignore[arg-type]
        logs = {0: Batch((0,), (9,), columns[:taken])}
        (refused,) = changes_of(joined(on={source: told}), logs).refused
        assert (refused.stage, refused.error) == ("decode", "DecodeError")
        assert refused.reason.startswith(why)


# -- ticks


def arm(rows: Rows[Known], order: JoinedOrder, at_ms: int) -> None:
    rows[order.customer] = Known(order.number)
    rows.wake_at(order.customer, order.at_ms, clock="tick")


def rung(rows: Rows[Known], key: str, at_ms: int) -> Iterator[Any]:
    yield enriched.emit(key, f"{at_ms}")
    if key == "again":
        rows.wake_at(key, at_ms, clock="tick")
    if key == "bad":
        raise RuntimeError("the timer failed")


def armed(*timers: tuple[str, int], **more: Any) -> tuple[Folder[Known], Merger, MemoryStore]:
    """Return a folder that has folded orders which set tick timers, by key and time."""
    processor, store = joined(on={orders: arm}, on_tick=rung, **more), MemoryStore()
    folder: Folder[Known] = Folder(processor, store)
    merger = Merger(folder.marker)
    merger.offer(0, batch(*((1, JoinedOrder("x", key, at_ms)) for key, at_ms in timers)))
    ticked(folder, merger, store)
    return folder, merger, store


def ticked(folder: Folder[Known], merger: Merger, store: MemoryStore, now_ms: int | None = None) -> Changes:
    if now_ms is not None:
        merger.tick(now_ms)
    changes = folder.fold(iter(partial(merger.take, None), None))
    assert changes is not None
    store.take(changes)
    folder.commit()
    merger.settle(folder.marker)
    return changes


def test_a_tick_fires_due_timers_in_order_of_time_and_is_recorded() -> None:
    folder, merger, store = armed(("late", 30), ("b", 10), ("a", 10), ("soon", 5))
    assert tick_key("late") in store
    assert wake_key("late") not in store
    assert folder.next_tick_ms == 5
    changes = ticked(folder, merger, store, 20)
    assert [each.key for each in changes.emits] == [b"soon", b"a", b"b"]
    sources = fingerprint(["orders"])
    assert changes.choices == [Choice(number=0, sources=sources, applied=(3,), tick_ms=20)]
    assert (changes.records, changes.marker.tick_ms, changes.marker.choices) == (0, 20, 1)
    assert folder.next_tick_ms == 30
    assert [key for key in store if key[:1] == b"\x03"] == [tick_key("late")]


def test_tick_timers_are_found_again_after_a_restart() -> None:
    folder, _, store = armed(("a", 10))
    again: Folder[Known] = Folder(folder.processor, store, marker=folder.marker)
    assert again.next_tick_ms == 10


def test_a_tick_timer_that_sets_itself_again_waits_for_the_next_tick() -> None:
    folder, merger, store = armed(("again", 10))
    assert len(ticked(folder, merger, store, 20).emits) == 1
    assert folder.next_tick_ms == 10
    assert len(ticked(folder, merger, store, 21).emits) == 1


def test_a_tick_timer_that_fails_has_fired_and_names_its_choice() -> None:
    folder, merger, store = armed(("bad", 10), ("good", 11))
    changes = ticked(folder, merger, store, 20)
    (refused,) = changes.refused
    assert (refused.topic, refused.offset, refused.stage) == ("", 0, "tick")
    assert refused.reason == "tick timer 'bad' due at 10: the timer failed"
    assert [each.key for each in changes.emits] == [b"good"]
    assert folder.next_tick_ms == NEVER


def test_tick_timers_need_on_tick() -> None:
    changes = changes_of(joined(on={orders: arm}), {0: batch((1, JoinedOrder("x", "a", 5)))})
    (refused,) = changes.refused
    assert "only processors declared with on= and on_tick= have ticks" in refused.reason


# -- transactions


def test_a_transaction_that_ends_early_says_where() -> None:
    processor = joined()
    folder: Folder[Known] = Folder(processor, MemoryStore())
    logs = {0: batch((5, ANN), (6, BOB)), 1: batch((5, JoinedOrder("x", "1")), (6, JoinedOrder("y", "2")))}
    for _ in folder.steps(stretches(processor, logs)):
        folder.close_early()
    assert folder.changes is not None
    assert (folder.changes.records, folder.changes.marker.applied, folder.changes.marker.last) == (
        1,
        (0, -1),
        0,
    )
    folder.rollback()
    assert folder.fold(stretches(processor, logs)) is not None


def test_rows_that_are_not_as_declared_are_made_so() -> None:
    def loosely(rows: Rows[Known], order: JoinedOrder, at_ms: int) -> None:
        before = rows.get("all") or Known()
        assert isinstance(before.orders, tuple)
        rows["all"] = Known("", [*before.orders, order.number])  # type: ignore[arg-type]

    changes = changes_of(
        joined(on={orders: loosely}), {0: batch((1, JoinedOrder("x", "1")), (2, JoinedOrder("y", "1")))}
    )
    assert changes.refused == []
    assert dict(changes.puts)[row_key("all")] == b"\x01" + msgspec.msgpack.encode(Known("", ("x", "y")))
    assert changes.marker.applied == (1,)


def test_the_store_s_failure_is_no_record_s() -> None:
    class Broken(MemoryStore):
        def get(self, key: bytes) -> bytes | None:  # type: ignore[override]
            raise StoreError("the disk is gone")

    folder: Folder[Known] = Folder(joined(), Broken({row_key("0"): b""}))
    with pytest.raises(StoreError, match="the disk is gone"):
        folder.fold(stretches(joined(), {0: batch((5, ANN))}))


def test_choices_that_do_not_fit_end_the_fold_and_no_record_is_to_blame() -> None:
    lost = Choice(number=1, sources=fingerprint(["customers", "orders"]), applied=(1, 0))
    kept = Choice(number=0, sources=lost.sources, applied=(0, 0))
    logs = [[batch((5, ANN), (6, BOB))], [batch((5, JoinedOrder("x", "1")))]]
    for recorded, records in (
        ([lost], None),
        ([kept, Choice(number=2, sources=lost.sources, applied=(1, 0))], 2),
    ):
        folder: Folder[Known] = Folder(joined(), MemoryStore())
        with pytest.raises(ChoicesError, match="is missing"):
            folder.fold(replayed(folder.marker, logs, recorded))
        assert folder.changes is None, records
        folder.rollback()


def test_a_table_of_other_sources_is_not_folded_on() -> None:
    marker = start_of(joined(on={orders: enrich, customers: keep}))
    with pytest.raises(ChangelogError, match="folded from other sources than customers, orders"):
        Folder(joined(), MemoryStore(), marker=marker)


def test_each_change_can_be_reported() -> None:
    told: list[Transition[Known]] = []
    processor = joined()
    folder: Folder[Known] = Folder(processor, MemoryStore(), trace=told.append)
    folder.fold(stretches(processor, {0: batch((5, ANN)), 1: batch((6, JoinedOrder("x", "1")))}))
    assert [(each.topic, each.offset, each.at_ms, each.after) for each in told] == [
        ("customers", 0, 5, Known("Ann")),
        ("orders", 0, 6, Known("Ann", ("x",))),
    ]


def test_one_source_may_be_declared_so_too() -> None:
    changes = changes_of(joined(on={orders: enrich}), {0: batch((5, JoinedOrder("x", "1")))})
    assert changes.marker.applied == (0,)
