"""The demo's environment: a broker, workers of the Procfile and a folder for all of it, with one owner that
ends everything.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from holdfast.config import Settings, load_settings
from holdfast.dev import ports
from holdfast.dev.demo.broker import ApacheBroker, DemoBroker, EmbeddedBroker, find_broker
from holdfast.dev.demo.processes import procfile
from holdfast.dev.demo.processes.procfile import Process
from holdfast.dev.processes import end, is_alive, kill
from holdfast.errors import DemoError

APP = "demo"
WORKERS = 2
SESSION_TIMEOUT_S, HEARTBEAT_INTERVAL_S = 6.0, 0.5
SERVICE = {
    "app": "post",
    "coordination_topic": "mail-claims",
    "claim_interval_s": 3.0,
    "outbox_name": "shop",
    "outbox_heartbeat_timeout_s": 2.0,
}
"""Settings of the services of the demo.

The fleet's claims are of 60 s, so these need a coordination topic of their own.
"""

UPGRADE = {"app": "pages", "session_timeout_s": 6.0, "heartbeat_interval_s": 0.5}
"""Settings of the application whose table is upgraded."""
JOIN = {"app": "ads", "instance_id": "joiner", "session_timeout_s": 6.0, "heartbeat_interval_s": 0.5}
"""Settings of the application that joins: a static member finds its partitions again when it is restarted."""

LIVE_RUN, BACKLOG_RUN = "live", "backlog"
DAY_WORKERS = f"{LIVE_RUN}-1", f"{BACKLOG_RUN}-1", f"{BACKLOG_RUN}-2"
"""The workers of two runs of one application, each a static member of its run's group."""
DAY = {"session_timeout_s": 6.0, "heartbeat_interval_s": 0.5, "fetch_records": 500}
"""Settings of that application: so few records at once that there is a middle of reading a day."""

KEPT_FOLDER = Path(".holdfast/demo")
STOP_GRACE_S = 10.0
COMMAND_DEADLINE_S = 120.0
BROKER_FOLDER = "broker"
_STATE_FILE = "demo.json"


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """A process that continues after the demo, known by more than its pid."""

    name: str
    pid: int
    birth: str


_decode = msgspec.json.Decoder(list[Running]).decode


