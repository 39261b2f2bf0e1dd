"""Payloads in Avro: what no writer writes is refused, and all else is read as fastavro reads it."""

from __future__ import annotations

import json
from decimal import Decimal
from io import BytesIO
from typing import Any

import fastavro
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Avro
from holdfast.errors import DecodeError, FoldError
from holdfast.schemas import avro_schemas
from holdfast.schemas.avro_reader import AvroReader
from holdfast.schemas.registry import SchemaText

ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
LONGS = {"type": "array", "items": "long"}
MAP = {"type": "map", "values": "long"}
FIXED = {"type": "fixed", "name": "F", "size": 4}
SMALLEST = b"\xff" * 9 + b"\x01"

WRONG: dict[str, tuple[Any, bytes, str]] = {
    "branch -1": (["null", "string"], b"\x01\x02a", "a union has no branch -1"),
    "branch beyond": (["null", "string"], b"\x04\x02a", "a union has no branch 2"),
    "symbol -1": (ENUM, b"\x01", "an enum has no symbol -1"),
    "symbol beyond": (ENUM, b"\x04", "an enum has no symbol 2"),
    "boolean": ("boolean", b"\x07", "a boolean is 7"),
    "length of text": ("string", b"\x01abc", "a length is -1"),
    "length of bytes": ("bytes", b"\x03abc", "a length is -2"),
    "long length": ("bytes", b"\xff\xff\xff\xff\x0fabc", "a length is -2147483648"),
    "text ends": ("string", b"\x08ab", "it ends too soon: 4 bytes should follow, 2 do"),
    "fixed ends": (FIXED, b"ab", "it ends too soon: 4 bytes should follow, 2 do"),
    "double ends": ("double", bytes(7), "it ends too soon"),
    "float ends": ("float", bytes(3), "it ends too soon"),
    "long ends": ("long", b"\x80", "it ends too soon"),
    "nothing": ("boolean", b"", "it ends too soon"),
    "array ends": (LONGS, b"\x04\x02\x04", "it ends too soon"),
    "smallest count": (LONGS, SMALLEST + b"\x02\x00", "it ends too soon"),
    "size of a block": (LONGS, b"\x01\x01\x02\x00", "a block's size is -1"),
    "size too large": (LONGS, b"\x01\x04\x02\x00", "a block ends 1 bytes after its last item"),
    "size too small": (MAP, b"\x01\x02\x02a\x02\x00", "a block ends 2 bytes before its last item"),
    "more than 64 bits": ("long", b"\xff" * 9 + b"\x03", "a number has more than 64 bits"),
    "eleven bytes": ("long", b"\x80" * 10 + b"\x00", "a number has more than 64 bits"),
    "more than 32 bits": ("int", b"\x80\x80\x80\x80\x10", "2147483648 does not fit an int of 32 bits"),
    "bytes that follow": ("long", b"\x02\x00", "1 bytes follow the value"),
    "text": ("string", b"\x02\xff", "'utf-8' codec can't decode byte 0xff"),
}


@pytest.mark.parametrize(("schema", "payload", "why"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("by_name", [False, True], ids=["into a type", "by a schema"])
def test_what_no_writer_writes_is_refused(schema: Any, payload: bytes, why: str, by_name: bool) -> None:
    record = {"type": "record", "name": "R", "fields": [{"name": "x", "type": schema}]}
    own = record | {"fields": [*record["fields"], {"name": "y", "type": "long", "default": 0}]}
    kind = msgspec.defstruct("R", [("x", Any), ("y", int, 0)])
    serde = Avro(kind, own if by_name else None) if by_name else Avro(kind, record)
    read = serde.reader(SchemaText("AVRO", json.dumps(record)), None)  # type: ignore[arg-type]  # never asked
    with pytest.raises((DecodeError, UnicodeDecodeError)) as raised:
        read(payload)
    assert why in str(raised.value)


def test_what_nests_without_end_is_read_as_strictly() -> None:
    schema = {
        "type": "record",
        "name": "Node",
        "fields": [{"name": "next", "type": ["null", "Node"]}, {"name": "on", "type": "boolean"}],
    }
    read = AvroReader(fastavro.parse_schema(schema)).read
    assert read(b"\x02\x00\x01\x00") == {"next": {"next": None, "on": True}, "on": False}
    for wrong in (b"\x01\x00\x01\x00", b"\x02\x00\x02\x00", b"\x02\x00\x01\x00\x00", b"\x02\x00\x01"):
        with pytest.raises(DecodeError):
            read(wrong)
    with pytest.raises(RecursionError):
        read(b"\x02" * 100_000)


def test_blocks_with_their_sizes_are_read() -> None:
    assert AvroReader(LONGS).read(b"\x03\x04\x02\x04\x02\x06\x00") == [1, 2, 3]
    assert AvroReader(MAP).read(b"\x01\x06\x02a\x02\x00") == {"a": 1}


@given(
    numbers=st.lists(st.one_of(st.integers(-64, 63), st.integers(-(1 << 63), (1 << 63) - 1)), max_size=60),
    blocks=st.integers(1, 4),
    tail=st.binary(max_size=12),
)
def test_long_arrays_of_numbers_are_read_and_looked_at_alike(
    numbers: list[int], blocks: int, tail: bytes
) -> None:
    file, longs = BytesIO(), fastavro.parse_schema(LONGS)
    for _ in range(blocks):
        fastavro.schemaless_writer(file, longs, numbers)
        file.seek(-1, 2)  # another block instead of the end
    payload = file.getvalue() if numbers else b"\0"
    check = AvroReader(longs, checks_alone=True).read
    assert AvroReader(longs).read(payload) == numbers * blocks
    check(payload)
    for wrong in (payload + tail + b"\0", payload[:-1] + tail, payload[: len(tail)]):
        found = list[str]()
        for read in (AvroReader(longs).read, check):
            try:
                read(wrong)
            except DecodeError as error:
                found.append(str(error))
        assert len(set(found)) < 2, found
        assert len(found) in (0, 2)


@pytest.mark.parametrize("number", [b"\xff" * 9 + b"\x03", b"\x80" * 10 + b"\x00"], ids=["64 bits", "bytes"])
@pytest.mark.parametrize("at", [0, 30, 59])
def test_a_number_of_too_many_bits_among_many_is_refused(number: bytes, at: int) -> None:
    numbers = [b"\x82\x01"] * 59
    payload = b"\x78" + b"".join([*numbers[:at], number, *numbers[at:]]) + b"\0"
    for checks_alone in (False, True):
        with pytest.raises(DecodeError, match="more than 64 bits"):
            AvroReader(LONGS, checks_alone=checks_alone).read(payload)
    whole = payload.replace(number, b"\xff" * 9 + b"\x01")
    assert AvroReader(LONGS).read(whole)[at] == -(1 << 63)


PLAIN: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(1 << 31), (1 << 31) - 1),
    "long": st.integers(-(1 << 63), (1 << 63) - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=200),
    "string": st.text(max_size=100),
}


