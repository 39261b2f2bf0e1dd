"""Protobuf: the message in a record, in whichever form the registry keeps its file, and the refused ones."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import Message

from holdfast import Processor, Protobuf, Source, Stream
from holdfast.clients.topics.schemas import plan_schemas
from holdfast.clients.topics.types import RegisterSchema
from holdfast.errors import ConfigError, DecodeError, FoldError
from holdfast.schemas.frames import header
from holdfast.schemas.proto_files import message_types
from holdfast.schemas.registry import SchemaRegistry, SchemaText
from tests.schemas import shop_pb2

ORDER = shop_pb2.Order(customer="ada", cents=7)
TEXT = """
syntax = "proto2";
package shop.v1;
option java_package = "message A {";
import "other.proto";
message First {
  enum Kind { message = 0; B = 1; }
  map<string, Inner> entries = 1;
  oneof one { group Grouped = 3 { optional int32 a = 1; } string b = 4; }
  message Inner { message Deepest {} optional string message = 1; }
  extensions 100 to 199 [declaration = { number: 100 }];
}
/* message Hidden {} */ // message Hidden {
message Second { reserved 2, 15; }
extend First { optional int32 more = 126; }
service Orders { rpc Get (First) returns (Second) { option deprecated = true; } }
message Third {}
"""


@pytest.mark.long
def test_a_message_comes_back_and_needs_its_imports_registered(memory: SchemaRegistry) -> None:
    stream: Any = Stream("orders", Protobuf(shop_pb2.Order))
    schema = stream.serde.needed(memory, register=True)
    assert schema.references == (("tests/schemas/common.proto", "tests/schemas/common.proto", 1),)
    memory.register("orders-value", schema)
    value = stream.emit("k", ORDER).value
    assert value[5:7] == b"\x02\x02"
    assert Source("orders", Protobuf(shop_pb2.Order)).serde.decode(value) == ORDER


def test_a_file_is_compared_with_all_that_it_imports_once_that_is_registered(
    memory: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[SchemaText] = []

    def compare(subject: str, schema: SchemaText) -> bool:
        compared.append(schema)
        return True

    monkeypatch.setattr(memory, "is_compatible", compare)
    told: Any = Stream("told", Protobuf(shop_pb2.Order))
    processor: Processor[Any, Any] = Processor(
        name="teller", source="in", decode=bytes, fold=lambda rows, event, at_ms: None, row=int, emits=(told,)
    )
    memory.register("told-value", SchemaText("PROTOBUF", 'syntax = "proto3"; message Order {}'))
    planned = [RegisterSchema("told", "told-value", "PROTOBUF")]
    assert (plan_schemas(memory.settings, [processor]), compared) == (planned, [])
    common = shop_pb2.Address.DESCRIPTOR.file
    memory.register(common.name, SchemaText("PROTOBUF", b64encode(common.serialized_pb).decode()))
    assert plan_schemas(memory.settings, [processor]) == planned
    assert [each.references for each in compared] == [((common.name, common.name, 1),)]


def test_the_types_of_a_file_as_text_are_those_of_its_descriptor() -> None:
    types = message_types(TEXT)
    first = {(0,): "First", (0, 1): "First.Grouped", (0, 2): "First.Inner", (0, 2, 0): "First.Inner.Deepest"}
    for path, name in {**first, (1,): "Second", (2,): "Third"}.items():
        assert types.at(path) == f"shop.v1.{name}"
    file = FileDescriptorProto()
    shop_pb2.Order.DESCRIPTOR.file.CopyToProto(file)
    known = message_types(b64encode(file.SerializeToString()).decode())
    assert known.names == {
        f"tests.shop.{name}"
        for name in ("Ignored", "Ignored.CountsEntry", "Ignored.Deep", "Order", "Order.Line", "Big")
    }
    assert known.at((0, 1)) == "tests.shop.Ignored.Deep"
    for path in ((3,), (0, 3), (1, 0, 0)):
        with pytest.raises(DecodeError, match="has no message type"):
            types.at(path)


@pytest.mark.parametrize("text", ["message A {", "}", "message A { } }", "message A " + "{" * 1000])
def test_a_text_that_is_no_file_is_refused(memory: SchemaRegistry, text: str) -> None:
    at = memory.register("orders-value", SchemaText("PROTOBUF", text)).schema_id
    with pytest.raises(DecodeError, match="its text"):
        Protobuf(shop_pb2.Order).decode(header(at) + b"\0")


def test_another_message_and_invalid_bytes_are_refused(memory: SchemaRegistry) -> None:
    stream: Any = Stream("orders", Protobuf(shop_pb2.Order))
    memory.register("orders-value", stream.serde.needed(memory, register=True))
    good = stream.emit("k", ORDER).value
    framed, message = good[:7], good[7:]
    wrong = {
        good[:5] + b"\0" + message: "holds a message tests.shop.Ignored, not tests.shop.Order",
        good[:5] + b"\x02\x0e" + message: "has no message type 7",
        good[:5]: "cut short",
        framed + b"\xff" + message: "schema 2 of subject",
        framed + b"\x0a\x7fx": "schema 2 of subject",
    }
    for value, why in wrong.items():
        with pytest.raises(DecodeError, match=why):
            stream.serde.decode(value)
    at = memory.register("other", SchemaText("PROTOBUF", 'syntax = "proto3"; message Other {}')).schema_id
    with pytest.raises(DecodeError, match=r"does not fit: it has no message tests.shop.Order; it has Other"):
        stream.serde.decode(header(at) + b"\0")


def test_only_messages_of_the_class_are_written(memory: SchemaRegistry) -> None:
    stream: Any = Stream("orders", Protobuf(shop_pb2.Order))
    for each in (shop_pb2.Big(), "text", None):
        with pytest.raises(FoldError, match=r"cannot be written as Protobuf\(Order\)"):
            stream.emit("k", each)
    for of in (int, str | int, Message):
        with pytest.raises(ConfigError, match="a message class that protoc has generated"):
            Protobuf(of)
