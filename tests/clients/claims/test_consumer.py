"""ClaimConsumer on a real broker: claimed, consumed, committed, given back, taken over."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]

from holdfast.clients.claims.blocking import BlockingClaimConsumer
from holdfast.clients.claims.consumer import ClaimConsumer
from holdfast.clients.topics.log_ends import GroupOffsets
from holdfast.config import Settings
from holdfast.core.claims.claim_keys import claim_key
from holdfast.core.claims.claim_rows import Claim
from holdfast.core.claims.frames import UNMARKED, ClaimingPartition, Heartbeat, ReleasingPartition
from holdfast.core.member.actions import DeliveryToken, Event
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from holdfast.dev.ports import free_ports
from holdfast.errors import (
    BrokerError,
    ClaimLostError,
    CommitError,
    ConfigError,
    InstanceConflictError,
    TerminatedError,
    TopicError,
)
from tests.clients.claims.claiming import (
    PATIENCE,
    PATIENT_S,
    Ground,
    drain,
    scenario,
    take,
    until,
)
from tests.support.limits import at_most
from tests.support.patience import DEADLINE_S


@pytest.fixture
def ground(broker: SessionBroker, fresh_topic: FreshTopic) -> Iterator[Ground]:
    with closing(Ground(broker.config, fresh_topic)) as found:
        yield found


@pytest.fixture
def wide(broker: SessionBroker, fresh_topic: FreshTopic) -> Iterator[Ground]:
    with closing(Ground(broker.config, fresh_topic, partitions=4, coordination=4)) as found:
        yield found


def committed_in_kafka(ground: Ground) -> dict[int, int]:
    """Return the offsets that the group has committed to Kafka, by partition."""
    reader = Consumer({**ground.config, "group.id": ground.group})
    try:
        wanted = [TopicPartition(ground.topic, at) for at in range(ground.partitions)]
        return {
            each.partition: each.offset
            for each in reader.committed(wanted, timeout=DEADLINE_S)
            if each.offset >= 0
        }
    finally:
        reader.close()


@scenario
async def test_what_one_owner_committed_and_released_the_next_owner_does_not_see_again(wide: Ground) -> None:
    wide.fill(50)
    async with wide.consumer("first", greedy=True) as first:
        found = await take(first, 200)
        assert first.load == 4
        assert {(each.partition, each.offset) for each in found} == {
            (at, offset) for at in range(4) for offset in range(50)
        }
        assert all(int(each.value or b"") == each.offset for each in found)
    wide.fill(1, start=50)
    async with wide.consumer("second", greedy=True) as second:
        assert sorted((each.partition, each.offset) for each in await take(second, 4)) == [
            (at, 50) for at in range(4)
        ]
        await second.flush()
        await until("the commits to Kafka", lambda: committed_in_kafka(wide) == dict.fromkeys(range(4), 51))
    released = [
        (frame.client_id, frame.partition, frame.current_offset) for frame in wide.frames(ReleasingPartition)
    ]
    assert sorted(released) == sorted(
        (client, at, offset) for client, offset in (("first", 50), ("second", 51)) for at in range(4)
    )


@scenario
async def test_batches_hold_one_partition_each_and_are_committed_as_a_whole(wide: Ground) -> None:
    wide.fill(500)
    seen: dict[int, int] = {}
    async with wide.consumer("first", greedy=True) as consumer:
        async for batch in consumer.batches():
            assert batch.first_offset == seen.get(batch.partition, 0)
            assert [each.offset for each in batch] == list(range(batch.first_offset, batch.next_offset))
            assert batch.is_held
            seen[batch.partition] = batch.next_offset
            batch.commit()
            if sum(seen.values()) == 2_000:
                break
        await consumer.flush()
        assert {place.partition: held.offset for place, held in consumer.claims.items()} == dict.fromkeys(
            range(4), 500
        )
        assert consumer.topic_claims == (wide.topic,)
        assert consumer.lag == 0 or await until("the lag to be measured", lambda: consumer.lag == 0)


@pytest.mark.long
@scenario
async def test_commits_in_any_order_move_the_offset_to_the_first_message_not_done(ground: Ground) -> None:
    """M7 on a live broker."""
    ground.fill(6)
    async with ground.consumer("first", heartbeat_interval_s=PATIENT_S, drain_s=0.0) as consumer:
        messages = await take(consumer, 6, commit=False)
        offsets = []
        for done in (0, 2, 1, 3, 4, 5):
            messages[done].commit()
            messages[done].commit()  # twice is once
            await consumer.flush()
            offsets.append([frame.current_offset for frame in ground.frames(Heartbeat)][-1])
        assert offsets == [1, 1, 3, 4, 5, 6]
        with pytest.raises(CommitError):
            consumer.commit(DeliveryToken(ground.topic, 0, 95, messages[0].epoch))


@pytest.mark.long
@scenario
async def test_a_clean_release_reaches_the_next_owner_within_a_second(ground: Ground) -> None:
    ground.fill(1)
    named = {"heartbeat_interval_s": PATIENT_S}
    async with ground.consumer("first", **named) as first, ground.consumer("second", **named) as second:
        await until("one to own it", lambda: first.load + second.load == 1)
        owner, heir = (first, second) if first.load else (second, first)
        await take(owner, 1)
        ground.fill(1, start=1)
        with at_most(10.0, "the release"):
            leaving = asyncio.create_task(owner.terminate(release=True))
            (message,) = await take(heir, 1)
        await leaving
        assert message.offset == 1
        with pytest.raises(TerminatedError):
            _ = owner.load


@pytest.mark.long
@scenario
async def test_a_restart_within_the_time_takes_its_claims_back_by_heartbeats_alone(wide: Ground) -> None:
    """M12: no ClaimingPartition, resumed at the offset of the last heartbeat."""
    wide.fill(3)
    patient = {"heartbeat_interval_s": 30.0}
    first = wide.consumer("same", greedy=True, **patient)
    async with first:
        for message in await take(first, 12, commit=False):
            if message.offset < 2:
                message.commit()
        await first.terminate(release=False)
    async with wide.consumer("same", greedy=True, **patient) as again:
        assert sorted((each.partition, each.offset) for each in await take(again, 4)) == [
            (at, 2) for at in range(4)
        ]
        assert {frame.instance_id for frame in wide.frames(ClaimingPartition)} == {first.instance}
        assert {
            (frame.partition, frame.current_offset)
            for frame in wide.frames(Heartbeat)
            if frame.instance_id == again.instance
        } >= {(at, 2) for at in range(4)}


@scenario
async def test_a_restart_after_the_time_claims_like_anybody(ground: Ground) -> None:
    """M12, after twice the interval."""
    ground.fill(2)
    async with ground.consumer("same", heartbeat_interval_s=1.0) as first:
        (message,) = await take(first, 1)
        await first.flush()
        await first.terminate(release=False)
    last_ms = max(each.at_ms for each in ground.written())
    await until("the claim to be stale", lambda: time.time() * 1000 > last_ms + 4_500)
    async with ground.consumer("same", heartbeat_interval_s=1.0, skew_limit_s=1.0) as again:
        (message,) = await take(again, 1)
        assert message.offset == 1
        claimed = dict.fromkeys(frame.instance_id for frame in ground.frames(ClaimingPartition))
        assert list(claimed) == [first.instance, again.instance]


@scenario
async def test_of_two_instances_under_one_client_id_the_older_fails_and_the_newer_works(
    ground: Ground,
) -> None:
    ground.fill(3)
    async with ground.consumer("same") as older:
        out: list[Any] = []
        older_runs = asyncio.create_task(drain(older, out))
        await until("the first messages", lambda: len(out) == 3)
        async with ground.consumer("same") as newer:
            with at_most(3.0, "the older instance's end"), pytest.raises(InstanceConflictError):
                await older_runs
            ground.fill(2, start=3)
            found = await take(newer, 1)
            assert found[0].offset <= 3, "nothing is left out"
            await until("the newer one to own it", lambda: newer.load == 1)
    offsets = [
        frame.current_offset for frame in ground.frames(Heartbeat) if frame.instance_id == newer.instance
    ]
    assert offsets == sorted(offsets)


@pytest.mark.long
@scenario
async def test_new_partitions_are_claimed_without_a_restart(
    broker: SessionBroker, fresh_topic: FreshTopic
) -> None:
    ground = Ground(broker.config, fresh_topic)
    async with ground.consumer("first", greedy=True, partitions_lookup_s=0.5) as consumer:
        await until("the first claim", lambda: consumer.load == 1)
        admin = AdminClient({**ground.config})
        admin.create_partitions([NewPartitions(ground.topic, 3)])[ground.topic].result(DEADLINE_S)
        await until("the new partitions", lambda: consumer.load == 3)
        ground.fill(1, partition=2)
        assert [(each.partition, each.offset) for each in await take(consumer, 1)] == [(2, 0)]


@pytest.mark.long
@scenario
async def test_a_log_that_ends_before_the_groups_offset_is_reported_once_with_its_cure(
    broker: SessionBroker, fresh_topic: FreshTopic, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a leader that lost records: the claim is won again at the same offset and given back again,
    until an operator resets it.
    """
    ground = Ground(broker.config, fresh_topic)
    ground.fill(5)
    named = {"heartbeat_interval_s": 1.0, "partitions_lookup_s": 0.5}
    for kind in (Heartbeat, ReleasingPartition):
        ground.write(kind(int(time.time()), "i", "first", ground.group, ground.topic, 0, 20), ground.topic)
    async with ground.consumer("second", **named) as consumer:

        def given_back() -> int:
            return sum(each.event is Event.FETCH_FAILED for each in consumer.recent_events)

        await until("the claim to be given back twice", lambda: given_back() >= 2)
    (told,) = [each.getMessage() for each in caplog.records if "cannot be read" in each.getMessage()]
    assert told.startswith(f"{ground.topic}/0 cannot be read, and its claim is given back: ")
    cure = f"holdfast groups reset-offsets {ground.group} --to-earliest --topic {ground.topic}:0 --execute"
    assert told.endswith(cure)


