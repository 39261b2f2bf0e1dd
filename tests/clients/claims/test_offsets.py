"""A claim client's questions to the broker between its polls, and again after an outage."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from holdfast.clients.claims.claiming.offsets import OffsetFetcher, Watermarks
from holdfast.clients.groups.broker import BrokerGroups
from holdfast.dev.broker.cluster import Cluster
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from holdfast.errors import BrokerError, ConfigError
from tests.clients.claims.claiming import Ground, scenario, until
from tests.support import own_broker
from tests.support.harness import wait_for
from tests.support.patience import DEADLINE_S
from tests.support.strangers import leave_offsets

holdfast_broker, broker = own_broker.holdfast_broker, own_broker.broker


@pytest.fixture
def ground(broker: SessionBroker, fresh_topic: FreshTopic) -> Iterator[Ground]:
    with closing(Ground(broker.config, fresh_topic, partitions=2)) as found:
        yield found


def lookups(ground: Ground) -> closing[OffsetFetcher]:
    return closing(OffsetFetcher(ground.settings, ground.group, timeout_s=DEADLINE_S))


def book(ground: Ground, partition: int, offset: int) -> None:
    leave_offsets(ground.config, ground.group, [TopicPartition(ground.topic, partition, offset)])


async def answered(asked: OffsetFetcher, count: int, within_s: float = DEADLINE_S) -> list[Watermarks]:
    found: list[Watermarks] = []

    def all_there() -> bool:
        found.extend(asked.answers())
        return len(found) >= count

    await until(f"{count} answers", all_there, within_s)
    return sorted(each._replace(topic_mark=None) for each in found)


@scenario
async def test_the_ends_of_logs_and_the_groups_book_are_reported(ground: Ground) -> None:
    ground.fill(7, partition=0)
    book(ground, 0, 3)
    with lookups(ground) as asked:
        for partition in (0, 1):
            asked.ask(ground.topic, partition, committed=True)
        assert await answered(asked, 2) == [
            Watermarks(ground.topic, 0, 0, 7, 3),
            Watermarks(ground.topic, 1, 0, 0, None),
        ]


@scenario
async def test_a_topic_that_is_gone_holds_up_no_other(ground: Ground) -> None:
    with lookups(ground) as asked:
        asked.ask("a-topic-that-never-was", 0, committed=True)
        asked.ask(ground.topic, 0, committed=False)
        assert await answered(asked, 1) == [Watermarks(ground.topic, 0, 0, 0, None)]


@scenario
async def test_partitions_are_counted_and_a_missing_topic_has_none(ground: Ground) -> None:
    counted: dict[str, int] = {}
    with lookups(ground) as asked:
        asked.ask_counts([ground.topic, "a-topic-that-never-was"])
        await until("the counts", lambda: counted.update(asked.counted()) or len(counted) == 2)
    assert counted == {ground.topic: 2, "a-topic-that-never-was": 0}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_live_group_of_either_of_kafkas_protocols_is_refused_until_it_is_empty(
    ground: Ground, protocol: str
) -> None:
    """D24."""
    ground.fill(1)
    member = Consumer(
        {**ground.config, "group.id": ground.group, "client.id": "carla", "group.protocol": protocol}
    )
    with lookups(ground) as asked:
        asked.check_group()
        with closing(member):
            member.subscribe([ground.topic])
            deadline_s = time.monotonic() + DEADLINE_S
            while not member.assignment():
                assert time.monotonic() < deadline_s
                member.poll(0.1)
            with pytest.raises(ConfigError, match=r"live consumer group.*carla"):
                asked.check_group()
        asked.check_group()


def coordinated(groups: BrokerGroups, group: str) -> bool:
    try:
        groups.describe(group)
    except BrokerError:
        return False
    return True


@pytest.mark.kafka
def test_questions_to_a_frozen_coordinator_end_and_nothing_of_them_is_left(
    broker: SessionBroker, ground: Ground
) -> None:
    """librdkafka aborts the process when a coordinator comes back that a request was meant for which has
    ended by its own timeout.
    """
    groups = BrokerGroups(ground.settings, timeout_s=DEADLINE_S)
    wait_for(
        "a coordinator, which a new node has after a while",
        lambda: coordinated(groups, ground.group),
        DEADLINE_S,
    )
    assert groups.describe(ground.group) is None
    with closing(OffsetFetcher(ground.settings, ground.group, timeout_s=DEADLINE_S)) as asked:
        asked.check_group()
        with own_broker.frozen(broker):
            asked._timeout_s = groups._timeout_s = 1.0
            for question in (
                asked.check_group,
                lambda: asked.counts([ground.topic]),
                lambda: groups.describe(ground.group),
            ):
                with pytest.raises(BrokerError, match=re.escape(ground.settings.bootstrap_servers)):
                    question()
        asked._timeout_s = groups._timeout_s = DEADLINE_S
        asked.check_group()
        assert asked.counts([ground.topic]) == {ground.topic: 2}
        assert groups.describe(ground.group) is None


@pytest.mark.kafka
@pytest.mark.slow
@scenario
async def test_questions_asked_in_an_outage_are_answered_after_it(tmp_path: Path) -> None:
    """librdkafka's admin client never found out: it waited for the coordinator that was gone, and named
    the old epoch of leaders.
    """
    with Cluster(tmp_path / "kafka", short_lived=True) as cluster:
        ground = Ground(
            cluster.client_config(),
            SessionBroker(config=cluster.client_config(), cluster=cluster).create_topic,
        )
        ground.fill(7)
        book(ground, 0, 3)
        with lookups(ground) as asked:
            asked.check_group()
            asked.ask(ground.topic, 0, committed=True)
            (before,) = await answered(asked, 1)
            cluster.kill(1)
            asked.ask(ground.topic, 0, committed=True)
            cluster.restart(1)
            assert await answered(asked, 1) == [before] == [Watermarks(ground.topic, 0, 0, 7, 3)]
            asked.ask(ground.topic, 0, committed=False)
            assert await answered(asked, 1) == [before._replace(committed=None)]
