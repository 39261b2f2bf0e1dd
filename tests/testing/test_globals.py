"""Global tables in the test kit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from holdfast import Bytes, Emit, FoldWith, Global, Internal, Json, Processor, Rows, Source, Stream, Text
from holdfast.errors import ConfigError, FoldError, ImpureFoldError, TopologyError
from holdfast.testing import Topology


class PricedOrder(msgspec.Struct, frozen=True):
    id: str
    currency: str


def set_rate(rows: Rows[float], rate: float, at_ms: int, key: str) -> None:
    rows[key] = rate


rates: Global[float] = Global(
    "rates", Source("rates", Json(float)), fold=FoldWith(set_rate, ("key",)), row=float
)
orders = Source("orders", Json(PricedOrder))
priced = Stream("priced", Json(float | None))


def price(rows: Rows[float], order: PricedOrder, at_ms: int) -> Iterator[Emit]:
    rate = rows.globals[rates].get(order.currency)
    rows[order.id] = rate or 0.0
    yield priced.emit(order.id, rate)


def processor(fold: Any = price, reads: Any = (rates,), **more: Any) -> Processor[Any, Any]:
    return Processor(name="priced", on={orders: fold}, row=float, reads=reads, emits=(priced,), **more)


def test_a_fold_sees_a_global_as_it_is_and_a_replay_as_it_was() -> None:
    with Topology([processor()]) as topology:
        topology.pipe(orders, PricedOrder("1", "eur"), key="a")
        topology.pipe("rates", "1.5", key="eur")
        topology.pipe(orders, PricedOrder("2", "eur"), key="a")
        topology.pipe(rates.source, 2.5, key="eur")
        topology.pipe(orders, PricedOrder("3", "eur"), key="a")
        topology.pipe(orders, PricedOrder("4", "eur"), key="a")
        assert topology.values(priced) == [("1", None), ("2", 1.5), ("3", 2.5), ("4", 2.5)]
        assert topology.table(rates) == {"eur": 2.5}
        partition = topology.pipe(orders, PricedOrder("5", "usd"), key="a").partition
        choices = topology.choices("priced", partition)
    found = [each.globals[0] for each in choices if each.globals]
    assert len(found) == 2 == len(choices), "one for each position that was met"
    assert [each[-1] for each in found] == [0, 1]


def test_a_record_of_a_global_that_is_refused_changes_nothing() -> None:
    with Topology([processor()]) as topology:
        topology.pipe("rates", "1.5", key="eur")
        topology.pipe("rates", "none", key="eur")
        assert topology.table(rates) == {"eur": 1.5}
        (refused,) = topology.refused
    assert (refused.processor, refused.stage) == ("rates", "decode")


@pytest.mark.parametrize("act", ["set", "delete", "wake"])
def test_a_fold_cannot_write_to_a_global(act: str) -> None:
    def write(rows: Rows[float], order: PricedOrder, at_ms: int) -> None:
        found = rows.globals[rates]
        if act == "set":
            found["eur"] = 1.0
        elif act == "delete":
            del found["eur"]
        else:
            found.wake_at("eur", 5)

    with Topology([processor(write)]) as topology:
        topology.pipe(orders, PricedOrder("1", "eur"), key="a")
        (refused,) = topology.refused
    assert refused.error == FoldError.__name__
    assert "folds of processors only read it" in refused.reason


def test_only_declared_globals_can_be_read() -> None:
    def look(rows: Rows[float], order: PricedOrder, at_ms: int) -> None:
        rows.globals[rates].get("eur")

    with Topology([processor(look, reads=())]) as topology:
        topology.pipe(orders, PricedOrder("1", "eur"), key="a")
        assert "write Processor(..., reads=(...,))" in topology.refused[0].reason
        with pytest.raises(TopologyError, match="no processor reads global rates"):
            topology.table(rates)


def test_a_key_in_two_partitions_is_never_guessed() -> None:
    def scan(rows: Rows[float], order: PricedOrder, at_ms: int) -> None:
        for key, rate in rows.globals[rates].scan():
            rows[key] = rate

    for fold in (price, scan):
        with Topology([processor(fold)]) as topology:
            topology.pipe("rates", "1.5", key="eur", partition=0)
            topology.pipe("rates", "1.6", key="eur", partition=1)
            topology.pipe(orders, PricedOrder("1", "eur"), key="a")
            assert "rows of 'eur' in two partitions of rates" in topology.refused[0].reason


def test_a_fold_of_a_global_that_is_not_pure_is_found() -> None:
    count = 0

    def counting(rows: Rows[float], rate: float, at_ms: int, key: str) -> None:
        nonlocal count
        count += 1
        rows[key] = float(count)

    moody: Global[float] = Global(
        "rates", Source("rates", Json(float)), fold=FoldWith(counting, ("key",)), row=float
    )

    def look(rows: Rows[float], order: PricedOrder, at_ms: int) -> None:
        rows[order.id] = rows.globals[moody].get(order.currency, 0.0)

    topology = Topology([processor(look, reads=(moody,))])
    topology.pipe("rates", "1.5", key="eur")
    topology.pipe(orders, PricedOrder("1", "eur"), key="a")
    with pytest.raises(ImpureFoldError, match="replay of 1 records"):
        topology.check()


def test_a_declaration_that_is_wrong_says_what_to_write() -> None:
    def bad(rows: Any) -> None: ...

    wrong_fold: Any = bad
    plain: Any = set_rate
    internal = Internal("rates", Json(float), version=1)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"reads": [rates]}, "write a tuple of Global"),
        ({"reads": (orders,)}, "write Global"),
        ({"reads": (rates, rates)}, "twice"),
        (
            {"reads": (Global("rates", orders, wrong_fold, row=float),)},
            "declared wrong: processor rates: fold of orders takes",
        ),
        ({"reads": (Global("rates", Source(internal, Json(float)), plain, row=float),)}, "declared wrong"),
        (
            {"reads": tuple(Global(f"g{at}", rates.source, rates.fold, row=float) for at in range(9))},
            "8 are the most",
        ),
    ]
    for more, why in wrong:
        with pytest.raises(ConfigError, match=why):
            processor(**more)
    with pytest.raises(ConfigError, match="internal topic"):
        processor(reads=(Global("rates", Source(internal, Json(float)), rates.fold, row=float),))
    with pytest.raises(ConfigError, match="reads needs on="):
        Processor[Any, Any](
            name="one", source="a", decode=bytes.decode, fold=price, row=float, reads=(rates,)
        )


def test_a_global_without_a_fold_has_the_last_value_of_each_key() -> None:
    last: Global[float] = Global("last", Source("last", Json(float | None)))
    assert last.row is float
    with Topology([processor(reads=(last, rates))]) as topology:
        for rate in (1.5, 2.5, None, 3.5, None):
            topology.pipe(last.source, rate, key="eur")
            assert topology.table(last) == ({} if rate is None else {"eur": rate})
        topology.pipe(last.source, None, key="usd")
        topology.pipe(last.source, 1.0)
        (refused,) = topology.refused
        assert "the record's key is None" in refused.reason


@pytest.mark.parametrize(
    ("serde", "row"), [(Text(), str), (Bytes(), bytes), (Json(tuple[int, ...]), tuple[int, ...])]
)
def test_the_rows_of_a_global_without_a_fold_are_of_its_values_type(serde: Any, row: Any) -> None:
    assert Global("last", Source("last", serde)).row == row


def test_a_global_with_a_fold_needs_the_type_of_its_rows() -> None:
    with pytest.raises(ConfigError, match=r"global last: row is missing: write row=<the type of its rows>"):
        Global("last", Source("last", Json(float)), fold=FoldWith(set_rate, ("key",)))
