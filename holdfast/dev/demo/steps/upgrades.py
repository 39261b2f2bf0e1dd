"""Steps of the demo: a table goes from one version to the next, which begins from the lake, worker by worker,
while it is written and asked without a pause.
"""

from __future__ import annotations

import urllib.request
from collections import Counter
from functools import partial
from http import HTTPStatus

import msgspec

from holdfast.clients.tables.blocking import BlockingTableClient
from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.application import create_topics
from holdfast.clock import system_clock
from holdfast.config import Settings
from holdfast.core.engine.declared.partitioners import by_key
from holdfast.dev.demo.beside import Beside
from holdfast.dev.demo.environment import DemoEnvironment
from holdfast.dev.demo.narrator import Teller, UpgradeFindings
from holdfast.dev.demo.processes.procfile import Process
from holdfast.dev.demo.processes.visiting import SOURCE, Visit, visits, visits_next
from holdfast.dev.demo.steps.claims import BROKER_TIME, new_topic
from holdfast.dev.waits import wait_until
from holdfast.errors import DemoError, HoldfastError
from holdfast.kafka.clients import make_writer

PARTITIONS, PAGES, WRITTEN_A_SECOND = 2, 16, 200
FIRST_VISITS = 500
DEADLINE_S, STOP_GRACE_S, FLUSH_S, READY_S = 120.0, 20.0, 60.0, 2.0
BEFORE, NEXT = "holdfast.dev.demo.processes.visiting", "holdfast.dev.demo.processes.visiting_next"


class UpgradeSteps:
    """A one-table application, simulated visitors, and a client that queries the counts."""

    def __init__(self, stage: DemoEnvironment, teller: Teller) -> None:
        self._stage, self._teller = stage, teller
        self._settings = stage.upgrade_settings

    def play(self) -> UpgradeFindings:
        """Run the steps; what does not hold is a HoldfastError. No worker runs afterwards."""
        admin = Admin(self._settings)
        admin.apply([new_topic(SOURCE, PARTITIONS, BROKER_TIME)])
        for version in (visits, visits_next):
            create_topics(self._settings, [version], partitions=PARTITIONS, admin=admin)
        with Visitors(self._settings) as visitors, VisitReader(self._settings) as reader:
            workers = self._start(visitors, reader)
            begun = self._begin(reader)
            workers = self._roll(workers, visitors, reader)
            return self._hold(workers, visitors, reader, begun)

    # -- steps

    def _start(self, visitors: Visitors, reader: VisitReader) -> list[Process]:
        with self._teller.step("Count visits in a table, and ask for it without a pause"):
            self._teller.waiting("waiting for the first answers")
            workers = [self._stage.upgrader(f"visits-{number}", BEFORE) for number in (1, 2)]

            def is_asked() -> bool:
                return reader.answers[1] > 0 and visitors.written >= FIRST_VISITS

            wait_until("answers of version 1", is_asked, DEADLINE_S, check=reader.check)
            self._teller.say(
                f"Two workers, {WRITTEN_A_SECOND} visits a second, and a reader that asks for all {PAGES}"
                " pages again and again."
            )
        return workers

    def _begin(self, reader: VisitReader) -> int:
        """Begin version 2 with what history makes of it, and return how many visits that were."""
        # Imported where it is used: what these bring along takes a second to load.
        from holdfast.pipeline.bootstrap.bootstrap import BootstrapOptions, bootstrap
        from holdfast.pipeline.bootstrap.sink import BootstrapOutcome
        from holdfast.pipeline.landing.land import land
        from holdfast.pipeline.landing.options import LandOptions
        from holdfast.pipeline.replay import ReplayOptions
        from holdfast.pipeline.verify.table import verify

        with self._teller.step("Land the visits in the lake, and begin the table's next version from there"):
            self._teller.waiting("landing")
            lake = str(self._stage.folder / "lake")
            landed = land(self._settings, SOURCE, lake, options=LandOptions(engine="local"))
            self._teller.waiting("folding, and writing a changelog")
            history = ReplayOptions(engine="local", source="history", lake=lake)
            began_s = system_clock.monotonic_s()
            done = bootstrap(visits_next, self._settings, BootstrapOptions(replay=history)).partitions
            took_s = system_clock.monotonic_s() - began_s
            begun, rows = sum(each.records for each in done), sum(each.rows for each in done)
            whole = all(each.outcome is BootstrapOutcome.WRITTEN for each in done)
            if not whole or rows != PAGES or begun < landed.rows:
                raise DemoError(f"version 2 began with {begun} of {landed.rows} landed visits: {done}")
            self._teller.waiting("folding once more, and comparing")
            if not verify(visits_next, self._settings, history).equal:
                raise DemoError("version 2 did not begin with what a replay makes of its history")
            reader.check()
            self._teller.say(
                f"{landed.rows:,} visits from the lake and {begun - landed.rows:,} that came since became"
                f" {rows} rows of version 2 in {took_s:.1f} s. A replay makes the same of them. Visitors,"
                " workers of version 1 and the reader went on meanwhile."
            )
        return begun

    def _roll(self, workers: list[Process], visitors: Visitors, reader: VisitReader) -> list[Process]:
        with self._teller.step("Replace worker by worker with those of the next version"):
            after = []
            for number, worker in enumerate(workers, 1):
                self._teller.waiting(
                    f"waiting until the {('first', 'second')[number - 1]} new worker is ready"
                )
                worker.stop(grace_s=STOP_GRACE_S)
                after.append(self._stage.upgrader(f"visits-next-{number}", NEXT))
                wait_until(
                    "a new worker that is ready", partial(is_ready, after[-1]), DEADLINE_S, check=reader.check
                )
            wait_until("answers of version 2", lambda: reader.answers[2] > 0, DEADLINE_S, check=reader.check)
            self._teller.say(
                "A new worker restores version 2, goes on behind it, and is ready when it has caught up;"
                " until then, version 1 was folded on and answered. One record in"
                f" {self._settings.workers_topic} made version 2 the current one."
            )
        return after

    def _hold(
        self, workers: list[Process], visitors: Visitors, reader: VisitReader, begun: int
    ) -> UpgradeFindings:
        with self._teller.step("Stop the visitors, and hold the table against what they did"):
            expected = visitors.stop()
            wait_until(
                f"{sum(expected.values()):,} visits in version 2",
                lambda: reader.last == expected and reader.last_version == 2,
                DEADLINE_S,
                check=reader.check,
            )
            reader.finish()
            for worker in workers:
                worker.stop(grace_s=STOP_GRACE_S)
            found = UpgradeFindings(
                visits=sum(expected.values()),
                begun=begun,
                answers=sum(reader.answers.values()),
                pause_s=reader.longest_s,
            )
            self._teller.say(
                f"{found.visits:,} visits, each counted once in version 2. {reader.answers[1]:,} answers of"
                f" version 1, then {reader.answers[2]:,} of version 2, and never a step back; the longest"
                f" time without one was {found.pause_s:.1f} s."
            )
        return found


