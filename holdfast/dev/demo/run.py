"""The demo: the whole of holdfast on real parts in about two minutes, narrated step by step, with every
statement checked.
"""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from holdfast.clock import system_clock
from holdfast.dev import processes
from holdfast.dev.demo.environment import SESSION_TIMEOUT_S, DemoEnvironment, Running
from holdfast.dev.demo.narrator import (
    ClaimFindings,
    DayFindings,
    JoinFindings,
    Measurements,
    OutboxFindings,
    Teller,
    UpgradeFindings,
    Way,
    console_for_people,
    summary,
)
from holdfast.dev.demo.processes import fleet_process
from holdfast.dev.demo.processes.capture import PARTITIONS
from holdfast.dev.demo.processes.fleet import LiveFleet
from holdfast.dev.demo.steps.claims import ClaimSteps
from holdfast.dev.demo.steps.days import DaySteps
from holdfast.dev.demo.steps.joins import JoinSteps
from holdfast.dev.demo.steps.outbox import OutboxSteps
from holdfast.dev.demo.steps.upgrades import UpgradeSteps
from holdfast.dev.demo.steps.workers import DemoOptions, WorkerSteps
from holdfast.dev.signals import EndingSignals
from holdfast.errors import DemoError, HoldfastError

__all__ = ["DemoOptions", "run_demo"]

NEEDS = ("faust", "deltalake", "pyarrow", "alembic")
SPARK_NEEDS = ("pyspark", "delta")
Pointers = list[tuple[str, str]]


def run_demo(options: DemoOptions, console: Console | None = None) -> Measurements:
    """Run the demo, print it, and return its measurements; a broken promise is a HoldfastError.

    Its processes have ended when this returns or raises, unless they were to be kept and everything held. It
    must be called in the main thread: a signal to end raises Interrupted there.
    """
    _require_packages(options)
    teller = Teller(console or console_for_people())
    with EndingSignals():
        stage = DemoEnvironment(keep=options.keep, folder=options.folder, embedded=options.embedded)
        try:
            with stage, asyncio.Runner() as runner:
                found, pointers = _play(options, stage, teller, runner)
        except HoldfastError:
            if stage.folder.exists():
                teller.say(f"It ends here. The logs are in {stage.folder}; nothing runs any more.")
            raise
    teller.close(summary(found, pointers))
    return found


def _play(
    options: DemoOptions, stage: DemoEnvironment, teller: Teller, runner: asyncio.Runner
) -> tuple[Measurements, Pointers]:
    _introduce(teller, options, stage)
    _start_broker(teller, stage)
    with WorkerSteps(options, stage, teller, runner) as steps:
        steps.topics()
        steps.workers()
        steps.recording()
        with LiveFleet(stage.settings, steps.fleet, partitions=PARTITIONS) as live:
            steps.arrival(live)
            steps.life(live)
            steps.questions()
            steps.comeback(steps.kill(live))
            table = steps.books(live)
        # Imported where Spark is about to be used: what it brings along takes a second to load.
        from holdfast.dev.demo.steps.proof import Proof

        ways = Proof(stage, steps.claims, teller, steps.seen.ends).ways(table)
    joined = JoinSteps(stage, teller).play()
    counted = DaySteps(stage, teller).play()
    upgraded = UpgradeSteps(stage, teller).play()
    claimed = ClaimSteps(stage, teller).play()
    outbox = OutboxSteps(stage, teller).play()
    pointers = _leave_running(stage, steps) if options.keep else _end(teller, stage)
    found = _findings(
        steps,
        ways,
        joined,
        counted,
        upgraded,
        claimed,
        outbox,
        rows=len(table.rows),
        elapsed_s=teller.elapsed_s,
    )
    return found, pointers


def _require_packages(options: DemoOptions) -> None:
    for name in NEEDS if options.embedded else (*SPARK_NEEDS, *NEEDS):
        if name not in sys.modules and importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _introduce(teller: Teller, options: DemoOptions, stage: DemoEnvironment) -> None:
    fate = "goes on afterwards, until `holdfast demo down`" if options.keep else "is gone afterwards"
    kafka = "an embedded Kafka" if options.embedded else "a real Kafka"
    again = (
        "the same log is folded again from the topic and from a Delta table (on Spark too in the full demo,"
        " which needs a JDK)"
        if options.embedded
        else "Spark folds the same log again"
    )
    teller.open(
        "holdfast demo",
        f"{options.clients:,} clients share {options.claims:,} partitions through {kafka}. Two workers fold"
        f" what they write into a table, one of them is killed, and {again}. Then two streams are joined, a"
        " day is counted live and again from its backlog, a table goes to its next version while it is asked,"
        " three services claim the partitions of a topic, and an outbox in SQLite is published; all but the"
        " table lose a process to SIGKILL in the middle."
        f" All of it runs on this machine, reachable from nowhere else, in {stage.folder}, and {fate}.",
    )


