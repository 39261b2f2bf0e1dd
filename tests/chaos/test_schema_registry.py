"""A schema registry that is slow, away and wrong while workers fold: no good record is refused, and nothing hangs."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from holdfast.clients.topics.application import create_topics
from holdfast.dev.databases.schema_registry import SchemaRegistryServer
from holdfast.dev.fixtures import SessionBroker
from holdfast.pipeline.verify import verify
from holdfast.schemas import registry
from tests.agents.fleet import Fleet, Writer
from tests.schemas.shop import Big, Total, processors
from tests.support.harness import Worker, wait_for
from tests.support.proof import read_topic

DEADLINE_S = 60.0


@pytest.fixture
def fleet(broker: SessionBroker, schema_registry: SchemaRegistryServer, tmp_path: Path) -> Iterator[Fleet]:
    before = registry._current
    made = Fleet(
        broker,
        tmp_path,
        app=f"registry-{uuid.uuid4().hex[:6]}",
        partitions=1,
        module="tests.schemas.worker",
        declare=processors,
        schema_registry_url=schema_registry.url,
        schema_registry_timeout_s=1.5,
    )
    create_topics(replace(made.settings, schema_registry_timeout_s=30), made.processors, partitions=1)
    yield made
    made.close()
    registry._current = before


def test_no_good_record_is_refused_while_the_registry_is_slow_or_away(
    fleet: Fleet, schema_registry: SchemaRegistryServer, broker: SessionBroker
) -> None:
    processor = fleet.processors[0]
    (topic,) = processor.topics
    client = SchemaRegistryClient({"url": schema_registry.url})
    context = SerializationContext(topic, MessageField.VALUE)
    order = {"customer": "ada", "cents": 6_000}
    good = [written(client, f"release_{number}", order, context) for number in range(3)]
    wrong = written(client, "wrong", {"cents": 2}, context)
    writer, worker = Writer(broker), fleet.worker().start().wait_ready()
    waits = f"waits for schema registry {schema_registry.url}"

    writer.write(topic, good[0], key=b"ada")  # a schema that the worker has read is read on
    wait_at(fleet, worker, 0)
    schema_registry.freeze()
    try:
        writer.write(topic, good[0], key=b"bo")
        # The transaction that emits is the first to look up the own schema's id.
        writer.write(topic, good[1], key=b"ada")
        cause(fleet, worker, waits, f"at offset 2 of {topic}")
        wait_at(fleet, worker, 1)
    finally:
        schema_registry.thaw()
    wait_at(fleet, worker, 2)
    schema_registry.kill()
    try:
        writer.write(topic, wrong, key=b"ada")  # the newest schema, which the worker has read when it started
        writer.write(topic, good[2], key=b"ada")
        cause(fleet, worker, waits, f"at offset 4 of {topic}")
        worker.kill()
        worker = fleet.worker().start()
        cause(fleet, worker, waits, f"at offset 4 of {topic}")
    finally:
        schema_registry.restart()
    worker.wait_ready()
    wait_at(fleet, worker, 4)

    (refused,) = read_topic(broker, fleet.settings.quarantine_topic)[0]
    told = dict(refused.headers() or ())
    assert told["holdfast-offset"] == b"3"
    reason = f"of subject {topic}-value: does not fit: customer is missing"
    assert any(reason in str(each) for each in told.values())
    assert verify(processor, fleet.settings).equal
    (emitted,) = read_topic(broker, str(processor.emits[0]))[0]
    registry.use(fleet.settings)
    assert processor.emits[0].serde.decode(emitted.value()) == Big("ada", Total(2, 12_000))  # type: ignore[attr-defined]


def written(
    client: SchemaRegistryClient, name: str, value: Mapping[str, object], context: SerializationContext
) -> bytes:
    """Return what a producer writes whose schema is its own: of the fields that *value* has."""
    kinds = {"customer": "string", "cents": "long"}
    fields = [{"name": each, "type": kinds[each]} for each in value]
    write = AvroSerializer(client, json.dumps({"type": "record", "name": name, "fields": fields}))
    return write(value, context) or b""


def wait_at(fleet: Fleet, worker: Worker, offset: int) -> None:
    """Wait until the worker has folded up to *offset*."""
    place = fleet.processors[0].name, 0
    wait_for(f"offset {offset}", lambda: worker.applied().get(place) == offset, DEADLINE_S, fleet.tails)


def cause(fleet: Fleet, worker: Worker, *told: str) -> None:
    """Wait until the worker's readiness tells all of this."""

    def condition() -> bool:
        status, body = worker.ask("/health/ready")
        return status == 503 and all(each in str(json.loads(body).get("cause")) for each in told)

    wait_for(f"readiness to tell {told}", condition, DEADLINE_S, fleet.tails)