def is_ready(worker: Process) -> bool:
    """Return whether a worker reports that it is ready."""
    worker.check()
    try:
        with urllib.request.urlopen(f"{worker.url}/health/ready", timeout=READY_S) as reply:
            return bool(reply.status == HTTPStatus.OK)
    except OSError:  # of which HTTP's refusals are a kind
        return False


class Visitors(Beside):
    """Visits pages in turn; *written* are its visits so far."""

    def __init__(self, settings: Settings) -> None:
        super().__init__("visitors", within_s=FLUSH_S)
        self._producer = make_writer(settings.producer())
        self._visits: Counter[str] = Counter()
        self.written = 0

    def stop(self) -> dict[str, int]:
        """Return how often each page was visited, once all of that is written."""
        self.finish()
        if left := self._producer.flush(FLUSH_S):
            raise DemoError(f"{left} visits were not written in {FLUSH_S:g} s")
        return dict(self._visits)

    def work(self) -> None:
        encode, began_s = msgspec.json.Encoder().encode, system_clock.monotonic_s()
        while not self.stopping.is_set():
            page = f"page-{self.written % PAGES}"
            place = by_key(page, PARTITIONS) or 0
            self._producer.produce(SOURCE, encode(Visit(page, self.written % 60)), page.encode(), place)
            self._producer.poll(0)
            self._visits[page] += 1
            self.written += 1
            due_s = began_s + self.written / WRITTEN_A_SECOND
            self.stopping.wait(max(0.0, due_s - system_clock.monotonic_s()))


class VisitReader(Beside):
    """Asks for all pages, in whichever version is current, and checks that no count falls: it asks for
    answers as of the offsets that it has seen at least, since another version may lag a moment.

    *answers* are counted by version; *longest_s* is the longest time from one to the next.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__("what the table answers does not hold", within_s=DEADLINE_S)
        self._settings = settings
        self.answers: Counter[int] = Counter()
        self.last: dict[str, int] = {}
        self._seen: dict[int, int] = {}
        self.last_version, self.longest_s, self._answered_s = 0, 0.0, 0.0

    def work(self) -> None:
        pages = [f"page-{number}" for number in range(PAGES)]
        with BlockingTableClient(self._settings, [visits_next], earlier=[visits]) as tables:
            while not self.stopping.is_set():
                self._ask(tables, pages)
                self.stopping.wait(0.02)

    def _ask(self, tables: BlockingTableClient, pages: list[str]) -> None:
        try:
            found = tables.get_many(visits_next.name, pages, at_least=self._seen, timeout_s=2)
        except HoldfastError:
            return  # no worker answers; that time is counted
        now_s = system_clock.monotonic_s()
        if self.answers:
            self.longest_s = max(self.longest_s, now_s - self._answered_s)
        self._answered_s = now_s
        self._seen = {answer.partition: answer.as_of_offset for answer in found.values()}
        counts = {page: answer.value.visits for page, answer in found.items() if answer.value is not None}
        version = min(answer.version for answer in found.values())
        if back := [page for page, count in self.last.items() if counts.get(page, 0) < count]:
            raise DemoError(
                f"{back[0]} went from {self.last[back[0]]} visits back to {counts.get(back[0], 0)}"
            )
        if version < self.last_version:
            raise DemoError(f"version {version} answered after version {self.last_version}")
        self.answers[version] += 1
        self.last, self.last_version = counts, version
