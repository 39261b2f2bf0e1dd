"""A table goes from one version to the next while it is asked without a pause: on real workers."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.clients.tables.answers import Answer
from holdfast.clients.tables.client import TableClient
from holdfast.clients.tables.switching import TableSwitch
from holdfast.clients.topics.application import create_topics
from holdfast.core.engine.declared.partitioners import by_key
from holdfast.dev.fixtures import SessionBroker
from holdfast.errors import BrokerError, NotReadyError, QueryError
from tests.agents.fleet import Fleet, Writer
from tests.agents.versioned import Counted, Weighed, versioned
from tests.support.harness import Worker, wait_for
from tests.support.limits import Slowness, check
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT
from tests.support.proof import read_topic

KEYS = [f"k{number}" for number in range(20)]
RECORDS = 2_000
NEXT = {"VERSIONED": "2"}
TAKEOVER_S = 15.0
"""No pause between two answers is longer: a session of 6 s, a rebalance and a restore on a busy machine."""


class Versioned(Fleet):
    """Two partitions, and both versions of their table."""

    def __init__(self, broker: SessionBroker, folder: Path, *, emits: bool = True) -> None:
        super().__init__(
            broker,
            folder,
            app="versioned",
            partitions=2,
            module="tests.agents.versioned",
            declare=lambda settings: [versioned(settings.app, emits=emits)],
            standbys=0,
        )
        self.held = folder / "held"
        """While this file is there, no worker gets far with version 2."""
        self.environment["VERSIONED_HELD"] = str(self.held)
        self.create_topics()
        self.old, self.new = self.processors[0], versioned(self.settings.app, 2, emits=emits)
        create_topics(self.settings, [self.new])
        self.source, self.writer = f"{self.settings.app}-in", Writer(broker)

    def write(self, count: int, text: str = "abc") -> None:
        """Append *count* records, in turn for each key."""
        keys = [KEYS[number % len(KEYS)] for number in range(count)]
        self.writer.write_all(
            self.source,
            [(f"{key} {text}".encode(), key.encode(), by_key(key, self.partitions) or 0, 0) for key in keys],
        )

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `holdfast tables` for the application in version 2."""
        return subprocess.run(
            [
                sys.executable,
                "-P",
                "-m",
                "holdfast.cli",
                "-A",
                "tests.agents.versioned",
                "tables",
                *arguments,
            ],
            env={**os.environ, **self.environment, "VERSIONED": "2", "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    def emitted(self) -> dict[str, list[bytes]]:
        """Return the committed emits of each key, in order."""
        found: dict[str, list[bytes]] = {}
        for messages in read_topic(self.broker, f"{self.settings.app}-out").values():
            for message in messages:
                found.setdefault((message.key() or b"").decode(), []).append(message.value() or b"")
        return found


@pytest.fixture
def fleet(broker: SessionBroker, tmp_path: Path) -> Iterator[Versioned]:
    fleet = Versioned(broker, tmp_path)
    try:
        yield fleet
    finally:
        fleet.close()


class Asker(threading.Thread):
    """Asks for every key again and again, knowing both versions, until it is stopped. `answers` are
    (monotonic time, answer of k0).
    """

    def __init__(self, fleet: Versioned) -> None:
        super().__init__(daemon=True)
        self._fleet, self._ended = fleet, threading.Event()
        self.answers: list[tuple[float, Answer[Any]]] = []
        self.odd: list[str] = []
        self.longest_s, self._answered_s = 0.0, time.monotonic()
        self._slowness, self._slower = Slowness(), 1.0

    def start(self) -> None:
        self._slowness.start()
        super().start()

    def run(self) -> None:
        asyncio.run(self._ask())

    async def _ask(self) -> None:
        fleet, last = self._fleet, dict.fromkeys(KEYS, 0)
        async with TableClient(fleet.settings, [fleet.new], earlier=[fleet.old]) as tables:
            while not self._ended.is_set():
                with suppress(QueryError, BrokerError):
                    found = await tables.get_many(fleet.new, KEYS, timeout_s=10)
                    self._note(found, last)
                await asyncio.sleep(0.01)

    def _note(self, found: dict[str, Answer[Any]], last: dict[str, int]) -> None:
        now_s = time.monotonic()
        self.longest_s, self._answered_s = max(self.longest_s, now_s - self._answered_s), now_s
        self.answers.append((now_s, found["k0"]))
        for key, answer in found.items():
            kind = Counted if answer.version == 1 else Weighed
            if not isinstance(answer.value, kind):
                self.odd.append(f"{key}: {answer}")
            elif answer.value.count < last[key]:
                self.odd.append(f"{key} went back from {last[key]}: {answer}")
            else:
                last[key] = answer.value.count

    def seen(self) -> set[tuple[int, str]]:
        """Return the versions and roles that have answered."""
        return {(answer.version, answer.role) for _, answer in self.answers}

    def stop(self) -> None:
        self._ended.set()
        self.join(DEADLINE_S)
        self._slower = self._slowness.stop()
        self.longest_s = max(self.longest_s, time.monotonic() - self._answered_s)

    def check(self) -> None:
        """Fail where answers were odd, or away for longer than a takeover takes on this machine."""
        assert self.odd == []
        away_s = self.longest_s - self._slowness.stalled_s
        check(away_s, TAKEOVER_S, self._slower, "the longest time without an answer")


def counts(fleet: Versioned, version: int, least: int, *, timeout_s: float = DEADLINE_S) -> dict[str, int]:
    """Return the rows' counts once they are *least* in all."""
    processor = fleet.old if version == 1 else fleet.new

    async def scan() -> dict[str, int]:
        async with TableClient(fleet.settings, [processor]) as tables:
            found = tables.scan(processor, timeout_s=timeout_s)
            return {answer.key: answer.value.count async for answer in found}

    return wait_for(
        f"{least} records in version {version}",
        lambda: rows if sum((rows := asyncio.run(scan())).values()) >= least else None,
        DEADLINE_S,
        fleet.tails,
    )


@pytest.mark.promise
def test_a_table_is_served_while_its_workers_are_rolled_to_the_next_version(fleet: Versioned) -> None:
    old, other = fleet.worker().start(), fleet.worker().start()
    fleet.wait_spread(old, other)
    fleet.write(RECORDS)
    counts(fleet, 1, RECORDS)
    asker = Asker(fleet)
    asker.start()
    try:
        wait_for("a first answer", lambda: asker.answers, DEADLINE_S, fleet.tails)
        for before in (old, other):
            fleet.held.touch()
            before.stop()
            new = fleet.worker(f"new-of-{before.name}").start(**NEXT)
            if before is old:  # the other may find its partition built already, by this one
                cause = wait_for("it says what it builds", partial(building, new), DEADLINE_S, fleet.tails)
                assert "version 2 of totals is being built and has not caught up with version 1" in cause
                new.kill()  # in the middle
                new.start(**NEXT)
            else:
                wait_for(
                    "the rows of before", lambda: (1, "earlier") in asker.seen(), DEADLINE_S, fleet.tails
                )
            fleet.write(len(KEYS))
            fleet.held.unlink()
            new.wait_ready()
        wait_for("version 2 answers", lambda: (2, "active") in asker.seen(), DEADLINE_S, fleet.tails)
        total = RECORDS + 2 * len(KEYS)
        after = counts(fleet, 2, total)
    finally:
        asker.stop()
    asker.check()
    assert (1, "active") in asker.seen()
    versions = [answer.version for _, answer in asker.answers]
    assert versions == sorted(versions), "the switch is one moment"
    assert after == dict.fromkeys(KEYS, total // len(KEYS)), "nothing is counted twice"
    assert_emits(fleet, total // len(KEYS))


@pytest.mark.variant
def test_the_version_before_is_folded_on_while_the_next_is_built_if_they_write_to_no_common_topic(
    broker: SessionBroker, tmp_path: Path
) -> None:
    with closing(Versioned(broker, tmp_path, emits=False)) as fleet:
        roll_beside(fleet)


def roll_beside(fleet: Versioned) -> None:
    silent = {"VERSIONED_SILENT": "1"}
    old, other = fleet.worker().start(**silent), fleet.worker().start(**silent)
    fleet.wait_spread(old, other)
    fleet.write(RECORDS)
    counts(fleet, 1, RECORDS)
    asker = Asker(fleet)
    asker.start()
    try:
        wait_for("a first answer", lambda: asker.answers, DEADLINE_S, fleet.tails)
        fleet.held.touch()
        old.stop()
        new = fleet.worker("new-1").start(**NEXT, **silent)
        wait_for("it says what it builds", partial(building, new), DEADLINE_S, fleet.tails)
        fleet.write(len(KEYS))
        on = counts(fleet, 1, RECORDS + len(KEYS))
        assert on == dict.fromkeys(KEYS, RECORDS // len(KEYS) + 1), "version 1 folds what comes"
        assert building(new), "and version 2 is still being built"
        fleet.held.unlink()
        new.wait_ready()
        assert new.applied().keys() == {("totals", 0), ("totals", 1)}
        wait_for("version 2 answers", lambda: (2, "active") in asker.seen(), DEADLINE_S, fleet.tails)
        assert asker.seen() == {(1, "active"), (2, "active")}
        other.stop()
        another = fleet.worker("new-2").start(**silent, **NEXT).wait_ready()
        fleet.wait_spread(new, another)
        fleet.write(len(KEYS))
        after = counts(fleet, 2, RECORDS + 2 * len(KEYS))
        assert counts(fleet, 1, 1) == on, "which nobody folds any more, and can be read for a while"
    finally:
        asker.stop()
    asker.check()
    assert after == dict.fromkeys(KEYS, RECORDS // len(KEYS) + 2)


@pytest.mark.variant
def test_when_all_workers_are_replaced_at_once_the_old_rows_are_read_and_the_switch_is_a_person_s(
    fleet: Versioned,
) -> None:
    old = fleet.worker().start().wait_ready()
    fleet.write(RECORDS)
    counts(fleet, 1, RECORDS)
    old.kill()
    by_command = {**NEXT, "HOLDFAST_SWITCH_VERSIONS": "command"}
    fleet.held.touch()
    new = fleet.worker().start(**by_command)  # which has none of the old one's files
    assert counts(fleet, 1, RECORDS) == dict.fromkeys(KEYS, RECORDS // len(KEYS))
    asker = Asker(fleet)
    asker.start()
    try:
        assert new.metric("holdfast_building") == {
            f'partition="{at}",table="totals",version="2"': 1.0 for at in range(2)
        }
        wait_for("the reason", partial(is_being_built, fleet), DEADLINE_S, fleet.tails)
        with pytest.raises(NotReadyError, match="partitions 0, 1 are being built"):
            TableSwitch(fleet.settings, "totals", timeout_s=DEADLINE_S).to(2)
        fleet.held.unlink()
        new.wait_ready()
        counts(fleet, 2, RECORDS)
        wait_for("an answer", lambda: asker.answers, DEADLINE_S, fleet.tails)
        assert asker.seen() == {(1, "earlier")}, "nobody has switched"
        for arguments, version, role in (
            (("--to", "2"), 2, "active"),
            (("--back",), 1, "earlier"),
        ):
            ran = fleet.command("switch", "totals", *arguments)
            assert ran.returncode == 0, ran.stdout + ran.stderr
            wait_for(
                f"version {version} answers", partial(answers, asker, version, role), DEADLINE_S, fleet.tails
            )
        shown = fleet.command("switch", "totals")
        assert [line.split()[1:4] for line in shown.stdout.splitlines()[1:]] == [
            ["1", "true", "true"],
            ["2", "false", "true"],
        ]
        new.stop()
        old.start().wait_ready()  # taken back altogether
        fleet.write(len(KEYS))
        after = counts(fleet, 1, RECORDS + len(KEYS))
    finally:
        asker.stop()
    assert after == dict.fromkeys(KEYS, RECORDS // len(KEYS) + 1), "it goes on from its own state"
    assert asker.odd == []


def answers(asker: Asker, version: int, role: str) -> bool:
    _, last = asker.answers[-1]
    return (last.version, last.role) == (version, role)


def is_being_built(fleet: Versioned) -> bool:
    """Return whether the answer was that; a slow machine may give none within 5 s."""
    with pytest.raises((BrokerError, NotReadyError)) as refused:
        counts(fleet, 2, 1, timeout_s=5)
    return "version 2 of totals is being built and has not caught up" in str(refused.value)


def building(worker: Worker) -> str | None:
    status, said = worker.ask("/health/ready")
    return said if status == 503 and "is being built" in said else None


def assert_emits(fleet: Versioned, each: int) -> None:
    """Version 1 has emitted up to where it was taken over, and not after; version 2 all from the
    beginning.
    """
    for key, values in fleet.emitted().items():
        ones = [value for value in values if value.startswith(b"v1")]
        assert ones == [b"v1 %d" % (at + 1) for at in range(len(ones))], key
        assert values[len(ones) :] == [b"v2 %d" % (at + 1) for at in range(each)], key
