"""`holdfast console` of real workers on the embedded Kafka: what it shows as they are killed, and how it ends."""

from __future__ import annotations

import os
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import by_key
from holdfast.clients.claims.blocking import BlockingClaimConsumer
from holdfast.clients.topics.application import create_topics
from holdfast.dev.fixtures import SessionBroker
from holdfast.dev.ports import free_ports
from holdfast.embedded.kafka import EmbeddedKafka
from tests.agents.fleet import Fleet, Writer
from tests.console.shop import totals
from tests.support import fork_server
from tests.support.harness import wait_for
from tests.support.places import ROOT

pytestmark = pytest.mark.process

DEADLINE_S = 60.0
PARTITIONS = 4


class RunningConsole:
    """`holdfast console` as a process of its own."""

    def __init__(self, fleet: Fleet, folder: Path, *more: str) -> None:
        self.url = f"http://127.0.0.1:{(port := free_ports(1)[0])}"
        self.log = folder / "console.log"
        command = [*fork_server.INTERPRETER, fork_server.COMMAND, "-A", "tests.console.shop:totals_of"]
        environment = {**os.environ, **fleet.environment, "PYTHONPATH": str(ROOT)}
        with self.log.open("ab") as out:
            self.process = fork_server.start(
                [*command, "console", "--port", str(port), *more], env=environment, cwd=ROOT, out=out
            )

    def get(self, path: str) -> str:
        """Return a page, "" while nothing answers."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=10) as reply:
                return str(reply.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return str(error.read().decode())
        except OSError:
            return ""

    def wait_shown(self, path: str, *wanted: str) -> str:
        """Return a page once it has all of *wanted* in it."""

        def look() -> str | None:
            assert self.process.poll() is None, self.log.read_text()
            text = re.sub(r"<[^>]*>", "", self.get(path))
            return text if text and all(each in text for each in wanted) else None

        return wait_for(
            f"{path} shows {wanted}", look, DEADLINE_S, lambda: self.get(path) + self.log.read_text()
        )

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(DEADLINE_S)


@pytest.fixture(scope="module")
def broker() -> Iterator[SessionBroker]:
    with EmbeddedKafka(seed=20) as kafka:
        yield SessionBroker(config={"bootstrap.servers": kafka.bootstrap})


@pytest.fixture
def fleet(broker: SessionBroker, tmp_path: Path) -> Iterator[Fleet]:
    source = broker.create_topic(
        "orders", partitions=PARTITIONS, config={"message.timestamp.type": "LogAppendTime"}
    )
    found = Fleet(
        broker,
        tmp_path,
        app="console",
        partitions=PARTITIONS,
        module="tests.console.shop",
        declare=lambda settings: [totals(source)],
        standbys=1,
    )
    found.environment["CONSOLE_SOURCE"] = source

    create_topics(found.settings, found.processors, partitions=PARTITIONS)
    yield found
    found.close()


@pytest.fixture
def start(fleet: Fleet, tmp_path: Path) -> Iterator[Callable[..., RunningConsole]]:
    made: list[RunningConsole] = []

    def console(*more: str) -> RunningConsole:
        made.append(RunningConsole(fleet, tmp_path, *more))
        return made[-1]

    yield console
    for each in made:
        each.close()


def test_a_worker_comes_is_killed_and_is_replaced_before_ones_eyes(
    fleet: Fleet, broker: SessionBroker, start: Callable[..., RunningConsole]
) -> None:
    console = start()
    console.wait_shown("/", f"No worker of {fleet.settings.app} runs")
    first, second = fleet.worker().start(), fleet.worker().start()
    fleet.wait_spread(first, second)
    console.wait_shown("/", "All is well", "2 of 2", f"{PARTITIONS} of {PARTITIONS}")
    home = by_key("ada", PARTITIONS)
    Writer(broker).write_all(fleet.processors[0].topics[0], [(b"ada", b"ada", home, 0)] * 3)
    console.wait_shown("/tables/view?name=totals&verb=get&key=ada", "&#34;count&#34;: 3")
    console.wait_shown(f"/workers/view?url={first.url}", "ready", "this worker")
    killed, heir = first, second
    killed.kill()
    console.wait_shown("/", f"Worker {killed.url} cannot be reached")
    console.wait_shown("/", "All is well", "1 of 1", f"{PARTITIONS} of {PARTITIONS}")
    console.wait_shown("/workers", "1 earlier worker", killed.url)
    assert heir.ready
    console.process.send_signal(signal.SIGTERM)
    assert console.process.wait(DEADLINE_S) == 0, console.log.read_text()


def test_groups_are_shown_as_they_work(
    fleet: Fleet, broker: SessionBroker, start: Callable[..., RunningConsole]
) -> None:
    console = start()
    topic = fleet.processors[0].topics[0]
    broker.create_topic(fleet.settings.coordination_topic, partitions=2, exact=True)
    with BlockingClaimConsumer(
        fleet.settings, topics=[topic], group="billing", client="billing-1", heartbeat_interval_s=1
    ):
        console.wait_shown("/groups", "billing", "claim", f"{PARTITIONS} of {PARTITIONS}")
        shown = console.wait_shown("/groups/view?kind=claim&name=billing", "billing-1-", "fresh")
        assert shown.count("billing-1-") == PARTITIONS
    assert "no client has ever claimed" in console.get("/groups/view?kind=claim&name=nobody")


def test_a_broker_that_is_away_is_told_and_ends_nothing(
    fleet: Fleet, start: Callable[..., RunningConsole]
) -> None:
    console = start("--bootstrap", f"127.0.0.1:{free_ports(1)[0]}")
    console.wait_shown("/", "Kafka does not answer the console")
    console.process.send_signal(signal.SIGINT)
    assert console.process.wait(DEADLINE_S) == 0, console.log.read_text()


def test_a_taken_port_is_one_line(fleet: Fleet, start: Callable[..., RunningConsole]) -> None:
    first = start()
    first.wait_shown("/", "Overview")
    second = start("--port", first.url.rpartition(":")[2])
    assert second.process.wait(DEADLINE_S) == 2
    assert re.search(
        r"cannot listen on 127.0.0.1 port \d+: .*set console_bind and console_port", second.log.read_text()
    )
