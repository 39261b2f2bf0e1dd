"""A real Kafka on this machine: one KRaft node or three, for development and tests.

    with Cluster(folder) as cluster:
        producer = Producer(cluster.client_config())

Nodes listen on loopback only. The folder holds everything: data, logs, settings, certificates, and the
processes' identities, so `Cluster.attach(folder)` and `holdfast dev status | down` work from any other
process.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from signal import SIGCONT
from types import TracebackType
from typing import Self

from holdfast.dev import ports, processes
from holdfast.dev.broker import archiving, formatting, jars, node, state, tls
from holdfast.dev.broker import properties as files
from holdfast.dev.broker.java import Java
from holdfast.dev.broker.node import NodeStatus
from holdfast.dev.broker.state import ClusterState, Credentials, NodeState
from holdfast.errors import DevBrokerError

__all__ = ["Cluster", "Credentials", "NodeStatus"]

START_DEADLINE_S = 120.0  # for machines under load; a node that ends is noticed at once
STOP_GRACE_S = 15.0
_PORT_TRIES = 3
_PORT_LOST = "Address already in use"


class Cluster:
    """One node or three in one folder. Nothing runs before `start`; the caller of `start` calls `stop`.

    Unless *detached*, nodes also end when this object or this process is gone, even by SIGKILL (on Linux;
    elsewhere only `stop` ends them), so keep a reference. Data stays in the folder, and a later `start` there
    continues with it.
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
        short_lived: bool = False,
    ) -> None:
        """Describe a cluster.

        *port* is that of the first node, the other nodes take the next ones (free ports otherwise).
        *properties* are Kafka server properties and win over the defaults; a folder remembers them for later
        starts. *sasl* puts SASL/SCRAM over TLS in front of every client, for the user given or, for True, for
        one with a random password (see `client_config`). Nodes that are *short_lived*, as those of a test
        session, take two thirds of the processor time and serve less at their best.
        """
        if nodes not in (1, 3):
            raise DevBrokerError(f"a cluster of {nodes} nodes: choose 1, or 3 so that one of them may die")
        self.folder = Path(folder).absolute()
        self._nodes = nodes
        self._port = port
        self._properties = dict(properties or {})
        if message_max_bytes is not None:
            self._properties |= {
                "message.max.bytes": str(message_max_bytes),
                "replica.fetch.max.bytes": str(message_max_bytes),
            }
        self._sasl = sasl
        self._heap_max_mb = heap_max_mb
        self._detached, self._short_lived = detached, short_lived
        self._state: ClusterState | None = None
        self._children: list[subprocess.Popen[bytes]] = []
        self._forker: ThreadPoolExecutor | None = None

    @classmethod
    def find(cls, folder: Path | str) -> Cluster | None:
        """Return the cluster that was ever started in *folder* by any process, running or not; None without
        one.
        """
        known = state.load(Path(folder).absolute())
        if known is None:
            return None
        cluster = cls(folder, nodes=len(known.nodes), detached=known.detached)
        cluster._state = known
        return cluster

    @classmethod
    def attach(cls, folder: Path | str) -> Cluster:
        """Return the cluster that was started in *folder*, as `find` does; without one it is an error."""
        cluster = cls.find(folder)
        if cluster is None:
            raise DevBrokerError(
                f"no broker was ever started in {folder}; `holdfast dev up --dir {folder}` starts one"
            )
        return cluster

    # --- what it is -----------------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """``host:port`` of every node, for ``bootstrap.servers``."""
        return self.client_config()["bootstrap.servers"]

    @property
    def node_ids(self) -> list[int]:
        """The ids of all nodes, from 1."""
        return [each.node_id for each in self._known().nodes]

    def client_config(self) -> dict[str, str]:
        """Return the configuration with which any confluent-kafka client reaches the cluster, credentials
        included.
        """
        return files.client_properties(self._known(), self.folder)

    @property
    def server_properties(self) -> dict[str, str]:
        """The Kafka server properties that were given, beyond the defaults."""
        return dict(self._known().properties)

    @property
    def is_secured(self) -> bool:
        """Return whether clients must authenticate, over TLS."""
        return self._known().credentials is not None

    @property
    def client_file(self) -> Path:
        """A properties file with `client_config`, for programs; readable by this user alone."""
        return self.folder / files.CLIENT_FILE

    def status(self) -> list[NodeStatus]:
        """Return the present state of each node, by looking at its process."""
        return [node.look_at(each) for each in self._known().nodes]

    def _known(self) -> ClusterState:
        if self._state is None:
            raise DevBrokerError(f"the broker in {self.folder} is not started; call start() first")
        return self._state

    def _node(self, node_id: int) -> NodeState:
        for each in self._known().nodes:
            if each.node_id == node_id:
                return each
        raise DevBrokerError(f"there is no node {node_id} in {self.folder}; its nodes are {self.node_ids}")

    # --- start and stop -------------------------------------------------------------------------------------

    def start(self, *, deadline_s: float = START_DEADLINE_S) -> Self:
        """Start every node and return when each of them answers for all; about 3 s for one, 5 s for three.

        A start that fails leaves nothing running.
        """
        java = archiving.prepare()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DevBrokerError(
                f"cannot create {self.folder}: {error}; choose another folder with --dir"
            ) from error
        with state.exclusive(self.folder):
            before = state.load(self.folder)
            for attempt in range(1, _PORT_TRIES + 1):
                self._state = self._prepare()
                try:
                    self._launch_all(java, deadline_s=deadline_s)
                    return self
                except BaseException as error:  # Ctrl-C too: a start is whole or nothing
                    self._end_all(grace_s=0)
                    self._forget_properties(before)
                    lost_a_port = isinstance(error, DevBrokerError) and _PORT_LOST in str(error)
                    if not lost_a_port or self._port is not None or attempt == _PORT_TRIES:
                        raise
        raise AssertionError("the last attempt returns or raises")

    def _prepare(self) -> ClusterState:
        """Return the state to start from: the folder's own, or a new one, with ports that are free now."""
        known = state.load(self.folder) or self._new_state()
        otherwise = "choose another folder, or remove this one's data with `holdfast dev down --purge`"
        if len(known.nodes) != self._nodes:
            raise DevBrokerError(
                f"{self.folder} holds a cluster of {len(known.nodes)} nodes, not {self._nodes}; {otherwise}"
            )
        if alive := [each.node_id for each in known.nodes if node.is_up(each)]:
            raise DevBrokerError(
                f"nodes {alive} in {self.folder} run already; use Cluster.attach, or `holdfast dev down`"
                " first"
            )
        if self._sasl and (known.credentials is None or self._sasl not in (True, known.credentials)):
            raise DevBrokerError(
                f"{self.folder} holds a cluster without SASL or with other credentials; {otherwise}"
            )
        known.detached = self._detached
        known.heap_max_mb = self._heap_max_mb or known.heap_max_mb
        known.properties |= self._properties
        for each in known.nodes:
            each.pid = each.birth = None
        self._assign_ports(known)
        return known

    def _new_state(self) -> ClusterState:
        credentials = self._sasl if isinstance(self._sasl, Credentials) else None
        if self._sasl is True:
            credentials = Credentials(password=secrets.token_urlsafe(18))
        return ClusterState(
            kafka=jars.KAFKA_VERSION,
            cluster_id=state.new_cluster_id(),
            nodes=[NodeState(node_id=index + 1, port=0, controller_port=0) for index in range(self._nodes)],
            credentials=credentials,
            store_password=secrets.token_urlsafe(18) if credentials else None,
            heap_max_mb=1024 if self._nodes == 1 else 512,
        )

    def _assign_ports(self, known: ClusterState) -> None:
        fresh = ports.free_ports(2 * len(known.nodes))
        for index, each in enumerate(known.nodes):
            each.controller_port = fresh.pop()
            spare = fresh.pop()
            if self._port is not None:
                each.port = self._port + index
                if not ports.is_free(each.port):
                    raise DevBrokerError(
                        f"port {each.port} is taken by another program; choose another --port or leave it out"
                    )
            elif not each.port or not ports.is_free(each.port):
                each.port = spare

    def _launch_all(self, java: Java, *, deadline_s: float) -> None:
        known = self._known()
        state.save(self.folder, known)  # before any data folder carries the cluster's id
        if known.store_password is not None:
            tls.ensure_certificate(self.folder, known.store_password)
        state.write_private(self.client_file, files.render(self.client_config()))
        for each in known.nodes:
            node.write_settings(known, each, self.folder)
        formatting.format_storage(known, self.folder, java)
        for each in known.nodes:
            self._launch(each, java)
        self.wait_ready(deadline_s=deadline_s)

    def _launch(self, launched: NodeState, java: Java) -> None:
        known = self._known()
        home = node.home_of(self.folder, launched)
        optimised = len(known.nodes) == 1 and not self._short_lived
        command = node.command_line(
            home, java, heap_max_mb=known.heap_max_mb, bound=not known.detached, optimised=optimised
        )

        def fork() -> subprocess.Popen[bytes]:
            child = node.spawn(command, home)
            self._children.append(child)  # here, so that a Ctrl-C in the waiting thread loses no child
            return child

        # A bound node dies with the thread that forked it, so one thread forks them all and lives as long
        # as this object.
        if self._forker is None:
            self._forker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="holdfast-dev")
        child = self._forker.submit(fork).result()
        launched.pid, launched.birth = child.pid, processes.birth_of(child.pid)
        state.save(self.folder, known)

    def wait_ready(self, *, deadline_s: float = START_DEADLINE_S) -> None:
        """Return when each node that was not killed, asked by itself, lists every such node."""
        known = self._known()
        launched = [each for each in known.nodes if each.pid is not None]
        node.wait_ready(known, self.folder, launched, deadline_s=deadline_s)

    def stop(self, *, grace_s: float = STOP_GRACE_S) -> None:
        """End every node: SIGTERM, then SIGKILL after *grace_s*. Data stays. Harmless when nothing runs."""
        if self._state is not None:
            with self._exclusive():
                self._end_all(grace_s=grace_s)
        if self._forker is not None:
            self._forker.shutdown(wait=True)
            self._forker = None

    def _end_all(self, *, grace_s: float) -> None:
        known = self._known()
        node.end_all(known.nodes, grace_s=grace_s)
        if self._forker is not None:
            self._forker.submit(
                lambda: None
            ).result()  # a child that is being forked right now is listed after this
        for child in self._children:
            if child.poll() is None:
                child.kill()
                child.wait(timeout=10)
        self._children.clear()
        self._forget(known.nodes)

    def _forget(self, ended: list[NodeState]) -> None:
        """Remove ended nodes from the record, unless another process has started that node again since."""
        on_disk = state.load(self.folder)
        for each in ended:
            for recorded in on_disk.nodes if on_disk else []:
                if recorded.pid is not None and (recorded.node_id, recorded.pid, recorded.birth) == (
                    each.node_id,
                    each.pid,
                    each.birth,
                ):
                    recorded.pid = recorded.birth = None
            each.pid = each.birth = None
        if on_disk is not None:
            state.save(self.folder, on_disk)

    def _forget_properties(self, before: ClusterState | None) -> None:
        """Keep what a failed start was given from spoiling the next one."""
        if (on_disk := state.load(self.folder)) is not None:
            on_disk.properties = before.properties if before is not None else {}
            state.save(self.folder, on_disk)

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        if self.folder.exists():
            with state.exclusive(self.folder):
                yield
        # removed by another program: there is no record left to guard, and the processes must still be ended
        else:
            yield

    def purge(self) -> None:
        """Stop the cluster and remove all its files; the folder too, when nothing else is in it."""
        self.stop(grace_s=0)
        with self._exclusive():
            try:
                for each in self._known().nodes:
                    if node.home_of(self.folder, each).exists():
                        shutil.rmtree(node.home_of(self.folder, each))
                for name in (
                    files.CA_FILE,
                    files.STORE_FILE,
                    files.CLIENT_FILE,
                    state.STATE_FILE,
                    state.LOCK_FILE,
                ):
                    (self.folder / name).unlink(missing_ok=True)
            except OSError as error:
                raise DevBrokerError(
                    f"could not remove all of {self.folder}: {error}; remove it by hand"
                ) from error
        with contextlib.suppress(OSError):  # not empty: the rest is not ours
            self.folder.rmdir()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- trouble on demand ----------------------------------------------------------------------------------

    def kill(self, node_id: int) -> None:
        """End one node by SIGKILL, as a power cut would; returns when its process is gone."""
        victim = self._node(node_id)
        with self._exclusive():
            node.end_all([victim], grace_s=0)
            self._children = [child for child in self._children if child.poll() is None]
            self._forget([victim])

    def restart(self, node_id: int, *, deadline_s: float = START_DEADLINE_S) -> None:
        """Start a node again that was killed, on its old port and data; returns when it is back in the
        cluster.
        """
        returning = self._node(node_id)
        if node.is_up(returning):
            raise DevBrokerError(
                f"node {node_id} in {self.folder} still runs (pid {returning.pid}); kill() it first"
            )
        java = archiving.prepare()
        with self._exclusive():
            self._launch(returning, java)
        self.wait_ready(deadline_s=deadline_s)

    def pause(self, node_id: int) -> None:
        """Freeze one node by SIGSTOP: its connections stay open and nothing answers."""
        target = self._node(node_id)
        if target.pid is None or target.birth is None or not processes.pause(target.pid, target.birth):
            raise DevBrokerError(f"node {node_id} in {self.folder} does not run; restart() it first")

    def resume(self, node_id: int) -> None:
        """Let a paused node continue."""
        target = self._node(node_id)
        if (
            target.pid is None
            or target.birth is None
            or not processes.send(target.pid, target.birth, SIGCONT)
        ):
            raise DevBrokerError(f"node {node_id} in {self.folder} does not run; restart() it first")
