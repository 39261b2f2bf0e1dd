"""Keys whose hashes were chosen to be equal are refused before a set or dict is made of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from itertools import count, islice
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Avro, Json, JsonSchema, Msgpack
from holdfast.core.engine.declared.serdes import decode_all
from holdfast.core.untrusted.equal_hashes import LIMIT_EQUAL, keys_of
from holdfast.core.untrusted.msgpack_pairs import Pairs, read_msgpack
from holdfast.errors import DecodeError, FoldError
from holdfast.schemas.registry import SchemaText

MODULUS = (1 << 61) - 1
MANY = 10 * LIMIT_EQUAL
WHY = "have one hash"


class Spot(msgspec.Struct, frozen=True):
    x: int
    y: int


class Pair(msgspec.Struct, frozen=True, array_like=True):
    x: int
    y: int


class Basket(msgspec.Struct):
    name: str
    spots: list[dict[str, frozenset[int]]]


def equal_pairs(number: int) -> list[tuple[int, int]]:
    """Return pairs of numbers of 64 bits that have one hash, by CPython's hash of tuples turned round."""
    first, second, start, mask = (
        11400714785074694791,
        14029467366897019727,
        2870177450012600261,
        (1 << 64) - 1,
    )

    def turned(value: int, bits: int) -> int:
        return (value << bits | value >> (64 - bits)) & mask

    def found() -> Iterator[tuple[int, int]]:
        wanted = turned((12345 * pow(first, -1, 1 << 64)) & mask, 33)
        for x in count(1):
            before = turned((start + x * second) & mask, 31) * first & mask
            lane = (wanted - before) * pow(second, -1, 1 << 64) & mask
            y = lane - (1 << 64) if lane >> 63 else lane
            if abs(y) < MODULUS and y != -1:
                yield x, y

    pairs = list(islice(found(), number))
    assert len(set(map(hash, pairs))) == 1
    return pairs


CHOSEN: dict[str, tuple[Any, Any]] = {
    "set of numbers": (set[int], [at * MODULUS for at in range(MANY)]),
    "frozenset": (frozenset[int], [at * MODULUS for at in range(MANY)]),
    "set of numbers or text": (set[int | str], ["a", *(at * MODULUS for at in range(MANY))]),
    "set of anything": (set[Any], [at * MODULUS for at in range(MANY)]),
    "bare set": (set, [at * MODULUS for at in range(MANY)]),
    "numbers as keys": (dict[int, int], {str(at * MODULUS): 1 for at in range(MANY)}),
    "UUIDs": (set[UUID], [str(UUID(int=at * MODULUS)) for at in range(MANY)]),
    "UUIDs as keys": (dict[UUID, int], {str(UUID(int=at * MODULUS)): 1 for at in range(MANY)}),
    "decimals": (set[Decimal], [str(at * MODULUS) for at in range(MANY)]),
    "decimals as keys": (dict[Decimal, int], {str(at * MODULUS): 1 for at in range(MANY)}),
    "pairs": (set[tuple[int, int]], [list(each) for each in equal_pairs(MANY)]),
    "lists of any length": (frozenset[tuple[int, ...]], [list(each) for each in equal_pairs(MANY)]),
    "Structs": (set[Spot], [{"x": x, "y": y} for x, y in equal_pairs(MANY)]),
    "within others": (Basket, {"name": "a", "spots": [{"k": [at * MODULUS for at in range(MANY)]}]}),
    "sets of sets": (set[frozenset[int]], [[1], [at * MODULUS for at in range(MANY)]]),
    "a last one that does not fit": (set[int], [*(at * MODULUS for at in range(MANY)), "a"]),
}


@pytest.mark.parametrize(("of", "value"), CHOSEN.values(), ids=CHOSEN)
def test_keys_of_one_hash_are_refused(of: Any, value: Any) -> None:
    data = json.dumps(value).encode()
    with pytest.raises(DecodeError, match=WHY):
        Json(of).decode(data)
    with pytest.raises(msgspec.ValidationError, match=WHY):
        list(decode_all(Json(of), [data]))
    read = JsonSchema(of, {}).reader(SchemaText("JSON", "{}"), None)  # type: ignore[arg-type]  # never asked
    with pytest.raises(DecodeError, match=WHY):
        read(data)


@pytest.mark.parametrize("of", [dict[tuple[int, int], int], dict, Any, dict[Pair, int], dict[str, Any]])
def test_keys_of_message_pack_are_refused(of: Any) -> None:
    data = msgspec.msgpack.encode(dict.fromkeys(equal_pairs(MANY), 1))
    if of == dict[str, Any]:
        data = msgspec.msgpack.encode({"k": dict.fromkeys(equal_pairs(MANY), 1)})
    with pytest.raises(DecodeError, match=WHY):
        Msgpack(of).decode(data)


