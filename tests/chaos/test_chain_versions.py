"""A chain of three processors with a join is upgraded from version 1 to 3 under load, with workers replaced
and killed in any order: no record is counted twice, no row is unserved for longer than a takeover, emits are
as declared, and live = local = Spark for each version.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.dev.fixtures import SessionBroker
from tests.support.chained_app import TAKEOVER_S, ChainFleet
from tests.support.harness import wait_for
from tests.support.patience import DEADLINE_S

MakeChain = Callable[[], ChainFleet]
ORDERS = ("AABB", "ABAB", "ABBA")
"""In which order two workers go to the next version, and to the one after that; the other orders are these
with the names exchanged.
"""


@pytest.fixture
def made(broker: SessionBroker, tmp_path: Path) -> Iterator[MakeChain]:
    with ExitStack() as stack:

        def make() -> ChainFleet:
            fleet = ChainFleet(broker, tmp_path)
            stack.callback(fleet.close)
            return fleet

        yield make


def roll(fleet: ChainFleet, order: str, chance: random.Random, kills: float) -> None:
    """Take two workers from version 1 to 3 in *order*; each is stopped or killed, and some are killed while
    they build.
    """
    workers = {name: fleet.worker(name) for name in "AB"}
    versions = dict.fromkeys("AB", 1)
    for worker in workers.values():
        fleet.start(worker, 1)
    for worker in workers.values():
        worker.wait_ready()
    fleet.load.start()
    wait_for("some orders", lambda: fleet.load.sent >= 300, DEADLINE_S, fleet.tails)
    fleet.asker.start()
    fleet.asker.wait_answer()
    for name in order:
        worker, versions[name] = workers[name], versions[name] + 1
        worker.kill() if chance.random() < kills else worker.stop()
        fleet.start(worker, versions[name], sleep_s=0.002)
        if chance.random() < kills:
            wait_for("it begins", lambda each=worker: each.ask("/metrics")[0] == 200, DEADLINE_S, fleet.tails)  # type: ignore[misc]
            worker.kill()
            fleet.start(worker, versions[name])
        worker.wait_ready()
        fleet.asker.wait_answer()
    fleet.load.stop()
    fleet.assert_counted_once(fleet.wait_folded(3), 3)
    wait_for("the switch", lambda: 3 in fleet.asker.seen, DEADLINE_S, fleet.tails)
    fleet.asker.stop()
    for worker in workers.values():
        worker.stop()
    assert fleet.asker.odd == []
    assert fleet.asker.longest_s < TAKEOVER_S
    fleet.assert_emits()


@pytest.mark.slow
def test_a_chain_goes_through_three_versions_under_load(made: MakeChain) -> None:
    fleet = made()
    roll(fleet, "AABB", random.Random(1), kills=0.5)
    fleet.assert_replayed("local", 1, 2, 3)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("seed", range(3))
def test_a_chain_goes_through_three_versions_in_every_order(made: MakeChain, order: str, seed: int) -> None:
    fleet = made()
    roll(fleet, order, random.Random(seed), kills=0.7)
    fleet.assert_replayed("local", 1, 2, 3)
    fleet.assert_replayed("spark", 1, 2, 3)
