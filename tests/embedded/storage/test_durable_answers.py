"""Answers of a broker with fsync: they wait for the disk, in their order, and a write that the disk refused
is not answered.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer

from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.embedded.protocol.codes import KafkaCode
from holdfast.embedded.storage.disk import Disk
from holdfast.embedded.storage.durable_answers import DurableAnswers
from holdfast.embedded.storage.folder import FolderStorage
from holdfast.errors import BrokerFolderError
from tests.embedded.clients.raw_client import RawClient
from tests.embedded.storage.folders import cluster_in, make_topic, write
from tests.embedded.transcripts.asking import batch
from tests.support.harness import wait_for
from tests.support.patience import DEADLINE_S


class SlowDisk(Disk):
    """Has nothing on it until it may."""

    def __init__(self) -> None:
        super().__init__(fsync=True)
        self.asked, self.may = threading.Event(), threading.Event()
        self.may.set()
        self.syncs = 0

    def sync_files(self, paths: Iterable[Path]) -> None:
        self.asked.set()
        self.may.wait(DEADLINE_S)
        self.syncs += 1
        super().sync_files(paths)


class BrokenDisk(Disk):
    """Fails to sync, once it is set to."""

    broken = False

    def sync_files(self, paths: Iterable[Path]) -> None:
        if self.broken:
            raise BrokerFolderError("the disk is broken")
        super().sync_files(paths)


class NotedDisk(Disk):
    """Records the synced bytes."""

    def __init__(self) -> None:
        super().__init__(fsync=True)
        self.on_disk = set[Path]()

    def sync_files(self, paths: Iterable[Path]) -> None:
        self.on_disk.update(paths)


@contextmanager
def kafka_on(disk: Disk, folder: Path, **told: Any) -> Iterator[EmbeddedKafka]:
    """Run a broker with fsync and a topic on *disk*."""
    kafka = EmbeddedKafka(folder=folder, fsync=True, **told)
    assert isinstance(kafka.cluster.storage, FolderStorage)
    kafka.cluster.storage.disk = disk
    with kafka:
        kafka.create_topic("orders")
        yield kafka


@contextmanager
def waiting(disk: SlowDisk) -> Iterator[None]:
    """Have *disk* take nothing within the block."""
    disk.may.clear()
    disk.asked.clear()
    try:
        yield
    finally:
        disk.may.set()


def send_record(client: RawClient) -> None:
    """Ask for one record to be taken, without waiting for the answer."""
    data = [{"name": "orders", "partition_data": [{"index": 0, "records": batch(b"a")}]}]
    client.send("Produce", 11, acks=-1, timeout_ms=10_000, topic_data=data)


def test_answers_wait_for_the_disk_and_share_a_sync(tmp_path: Path) -> None:
    disk = SlowDisk()
    with kafka_on(disk, tmp_path) as kafka:
        producers = [
            Producer(kafka.client_config(**{"linger.ms": 0, "enable.idempotence": False})) for _ in range(5)
        ]
        for each in producers:
            each.produce("orders", b"warm")
            assert each.flush(DEADLINE_S) == 0
        partition = kafka.cluster.topics.partition("orders", 0)
        assert partition is not None
        before = disk.syncs
        with waiting(disk):
            for each in producers:
                each.produce("orders", b"a")
            assert disk.asked.wait(DEADLINE_S)
            wait_for("all five to be taken", lambda: partition.log.end_offset == 10, DEADLINE_S)
            assert [each.flush(0.1) for each in producers] == [1] * 5, "nobody is answered"
        assert [each.flush(DEADLINE_S) for each in producers] == [0] * 5
        assert disk.syncs - before <= 3, "those that came meanwhile share one"


def test_answers_that_wait_for_the_disk_keep_their_order_after_a_late_one(tmp_path: Path) -> None:
    disk = SlowDisk()
    with kafka_on(disk, tmp_path) as kafka, RawClient(kafka.bootstrap) as client:
        send_record(client)  # the first one begins the leader's epoch, for which the broker itself waits
        client.receive_frame()
        kafka.fault("delay", "Produce", delay_ms=50)
        with waiting(disk):
            for _ in range(3):
                send_record(client)
            partition = kafka.cluster.topics.partition("orders", 0)
            assert partition is not None
            wait_for("all three to be taken", lambda: partition.log.end_offset == 4, DEADLINE_S)
        told = [int.from_bytes(client.receive_frame()[:4], "big") for _ in range(3)]
    assert told == [2, 3, 4]


def test_a_wrong_password_is_refused_while_others_wait_for_the_disk(tmp_path: Path) -> None:
    disk = SlowDisk()
    with (
        kafka_on(disk, tmp_path, users={"root": "secret"}) as kafka,
        RawClient(kafka.bootstrap) as root,
        RawClient(kafka.bootstrap) as stranger,
    ):
        assert root.ask("SaslHandshake", 1, mechanism="PLAIN")["error_code"] == KafkaCode.NONE
        assert root.ask("SaslAuthenticate", 2, auth_bytes=b"\0root\0secret")["error_code"] == KafkaCode.NONE
        send_record(root)
        root.receive_frame()
        with waiting(disk):
            send_record(root)
            assert disk.asked.wait(DEADLINE_S)
            assert stranger.ask("SaslHandshake", 1, mechanism="PLAIN")["error_code"] == KafkaCode.NONE
            told = stranger.ask("SaslAuthenticate", 2, auth_bytes=b"\0root\0wrong")
        assert told["error_code"] == KafkaCode.SASL_AUTHENTICATION_FAILED


@pytest.mark.long
def test_nothing_is_answered_that_could_not_be_synced(tmp_path: Path) -> None:
    disk = BrokenDisk(fsync=True)
    errors: list[KafkaError | None] = []
    with kafka_on(disk, tmp_path) as kafka:
        disk.broken = True
        told = {"linger.ms": 0, "message.timeout.ms": 1_500, "log_level": 0}
        producer = Producer(kafka.client_config(**told))
        producer.produce("orders", b"a", on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(DEADLINE_S) == 0
        with pytest.raises(BrokerFolderError, match="the disk is broken"):
            kafka.create_topic("another")
    assert len(errors) == 1
    assert errors[0] is not None


def test_a_later_sync_does_not_release_answers_of_a_failed_one(tmp_path: Path) -> None:
    disk = BrokenDisk(fsync=True)
    sent: list[str] = []

    async def run() -> None:
        answers = DurableAnswers(disk)
        disk.create(tmp_path / "log")
        disk.broken = True
        assert answers.hold(lambda: sent.append("lost"))
        failed = asyncio.Event()
        disk.on_failure = lambda _: failed.set()
        await failed.wait()
        disk.broken = False
        assert answers.hold(lambda: sent.append("later"))
        answers.close()

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))
    assert sent == []


def test_a_segment_is_on_the_disk_before_it_counts_as_whole(tmp_path: Path) -> None:
    disk = NotedDisk()
    with cluster_in(tmp_path, fsync=True, disk=disk) as cluster:
        make_topic(cluster, "orders", 1, segment_ms="1000")
        write(cluster, ("orders", 0), b"a", at_ms=1_000_000)
        disk.take_unsynced()  # a thread begins to sync it, and has not come far
        disk.on_disk.clear()
        write(cluster, ("orders", 0), b"b", at_ms=2_000_000)
        assert (tmp_path / "recovery-point-offset-checkpoint").read_text().endswith("orders 0 1\n")
        assert tmp_path / "orders-0" / f"{0:020d}.log" in disk.on_disk