@scenario
async def test_another_number_of_coordination_partitions_stops_a_member(ground: Ground) -> None:
    """All claims have moved; a member that continued as before would own them twice."""
    async with ground.consumer("first", partitions_lookup_s=0.5) as consumer:
        admin = AdminClient({**ground.config})
        admin.create_partitions([NewPartitions(ground.coordination, 3)])[ground.coordination].result(
            DEADLINE_S
        )
        with pytest.raises(TopicError, match="had 1 partitions and has 3"):
            await take(consumer, 1)


@scenario
async def test_events_of_claims_are_reported_as_they_happen(ground: Ground) -> None:
    told: list[tuple[Event, int]] = []

    async def listen(consumer: ClaimConsumer) -> None:
        async for event in consumer.events():
            told.append((event.event, event.partition))

    async with ground.consumer("first") as consumer:
        listening = asyncio.create_task(listen(consumer))
        await until("the claim", lambda: consumer.load == 1)
    await asyncio.wait_for(listening, DEADLINE_S)
    assert told[-1] == (Event.TERMINATED, -1)
    assert (Event.RELEASED, 0) in told


@scenario
async def test_a_paused_group_releases_and_is_silent_until_the_pause_is_over(ground: Ground) -> None:
    ground.fill(1)
    async with ground.consumer("first") as consumer:
        out: list[Any] = []
        runs = asyncio.create_task(drain(consumer, out))
        await until("the first message", lambda: len(out) == 1)
        paused_s = time.monotonic()
        ground.pause(5)
        with at_most(3.0, "the release"):
            await until("the release", lambda: consumer.load == 0)
        ground.fill(1, start=1)
        await until("the end of the pause", lambda: consumer.load == 1)
        await until("the message written meanwhile", lambda: len(out) == 2)
        assert out[1][0] - paused_s > 3.5
        assert out[1][1].offset == 1
        runs.cancel()


