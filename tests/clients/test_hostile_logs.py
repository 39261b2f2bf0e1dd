"""The logs by which holdfast's clients speak to each other, on topics that were made before brokers were
asked to refuse bombs.

In the middle and at the end of each lies a batch that librdkafka cannot read. Without the skipper each of
these tests stalls there.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import Producer

from holdfast.clients.claims.consumer import ClaimedMessage
from holdfast.clients.claims.logs.balanced_log import GroupLog
from holdfast.clients.claims.logs.reset_log import ResetLog
from holdfast.clients.groups.view import GroupView
from holdfast.clients.producers.names import NameHolder
from holdfast.clients.quarantine.records import Quarantine
from holdfast.clients.tables.directory import WorkersTopic
from holdfast.config import Settings
from holdfast.core.claims.resets import ResetAbort
from holdfast.core.producers.registry import RegistryAnswer, encode_answer
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from tests.clients.claims.claiming import LAPSE_S, LOG_APPEND, Ground, drain, scenario, until
from tests.clients.ranges.test_ranges import Field
from tests.clients.tables.test_directory import Announcements
from tests.support.hostile_batches import ROOM, send, send_bomb, send_hostile
from tests.support.limits import measured
from tests.support.own_topics import ending
from tests.support.patience import DEADLINE_S


@pytest.fixture
def ground(broker: SessionBroker, fresh_topic: FreshTopic) -> Iterator[Ground]:
    with closing(Ground(broker.config, fresh_topic, partitions=4)) as found:
        yield found


@pytest.fixture
def field(broker: SessionBroker, fresh_topic: FreshTopic) -> Iterator[Field]:
    with closing(Field(broker, fresh_topic)) as found:
        yield found


@pytest.mark.variant
@scenario
async def test_claim_members_continue_and_a_newcomer_joins_beyond_hostile_batches(
    broker: SessionBroker, ground: Ground
) -> None:
    with measured() as machine:
        delivered = await members_pass_hostile_batches(broker, ground)
    if machine.stalled_s < LAPSE_S:
        assert delivered == 80, "nothing was delivered twice"


async def members_pass_hostile_batches(broker: SessionBroker, ground: Ground) -> int:
    """Return how many messages the first two were given."""
    async with ground.consumer("a-1") as a, ground.consumer("b-1") as b:
        await until("all is claimed", lambda: a.load + b.load == 4)
        out: list[tuple[float, ClaimedMessage]] = []
        draining = [asyncio.create_task(drain(each, out)) for each in (a, b)]
        await asyncio.to_thread(send_hostile, broker, ground.coordination)
        ground.fill(10)
        await until(
            "both pass them",
            lambda: min(each.counters()["skipped_batches"] for each in (a, b)) == 3,
            DEADLINE_S,
        )
        await asyncio.sleep(2 * 3.0)  # a claim is over after twice the heartbeat interval
        ground.fill(10, start=10)
        await until(
            "both deliver",
            lambda: _places(out) == {(at, offset) for at in range(4) for offset in range(20)},
            DEADLINE_S,
        )
        delivered = len(out)
        await until("all is held", lambda: a.load + b.load == 4)
        async with ground.consumer("c-1") as c:
            draining.append(asyncio.create_task(drain(c, out)))
            await until("the newcomer passes them", lambda: c.counters()["skipped_batches"] == 3, DEADLINE_S)
            await b.terminate(release=True)
            await until("what was released is taken", lambda: a.load + c.load == 4, DEADLINE_S)
            ground.fill(1, start=20)
            await until("the new owners deliver", lambda: len(_places(out)) == 84, DEADLINE_S)
            for task in draining:
                task.cancel()
    return delivered


def test_an_administrator_sees_all_groups_beyond_hostile_batches(
    broker: SessionBroker, ground: Ground
) -> None:
    ground.pause(600)
    send_hostile(broker, ground.coordination)
    with GroupView(ground.settings, timeout_s=DEADLINE_S) as view:
        assert list(view.pauses()) == [ground.group]
        ground.group = "other"
        ground.pause(600)
        view.refresh()
        assert "other" in view.pauses()


@pytest.mark.variant
def test_a_groups_talk_is_read_beyond_hostile_batches(broker: SessionBroker, fresh_topic: FreshTopic) -> None:
    topic = fresh_topic("groups", config=ROOM | LOG_APPEND)
    send(broker, topic, [b"before"])
    send_hostile(broker, topic)
    send(broker, topic, [b"after"])
    send_hostile(broker, topic)
    log, heard, turns = (
        GroupLog(_settings(broker), topic, "billing", timeout_s=DEADLINE_S, unsent_s=DEADLINE_S),
        list[bytes | None](),
        0,
    )
    log.open(0)
    try:
        while not (log.caught_up and heard[-1:] == [b"after"]):
            heard += [each.value for each in log.poll(0.1)]
            turns += 1
            assert turns < 10 * DEADLINE_S, heard
        log.send(b"mine")
        while heard[-1] != b"mine":
            heard += [each.value for each in log.poll(0.1)]
            turns += 1
            assert turns < 20 * DEADLINE_S, heard
    finally:
        log.close(DEADLINE_S)
    assert heard == [b"before", b"after", b"mine"]


@scenario
async def test_ranges_are_shared_beyond_hostile_batches(broker: SessionBroker, field: Field) -> None:
    for partition in range(2):
        await asyncio.to_thread(send_hostile, broker, field.ranges, partition=partition)
    field.fill(20)
    seen: list[int] = []
    async with field.consumer("a") as a:
        async for block in a:
            seen += [record.offset() or 0 for record in block.records]
            await block.done()
            if len(seen) == 10:
                for partition in range(2):
                    await asyncio.to_thread(send_hostile, broker, field.ranges, partition=partition)
            if len(seen) == 20:
                break
    assert sorted(seen) == list(range(20))


@pytest.mark.variant
def test_decisions_about_resets_are_read_beyond_hostile_batches(
    broker: SessionBroker, fresh_topic: FreshTopic
) -> None:
    topic = fresh_topic("resets", config=ROOM | LOG_APPEND)
    log, ids = (
        ResetLog(_settings(broker), topic=topic, timeout_s=DEADLINE_S),
        [ending() for _ in range(2)],
    )
    for reset_id in ids:
        decision = ResetAbort(reset_id=reset_id, group="shop", client="c", at_s=1, reason="no")
        send_hostile(broker, topic)
        assert log.decide(decision) == decision
    send_hostile(broker, topic)
    found = log.decisions()
    assert all(found[reset_id] is not None for reset_id in ids)


@pytest.mark.variant
@scenario
async def test_the_directory_of_workers_is_read_beyond_hostile_batches(broker: SessionBroker) -> None:
    told = Announcements(broker)
    broker.create_topic(told.settings.workers_topic, config=ROOM | {"cleanup.policy": "compact"}, exact=True)
    directory = WorkersTopic(told.settings)
    try:
        told.claim("http://a:1", 1, 0, 1)
        await directory.refresh(DEADLINE_S)
        for generation in (2, 3):
            await asyncio.to_thread(send_hostile, broker, told.settings.workers_topic)
            told.claim("http://b:1", generation, generation)
            await directory.refresh(DEADLINE_S)
            assert directory.workers.owner("totals", 1, generation) == "http://b:1"
            assert directory.workers.owner("totals", 1, 0) == "http://a:1"
    finally:
        await directory.close()
        broker.delete_topics([told.settings.workers_topic])


@pytest.mark.variant
def test_the_quarantine_is_listed_beyond_hostile_batches(broker: SessionBroker) -> None:
    settings = Settings(app=f"shop-{uuid.uuid4().hex[:6]}", kafka={"bootstrap.servers": broker.bootstrap})
    topic = broker.create_topic(settings.quarantine_topic, config=ROOM, exact=True)
    try:
        producer = Producer(broker.client_config())
        for offset in range(3):
            notes = {
                "topic": "orders",
                "partition": 0,
                "offset": offset,
                "processor": "p",
                "stage": "fold",
                "error": "E",
                "reason": "r",
                "at-ms": 1,
            }
            headers: list[tuple[str, str | bytes | None]] = [
                (f"holdfast-{name}", str(value).encode()) for name, value in notes.items()
            ]
            producer.produce(topic, b"v", b"orders/0/%d/p" % offset, headers=headers)
            assert producer.flush(DEADLINE_S) == 0
            send_hostile(broker, topic)
        assert [
            each.offset for each in Quarantine(settings, timeout_s=DEADLINE_S).records(lambda _: True)
        ] == [
            0,
            1,
            2,
        ]
    finally:
        broker.delete_topics([topic])


def test_a_name_is_given_out_beyond_hostile_batches(broker: SessionBroker, fresh_topic: FreshTopic) -> None:
    """The answers are followed from their end; a registry that never answers is enough to show that reading
    continues.
    """
    commands = fresh_topic("producers")
    answers = broker.create_topic(f"{commands}.answers", config=ROOM, exact=True)
    settings = Settings(kafka={"bootstrap.servers": broker.bootstrap}, producers_topic=commands)
    with NameHolder(settings, "till-1", timeout_s=DEADLINE_S) as name:
        name._open()
        send_hostile(broker, answers)
        send(
            broker,
            answers,
            [encode_answer(RegistryAnswer(request="r", name="till-1", epoch=7))],
            key=b"till-1",
        )
        turns = 0
        while (found := name._poll(0.1)) is None:
            turns += 1
            assert turns < 10 * DEADLINE_S
        assert found.epoch == 7


# -- topics of users


@scenario
async def test_a_claim_consumer_reports_a_batch_it_cannot_read_and_other_partitions_continue(
    broker: SessionBroker, ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    ground.fill(1, partition=1)
    await asyncio.to_thread(send_bomb, broker, ground.topic, partition=1)
    ground.fill(1, partition=1)
    ground.fill(2, partition=0)
    async with ground.consumer("a-1") as a:
        out: list[tuple[float, ClaimedMessage]] = []
        draining = asyncio.create_task(drain(a, out))
        await until("it is told", lambda: _errors(caplog), DEADLINE_S)
        ground.fill(2, partition=0, start=2)
        await until(
            "others go on", lambda: _places(out) == {(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)}, DEADLINE_S
        )
        await asyncio.sleep(3.0)
        (told,) = _errors(caplog)
        for part in (
            f"{ground.topic} partition 1",
            "offset 1",
            "zstd",
            f"groups reset-offsets {ground.group} ",
            "--to-offset 2",
            f"{ground.topic}:1",
        ):
            assert part in told
        await until("it counts", lambda: a.counters()["unreadable_partitions"] == 1, DEADLINE_S)
        assert len(_errors(caplog)) == 1
        draining.cancel()


@scenario
async def test_a_range_consumer_puts_a_batch_it_cannot_read_aside_and_continues(
    broker: SessionBroker, field: Field, caplog: pytest.LogCaptureFixture
) -> None:
    field.fill(5)
    await asyncio.to_thread(send_bomb, broker, field.topic)
    field.fill(5)
    seen: list[int] = []
    async with field.consumer("a") as a:
        async for block in a:
            seen += [record.offset() or 0 for record in block.records]
            await block.done()
            if 10 in seen:
                break
        assert a.buried == 1
    assert sorted(seen) == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert field.dead_letters() == [f"{field.topic}/0/5".encode()]
    (told,) = _errors(caplog)
    assert all(part in told for part in (f"{field.topic} partition 0", "offset 5", field.dead))


def _places(out: list[tuple[float, ClaimedMessage]]) -> set[tuple[int, int]]:
    return {(message.partition, message.offset) for _, message in out}


def _errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.ERROR and record.name.startswith("holdfast")
    ]


def _settings(broker: SessionBroker) -> Settings:
    return Settings(kafka={name: str(value) for name, value in broker.config.items()})
