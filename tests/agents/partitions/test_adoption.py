"""An assignment that is overtaken by the next one: nothing of it may reach the broker once the next
generation is joined.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.agents.metrics import Metrics
from holdfast.agents.partitions.batches.runner import Owned, Runner
from holdfast.agents.partitions.manager import PartitionManager
from holdfast.agents.partitions.ownership.losses import LIMIT_LOSSES
from holdfast.agents.partitions.types import AssignmentPlan
from holdfast.clock import system_clock
from holdfast.config import Settings
from holdfast.errors import FencedError
from holdfast.tables.restore import RestoreInterrupted
from tests.support.patience import DEADLINE_S

NOTHING: frozenset[tuple[str, int]] = frozenset()


class Alone:
    """No group at all: nothing here asks for one."""

    def __init__(self) -> None:
        self.left: list[BaseException] = []

    async def leave(self, error: BaseException) -> None:
        self.left.append(error)

    async def rejoin(self) -> None: ...

    def discard(self, message: object) -> None: ...

    async def committed_notes(self, places: Collection[tuple[str, int]]) -> dict[tuple[str, int], str]:
        return {}

    def awaited(self) -> list[str]:
        return []

    def who_folds(self, changelog: str, partition: int) -> str | None:
        return None

    def who_owns(self, table: str, partition: int) -> str | None:
        return None


class SlowManager(PartitionManager):
    """A manager whose adoption lasts until `may_end` is set, as a fence does on a slow broker."""

    def __init__(self, folder: Path) -> None:
        settings = Settings(data_dir=folder, kafka={"bootstrap.servers": "127.0.0.1:1"})
        self.alone = Alone()
        super().__init__(settings, {}, Metrics(settings.app), self.alone)
        self.adoption._adopt = self._slowly  # type: ignore[method-assign]
        self.began, self.may_end = asyncio.Event(), asyncio.Event()
        self.adopted: list[int] = []

    async def _slowly(self, plan: AssignmentPlan) -> None:
        self.began.set()
        await self.may_end.wait()
        self.adopted.append(plan.generation)


def plan_of(manager: PartitionManager, generation: int) -> AssignmentPlan:
    return AssignmentPlan(manager.epoch, generation, NOTHING, NOTHING)


def test_the_next_generation_is_joined_only_when_the_interrupted_adoption_has_ended(tmp_path: Path) -> None:
    async def rebalance_while_adopting() -> None:
        manager = SlowManager(tmp_path)
        first = asyncio.create_task(manager.adoption.adopt(plan_of(manager, 1)))
        await manager.began.wait()
        manager.revoke()
        joining = asyncio.create_task(manager.adoption.settled())
        await asyncio.sleep(0)
        assert not joining.done()
        assert manager.adopted == []
        manager.may_end.set()
        await asyncio.wait_for(joining, DEADLINE_S)
        assert manager.adopted == [1]
        await first

    asyncio.run(rebalance_while_adopting())


def test_an_assignment_revoked_before_its_adoption_began_is_never_adopted(tmp_path: Path) -> None:
    async def revoke_first() -> None:
        manager = SlowManager(tmp_path)
        manager.may_end.set()
        plan = plan_of(manager, 1)
        manager.revoke()
        with pytest.raises(RestoreInterrupted):
            await manager.adoption.adopt(plan)
        await manager.adoption.adopt(plan_of(manager, 2))
        assert manager.adopted == [2]

    asyncio.run(revoke_first())


def test_joining_waits_for_nothing_when_no_adoption_is_under_way(tmp_path: Path) -> None:
    async def nothing_to_wait_for() -> None:
        await asyncio.wait_for(SlowManager(tmp_path).adoption.settled(), DEADLINE_S)

    asyncio.run(nothing_to_wait_for())


@pytest.mark.parametrize("confirmed", [True, False])
def test_who_loses_a_partition_again_and_again_leaves_unless_the_group_has_given_it_away(
    tmp_path: Path, confirmed: bool
) -> None:
    """A worker that is frozen again and again loses its partitions each time, and no other process uses its
    transactional ids.
    """

    async def run() -> None:
        manager = SlowManager(tmp_path)
        part: Any = SimpleNamespace(processor=SimpleNamespace(name="counts"), partition=1, lose=lambda: None)
        manager.holdings.owned["counts", 1] = Owned(part, cast(Runner, None))
        if confirmed:
            manager.membership.synced(system_clock.monotonic_s())
            manager.membership.adopt(manager.membership.term)
        for _ in range(LIMIT_LOSSES + 1):
            manager.lost(part, manager.epoch - 1, FencedError("counts.1: there is a newer owner"))
        await asyncio.sleep(0)
        causes = [str(error) for error in manager.alone.left]
        assert ["does another application use this transactional id?" in each for each in causes] == [
            True
        ] * confirmed

    asyncio.run(run())
