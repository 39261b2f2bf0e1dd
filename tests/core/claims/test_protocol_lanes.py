"""PROTOCOL.md#lanes-and-ranges is what the code does."""

from __future__ import annotations

import re

from holdfast.core.claims.lanes import LIMIT_LANES, lane_of, lane_topic
from holdfast.core.engine.declared.partitioners import murmur2
from holdfast.core.ranges import (
    LIMIT_AHEAD,
    RANGES_TOPIC,
    Base,
    Block,
    Keep,
    OfTopic,
    RangeRow,
    Ranges,
    Take,
    fold_range,
)
from tests.support.places import DOCS

PAGE = (DOCS / "PROTOCOL.md").read_text()
SECTION = PAGE.partition("## Lanes and ranges\n")[2].partition("\n## ")[0]
OPEN = Block(0, 10, 2, "a", "ia", 3, 2, 7, 1_000)


def table(after: str) -> list[list[str]]:
    lines = SECTION.partition(after)[2].partition("\n###")[0].splitlines()
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith("|") and "---" not in line
    ]


def after(row: Ranges | None, wish: Base | Take | Keep, at_ms: int = 1_001) -> Ranges | None:
    """Return the row after *wish*, None when it did not count; a lease is 1 s."""
    before = None if row is None else RangeRow(row, 5, 0)
    found = fold_range(before, wish, 6, at_ms, 1_000)
    return None if found is None or found is before else found.row


def test_the_table_of_lanes_is_the_rule() -> None:
    keyed, unkeyed = table("### Lanes")[1:]
    rule = re.search("`(.*)`", keyed[1])
    assert rule is not None
    for number in range(200):
        key = b"key-%d" % number
        assert eval(rule[1], {"murmur2": murmur2, "key": key, "n": 12}) == lane_of(key, 7, 12)
    assert unkeyed[1] == "`offset % n`"
    assert [lane_of(None, offset, 12) for offset in range(30)] == [offset % 12 for offset in range(30)]


def test_names_and_limits_on_the_page_are_those_of_the_code() -> None:
    assert "`topic~lane-i-of-n`" in SECTION
    assert lane_topic("topic", 1, 3) == "topic~lane-1-of-3"
    assert f"2 to {LIMIT_LANES}" in SECTION
    assert f"`{RANGES_TOPIC}`" in SECTION
    assert f"fewer than {LIMIT_AHEAD} are there" in SECTION


def test_each_line_of_the_table_of_ranges_is_a_rule_of_the_fold() -> None:
    assert [line[0] for line in table("### Ranges")[1:]] == [
        "`base`",
        "`take`",
        "`take`",
        "`keep`",
        "`keep` with *free*",
        "`keep` with *given*",
        "`topic`",
    ]
    row = Ranges(0, (OPEN,))
    assert after(None, Base(99, row)) == row
    assert after(row, Base(5, Ranges(3))) == Ranges(3)
    assert after(row, Base(4, Ranges(3))) is None
    assert after(row, Take(10, 15, "b", "ib")) == Ranges(
        0, (OPEN, Block(10, 15, 10, "b", "ib", 1, 0, 10, 1_001))
    )
    assert after(row, Take(0, 10, "b", "ib"), 1_999) is None
    assert after(row, Take(0, 10, "b", "ib"), 2_000) == Ranges(
        0, (Block(0, 10, 2, "b", "ib", 4, 2, 7, 2_000),)
    )
    assert after(row, Keep(0, 3, "ia", 2)) == Ranges(0, (Block(0, 10, 2, "a", "ia", 3, 2, 7, 1_001),))
    assert after(row, Keep(0, 3, "ia", 5)) == Ranges(0, (Block(0, 10, 5, "a", "ia", 3, 0, 5, 1_001),))
    assert after(row, Keep(0, 3, "ia", 1)) is None
    assert after(row, Keep(0, 2, "ia", 5)) is None
    assert after(row, Keep(0, 3, "ib", 5)) is None
    assert after(row, Keep(0, 3, "ia", 2, given=9)) == Ranges(
        0, (Block(0, 10, 2, "a", "ia", 3, 3, 7, 1_001),)
    )
    assert after(row, Keep(0, 3, "ia", 2, given=4)) == Ranges(
        0, (Block(0, 10, 2, "a", "ia", 3, 3, 4, 1_001),)
    )
    assert after(row, Keep(0, 3, "ia", 3, given=9)) == Ranges(
        0, (Block(0, 10, 3, "a", "ia", 3, 1, 9, 1_001),)
    )
    assert after(row, Keep(0, 3, "ia", 2, given=2)) is None
    assert after(row, Keep(0, 3, "ia", 2, given=11)) is None
    assert after(row, Keep(0, 3, "ia", 2, free=True, given=9)) is None
    freed = after(row, Keep(0, 3, "ia", 2, free=True))
    assert freed is not None
    assert freed.blocks[0].at_ms == -1
    assert after(freed, Keep(0, 3, "ia", 5)) is None
    unmarked, marked = RangeRow(row, 5, 0), RangeRow(row, 5, 0, mark=7, former=(6,))
    told = fold_range(unmarked, OfTopic(7), 6, 1, 1_000)
    assert told == RangeRow(row, 6, 1, mark=7), "whose offsets these are was not known"
    assert fold_range(marked, OfTopic(8), 6, 1, 1_000) is marked
    begun = RangeRow(Ranges(4), 6, 1, mark=8, former=(6, 7))
    assert fold_range(marked, OfTopic(8, was=7, low=4), 6, 1, 1_000) == begun
    assert fold_range(begun, OfTopic(8, was=7, low=9), 7, 1, 1_000) is begun, "another said so before"
    assert fold_range(begun, OfTopic(7, was=8), 7, 1, 1_000) is begun, "that topic was deleted"
    assert fold_range(begun, OfTopic(9, was=7), 7, 1, 1_000) is begun
    based = fold_range(begun, Base(6, Ranges(5)), 7, 1, 1_000)
    assert based == RangeRow(Ranges(5), 7, 0, mark=8, former=(6, 7))
    assert after(row, Keep(0, 3, "ia", 10)) == Ranges(10)
