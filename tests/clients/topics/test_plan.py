"""Topics of an application: which there must be, what is planned, what is found wrong.

No cluster is asked.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from holdfast.clients.topics.plan import (
    AlterConfig,
    ClusterTopics,
    CreateTopic,
    PartitionState,
    Severity,
    TopicFinding,
    TopicRole,
    TopicSpec,
    TopicState,
    check,
    check_processors,
    plan,
    specs_for,
    topic_names,
)
from holdfast.config import Settings
from holdfast.core.engine.processor import Processor
from holdfast.core.engine.rows import Rows
from holdfast.core.ranges import RANGES_TOPIC
from holdfast.errors import TopicError


class Total(msgspec.Struct, frozen=True):
    cents: int = 0


def fold(rows: Rows[Total], event: bytes, at_ms: int) -> None:
    rows["all"] = Total(len(event))


def processor(name: str = "totals", source: str = "orders", **more: Any) -> Processor[bytes, Total]:
    return Processor(name=name, source=source, decode=bytes, fold=fold, row=Total, **more)


SETTINGS = Settings(app="shop")
TOTALS = processor(emits=("big-customers",))


def partition(
    index: int, *, replicas: int = 1, in_sync: int | None = None, leader: int | None = 1
) -> PartitionState:
    everyone = tuple(range(1, replicas + 1))
    return PartitionState(
        partition=index,
        leader=leader,
        replicas=everyone,
        in_sync=everyone[: replicas if in_sync is None else in_sync],
    )


DEFAULTS = {
    "cleanup.policy": "delete",
    "message.timestamp.type": "CreateTime",
    "min.insync.replicas": "1",
    "max.message.bytes": "1048588",
    "unclean.leader.election.enable": "false",
}


def topic(name: str, count: int, *layers: dict[str, str], replicas: int = 1, **config: str) -> TopicState:
    given = {key: value for layer in (*layers, config) for key, value in layer.items()}
    own = {key.replace("_", "."): value for key, value in given.items()}
    partitions = tuple(partition(index, replicas=replicas) for index in range(count))
    return TopicState(name=name, partitions=partitions, config=DEFAULTS | own, overrides=own)


def cluster(*topics: TopicState, brokers: int = 1) -> ClusterTopics:
    return ClusterTopics(brokers=tuple(range(1, brokers + 1)), topics={state.name: state for state in topics})


def created(specs: list[TopicSpec], before: ClusterTopics) -> ClusterTopics:
    """Return the cluster after carrying out the plan, as Kafka would."""
    topics = dict(before.topics)
    for action in plan(specs, before):
        assert isinstance(action, CreateTopic)
        replicas = action.spec.replication_factor
        topics[action.spec.name] = TopicState(
            name=action.spec.name,
            partitions=tuple(partition(index, replicas=replicas) for index in range(action.partitions)),
            config={**DEFAULTS, **action.spec.config},
            overrides=action.spec.config,
        )
    return replace(before, topics=topics)


def specs(
    state: ClusterTopics,
    *processors: Processor[Any, Any],
    settings: Settings = SETTINGS,
    partitions: int | None = None,
) -> list[TopicSpec]:
    return specs_for(settings, processors or (TOTALS,), state, partitions=partitions)


def test_an_application_needs_sources_changelogs_emits_quarantine_workers_and_skips() -> None:
    found = {spec.name: (spec.role, spec.partitions) for spec in specs(cluster(topic("orders", 6)))}
    assert found == {
        "orders": (TopicRole.SOURCE, 6),
        "shop-totals.v1-changelog": (TopicRole.CHANGELOG, 6),
        "big-customers": (TopicRole.EMIT, 6),
        "shop-quarantine": (TopicRole.QUARANTINE, 6),
        "shop-workers": (TopicRole.WORKERS, 1),
        "shop-skips": (TopicRole.SKIPS, 1),
    }
    assert sorted(found) == topic_names(SETTINGS, (TOTALS,))


def test_created_changelogs_are_compacted_in_append_time_and_sources_are_logs() -> None:
    configs = {spec.role: spec.config for spec in specs(cluster(topic("orders", 6)))}
    assert configs[TopicRole.CHANGELOG] == {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "message.timestamp.type": "LogAppendTime",
        "min.cleanable.dirty.ratio": "0.1",
        "segment.ms": "3600000",
        "delete.retention.ms": "86400000",
        "max.message.bytes": "1048588",
    }
    assert configs[TopicRole.SOURCE] == {
        "cleanup.policy": "delete",
        "message.timestamp.type": "LogAppendTime",
    }
    assert configs[TopicRole.QUARANTINE]["max.message.bytes"] == "4194352"


def test_with_three_replicas_two_copies_are_asked_for_and_with_two_only_one() -> None:
    for factor, wanted in ((1, None), (2, None), (3, "2")):
        settings = replace(SETTINGS, replication_factor=factor)
        assert {
            spec.config.get("min.insync.replicas")
            for spec in specs(cluster(), settings=settings, partitions=1)
        } == {wanted}


def test_the_partition_option_is_for_what_does_not_exist_yet() -> None:
    state = cluster(topic("orders", 6))
    counts = {
        spec.name: spec.partitions
        for spec in specs(state, TOTALS, processor("returns", "returned"), partitions=3)
    }
    assert counts["orders"] == 6
    assert counts["returned"] == counts["shop-returns.v1-changelog"] == 3
    assert counts["big-customers"] == 3
    assert counts["shop-quarantine"] == 6, "as wide as the widest source"


def test_what_one_processor_emits_and_another_reads_is_a_source_and_listed_once() -> None:
    chained = processor("ranks", "big-customers")
    found = {spec.name: spec.role for spec in specs(cluster(), TOTALS, chained, partitions=2)}
    assert found["big-customers"] is TopicRole.SOURCE
    assert len(found) == 7


def test_the_plan_creates_what_is_missing_sources_first() -> None:
    actions = plan(specs(cluster(), partitions=4), cluster())
    assert [action.spec.name for action in actions if isinstance(action, CreateTopic)] == [
        "orders",
        "shop-totals.v1-changelog",
        "big-customers",
        "shop-quarantine",
        "shop-workers",
        "shop-skips",
    ]


def test_after_the_plan_nothing_is_missing_and_nothing_is_wrong() -> None:
    for factor in (1, 3):
        settings, empty = replace(SETTINGS, replication_factor=factor), cluster(brokers=3)
        wanted = specs(empty, settings=settings, partitions=4)
        after = created(wanted, empty)
        again = specs(after, settings=settings)
        assert plan(again, after, alter=True) == []
        assert check(again, after) == []


def test_a_missing_source_without_a_partition_count_is_refused() -> None:
    with pytest.raises(TopicError, match=r"topic orders does not exist.*--partitions N"):
        plan(specs(cluster()), cluster())


GOOD = {"message_timestamp_type": "LogAppendTime"}
COMPACTED = GOOD | {"cleanup_policy": "compact"}


def world(**changes: TopicState) -> ClusterTopics:
    """Return a cluster on which nothing is wrong, but for the topics given by role."""
    states = {
        "source": topic("orders", 4, GOOD),
        "changelog": topic("shop-totals.v1-changelog", 4, COMPACTED),
        "emit": topic("big-customers", 2),
        "quarantine": topic("shop-quarantine", 4, GOOD, max_message_bytes="4194352"),
        "workers": topic("shop-workers", 1, COMPACTED),
        "skips": topic("shop-skips", 1, COMPACTED),
    }
    return cluster(*(states | changes).values())


def findings(
    state: ClusterTopics, settings: Settings = SETTINGS, *processors: Processor[Any, Any]
) -> list[TopicFinding]:
    return check(specs(state, *processors, settings=settings), state)


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    assert findings(world()) == []


ERROR, WARNING = Severity.ERROR, Severity.WARNING
CHANGELOG = "shop-totals.v1-changelog"


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


def test_a_partition_without_a_leader_is_an_error_and_one_behind_is_a_warning() -> None:
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


def test_alter_sets_right_what_loses_nothing() -> None:
    state = world(
        source=topic("orders", 4),
        changelog=topic(CHANGELOG, 4),
        quarantine=topic("shop-quarantine", 4, GOOD),
    )
    assert plan(specs(state), state) == []
    assert plan(specs(state), state, alter=True) == [
        AlterConfig(topic="orders", config={"message.timestamp.type": "LogAppendTime"}),
        AlterConfig(
            topic=CHANGELOG, config={"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}
        ),
        AlterConfig(topic="shop-quarantine", config={"max.message.bytes": "4194352"}),
    ]


def test_alter_makes_room_for_rows_and_never_takes_any_away() -> None:
    small, large = (topic(CHANGELOG, 4, COMPACTED, max_message_bytes=size) for size in ("20000", "9000000"))
    roomy = topic("shop-quarantine", 4, GOOD, max_message_bytes="9000000")
    assert plan(specs(world(changelog=small)), world(changelog=small), alter=True) == [
        AlterConfig(topic=CHANGELOG, config={"max.message.bytes": "1048588"})
    ]
    state = world(changelog=large, quarantine=roomy)
    assert plan(specs(state), state, alter=True) == []


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


def test_alter_never_turns_a_compacted_source_into_one_that_deletes() -> None:
    state = world(source=topic("orders", 4, COMPACTED), emit=topic("big-customers", 2, COMPACTED))
    assert plan(specs(state), state, alter=True) == []


def test_alter_asks_for_two_copies_only_where_there_are_three() -> None:
    settings = replace(SETTINGS, replication_factor=3)
    for replicas, wanted in (
        (1, []),
        (3, [AlterConfig(topic=CHANGELOG, config={"min.insync.replicas": "2"})]),
    ):
        state = world(changelog=topic(CHANGELOG, 4, COMPACTED, replicas=replicas))
        assert plan(specs(state, settings=settings), state, alter=True) == wanted


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


def test_kafkas_own_topics_are_known() -> None:
    assert topic("__consumer_offsets", 1).internal
    assert not topic("__marshal", 1).internal


def test_the_registrys_commands_are_kept_for_ever_and_it_is_told_when_they_are_not() -> None:
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


def test_the_topic_of_ranges_is_made_when_asked_for_and_kept_for_ever() -> None:
    assert RANGES_TOPIC not in topic_names(SETTINGS, [TOTALS])
    settings = replace(SETTINGS, ranges=True)
    assert settings.ranges_topic == RANGES_TOPIC
    assert RANGES_TOPIC in topic_names(settings, [TOTALS])
    found = {spec.name: spec for spec in specs_for(settings, [TOTALS], cluster(), partitions=4)}[RANGES_TOPIC]
    assert found.partitions == 4
    assert found.config["message.timestamp.type"] == "LogAppendTime"
    assert (found.config["retention.ms"], found.config["cleanup.policy"]) == ("-1", "delete")


# -- emits that stay in their partition


def test_a_topic_that_records_go_on_to_in_place_is_made_as_wide_as_their_source() -> None:
    cleaner = processor(emits=("clean",), in_place=True)
    specs = {
        spec.name: spec for spec in specs_for(SETTINGS, [cleaner], cluster(topic("orders", 6)), partitions=3)
    }
    assert specs["clean"].partitions == 6


@pytest.mark.parametrize(("count", "wrong"), [(5, True), (6, False), (7, False)])
def test_a_topic_too_narrow_for_records_that_go_on_in_place_is_an_error(count: int, wrong: bool) -> None:
    cleaner = processor(emits=("clean",), in_place=True)
    whole = created(specs_for(SETTINGS, [cleaner], cluster(topic("orders", 6))), cluster(topic("orders", 6)))
    narrow = replace(whole, topics={**whole.topics, "clean": topic("clean", count)})
    found = [each for each in check(specs_for(SETTINGS, [cleaner], narrow), narrow) if each.topic == "clean"]
    assert [(each.severity, "has 5 partitions but orders has 6" in each.message) for each in found] == [
        (Severity.ERROR, True)
    ] * wrong
