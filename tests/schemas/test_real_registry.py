"""On a real schema registry: with Confluent's own serializers, at `topics create` and `check`, and when it
goes away.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from holdfast import Avro, JsonSchema, Processor, Protobuf, Settings, Source, Stream
from holdfast.cli.__main__ import main
from holdfast.clients.topics.application import check_topics, create_topics, require_topics
from holdfast.clients.topics.schemas import plan_schemas, register_schemas, schema_findings
from holdfast.clients.topics.types import RegisterSchema, Severity
from holdfast.config import SchemaRegistrySettings
from holdfast.dev.databases.schema_registry import SchemaRegistryServer
from holdfast.dev.fixtures import SessionBroker
from holdfast.errors import DecodeError, Later, SchemaError, TopicError
from holdfast.schemas import registry
from holdfast.schemas.frames import header
from holdfast.schemas.registry import SchemaRegistry
from tests.schemas import shop_pb2
from tests.schemas.shop import FULL, Big, Line, Order, Total, totals_of
from tests.support.harness import wait_for
from tests.support.own_topics import ending
from tests.support.patience import DEADLINE_S


@pytest.fixture
def topic() -> str:
    """Give a topic's name, and so subjects, that no other test has."""
    return f"orders-{ending()}"


@pytest.fixture
def client(schema_registry: SchemaRegistryServer) -> SchemaRegistryClient:
    """Give Confluent's own client."""
    return SchemaRegistryClient({"url": schema_registry.url})


def context(topic: str) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE)


def plain(order: Order) -> dict[str, Any]:
    return {
        "customer": order.customer,
        "cents": order.cents,
        "lines": [{"item": each.item, "pieces": each.pieces} for each in order.lines],
        "kind": order.kind.value,
        "weight": order.weight,
        "notes": order.notes,
        "seal": order.seal,
        "at": order.at,
        "day": order.day,
        "number": order.number,
        "to": order.to and {"street": order.to.street, "zip": order.to.zip},
    }


