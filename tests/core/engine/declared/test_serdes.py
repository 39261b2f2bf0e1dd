"""A topic is read and written with the serde that is declared for it."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.serdes import Bytes, Json, Msgpack, Serde, Text, decode_all
from holdfast.core.engine.declared.sources import Source
from holdfast.core.engine.declared.streams import Stream
from holdfast.core.engine.state.rows import Rows
from holdfast.core.streams.steps import Map
from holdfast.errors import ConfigError, DecodeError, FoldError
from holdfast.testing import Topology


class Total(msgspec.Struct, frozen=True):
    count: int


class Sum(msgspec.Struct, frozen=True):
    count: int


SERDES = [Json(Total), Msgpack(Total), Bytes(), Text(), Json(Total | None), Json(tuple[int, ...])]


@pytest.mark.parametrize("serde", [Json(Total), Msgpack(Total)], ids=repr)
def test_values_come_back(serde: Json[Total] | Msgpack[Total]) -> None:
    assert serde.decode(serde.encode(Total(3))) == Total(3)


@pytest.mark.parametrize("serde", [Json(Any), Msgpack(Any), Json(object)], ids=repr)
def test_values_of_any_type_come_back(serde: Any) -> None:
    assert serde.decode(serde.encode([1, {"a": None}])) == [1, {"a": None}]


@pytest.mark.parametrize(
    ("serde", "value"),
    [
        (Json(Total), b"{"),
        (Json(Total), b'{"count": "3"}'),
        (Json(str), b'"\xff"'),
        (Json(Any), b"[" * 100_000),
        (Json(Total), None),
        (Msgpack(Total), b"\xc1"),
        (Msgpack(Total), None),
        (Text(), b"\xff"),
    ],
)
def test_bytes_that_hold_no_such_value_are_refused(serde: Any, value: bytes | None) -> None:
    with pytest.raises(DecodeError, match="not "):
        serde.decode(value)


@pytest.mark.parametrize(
    ("serde", "values"),
    [
        (Json(Total), [b'{"count":3}', b'{"count":4}']),
        (Json(Total | None), [b'{"count":3}', None]),
        (Msgpack(int), [b"\x07", b"\x08"]),
        (Bytes(), [b"a", b"", None]),
        (Text(), [b"a", "\u00e9".encode()]),
        (Text(), [b"a", b"", None]),
    ],
)
def test_many_values_come_back_as_each_alone(serde: Any, values: list[bytes | None]) -> None:
    assert [*decode_all(serde, values)] == [*map(serde.decode, values)]


@pytest.mark.parametrize("serde", [Json(Total), Msgpack(Total), Text()], ids=repr)
@pytest.mark.parametrize("bad", [b"\xff", None])
def test_many_values_fail_where_one_does(serde: Any, bad: bytes | None) -> None:
    good = serde.encode("a" if isinstance(serde, Text) else Total(3))
    found = decode_all(serde, [good, bad])
    if bad is None and isinstance(serde, Text):
        assert [*found] == ["a", None]
        return
    with pytest.raises(Exception, match=r"."):
        deque(found, 0)


@pytest.mark.parametrize(
    ("serde", "value"),
    [
        (Json(Total), Sum(3)),
        (Json(Total), None),
        (Json(Total), Total("3")),  # type: ignore[arg-type]
        (Json(Total | None), 3),
        (Json(tuple[int, ...]), ("a",)),
        (Json(str), "\ud800"),
        (Json(object), object()),
        (Json(float), True),
        (Msgpack(int), 1 << 70),
        (Bytes(), "text"),
        (Text(), b"bytes"),
        (Text(), "\ud800"),
    ],
)
def test_values_of_another_type_are_not_written(serde: Any, value: Any) -> None:
    with pytest.raises(FoldError, match="cannot be written as"):
        serde.encode(value)


def test_none_makes_a_tombstone_where_it_is_declared() -> None:
    maybe = Json(Total | None)
    assert maybe.encode(None) is None
    assert maybe.decode(None) is None
    assert Bytes().encode(None) is None
    assert Bytes().decode(b"x") == b"x"
    assert Text().decode(None) is None


def test_equal_values_give_equal_bytes() -> None:
    serde: Json[Any] = Json(dict[str, int])
    assert serde.encode({"b": 1, "a": 2}) == serde.encode({"a": 2, "b": 1})


@pytest.mark.parametrize("serde", SERDES, ids=repr)
def test_they_can_be_sent_to_another_process(serde: Any) -> None:
    assert repr(pickle.loads(pickle.dumps(serde))) == repr(serde)


def test_a_stream_is_its_topic_s_name() -> None:
    stream = pickle.loads(pickle.dumps(Stream("totals", Json(Total), key=Bytes())))
    assert stream in {"totals"}
    emit = stream.emit(b"k", Total(1), headers=(("h", b"v"),), partition=2)
    assert (type(emit.topic), emit.key, emit.headers, emit.partition) == (str, b"k", (("h", b"v"),), 2)


class Line(pydantic.BaseModel, frozen=True):
    sku: str
    price: Decimal
    at: datetime
    tags: dict[str, int] = {}


class Priced(TypedDict):
    sku: str
    cents: int


class Nested(TypedDict):
    lines: list[Priced]


LINE = Line(sku="a", price=Decimal("1407374883553.27"), at=datetime(2026, 1, 1), tags={"b": 1, "a": 2})
TYPED: list[Callable[[Any], Serde[Any]]] = [Json, Msgpack]


@pytest.mark.parametrize("typed", TYPED)
def test_a_pydantic_model_is_read_back_as_it_was_written(typed: Callable[[Any], Serde[Any]]) -> None:
    serde = typed(Line)
    encoded = serde.encode(LINE)
    assert serde.decode(encoded) == LINE
    swapped = LINE.model_copy(update={"tags": {"a": 2, "b": 1}})
    assert serde.encode(swapped) == encoded, "equal values have the same bytes"
    assert typed(Line | None).decode(None) is None


@pytest.mark.parametrize("typed", TYPED)
def test_values_that_a_pydantic_model_refuses_are_refused_with_their_paths(
    typed: Callable[[Any], Serde[Any]],
) -> None:
    serde, plain = typed(Line), typed(dict)
    with pytest.raises(DecodeError, match=r"not \w+\(Line\): price: Input should be a valid decimal; at: "):
        serde.decode(plain.encode({"sku": "a", "price": "x"}))
    with pytest.raises(DecodeError, match="the record has no value"):
        serde.decode(None)
    with pytest.raises(FoldError, match="it is of type dict"):
        serde.encode({"sku": "a"})
    with pytest.raises(FoldError, match="cannot be written as"):
        serde.encode(Line.model_construct(sku=7, price=Decimal(1), at=datetime(2026, 1, 1)))


@pytest.mark.parametrize("typed", TYPED)
def test_a_typed_dict_is_written_as_declared_at_any_depth(typed: Callable[[Any], Serde[Any]]) -> None:
    serde = typed(Nested)
    value = {"lines": [{"sku": "a", "cents": 1}]}
    assert serde.decode(serde.encode(value)) == value
    for wrong in (
        {"lines": [{"sku": "a"}]},
        {"lines": [{"sku": "a", "cents": 1, "note": "x"}]},
        {"lines": [], "more": 1},
        {"lines": [{"sku": "a", "cents": "1"}]},
    ):
        with pytest.raises(FoldError, match=r"cannot be written as \w+\(Nested\)"):
            serde.encode(wrong)


@pytest.mark.parametrize("typed", TYPED)
@pytest.mark.parametrize(
    ("of", "cure"),
    [
        (list[Line], r"make the outer type a model too, such as pydantic.RootModel\[list\[Line\]\]"),
        (dict[str, Line], "make the outer type a model too"),
        (dict[str, complex], "complex has no form that can be read back"),
    ],
)
def test_a_type_of_which_no_record_could_be_read_is_refused_when_declared(
    typed: Callable[[Any], Serde[Any]], of: Any, cure: str
) -> None:
    with pytest.raises(ConfigError, match=cure):
        typed(of)


def test_steps_emit_models_and_typed_dicts() -> None:
    def doubled(line: Line) -> Line:
        return line.model_copy(update={"price": 2 * line.price})

    def cheaper(line: Line) -> Priced:
        return {"sku": line.sku, "cents": int(line.price * 50)}

    lines = Source("lines", Json(Line))
    steps = [
        Map(name="doubled", source=lines, each=doubled, to=Stream("double", Json(Line))),
        Map(name="cheaper", source=lines, each=cheaper, to=Stream("cheap", Json(Priced))),
    ]
    with Topology(steps) as shop:
        shop.pipe("lines", Json(Line).encode(LINE.model_copy(update={"price": Decimal("1.10")})))
        (double,), (cheap,) = shop.read("double"), shop.read("cheap")
        assert Json(Line).decode(double.value).price == Decimal("2.20")
        assert cheap.value == b'{"cents":55,"sku":"a"}'


def test_a_pydantic_row_is_refused_by_its_name_with_two_cures() -> None:
    def keep(rows: Rows[Any], event: bytes, at_ms: int) -> None: ...

    with pytest.raises(ConfigError, match=r"Line is a pydantic model.*msgspec.Struct.*model_dump_json"):
        Processor(name="lines", source="lines", decode=bytes, fold=keep, row=Line)
