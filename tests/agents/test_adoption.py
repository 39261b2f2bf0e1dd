"""An assignment that is overtaken by the next one: nothing of it may reach the broker once the next generation is joined."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.agents.keeper import Keeper, Plan
from holdfast.agents.metrics import Metrics
from holdfast.config import Settings
from holdfast.tables.restore import Interrupted

NOTHING: frozenset[tuple[str, int]] = frozenset()


class SlowKeeper(Keeper):
    """A keeper whose adoption lasts until it is told to end, as a fence does on a slow broker."""

    def __init__(self, folder: Path) -> None:
        settings = Settings(data_dir=folder, kafka={"bootstrap.servers": "127.0.0.1:1"})
        super().__init__(settings, {}, Metrics(settings.app))
        self.began, self.may_end = asyncio.Event(), asyncio.Event()
        self.adopted: list[int] = []

    async def _adopt(self, plan: Plan) -> None:
        self.began.set()
        await self.may_end.wait()
        self.adopted.append(plan.generation)


def plan_of(keeper: Keeper, generation: int) -> Plan:
    return Plan(keeper.epoch, generation, NOTHING, NOTHING)


def test_the_next_generation_is_joined_only_when_the_interrupted_adoption_has_ended(tmp_path: Path) -> None:
    async def rebalance_while_adopting() -> None:
        keeper = SlowKeeper(tmp_path)
        first = asyncio.create_task(keeper.adopt(plan_of(keeper, 1)))
        await keeper.began.wait()
        keeper.revoke()
        joining = asyncio.create_task(keeper.settled())
        await asyncio.sleep(0)
        assert not joining.done()
        assert keeper.adopted == []
        keeper.may_end.set()
        await asyncio.wait_for(joining, 10)
        assert keeper.adopted == [1]
        await first

    asyncio.run(rebalance_while_adopting())


def test_an_assignment_revoked_before_its_adoption_began_is_never_adopted(tmp_path: Path) -> None:
    async def revoke_first() -> None:
        keeper = SlowKeeper(tmp_path)
        keeper.may_end.set()
        plan = plan_of(keeper, 1)
        keeper.revoke()
        with pytest.raises(Interrupted):
            await keeper.adopt(plan)
        await keeper.adopt(plan_of(keeper, 2))
        assert keeper.adopted == [2]

    asyncio.run(revoke_first())


def test_joining_waits_for_nothing_when_no_adoption_is_under_way(tmp_path: Path) -> None:
    async def nothing_to_wait_for() -> None:
        await asyncio.wait_for(SlowKeeper(tmp_path).settled(), 1)

    asyncio.run(nothing_to_wait_for())
