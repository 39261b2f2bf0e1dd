"""The test kit over processors of several sources: joins, ticks, barriers, and folds that replay to something
else.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from holdfast import Emit, Json, Processor, Rows, Source, Stream, by_key
from holdfast.errors import FoldError, ImpureFoldError, TopologyError
from holdfast.streams import Merge, Tumbling, Windowed, WindowResult, final
from holdfast.testing import Topology


class Customer(msgspec.Struct, frozen=True):
    name: str


class PairedOrder(msgspec.Struct, frozen=True):
    customer: str
    cents: int


class Known(msgspec.Struct, frozen=True):
    name: str = "?"
    orders: int = 0


CUSTOMERS, ORDERS = Source("customers", Json(Customer)), Source("orders", Json(PairedOrder))
ENRICHED = Stream("enriched", Json(tuple[str, int]))


def keep(rows: Rows[Known], customer: Customer, at_ms: int) -> None:
    rows[customer.name[0]] = msgspec.structs.replace(rows.get(customer.name[0], Known()), name=customer.name)


def enrich(rows: Rows[Known], order: PairedOrder, at_ms: int) -> Iterator[Emit]:
    known = rows.get(order.customer, Known())
    rows[order.customer] = msgspec.structs.replace(known, orders=known.orders + 1)
    rows.wake_at(order.customer, at_ms + 1_000, clock="tick")
    yield ENRICHED.emit(order.customer, (known.name, order.cents))


def forget(rows: Rows[Known], customer: str, at_ms: int) -> Iterator[Emit]:
    del rows[customer]
    yield ENRICHED.emit(customer, ("forgotten", at_ms))


JOIN: Processor[Any, Known] = Processor(
    name="join",
    on={CUSTOMERS: keep, ORDERS: enrich},
    on_tick=forget,
    row=Known,
    route=by_key,
    emits=(ENRICHED,),
)


def test_a_stream_meets_the_table_as_it_was() -> None:
    with Topology([JOIN]) as topology:
        topology.pipe(ORDERS, PairedOrder("a", 1), key="a", at=10)
        topology.pipe(CUSTOMERS, Customer("ada"), key="a", at=20)
        topology.pipe(ORDERS, PairedOrder("a", 2), key="a", at=30)
        assert topology.values(ENRICHED) == [("a", ("?", 1)), ("a", ("ada", 2))]
        assert topology.table(JOIN) == {"a": Known("ada", 2)}
        assert topology.choices(JOIN, by_key("a", 3)) == []


def test_a_tick_fires_timers_of_its_clock_without_a_record() -> None:
    with Topology([JOIN]) as topology:
        topology.pipe(ORDERS, PairedOrder("a", 1), key="a", at=10)
        topology.pipe(ORDERS, PairedOrder("b", 1), key="b", at=500)
        assert topology.timers(JOIN, clock="tick") == {"a": 1_010, "b": 1_500}
        topology.tick(1_010)
        assert topology.values(ENRICHED)[2:] == [("a", ("forgotten", 1_010))]
        assert set(topology.table(JOIN)) == {"b"}
        topology.tick(1_000)
        assert topology.read(ENRICHED) == []
        assert [each.tick_ms for each in topology.choices(JOIN, by_key("a", 3))] == [1_010]


def test_a_record_that_comes_too_late_for_its_turn_is_folded_after_a_barrier() -> None:
    with Topology([JOIN], partitions=1) as topology:
        topology.pipe(ORDERS, PairedOrder("a", 1), key="a", at=30)
        topology.pipe(CUSTOMERS, Customer("ada"), key="a", at=20)
        (barrier,) = topology.choices(JOIN, 0)
        assert (barrier.applied, barrier.tick_ms) == ((-1, 0), None)
        assert topology.values(ENRICHED) == [("a", ("?", 1))]


def test_what_a_tick_emits_is_folded_on() -> None:
    tally: Processor[Any, int] = Processor(
        name="tally", source="enriched", inputs=("key",), decode=bytes.decode, fold=count, row=int
    )
    with Topology([JOIN, tally]) as topology:
        topology.pipe(ORDERS, PairedOrder("a", 1), key="a", at=10)
        topology.tick(2_000)
        assert topology.table(tally) == {"a": 2}
        assert topology.describe().startswith("join (version 1)\n  folds   customers, orders\n")


def count(rows: Rows[int], key: str, at_ms: int) -> None:
    rows[key] = (rows.get(key) or 0) + 1


def test_a_refusal_names_the_source() -> None:
    with Topology([JOIN]) as topology:
        topology.pipe(ORDERS, b"{", key="a", partition=1)
        (refused,) = topology.refused
        assert (str(refused.record), refused.stage, refused.error) == ("orders/1/0", "decode", "DecodeError")


def test_a_timer_that_fails_at_a_tick_is_reported() -> None:
    def fail(rows: Rows[Known], key: str, at_ms: int) -> None:
        raise ValueError("not today")

    failing = replace(JOIN, on_tick=fail)
    with Topology([failing]) as topology:
        topology.pipe(ORDERS, PairedOrder("a", 1), key="a", at=10)
        topology.tick(9_999)
        (refused,) = topology.refused
        assert (refused.record, refused.stage) == (None, "tick")


def test_a_fold_with_state_of_its_own_is_caught() -> None:
    numbers = itertools.count()

    def number(rows: Rows[Known], order: PairedOrder, at_ms: int) -> None:
        rows["n"] = Known(orders=next(numbers))

    impure: Processor[Any, Known] = Processor(name="impure", on={CUSTOMERS: keep, ORDERS: number}, row=Known)
    with pytest.raises(ImpureFoldError, match="orders/0/0, folded after a restart, gives other rows"):
        Topology([impure], partitions=1).pipe(ORDERS, PairedOrder("a", 1))


def test_what_it_is_asked_in_vain() -> None:
    topology = Topology([JOIN])
    with pytest.raises(FoldError):
        topology.pipe(ORDERS, Customer("ada"))
    with pytest.raises(TopologyError, match="only a Stream says"):
        topology.values("enriched")  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="there are append, event and tick"):
        topology.timers(JOIN, clock="wall")
    with pytest.raises(TopologyError, match="whole number of ms"):
        topology.tick(1.5)  # type: ignore[arg-type]


def test_a_source_of_a_merge_that_has_no_record_holds_no_window_open() -> None:
    """As with a worker, the step is as far as the other source once both are at their ends."""

    def at_of(at_ms: int) -> int:
        return at_ms

    one, other = (Source(topic, Json(int), time=at_of) for topic in ("one", "other"))
    both = Merge(name="both", sources=[one, other])
    seconds = Windowed(
        name="seconds",
        source=both,
        by=lambda at_ms: "all",
        window=Tumbling("1s"),
        fold=lambda count, at_ms: (count or 0) + 1,
        row=int,
        emit=final(Stream("counted", Json(WindowResult[int]))),
    )
    with Topology([both, seconds], partitions=1) as topology:
        for at_ms in (10, 20, 2_500):
            topology.pipe(one, at_ms)
        results = topology.values(Stream("counted", Json(WindowResult[int])))
        assert [(each.start_ms, each.value) for _, each in results] == [(0, 2)]
