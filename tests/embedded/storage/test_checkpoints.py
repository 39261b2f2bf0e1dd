"""Checkpoint files: Kafka's own are read, and what is none of them is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.embedded.storage.checkpoints import OffsetCheckpoint, checkpoint_text, read_epochs
from holdfast.embedded.storage.disk import Disk
from holdfast.errors import BrokerFolderError
from tests.embedded.storage.folders import cluster_in, committed, make_topic, partition, write

ORDERS = ("orders", 0)


def test_an_empty_file_says_nothing_as_in_kafka(tmp_path: Path) -> None:
    """Kafka makes it when a partition begins, and writes it when there is something to say."""
    path = tmp_path / "leader-epoch-checkpoint"
    path.touch()
    assert read_epochs(path) == []
    assert OffsetCheckpoint(Disk(fsync=False), path).get(ORDERS) == 0


def test_a_broker_starts_with_empty_checkpoints(tmp_path: Path) -> None:
    with cluster_in(tmp_path) as cluster:
        make_topic(cluster, "orders", 1)
        write(cluster, ORDERS, b"one")
        epochs = partition(cluster, ORDERS).log.epochs
    for each in tmp_path.rglob("*-checkpoint"):
        each.write_bytes(b"")
    with cluster_in(tmp_path) as cluster:
        assert committed(cluster, ORDERS) == [b"one"]
        assert partition(cluster, ORDERS).log.epochs[:-1] == epochs, "known from the batches themselves"


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "\n",
        "0\n\n",
        "1\n0\n",
        "0\n2\n0 1\n",
        "0\n1\n0\n",
        "0\n1\n0 1 2\n",
        "0\n1\n0 x\n",
        "0\n1\n0 --1\n",
        "0\n1\n0 \u0661\n",
    ],
)
def test_what_is_no_checkpoint_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BrokerFolderError, match=rf"{path} is no checkpoint of Kafka's"):
        read_epochs(path)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_bytes(checkpoint_text([(0, 0), (3, 41)]))
    assert read_epochs(path) == [(0, 0), (3, 41)]
