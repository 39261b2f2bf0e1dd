"""`holdfast producers hanging`: on a broker whose log files have lost markers, as an only one can leave
them when it dies.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka.protocol.produce import ProduceRequest
from confluent_kafka import Producer

from holdfast.cli.__main__ import main
from holdfast.config import Settings
from holdfast.core.kafka.record_batch import TRANSACTIONAL_BIT, Record, RecordBatch, batches, encode_batch
from holdfast.dev.broker.cluster import Cluster
from holdfast.dev.fixtures import SessionBroker
from holdfast.errors import BrokerError
from holdfast.kafka.requests.raw_log import RawLog
from tests.support.harness import wait_for_ends
from tests.support.lost_markers import log_file, lose_markers
from tests.support.parts import part
from tests.support.patience import DEADLINE_S
from tests.support.proof import read_topic
from tests.support.strangers import open_transaction

PARTITIONS = 3


@pytest.fixture(scope="module")
@part("kafka")
def frail(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SessionBroker]:
    """Give a broker that these tests may do anything to, and that lets late batches into transactions, as
    Kafka before 3.6 did.
    """
    properties = {"transaction.partition.verification.enable": "false"}
    with Cluster(tmp_path_factory.mktemp("frail"), properties=properties, short_lived=True) as cluster:
        yield SessionBroker(config=cluster.client_config(), cluster=cluster)


class Desk:
    """Runs the command and reads what people see of a topic."""

    def __init__(self, broker: SessionBroker, capsys: pytest.CaptureFixture[str]) -> None:
        self._broker, self._capsys = broker, capsys

    def run(self, topic: str, *more: str) -> tuple[int, list[dict[str, Any]], str]:
        """Return the exit code, the records, and the notes on stderr."""
        with pytest.raises(SystemExit) as left:
            main(
                [
                    "--bootstrap",
                    self._broker.bootstrap,
                    "producers",
                    "hanging",
                    "--topic",
                    topic,
                    "--set",
                    "request_timeout_s=120",
                    "-o",
                    "json",
                    *more,
                ]
            )
        out, said = self._capsys.readouterr()
        assert isinstance(left.value.code, int)
        return left.value.code, json.loads(out), said

    def refused(self, topic: str) -> str:
        """Return why --end fails."""
        with pytest.raises(SystemExit) as left:
            main(["--bootstrap", self._broker.bootstrap, "producers", "hanging", "--topic", topic, "--end"])
        assert left.value.code not in (0, None)
        return self._capsys.readouterr().err

    def seen(self, topic: str) -> dict[int, list[bytes | None]]:
        """Return the committed records of each partition, up to the offset where a reader has to wait."""
        return {
            number: [message.value() for message in found]
            for number, found in read_topic(self._broker, topic).items()
        }


@pytest.fixture
def desk(frail: SessionBroker, capsys: pytest.CaptureFixture[str]) -> Desk:
    return Desk(frail, capsys)


def producer(broker: SessionBroker, name: str) -> Producer:
    made = Producer(broker.client_config(**{"transactional.id": name}))
    made.init_transactions(DEADLINE_S)
    return made


def transaction(made: Producer, topic: str, value: bytes, *, commit: bool) -> None:
    """Write *value* to each partition."""
    made.begin_transaction()
    for partition in range(PARTITIONS):
        made.produce(topic, value, partition=partition)
    assert made.flush(DEADLINE_S) == 0
    made.commit_transaction(DEADLINE_S) if commit else made.abort_transaction(DEADLINE_S)


def everywhere(*values: bytes) -> dict[int, list[bytes]]:
    return {partition: list(values) for partition in range(PARTITIONS)}


@pytest.mark.variant
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_transaction_without_its_markers_is_ended_as_was_decided(
    frail: SessionBroker, desk: Desk, commit: bool
) -> None:
    topic, name = frail.create_topic("orders", partitions=PARTITIONS), f"shop-{uuid.uuid4().hex[:8]}"
    made = producer(frail, name)
    transaction(made, topic, b"first", commit=True)
    transaction(made, topic, b"second", commit=commit)
    assert desk.run(topic)[:2] == (0, [])
    lose_markers(frail, topic, 1, 2)
    code, found, said = desk.run(topic)
    assert code == 1
    assert "--end" in said
    assert [(each["partition"], each["offset"], each["transactional_id"]) for each in found] == [
        (1, 2, name),
        (2, 2, name),
    ]
    assert {each["decided"] for each in found} == {"commit" if commit else "abort"}
    assert desk.seen(topic)[1] == [b"first"]
    again = producer(frail, name)  # fenced, and none the wiser: the coordinator says that all of it has ended
    assert desk.run(topic)[1] == found
    assert desk.run(topic, "--end")[:2] == (0, found)
    assert desk.run(topic)[:2] == (0, [])
    second = [b"first", b"second"] if commit else [b"first"]
    assert desk.seen(topic) == everywhere(*second)
    transaction(again, topic, b"third", commit=True)
    assert desk.seen(topic) == everywhere(*second, b"third")
    del made


def test_an_open_transaction_that_is_young_does_not_hang(frail: SessionBroker, desk: Desk) -> None:
    topic = frail.create_topic("orders", partitions=PARTITIONS)
    with open_transaction(frail.config, topic, PARTITIONS):
        assert desk.run(topic, "--end")[:2] == (0, [])
    assert desk.seen(topic) == everywhere()


def test_what_came_after_its_transaction_was_committed_is_left_to_people(
    frail: SessionBroker, desk: Desk
) -> None:
    topic, name = frail.create_topic("orders", partitions=PARTITIONS), f"shop-{uuid.uuid4().hex[:8]}"
    transaction(producer(frail, name), topic, b"first", commit=True)
    wait_for_ends(Settings(kafka=frail.client_config()), topic)
    _, _, written = next(iter(batches(log_file(frail, topic, 1).read_bytes())))
    stray(frail, topic, name, written)
    code, found, said = desk.run(topic, "--end")
    assert (code, [(each["partition"], each["offset"], each["decided"]) for each in found]) == (
        1,
        [(1, 2, None)],
    )
    assert "kafka-transactions.sh abort" in said
    assert desk.run(topic)[:2] == (1, found)


def stray(broker: SessionBroker, topic: str, transactional_id: str, after: RecordBatch) -> None:
    """Append a batch of the same producer and epoch after the end of its transaction."""
    late = RecordBatch(
        attributes=TRANSACTIONAL_BIT,
        base_timestamp_ms=after.base_timestamp_ms,
        max_timestamp_ms=after.base_timestamp_ms,
        producer_id=after.producer_id,
        producer_epoch=after.producer_epoch,
        base_sequence=after.base_sequence + 1,
        records=(Record(value=b"late"),),
    )

    async def send() -> Any:
        async with RawLog(Settings(kafka=dict(broker.config))) as raw:
            request = ProduceRequest(
                transactional_id=transactional_id,
                required_acks=-1,
                timeout=60_000,
                topics=[(topic, [(1, encode_batch(late))])],
            )
            return await raw._client.send(await raw._leader(topic, 1), request)

    response = asyncio.run(send())
    assert response.topics[0][1][0][1] == 0, response


def test_an_unknown_topic_is_reported(desk: Desk) -> None:
    assert "topic nowhere does not exist" in desk.refused("nowhere")


@pytest.mark.variant
def test_markers_that_end_nothing_are_noticed(
    frail: SessionBroker, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = frail.create_topic("orders", partitions=PARTITIONS)
    transaction(producer(frail, uuid.uuid4().hex), topic, b"first", commit=True)
    lose_markers(frail, topic, 1, 2)

    async def nothing(self: RawLog, topic: str, partition: int, **more: object) -> None:
        pass

    with monkeypatch.context() as patch:
        patch.setattr(RawLog, "end_transaction", nothing)
        assert "2 transactions hang though their markers were written" in desk.refused(topic)
    assert desk.run(topic, "--end")[0] == 0
    assert desk.seen(topic) == everywhere(b"first")


def end(
    broker: SessionBroker, topic: str, epoch: int, versions: dict[int, tuple[int, int]] | None = None
) -> str:
    """Try to end a transaction in partition 0, and return why that could not be."""

    async def run() -> None:
        async with RawLog(Settings(kafka=dict(broker.config)), timeout_s=DEADLINE_S) as raw:
            await raw.fetch(topic, 0, 0)
            if versions is not None:
                for connection in raw._client._conns.values():
                    connection._versions = {
                        **{key: span for key, span in connection._versions.items() if key != 27},
                        **versions,
                    }
            _, _, written = next(iter(batches((await raw.fetch(topic, 0, 0)).data)))
            await raw.end_transaction(
                topic, 0, producer_id=written.producer_id, epoch=epoch, commit=True, coordinator_epoch=0
            )

    with pytest.raises(BrokerError) as told:
        asyncio.run(run())
    return str(told.value)


def test_a_leader_that_refuses_is_quoted(frail: SessionBroker) -> None:
    topic, name = frail.create_topic("orders", partitions=PARTITIONS), uuid.uuid4().hex
    for _ in range(2):
        transaction(producer(frail, name), topic, b"x", commit=True)
    assert "the leader refuses a marker of producer" in (told := end(frail, topic, epoch=0))
    assert "InvalidProducerEpoch" in told


@pytest.mark.parametrize("versions", [{}, {27: (0, 0)}], ids=["without the request", "with an older one"])
def test_a_broker_too_old_to_end_transactions_is_named(
    frail: SessionBroker, versions: dict[int, tuple[int, int]]
) -> None:
    topic = frail.create_topic("orders", partitions=PARTITIONS)
    transaction(producer(frail, uuid.uuid4().hex), topic, b"x", commit=True)
    assert "this needs Kafka 2.8 or newer" in end(frail, topic, epoch=0, versions=versions)
