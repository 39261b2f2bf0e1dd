"""Steps of the demo: writers put orders and their messages into SQLite, harvesters publish them, one is
killed, and an audit follows.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import TypeVar

from holdfast.clients.topics.admin import Admin
from holdfast.clock import system_clock
from holdfast.dev.demo.environment import DemoEnvironment
from holdfast.dev.demo.narrator import OutboxFindings, Teller
from holdfast.dev.demo.processes.procfile import Process
from holdfast.dev.demo.steps import outbox_proof
from holdfast.dev.demo.steps.claims import new_topic
from holdfast.dev.demo.steps.outbox_proof import DemoOrder, Published, PublishedReader
from holdfast.dev.waits import wait_until
from holdfast.errors import DemoError
from holdfast.outbox.harvest.table.row_types import ShardLeader
from holdfast.outbox.harvest.table.rows import OutboxRows
from holdfast.outbox.schema.migrate import upgrade

TOPIC, PARTITIONS, WRITERS, HARVESTERS = "orders", 4, 3, 2
PUBLISHED_BEFORE_KILL = 150
PUBLISHED_AFTER_KILL = 100
START_DEADLINE_S = TAKEOVER_DEADLINE_S = EMPTY_DEADLINE_S = 120.0
STOP_GRACE_S = 20.0
BUSY_S = 120.0
T = TypeVar("T")


class OutboxSteps:
    """A database with an outbox, services that write to it, and the harvesters that empty it."""

    def __init__(self, stage: DemoEnvironment, teller: Teller) -> None:
        self._stage, self._teller = stage, teller
        self._settings = stage.service_settings
        self._database = stage.folder / "shop.db"
        self._url = f"sqlite:///{self._database}"
        self._writers: list[Process] = []
        self._harvesters: dict[str, Process] = {}
        self.session_s = 3 * self._settings.outbox_heartbeat_timeout_s

    def play(self) -> OutboxFindings:
        """Run the steps; what does not hold is a HoldfastError.

        Neither writer nor harvester runs afterwards.
        """
        self._prepare()
        with OutboxRows(self._url) as rows, PublishedReader(self._settings, TOPIC, PARTITIONS) as reader:
            leader = self._start(rows, reader)
            takeover_s = self._kill(leader, rows, reader)
            rolled_back = self._stop(rows)
        orders = self._audit()
        return OutboxFindings(
            orders=orders, rolled_back=rolled_back, takeover_s=takeover_s, session_s=self.session_s
        )

    # -- steps

    def _prepare(self) -> None:
        Admin(self._settings).apply([new_topic(TOPIC, PARTITIONS, {})])
        upgrade(self._url)
        with closing(sqlite3.connect(self._database)) as connection:
            connection.execute(
                "CREATE TABLE orders (id INTEGER PRIMARY KEY AUTOINCREMENT, customer TEXT NOT NULL, cents"
                " INTEGER NOT NULL)"
            )
            connection.commit()

    def _start(self, rows: OutboxRows, reader: PublishedReader) -> ShardLeader:
        with self._teller.step(
            f"Take orders in {WRITERS} services, into SQLite, each with its message in the same transaction"
        ):
            self._teller.waiting("waiting until a harvester is elected and publishes")
            for number in range(1, WRITERS + 1):
                arguments = ("holdfast.dev.demo.processes.writer", str(self._database), TOPIC, str(number))
                self._writers.append(self._stage.actor(f"writer-{number}", *arguments))
            for number in range(1, HARVESTERS + 1):
                name = f"harvester-{number}"
                harvest = ("outbox", "harvest", "--database", self._url, "--instance", name)
                self._harvesters[name] = self._stage.actor(name, "holdfast.cli", *harvest)
            seen: list[Published] = []
            self._until(
                "the first messages",
                lambda: len(self._more(seen, reader)) >= PUBLISHED_BEFORE_KILL,
                START_DEADLINE_S,
            )
            leader = self._leader(rows)
            self._teller.say(
                f"{HARVESTERS} harvesters run, {leader.leader} was elected and publishes; the other one"
                " stands by. One order in ten is rolled back after its message was written."
            )
        return leader

    def _kill(self, leader: ShardLeader, rows: OutboxRows, reader: PublishedReader) -> float:
        process = self._harvesters.pop(leader.leader)
        with self._teller.step(f"Kill {leader.leader} with SIGKILL, in the middle of it"):
            self._teller.waiting("waiting until the other one publishes")
            killed_s = system_clock.monotonic_s()
            process.kill()
            self._teller.say(
                f"pid {process.pid} is gone, whatever it had begun. The services go on taking orders and"
                " notice nothing."
            )
            seen: list[Published] = []
            first_s: list[float] = []

            def published() -> bool:
                fresh = [
                    each
                    for each in self._more(seen, reader)
                    if each.stamp and each.stamp.epoch > leader.epoch
                ]
                if fresh and not first_s:
                    first_s.append(system_clock.monotonic_s())
                return len(fresh) >= PUBLISHED_AFTER_KILL

            self._until("messages of another harvester", published, TAKEOVER_DEADLINE_S)
            takeover_s, heir = first_s[0] - killed_s, self._leader(rows)
            self._teller.say(
                f"{heir.leader} publishes after {takeover_s:.1f} s, as epoch {heir.epoch}; the session is"
                f" {self.session_s:g} s. It read how far {leader.leader} had come from Kafka itself, deleted"
                " what was published, and went on with the next number."
            )
        return takeover_s

    def _stop(self, rows: OutboxRows) -> int:
        with self._teller.step("Stop the services and let the outbox run empty"):
            self._teller.waiting("waiting until no row is left")
            rolled_back = 0
            for writer in self._writers:
                writer.stop(grace_s=STOP_GRACE_S)
                counts = re.search(r"(\d+) orders taken, (\d+) rolled back", writer.last_words())
                if counts is None:
                    raise DemoError(
                        f"{writer.name} did not end in order; the end of {writer.log} says:"
                        f" {writer.last_words()}"
                    )
                rolled_back += int(counts[2])
            self._writers.clear()
            self._until("the outbox to run empty", lambda: rows.count() == 0, EMPTY_DEADLINE_S)
            if set_aside := rows.status().quarantined:
                raise DemoError(f"{set_aside} rows were set aside; nothing is wrong with them")
            for harvester in self._harvesters.values():
                harvester.stop(grace_s=STOP_GRACE_S)
        return rolled_back

    def _audit(self) -> int:
        with self._teller.step("Hold the topic against the database"):
            self._teller.waiting("reading the topic from its beginning")
            orders = self._orders()
            with PublishedReader(self._settings, TOPIC, PARTITIONS) as reader:
                published = reader.to_end()
            with PublishedReader(self._settings, TOPIC, PARTITIONS, committed=False) as reader:
                unseen = len(reader.to_end()) - len(published)
            if found := [*outbox_proof.flaws(orders, published), *outbox_proof.gaps(published)]:
                shown = "; ".join(found[: outbox_proof.SHOWN])
                raise DemoError(f"{len(found)} findings among {len(published)} messages of {TOPIC}: {shown}")
            self._teller.say(
                f"{len(orders):,} orders, {len(published):,} messages: each order once, each customer's in"
                " order, not one that was rolled back, and the harvesters' numbers without a gap from the"
                " first leader to the second."
            )
            self._teller.waiting("auditing")
            audit = (
                "audit",
                "outbox",
                "--outbox",
                str(self._settings.outbox_name),
                "--number",
                "number",
                "--engine",
                "local",
            )
            self._teller.say(
                f"The same by what the topics alone say, for any outbox: `holdfast {' '.join(audit)}`."
            )
            self._teller.show(self._stage.command(*audit))
            if unseen:
                self._teller.note(
                    f"{unseen:,} more lie in the log, of a transaction that died with its harvester; no"
                    " reader of committed ones sees them."
                )
        return len(orders)

    # -- within

    def _orders(self) -> dict[int, DemoOrder]:
        with closing(sqlite3.connect(self._database, timeout=BUSY_S)) as connection:
            found = connection.execute("SELECT id, customer, cents FROM orders").fetchall()
        return {number: DemoOrder(number, customer, cents) for number, customer, cents in found}

    @staticmethod
    def _leader(rows: OutboxRows) -> ShardLeader:
        (lease,) = rows.status().leases
        return lease

    @staticmethod
    def _more(seen: list[Published], reader: PublishedReader) -> list[Published]:
        seen += reader.take()
        return seen

    def _until(self, what: str, found: Callable[[], T | None], within_s: float) -> T:
        return wait_until(what, found, within_s, check=self._check)

    def _check(self) -> None:
        for process in (*self._writers, *self._harvesters.values()):
            process.check()
