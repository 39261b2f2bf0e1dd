"""The steps of the demo on the broker and the workers, each narrated as it happens, with every statement
checked.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from holdfast.agents.services.rationalizer import processors
from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.application import create_topics, require_topics
from holdfast.clients.topics.types import CreateTopic
from holdfast.clock import system_clock
from holdfast.core.claims.claim_rows import Claim
from holdfast.core.claims.frames import STALE_AFTER_S
from holdfast.dev.demo.environment import SESSION_TIMEOUT_S, DemoEnvironment
from holdfast.dev.demo.narrator import Teller, quantile
from holdfast.dev.demo.processes import capture
from holdfast.dev.demo.processes.capture import PARTITIONS
from holdfast.dev.demo.processes.fleet import TICK_S, Fleet, FleetPlan, LiveFleet
from holdfast.dev.demo.processes.procfile import Process
from holdfast.dev.demo.processes.table_reader import Snapshot, TableReader, compare
from holdfast.errors import DemoError

READY_DEADLINE_S = 120.0
TAKEOVER_DEADLINE_S = 120.0
SCAN_TIMEOUT_S = 60.0
ROUNDS_S = 6.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """The size of the fleet, how long it is watched, whether all of it continues afterwards, and whether the
    Kafka is the embedded one.
    """

    clients: int = 200
    claims: int = 2_000
    watch_s: float = 6.0
    rounds: int = 100
    keep: bool = False
    embedded: bool = False
    folder: Path | None = None


@dataclass(slots=True, kw_only=True)
class StepFigures:
    """Measurements of the workers' steps."""

    live_records: int = 0
    live_s: float = 0.0
    takeover_s: float = 0.0
    visible_s: list[float] = field(default_factory=list)
    ends: Mapping[int, int] = field(default_factory=dict)
    owners: Mapping[int, str] = field(default_factory=dict)
    changelog_at_kill: Mapping[int, int] = field(default_factory=dict)


