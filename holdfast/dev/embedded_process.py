"""An embedded Kafka in a process of its own, for `holdfast dev up --embedded`: it holds its records in memory
or in a folder, and runs until it is stopped.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from queue import SimpleQueue
from signal import SIGTERM, SIGUSR1
from typing import Any, NamedTuple

import msgspec

from holdfast.clock import system_clock
from holdfast.dev import parent_death, processes
from holdfast.dev.broker.properties import CLIENT_FILE, render
from holdfast.dev.signals import EndingSignals, Interrupted
from holdfast.embedded.configs.broker import settings_of
from holdfast.embedded.faults import EVERY_API
from holdfast.embedded.kafka import FOLDER_DEADLINE_S, NOTICE, EmbeddedKafka
from holdfast.embedded.security.acl_rules import AclRule
from holdfast.embedded.security.tls import EmbeddedTls
from holdfast.errors import DevBrokerError, HoldfastError

START_DEADLINE_S = 120.0  # for machines under load; a process that ends is noticed at once
STOP_GRACE_S = 5.0
_POLL_S = 0.02
_STATE, _LOG = "embedded.json", "embedded.log"
_ASKED, _ANSWERED = "embedded-fault-{}.json", ".answer"
CALL_DEADLINE_S = 60.0


class _State(msgspec.Struct, frozen=True):
    """The record of the process: its identity and its addresses."""

    pid: int
    birth: str
    endpoints: tuple[str, ...]
    client: dict[str, str] = {}
    """A client's properties besides the address: with a password, so the file is for this user alone."""
    kept_in: str = ""
    """The folder in which it keeps what it holds, "" for none: it is in memory."""
    seed: int | None = None
    properties: dict[str, str] = {}
    """The properties of Kafka that it was started with."""


_decode_state = msgspec.json.Decoder(_State).decode


class EmbeddedGuard(msgspec.Struct, frozen=True, kw_only=True):
    """The security of such a process: SASL over TLS for *users* (names and passwords), of which the first may
    do everything, and with *acls* the others what these rules allow.
    """

    users: dict[str, str]
    acls: tuple[AclRule, ...] | None = None

    def options(self, folder: Path) -> dict[str, Any]:
        """Return the arguments of `EmbeddedKafka`, with a certificate in *folder*."""
        super_users = [] if self.acls is None else [f"User:{next(iter(self.users))}"]
        tls = EmbeddedTls.made_in(folder)
        return {"users": self.users, "tls": tls, "acls": self.acls, "super_users": super_users}


