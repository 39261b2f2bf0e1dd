"""Named tables on real workers: restored, live and replayed they are one state, and queries find them by
name.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast.clients.tables.blocking import BlockingTableClient
from holdfast.core.engine.declared.partitioners import by_key
from holdfast.dev.fixtures import SessionBroker
from holdfast.pipeline.replay import ReplayOptions, replay
from holdfast.pipeline.verify.table import verify
from tests.agents.fleet import Fleet, Writer
from tests.support import fork_server
from tests.support.harness import wait_for
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT
from tests.support.visits import Visitor, visits

PARTITIONS = 2
OPS = ("enter", "enter", "leave", "break", "enter", "enter")


class Shop(Fleet):
    """One worker that gets its partitions back at once, and visits to count."""

    def __init__(self, broker: SessionBroker, folder: Path) -> None:
        super().__init__(
            broker,
            folder,
            app="shop",
            partitions=PARTITIONS,
            module="tests.support.visits",
            declare=lambda settings: [visits(f"{settings.app}-in")],
            standbys=0,
            instance_id="only",
        )
        (self.shop,) = self.processors
        self.broker.create_topic("visited", partitions=PARTITIONS, config={})
        self.create_topics()
        self.environment["VISITS_SOURCE"] = self.shop.source
        self.writer = Writer(broker)

    def write(self, records: int, first: int = 0) -> dict[int, int]:
        """Write visits; return the last offset of each partition."""
        out: list[tuple[bytes, bytes | None, int, int]] = []
        for at in range(first, first + records):
            visitor = f"v{at % 40}"
            told = f"{OPS[at % len(OPS)]} {visitor} p{at % 9}".encode()
            out.append((told, None, by_key(visitor, PARTITIONS), 0))
        return {place[0]: place[1] for place in self.writer.write_all(self.shop.source, out)}

    def wait_applied(self, ends: dict[int, int]) -> None:
        (worker,) = self.workers

        def condition() -> bool:
            assert worker.running, worker.tail()
            applied = worker.applied()
            return all(applied.get((self.shop.name, partition), -1) >= end for partition, end in ends.items())

        wait_for("all visits applied", condition, DEADLINE_S, worker.tail)

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of `holdfast` on this application."""
        return fork_server.run(
            [*fork_server.INTERPRETER, fork_server.COMMAND, "-A", "tests.support.visits:processors", *words],
            env={**os.environ, **self.environment, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            timeout=DEADLINE_S,
        )


@pytest.fixture
def shop(broker: SessionBroker, tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(broker, tmp_path)
    try:
        yield shop
    finally:
        shop.close()


def test_named_tables_are_the_same_restored_live_and_replayed(shop: Shop) -> None:
    worker = shop.worker().start(CHAOS_FAULT="produced:4").wait_ready()
    code = worker.wait_exit_under(lambda at: shop.write(40, first=40 * at))
    assert code == -9, "it dies between its records and its commit"
    worker.wipe()
    worker.start().wait_ready()
    ends = shop.write(300, first=7)
    shop.wait_applied(ends)

    live = verify(shop.shop, shop.settings)
    assert live.equal, live
    replayed = replay(shop.shop, shop.settings, ReplayOptions(engine="local"))
    with BlockingTableClient(shop.settings, [shop.shop]) as tables:
        for name, table in (("visitors", None), ("visitors.open", "open"), ("visitors.pages", "pages")):
            served = {
                (each.partition, each.key): json.loads(msgspec.json.encode(each.value))
                for each in tables.scan(name, at_least=ends, timeout_s=DEADLINE_S)
            }
            rows = replayed.table("rows", shop.shop).to_pylist()
            assert served == {
                (row["partition"], row["key"]): json.loads(row["row"])
                for row in rows
                if row["table"] == table
            }
            assert served, f"{name} has rows"
        visitor = tables.get("visitors", "v1", timeout_s=DEADLINE_S)
        assert isinstance(visitor.value, Visitor)

    stores = shop.command("verify", "visitors", "--store")
    assert stores.returncode == 0, stores.stdout + stores.stderr
    asked = shop.command("tables", "get", "visitors.pages", "p1", "--partition", "0")
    assert asked.returncode == 0, asked.stderr
    refused = shop.command("tables", "get", "visitors.shut", "p1")
    assert refused.returncode != 0
    assert "no table 'shut'; its tables: visitors.open, visitors.pages" in refused.stderr
