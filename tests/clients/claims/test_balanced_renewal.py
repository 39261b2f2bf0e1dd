"""Partitions that stay with their owner while others come and go: not one of their messages waits for
anybody (G2).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack, closing
from typing import Any

import pytest

from holdfast.clients.claims.consumer import ClaimedMessage
from holdfast.core.claims.frames import ReleasingPartition
from holdfast.core.groups.balancer import Balancer
from holdfast.core.kafka.topic_partition import TopicPartition
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from tests.clients.claims.claiming import PATIENT_S, drain, scenario, until
from tests.clients.claims.test_balanced_consumer import (
    PARTITIONS,
    BalancedGround,
    cancelled,
    settled,
    writing,
)

Taken = dict[str, list[tuple[float, ClaimedMessage]]]


@pytest.fixture
def ground(broker: SessionBroker, fresh_topic: FreshTopic) -> Iterator[BalancedGround]:
    with closing(BalancedGround(broker.config, fresh_topic)) as found:
        yield found


def interrupted(taken: Taken, staying: Iterable[tuple[str, int]]) -> dict[int, str]:
    """Return which of the partitions that stayed with their owner were interrupted, and why.

    A pause is a stop and a start, however short: it shows by another lease, of another epoch when the claim
    was given up for it, by a message left out, or out of turn. So no clock decides, and a machine that stalls
    changes nothing.
    """
    found: dict[int, str] = {}
    for owner, partition in staying:
        messages = [message for _, message in taken[owner] if message.partition == partition]
        offsets = [message.offset for message in messages]
        if not offsets:
            found[partition] = "nothing came"
        elif len({message.epoch for message in messages}) > 1:
            found[partition] = "claimed again"
        elif len({id(message._lease) for message in messages}) > 1:
            found[partition] = "started again"
        elif offsets != list(range(offsets[0], offsets[0] + len(offsets))):
            found[partition] = "not one after the other"
    return found


async def a_member_comes_and_goes(ground: BalancedGround) -> tuple[Taken, list[tuple[str, int]], list[int]]:
    """Let a fourth member join three and leave again, with messages on every partition all the while.

    Return the messages taken, the partitions that stayed with their owner (as readers of the log see it
    before, between and after), and the partitions released in between, once for each release.
    """
    taken: Taken = {name: [] for name in "abcd"}
    members = {name: ground.member(name, heartbeat_interval_s=PATIENT_S) for name in "abcd"}
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(writing(ground))]
    async with AsyncExitStack() as stack:
        try:
            for name in "abc":
                await stack.enter_async_context(members[name])
                tasks.append(asyncio.create_task(drain(members[name], taken[name])))
            await until("three to settle", lambda: settled([members[name] for name in "abc"], PARTITIONS))
            owners, releases = [ground.owners(PATIENT_S)], len(ground.frames(ReleasingPartition))
            await until(
                "messages of all partitions",
                lambda: len({m.partition for each in taken.values() for _, m in each}) == PARTITIONS,
            )
            for each in taken.values():
                each.clear()  # of partitions that moved while the three settled
            await members["d"].__aenter__()
            tasks.append(asyncio.create_task(drain(members["d"], taken["d"])))
            await until("four to settle", lambda: settled(list(members.values()), PARTITIONS))
            owners.append(ground.owners(PATIENT_S))
            await members["d"].terminate(release=True)
            await until(
                "three to settle again", lambda: settled([members[name] for name in "abc"], PARTITIONS)
            )
            owners.append(ground.owners(PATIENT_S))
            released = [frame.partition for frame in ground.frames(ReleasingPartition)[releases:]]
            marks = {name: len(taken[name]) for name in "abc"}
            await until(
                "a message of every partition after all that",
                lambda: (
                    len({m.partition for name in "abc" for _, m in taken[name][marks[name] :]}) == PARTITIONS
                ),
            )
        finally:
            await cancelled(*tasks)
    staying = [
        (owners[0][at][0], at) for at in range(PARTITIONS) if len({each[at][0] for each in owners}) == 1
    ]
    return taken, staying, released


@scenario
async def test_who_joins_and_leaves_interrupts_nothing_on_partitions_that_stay(
    ground: BalancedGround,
) -> None:
    """G2: of twelve partitions three move to the newcomer, and back when it leaves; the nine others never
    stop.
    """
    taken, staying, released = await a_member_comes_and_goes(ground)
    assert len(staying) == PARTITIONS - 3
    assert not interrupted(taken, staying)
    assert not {partition for _, partition in staying}.intersection(released), (
        "what stays is not released, not for a moment"
    )


@scenario
async def test_the_check_sees_a_group_that_stops_everything_for_each_change(
    ground: BalancedGround, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: members that give everything up while the group changes, as eager groups of Kafka do."""
    aim = Balancer.aim

    def eager(self: Balancer, now_s: float) -> frozenset[TopicPartition]:
        target = aim(self, now_s)
        return frozenset() if now_s < self._quiet_at_s else target

    monkeypatch.setattr(Balancer, "aim", eager)
    taken, staying, _ = await a_member_comes_and_goes(ground)
    found = interrupted(taken, staying)
    assert set(found.values()) & {"claimed again", "started again"}, (
        "what seems to stay was given up and claimed again"
    )
