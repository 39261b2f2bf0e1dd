"""Schemas that newer serializers name in a record's headers, as Confluent's own write them."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import msgspec
import pytest
from confluent_kafka.schema_registry import header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from holdfast import Avro, Bytes, FoldWith, Json, JsonSchema, Processor, Protobuf, Source, Stream
from holdfast.clients.topics.schemas import read as readers
from holdfast.errors import DecodeError
from holdfast.schemas.frames import framed, split
from holdfast.schemas.registry import SchemaRegistry
from holdfast.schemas.registry import use as use_registry
from holdfast.streams import Filter, JoinForeign, Map, Merge, Rekey, aggregate, count
from holdfast.testing import Topology
from holdfast.testing.schemas import IN_MEMORY
from tests.schemas import shop_pb2

Headers = Any
IN_HEADERS: Any = {"schema.id.serializer": header_schema_id_serializer}


class Order(msgspec.Struct, frozen=True):
    customer: str
    cents: int = 0


ADA = {"customer": "ada", "cents": 7}


def written(
    asked: SchemaRegistry, write: Any, value: Any, field: Any = MessageField.VALUE
) -> tuple[bytes, Headers]:
    headers: Headers = []
    return write(value, SerializationContext("orders", field, headers)), headers


def serializer(asked: SchemaRegistry, kind: str) -> Any:
    client = asked._opened()
    match kind:
        case "avro":
            return AvroSerializer(client, Avro(Order).schema.text, conf=IN_HEADERS)
        case "json":
            return JSONSerializer(JsonSchema(Order).schema.text, client, conf=IN_HEADERS)
    return ProtobufSerializer(shop_pb2.Order, client, {"use.deprecated.format": False, **IN_HEADERS})


@pytest.mark.parametrize(
    ("kind", "serde", "value", "wanted"),
    [
        ("avro", Avro(Order), ADA, Order("ada", 7)),
        ("json", JsonSchema(Order), ADA, Order("ada", 7)),
        (
            "protobuf",
            Protobuf(shop_pb2.Order),
            shop_pb2.Order(customer="ada"),
            shop_pb2.Order(customer="ada"),
        ),
    ],
)
def test_what_confluents_serializers_write_is_read_by_its_guid(
    memory: SchemaRegistry, kind: str, serde: Any, value: Any, wanted: Any
) -> None:
    payload, headers = written(memory, serializer(memory, kind), value)
    assert [name for name, _ in headers] == ["__value_schema_id"]
    read: Any = Source("orders", serde).serde
    found = read.framed(payload, headers)
    assert isinstance(split(found)[0], UUID)
    assert read.decode(found) == wanted
    with pytest.raises(DecodeError):
        read.decode(payload)
    unknown = b"\x01" + bytes(range(16)) + found[17:]
    with pytest.raises(DecodeError, match="has no schema of id 00010203-0405-0607-0809-0a0b0c0d0e0f"):
        read.decode(unknown)


def test_a_number_in_the_header_is_read_too_and_only_that_of_the_part() -> None:
    for part, name in (("value", "__value_schema_id"), ("key", "__key_schema_id")):
        assert framed(part, b"abc", [("a", b""), (name, b"\0\0\0\0\x07")]) == b"\0\0\0\0\x07abc"
        assert framed(part, None, [(name, b"\0\0\0\0\x07")]) is None
        assert framed(part, b"abc", [(name, None)]) == b"abc"
    assert framed("key", b"abc", [("__value_schema_id", b"\0\0\0\0\x07")]) == b"abc"


# -- wherever records are read

SOURCE = Source("orders", Avro(Order), key=Avro(str))


def _sum(rows: Any, order: Order, at_ms: int) -> None:
    rows[order.customer] = (rows.get(order.customer) or 0) + order.cents


def _sum_by_key(rows: Any, order: Order, at_ms: int, key: str) -> None:
    rows[key] = (rows.get(key) or 0) + order.cents


def _records(asked: SchemaRegistry) -> tuple[bytes, bytes, tuple[tuple[str, bytes | None], ...]]:
    value, of_value = written(asked, serializer(asked, "avro"), ADA)
    write = AvroSerializer(asked._opened(), json.dumps("string"), conf=IN_HEADERS)
    key, of_key = written(asked, write, "ada", MessageField.KEY)
    return key, value, (*of_value, ("trace", b"t"), *of_key)


@pytest.mark.parametrize(
    "processors",
    [
        [Processor(name="t", on={SOURCE: _sum}, row=int)],
        [Processor(name="t", on={SOURCE: FoldWith(_sum_by_key, ("key",))}, row=int)],
        [
            aggregate(
                name="t",
                source=SOURCE,
                key=lambda order: order.customer,
                fold=lambda cents, order: (cents or 0) + order.cents,
                row=int,
            )
        ],
    ],
)
def test_tables_are_folded_of_them(processors: Any) -> None:
    with Topology(processors, partitions=1) as topology:
        key, value, headers = _records(use_registry(IN_MEMORY))
        for _ in range(2):
            topology.pipe("orders", value, key=key, headers=headers)
        topology.pipe(SOURCE, Order("ada", 1), key="ada")  # as holdfast writes it
        assert topology.table("t") == {"ada": 15}
        assert not topology.refused


def test_steps_hand_on_what_stays_true_of_the_headers() -> None:
    kept = Filter(name="kept", source=SOURCE, keep=lambda order: order.cents > 1)
    mapped = Map(
        name="mapped",
        source=SOURCE,
        each=lambda order: order,
        to=Stream("mapped", Avro(Order), key=Avro(str)),
    )
    by = Rekey(name="by", source=SOURCE, by=lambda order: order.customer, to=Stream("by", Avro(Order)))
    tables: Any = [
        count(
            name="of_kept",
            source=Source(kept.to, Avro(Order), key=Avro(str)),
            key=lambda order: order.customer,
        ),
        count(name="of_by", source=Source("by", Avro(Order)), key=lambda order: order.customer),
    ]
    with Topology([kept, mapped, by, *tables], partitions=1) as topology:
        key, value, headers = _records(use_registry(IN_MEMORY))
        topology.pipe("orders", value, key=key, headers=headers)
        names = {topic: [name for name, _ in topology.read(topic)[0].headers] for topic in (mapped.to, by.to)}
        assert names[mapped.to] == ["trace", "__key_schema_id"]
        assert names[by.to] == ["__value_schema_id", "trace"]
        assert topology.table("of_kept") == topology.table("of_by") == {"ada": 1}
        assert not topology.refused


def test_merged_records_keep_their_bytes_and_headers() -> None:
    other = Source("others", Avro(Order), key=Avro(str))
    merged = Merge(name="merged", sources=[SOURCE, other])
    table: Any = count(
        name="n", source=Source(merged.to, Avro(Order), key=Avro(str)), key=lambda order: order.customer
    )
    with Topology([merged, table], partitions=1) as topology:
        key, value, headers = _records(use_registry(IN_MEMORY))
        topology.pipe("orders", value, key=key, headers=headers)
        topology.pipe(other, Order("ada", 1), key="ada")
        first, _ = topology.read(merged.to)
        assert (first.key, first.value, tuple(first.headers)) == (key, value, headers)
        assert topology.table("n") == {"ada": 2}
        assert not topology.refused


def test_a_foreign_join_keeps_the_schema_of_what_it_sends_to_other_keys() -> None:
    left = Source("orders", Avro(Order | None), key=Avro(str))
    right = Source("names", Avro(str | None), key=Avro(str))
    out = Stream("named", Avro(str | None))
    joined = JoinForeign(
        name="joined",
        left=left,
        right=right,
        key=lambda order: order.customer,
        join=lambda order, name: f"{name} {order.cents}",
        to=out,
    )
    with Topology([*joined], partitions=1) as topology:
        asked = use_registry(IN_MEMORY)
        key, value, headers = _records(asked)
        name, of_name = written(asked, AvroSerializer(asked._opened(), '"string"', conf=IN_HEADERS), "Ada")
        topology.pipe("names", name, key=key, headers=(*of_name, headers[-1]))
        topology.pipe("orders", value, key=key, headers=headers)
        topology.pipe(right, "Eve", key="ada")
        assert not topology.refused
        assert topology.values(out) == [("ada", "Ada 7"), ("ada", "Eve 7")]


def test_the_kit_reads_streams_by_their_headers() -> None:
    kept = Filter(name="kept", source=SOURCE, keep=lambda order: True)
    with Topology([kept], partitions=1) as topology:
        key, value, headers = _records(use_registry(IN_MEMORY))
        topology.pipe("orders", value, key=key, headers=headers)
        assert topology.values(kept.to) == [("ada", Order("ada", 7))]


def test_the_schemas_of_single_sources_and_merges_are_checked_too() -> None:
    """If records are decoded with their headers, the serde stays visible to `topics check`."""
    summed: Any = count(name="n", source=SOURCE, key=lambda order: order.customer)
    merged = Merge(name="merged", sources=[SOURCE, Source("others", Avro(Order))])
    assert "orders-value" in {each.serde.subject for each in readers([summed])}
    assert {"orders-value", "others-value"} <= {each.serde.subject for each in readers([merged])}


def test_an_emitted_record_has_no_header_of_the_schema_before() -> None:
    """Late records of joins, and folds that hand headers on, are written by the stream's own serde."""
    out, raw = Stream("late", Avro(Order), key=Avro(str)), Stream("raw", Bytes(), key=Bytes())
    as_json = Stream("json", Json(Order))

    def fold(rows: Any, order: Order, at_ms: int, key: str, headers: Headers) -> Any:
        yield out.emit(key, order, headers=headers)
        yield as_json.emit(key, order, headers=headers)
        yield raw.emit(b"k", b"v", headers=headers)

    told: Any = Processor(
        name="told", on={SOURCE: FoldWith(fold, ("key", "headers"))}, row=int, emits=(out, raw, as_json)
    )
    table: Any = count(name="n", source=Source("late", Avro(Order), key=Avro(str)), key=lambda _: "all")
    with Topology([told, table], partitions=1) as topology:
        key, value, headers = _records(use_registry(IN_MEMORY))
        topology.pipe("orders", value, key=key, headers=headers)
        assert topology.table("n") == {"all": 1}
        assert not topology.refused
        (late,) = topology.read(out)
        (plain,) = topology.read(as_json)
        assert [name for name, _ in late.headers] == [name for name, _ in plain.headers] == ["trace"]
        assert tuple(topology.read(raw)[0].headers) == headers
