"""Members of a balanced group that act on what they read, on a simulated log."""

from __future__ import annotations

from itertools import pairwise

import pytest

from holdfast.core.groups.announcements import Announce, Summary, decode
from holdfast.core.groups.balancer import BEATS_A_SESSION, LOOK_S, BalancerSettings
from holdfast.core.groups.codes import GroupCode
from holdfast.core.kafka.topic_partition import TopicPartition
from holdfast.errors import ConfigError
from tests.core.groups.balancing import STEP_S, World


def settled(world: World, names: set[str]) -> None:
    loads = world.loads()
    assert set(loads) == names
    assert max(loads.values()) - min(loads.values()) <= 1, loads
    assert len(world.holders) == sum(world.counts.values())
    members = {None if group is None else group.members for group in world.groups()}
    assert len(members) == 1, "everybody has the same target"


def test_three_then_four_then_two_members_settle_and_what_stays_never_pauses() -> None:
    """Joining and leaving pause no partition that stays: a partition is released by its owner only when the
    target gave it to another.
    """
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


@pytest.mark.long
def test_thirty_members_at_once_agree_without_moving_everything_with_each_of_them() -> None:
    world = World(t=120)
    for number in range(30):
        world.start(f"m-{number}", lookback=0)
    world.run(5)
    settled(world, {f"m-{number}" for number in range(30)})
    assert len(world.releases) <= 120


def test_a_fleet_started_over_some_seconds_claims_once_and_gives_nothing_back() -> None:
    world = World(t=40)
    for number in range(8):
        world.start(f"m-{number}", lookback=0)
        world.run(0.6)
        assert not world.holders
    world.run(3)
    settled(world, {f"m-{number}" for number in range(8)})
    assert not world.releases


@pytest.mark.long
def test_a_fleet_at_once_leaves_its_summary_to_the_first_of_it() -> None:
    """Each of them reads what all others write: fifty who try again and again would read nothing else."""
    world = World(t=100, latency_s=0.3)
    for number in range(50):
        world.start(f"m-{number}", lookback=0)
        world.run(STEP_S)
    world.run(5)
    settled(world, {f"m-{number}" for number in range(50)})
    assert sum(isinstance(decode(value), Summary) for value, _ in world.log.records) <= 60


def test_a_partition_that_moves_is_unowned_only_for_as_long_as_the_others_need_to_read_it() -> None:
    world = World(t=12)
    for name in ("a", "b", "c"):
        world.start(name)
    world.run(4)
    world.start("d")
    idle = longest = 0
    for _ in range(60):
        world.run(STEP_S)
        idle = idle + 1 if len(world.holders) < 12 else 0
        longest = max(longest, idle)
    settled(world, {"a", "b", "c", "d"})
    assert longest <= 2


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


@pytest.mark.parametrize("apart_s", [0.0, 0.3, 0.6, 0.9])
def test_a_killed_member_s_part_is_aimed_for_as_soon_as_its_session_is_over_though_all_were_silent(
    apart_s: float,
) -> None:
    world = World(t=6)
    world.start("a")
    world.run(1.2 + apart_s)
    world.start("b")
    world.run(3)
    victim, left = world.processes["a"].balancer, world.processes["b"].balancer
    world.kill("a")
    signs = [(decode(value), at_ms) for value, at_ms in world.log.records]
    last_s = (
        max(at_ms for said, at_ms in signs if getattr(said, "member_id", None) == victim.settings.member_id)
        / 1_000
    )
    over_s = last_s + victim.settings.session_s
    world.run(over_s - world.now_s - STEP_S)
    assert len(left.aim(world.now_s)) == 3
    world.run(LOOK_S + 4 * STEP_S)  # to speak, to read it, and a step for each to be noticed
    assert len(left.aim(world.now_s)) == 6


def test_members_that_live_speak_hardly_more_often_than_their_beats() -> None:
    world = World(t=6)
    for name in ("a", "b", "c"):
        world.start(name)
    world.run(3)
    before = len(world.log.records)
    world.run(60)
    beats = 3 * 60 * BEATS_A_SESSION / 6.0
    assert len(world.log.records) - before <= 1.1 * beats


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
    assert {each.member_id for each in world.processes["b"].balancer.group.members} == {  # type: ignore[union-attr]
        world.processes["b"].balancer.settings.member_id
    }
    world.processes["a"].frozen = False
    world.run(3)
    settled(world, {"a", "b"})


def test_the_older_of_two_processes_under_one_client_id_hears_that_it_was_replaced() -> None:
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


def test_a_group_whose_log_was_cut_begins_again_and_its_numbers_continue() -> None:
    """All members stopped, and their announcements are beyond the look back: the first to return announces
    what there is.
    """
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
