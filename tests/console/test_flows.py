"""The flow along the arrows of the topology: folded by source, read of global tables, emitted by topic."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

from holdfast import Emit, FoldWith, Global, Json, Processor, Source
from holdfast.clock import ManualClock
from holdfast.config import Settings
from holdfast.console.desk import ConsoleDesk
from holdfast.console.pages.topology import TOPOLOGY, Flow
from holdfast.console.watching.watch import Watch
from holdfast.dev.memory_tables import MemoryReplica, MemoryWorker
from holdfast.dev.ports import free_ports
from tests.agents.web.test_server import scenario


def keep(rows: Any, event: Any, at_ms: int) -> list[Emit]:
    return []


def keep_rate(rows: Any, event: Any, at_ms: int, key: str) -> None:
    """These rows are put by the test."""


RATES: Global[float] = Global("rates", Source("rates", Json(float)), FoldWith(keep_rate, ("key",)), row=float)
JOINED: Processor[Any, int] = Processor(
    name="joined",
    on={Source("orders", Json(int)): keep, Source("paid", Json(int)): keep},
    row=int,
    emits=("shipped", "late"),
    reads=(RATES,),
)


class TwoSources(MemoryReplica):
    """A partition whose sources are at different offsets."""

    at: dict[str, int]
    ends: dict[str, int]

    @property
    def offsets(self) -> dict[str, int]:
        return self.at

    @property
    def source_ends(self) -> dict[str, int]:
        return self.ends


def replica(worker: MemoryWorker, partition: int, **at: tuple[int, int]) -> None:
    """Put *partition* at the given offsets of each source, with their ends."""
    held = worker.replicas["joined", partition] = TwoSources(JOINED, partition)
    held.at, held.ends = (
        {name: each[0] for name, each in at.items()},
        {name: each[1] for name, each in at.items()},
    )
    held.source_end = sum(held.ends.values())


def emitted(worker: MemoryWorker, partition: int, **to: int) -> None:
    worker.metrics.partition("joined", partition).committed(
        records=1, rows=0, emitted=Counter(to), quarantined=0, seconds=0.0
    )


async def flows(watch: Watch) -> dict[tuple[str, str], Flow]:
    desk = cast(ConsoleDesk, SimpleNamespace(watch=watch, processors=(JOINED,)))
    found = (await TOPOLOGY.build(desk, {}))["flows"]
    return {(each.edge.kind, each.edge.topic): each for each in found}


@scenario
async def test_every_arrow_shows_its_flow_and_the_records_waiting_before_its_head() -> None:
    clock = ManualClock()
    settings = Settings(app="shop", web_port=free_ports(1)[0])
    async with MemoryWorker(settings, [JOINED], partitions=2) as worker:
        replica(worker, 0, orders=(9, 10), paid=(4, 8))
        replica(worker, 1, orders=(0, 6), paid=(0, 1))
        worker.globals["rates"].put("usd", 0.9, offset=7)
        worker.globals["rates"].lags = {0: 3, 1: 1}
        emitted(worker, 0, shipped=5)
        async with Watch(settings, [JOINED], worker.directory(), None, clock=clock) as watch:
            before = await flows(watch)
            assert {each.rate for each in before.values()} == {None}
            assert {edge: each.behind for edge, each in before.items()} == {
                ("folds", "orders"): 5,
                ("folds", "paid"): 3,
                ("reads", "rates"): 4,
                ("emits", "shipped"): None,
                ("emits", "late"): None,
            }
            clock.advance_ms(2_000)
            replica(worker, 0, orders=(19, 20), paid=(4, 8))
            replica(worker, 1, orders=(4, 6), paid=(0, 1))
            worker.globals["rates"].put("usd", 0.8, offset=27)
            emitted(worker, 0, shipped=6, late=1)
            emitted(worker, 1, shipped=2)
            await watch.look()
            assert {edge: each.rate for edge, each in (await flows(watch)).items()} == {
                ("folds", "orders"): 7.0,
                ("folds", "paid"): 0.0,
                ("reads", "rates"): 10.0,
                ("emits", "shipped"): 4.0,
                ("emits", "late"): 0.5,
            }


@scenario
async def test_a_flow_that_an_older_worker_does_not_report_is_unknown() -> None:
    """A worker that has just become the owner counts what it emits from nothing: that is no rate below
    zero.
    """
    clock, settings = ManualClock(), Settings(app="shop", web_port=free_ports(1)[0])
    async with MemoryWorker(settings, [JOINED], partitions=1) as worker:
        replica(worker, 0, orders=(9, 10), paid=(4, -1))
        emitted(worker, 0, shipped=500)
        async with Watch(settings, [JOINED], worker.directory(), None, clock=clock) as watch:
            found = await flows(watch)
            assert (found["folds", "orders"].behind, found["folds", "paid"].behind) == (0, None)
            assert found["reads", "rates"].behind is None
            clock.advance_ms(1_000)
            worker.metrics.partition("joined", 0).emitted_to.clear()
            await watch.look()
            assert (await flows(watch))["emits", "shipped"].rate == 0.0
