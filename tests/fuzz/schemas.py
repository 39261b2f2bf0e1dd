"""Decoders of records with schemas, and of schemas that others have registered."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast import Avro
from holdfast.config import SchemaRegistrySettings
from holdfast.core.engine.declared.serdes import VALUE_ID
from holdfast.core.untrusted import careful
from holdfast.errors import DecodeError
from holdfast.schemas import registry
from holdfast.schemas.frames import framed, header, path_bytes, split, split_path
from holdfast.schemas.json_rules import JsonRules
from holdfast.schemas.proto_files import message_types
from holdfast.schemas.registry import SchemaText
from holdfast.schemas.serde import SchemaSerde
from tests.fuzz.targets import Target
from tests.schemas import shop_pb2
from tests.schemas.shop import FORMATS, FULL

IN_MEMORY = SchemaRegistrySettings(schema_registry_url="mock://fuzz")
_AVRO: SchemaSerde[Any] = FORMATS["avro"].orders
_JSON: SchemaSerde[Any] = FORMATS["json"].orders
_PROTOBUF: SchemaSerde[Any] = FORMATS["protobuf"].orders
RECURSIVE = '{"type":"record","name":"N","fields":[{"name":"next","type":["null","N"]},{"name":"all","type":{"type":"array","items":"N"}}]}'  # noqa: E501
TEXT = (
    'syntax = "proto3"; package tests.shop; message Order { map<string, int64> m = 1; message Line {} }'
    " // end"
)


importlib.import_module("confluent_kafka.schema_registry")  # what it takes is no record's doing
importlib.import_module("fastavro")


def _records(serde: SchemaSerde[Any]) -> Callable[[bytes], Any]:
    """Return the decoder of whole records, of which each has the id of the serde's own schema, or no known
    id.
    """

    def decode(data: bytes) -> Any:
        if registry.told() != IN_MEMORY:
            asked = registry.use(IN_MEMORY)
            for each in (_AVRO, _JSON, _PROTOBUF):
                asked.register(each.name, each.needed(asked, register=True))
        asked = registry.current()
        schema_id = asked.id_of(serde.name, serde.needed(asked, register=False))
        return serde.decode(data[:1] + schema_id.to_bytes(4, "big") + data[5:] if len(data) >= 5 else data)

    return decode


def _fits(serde: SchemaSerde[Any]) -> Callable[[bytes], Any]:
    """Return a check of a registered schema: it gives a reason or none."""

    def look(data: bytes) -> Any:
        text = SchemaText(serde.kind, data.decode("latin-1"))
        return serde.why_unreadable(text, registry.use(IN_MEMORY))

    return look


_nested = Avro(dict, RECURSIVE).reader(SchemaText("AVRO", RECURSIVE), registry.SchemaRegistry(IN_MEMORY))
_KINDS = {
    "a": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3},
    "b": {"type": "fixed", "name": "F", "size": 7, "logicalType": "decimal", "precision": 12},
    "c": {"type": "int", "logicalType": "date"},
    "d": {"type": "int", "logicalType": "time-millis"},
    "e": {"type": "long", "logicalType": "time-micros"},
    "f": {"type": "long", "logicalType": "timestamp-millis"},
    "g": ["null", {"type": "long", "logicalType": "local-timestamp-micros"}],
    "h": {"type": "array", "items": {"type": "string", "logicalType": "uuid"}},
    "i": {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"},
}
_LOGICAL = json.dumps(
    {"type": "record", "name": "R", "fields": [{"name": name, "type": of} for name, of in _KINDS.items()]}
)
_logical = Avro(dict, _LOGICAL).reader(SchemaText("AVRO", _LOGICAL), registry.SchemaRegistry(IN_MEMORY))
_HOSTILE = JsonRules(
    {
        "anyOf": [
            {"items": {"$ref": "#"}, "uniqueItems": True, "type": "array"},
            {"additionalProperties": {"$ref": "#"}, "required": ["never"]},
            {"patternProperties": {"^(a|a)*$": {"$ref": "#"}}, "unevaluatedProperties": False},
            {"pattern": "^(?!b)(a+)+$", "not": {"type": ["object", "array"]}},
        ]
    }
)


def _checked(data: bytes) -> Any:
    value = careful(msgspec.json.decode)(data)
    _HOSTILE.check(value, data)
    return value


_ORDER = shop_pb2.Order(customer="ada", cents=7, lines=[{"item": "tea", "pieces": 2}])

SCHEMAS: tuple[Target, ...] = (
    Target(name="Avro records", decode=_records(_AVRO), seeds=(header(1) + _AVRO.payload(FULL),)),
    Target(name="JSON Schema records", decode=_records(_JSON), seeds=(header(1) + _JSON.payload(FULL),)),
    Target(
        name="Protobuf records", decode=_records(_PROTOBUF), seeds=(header(1) + _PROTOBUF.payload(_ORDER),)
    ),
    Target(
        name="Avro values that nest", decode=_nested, errors=(Exception,), seeds=(b"\x02" * 40 + b"\0" * 41,)
    ),
    Target(
        name="Avro's logical types",
        decode=_logical,
        errors=(Exception,),
        seeds=(b"\x04\x01\x02" + b"\0" * 7 + b"\x02\x02\x02\x02\x02\x02\0" + bytes(range(16)),),
    ),
    Target(
        name="JSON by hostile rules",
        decode=_checked,
        errors=(DecodeError, msgspec.DecodeError),
        seeds=(
            b'[[1,[2,{"a":[1]}]],{"aaaaaaaaaaaaaaaaaaaaaaaaa!":{"never":1}},"aaaaaaaaaaaaaaaaaaaaaaaaaa!"]',
        ),
    ),
    Target(
        name="ids in headers",
        decode=lambda data: split(framed("value", b"abc", [(VALUE_ID, data)]) or b""),
        errors=(DecodeError,),
        seeds=(b"\x01" + bytes(range(16)) + b"\x04\x02\0", header(7)),
    ),
    Target(
        name="paths of Protobuf",
        decode=lambda data: split_path(data),
        encode=lambda found: path_bytes(found[0]) + found[1],
        errors=(DecodeError,),
        seeds=(path_bytes((1, 0)) + b"abc", path_bytes((0,))),
    ),
    Target(
        name="Protobuf files",
        decode=lambda data: message_types(data.decode("latin-1")).names,
        errors=(DecodeError,),
        seeds=(TEXT.encode(), _PROTOBUF.schema.text.encode()),
    ),
    Target(name="Avro schemas", decode=_fits(_AVRO), seeds=(_AVRO.schema.text.encode(), RECURSIVE.encode())),
    Target(name="JSON schemas", decode=_fits(_JSON), seeds=(_JSON.schema.text.encode(),)),
)
"""The decoders of records for the bytes of one registered schema, and for schemas themselves."""
