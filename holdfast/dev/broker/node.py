"""One node of a cluster as a process: its files, its command line, how it is watched and ended."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGCONT, SIGTERM

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # the package does not declare what it re-exports

from holdfast.clock import system_clock
from holdfast.dev import parent_death, processes
from holdfast.dev.broker import properties, state
from holdfast.dev.broker.java import Java
from holdfast.dev.broker.state import ClusterState, NodeState
from holdfast.errors import DevBrokerError
from holdfast.kafka.clients import make_admin
from holdfast.kafka.leader_requests import list_offsets

_MINORITY_GRACE_S = 1.0
_POLL_S = 0.05
_LAST_LINES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """The present state of one node; *condition* is running, paused or stopped."""

    node_id: int
    endpoint: str
    condition: str
    pid: int | None


def home_of(folder: Path, node: NodeState) -> Path:
    """Return the folder with everything of *node*."""
    return folder / f"node-{node.node_id}"


def look_at(node: NodeState) -> NodeStatus:
    """Return the present state of *node*."""
    endpoint = f"{properties.HOST}:{node.port}"
    if node.pid is None or node.birth is None or not processes.is_alive(node.pid, node.birth):
        return NodeStatus(node_id=node.node_id, endpoint=endpoint, condition="stopped", pid=None)
    condition = "paused" if processes.is_stopped(node.pid) else "running"
    return NodeStatus(node_id=node.node_id, endpoint=endpoint, condition=condition, pid=node.pid)


def is_up(node: NodeState) -> bool:
    """Return whether the process of *node* exists, paused or not."""
    return look_at(node).condition != "stopped"


def write_settings(cluster: ClusterState, node: NodeState, folder: Path) -> None:
    """Write the files *node* starts from, for the ports it has now."""
    home = home_of(folder, node)
    (home / "data").mkdir(parents=True, exist_ok=True)
    state.write_private(
        home / "server.properties", properties.render(properties.server_properties(cluster, node, folder))
    )
    state.write_private(home / "log4j2.xml", properties.log_settings(home))


def command_line(home: Path, java: Java, *, heap_max_mb: int, bound: bool, optimised: bool) -> list[str]:
    """Return the command that runs a node; *bound*, it ends with the thread that forks it (see
    `parent_death`).

    A node that is not *optimised* compiles quickly rather than well: it starts with two thirds of the
    processor time (2.1 s for 3.1 s), and in the minutes of a test session it never earns back what the
    optimising compiler takes (26 s instead of 42 s in four minutes). Three such compilers on a small machine
    also take what the nodes need to answer each other in time.
    """
    return [
        *([sys.executable, "-I", "-S", parent_death.__file__, str(os.getpid())] if bound else []),
        *java.command(
            f"-Xms{min(256, heap_max_mb)}m",
            f"-Xmx{heap_max_mb}m",
            *([] if optimised else ["-XX:TieredStopAtLevel=1"]),
            "-XX:+UseG1GC",
            "-XX:MaxGCPauseMillis=20",
            "-XX:+ExitOnOutOfMemoryError",
            f"-Dlog4j2.configurationFile={home / 'log4j2.xml'}",
        ),
        "kafka.Kafka",
        str(home / "server.properties"),
    ]


def spawn(command: Sequence[str], home: Path) -> subprocess.Popen[bytes]:
    """Start *command* with its output in ``console.log``; what the last run logged is kept as
    ``server.log.before``.
    """
    with contextlib.suppress(FileNotFoundError):
        os.replace(home / "server.log", home / "server.log.before")
    with (home / "console.log").open("wb") as log:
        # In a session of its own a Ctrl-C at the terminal reaches its owner only, which then ends it in good
        # order.
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=home,
            start_new_session=True,
        )


def wait_ready(cluster: ClusterState, folder: Path, nodes: Sequence[NodeState], *, deadline_s: float) -> None:
    """Return when each of *nodes*, asked by itself, lists all of them, and they lead every partition that
    one of them can lead.
    """
    until_s = system_clock.monotonic_s() + deadline_s
    for node in nodes:
        _wait_for(cluster, folder, node, {each.node_id for each in nodes}, until_s)


def _wait_for(
    cluster: ClusterState, folder: Path, node: NodeState, expected: set[int], until_s: float
) -> None:
    # One client for all tries: it dials again by itself, quickly, and keeps its complaints about a node still
    # starting to itself.
    quick = {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 200}
    client = make_admin(
        {**properties.client_properties(cluster, folder, nodes=[node]), **quick},
        log_level=0,
        on_error=lambda _: None,
    )
    while True:
        try:
            if (reason := _what_is_missing(client, expected)) is None:
                return
            time.sleep(_POLL_S)
        except KafkaException as error:
            reason = str(error)
        if not is_up(node):
            raise DevBrokerError(f"node {node.node_id} ended; its last words:\n{last_words(folder, node)}")
        if system_clock.monotonic_s() > until_s:
            raise DevBrokerError(
                f"node {node.node_id} was not ready in time ({reason}); its last"
                f" words:\n{last_words(folder, node)}"
            )


def _what_is_missing(client: AdminClient, expected: set[int]) -> str | None:
    """Return why the cluster is not ready, as the node of *client* sees it, None when it is ready."""
    metadata = client.list_topics(timeout=1.0)
    if not expected <= set(metadata.brokers):
        return f"it lists the nodes {sorted(metadata.brokers)} only"
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    led = {}
    for name, topic in metadata.topics.items():
        for number, partition in topic.partitions.items():
            if partition.leader in expected:
                led[TopicPartition(name, number)] = latest
            elif expected & set(partition.isrs):
                return f"{name} {number} has no leader"
    # A node announces the leader of a partition a moment before it leads itself; a client that asks in
    # between is refused.
    for place, answer in list_offsets(client, led, timeout_s=1.0).items() if led else ():
        try:
            answer.result(1.5)
        except (KafkaException, TimeoutError) as error:
            return f"{place.topic} {place.partition} cannot be read: {error}"
    return None


def last_words(folder: Path, node: NodeState) -> str:
    """Return the end of what *node* logged since it was last started, without stack frames."""
    lines = []
    for name in ("server.log", "console.log"):
        path = home_of(folder, node) / name
        if path.exists():
            text = path.read_text(encoding="utf-8", errors="replace")
            lines += without_frames(text)
    return "\n".join(lines) or f"none (look into {home_of(folder, node)})"


def without_frames(output: str) -> list[str]:
    """Return the last lines that are no frames of a Java stack trace."""
    return [line for line in output.splitlines() if line.strip() and not line.startswith(("\tat ", "\t..."))][
        -_LAST_LINES:
    ]


def end_all(nodes: Sequence[NodeState], *, grace_s: float) -> None:
    """End every process of *nodes*: SIGTERM to all, then SIGKILL to those left after *grace_s*.

    Nodes left without a majority cannot say goodbye to a controller and would wait in vain, so they get a
    second only. They lose nothing: acknowledged records are with the operating system, and a majority had
    them before they were acknowledged.
    """
    majority = len(nodes) // 2 + 1
    until_s = system_clock.monotonic_s() + grace_s
    if grace_s > 0:
        for node in nodes:
            if (
                node.pid is not None
                and node.birth is not None
                and processes.send(node.pid, node.birth, SIGTERM)
            ):
                processes.send(
                    node.pid, node.birth, SIGCONT
                )  # a paused one hears the signal only when it is woken
    while (alive := [node for node in nodes if is_up(node)]) and system_clock.monotonic_s() < until_s:
        if len(alive) < majority:
            until_s = min(until_s, system_clock.monotonic_s() + _MINORITY_GRACE_S)
            majority = 0  # the shorter deadline is set once
        time.sleep(_POLL_S)
    for node in alive:
        if node.pid is not None and node.birth is not None:
            processes.kill(node.pid, node.birth)
