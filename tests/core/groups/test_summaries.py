"""Readers of `holdfast.groups` who begin in the middle, and the summaries they wait for."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.groups import membership
from holdfast.core.groups.announcements import Announcement, Beat, Leave, Summary
from holdfast.core.groups.codes import GroupCode
from holdfast.core.groups.membership import Group, LastSeen, ReadProgress, counts_of, summary_of
from tests.core.groups.balancing import Reader, announce, reader_of
from tests.support.scale import scaled


def test_a_reader_from_a_summary_on_has_the_rows_of_a_reader_of_everything() -> None:
    full = reader_of((0, announce("a")), (0, announce("b")))
    late = Reader()
    late.read(2, announce("c"), 10)
    full.read(2, announce("c"), 10)
    assert late.target() != full.target()
    summary = summary_of(full.rows, "g")
    assert summary is not None
    for reader in (full, late):
        assert reader.read(3, summary, 20) is GroupCode.NONE
        reader.read(4, Beat("g", "a", 3), 30)
    assert late.group == full.group
    assert {key: row for key, row in late.rows.items() if isinstance(row, LastSeen)}.keys() == {
        "g/a",
        "g/b",
        "g/c",
    }
    for reader in (full, late):
        reader.read(5, Beat("g", "c", 3), 6_005)
    assert late.group == full.group
    assert set(full.target()) == {"a", "c"}


def test_a_summary_that_something_overtook_counts_for_nothing() -> None:
    full, late = reader_of((0, announce("a"))), Reader()
    full.read(1, announce("b"), 1)
    late.read(1, announce("b"), 1)
    summary = summary_of(full.rows, "g")
    assert summary is not None
    for reader in (full, late):
        reader.read(2, announce("c"), 2)
        assert reader.read(3, summary, 3) is GroupCode.ILLEGAL_GENERATION
    assert set(full.target()) == {"a", "b", "c"}
    assert not cast(ReadProgress, late.rows["g//"]).complete


def test_a_summary_from_before_reading_began_counts_for_nothing() -> None:
    full, late = reader_of((0, announce("a"))), Reader()
    summary = summary_of(full.rows, "g")
    assert summary is not None
    assert late.read(5, summary, 1) is GroupCode.ILLEGAL_GENERATION
    late.read(6, announce("b"), 2)
    assert late.read(7, summary, 3) is GroupCode.ILLEGAL_GENERATION


Step = tuple[str, str, int]


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[Step, int]]:
    steps: list[tuple[Step, int]] = []
    now_ms = 1_000
    for _ in range(draw(st.integers(4, 30))):
        now_ms += draw(st.sampled_from([0, 10, 900, 2_500, 6_000]))
        kind = draw(
            st.sampled_from(["announce", "announce", "beat", "beat", "beat", "leave", "summary", "summary"])
        )
        steps.append(((kind, draw(st.sampled_from("abcd")), draw(st.sampled_from([3, 6, 7]))), now_ms))
    return steps


def replayed(
    history: list[tuple[Step, int]], start: int, honest: Reader | None = None
) -> tuple[Reader, list[int]]:
    """Return a reader from *start* on, and where it learned what the group is.

    Summaries are written by a member that reads everything.
    """
    author, reader, learned = Reader(), Reader(), []
    for offset, ((kind, name, count), at_ms) in enumerate(history):
        said: Announcement | None
        match kind:
            case "announce":
                said = announce(name, counts=[("t", count)])
            case "beat":
                said = Beat("g", name, 0)
            case "leave":
                said = Leave("g", name)
            case _:
                said = summary_of(author.rows, "g")
        if said is None:
            continue
        author.read(offset, said, at_ms)
        if offset >= start:
            code = reader.read(offset, said, at_ms)
            if isinstance(said, Summary) and code is GroupCode.NONE:
                learned.append(offset)
    return reader, learned


def whole_and_sound(group: Group) -> list[str]:
    """Return the faults of a group's target."""
    parts = [
        {(topic, number) for topic, numbers in each.target for number in numbers} for each in group.members
    ]
    wanted = {("t", number) for number in range(counts_of(group).get("t", 0))}
    found = []
    if sum(map(len, parts)) != len(set().union(*parts)):
        found.append("a partition has two members")
    if parts and set().union(*parts) != wanted:
        found.append("not all partitions are given, or some that are not there")
    if parts and max(map(len, parts)) - min(map(len, parts)) > 1:
        found.append("spread above 1")
    return found


@pytest.mark.long
@given(histories(), st.integers(0, 20))
@settings(max_examples=scaled(150))
def test_readers_that_start_anywhere_agree_with_all_others_once_a_summary_has_counted(
    history: list[tuple[Step, int]], start: int
) -> None:
    full, _ = replayed(history, 0)
    late, learned = replayed(history, start)
    if "g" in full.rows:
        assert not whole_and_sound(full.group)
    if learned:
        beat = (
            ("beat", "z", 0),
            history[-1][1],
        )  # an expiry that a beat caused is made up for at the next record
        full, _ = replayed([*history, beat], 0)
        late, _ = replayed([*history, beat], start)
        assert late.group.members == full.group.members
        assert late.group.assignor == full.group.assignor


def test_the_check_of_targets_finds_planted_faults() -> None:
    group = reader_of((0, announce("a")), (0, announce("b"))).group
    assert not whole_and_sound(group)

    def with_target(at: int, target: tuple[tuple[str, tuple[int, ...]], ...]) -> Group:
        members = list(group.members)
        members[at] = msgspec.structs.replace(members[at], target=target)
        return msgspec.structs.replace(group, members=tuple(members))

    assert "a partition has two members" in whole_and_sound(with_target(0, group.members[1].target))
    assert "spread above 1" in whole_and_sound(with_target(0, ()))
    assert any("not all" in each for each in whole_and_sound(with_target(0, ())))


def test_summaries_that_count_at_any_time_would_part_the_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: without the condition, a reader that begins late undoes announcements after the
    summary.
    """
    adopt = membership._adopt

    def careless(
        rows: object,
        group: Group,
        progress: ReadProgress,
        said: Summary,
        at_ms: int,
        adopt: Callable[..., GroupCode] = adopt,
    ) -> GroupCode:
        return adopt(rows, group, msgspec.structs.replace(progress, changed=-1, first=0), said, at_ms)

    full = reader_of((0, announce("a")))
    late = Reader()
    summary = summary_of(full.rows, "g")
    assert summary is not None
    monkeypatch.setattr(membership, "_adopt", careless)
    full.read(1, announce("b"), 1)
    full.read(2, summary, 2)
    late.read(1, announce("b"), 1)
    assert set(full.target()) == {"a"}, "b was undone: the fault is seen"
