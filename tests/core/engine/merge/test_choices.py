"""Choices and vector markers: their bytes, and what is said of bytes that are none."""

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
    VectorMarker,
    beginning,
    canonical,
    decode_choice,
    decode_vector_marker,
    encode_choice,
    encode_vector_marker,
)
from holdfast.core.engine.state.codec import Marker, decode_marker, encode_marker
from holdfast.errors import ChangelogError, ChoicesError

int64 = st.integers(-(1 << 63), (1 << 63) - 1)
count = st.integers(0, (1 << 63) - 1)
offsets = st.lists(st.integers(-1, 1 << 40), min_size=1, max_size=8).map(tuple)
choices = st.builds(Choice, number=count, sources=int64, applied=offsets, tick_ms=st.none() | int64)
MARKER = VectorMarker((4, -1), 17, 3, 2, (17, -1), 0, 9, 5, 7)


def packed(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)


def test_the_bytes_are_those_of_the_format() -> None:
    assert encode_choice(Choice(number=3, sources=7, applied=(5, -1))) == packed([1, 3, 7, [5, -1], None])
    assert encode_choice(Choice(number=3, sources=7, applied=(5,), tick_ms=9)) == packed([1, 3, 7, [5], 9])
    assert encode_vector_marker(MARKER) == packed([[4, -1], 17, 3, 2, [17, -1], 0, 9, 5, 7])


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
        (packed([3, 1, 7, [5], None]), "format 3, this version reads 1 and 2: upgrade"),
        (packed([3, "of a later version"]), "format 3, this version reads 1 and 2: upgrade"),
        (packed([2, 1, 7, [5], None]), "malformed"),
        (packed([2, 1, 7, [5], None, []]), "malformed"),
        (packed([2, 1, 7, [5], None, [[-2]]]), "malformed"),
        (encode_marker(Marker(1, 2, 3)), "malformed"),
    ],
)
def test_what_is_no_choice_is_refused(value: bytes | None, why: str) -> None:
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
        (packed([[4], 17, 3, 9]), "format 9, this version reads 2, 3, 5 and 6 here: upgrade"),
        (packed([[4], 17, 3, "2"]), "format '2'"),
        (packed([[4, 5], 17, 3, 2, [17], 0, 9, 5, 7]), "2 offsets, 1 times"),
        (packed([[4], 17, 3, 2, [17], 1, 9, 5, 7]), "last source 1"),
        (encode_marker(Marker(1, 2, 3)), "one source, this one is declared with on=: raise its version"),
    ],
)
def test_what_is_no_vector_marker_is_refused(value: bytes, why: str) -> None:
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
