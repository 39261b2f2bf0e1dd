"""Lanes on a real broker: one partition shared by members, each key in order with one of them."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack, closing
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from holdfast.clients.claims.claiming.offset_mirror import MirroredOffset, OffsetMirror
from holdfast.clients.claims.consumer import ClaimConsumer, ClaimedMessage
from holdfast.config import Settings
from holdfast.core.claims.claim_keys import claim_key
from holdfast.core.claims.claim_rows import Claim
from holdfast.core.claims.frames import ClaimingPartition
from holdfast.core.claims.lanes import ClaimNames, lane_of, lane_topic, lane_topics
from holdfast.core.member.actions import CommitOffset
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from holdfast.errors import ConfigError
from tests.clients.claims.claiming import LAPSE_S, Child, Ground, scenario, take, until
from tests.support.limits import AwakeClock, at_most, measured
from tests.support.patience import DEADLINE_S

LANES = 4


@pytest.fixture
def ground(broker: SessionBroker, fresh_topic: FreshTopic) -> Iterator[Ground]:
    with closing(Ground(broker.config, fresh_topic, coordination=2)) as found:
        yield found


@pytest.fixture
def children() -> Iterator[list[Child]]:
    started: list[Child] = []
    yield started
    for each in started:
        each.close()


def fill(ground: Ground, count: int, *, keys: int = 16, start: int = 0, key: bytes | None = None) -> None:
    """Write numbered messages to partition 0, each key's numbers ascending."""
    for number in range(start, start + count):
        ground.producer.produce(
            ground.topic, key=key or b"key-%d" % (number % keys), value=b"%d" % number, partition=0
        )
    assert ground.producer.flush(DEADLINE_S) == 0


def lane_offset(ground: Ground, lane: int) -> int | None:
    row = ground.rows().get(claim_key(ground.group, lane_topic(ground.topic, lane, LANES), 0))
    return row.current_offset if isinstance(row, Claim) else None


def kafka_offset(ground: Ground) -> int:
    reader = Consumer({**ground.config, "group.id": ground.group})
    try:
        return reader.committed([TopicPartition(ground.topic, 0)], timeout=DEADLINE_S)[0].offset
    finally:
        reader.close()


def check_order(messages: Iterable[dict[str, Any]]) -> int:
    """Check handling of keys in time order: nothing before what precedes it; return how many came again."""
    last: dict[str, int] = defaultdict(lambda: -1)
    stays: dict[tuple[str, int], int] = {}
    known: dict[str, list[int]] = defaultdict(list)
    again = 0
    for each in messages:
        key, offset = each["key"], each["offset"]
        assert offset > stays.get((key, each["epoch"]), -1), f"{key}: {offset} out of order within one stay"
        stays[key, each["epoch"]] = offset
        if offset > last[key]:
            known[key].append(offset)
            last[key] = offset
        else:
            assert offset in known[key], f"{key}: {offset} came after {last[key]} for the first time"
            again += 1
    return again


def told(message: ClaimedMessage) -> dict[str, Any]:
    return {
        "key": (message.key or b"").decode(),
        "offset": message.offset,
        "epoch": message.epoch,
        "lane": message.lane,
    }


def test_the_check_of_order_sees_messages_that_are_out_of_order() -> None:
    def seen(*offsets: tuple[int, int]) -> list[dict[str, Any]]:
        return [{"key": "k", "offset": offset, "epoch": epoch} for offset, epoch in offsets]

    assert check_order(seen((1, 1), (2, 1), (1, 2), (2, 2), (3, 2))) == 2
    for wrong in (seen((2, 1), (1, 1)), seen((1, 1), (3, 1), (2, 2))):
        with pytest.raises(AssertionError):
            check_order(wrong)


def test_the_book_follows_the_lowest_lane_also_when_it_is_another_member_s_that_moves() -> None:
    """Two that commit at the same moment see each other's commit only later: without a second look the book
    would lag.
    """
    names = ClaimNames(2)
    mine, other = names.claimed_as("orders")
    logged: dict[str, Claim] = {}
    mirror = OffsetMirror(names, lambda topic, partition: logged.get(topic))

    def at(offset: int, topic_mark: int = 7) -> Claim:
        return Claim("c", "i", 1, 100, None, offset, None, 100, topic_mark=topic_mark)

    def looked() -> MirroredOffset | None:
        mirror.look_again(mine, 0)
        return mirror.take().get(("orders", 0))

    mirror.note(CommitOffset(mine, 0, 10, 7))
    assert mirror.take() == {}, "some lane was never worked on"
    logged |= {mine: at(10), other: at(7)}
    assert (looked(), looked()) == (MirroredOffset(7, 7), None)
    logged[other] = at(12)
    assert (looked(), looked()) == (MirroredOffset(10, 7), None)
    mirror.note(CommitOffset(mine, 0, 20, 7))  # its last word, which the log does not show yet
    assert mirror.take() == {("orders", 0): MirroredOffset(12, 7)}
    logged[mine] = at(3, topic_mark=8)
    assert looked() is None, "the other lane has not begun the topic that was made again"
    logged[other] = at(5, topic_mark=8)
    assert looked() == MirroredOffset(3, 8)