@scenario
async def test_holes_and_control_records_at_the_end_do_not_look_like_a_backlog(ground: Ground) -> None:
    writer = Producer({**ground.config, "transactional.id": f"{ground.topic}-tx"})
    writer.init_transactions(DEADLINE_S)
    writer.begin_transaction()
    writer.produce(ground.topic, value=b"0", partition=0)
    writer.commit_transaction(DEADLINE_S)
    async with ground.consumer("first") as consumer:
        await take(consumer, 1)
        await until(
            "the position to pass the control record",
            lambda: [held.offset for held in consumer.claims.values()] == [2],
        )
        await until("the lag to be measured", lambda: consumer.lag == 0)


@scenario
async def test_messages_in_flight_are_committed_before_the_release(ground: Ground) -> None:
    """D21: the drain window."""
    ground.fill(3)
    async with ground.consumer("first", heartbeat_interval_s=60.0, drain_s=60.0) as consumer:
        messages = await take(consumer, 3, commit=False)
        leaving = asyncio.create_task(consumer.terminate(release=True))
        await asyncio.sleep(0.3)
        assert not leaving.done()
        for message in messages:
            message.commit()
        with at_most(10.0, "the end of the drain"):
            await leaving
        with pytest.raises((ClaimLostError, TerminatedError)):
            messages[0].commit()
    assert [frame.current_offset for frame in ground.frames(ReleasingPartition)] == [3]


