"""Any change of the type of a source's records is read exactly, or refused, as oracles of a few lines say."""

from __future__ import annotations

import itertools
from functools import partial
from math import isinf
from typing import Any

import msgspec
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast import Avro, JsonSchema, Protobuf
from holdfast.config import SchemaRegistrySettings
from holdfast.errors import ConfigError, DecodeError
from holdfast.schemas import registry
from holdfast.schemas.frames import header

KINDS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "int": (int, st.integers(-(2**63), 2**63 - 1)),
    "float": (float, st.floats(allow_nan=False)),
    "str": (str, st.text(max_size=5)),
    "int?": (int | None, st.none() | st.integers(-9, 9)),
    "str?": (str | None, st.none() | st.text(max_size=5)),
    "list": (list[int], st.lists(st.integers(-9, 9), max_size=3)),
}
NAMES = "abcd"
_numbers = itertools.count()


@st.composite
def fields(draw: st.DrawFn) -> dict[str, tuple[str, Any]]:
    """Give names with their kinds and their defaults; MISSING for none."""
    out = {}
    for name in draw(st.sets(st.sampled_from(NAMES), min_size=1)):
        kind = draw(st.sampled_from(sorted(KINDS)))
        out[name] = kind, draw(st.just(msgspec.NODEFAULT) | KINDS[kind][1])
    return out


def struct_of(name: str, declared: dict[str, tuple[str, Any]]) -> Any:
    made: list[Any] = []
    for field, (kind, default) in declared.items():
        if default is msgspec.NODEFAULT:
            made.append((field, KINDS[kind][0]))
        else:
            factory: Any = msgspec.field(
                default_factory=partial(list, default if isinstance(default, list) else ())
            )
            made.append((field, KINDS[kind][0], factory if isinstance(default, list) else default))
    return msgspec.defstruct(name, made, kw_only=True)


def has_infinity(*declared: dict[str, tuple[str, Any]]) -> bool:
    """Return whether some default is infinite: schemas are JSON, which has no such number, so they are
    refused.
    """
    defaults = (default for fields in declared for _, default in fields.values())
    return any(isinstance(default, float) and isinf(default) for default in defaults)


REFUSED = object()


def read(value: Any, wrote: str, kind: str) -> Any:
    """Return a field's value for a reader of *kind*, by the rules of the page."""
    if value is None:
        return None if kind.endswith("?") else REFUSED
    wrote, kind = wrote.removesuffix("?"), kind.removesuffix("?")
    if (wrote, kind) == ("int", "float"):
        return float(value)
    return value if wrote == kind else REFUSED


@pytest.mark.long
@pytest.mark.parametrize("serde", [Avro, JsonSchema])
@given(wrote=fields(), reads=fields(), data=st.data())
def test_a_record_of_another_type_is_read_exactly_or_refused(
    serde: Any, wrote: dict[str, tuple[str, Any]], reads: dict[str, tuple[str, Any]], data: st.DataObject
) -> None:
    asked = registry.use(SchemaRegistrySettings(schema_registry_url="mock://evolution"))
    types = struct_of("Written", wrote), struct_of("Read", reads)
    if has_infinity(wrote, reads):
        with pytest.raises(ConfigError, match="JSON"):
            [*map(serde, types)]
        return
    writer, reader = map(serde, types)
    given = {name: data.draw(KINDS[kind][1]) for name, (kind, _) in wrote.items()}
    if serde is JsonSchema:  # beyond, JSON's numbers are not exact
        assume(all(abs(each) < 2**53 for each in given.values() if isinstance(each, int | float)))
    schema_id = asked.register(f"s{next(_numbers)}", writer.schema).schema_id
    record = header(schema_id) + writer.payload(writer.of(**given))
    wanted = {}
    for name, (kind, default) in reads.items():
        if name in wrote:
            wanted[name] = read(given[name], wrote[name][0], kind)
        else:
            wanted[name] = REFUSED if default is msgspec.NODEFAULT else default
    if any(each is REFUSED for each in wanted.values()):
        with pytest.raises(DecodeError):
            reader.decode(record)
    else:
        assert reader.decode(record) == reader.of(**wanted)
        assert reader.why_unreadable(writer.schema, asked) is None


