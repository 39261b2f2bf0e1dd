"""Balanced groups on a real broker: everybody holds its part, and what stays never pauses."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import closing, suppress
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic  # type: ignore[attr-defined]

from holdfast.clients.claims.balanced import GroupParticipant
from holdfast.clients.claims.blocking import BlockingClaimConsumer
from holdfast.clients.claims.consumer import ClaimConsumer
from holdfast.core.claims.claim_keys import parse_claim_key
from holdfast.core.claims.claim_rows import Claim
from holdfast.core.claims.frames import ReleasingPartition
from holdfast.core.groups.codes import GroupCode
from holdfast.core.groups.membership import Group, seen_key
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from holdfast.errors import ConfigError, MembershipError, TopicError
from tests.clients.claims.claiming import LOG_APPEND, PATIENCE, PATIENT_S, Ground, drain, scenario, until
from tests.support.patience import DEADLINE_S

PARTITIONS = 12


class BalancedGround(Ground):
    def __init__(self, config: Mapping[str, str], create: Callable[..., str]) -> None:
        super().__init__(config, create, partitions=PARTITIONS, coordination=1)
        self.groups = create("groups", partitions=2, config=LOG_APPEND)

    def member(self, client: str, **named: Any) -> ClaimConsumer:
        return self.consumer(client, **{"balanced": True, "groups_topic": self.groups, **named})

    def owners(self, heartbeat_interval_s: float = 3.0) -> dict[int, tuple[str, int]]:
        """Return client and epoch of every live claim, by partition."""
        return {
            parse_claim_key(key).partition: (row.client_id, row.epoch)
            for key, row in self.rows(heartbeat_interval_s=heartbeat_interval_s).items()
            if isinstance(row, Claim) and row.heartbeat_at_s is not None
        }


@pytest.fixture
def ground(broker: SessionBroker, fresh_topic: FreshTopic) -> Iterator[BalancedGround]:
    with closing(BalancedGround(broker.config, fresh_topic)) as found:
        yield found


def participant(consumer: ClaimConsumer) -> GroupParticipant:
    found = consumer._engine.group
    assert isinstance(found, GroupParticipant)
    return found


def group(consumer: ClaimConsumer) -> Group:
    found = participant(consumer).group
    assert found is not None
    return found


def shares(consumer: ClaimConsumer) -> int:
    """Return how many members the consumer knows of."""
    found = participant(consumer).group
    return 0 if found is None else len(found.members)


def held(consumer: ClaimConsumer) -> set[tuple[str, int]]:
    return {(topic, partition) for topic, partition in consumer.claims}


def settled(members: list[ClaimConsumer], partitions: int) -> bool:
    """Return whether all is held once, nearly evenly, as everybody's target says."""
    parts = [held(member) for member in members]
    loads = [len(part) for part in parts]
    return (
        sum(loads) == len(set().union(*parts)) == partitions
        and max(loads) - min(loads) <= 1
        and all(
            participant(member).balancer.target() == part for member, part in zip(members, parts, strict=True)
        )
        and len({group(member).members for member in members}) == 1
    )


async def writing(ground: Ground) -> None:
    """Keep every partition busy."""
    number = 0
    while True:
        await asyncio.to_thread(ground.fill, 1, start=number)
        number += 1
        await asyncio.sleep(0.02)


