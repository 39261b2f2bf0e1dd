"""docs/from-faust.md moves an application of Faust's in three steps: state, positions and emits are the same
before and after each, and continue from there.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from holdfast.clients.groups.broker import BrokerGroups
from holdfast.config import Settings
from holdfast.dev.fixtures import SessionBroker
from holdfast.dev.ports import free_ports
from tests.support.harness import TIMES, UNDISTURBED, wait_for
from tests.support.installations import Installation, Installations
from tests.support.own_topics import ending
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT, example_file
from tests.test_page_programs import exchanged, run, settings_of

PARTITIONS = 3
TOPICS = ("orders", "payments", "big-customers", "receipts", "audit")
CUSTOMERS = ("ada", "ben", "cleo", "dan", "eve")
HERE = "app = create_app(topic_partitions=3)"


class Desk:
    """The order desk: the orders and payments sent, and the results of its workers."""

    def __init__(self, broker: SessionBroker, folder: Path, installed: Installation) -> None:
        self.name = f"desk-{ending()}"
        self.topics = {topic: f"{self.name}-{topic}" for topic in TOPICS}
        self._broker, self._folder, self._random = broker, folder, random.Random(7)
        (self.port,) = free_ports(1)
        self.environment = settings_of(
            broker,
            installed,
            app=self.name,
            web_port=str(self.port),
            data_dir=str(folder / "data"),
            standbys="0",
            **{key: str(value) for key, value in {**TIMES, **UNDISTURBED}.items()},
        )
        self._programs = installed.programs
        kafka = {key: str(value) for key, value in broker.config.items()}
        self.settings = Settings(app=self.name, kafka=kafka)
        for topic in self.topics.values():
            broker.create_topic(
                topic,
                partitions=PARTITIONS,
                config={"message.timestamp.type": "LogAppendTime"},
                exact=True,
            )
        self._producer = Producer(broker.client_config(**{"linger.ms": 0, "enable.idempotence": True}))
        self.spending: dict[str, list[int]] = {}
        self.paid: Counter[str] = Counter()
        self.big: list[str] = []
        self.receipts: list[tuple[str, int]] = []
        self._orders = 0

    # -- the load, and what must come of it

    def trade(self, count: int) -> None:
        """Write *count* orders and as many payments."""
        for _ in range(count):
            order, customer = f"order-{self._orders}", self._random.choice(CUSTOMERS)
            cents = self._random.randrange(1, 100)
            self._orders += 1
            self._send("orders", order, {"order": order, "customer": customer, "cents": cents})
            before = self.spending.setdefault(customer, [0, 0])
            if before[1] < 1_000 <= before[1] + cents:
                self.big.append(customer)
            self.spending[customer] = [before[0] + 1, before[1] + cents]
            of = f"order-{self._random.randrange(self._orders)}"
            self.paid[of] += cents
            self.receipts.append((of, self.paid[of]))
            self._send("payments", of, {"order": of, "cents": cents})
        assert self._producer.flush(DEADLINE_S) == 0

    def _send(self, topic: str, key: str, value: Mapping[str, Any]) -> None:
        self._producer.produce(self.topics[topic], json.dumps(value).encode(), key.encode())

    def emitted(self, topic: str) -> list[Any]:
        """Return the committed records of a topic that the desk writes."""
        consumer = Consumer(self._broker.client_config(**{"group.id": "desk", "enable.partition.eof": True}))
        try:
            consumer.assign(
                [TopicPartition(self.topics[topic], each, OFFSET_BEGINNING) for each in range(PARTITIONS)]
            )
            ended, found = 0, list[Any]()
            while ended < PARTITIONS:
                message = consumer.poll(DEADLINE_S)
                assert message is not None
                if message.error() is None:
                    found.append(json.loads(message.value() or b""))
                else:
                    ended += 1
            return found
        finally:
            consumer.close()

    def check_emits(self) -> None:
        """Nothing was sent twice, and nothing was left out."""
        # A customer's orders come in any order of the partitions, so the one that crosses the line is not
        # known.
        big = self.emitted("big-customers")
        assert sorted(each["customer"] for each in big) == sorted(self.big)
        assert all(1_000 <= each["cents"] < 1_100 for each in big)
        receipts = [(each["order"], each["cents"]) for each in self.emitted("receipts")]
        assert sorted(receipts) == sorted(self.receipts)
        audited = [order["order"] for taken in self.emitted("audit") for order in taken]
        assert sorted(audited) == sorted(f"order-{each}" for each in range(self._orders))

    def positions(self) -> dict[tuple[str, int], int]:
        """Return where the group has read the desk's sources."""
        found = BrokerGroups(self.settings, timeout_s=DEADLINE_S).committed(self.name)
        return {
            (topic, each): found.get((self.topics[topic], each), 0)
            for topic in ("orders", "payments")
            for each in range(PARTITIONS)
        }

    # -- its workers

    def program(self, name: str) -> str:
        """Return an example with the topics of this desk."""
        text = example_file(f"{name}.py").read_text()
        return exchanged(text, {topic: other for topic, other in self.topics.items() if f'"{topic}"' in text})

    def holdfast(self, *words: str) -> str:
        return run(self._folder, self.environment, str(self._programs / "holdfast"), "-A", "desk", *words)

    def verify(self, table: str) -> None:
        """Compare a table with a replay that begins with the rows taken over."""
        partition, *_ = json.loads(self.holdfast("-o", "json", "verify", table))["bases"]
        assert f"of Faust application {self.name} behind offset" in partition

    @contextmanager
    def worker(self, text: str, *, stock: bool = False) -> Iterator[None]:
        """Run the desk's program *text*, until it is stopped in good order."""
        (self._folder / "desk.py").write_text(text)
        if not stock:
            self.holdfast("topics", "create", "--partitions", str(PARTITIONS))
        log = self._folder / "worker.log"
        with log.open("ab") as out:
            process = subprocess.Popen(
                [str(self._programs / "faust"), "-A", "desk", "worker", "-l", "info"],
                cwd=self._folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        try:
            self._log = log
            yield
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_S) == 0, self.tail()
        finally:
            process.kill()
            process.wait(DEADLINE_S)

    def tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-60:])

    def page(self, path: str) -> Any:
        """Return the JSON of a page of the worker, None while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as reply:
                return json.load(reply)
        except (urllib.error.HTTPError, OSError):
            return None

    def rows(self, table: str) -> dict[str, Any]:
        """Return all rows of a processor's table."""
        found: dict[str, Any] = {}
        for each in range(PARTITIONS):
            page = self.page(f"/tables/{table}/{each}/scan?limit=1000")
            found.update(dict((page or {}).get("rows", ())))
        return found

    def wait(self, what: str, found: Callable[[], Any], wanted: Any) -> None:
        wait_for(
            f"{what} {wanted}", lambda: found() == wanted, DEADLINE_S, lambda: f"{found()}\n{self.tail()}"
        )

    def hours(self) -> dict[str, int]:
        """Return the rows of the windowed table, by customer and the beginning of the hour in ms."""
        return {
            f"{customer}@{int(begin * 1000)}": cents for customer, begin, cents in self.page("/hours/") or ()
        }


