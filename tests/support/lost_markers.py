"""Partitions whose ends of transactions are lost, as an only broker can leave them when it dies."""

from __future__ import annotations

from pathlib import Path

from holdfast.core.broker_logs.folds import TRANSACTION_TOPIC, decode_transaction
from holdfast.core.kafka.record_batch import RecordBatch, batches
from holdfast.core.kafka.transaction_state import PREPARED, TransactionState
from holdfast.dev.fixtures import SessionBroker
from tests.support.harness import wait_for
from tests.support.patience import DEADLINE_S


def log_file(broker: SessionBroker, topic: str, partition: int) -> Path:
    # Named, not searched for: the run's broker may delete the folders of other tests at the same time.
    assert broker.cluster is not None, "this test changes a log file of the session's own Apache Kafka"
    (found,) = broker.cluster.folder.glob(f"node-*/data/{topic}-{partition}/*.log")
    return found


def lose_markers(broker: SessionBroker, topic: str, *partitions: int) -> None:
    """Kill the only broker, take the last batch of each of *partitions*, a marker, off their files, and
    start it.
    """
    assert broker.cluster is not None
    files = [log_file(broker, topic, partition) for partition in partitions]
    # A commit is acknowledged when it is decided. Its markers come after, and the coordinator's note that
    # they are written after those: without that note they would be written again.
    wait_for("the markers", lambda: all(last_batch(path)[1].is_control for path in files), DEADLINE_S)
    wait_for("their end", lambda: not PREPARED & set(coordinated(broker).values()), DEADLINE_S)
    broker.cluster.kill(1)
    for path in files:
        at, _ = last_batch(path)
        path.write_bytes(path.read_bytes()[:at])
    broker.cluster.restart(1)


def coordinated(broker: SessionBroker) -> dict[str, TransactionState]:
    """Return the state that the coordinator last wrote of each transactional id."""
    assert broker.cluster is not None
    states = {}
    for path in broker.cluster.folder.glob(f"node-*/data/{TRANSACTION_TOPIC}-*/*.log"):
        for _, _, batch in batches(path.read_bytes()):
            for record in batch.records:
                note = decode_transaction(record.key, record.value)
                if note.noted is not None:
                    states[note.transactional_id] = note.noted.state
    return states


def last_batch(path: Path) -> tuple[int, RecordBatch]:
    """Return where in the file the last batch begins, and the batch."""
    at, _, batch = list(batches(path.read_bytes()))[-1]
    return at, batch
