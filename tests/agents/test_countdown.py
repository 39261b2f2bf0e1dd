"""A processor may fold what comes of what it emits, through an internal topic or by way of another processor:
each record once, whatever is killed, and a next version again, or silent up to where the one before ended.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.clients.topics.application import create_topics
from holdfast.core.engine.declared.processor import Processor
from holdfast.dev.fixtures import SessionBroker
from holdfast.pipeline.replay import ReplayOptions
from holdfast.pipeline.verify.table import read_live, verify
from tests.agents.countdown import Folded, declared
from tests.agents.fleet import Writer
from tests.support.harness import Application, running, wait_for
from tests.support.patience import DEADLINE_S

PARTITIONS = 2
DEEPEST = 12
"""So often a number goes round at most: each time is a transaction of its own."""
ROW = b"\x02"
"""The first byte of a row's key on the changelog."""
decode = msgspec.msgpack.Decoder(Folded).decode


class Countdowns(Application):
    """The application, and what numbers were written."""

    def __init__(self, broker: SessionBroker, folder: Path) -> None:
        super().__init__(broker, folder, partitions=PARTITIONS, module="tests.agents.countdown")
        self.echo = False
        self._writer, self._wanted, self._written = Writer(broker), Counter[str](), Counter[str]()
        broker.create_topic(
            self.source,
            partitions=PARTITIONS,
            config={"message.timestamp.type": "LogAppendTime"},
            exact=True,
        )

    def make(self, version: int) -> None:
        """Make the topics of *version*, in which workers start from here on."""
        create_topics(self.settings, self.declared(version), partitions=PARTITIONS)
        self._environment["COUNTDOWN_VERSION"] = str(version)
        if self.echo:
            self._environment["COUNTDOWN_ECHO"] = "1"

    def declared(self, version: int) -> list[Processor[Any, Folded]]:
        return declared(self.source, version, echo=self.echo)

    def write(self, numbers: list[int]) -> None:
        self._writer.write_all(
            self.source, [(b"%d" % each, None, place % PARTITIONS, 0) for place, each in enumerate(numbers)]
        )
        self._written.update(map(str, numbers))
        for number in numbers:
            self._wanted.update(map(str, range(number + 1)))

    def folded(self, version: int, name: str = "countdown") -> Counter[str]:
        """Return how often each number was folded by the changelog of a processor."""
        found: Counter[str] = Counter()
        (processor,) = [each for each in self.declared(version) if each.name == name]
        for part in read_live(processor, self.settings):
            for key, value in part.stored.items():
                if key[:1] == ROW:
                    found[key[1:].decode()] += decode(value[1:]).times
        return found

    def sent(self) -> Counter[str]:
        """Return the numbers that must have gone round: all that follow the numbers that were written."""
        return self._wanted - self._written

    def wait_folded(self, version: int) -> None:
        wait_for(
            f"all folded in version {version}",
            lambda: self.folded(version).total() >= self._wanted.total(),
            DEADLINE_S,
            self.tails,
        )
        assert self.folded(version) == self._wanted
        for each in self.declared(version):
            verdict = verify(each, self.settings, ReplayOptions(engine="local"))
            assert verdict.equal, [one.explain() for one in verdict.partitions]

    def wait_some(self, version: int, more: int) -> None:
        """Wait until *more* than now are folded."""
        before = self.folded(version).total()
        wait_for(
            "some are folded", lambda: self.folded(version).total() > before + more, DEADLINE_S, self.tails
        )


@pytest.fixture
def countdowns(broker: SessionBroker, tmp_path: Path) -> Iterator[Countdowns]:
    with running(Countdowns(broker, tmp_path)) as application:
        assert isinstance(application, Countdowns)
        yield application


def test_numbers_that_go_round_are_folded_once_though_workers_are_killed_and_again_by_a_next_version(
    countdowns: Countdowns,
) -> None:
    chance = random.Random(1)
    countdowns.make(1)
    worker = countdowns.worker().start().wait_ready()
    countdowns.write([chance.randrange(DEEPEST) for _ in range(20)])
    countdowns.wait_some(1, 20)
    worker.kill()
    worker = countdowns.worker().start().wait_ready()
    countdowns.wait_folded(1)
    worker.kill()
    countdowns.make(2)
    countdowns.worker().start().wait_ready()
    countdowns.wait_folded(2)


@pytest.mark.variant
def test_a_circle_through_plain_topics_counts_nothing_twice_though_a_next_version_takes_over_in_the_middle(
    countdowns: Countdowns,
) -> None:
    chance = random.Random(2)
    countdowns.echo = True
    countdowns.make(1)
    worker = countdowns.worker().start().wait_ready()
    countdowns.write([chance.randrange(DEEPEST) for _ in range(20)])
    countdowns.wait_some(1, 20)
    worker.kill()
    countdowns.make(2)
    countdowns.worker().start().wait_ready()
    countdowns.write([chance.randrange(DEEPEST) for _ in range(5)])
    countdowns.wait_folded(2)
    sent = countdowns.sent()
    assert countdowns.folded(2, "echo") == sent, "what was emitted, by both versions, is each round once"
