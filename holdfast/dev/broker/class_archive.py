"""Making the archive of a node's classes: once per user, JDK and Kafka, by a node that nobody uses."""

from __future__ import annotations

import logging
import os
import subprocess
import tempfile
from pathlib import Path

from holdfast.dev import ports, processes
from holdfast.dev.broker import jars, node, state
from holdfast.dev.broker.java import Java
from holdfast.dev.broker.state import ClusterState, NodeState
from holdfast.errors import DevBrokerError

logger = logging.getLogger(__name__)

DEADLINE_S = 60.0


def ensure(java: Java) -> None:
    """Make the archive of *java* if it is missing; about 4 s. Nodes start without one too, only slower, so a
    failure is told in the log and harms nobody.
    """
    archive = java.archive
    if archive is None or archive.exists():
        return
    try:
        with state.exclusive(archive.parent, deadline_s=2 * DEADLINE_S):
            if not archive.exists():  # another process may have made it meanwhile
                _make(java, archive)
    except (DevBrokerError, OSError, subprocess.TimeoutExpired) as error:
        logger.warning("no class archive was made, so brokers start more slowly", extra={"error": str(error)})


def _make(java: Java, archive: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".make-", dir=archive.parent) as scratch:
        folder = Path(scratch)
        port, controller_port = ports.free_ports(2)
        only = NodeState(node_id=1, port=port, controller_port=controller_port)
        cluster = ClusterState(
            kafka=jars.KAFKA_VERSION, cluster_id=state.new_cluster_id(), nodes=[only], heap_max_mb=256
        )
        node.write_settings(cluster, only, folder)
        node.format_storage(cluster, folder, java)
        _run_once(cluster, only, folder, java, record=folder / archive.name)
        os.replace(folder / archive.name, archive)


def _run_once(cluster: ClusterState, only: NodeState, folder: Path, java: Java, *, record: Path) -> None:
    """Start the node, see it answer, and end it in good order: the JVM writes the archive as it exits."""
    home = node.home_of(folder, only)
    command = node.command_line(
        home, java, heap_max_mb=cluster.heap_max_mb, leashed=True, optimised=False, record=record
    )
    child = node.spawn(command, home)
    try:
        only.pid, only.birth = child.pid, processes.birth_of(child.pid)
        node.wait_ready(cluster, folder, [only], deadline_s=DEADLINE_S)
        child.terminate()
        child.wait(DEADLINE_S)
    finally:
        child.kill()
        child.wait(DEADLINE_S)
