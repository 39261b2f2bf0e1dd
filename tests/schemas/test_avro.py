"""Avro: the schemas of types, the values read into them and written from them, and the refused ones."""

from __future__ import annotations

import datetime as dt
import enum
import json
import math
import pickle
from decimal import Decimal
from io import BytesIO
from typing import Annotated, Any
from uuid import UUID, uuid4

import fastavro
import msgspec
import pytest

from holdfast import Avro, Source, Stream
from holdfast.errors import ConfigError, DecodeError, FoldError, Later
from holdfast.schemas import registry
from holdfast.schemas.frames import header
from holdfast.schemas.registry import SchemaRegistry, SchemaText
from tests.schemas.shop import FULL, Big, Line, Order, Total


def registered(memory: SchemaRegistry, schema: Any, subject: str = "orders-value") -> int:
    return memory.register(subject, SchemaText("AVRO", json.dumps(schema))).schema_id


def record(schema: Any, value: Any, schema_id: int) -> bytes:
    """Return a record as another producer writes it."""
    file = BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(schema), value)
    return header(schema_id) + file.getvalue()


def record_of(name: str = "Order", **fields: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": key, "type": of} for key, of in fields.items()],
    }


def test_a_value_of_every_type_comes_back(memory: SchemaRegistry) -> None:
    stream = Stream("orders", Avro(Order))
    memory.register("orders-value", stream.serde.schema)  # type: ignore[attr-defined]
    written = stream.emit("ada", FULL)
    assert written.value is not None
    assert written.value[:5] == header(1)
    assert Source("orders", Avro(Order)).serde.decode(written.value) == FULL
    plain = Order("bo", 1)
    assert stream.serde.decode(stream.serde.encode(plain)) == plain


def test_a_schema_from_a_type_is_one_that_fastavro_takes_and_has_its_defaults() -> None:
    schema = json.loads(Avro(Order, namespace="com.shop").schema.text)
    fastavro.parse_schema(json.loads(json.dumps(schema)))
    assert schema["namespace"] == "com.shop"
    fields = {each["name"]: each for each in schema["fields"]}
    assert fields["lines"]["default"] == []
    assert fields["kind"] == {
        "name": "kind",
        "type": {"type": "enum", "name": "Kind", "symbols": ["BOOK", "FOOD"], "namespace": "com.shop"},
        "default": "BOOK",
    }
    assert fields["weight"]["type"] == ["null", "double"]
    assert fields["at"]["type"] == ["null", {"type": "long", "logicalType": "timestamp-micros"}]
    assert "default" not in fields["customer"]


class Newer(msgspec.Struct):
    customer: str
    cents: float
    note: str = "none"


def test_what_older_and_newer_writers_wrote_is_read_by_names(memory: SchemaRegistry) -> None:
    """Also when the writer's class has another name, a field more, a narrower number."""
    schema = record_of("com.other.OrderEvent", customer="string", cents="int", extra=["null", "string"])
    value = record(schema, {"customer": "ada", "cents": 7, "extra": "x"}, registered(memory, schema))
    assert Avro(Newer).decode(value) == Newer("ada", 7.0)


def test_with_a_schema_its_aliases_and_defaults_hold(memory: SchemaRegistry) -> None:
    own = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "customer", "type": "string", "aliases": ["buyer"]},
            {"name": "cents", "type": "double"},
            {"name": "note", "type": "string", "default": "of the schema"},
        ],
    }
    schema = record_of(buyer="string", cents="long")
    value = record(schema, {"buyer": "ada", "cents": 7}, registered(memory, schema))
    assert Avro(Newer, json.dumps(own)).decode(value) == Newer("ada", 7.0, "of the schema")
    schema = record_of("com.other.OrderEvent", buyer="string", cents="long")
    value = record(schema, {"buyer": "ada", "cents": 7}, registered(memory, schema))
    with pytest.raises(
        DecodeError, match="does not fit: is a record OrderEvent, not Order: give that an alias"
    ):
        Avro(Newer, json.dumps(own)).decode(value)
    assert Avro(Newer, own | {"aliases": ["OrderEvent"]}).decode(value) == Newer("ada", 7.0, "of the schema")