@scenario
async def test_a_failed_handler_still_gives_the_claim_back(ground: Ground) -> None:
    ground.fill(1)

    async def serve() -> None:
        async with ground.consumer("first", drain_s=0.0) as consumer:
            async for _ in consumer:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await serve()
    assert [frame.current_offset for frame in ground.frames(ReleasingPartition)] == [0]


@scenario
async def test_frames_are_those_of_the_go_library_with_interop(wide: Ground) -> None:
    wide.fill(5)
    async with wide.consumer("first", interop=True, greedy=True) as consumer:
        await take(consumer, 20)
        await consumer.flush()
    written = wide.written()
    assert {type(each.frame) for each in written} == {ClaimingPartition, Heartbeat, ReleasingPartition}
    assert all(each.key is None and each.headers == [] for each in written)
    mark = GroupOffsets(wide.settings, timeout_s=DEADLINE_S).marks([wide.topic])[wide.topic]
    assert {each.frame.version for each in written} == {UNMARKED, mark}, "which no reader compares"


@scenario
async def test_without_interop_frames_say_that_their_sender_obeys_pauses(ground: Ground) -> None:
    async with ground.consumer("first") as consumer:
        await until("the claim", lambda: consumer.load == 1)
    assert all(each.key is None and each.headers == [("holdfast", b"1")] for each in ground.written())


@pytest.mark.long
def test_the_blocking_form_does_the_same(ground: Ground) -> None:
    ground.fill(10)

    def blocking() -> BlockingClaimConsumer:
        return BlockingClaimConsumer(
            ground.settings,
            topics=[ground.topic],
            group=ground.group,
            client="first",
            heartbeat_interval_s=PATIENT_S,
            drain_s=0.75,
            **PATIENCE,
        )

    def few(found: Iterator[Any], count: int) -> list[Any]:
        return [next(found) for _ in range(count)]

    with blocking() as consumer:
        for message in few(iter(consumer), 4):
            message.commit()
        consumer.flush()
        batch = next(consumer.batches())
        assert (batch.first_offset, batch.next_offset) == (4, 10)
        batch.commit()
        assert consumer.get(0.05) is None
    with blocking() as consumer:
        ground.fill(1, start=10)
        message = consumer.get(DEADLINE_S)
        assert message is not None
        assert message.offset == 10


# -- refused at the start


@pytest.mark.long
@scenario
async def test_a_broker_that_does_not_answer_is_an_error_within_the_deadline() -> None:
    consumer = ClaimConsumer(
        f"127.0.0.1:{free_ports(1)[0]}", topics=["orders"], group="g", client="c", request_timeout_s=1.0
    )
    with at_most(5.0, "the refusal"), pytest.raises(BrokerError, match=r"127\.0\.0\.1"):
        async with consumer:
            pass
    assert consumer.terminated


@scenario
async def test_missing_topics_are_named(ground: Ground) -> None:
    with pytest.raises(TopicError, match="nowhere"):
        async with ground.consumer("first", topics=[ground.topic, "nowhere"]):
            pass
    settings = Settings(kafka=ground.config, coordination_topic="no-such-coordination")
    with pytest.raises(TopicError, match="no-such-coordination"):
        async with ClaimConsumer(settings, topics=[ground.topic], group=ground.group, client="first"):
            pass


