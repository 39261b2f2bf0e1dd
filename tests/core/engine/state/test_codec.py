"""Stored bytes: keys, rows, timers, the position marker, digests."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.claims import claim_rows, compat
from holdfast.core.engine.positions import Position, decode_position, encode_position
from holdfast.core.engine.state.codec import (
    APPLIED,
    META,
    RowCodec,
    combine_digests,
    decode_due,
    digest,
    encode_due,
    row_key,
    text_key,
    tick_key,
    wake_key,
)
from holdfast.core.engine.state.row_types import is_plain, why_unfit
from holdfast.core.groups import membership
from holdfast.core.outbox import progress
from holdfast.core.producers import ledger, registry
from holdfast.errors import ChangelogError, FoldError

text = st.text()
int64 = st.integers(-(1 << 63), (1 << 63) - 1)


class Row(msgspec.Struct, frozen=True):
    count: int = 0
    names: frozenset[str] = frozenset()
    by_name: dict[str, float] = {}


rows = st.builds(
    Row,
    count=int64,
    names=st.frozensets(text),
    by_name=st.dictionaries(text, st.floats() | st.integers(-9, 9)),
)
CODEC: RowCodec[Row] = RowCodec(Row)


# -- keys


@given(text)
def test_keys_come_back(key: str) -> None:
    assert text_key(row_key(key)) == text_key(wake_key(key)) == text_key(tick_key(key)) == key
    assert not row_key(key).startswith(META)


@given(text, text)
def test_stored_keys_sort_as_code_points_do_and_never_meet(one: str, other: str) -> None:
    assert (row_key(one) < row_key(other)) == (one < other)
    assert wake_key(one) < row_key(other)
    assert wake_key(one) > APPLIED


@given(int64)
def test_due_times_come_back(at_ms: int) -> None:
    assert decode_due(encode_due(at_ms)) == at_ms


# -- rows


@given(rows)
def test_a_row_reads_back_as_its_canonical_form_and_that_form_stays(row: Row) -> None:
    read = CODEC.canonical(row)
    assert CODEC.encode(CODEC.decode(CODEC.encode(read))) == CODEC.encode(read)
    assert repr(CODEC.decode(CODEC.encode(row))) == repr(read)
    assert CODEC.size([read]) == len(CODEC.encode(read))


@given(rows)
def test_equal_rows_give_equal_bytes_whatever_order_they_were_made_in(row: Row) -> None:
    turned = Row(row.count, frozenset(sorted(row.names, reverse=True)), dict(reversed(row.by_name.items())))
    assert CODEC.encode(turned) == CODEC.encode(row)


def test_a_row_of_another_format_or_type_is_never_misread() -> None:
    with pytest.raises(ChangelogError, match="row of format 02, this version reads 01"):
        CODEC.decode(b"\x02" + CODEC.encode(Row())[1:])
    with pytest.raises(ChangelogError, match="row of format none"):
        CODEC.decode(b"")
    for value in (b"", b"\xc1", CODEC.encode(Row())[1:-1], msgspec.msgpack.encode({"count": "x"})):
        with pytest.raises(ChangelogError, match="raise the processor's version"):
            CODEC.decode(b"\x01" + value)


@given(st.binary(max_size=30))
def test_hostile_bytes_are_a_row_or_a_typed_error(value: bytes) -> None:
    try:
        CODEC.decode(value)
    except ChangelogError:
        pass


def test_a_row_that_could_not_be_read_again_is_refused_when_written() -> None:
    with pytest.raises(FoldError, match="does not fit its declared type"):
        CODEC.canonical(Row("three"))  # type: ignore[arg-type]


# -- types of rows


class Colour(enum.Enum):
    RED = "red"


class Size(enum.StrEnum):
    SMALL = "small"


class Point(NamedTuple):
    x: int
    name: str


@dataclasses.dataclass(frozen=True)
class Tree:
    value: int
    left: Tree | None = None


class Leaf(msgspec.Struct, frozen=True, tag=True):
    colour: Colour


class Mean(msgspec.Struct, frozen=True, tag=True):
    of: float


class Loose(msgspec.Struct):
    n: int = 0


class TaggedLoose(msgspec.Struct, tag=True):
    n: int = 0


@dataclasses.dataclass
class LooseData:
    n: int = 0


@pytest.mark.parametrize(
    "kind", [int, str, bytes, Colour, Tree, Leaf, tuple[int, ...], tuple[int, Leaf | None], bool]
)
def test_types_with_one_form_are_plain(kind: Any) -> None:
    assert is_plain(kind)
    assert why_unfit(kind) is None


@pytest.mark.parametrize(
    "row",
    [
        claim_rows.GuardedRow,
        compat.CompatClaim,
        membership.GroupsRow,
        registry.Registration,
        ledger.BookRow,
        progress.Reached,
    ],
)
def test_rows_of_holdfasts_own_processors_are_plain(row: Any) -> None:
    """Otherwise each row is written and read back where it is set, which takes a third of the rate."""
    assert is_plain(row)


@pytest.mark.parametrize(
    "kind", [float, Mean, Leaf | Mean, tuple[float, ...], frozenset[int], Row, Point, Size, tuple[Point, ...]]
)
def test_types_that_take_several_forms_are_not_plain(kind: Any) -> None:
    assert not is_plain(kind)
    assert why_unfit(kind) is None or kind is Row  # whose dict can be changed in place


@pytest.mark.parametrize(
    "kind", [Loose, LooseData, list[int], dict[str, int], set[int], bytearray, Any, Leaf | TaggedLoose]
)
def test_rows_that_could_be_changed_in_place_are_unfit(kind: Any) -> None:
    assert "immutable" in str(why_unfit(kind))


def test_none_stands_for_no_row() -> None:
    assert "no row" in str(why_unfit(int | None))


@pytest.mark.parametrize(
    "kind", [complex, object, tuple[complex, ...], "NoSuchName", Leaf | Point | dict[str, int], 5]
)
def test_types_that_cannot_be_decoded_are_unfit(kind: Any) -> None:
    assert why_unfit(kind) is not None


# -- the marker


@given(st.integers(-1, (1 << 63) - 1), int64, st.integers(1, 1 << 31))
def test_the_marker_comes_back(applied: int, stream_ms: int, version: int) -> None:
    marker = Position((applied,), stream_ms, version)
    assert decode_position(encode_position(marker)) == marker


def test_a_marker_of_a_newer_format_says_upgrade() -> None:
    with pytest.raises(ChangelogError, match="upgrade the workers"):
        decode_position(msgspec.msgpack.encode((1, 2, 3, 9)))


@given(st.binary(max_size=20))
def test_foreign_bytes_are_not_a_marker(value: bytes) -> None:
    try:
        decode_position(value)
    except ChangelogError:
        pass


# -- digests

states = st.dictionaries(st.binary(min_size=1, max_size=4), st.binary(max_size=4), max_size=4)


def shown(state: dict[bytes, bytes]) -> str:
    return digest(sorted(state.items()))


@given(states, states)
def test_states_have_equal_digests_exactly_when_they_are_equal(
    one: dict[bytes, bytes], other: dict[bytes, bytes]
) -> None:
    bare, other_bare = (
        {key: value for key, value in each.items() if key[:1] != META} for each in (one, other)
    )
    assert (shown(one) == shown(other)) == (bare == other_bare)


def test_moving_a_byte_from_key_to_value_or_to_the_next_row_changes_the_digest() -> None:
    cut = [{b"\x02ab": b"c"}, {b"\x02a": b"bc"}, {b"\x02a": b"b", b"\x02c": b""}, {b"\x01ab": b"c"}, {}]
    assert len({shown(each) for each in cut}) == len(cut)


def test_a_tables_digest_does_not_depend_on_the_order_of_partitions_but_on_their_numbers() -> None:
    assert combine_digests([(0, "a"), (1, "b")]) == combine_digests([(1, "b"), (0, "a")])
    assert combine_digests([(0, "a"), (1, "b")]) != combine_digests([(0, "b"), (1, "a")])
    assert combine_digests([(0, "a"), (1, "b")]) != combine_digests([(0, "a"), (2, "b")])
    assert combine_digests([(0, "a")]) != combine_digests([(0, "a"), (1, "a")])


def test_a_marker_without_a_format_is_of_the_first() -> None:
    found = decode_position(msgspec.msgpack.encode([5, 10, 1]))
    assert (found.applied, found.stream_ms, found.version, found.sources) == ((5,), 10, 1, 0)
    with pytest.raises(ChangelogError, match="malformed"):
        decode_position(msgspec.msgpack.encode([5, 10]))