class Held(msgspec.Struct):
    data: bytes
    note: str = ""


BYTES = {"type": "record", "name": "Held", "fields": [{"name": "data", "type": "bytes"}]}


@pytest.mark.parametrize("data", ["string", ["string", "bytes"]])
def test_text_is_not_taken_for_bytes_in_base_64(memory: SchemaRegistry, data: Any) -> None:
    schema = record_of("Held", data=data)
    value = record(schema, {"data": "aGk="}, registered(memory, schema))
    with pytest.raises(DecodeError, match=r"data is string, not bytes|Expected `bytes`, got `str`"):
        Avro(Held).decode(value)
    assert Avro(Held, BYTES).decode(value) == Held(b"aGk="), "Avro's rule, where the reader has a schema"


def test_text_is_not_written_for_bytes_in_base_64() -> None:
    with pytest.raises(FoldError, match="Expected `bytes`, got `str`"):
        Avro(Held).payload(Held("aGk="))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="the schema does not fit the type: data is string, not bytes"):
        Avro(Held, record_of("Held", data="string"))


class Opened(msgspec.Struct, frozen=True):
    door: str


class Closed(msgspec.Struct, frozen=True):
    door: str


def test_the_classes_of_a_union_are_distinguished_by_their_names(memory: SchemaRegistry) -> None:
    stream = Stream("doors", Avro(Opened | Closed, namespace="com.doors"))
    memory.register("doors-value", stream.serde.schema)  # type: ignore[attr-defined]
    for each in (Opened("a"), Closed("a")):
        assert stream.serde.decode(stream.serde.encode(each)) == each
    schema = record_of("com.doors.Closed", door="string")
    assert stream.serde.decode(record(schema, {"door": "b"}, registered(memory, schema))) == Closed("b")
    schema = record_of("Broken", door="string")
    with pytest.raises(DecodeError, match="it is a Broken, not Opened or Closed"):
        stream.serde.decode(record(schema, {"door": "b"}, registered(memory, schema)))


def test_references_to_other_subjects_are_read(memory: SchemaRegistry) -> None:
    line = record_of("com.shop.Line", item="string", pieces="long")
    registered(memory, line, "line")
    schema = record_of(
        "com.shop.Order", customer="string", cents="long", lines={"type": "array", "items": "com.shop.Line"}
    )
    text = SchemaText("AVRO", json.dumps(schema), (("com.shop.Line", "line", 1),))
    schema_id = memory.register("orders-value", text).schema_id
    file = BytesIO()
    named: dict[str, Any] = {}
    fastavro.parse_schema(line, named_schemas=named)
    fastavro.schemaless_writer(
        file,
        fastavro.parse_schema(schema, named_schemas=named),
        {"customer": "ada", "cents": 1, "lines": [{"item": "tea", "pieces": 2}]},
    )
    assert Avro(Order).decode(header(schema_id) + file.getvalue()) == Order("ada", 1, (Line("tea", 2),))


def test_a_tombstone_is_none_where_the_type_has_it(memory: SchemaRegistry) -> None:
    assert Avro(Order | None).decode(None) is None
    assert Stream("orders", Avro(Order | None)).serde.encode(None) is None
    with pytest.raises(DecodeError, match=r"declare \| None"):
        Avro(Order).decode(None)


# -- refusals