@scenario
async def test_the_name_of_a_live_consumer_group_is_refused(ground: Ground) -> None:
    """D24: its coordinator would refuse our offsets."""
    other = Consumer({**ground.config, "group.id": ground.group})
    other.subscribe([ground.topic])
    try:
        await asyncio.to_thread(_joined, other)
        with pytest.raises(ConfigError, match="live consumer group"):
            async with ground.consumer("first"):
                pass
    finally:
        other.close()


def _joined(consumer: Consumer) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not consumer.assignment():
        assert time.monotonic() < deadline_s
        consumer.poll(0.1)


def test_an_unknown_setting_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="heartbeat_interval_s"):
        ClaimConsumer("127.0.0.1:9092", topics=["orders"], group="g", client="c", heartbeat_intervall_s=3)
    with pytest.raises(ConfigError, match="at-most-once"):
        ClaimConsumer("127.0.0.1:9092", topics=["orders"], group="g", client="c", delivery="exactly-once")
    with pytest.raises(ConfigError, match="compression"):
        ClaimConsumer("127.0.0.1:9092", topics=["orders"], group="g", client="c", compression="zstd")


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ({"heartbeat_interval_s": "3"}, "heartbeat_interval_s cannot be '3': Expected `float`"),
        ({"lanes": "8"}, "lanes cannot be '8'"),
        ({"handler_timeout_s": None}, "handler_timeout_s cannot be None"),
        ({"group": 5}, "group cannot be 5"),
        ({"topics": [5]}, r"topics cannot be \[5\]"),
        ({"topics": None}, "topics cannot be None"),
        ({"skew_limit_s": float("nan")}, "skew_limit_s is nan"),
        ({"batch_messages": 0}, "batch_messages is 0: use at least 1"),
        ({"queue_messages": 0}, "queue_messages is 0"),
        ({"queue_bytes": -1}, "queue_bytes is -1"),
        ({"prefetch_bytes": -1}, "prefetch_bytes is -1"),
        ({"fetch_poll_s": 0.0}, "fetch_poll_s is 0: use more than 0 and at most 1"),
        ({"space_wait_s": float("nan")}, "space_wait_s is nan"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_its_name(named: dict[str, Any], why: str) -> None:
    given: dict[str, Any] = {"topics": ["orders"], "group": "g", "client": "c", **named}
    with pytest.raises(ConfigError, match=why):
        ClaimConsumer("127.0.0.1:9092", **given)


@pytest.mark.long
@scenario
async def test_of_ten_that_race_one_wins_and_nine_know_at_once_that_they_lost(ground: Ground) -> None:
    """M6. All have decided to claim before the first of them writes it."""
    together = threading.Barrier(10)
    asked_s: list[float] = []
    consumers = [ground.consumer(f"c{number}", heartbeat_interval_s=PATIENT_S) for number in range(10)]
    for each in consumers:
        log = each._engine._log

        def send(
            send_id: int, value: bytes, partition: int, send: Callable[[int, bytes, int], None] = log.send
        ) -> None:
            if value.startswith(b"ClaimingPartition/"):
                together.wait(DEADLINE_S)
                asked_s.append(time.monotonic())
            send(send_id, value, partition)

        log.send = send  # type: ignore[method-assign]
    try:
        await asyncio.gather(*(each.__aenter__() for each in consumers))
        await until("ten to have asked", lambda: len(asked_s) == 10)
        lost: set[str] = set()

        def all_know() -> bool:
            lost.update(
                each.client
                for each in consumers
                if Event.RACE_LOST in [seen.event for seen in each.recent_events]
            )
            return len(lost) == 9 and sum(each.load for each in consumers) == 1

        with at_most(5.0, "nine losses and a win"):
            await until("nine losses and a win", all_know)
        (winner,) = [each for each in consumers if each.load]
        assert next(frame.instance_id for frame in ground.frames(ClaimingPartition)) == winner.instance
        assert len(ground.frames(ClaimingPartition)) == 10
        row = ground.rows()[claim_key(ground.group, ground.topic, 0)]
        assert isinstance(row, Claim)
        assert (row.instance_id, row.epoch, row.anomaly) == (winner.instance, 1, None)
    finally:
        await asyncio.gather(*(each.__aexit__(None, None, None) for each in consumers))
