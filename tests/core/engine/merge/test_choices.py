"""Choices and vector markers: their bytes, and the errors of bytes that are no choice or marker."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.engine.declared.sources import fingerprint
from holdfast.core.engine.merge.choices import (
    LOWEST,
    Choice,
    OrderedMarker,
    VectorMarker,
    beginning,
    by_event_of,
    canonical,
    choice_of,
    decode_choice,
    decode_vector_marker,
    encode_choice,
    encode_vector_marker,
    event_ms_of,
    globals_of,
    ordered_of,
)
from holdfast.core.engine.state.codec import Marker, decode_marker, encode_marker
from holdfast.errors import ChangelogError, ChoicesError

int64 = st.integers(-(1 << 63), (1 << 63) - 1)
count = st.integers(0, (1 << 63) - 1)
offsets = st.lists(st.integers(-1, 1 << 40), min_size=1, max_size=8).map(tuple)
choices = st.builds(Choice, number=count, sources=int64, applied=offsets, tick_ms=st.none() | int64)
MARKER = VectorMarker((4, -1), 17, 3, 2, (17, -1), 0, 9, 5, 7)
ORDERED = OrderedMarker(
    (4, -1), 17, 3, 7, (17, -1), 0, 9, 5, 7, by_event=3, ordered_ms=(12, -1), globals=((4,),), event_ms=12
)


def packed(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)


def test_the_bytes_are_those_of_the_format() -> None:
    assert encode_choice(Choice(number=3, sources=7, applied=(5, -1))) == packed([1, 3, 7, [5, -1], None])
    assert encode_choice(Choice(number=3, sources=7, applied=(5,), tick_ms=9)) == packed([1, 3, 7, [5], 9])
    assert encode_vector_marker(MARKER) == packed([[4, -1], 17, 3, 2, [17, -1], 0, 9, 5, 7])


def test_what_says_by_which_times_it_was_merged_has_formats_of_its_own() -> None:
    """A merge by append time alone has the bytes that it had before event times counted."""
    told = (3, 7, (5, -1))
    assert encode_choice(choice_of(*told)) == packed([1, 3, 7, [5, -1], None])
    assert encode_choice(choice_of(*told, tick_ms=9)) == packed([1, 3, 7, [5, -1], 9])
    assert encode_choice(choice_of(*told, vectors=((4,),))) == packed([2, 3, 7, [5, -1], None, [[4]]])
    assert encode_choice(choice_of(*told, by_event=2)) == packed([3, 3, 7, [5, -1], None, 2])
    assert encode_choice(choice_of(*told, tick_ms=9, by_event=3)) == packed([3, 3, 7, [5, -1], 9, 3])
    reading = choice_of(*told, vectors=((4,),), by_event=1)
    assert encode_choice(reading) == packed([4, 3, 7, [5, -1], None, [[4]], 1])
    assert encode_vector_marker(ORDERED) == packed(
        [[4, -1], 17, 3, 7, [17, -1], 0, 9, 5, 7, 3, [12, -1], [[4]], 12, None]
    )


@pytest.mark.parametrize(
    ("choice", "by_event"),
    [
        (choice_of(3, 7, (5, -1)), 0),
        (choice_of(3, 7, (5, -1), vectors=((4,),)), 0),
        (choice_of(3, 7, (5, -1), tick_ms=8, by_event=2), 2),
        (choice_of(3, 7, (5, -1), vectors=((4,), (1, -1)), by_event=3), 3),
    ],
)
def test_choices_come_back_with_what_they_say(choice: Choice, by_event: int) -> None:
    assert decode_choice(encode_choice(choice)) == choice
    assert by_event_of(choice) == by_event


def test_the_last_key_is_of_the_times_that_were_merged_by() -> None:
    assert decode_vector_marker(encode_vector_marker(ORDERED)) == ORDERED
    assert (by_event_of(MARKER), ordered_of(MARKER)) == (0, (17, -1))
    assert (by_event_of(ORDERED), ordered_of(ORDERED)) == (3, (12, -1))
    assert ORDERED.last_key == canonical(12, 0)
    assert (globals_of(ORDERED), event_ms_of(ORDERED)) == (((4,),), 12)
    bare = msgspec.structs.replace(ORDERED, globals=(), event_ms=None)
    assert (globals_of(bare), event_ms_of(bare)) == ((), None)


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
        (encode_marker(Marker(1, 2, 3)), "malformed"),
    ],
)
def test_bytes_that_are_no_choice_are_refused(value: bytes | None, why: str) -> None:
    with pytest.raises(ChoicesError, match=why):
        decode_choice(value)


@given(st.binary(max_size=40))
def test_no_bytes_give_anything_but_a_choice_or_its_error(value: bytes) -> None:
    for decode, error in ((decode_choice, ChoicesError), (decode_vector_marker, ChangelogError)):
        try:
            decode(value)
        except error:
            pass


def test_markers_come_back() -> None:
    assert decode_vector_marker(encode_vector_marker(MARKER)) == MARKER


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "malformed"),
        (packed([[4], 17, 3]), "format None"),
        (packed([[4], 17, 3, 2]), "malformed"),
        (packed([[4], 17, 3, 9]), "format 9, this version reads 2, 3 and 5 to 7 here: upgrade"),
        (packed([[4], 17, 3, 7, [17], 0, 9, 5, 7]), "malformed"),
        (packed([[4], 17, 3, 7, [17], 0, 9, 5, 7, 256, [1]]), "malformed"),
        (packed([[4], 17, 3, 7, [17], 0, 9, 5, 7, 1, [1, 2]]), "1 offsets, 1 times"),
        (packed([[4], 17, 3, "2"]), "format '2'"),
        (packed([[4, 5], 17, 3, 2, [17], 0, 9, 5, 7]), "2 offsets, 1 times"),
        (packed([[4], 17, 3, 2, [17], 1, 9, 5, 7]), "last source 1"),
        (encode_marker(Marker(1, 2, 3)), "one source, this one is declared with on=: raise its version"),
    ],
)
def test_bytes_that_are_no_vector_marker_are_refused(value: bytes, why: str) -> None:
    with pytest.raises(ChangelogError, match=why):
        decode_vector_marker(value)


def test_a_processor_of_one_source_does_not_take_a_vector_for_its_marker() -> None:
    with pytest.raises(ChangelogError):
        decode_marker(encode_vector_marker(MARKER))


def test_records_are_ordered_by_time_then_source() -> None:
    keys = [canonical(at_ms, source) for at_ms in (-1, 0, 1_700_000_000_000) for source in range(8)]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)
    assert keys[0] > LOWEST


def test_at_the_beginning_anything_may_come() -> None:
    start = beginning(fingerprint(["a", "b"]), 2, 1)
    assert (start.applied, start.reached_ms, start.last_key, start.choices) == ((-1, -1), (-1, -1), LOWEST, 0)
    assert MARKER.last_key == canonical(17, 0)


def test_sources_in_another_order_are_others() -> None:
    assert len({fingerprint(each) for each in (["a", "b"], ["b", "a"], ["ab"], ["a", "b", "c"])}) == 4
