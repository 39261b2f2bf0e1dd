"""The fold of `holdfast.groups`, and members that act on it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core import groups
from holdfast.core.announcements import Announce, Announcement, AnnouncementReason, Beat, Leave, Summary, decode, encode
from holdfast.core.assignors import TopicPartition
from holdfast.core.balancer import BalancerSettings
from holdfast.core.codec import RowCodec
from holdfast.core.group_codes import GroupCode, chosen_protocol
from holdfast.core.groups import Group, GroupsRow, Progress, Seen, counts_of, route, subscriptions, summary_of
from holdfast.errors import AnnouncementError, ConfigError
from tests.core.balancing import Reader, World, announce
from tests.scale import scaled


def reader_of(*said: tuple[int, Announcement]) -> Reader:
    reader = Reader()
    for offset, (at_ms, each) in enumerate(said):
        reader.read(offset, each, at_ms)
    return reader


# -- members


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
    """G3 for balanced groups: 44 s of 45 s the same partitions and generation, the old id fenced; at 46 s they have moved."""
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


def test_a_new_process_of_a_client_takes_its_place_without_waiting_for_the_session() -> None:
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
    reader.read(2, announce("a", topics=["logs.a", "logs.b"], counts=[("logs.a", 2), ("logs.b", 4)], pattern="logs\\..*"), 5)
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
    assert cast(Seen, reader.rows["g/a"]).owned == (("t", (0, 1)),)


def test_what_a_newcomer_holds_and_nobody_has_taken_yet_stays_with_it() -> None:
    """When a group begins anew, the first to return gets everything for a moment; what the others hold is theirs all the same."""
    reader = reader_of((0, announce("a", owned=(("t", (3,)),))), (0, announce("b", owned=(("t", (1, 2)),))))
    assert reader.target() == {"a": {"t-0", "t-3", "t-4"}, "b": {"t-1", "t-2", "t-5"}}
    reader.read(2, announce("c", owned=(("t", (3,)),)), 1)
    assert "t-3" in reader.target()["a"], "a said before that it holds t-3"


def test_members_agree_on_an_assignor_and_one_that_supports_none_of_theirs_is_refused() -> None:
    reader = reader_of((0, announce("a", assignors=("range", "sticky"))), (0, announce("b", assignors=("sticky", "range"))))
    assert reader.group.assignor == "range"
    before = reader.group
    assert reader.read(2, announce("c", assignors=("roundrobin",)), 1) is GroupCode.INCONSISTENT_GROUP_PROTOCOL
    assert reader.group == before
    reader.read(3, announce("c", assignors=("sticky",)), 2)
    assert reader.group.assignor == "sticky"


def test_a_full_group_takes_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "LIMIT_GROUP_MEMBERS", 2)
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


# -- summaries: readers who begin in the middle


def test_a_reader_from_a_summary_on_has_the_rows_of_one_who_read_everything() -> None:
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
    assert {key: row for key, row in late.rows.items() if isinstance(row, Seen)}.keys() == {"g/a", "g/b", "g/c"}
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
    assert not cast(Progress, late.rows["g//"]).complete


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
        kind = draw(st.sampled_from(["announce", "announce", "beat", "beat", "beat", "leave", "summary", "summary"]))
        steps.append(((kind, draw(st.sampled_from("abcd")), draw(st.sampled_from([3, 6, 7]))), now_ms))
    return steps


def replayed(history: list[tuple[Step, int]], start: int, honest: Reader | None = None) -> tuple[Reader, list[int]]:
    """Return a reader from *start* on, and where it learned what the group is. Summaries are written by one who reads everything."""
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
    """Return what is wrong with a group's target."""
    parts = [{(topic, number) for topic, numbers in each.target for number in numbers} for each in group.members]
    wanted = {("t", number) for number in range(counts_of(group).get("t", 0))}
    found = []
    if sum(map(len, parts)) != len(set().union(*parts)):
        found.append("a partition has two members")
    if parts and set().union(*parts) != wanted:
        found.append("not all partitions are given, or some that are not there")
    if parts and max(map(len, parts)) - min(map(len, parts)) > 1:
        found.append("spread above 1")
    return found


@given(histories(), st.integers(0, 20))
@settings(max_examples=scaled(150), deadline=None)
def test_whoever_starts_anywhere_agrees_with_everybody_once_a_summary_has_counted(history: list[tuple[Step, int]], start: int) -> None:
    full, _ = replayed(history, 0)
    late, learned = replayed(history, start)
    if "g" in full.rows:
        assert not whole_and_sound(full.group)
    if learned:
        beat = (("beat", "z", 0), history[-1][1])  # an expiry that a beat caused is made up for at the next record
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
    """Planted fault: without the condition, a reader that begins late undoes what was said after the summary was written."""
    adopt = groups._adopt

    def careless(
        rows: object, group: Group, progress: Progress, said: Summary, at_ms: int, adopt: Callable[..., GroupCode] = adopt
    ) -> GroupCode:
        return adopt(rows, group, msgspec.structs.replace(progress, changed=-1, first=0), said, at_ms)

    full = reader_of((0, announce("a")))
    late = Reader()
    summary = summary_of(full.rows, "g")
    assert summary is not None
    monkeypatch.setattr(groups, "_adopt", careless)
    full.read(1, announce("b"), 1)
    full.read(2, summary, 2)
    late.read(1, announce("b"), 1)
    assert set(full.target()) == {"a"}, "b was undone: the fault is seen"