@pytest.mark.long
@scenario
async def test_members_share_one_partition_and_each_key_is_in_order_with_one_of_them(ground: Ground) -> None:
    fill(ground, 400)
    seen: list[tuple[str, dict[str, Any]]] = []

    async def work(consumer: ClaimConsumer) -> None:
        async for message in consumer:
            assert (message.topic, message.partition) == (ground.topic, 0)
            assert message.lane == lane_of(message.key, message.offset, LANES)
            seen.append((consumer.client, told(message)))
            message.commit()

    def handled() -> set[int]:
        return {each["offset"] for _, each in seen}

    async with AsyncExitStack() as stack:
        machine = stack.enter_context(measured())
        members = [
            await stack.enter_async_context(ground.consumer(f"m{at}", lanes=LANES, maximum_claims=1))
            for at in range(LANES)
        ]
        tasks = [asyncio.create_task(work(each)) for each in members]
        await until("every member to have one lane", lambda: [each.load for each in members] == [1] * LANES)
        await until("all to be handled", lambda: len(handled()) == 400)
        fill(ground, 10, key=b"key-0", start=400)  # the other lanes are idle, and move on all the same
        await until("the rest to be handled", lambda: len(handled()) == 410)
        for member in members:
            await member.flush()
        await until(
            "every lane to stand at the end",
            lambda: [lane_offset(ground, lane) for lane in range(LANES)] == [410] * LANES,
        )
        await until("the commit to Kafka", lambda: kafka_offset(ground) == 410)
        for member in members:
            await member.terminate(release=True)
        await asyncio.gather(*tasks)
    again = check_order(each for _, each in seen)
    assert handled() == set(range(410))
    if machine.stalled_s > LAPSE_S:
        return
    assert again == 0
    owners = defaultdict(set)
    for client, each in seen:
        owners[each["key"]].add(client)
    assert all(len(each) == 1 for each in owners.values())
    assert {frame.topic for frame in ground.frames(ClaimingPartition)} == set(
        lane_topics(ground.topic, LANES)
    )


@scenario
async def test_messages_without_a_key_go_round_and_none_of_them_is_missing(ground: Ground) -> None:
    ground.fill(40)
    async with ground.consumer("one", lanes=LANES, greedy=True) as consumer:
        found = await take(consumer, 40)
        assert sorted((each.offset, each.lane) for each in found) == [
            (offset, offset % LANES) for offset in range(40)
        ]
        assert consumer.load == LANES


@scenario
async def test_batches_are_of_one_lane_and_commit_as_a_whole(ground: Ground) -> None:
    fill(ground, 300)
    seen: list[int] = []
    async with ground.consumer("one", lanes=LANES, greedy=True) as consumer:
        async for batch in consumer.batches():
            assert {lane_of(record.key(), 0, LANES) for record in batch.records} == {batch.lane}
            seen += [each.offset for each in batch]
            batch.commit()
            if len(seen) == 300:
                break
        await consumer.flush()
        assert [lane_offset(ground, lane) for lane in range(LANES)] == [300] * LANES
    assert sorted(seen) == list(range(300))


@scenario
async def test_a_lane_that_is_stuck_costs_its_share_of_the_queue_and_holds_up_no_other_lane(
    ground: Ground,
) -> None:
    fill(ground, 600)
    named = {
        "lanes": LANES,
        "greedy": True,
        "maximum_outstanding": 5,
        "queue_messages": 80,
        "batch_messages": 50,
        "release_if_behind": False,
    }
    with AwakeClock() as awake:  # none of the five comes again because the machine stalls
        await one_lane_is_stuck(ground, ground.consumer("one", clock=awake, **named))


async def one_lane_is_stuck(ground: Ground, one: ClaimConsumer) -> None:
    async with one as consumer:
        held: list[ClaimedMessage] = []
        seen: list[dict[str, Any]] = []
        stuck = lane_of(b"key-0", 0, LANES)
        wanted = sum(lane_of(b"key-%d" % (number % 16), 0, LANES) != stuck for number in range(600))

        async def work() -> None:
            async for message in consumer:
                seen.append(told(message))
                held.append(message) if message.lane == stuck else message.commit()

        task = asyncio.create_task(work())
        await until(
            "the other lanes to be done", lambda: sum(each["lane"] != stuck for each in seen) == wanted
        )
        assert len(held) == 5
        assert consumer.counters()["queued_messages"] <= 80
        while (
            sum(each["lane"] == stuck for each in seen) < 600 - wanted or held
        ):  # it continues at its offset, and gets all
            for message in held[:]:
                message.commit()
                held.remove(message)
            await asyncio.sleep(0.001)
        assert check_order(seen) == 0
        await consumer.terminate(release=True)
        await task
    assert sorted(each["offset"] for each in seen) == list(range(600))