def _start_broker(teller: Teller, stage: DemoEnvironment) -> None:
    with teller.step("Start a Kafka broker"):
        teller.waiting("looking for what it needs")
        stage.broker.prepare(lambda words: teller.say(f"{words[:1].upper()}{words[1:]}."))
        teller.waiting("waiting until it answers")
        began_s = system_clock.monotonic_s()
        stage.start_broker()
        took_s = system_clock.monotonic_s() - began_s
        teller.say(f"{stage.broker.words} answers at {stage.broker.bootstrap} after {took_s:.1f} s.")


def _end(teller: Teller, stage: DemoEnvironment) -> Pointers:
    with teller.step("End everything"):
        teller.waiting("ending the workers and the broker")
        started = [(worker.name, worker.pid, worker.birth) for worker in (*stage.workers, *stage.actors)]
        nodes, spark = stage.broker.running(), "" if stage.is_embedded else ", Spark's JVM"
        stage.close(keep_logs=False)
        left = [name for name, pid, birth in started if birth is not None and processes.is_alive(pid, birth)]
        left += stage.broker.running()
        if left or stage.folder.exists():
            raise DemoError(
                f"still there: {', '.join([*left, *([str(stage.folder)] if stage.folder.exists() else [])])};"
                " end or remove it yourself"
            )
        teller.say(
            f"{len(stage.workers)} workers, {len(stage.actors)} services and harvesters, {len(nodes)} broker"
            f" node{spark} and {stage.folder} are gone."
        )
    return [
        ("look around", f"{_program()} demo --keep    the same, left running, with its addresses"),
        ("your own", "examples/counting.py    a whole application: one decode, one fold, one table"),
        (
            "services",
            (
                "examples/services/billing.py, examples/services/ordering.py    a service that claims; an"
                " outbox in ten lines"
            ),
        ),
        ("the rules", "docs/PROTOCOL.md    what the workers made of the frames, and why"),
    ]


def _leave_running(stage: DemoEnvironment, steps: WorkerSteps) -> Pointers:
    child = fleet_process.start(steps.fleet, stage.folder, stage.config, partitions=PARTITIONS)
    birth = processes.birth_of(child.pid)
    if birth is None:
        raise DemoError(f"the fleet ended at once; see {stage.folder / 'fleet.log'}")
    stage.also(Running(name="fleet", pid=child.pid, birth=birth))
    stage.leave_running()
    holdfast, (place, url) = f"{_program()} --config {_shown(stage.config)}", min(steps.seen.owners.items())
    return [
        (
            "running",
            f"Kafka at {stage.broker.bootstrap}, the fleet at a tenth of its pace, and two workers:",
        ),
        *((worker.name, f"{worker.url}/tables  {worker.url}/metrics") for worker in stage.workers),
        ("watch", f"{holdfast} claims watch"),
        ("a page of rows", f"curl '{url}/tables/claims/{place}/scan?limit=3'"),
        ("prove it again", f"{holdfast} verify claims"),
        ("logs and data", str(stage.folder)),
        (
            "end it",
            f"{_program()} demo down" + ("" if stage.is_default else f" --dir {_shown(stage.folder)}"),
        ),
    ]


def _program() -> str:
    """Return how to call holdfast from here."""
    beside = Path(sys.executable).with_name("holdfast")
    return "holdfast" if shutil.which("holdfast") or not beside.exists() else _shown(beside)


def _shown(path: Path) -> str:
    """Return *path* as short as it can be typed in this folder."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _findings(
    steps: WorkerSteps,
    ways: Sequence[Way],
    joined: JoinFindings,
    day: DayFindings,
    upgraded: UpgradeFindings,
    claimed: ClaimFindings,
    outbox: OutboxFindings,
    *,
    rows: int,
    elapsed_s: float,
) -> Measurements:
    seen, counts, plan = steps.seen, steps.fleet.counts, steps.fleet.plan
    return Measurements(
        records=sum(end + 1 for end in seen.ends.values()),
        rows=rows,
        clients=plan.clients,
        claims=plan.claims,
        handovers=counts.handovers,
        restarts=counts.restarts,
        refused=counts.zombies,
        live_rate=seen.live_records / seen.live_s,
        visible_s=seen.visible_s,
        takeover_s=seen.takeover_s,
        session_timeout_s=SESSION_TIMEOUT_S,
        ways=ways,
        joined=joined,
        day=day,
        upgraded=upgraded,
        claimed=claimed,
        outbox=outbox,
        elapsed_s=elapsed_s,
    )
