"""Formats the storage of new nodes: gives each data folder the cluster's id, the node's id and an id of its
own.

Kafka's tool is a JVM of its own, half a second of processor time for each node. What it writes for a node
without users and properties of its own holds nothing of that node but these ids, so it formats one, and the
others take a copy from the user's cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from holdfast.dev.broker import properties, state
from holdfast.dev.broker.java import Java
from holdfast.dev.broker.node import home_of, without_frames
from holdfast.dev.broker.state import ClusterState, NodeState
from holdfast.errors import DevBrokerError
from holdfast.jars import cache_folder

FORMAT_DEADLINE_S = 60.0
_CHECKPOINT = "bootstrap.checkpoint"
_META = "meta.properties"
_META_VERSION = "1"


def format_storage(cluster: ClusterState, folder: Path, java: Java) -> None:
    """Format every new data folder of *cluster*, with its SCRAM user if it has one; a formatted one stays as
    it is.
    """
    fresh = [node for node in cluster.nodes if not (_data_of(folder, node) / _META).exists()]
    if not fresh:
        return
    # A user is part of the storage, and properties may change the stored files and their folders.
    kept = None if cluster.credentials or cluster.properties else _kept(java)
    if kept is not None and (checkpoint := _read(kept)):
        for node in fresh:
            _copy(checkpoint, cluster, node, _data_of(folder, node))
        return
    _format(cluster, [home_of(folder, node) for node in fresh], java)
    if kept is not None:
        _keep(_data_of(folder, fresh[0]), kept)


def _data_of(folder: Path, node: NodeState) -> Path:
    return home_of(folder, node) / "data"


# --- by a copy


def _kept(java: Java) -> Path:
    """Return where the checkpoint of Kafka's tool lies for the jars of *java*, or will lie."""
    key = hashlib.sha256(java.class_path.encode()).hexdigest()[:16]
    return cache_folder() / "formatted" / f"{key}.checkpoint"


def _read(kept: Path) -> bytes | None:
    with contextlib.suppress(OSError):
        return kept.read_bytes()
    return None


def _keep(data: Path, kept: Path) -> None:
    """Keep what Kafka's tool wrote into *data*, in one step; without it the next node is formatted more
    slowly, so a cache that cannot be written is no error.
    """
    if _known(data / _META).keys() != _known_keys() or _known(data / _META)["version"] != _META_VERSION:
        return  # this Kafka writes something else there: only its tool knows what it means
    with contextlib.suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        made = kept.with_suffix(f".{os.getpid()}.making")
        made.write_bytes((data / _CHECKPOINT).read_bytes())
        os.replace(made, kept)


def _copy(checkpoint: bytes, cluster: ClusterState, node: NodeState, data: Path) -> None:
    (data / _CHECKPOINT).write_bytes(checkpoint)
    # Last, for it says that the folder is formatted.
    (data / _META).write_bytes(properties.render(_meta(cluster.cluster_id, node.node_id)))


def _meta(cluster_id: str, node_id: int) -> dict[str, str]:
    # An id of this folder alone: the quorum takes two folders of one id for the same.
    directory_id = state.new_cluster_id()
    return {
        "version": _META_VERSION,
        "cluster.id": cluster_id,
        "node.id": str(node_id),
        "directory.id": directory_id,
    }


def _known_keys() -> set[str]:
    return set(_meta("", 0))


def _known(meta: Path) -> dict[str, str]:
    """Return the values in a file of properties; those of Kafka's tool have no escapes."""
    lines = [line for line in meta.read_text().splitlines() if line and not line.startswith("#")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


# --- by Kafka's tool


def _format(cluster: ClusterState, homes: Sequence[Path], java: Java) -> None:
    """Format the folders in *homes* all at once, for each is a JVM of its own."""
    flags = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-Dlog4j2.level=WARN"]
    # In one word with its option: one id in 64 begins with a dash.
    format_id = ["format", f"--cluster-id={cluster.cluster_id}"]
    command = [*java.command(*flags), "kafka.tools.StorageTool", *format_id]
    if user := cluster.credentials:
        # Other users of this machine can list this for a second: it is the password of a cluster that only
        # listens on loopback.
        command += ["--add-scram", f"{properties.MECHANISM}=[name={user.username},password={user.password}]"]
    with ThreadPoolExecutor(max_workers=len(homes)) as pool:
        for home, ran in zip(
            homes,
            pool.map(lambda home: _run([*command, "-c", str(home / "server.properties")]), homes),
            strict=True,
        ):
            if ran.returncode != 0:
                raise DevBrokerError(
                    f"formatting {home / 'data'} failed: {'; '.join(without_frames(ran.stderr + ran.stdout))}"
                )


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=FORMAT_DEADLINE_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        raise DevBrokerError(
            f"{command[0]} took longer than {FORMAT_DEADLINE_S:.0f} s; is the machine overloaded?"
        ) from error