def test_ids_in_message_pack_are_refused_as_text_and_as_bytes() -> None:
    ids = [UUID(int=at * MODULUS) for at in range(MANY)]
    for form in (str, lambda each: each.bytes):
        with pytest.raises(DecodeError, match=WHY):
            Msgpack(set[UUID]).decode(msgspec.msgpack.encode([form(each) for each in ids]))


def test_keys_in_avro_are_refused() -> None:
    serde = Avro(Ids)
    with pytest.raises(DecodeError, match=WHY):
        serde.reader(serde.schema, None)(  # type: ignore[arg-type]  # never asked
            serde.payload(Listed([UUID(int=at * MODULUS) for at in range(MANY)]))  # type: ignore[arg-type]
        )


class Ids(msgspec.Struct):
    ids: set[UUID]


class Listed(msgspec.Struct):
    ids: list[UUID]


def test_a_value_that_could_not_be_read_is_not_written() -> None:
    with pytest.raises(FoldError, match=WHY):
        Json(set[int]).encode({at * MODULUS for at in range(MANY)})


class Both(msgspec.Struct):
    chosen: set[int | float]
    seen: list[int]


HONEST: dict[str, tuple[Any, Any]] = {
    "sets and lists": (
        Both,
        Both(
            {*range(-5_000, 5_000), *(2.0**at for at in range(-1074, 1024))},
            [7] * 5_000 + [MODULUS + 7] * 5_000,
        ),
    ),
    "moments": (
        set[datetime],
        {datetime(2026, 1, 1, at // 60 % 24, at % 60, tzinfo=UTC) for at in range(1_440)},
    ),
    "numbers as keys": (dict[int, str], {at: str(at) for at in range(3_000)}),
    "UUIDs as keys": (dict[UUID, int], {UUID(int=at): at for at in range(3_000)}),
    "decimals": (set[Decimal], {Decimal(at) / 100 for at in range(3_000)}),
}


@pytest.mark.parametrize(("of", "value"), HONEST.values(), ids=HONEST)
def test_what_honest_writers_send_is_read(of: Any, value: Any) -> None:
    assert Json(of).decode(msgspec.json.encode(value)) == value
    assert Msgpack(of).decode(msgspec.msgpack.encode(value)) == value


def test_few_keys_of_one_hash_are_read() -> None:
    value = {at * MODULUS for at in range(LIMIT_EQUAL)}
    assert Json(set[int]).decode(json.dumps(sorted(value)).encode()) == value
    with pytest.raises(DecodeError, match=WHY):
        Json(set[int]).decode(json.dumps([*value, -MODULUS]).encode())


@pytest.mark.parametrize("of", [int, list[int], dict[str, int], set[str], set[float | bytes], dict[str, Any]])
def test_types_whose_hashes_cannot_be_chosen_are_decoded_as_before(of: Any) -> None:
    assert isinstance(getattr(Json(of)._decode, "__self__", None), msgspec.json.Decoder)


def test_the_types_of_keys_are_found_at_any_depth() -> None:
    found = keys_of(Basket)
    assert found is not None
    assert found.of_sets == (int,)
    assert keys_of(list[Spot]) is None


SIMPLE: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(allow_nan=False),
    st.text(max_size=300),
    st.binary(max_size=300),
    st.datetimes(timezones=st.just(UTC)),
)


@given(st.recursive(SIMPLE, lambda inner: st.lists(inner, max_size=40) | st.dictionaries(st.text(), inner)))
def test_message_pack_is_read_as_msgspec_reads_it(value: Any) -> None:
    data = msgspec.msgpack.encode(value)
    assert plain(read_msgpack(data)) == msgspec.msgpack.decode(data)
    with pytest.raises(msgspec.DecodeError):
        read_msgpack(data[:-1])
    with pytest.raises(msgspec.DecodeError):
        read_msgpack(data + b"\xc0")


@pytest.mark.parametrize("count", [15, 16, 255, 256, 65_535, 65_536])
def test_message_pack_of_each_length_is_read(count: int) -> None:
    for value in ("a" * count, b"a" * count, [1] * count, {str(at): at for at in range(count)}):
        data = msgspec.msgpack.encode(value)
        assert plain(read_msgpack(data)) == value
    extension = msgspec.msgpack.Ext(5, b"a" * count)
    assert read_msgpack(msgspec.msgpack.encode(extension)) == extension


def plain(value: Any) -> Any:
    if isinstance(value, Pairs):
        return {key: plain(each) for key, each in value}
    return list(map(plain, value)) if isinstance(value, list) else value
