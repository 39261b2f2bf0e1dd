"""JSON Schema: which schemas types have, and what is refused."""

from __future__ import annotations

import enum
import json
from typing import Any

import msgspec
import pytest

from holdfast import JsonSchema, Source, Stream
from holdfast.errors import ConfigError, DecodeError, FoldError
from holdfast.schemas.frames import header
from holdfast.schemas.registry import SchemaRegistry, SchemaText
from tests.schemas.shop import FULL, Big, Order, Total


def registered(memory: SchemaRegistry, schema: Any, subject: str = "orders-value") -> int:
    return memory.register(subject, SchemaText("JSON", json.dumps(schema))).schema_id


@pytest.mark.long
def test_a_value_comes_back_and_equal_values_have_equal_bytes(memory: SchemaRegistry) -> None:
    stream: Any = Stream("orders", JsonSchema(Order))
    memory.register("orders-value", stream.serde.schema)
    assert Source("orders", JsonSchema(Order)).serde.decode(stream.serde.encode(FULL)) == FULL
    one, other = Order("a", 1, notes={"a": "1", "b": "2"}), Order("a", 1, notes={"b": "2", "a": "1"})
    assert stream.serde.encode(one) == stream.serde.encode(other)


def test_a_record_must_be_valid_by_the_schema_it_was_written_with(memory: SchemaRegistry) -> None:
    schema = {"type": "object", "properties": {"cents": {"type": "integer", "maximum": 100}}}
    value = header(registered(memory, schema)) + b'{"customer": "ada", "cents": 101}'
    with pytest.raises(
        DecodeError, match=r"schema 1 of subject .*: \$\.cents: 101 is greater than the maximum of 100"
    ):
        JsonSchema(Order).for_topic("orders", "value").decode(value)
    assert JsonSchema(Order, validate=False).decode(value) == Order("ada", 101)


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"", "truncated"),
        (b"{", "truncated"),
        (b"\xff", "malformed"),
        (b'{"customer": 1, "cents": 1}', "Expected `str`"),
        (b"[" * 100_000, "recursion|depth"),
    ],
)
def test_bytes_that_are_no_such_value_are_refused(memory: SchemaRegistry, payload: bytes, why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        JsonSchema(Order).decode(header(registered(memory, {})) + payload)


def test_references_are_read_from_the_registry_and_from_nowhere_else(memory: SchemaRegistry) -> None:
    registered(memory, {"type": "string", "maxLength": 3}, "name")
    schema = {"type": "object", "properties": {"customer": {"$ref": "name.json"}}}
    known = SchemaText("JSON", json.dumps(schema), (("name.json", "name", 1),))
    at = memory.register("orders-value", known).schema_id
    assert JsonSchema(Order).decode(header(at) + b'{"customer": "ada", "cents": 1}') == Order("ada", 1)
    with pytest.raises(DecodeError, match="is too long"):
        JsonSchema(Order).decode(header(at) + b'{"customer": "adam", "cents": 1}')
    elsewhere = {"type": "object", "properties": {"customer": {"$ref": "http://127.0.0.1:1/name.json"}}}
    with pytest.raises(DecodeError, match="Unresolvable"):
        JsonSchema(Order).decode(header(registered(memory, elsewhere)) + b'{"customer": "ada", "cents": 1}')


def test_what_is_written_is_valid_by_a_given_schema(memory: SchemaRegistry) -> None:
    schema = {"type": "object", "properties": {"customer": {"maxLength": 3}}}
    stream: Any = Stream("big", JsonSchema(Big, schema))
    memory.register("big-value", stream.serde.schema)
    assert stream.emit("k", Big("ada", Total())).value is not None
    wrong: list[Any] = [Big("adam", Total()), Big("ada", 7), Total(), None]  # type: ignore[arg-type]
    for each in wrong:
        with pytest.raises(FoldError, match=r"cannot be written as JsonSchema\(Big\)"):
            stream.emit("k", each)


def test_what_is_no_schema_or_no_type_is_refused_at_declaration() -> None:
    for schema in ("{", "[]", {"type": "strnig"}):
        with pytest.raises(ConfigError):
            JsonSchema(Order, schema)
    with pytest.raises(ConfigError, match="JsonSchema"):
        JsonSchema(dict[msgspec.Raw, complex])
    with pytest.raises(ConfigError, match="Out of range float values are not JSON"):
        JsonSchema(msgspec.defstruct("Row", [("x", float, float("nan"))]))
    with pytest.raises(ConfigError, match="Integer values"):
        JsonSchema(enum.IntEnum("Far", {"AWAY": 1 << 70}))


def test_memory_that_runs_out_blames_no_record(
    memory: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    serde: Any = Stream("orders", JsonSchema(Order)).serde
    memory.register("orders-value", serde.schema)

    def exhausted(value: Any) -> Any:
        raise MemoryError

    value = serde.encode(FULL)
    monkeypatch.setattr(serde, "_reads", {})
    monkeypatch.setattr(serde, "reader", lambda schema, asked: exhausted)
    with pytest.raises(MemoryError):
        serde.decode(value)
    monkeypatch.setattr(serde, "_encode", exhausted)
    with pytest.raises(MemoryError):
        serde.encode(FULL)
