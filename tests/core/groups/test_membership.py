"""The fold of `holdfast.groups`: who is a member, and what each is to hold."""

from __future__ import annotations

from typing import cast

import msgspec
import pytest

from holdfast.core.engine.state.codec import RowCodec
from holdfast.core.groups import membership
from holdfast.core.groups.announcements import Beat, Leave
from holdfast.core.groups.codes import GroupCode, chosen_protocol
from holdfast.core.groups.membership import GroupsRow, LastSeen, counts_of, route, subscriptions
from tests.core.groups.balancing import announce, reader_of


def test_members_share_the_partitions_and_one_that_joins_takes_only_what_balance_asks() -> None:
    reader = reader_of((0, announce("a")))
    assert reader.target() == {"a": {f"t-{number}" for number in range(6)}}
    before = reader.target()
    reader.read(1, announce("b"), 10)
    assert {name: len(part) for name, part in reader.target().items()} == {"a": 3, "b": 3}
    assert reader.target()["a"] < before["a"]
    assert reader.group.generation == 2


def test_one_that_leaves_moves_nothing_but_its_own() -> None:
    reader = reader_of((0, announce("a")), (1, announce("b")), (2, announce("c")))
    before = reader.target()
    assert reader.read(3, Leave("g", "c"), 3) is GroupCode.NONE
    assert all(before[name] <= reader.target()[name] for name in ("a", "b"))
    assert reader.read(4, Leave("g", "c"), 4) is GroupCode.UNKNOWN_MEMBER_ID


def test_a_silent_member_is_gone_when_the_log_has_passed_its_session_and_not_before() -> None:
    """Expiry is in the log's time, at the first record of the group that is a session later."""
    reader = reader_of((1_000, announce("a")), (1_000, announce("b")))
    reader.read(2, Beat("g", "a", 2), 6_999)
    assert len(reader.group.members) == 2
    reader.read(3, Beat("g", "a", 2), 7_000)
    assert set(reader.target()) == {"a"}
    assert reader.read(4, Beat("g", "b", 2), 7_001) is GroupCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(("away_ms", "kept"), [(44_000, True), (46_000, False)])
def test_a_static_member_that_returns_within_its_session_changes_nothing(away_ms: int, kept: bool) -> None:
    """G3 for balanced groups: 44 s of 45 s the same partitions and generation, the old id fenced; at 46 s
    they have moved.
    """
    static = {"static": "s-1", "session_ms": 45_000}
    reader = reader_of((0, announce("old", client="c", **static)), (0, announce("b", session_ms=100_000)))  # type: ignore[arg-type]
    before, generation = reader.target(), reader.group.generation
    reader.read(2, announce("new", client="c", **static), away_ms)  # type: ignore[arg-type]
    assert (reader.target().get("new") == before["old"]) is kept
    assert (reader.group.generation == generation) is kept
    code = reader.read(3, Beat("g", "old", generation), away_ms + 1)
    assert code is (GroupCode.FENCED_INSTANCE_ID if kept else GroupCode.UNKNOWN_MEMBER_ID)
    if kept:
        again = reader.read(4, announce("old", client="c", **static), away_ms + 2)  # type: ignore[arg-type]
        assert again is GroupCode.FENCED_INSTANCE_ID, "two processes must not take turns"


def test_a_new_process_of_a_client_replaces_it_without_waiting_for_the_session() -> None:
    reader = reader_of((0, announce("a1", client="a")), (0, announce("b")))
    before, generation = reader.target(), reader.group.generation
    reader.read(2, announce("a2", client="a"), 10)
    assert reader.target() == {"a2": before["a1"], "b": before["b"]}
    assert reader.group.generation == generation
    assert reader.group.fenced == ("a1",)


