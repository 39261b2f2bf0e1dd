"""Ranges: the fold of wishes, against every message being done at last and nothing being left out."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.ranges import (
    FORGOTTEN_AFTER_MS,
    LIMIT_AHEAD,
    LIMIT_BLOCK_MESSAGES,
    Base,
    Block,
    Horizon,
    Keep,
    OfTopic,
    RangeRow,
    Ranges,
    Take,
    Wish,
    decode_wish,
    encode_wish,
    fold_range,
    low_water,
    next_take,
    range_key,
    shows,
)
from holdfast.errors import ConfigError

LEASE_MS = 1_000
MAXIMUM_DELIVERIES = 2

Fold = Callable[[RangeRow | None, Wish, int, int, int], RangeRow | None]


class Log:
    """A log of wishes and its fold; `write` says whether the wish counted."""

    def __init__(self, low: int = 0, fold: Fold = fold_range) -> None:
        self._fold = fold
        self.row: RangeRow | None = None
        self.offset = 0
        self.write(Base(-1, Ranges(low)), 0)

    def write(self, wish: Base | Take | Keep, at_ms: int) -> bool:
        told = decode_wish(encode_wish(wish))
        assert told == wish
        before, self.row = self.row, self._fold(self.row, wish, self.offset, at_ms, LEASE_MS)
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
    assert log.ranges.blocks[0].deliveries == 0, "nobody was handed anything"
    assert log.write(Keep(0, 2, "ib", 10), 1_502)
    assert log.ranges == Ranges(10)


def test_no_member_gets_further_ahead_than_the_limit() -> None:
    log = Log()
    for number in range(LIMIT_AHEAD):
        assert log.write(Take(number, number + 1, "a", "ia"), 0)
        if number:
            assert log.write(Keep(number, 1, "ia", number + 1), 0)
    assert not log.write(Take(LIMIT_AHEAD, LIMIT_AHEAD + 1, "a", "ia"), 0)
    assert log.write(Keep(0, 1, "ia", 1), 0)
    assert log.ranges == Ranges(LIMIT_AHEAD)


@pytest.mark.parametrize(
    "wish",
    [
        Take(5, 9, "a", "i"),
        Take(0, 0, "a", "i"),
        Take(0, LIMIT_BLOCK_MESSAGES + 1, "a", "i"),
        Keep(0, 1, "i", 1),
    ],
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


KINDS = ["take", "hand", "work", "free", "die", "wait", "zombie"]
STEPS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(KINDS), st.integers(1, 7)), max_size=120)


class Model:
    """Four members that die, linger and repeat themselves; what each message went through, and what may
    never be.
    """

    def __init__(self, low: int, fold: Fold = fold_range) -> None:
        self.low, self.end, self.now_ms, self.log = low, low + 40, 0, Log(low, fold)
        self.mine: dict[int, tuple[int, int]] = {}  # member -> (start, epoch), as it believes
        self.handled: set[int] = set()
        """The messages that were handled before a member said so, or put aside."""
        self.given: Counter[int] = Counter()
        """The number of times that each message was handed out."""

    def check(self) -> None:
        row = self.log.ranges
        assert set(range(self.low, low_water(row))) <= self.handled, "skipped"
        at = row.low
        for block in row.blocks:
            assert block.start == at
            assert set(range(block.start, block.progress)) <= self.handled, "skipped"
            at = block.end
        assert at == row.high
        assert len(row.blocks) <= LIMIT_AHEAD

    def take(self, member: int) -> None:
        wish = next_take(
            self.log.ranges,
            f"m{member}",
            f"i{member}",
            now_ms=self.now_ms,
            lease_ms=LEASE_MS,
            size=5,
            ahead_of=self.end,
        )
        if wish is not None and self.log.write(wish, self.now_ms):
            block = self.log.ranges.block(wish.start)
            assert block is not None
            self.mine[member] = (block.start, block.epoch)
            self.bury(member, block)

    def bury(self, member: int, block: Block) -> None:
        if block.deliveries < MAXIMUM_DELIVERIES:
            return
        for offset in range(block.progress, block.given):
            assert self.given[offset] >= MAXIMUM_DELIVERIES, "a dead letter that nobody was given so often"
            self.handled.add(offset)
        self.keep(member, block.given)

    def held(self, member: int) -> Block | None:
        """Return the block of *member*; a fenced one learns it here."""
        if member not in self.mine:
            return None
        start, epoch = self.mine[member]
        block = self.log.ranges.block(start)
        if block is not None and block.epoch == epoch:
            return block
        assert not self.log.write(Keep(start, epoch, f"i{member}", start + 5), self.now_ms), "fenced"
        del self.mine[member]
        return None

    def keep(self, member: int, progress: int, *, free: bool = False, given: int = -1) -> None:
        start, epoch = self.mine[member]
        assert self.log.write(Keep(start, epoch, f"i{member}", progress, free, given), self.now_ms)
        if free or self.log.ranges.block(start) is None or progress == start + 5:
            del self.mine[member]

    def hand(self, member: int, count: int) -> None:
        block = self.held(member)
        if block is not None:
            given = min(block.end, block.progress + count)
            self.keep(member, block.progress, given=given)
            self.given.update(range(block.progress, given))

    def work(self, member: int, count: int, *, free: bool = False) -> None:
        block = self.held(member)
        if block is not None:
            progress = min(block.end, block.progress + count)
            self.handled.update(range(block.progress, progress))
            self.keep(member, progress, free=free)

    def run(self, steps: list[tuple[int, str, int]]) -> None:
        for member, step, count in steps:
            self.now_ms += 10
            match step:
                case "take" if member not in self.mine:
                    self.take(member)
                case "hand":
                    self.hand(member, count)
                case "work":
                    self.work(member, count)
                case "free":
                    self.work(member, 0, free=True)
                case "die":
                    self.mine.pop(member, None)
                case "wait":
                    self.now_ms += 200 * count
                case "zombie":
                    before = self.log.ranges
                    self.log.write(Keep(self.low, 99, f"i{member}", self.low + 5), self.now_ms)
                    assert self.log.ranges == before
            self.check()

    def finish(self) -> None:
        """Have one member that is left do the rest."""
        self.now_ms += LEASE_MS
        self.mine.clear()
        for _ in range(40):
            self.take(0)
            self.work(0, 5)
            self.check()
        assert low_water(self.log.ranges) >= self.end
        assert self.handled >= set(range(self.low, self.end))


@given(STEPS, st.integers(0, 20))
def test_whatever_members_do_every_message_is_handled_and_not_one_skipped_or_put_aside_untried(
    steps: list[tuple[int, str, int]], low: int
) -> None:
    model = Model(low)
    model.run(steps)
    model.finish()


def faulty(change: Callable[[Block, Wish], Block]) -> Fold:
    """Return the fold with a fault: *change* has the last word about the block that a wish names."""

    def fold(before: RangeRow | None, wish: Wish, offset: int, at_ms: int, lease_ms: int) -> RangeRow | None:
        found = fold_range(before, wish, offset, at_ms, lease_ms)
        if found is None or found is before or isinstance(wish, Base | OfTopic):
            return found
        blocks = tuple(change(each, wish) if each.start == wish.start else each for each in found.row.blocks)
        return found._replace(row=Ranges(found.row.low, blocks))

    return fold


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(
            lambda block, wish: (
                msgspec.structs.replace(block, deliveries=block.deliveries + 1, given=block.end)
                if isinstance(wish, Take)
                else block
            ),
            id="taking counts as a delivery",
        ),
        pytest.param(
            lambda block, wish: (
                msgspec.structs.replace(block, given=wish.given)
                if isinstance(wish, Keep) and wish.given >= 0
                else block
            ),
            id="the last delivery decides what is put aside",
        ),
    ],
)
def test_the_model_finds_dead_letters_that_were_not_handed_out(fault: Callable[[Block, Wish], Block]) -> None:
    steps = [
        step
        for _ in range(3)
        for count in (2, 5)
        for step in ((0, "take", 1), (0, "hand", count), (0, "die", 1), (0, "wait", 6))
    ]
    Model(0).run(steps)
    with pytest.raises(AssertionError, match="nobody was given so often"):
        Model(0, faulty(fault)).run(steps)


def test_deliveries_count_hand_outs_that_got_nowhere_and_no_takes() -> None:
    log, now_ms = Log(), 0
    for epoch in range(1, 4):
        assert log.write(Take(0, 10, "a", "ia"), now_ms)
        assert log.ranges.blocks[0].deliveries == epoch - 1
        assert log.write(Keep(0, epoch, "ia", 0, given=9 - epoch), now_ms)
        assert (log.ranges.blocks[0].deliveries, log.ranges.blocks[0].given) == (epoch, 9 - epoch)
        now_ms += LEASE_MS
    assert log.write(Keep(0, 3, "ia", 2), now_ms)
    assert log.ranges.blocks[0].deliveries == 0
    assert log.write(Keep(0, 3, "ia", 2, free=True), now_ms)
    for epoch in range(4, 10):
        assert log.write(Take(0, 10, "b", "ib"), now_ms), "what was given back is free at once"
        assert log.write(Keep(0, epoch, "ib", 2, free=True), now_ms)
        assert log.ranges.blocks[0].deliveries == 0


# -- how much of the log is needed


class Shared:
    """One log with the wishes of several rows, and its fold by any reader from the beginning;
    *settles* as the fold's last rule.
    """

    def __init__(self, *, settles: bool = True) -> None:
        self.records: list[tuple[str, Wish, int]] = []
        self.horizon, self._settles = Horizon(), settles
        self.rows: dict[str, RangeRow | None] = {}

    def write(self, key: str, wish: Wish, at_ms: int) -> None:
        self.records.append((key, wish, at_ms))
        self._fold(self.rows, self.horizon, len(self.records) - 1)

    def _fold(self, rows: dict[str, RangeRow | None], horizon: Horizon, offset: int) -> None:
        key, wish, at_ms = self.records[offset]
        previous = horizon.note(key, wish, offset, at_ms)
        rows[key] = fold_range(
            rows.get(key), wish, offset, at_ms, LEASE_MS, previous if self._settles else -1
        )

    def read_from(self, begin: int) -> dict[str, RangeRow | None]:
        """Return the rows of a reader that finds the log to begin there."""
        rows: dict[str, RangeRow | None] = {}
        horizon = Horizon()
        for offset in range(begin, len(self.records)):
            self._fold(rows, horizon, offset)
        return rows


def busy_log(seed: int, shared: Shared, records: int = 120) -> None:
    """Write wishes of three groups: takes and keeps, some of which do not count, and bases, some of which
    come too late to count.
    """
    draws, late = random.Random(seed), list[tuple[str, Wish]]()
    for at_ms in range(0, records * 50, 50):
        key = draws.choice("abc")
        row = shared.rows.get(key)
        if row is None:
            shared.write(key, Base(-1, Ranges(draws.randrange(5))), at_ms)
            continue
        if late and draws.random() < 0.3:
            shared.write(*late.pop(), at_ms)
            continue
        blocks, what = row.row.blocks, draws.random()
        if what < 0.15:
            shared.write(key, Base(row.offset, row.row), at_ms)
        elif what < 0.3:
            late.append((key, Base(row.offset, row.row)))  # made now, written when the row has moved on
        elif what < 0.6 or not blocks:
            start = draws.choice([row.row.high, *(each.start for each in blocks)])
            shared.write(key, Take(start, start + 10, "owner", draws.choice("ij")), at_ms)
        else:
            block = draws.choice(blocks)
            epoch = block.epoch - (draws.random() < 0.2)
            shared.write(
                key, Keep(block.start, epoch, block.instance, draws.randint(block.progress, block.end)), at_ms
            )


@pytest.mark.long
def test_a_reader_of_the_rest_of_a_log_has_the_same_rows() -> None:
    """Whatever is deleted, and whenever: of every row there is a Base left that counts for everybody, or
    all of it.
    """
    deleted = 0
    for seed in range(300):
        shared = Shared()
        busy_log(seed, shared)
        begin = shared.horizon.begin(len(shared.records), 0)
        deleted += begin
        assert shared.read_from(begin) == shared.rows, f"seed {seed}, from {begin}"
    assert deleted > 300 * 30, "and much is deleted"


@pytest.mark.long
@pytest.mark.parametrize("too_much", [1, 10])
def test_the_check_sees_that_a_record_too_many_was_deleted(too_much: int) -> None:
    wrong = 0
    for seed in range(300):
        shared = Shared()
        busy_log(seed, shared)
        wrong += shared.read_from(shared.horizon.begin(len(shared.records), 0) + too_much) != shared.rows
    assert wrong


@pytest.mark.long
def test_the_check_sees_a_fold_that_takes_any_base_in_the_middle_for_good() -> None:
    wrong = 0
    for seed in range(300):
        shared = Shared(settles=False)
        busy_log(seed, shared)
        wrong += shared.read_from(shared.horizon.begin(len(shared.records), 0)) != shared.rows
    assert wrong


def test_a_row_untouched_for_a_month_does_not_hold_the_log_and_goes_as_a_whole() -> None:
    shared = Shared()
    shared.write("old", Base(-1, Ranges(0)), 0)
    shared.write("new", Base(-1, Ranges(0)), 0)
    shared.write("old", Take(0, 10, "a", "i"), 0)
    later_ms = FORGOTTEN_AFTER_MS + 1
    shared.write("new", Take(0, 10, "a", "i"), later_ms)
    assert shared.horizon.begin(4, later_ms) == 0, (
        "the new row is needed from its beginning, and that lies before the old one's end"
    )
    shared.write(
        "new", Base(3, Ranges(0, shared.rows["new"].row.blocks if shared.rows["new"] else ())), later_ms
    )
    assert shared.horizon.begin(5, later_ms) == 4
    assert shared.read_from(4) == {"new": shared.rows["new"]}
    assert shared.horizon.begin(5, FORGOTTEN_AFTER_MS) == 0, "a moment earlier it was not forgotten"


# -- whether a wish counted, for a member that cannot read its record any more


@pytest.mark.long
def test_a_later_row_shows_of_the_owners_last_wish_whether_it_counted() -> None:
    """A wish that did not count shows that its member had the block before, and has it."""
    counted = 0
    for seed in range(300):
        shared, draws = Shared(), random.Random(seed)
        busy_log(seed, shared)
        row = shared.rows.get("a")
        if row is None or not row.row.blocks:
            continue
        block, end = draws.choice(row.row.blocks), len(shared.records)
        wishes: list[Take | Keep] = [
            *(Take(block.start, block.end, "owner", instance) for instance in "ij"),
            *(Keep(block.start, block.epoch, instance, block.progress) for instance in "ij"),
            Keep(block.start, block.epoch, "i", block.end),
            Keep(block.start, block.epoch, "j", block.progress, free=True),
            Keep(block.start, block.epoch, "i", block.progress, given=block.end),
        ]
        wish = draws.choice(wishes)
        shared.write("a", wish, end * 50)
        after = shared.rows["a"]
        assert after is not None
        counted += after.offset == end
        if after.offset == end:
            assert shows(after.row, wish), f"seed {seed}: {wish}"
        elif shows(after.row, wish):
            assert block.instance == wish.instance, f"seed {seed}: {wish}"
    assert counted > 50


@pytest.mark.parametrize(
    "wish",
    [
        Base(-1, Ranges(0)),
        Take(0, 10, "b", "ib"),
        Take(20, 30, "a", "ia"),
        Keep(0, 1, "ia", 4),
        Keep(0, 2, "ib", 4),
        Keep(0, 2, "ia", 5),
        Keep(10, 1, "ia", 10, given=15),
        Keep(-10, 1, "ia", 0, given=5),
        Keep(20, 1, "ia", 30),
    ],
)
def test_what_a_row_does_not_show_did_not_count(wish: Wish) -> None:
    blocks = (Block(0, 10, 4, "a", "ia", 2, 0, 4, 7), Block(10, 20, 10, "a", "ia", 1, 0, 10, -1))
    assert not shows(Ranges(0, blocks), wish)
