"""A table that begins after a hole in one of its sources, and its partition's report of that: then, after
restarts, and on standbys.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message

from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.serdes import Text
from holdfast.core.engine.declared.sources import Source
from holdfast.core.engine.fold.folding import Changes
from holdfast.core.engine.positions import Position, encode_position, ordered_start
from holdfast.core.engine.state.codec import APPLIED, row_key
from holdfast.core.engine.state.lost_heads import LOST_HEADS, decode_lost_heads, encode_lost_heads
from holdfast.core.kafka.topic_partition import Place
from holdfast.errors import ChangelogError, OutOfRangeError
from holdfast.tables.partition import Partition
from holdfast.tables.rocks import LOGGED, Budget
from holdfast.tables.state import Environment

BUDGET = Budget.of(8 << 20, 8 << 20)


def keep(rows: Any, event: Any, at_ms: int) -> None:
    rows["all"] = at_ms


ONE: Processor[Any, int] = Processor(name="p", source="in", decode=bytes, fold=keep, row=int)
TWO: Processor[Any, int] = Processor(
    name="two", on={Source("left", Text()): keep, Source("right", Text()): keep}, row=int
)


def nowhere(_: str) -> Any:
    raise AssertionError("nothing here connects")


def opened(
    folder: Path,
    processor: Processor[Any, int] = ONE,
    heads: Mapping[str, int] = {},
    landed: frozenset[str] = frozenset(),
) -> Partition:
    environment = Environment(
        app="a",
        data_dir=folder,
        producer=nowhere,
        budget=BUDGET,
        cluster_id="c",
        changelog_ids={},
        cache_rows=10,
        tombstones_kept_ms=0,
        landed=landed,
    )
    part = Partition(processor, 0, environment, lambda part: None, lambda: True)

    def head_of(place: Place) -> int:
        return heads.get(place[0], 0)

    part.head_of = head_of
    return part


def changes(applied: int) -> Changes:
    return Changes(marker=Position((applied,), 5, 1), records=1, puts=[(row_key("a"), b"x")])


def folded(part: Partition, made: Changes, changelog_next: int) -> list[bytes]:
    """Have a partition keep a transaction as a runner does; return the keys that it writes."""
    noted = part.owner.noted(made)
    part.owner.keep(noted, changelog_next)
    return [key for key, _ in noted.puts]


def merged(left: int, right: int) -> Changes:
    start = ordered_start(2, 2, 1)
    reached = (left, right)
    return Changes(marker=Position(reached, 5, 1, (5, 5), 0, start.tick_ms, 0, TWO.lineage), records=1)


def test_the_first_transaction_after_a_hole_says_so_and_no_other(tmp_path: Path) -> None:
    part = opened(tmp_path, heads={"in": 700})
    assert part.partial == {"in": 700}, "known as soon as the log was met, though nothing is folded yet"
    assert LOST_HEADS in folded(part, changes(700), 3)
    assert LOST_HEADS not in folded(part, changes(701), 6)
    part.close()
    reopened = opened(tmp_path)
    assert reopened.partial == {"in": 700}
    assert dict(reopened.everything()) == {row_key("a"): b"x"}, "it is no row, and in no digest"
    reopened.rebuild("gone")
    assert reopened.partial == {}
    reopened.close()


def test_a_table_does_not_begin_after_records_that_are_in_the_lake(tmp_path: Path) -> None:
    part = opened(tmp_path, heads={"in": 700}, landed=frozenset({"in"}))
    with pytest.raises(
        OutOfRangeError, match=r"in partition 0 begins at offset 700, .* bootstrap p --version 1"
    ):
        part.owner.noted(changes(700))
    part.close()
    elsewhere = opened(tmp_path / "other", heads={"in": 700}, landed=frozenset({"others"}))
    assert LOST_HEADS in folded(elsewhere, changes(700), 3)
    elsewhere.close()
    begun = opened(tmp_path / "begun", landed=frozenset({"in"}))
    folded(begun, changes(699), 3)
    begun.head_of = lambda place: 700
    assert LOST_HEADS not in folded(begun, changes(700), 6), "what it has is in the lake as well"
    begun.close()


def test_a_table_of_a_whole_log_is_not_partial_though_another_table_is(tmp_path: Path) -> None:
    part = opened(tmp_path)
    assert LOST_HEADS not in folded(part, changes(4), 3)
    assert part.partial == {}
    part.head_of = lambda place: (
        5
    )  # read from its ordered_start for another table; what this one has is before that
    assert LOST_HEADS not in folded(part, changes(5), 6)
    assert part.partial == {}
    part.close()


def test_records_that_are_gone_before_the_next_end_the_worker_though_another_table_begins_after_them(
    tmp_path: Path,
) -> None:
    part = opened(tmp_path)
    folded(part, changes(4), 3)
    part.head_of = lambda place: 6
    with pytest.raises(
        OutOfRangeError, match=r"in partition 0 begins at offset 6, and p\.v1 has folded it up to 4"
    ):
        folded(part, changes(6), 6)
    part.close()


def test_with_several_sources_each_is_reported_when_its_first_record_is_folded(tmp_path: Path) -> None:
    part = opened(tmp_path, TWO, {"left": 3, "right": 9})
    assert part.partial == {"left": 3, "right": 9}
    assert LOST_HEADS in folded(part, merged(3, -1), 3)
    part.head_of = lambda place: {"left": 3, "right": 12}[place[0]]  # more of it went before any was read
    assert LOST_HEADS in folded(part, merged(3, 12), 6)
    part.close()
    reopened = opened(tmp_path, TWO)
    assert reopened.partial == {"left": 3, "right": 12}
    reopened.close()


@pytest.mark.parametrize("taken_back", [False, True])
def test_a_restore_and_a_standby_learn_it_from_the_changelog(tmp_path: Path, taken_back: bool) -> None:
    log: list[tuple[bytes, bytes | None]] = [
        (LOST_HEADS, encode_lost_heads({"in": 7})),
        (row_key("a"), b"x"),
        (APPLIED, encode_position(Position((7,), 1, 1))),
    ]
    if taken_back:  # as `tables repair` does, which folds all of the log again
        log += [(LOST_HEADS, None), (APPLIED, encode_position(Position((8,), 1, 1)))]
    part = opened(tmp_path)
    records = [
        Message(topic="log", partition=0, offset=at, key=key, value=value)
        for at, (key, value) in enumerate(log)
    ]
    part.replay.apply(records, LOGGED)
    assert part.partial == ({} if taken_back else {"in": 7})
    part.close()


@pytest.mark.parametrize(
    ("value", "why"), [(b"\x01", "malformed"), (b"\x92\x02\x80", "format 2, this version reads 1")]
)
def test_a_note_that_cannot_be_read_is_an_error_not_a_guess(value: bytes, why: str) -> None:
    with pytest.raises(ChangelogError, match=why):
        decode_lost_heads(value)
