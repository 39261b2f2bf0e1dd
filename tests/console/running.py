"""An application of real workers, and its console as a process of its own."""

from __future__ import annotations

import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.clients.topics.application import create_topics
from holdfast.dev.fixtures import SessionBroker
from holdfast.dev.ports import free_ports
from tests.agents.fleet import Fleet
from tests.console.shop import rated_totals, totals
from tests.support import fork_server
from tests.support.harness import wait_for
from tests.support.patience import DEADLINE_S, SCENARIO_S
from tests.support.places import ROOT

PARTITIONS = 4


@contextmanager
def running_fleet(broker: SessionBroker, folder: Path, *, rated: bool = False) -> Iterator[Fleet]:
    """Give a fleet without workers yet, whose topics are there; of `rated_totals`, or of `totals` alone."""
    times = {"message.timestamp.type": "LogAppendTime"}
    source = broker.create_topic("orders", partitions=PARTITIONS, config=times)
    fleet = Fleet(
        broker,
        folder,
        app="console",
        partitions=PARTITIONS,
        module="tests.console.shop",
        declare=lambda settings: [rated_totals(source) if rated else totals(source)],
        standbys=1,
    )
    fleet.environment["CONSOLE_SOURCE"] = source
    if rated:
        fleet.environment["CONSOLE_RATED"] = "1"
        for more in ("rates", "counted"):
            broker.create_topic(f"{source}-{more}", partitions=PARTITIONS, exact=True, config=times)
    create_topics(fleet.settings, fleet.processors, partitions=PARTITIONS)
    try:
        yield fleet
    finally:
        fleet.close()


def shown_text(page: str) -> str:
    """Return the text that a person reads on a page: no tags, and not the style, whose names are words
    too.
    """
    return re.sub(r"<[^>]*>", "", re.sub(r"<style.*?</style>", "", page, flags=re.DOTALL))


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
            with urllib.request.urlopen(self.url + path, timeout=DEADLINE_S) as reply:
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
            text = shown_text(self.get(path))
            return text if text and all(each in text for each in wanted) else None

        return wait_for(
            f"{path} shows {wanted}", look, SCENARIO_S, lambda: self.get(path) + self.log.read_text()
        )

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(DEADLINE_S)
