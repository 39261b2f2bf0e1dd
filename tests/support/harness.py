"""Real workers on a real broker for tests: started, waited for, killed, stopped, frozen; and the load they
work on.

No test sleeps and hopes: every wait is for a condition, has a deadline, and on failure shows the last lines
of the workers' logs.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]  # the package does not declare what it re-exports

from holdfast.clients.topics.application import create_topics
from holdfast.config import Settings
from holdfast.dev import parent_death
from holdfast.dev.fixtures import SessionBroker
from holdfast.dev.ports import free_ports
from holdfast.pipeline.topic import TopicLog
from tests.chaos.counting import processors
from tests.support import fork_server
from tests.support.own_topics import ending
from tests.support.patience import DEADLINE_S, SCENARIO_S
from tests.support.places import ROOT

LEAST_POLL_S, MOST_POLL_S = 0.02, 0.2
RESTS, MOST_REST_S = 2, 1.0
"""A wait rests twice as long as its last look took, a second at most: some look at whole topics, and a busy
machine is not to do little else.
"""
COUNTING = "tests.chaos.worker"
REST_OF_WRITES_S = 0.05
ASK_DEADLINE_S, LOOK_DEADLINE_S = 60.0, 5.0
"""Timeout of a request to a worker; the second is for requests that only add detail to a failure."""

T = TypeVar("T")

TIMES: Mapping[str, float] = {
    "session_timeout_s": 6,
    "heartbeat_interval_s": 1,
    "rebalance_timeout_s": 60,
    "request_timeout_s": 60,
    "transaction_timeout_s": 10,
    "commit_timeout_s": 60,
    "stall_timeout_s": 60,
}
"""Times for which tests wait are short: until other workers own the partitions of a killed or frozen worker.
Times that end a worker are long, because its broker may stall for half a minute.
"""

UNDISTURBED: Mapping[str, float] = {
    "session_timeout_s": 120,
    "request_timeout_s": 120,
    "transaction_timeout_s": 120,
}
"""For tests in which no worker is killed, or each returns under its `instance_id`: a slow machine does not
make the group or the broker consider a worker dead.
"""

GATHERING = {"CHAOS_GATHER": "1", "HOLDFAST_LINGER_MS": "200"}
"""Slow streams of records are folded in rounds of a fifth of a second, which halves the processor time of
broker and workers compared with the default rounds of 8 to 40 ms. A test about those times sets `linger_ms`
itself.
"""


def wait_for(
    what: str, condition: Callable[[], T | None], deadline_s: float, context: Callable[[], str] = str
) -> T:
    """Return the first true value of *condition*; fails with *what* and *context* when it has none in
    *deadline_s*.
    """
    began_s = time.monotonic()
    while True:
        looked_s = time.monotonic()
        found = condition()
        if found:
            return found
        now_s = time.monotonic()
        if now_s - began_s > deadline_s:
            raise AssertionError(f"not within {deadline_s:.0f} s: {what}\n{context()}")
        # Later looks are rarer: they add less, and each costs the queried workers time.
        rest_s = min(MOST_REST_S, RESTS * (now_s - looked_s))
        time.sleep(max(rest_s, min(MOST_POLL_S, max(LEAST_POLL_S, (now_s - began_s) / 10))))


def add_partitions(config: Mapping[str, Any], topic: str, count: int) -> None:
    """Give *topic* partitions up to *count*, and return when the brokers report them. The controller answers
    earlier, and a producer that asks in between drops the records of a new partition.
    """
    admin = AdminClient(dict(config))
    admin.create_partitions([NewPartitions(topic, count)])[topic].result(DEADLINE_S)
    wait_for(
        f"{count} partitions of {topic}",
        lambda: len(admin.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions) == count,
        DEADLINE_S,
    )


def wait_for_ends(settings: Settings, topic: str) -> None:
    """Wait until no transaction is open in *topic*: a commit is acknowledged when it is decided, before
    its markers are written.
    """
    with TopicLog(settings, topic) as log:
        partitions = log.partitions()
        wait_for(
            f"the markers in {topic}", lambda: log.ends(partitions) == log.written(partitions), DEADLINE_S
        )


def end_transactions(bootstrap: str) -> None:
    """Follow docs/operating.md, "A transaction that never ends", while no producer is running."""
    words = ("--bootstrap", bootstrap, "producers", "hanging", "--end")
    command = [*fork_server.INTERPRETER, fork_server.COMMAND, *words]
    ran = fork_server.run(command, env=os.environ, cwd=ROOT, timeout=DEADLINE_S)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def module_command(module: str) -> list[str]:
    """Return the command that runs the app of *module* as a worker."""
    return [sys.executable, "-P", "-m", module, "--loop", "uvloop", "worker", "-l", "info"]


class Worker:
    """One worker process with its own data folder, port and log.

    It dies with the test process, whatever kills that.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        environment: Mapping[str, str],
        command: Sequence[str] = (),
        cwd: Path = ROOT,
    ) -> None:
        self.name, self.data, self.log = name, folder / name, folder / f"{name}.log"
        self._command, self._cwd = command or module_command(COUNTING), cwd
        self.port = free_ports(1)[0]
        self.url = f"http://127.0.0.1:{self.port}"
        self._environment = {
            **environment,
            "HOLDFAST_DATA_DIR": str(self.data),
            "HOLDFAST_WEB_PORT": str(self.port),
            "PYTHONPATH": str(ROOT),
        }
        self._process: fork_server.Process | None = None
        self._mark = 0

    # -- life

    def start(self, **more: str) -> Self:
        """Start the process; *more* are environment variables of this run alone."""
        assert not self.running, f"{self.name} runs already"
        self._mark = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as out:
            self._process = fork_server.start(
                self._command, env={**os.environ, **self._environment, **more}, cwd=self._cwd, out=out
            )
        return self

    @property
    def process(self) -> fork_server.Process:
        assert self._process is not None, f"{self.name} was never started"
        return self._process

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it by SIGKILL; returns when it is gone."""
        self.process.kill()
        self.process.wait(DEADLINE_S)

    def stop(self, deadline_s: float = DEADLINE_S) -> float:
        """End it by SIGTERM and return how long that took; fails when it does not end in time (as
        `wait_exit`) or not with 0.

        A process that is still importing dies of the signal as any program does.
        """
        began_s, young = time.monotonic(), not self.said(r"\[\^Worker\]: Starting")
        self.signal(signal.SIGTERM)
        code = self.wait_exit(deadline_s)
        assert code == 0 or (young and code == -signal.SIGTERM), (
            f"{self.name} ended with {code} after SIGTERM\n{self.tail()}"
        )
        return time.monotonic() - began_s

    def wait_exit(self, deadline_s: float) -> int:
        """Return the exit code, negative for a signal; fails after *deadline_s*."""
        try:
            return self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{self.name} did not end within {deadline_s:.0f} s\n{self.tail()}"
            ) from None

    def wait_exit_under(self, write: Callable[[int], object], deadline_s: float = DEADLINE_S) -> int:
        """Call *write* with 0, 1, 2, ... until the process ends; return its exit code. A busy machine makes
        few transactions, and large ones, so that no count of writes is certain to reach the transaction in
        which it dies.
        """
        began_s = time.monotonic()
        for at in itertools.count():
            write(at)
            try:
                return self.process.wait(REST_OF_WRITES_S)
            except subprocess.TimeoutExpired:
                if time.monotonic() - began_s > deadline_s:
                    break
        return self.wait_exit(0)

    def close(self) -> None:
        """End the process, paused or not."""
        if self.running:
            self.signal(signal.SIGCONT)
            self.kill()

    def share_data(self, other: Worker) -> Self:
        """Use the data folder of another worker, which is a mistake in production."""
        self.data = other.data
        self._environment["HOLDFAST_DATA_DIR"] = str(other.data)
        return self

    def wipe(self) -> None:
        """Lose the local state."""
        assert not self.running
        shutil.rmtree(self.data, ignore_errors=True)

    # -- log

    def said(self, pattern: str) -> list[str]:
        """Return the lines of this run's log that match."""
        return [line for line in self._text().splitlines() if re.search(pattern, line)]

    def _text(self) -> str:
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(self._mark)
            return log.read().decode(errors="replace")

    def tail(self, lines: int = 40) -> str:
        """Return the end of its log, for the message of a failed test; for a running worker also its stack
        traces.
        """
        before = self._text().splitlines()
        troubles = [
            line for line in before[:-lines] if re.search(r"\[(ERROR|CRITICAL)\]|^\w[\w.]*Error: ", line)
        ]
        out = [f"--- {self.name}, errors earlier in its log ---", *troubles[-lines:]] if troubles else []
        out += [f"--- {self.name}, the end of its log ---", *before[-lines:]]
        if self.running and self.said(r"\[\^Worker\]: Ready"):
            out += ["--- its readiness ---", *map(str, self.ask("/health/ready", LOOK_DEADLINE_S))]
            out.append(str(self.applied(timeout_s=LOOK_DEADLINE_S)))
            self.signal(signal.SIGUSR1)  # of which Faust makes the stacks of all threads and tasks
            time.sleep(1)
            stacks = self._text().splitlines()[len(before) :]
            out += [
                "--- its threads and tasks ---",
                *(line for line in stacks if re.match(r"THREAD|  TASK|\s+File |\s{4,}\S", line)),
            ]
        return "\n".join(line[:400] for line in out)

    def ask(self, path: str, timeout_s: float = ASK_DEADLINE_S) -> tuple[int, str]:
        """Return (status, body) of a GET; (0, cause) when nothing answers."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=timeout_s) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def metric(self, name: str, timeout_s: float = ASK_DEADLINE_S) -> dict[str, float]:
        """Return the samples of one metric by their labels' text; none when nothing answers."""
        status, page = self.ask("/metrics", timeout_s)
        if status != 200:
            return {}
        found = re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", page, re.MULTILINE)
        return {labels: float(value) for labels, value in found}

    def applied(self, role: str = "active", timeout_s: float = ASK_DEADLINE_S) -> dict[tuple[str, int], int]:
        """Return the position of each partition that this worker serves in *role*, by (processor,
        partition).
        """
        out = {}
        for labels, value in self.metric("holdfast_applied_offset", timeout_s).items():
            fields = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            if fields["role"] == role:
                out[fields["table"], int(fields["partition"])] = int(value)
        return out

    @property
    def ready(self) -> bool:
        return self.ask("/health/ready")[0] == 200

    def wait_ready(self, deadline_s: float = DEADLINE_S) -> Self:
        """Return when every partition assigned to it serves; fails at once when the process ends."""

        def condition() -> bool:
            assert self.running, (
                f"{self.name} ended with {self.process.returncode} before it was ready\n{self.tail()}"
            )
            return self.ready

        wait_for(f"{self.name} ready ({self.ask('/health/ready')[1]})", condition, deadline_s, self.tail)
        return self

    def wait_said(self, pattern: str, deadline_s: float) -> str:
        """Return the first line of this run's log that matches, if there is one."""
        return wait_for(f"{self.name} says {pattern!r}", lambda: self.said(pattern), deadline_s, self.tail)[0]


