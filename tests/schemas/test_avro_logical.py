"""Avro's logical types: values read and written are exact, or refused; and a reader's logical type holds."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from functools import cache
from io import BytesIO
from typing import Annotated, Any
from uuid import UUID

import fastavro
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Avro
from holdfast.config import SchemaRegistrySettings
from holdfast.errors import ConfigError, DecodeError, FoldError
from holdfast.schemas import registry
from holdfast.schemas.frames import header
from holdfast.schemas.registry import SchemaRegistry, SchemaText
from holdfast.schemas.serde import _Refusing

Zoned = Annotated[dt.datetime, msgspec.Meta(tz=True)]
Naive = Annotated[dt.datetime, msgspec.Meta(tz=False)]
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
NUMBER = UUID("12345678-1234-5678-1234-567812345678")


def of(kind: str, called: str, /, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": called, **more}


def decimal(precision: int, scale: int, **more: Any) -> dict[str, Any]:
    return of("bytes", "decimal", precision=precision, scale=scale, **more)


def fixed(size: int, called: str, /, **more: Any) -> dict[str, Any]:
    return of("fixed", called, name="F", size=size, **more)


WRAPPED: dict[str, tuple[Any, Any, Any]] = {
    "a field": (lambda schema: schema, lambda kind: kind, lambda value: value),
    "a union": (lambda schema: ["null", schema], lambda kind: kind | None, lambda value: value),
    "an array": (
        lambda schema: {"type": "array", "items": schema},
        lambda kind: list[kind],  # type: ignore[valid-type]
        lambda value: [value],
    ),
    "a map": (
        lambda schema: {"type": "map", "values": schema},
        lambda kind: dict[str, kind],  # type: ignore[valid-type]
        lambda value: {"k": value},
    ),
    "a record": (
        lambda schema: {"type": "record", "name": "Inner", "fields": [{"name": "y", "type": schema}]},
        lambda kind: msgspec.defstruct("Inner", [("y", kind)], frozen=True),
        lambda value: {"y": value},
    ),
}
PLACES = pytest.mark.parametrize("place", WRAPPED)


def row(schema: Any, place: str = "a field", **field: Any) -> dict[str, Any]:
    wrapped = WRAPPED[place][0](schema)
    return {"type": "record", "name": "Row", "fields": [{"name": "x", "type": wrapped, **field}]}


def kind_of(kind: Any, place: str = "a field", *default: Any) -> Any:
    return msgspec.defstruct("Row", [("x", WRAPPED[place][1](kind), *default)], frozen=True)


def raw(schema: Any, value: Any) -> bytes:
    """Return a value as a program writes it that knows of no logical types."""
    file = BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(bare(schema)), value)
    return file.getvalue()


def bare(schema: Any) -> Any:
    if isinstance(schema, list):
        return [bare(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: bare(each) for name, each in schema.items() if name not in ("logicalType", "precision", "scale")
    }


def inside(found: Any, place: str) -> Any:
    value = found.x
    match place:
        case "an array":
            return value[0]
        case "a map":
            return value["k"]
        case "a record":
            return value.y
    return value


def decoded(serde: Any, wrote: Any, value: Any) -> Any:
    """Return the value that *serde* reads from a record of another schema; no registry is asked for that."""
    asked = registry.use(SchemaRegistrySettings())
    serde._forget(asked)
    try:
        serde._reads[1] = serde.reader(SchemaText("AVRO", json.dumps(wrote)), asked)
    except DecodeError as error:
        serde._reads[1] = _Refusing(f"does not fit: {error}")
    return serde.decode(header(1) + raw(wrote, value))


def read(wrote: Any, value: Any, serde: Any, place: str = "a field") -> Any:
    return inside(decoded(serde, row(wrote, place), {"x": WRAPPED[place][2](value)}), place)


def signed(number: int, size: int | None = None) -> bytes:
    return number.to_bytes(size or number.bit_length() // 8 + 1, "big", signed=True)


FAR = 8_640_000_000_000 * 1_000_000
CASES: list[tuple[Any, Any, Any, Any]] = [
    # the schema, the bytes, the type, and the value; None for an inexact one
    (decimal(4, 2), signed(-9999), Decimal, Decimal("-99.99")),
    (decimal(4, 2), signed(9999, 20), Decimal, Decimal("99.99")),
    (decimal(4, 2), signed(10_000), Decimal, None),
    (decimal(4, 2), signed(-10_000), Decimal, None),
    (decimal(4, 2), b"", Decimal, Decimal(0)),
    (decimal(40, 40), signed(10**40 - 1), Decimal, Decimal(f"0.{'9' * 40}")),
    (decimal(1_000, 0), signed(-(10**1_000) + 1), Decimal, Decimal(-(10**1_000) + 1)),
    (decimal(1 << 30, 0), bytes([1]) + bytes(1_000_000), Decimal, None),
    (fixed(3, "decimal", precision=4, scale=1), signed(-9_999, 3), Decimal, Decimal("-999.9")),
    (fixed(3, "decimal", precision=4, scale=1), signed(10_000, 3), Decimal, None),
    (of("int", "date"), -719_162, dt.date, dt.date(1, 1, 1)),
    (of("int", "date"), -719_163, dt.date, None),
    (of("int", "date"), 2_932_896, dt.date, dt.date(9999, 12, 31)),
    (of("int", "date"), (1 << 31) - 1, dt.date, None),
    (of("int", "time-millis"), 86_399_999, dt.time, dt.time(23, 59, 59, 999_000)),
    (of("int", "time-millis"), 86_400_000, dt.time, None),
    (of("int", "time-millis"), -1, dt.time, None),
    (of("long", "time-micros"), 86_399_999_999, dt.time, dt.time(23, 59, 59, 999_999)),
    (of("long", "time-micros"), 86_400_000_000, dt.time, None),
    (of("long", "time-micros"), -1, dt.time, None),
    (of("long", "timestamp-millis"), -1, Zoned, EPOCH - dt.timedelta(milliseconds=1)),
    (of("long", "timestamp-millis"), 253_402_300_800_000, Zoned, None),
    (of("long", "timestamp-millis"), -(1 << 63), Zoned, None),
    (of("long", "timestamp-micros"), -1, Zoned, EPOCH - dt.timedelta(microseconds=1)),
    (of("long", "timestamp-micros"), (1 << 63) - 1, Zoned, None),
    (of("long", "timestamp-nanos"), -1_000, Zoned, EPOCH - dt.timedelta(microseconds=1)),
    (of("long", "timestamp-nanos"), 1, Zoned, None),
    (of("long", "timestamp-nanos"), 1, int, 1),
    (of("long", "timestamp-millis"), 7, int, 7),
    (of("int", "time-millis"), -1, int, -1),
    (decimal(4, 2), signed(10_000), bytes, signed(10_000)),
    (of("long", "local-timestamp-millis"), -1, Naive, dt.datetime(1969, 12, 31, 23, 59, 59, 999_000)),
    (of("long", "local-timestamp-micros"), 1, Naive, dt.datetime(1970, 1, 1, 0, 0, 0, 1)),
    (of("long", "local-timestamp-micros"), -(1 << 63), Naive, None),
    (of("long", "local-timestamp-nanos"), 2_000, Naive, dt.datetime(1970, 1, 1, 0, 0, 0, 2)),
    (of("string", "uuid"), str(NUMBER), UUID, NUMBER),
    (of("string", "uuid"), "no number", UUID, None),
    (of("string", "uuid"), "no number", str, "no number"),
    (fixed(16, "uuid"), NUMBER.bytes, UUID, NUMBER),
    (fixed(12, "duration"), bytes(range(12)), bytes, bytes(range(12))),
    (
        of("string", "timestamp-millis"),
        "as Avro has it: no logical type",
        str,
        "as Avro has it: no logical type",
    ),
    (decimal(2, 5), b"\x01", bytes, b"\x01"),
    (fixed(1, "decimal", precision=9), b"\x01", bytes, b"\x01"),
]


@PLACES
@pytest.mark.parametrize(("schema", "wire", "kind", "wanted"), CASES)
def test_a_value_read_is_exact_or_refused(schema: Any, wire: Any, kind: Any, wanted: Any, place: str) -> None:
    serde = Avro(kind_of(kind, place), row(schema, place))
    if wanted is None:
        with pytest.raises(
            DecodeError, match=r"digits of its precision|is no time of a day|1 to 9999|nanoseconds|UUID"
        ):
            read(schema, wire, serde, place)
        return
    found = read(schema, wire, serde, place)
    assert (found, type(found)) == (wanted, type(wanted))


def test_a_decimal_of_a_megabyte_costs_no_more_than_to_read_it() -> None:
    serde = Avro(kind_of(Decimal), row(decimal(1 << 30, 0)))
    with pytest.raises(DecodeError, match="more than the 4096 digits"):
        read(decimal(1 << 30, 0), b"\x01" + bytes(1_000_000), serde)
    for value in (Decimal("1e999999999"), Decimal("-1e-999999999"), Decimal("NaN"), Decimal("Infinity")):
        with pytest.raises(FoldError, match=r"digits|no number"):
            serde.payload(serde.of(value))


WRITES: list[tuple[Any, Any, Any]] = [
    (decimal(4, 2), Decimal, Decimal("100.00")),
    (decimal(4, 2), Decimal, Decimal("1.234")),
    (decimal(4, 2), Decimal, Decimal("1E+2")),
    (decimal(4, 2), Decimal, Decimal("sNaN")),
    (fixed(3, "decimal", precision=4, scale=1), Decimal, Decimal("1000.0")),
    (of("long", "timestamp-millis"), Zoned, EPOCH.replace(microsecond=1_001)),
    (of("int", "time-millis"), dt.time, dt.time(0, 0, 0, 1)),
    (of("int", "time-millis"), dt.time, dt.time(tzinfo=dt.UTC)),
    (of("long", "time-micros"), dt.time, dt.time(tzinfo=dt.UTC)),
    (of("long", "timestamp-millis"), dt.datetime, dt.datetime(2026, 1, 1)),
    (of("long", "timestamp-micros"), dt.datetime, dt.datetime(2026, 1, 1)),
    (of("long", "local-timestamp-micros"), dt.datetime, EPOCH),
    (of("long", "timestamp-nanos"), Zoned, dt.datetime(2300, 1, 1, tzinfo=dt.UTC)),
    ("int", int, 1 << 31),
    ("int", int, -(1 << 31) - 1),
]


@PLACES
@pytest.mark.parametrize(("schema", "kind", "value"), WRITES)
def test_what_a_schema_does_not_hold_is_not_written(schema: Any, kind: Any, value: Any, place: str) -> None:
    serde = Avro(kind_of(kind, place), row(schema, place))
    with pytest.raises(FoldError):
        serde.payload(msgspec.convert({"x": WRAPPED[place][2](value)}, serde.of))


KINDS: list[tuple[Any, Any, st.SearchStrategy[Any]]] = [
    (decimal(9, 4), Decimal, st.integers(-(10**9) + 1, 10**9 - 1).map(lambda each: Decimal(each).scaleb(-4))),
    (
        fixed(9, "decimal", precision=20, scale=20),
        Decimal,
        st.integers(-(10**20) + 1, 10**20 - 1).map(lambda each: Decimal(each).scaleb(-20)),
    ),
    (of("int", "date"), dt.date, st.dates()),
    (
        of("int", "time-millis"),
        dt.time,
        st.times().map(lambda each: each.replace(microsecond=each.microsecond // 1_000 * 1_000)),
    ),
    (of("long", "time-micros"), dt.time, st.times()),
    (of("long", "timestamp-micros"), Zoned, st.datetimes(timezones=st.just(dt.UTC))),
    (
        of("long", "timestamp-millis"),
        Zoned,
        st.datetimes(timezones=st.just(dt.UTC)).map(
            lambda each: each.replace(microsecond=each.microsecond // 1_000 * 1_000)
        ),
    ),
    (
        of("long", "timestamp-nanos"),
        Zoned,
        st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2200, 1, 1), timezones=st.just(dt.UTC)),
    ),
    (of("long", "local-timestamp-micros"), Naive, st.datetimes()),
    (of("string", "uuid"), UUID, st.uuids()),
    (fixed(16, "uuid"), UUID, st.uuids()),
]


@cache
def _both_ways(number: int, place: str) -> tuple[Any, Any]:
    schema, kind, _ = KINDS[number]
    serde = Avro(kind_of(kind, place), row(schema, place))
    return serde, serde.reader(serde.schema, SchemaRegistry(SchemaRegistrySettings()))


@pytest.mark.long
@pytest.mark.parametrize(
    "number", range(len(KINDS)), ids=lambda number: str(KINDS[number][0].get("logicalType"))
)
@given(data=st.data())
def test_whatever_is_written_comes_back(number: int, data: st.DataObject) -> None:
    value, place = data.draw(KINDS[number][2]), data.draw(st.sampled_from(sorted(WRAPPED)))
    serde, reader = _both_ways(number, place)
    given = msgspec.convert({"x": WRAPPED[place][2](value)}, serde.of)
    assert reader(serde.payload(given)) == given


# -- a reader's logical type holds

GAINED: list[tuple[Any, Any, Any, Any, Any]] = [
    # the schema without, the one with, the type of each, the bytes and the value with one
    ("long", of("long", "timestamp-millis"), Zoned, 1_500, EPOCH + dt.timedelta(seconds=1.5)),
    ("long", of("long", "timestamp-micros"), Zoned, 1_500, EPOCH + dt.timedelta(milliseconds=1.5)),
    ("int", of("long", "timestamp-micros"), Zoned, 1_500, EPOCH + dt.timedelta(milliseconds=1.5)),
    ("long", of("long", "local-timestamp-micros"), Naive, 1, dt.datetime(1970, 1, 1, 0, 0, 0, 1)),
    ("int", of("int", "date"), dt.date, 1, dt.date(1970, 1, 2)),
    ("int", of("int", "time-millis"), dt.time, 1, dt.time(0, 0, 0, 1_000)),
    ("long", of("long", "time-micros"), dt.time, 1, dt.time(0, 0, 0, 1)),
    ("int", of("long", "time-micros"), dt.time, 1, dt.time(0, 0, 0, 1)),
    ("string", of("string", "uuid"), UUID, str(NUMBER), NUMBER),
    ("bytes", of("string", "uuid"), UUID, str(NUMBER).encode(), NUMBER),
    ("bytes", decimal(4, 2), Decimal, signed(-150), Decimal("-1.50")),
    ("string", decimal(4, 2), Decimal, "\x01", Decimal("0.01")),
    (
        {"type": "fixed", "name": "F", "size": 2},
        fixed(2, "decimal", precision=4),
        Decimal,
        b"\xff\xff",
        Decimal(-1),
    ),
    ({"type": "fixed", "name": "F", "size": 16}, fixed(16, "uuid"), UUID, NUMBER.bytes, NUMBER),
]
PLAIN = {"long": int, "int": int, "string": str, "bytes": bytes}


@PLACES
@pytest.mark.parametrize(("without", "with_one", "kind", "wire", "wanted"), GAINED)
def test_a_field_may_gain_or_lose_a_logical_type(
    without: Any, with_one: Any, kind: Any, wire: Any, wanted: Any, place: str
) -> None:
    gained = Avro(kind_of(kind, place), row(with_one, place))
    assert read(without, wire, gained, place) == wanted
    base = without if isinstance(without, str) else "bytes"
    if without == (with_one["type"] if isinstance(without, str) else without):
        lost = Avro(kind_of(PLAIN[base], place), row(without, place))
        assert read(with_one, wire, lost, place) == wire
    if (
        kind in (Zoned, dt.date, UUID)
        and with_one
        in (
            of("long", "timestamp-micros"),
            of("int", "date"),
            of("string", "uuid"),
        )
        and without != "bytes"
    ):
        assert read(without, wire, Avro(kind_of(kind, place)), place) == wanted, "without schema="
    if base in ("long", "string", "bytes") and with_one["type"] == base:
        assert read(with_one, wire, Avro(kind_of(PLAIN[base], place)), place) == wire, "without schema="


def test_a_moment_in_another_unit_and_a_decimal_of_another_scale_are_what_their_writer_meant(
    memory: SchemaRegistry,
) -> None:
    moment = EPOCH + dt.timedelta(seconds=1)
    for wrote, wire in (("timestamp-millis", 1_000), ("timestamp-micros", 10**6), ("timestamp-nanos", 10**9)):
        for reads in ("timestamp-millis", "timestamp-micros", "timestamp-nanos"):
            serde = Avro(kind_of(Zoned), row(of("long", reads)))
            assert read(of("long", wrote), wire, serde) == moment
    serde = Avro(kind_of(Decimal), row(decimal(9, 3)))
    assert read(decimal(4, 1), signed(15), serde) == Decimal("1.5")
    with pytest.raises(DecodeError, match="a timestamp-millis there is a time-micros here"):
        read(of("long", "timestamp-millis"), 1, Avro(kind_of(dt.time), row(of("long", "time-micros"))))


def test_one_type_of_the_writer_may_be_read_as_two() -> None:
    line = {
        "type": "record",
        "name": "Line",
        "fields": [{"name": "at", "type": of("long", "timestamp-micros")}],
    }
    wrote = {
        "type": "record",
        "name": "Row",
        "fields": [
            {"name": "a", "type": line},
            {"name": "b", "type": "Line"},
            {"name": "c", "type": ["null", "Line"]},
        ],
    }
    one, other = msgspec.defstruct("Line", [("at", Zoned)]), msgspec.defstruct("Other", [("at", int)])
    serde = Avro(msgspec.defstruct("Row", [("a", one), ("b", other), ("c", one | None)]))
    found = decoded(serde, wrote, {"a": {"at": 1}, "b": {"at": 2}, "c": {"at": 3}})
    micros = dt.timedelta(microseconds=1)
    assert (found.a.at, found.b.at, found.c.at) == (EPOCH + micros, 2, EPOCH + 3 * micros)


class Node(msgspec.Struct):
    at: Zoned
    next: Node | None = None


def test_what_nests_has_its_logical_types_at_each_depth() -> None:
    wrote = {
        "type": "record",
        "name": "Node",
        "fields": [{"name": "at", "type": "long"}, {"name": "next", "type": ["null", "Node"]}],
    }
    for serde in (Avro(Node), Avro(Node, Avro(Node).schema.text)):
        found = decoded(serde, wrote, {"at": 1, "next": {"at": 2, "next": None}})
        assert [found.at, found.next.at] == [EPOCH + dt.timedelta(microseconds=each) for each in (1, 2)]


# -- Avro's own rules


def resolved(wrote: Any, value: Any, reads: Any, kind: Any = Any) -> Any:
    return decoded(Avro(kind_of(kind), row(reads)), row(wrote), {"x": value}).x


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}


@pytest.mark.parametrize(
    ("wrote", "value", "reads", "wanted"),
    [
        ("int", 7, "long", 7),
        ("int", 7, "float", 7.0),
        ("int", 7, "double", 7.0),
        ("long", 7, "float", 7.0),
        ("long", 7, "double", 7.0),
        ("float", 0.5, "double", 0.5),
        ("string", "é", "bytes", "é".encode()),
        ("bytes", "é".encode(), "string", "é"),
        (["null", "int"], 7, ["null", "double", "int"], 7),
        (["null", "int"], 7, ["null", "double"], 7.0),
        (["string", "bytes"], "a", ["bytes", "string"], "a"),
        (["string", "bytes"], b"a", ["string", "bytes"], b"a"),
        ("string", "a", ["null", "bytes", "string"], "a"),
        ("int", 7, ["double", "string"], 7.0),
        (["int", "string"], 7, "long", 7),
        (ENUM, "B", {**ENUM, "symbols": ["A"], "default": "A"}, "A"),
        (ENUM, "B", {**ENUM, "name": "Other", "aliases": ["E"]}, "B"),
        ({**ENUM, "name": "com.E"}, "B", {**ENUM, "name": "Other", "aliases": ["com.E"]}, "B"),
    ],
)
def test_promotions_unions_and_enums_follow_avros_rules(
    wrote: Any, value: Any, reads: Any, wanted: Any
) -> None:
    found = resolved(wrote, value, reads)
    assert (found, type(found)) == (wanted, type(wanted))


@pytest.mark.parametrize(
    ("wrote", "value", "reads"),
    [
        ("long", 7, "int"),
        ("double", 0.5, "float"),
        ("string", "a", "long"),
        (["int", "string"], "a", "long"),
        (ENUM, "B", {**ENUM, "symbols": ["A"]}),
        ("bytes", b"\xff", "string"),
    ],
)
def test_what_avro_does_not_resolve_is_refused(wrote: Any, value: Any, reads: Any) -> None:
    with pytest.raises(DecodeError):
        resolved(wrote, value, reads)


@pytest.mark.parametrize(
    ("schema", "default", "kind", "wanted"),
    [
        ("bytes", "\u00ff\u0000", bytes, b"\xff\x00"),
        (of("long", "timestamp-millis"), 1, Zoned, EPOCH + dt.timedelta(milliseconds=1)),
        (of("int", "date"), -1, dt.date, dt.date(1969, 12, 31)),
        (decimal(4, 2), "\u0000\u0096", Decimal, Decimal("1.50")),
        (["null", of("int", "date")], None, dt.date | None, None),
        ([of("int", "date"), "null"], 1, dt.date | None, dt.date(1970, 1, 2)),
        ({"type": "array", "items": "bytes"}, ["\u00ff"], list[bytes], [b"\xff"]),
        (
            {"type": "map", "values": of("int", "date")},
            {"a": 1},
            dict[str, dt.date],
            {"a": dt.date(1970, 1, 2)},
        ),
        ("double", 1, float, 1.0),
    ],
)
def test_a_default_is_what_its_type_makes_of_it(schema: Any, default: Any, kind: Any, wanted: Any) -> None:
    serde = Avro(kind_of(kind), row(schema, default=default))
    for _ in range(2):
        found = decoded(serde, {"type": "record", "name": "Row", "fields": []}, {})
        assert (found.x, type(found.x)) == (wanted, type(wanted))


def test_a_logical_type_that_does_not_fit_is_ignored_at_declaration_too() -> None:
    assert Avro(kind_of(bytes), row(decimal(2, 5))).payload(kind_of(bytes)(b"a")) == b"\x02a"
    with pytest.raises(ConfigError):
        Avro(kind_of(str), row(decimal(4, 2)))
