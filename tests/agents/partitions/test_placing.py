"""Row keys that lie where queries do not look for them."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.agents.metrics import Metrics
from holdfast.agents.partitions.batches.placing import FIRST_KEYS, KEYS_OF_EACH, Placing
from holdfast.core.engine.declared.named_tables import Table
from holdfast.core.engine.declared.partitioners import by_key
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.state.codec import key_in_table, row_key, wake_key

PARTITIONS = 4
KEYS = [f"c{at}" for at in range(1_000)]


def placing(partition: int, **declared: Any) -> tuple[Placing, Metrics]:
    processor: Processor[Any, int] = Processor(
        name="totals", source="orders", decode=bytes, fold=lambda *_: None, row=int, **declared
    )
    metrics = Metrics("shop")
    counts = metrics.partition("totals", partition)
    return Placing(processor, partition, lambda: PARTITIONS, counts), metrics


def puts(keys: list[str], table: str = "") -> list[tuple[bytes, bytes | None]]:
    return [(key_in_table(table, key), b"row") for key in keys]


def test_keys_that_lie_elsewhere_are_counted() -> None:
    here = [key for key in KEYS if by_key(key, PARTITIONS) == 2]
    elsewhere = [key for key in KEYS if by_key(key, PARTITIONS) != 2]
    found, metrics = placing(2, route=by_key)
    found.look(puts(here[:20]))
    assert metrics.misplaced() == {}
    found.look(puts(elsewhere[:10]))
    assert metrics.misplaced() == {"totals": (10, 30)}


def test_a_look_has_a_limit_however_large_the_transaction_is() -> None:
    found, metrics = placing(0, route=by_key)
    for _ in range(3):
        found.look(puts(KEYS))
    assert metrics.partition("totals", 0).looked_at == FIRST_KEYS + 2 * KEYS_OF_EACH


@pytest.mark.parametrize(("declared", "table"), [({}, ""), ({"tables": {"seen": int}}, "seen")])
def test_tables_without_a_route_are_looked_for_everywhere(declared: dict[str, Any], table: str) -> None:
    found, metrics = placing(0, **declared)
    found.look(puts(KEYS, table))
    assert metrics.partition("totals", 0).looked_at == 0


def test_a_named_table_has_a_route_of_its_own() -> None:
    found, metrics = placing(0, tables={"seen": Table(int, route=lambda key, partitions: 3)})
    found.look([(row_key("c1"), b"row"), (wake_key("c2"), b"\x00" * 8), *puts(["c3"], "seen")])
    assert metrics.misplaced() == {"totals": (1, 1)}


def test_rows_that_go_and_keys_that_no_route_takes_count_for_nothing() -> None:
    def route(key: str, partitions: int) -> int | None:
        if key == "c1":
            raise ValueError(key)
        return None

    found, metrics = placing(0, route=route)
    found.look([(row_key("c0"), None), *puts(["c1", "c2"])])
    assert metrics.misplaced() == {}
