"""The application of `tests.chaos.chained` on real workers, which are replaced while it works; and assertions
about all its versions.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

from holdfast.clients.tables.client import TableClient
from holdfast.clients.topics.application import create_topics
from holdfast.core.engine.declared.partitioners import by_key
from holdfast.core.engine.declared.processor import Processor
from holdfast.dev.fixtures import SessionBroker
from holdfast.errors import BrokerError, QueryError
from holdfast.pipeline.replay import ReplayOptions
from holdfast.pipeline.verify.emits import verify_emits
from holdfast.pipeline.verify.table import verify
from tests.agents.fleet import Fleet, Writer
from tests.chaos.chained import Sum, chain
from tests.support.harness import Worker, wait_for, wait_for_ends
from tests.support.patience import DEADLINE_S
from tests.support.proof import read_topic

CUSTOMERS = [f"c{number}" for number in range(12)]
ANSWER_S = 90.0
TAKEOVER_S = 20.0
"""No pause between two answers is longer: a session of 6 s, a rebalance, and restores of three tables on a
busy machine.
"""


class ChainFleet(Fleet):
    """Two partitions, and every version's processors in `versions`."""

    def __init__(self, broker: SessionBroker, folder: Path) -> None:
        super().__init__(
            broker,
            folder,
            app="chain",
            partitions=2,
            module="tests.chaos.chained",
            declare=lambda settings: chain(settings.app),
            standbys=0,
        )
        self.name = self.settings.app
        for topic in ("orders", "customers"):
            config = {"message.timestamp.type": "LogAppendTime"}
            self.broker.create_topic(f"{self.name}-{topic}", partitions=2, config=config, exact=True)
        self.versions: dict[int, list[Processor[Any, Any]]] = {}
        self.add(1)
        self.load = Load(self)
        self.asker = Asker(self)

    def add(self, version: int) -> None:
        """Make the topics of a version."""
        if version not in self.versions:
            self.versions[version] = chain(self.name, version)
            create_topics(self.settings, self.versions[version], partitions=2)

    def start(self, worker: Worker, version: int, sleep_s: float = 0.0) -> Worker:
        self.add(version)
        return worker.start(CHAIN_VERSION=str(version), CHAIN_SLEEP_S=str(sleep_s))

    def wait_folded(self, version: int) -> dict[str, Sum]:
        """Return the sums of a version once it has all orders that were sent."""
        sums = self.versions[version][2]

        async def scan() -> dict[str, Sum]:
            async with TableClient(self.settings, [sums]) as tables:
                found = tables.scan(sums, timeout_s=ANSWER_S)
                return {answer.key: answer.value async for answer in found}

        def condition() -> dict[str, Sum] | None:
            with suppress(QueryError, BrokerError):
                found = asyncio.run(scan())
                return found if sum(each.orders for each in found.values()) >= self.load.sent else None
            return None

        return wait_for(f"{self.load.sent} orders in version {version}", condition, DEADLINE_S, self.tails)

    def close(self) -> None:
        self.load.stop()
        self.asker.stop()
        super().close()

    # -- assertions

    def assert_counted_once(self, found: dict[str, Sum], version: int) -> None:
        wanted = {
            customer: (version, len(numbers), version * sum(numbers))
            for customer, numbers in self.load.numbers.items()
        }
        assert {key: (each.version, each.orders, each.total) for key, each in found.items()} == wanted

    def assert_emits(self) -> None:
        """Each version has emitted all from the beginning, without a gap or a repetition, and none after a
        later one began.
        """
        for key, sums in self._emitted().items():
            for version in self.versions:
                counts = [each.orders for each in sums if each.version == version]
                assert counts == list(range(1, len(counts) + 1)), f"{key} in version {version}"

    def _emitted(self) -> dict[str, list[Sum]]:
        emitted: dict[str, list[Sum]] = {}
        for messages in read_topic(self.broker, f"{self.name}-out").values():
            for message in messages:
                key = (message.key() or b"").decode()
                emitted.setdefault(key, []).append(msgspec.json.decode(message.value() or b"", type=Sum))
        return emitted

    def _is_ascending(self) -> bool:
        """Return whether each key's emits are in order of their versions. A worker of an old version that
        comes back after a newer one has begun breaks that order.
        """
        orders = ([each.version for each in sums] for sums in self._emitted().values())
        return all(versions == sorted(versions) for versions in orders)

    def assert_replayed(self, engine: Literal["local", "spark"], *versions: int) -> None:
        """Assert that each table of the versions equals its replay, by digest, and likewise its emits."""
        for version in versions:
            for each in self.versions[version]:
                wait_for_ends(self.settings, each.changelog(self.name))
                verdict = verify(each, self.settings, ReplayOptions(engine=engine))
                assert verdict.equal, [part.explain() for part in verdict.partitions]
                # In a topic that versions share, only the records emitted last are known to be the latest
                # version's.
                if version == max(self.versions) and (each.name != "sums" or self._is_ascending()):
                    told = verify_emits(each, self.settings, ReplayOptions(engine=engine))
                    assert told.equal, told


