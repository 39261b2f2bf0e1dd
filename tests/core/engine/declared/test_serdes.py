"""What is declared to lie in a topic is what is read from it and written to it."""

from __future__ import annotations

import pickle
from collections import deque
from typing import Any

import msgspec
import pytest

from holdfast.core.engine.declared.serdes import Bytes, Json, Msgpack, Text, decode_all
from holdfast.core.engine.declared.streams import Stream
from holdfast.errors import DecodeError, FoldError


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


def test_none_is_a_tombstone_where_it_is_declared() -> None:
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
