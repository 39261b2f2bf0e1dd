"""Decoders of records with schemas, and of schemas that others have registered."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from holdfast import Avro
from holdfast.config import SchemaRegistrySettings
from holdfast.errors import DecodeError
from holdfast.schemas import registry
from holdfast.schemas.frames import header, path_bytes, split_path
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
    """Return the decoder of whole records, of which each has the id of the serde's own schema, or none that
    is known.
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
    """Return what looks at a schema that somebody has registered: it gives a reason or none."""

    def look(data: bytes) -> Any:
        text = SchemaText(serde.kind, data.decode("latin-1"))
        return serde.why_unreadable(text, registry.use(IN_MEMORY))

    return look


_nested = Avro(dict, RECURSIVE).reader(SchemaText("AVRO", RECURSIVE), registry.SchemaRegistry(IN_MEMORY))
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
"""What the decoders of records make of the bytes of one registered schema, and of schemas themselves."""