Field = FieldDescriptorProto
PROTO_KINDS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "int32": (Field.TYPE_INT32, st.integers(-(2**31), 2**31 - 1)),
    "int64": (Field.TYPE_INT64, st.integers(-(2**63), 2**63 - 1)),
    "uint32": (Field.TYPE_UINT32, st.integers(0, 2**32 - 1)),
    "sint64": (Field.TYPE_SINT64, st.integers(-9, 9)),
    "double": (Field.TYPE_DOUBLE, st.floats(allow_nan=False)),
    "bool": (Field.TYPE_BOOL, st.booleans()),
    "string": (Field.TYPE_STRING, st.text(max_size=4)),
    "bytes": (Field.TYPE_BYTES, st.binary(max_size=4)),
}
WIDER = {("int32", "int64"), ("uint32", "int64"), ("string", "bytes")}
proto_fields = st.dictionaries(
    st.integers(1, 4), st.tuples(st.sampled_from(sorted(PROTO_KINDS)), st.booleans()), min_size=1
)
"""Of each field, by number, its kind, and whether there may be many."""


def message_of(declared: dict[int, tuple[str, bool]], label: str) -> Any:
    """Return the class of a message `fuzz.Order`, whose fields are named after *label* too, since names do
    not matter.
    """
    file = FileDescriptorProto(name=f"fuzz_{label}_{next(_numbers)}.proto", package="fuzz", syntax="proto3")
    message = file.message_type.add(name="Order")
    for number, (kind, many) in declared.items():
        message.field.add(
            name=f"{label}{number}",
            number=number,
            type=PROTO_KINDS[kind][0],
            label=Field.LABEL_REPEATED if many else Field.LABEL_OPTIONAL,
        )
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName("fuzz.Order"))


def read_proto(value: Any, wrote: tuple[str, bool], reads: tuple[str, bool]) -> Any:
    """Return a field's value for its reader, by the rules of the page."""
    (kind, many), (wanted, wants_many) = wrote, reads
    if kind != wanted and (kind, wanted) not in WIDER:
        return REFUSED
    if many and not wants_many:
        return REFUSED
    if wants_many and not many:
        if kind not in ("string", "bytes"):
            return REFUSED
        value = [value] if value else []
    if (kind, wanted) == ("string", "bytes"):
        return [each.encode() for each in value] if wants_many else value.encode()
    return value


@pytest.mark.long
@given(wrote=proto_fields, reads=proto_fields, data=st.data())
def test_so_is_one_in_protobuf(
    wrote: dict[int, tuple[str, bool]], reads: dict[int, tuple[str, bool]], data: st.DataObject
) -> None:
    asked = registry.use(SchemaRegistrySettings(schema_registry_url="mock://evolution"))
    written, wanted = message_of(wrote, "w"), message_of(reads, "r")
    writer, reader = Protobuf(written), Protobuf(wanted)
    given: dict[int, Any] = {}
    for number, (kind, many) in wrote.items():
        values = PROTO_KINDS[kind][1]
        given[number] = data.draw(st.lists(values, max_size=3) if many else values)
    schema_id = asked.register(f"p{next(_numbers)}", writer.schema).schema_id
    record = header(schema_id) + writer.payload(
        written(**{f"w{number}": value for number, value in given.items()})
    )
    shared = {
        number: read_proto(given[number], wrote[number], reads[number]) for number in reads if number in wrote
    }
    if any(each is REFUSED for each in shared.values()):
        with pytest.raises(DecodeError, match=r"does not fit: field \d of fuzz.Order is "):
            reader.decode(record)
        assert reader.why_unreadable(writer.schema, asked) is not None
        return
    found = reader.decode(record)
    blank = wanted()
    for number in reads:
        value = getattr(found, f"r{number}")
        there = shared.get(number, getattr(blank, f"r{number}"))
        assert (list(value) if reads[number][1] else value) == (list(there) if reads[number][1] else there)
    assert reader.why_unreadable(writer.schema, asked) is None