def test_rows_are_written_in_one_form() -> None:
    reader = reader_of((0, announce("a", static="s")), (0, announce("b", pattern="t.*")))
    codec: RowCodec[GroupsRow] = RowCodec(groups.GroupsRow)
    for row in reader.rows.values():
        assert codec.decode(codec.encode(row)) == row


# -- announcements


@pytest.mark.parametrize(
    "said",
    [
        announce("a", static="s", owned=(("t", (0, 5)),), generation=3),
        announce("a", pattern="logs.*", topics=(), counts=()),
        Beat("g", "a", -1),
        Leave("g", "", "s"),
        Summary("g", 4, 2, "range", (), (), ("x",)),
    ],
    ids=lambda said: type(said).__name__,
)
def test_announcements_read_back_as_written(said: Announcement) -> None:
    assert decode(encode(said)) == said


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (announce("a/b"), AnnouncementReason.ID),
        (announce("a", topics=("u", "t")), AnnouncementReason.ORDER),
        (announce("a", counts=(("t", -1),)), AnnouncementReason.LIMIT),
        (announce("a", counts=(("t", 60_000), ("u", 60_000))), AnnouncementReason.LIMIT),
        (announce("a", owned=(("t", (1, 0)),)), AnnouncementReason.ORDER),
        (announce("a", owned=(("t", ()),)), AnnouncementReason.ORDER),
        (announce("a", assignors=()), AnnouncementReason.LIMIT),
        (announce("a", assignors=("mine",)), AnnouncementReason.LIMIT),
        (announce("a", session_ms=10), AnnouncementReason.LIMIT),
        (announce("a", pattern=""), AnnouncementReason.LIMIT),
        (Beat("", "a", 0), AnnouncementReason.ID),
        (Leave("g", ""), AnnouncementReason.ID),
        (Summary("g", -1, 2, "", (), (), ()), AnnouncementReason.LIMIT),
        (Summary("g", 1, 2, "range", (), (("a", 1),), ()), AnnouncementReason.ORDER),
    ],
)
def test_what_breaks_a_limit_is_refused_at_writing_and_at_reading(said: Announcement, reason: AnnouncementReason) -> None:
    with pytest.raises(AnnouncementError) as writing:
        encode(said)
    with pytest.raises(AnnouncementError) as reading:
        decode(b"\x01" + msgspec.msgpack.encode(said))
    assert writing.value.reason == reading.value.reason == reason


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, AnnouncementReason.NULL),
        (b"", AnnouncementReason.FORMAT),
        (b"\x02\x93", AnnouncementReason.FORMAT),
        (b"\x01", AnnouncementReason.SHAPE),
        (b"\x01\x91\xa5crowd", AnnouncementReason.SHAPE),
        (b"\x01" + msgspec.msgpack.encode(Beat("g", "a", 1)) + b"\x00", AnnouncementReason.SHAPE),
        (b"\x01" + bytes(900_000), AnnouncementReason.SIZE),
    ],
)
def test_what_is_no_announcement_is_refused_with_its_reason(value: bytes | None, reason: AnnouncementReason) -> None:
    with pytest.raises(AnnouncementError) as refused:
        decode(value)
    assert refused.value.reason == reason


@given(st.binary(max_size=60))
@settings(max_examples=scaled(200))
def test_no_bytes_raise_anything_but_the_typed_error(noise: bytes) -> None:
    try:
        decode(b"\x01" + noise)
    except AnnouncementError:
        pass


# -- members that act


def settled(world: World, names: set[str]) -> None:
    loads = world.loads()
    assert set(loads) == names
    assert max(loads.values()) - min(loads.values()) <= 1, loads
    assert len(world.holders) == sum(world.counts.values())
    members = {None if group is None else group.members for group in world.groups()}
    assert len(members) == 1, "everybody has the same target"


def test_three_then_four_then_two_members_settle_and_what_stays_never_pauses() -> None:
    """Joining and leaving pause nothing that stays: a partition is released by its owner only when the target gave it to another."""
    world = World(t=12)
    for name in ("a", "b", "c"):
        world.start(name)
    world.run(3)
    settled(world, {"a", "b", "c"})
    before = dict(world.holders)
    world.start("d")
    world.run(3)
    settled(world, {"a", "b", "c", "d"})
    moved = [place for place, owner in world.holders.items() if before[place] != owner]
    assert sorted(place for _, place in world.releases[-len(moved) :]) == sorted(moved)
    assert len(moved) == 3
    before, releases = dict(world.holders), len(world.releases)
    world.leave("a")
    world.leave("b")
    world.run(3)
    settled(world, {"c", "d"})
    assert len(world.releases) == releases
    assert all(world.holders[place] == owner for place, owner in before.items() if owner in ("c", "d"))