@st.composite
def written(draw: st.DrawFn, depth: int = 3, name: str = "N") -> tuple[Any, Any]:
    """Draw a schema and a value of it; its named types begin with *name*."""
    kind = draw(
        st.sampled_from([*PLAIN, "enum", "fixed", *(["array", "map", "record", "union"] if depth else [])])
    )
    if kind in PLAIN:
        return kind, draw(PLAIN[kind])
    match kind:
        case "enum":
            return {"type": "enum", "name": name, "symbols": ["A", "B", "C"]}, draw(st.sampled_from("ABC"))
        case "fixed":
            return {"type": "fixed", "name": name, "size": 3}, draw(st.binary(min_size=3, max_size=3))
        case "union":
            schema, value = draw(written(0, f"{name}u").filter(lambda found: found[0] != "null"))
            return ["null", schema], draw(st.sampled_from([None, value]))
        case "record":
            parts = [draw(written(depth - 1, f"{name}{at}")) for at in range(draw(st.integers(0, 3)))]
            fields = [{"name": f"f{at}", "type": schema} for at, (schema, _) in enumerate(parts)]
            value = {f"f{at}": each for at, (_, each) in enumerate(parts)}
            return {"type": "record", "name": name, "fields": fields}, value
    schema, value = draw(written(depth - 1, f"{name}i"))
    count = draw(st.integers(0, 80))
    if kind == "array":
        return {"type": "array", "items": schema}, [value] * count
    return {"type": "map", "values": schema}, {str(at): value for at in range(count)}


@given(drawn=written(), cut=st.integers(0, 1 << 20))
def test_what_fastavro_writes_is_read_as_it_was(drawn: tuple[Any, Any], cut: int) -> None:
    schema, value = drawn
    parsed = fastavro.parse_schema(schema)
    file = BytesIO()
    fastavro.schemaless_writer(file, parsed, value)
    read = AvroReader(parsed).read
    assert read(file.getvalue()) == value
    if payload := file.getvalue():
        with pytest.raises((DecodeError, UnicodeDecodeError)):
            read(payload[: cut % len(payload)])
    with pytest.raises(DecodeError):
        read(payload + b"\0")


def test_reasons_name_a_decimal_and_no_function_that_makes_it() -> None:
    class R(msgspec.Struct):
        x: Decimal

    class Other(msgspec.Struct):
        x: object

    def of(kind: Any) -> dict[str, Any]:
        return {"type": "record", "name": "R", "fields": [{"name": "x", "type": kind}]}

    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    fixed = {**decimal, "type": "fixed", "name": "F", "size": 2}
    read = Avro(R, of(decimal)).reader(SchemaText("AVRO", json.dumps(of(fixed))), None)  # type: ignore[arg-type]
    with pytest.raises(DecodeError) as raised:
        read(b"\x00\x01")
    told = "{'logicalType': 'decimal', 'precision': 4, 'scale': 2, 'type': 'fixed', 'name': 'F', 'size': 2}"
    assert str(raised.value) == f"Schema mismatch: {told} is not bytes"
    with pytest.raises(FoldError) as unwritten:
        Avro(R, of(["null", decimal, "int"])).payload(Other(1.5))  # type: ignore[arg-type]
    told = "{'logicalType': 'decimal', 'precision': 4, 'scale': 2, 'type': 'bytes'}"
    assert f"do not match ['null', {told}, {{'type': 'int'}}]" in str(unwritten.value)


def test_an_array_of_items_that_take_no_bytes_is_refused() -> None:
    schema = fastavro.parse_schema({"type": "array", "items": "null"})
    with pytest.raises(DecodeError, match="take no bytes"):
        avro_schemas.reading(schema, {}, schema, {}, None, by_name=False, tells_names=False)
