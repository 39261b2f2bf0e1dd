"""A broker in a folder: its state when it starts again, and the folders that it refuses."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import time
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import KafkaError, Producer
from msgspec import structs

from holdfast.core.kafka.producer_state import AppendOutcome, ProducerEntry
from holdfast.core.kafka.record_batch import decode_header
from holdfast.core.kafka.topic_partition import Place
from holdfast.embedded.groups.group import CommittedOffset
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.embedded.logs.compaction import CompactionRules
from holdfast.embedded.logs.partition_log import PartitionLog
from holdfast.embedded.storage.disk import Disk
from holdfast.embedded.storage.folder import FolderStorage
from holdfast.errors import BrokerFolderError, DevBrokerError
from tests.embedded.clients.raw_client import RawClient
from tests.embedded.storage.folders import (
    TransactionalWriter,
    cluster_in,
    committed,
    leave,
    make_topic,
    partition,
    write,
)
from tests.embedded.transcripts.asking import batch
from tests.support.patience import DEADLINE_S

ORDERS: Place = ("orders", 0)
HOUR_MS = 3_600_000
ALWAYS = CompactionRules(now_ms=1 << 60, min_lag_ms=0, max_lag_ms=1 << 62, dirty_ratio=0.0, tombstones_ms=0)


def found_in(log: PartitionLog) -> list[object]:
    """Return a log's batches, and its state of producers and transactions; a snapshot does not know when
    batches came.
    """
    rows = [
        (
            key,
            [*structs.astuple(row)[:4], [each[:4] for each in map(structs.astuple, row.batches)]]
            if isinstance(row, ProducerEntry)
            else row,
        )
        for key, row in log.rows.scan()
        if not key.startswith("v/")
    ]
    return [log.start_offset, log.end_offset, log.last_stable_offset, rows, [each.data for each in log]]


@pytest.mark.parametrize("in_order", [True, False], ids=["in order", "killed"])
def test_a_broker_resumes_where_it_ended(tmp_path: Path, in_order: bool) -> None:
    with cluster_in(tmp_path) as cluster:
        make_topic(cluster, "orders", 2, segment_bytes="1048576")
        topic = cluster.topics.get("orders")
        assert topic is not None
        cluster.topics.configure({topic: {**topic.configs.own, "retention.ms": "-1"}})
        topic_id = topic.topic_id
        writer = TransactionalWriter(cluster, "writer")
        producer = writer.begin()
        for number in range(4):
            writer.write(ORDERS, b"x" * 400_000, b"%d" % number)
            writer.end(commit=number % 2 == 0)
        writer.write(ORDERS, b"open")
        write(cluster, ORDERS, b"alone", producer_id=77, producer_epoch=3, base_sequence=0)
        partition(cluster, ORDERS).log.delete_before(3)
        group = cluster.groups.opened("readers")
        cluster.groups.commit(group, {ORDERS: CommittedOffset(5, 0, "so far", 7)})
        writer.commit_offset("readers", ORDERS, 9)
        before = found_in(partition(cluster, ORDERS).log)
        epochs = partition(cluster, ORDERS).log.epochs
        ids = cluster.cluster_id
        if not in_order:
            leave(cluster)
    assert len(list((tmp_path / "orders-0").glob("*.log"))) > 1, "segments have rolled"
    with cluster_in(tmp_path) as cluster:
        topic = cluster.topics.get("orders")
        assert topic is not None
        assert (topic.topic_id, len(topic.partitions), cluster.cluster_id) == (topic_id, 2, ids)
        assert topic.configs.own == {"segment.bytes": "1048576", "retention.ms": "-1"}
        home = partition(cluster, ORDERS)
        assert found_in(home.log) == before
        assert (home.log.epochs[:-1], home.leader_epoch) == (epochs, epochs[-1][0] + 1)
        again = {"producer_id": 77, "producer_epoch": 3, "base_sequence": 0}
        assert write(cluster, ORDERS, b"alone", **again) is AppendOutcome.DUPLICATE
        read = cluster.groups.get("readers")
        assert read is not None
        assert read.offsets == {ORDERS: CommittedOffset(5, 0, "so far", 7, number=1)}
        assert ORDERS in read.unstable()
        writer = TransactionalWriter(cluster, "writer")
        writer.producer = producer
        writer.end(commit=True)  # the transaction that was open continues
        assert read.offsets[ORDERS].offset == 9
        assert committed(cluster, ORDERS)[-2:] == [b"open", b"alone"]
        assert TransactionalWriter(cluster, "another").begin()[0] > producer[0]


def test_a_decided_transaction_is_completed_at_the_start(tmp_path: Path) -> None:
    with cluster_in(tmp_path) as cluster:
        make_topic(cluster, "orders", 2)
        writer = TransactionalWriter(cluster, "writer")
        writer.begin()
        for index in (0, 1):
            writer.write(("orders", index), b"a")
        decide = cluster.transactions.write_markers
        cluster.transactions.write_markers = lambda *_: None  # type: ignore[method-assign]  # it is killed here
        writer.end(commit=True)
        cluster.transactions.write_markers = decide  # type: ignore[method-assign]
        leave(cluster)
    with cluster_in(tmp_path) as cluster:
        assert [committed(cluster, ("orders", index)) for index in (0, 1)] == [[b"a"], [b"a"]]


@pytest.mark.long
def test_of_a_tail_that_ends_at_any_byte_the_whole_batches_stay(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with cluster_in(kept) as cluster:
        make_topic(cluster, "orders", 1)
        for value in (b"first", b"second", b"third"):
            write(cluster, ORDERS, value)
        ends = [0]
        for each in partition(cluster, ORDERS).log:
            ends.append(ends[-1] + each.size)
        leave(cluster)
    segment = Path("orders-0") / f"{0:020d}.log"
    data = (kept / segment).read_bytes()
    tried = tmp_path / "tried"
    for size in range(len(data)):
        shutil.copytree(kept, tried)
        (tried / segment).write_bytes(data[:size] + b"\xff" * (size % 3))
        with cluster_in(tried) as cluster:
            whole = sum(end <= size for end in ends) - 1
            assert partition(cluster, ORDERS).log.end_offset == whole
            write(cluster, ORDERS, b"next")
            assert committed(cluster, ORDERS) == [*[b"first", b"second", b"third"][:whole], b"next"]
        shutil.rmtree(tried)


def test_a_batch_that_was_damaged_after_it_was_whole_is_refused(tmp_path: Path) -> None:
    with cluster_in(tmp_path) as cluster:
        make_topic(cluster, "orders", 1)
        write(cluster, ORDERS, b"first")
        write(cluster, ORDERS, b"second")
    segment = tmp_path / "orders-0" / f"{0:020d}.log"
    data = bytearray(segment.read_bytes())
    data[16] = 1
    segment.write_bytes(data)
    with (
        pytest.raises(BrokerFolderError, match=r"damaged at byte 0 .*though it was whole once: restore"),
        cluster_in(tmp_path),
    ):
        pass
    assert segment.read_bytes() == bytes(data), "nothing was cut off"
    segment.unlink()
    with (
        pytest.raises(BrokerFolderError, match="ends at offset 0, though it went to 2 once"),
        cluster_in(tmp_path),
    ):
        pass


def test_segments_go_as_a_whole_when_they_were_kept_for_long_enough(tmp_path: Path) -> None:
    with cluster_in(tmp_path) as cluster:
        make_topic(cluster, "orders", 1, segment_ms="1000", retention_ms=str(HOUR_MS))
        for age_ms in (3 * HOUR_MS, 3 * HOUR_MS - 500, 2 * HOUR_MS, 10):
            write(cluster, ORDERS, b"a", at_ms=cluster.now_ms() - age_ms)
        log = partition(cluster, ORDERS).log
        cluster.upkeep.look()
        assert (log.start_offset, log.end_offset) == (3, 4)
        assert [each.name for each in (tmp_path / "orders-0").glob("*.log")] == [f"{3:020d}.log"]
        cluster.faults.clock_ms = 2 * HOUR_MS
        cluster.upkeep.look()
        assert (log.start_offset, log.end_offset, list(log)) == (4, 4, [])
        write(cluster, ORDERS, b"b")
    with cluster_in(tmp_path) as cluster:
        log = partition(cluster, ORDERS).log
        assert (log.start_offset, log.end_offset) == (4, 5)


def test_compaction_leaves_the_same_in_files_as_in_memory(tmp_path: Path) -> None:
    memory = PartitionLog()
    with cluster_in(tmp_path) as cluster:
        make_topic(cluster, "orders", 1, cleanup_policy="compact", segment_ms="1000")
        log = partition(cluster, ORDERS).log
        for number in range(60):
            key, value = b"%d" % (number % 7), None if number % 11 == 0 else b"%d" % number
            data = batch(value or b"", key=key, at_ms=1_000_000 + number * 400)
            for each in (log, memory):
                each.append(data, decode_header(data), leader_epoch=0, now_ms=0, is_append_time=False)
                each.replicated(each.end_offset)
        upper = max(int(each.stem) for each in (tmp_path / "orders-0").glob("*.log"))
        assert log.compact(ALWAYS)
        closed = PartitionLog()
        for stored in memory:
            if stored.first_offset <= upper:  # memory's own active part is its newest batch
                header = decode_header(stored.data)
                closed.append(stored.data, header, leader_epoch=0, now_ms=0, is_append_time=False)
                closed.replicated(closed.end_offset)
        assert closed.compact(ALWAYS)
        left = [each.data for each in closed][:-1]
        assert [each.data for each in log if each.first_offset < upper] == left
        before = found_in(log)
        leave(cluster)
    assert sorted(each.name for each in (tmp_path / "orders-0").glob("*.log")) == [
        f"{0:020d}.log",
        f"{upper:020d}.log",
    ], "small segments became one"
    with cluster_in(tmp_path) as cluster:
        assert found_in(partition(cluster, ORDERS).log) == before
        assert partition(cluster, ORDERS).log.compacted_to == upper


def test_a_topic_with_the_name_of_a_deleted_topic_is_empty(tmp_path: Path) -> None:
    with cluster_in(tmp_path) as cluster:
        make_topic(cluster, "orders", 2)
        write(cluster, ORDERS, b"a")
        partition(cluster, ORDERS).log.delete_before(1)
        cluster.groups.commit(cluster.groups.opened("readers"), {ORDERS: CommittedOffset(1, 0, "", 0)})
        topic = cluster.topics.get("orders")
        assert topic is not None
        cluster.delete_topics([topic])
        assert not list(tmp_path.glob("orders-*"))
        make_topic(cluster, "orders", 1)
        leave(cluster)
    with cluster_in(tmp_path) as cluster:
        log = partition(cluster, ORDERS).log
        assert (log.start_offset, log.end_offset) == (0, 0)
        readers = cluster.groups.get("readers")
        assert readers is None or not readers.offsets


def test_a_topic_that_was_being_deleted_when_it_was_killed_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster_in(tmp_path) as cluster:
        make_topic(cluster, "orders")
        write(cluster, ORDERS, b"a")
        partition(cluster, ORDERS).log.delete_before(1)
    with cluster_in(tmp_path) as cluster, monkeypatch.context() as patched:
        patched.setattr(cluster.storage, "_clear_away", lambda: None)  # it is killed here
        topic = cluster.topics.get("orders")
        assert topic is not None
        cluster.delete_topics([topic])
        leave(cluster)
    with cluster_in(tmp_path) as cluster:
        assert not list(tmp_path.glob("orders-*"))
        make_topic(cluster, "orders")
        log = partition(cluster, ORDERS).log
        assert (log.start_offset, log.end_offset) == (0, 0)


def test_a_seed_gives_other_ids_at_each_start_and_the_same_in_each_folder(tmp_path: Path) -> None:
    ids: list[list[bytes]] = []
    for folder in ("one", "other"):
        for number in range(3):
            with EmbeddedKafka(folder=tmp_path / folder, seed=7) as kafka:
                kafka.create_topic(f"topic-{number}")
                found = [each.topic_id for each in kafka.cluster.topics]
        ids.append(found)
    assert len(set(ids[0])) == 3, "a client asks for records by the id of their topic"
    assert ids[0] == ids[1]


def test_few_files_are_open_however_many_partitions_there_are(tmp_path: Path) -> None:
    disk = Disk(fsync=False, limit_open=5)
    with cluster_in(tmp_path, disk=disk) as cluster:
        make_topic(cluster, "orders", 30)
        for _ in range(2):
            for index in range(30):
                write(cluster, ("orders", index), b"a")
                assert len(disk) <= 5
        assert all(committed(cluster, ("orders", index)) == [b"a", b"a"] for index in range(30))
        assert len(disk) <= 5
    assert len(disk) == 0


# -- refusals


def test_a_folder_has_one_broker_at_a_time(tmp_path: Path) -> None:
    with EmbeddedKafka(folder=tmp_path) as kafka:
        with pytest.raises(BrokerFolderError, match=r"a broker runs in .* already: stop it first"):
            EmbeddedKafka(folder=tmp_path).start()
        kafka.create_topic("orders")
    with EmbeddedKafka(folder=tmp_path):
        pass


def test_the_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=x\n")
    with pytest.raises(BrokerFolderError, match=r"holds meta\.properties, and nothing of an embedded Kafka"):
        EmbeddedKafka(folder=tmp_path).start()
    assert (tmp_path / "meta.properties").read_text().endswith("cluster.id=x\n")


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BrokerFolderError, match=r"cannot make .*file/broker: Not a directory"):
        EmbeddedKafka(folder=tmp_path / "file" / "broker").start()


def test_fsync_wants_a_folder() -> None:
    with pytest.raises(DevBrokerError, match="fsync and no folder"):
        EmbeddedKafka(fsync=True)


def test_the_number_of_brokers_stays(tmp_path: Path) -> None:
    with EmbeddedKafka(folder=tmp_path, nodes=3) as kafka:
        kafka.create_topic("orders")
    with pytest.raises(BrokerFolderError, match="is that of 3 brokers, not of 1"):
        EmbeddedKafka(folder=tmp_path).start()
    with EmbeddedKafka(folder=tmp_path, nodes=3) as kafka:
        found = kafka.cluster.topics.partition("orders", 0)
        assert found is not None
        assert len(found.replicas) == 3


def of_topic(**told: object) -> bytes:
    """Return a catalog with one topic."""
    topic = {"name": "orders", "topic_id": "0" * 32, "replicas": [[1]], "configs": {}, **told}
    return msgspec.json.encode({"topics": [topic]})


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"{", r"embedded-topics\.json cannot be read"),
        (b'{"version": 2}', "has version 2, this holdfast reads 1"),
        (of_topic(topic_id="beef"), r"cannot be read .*topic_id"),
        (of_topic(replicas=[]), r"cannot be read .*replicas"),
        (of_topic(replicas=[[]]), r"cannot be read .*replicas"),
        (of_topic(replicas=[[1], [2]]), "topic orders lies on broker 2, and there are 1"),
        (
            of_topic(configs={"segment.bytes": "much"}),
            r"topic orders: Invalid value much for .*segment\.bytes",
        ),
    ],
)
def test_a_catalog_that_cannot_be_read_is_refused(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "embedded-topics.json").write_bytes(data)
    with pytest.raises(BrokerFolderError, match=words):
        EmbeddedKafka(folder=tmp_path).start()


def test_a_client_can_ask_for_the_folder_and_its_room(tmp_path: Path) -> None:
    with EmbeddedKafka(folder=tmp_path) as kafka:
        kafka.create_topic("orders")
        with RawClient(kafka.bootstrap) as client:
            (told,) = client.ask("DescribeLogDirs", 5, topics=None)["results"]
    assert (told["error_code"], told["log_dir"]) == (0, str(tmp_path))
    assert 0 < told["usable_bytes"] < told["total_bytes"]
    assert {"name": "orders", "partitions": 1} in [
        {"name": each["name"], "partitions": len(each["partitions"])} for each in told["topics"]
    ]


class FullDisk(Disk):
    """Takes *room* bytes more."""

    room = 1_000

    def _write(self, descriptor: int, data: memoryview) -> int:
        if self.room < len(data):
            if self.room == 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            data = data[: self.room]
        self.room -= len(data)
        return super()._write(descriptor, data)


def test_a_broker_whose_disk_is_full_stops_and_resumes_when_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kafka = EmbeddedKafka(folder=tmp_path)
    assert isinstance(kafka.cluster.storage, FolderStorage)
    kafka.cluster.storage.disk = FullDisk(fsync=False)
    acknowledged = 0

    def told(error: KafkaError | None, _: object) -> None:
        nonlocal acknowledged
        acknowledged += error is None

    with kafka:
        kafka.create_topic("orders")
        producer = Producer(
            kafka.client_config(**{"message.timeout.ms": 60_000, "linger.ms": 0, "log_level": 0})
        )
        until_s = time.monotonic() + DEADLINE_S
        while kafka.failure is None:
            assert time.monotonic() < until_s, "it has not failed"
            value = b"%d" % acknowledged
            producer.produce("orders", value, on_delivery=told)
            producer.flush(0.5)
        with pytest.raises(BrokerFolderError, match="No space left on device; make room on the disk"):
            kafka.create_topic("another")
    assert acknowledged > 3
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR] == [
        f"{kafka.failure}; it stops"
    ], "it is told once"
    with EmbeddedKafka(folder=tmp_path) as again:
        found = again.cluster.topics.partition("orders", 0)
        assert found is not None
        assert found.log.end_offset == acknowledged


def test_a_limit_on_file_sizes_is_reported_with_a_remedy(tmp_path: Path) -> None:
    class LimitedDisk(Disk):
        def _write(self, descriptor: int, data: memoryview) -> int:
            raise OSError(errno.EFBIG, "File too large")

    disk = LimitedDisk(fsync=False)
    disk.create(tmp_path / "log")
    with pytest.raises(BrokerFolderError, match=r"File too large; raise the limit .* \(ulimit -f\)"):
        disk.append(tmp_path / "log", b"more")
    disk.close()


def test_a_broker_stops_if_its_files_were_changed(tmp_path: Path) -> None:
    with EmbeddedKafka(folder=tmp_path) as kafka, RawClient(kafka.bootstrap) as client:
        kafka.create_topic("orders", partitions=1)
        data = [{"name": "orders", "partition_data": [{"index": 0, "records": batch(b"a")}]}]
        client.ask("Produce", 11, acks=-1, timeout_ms=10_000, topic_data=data)
        os.truncate(tmp_path / "orders-0" / f"{0:020d}.log", 10)
        wanted = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}]
        with pytest.raises(ConnectionError):
            client.ask("Fetch", 12, max_bytes=1 << 20, topics=[{"topic": "orders", "partitions": wanted}])
        for ask in (lambda: kafka.create_topic("another"), lambda: kafka.revive(1)):
            with pytest.raises(
                BrokerFolderError, match=r"ends at byte 10, though .* changed by another program"
            ):
                ask()


@pytest.mark.parametrize("meanwhile", ["deleted", "compacted"])
def test_a_compaction_ends_if_the_segments_it_reads_are_removed(tmp_path: Path, meanwhile: str) -> None:
    """To read on would find other bytes or none, for which the disk refuses everything from then on."""
    with cluster_in(tmp_path) as cluster:
        make_topic(cluster, "orders", 1, segment_bytes="1048576")
        log = partition(cluster, ORDERS).log
        for number in range(8):
            write(cluster, ORDERS, b"%d" % number * 400_000, key=b"key")
        compaction = log.compaction(ALWAYS)
        next(compaction)
        if meanwhile == "deleted":
            log.delete_before(6)
        else:
            assert log.compact(ALWAYS)
        before = [each.data for each in log]
        assert [*compaction] == []
        assert [each.data for each in log] == before
        write(cluster, ORDERS, b"later")
        assert committed(cluster, ORDERS)[-1] == b"later"