class Load:
    """The generator of load as a process of its own, which the test's own work cannot disturb."""

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, *, rate: int, limit: int, seed: int
    ) -> None:
        arguments = [bootstrap, topic, *map(str, (partitions, rate, limit, seed))]
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-S",
                parent_death.__file__,
                str(os.getpid()),
                sys.executable,
                "-P",
                "-m",
                "tests.chaos.load",
                *arguments,
            ],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def stop(self, deadline_s: float = DEADLINE_S) -> int:
        """End the load and return how many records it wrote, each acknowledged."""
        out, _ = self._process.communicate(timeout=deadline_s)
        assert self._process.returncode == 0, "the load failed"
        return int(out)

    def wait(self, deadline_s: float = SCENARIO_S) -> int:
        """Return how many records it wrote, when it has written all it was to."""
        code = self._process.wait(deadline_s)
        assert code == 0, "the load failed"
        return self.stop()

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(DEADLINE_S)


class Application:
    """One application with topics of its own: its workers, its load."""

    def __init__(
        self,
        broker: SessionBroker,
        folder: Path,
        *,
        partitions: int = 4,
        standbys: int = 0,
        module: str = COUNTING,
        environment: Mapping[str, str] | None = None,
        **settings: str | float,
    ) -> None:
        self.broker, self.folder, self.partitions, self._module = broker, folder, partitions, module
        self.name = f"chaos-{ending()}"
        self.source, self.out = f"{self.name}-in", f"{self.name}-out"
        kafka = {name: str(value) for name, value in broker.config.items()}
        replicas = int(settings.get("replication_factor", 1))
        self.settings = Settings(app=self.name, kafka=kafka, standbys=standbys, replication_factor=replicas)
        self.processors = processors(self.source, self.out)
        self._environment = {
            "HOLDFAST_APP": self.name,
            "HOLDFAST_STANDBYS": str(standbys),
            "CHAOS_SOURCE": self.source,
            "CHAOS_OUT": self.out,
            **{f"HOLDFAST_KAFKA__{name.upper().replace('.', '_')}": value for name, value in kafka.items()},
            **({} if "linger_ms" in settings else GATHERING),
            **{f"HOLDFAST_{name.upper()}": f"{value}" for name, value in {**TIMES, **settings}.items()},
            **(environment or {}),
        }
        self.workers: list[Worker] = []
        self._loads: list[Load] = []

    def create_topics(self, source: Mapping[str, str] | None = None) -> Self:
        """Create its topics, the source with *source* as its configuration."""
        config = {"message.timestamp.type": "LogAppendTime", **(source or {})}
        self.broker.create_topic(self.source, partitions=self.partitions, config=config, exact=True)
        create_topics(self.settings, self.processors, partitions=self.partitions)
        return self

    def remake_topic(self, topic: str) -> None:
        """Delete one of holdfast's own topics and make it again, empty."""
        self.broker.delete_topics([topic])
        admin = AdminClient(self.broker.client_config())
        wait_for(
            f"{topic} to be gone",
            lambda: topic not in admin.list_topics(timeout=DEADLINE_S).topics,
            DEADLINE_S,
        )
        create_topics(self.settings, self.processors)

    def worker(self, name: str = "", **settings: str | float) -> Worker:
        """Return a new worker, not yet started, with its own *settings* on top of the application's."""
        environment = {
            **self._environment,
            **{f"HOLDFAST_{key.upper()}": f"{value}" for key, value in settings.items()},
        }
        worker = Worker(
            name or f"w{len(self.workers) + 1}", self.folder, environment, module_command(self._module)
        )
        self.workers.append(worker)
        return worker

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of `holdfast` on this application; its module must have `processors`."""
        return fork_server.run(
            [*fork_server.INTERPRETER, fork_server.COMMAND, "-A", f"{self._module}:processors", *words],
            env={**os.environ, **self._environment, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            timeout=DEADLINE_S,
        )

    def load(self, *, rate: int, limit: int = 1_000_000, seed: int = 1) -> Load:
        """Start writing to the source: *rate* records a second, *limit* at most."""
        load = Load(self.broker.bootstrap, self.source, self.partitions, rate=rate, limit=limit, seed=seed)
        self._loads.append(load)
        return load

    @property
    def live(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.running]

    def tails(self) -> str:
        return "\n".join(worker.tail() for worker in self.workers)

    def wait_applied(self, ends: Mapping[int, int], deadline_s: float) -> dict[tuple[str, int], Worker]:
        """Return the worker that serves each partition, once every partition of both tables has reached the
        last offset in *ends* (-1 for an empty one).
        """
        wanted = {
            (processor.name, partition): last
            for processor in self.processors
            for partition, last in ends.items()
        }

        def condition() -> dict[tuple[str, int], Worker] | None:
            serving = {
                place: (at, worker)
                for worker in self.live
                if worker.ready
                for place, at in worker.applied().items()
            }
            assert self.live, f"no worker runs\n{self.tails()}"
            if {place: at for place, (at, _) in serving.items()} != wanted:
                return None
            return {place: worker for place, (_, worker) in serving.items()}

        return wait_for(f"positions {wanted}", condition, deadline_s, self.tails)

    def close(self) -> None:
        """End every process of it."""
        for load in self._loads:
            load.close()
        for worker in self.workers:
            worker.close()


@contextlib.contextmanager
def running(application: Application) -> Iterator[Application]:
    """Give the application; all it started is gone afterwards."""
    try:
        yield application
    finally:
        application.close()
