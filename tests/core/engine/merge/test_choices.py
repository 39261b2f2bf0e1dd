"""Choices and position markers: their bytes, and the errors of bytes that are no choice or marker."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.engine.choices import Choice, decode_choice, encode_choice
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.serdes import Text
from holdfast.core.engine.declared.sources import Source, fingerprint
from holdfast.core.engine.merge.merging import LOWEST, canonical, last_key
from holdfast.core.engine.positions import (
    Position,
    decode_position,
    encode_position,
    ordered_start,
    position_format,
)
from holdfast.errors import ChangelogError, ChoicesError

int64 = st.integers(-(1 << 63), (1 << 63) - 1)
count = st.integers(0, (1 << 63) - 1)
offsets = st.lists(st.integers(-1, 1 << 40), min_size=1, max_size=8).map(tuple)
choices = st.builds(Choice, number=count, sources=int64, applied=offsets, tick_ms=st.none() | int64)
MARKER = Position((4, -1), 17, 3, (17, -1), 0, 9, 5, 7)
ORDERED = Position(
    (4, -1), 17, 3, (17, -1), 0, 9, 5, 7, by_event=3, ordered_ms=(12, -1), globals=((4,),), event_ms=12
)


def packed(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)


def test_the_bytes_are_those_of_the_format() -> None:
    assert encode_choice(Choice(number=3, sources=7, applied=(5, -1))) == packed([1, 3, 7, [5, -1], None])
    assert encode_choice(Choice(number=3, sources=7, applied=(5,), tick_ms=9)) == packed([1, 3, 7, [5], 9])
    assert encode_position(MARKER) == packed([[4, -1], 17, 3, 2, [17, -1], 0, 9, 5, 7])


def test_what_says_by_which_times_it_was_merged_has_formats_of_its_own() -> None:
    """A merge by append time alone has the bytes that it had before event times counted."""
    told = (3, 7, (5, -1))
    assert encode_choice(Choice(*told)) == packed([1, 3, 7, [5, -1], None])
    assert encode_choice(Choice(*told, tick_ms=9)) == packed([1, 3, 7, [5, -1], 9])
    assert encode_choice(Choice(*told, globals=((4,),))) == packed([2, 3, 7, [5, -1], None, [[4]]])
    assert encode_choice(Choice(*told, by_event=2)) == packed([3, 3, 7, [5, -1], None, 2])
    assert encode_choice(Choice(*told, tick_ms=9, by_event=3)) == packed([3, 3, 7, [5, -1], 9, 3])
    reading = Choice(*told, globals=((4,),), by_event=1)
    assert encode_choice(reading) == packed([4, 3, 7, [5, -1], None, [[4]], 1])
    assert encode_position(ORDERED) == packed(
        [[4, -1], 17, 3, 7, [17, -1], 0, 9, 5, 7, 3, [12, -1], [[4]], 12, None]
    )


@pytest.mark.parametrize(
    ("choice", "by_event"),
    [
        (Choice(3, 7, (5, -1)), 0),
        (Choice(3, 7, (5, -1), globals=((4,),)), 0),
        (Choice(3, 7, (5, -1), tick_ms=8, by_event=2), 2),
        (Choice(3, 7, (5, -1), globals=((4,), (1, -1)), by_event=3), 3),
    ],
)
def test_choices_come_back_with_what_they_say(choice: Choice, by_event: int) -> None:
    assert decode_choice(encode_choice(choice)) == choice
    assert choice.by_event == by_event


def test_the_last_key_is_of_the_times_that_were_merged_by() -> None:
    assert decode_position(encode_position(ORDERED)) == ORDERED
    assert (MARKER.by_event, MARKER.order_ms) == (0, (17, -1))
    assert (ORDERED.by_event, ORDERED.order_ms) == (3, (12, -1))
    assert last_key(ORDERED) == canonical(12, 0)
    assert (ORDERED.globals, ORDERED.event_ms) == (((4,),), 12)
    bare = msgspec.structs.replace(ORDERED, globals=(), event_ms=None)
    assert (bare.globals, bare.event_ms) == ((), None)


@given(choices)
def test_choices_come_back(choice: Choice) -> None:
    assert decode_choice(encode_choice(choice)) == choice


def test_a_choice_of_two_sources_takes_little() -> None:
    choice = Choice(number=1 << 20, sources=1 << 31, applied=(1 << 40, 1 << 40), tick_ms=1_700_000_000_000)
    assert len(encode_choice(choice)) < 60


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "without a value"),
        (b"", "malformed"),
        (b"\xc1", "malformed"),
        (packed([1, 2]), "malformed"),
        (packed({"number": 1}), "malformed"),
        (packed([1, -1, 7, [5], None]), "malformed"),
        (packed([1, 1, 7, [], None]), "malformed"),
        (packed([1, 1, 7, [0] * 9, None]), "malformed"),
        (packed([1, 1, 7, [-2], None]), "malformed"),
        (packed([1, 1, 7, [5], "now"]), "malformed"),
        (packed([5, 1, 7, [5], None]), "format 5, this version reads 1 to 4: upgrade"),
        (packed([5, "of a later version"]), "format 5, this version reads 1 to 4: upgrade"),
        (packed([3, 1, 7, [5], None]), "malformed"),
        (packed([3, 1, 7, [5], None, 0]), "malformed"),
        (packed([3, 1, 7, [5], None, 256]), "malformed"),
        (packed([4, 1, 7, [5], None, 1]), "malformed"),
        (packed([2, 1, 7, [5], None]), "malformed"),
        (packed([2, 1, 7, [5], None, []]), "malformed"),
        (packed([2, 1, 7, [5], None, [[-2]]]), "malformed"),
        (encode_position(Position((1,), 2, 3)), "malformed"),
    ],
)
def test_bytes_that_are_no_choice_are_refused(value: bytes | None, why: str) -> None:
    with pytest.raises(ChoicesError, match=why):
        decode_choice(value)


@given(st.binary(max_size=40))
def test_no_bytes_give_anything_but_a_choice_or_its_error(value: bytes) -> None:
    for decode, error in ((decode_choice, ChoicesError), (decode_position, ChangelogError)):
        try:
            decode(value)
        except error:
            pass


def test_markers_come_back() -> None:
    assert decode_position(encode_position(MARKER)) == MARKER


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "malformed"),
        (packed([[4], 17, 3]), "malformed"),
        (packed([[4], 17, 3, 2]), "malformed"),
        (packed([[4], 17, 3, 9]), "format 9, this version reads 1 to 8: upgrade"),
        (packed([[4], 17, 3, 7, [17], 0, 9, 5, 7]), "malformed"),
        (packed([[4], 17, 3, 7, [17], 0, 9, 5, 7, 256, [1]]), "malformed"),
        (packed([[4], 17, 3, 7, [17], 0, 9, 5, 7, 1, [1, 2]]), "1 offsets, 1 times"),
        (packed([[4], 17, 3, "2"]), "malformed .format '2'"),
        (packed([[4, 5], 17, 3, 2, [17], 0, 9, 5, 7]), "2 offsets, 1 times"),
        (packed([[4], 17, 3, 2, [17], 1, 9, 5, 7]), "last source 1"),
    ],
)
def test_bytes_that_are_no_vector_marker_are_refused(value: bytes, why: str) -> None:
    with pytest.raises(ChangelogError, match=why):
        decode_position(value)


def test_the_markers_of_the_other_declaration_are_refused() -> None:
    """`source=` and `on=` with one source count the same offsets, and store other positions."""
    plain: Processor[Any, int] = Processor(name="n", source="a", decode=int, fold=lambda *_: None, row=int)
    ordered: Processor[Any, int] = Processor(name="n", on={Source("a", Text()): lambda *_: None}, row=int)
    for one, other, says in ((plain, ordered, "on="), (ordered, plain, "source=")):
        stored = encode_position(position_format(one).start)
        assert position_format(one).decode(stored) == position_format(one).start
        with pytest.raises(ChangelogError, match=f"this one is declared with {says}: raise its version"):
            position_format(other).decode(stored)


def test_records_are_ordered_by_time_then_source() -> None:
    keys = [canonical(at_ms, source) for at_ms in (-1, 0, 1_700_000_000_000) for source in range(8)]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)
    assert keys[0] > LOWEST


def test_at_the_beginning_anything_may_come() -> None:
    start = ordered_start(fingerprint(["a", "b"]), 2, 1)
    assert (start.applied, start.reached_ms, last_key(start), start.choices) == (
        (-1, -1),
        (-1, -1),
        LOWEST,
        0,
    )
    assert last_key(MARKER) == canonical(17, 0)


def test_sources_in_another_order_are_others() -> None:
    assert len({fingerprint(each) for each in (["a", "b"], ["b", "a"], ["ab"], ["a", "b", "c"])}) == 4
