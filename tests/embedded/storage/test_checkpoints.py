"""Checkpoint files: Kafka's own are read, and others are refused by name."""

from __future__ import annotations

from collections.abc import Iterable
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


class SeenDisk(Disk):
    """Notes how long each file is that it syncs."""

    def __init__(self) -> None:
        super().__init__(fsync=False)
        self.on_disk: dict[Path, int] = {}

    def sync_files(self, paths: Iterable[Path]) -> None:
        self.on_disk |= {each: each.stat().st_size for each in paths if each.is_file()}

    def replace(self, path: Path, data: bytes) -> None:
        if path.name == "recovery-point-offset-checkpoint" and b"orders" in data:
            for each in (path.parent / "orders-0").glob("*.log"):
                assert self.on_disk.get(each) == each.stat().st_size, "it may be gone with the power"
        super().replace(path, data)


def test_offsets_in_the_recovery_checkpoint_of_a_clean_end_are_on_the_disk(tmp_path: Path) -> None:
    """Else a power cut soon after it leaves a folder that no broker starts with."""
    for end in (1, 2):
        disk = SeenDisk()
        with cluster_in(tmp_path, disk=disk) as cluster:
            if end == 1:
                make_topic(cluster, "orders", 1)
            write(cluster, ORDERS, b"one")
            assert not disk.on_disk, "without fsync nothing waits for the disk before"
        assert (tmp_path / "recovery-point-offset-checkpoint").read_text().endswith(f"orders 0 {end}\n")
        assert tmp_path / "embedded-topics.json" in disk.on_disk


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
def test_an_invalid_checkpoint_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BrokerFolderError, match=rf"{path} is no checkpoint of Kafka's"):
        read_epochs(path)


def test_a_checkpoint_is_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_bytes(checkpoint_text([(0, 0), (3, 41)]))
    assert read_epochs(path) == [(0, 0), (3, 41)]
