"""The topics that are created and altered. No cluster is asked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.clients.topics.checks import check
from holdfast.clients.topics.plan import plan
from holdfast.clients.topics.types import (
    AlterConfig,
    CreateTopic,
)
from holdfast.errors import TopicError
from tests.clients.topics.world import (
    CHANGELOG,
    COMPACTED,
    GOOD,
    SETTINGS,
    cluster,
    created,
    specs,
    topic,
    world,
)


def test_the_plan_creates_missing_topics_sources_first() -> None:
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
