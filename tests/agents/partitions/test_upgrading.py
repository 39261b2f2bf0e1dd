"""The reports of a worker on a table that is on its way to another version; without a broker."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from holdfast.agents.partitions.gate import FoldGate
from holdfast.agents.partitions.held.holdings import Holdings
from holdfast.agents.partitions.ownership.upgrading import Upgrading, _EarlierPartition
from holdfast.clients.tables.directory import Workers
from holdfast.clock import ManualClock
from holdfast.config import Settings
from holdfast.core.engine.query_wire import TableClaims, WorkerClaims
from holdfast.core.engine.upgrades import Switch
from tests.agents.versioned import versioned
from tests.chaos.chained import chain

HELD = ("totals", 0)


class Way:
    """A worker of version 2 that owns one partition, where version 1 has a changelog too."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.clock, self.folded, self.ends = ManualClock(), False, {}  # type: ignore[var-annotated]
        self.own, gate = versioned("shop", 2), FoldGate()
        gate.opened()
        self.holdings = Holdings({"totals": self.own})
        self.announced = 0
        self.upgrading = Upgrading(
            Settings(app="shop", data_dir=folder, **settings),
            {"totals": self.own},
            self.thread,
            gate=gate,
            holdings=self.holdings,
            announcer=SimpleNamespace(),  # type: ignore[arg-type]
            announce=self.announce,
            open_earlier=lambda held, version: self.part(version),
            ends=lambda: self.ends,
            is_folded=lambda held, version: self.folded,
            clock=self.clock,
        )
        self.upgrading._known = {"totals": (1, 2)}

    def thread(self, call: Any, *arguments: Any) -> asyncio.Future[Any]:
        done = asyncio.get_running_loop().create_future()
        done.set_result(call(*arguments))
        return done

    async def announce(self) -> None:
        self.announced += 1

    def part(self, version: int, applied: int = -1) -> Any:
        return SimpleNamespace(
            processor=SimpleNamespace(version=version, internal=()),
            offsets={"shop-in": applied},
            serving=True,
            rotten=None,
            close=lambda: None,
        )

    def own_partition(self, applied: int = -1) -> Any:
        owned = SimpleNamespace(part=self.part(2, applied))
        self.holdings.owned[HELD] = owned  # type: ignore[assignment]
        return owned

    def keep(self, applied: int) -> None:
        """Keep version 1 of the partition, up to *applied*."""
        self.upgrading._kept[HELD] = _EarlierPartition(self.holdings.owned[HELD], 1, self.part(1, applied))


def test_a_version_is_built_until_it_shows_what_the_one_before_did(tmp_path: Path) -> None:
    way = Way(tmp_path)
    owned = way.own_partition(applied=5)
    way.keep(applied=9)
    way.upgrading._look()
    assert way.upgrading.causes() == [
        (
            "version 2 of totals is being built and has not caught up with version 1, which is the current one:"  # noqa: E501
            " partitions 0"
        )
    ]
    assert way.upgrading.announced("totals") == {
        "building": [0],
        "earlier": {"version": 1, "partitions": [0]},
    }
    owned.part.offsets = {"shop-in": 9}
    way.upgrading._look()
    assert way.upgrading.causes() == []
    assert way.upgrading.building(*HELD) is None
    way.own_partition(applied=9)
    assert way.upgrading.building(*HELD) is not None, "who takes it up anew looks again"