class DemoEnvironment:
    """Everything the demo starts. Leaving the block ends it, whatever happened; with *keep* only a failure
    does.

    Processes die with this one even when it is killed (Linux), unless they are to be kept.
    """

    def __init__(self, *, keep: bool, folder: Path | None = None, embedded: bool = False) -> None:
        """Take *folder*, which must not exist or be empty, or one of the system's temporary folders (of
        this one, to keep). *embedded* takes the embedded Kafka instead of Apache's.
        """
        self.keep, self.is_embedded = keep, embedded
        if folder is None and not keep:
            self.folder = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
        else:
            self.folder = (folder or KEPT_FOLDER).absolute()
            if self.folder.exists() and any(self.folder.iterdir()):
                where = "" if self.is_default else f" --dir {self.folder}"
                raise DemoError(
                    f"{self.folder} is not empty: end the demo there with `holdfast demo down{where}`, or"
                    " choose another --dir"
                )
            self.folder.mkdir(parents=True, exist_ok=True)
        made = EmbeddedBroker if embedded else ApacheBroker.within
        self.broker: DemoBroker = made(self.folder / BROKER_FOLDER, detached=keep)
        self.config = self.folder / "holdfast.toml"
        self.service_config = self.folder / "service.toml"
        self.join_config = self.folder / "join.toml"
        self.upgrade_config = self.folder / "upgrade.toml"
        self.workers: list[Process] = []
        self.actors: list[Process] = []
        self.others: list[Running] = []
        self._done = self._closed = False

    @property
    def is_default(self) -> bool:
        """Return whether the folder is where `down` looks by itself."""
        return self.folder == KEPT_FOLDER.absolute()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.keep and self._done and kind is None:
            return
        self.close(keep_logs=isinstance(error, Exception))

    def start_broker(self) -> None:
        """Start Kafka and write the settings that every part of the demo reads."""
        self._note()
        self.broker.start()
        # A string in JSON is one in TOML too.
        kafka = "".join(
            f"{json.dumps(name)} = {json.dumps(value)}\n"
            for name, value in self.broker.client_config().items()
        )
        workers = {
            "app": APP,
            "session_timeout_s": SESSION_TIMEOUT_S,
            "heartbeat_interval_s": HEARTBEAT_INTERVAL_S,
        }
        for path, given in (
            (self.config, workers),
            (self.service_config, SERVICE),
            (self.join_config, JOIN),
            (self.upgrade_config, UPGRADE),
            *(
                (self._day_config(each), {"app": each[:-2], "instance_id": each, **DAY})
                for each in DAY_WORKERS
            ),
        ):
            holdfast = "".join(f"{name} = {json.dumps(value)}\n" for name, value in given.items())
            path.write_text(f"[holdfast]\n{holdfast}\n[kafka]\n{kafka}", encoding="utf-8")

    @property
    def settings(self) -> Settings:
        """Return the settings that workers and clients of the demo share."""
        return load_settings(flags={}, env={}, file=self.config)

    @property
    def service_settings(self) -> Settings:
        """Return the settings of the services that claim and of the outbox: they have another application,
        and a shorter interval.
        """
        return load_settings(flags={}, env={}, file=self.service_config)

    @property
    def join_settings(self) -> Settings:
        """Return the settings of the application that joins."""
        return load_settings(flags={}, env={}, file=self.join_config)

    def joiner(self, name: str, module: str) -> Process:
        """Start the application of *module* as a worker; it ends with the demo at the latest."""
        return self._worker(name, module, self.join_config)

    @property
    def upgrade_settings(self) -> Settings:
        """Return the settings of the application whose table is upgraded."""
        return load_settings(flags={}, env={}, file=self.upgrade_config)

    def upgrader(self, name: str, module: str) -> Process:
        """Start a worker of the application whose table is upgraded; it ends with the demo at the latest."""
        return self._worker(name, module, self.upgrade_config)

    def day_settings(self, worker: str) -> Settings:
        """Return the settings of a worker, one of DAY_WORKERS."""
        return load_settings(flags={}, env={}, file=self._day_config(worker))

    def day_reader(self, worker: str, module: str) -> Process:
        """Start one of DAY_WORKERS; it ends with the demo at the latest."""
        return self._worker(worker, module, self._day_config(worker))

    def _day_config(self, worker: str) -> Path:
        return self.folder / f"{worker}.toml"

    def _worker(self, name: str, module: str, settings: Path) -> Process:
        process = procfile.worker(
            name, module, port=ports.free_ports(1)[0], folder=self.folder, settings=settings
        )
        self.actors.append(process)
        process.start()
        return process

    def actor(self, name: str, *arguments: str) -> Process:
        """Start `python -P -m ARGUMENTS` for a step, with the settings of the services; it ends with the
        demo at the latest.
        """
        process = procfile.program(name, *arguments, folder=self.folder, settings=self.service_config)
        self.actors.append(process)
        process.start()
        return process

    def command(self, *arguments: str) -> str:
        """Return the output of `holdfast ARGUMENTS` with the settings of the services; DemoError when it
        fails.
        """
        command = [
            sys.executable,
            "-P",
            "-m",
            "holdfast.cli",
            "--config",
            str(self.service_config),
            *arguments,
        ]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=COMMAND_DEADLINE_S,
                check=False,
                cwd=self.folder,
            )
        except subprocess.TimeoutExpired as error:
            raise DemoError(
                f"`holdfast {' '.join(arguments)}` did not end within {COMMAND_DEADLINE_S:g} s"
            ) from error
        if done.returncode:
            raise DemoError(
                f"`holdfast {' '.join(arguments)}` ended with code {done.returncode}:"
                f" {(done.stdout + done.stderr).strip()[-800:]}"
            )
        return done.stdout

    def start_workers(self) -> None:
        """Start the workers; they are not ready yet."""
        self.workers = procfile.workers(
            WORKERS,
            ports=ports.free_ports(WORKERS),
            folder=self.folder,
            settings=self.config,
            detached=self.keep,
        )
        for worker in self.workers:
            self.start_worker(worker)

    def start_worker(self, worker: Process) -> None:
        """Start one worker, for the first time or again."""
        worker.start()
        self._note()

    def check_workers(self) -> None:
        """Raise DemoError if a worker that should run has ended."""
        for worker in self.workers:
            worker.check()

    def also(self, process: Running) -> None:
        """Take another process into what `down` ends."""
        self.others.append(process)
        self._note()

    def leave_running(self) -> None:
        """Note that the demo is complete: with `keep`, its processes continue."""
        self._done = True
        self._note()

    def close(self, *, keep_logs: bool) -> None:
        """End everything and remove the folder, all but the logs when those are asked for.

        Every wait in here has a deadline.
        """
        if self._closed:
            return
        self._closed = True
        with contextlib.ExitStack() as stack:
            stack.callback(self._clear, keep_logs)
            stack.callback(self.broker.stop)
            for process in (*self.workers, *self.actors):
                stack.callback(process.kill)
            for other in self.others:
                stack.callback(kill, other.pid, other.birth)

    def _clear(self, keep_logs: bool) -> None:
        if not keep_logs:
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        for path in sorted(self.folder.rglob("*"), reverse=True):
            if path.is_dir() and not path.is_symlink():
                with contextlib.suppress(OSError):
                    path.rmdir()
            elif (
                path.suffix != ".log"
                or "data" in path.relative_to(self.folder).parts
                or path.stat().st_size == 0
            ):
                path.unlink(
                    missing_ok=True
                )  # in data folders, .log is what Kafka and RocksDB call their own files
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def _note(self) -> None:
        if not self.keep:
            return
        workers = [
            Running(name=worker.name, pid=worker.pid, birth=worker.birth)
            for worker in self.workers
            if worker.running and worker.birth
        ]
        content = msgspec.json.format(msgspec.json.encode([*workers, *self.others]))
        fresh = self.folder / f"{_STATE_FILE}.new"
        fresh.write_bytes(content)
        fresh.replace(self.folder / _STATE_FILE)


def down(folder: Path) -> Sequence[str]:
    """End the demo that was kept in *folder*, remove the folder, and return the names of what ran."""
    folder = folder.absolute()
    try:
        kept = _decode((folder / _STATE_FILE).read_bytes())
    except FileNotFoundError:
        raise DemoError(f"no demo was kept in {folder}; `holdfast demo --keep` starts one there") from None
    except msgspec.DecodeError as error:
        raise DemoError(
            f"{folder / _STATE_FILE} is not a file of `holdfast demo` ({error}); remove it yourself"
        ) from error
    ended = []
    for process in reversed(kept):
        if is_alive(process.pid, process.birth):
            end(process.pid, process.birth, grace_s=STOP_GRACE_S)
            ended.append(process.name)
    broker = find_broker(folder / BROKER_FOLDER)
    if broker is not None:
        ended += broker.running()
        broker.stop()
    shutil.rmtree(folder, ignore_errors=True)
    return ended
