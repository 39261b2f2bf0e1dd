"""The first state of a version with `emits_from="handover"`, written while workers of the previous version
run: either a bootstrap or a worker of the new version begins a partition, and the other finds it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast.agents.partitions.ownership import beginnings
from holdfast.agents.partitions.ownership.beginnings import begin
from holdfast.clients.groups.broker import BrokerGroups
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.fold.folding import Changes
from holdfast.core.engine.positions import Position
from holdfast.core.engine.state.codec import row_key
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.errors import FencedError, GroupError
from holdfast.kafka.requests.connections import connector
from holdfast.kafka.transactions.transactional_client import producers
from holdfast.pipeline.bootstrap.bootstrap import bootstrap
from holdfast.pipeline.bootstrap.fencing import fenced_writer
from holdfast.pipeline.bootstrap.sink import BootstrapOutcome, BootstrapStep
from holdfast.pipeline.verify.emits import verify_emits
from holdfast.pipeline.verify.table import read_live, verify
from holdfast.tables.partition import Partition
from holdfast.tables.restore import restore
from holdfast.tables.rocks import Budget
from holdfast.tables.state import Environment
from tests.pipeline.accounts import Account, Op
from tests.support.books_app import LOCAL, MIGRATE, SEND, SILENT, Books, Crash, outcomes
from tests.support.patience import DEADLINE_S


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(seed=29) as running:
        yield running


@pytest.fixture
def books(kafka: EmbeddedKafka) -> Books:
    return Books(kafka).begun()


@pytest.fixture
def second(books: Books) -> Processor[Op, Account]:
    return books.version(2, emits_from="handover")


class Owner:
    """A worker of a version with partition 0, as far as an adoption takes it: fenced, restored and begun."""

    def __init__(self, books: Books, folder: Path, processor: Processor[Any, Any]) -> None:
        self._settings = books.settings
        environment = Environment(
            app=books.name,
            data_dir=folder,
            producer=producers(
                connector(books.settings, timeout_s=DEADLINE_S), transaction_timeout_s=DEADLINE_S
            ),
            budget=Budget.of(8 << 20, 8 << 20),
            cluster_id="c",
            changelog_ids={},
            cache_rows=10,
            tombstones_kept_ms=0,
        )
        self.part = Partition(processor, 0, environment, lambda part: None, lambda: True)
        self.between: Callable[[], None] = lambda: None
        """Called once it has fenced the bootstrap's writer and restored all that was written before."""
        self._reads = 0

    async def _read(self, parts: list[Partition]) -> int:
        found = await asyncio.to_thread(
            restore, parts, self._settings.consumer(), self._settings.app, threading.Event(), DEADLINE_S
        )
        self._reads += 1
        if self._reads == 2:
            await asyncio.to_thread(self.between)
        return found

    async def take(self) -> None:
        await self.part.owner.fence(DEADLINE_S)
        await self._read([self.part])
        await begin([self.part], self._read, DEADLINE_S)

    def taken(self) -> Partition:
        """Take the partition over, from any thread, and close everything but its store."""

        async def work() -> None:
            try:
                await self.take()
            finally:
                await self.part.owner.close_writer()

        with ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, work()).result(DEADLINE_S)
        return self.part


def state(part: Partition) -> tuple[int, bool]:
    return part.applied, bool([*part.everything()])


