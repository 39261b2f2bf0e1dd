"""The archive of a node's classes: made once per user, JDK and Kafka, by a node that is used for nothing
else.

A node loads some 9,000 classes from 60 jars before it answers. From an archive they cost 1.4 s of processor
time instead of 2.4 s.
"""

from __future__ import annotations

import logging
import os
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

from holdfast.class_archive import ClassArchive, shared_classes
from holdfast.dev import ports, processes
from holdfast.dev.broker import formatting, jars, node, state
from holdfast.dev.broker.java import Java
from holdfast.dev.broker.state import ClusterState, NodeState
from holdfast.errors import HoldfastError
from holdfast.jars import cache_folder

logger = logging.getLogger(__name__)

DEADLINE_S = 60.0


def prepare() -> Java:
    """Return the Java to run nodes with; the first time for its JDK and jars, that takes 4 s longer.

    Nodes start without an archive too, only more slowly, so a failure to make one is only logged.
    """
    java = Java(program=jars.find_java(), class_path=jars.class_path())
    folder = cache_folder() / "classes"

    def run_once(sharing: list[str]) -> None:
        _run_once(replace(java, sharing=tuple(sharing)), folder)

    try:
        sharing = shared_classes(lambda: _archive(folder, java), run_once, deadline_s=2 * DEADLINE_S)
    except (HoldfastError, OSError, subprocess.TimeoutExpired) as error:
        logger.warning(
            "brokers start more slowly, for no archive of their classes was made: %(cause)s",
            {"cause": error},
        )
        return java
    return replace(java, sharing=sharing)


def _archive(folder: Path, java: Java) -> ClassArchive:
    return ClassArchive.of(folder, java.program, java.class_path.split(os.pathsep))


def _run_once(java: Java, folder: Path) -> None:
    """Start a node, see it answer, and end it in good order: the JVM writes the archive as it exits."""
    with tempfile.TemporaryDirectory(prefix="node-", dir=folder) as scratch:
        home = Path(scratch)
        port, controller_port = ports.free_ports(2)
        only = NodeState(node_id=1, port=port, controller_port=controller_port)
        cluster = ClusterState(
            kafka=jars.KAFKA_VERSION, cluster_id=state.new_cluster_id(), nodes=[only], heap_max_mb=256
        )
        node.write_settings(cluster, only, home)
        formatting.format_storage(cluster, home, replace(java, sharing=()))
        its_home = node.home_of(home, only)
        command = node.command_line(
            its_home, java, heap_max_mb=cluster.heap_max_mb, bound=True, optimised=False
        )
        child = node.spawn(command, its_home)
        try:
            only.pid, only.birth = child.pid, processes.birth_of(child.pid)
            node.wait_ready(cluster, home, [only], deadline_s=DEADLINE_S)
            child.terminate()
            child.wait(DEADLINE_S)
        finally:
            child.kill()
            child.wait(DEADLINE_S)
