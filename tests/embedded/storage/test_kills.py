"""SIGKILL at random moments, while librdkafka's producers write to a broker in a folder: no acknowledged
record is lost, none exists twice, and no aborted record is read.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from holdfast.embedded.protocol.codes import KafkaCode
from tests.embedded.clients.raw_client import RawClient
from tests.embedded.storage.killed_broker import KilledBroker, broker_in
from tests.support.patience import DEADLINE_S

pytestmark = pytest.mark.process


class IdempotentWriter(threading.Thread):
    """Writes numbers to partition 0 in their order, until its end is requested."""

    def __init__(self, broker: KilledBroker, chance: Random) -> None:
        super().__init__()
        self._chance, self.ends = chance, threading.Event()
        self._producer = Producer(
            broker.config(**{"enable.idempotence": True, "linger.ms": 2, "message.timeout.ms": 300_000})
        )
        self.sent, self.refused = 0, list[str]()

    def _told(self, error: KafkaError | None, _: object) -> None:
        if error is not None:
            self.refused.append(str(error))

    def run(self) -> None:
        while not self.ends.is_set():
            if len(self._producer) < 5_000:
                value = b"%d " % self.sent + bytes(self._chance.randrange(2_000))
                self._producer.produce("orders", value, partition=0, on_delivery=self._told)
                self.sent += 1
            self._producer.poll(0.001)
        if left := self._producer.flush(DEADLINE_S):
            self.refused.append(f"{left} were never acknowledged")


class PairWriter(threading.Thread):
    """Writes pairs to both partitions, in transactions of which some are aborted."""

    def __init__(self, broker: KilledBroker, chance: Random) -> None:
        super().__init__()
        self._broker, self._chance, self.ends = broker, chance, threading.Event()
        self.committed, self.aborted = set[int](), set[int]()
        self.trouble: Exception | None = None

    def run(self) -> None:
        try:
            producer, number = self._new(), 0
            while not self.ends.is_set():
                producer = self._write(producer, number, commit=self._chance.random() < 0.7)
                number += 1
        except Exception as error:  # noqa: BLE001  # the test tells of it
            self.trouble = error

    def _new(self) -> Producer:
        told = {"transactional.id": "pairs", "linger.ms": 0, "transaction.timeout.ms": 120_000}
        producer = Producer(self._broker.config(**told))
        producer.init_transactions(DEADLINE_S)
        return producer

    def _write(self, producer: Producer, number: int, *, commit: bool) -> Producer:
        """Write a pair and end its transaction; abort it if the broker was killed. Return the producer to
        continue with.
        """
        try:
            producer.begin_transaction()
            for partition in (0, 1):
                headers: list[tuple[str, str | bytes | None]] = [("pair", b"")]
                producer.produce("orders", b"%d" % number, partition=partition, headers=headers)
            (producer.commit_transaction if commit else producer.abort_transaction)(DEADLINE_S)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                return self._new()  # the outcome of the transaction is unknown
            producer.abort_transaction(DEADLINE_S)
            commit = False
        (self.committed if commit else self.aborted).add(number)
        return producer


def make_topic(broker: KilledBroker) -> None:
    topic = NewTopic("orders", 2, config={"segment.bytes": str(1 << 20)})
    admin = AdminClient(broker.config())
    admin.create_topics([topic])["orders"].result(DEADLINE_S)


def read(broker: KilledBroker) -> tuple[list[int], list[list[int]]]:
    """Return the committed numbers, and those of the pairs in each partition."""
    told = {"group.id": "reader", "auto.offset.reset": "earliest", "enable.partition.eof": True}
    consumer = Consumer(broker.config(**told))
    consumer.assign([TopicPartition("orders", index, 0) for index in (0, 1)])
    plain, pairs, open_partitions = list[int](), [list[int](), list[int]()], {0, 1}
    until_s = time.monotonic() + DEADLINE_S
    while open_partitions:
        assert time.monotonic() < until_s, "a partition has no end"
        for message in consumer.consume(1_000, 1):
            index = message.partition() or 0
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                open_partitions.discard(index)
                continue
            number = int((message.value() or b"").split()[0])
            (pairs[index] if message.headers() else plain).append(number)
    consumer.close()
    return plain, pairs


def _killed(folder: Path, how: str, *, times: int, seed: int) -> None:
    chance = Random(seed)
    with broker_in(folder, how) as broker:
        make_topic(broker)
        writer, pairs = IdempotentWriter(broker, Random(seed)), PairWriter(broker, Random(seed + 1))
        for each in (writer, pairs):
            each.start()
        for _ in range(times):
            time.sleep(chance.uniform(0.1, 0.8))
            broker.kill()
        committed = len(pairs.committed)
        until_s = time.monotonic() + DEADLINE_S
        while len(pairs.committed) == committed and pairs.trouble is None:
            assert time.monotonic() < until_s, "no transaction after the last start"
            time.sleep(0.02)
        for each in (writer, pairs):
            each.ends.set()
            each.join(DEADLINE_S)
        if pairs.trouble is not None:
            raise pairs.trouble
        assert writer.refused == []
        plain, found = read(broker)
    assert plain == list(range(writer.sent)), "each once, in its order"
    assert found[0] == found[1] == sorted(set(found[0])), "a transaction is whole, and there once"
    assert not pairs.committed - set(found[0])
    assert not pairs.aborted & set(found[0])


@pytest.mark.parametrize("how", ["fsync", "no fsync"])
def test_acknowledged_records_outlive_sigkill(tmp_path: Path, how: str) -> None:
    _killed(tmp_path / "broker", how, times=2, seed=1)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_continues_after_sigkill(tmp_path: Path, protocol: str) -> None:
    assigned: list[list[TopicPartition]] = []
    with broker_in(tmp_path / "broker", "no fsync") as broker:
        make_topic(broker)
        told = {"group.id": "readers", "group.protocol": protocol, "auto.offset.reset": "earliest"}
        consumer = Consumer(broker.config(**told))
        consumer.subscribe(["orders"], on_assign=lambda _, places: assigned.append(places))
        producer = Producer(broker.config())

        def copied(value: bytes) -> None:
            producer.produce("orders", value, partition=0)
            until_s = time.monotonic() + DEADLINE_S
            while (message := consumer.poll(0.1)) is None or message.error() is not None:
                assert time.monotonic() < until_s, "the record does not come"
            assert message.value() == value
            consumer.commit(message=message, asynchronous=False)

        copied(b"before")
        broker.kill()
        copied(b"after")
        (place,) = consumer.committed([TopicPartition("orders", 0)], DEADLINE_S)
        consumer.close()
    assert place.offset == 2
    assert len(assigned) == 1, "nobody has to join again"


OPEN = TopicPartition("orders", 0, 7)


def opened(broker: KilledBroker, *, timeout_ms: int) -> Producer:
    """Return a producer whose transaction is open, with a record and a committed offset in it."""
    told = {"transactional.id": "payments", "transaction.timeout.ms": timeout_ms}
    producer = Producer(broker.config(**told))
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    producer.produce("orders", b"open", partition=1)
    group = Consumer(broker.config(**{"group.id": "readers"}))
    producer.send_offsets_to_transaction([OPEN], group.consumer_group_metadata(), DEADLINE_S)
    assert producer.flush(DEADLINE_S) == 0
    group.close()
    return producer


def seen(broker: KilledBroker) -> tuple[int, int, int]:
    """Return how much of partition 1 there is, how much of it is stable, and the offset that is committed, -2
    while that is in doubt.
    """
    partition = {"partition_index": 1, "timestamp": -1, "current_leader_epoch": -1}
    with RawClient(broker.bootstrap) as client:
        ends = []
        for isolation in (0, 1):
            topics = [{"name": "orders", "partitions": [partition]}]
            answer = client.ask("ListOffsets", 7, replica_id=-1, isolation_level=isolation, topics=topics)
            ends.append(answer["topics"][0]["partitions"][0]["offset"])
        groups = [{"group_id": "readers", "topics": [{"name": "orders", "partition_indexes": [0]}]}]
        (group,) = client.ask("OffsetFetch", 9, groups=groups, require_stable=True)["groups"]
        (place,) = group["topics"][0]["partitions"]
    return *ends, -2 if place["error_code"] == KafkaCode.UNSTABLE_OFFSET_COMMIT else place["committed_offset"]


def ended(broker: KilledBroker) -> tuple[int, int, int]:
    """Return the records that readers see once every transaction has ended."""
    until_s = time.monotonic() + DEADLINE_S
    while (found := seen(broker))[0] != found[1] or found[2] == -2:
        assert time.monotonic() < until_s, found
        time.sleep(0.05)
    return found


@pytest.mark.long
@pytest.mark.parametrize("end", ["by its timeout", "by who begins anew", "by its own producer"])
def test_a_transaction_that_was_open_at_sigkill_is_open_until_it_is_ended(tmp_path: Path, end: str) -> None:
    """By its timeout, which counts on; by another producer of its id; or by its own, which commits it."""
    with broker_in(tmp_path / "broker", "no fsync") as broker:
        make_topic(broker)
        producer = opened(broker, timeout_ms=3_000 if end == "by its timeout" else 600_000)
        broker.kill()
        if end == "by its own producer":
            assert seen(broker) == (1, 0, -2)
            producer.commit_transaction(DEADLINE_S)
            assert ended(broker) == (2, 2, 7)
            return
        if end == "by who begins anew":
            assert seen(broker) == (1, 0, -2)
            another = Producer(broker.config(**{"transactional.id": "payments"}))
            another.init_transactions(DEADLINE_S)
        assert ended(broker) == (2, 2, -1), "a marker behind the record, and no offset"
        broker.kill()
        assert seen(broker) == (2, 2, -1)
        with pytest.raises(KafkaException):
            producer.commit_transaction(DEADLINE_S)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_acknowledged_records_outlive_many_sigkills(tmp_path: Path, seed: int) -> None:
    _killed(tmp_path / "broker", "fsync" if seed % 2 else "no fsync", times=15, seed=seed)