def test_a_schema_that_does_not_fit_is_refused_by_its_id_and_subject_and_asked_for_once(
    memory: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = record_of(customer="string", cents="string")
    value = record(schema, {"customer": "ada", "cents": "7"}, registered(memory, schema, "theirs-value"))
    serde = Source("orders", Avro(Order)).serde
    for _ in range(3):
        with pytest.raises(
            DecodeError, match=r"schema 1 of subject .*-value: does not fit: cents is string, not long"
        ):
            serde.decode(value)
        monkeypatch.setattr(memory, "_ask", lambda question: pytest.fail("asked again"))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x02",
        b"\x06ada",
        b"\x06ada\x0e\x00",
        b"\x06\xff\xff\xff\x0e",
        b"\xff" * 40,
        b"\x06ada" + b"\xff" * 12,
    ],
)
def test_bytes_that_are_no_such_value_are_refused(memory: SchemaRegistry, payload: bytes) -> None:
    schema_id = registered(memory, record_of(customer="string", cents="long"))
    with pytest.raises(DecodeError, match=r"not Avro\(Order\): schema 1 of subject orders-value: ."):
        Source("orders", Avro(Order)).serde.decode(header(schema_id) + payload)


def test_an_unknown_id_is_refused_and_one_of_another_kind_too(memory: SchemaRegistry) -> None:
    with pytest.raises(DecodeError, match="has no schema of id 7"):
        Avro(Order).decode(header(7) + b"abc")
    schema_id = memory.register("j", SchemaText("JSON", "{}")).schema_id
    with pytest.raises(DecodeError, match="it is of type JSON"):
        Avro(Order).decode(header(schema_id) + b"{}")


def test_an_unusable_schema_is_refused(memory: SchemaRegistry) -> None:
    schema_id = memory.register("orders-value", SchemaText("AVRO", '{"type": "recrod"}')).schema_id
    with pytest.raises(DecodeError, match="it cannot be used: "):
        Avro(Order).decode(header(schema_id) + b"abc")


class Node(msgspec.Struct):
    next: Node | None = None


def test_nesting_without_end_is_an_error_and_does_not_end_the_process(memory: SchemaRegistry) -> None:
    """fastavro's compiled reader would: 5,000 levels overflow its stack."""
    schema = record_of("Node", next=["null", "Node"])
    schema_id = registered(memory, schema)
    assert Avro(Node).decode(header(schema_id) + b"\x02\x02\x00") == Node(Node(Node()))
    with pytest.raises(DecodeError):
        Avro(Node).decode(header(schema_id) + b"\x02" * 1_000_000 + b"\x00")