class Load(threading.Thread):
    """Sends orders, and new names of customers, until it is stopped; `numbers` are those of each customer's
    orders.
    """

    def __init__(self, fleet: ChainFleet, per_s: int = 100) -> None:
        super().__init__(daemon=True)
        self._fleet, self._per_s, self._ended = fleet, per_s, threading.Event()
        self.numbers: dict[str, list[int]] = {}
        self.sent = 0

    def run(self) -> None:
        writer, chance = Writer(self._fleet.broker), random.Random(1)
        while not self._ended.wait(0.1):
            self._send(writer, chance, self._per_s // 10)

    def _send(self, writer: Writer, chance: random.Random, count: int) -> None:
        orders = list[tuple[bytes, bytes | None, int, int]]()
        for number in range(self.sent + 1, self.sent + 1 + count):
            customer = chance.choice(CUSTOMERS)
            self.numbers.setdefault(customer, []).append(number)
            orders.append((f"{number} {customer}".encode(), None, number % 2, 0))
        renamed = chance.choice(CUSTOMERS)
        place = by_key(renamed, 2) or 0
        name = f"{renamed} name-{self.sent}".encode()
        writer.write_all(f"{self._fleet.name}-customers", [(name, renamed.encode(), place, 0)])
        writer.write_all(f"{self._fleet.name}-orders", orders)
        self.sent += count

    def stop(self) -> None:
        self._ended.set()
        if self.is_alive():
            self.join(DEADLINE_S)


class Asker(threading.Thread):
    """Queries the sums of all customers repeatedly, with knowledge of all versions, until it is stopped."""

    def __init__(self, fleet: ChainFleet) -> None:
        super().__init__(daemon=True)
        self._fleet, self._ended = fleet, threading.Event()
        self.seen = set[int]()
        self.odd = list[str]()
        self.longest_s = 0.0
        self.answers = 0

    def run(self) -> None:
        asyncio.run(self._ask())

    async def _ask(self) -> None:
        fleet = self._fleet
        answered_s = time.monotonic()
        sums = {version: chain(fleet.name, version)[2] for version in (1, 2, 3)}
        async with TableClient(fleet.settings, [sums[3]], earlier=[sums[1], sums[2]]) as tables:
            while not self._ended.is_set():
                with suppress(QueryError, BrokerError):
                    found = await tables.get_many(sums[3], CUSTOMERS, timeout_s=2)
                    now_s = time.monotonic()
                    self.longest_s, answered_s = max(self.longest_s, now_s - answered_s), now_s
                    self.answers += 1
                    for each in found.values():
                        self.seen.add(each.version)
                        if each.value is not None and each.value.version != each.version:
                            self.odd.append(str(each))
                await asyncio.sleep(0.02)
        self.longest_s = max(self.longest_s, time.monotonic() - answered_s)

    def wait_answer(self) -> None:
        """Wait for an answer that covers all customers and was requested after this call."""
        before = self.answers
        wait_for("an answer", lambda: self.answers > before + 1, DEADLINE_S, self._fleet.tails)

    def stop(self) -> None:
        self._ended.set()
        if self.is_alive():
            self.join(DEADLINE_S)
