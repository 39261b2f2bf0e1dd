"""The demo: the whole of holdfast on real parts in about a minute, told step by step, every statement of it checked."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from holdfast.agents.rationalizer import processors
from holdfast.clients.admin import Admin, create_topics, require_topics
from holdfast.clients.topics import CreateTopic
from holdfast.clock import system_clock
from holdfast.core.frames import STALE_AFTER_S
from holdfast.core.processor import Processor
from holdfast.dev import capture, jars
from holdfast.dev.desk import Desk, Snapshot, compare
from holdfast.dev.fleet import TICK_S, Fleet, FleetPlan, LiveFleet
from holdfast.dev.procfile import Process
from holdfast.dev.stage import SESSION_TIMEOUT_S, Stage
from holdfast.dev.telling import Teller, quantile
from holdfast.errors import DemoError

READY_DEADLINE_S = 45.0
TAKEOVER_DEADLINE_S = 60.0
SCAN_TIMEOUT_S = 20.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """How large the fleet is, how long it is watched, and whether all of it goes on afterwards."""

    clients: int = 200
    claims: int = 2_000
    watch_s: float = 6.0
    rounds: int = 100
    keep: bool = False
    folder: Path | None = None


@dataclass(slots=True, kw_only=True)
class Seen:
    """What the scenes measured."""

    live_records: int = 0
    live_s: float = 0.0
    visible_s: list[float]
    takeover_s: float = 0.0


class Interrupted(BaseException):
    """The demo was asked to end by a signal. Not an Exception, so that nothing on the way takes it for a failure."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGHUP into Interrupted, once; the block's clean-up is then left to finish."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number)

    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Scenes:
    """The part of the demo on Kafka and the workers, scene by scene."""

    def __init__(self, options: DemoOptions, stage: Stage, teller: Teller, runner: asyncio.Runner) -> None:
        self.options, self.stage, self._teller, self._runner = options, stage, teller, runner
        self.fleet = Fleet(FleetPlan(clients=options.clients, claims=options.claims))
        self.seen = Seen(visible_s=[])
        self.recorded = capture.records()
        self.claims: Processor[Any, Any]
        self.desk: Desk

    # -- setting up

    def broker(self) -> None:
        with self._teller.step("Start a Kafka broker"):
            self._teller.waiting("waiting until it answers")
            jars.class_path(progress=self._teller.say)
            began_s = system_clock.monotonic_s()
            self.stage.start_broker()
            took_s = system_clock.monotonic_s() - began_s
            self._teller.say(f"Kafka {jars.KAFKA_VERSION}, one KRaft node, answers at {self.stage.cluster.bootstrap} after {took_s:.1f} s.")

    def topics(self) -> None:
        settings = self.stage.settings
        (self.claims,) = processors(settings)
        with self._teller.step("Create the topics"):
            admin = Admin(settings)
            actions = create_topics(settings, [self.claims], partitions=capture.PARTITIONS, admin=admin)
            require_topics(settings, [self.claims], admin=admin)
            made = [action.spec.name for action in actions if isinstance(action, CreateTopic)]
            self._teller.say(
                f"{settings.coordination_topic}: {capture.PARTITIONS} partitions, dated by the broker. Every claim is a fold of what is in it.",
                f"{self.claims.changelog(settings.app)}: compacted; the table, as a log.",
            )
            self._teller.note(f"Beside them: {', '.join(name for name in made if name not in self._main_topics())}.")

    def _main_topics(self) -> tuple[str, str]:
        settings = self.stage.settings
        return settings.coordination_topic, self.claims.changelog(settings.app)

    def workers(self) -> None:
        with self._teller.step("Start two workers from the Procfile"):
            self._teller.waiting("waiting until they share the partitions and serve them")
            self.stage.start_workers()
            owners = self._shared(self.stage.workers)
            for worker in self.stage.workers:
                self._teller.say(
                    f"{worker.name} (pid {worker.pid}) folds and serves {_partitions(_places(owners, worker))} at {worker.url}."
                )

    # -- what is in the log

    def recording(self) -> None:
        with self._teller.step("Load a recorded fleet"):
            capture.load(self.stage.settings, self.recorded)
            kinds = Counter(each.value.partition("/")[0] for each in self.recorded)
            self._teller.say(
                f"{len(self.recorded)} frames of the original Go library: {kinds['ClaimingPartition']} claims, {kinds['Heartbeat']} heartbeats, "
                f"{kinds['ReleasingPartition']} releases, recorded over 510 s of real traffic."
            )
            self._teller.note(
                "This broker dates them now: under LogAppendTime their own times cannot be kept. In this log no owner was silent",
                f"for {STALE_AFTER_S} s, so where the recorded fleet took over from silent owners, here the first owner keeps the claim.",
            )

    def arrival(self, live: LiveFleet) -> None:
        plan = self.fleet.plan
        with self._teller.step(f"Let {plan.clients:,} clients claim {plan.claims:,} partitions"):
            self._teller.waiting("waiting until every claim is in the log")
            began_s = system_clock.monotonic_s()
            live.arrived()
            took_s = system_clock.monotonic_s() - began_s
            self._teller.say(f"{live.written:,} frames in {took_s:.1f} s. Each claim was contested by a second client, which lost.")

    def life(self, live: LiveFleet) -> None:
        plan, before = self.fleet.plan, live.written
        with self._teller.step(f"Watch them live for {self.options.watch_s:g} s"):
            began_s = system_clock.monotonic_s()
            self._run(self._watch(live, self.options.watch_s))
            took_s, written = system_clock.monotonic_s() - began_s, live.written - before
            self.seen.live_records, self.seen.live_s = written, took_s
            counts = self.fleet.counts
            self._teller.say(
                f"{written:,} frames, {written / took_s:,.0f} a second: a heartbeat of each claim every {plan.heartbeat_s:g} s (60 s in real life), "
                f"{counts.handovers} hand-overs, {counts.restarts} clients restarted under new instance ids."
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
            owners = self._run(self.desk.owners())
            redirects = self._run(self._ask_everyone(owners))
            urls = len(self.stage.workers)
            self._teller.say(
                f"Each of {urls} workers was asked for each partition over HTTP: its own it answered, for {redirects} others it named the owner."
            )
            self._read_your_writes()

    def _read_your_writes(self) -> None:
        self._teller.waiting(f"writing and reading back {self.options.rounds} times")
        delays = self._run(self.desk.rounds(self.options.rounds))
        self.seen.visible_s += delays
        p50, p99 = (1000 * quantile(delays, share) for share in (0.5, 0.99))
        self._teller.say(
            f"TableClient, {len(delays)} times: write a heartbeat, ask for its row as of the offset Kafka acknowledged, compare.",
            f"The answer held every time, {p50:.0f} ms after the acknowledgement (p50; p99 {p99:.0f} ms).",
        )

    async def _ask_everyone(self, owners: Mapping[int, str]) -> int:
        """Ask every running worker for a row of every partition; return how many times it pointed to the owner."""
        redirects = 0
        for place, owner in sorted(owners.items()):
            written = await self.desk.write(place)
            await self.desk.read_back(written, SCAN_TIMEOUT_S)
            for worker in self.stage.workers:
                if worker.running:
                    answered_by = await self.desk.answered_by(worker.url, written)
                    if answered_by != owner:
                        raise DemoError(f"{worker.url} says that {answered_by} serves partition {place}; its owner is {owner}")
                    redirects += worker.url != owner
        return redirects

    # -- trouble

    def kill(self, live: LiveFleet) -> Process:
        owners = self._run(self.desk.owners())
        victim = max(self.stage.workers, key=lambda worker: len(_places(owners, worker)))
        lost = _places(owners, victim)
        (survivor,) = (worker for worker in self.stage.workers if worker is not victim)
        with self._teller.step(f"Kill {victim.name} with SIGKILL"):
            before, killed_s = live.written, system_clock.monotonic_s()
            victim.kill()
            self._teller.say(f"pid {victim.pid} is gone; it folded {_partitions(lost)}. The fleet goes on writing.")
            served_s = self._run(self._takeover(lost, killed_s))
            self.seen.takeover_s = max(served_s.values())
            survivor.check()
            live.check()
            self._teller.say(
                f"{survivor.name} answers for {_partitions(lost)} after {self.seen.takeover_s:.1f} s, records written after the kill included.",
            )
            self._teller.note(
                f"Kafka waits {SESSION_TIMEOUT_S:g} s (the session timeout) before it gives a silent worker's partitions away. {live.written - before:,} frames",
                "were written meanwhile. The survivor held a standby of each partition and read only the rest of its log.",
            )
        with self._teller.step("Ask the survivor"):
            owners = self._run(self.desk.owners())
            if set(owners.values()) != {survivor.url}:
                raise DemoError(f"{survivor.name} at {survivor.url} should own every partition, the workers topic says {owners}")
            self._run(self._ask_everyone(owners))
            self._read_your_writes()
        return victim

    async def _takeover(self, lost: Sequence[int], killed_s: float) -> dict[int, float]:
        """Write to each lost partition and return after how many seconds since the kill its row was served again."""

        async def served(place: int) -> float:
            written = await self.desk.write(place)
            await self.desk.read_back(written, TAKEOVER_DEADLINE_S)
            return system_clock.monotonic_s() - killed_s

        async def count() -> None:
            while True:
                self._teller.waiting(f"asking for its partitions; {system_clock.monotonic_s() - killed_s:.1f} s since the kill")
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
            self._teller.say(
                f"{worker.name} serves {_partitions(_places(owners, worker))} after {took_s:.1f} s: its RocksDB survived, only the tail was read."
            )

    # -- books

    def books(self, live: LiveFleet) -> Snapshot:
        """Stop the fleet and hold the table against its books; return the table."""
        plan, counts = self.fleet.plan, self.fleet.counts
        with self._teller.step("Stop the fleet and compare its books with the table"):
            self._teller.waiting("reading every row through the workers")
            live.stop()
            ends = self.ends()
            records = sum(end + 1 for end in ends.values())
            written = len(self.recorded) + live.written + self.desk.frames
            if records != written:
                raise DemoError(f"{written} frames were written, but the log holds {records}")
            table = self._run(self.desk.table(ends, SCAN_TIMEOUT_S))
            compare(table.rows, self.fleet.entries)
            self._teller.say(
                f"{records:,} frames gave {len(table.rows):,} rows. For all {plan.claims:,} claims of the fleet owner, instance, epoch and offset",
                f"are what the clients did, and all {counts.zombies} heartbeats of replaced instances were refused.",
            )
        return table

    def ends(self) -> dict[int, int]:
        """Return the offset of the last record of each partition that has any."""
        topic = self.stage.settings.coordination_topic
        found = Admin(self.stage.settings).offsets((topic, place) for place in range(capture.PARTITIONS))
        return {place: end - 1 for (_, place), (_, end) in found.items() if end}

    # -- within

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def _shared(self, among: Sequence[Process]) -> dict[int, str]:
        return self._run(self.desk.shared_among([worker.url for worker in among], READY_DEADLINE_S, self.stage.check_workers))


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
