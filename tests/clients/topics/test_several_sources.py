"""Topics of a table of several sources: as many partitions each, and choices that are kept for ever."""

from __future__ import annotations

from holdfast.clients.topics.checks import check, check_processors
from holdfast.clients.topics.grants import replayer_grants, worker_grants
from holdfast.clients.topics.plan import plan
from holdfast.clients.topics.types import AlterConfig, CreateTopic, Severity, TopicFinding, TopicRole
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.serdes import Text
from holdfast.core.engine.declared.sources import Source
from holdfast.core.engine.state.rows import Rows
from tests.clients.topics.world import SETTINGS, cluster, created, processor, specs, topic


def fold(rows: Rows[int], event: str, at_ms: int) -> None:
    rows["all"] = at_ms


def joining(*topics: str, name: str = "enrich") -> Processor[object, int]:
    return Processor(name=name, on={Source(each, Text()): fold for each in topics}, row=int)


ENRICH = joining("customers", "orders")


def findings(*topics: tuple[str, int], joined: Processor[object, int] = ENRICH) -> list[TopicFinding]:
    state = cluster(*(topic(name, count) for name, count in topics))
    return [
        each
        for each in check(specs(state, joined), created(specs(state, joined), state))
        if each.severity is Severity.ERROR
    ]


def test_choices_have_the_partitions_of_the_sources_and_are_kept_for_ever() -> None:
    state = cluster(topic("customers", 6), topic("orders", 6))
    found = {spec.name: spec for spec in specs(state, ENRICH)}
    choices = found["shop-enrich-choices"]
    assert (choices.role, choices.partitions, found["shop-enrich.v1-changelog"].partitions) == (
        TopicRole.CHOICES,
        6,
        6,
    )
    assert (
        choices.config.items()
        >= {"cleanup.policy": "delete", "retention.ms": "-1", "compression.type": "uncompressed"}.items()
    )


def test_a_source_that_is_made_has_the_partitions_of_the_one_that_exists() -> None:
    made = plan(specs(cluster(topic("orders", 6)), ENRICH, partitions=3), cluster(topic("orders", 6)))
    assert {each.spec.name: each.partitions for each in made if isinstance(each, CreateTopic)}[
        "customers"
    ] == 6


def test_unequal_partition_counts_are_an_error_that_names_the_cure() -> None:
    (found,) = findings(("customers", 4), ("orders", 6))
    assert found.topic == "customers"
    assert found.message.startswith(
        "has 4 partitions but orders has 6, and processor enrich folds partition n of both"
    )
    assert "kafka-topics --alter --topic customers --partitions 6" in found.remedy


def test_each_pair_of_a_chain_of_processors_is_compared() -> None:
    other = joining("orders", "payments", name="pay")
    state = cluster(topic("customers", 6), topic("orders", 6), topic("payments", 2))
    wrong = check(specs(state, ENRICH, other), created(specs(state, ENRICH, other), state))
    assert [each.topic for each in wrong if each.severity is Severity.ERROR] == ["payments"]


def test_equal_sources_are_fine() -> None:
    assert findings(("customers", 6), ("orders", 6)) == []


def test_choices_that_would_be_lost_are_reported_and_set_right() -> None:
    state = cluster(
        topic("customers", 2),
        topic("orders", 2),
        topic("shop-enrich-choices", 2, cleanup_policy="compact", retention_ms="1000"),
    )
    wrong = [each for each in check(specs(state, ENRICH), state) if each.topic == "shop-enrich-choices"]
    assert [each.severity for each in wrong if "choices would" in each.message] == [
        Severity.ERROR,
        Severity.WARNING,
    ]
    (change,) = [
        each
        for each in plan(specs(state, ENRICH), state, alter=True)
        if isinstance(each, AlterConfig) and each.topic == "shop-enrich-choices"
    ]
    assert change.config.items() >= {"cleanup.policy": "delete", "retention.ms": "-1"}.items()


def test_choices_of_another_width_are_an_error() -> None:
    state = cluster(topic("customers", 2), topic("orders", 2), topic("shop-enrich-choices", 3))
    (wrong,) = [
        each for each in check(specs(state, ENRICH), state) if "choices of a partition" in each.message
    ]
    assert "another name" in wrong.remedy


def test_no_processor_may_read_or_emit_to_choices() -> None:
    (found,) = check_processors(SETTINGS, [ENRICH, processor(source="shop-enrich-choices")])
    assert found.topic == "shop-enrich-choices"


def test_workers_may_read_all_sources_and_write_choices_and_replays_read_them() -> None:
    def told(grants: object) -> set[str]:
        return {str(each) for each in grants if "choices" in str(each) or "customers" in str(each)}  # type: ignore[attr-defined]

    assert any("customers" in each for each in told(worker_grants(SETTINGS, [ENRICH])))
    assert any("shop-enrich-choices" in each for each in told(replayer_grants(SETTINGS, [ENRICH])))
