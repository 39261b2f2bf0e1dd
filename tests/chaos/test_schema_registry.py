"""A schema registry that is slow, away and wrong while workers fold: no good record is refused, nothing
hangs, and a record refused for an unknown id stays refused.
"""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from holdfast.clients.topics.application import create_topics
from holdfast.dev.databases.schema_registry import SchemaRegistryServer
from holdfast.dev.fixtures import SessionBroker
from holdfast.pipeline.replay import replay
from holdfast.pipeline.verify.table import verify
from holdfast.schemas import registry
from tests.agents.fleet import Fleet, Writer
from tests.schemas.shop import Big, Total, processors
from tests.support.harness import Worker, wait_for
from tests.support.patience import DEADLINE_S
from tests.support.proof import read_topic


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


@pytest.mark.slow
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
        # The worker has read this schema when it started, and it does not fit: before the record is refused
        # for that, the registry is asked whether it is still the same.
        writer.write(topic, wrong, key=b"ada")
        writer.write(topic, good[2], key=b"ada")
        cause(fleet, worker, waits, f"at offset 3 of {topic}")
        worker.kill()
        worker = fleet.worker().start()
        cause(fleet, worker, waits, f"at offset 3 of {topic}")
    finally:
        schema_registry.restart()
    worker.wait_ready()
    wait_at(fleet, worker, 4)

    # The registry learns an id after its record was refused: the table keeps to the refusal, and so does the
    # replay it is compared with.
    client.register_schema("elsewhere", Schema('"string"', "AVRO"))
    before = client.register_schema("elsewhere", Schema('"bytes"', "AVRO"))
    writer.write(topic, good[0][:1] + (before + 1).to_bytes(4, "big") + good[0][5:], key=b"ada")
    wait_at(fleet, worker, 5)
    learned = written(client, "late", order, context)
    assert int.from_bytes(learned[1:5], "big") == before + 1
    assert verify(processor, fleet.settings).equal
    registry.use(fleet.settings)
    assert replay(processor, fleet.settings).digest != verify(processor, fleet.settings).live_digest, (
        "it could be read now"
    )
    worker.kill()  # it would keep in mind for a while that the id is unknown
    worker = fleet.worker().start()
    writer.write(topic, learned, key=b"eve")
    wait_at(fleet, worker, 6)
    assert verify(processor, fleet.settings).equal

    refused, unknown = read_topic(broker, fleet.settings.quarantine_topic)[0]
    assert dict(unknown.headers() or ())["holdfast-error"] == b"UnknownSchemaError"
    told = dict(refused.headers() or ())
    assert told["holdfast-offset"] == b"3"
    reason = f"of subject {topic}-value: does not fit: customer is missing"
    assert any(reason in str(each) for each in told.values())
    assert verify(processor, fleet.settings).equal
    (emitted,) = read_topic(broker, str(processor.emits[0]))[0]
    registry.use(fleet.settings)
    assert processor.emits[0].serde.decode(emitted.value()) == Big("ada", Total(2, 12_000))  # type: ignore[attr-defined]


@pytest.mark.slow
def test_under_load_a_registry_is_away_for_half_a_minute_slow_and_another_one(
    broker: SessionBroker, tmp_path: Path
) -> None:
    """Each record is written with a schema that no worker has read before."""
    before = registry._current
    with ExitStack() as stack:
        server = stack.enter_context(SchemaRegistryServer())
        fleet = Fleet(
            broker,
            tmp_path,
            app=f"registry-{uuid.uuid4().hex[:6]}",
            partitions=1,
            module="tests.schemas.worker",
            declare=processors,
            schema_registry_url=server.url,
            schema_registry_timeout_s=1.5,
        )
        stack.callback(setattr, registry, "_current", before)
        stack.callback(fleet.close)
        create_topics(replace(fleet.settings, schema_registry_timeout_s=30), fleet.processors, partitions=1)
        (topic,) = fleet.processors[0].topics
        context = SerializationContext(topic, MessageField.VALUE)
        client = SchemaRegistryClient({"url": server.url})
        order = {"customer": "ada", "cents": 6_000}
        records = [written(client, f"release_{number}", order, context) for number in range(80)]
        writer, worker, sent = Writer(broker), fleet.worker().start().wait_ready(), iter(records)

        def write(count: int, pause_s: float = 0.0) -> int:
            for record in islice(sent, count):
                last = writer.write(topic, record, key=b"ada")[1]
                time.sleep(pause_s)
            return last

        wait_at(fleet, worker, write(10))
        server.kill()
        last = write(20, pause_s=1.5)
        cause(fleet, worker, f"waits for schema registry {server.url}")
        server.restart()
        wait_at(fleet, worker, last)
        for _ in range(5):
            server.freeze()
            last = write(4, pause_s=0.5)
            server.thaw()
        wait_at(fleet, worker, last)
        server.kill()
        data, aside = server.folder / "data", server.folder / "aside"
        data.rename(aside)
        data.mkdir()
        server.restart()
        for number in range(60):  # under the ids of the others
            client.register_schema(
                "strange", Schema(f'{{"type":"enum","name":"e{number}","symbols":["A"]}}', "AVRO")
            )
        last = write(20, pause_s=0.1)
        cause(fleet, worker, "does not tell the schemas any more")
        server.kill()
        shutil.rmtree(data)
        aside.rename(data)
        server.restart()
        wait_at(fleet, worker, write(10))
        worker.wait_ready()
        assert read_topic(broker, fleet.settings.quarantine_topic)[0] == [], "no good record was refused"
        assert verify(fleet.processors[0], fleet.settings).equal


def written(
    client: SchemaRegistryClient, name: str, value: Mapping[str, object], context: SerializationContext
) -> bytes:
    """Return *value* as written by a producer with a schema of its own, which has the fields of *value*."""
    kinds = {"customer": "string", "cents": "long"}
    fields = [{"name": each, "type": kinds[each]} for each in value]
    write = AvroSerializer(client, json.dumps({"type": "record", "name": name, "fields": fields}))
    return write(value, context) or b""


def wait_at(fleet: Fleet, worker: Worker, offset: int) -> None:
    """Wait until the worker has folded up to *offset*."""
    place = fleet.processors[0].name, 0
    wait_for(f"offset {offset}", lambda: worker.applied().get(place) == offset, DEADLINE_S, fleet.tails)


def cause(fleet: Fleet, worker: Worker, *told: str) -> None:
    """Wait until the worker's readiness reports all of these texts."""

    def condition() -> bool:
        status, body = worker.ask("/health/ready")
        return status == 503 and all(each in str(json.loads(body).get("cause")) for each in told)

    wait_for(f"readiness to tell {told}", condition, DEADLINE_S, fleet.tails)