class WorkerSteps:
    """A fleet of clients, the workers that fold what it writes, and the reader that asks them."""

    def __init__(
        self, options: DemoOptions, stage: DemoEnvironment, teller: Teller, runner: asyncio.Runner
    ) -> None:
        self.options, self.stage, self._teller, self._runner = options, stage, teller, runner
        self._settings = stage.settings
        (self.claims,) = processors(self._settings)
        self._admin = Admin(self._settings)
        self.fleet = Fleet(FleetPlan(clients=options.clients, claims=options.claims))
        self.reader = TableReader(self._settings, self.claims, partitions=PARTITIONS)
        self.recorded = capture.records()
        self.seen = StepFigures()

    def __enter__(self) -> Self:
        self._run(self.reader.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._run(self.reader.__aexit__(kind, error, traceback))

    # -- setting up

    def topics(self) -> None:
        settings, changelog = self._settings, self.claims.changelog(self._settings.app)
        with self._teller.step("Create the topics"):
            actions = create_topics(settings, [self.claims], partitions=PARTITIONS, admin=self._admin)
            require_topics(settings, [self.claims], admin=self._admin)
            made = [action.spec.name for action in actions if isinstance(action, CreateTopic)]
            self._teller.say(
                f"{settings.coordination_topic}: {PARTITIONS} partitions, dated by the broker. The claims are"
                " a fold of this log."
            )
            self._teller.say(f"{changelog}: compacted; the table of claims, as a log.")
            self._teller.note(
                "Also"
                f" {' and '.join(name for name in made if name not in (settings.coordination_topic, changelog))}."  # noqa: E501
            )

    def workers(self) -> None:
        with self._teller.step("Start two workers from the Procfile"):
            self._teller.waiting("waiting until they share the partitions and serve them")
            self.stage.start_workers()
            owners = self._shared(self.stage.workers)
            for worker in self.stage.workers:
                self._teller.say(
                    f"{worker.name} (pid {worker.pid}) folds and serves"
                    f" {_partitions(_places(owners, worker))} at {worker.url}."
                )

    # -- the log's content

    def recording(self) -> None:
        with self._teller.step("Load a recorded fleet"):
            capture.load(self._settings, self.recorded)
            kinds = Counter(each.value.partition("/")[0] for each in self.recorded)
            self._teller.say(
                f"{len(self.recorded)} frames of the original Go library: {kinds['ClaimingPartition']}"
                f" claims, {kinds['Heartbeat']} heartbeats, {kinds['ReleasingPartition']} releases, recorded"
                " over 510 s of real traffic."
            )
            self._teller.note(
                "This broker dates them now: under LogAppendTime their own times cannot be kept. In this log"
                f" no owner was silent for {STALE_AFTER_S} s, so where the recorded fleet took over from"
                " silent owners, here the first owner keeps the claim."
            )

    def arrival(self, live: LiveFleet) -> None:
        plan = self.fleet.plan
        with self._teller.step(f"Let {plan.clients:,} clients claim {plan.claims:,} partitions"):
            self._teller.waiting("waiting until every claim is in the log")
            began_s = system_clock.monotonic_s()
            live.arrived()
            took_s = system_clock.monotonic_s() - began_s
            self._teller.say(
                f"{live.written:,} frames in {took_s:.1f} s. Each claim was contested by a second client,"
                " which lost."
            )

    def life(self, live: LiveFleet) -> None:
        plan, before = self.fleet.plan, live.written
        with self._teller.step(f"Watch them live for {self.options.watch_s:g} s"):
            began_s = system_clock.monotonic_s()
            self._run(self._watch(live, self.options.watch_s))
            took_s, written = system_clock.monotonic_s() - began_s, live.written - before
            self.seen.live_records, self.seen.live_s = written, took_s
            counts = self.fleet.counts
            self._teller.say(
                f"{written:,} frames, {written / took_s:,.0f} a second: a heartbeat of each claim every"
                f" {plan.heartbeat_s:g} s (60 s in real life), {counts.handovers} hand-overs,"
                f" {counts.restarts} clients restarted under new instance ids."
            )

    async def _watch(self, live: LiveFleet, for_s: float) -> None:
        until_s = system_clock.monotonic_s() + for_s
        while (left_s := until_s - system_clock.monotonic_s()) > 0:
            live.check()
            self.stage.check_workers()
            self._teller.waiting(f"{live.written:,} frames in the log, {left_s:.0f} s to go")
            await asyncio.sleep(min(left_s, 2 * TICK_S))

    # -- questions

    def questions(self) -> None:
        with self._teller.step("Ask both workers"):
            owners = self._run(self.reader.owners())
            redirects = self._run(self._ask_everyone(owners))
            self._teller.say(
                "Each was asked over HTTP for a row of every partition. The owner answered; the other one"
                f" named the owner, {redirects} times."
            )
            self._show_one()
            times, spans = self._read_your_writes()
            self._teller.say(
                f"Then, {times} times: a heartbeat written, its row asked for as of the offset that Kafka"
                f" acknowledged, and compared. Right every time, {spans}."
            )

    def _show_one(self) -> None:
        entry = max(self.fleet.entries, key=lambda entry: entry.epoch)
        answer = self._run(self.reader.tables.get(self.claims, entry.key))
        claim = answer.value
        if not isinstance(claim, Claim):
            raise DemoError(
                f"{entry.key} has no row as of offset {answer.as_of_offset} of partition {answer.partition}"
            )
        self._teller.say(
            f"For example {entry.key}: {claim.client_id} holds it in epoch {claim.epoch} and stands at offset"
            f" {claim.current_offset:,}. The answer reflects the log up to offset {answer.as_of_offset:,} of"
            f" partition {answer.partition}."
        )

    def _read_your_writes(self) -> tuple[int, str]:
        """Write and read back; return how many times, and in words how long the answers took."""
        self._teller.waiting("writing and reading back")
        delays = self._run(self.reader.rounds(self.options.rounds, ROUNDS_S))
        self.seen.visible_s += delays
        p50_ms, p99_ms = (1000 * quantile(delays, share) for share in (0.5, 0.99))
        return len(delays), f"{p50_ms:.0f} ms after the acknowledgement (p50; p99 {p99_ms:.0f} ms)"

    async def _ask_everyone(self, owners: Mapping[int, str]) -> int:
        """Ask every running worker for a row of every partition; return how many times it pointed to the
        owner.
        """
        redirects = 0
        for place, owner in sorted(owners.items()):
            written = await self.reader.write(place)
            await self.reader.read_back(written, SCAN_TIMEOUT_S)
            for worker in self.stage.workers:
                if worker.running:
                    answered_by = await self.reader.answered_by(worker.url, written)
                    if answered_by != owner:
                        raise DemoError(
                            f"{worker.url} says that {answered_by} serves partition {place}; its owner is"
                            f" {owner}"
                        )
                    redirects += worker.url != owner
        return redirects

    # -- trouble

    def kill(self, live: LiveFleet) -> Process:
        owners = self._run(self.reader.owners())
        victim = max(self.stage.workers, key=lambda worker: len(_places(owners, worker)))
        lost = _places(owners, victim)
        (survivor,) = (worker for worker in self.stage.workers if worker is not victim)
        with self._teller.step(f"Kill {victim.name} with SIGKILL"):
            self.seen.changelog_at_kill = self._ends(self.claims.changelog(self._settings.app))
            before, killed_s = live.written, system_clock.monotonic_s()
            victim.kill()
            self._teller.say(
                f"pid {victim.pid} is gone, and with it the owner of {_partitions(lost)}. The fleet goes on"
                " writing."
            )
            served_s = self._run(self._takeover(lost, killed_s))
            self.seen.takeover_s = max(served_s.values())
            survivor.check()
            live.check()
            self._teller.say(
                f"{survivor.name} answers for {_partitions(lost)} after {self.seen.takeover_s:.1f} s, with"
                " what was written since the kill."
            )
            self._teller.note(
                f"Most of that is the session timeout, {SESSION_TIMEOUT_S:g} s: so long Kafka waits for a"
                f" silent worker. {live.written - before:,} frames came meanwhile. The survivor kept a"
                " standby of each partition and had only the end of its log to read."
            )
        with self._teller.step("Ask the survivor"):
            owners = self._run(self.reader.owners())
            if set(owners.values()) != {survivor.url}:
                raise DemoError(
                    f"{survivor.name} at {survivor.url} should own every partition, the workers topic says"
                    f" {owners}"
                )
            self._run(self._ask_everyone(owners))
            times, spans = self._read_your_writes()
            self._teller.say(
                f"It answers for all {PARTITIONS} partitions. {times} more writes were read back: right every"
                f" time, {spans}."
            )
        return victim

    async def _takeover(self, lost: Sequence[int], killed_s: float) -> dict[int, float]:
        """Write to each lost partition and return after how many seconds since the kill its row was served
        again.
        """

        async def served(place: int) -> float:
            written = await self.reader.write(place)
            await self.reader.read_back(written, TAKEOVER_DEADLINE_S)
            return system_clock.monotonic_s() - killed_s

        async def count() -> None:
            while True:
                self._teller.waiting(
                    f"asking for its partitions; {system_clock.monotonic_s() - killed_s:.1f} s since the kill"
                )
                await asyncio.sleep(2 * TICK_S)

        counting = asyncio.create_task(count())
        try:
            return dict(zip(lost, await asyncio.gather(*(served(place) for place in lost)), strict=True))
        finally:
            counting.cancel()

    def comeback(self, worker: Process) -> None:
        with self._teller.step(f"Start {worker.name} again"):
            self._teller.waiting("waiting until it serves its share")
            began_s = system_clock.monotonic_s()
            self.stage.start_worker(worker)
            owners = self._shared(self.stage.workers)
            took_s = system_clock.monotonic_s() - began_s
            mine, self.seen.owners = _places(owners, worker), owners
            changelog = self._ends(self.claims.changelog(self._settings.app))
            restored = self._run(self.reader.metric(worker.url, "holdfast_restored_records_total"))
            read, kept = (
                sum(restored[place] for place in mine),
                sum(self.seen.changelog_at_kill[place] + 1 for place in mine),
            )
            there = sum(changelog[place] + 1 for place in mine)
            if read > there - kept // 2:
                raise DemoError(
                    f"{worker.name} read {read} of {there} changelog records: its stores should have outlived"
                    " the kill"
                )
            self._teller.say(
                f"{worker.name} serves {_partitions(mine)} after {took_s:.1f} s. Its stores outlived the"
                f" kill: of the {there:,} offsets in its changelogs it read {read:,} records, the rest."
            )

    # -- books

    def books(self, live: LiveFleet) -> Snapshot:
        """Stop the fleet and hold the table against its books; return the table, which nothing changes any
        more.
        """
        plan, counts = self.fleet.plan, self.fleet.counts
        with self._teller.step("Stop the fleet and compare its books with the table"):
            self._teller.waiting("reading every row through the workers")
            live.stop()
            ends = self.seen.ends = self._ends(self._settings.coordination_topic)
            records = sum(end + 1 for end in ends.values())
            written = len(self.recorded) + live.written + self.reader.frames
            if records != written:
                raise DemoError(f"{written} frames were written, but the log holds {records}")
            if quarantined := sum(end + 1 for end in self._ends(self._settings.quarantine_topic).values()):
                raise DemoError(f"{quarantined} frames were refused; see {self._settings.quarantine_topic}")
            table = self._run(self.reader.table(ends, SCAN_TIMEOUT_S))
            compare(table.rows, self.fleet.entries)
            self._teller.say(
                f"{records:,} frames gave {len(table.rows):,} rows. For all {plan.claims:,} claims of the"
                f" fleet owner, instance, epoch and offset are what the clients did, and all {counts.zombies}"
                " heartbeats of replaced instances were refused.",
            )
        return table

    def _ends(self, topic: str) -> dict[int, int]:
        """Return the offset of the last record of each partition that has any."""
        found = self._admin.offsets((topic, place) for place in range(PARTITIONS))
        return {place: end - 1 for (_, place), (_, end) in found.items() if end}

    # -- within

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def _shared(self, among: Sequence[Process]) -> dict[int, str]:
        return self._run(
            self.reader.shared_among(
                [worker.url for worker in among], READY_DEADLINE_S, self.stage.check_workers
            )
        )


def _places(owners: Mapping[int, str], worker: Process) -> list[int]:
    return sorted(place for place, url in owners.items() if url == worker.url)


def _partitions(places: Sequence[int]) -> str:
    """Return partitions as words.

    >>> _partitions([1]), _partitions([0, 2, 3])
    ('partition 1', 'partitions 0, 2 and 3')
    """
    if len(places) == 1:
        return f"partition {places[0]}"
    return f"partitions {', '.join(map(str, places[:-1]))} and {places[-1]}"
