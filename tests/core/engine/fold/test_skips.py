"""Skips in their written form: read back unchanged, merged, and bytes that no tool of ours writes are not
believed.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.core.engine.fold.skips import (
    LIMIT_OFFSETS,
    Skip,
    Skips,
    behind,
    decode_skip,
    encode_skip,
    kept,
    merged,
)
from holdfast.errors import DecodeError

MADE = Skip(
    topic="orders",
    partition=3,
    first=10,
    last=14,
    made=True,
    error="TooLargeError",
    reason="bomb",
    by="http://a",
    at_ms=5,
)
RANGES = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 9)).map(lambda each: (each[0], sum(each))), max_size=8
)


def test_a_skip_is_read_as_it_was_written() -> None:
    assert decode_skip(MADE.key, encode_skip(MADE)) == MADE


def test_a_skip_of_an_earlier_release_is_read_and_is_of_whatever_topic_has_the_name() -> None:
    earlier = (
        b'{"topic":"orders","partition":3,"first":10,"last":14,"made":true,"error":"TooLargeError",'
        b'"reason":"bomb","by":"http://a","at_ms":5,"allowed":false}'
    )
    assert decode_skip(MADE.key, earlier) == MADE
    assert not MADE.is_of_another("cluster", "some id")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (MADE.key, b""),
        (MADE.key, b"\xff"),
        (MADE.key, b"{}"),
        (MADE.key, b"[" * 100_000),
        (b"orders/3/15", encode_skip(MADE)),
        (None, encode_skip(MADE)),
        *(
            (wrong.key, encode_skip(wrong))
            for wrong in (
                Skip(topic="orders", partition=3, first=15, last=14, made=True),
                Skip(topic="orders", partition=-1, first=1, last=2, made=True),
                Skip(topic="orders", partition=3, first=-1, last=2, made=True),
                Skip(topic="orders", partition=3, first=0, last=LIMIT_OFFSETS, made=True),
            )
        ),
    ],
)
def test_a_record_that_is_no_skip_is_refused(key: bytes | None, value: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_skip(key, value)


def test_a_made_skip_stays_made_and_a_wish_is_found_by_any_offset_of_it() -> None:
    skips, asked = Skips(), Skip(topic="orders", partition=3, first=12, last=14, made=False)
    skips.add(asked)
    assert skips.made("orders", 3) == ()
    assert skips.asked("orders", 3, 10, 12) == asked
    assert skips.asked("orders", 3, 15, 20) is None
    assert skips.asked("orders", 2, 10, 20) is None
    skips.add(MADE)
    skips.add(asked)
    assert skips.of_topic("orders") == {3: ((10, 14),)}
    assert skips.asked("orders", 3, 10, 14) is None


@pytest.mark.long
@given(RANGES, st.integers(0, 80), st.integers(0, 30))
def test_ranges_agree_with_the_set_of_their_offsets(
    ranges: list[tuple[int, int]], first: int, more: int
) -> None:
    offsets, one = {offset for low, high in ranges for offset in range(low, high + 1)}, merged(ranges)
    assert {offset for low, high in one for offset in range(low, high + 1)} == offsets
    assert all(high + 1 < low for (_, high), (low, _) in pairwise(one))
    assert behind(one, first) == next(offset for offset in range(first, 200) if offset not in offsets)
    parts = [offset for low, end in kept(one, first, first + more) for offset in range(low, end)]
    assert parts == [offset for offset in range(first, first + more) if offset not in offsets]


def test_a_wish_that_comes_late_leaves_the_made_skip_also_once_its_topic_is_compacted() -> None:
    wish = replace(MADE, made=False, by="bob@desk")
    for log in ([MADE, wish], [wish, MADE], [wish, MADE, wish]):
        compacted = {each.key: encode_skip(each) for each in log}
        for found in (log, [decode_skip(key, value) for key, value in compacted.items()]):
            skips = Skips(found)
            assert skips.all() == [MADE], log
            assert skips.made(MADE.topic, MADE.partition) == ((MADE.first, MADE.last),)
            assert skips.asked(MADE.topic, MADE.partition, MADE.first, MADE.last) is None


def test_a_record_that_may_be_refused_is_no_skip_and_is_kept_with_both() -> None:
    allowed = replace(MADE, first=14, last=14, made=False, allowed=True)
    asked = replace(MADE, made=False)
    assert len({MADE.key, asked.key, allowed.key}) == 3, "compaction keeps each"
    assert decode_skip(allowed.key, encode_skip(allowed)) == allowed
    skips = Skips([allowed])
    assert skips.made("orders", 3) == ()
    assert skips.asked("orders", 3, 14, 14) is None, "an unreadable batch there is another matter"
    assert [skips.allows("orders", 3, at) for at in (13, 14, 15)] == [False, True, False]
    assert not skips.allows("orders", 2, 14)
    skips.add(MADE)
    assert (skips.made("orders", 3), skips.allows("orders", 3, 14), len(skips.all())) == (
        ((10, 14),),
        True,
        2,
    )


@pytest.mark.parametrize("wrong", [{"first": 13}, {"made": True}])
def test_an_allowance_of_several_records_or_of_a_made_skip_is_refused(wrong: dict[str, int]) -> None:
    allowed = replace(MADE, **{"first": 14, "made": False, "allowed": True, **wrong})
    with pytest.raises(DecodeError):
        decode_skip(allowed.key, encode_skip(allowed))