class EmbeddedStart(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of such a process: its security, the folder of its data, the seed of its ids and faults,
    and server properties of Kafka (`settings_of`).
    """

    guard: EmbeddedGuard | None = None
    folder: Path | None = None
    fsync: bool = False
    seed: int | None = None
    properties: dict[str, str] = {}


_PLAIN = EmbeddedStart()


class EmbeddedFault(msgspec.Struct, frozen=True, kw_only=True):
    """The request of `holdfast dev fault`: a fault of answers as `Fault` has it, or one of those of the
    broker.
    """

    kind: str
    api: str = EVERY_API
    client: str = ""
    skip: int = 0
    times: int = 1
    share: float = 1.0
    delay_ms: int = 100
    node: int = 0
    topic: str = ""
    partition: int = 0
    offset: int = 0
    group: str = ""
    member: str = ""


_decode_start = msgspec.json.Decoder(EmbeddedStart, dec_hook=lambda kind, data: kind(data)).decode
_decode_fault = msgspec.json.Decoder(EmbeddedFault).decode


class EmbeddedStatus(NamedTuple):
    """One broker of it, as `holdfast dev status` shows it."""

    node_id: int
    endpoint: str
    condition: str
    pid: int | None


class EmbeddedProcess:
    """The embedded Kafka that was started in *folder*, by any process."""

    def __init__(self, folder: Path, state: _State) -> None:
        self.folder, self._state = folder, state

    @classmethod
    def find(cls, folder: Path) -> EmbeddedProcess | None:
        """Return the one that was started in *folder* and not stopped since; None without one."""
        try:
            data = (folder / _STATE).read_bytes()
        except FileNotFoundError:
            return None
        try:
            return cls(folder, _decode_state(data))
        except msgspec.DecodeError as error:
            raise DevBrokerError(
                f"{folder / _STATE} cannot be read ({error}); remove it if no embedded Kafka runs"
            ) from None

    @classmethod
    def start(
        cls,
        folder: Path,
        *,
        nodes: int,
        port: int | None,
        told: EmbeddedStart = _PLAIN,
        bound: bool = False,
    ) -> EmbeddedProcess:
        """Start one and return it once it listens; *bound*, it ends with the thread that calls (see
        `parent_death`).
        """
        folder.mkdir(parents=True, exist_ok=True)
        for each in (folder / _STATE, *folder.glob(_ASKED.format("*"))):
            each.unlink(missing_ok=True)
        owner = [sys.executable, "-I", "-S", parent_death.__file__, str(os.getpid())] if bound else []
        command = [*owner, sys.executable, "-P", "-m", __name__, str(folder), str(nodes), str(port or 0)]
        with (folder / _LOG).open("wb") as log:
            child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        assert child.stdin is not None
        with contextlib.suppress(BrokenPipeError), child.stdin:  # one that has ended says why in its log
            child.stdin.write(msgspec.json.encode(told, enc_hook=str))
        until_s = system_clock.monotonic_s() + (
            START_DEADLINE_S if told.folder is None else FOLDER_DEADLINE_S
        )
        while (found := cls.find(folder)) is None:
            if child.poll() is not None or system_clock.monotonic_s() > until_s:
                child.kill()
                words = (folder / _LOG).read_text(errors="replace").strip().splitlines()[-5:]
                raise DevBrokerError("the embedded Kafka did not start; its last words:\n" + "\n".join(words))
            time.sleep(_POLL_S)
        return found

    def fault(self, fault: EmbeddedFault) -> None:
        """Have it go wrong as *fault* says; returns once it knows. Several may ask at once, each by files of
        its own.
        """
        asked = self.folder / _ASKED.format(uuid.uuid4().hex)
        answered = asked.with_suffix(_ANSWERED)
        try:
            self._ask(fault, asked, answered)
        finally:
            for each in (asked, answered):
                each.unlink(missing_ok=True)

    def _ask(self, fault: EmbeddedFault, asked: Path, answered: Path) -> None:
        _write(asked, msgspec.json.encode(fault))
        if not processes.send(self._state.pid, self._state.birth, SIGUSR1):
            raise DevBrokerError(
                f"no embedded Kafka runs in {self.folder}; `holdfast dev up --embedded` starts one"
            )
        until_s = system_clock.monotonic_s() + CALL_DEADLINE_S
        while not answered.exists():
            if system_clock.monotonic_s() > until_s:
                raise DevBrokerError(
                    f"the embedded Kafka in {self.folder} did not answer within {CALL_DEADLINE_S:.0f} s"
                )
            time.sleep(_POLL_S)
        if trouble := answered.read_text():
            raise DevBrokerError(trouble)

    @property
    def bootstrap(self) -> str:
        """``host:port`` of every broker."""
        return ",".join(self._state.endpoints)

    @property
    def client_config(self) -> dict[str, str]:
        """Return a client's properties for it, under Kafka's property names."""
        return {"bootstrap.servers": self.bootstrap, **self._state.client}

    @property
    def client_file(self) -> Path:
        """Return the properties file with `client_config` of a secured process, readable by this user
        alone.
        """
        return self.folder / CLIENT_FILE

    @property
    def is_guarded(self) -> bool:
        return bool(self._state.client)

    @property
    def kept_in(self) -> Path | None:
        """The folder in which it keeps what it holds; None: it is in memory."""
        return Path(self._state.kept_in) if self._state.kept_in else None

    @property
    def seed(self) -> int | None:
        """Return the seed that it was started with; None: every start is another one."""
        return self._state.seed

    def server_property(self, name: str) -> str | None:
        """Return the value of a server property at its start; None leaves it at its default."""
        return self._state.properties.get(name)

    @property
    def is_running(self) -> bool:
        return processes.is_alive(self._state.pid, self._state.birth)

    def status(self) -> list[EmbeddedStatus]:
        """Return the present state of each broker."""
        running = self.is_running
        return [
            EmbeddedStatus(
                number, endpoint, "running" if running else "stopped", self._state.pid if running else None
            )
            for number, endpoint in enumerate(self._state.endpoints, 1)
        ]

    def stop(self) -> bool:
        """Stop it, and with it all that it holds in memory; return whether it ran."""
        ran = self.is_running
        processes.end(self._state.pid, self._state.birth, grace_s=STOP_GRACE_S)
        for each in (self.folder / _STATE, self.client_file):
            each.unlink(missing_ok=True)
        return ran


def _write(path: Path, data: bytes) -> None:
    """Write a file for this user alone, in one step, so that readers never see half of it."""
    written = path.with_name(f"{path.name}.new")
    written.unlink(missing_ok=True)
    written.touch(mode=0o600)
    written.write_bytes(data)
    written.rename(path)


def obey(kafka: EmbeddedKafka, told: EmbeddedFault) -> None:
    """Have *kafka* go wrong as *told*."""
    match told.kind:
        case "markers":
            kafka.lose_markers(told.times)
        case "disk":
            kafka.fill_disk()
        case "clock":
            kafka.shift_clock(told.delay_ms)
        case "none":
            kafka.faults.clear()
        case "kill":
            kafka.kill(told.node)
        case "revive":
            kafka.revive(told.node)
        case "move":
            kafka.move_leader(told.topic, told.partition)
        case "corrupt":
            kafka.corrupt(told.topic, told.partition, told.offset)
        case "forget":
            kafka.forget_member(told.group, told.member)
        case _:
            kafka.fault(
                told.kind,
                told.api,
                client=told.client,
                skip=told.skip,
                times=told.times,
                share=told.share,
                delay_ms=told.delay_ms,
            )


def _obey_files(kafka: EmbeddedKafka, folder: Path) -> None:
    """Carry out each request once, and answer with its error, if any."""
    for asked in folder.glob(_ASKED.format("*")):
        try:
            told = _decode_fault(asked.read_bytes())
            asked.unlink()
            obey(kafka, told)
            trouble = ""
        except FileNotFoundError:
            continue  # who asked waits no more
        except (OSError, msgspec.DecodeError, HoldfastError) as error:
            trouble = str(error)
        _write(asked.with_suffix(_ANSWERED), trouble.encode())


def serve(folder: Path, nodes: int, port: int) -> None:
    """Run a broker until SIGTERM, and write its address and process id to *folder*."""
    told = _decode_start(sys.stdin.buffer.read())
    try:
        options = {} if told.guard is None else told.guard.options(folder)
        options |= {"folder": told.folder, "fsync": told.fsync, "seed": told.seed}
        options |= settings_of(told.properties)
        with EndingSignals(), EmbeddedKafka(nodes=nodes, port=port, **options) as kafka:
            print(f"{NOTICE}, on {kafka.bootstrap}", flush=True)
            pid = os.getpid()
            client = kafka.client_config()
            endpoints = tuple(client.pop("bootstrap.servers").split(","))
            kept_in = "" if told.folder is None else str(told.folder)
            birth = processes.birth_of(pid) or ""
            state = _State(pid, birth, endpoints, client, kept_in, told.seed, told.properties)
            if client:
                _write(folder / CLIENT_FILE, render(kafka.client_config()))
            asked: SimpleQueue[None] = (
                SimpleQueue()
            )  # unlike an Event, a handler of signals may always touch it
            signal.signal(SIGUSR1, lambda *_: asked.put(None))
            _write(folder / _STATE, msgspec.json.encode(state))
            kafka.on_failure(lambda: asked.put(None))
            while kafka.failure is None:
                asked.get()
                if kafka.failure is None:
                    _obey_files(kafka, folder)
            raise kafka.failure
    except Interrupted as ended:
        sys.exit(0 if ended.number == SIGTERM else ended.exit_code)
    except DevBrokerError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
