"""Ranges: the fold of wishes, against every message being done at last and nothing being left out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.ranges import (
    LIMIT_AHEAD,
    LIMIT_BLOCK_MESSAGES,
    Base,
    Keep,
    RangeRow,
    Ranges,
    Take,
    decode_wish,
    encode_wish,
    fold_range,
    low_water,
    next_take,
    range_key,
)
from holdfast.errors import ConfigError

LEASE_MS = 1_000


class Log:
    """A log of wishes and its fold; `write` says whether the wish counted."""

    def __init__(self, low: int = 0) -> None:
        self.row: RangeRow | None = None
        self.offset = 0
        self.write(Base(-1, Ranges(low)), 0)

    def write(self, wish: Base | Take | Keep, at_ms: int) -> bool:
        told = decode_wish(encode_wish(wish))
        assert told == wish
        before, self.row = self.row, fold_range(self.row, wish, self.offset, at_ms, LEASE_MS)
        self.offset += 1
        return self.row is not before

    @property
    def ranges(self) -> Ranges:
        assert self.row is not None
        return self.row.row


def test_an_expired_block_goes_to_another_and_its_first_owner_counts_no_more() -> None:
    log = Log()
    assert log.write(Take(0, 10, "a", "ia"), 0)
    assert log.write(Keep(0, 1, "ia", 4), 500)
    assert not log.write(Take(0, 10, "b", "ib"), 1_499)
    assert log.write(Take(0, 10, "b", "ib"), 1_500)
    assert not log.write(Keep(0, 1, "ia", 10), 1_501), "the first owner was fenced"
    assert log.ranges.blocks[0].progress == 4
    assert log.ranges.blocks[0].deliveries == 2
    assert log.write(Keep(0, 2, "ib", 10), 1_502)
    assert log.ranges == Ranges(10)


def test_nobody_gets_further_ahead_than_the_limit() -> None:
    log = Log()
    for number in range(LIMIT_AHEAD):
        assert log.write(Take(number, number + 1, "a", "ia"), 0)
        if number:
            assert log.write(Keep(number, 1, "ia", number + 1), 0)
    assert not log.write(Take(LIMIT_AHEAD, LIMIT_AHEAD + 1, "a", "ia"), 0)
    assert log.write(Keep(0, 1, "ia", 1), 0)
    assert log.ranges == Ranges(LIMIT_AHEAD)


@pytest.mark.parametrize(
    "wish", [Take(5, 9, "a", "i"), Take(0, 0, "a", "i"), Take(0, LIMIT_BLOCK_MESSAGES + 1, "a", "i"), Keep(0, 1, "i", 1)]
)
def test_what_does_not_follow_does_not_count(wish: Take | Keep) -> None:
    assert not Log().write(wish, 0)


def test_reading_can_begin_at_any_base_and_a_base_that_missed_something_does_not_count() -> None:
    log = Log()
    log.write(Take(0, 10, "a", "ia"), 0)
    assert log.row is not None
    base = Base(log.row.offset, log.row.row)
    assert log.write(base, 1)
    assert not log.write(base, 2), "it is not after what it says"
    assert fold_range(None, base, 7, 1, LEASE_MS) == RangeRow(log.ranges, 7, 0)
    assert fold_range(None, Take(0, 10, "a", "i"), 7, 1, LEASE_MS) is None


def test_ids_that_would_make_keys_ambiguous_are_refused() -> None:
    assert range_key("g", "t", 3) == "g/t/3"
    with pytest.raises(ConfigError):
        range_key("g/h", "t", 3)


STEPS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["take", "work", "free", "die", "wait", "zombie"]), st.integers(1, 7)), max_size=120
)


@given(STEPS, st.integers(0, 20))
def test_whatever_members_do_every_message_is_handled_and_nothing_is_skipped(steps: list[tuple[int, str, int]], low: int) -> None:
    """A model of four members that die, linger and repeat themselves; `handled` is what any of them handled before it said so."""
    log, now_ms, end = Log(low), 0, low + 40
    mine: dict[int, tuple[int, int]] = {}  # member -> (start, epoch), as it believes
    handled: set[int] = set()

    def check() -> None:
        row = log.ranges
        assert set(range(low, low_water(row))) <= handled, "skipped"
        at = row.low
        for block in row.blocks:
            assert block.start == at
            assert set(range(block.start, block.progress)) <= handled, "skipped"
            at = block.end
        assert at == row.high
        assert len(row.blocks) <= LIMIT_AHEAD

    def take(member: int) -> None:
        wish = next_take(log.ranges, f"m{member}", f"i{member}", now_ms=now_ms, lease_ms=LEASE_MS, size=5, ahead_of=end)
        if wish is not None and log.write(wish, now_ms):
            block = log.ranges.block(wish.start)
            assert block is not None
            mine[member] = (block.start, block.epoch)

    def work(member: int, count: int, *, free: bool = False) -> None:
        if member not in mine:
            return
        start, epoch = mine[member]
        block = log.ranges.block(start)
        if block is None or block.epoch != epoch:
            assert not log.write(Keep(start, epoch, f"i{member}", start + 5, free), now_ms), "fenced"
            del mine[member]
            return
        progress = min(block.end, block.progress + count)
        handled.update(range(block.progress, progress))
        assert log.write(Keep(start, epoch, f"i{member}", progress, free), now_ms)
        if free or progress == block.end:
            del mine[member]

    for member, step, count in steps:
        now_ms += 10
        match step:
            case "take" if member not in mine:
                take(member)
            case "work":
                work(member, count)
            case "free":
                work(member, 0, free=True)
            case "die":
                mine.pop(member, None)
            case "wait":
                now_ms += 200 * count
            case "zombie":
                before = log.ranges
                log.write(Keep(low, 99, f"i{member}", low + 5), now_ms)
                assert log.ranges == before
        check()
    now_ms += LEASE_MS
    mine.clear()
    for _ in range(40):  # whoever is left finishes
        take(0)
        work(0, 5)
        check()
    assert low_water(log.ranges) >= end
    assert handled >= set(range(low, end))


def test_deliveries_count_attempts_that_got_nowhere() -> None:
    log, now_ms = Log(), 0
    for deliveries in range(1, 4):
        assert log.write(Take(0, 10, "a", "ia"), now_ms)
        assert log.ranges.blocks[0].deliveries == deliveries
        now_ms += LEASE_MS
    assert log.write(Keep(0, 3, "ia", 2), now_ms)
    assert log.ranges.blocks[0].deliveries == 1
    assert log.write(Keep(0, 3, "ia", 2, free=True), now_ms)
    assert log.write(Take(0, 10, "b", "ib"), now_ms), "what was given back is free at once"
    assert log.ranges.blocks[0].deliveries == 2
