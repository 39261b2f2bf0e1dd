"""The record in a cluster's folder, by which `status` and `down` work from any process."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import os
import re
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from holdfast.clock import system_clock
from holdfast.errors import DevBrokerError

FORMAT = 1
STATE_FILE = "cluster.json"
LOCK_FILE = "cluster.lock"
_POLL_S = 0.05


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """A SCRAM user of the SASL_SSL listener."""

    username: str = "holdfast"
    password: str

    def __post_init__(self) -> None:
        for name, text in (("username", self.username), ("password", self.password)):
            if not re.fullmatch(r"[\w.~+/@%!?:;*#&|(){}<>^$-]+", text, re.ASCII):
                # Kafka's storage tool reads both from one argument, [name=…,password=…], which has no way to
                # quote.
                raise DevBrokerError(
                    f"the {name} of a development broker may hold letters, digits and"
                    " ._~+/@%!?:;*#&|(){}<>^$- only"
                )


class NodeState(msgspec.Struct, kw_only=True):
    """One node: where it listens, and which process it was when last started."""

    node_id: int
    port: int
    controller_port: int
    pid: int | None = None
    birth: str | None = None


class ClusterState(msgspec.Struct, kw_only=True):
    """Everything needed to find, stop and start the nodes of one folder again."""

    format: int = FORMAT
    kafka: str
    cluster_id: str
    nodes: list[NodeState]
    properties: dict[str, str] = {}
    credentials: Credentials | None = None
    store_password: str | None = None
    heap_max_mb: int = 1024
    detached: bool = False


_decode = msgspec.json.Decoder(ClusterState).decode


def load(folder: Path) -> ClusterState | None:
    """Return the record in *folder*, or None when no cluster was ever made there."""
    path = folder / STATE_FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        state = _decode(content)
    except msgspec.DecodeError as error:
        raise DevBrokerError(
            f"{path} is not a state file of holdfast dev ({error}); remove the folder {folder} to start anew"
        ) from error
    if state.format != FORMAT:
        raise DevBrokerError(
            f"{path} has format {state.format}, this holdfast reads {FORMAT}; remove the folder {folder} to"
            " start anew"
        )
    return state


def save(folder: Path, state: ClusterState) -> None:
    """Replace what *folder* remembers, atomically; readable by the user alone, for it holds passwords."""
    write_private(folder / STATE_FILE, msgspec.json.format(msgspec.json.encode(state), indent=2))


def write_private(path: Path, content: bytes) -> None:
    """Replace *path* atomically with a file only its user can read."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    os.replace(fresh, path)


@contextlib.contextmanager
def exclusive(folder: Path, *, deadline_s: float = 150.0) -> Iterator[None]:
    """Keep other processes from starting or stopping nodes in *folder* during the block."""
    until_s = system_clock.monotonic_s() + deadline_s
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / LOCK_FILE).open("a") as file:
            if _take(file, folder / LOCK_FILE):
                yield
                return
        if system_clock.monotonic_s() > until_s:
            raise DevBrokerError(
                f"another process is starting or stopping the broker in {folder}; try again when it is done"
            )
        time.sleep(_POLL_S)


def _take(file: IO[str], path: Path) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A purge may have removed the file since it was opened: a lock on it then excludes no process.
        return path.stat().st_ino == os.fstat(file.fileno()).st_ino
    except (BlockingIOError, FileNotFoundError):
        return False


def new_cluster_id() -> str:
    """Return a random id that no command line takes for an option: as in Kafka's own, the first character
    is never a dash.
    """
    drawn = uuid.uuid4().bytes
    return base64.urlsafe_b64encode(bytes([drawn[0] & 0x7F]) + drawn[1:]).decode().rstrip("=")
