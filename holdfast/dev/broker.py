"""A real Kafka on this machine: one KRaft node or three, for development and tests.

    with Cluster(folder) as cluster:
        producer = Producer(cluster.client_config())

Nodes listen on loopback only. The folder holds everything: data, logs, settings, certificates, and the processes' identities, so
`Cluster.attach(folder)` and `holdfast dev status | down` work from any other process.
"""

from __future__ import annotations

import base64
import os
import secrets
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from holdfast.clock import system_clock
from holdfast.dev import jars, leash, ports, processes, properties, state, tls
from holdfast.dev.state import ClusterState, Credentials, NodeState
from holdfast.errors import DevBrokerError

__all__ = ["Cluster", "Credentials", "NodeStatus"]

START_DEADLINE_S = 60.0
STOP_GRACE_S = 15.0
_PORT_TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """What one node is doing now; *condition* is running, paused or stopped."""

    node_id: int
    endpoint: str
    condition: str
    pid: int | None


class Cluster:
    """One node or three in one folder. Nothing runs before `start`; whoever starts it stops it.

    Unless *detached*, nodes also end when this process does, even by SIGKILL (on Linux; elsewhere only `stop` ends them). Data stays
    in the folder, and a later `start` there continues with it.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        nodes: int = 1,
        port: int | None = None,
        properties: Mapping[str, str] | None = None,
        sasl: bool | Credentials = False,
        message_max_bytes: int | None = None,
        heap_max_mb: int | None = None,
        detached: bool = False,
    ) -> None:
        """Describe a cluster.

        *port* is that of the first node, the next nodes take the next ones (free ports otherwise). *properties* are Kafka server
        properties and win over the defaults. *sasl* puts SASL/SCRAM over TLS in front of every client, with a user of that name or,
        for True, one with a random password (see `client_config`).
        """
        if nodes not in (1, 3):
            raise DevBrokerError(f"a cluster of {nodes} nodes: choose 1, or 3 so that one of them may die")
        self.folder = Path(folder).absolute()
        self._nodes = nodes
        self._port = port
        self._properties = dict(properties or {})
        if message_max_bytes is not None:
            self._properties |= {"message.max.bytes": str(message_max_bytes), "replica.fetch.max.bytes": str(message_max_bytes)}
        self._sasl = sasl
        self._heap_max_mb = heap_max_mb or (1024 if nodes == 1 else 512)
        self._detached = detached
        self._state: ClusterState | None = None
        self._children: list[subprocess.Popen[bytes]] = []
        # A leashed node dies with the thread that forked it, so all are forked by one thread that lives as long as this object.
        self._spawner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="holdfast-dev")

    @classmethod
    def find(cls, folder: Path | str) -> Cluster | None:
        """Return the cluster that was ever started in *folder*, whoever started it and whether or not it runs; None without one."""
        known = state.load(Path(folder).absolute())
        if known is None:
            return None
        cluster = cls(folder, nodes=len(known.nodes), properties=known.properties, detached=known.detached)
        cluster._state = known
        return cluster

    @classmethod
    def attach(cls, folder: Path | str) -> Cluster:
        """Return the cluster that was started in *folder*, as `find` does; without one it is an error."""
        cluster = cls.find(folder)
        if cluster is None:
            raise DevBrokerError(f"no broker was ever started in {folder}; `holdfast dev up --dir {folder}` starts one")
        return cluster

    # --- what it is ------------------------------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """``host:port`` of every node, for ``bootstrap.servers``."""
        return self.client_config()["bootstrap.servers"]

    @property
    def node_ids(self) -> list[int]:
        """The ids of all nodes, from 1."""
        return [node.node_id for node in self._known().nodes]

    def client_config(self) -> dict[str, str]:
        """Return what any confluent-kafka client needs to reach the cluster, credentials included."""
        return properties.client_properties(self._known(), self.folder)

    @property
    def is_secured(self) -> bool:
        """Whether clients must authenticate, over TLS."""
        return self._known().credentials is not None

    @property
    def client_file(self) -> Path:
        """A properties file with `client_config`, for programs; readable by this user alone."""
        return self.folder / "client.properties"

    def status(self) -> list[NodeStatus]:
        """Return what each node is doing now, by looking at its process."""
        return [_status(node) for node in self._known().nodes]

    def _known(self) -> ClusterState:
        if self._state is None:
            raise DevBrokerError(f"the broker in {self.folder} is not started; call start() first")
        return self._state

    def _node(self, node_id: int) -> NodeState:
        for node in self._known().nodes:
            if node.node_id == node_id:
                return node
        raise DevBrokerError(f"there is no node {node_id} in {self.folder}; its nodes are {self.node_ids}")

    # --- start and stop ----------------------------------------------------------------------------------------------------

    def start(self, *, deadline_s: float = START_DEADLINE_S) -> Self:
        """Start every node and return when each of them answers for all; about 4 s for one, 10 s for three.

        A start that fails leaves nothing running.
        """
        java, class_path = jars.find_java(), jars.class_path()
        self.folder.mkdir(parents=True, exist_ok=True)
        with state.exclusive(self.folder):
            for attempt in range(1, _PORT_TRIES + 1):
                self._state = self._prepare()
                try:
                    self._launch_all(java, class_path)
                    self.wait_ready(deadline_s=deadline_s)
                    return self
                except BaseException as error:
                    self._end_all(grace_s=0)
                    lost_a_port = isinstance(error, DevBrokerError) and "Address already in use" in str(error)
                    if not lost_a_port or self._port is not None or attempt == _PORT_TRIES:
                        raise
        raise AssertionError("unreachable")

    def _prepare(self) -> ClusterState:
        """Return the state to start from: the folder's own, or a new one, with ports that are free now."""
        known = state.load(self.folder)
        if known is None:
            known = self._new_state()
        if len(known.nodes) != self._nodes:
            raise DevBrokerError(
                f"{self.folder} holds a cluster of {len(known.nodes)} nodes, not {self._nodes}; choose another folder or `holdfast dev down --purge`"
            )
        if alive := [node.node_id for node in known.nodes if _status(node).condition != "stopped"]:
            raise DevBrokerError(f"nodes {alive} in {self.folder} run already; use Cluster.attach or `holdfast dev down` first")
        if self._sasl and known.credentials is None:
            raise DevBrokerError(f"{self.folder} holds a cluster without SASL; choose another folder or `holdfast dev down --purge`")
        known.detached = self._detached
        known.properties |= self._properties
        self._assign_ports(known)
        return known

    def _new_state(self) -> ClusterState:
        credentials: Credentials | None
        match self._sasl:
            case True:
                credentials = Credentials(password=secrets.token_urlsafe(18))
            case Credentials() as given:
                credentials = given
            case _:
                credentials = None
        return ClusterState(
            kafka=jars.KAFKA_VERSION,
            cluster_id=base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("="),
            nodes=[NodeState(node_id=i + 1, port=0, controller_port=0) for i in range(self._nodes)],
            credentials=credentials,
            store_password=secrets.token_urlsafe(18) if credentials else None,
        )

    def _assign_ports(self, known: ClusterState) -> None:
        fresh = ports.free_ports(2 * len(known.nodes))
        for index, node in enumerate(known.nodes):
            node.controller_port = fresh.pop()
            spare = fresh.pop()
            if self._port is not None:
                node.port = self._port + index
                if not ports.is_free(node.port):
                    raise DevBrokerError(f"port {node.port} is taken by another program; choose another --port or leave it out")
            elif not node.port or not ports.is_free(node.port):
                node.port = spare

    def _launch_all(self, java: Path, class_path: str) -> None:
        known = self._known()
        if known.credentials is not None and known.store_password is not None:
            tls.ensure_certificate(self.folder, known.store_password)
        state.write_private(self.client_file, properties.render(self.client_config()))
        for node in known.nodes:
            self._write_settings(node)
        self._format(java, class_path)
        for node in known.nodes:
            self._launch(node, java, class_path)

    def _write_settings(self, node: NodeState) -> None:
        home = self._home(node)
        (home / "data").mkdir(parents=True, exist_ok=True)
        settings = properties.server_properties(self._known(), node, self.folder)
        state.write_private(home / "server.properties", properties.render(settings))
        state.write_private(home / "log4j2.xml", properties.log_settings(home))

    def _home(self, node: NodeState) -> Path:
        return self.folder / f"node-{node.node_id}"

    def _format(self, java: Path, class_path: str) -> None:
        """Give every new data folder the cluster's id (and SCRAM user); all at once, for each is a JVM of its own."""
        known = self._known()
        flags = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"]
        command = [str(java), *flags, "-cp", class_path, "kafka.tools.StorageTool", "format", "--ignore-formatted", "-t", known.cluster_id]
        if known.credentials is not None:
            user = known.credentials
            command += ["--add-scram", f"{properties.MECHANISM}=[name={user.username},password={user.password}]"]
        fresh = [self._home(node) for node in known.nodes if not (self._home(node) / "data" / "meta.properties").exists()]
        with ThreadPoolExecutor(max_workers=max(1, len(fresh))) as pool:
            for home, ran in zip(fresh, pool.map(lambda home: _run([*command, "-c", str(home / "server.properties")]), fresh), strict=True):
                if ran.returncode != 0:
                    raise DevBrokerError(f"formatting {home / 'data'} failed: {(ran.stderr + ran.stdout).strip()[-2000:]}")

    def _launch(self, node: NodeState, java: Path, class_path: str) -> None:
        home = self._home(node)
        command = [
            *([] if self._detached else [sys.executable, "-I", "-S", leash.__file__, str(os.getpid())]),
            str(java),
            f"-Xms{min(256, self._heap_max_mb)}m",
            f"-Xmx{self._heap_max_mb}m",
            "-XX:+UseG1GC",
            "-XX:MaxGCPauseMillis=20",
            "-XX:+ExitOnOutOfMemoryError",
            f"-Dlog4j2.configurationFile={home / 'log4j2.xml'}",
            "-cp",
            class_path,
            "kafka.Kafka",
            str(home / "server.properties"),
        ]
        child = self._spawner.submit(_spawn, command, home).result()
        self._children.append(child)
        node.pid, node.birth = child.pid, processes.birth_of(child.pid)
        state.save(self.folder, self._known())

    def wait_ready(self, *, deadline_s: float = START_DEADLINE_S) -> None:
        """Return when each running node, asked by itself, lists every running node."""
        until_s = system_clock.monotonic_s() + deadline_s
        launched = [node for node in self._known().nodes if node.pid is not None]
        for node in launched:
            self._wait_for(node, {each.node_id for each in launched}, until_s)

    def _wait_for(self, node: NodeState, expected: set[int], until_s: float) -> None:
        settings = properties.client_properties(self._known(), self.folder, nodes=[node])
        # One client for all tries: it dials again by itself, quickly, and keeps its complaints about a node still starting to itself.
        quiet: dict[str, Any] = {"log_level": 0, "error_cb": lambda _: None, "reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 200}
        client = AdminClient({**settings, **quiet})
        while True:
            try:
                if expected <= set(client.list_topics(timeout=1.0).brokers):
                    return
                time.sleep(0.05)
            except KafkaException as error:
                reason = str(error)
            else:
                reason = "it does not list every node yet"
            if _status(node).condition == "stopped":
                raise DevBrokerError(f"node {node.node_id} ended while starting; its last words: {self._last_words(node)}")
            if system_clock.monotonic_s() > until_s:
                raise DevBrokerError(f"node {node.node_id} was not ready in time ({reason}); its last words: {self._last_words(node)}")

    def _last_words(self, node: NodeState) -> str:
        words = []
        for name in ("server.log", "console.log"):
            path = self._home(node) / name
            if path.exists():
                words += path.read_text(encoding="utf-8", errors="replace").splitlines()[-12:]
        return "\n".join(words) or f"none (look into {self._home(node)})"

    def stop(self, *, grace_s: float = STOP_GRACE_S) -> None:
        """End every node: SIGTERM, then SIGKILL after *grace_s*. Data stays. Harmless when nothing runs."""
        if self._state is not None:
            with state.exclusive(self.folder):
                self._end_all(grace_s=grace_s)
        self._spawner.shutdown(wait=True)

    def _end_all(self, *, grace_s: float) -> None:
        known = self._known()
        with ThreadPoolExecutor(max_workers=len(known.nodes)) as pool:
            list(pool.map(lambda node: _end(node, grace_s=grace_s), known.nodes))
        for node in known.nodes:
            node.pid = node.birth = None
        self._reap()
        state.save(self.folder, known)

    def _reap(self) -> None:
        self._children = [child for child in self._children if child.poll() is None]

    def purge(self) -> None:
        """Stop the cluster and remove its folder with all data."""
        self.stop(grace_s=0)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    # --- trouble on demand -----------------------------------------------------------------------------------------------------

    def kill(self, node_id: int) -> None:
        """End one node by SIGKILL, as a power cut would; returns when its process is gone."""
        node = self._node(node_id)
        _end(node, grace_s=0)
        node.pid = node.birth = None
        self._reap()
        state.save(self.folder, self._known())

    def restart(self, node_id: int, *, deadline_s: float = START_DEADLINE_S) -> None:
        """Start a node again that was killed or stopped, on its old port and data; returns when it is back in the cluster."""
        node = self._node(node_id)
        if _status(node).condition != "stopped":
            raise DevBrokerError(f"node {node_id} in {self.folder} still runs (pid {node.pid}); kill() it first")
        with state.exclusive(self.folder):
            self._launch(node, jars.find_java(), jars.class_path())
        self.wait_ready(deadline_s=deadline_s)

    def pause(self, node_id: int) -> None:
        """Freeze one node by SIGSTOP: its connections stay open and nothing answers."""
        node = self._node(node_id)
        if node.pid is None or node.birth is None or not processes.send(node.pid, node.birth, SIGSTOP):
            raise DevBrokerError(f"node {node_id} in {self.folder} does not run; restart() it first")

    def resume(self, node_id: int) -> None:
        """Let a paused node go on."""
        node = self._node(node_id)
        if node.pid is None or node.birth is None or not processes.send(node.pid, node.birth, SIGCONT):
            raise DevBrokerError(f"node {node_id} in {self.folder} does not run; restart() it first")


def _status(node: NodeState) -> NodeStatus:
    endpoint = f"{properties.HOST}:{node.port}"
    if node.pid is None or node.birth is None or not processes.is_alive(node.pid, node.birth):
        return NodeStatus(node_id=node.node_id, endpoint=endpoint, condition="stopped", pid=None)
    condition = "paused" if processes.is_stopped(node.pid) else "running"
    return NodeStatus(node_id=node.node_id, endpoint=endpoint, condition=condition, pid=node.pid)


def _end(node: NodeState, *, grace_s: float) -> None:
    if node.pid is None or node.birth is None:
        return
    if grace_s > 0:
        processes.end(node.pid, node.birth, grace_s=grace_s)
    else:
        processes.kill(node.pid, node.birth)


def _spawn(command: Sequence[str], home: Path) -> subprocess.Popen[bytes]:
    with (home / "console.log").open("wb") as log:
        # In a session of its own a Ctrl-C at the terminal reaches its owner only, which then ends it in good order.
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=home, start_new_session=True)


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as error:
        raise DevBrokerError(f"{command[0]} took longer than 60 s; is the machine overloaded?") from error