def test_new_partitions_and_topics_of_a_pattern_are_shared_out_as_soon_as_one_member_sees_them() -> None:
    counts = [("logs.a", 2)]
    reader = reader_of(
        (0, announce("a", topics=["logs.a"], counts=counts, pattern="logs\\..*")),
        (0, announce("b", topics=["logs.a"], counts=counts, pattern="logs\\..*")),
    )
    reader.read(
        2,
        announce(
            "a", topics=["logs.a", "logs.b"], counts=[("logs.a", 2), ("logs.b", 4)], pattern="logs\\..*"
        ),
        5,
    )
    assert {name: len(part) for name, part in reader.target().items()} == {"a": 3, "b": 3}
    assert subscriptions(reader.group)["b"] == ("logs.a", "logs.b")
    assert counts_of(reader.group) == {"logs.a": 2, "logs.b": 4}
    reader.read(3, announce("b", topics=["logs.a"], counts=[("logs.a", 3)], pattern="logs\\..*"), 6)
    assert counts_of(reader.group)["logs.a"] == 3


def test_what_a_member_holds_is_noted_and_moves_nothing() -> None:
    reader = reader_of((0, announce("a")), (0, announce("b")))
    group = reader.group
    reader.read(2, announce("a", owned=(("t", (0, 1)),), generation=2), 5)
    assert reader.group is group
    assert cast(LastSeen, reader.rows["g/a"]).owned == (("t", (0, 1)),)


def test_a_partition_that_a_newcomer_holds_and_no_member_has_taken_yet_stays_with_it() -> None:
    """When a group begins again, the first to return gets everything for a moment; what the others hold is
    theirs all the same.
    """
    reader = reader_of((0, announce("a", owned=(("t", (3,)),))), (0, announce("b", owned=(("t", (1, 2)),))))
    assert reader.target() == {"a": {"t-0", "t-3", "t-4"}, "b": {"t-1", "t-2", "t-5"}}
    reader.read(2, announce("c", owned=(("t", (3,)),)), 1)
    assert "t-3" in reader.target()["a"], "a said before that it holds t-3"


def test_members_agree_on_an_assignor_and_one_that_supports_none_of_theirs_is_refused() -> None:
    reader = reader_of(
        (0, announce("a", assignors=("range", "sticky"))), (0, announce("b", assignors=("sticky", "range")))
    )
    assert reader.group.assignor == "range"
    before = reader.group
    assert (
        reader.read(2, announce("c", assignors=("roundrobin",)), 1) is GroupCode.INCONSISTENT_GROUP_PROTOCOL
    )
    assert reader.group == before
    reader.read(3, announce("c", assignors=("sticky",)), 2)
    assert reader.group.assignor == "sticky"


def test_a_full_group_takes_no_member(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "LIMIT_GROUP_MEMBERS", 2)
    reader = reader_of((0, announce("a")), (0, announce("b")))
    assert reader.read(2, announce("c"), 1) is GroupCode.GROUP_MAX_SIZE_REACHED
    assert reader.read(3, announce("a"), 2) is GroupCode.NONE


def test_a_group_without_members_keeps_its_generation() -> None:
    reader = reader_of((0, announce("a")), (0, Leave("g", "a")), (1, announce("b")))
    assert reader.group.generation == 3


def test_groups_do_not_see_each_other_and_live_where_kafka_would_put_them() -> None:
    reader = reader_of((0, announce("a")))
    reader.read(1, msgspec.structs.replace(announce("b"), group_id="h"), 0)
    assert set(reader.target()) == {"a"}
    assert route("test-group/m-1", 50) == route("test-group", 50) == 12


def test_the_most_wanted_assignor_that_all_support_is_chosen() -> None:
    assert chosen_protocol([("a", "b"), ("b", "a"), ("b", "c", "a")]) == "b"
    assert chosen_protocol([("c", "b"), ("b",)]) == "b"
    assert chosen_protocol([("a",), ("b",)]) is None
    assert chosen_protocol([]) is None


def test_rows_are_written_in_one_form() -> None:
    reader = reader_of((0, announce("a", static="s")), (0, announce("b", pattern="t.*")))
    codec: RowCodec[GroupsRow] = RowCodec(membership.GroupsRow)
    for row in reader.rows.values():
        assert codec.decode(codec.encode(row)) == row