@pytest.mark.long
def test_workers_of_the_previous_version_write_on_and_their_emits_are_not_repeated(
    books: Books, second: Processor[Op, Account], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def beside() -> None:
        async with fenced_writer(books.first, books.settings, 0) as writer:
            done = await asyncio.to_thread(bootstrap, second, books.settings, SILENT)
            assert outcomes(done) == [BootstrapOutcome.WRITTEN] * 2
            row = [(row_key("later"), b"\x90")]
            await writer.write(Changes(marker=Position((125,), 9, 1), records=1, puts=[*row]), [], DEADLINE_S)

    asyncio.run(beside())
    assert [each.applied for each in read_live(books.first, books.settings)] == [125, 119]
    part = Owner(books, tmp_path, second).taken()
    assert state(part) == (119, True)
    assert not any("but not updated until" in each.getMessage() for each in caplog.records)
    assert part.owner.may_learn_handover, "version 1 has gone on: it is silent up to where that stands now"
    part.close()
    assert verify(second, books.settings, LOCAL).equal
    assert verify_emits(second, books.settings).equal


@pytest.mark.long
def test_a_worker_that_has_begun_an_empty_partition_is_not_written_over(
    books: Books, second: Processor[Op, Account], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    part = Owner(books, tmp_path, second).taken()
    assert state(part) == (-1, False)
    (line,) = [each.getMessage() for each in caplog.records if "but not updated until" in each.getMessage()]
    assert line.startswith("accounts.v2 partitions [0] begin empty: the version before")
    assert "`holdfast bootstrap accounts`" in line
    assert not part.owner.is_to_begin
    part.close()
    assert verify(second, books.settings, LOCAL).equal, "nothing, at the beginning"
    assert outcomes(bootstrap(second, books.settings, SILENT)) == [
        BootstrapOutcome.KEPT,
        BootstrapOutcome.WRITTEN,
    ]


@pytest.mark.long
@pytest.mark.parametrize("at", [BootstrapStep.FOLDED, BootstrapStep.FENCED])
def test_a_worker_begins_while_a_bootstrap_has_not_looked_yet(
    books: Books, second: Processor[Op, Account], tmp_path: Path, at: BootstrapStep
) -> None:
    owner = Owner(books, tmp_path, second)

    def told(partition: int, step: BootstrapStep) -> None:
        if (partition, step) == (0, at):
            owner.taken()

    assert outcomes(bootstrap(second, books.settings, SILENT, told=told)) == [
        BootstrapOutcome.KEPT,
        BootstrapOutcome.WRITTEN,
    ]
    assert state(owner.part) == (-1, False)
    owner.part.close()


@pytest.mark.long
@pytest.mark.parametrize("migrates", [False, True])
@pytest.mark.parametrize("at", [BootstrapStep.APPENDING, BootstrapStep.APPENDED])
def test_a_worker_shuts_out_a_bootstrap_that_is_writing(
    books: Books, tmp_path: Path, at: BootstrapStep, migrates: bool
) -> None:
    version = books.version(2, emits_from="handover", migrate={1: kept} if migrates else {})
    declared = books.version(2, emits_from="handover")  # without migrate=, which a worker refuses to begin
    owner, met = Owner(books, tmp_path, declared), list[BootstrapStep]()

    def told(partition: int, step: BootstrapStep) -> None:
        if (partition, step) == (0, at) and not met:
            met.append(step)
            owner.taken()

    options = MIGRATE if migrates else SILENT
    with pytest.raises(
        FencedError, match=r"taken partition 0 of accounts\.v2 meanwhile, and nothing was written"
    ):
        bootstrap(version, books.settings, options, told=told)
    assert state(owner.part) == (-1, False)
    owner.part.close()
    assert not next(each.stored for each in read_live(version, books.settings))
    assert outcomes(bootstrap(version, books.settings, options))[0] is BootstrapOutcome.KEPT


def kept(rows: Any, key: str, row: Account) -> None:
    rows[key] = row


@pytest.mark.long
def test_a_bootstrap_that_comes_between_two_steps_of_a_worker_is_found_by_it(
    books: Books, second: Processor[Op, Account], tmp_path: Path
) -> None:
    owner = Owner(books, tmp_path, second)
    owner.between = lambda: assert_written(books, second)
    part = owner.taken()
    assert state(part) == (119, True)
    part.close()


def assert_written(books: Books, second: Processor[Op, Account]) -> None:
    assert outcomes(bootstrap(second, books.settings, SILENT)) == [BootstrapOutcome.WRITTEN] * 2


@pytest.mark.long
def test_a_bootstrap_that_dies_between_two_steps_of_a_worker_is_shut_out_by_the_next_try(
    books: Books, second: Processor[Op, Account], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dying() -> None:
        def told(partition: int, step: BootstrapStep) -> None:
            if step is BootstrapStep.APPENDED:
                raise Crash

        with pytest.raises(Crash):
            bootstrap(second, books.settings, SILENT, told=told)

    owner = Owner(books, tmp_path / "one", second)
    owner.between = dying
    monkeypatch.setattr(beginnings, "TRIES", 1)
    with pytest.raises(FencedError):
        owner.taken()
    owner.part.close()
    monkeypatch.undo()
    owner = Owner(books, tmp_path / "two", second)
    owner.between = dying
    part = owner.taken()
    assert state(part) == (-1, False)
    assert not part.owner.is_to_begin
    part.close()


@pytest.mark.long
def test_workers_have_to_stop_where_all_is_sent_or_everything_is_emitted_again(
    books: Books, second: Processor[Op, Account], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(self: BrokerGroups, app: str) -> None:
        raise GroupError(f"workers of {app} run")

    monkeypatch.setattr(BrokerGroups, "require_stopped", run)
    for version, options in ((second, SEND), (books.version(3), SILENT)):
        with pytest.raises(GroupError):
            bootstrap(version, books.settings, options)
    assert outcomes(bootstrap(second, books.settings, SILENT)) == [BootstrapOutcome.WRITTEN] * 2


@pytest.mark.long
def test_a_bootstrap_that_sends_shuts_out_one_for_a_handover_as_well(
    books: Books, second: Processor[Op, Account]
) -> None:
    async def raced() -> None:
        async with fenced_writer(second, books.settings, 0, beside=True) as frozen:
            done = await asyncio.to_thread(bootstrap, second, books.settings, SEND)
            assert outcomes(done) == [BootstrapOutcome.WRITTEN] * 2
            row = [(row_key("stale"), b"\x90")]
            await frozen.write(Changes(marker=Position((3,), 9, 2), records=1, puts=[*row]), [], DEADLINE_S)

    with pytest.raises(FencedError):
        asyncio.run(raced())
    assert verify(second, books.settings, LOCAL).equal
