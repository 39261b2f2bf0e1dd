"""Carrying out an assignment: the fate of partitions, and the order. No broker, no store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.agents.metrics import Metrics
from holdfast.agents.partitions.gate import FoldGate
from holdfast.agents.partitions.held.holdings import Holdings
from holdfast.agents.partitions.ownership import adoption as module
from holdfast.agents.partitions.ownership.adoption import Adoption
from holdfast.agents.partitions.types import AssignmentPlan, Held
from holdfast.clock import ManualClock
from holdfast.config import Settings
from holdfast.errors import FencedError
from holdfast.tables.restore import RestoreInterrupted
from tests.support.patience import SCENARIO_S


class Part:
    """A partition that records the calls to it."""

    fenced_in, restored_records, is_to_begin = True, 0, False
    places: tuple[tuple[str, int], ...] = ()

    def __init__(self, worker: Worker, held: Held) -> None:
        self.processor, self.partition = SimpleNamespace(name=held[0]), held[1]
        self.worker, self.serving = worker, False
        self.owner = self.replay = self.waiters = self

    def note(self, step: str) -> None:
        self.worker.steps.append((step, self.partition))

    async def fence(self, timeout_s: float, *, by_common_id: bool) -> None:
        await asyncio.sleep(0)
        if self.partition in self.worker.refused:
            raise FencedError(f"partition {self.partition} has a newer owner")
        for _ in range(20):
            await asyncio.sleep(0)
        self.note("fence")

    async def close_writer(self) -> None:
        self.note("close writer")

    def activate(self) -> None:
        self.note("activate")

    def touch(self, at_ms: int) -> None: ...

    def stand_by(self) -> None:
        self.note("stand by")

    def mend(self) -> None: ...

    def learn_recovery(self) -> None: ...

    def close(self) -> None:
        assert self.worker.holdings.lookup(self.processor.name, self.partition) is None, (
            "it can still be asked"
        )
        self.note("close")


class Worker:
    """An adoption amid parts that note their calls in `steps`; `refused` are partitions that cannot be
    fenced.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[tuple[str, int]] = []
        self.refused: set[int] = set()
        self.followed: list[int] = []
        self.during_restore: Callable[[], None] = lambda: None
        self.gate, self.holdings = FoldGate(), Holdings({})
        self.terms: list[int] = []
        monkeypatch.setattr(module, "restore", self._restore)
        monkeypatch.setattr(module, "read_choices", self._read_choices)
        monkeypatch.setattr(module, "learn_handovers", self._learn_handovers)
        monkeypatch.setattr(module, "learn_sources", lambda *_: None)
        monkeypatch.setattr(module, "recover", self._no_recovery)
        monkeypatch.setattr(module, "require_whole_vector", lambda *_: None)
        follower = SimpleNamespace(follow=self._follow, close=lambda: None, failure=None)
        monkeypatch.setattr(module, "StandbyFollower", lambda *_: follower)
        held: Any = SimpleNamespace(adopt=self.terms.append)
        notes: Any = SimpleNamespace(read=self._no_notes)
        noting: Any = SimpleNamespace(refresh=self._refresh)
        readiness: Any = SimpleNamespace(why="")
        self.adoption = Adoption(
            Settings(app="shop"),
            self,
            self.thread,
            gate=self.gate,
            holdings=self.holdings,
            membership=held,
            readiness=readiness,
            skipping=noting,
            notes=notes,
            metrics=Metrics("shop"),
            clock=ManualClock(),
        )

    async def _no_notes(self, places: Any) -> dict[Any, Any]:
        return {}

    async def _no_recovery(self, *_: Any) -> int:
        return 0

    def thread(self, call: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        async def run() -> Any:
            return call(*args)

        return asyncio.ensure_future(run())

    def open_partition(self, held: Held) -> Any:
        self.steps.append(("open", held[1]))
        return Part(self, held)

    def is_folded_earlier(self, part: Any) -> bool:
        return False

    def runner_of(self, part: Any) -> Any:
        return SimpleNamespace(job=None)

    def _learn_handovers(self, settings: Settings, fresh: Iterable[Part]) -> None:
        for part in fresh:
            place = part.partition
            assert ("restore", place) in self.steps, "a position is behind the fence, and known, then"

    def _restore(self, fresh: Iterable[Part], *_: Any) -> int:
        for part in fresh:
            assert not part.serving
            part.note("restore")
        self.during_restore()
        return 0

    def _read_choices(self, fresh: Iterable[Part], *_: Any) -> None:
        for part in fresh:
            part.note("choices")

    async def _refresh(self) -> None:
        self.steps.append(("skips", -1))

    def _follow(self, parts: Iterable[Part]) -> None:
        self.followed = [part.partition for part in parts]

    def taken(self) -> list[tuple[str, int]]:
        """Return the steps taken since the last call."""
        steps, self.steps = self.steps, []
        return steps

    async def adopt(self, generation: int, active: Iterable[int] = (), standby: Iterable[int] = ()) -> None:
        owned, copied = (frozenset(("counts", number) for number in numbers) for numbers in (active, standby))
        await self.adoption.adopt(AssignmentPlan(self.gate.epoch, generation, owned, copied, term=generation))

    def revoke(self) -> None:
        self.gate.revoked()
        self.adoption.interrupt()


@pytest.fixture
def worker(
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[Callable[[Worker], Coroutine[Any, Any, None]]], None]:
    def run(scene: Callable[[Worker], Coroutine[Any, Any, None]]) -> None:
        async def within() -> None:
            await asyncio.wait_for(scene(Worker(monkeypatch)), SCENARIO_S)

        asyncio.run(within())

    return run


Runs = Callable[[Callable[[Worker], Coroutine[Any, Any, None]]], None]


def test_all_are_fenced_before_any_is_restored_and_serve_when_choices_and_skips_are_read(
    worker: Runs,
) -> None:
    async def run(it: Worker) -> None:
        await it.adopt(1, active=(0, 1))
        assert it.taken() == [
            *(("open", 0), ("open", 1)),
            *(("fence", 0), ("fence", 1)),
            *(("restore", 0), ("restore", 1)),
            *(("choices", 0), ("choices", 1)),
            ("skips", -1),
            *(("activate", 0), ("activate", 1)),
        ]
        assert sorted(it.holdings.owned) == [("counts", 0), ("counts", 1)]
        assert all(owned.part.serving and owned.generation == 1 for owned in it.holdings.owned.values())
        assert (it.adoption.generation, it.terms) == (1, [1])

    worker(run)


def test_a_partition_owned_in_the_generation_before_stays_open(worker: Runs) -> None:
    async def run(it: Worker) -> None:
        await it.adopt(1, active=(0,))
        runner = it.holdings.owned["counts", 0].runner
        it.taken()
        it.revoke()
        await it.adopt(2, active=(0,))
        assert it.taken() == [("skips", -1)]
        assert it.holdings.owned["counts", 0].runner is runner
        assert it.holdings.owned["counts", 0].generation == 2

    worker(run)


@pytest.mark.parametrize(("generation", "fenced_in"), [(3, True), (2, False)])
def test_after_generations_without_this_worker_or_a_lost_writer_all_is_fenced_and_restored_again(
    worker: Runs, generation: int, fenced_in: bool
) -> None:
    async def run(it: Worker) -> None:
        await it.adopt(1, active=(0,))
        it.holdings.owned["counts", 0].part.owner.fenced_in = fenced_in  # type: ignore[misc]
        it.taken()
        it.revoke()
        await it.adopt(generation, active=(0,))
        steps = [step for step, _ in it.taken()]
        assert steps == ["close writer", "stand by", "fence", "restore", "choices", "skips", "activate"]

    worker(run)


def test_a_standby_is_followed_and_one_that_is_taken_over_is_not_opened_again(worker: Runs) -> None:
    async def run(it: Worker) -> None:
        await it.adopt(1, active=(0,), standby=(1,))
        assert (it.followed, it.holdings.standby["counts", 1].serving) == ([1], True)
        it.taken()
        it.revoke()
        await it.adopt(2, active=(1,), standby=(0,))
        assert {step for step, _ in it.taken()} == {
            *("close writer", "stand by", "fence", "restore", "choices", "skips", "activate")
        }
        assert (it.followed, list(it.holdings.owned)) == ([0], [("counts", 1)])
        assert it.holdings.standby["counts", 0].serving

    worker(run)


def test_a_partition_assigned_to_another_worker_is_closed_when_it_can_no_longer_be_queried(
    worker: Runs,
) -> None:
    async def run(it: Worker) -> None:
        await it.adopt(1, active=(0,), standby=(1,))
        it.taken()
        it.revoke()
        await it.adopt(2)
        assert [number for step, number in it.taken() if step == "close"] == [1, 0]
        assert (it.holdings.owned, it.holdings.standby, it.holdings.opening) == ({}, {}, {})

    worker(run)


def test_an_interrupted_restore_activates_nothing_and_the_next_uses_the_stores_that_it_opened(
    worker: Runs,
) -> None:
    async def run(it: Worker) -> None:
        it.during_restore = it.revoke
        with pytest.raises(RestoreInterrupted):
            await it.adopt(1, active=(0,))
        assert [step for step, _ in it.taken()] == ["open", "fence", "restore"]
        assert (it.holdings.owned, list(it.holdings.opening)) == ({}, [("counts", 0)])
        assert not it.holdings.opening["counts", 0].serving
        it.during_restore = lambda: None
        await it.adopt(2, active=(0,))
        assert "open" not in [step for step, _ in it.taken()]
        assert (list(it.holdings.owned), it.holdings.opening) == ([("counts", 0)], {})

    worker(run)


def test_a_fence_that_is_refused_is_raised_when_the_others_have_ended(worker: Runs) -> None:
    async def run(it: Worker) -> None:
        it.refused = {0}
        with pytest.raises(FencedError):
            await it.adopt(1, active=(0, 1))
        assert it.taken() == [("open", 0), ("open", 1), ("fence", 1)]
        assert it.holdings.owned == {}

    worker(run)