@scenario
async def test_a_killed_member_s_lanes_continue_exactly_at_the_offsets_of_the_log_and_in_order(
    ground: Ground, children: list[Child]
) -> None:
    fill(ground, 1_000)
    child = ground.process("first", heartbeat_interval_s=2.0, lanes=LANES, maximum_claims=2, hold_s=0.004)
    children.append(child)
    await until("the first to work on two lanes", lambda: len({each["lane"] for each in child.messages}) == 2)
    async with ground.consumer("second", heartbeat_interval_s=2.0, lanes=LANES, greedy=True) as heir:
        seen: list[tuple[float, dict[str, Any]]] = []

        async def work() -> None:
            async for message in heir:
                seen.append((time.monotonic(), told(message)))
                message.commit()
                await asyncio.sleep(0.001)

        task = asyncio.create_task(work())
        await until("the second to have the others", lambda: heir.load == 2)
        fill(
            ground, 2_000, start=1_000
        )  # however long the second took: the first has work of which it can be killed
        before = len(child.messages)
        await until("the first to have gone on", lambda: len(child.messages) > before + 50)
        child.kill()
        lost = {each["lane"] for each in child.messages}
        stood = {lane: lane_offset(ground, lane) for lane in lost}
        with at_most(8.0, "the takeover of all lanes"):
            await until("the second to have all", lambda: heir.load == LANES)
        everything = [(each["at_s"], each) for each in child.messages]
        offsets = {each["offset"] for each in child.messages}
        # The first may have handled all of a lane and not committed yet: the log shows the rest.
        lanes = {offset: lane_of(b"key-%d" % (offset % 16), 0, LANES) for offset in range(3_000)}
        left = {
            lane: [offset for offset in lanes if lanes[offset] == lane and offset >= (stood[lane] or 0)]
            for lane in lost
        }
        wanted = {offset for of_lane in left.values() for offset in of_lane} | lanes.keys() - offsets
        await until("all that is left to be handled", lambda: wanted <= {each["offset"] for _, each in seen})
        for lane in lost:
            first = min((each["offset"] for _, each in seen if each["lane"] == lane), default=None)
            assert first == min(left[lane], default=None)
        ordered = [each for _, each in sorted(everything + seen, key=lambda each: each[0])]
        again = check_order(ordered)
        assert again == len(child.messages) + len(seen) - 3_000
        await heir.terminate(release=True)
        await task


@pytest.mark.long
@scenario
async def test_at_most_once_lanes_hand_out_each_message_once(ground: Ground) -> None:
    fill(ground, 200)
    seen: list[dict[str, Any]] = []
    async with ground.consumer(
        "first", lanes=LANES, greedy=True, delivery="at-most-once", batch_messages=40
    ) as first:
        seen += [told(each) for each in await take(first, 60)]
    fill(ground, 100, start=200)
    async with ground.consumer("second", lanes=LANES, greedy=True, delivery="at-most-once") as second:
        await until("the second to have all lanes", lambda: second.load == LANES)
        while not seen or len({each["offset"] for each in seen if each["offset"] >= 200}) < 100:
            seen.append(told(await anext(second)))
        await until(
            "every lane to stand at the end",
            lambda: {held.offset for held in second.claims.values()} == {300},
        )
    assert check_order(seen) == 0


@pytest.mark.long
@scenario
async def test_lanes_in_a_balanced_group_are_placed_by_its_target(
    broker: SessionBroker, fresh_topic: FreshTopic
) -> None:
    with closing(Ground(broker.config, fresh_topic, partitions=2, coordination=2)) as wide:
        groups = fresh_topic("groups", partitions=1, config={"message.timestamp.type": "LogAppendTime"})
        named = {"lanes": LANES, "balanced": True, "groups_topic": groups, "heartbeat_interval_s": 2.0}
        async with wide.consumer("first", **named) as first, wide.consumer("second", **named) as second:
            await until("the lanes to be shared", lambda: (first.load, second.load) == (LANES, LANES))


def test_what_lanes_do_not_go_with_is_refused_by_name() -> None:
    kafka = Settings(kafka={"bootstrap.servers": "127.0.0.1:1"})
    refused: list[tuple[list[str], dict[str, Any], str]] = [
        (["orders"], {"lanes": 1}, "lanes is 1"),
        (["orders"], {"lanes": 300}, "lanes is 300"),
        (["orders"], {"lanes": 8, "whole_topic": True}, "whole_topic"),
        (["orders~lane-0-of-8"], {}, "name the topic itself"),
        (["^ord.*"], {"lanes": 8, "balanced": True}, "pattern"),
    ]
    for topics, named, text in refused:
        with pytest.raises(ConfigError, match=text):
            ClaimConsumer(kafka, topics=topics, group="g", client="c", **named)
