"""Records with schemas in a registry: a live table equals a replay of them, here and on Spark."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from confluent_kafka import Consumer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from holdfast import Avro, JsonSchema
from holdfast.clients.topics.application import create_topics
from holdfast.dev.databases.schema_registry import SchemaRegistryServer
from holdfast.dev.fixtures import SessionBroker
from holdfast.pipeline.replay import ReplayOptions
from holdfast.pipeline.verify.table import verify
from holdfast.schemas import registry
from tests.agents.fleet import Fleet, Writer
from tests.schemas import shop_pb2
from tests.schemas.shop import Order, processors
from tests.support.harness import wait_for
from tests.support.patience import DEADLINE_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 2


@pytest.fixture
def fleet(broker: SessionBroker, schema_registry: SchemaRegistryServer, tmp_path: Path) -> Iterator[Fleet]:
    before = registry._current
    made = Fleet(
        broker,
        tmp_path,
        app=f"schemas-{uuid.uuid4().hex[:6]}",
        partitions=PARTITIONS,
        module="tests.schemas.worker",
        declare=processors,
        schema_registry_url=schema_registry.url,
        schema_registry_timeout_s=60,
    )
    create_topics(made.settings, made.processors, partitions=PARTITIONS)
    yield made
    made.close()
    registry._current = before


class OldOrder(msgspec.Struct):
    """An older producer's type: a narrower field, and a field that is gone."""

    customer: str
    cents: int
    coupon: str | None = None


@pytest.mark.slow
def test_live_local_and_spark_are_one_table(
    fleet: Fleet, spark: SparkSession, schema_registry: SchemaRegistryServer, broker: SessionBroker
) -> None:
    client = SchemaRegistryClient({"url": schema_registry.url})
    worker = fleet.worker().start()
    writer = Writer(broker)
    ends: dict[tuple[str, int], int] = {}
    for processor in fleet.processors:
        (topic,) = processor.topics
        for partition, offset in writer.write_all(topic, records(processor.name, topic, client)):
            ends[processor.name, partition] = max(offset, ends.get((processor.name, partition), -1))
    worker.wait_ready()
    wait_for("all records", lambda: worker.applied() == ends, DEADLINE_S, fleet.tails)
    for processor in fleet.processors:
        here = verify(processor, fleet.settings, ReplayOptions(engine="local"))
        there = verify(processor, fleet.settings, ReplayOptions(engine="spark"))
        assert here.equal, [each.explain() for each in here.partitions]
        assert here.live_digest == here.replayed_digest == there.replayed_digest
        assert there.equal
        (big,) = map(str, processor.emits)
        read, wanted = EMITTED[processor.name]
        told = [
            read(client)(value, SerializationContext(big, MessageField.VALUE))
            for value in values(broker, big)
        ]
        assert told == [wanted]
    assert len(values(broker, fleet.settings.quarantine_topic)) == 2 * len(fleet.processors)


STRUCT = {"customer": "ada", "total": {"count": 20, "cents": 10_000}}
EMITTED: dict[str, tuple[Callable[[SchemaRegistryClient], Any], Any]] = {
    "avro_totals": (AvroDeserializer, STRUCT),
    "json_totals": (lambda client: JSONDeserializer(None, schema_registry_client=client), STRUCT),
    "protobuf_totals": (
        lambda client: ProtobufDeserializer(shop_pb2.Big),
        shop_pb2.Big(customer="ada", count=20, cents=10_000),
    ),
}
"""Values that Confluent's deserializers read from the emits of each processor."""


def records(
    name: str, topic: str, client: SchemaRegistryClient
) -> list[tuple[bytes, bytes | None, int, int]]:
    """Return records as producers write them, and two that no registry's serializer wrote."""
    context = SerializationContext(topic, MessageField.VALUE)
    write = WRITERS[name](client)
    out: list[tuple[bytes, bytes | None, int, int]] = []
    for at in range(30):
        value = write(at, context)
        out.append((value, b"ada", 0, 0) if at < 20 else (value, b"bo%d" % at, 1, 0))
    return [*out, (b'{"customer": "ada"}', b"ada", 0, 0), (b"\0\0\0\x7f\xff\x02", b"bo", 1, 0)]


def avro(client: SchemaRegistryClient) -> Callable[[int, SerializationContext], bytes]:
    """Write by two schemas, as producers of two releases do."""
    new = AvroSerializer(client, Avro(Order, namespace="com.new").schema.text)
    old = AvroSerializer(client, Avro(OldOrder, namespace="com.old").schema.text)
    filled = {"lines": [], "kind": "FOOD", "notes": {}, "seal": b""}
    empty = dict.fromkeys(("weight", "at", "day", "number", "to"))
    order = {"customer": "ada", "cents": 500}

    def write(at: int, context: SerializationContext) -> bytes:
        return old(order | {"coupon": "x"}, context) if at % 3 else new(order | filled | empty, context)  # type: ignore[no-any-return]

    return write


def as_json(client: SchemaRegistryClient) -> Callable[[int, SerializationContext], bytes]:
    write = JSONSerializer(JsonSchema(Order).schema.text, client)
    return lambda at, context: write({"customer": "ada", "cents": 500}, context)


def protobuf(client: SchemaRegistryClient) -> Callable[[int, SerializationContext], bytes]:
    write = ProtobufSerializer(shop_pb2.Order, client)
    return lambda at, context: write(shop_pb2.Order(customer="ada", cents=500), context)


WRITERS = {"avro_totals": avro, "json_totals": as_json, "protobuf_totals": protobuf}


def values(broker: SessionBroker, topic: str) -> list[bytes]:
    """Return the values of a topic's committed records."""
    consumer = Consumer(
        broker.client_config(
            **{"group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest", "enable.partition.eof": True}
        )
    )
    consumer.subscribe([topic])
    found, ended = [], set[int]()
    partitions = len(consumer.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions)
    try:
        while len(ended) < partitions:
            message = consumer.poll(DEADLINE_S)
            assert message is not None, f"{topic} has not come to its end in {DEADLINE_S:.0f} s"
            if message.error() is not None:
                ended.add(message.partition() or 0)
            else:
                found.append(message.value() or b"")
    finally:
        consumer.close()
    return found
