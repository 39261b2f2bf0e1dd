"""A Faust application's own parts work next to processors on a real broker, and lose nothing when workers
die.
"""

from __future__ import annotations

import base64
import json
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.clients.groups.broker import BrokerGroups
from holdfast.clients.topics.admin import Admin
from holdfast.dev.fixtures import SessionBroker
from tests.agents.fleet import Writer
from tests.support.harness import Application, Worker, running, wait_for
from tests.support.patience import DEADLINE_S, SCENARIO_S
from tests.support.proof import read_topic

PARTITIONS = 3
CUSTOMERS = ("ada", "ben", "cleo", "dan", "eve")


class Market(Application):
    """The market, and the purchases there."""

    def __init__(self, broker: SessionBroker, folder: Path, store: str, **options: Any) -> None:
        super().__init__(
            broker,
            folder,
            partitions=PARTITIONS,
            module="tests.agents.market",
            environment={"MARKET_STORE": store},
            **options,
        )
        self.create_topics()
        for topic in ("bought", "baskets", "packed"):
            broker.create_topic(f"{self.name}-{topic}", partitions=PARTITIONS, exact=True)
        self._writer, self.bought, self.written = Writer(broker), Counter[str](), 0

    def buy(self, count: int, customers: tuple[str, ...] = CUSTOMERS) -> None:
        """Write *count* orders of each customer, of 1 cent, without a key, to all partitions."""
        self._writer.write_all(
            f"{self.name}-bought",
            [
                (json.dumps({"customer": each, "cents": 1}).encode(), None, number % PARTITIONS, 0)
                for number in range(count)
                for each in customers
            ],
        )
        self.bought.update(dict.fromkeys(customers, count))

    def packed(self) -> Counter[str]:
        """Return the customers of the copies, which are JSON in base 64."""
        found = read_topic(self.broker, f"{self.name}-packed")
        return Counter(
            json.loads(base64.b64decode(each.value() or b"", validate=True))["customer"]
            for messages in found.values()
            for each in messages
        )

    def source_records(self, count: int) -> None:
        """Write *count* records to each partition of the processors' source."""
        self._writer.write_all(
            self.source,
            [(b"add seen 1", None, number, 0) for number in range(PARTITIONS) for _ in range(count)],
        )
        self.written += count

    def short(self, workers: list[Worker]) -> dict[str, int]:
        """Return by how much the tables of *workers*, each customer where it counts most, are short of the
        purchases that were written.
        """
        wanted = {**self.bought, **{str(number): self.written for number in range(PARTITIONS)}}
        found: dict[str, int] = {}
        for worker in workers:
            for path in ("/totals/", "/seen/"):
                shown = page(worker, path)
                for key, value in shown.items() if isinstance(shown, dict) else ():
                    found[key] = max(found.get(key, 0), value)
        return {key: each - found.get(key, 0) for key, each in wanted.items() if found.get(key, 0) < each}

    def uncommitted(self, suffix: str) -> int:
        """Return how many records of topics of that name the group has not read."""
        committed = BrokerGroups(self.settings, timeout_s=DEADLINE_S).committed(self.name)
        topics = Admin(self.settings).partition_counts()
        own = [topic for topic in topics if self.name in topic and topic.endswith(suffix)]
        ends = Admin(self.settings).offsets(
            (topic, number) for topic in own for number in range(topics[topic])
        )
        return sum(end - committed.get(place, 0) for place, (_, end) in ends.items())

    def wait_committed(self, suffix: str) -> None:
        """Wait until the group has read all of topics of that name: a page shows rows before their commit."""
        wait_for(f"all of {suffix} committed", lambda: self.uncommitted(suffix) == 0, DEADLINE_S, self.tails)

    def wait_page(self, worker: Worker, path: str, wanted: Any) -> None:
        """Wait until all pages of the live workers together show *wanted*."""
        wait_for(
            f"{path} of {worker.name} shows {wanted}",
            lambda: page(worker, path) == wanted,
            DEADLINE_S,
            lambda: f"{page(worker, path)}\n{worker.tail()}",
        )


def page(worker: Worker, path: str) -> Any:
    status, text = worker.ask(path)
    return json.loads(text) if status == 200 else (status, text)


def put(worker: Worker, path: str, value: Any) -> Any:
    """Return the answer of a page to a PUT."""
    asked = urllib.request.Request(
        worker.url + path, json.dumps(value).encode(), {"Content-Type": "application/json"}, method="PUT"
    )
    with urllib.request.urlopen(asked, timeout=SCENARIO_S) as reply:
        return json.load(reply)


@pytest.fixture(params=["memory://", "rocksdb://"], ids=["memory", "rocksdb"])
def market(broker: SessionBroker, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Market]:
    with running(Market(broker, tmp_path, request.param, instance_id="only")) as application:
        assert isinstance(application, Market)
        yield application


