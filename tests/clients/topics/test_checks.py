"""Faults of topics that exist, and the remedy in the message."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.clients.topics.checks import check, check_processors
from holdfast.clients.topics.plan import plan
from holdfast.clients.topics.specs import specs_for
from holdfast.clients.topics.types import (
    CreateTopic,
    Severity,
    TopicState,
)
from tests.clients.topics.world import (
    CHANGELOG,
    COMPACTED,
    DEFAULTS,
    GOOD,
    SETTINGS,
    TOTALS,
    cluster,
    created,
    findings,
    partition,
    processor,
    specs,
    topic,
    world,
)

ERROR, WARNING = Severity.ERROR, Severity.WARNING


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    assert findings(world()) == []


@pytest.mark.parametrize(
    ("role", "state", "severity", "message", "remedy"),
    [
        (
            "changelog",
            topic(CHANGELOG, 3, COMPACTED),
            ERROR,
            "has 3 partitions but its source orders has 4",
            "new version",
        ),
        (
            "changelog",
            topic(CHANGELOG, 4, GOOD),
            ERROR,
            "cleanup.policy is delete",
            "holdfast topics create --alter",
        ),
        (
            "changelog",
            topic(CHANGELOG, 4, GOOD, cleanup_policy="compact,delete"),
            ERROR,
            "is compact,delete",
            "--alter",
        ),
        (
            "changelog",
            topic(CHANGELOG, 4, COMPACTED, unclean_leader_election_enable="true"),
            WARNING,
            "acknowledged",
            "run kafka-configs",
        ),
        (
            "changelog",
            topic(CHANGELOG, 4, COMPACTED, min_insync_replicas="2"),
            ERROR,
            "no write can succeed",
            "min.insync.replicas=1",
        ),
        (
            "changelog",
            topic(CHANGELOG, 4, COMPACTED, replicas=3),
            WARNING,
            "counts as written with one copy",
            "min.insync.replicas=2",
        ),
        (
            "changelog",
            topic(CHANGELOG, 4, COMPACTED, max_message_bytes="1000000"),
            ERROR,
            "a fold may write a row that takes 1033792",
            "holdfast topics create --alter",
        ),
        (
            "emit",
            topic("big-customers", 2, max_message_bytes="20000"),
            ERROR,
            "max.message.bytes is 20000, and a fold may write a record that takes 1001024",
            "--entity-name big-customers --add-config max.message.bytes=1048588",
        ),
        ("source", topic("orders", 4), WARNING, "message.timestamp.type is CreateTime", "--alter"),
        ("source", topic("orders", 4, COMPACTED), WARNING, "disappear from its history", "run kafka-configs"),
        (
            "quarantine",
            topic("shop-quarantine", 4, GOOD),
            WARNING,
            "without their value",
            "max.message.bytes=4194352",
        ),
        (
            "workers",
            topic("shop-workers", 2, COMPACTED),
            ERROR,
            "has 2 partitions instead of 1",
            "delete shop-workers",
        ),
        ("workers", topic("shop-workers", 1, GOOD), ERROR, "cleanup.policy is delete", "--alter"),
        (
            "skips",
            topic("shop-skips", 2, COMPACTED),
            ERROR,
            "has 2 partitions instead of 1",
            "delete shop-skips",
        ),
        (
            "skips",
            topic("shop-skips", 1, GOOD),
            ERROR,
            "what they leave out would stop its partition",
            "--alter",
        ),
    ],
)
def test_a_topic_that_does_not_fit_is_found_with_a_remedy(
    role: str, state: TopicState, severity: Severity, message: str, remedy: str
) -> None:
    (finding,) = findings(world(**{role: state}))
    assert (finding.severity, finding.topic) == (severity, state.name)
    assert message in finding.message
    assert remedy in finding.remedy


@pytest.mark.parametrize("role", ["changelog", "emit", "quarantine", "workers"])
def test_a_missing_topic_is_an_error(role: str) -> None:
    full = world()
    name = next(spec.name for spec in specs(full) if spec.role == role)
    state = replace(full, topics={key: value for key, value in full.topics.items() if key != name})
    (finding,) = findings(state)
    assert (finding.severity, finding.topic, finding.remedy) == (ERROR, name, "run `holdfast topics create`")


def test_an_application_of_before_there_were_skips_is_warned_that_it_can_make_none() -> None:
    full = world()
    older = replace(full, topics={key: value for key, value in full.topics.items() if key != "shop-skips"})
    (finding,) = findings(older)
    assert (finding.severity, finding.topic, finding.remedy) == (
        WARNING,
        "shop-skips",
        "run `holdfast topics create`",
    )
    assert [action.spec.name for action in plan(specs(older), older) if isinstance(action, CreateTopic)] == [
        "shop-skips"
    ]


def test_a_missing_source_asks_for_a_partition_count_and_hides_nothing_else() -> None:
    full = world()
    found = findings(
        replace(full, topics={key: value for key, value in full.topics.items() if key != "orders"})
    )
    assert [(finding.topic, finding.remedy) for finding in found] == [
        ("orders", "run `holdfast topics create --partitions N`")
    ]


def test_replicas_below_the_wanted_number_are_a_warning_for_each_topic() -> None:
    found = findings(world(), replace(SETTINGS, replication_factor=2))
    assert {finding.severity for finding in found} == {WARNING}
    assert len(found) == 6
    assert all("has 1 replica(s) instead of 2" in finding.message for finding in found)


def test_a_partition_without_a_leader_is_an_error_and_one_that_lags_is_a_warning() -> None:
    source = topic("orders", 4, GOOD)
    broken = replace(
        source, partitions=(*source.partitions[:3], partition(3, leader=None, replicas=2, in_sync=1))
    )
    found = findings(world(source=broken))
    assert [(finding.severity, finding.message) for finding in found] == [
        (ERROR, "partitions [3] have no leader"),
        (WARNING, "partitions [3] have replicas that are not in sync"),
    ]


def test_errors_come_before_warnings() -> None:
    found = findings(world(source=topic("orders", 4), workers=topic("shop-workers", 1)))
    assert [finding.severity for finding in found] == [ERROR, WARNING]


def test_a_compacted_coordination_topic_is_an_error() -> None:
    claims = processor("claims", "__marshal")
    state = cluster(
        topic("__marshal", 4, COMPACTED),
        topic("shop-claims.v1-changelog", 4, COMPACTED),
        topic("shop-quarantine", 4, GOOD, max_message_bytes="4194352"),
        topic("shop-workers", 1, COMPACTED),
        topic("shop-skips", 1, COMPACTED),
    )
    (finding,) = findings(state, SETTINGS, claims)
    assert finding.severity is ERROR
    assert "frames without a key" in finding.message


def test_a_source_that_another_processor_emits_to_must_take_what_it_emits() -> None:
    chained = (TOTALS, processor("big", "big-customers"))
    state = cluster(*world().topics.values(), topic("shop-big.v1-changelog", 2, COMPACTED))
    small = topic("big-customers", 2, GOOD, max_message_bytes="20000")
    assert (
        findings(
            replace(
                state,
                topics={
                    **state.topics,
                    small.name: replace(small, config=DEFAULTS | {"message.timestamp.type": "LogAppendTime"}),
                },
            ),
            SETTINGS,
            *chained,
        )
        == []
    )
    (finding,) = findings(replace(state, topics={**state.topics, small.name: small}), SETTINGS, *chained)
    assert (finding.severity, finding.topic) == (ERROR, "big-customers")


def test_emitting_to_the_coordination_topic_is_refused() -> None:
    (finding,) = check_processors(SETTINGS, (processor(emits=("__marshal",)),))
    assert (finding.severity, finding.topic) == (ERROR, "__marshal")
    assert "hang" in finding.message


@pytest.mark.parametrize(
    "name", ["shop-quarantine", "shop-workers", "shop-skips", "shop-totals.v1-changelog"]
)
def test_a_processor_must_leave_holdfasts_own_topics_alone(name: str) -> None:
    for wrong in (processor("totals", name), processor("totals", emits=(name,))):
        assert [finding.topic for finding in check_processors(SETTINGS, (wrong,))] == [name]
    assert check_processors(SETTINGS, (TOTALS,)) == []


def test_the_registrys_commands_are_kept_for_ever_and_another_retention_is_reported() -> None:
    registry = processor(source=SETTINGS.producers_topic)
    (spec,) = [
        each
        for each in specs_for(SETTINGS, [registry], cluster(), partitions=1)
        if each.name == SETTINGS.producers_topic
    ]
    assert spec.config["retention.ms"] == "-1"
    whole = created(specs_for(SETTINGS, [registry], cluster(), partitions=1), cluster())
    short = topic(
        SETTINGS.producers_topic, 1, {"message.timestamp.type": "LogAppendTime"}, retention_ms="604800000"
    )
    for state, count in ((whole.topics[SETTINGS.producers_topic], 0), (short, 1)):
        seen = replace(whole, topics={**whole.topics, SETTINGS.producers_topic: state})
        found = [
            each
            for each in check(specs_for(SETTINGS, [registry], seen), seen)
            if "retention.ms" in each.message
        ]
        assert len(found) == count


@pytest.mark.parametrize(("count", "wrong"), [(5, True), (6, False), (7, False)])
def test_a_topic_too_narrow_for_records_that_stay_in_place_is_an_error(count: int, wrong: bool) -> None:
    cleaner = processor(emits=("clean",), in_place=True)
    whole = created(specs_for(SETTINGS, [cleaner], cluster(topic("orders", 6))), cluster(topic("orders", 6)))
    narrow = replace(whole, topics={**whole.topics, "clean": topic("clean", count)})
    found = [each for each in check(specs_for(SETTINGS, [cleaner], narrow), narrow) if each.topic == "clean"]
    assert [(each.severity, "has 5 partitions but orders has 6" in each.message) for each in found] == [
        (Severity.ERROR, True)
    ] * wrong