def exit_code(words: list[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        main(words)
    return int(ended.value.code or 0)


# -- interoperation


def test_what_confluents_avro_serializer_writes_is_read(
    real: SchemaRegistry, client: SchemaRegistryClient, topic: str
) -> None:
    serde = Source(topic, Avro(Order)).serde
    theirs = AvroSerializer(client, Avro(Order, namespace="com.theirs").schema.text)
    for order in (FULL, Order("bo", 1)):
        assert serde.decode(theirs(plain(order), context(topic))) == order


def test_confluents_avro_deserializer_reads_our_records(
    real: SchemaRegistry, client: SchemaRegistryClient, topic: str
) -> None:
    stream = Stream(topic, Avro(Order))
    real.register(f"{topic}-value", stream.serde.schema)  # type: ignore[attr-defined]
    theirs = AvroDeserializer(client)
    for order in (FULL, Order("bo", 1)):
        assert theirs(stream.emit("k", order).value, context(topic)) == plain(order)


def test_references_of_the_registry_are_read(
    real: SchemaRegistry, client: SchemaRegistryClient, topic: str
) -> None:
    from confluent_kafka.schema_registry import SchemaReference

    line = Avro(Line, namespace="com.shop").schema.text
    client.register_schema(f"{topic}-line", Schema(line, "AVRO"))
    text = json.dumps(
        {
            "type": "record",
            "name": "com.shop.Order",
            "fields": [
                {"name": "customer", "type": "string"},
                {"name": "cents", "type": "long"},
                {"name": "lines", "type": {"type": "array", "items": "com.shop.Line"}},
            ],
        }
    )
    schema = Schema(text, "AVRO", [SchemaReference("com.shop.Line", f"{topic}-line", 1)])
    theirs = AvroSerializer(client, schema)
    value = theirs({"customer": "ada", "cents": 1, "lines": [{"item": "tea", "pieces": 2}]}, context(topic))
    assert Source(topic, Avro(Order)).serde.decode(value) == Order("ada", 1, (Line("tea", 2),))


def test_confluents_json_serializers_and_ours_read_each_other(
    real: SchemaRegistry, client: SchemaRegistryClient, topic: str
) -> None:
    stream = Stream(topic, JsonSchema(Order))
    own = stream.serde.schema  # type: ignore[attr-defined]
    real.register(f"{topic}-value", own)
    written: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(FULL))
    theirs = JSONDeserializer(None, schema_registry_client=client)
    assert theirs(stream.emit("k", FULL).value, context(topic)) == written
    told = JSONSerializer(own.text, client)(written, context(topic))
    assert Source(topic, JsonSchema(Order)).serde.decode(told) == FULL


def test_confluents_protobuf_serializers_and_ours_read_each_other(
    real: SchemaRegistry, client: SchemaRegistryClient, topic: str
) -> None:
    """Also of a message that is not the first of its file, with a file that is imported."""
    order = shop_pb2.Order(
        customer="ada", cents=7, lines=[{"item": "tea", "pieces": 2}], to={"street": "High"}
    )
    stream = Stream(topic, Protobuf(shop_pb2.Order))
    theirs = ProtobufSerializer(shop_pb2.Order, client)
    told = theirs(order, context(topic))
    assert Source(topic, Protobuf(shop_pb2.Order)).serde.decode(told) == order
    serde: Any = stream.serde
    real.register(f"{topic}-value", serde.needed(real, register=True))
    assert stream.emit("k", order).value == told
    assert ProtobufDeserializer(shop_pb2.Order)(stream.emit("k", order).value, context(topic)) == order
    nested = shop_pb2.Ignored.Deep(a=3)
    deep = ProtobufSerializer(shop_pb2.Ignored.Deep, client)(nested, context(topic))
    assert Source(topic, Protobuf(shop_pb2.Ignored.Deep)).serde.decode(deep) == nested
    with pytest.raises(
        DecodeError, match=r"it holds a message tests.shop.Ignored.Deep, not tests.shop.Order"
    ):
        Source(topic, Protobuf(shop_pb2.Order)).serde.decode(deep)


def test_a_proto_file_as_text_is_read(real: SchemaRegistry, client: SchemaRegistryClient, topic: str) -> None:
    """As producers in Java register it."""
    text = """
        syntax = "proto3"; // message Comment {
        package tests.shop;
        /* message Other { */
        message Ignored { map<string, int64> counts = 1; message Deep { int64 a = 1; } }
        message Order { message Line { string item = 1; } string customer = 1; int64 cents = 2; }
    """
    found = client.register_schema(f"{topic}-value", Schema(text, "PROTOBUF"))
    serde = Source(topic, Protobuf(shop_pb2.Order)).serde
    value = header(found) + b"\x02\x02" + b"\x0a\x03ada\x10\x07"
    assert serde.decode(value) == shop_pb2.Order(customer="ada", cents=7)


# -- create and check


def big_with(*note: Any) -> Any:
    """Return `Big` with a field more: another schema of the same name."""
    return msgspec.defstruct("Big", [("customer", str), ("total", Total), note], frozen=True)


NEEDS_NOTE = big_with("note", str)
"""A field that no earlier record has."""
MAY_HAVE_NOTE = big_with("note", str, "")


def emitting(topic: str, of: Any, serde: Any = Avro) -> list[Processor[Any, Any]]:
    """Return a processor that emits values of another type to the same topic."""
    told: Stream[Any] = Stream(f"{topic}-big", serde(of))
    return [
        Processor(
            name="totals",
            on={Source(topic, serde(Order)): lambda rows, order, at_ms: None},
            row=int,
            emits=(told,),
        )
    ]


def test_schemas_are_registered_once_and_only_what_fits(
    real: SchemaRegistry, client: SchemaRegistryClient, topic: str
) -> None:
    processors = [totals_of(topic, f"{topic}-big")]
    subject = f"{topic}-big-value"
    assert plan_schemas(real.settings, processors) == [RegisterSchema(f"{topic}-big", subject, "AVRO")]
    (finding,) = schema_findings(real.settings, processors)
    assert (finding.severity, finding.topic) == (Severity.ERROR, f"{topic}-big")
    assert finding.remedy == "run `holdfast topics create`"
    register_schemas(real.settings, processors)
    register_schemas(real.settings, processors)
    assert client.get_versions(subject) == [1]
    assert plan_schemas(real.settings, processors) == []
    assert schema_findings(real.settings, processors) == []
    client.set_compatibility(subject, "BACKWARD")
    with pytest.raises(
        SchemaError, match=f"subject {subject}: the schema of .* is not compatible with version 1"
    ):
        plan_schemas(real.settings, emitting(topic, NEEDS_NOTE))
    (finding,) = schema_findings(real.settings, emitting(topic, NEEDS_NOTE))
    assert "is not compatible with version 1" in finding.message
    assert client.get_versions(subject) == [1]
    register_schemas(real.settings, emitting(topic, MAY_HAVE_NOTE))
    assert client.get_versions(subject) == [1, 2]
    assert schema_findings(real.settings, emitting(topic, MAY_HAVE_NOTE)) == []


def of_draft_7(of: Any) -> JsonSchema[Any]:
    return JsonSchema(
        of, {"$schema": "http://json-schema.org/draft-07/schema#"} | msgspec.json.schema(of) | {"title": "x"}
    )


def test_a_registry_that_cannot_compare_schemas_of_a_form_is_reported_with_the_remedy(
    real: SchemaRegistry, client: SchemaRegistryClient, topic: str
) -> None:
    """Apicurio reads Protobuf as text and JSON Schema up to draft 7 alone where it is to compare."""
    in_binary, of_2020, of_7 = f"{topic}-p-big-value", f"{topic}-j-big-value", f"{topic}-7-big-value"
    client.register_schema(in_binary, Schema('syntax = "proto3"; message Big { int64 a = 1; }', "PROTOBUF"))
    register_schemas(real.settings, emitting(f"{topic}-j", Big, JsonSchema))
    register_schemas(real.settings, emitting(f"{topic}-7", Big, of_draft_7))
    for subject in (in_binary, of_2020, of_7):
        client.set_compatibility(subject, "BACKWARD")
    changed = {
        in_binary: [totals_of(f"{topic}-p", f"{topic}-p-big", "protobuf")],
        of_2020: emitting(f"{topic}-j", NEEDS_NOTE, JsonSchema),
    }
    for subject, processors in changed.items():
        with pytest.raises(
            SchemaError, match=f"subject {subject}: its registry cannot compare the schema .*to NONE there"
        ):
            plan_schemas(real.settings, processors)
        (finding,) = schema_findings(real.settings, processors)
        assert (finding.severity, finding.topic) == (Severity.ERROR, subject.removesuffix("-value"))
        client.set_compatibility(subject, "NONE")
        register_schemas(real.settings, processors)
        assert client.get_versions(subject) == [1, 2]
    with pytest.raises(SchemaError, match="is not compatible with version 1"):
        plan_schemas(real.settings, emitting(f"{topic}-7", NEEDS_NOTE, of_draft_7))


def test_a_source_whose_newest_schema_does_not_fit_is_found(
    real: SchemaRegistry, client: SchemaRegistryClient, topic: str
) -> None:
    text = Avro(Total, namespace="com.theirs").schema.text
    client.register_schema(f"{topic}-value", Schema(text, "AVRO"))
    (finding,) = [
        each for each in schema_findings(real.settings, emitting(topic, Big)) if each.topic == topic
    ]
    assert finding.severity is Severity.WARNING, "a producer's new schema must not keep workers from starting"
    assert finding.message.startswith(f"version 1 of subject {topic}-value (schema ")
    assert finding.message.endswith("cannot be read as Avro(Order): customer is missing, and has no default")


def test_two_schemas_under_one_subject_are_refused(real: SchemaRegistry, topic: str) -> None:
    processors = [*emitting(topic, Big), *emitting(topic, Total)]
    with pytest.raises(SchemaError, match="write it with two schemas"):
        register_schemas(real.settings, processors)


def test_the_command_registers_and_checks(
    real: SchemaRegistry,
    schema_registry: SchemaRegistryServer,
    broker: SessionBroker,
    client: SchemaRegistryClient,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    app = f"schemas-{ending()}"
    for name, value in broker.config.items():
        monkeypatch.setenv(f"HOLDFAST_KAFKA__{name.upper().replace('.', '_')}", str(value))
    monkeypatch.setenv("HOLDFAST_SCHEMA_REGISTRY_URL", schema_registry.url)
    monkeypatch.setenv("HOLDFAST_SCHEMA_REGISTRY_TIMEOUT_S", "60")
    words = ["--set", f"app={app}", "-A", "tests.schemas.shop:processors", "--output", "json", "topics"]
    subject = f"{app}-protobuf-big-value"
    assert exit_code([*words, "create", "--partitions", "1", "--dry-run"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {"subject": subject, "type": "PROTOBUF"} in [
        each["configs"] for each in told if each["action"] == "register"
    ]
    with pytest.raises(Exception, match="40401"):
        client.get_versions(subject)
    assert exit_code([*words, "create", "--partitions", "1"]) == 0
    assert client.get_versions(subject) == [1]
    capsys.readouterr()
    assert exit_code([*words, "check"]) == 0
    client.delete_subject(subject)
    assert exit_code([*words, "check"]) == 1
    assert "run `holdfast -A tests.schemas.shop:processors topics create`" in capsys.readouterr().out


# -- the server


def test_the_server_runs_with_an_archive_of_its_classes(schema_registry: SchemaRegistryServer) -> None:
    maps = Path(f"/proc/{schema_registry.processes()[0]}/maps")
    assert not maps.exists() or "/registry-classes/classes-" in maps.read_text()


# -- trouble


def test_a_registry_that_is_frozen_or_dead_is_awaited_and_known_schemas_are_still_read(
    real: SchemaRegistry, schema_registry: SchemaRegistryServer, client: SchemaRegistryClient, topic: str
) -> None:
    """The registry keeps what it was given when it is killed."""
    registry.use(SchemaRegistrySettings(schema_registry_url=schema_registry.url, schema_registry_timeout_s=1))
    theirs = AvroSerializer(client, Avro(Order).schema.text)
    value = theirs(plain(FULL), context(topic))
    known, fresh = Source(topic, Avro(Order)).serde, Source(topic, Avro(Order)).serde
    assert wait_for("the registry to answer", lambda: decoded(known, value), DEADLINE_S) == FULL
    registry.current()._by_id.clear()
    schema_registry.freeze()
    try:
        assert known.decode(value) == FULL
        with pytest.raises(Later, match=r"gave no answer|cannot be asked"):
            fresh.decode(value)
    finally:
        schema_registry.thaw()
    schema_registry.kill()
    try:
        with pytest.raises(Later) as caught:
            fresh.decode(value)
        assert caught.value.needs == f"schema registry {schema_registry.url}"
        (finding,) = schema_findings(registry.current().settings, [totals_of(topic, f"{topic}-big")])
        assert finding.severity is Severity.WARNING
    finally:
        schema_registry.restart()
    assert wait_for("the registry to answer", lambda: decoded(fresh, value), DEADLINE_S) == FULL


def decoded(serde: Any, value: bytes | None) -> Any:
    """Return the value that the serde reads, None while it waits for its registry."""
    try:
        return serde.decode(value)
    except Later:
        return None


def test_an_id_of_a_schema_that_does_not_fit_is_refused_by_name(
    real: SchemaRegistry, client: SchemaRegistryClient, topic: str
) -> None:
    theirs = AvroSerializer(client, Avro(Total).schema.text)
    value = theirs({"count": 1, "cents": 2}, context(topic))
    with pytest.raises(
        DecodeError, match=rf"schema \d+ of subject .*{topic}-value.*: does not fit: customer is missing"
    ):
        Source(topic, Avro(Order)).serde.decode(value)


def test_a_worker_does_not_start_without_its_schemas(
    real: SchemaRegistry, schema_registry: SchemaRegistryServer, broker: SessionBroker, topic: str
) -> None:
    settings = Settings(
        app=topic,
        kafka=dict(broker.config),
        schema_registry_url=schema_registry.url,
        schema_registry_timeout_s=60,
    )
    processors = [totals_of(topic, f"{topic}-big")]
    create_topics(settings, processors, partitions=1)
    assert [each for each in check_topics(settings, processors) if each.severity is Severity.ERROR] == []
    later = emitting(topic, NEEDS_NOTE)
    with pytest.raises(TopicError, match="has no schema of"):
        require_topics(settings, [*later, *processors][:1])