@pytest.fixture
def desk(broker: SessionBroker, tmp_path: Path, installations: Installations) -> Desk:
    return Desk(broker, tmp_path, installations.of_page(ROOT / "docs" / "from-faust.md"))


def by_customer(hours: Mapping[str, int]) -> dict[str, int]:
    out: Counter[str] = Counter()
    for key, cents in hours.items():
        out[key.partition("@")[0]] += cents
    return dict(out)


def cents_of(spending: Mapping[str, list[int]]) -> dict[str, int]:
    return {customer: cents for customer, (_, cents) in spending.items()}


@pytest.mark.slow
def test_an_application_moves_in_three_steps_and_nothing_is_counted_twice(desk: Desk) -> None:
    text = desk.program("desk")
    assert HERE in text
    stock = text.replace("from holdfast import create_app\n", "").replace(
        HERE,
        f"app = faust.App({desk.name!r}, broker='kafka://{desk.settings.bootstrap_servers}',"
        f" topic_partitions=3, web_port={desk.port}, datadir={str(desk._folder / 'old')!r})",
    )
    with desk.worker(stock, stock=True):
        desk.wait("the old application runs", lambda: desk.page("/paid/"), {})
        desk.trade(100)
        agents_have_all(desk)
    before = desk.positions()
    desk.check_emits()

    # The first step: as it is.
    with desk.worker(text):
        agents_have_all(desk)
        assert desk.positions() == before
        desk.trade(100)
        agents_have_all(desk)
    before = desk.positions()
    desk.check_emits()

    # The second: one of its tables.
    text = desk.program("desk_tables")
    (desk._folder / "desk.py").write_text(text)
    desk.holdfast("topics", "create", "--partitions", str(PARTITIONS))
    desk.holdfast("tables", "take-over", "paid", "--table", "paid", "--rows", "desk:paid_row", "--execute")
    with desk.worker(text):
        desk.wait("spending", lambda: desk.page("/spending/"), desk.spending)
        desk.wait("paid", lambda: desk.rows("paid"), dict(desk.paid))
        assert desk.positions() == before
        desk.trade(100)
        desk.wait("spending", lambda: desk.page("/spending/"), desk.spending)
        desk.wait("hours", lambda: by_customer(desk.hours()), cents_of(desk.spending))
        desk.wait("paid", lambda: desk.rows("paid"), dict(desk.paid))
        hours = desk.hours()
    before = desk.positions()
    desk.check_emits()
    desk.verify("paid")

    # The third: all of it.
    text = desk.program("desk_topology")
    (desk._folder / "desk.py").write_text(text)
    desk.holdfast("topics", "create", "--partitions", str(PARTITIONS))
    desk.holdfast("tables", "take-over", "by-customer", "--execute")
    desk.holdfast(
        "tables", "take-over", "spending", "--table", "spending", "--rows", "desk:spending_row", "--execute"
    )
    desk.holdfast("tables", "take-over", "hours", "--table", "hours", "--rows", "desk:hour_row", "--execute")
    with desk.worker(text):
        topology_has_all(desk)
        assert desk.rows("hours") == hours
        assert desk.positions() == before
        desk.trade(100)
        topology_has_all(desk)
    desk.check_emits()
    for table in ("paid", "spending", "hours"):
        desk.verify(table)


def agents_have_all(desk: Desk) -> None:
    """Wait until the agents' tables hold all that was ordered and paid."""
    desk.wait("spending", lambda: desk.page("/spending/"), desk.spending)
    desk.wait("hours", lambda: by_customer(desk.hours()), cents_of(desk.spending))
    desk.wait("paid", lambda: desk.page("/paid/"), dict(desk.paid))


def topology_has_all(desk: Desk) -> None:
    """Wait until the processors' tables hold all that was ordered and paid."""
    spending = {
        customer: {"orders": orders, "cents": cents} for customer, (orders, cents) in desk.spending.items()
    }
    desk.wait("spending", lambda: desk.rows("spending"), spending)
    desk.wait("hours", lambda: by_customer(desk.rows("hours")), cents_of(desk.spending))
    desk.wait("paid", lambda: desk.rows("paid"), dict(desk.paid))
