"""Groups that work in lanes, on a real broker: shown under their partitions, and reset with all of their
lanes or none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import msgspec
import pytest
from confluent_kafka import Consumer, TopicPartition

from holdfast.clients.claims.consumer import ClaimConsumer
from holdfast.clients.groups.admin import GroupAdmin
from holdfast.clients.groups.positions import positions
from holdfast.clients.groups.records import ResetProgress, ResetStep
from holdfast.core.claims.claim_keys import ClaimKey
from holdfast.core.claims.claim_rows import Claim
from holdfast.core.claims.frames import Heartbeat
from holdfast.core.claims.lanes import lane_topic, lane_topics
from holdfast.core.claims.resets import Aim, Where
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from holdfast.errors import GroupError
from tests.clients.claims.claiming import PATIENT_S, Ground, scenario, until
from tests.support.group_desk import EndingClock, GroupDesk
from tests.support.patience import DEADLINE_S

LANES = 4


def claim(client: str, offset: int | None, *, beat_s: int | None = 100) -> Claim:
    return Claim(client, "i", 1, beat_s, None if beat_s is not None else 90, offset, None, 100)


def told(claims: dict[tuple[str, int], Claim], ends: dict[tuple[str, int], int]) -> list[tuple[object, ...]]:
    keyed = {ClaimKey("shop", *place): row for place, row in claims.items()}
    found = positions(
        "shop",
        keyed,
        {place: (3, end) for place, end in ends.items()},
        {"orders": 7},
        now_s=101,
        stale_after_s=6,
        live=lambda row: row.heartbeat_at_s is not None,
    )
    return [
        (each.topic, each.partition, each.lane, each.current_offset, each.lag, each.client_id)
        for each in found
    ]


# -- the output


def test_the_lag_of_a_partition_in_lanes_is_reported_once_by_its_slowest_lane() -> None:
    claims = {
        (lane_topic("orders", lane, 2), 0): claim(f"m{lane}", offset) for lane, offset in enumerate((30, 45))
    }
    assert told(claims, {("orders", 0): 50}) == [
        ("orders", 0, "all-of-2", 30, 20, None),
        ("orders", 0, "0-of-2", 30, None, "m0"),
        ("orders", 0, "1-of-2", 45, None, "m1"),
    ]


def test_an_offset_of_a_topic_that_was_deleted_is_none_and_all_of_the_new_one_is_lag() -> None:
    old, new = (msgspec.structs.replace(claim("m", 45), topic_mark=mark) for mark in (6, 7))
    assert told({("orders", 0): old}, {("orders", 0): 50}) == [("orders", 0, None, None, 47, "m")]
    assert told({("orders", 0): new}, {("orders", 0): 50}) == [("orders", 0, None, 45, 5, "m")]
    lanes = {(lane_topic("orders", lane, 2), 0): each for lane, each in enumerate((old, new))}
    assert told(lanes, {("orders", 0): 50}) == [
        ("orders", 0, "all-of-2", None, 47, None),
        ("orders", 0, "0-of-2", None, None, "m"),
        ("orders", 0, "1-of-2", 45, None, "m"),
    ]


def test_a_partition_has_no_offset_while_a_lane_of_it_has_no_frame() -> None:
    claims = {(lane_topic("orders", 1, 2), 0): claim("m1", 45)}
    assert told(claims, {("orders", 0): 50})[0] == ("orders", 0, "all-of-2", None, None, None)


def test_claims_of_before_a_change_of_lanes_have_no_lag() -> None:
    claims = {("orders", 0): claim("old", 10, beat_s=None)}
    claims |= {(lane_topic("orders", lane, 2), 0): claim("new", 40) for lane in range(2)}
    assert [each[2:5] for each in told(claims, {("orders", 0): 50})] == [
        (None, 10, None),
        ("all-of-2", 40, 10),
        ("0-of-2", 40, None),
        ("1-of-2", 40, None),
    ]


# -- on a broker


@pytest.fixture
def desk(broker: SessionBroker, fresh_topic: FreshTopic) -> Iterator[GroupDesk]:
    with closing(GroupDesk(broker, fresh_topic)) as made:
        yield made


def book(desk: GroupDesk, topic: str, group: str = "shop") -> list[int]:
    reader = Consumer(desk.broker.client_config(**{"group.id": group}))
    try:
        return [
            each.offset
            for each in reader.committed([TopicPartition(topic, at) for at in range(2)], timeout=DEADLINE_S)
        ]
    finally:
        reader.close()


def test_a_reset_moves_every_lane_also_one_that_was_never_claimed(desk: GroupDesk) -> None:
    """A lane left out would begin at its offset committed to Kafka, and read again what the others were sent
    past.
    """
    topic = desk.topic(partitions=2)
    desk.hold("m0/i", lane_topic(topic, 0, LANES), {0: 30, 1: 7})
    desk.hold("m2/i", lane_topic(topic, 2, LANES), {0: 45})
    obey = desk.obeying(
        ("m0/i", lane_topic(topic, 0, LANES), {0: 31, 1: 7}), ("m2/i", lane_topic(topic, 2, LANES), {0: 45})
    )
    with desk.admin() as admin:
        moves = admin.reset_offsets(admin.plan_reset("shop", Aim(Where.LATEST)), tell=obey)
    everything = {(name, partition) for name in lane_topics(topic, LANES) for partition in (0, 1)}
    assert {(move.topic, move.partition) for move in moves} == everything
    assert desk.offsets() == dict.fromkeys(everything, 50)
    assert book(desk, topic) == [50, 50]


def test_no_lane_moves_when_one_of_them_is_not_given_back(desk: GroupDesk) -> None:
    topic = desk.topic(partitions=1)
    for lane in range(LANES):
        desk.hold(f"m{lane}/i", lane_topic(topic, lane, LANES), {0: 10 + lane})
    stubborn = lane_topic(topic, 3, LANES)

    clock = EndingClock()

    def tell(progress: ResetProgress) -> None:
        desk.put(Heartbeat(desk.now_s, "i", "m3", "shop", stubborn, 0, 13))
        clock.over = progress.waiting_for == ("m3-i",)

    obey = desk.obeying(
        *((f"m{lane}/i", lane_topic(topic, lane, LANES), {0: 20 + lane}) for lane in range(3)), then=tell
    )
    with desk.admin(clock=clock) as admin:
        plan = admin.plan_reset("shop", Aim(Where.EARLIEST))
        with pytest.raises(
            GroupError, match="m3-i still hold 1 partitions; every partition keeps its offset"
        ):
            admin.reset_offsets(plan, deadline_s=DEADLINE_S, tell=obey)
    offsets = {key.topic: row.current_offset for key, row in desk.claims().items()}
    assert offsets == {lane_topic(topic, lane, LANES): 20 + lane if lane < 3 else 13 for lane in range(LANES)}
    assert desk.decisions() == []


@scenario
async def test_live_members_begin_again_in_every_lane_where_a_reset_says(
    broker: SessionBroker, fresh_topic: FreshTopic
) -> None:
    """Members obey the pause, no member works while the reset does, and each lane hands out its messages
    again from there.
    """
    records, interval_s = 80, PATIENT_S
    with closing(Ground(broker.config, fresh_topic, coordination=2)) as ground:
        for number in range(records):
            ground.producer.produce(ground.topic, key=b"key-%d" % (number % 16), value=b"x", partition=0)
        assert ground.producer.flush(DEADLINE_S) == 0
        resets = f"{ground.coordination}-resets"
        seen: list[tuple[int | None, int]] = []

        async def work(consumer: ClaimConsumer) -> None:
            async for message in consumer:
                seen.append((message.lane, message.offset))
                message.commit()

        def reset() -> ResetStep:
            steps: list[ResetStep] = []
            settings = replace(ground.settings, claim_interval_s=interval_s)
            with GroupAdmin(settings, resets_topic=resets) as admin:
                admin.reset_offsets(
                    admin.plan_reset(ground.group, Aim(Where.OFFSET, 40)),
                    deadline_s=DEADLINE_S,
                    tell=lambda told: steps.append(told.step),
                )
            return steps[-1]

        named = {"lanes": LANES, "greedy": True, "heartbeat_interval_s": interval_s, "resets_topic": resets}
        async with ground.consumer("first", **named) as first, ground.consumer("second", **named) as second:
            tasks = [asyncio.create_task(work(each)) for each in (first, second)]
            await until("every message once", lambda: len(seen) == records)
            once = sorted(seen)
            await first.flush()
            await second.flush()
            assert await asyncio.to_thread(reset) is ResetStep.RESUMED
            await until("what comes again", lambda: len(seen) >= records + 40)
            for task in tasks:
                task.cancel()
        assert sorted(seen[records:]) == [each for each in once if each[1] >= 40]
        broker.delete_topics([resets])