@pytest.mark.parametrize("items", ["null", record_of("Empty"), {"type": "fixed", "name": "F", "size": 0}])
def test_an_array_of_nothings_is_refused(memory: SchemaRegistry, items: Any) -> None:
    """Ten bytes could stand for 2^62 of them."""

    class Marks(msgspec.Struct):
        marks: list[Any] | None

    own = record_of("Marks", marks={"type": "array", "items": "string"})
    schema_id = registered(memory, record_of("Marks", marks={"type": "array", "items": items}))
    with pytest.raises(DecodeError):
        Avro(Marks, own).decode(header(schema_id) + b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f\x00")


def test_a_value_of_another_type_is_refused_at_any_depth(memory: SchemaRegistry) -> None:
    stream = Stream("big", Avro(Big))
    memory.register("big-value", stream.serde.schema)  # type: ignore[attr-defined]
    wrong: list[Any] = [Total(), None, Big("ada", None), Big("ada", Total("7")), Big("ada", Total(1 << 70))]  # type: ignore[arg-type]
    for each in wrong:
        with pytest.raises(FoldError, match=r"cannot be written as Avro\(Big\)"):
            stream.emit("ada", each)


def test_an_encoder_registers_nothing(memory: SchemaRegistry) -> None:
    stream = Stream("big", Avro(Big))
    for _ in range(2):
        with pytest.raises(
            Later, match=r"is not registered under big-value.*run `holdfast topics create`"
        ) as caught:
            stream.emit("ada", Big("ada", Total()))
    assert caught.value.needs.startswith("schema of big-value in schema registry mock://")
    assert memory.latest("big-value") is None
    memory.register("big-value", stream.serde.schema)  # type: ignore[attr-defined]
    assert stream.emit("ada", Big("ada", Total())).value is not None


@pytest.mark.parametrize(
    ("of", "why"),
    [
        (Decimal, "give schema="),
        (dict[int, str], "the keys of a map are text"),
        (dt.datetime, "another moment on another machine"),
        (tuple[int, str], "Tuple has no Avro type"),
        (int | str, "a union is of Structs"),
        (object, "no Avro type"),
    ],
)
def test_types_that_avro_cannot_hold_are_refused_at_declaration(of: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Avro(of)


@pytest.mark.parametrize(
    ("of", "default", "why"),
    [
        (float, math.nan, "a schema is JSON, which has no nan"),
        (float | None, -math.inf, "a schema is JSON, which has no -inf"),
        (int, 1 << 63, "is no number of 64 bits"),
        (UUID, msgspec.field(default_factory=uuid4), "its default is another each time"),
        (enum.IntEnum("Far", {"AWAY": 1 << 70}), msgspec.NODEFAULT, r"Integer values > \(2\*\*63 - 1\)"),
    ],
)
def test_defaults_that_no_schema_can_have_are_refused_at_declaration(of: Any, default: Any, why: str) -> None:
    """Registries and other clients would not read the schema, or no worker would find the one that was
    registered.
    """
    field: Any = ("x", of) if default is msgspec.NODEFAULT else ("x", of, default)
    with pytest.raises(ConfigError, match=why):
        Avro(msgspec.defstruct("Row", [field]))


def test_default_days_and_moments_are_counted_as_avro_does() -> None:
    day, moment = dt.date(1970, 1, 3), dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)
    zoned = Annotated[dt.datetime, msgspec.Meta(tz=True)]
    made = Avro(msgspec.defstruct("Row", [("day", dt.date, day), ("at", zoned | None, moment)]))
    fields = json.loads(made.schema.text)["fields"]
    assert [each["default"] for each in fields] == [2, 1_000_000]
    assert fields[1]["type"] == [{"type": "long", "logicalType": "timestamp-micros"}, "null"]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"namespace": "com.my shop"}, "namespace 'com.my shop': use names with dots"),
        ({"namespace": "com..shop"}, "namespace 'com..shop'"),
        ({"subject": ""}, r"Avro\(Order\): subject '': give the name"),
        ({"subject": 5}, r"Avro\(Order\): subject 5"),
    ],
)
def test_names_that_no_registry_has_are_refused_at_declaration(given: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Avro(Order, **given)


@pytest.mark.parametrize("schema", [b"bytes", [], {}, 5, {"type": "record"}])
def test_an_invalid_schema_is_refused_at_declaration(schema: Any) -> None:
    with pytest.raises(ConfigError, match="Avro"):
        Avro(Order, schema)


def test_a_schema_that_does_not_fit_its_type_is_refused_at_declaration() -> None:
    with pytest.raises(ConfigError, match="the schema does not fit the type: customer is missing"):
        Avro(Order, record_of(cents="long"))
    with pytest.raises(ConfigError, match="the Avro schema cannot be used"):
        Avro(Order, '{"type": "recrod"}')


# -- where it goes


def test_the_subject_is_the_topics_unless_one_is_given() -> None:
    assert Stream("a", Avro(Big), key=Avro(str)).key.subject == "a-key"  # type: ignore[attr-defined]
    one = Avro(Big)
    streams = [Stream("a", one), Stream("b", one), Stream("c", Avro(Big, subject="mine"))]
    assert [each.serde.subject for each in streams] == ["a-value", "b-value", "mine"]  # type: ignore[attr-defined]
    assert one.subject is None


def test_a_pickled_serde_opens_no_client_and_takes_its_registry_along(memory: SchemaRegistry) -> None:
    stream = Stream("big", Avro(Big))
    memory.register("big-value", stream.serde.schema)  # type: ignore[attr-defined]
    value = stream.emit("ada", Big("ada", Total())).value
    text = pickle.dumps(stream)
    registry._current = None  # as in another process
    again = pickle.loads(text)
    assert registry.told() == memory.settings
    registry._current = memory
    assert again.serde.subject == "big-value"
    assert again.serde._registry is None
    assert again.serde.decode(value) == Big("ada", Total())
