"""A stranger's open transaction on a topic in which members speak to each other: it hides nothing of what
they say.
"""

from __future__ import annotations

import asyncio
from contextlib import closing

import pytest

from holdfast.dev.fixtures import FreshTopic, SessionBroker
from tests.clients.claims.claiming import scenario, until
from tests.clients.claims.test_balanced_consumer import PARTITIONS, BalancedGround, held
from tests.clients.groups.test_admin_kills import resets_of
from tests.clients.ranges.test_ranges import Field, work
from tests.support.group_desk import GroupDesk
from tests.support.strangers import open_transaction


@pytest.mark.long
@scenario
async def test_members_of_a_balanced_group_hear_each_other(
    broker: SessionBroker, fresh_topic: FreshTopic
) -> None:
    with (
        closing(BalancedGround(broker.config, fresh_topic)) as ground,
        open_transaction(ground.config, ground.groups, 2),
    ):
        async with ground.member("a") as member:
            await until("all of it", lambda: len(held(member)) == PARTITIONS)


@scenario
async def test_members_hear_each_other_s_claims(broker: SessionBroker, fresh_topic: FreshTopic) -> None:
    with (
        closing(BalancedGround(broker.config, fresh_topic)) as ground,
        open_transaction(ground.config, ground.coordination, 1),
    ):
        async with ground.consumer("a", greedy=True) as member:
            await until("all of it", lambda: member.load == PARTITIONS)


@scenario
async def test_blocks_are_shared_out(broker: SessionBroker, fresh_topic: FreshTopic) -> None:
    with closing(Field(broker, fresh_topic)) as field, open_transaction(field.config, field.ranges, 2):
        field.fill(30)
        async with field.consumer("a") as member:
            seen: list[tuple[int, int]] = []
            working = asyncio.create_task(work(member, seen))
            await until("every message", lambda: len(seen) == 30)
            working.cancel()


def test_a_reset_is_decided_and_what_holds_it_hears_of_it(
    broker: SessionBroker, fresh_topic: FreshTopic
) -> None:
    with closing(GroupDesk(broker, fresh_topic)) as desk:
        resets = resets_of(desk)
        first, second = next(resets), next(resets)
        first.run()
        with open_transaction(broker.config, desk.resets, 1):
            second.run()
            assert second.check() == second.new
