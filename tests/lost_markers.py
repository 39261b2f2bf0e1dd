"""Partitions whose ends of transactions are lost, as an only broker can leave them when it dies."""

from __future__ import annotations

from pathlib import Path

from holdfast.core.record_batch import RecordBatch, batches
from holdfast.dev.fixtures import SessionBroker
from tests.harness import wait_for


def log_file(broker: SessionBroker, topic: str, partition: int) -> Path:
    assert broker.cluster is not None
    (found,) = broker.cluster.folder.glob(f"**/{topic}-{partition}/*.log")
    return found


def lose_markers(broker: SessionBroker, topic: str, *partitions: int) -> None:
    """Kill the only broker, take the last batch of each of *partitions*, a marker, off their files, and start it."""
    assert broker.cluster is not None
    files = [log_file(broker, topic, partition) for partition in partitions]
    # A commit is acknowledged when it is decided; its markers come after.
    wait_for("the markers", lambda: all(last_batch(path)[1].is_control for path in files), 20)
    broker.cluster.kill(1)
    for path in files:
        at, _ = last_batch(path)
        path.write_bytes(path.read_bytes()[:at])
    broker.cluster.restart(1)


def last_batch(path: Path) -> tuple[int, RecordBatch]:
    """Return where in the file the last batch begins, and the batch."""
    at, _, batch = list(batches(path.read_bytes()))[-1]
    return at, batch