async def cancelled(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task


@scenario
async def test_three_then_four_then_two_members_settle_and_what_stays_never_pauses(
    ground: BalancedGround,
) -> None:
    """Joining and leaving release no partition that stays: same owner, same epoch, not one frame of release;
    messages keep coming.
    """
    taken: dict[str, list[tuple[float, Any]]] = {name: [] for name in "abcd"}
    members = {name: ground.member(name, heartbeat_interval_s=PATIENT_S) for name in "abcd"}
    tasks: dict[str, asyncio.Task[Any]] = {}

    async def join(name: str) -> None:
        await members[name].__aenter__()
        tasks[name] = asyncio.create_task(drain(members[name], taken[name]))

    writer = asyncio.create_task(writing(ground))
    try:
        await asyncio.gather(*(join(name) for name in "abc"))
        await until("three to settle", lambda: settled([members[name] for name in "abc"], PARTITIONS))
        before, releases = ground.owners(PATIENT_S), len(ground.frames(ReleasingPartition))
        await join("d")
        await until("four to settle", lambda: settled([members[name] for name in "abcd"], PARTITIONS))
        after = ground.owners(PATIENT_S)
        moved = {at for at in before if after[at][0] != before[at][0]}
        assert len(moved) == 3
        assert {after[at][0] for at in moved} == {"d"}
        assert all(after[at] == before[at] for at in before if at not in moved), (
            "an epoch changed: the claim was given up in between"
        )
        assert sorted(frame.partition for frame in ground.frames(ReleasingPartition)[releases:]) == sorted(
            moved
        )

        before = ground.owners(PATIENT_S)
        for name in "ab":
            await members[name].terminate(release=True)
        await until("two to settle", lambda: settled([members[name] for name in "cd"], PARTITIONS))
        after = ground.owners(PATIENT_S)
        assert all(after[at] == before[at] for at in before if before[at][0] in "cd")
        since_s = time.monotonic()
        await until("messages of all partitions", lambda: len(fresh(taken, since_s)) == PARTITIONS)
    finally:
        await cancelled(writer, *tasks.values())
        for name in tasks:
            await members[name].__aexit__(None, None, None)
    numbers = [(message.partition, message.offset) for each in taken.values() for _, message in each]
    assert len(numbers) == len(set(numbers)), "clean hand-overs deliver nothing twice"


def fresh(taken: dict[str, list[tuple[float, Any]]], since_s: float) -> set[int]:
    return {message.partition for each in taken.values() for at_s, message in each if at_s >= since_s}


@scenario
async def test_a_static_member_restarted_within_its_session_finds_its_partitions_waiting(
    ground: BalancedGround,
) -> None:
    """G3 on the broker: the generation is the same before and after, and no other member touched its
    partitions.
    """
    named = {"heartbeat_interval_s": PATIENT_S}
    async with ground.member("b", static_id="s-b", **named) as other:
        async with ground.member("a", static_id="s-a", **named) as first:
            await until("two to settle", lambda: settled([first, other], PARTITIONS))
            mine, generation = held(first), group(first).generation
            await first.terminate(release=True)
        async with ground.member("a", static_id="s-a", **named) as again:
            await until("its return", lambda: held(again) == mine)
            assert group(again).generation == generation
            assert settled([again, other], PARTITIONS)


@pytest.mark.variant
@scenario
async def test_a_killed_member_s_part_goes_to_the_others_and_new_partitions_are_shared(
    broker: SessionBroker, ground: BalancedGround
) -> None:
    async with ground.member("a") as first, ground.member("b") as second:
        child = ground.process("c", balanced=True, groups_topic=ground.groups)
        try:
            await until(
                "three members", lambda: shares(first) == 3 and len(held(first)) == len(held(second)) == 4
            )
        finally:
            child.kill()
        await until("the survivors to settle", lambda: settled([first, second], PARTITIONS))
        admin = AdminClient(dict(broker.config))
        admin.create_partitions([NewPartitions(ground.topic, PARTITIONS + 4)])[ground.topic].result(
            DEADLINE_S
        )
        await until("the new ones", lambda: settled([first, second], PARTITIONS + 4))


@scenario
async def test_a_broker_that_takes_long_to_report_how_many_partitions_there_are_delays_no_heartbeat(
    ground: BalancedGround,
) -> None:
    async with ground.member("a") as member:
        await until("all of it", lambda: len(held(member)) == PARTITIONS)
        announcements, asked, answer = (
            participant(member)._announcements,
            threading.Event(),
            threading.Event(),
        )
        count = announcements.counts

        def slow(*told: Any) -> dict[str, int]:
            asked.set()
            answer.wait(DEADLINE_S)
            return count(*told)

        announcements.counts = slow  # type: ignore[method-assign, assignment]
        await until("a question", asked.is_set)
        balancer = participant(member).balancer
        mine = seen_key(ground.group, balancer.settings.member_id)

        async def hear_again() -> None:
            last = balancer.rows.get(mine)
            # Its row is removed if this process stalled for longer than its session.
            await until("a sign of life", lambda: balancer.rows.get(mine) not in (None, last))

        for _ in range(3):
            await hear_again()
        assert not answer.is_set()
        answer.set()


@scenario
async def test_members_of_a_pattern_work_on_topics_that_appear(ground: BalancedGround) -> None:
    pattern = f"^{ground.topic}(-late)?"
    async with ground.member("a", topics=[pattern]) as first, ground.member("b", topics=[pattern]) as second:
        await until("one topic", lambda: settled([first, second], PARTITIONS))
        admin = AdminClient(dict(ground.config))
        admin.create_topics([NewTopic(f"{ground.topic}-late", 3, 1)])[f"{ground.topic}-late"].result(
            DEADLINE_S
        )
        try:
            await until("both topics", lambda: settled([first, second], PARTITIONS + 3))
        finally:
            admin.delete_topics([f"{ground.topic}-late"])[f"{ground.topic}-late"].result(DEADLINE_S)


async def consumed(member: ClaimConsumer) -> None:
    async with member:
        async for _ in member:
            pass


@scenario
async def test_a_member_that_supports_no_common_assignor_is_reported(ground: BalancedGround) -> None:
    async with ground.member("a", assignors="range") as first:
        await until("the first", lambda: len(held(first)) == PARTITIONS)
        with pytest.raises(MembershipError, match="assignors") as refused:
            await consumed(ground.member("b", assignors=["roundrobin"]))
        assert refused.value.code == GroupCode.INCONSISTENT_GROUP_PROTOCOL
        await until("the first to hold it all", lambda: len(held(first)) == PARTITIONS)


def test_the_blocking_form_balances_too(ground: BalancedGround) -> None:
    ground.fill(1)
    with BlockingClaimConsumer(
        ground.settings,
        topics=[ground.topic],
        group=ground.group,
        client="a",
        heartbeat_interval_s=3.0,
        balanced=True,
        groups_topic=ground.groups,
        **PATIENCE,
    ) as consumer:
        assert len({consumer.get(DEADLINE_S).partition for _ in range(PARTITIONS)}) == PARTITIONS  # type: ignore[union-attr]


@scenario
async def test_a_missing_groups_topic_and_a_pattern_without_topics_are_named(ground: BalancedGround) -> None:
    async def start(**named: Any) -> None:
        async with ground.member("a", **named):
            pass

    starts: list[tuple[Awaitable[None], str]] = [
        (start(groups_topic="nowhere.groups"), "nowhere.groups, does not exist"),
        (start(topics=["^nothing-like-it.*"]), "no topic matches"),
    ]
    for starting, text in starts:
        with pytest.raises(TopicError, match=text):
            await starting


@pytest.mark.parametrize(
    ("named", "text"),
    [
        ({"balanced": True, "interop": True}, "interop"),
        ({"static_id": "s"}, "balanced=True"),
        ({"balanced": True, "topics": ["^a", "b"]}, "stands alone"),
        ({"balanced": True, "topics": ["^("]}, "regular expression"),
        ({"balanced": True, "assignors": "uniform"}, "no assignor"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_anything_is_connected(
    named: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        ClaimConsumer("127.0.0.1:1", group="g", client="c", **{"topics": ["t"], **named})
