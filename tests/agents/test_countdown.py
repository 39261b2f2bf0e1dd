"""A processor may fold what it emits, through an internal topic: each record once, whatever is killed, and a next version anew."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast.clients.topics.application import create_topics
from holdfast.dev.fixtures import SessionBroker
from holdfast.pipeline.verify import read_live
from tests.agents.countdown import Folded, countdown
from tests.agents.fleet import Writer
from tests.support.harness import Application, running, wait_for

PARTITIONS = 2
DEADLINE_S = 60.0
ROW = b"\x02"
"""The first byte of a row's key on the changelog."""
decode = msgspec.msgpack.Decoder(Folded).decode


class Countdowns(Application):
    """The application, and what numbers were written."""

    def __init__(self, broker: SessionBroker, folder: Path) -> None:
        super().__init__(broker, folder, partitions=PARTITIONS, module="tests.agents.countdown")
        self._writer, self._wanted = Writer(broker), Counter[str]()
        broker.create_topic(
            self.source,
            partitions=PARTITIONS,
            config={"message.timestamp.type": "LogAppendTime"},
            exact=True,
        )

    def make(self, version: int) -> None:
        """Make the topics of *version*, in which workers start from here on."""
        create_topics(self.settings, [countdown(self.source, version)])
        self._environment["COUNTDOWN_VERSION"] = str(version)

    def write(self, numbers: list[int]) -> None:
        self._writer.write_all(
            self.source, [(b"%d" % each, None, place % PARTITIONS, 0) for place, each in enumerate(numbers)]
        )
        for number in numbers:
            self._wanted.update(map(str, range(number + 1)))

    def folded(self, version: int) -> Counter[str]:
        """Return how often each number was folded by what is on the changelog."""
        found: Counter[str] = Counter()
        for part in read_live(countdown(self.source, version), self.settings):
            for key, value in part.stored.items():
                if key[:1] == ROW:
                    found[key[1:].decode()] += decode(value[1:]).times
        return found

    def wait_folded(self, version: int) -> None:
        wait_for(
            f"all folded in version {version}",
            lambda: self.folded(version).total() >= self._wanted.total(),
            DEADLINE_S,
            self.tails,
        )
        assert self.folded(version) == self._wanted


@pytest.fixture
def countdowns(broker: SessionBroker, tmp_path: Path) -> Iterator[Countdowns]:
    with running(Countdowns(broker, tmp_path)) as application:
        assert isinstance(application, Countdowns)
        yield application


def test_what_goes_round_is_folded_once_though_workers_are_killed_and_anew_by_a_next_version(
    countdowns: Countdowns,
) -> None:
    chance = random.Random(1)
    countdowns.make(1)
    for _ in range(2):
        worker = countdowns.worker().start().wait_ready()
        before = countdowns.folded(1).total()
        countdowns.write([chance.randrange(40) for _ in range(20)])
        wait_for(
            "some are folded",
            lambda before=before: countdowns.folded(1).total() > before + 20,  # type: ignore[misc]
            DEADLINE_S,
            countdowns.tails,
        )
        worker.kill()
    worker = countdowns.worker().start().wait_ready()
    countdowns.wait_folded(1)
    worker.stop()
    countdowns.make(2)
    countdowns.worker().start().wait_ready()
    countdowns.wait_folded(2)
    verified = countdowns.command("verify", "countdown")
    assert verified.returncode == 0, verified.stdout + verified.stderr
