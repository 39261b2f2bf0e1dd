"""Clients and web ports while a table goes from one version to the next."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.clients.tables.answers import Answer
from holdfast.clients.tables.client import TableClient
from holdfast.clients.tables.directory import FixedDirectory, Workers, WorkersTopic
from holdfast.clients.tables.switching import unserved
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.query_wire import EarlierClaims, TableClaims, WorkerClaims
from holdfast.core.engine.upgrades import Switch, encode_switch
from holdfast.dev.memory_tables import MemoryWorker
from holdfast.errors import ConfigError, NoSuchTableError, NotReadyError
from tests.clients.tables.tabling import Total, deadline_after, fold, scenario, settings
from tests.support.patience import DEADLINE_S


class Weighed(msgspec.Struct, frozen=True):
    count: int
    size: int


OLD: Processor[Any, Total] = Processor(name="totals", source="orders", decode=bytes, fold=fold, row=Total)
NEW: Processor[Any, Weighed] = Processor(
    name="totals", source="orders", decode=bytes, fold=fold, row=Weighed, version=2
)
TO_NEW = Switch(table="totals", version=2, before=1, at_ms=0, by="worker")
BACK = Switch(table="totals", version=1, before=2, at_ms=0, by="command")


def upgrading(*, built: bool = False) -> MemoryWorker:
    """Return a worker of version 2, which keeps what version 1 has left."""
    worker = MemoryWorker(settings(), [NEW], partitions=1)
    worker.put(NEW, 0, "ada", Weighed(3, 30), offset=4)
    earlier = worker.keep(OLD, 0)
    earlier.put("ada", Total(5, "kept"))
    earlier.applied = 9
    if not built:
        worker.built["totals", 0] = "version 2 of totals is being built"
    return worker


def both(worker: MemoryWorker, *switches: Switch) -> TableClient:
    return TableClient(
        Settings(app="shop"), [NEW], earlier=[OLD], directory=FixedDirectory([worker.claims()], switches)
    )


@scenario
async def test_who_knows_both_versions_is_answered_by_the_earlier_one_until_the_switch() -> None:
    async with upgrading() as worker, both(worker) as tables:
        found: Answer[Any] = await tables.get("totals", "ada")
    assert (found.version, found.role, found.value) == (1, "earlier", Total(5, "kept"))
    assert found.as_of_offset == 9
    async with upgrading(built=True) as worker, both(worker, TO_NEW) as tables:
        found = await tables.get("totals", "ada")
        assert (found.version, found.role, found.value) == (2, "active", Weighed(3, 30))
        assert [row.version async for row in tables.scan("totals")] == [2]
    async with upgrading(built=True) as worker, both(worker, BACK) as tables:
        assert (await tables.get(NEW, "ada")).version == 1, "a switch can be taken back"


@scenario
async def test_who_knows_one_version_is_answered_in_that_one_alone() -> None:
    async with upgrading() as worker:
        known = worker.directory()
        async with TableClient(Settings(app="shop"), [OLD], directory=known) as tables:
            assert (await tables.get(OLD, "ada")).value == Total(5, "kept")
        async with TableClient(Settings(app="shop"), [NEW], directory=known) as tables:
            with (
                deadline_after(),
                pytest.raises(NotReadyError, match=r"version 2 of totals is being built; ask for version=1"),
            ):
                await tables.get(NEW, "ada", timeout_s=DEADLINE_S)


@scenario
async def test_a_worker_that_keeps_no_earlier_version_says_which_it_has() -> None:
    async with MemoryWorker(settings(), [NEW], partitions=1) as worker:
        claims = worker.claims()
        stale = msgspec.structs.replace(
            claims, tables={"totals": TableClaims(version=1, partitions=1, active=[0])}
        )
        async with TableClient(Settings(app="shop"), [OLD], directory=FixedDirectory([stale])) as tables:
            with deadline_after(), pytest.raises(NoSuchTableError, match="version 2 here, not 1"):
                await tables.get(OLD, "ada", timeout_s=DEADLINE_S)


@scenario
async def test_an_earlier_version_that_is_yet_to_be_restored_is_waited_for() -> None:
    async with upgrading() as worker:
        worker.earlier_replicas["totals", 0].serving = False
        async with TableClient(Settings(app="shop"), [OLD], directory=worker.directory()) as tables:
            with (
                deadline_after(),
                pytest.raises(NotReadyError, match="not kept here in version 1, or is being restored"),
            ):
                await tables.get(OLD, "ada", timeout_s=DEADLINE_S)


def test_earlier_versions_come_before_the_one_that_is_given() -> None:
    with pytest.raises(ConfigError, match="earlier has version 2 of totals"):
        TableClient(Settings(app="shop"), [NEW], earlier=[OLD, NEW])
    with pytest.raises(ConfigError, match="processors has none of it"):
        TableClient(Settings(app="shop"), [], earlier=[OLD])


# -- the directory


def claims(url: str, generation: int, **table: Any) -> WorkerClaims:
    held = TableClaims(**{"version": 2, "partitions": 2, **table})
    return WorkerClaims(url=url, generation=generation, started_ms=0, at_ms=0, tables={"totals": held})


def test_what_a_worker_keeps_of_an_earlier_version_is_claimed_like_the_rest() -> None:
    new = claims("http://b", 2, active=[0, 1], building=[1], earlier=EarlierClaims(version=1, partitions=[0]))
    old = claims("http://a", 1, version=1, active=[0, 1])
    workers = Workers([old, new], [TO_NEW])
    assert workers.claimants("totals", 1, 0) == ["http://b", "http://a"]
    assert workers.claimants("totals", 1, 1) == ["http://a"]
    assert workers.owning("totals", 2, 0) == ("http://b", False)
    assert workers.owning("totals", 2, 1) == ("http://b", True)
    assert workers.owning("totals", 2, 2) is None
    assert workers.switch("totals") == TO_NEW
    assert unserved(workers, "totals", 2) == ["partitions 1 are being built"]
    assert unserved(workers, "totals", 1) == []


@pytest.mark.parametrize(
    ("served", "switch", "asked"),
    [
        ([1], None, 1),
        ([1, 2], None, 1),
        ([2], None, 2),
        ([], None, 2),
        ([1, 2], TO_NEW, 2),
        ([1], TO_NEW, 1),
        ([1, 2], BACK, 1),
        ([2], BACK, 2),
    ],
)
def test_the_version_that_is_asked_is_the_current_one_that_is_served(
    served: list[int], switch: Switch | None, asked: int
) -> None:
    workers = Workers(
        [claims(f"http://{version}", 1, version=version) for version in served], [switch] if switch else []
    )
    assert workers.answering("totals", [2, 1]) == asked


@scenario
async def test_switches_are_read_from_the_workers_topic_and_strange_ones_counted() -> None:
    topic = WorkersTopic(Settings(app="shop"))
    try:
        topic._learn(b"switch:totals", encode_switch(TO_NEW))
        topic._learn(b"switch:totals", b"{")
        topic._learn(b"switch:others", encode_switch(TO_NEW))
        assert topic.ignored == 2
        assert topic._switches == {"totals": TO_NEW}
        topic._learn(b"switch:totals", None)
        assert topic._switches == {}
    finally:
        await topic.close()


@pytest.mark.parametrize(
    ("processors", "earlier", "why"),
    [
        (NEW, (), r"processors is the processor totals alone; write a list: \[totals\]"),
        ([NEW], OLD, r"earlier is the processor totals alone; write a list: \[totals\]"),
        ([NEW, OLD], (), "two processors share a name, totals"),
        (["totals"], (), "processors holds 'totals', which is not a Processor"),
    ],
)
def test_an_argument_that_is_no_list_of_processors_is_refused(
    processors: Any, earlier: Any, why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        TableClient(Settings(app="shop"), processors, earlier=earlier)