@pytest.mark.process
@pytest.mark.variants("memory")
def test_everything_works_and_a_restart_finds_the_tables_as_they_were(market: Market) -> None:
    worker = market.worker().start()
    market.buy(30)
    market.source_records(40)
    market.wait_page(worker, "/totals/", dict(market.bought))
    market.wait_page(worker, "/seen/", {str(number): 40 for number in range(PARTITIONS)})
    wait_for("all taken", lambda: page(worker, "/buffers/")["taken"] == 150, DEADLINE_S, worker.tail)
    wait_for("all copied", lambda: page(worker, "/buffers/")["copied"] == 150, DEADLINE_S, worker.tail)
    assert page(worker, "/totals/ada/") == {"ada": 30}
    wait_for(
        "all rung",
        lambda: page(worker, "/rung/").keys() == {"timer", "crontab", "task"},
        DEADLINE_S,
        worker.tail,
    )
    wait_for("asked", lambda: page(worker, "/double/21/") == {"21": 42}, DEADLINE_S, worker.tail)
    wait_for("all packed", lambda: market.packed() == market.bought, DEADLINE_S, worker.tail)
    windows = page(worker, "/windows/")
    counted = {name: sum(count for *_, count in windows[name]) for name in ("minutes", "hops")}
    assert counted == {
        "minutes": 150,
        "hops": 300,
    }, "each moment is in two windows that hop by half of theirs"
    worker.stop()
    worker.start().wait_ready()
    assert page(worker, "/totals/") == dict(market.bought), worker.tail()
    restored = page(worker, "/windows/")
    for name in counted:
        assert sorted(restored[name]) == sorted(windows[name]), name
    wait_for("short windows gone", lambda: not page(worker, "/windows/")["brief"], DEADLINE_S, worker.tail)
    market.buy(10)
    market.wait_page(worker, "/totals/", dict(market.bought))
    assert put(worker, "/echo/", {"a": 1}) == {"got": {"a": 1}}


@pytest.mark.variant
def test_what_an_agent_fails_at_is_delivered_again(broker: SessionBroker, tmp_path: Path) -> None:
    """Stock commits it: an agent's error costs the record."""
    with running(Market(broker, tmp_path, "memory://", instance_id="only")) as market:
        assert isinstance(market, Market)
        _check_failure(market)


def _check_failure(market: Market) -> None:
    worker = market.worker().start(MARKET_CRASH="1")
    market.buy(20)
    market.wait_page(worker, "/totals/", dict(market.bought))
    market.wait_committed("-repartition")
    market.buy(1, ("crash",))
    assert worker.wait_exit(DEADLINE_S) == 1, worker.tail()
    assert worker.said("no such customer")
    assert market.uncommitted("-repartition") == 1
    market.buy(1)
    worker.start()
    wait_for("all counted", lambda: market.short([worker]) == {}, DEADLINE_S, worker.tail)


@pytest.mark.variant
def test_an_agent_that_lags_the_processors_of_its_source_gets_every_record(
    broker: SessionBroker, tmp_path: Path
) -> None:
    with running(Market(broker, tmp_path, "memory://", instance_id="only")) as market:
        assert isinstance(market, Market)
        worker = market.worker().start()
        market.source_records(5)
        everywhere = range(PARTITIONS)
        market.wait_page(worker, "/seen/", {str(number): 5 for number in everywhere})
        worker.stop()
        worker.start(MARKET_HOLD="1")
        market.source_records(40)
        market.wait_applied({number: 44 for number in everywhere}, DEADLINE_S)
        worker.kill()
        worker.start()
        market.wait_page(worker, "/seen/", {str(number): 45 for number in everywhere})


@pytest.mark.process
@pytest.mark.variants("memory")
@pytest.mark.parametrize("store", ["memory://", "rocksdb://"], ids=["memory", "rocksdb"])
def test_nothing_is_lost_while_workers_die_and_move(
    broker: SessionBroker, tmp_path: Path, store: str
) -> None:
    with running(Market(broker, tmp_path, store, standbys=1)) as market:
        assert isinstance(market, Market)
        first, second = market.worker(), market.worker()
        first.start()
        market.buy(50)
        market.source_records(50)
        market.wait_page(first, "/totals/", dict(market.bought))
        second.start().wait_ready()
        market.buy(50)
        market.source_records(50)
        wait_for("all counted", lambda: market.short([first, second]) == {}, DEADLINE_S, market.tails)
        first.kill()
        market.buy(20)
        wait_for("all counted by one", lambda: market.short([second]) == {}, DEADLINE_S, market.tails)
        first.start().wait_ready()
        market.buy(20)
        market.source_records(20)
        wait_for("all counted by two", lambda: market.short([first, second]) == {}, DEADLINE_S, market.tails)
