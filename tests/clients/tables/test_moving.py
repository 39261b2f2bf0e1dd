"""TableClient while partitions move, restore and hang: the worker that is asked, the time of the next try,
and the error at the deadline.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any

import aiohttp
import msgspec
import pytest

from holdfast.clients.tables import query_router
from holdfast.clients.tables.client import TableClient
from holdfast.clients.tables.directory import FixedDirectory
from holdfast.clients.tables.query_router import QueryRouter, _Setback
from holdfast.clock import system_clock
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.query_wire import WorkerClaims
from holdfast.dev.memory_tables import MemoryWorker
from holdfast.dev.ports import free_ports
from holdfast.errors import (
    BrokerError,
    MovedError,
    NotReadyError,
    OffsetTimeoutError,
)
from tests.clients.tables.tabling import (
    ROUTED,
    TOTALS,
    Hanging,
    Total,
    asked,
    claiming,
    client,
    deadline_after,
    one_worker,
    scenario,
    settings,
)
from tests.support.limits import at_most
from tests.support.patience import DEADLINE_S


class Unfolding(FixedDirectory):
    """A directory whose every refresh takes the next of some steps; None changes nothing."""

    def __init__(self, first: list[WorkerClaims], *steps: Callable[[], list[WorkerClaims] | None]) -> None:
        super().__init__(first)
        self._steps: Iterator[Callable[[], list[WorkerClaims] | None]] = iter(steps)
        self.refreshed = 0

    async def refresh(self, timeout_s: float) -> None:
        self.refreshed += 1
        step = next(self._steps, None)
        claims = None if step is None else step()
        if claims is not None:
            self.announce({claim.url: claim for claim in claims})


# -- partitions that move


@scenario
async def test_a_moved_partition_is_found_with_one_redirect() -> None:
    async with one_worker(active=[]) as old, one_worker() as new:
        new.put(TOTALS, 0, "ada", Total(1), offset=1)
        old.owners["totals", 0] = new.url
        stale = FixedDirectory([msgspec.structs.replace(new.claims(), url=old.url)])
        async with client(directory=stale) as tables:
            assert (await tables.get(TOTALS, "ada")).value == Total(1)
        assert (asked(old, "moved"), asked(new, "ok")) == (1, 1)


@scenario
async def test_workers_that_send_each_other_the_asker_end_in_moved_at_the_deadline() -> None:
    async with one_worker(active=[]) as one, one_worker(active=[]) as other:
        one.owners["totals", 0], other.owners["totals", 0] = other.url, one.url
        directory = Unfolding([msgspec.structs.replace(one.claims(), tables=claiming(0))])
        async with client(directory=directory) as tables:
            with deadline_after(), pytest.raises(MovedError, match=r"totals/0 is served by http"):
                await tables.get(TOTALS, "ada", timeout_s=DEADLINE_S)
        # an attempt may have been given up between the two requests of a round
        assert asked(one) - asked(other) in (-1, 0, 1), "one redirect a round"
        assert min(asked(one), asked(other)) > 1, "and further rounds"
        assert directory.refreshed >= 1


@scenario
async def test_a_query_during_a_rebalance_is_answered_when_the_new_owner_is_ready() -> None:
    async with one_worker() as old, one_worker() as new:
        new.put(TOTALS, 0, "ada", Total(2), offset=9)
        new.replica(TOTALS, 0).serving = False
        del old.replicas["totals", 0], old.owners["totals", 0]

        def new_owner() -> list[WorkerClaims]:
            return [_only(old, 1), new.claims(generation=2)]

        def ready() -> None:
            new.replica(TOTALS, 0).serving = True

        async with client(
            directory=Unfolding([_only(old, 1)], lambda: None, new_owner, lambda: None, ready)
        ) as tables:
            assert (await tables.get(TOTALS, "ada", partition=0)).value == Total(2)
        assert asked(old, "not_ready") == 2
        assert asked(new, "not_ready") >= 1


@scenario
async def test_of_two_claims_the_higher_generation_is_believed() -> None:
    async with one_worker() as zombie, one_worker() as owner:
        zombie.put(TOTALS, 0, "ada", Total(1), offset=1)
        owner.put(TOTALS, 0, "ada", Total(2), offset=2)
        for claims in ([zombie.claims(3), owner.claims(4)], [owner.claims(4), zombie.claims(3)]):
            async with client(directory=FixedDirectory(claims)) as tables:
                assert (await tables.get(TOTALS, "ada")).value == Total(2)
        assert asked(zombie) == 0


def _only(worker: MemoryWorker, generation: int) -> WorkerClaims:
    """Return the claim of a worker on partition 0, whether or not it still holds it."""
    return WorkerClaims(url=worker.url, generation=generation, started_ms=0, at_ms=0, tables=claiming(0))


# -- workers that cannot answer


@scenario
async def test_a_worker_that_restores_for_too_long_is_not_ready_with_the_cause() -> None:
    async with one_worker() as worker, client(worker) as tables:
        worker.replica(TOTALS, 0).serving, worker.cause = False, "restoring totals/0: 10 of 90"
        with deadline_after(), pytest.raises(NotReadyError, match="restoring totals/0: 10 of 90"):
            await tables.get(TOTALS, "ada", timeout_s=DEADLINE_S)
        assert asked(worker) > 1


@scenario
async def test_a_worker_that_is_gone_is_asked_again_until_it_is_back() -> None:
    once = settings()
    claims = MemoryWorker(once, [TOTALS], partitions=1).claims()
    async with client(directory=FixedDirectory([claims])) as tables, AsyncExitStack() as stack:
        with deadline_after(), pytest.raises(NotReadyError, match="cannot be reached"):
            await tables.get(TOTALS, "ada", timeout_s=DEADLINE_S)
        waiting = asyncio.create_task(tables.get(TOTALS, "ada", timeout_s=DEADLINE_S))
        worker = await stack.enter_async_context(MemoryWorker(once, [TOTALS], partitions=1))
        worker.put(TOTALS, 0, "ada", Total(1), offset=1)
        assert (await waiting).value == Total(1)


@scenario
async def test_connections_that_the_worker_has_closed_since_cost_no_answer() -> None:
    once = settings()
    async with client(MemoryWorker(once, [TOTALS], partitions=1)) as tables:
        for count in range(3):
            async with MemoryWorker(once, [TOTALS], partitions=1) as worker:
                worker.put(TOTALS, 0, "ada", Total(count), offset=count)
                assert (await tables.get(TOTALS, "ada")).value == Total(count)


@scenario
async def test_a_worker_that_hangs_costs_the_deadline_and_not_more() -> None:
    async with Hanging() as hanging:
        claims = WorkerClaims(url=hanging.url, generation=1, started_ms=0, at_ms=0, tables=claiming(0))
        async with client(directory=FixedDirectory([claims])) as tables:
            for timeout_s in (0.05, 0.4):
                began_s = time.monotonic()
                with (
                    at_most(timeout_s + 3, "the deadline"),
                    pytest.raises(NotReadyError, match="did not answer"),
                ):
                    await tables.get(TOTALS, "ada", timeout_s=timeout_s)
                assert timeout_s * 0.9 <= time.monotonic() - began_s


@scenario
async def test_a_worker_that_hangs_is_reported_and_not_one_before_it_that_is_gone() -> None:
    async with Hanging() as hanging:
        gone = f"http://127.0.0.1:{free_ports(1)[0]}"
        claims = [
            WorkerClaims(url=url, generation=at, started_ms=0, at_ms=0, tables=claiming(0))
            for at, url in enumerate((gone, hanging.url))
        ]
        async with client(directory=FixedDirectory(claims)) as tables:
            with pytest.raises(NotReadyError, match=f"{hanging.url} did not answer"):
                await tables.get(TOTALS, "ada", timeout_s=0.4)


@scenario
async def test_a_hanging_owner_is_left_for_the_next_before_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.clients.tables.query_router.ATTEMPT_S", 0.5)
    async with Hanging() as hanging, one_worker() as successor:
        successor.put(TOTALS, 0, "ada", Total(1), offset=1)
        claims = WorkerClaims(url=hanging.url, generation=1, started_ms=0, at_ms=0, tables=claiming(0))
        async with client(directory=Unfolding([claims], lambda: [claims, successor.claims(2)])) as tables:
            assert (await tables.get(TOTALS, "ada", timeout_s=DEADLINE_S)).value == Total(1)
        # once each, unless a busy machine delayed the successor's answer too
        assert hanging.asked <= asked(successor)


@pytest.mark.parametrize("others", [0, 1], ids=["alone", "beside-one-that-is-gone"])
@scenario
async def test_a_worker_that_takes_long_for_an_answer_is_given_longer_each_time(
    others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, asked_for = query_router._read, 0

    async def late(response: aiohttp.ClientResponse) -> bytes:
        nonlocal asked_for
        asked_for += 1
        assert asked_for <= 15, "it is given no longer"
        await asyncio.sleep(0.3)
        return await read(response)

    monkeypatch.setattr(query_router, "ATTEMPT_S", 0.05)
    monkeypatch.setattr(query_router, "_read", late)
    async with one_worker() as worker:
        worker.put(TOTALS, 0, "ada", Total(1), offset=1)
        gone = f"http://127.0.0.1:{free_ports(1)[0]}"
        claims = [WorkerClaims(url=gone, generation=0, started_ms=0, at_ms=0, tables=claiming(0))] * others
        async with client(directory=FixedDirectory([worker.claims(), *claims])) as tables:
            assert (await tables.get(TOTALS, "ada", timeout_s=DEADLINE_S)).value == Total(1)


@scenario
async def test_with_no_worker_at_all_the_error_says_so_by_the_deadline() -> None:
    async with client(directory=FixedDirectory()) as tables:
        for partition in (0, None):
            with pytest.raises(NotReadyError, match=r"is one running|none is running"):
                await tables.get(TOTALS, "ada", partition=partition, timeout_s=0.1)


@scenario
async def test_without_kafka_known_workers_are_asked_and_unknown_ones_are_kafkas_error() -> None:
    class Cut(FixedDirectory):
        async def refresh(self, timeout_s: float) -> None:
            raise BrokerError("cannot read the workers topic")

    async with one_worker() as worker:
        worker.put(TOTALS, 0, "ada", Total(1), offset=1)
        async with client(directory=Cut([worker.claims()])) as tables:
            assert (await tables.get(TOTALS, "ada")).value == Total(1)
        async with client(directory=Cut()) as tables:
            for partition in (0, None):
                with pytest.raises(BrokerError):
                    await tables.get(TOTALS, "ada", partition=partition, timeout_s=0.1)


@pytest.mark.parametrize("versions", [[TOTALS], [replace(TOTALS, version=2), TOTALS]], ids=["one", "two"])
@scenario
async def test_a_directory_that_takes_long_to_read_is_given_longer_each_time(
    versions: list[Processor[Any, Total]],
) -> None:
    class Long(FixedDirectory):
        """Its broker takes 10 s for an answer."""

        async def refresh(self, timeout_s: float) -> None:
            given.append(timeout_s)
            if timeout_s < 10:
                raise BrokerError("cannot read the workers topic: timed out")
            self.announce({worker.url: worker.claims()})

    given: list[float] = []
    (newest, *earlier), known = versions, Settings(app="shop")
    async with MemoryWorker(settings(), [newest], partitions=1) as worker:
        worker.put(newest, 0, "ada", Total(1), offset=1)
        async with TableClient(known, [newest], earlier=earlier, directory=Long()) as tables:
            assert (await tables.get(newest, "ada", timeout_s=DEADLINE_S)).value == Total(1)
    assert given[:4] == [2, 4, 8, 16]


@scenario
async def test_who_knows_workers_asks_them_again_soon_though_the_directory_is_gone() -> None:
    class GoneSince(FixedDirectory):
        """It was read once."""

        async def refresh(self, timeout_s: float) -> None:
            given.append(timeout_s)
            if self.workers.partitions("totals", 1):
                raise BrokerError("cannot read the workers topic: timed out")
            self.announce({worker.url: worker.claims()})

    given: list[float] = []
    async with one_worker() as worker, client(directory=GoneSince()) as tables:
        worker.replica(TOTALS, 0).serving = False
        with deadline_after(5), pytest.raises(NotReadyError):
            await tables.get(TOTALS, "ada", timeout_s=DEADLINE_S)
    assert len(given) > 3
    assert set(given) == {2.0}


# -- offsets


@scenario
async def test_who_has_just_written_waits_for_that_offset() -> None:
    async with one_worker(partitions=2) as worker, client(worker) as tables:
        replica = worker.replica(TOTALS, 1)
        waiting = asyncio.create_task(tables.get(TOTALS, "ada", at_least=(1, 7), timeout_s=DEADLINE_S))
        await replica.waited_for.wait()
        replica.put("ada", Total(7))
        await replica.advance(7)
        answer = await waiting
        assert (answer.value, answer.partition, answer.as_of_offset) == (Total(7), 1, 7)
        assert asked(worker) == 1, "the row is where its records are: no other partition is asked"


@scenario
async def test_a_wait_longer_than_one_attempt_lasts_until_the_offset_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.clients.tables.query_router.ATTEMPT_S", 0.1)
    attempt, silent = QueryRouter._attempt, 0

    async def noting(*named: Any) -> Any:
        nonlocal silent
        try:
            return await attempt(*named)
        except _Setback as met:
            silent += not met.at_once  # on a busy machine the worker's word may come too late
            raise

    monkeypatch.setattr(QueryRouter, "_attempt", noting)
    async with (
        one_worker() as worker,
        client(directory=(directory := Unfolding([worker.claims()]))) as tables,
    ):
        waiting = asyncio.create_task(
            tables.get(TOTALS, "ada", partition=0, at_least=(0, 7), timeout_s=DEADLINE_S)
        )
        while asked(worker, "offset_timeout") < 3:  # noqa: ASYNC110  the worker's own count
            await asyncio.sleep(0.01)
        await worker.replica(TOTALS, 0).advance(7)
        assert (await waiting).as_of_offset == 7
        assert directory.refreshed <= silent, "the right worker is asked again at once"


@scenario
async def test_an_offset_that_does_not_come_is_reported_with_the_numbers() -> None:
    async with one_worker() as worker, client(worker) as tables:
        await worker.replica(TOTALS, 0).advance(3)
        with deadline_after(), pytest.raises(OffsetTimeoutError, match="offset 3, not yet 7"):
            await tables.get(TOTALS, "ada", at_least=(0, 7), timeout_s=DEADLINE_S)
        assert (await tables.get(TOTALS, "ada", at_least=(0, 3))).as_of_offset == 3


@scenario
async def test_a_scan_waits_in_each_partition_for_its_own_offset() -> None:
    async with one_worker(partitions=2) as worker, client(worker) as tables:
        for partition in range(2):
            worker.put(TOTALS, partition, f"{partition}", Total(partition), offset=4)
        scan = tables.scan(TOTALS, at_least={0: 4, 1: 5}, timeout_s=DEADLINE_S)
        assert (await anext(scan)).key == "0"
        with deadline_after(), pytest.raises(OffsetTimeoutError):
            await anext(scan)
        assert [answer.key async for answer in tables.scan(TOTALS, at_least=(1, 4))] == ["0", "1"]


@scenario
async def test_a_condition_on_a_partition_that_is_not_asked_is_a_slip() -> None:
    async with one_worker(partitions=2) as worker, client(worker) as tables:
        with pytest.raises(ValueError, match="live in"):
            await tables.get(TOTALS, "ada", partition=0, at_least=(1, 7))
        with pytest.raises(ValueError, match="live in"):
            await tables.get(ROUTED, "4", at_least=(1, 7))


# -- standbys


@scenario
async def test_a_standby_answers_when_the_owner_is_gone_and_the_caller_accepts_it() -> None:
    async with one_worker(active=[], standby=[0]) as standby:
        replica = standby.replica(TOTALS, 0)
        replica.put("ada", Total(5))
        replica.applied, replica.source_end, replica.current_ms = 5, 8, system_clock.now_ms()
        dead = WorkerClaims(url="http://127.0.0.1:1", generation=1, started_ms=0, at_ms=0, tables=claiming(0))
        async with client(directory=FixedDirectory([dead, standby.claims()])) as tables:
            answer = await tables.get(TOTALS, "ada", max_staleness=timedelta(minutes=1))
            assert (answer.value, answer.role, answer.as_of_offset) == (Total(5), "standby", 5)
            assert (await tables.get(TOTALS, "ada", max_staleness=2)).role == "standby"
            before = asked(standby)
            with deadline_after(), pytest.raises(NotReadyError):
                await tables.get(TOTALS, "ada", timeout_s=DEADLINE_S)
            assert asked(standby) == before, "who wants the owner's word does not trouble a standby"
            with deadline_after(), pytest.raises(NotReadyError, match="2 records behind, 1 allowed"):
                await tables.get(TOTALS, "ada", max_staleness=1, timeout_s=DEADLINE_S)
            replica.current_ms -= 60_000
            with deadline_after(), pytest.raises(NotReadyError, match="ms old, 5000 allowed"):
                await tables.get(TOTALS, "ada", max_staleness=timedelta(seconds=5), timeout_s=DEADLINE_S)


@scenario
async def test_the_owner_is_asked_first_even_if_stale_is_good_enough() -> None:
    async with one_worker() as owner, one_worker(active=[], standby=[0]) as standby:
        owner.put(TOTALS, 0, "ada", Total(2), offset=2)
        standby.replica(TOTALS, 0).current_ms = system_clock.now_ms()
        async with client(owner, standby) as tables:
            answer = await tables.get(TOTALS, "ada", max_staleness=timedelta(hours=1))
            assert (answer.value, answer.role) == (Total(2), "active")
        assert asked(standby) == 0


@pytest.mark.parametrize("bound", [-1, timedelta(seconds=-1)])
@scenario
async def test_a_staleness_below_zero_is_a_slip(bound: int | timedelta) -> None:
    async with one_worker() as worker, client(worker) as tables:
        with pytest.raises(ValueError, match="0 or more"):
            await tables.get(TOTALS, "ada", max_staleness=bound)
