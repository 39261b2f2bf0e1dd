"""The topic of a global table: of any partition count, kept whole, and read by each worker."""

from __future__ import annotations

from typing import Any

from holdfast.clients.topics.checks import check, check_processors
from holdfast.clients.topics.grants import administrator_grants, replayer_grants, worker_grants
from holdfast.clients.topics.plan import plan
from holdfast.clients.topics.types import AlterConfig, Severity, TopicRole
from holdfast.core.engine.declared.global_tables import Global
from holdfast.core.engine.declared.graph import TopologyGraph
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.serdes import Text
from holdfast.core.engine.declared.sources import Source
from holdfast.core.engine.state.rows import Rows
from holdfast.core.kafka.grants import Operation
from tests.clients.topics.world import DEFAULTS, GOOD, SETTINGS, cluster, created, processor, specs, topic


def fold(rows: Rows[int], event: str, at_ms: int) -> None:
    rows["all"] = at_ms


def pricing(*reads: str, source: str = "orders", **more: Any) -> Processor[Any, int]:
    tables: tuple[Global[int], ...] = tuple(
        Global(each, Source(each, Text()), fold, row=int) for each in reads
    )
    return Processor(name="priced", on={Source(source, Text()): fold}, row=int, reads=tables, **more)


PRICED = pricing("rates")


def test_it_has_its_own_partitions_and_is_kept_for_ever() -> None:
    state = cluster(topic("orders", 6, GOOD), topic("rates", 2, GOOD, retention_ms="-1"))
    wanted = specs(state, PRICED)
    (rates,) = [spec for spec in wanted if spec.name == "rates"]
    assert (rates.role, rates.partitions, rates.beside) == (TopicRole.GLOBAL, 2, {})
    assert rates.config["retention.ms"] == "-1"
    assert [each.partitions for each in wanted if each.role is TopicRole.CHOICES] == [6]
    assert check(wanted, created(wanted, state)) == []


def test_a_topic_that_loses_records_is_reported() -> None:
    for config, why in (
        (
            {"retention_ms": "604800000"},
            "retention.ms is 604800000: records would be deleted in time, and folds that looked",
        ),
        (
            {"cleanup_policy": "compact"},
            "cleanup.policy is compact: what the global table held at a recorded position",
        ),
    ):
        state = cluster(topic("orders", 6, GOOD), topic("rates", 2, GOOD, config))
        wanted = specs(state, PRICED)
        (found,) = check(wanted, created(wanted, state))
        assert (found.topic, found.severity) == ("rates", Severity.WARNING)
        assert found.message.startswith(why)
    state = cluster(topic("orders", 6, GOOD), topic("rates", 2, GOOD, retention_ms="604800000"))
    altered = [
        each for each in plan(specs(state, PRICED), state, alter=True) if isinstance(each, AlterConfig)
    ]
    assert altered == [AlterConfig(topic="rates", config={"retention.ms": "-1"})]


def test_a_topic_that_is_missing_is_made_and_one_that_holdfast_keeps_is_refused() -> None:
    state = cluster(topic("orders", 6, GOOD))
    made = created(specs(state, PRICED, partitions=3), state)
    assert made.partitions("rates") == 3
    assert made.topics["rates"].config == {**DEFAULTS, **made.topics["rates"].overrides}
    (found,) = check_processors(SETTINGS, [pricing("shop-skips")])
    assert "holdfast keeps for itself" in found.message


def test_a_source_that_is_a_global_too_keeps_its_partitions_and_its_records() -> None:
    state = cluster(topic("orders", 6, GOOD, retention_ms="9"))
    wanted = specs(state, pricing("orders"))
    (orders,) = [spec for spec in wanted if spec.name == "orders"]
    assert (orders.role, orders.config["retention.ms"]) == (TopicRole.SOURCE, "-1")
    assert [each.message.partition(":")[0] for each in check(wanted, created(wanted, state))] == [
        "retention.ms is 9 (9ms)"
    ]


def test_what_another_processor_emits_may_be_a_global() -> None:
    state = cluster(topic("orders", 6, GOOD), topic("raw", 4, GOOD))
    feeding = processor("feeding", "raw", emits=("rates",))
    for order in ((PRICED, feeding), (feeding, PRICED)):
        (rates,) = [spec for spec in specs(state, *order, partitions=2) if spec.name == "rates"]
        assert (rates.role, rates.partitions, rates.takes_bytes > 0) == (TopicRole.GLOBAL, 2, True)
    graph = TopologyGraph.of([PRICED, feeding])
    assert [node.name for node in graph.nodes] == ["feeding", "priced"], "what it looks into is folded first"
    assert "  reads   rates (global)" in graph.text()
    assert "t1 -.-> p1" in graph.mermaid()


def test_workers_and_replays_may_read_it() -> None:
    for grants in (worker_grants, replayer_grants, administrator_grants):
        found = grants(SETTINGS, [PRICED])
        assert any(each.name == "rates" and each.operation is Operation.READ for each in found), (
            grants.__name__
        )