class Chained(Way):
    """A worker of version 2 that owns one partition of the last of a chain, and one of what writes to it;
    `workers` are what all announce.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.chain = {each.name: each for each in chain("shop", 2)}
        self.upgrading._processors = self.chain
        self.upgrading._known = dict.fromkeys(self.chain, (1, 2))
        for name in self.chain:
            self.holdings.owned[name, 0] = self.of(name)

    def of(self, name: str) -> Any:
        part = self.part(2, applied=9)
        part.offsets = dict.fromkeys(self.chain[name].topics, 9)
        return SimpleNamespace(part=part)

    def announce_all(self, **owners: list[int]) -> None:
        """Have it announced which partitions, of two, of each table workers have in version 2, all built but
        those of `sums`.
        """
        tables = {
            name: TableClaims(version=2, partitions=2, active=owned, building=owned if name == "sums" else [])
            for name, owned in owners.items()
        }
        claims = WorkerClaims(url="http://a", generation=1, started_ms=0, at_ms=0, tables=tables)
        self.upgrading._directory.workers = Workers([claims])

    def looked(self) -> list[str]:
        self.ends = {(topic, 0): 10 for each in self.chain.values() for topic in each.topics}
        self.upgrading._look()
        self.upgrading._look()
        return self.upgrading.causes()


def test_a_worker_is_ready_when_its_own_wait_only_for_partitions_that_old_workers_have(
    tmp_path: Path,
) -> None:
    way = Chained(tmp_path)
    way.announce_all(keyed=[0, 1], met=[0], sums=[0])
    assert way.looked() == [], "the old worker can be replaced now, and must be"
    assert way.upgrading.building("sums", 0) is not None, (
        "but it may not be read: it lacks what comes of the rest"
    )
    assert way.upgrading.announced("sums")["building"] == [0]
    assert way.upgrading.announced("sums")["waiting"] == [0]
    why = way.upgrading.building("sums", 0) or ""
    assert "has folded all there is, and waits for partitions of met that old workers have" in why
    way.announce_all(keyed=[0, 1], met=[0, 1], sums=[0])
    way.looked()
    assert way.upgrading.building("sums", 0) is None
    assert not way.upgrading.waiting("sums", 0)


def test_a_worker_is_not_ready_while_there_is_something_left_for_it_to_fold(tmp_path: Path) -> None:
    way = Chained(tmp_path)
    way.announce_all(keyed=[0, 1], met=[0], sums=[0])
    way.holdings.owned["sums", 0].part.offsets = {way.chain["sums"].topics[0]: 3}  # type: ignore[misc]
    (cause,) = way.looked()
    assert "version 2 of sums is being built" in cause


def test_the_first_worker_of_another_version_records_which_was_current(tmp_path: Path) -> None:
    way, written = Way(tmp_path), list[Switch]()

    async def switch(record: Switch) -> None:
        written.append(record)

    way.upgrading._announcer = SimpleNamespace(switch=switch)  # type: ignore[assignment]
    way.upgrading._known = {"totals": (1, 2)}
    asyncio.run(way.upgrading._record_first())
    assert [(each.version, each.before, each.by) for each in written] == [(1, 0, "worker")]
    way.upgrading._directory.workers = Workers(switches=written)
    asyncio.run(way.upgrading._record_first())
    assert len(written) == 1, "once"


def test_where_records_come_all_the_time_it_is_enough_to_have_reached_the_end_of_a_moment_ago(
    tmp_path: Path,
) -> None:
    way = Way(tmp_path)
    way.own_partition(applied=99)
    way.ends = {("shop-in", 0): 100}
    way.upgrading._look()
    assert way.upgrading.building(*HELD) is not None, "no end is known yet"
    way.ends = {("shop-in", 0): 150}
    way.upgrading._look()
    assert way.upgrading.building(*HELD) is None
    other = Way(tmp_path)
    other.own_partition(applied=99)
    other.ends = {("shop-in", 0): 100}
    other.upgrading._look()
    other.upgrading.adopted()
    other.upgrading._look()
    assert other.upgrading.building(*HELD) is not None, "what was known before an assignment is too old"


def test_after_its_limit_a_version_answers_though_it_has_not_caught_up(tmp_path: Path) -> None:
    way = Way(tmp_path, build_limit_s=60)
    way.own_partition()
    assert way.upgrading.causes()
    way.clock.advance_ms(60_000)
    assert way.upgrading.causes()
    way.clock.advance_ms(1)
    assert way.upgrading.causes() == []
    assert way.upgrading.building(*HELD) is None


def test_an_earlier_version_is_announced_only_while_no_other_worker_may_fold_it(tmp_path: Path) -> None:
    way = Way(tmp_path)
    owned = way.own_partition()
    way.keep(applied=9)
    assert way.upgrading.earlier(*HELD) is not None
    way.folded = True
    assert way.upgrading.earlier(*HELD) is None, "an old worker has it again"
    way.folded, owned.part.serving = False, False
    assert way.upgrading.earlier(*HELD) is None, "this worker may have lost it"
    owned.part.serving = True
    way.own_partition()
    assert way.upgrading.earlier(*HELD) is None, "it was somebody else's meanwhile"


def test_a_store_that_is_no_longer_to_be_kept_is_closed(tmp_path: Path) -> None:
    async def drop(way: Way) -> bool:
        await way.upgrading._drop()
        return HELD not in way.upgrading._kept

    way = Way(tmp_path, earlier_version_s=60)
    way.own_partition()
    way.keep(applied=9)
    assert not asyncio.run(drop(way))
    switch = Switch(table="totals", version=2, before=1, at_ms=way.clock.now_ms(), by="worker")
    way.upgrading._directory.workers._switches["totals"] = switch
    assert not asyncio.run(drop(way)), "for a while after the switch"
    way.clock.advance_ms(60_000)
    assert asyncio.run(drop(way))
    rotten = Way(tmp_path)
    rotten.own_partition()
    rotten.keep(applied=9)
    rotten.upgrading._kept[HELD].part.rotten = "a block is damaged"  # type: ignore[union-attr,misc]
    assert asyncio.run(drop(rotten)), "it is restored again"
