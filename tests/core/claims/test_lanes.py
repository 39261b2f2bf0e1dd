"""Lanes: names, keys and how one pass over a partition serves them all."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.claims.frames import ClaimingPartition, check_id, decode, encode
from holdfast.core.claims.lanes import (
    LIMIT_LANES,
    NEAR,
    ClaimNames,
    is_full,
    lane_finder,
    lane_named,
    lane_of,
    lane_of_key,
    lane_topic,
    lane_topics,
    lowest,
    steer,
)
from holdfast.core.engine.declared.partitioners import murmur2
from holdfast.errors import ConfigError

TOPICS = st.from_regex(r"[a-zA-Z0-9._-]{1,40}", fullmatch=True)
COUNTS = st.integers(2, LIMIT_LANES)


@pytest.mark.long
@given(TOPICS, COUNTS, st.data())
def test_the_name_of_a_lane_says_which_it_is_and_goes_through_a_frame(
    topic: str, lanes: int, data: st.DataObject
) -> None:
    lane = data.draw(st.integers(0, lanes - 1))
    name = lane_topic(topic, lane, lanes)
    check_id("topic", name)
    assert lane_named(name) == (topic, lane, lanes)
    frame = ClaimingPartition(1, "i", "c", "g", name, 0)
    assert decode(encode(frame)) == frame


@given(TOPICS)
def test_no_topic_is_taken_for_a_lane(topic: str) -> None:
    assert lane_named(topic) is None


@pytest.mark.parametrize(
    "name",
    [
        "a~lane-8-of-8",
        "a~lane-0-of-1",
        "a~lane-0-of-257",
        "a~lane-00-of-8",
        "a~lane--1-of-8",
        "~lane-0-of-8",
        "a~lane-1-of-8x",
    ],
)
def test_what_only_looks_like_a_lane_is_none(name: str) -> None:
    assert lane_named(name) is None


@pytest.mark.parametrize(("lane", "lanes"), [(0, 1), (0, LIMIT_LANES + 1), (8, 8), (-1, 8)])
def test_lanes_that_cannot_be_are_refused(lane: int, lanes: int) -> None:
    with pytest.raises(ConfigError):
        lane_topic("orders", lane, lanes)


@pytest.mark.parametrize("partitions", [1, 2, 4, 8, 12, 64])
def test_the_keys_of_one_partition_are_spread_over_all_its_lanes(partitions: int) -> None:
    keys = [
        key
        for key in (b"customer-%d" % number for number in range(200 * partitions * 4))
        if (murmur2(key) & 0x7FFFFFFF) % partitions == 0
    ]
    shares = Counter(lane_of_key(key, 8) for key in keys)
    assert set(shares) == set(range(8))
    assert max(shares.values()) < 2 * len(keys) / 8


def test_the_hash_that_chose_the_partition_would_leave_lanes_empty() -> None:
    """Why the high bits: a check of the test above."""
    hashes = [murmur2(b"customer-%d" % number) & 0x7FFFFFFF for number in range(4_000)]
    assert len({each % 8 for each in hashes if each % 4 == 0}) == 2


@given(st.one_of(st.none(), st.binary(max_size=20)), st.integers(0, 1 << 40), COUNTS)
def test_a_key_stays_in_its_lane_and_messages_without_one_go_round(
    key: bytes | None, offset: int, lanes: int
) -> None:
    lane = lane_of(key, offset, lanes)
    assert 0 <= lane < lanes
    assert lane == lane_finder(lanes)(key, offset)
    if key is None:
        assert lane_of(key, offset + 1, lanes) == (lane + 1) % lanes
    else:
        assert lane_of(key, offset + 1, lanes) == lane


def test_names_without_lanes_are_the_topics_own() -> None:
    whole, split = ClaimNames(0), ClaimNames(2)
    assert whole.all(["a", "b"]) == ("a", "b")
    assert (whole.source("a"), whole.lane("a")) == ("a", None)
    assert split.all(["a"]) == lane_topics("a", 2)
    assert split.sources(split.all(["a", "b"])) == ("a", "b")


def test_the_position_of_a_partition_is_that_of_the_last_of_its_lanes() -> None:
    assert lowest([5, 3, 9]) == 3
    assert lowest([0, 3]) == 0
    assert lowest([5, None]) is None
    assert lowest([]) is None


def test_a_lane_that_has_its_fill_is_let_be_until_half_is_gone() -> None:
    levels, full, seen = [0.2, 0.99, 1.0, 0.8, 0.51, 0.5, 0.9], False, []
    for level in levels:
        full = is_full(full, level)
        seen.append(full)
    assert seen == [False, False, True, True, True, False, False]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), min_size=1, max_size=200),
    st.lists(st.integers(0, 30), min_size=4, max_size=4),
)
def test_one_pass_gives_every_lane_all_its_messages_once_and_in_order(
    turns: list[tuple[int, int]], starts: list[int]
) -> None:
    """Lanes of different speed with room for 4 messages each; a turn is some lane's taker taking some."""
    log = [offset * 7 % 4 for offset in range(60)]  # the lane of each offset
    next_offset, queued, got = list(starts), [0] * 4, [list[int]() for _ in range(4)]
    full, position, idle = [False] * 4, None, 0

    def read_on() -> int | None:
        nonlocal idle
        full[:] = [is_full(full[lane], queued[lane] / 4) for lane in range(4)]
        step = steer(position, [next_offset[lane] for lane in range(4) if not full[lane]])
        at = step.seek if step.seek is not None else None if step.idle else position
        if at is None or at >= len(log):
            return at
        for lane in range(4):
            if not full[lane] and next_offset[lane] <= at:
                assert next_offset[lane] == at, "a lane was left behind"
                next_offset[lane] = at + 1
                if log[at] == lane:
                    got[lane].append(at)
                    queued[lane] += 1
        assert max(queued) <= 4
        return at + 1

    for lane, count in turns:
        queued[lane] -= min(count, queued[lane])
        position = read_on()
    for _ in range(400):
        queued = [0] * 4
        position = read_on()
    assert got == [
        [offset for offset in range(start, 60) if log[offset] == lane] for lane, start in enumerate(starts)
    ]
    assert NEAR > 60
