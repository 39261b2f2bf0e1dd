"""Faults on request while librdkafka's transactions run: committed records exist once, aborted ones never,
and offsets go with them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import product
from random import Random

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from holdfast.embedded.faults import FaultKind
from holdfast.embedded.kafka import EmbeddedKafka
from tests.support.patience import DEADLINE_S

OF_A_TRANSACTION = (
    *(
        "InitProducerId",
        "FindCoordinator",
        "AddPartitionsToTxn",
        "Produce",
        "AddOffsetsToTxn",
        "TxnOffsetCommit",
    ),
    "EndTxn",
)
QUICK = {
    "log_level": 0,
    "socket.timeout.ms": 1_000,
    "reconnect.backoff.ms": 1,
    "reconnect.backoff.max.ms": 20,
    "retry.backoff.ms": 5,
    # else librdkafka 2.16 forgets its broker when the last connection ends, and waits for it for ever (its
    # issue 5511)
    "metadata.recovery.strategy": "none",
}


class Copier:
    """Copies numbers in transactions, with their offsets: those in `committed` were, those in `aborted` were
    not.

    Without *offsets* where brokers die: librdkafka 2.16 waits for ever for a group's coordinator that has
    left the cluster, whatever its deadline (its issues 5456 and 5511).
    """

    def __init__(self, kafka: EmbeddedKafka, *, offsets: bool = True) -> None:
        self._kafka, self._offsets = kafka, offsets
        self.committed, self.aborted = list[int](), list[int]()
        self._group = Consumer(kafka.client_config(**QUICK, **{"group.id": "copier"}))
        self._producer = self._new()

    def _new(self) -> Producer:
        told = {**QUICK, "transactional.id": "copier", "linger.ms": 0, "transaction.timeout.ms": 120_000}
        producer = Producer(self._kafka.client_config(**told))
        producer.init_transactions(DEADLINE_S)
        return producer

    def copy(self, number: int, *, commit: bool = True) -> None:
        """Copy one, and commit or abort it; a transaction that must be aborted is, and one whose producer was
        fenced.
        """
        try:
            self._producer.begin_transaction()
            self._producer.produce("copies", b"%d" % number, partition=number % 2)
            if self._offsets:
                self._send_offset(number + 1)
            if commit:
                self._producer.commit_transaction(DEADLINE_S)
            else:
                self._abort()
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self._abort()
            commit = False
        (self.committed if commit else self.aborted).append(number)

    def _abort(self) -> None:
        """Abort the transaction; use a new producer if the coordinator does not know that it began.

        Where a broker dies before it answers AddPartitionsToTxn, librdkafka does not know whether the request
        was received, and asks for an abort all the same (rd_kafka_txn_handle_AddPartitionsToTxn). A
        coordinator that knows of no transaction refuses that, which librdkafka takes for fatal.
        """
        try:
            self._producer.abort_transaction(DEADLINE_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.INVALID_TXN_STATE:
                raise
            self._producer = self._new()

    def _send_offset(self, offset: int) -> None:
        group = self._group.consumer_group_metadata()
        self._producer.send_offsets_to_transaction([TopicPartition("numbers", 0, offset)], group, DEADLINE_S)

    def check(self) -> None:
        """Compare the stored records with the committed ones."""
        assert read(self._kafka) == self.committed
        if self._offsets:
            (place,) = self._group.committed([TopicPartition("numbers", 0)], DEADLINE_S)
            assert place.offset == self.committed[-1] + 1
        self._group.close()


def read(kafka: EmbeddedKafka) -> list[int]:
    """Return the committed numbers, in their order."""
    told = {"group.id": "reader", "enable.partition.eof": True}
    consumer = Consumer(kafka.client_config(**QUICK, **told))
    consumer.assign([TopicPartition("copies", index, 0) for index in (0, 1)])
    found, ends, until_s = list[int](), 0, time.monotonic() + DEADLINE_S
    while ends < 2:
        assert time.monotonic() < until_s, "a partition has no end"
        message = consumer.poll(0.1)
        if message is not None and (error := message.error()) is not None:
            ends += error.code() == KafkaError._PARTITION_EOF
        elif message is not None:
            found.append(int(message.value() or b""))
    consumer.close()
    return sorted(found)


def cluster(nodes: int = 1) -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(nodes=nodes, seed=1) as kafka:
        kafka.create_topic("copies", partitions=2)
        kafka.create_topic("numbers")
        yield kafka


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    yield from cluster()


@pytest.fixture
def three() -> Iterator[EmbeddedKafka]:
    yield from cluster(3)


def _copied(kafka: EmbeddedKafka, seed: int, faults: list[tuple[FaultKind, str]], count: int) -> None:
    chance = Random(seed)
    for kind, api in faults:
        kafka.fault(kind, api, times=2, skip=chance.randrange(3), delay_ms=20)
    copier = Copier(kafka)
    for number in range(count):
        copier.copy(number, commit=number == 0 or (chance.random() < 0.7 and number < count - 1))
    hits = len(kafka.faults.hits)
    kafka.faults.clear()
    copier.check()
    assert hits, "nothing went wrong"


@pytest.mark.parametrize("seed", range(3))
def test_transactions_are_whole_whatever_goes_wrong(kafka: EmbeddedKafka, seed: int) -> None:
    """Every kind of fault but silence, which takes a client its timeout, each for another request."""
    kinds = [each for each in FaultKind if each is not FaultKind.DROP]
    apis = Random(seed).sample(OF_A_TRANSACTION, len(kinds))
    _copied(kafka, seed, [(FaultKind.CUT, "Produce"), *zip(kinds, apis, strict=True)], 8)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "api"), list(product(FaultKind, OF_A_TRANSACTION)))
def test_transactions_are_whole_with_each_fault(kafka: EmbeddedKafka, kind: FaultKind, api: str) -> None:
    _copied(kafka, 1, [(kind, api)], 8)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_transactions_are_whole_with_faults_of_all_kinds_together(kafka: EmbeddedKafka, seed: int) -> None:
    pairs = list(product(FaultKind, OF_A_TRANSACTION))
    _copied(kafka, seed, Random(seed).sample(pairs, 6), 20)


def _copied_while_brokers_die(three: EmbeddedKafka, seed: int, times: int) -> None:
    chance, copier = Random(seed), Copier(three, offsets=False)
    dies, trouble = threading.Event(), list[BaseException]()

    def kill() -> None:
        try:
            for _ in range(times):
                victim = chance.choice(list(three.cluster.nodes))
                three.kill(victim)
                dies.wait(chance.uniform(0.02, 0.2))
                three.revive(victim)
                dies.wait(chance.uniform(0.02, 0.2))
        except BaseException as error:  # noqa: BLE001  # the test tells of it
            trouble.append(error)

    killer = threading.Thread(target=kill)
    killer.start()
    number = 0
    while killer.is_alive() or number < 10 or number % 3 != 2:
        copier.copy(number, commit=number % 3 != 1)  # the last one is aborted
        number += 1
    killer.join(DEADLINE_S)
    assert not trouble
    copier.check()


@pytest.mark.long
def test_transactions_are_whole_while_brokers_die(three: EmbeddedKafka) -> None:
    _copied_while_brokers_die(three, 1, 4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 8))
def test_transactions_are_whole_while_many_brokers_die(three: EmbeddedKafka, seed: int) -> None:
    _copied_while_brokers_die(three, seed, 25)