def test_thirty_members_at_once_agree_without_moving_everything_with_each_of_them() -> None:
    world = World(t=120)
    for number in range(30):
        world.start(f"m-{number}", lookback=0)
    world.run(5)
    settled(world, {f"m-{number}" for number in range(30)})
    assert len(world.releases) <= 120


def test_a_member_that_starts_to_read_in_the_middle_waits_for_a_summary_and_then_knows_all() -> None:
    world = World(t=9)
    for name in ("a", "b"):
        world.start(name)
    world.run(40)
    before = dict(world.holders)
    world.start("c", lookback=3)
    world.run(2)
    settled(world, {"a", "b", "c"})
    assert sum(before[place] != owner for place, owner in world.holders.items()) == 3


def test_a_killed_member_s_part_is_shared_out_after_its_session() -> None:
    world = World(t=6)
    for name in ("a", "b", "c"):
        world.start(name)
    world.run(3)
    world.kill("a")
    world.run(5)
    world.drop_claims("a")
    world.run(3)
    settled(world, {"b", "c"})


def test_a_static_member_restarted_within_its_session_finds_its_partitions_waiting() -> None:
    world = World(t=6)
    for name in ("a", "b"):
        world.start(name, static_id=f"s-{name}", session_s=30.0)
    world.run(3)
    mine = {place for place, owner in world.holders.items() if owner == "a"}
    group = world.groups()[0]
    world.leave("a")
    world.run(20)
    assert not {place for place, owner in world.holders.items() if owner == "b"} & mine
    world.start("a", static_id="s-a", session_s=30.0)
    world.run(2)
    assert {place for place, owner in world.holders.items() if owner == "a"} == mine
    after = world.groups()[0]
    assert group is not None
    assert after is not None
    assert group.generation == after.generation


def test_a_thawed_member_that_was_taken_for_gone_gives_up_its_part_and_joins_again() -> None:
    world = World(t=6)
    for name in ("a", "b"):
        world.start(name)
    world.run(3)
    world.processes["a"].frozen = True
    world.run(8)
    assert {each.member_id for each in world.processes["b"].balancer.group.members} == {world.processes["b"].balancer.settings.member_id}  # type: ignore[union-attr]
    world.processes["a"].frozen = False
    world.run(3)
    settled(world, {"a", "b"})


def test_the_older_of_two_processes_under_one_client_id_hears_that_it_lost_its_place() -> None:
    world = World(t=4)
    old = world.start("a")
    world.run(2)
    world.processes["a-old"] = world.processes.pop("a")
    world.caught_up_at["a-old"] = 0
    world.start("a")
    world.run(3)
    assert old.balancer.failure is not None
    assert old.balancer.failure.code == GroupCode.FENCED_INSTANCE_ID
    assert world.processes["a"].balancer.failure is None


def test_a_group_whose_log_was_cut_begins_anew_and_its_numbers_go_on() -> None:
    """All members stopped, and what they said is beyond the look back: the first to return says what there is."""
    world = World(t=4)
    world.start("a")
    world.run(2)
    generation = world.groups()[0].generation  # type: ignore[union-attr]
    world.kill("a")
    world.drop_claims("a")
    world.run(10)
    world.start("b", lookback=0)
    world.run(2)
    settled(world, {"b"})
    assert generation >= 1


def test_targets_change_only_when_members_or_partitions_do() -> None:
    world = World(t=7)
    for name in ("a", "b", "c"):
        world.start(name)
    world.run(3)
    targets = []
    for _ in range(10):
        world.run(4)
        targets.append([None if group is None else group.generation for group in world.groups()])
    assert all(before == after for before, after in pairwise(targets))
    world.counts = {"t": 9}
    world.run(3)
    settled(world, {"a", "b", "c"})


def test_a_member_names_topics_or_a_pattern() -> None:
    for topics, pattern in (((), None), (("t",), "t.*")):
        with pytest.raises(ConfigError, match="topics or a pattern"):
            BalancerSettings(group_id="g", client_id="c", member_id="m", topics=topics, pattern=pattern)
    with pytest.raises(ConfigError, match="session_s"):
        BalancerSettings(group_id="g", client_id="c", member_id="m", topics=("t",), session_s=0.1)


def test_a_pattern_s_topics_are_worked_on_by_all_its_members() -> None:
    world = World(**{"logs.a": 4})
    for name in ("a", "b"):
        world.start(name, topics=(), pattern="logs.*")
    world.run(3)
    settled(world, {"a", "b"})
    world.counts = {"logs.a": 4, "logs.b": 3}
    world.run(3)
    settled(world, {"a", "b"})
    assert world.processes["b"].balancer.topics() == ("logs.a", "logs.b")
    assert TopicPartition("logs.b", 0) in world.holders


def test_an_announcement_is_said_again_until_it_is_read_back() -> None:
    world = World(t=2)
    process = world.start("a")
    lost, append = [], world.log.append
    world.log.append = lambda value, at_ms: lost.append(value)  # type: ignore[method-assign]
    world.run(2)
    world.log.append = append  # type: ignore[method-assign]
    assert len([value for value in lost if isinstance(decode(value), Announce)]) >= 2
    world.run(3)
    assert process.balancer.is_member
