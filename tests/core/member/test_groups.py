"""Members on a simulated log, and what goes beyond single claims: whole topics, targets, two processes of
one name, clocks.
"""

from __future__ import annotations

from holdfast.core.claims.frames import ClaimingPartition, Heartbeat
from holdfast.core.member.actions import Event, Start
from holdfast.errors import ClockSkewError, InstanceConflictError
from tests.core.member.world import World, held_by

# -- whole topics


def test_partition_0_is_the_key_to_a_whole_topic() -> None:
    """M11: another's partition 0 blocks the topic; when it goes free, all partitions are claimed, and
    reported once.
    """
    world = World({"orders": 3})
    world.heartbeat("x", "orders", 0, 0)
    node = world.add(whole_topic=True)
    world.run(60)
    assert not node.frames()
    world.releasing("x", "orders", 0, 0)
    world.run(10)
    assert held_by(world, node) == [{0, 1, 2}]
    assert [told.topics for told in node.events(Event.TOPICS)] == [("orders",)]
    assert node.member.topics_held == ("orders",)


def test_losing_one_partition_of_a_whole_topic_gives_back_the_rest_and_is_reported_once() -> None:
    """M11: p1 lost, p0 and p2 released; exactly one notification for each change."""
    world = World({"orders": 3})
    node = world.add("a", whole_topic=True)
    world.run(10)
    assert held_by(world, node) == [{0, 1, 2}]
    world.do(node, node.member.fetch_failed("orders", 1, "offset out of range", world.now_s))
    assert node.held == {("orders", 0), ("orders", 2)} or not node.held
    world.run(0.1)
    assert not node.held
    assert [told.topics for told in node.events(Event.TOPICS)] == [("orders",), ()]


def test_a_partition_of_the_topic_that_another_holds_is_claimed_when_it_goes_free() -> None:
    """M11: p1 is another's: we hold p0 and p2, later all."""
    world = World({"orders": 3})
    world.heartbeat("x", "orders", 1, 0)
    node = world.add(whole_topic=True)
    world.run(10)
    assert held_by(world, node) == [{0, 2}]
    world.releasing("x", "orders", 1, 0)
    world.run(10)
    assert held_by(world, node) == [{0, 1, 2}]
    assert len(node.events(Event.TOPICS)) == 1


def test_the_limit_counts_topics_in_whole_topic_mode() -> None:
    """M10, TestMultiTopicClaimWithLimit"""
    world = World({"orders": 2, "clicks": 3})
    limited = world.add("a", whole_topic=True, maximum_claims=1)
    world.run(60)
    assert len({topic for topic, _ in limited.held}) == 1
    assert len(limited.held) in (2, 3)


# -- two under one name


def test_of_two_processes_under_one_client_id_the_older_ends_with_an_error_within_a_heartbeat() -> None:
    """D17"""
    world = World({"orders": 2})
    old = world.add("a", "i1", greedy=True)
    world.run(10)
    new = world.add("a", "i2", greedy=True)
    began_s = world.now_s
    world.run(44)
    assert isinstance(old.error, InstanceConflictError)
    assert "i2" in str(old.error)
    failed_s = next(at_s for at_s, action in old.done if type(action).__name__ == "Fail")
    assert failed_s - began_s < 44
    assert not old.held
    assert old.member.terminated
    assert held_by(world, new) == [{0, 1}]
    assert new.error is None


def test_two_processes_that_start_together_agree_on_which_works() -> None:
    """D17: whichever the log names first ends; over many starts never both, never none."""
    for seed in range(12):
        world = World({"orders": 4}, logs=1, delay_s=0.5)
        one = world.add("a", "i1", seed=seed)
        two = world.add("a", "i2", seed=100 + seed)
        world.run(200)
        errors = [node.error for node in (one, two)]
        assert sum(isinstance(error, InstanceConflictError) for error in errors) == 1, seed
        works = one if one.error is None else two
        assert held_by(world, works) == [{0, 1, 2, 3}]


def test_a_late_frame_of_the_process_before_ends_no_member() -> None:
    world = World()
    node = world.add("a", "i2")
    world.run(10)
    world.append(Heartbeat(1_700_000_000, "i1", "a", "g", "orders", 0, 0))
    world.run(300)
    assert node.error is None
    assert node.held == {("orders", 0)}


# -- clocks


def test_a_clock_too_far_from_the_brokers_is_refused_before_anything_is_consumed() -> None:
    """D3"""
    for skew_s in (45.0, -45.0, 3600.0, -3600.0):
        world = World()
        world.heartbeat("x", "other", 0, 1)
        node = world.add(skew_s=skew_s)
        world.run(200)
        assert isinstance(node.error, ClockSkewError), skew_s
        assert ("ahead" in str(node.error)) == (skew_s > 0)
        assert not node.all(Start)


def test_a_clock_within_the_limit_or_that_jumps_later_neither_frees_nor_holds_a_claim() -> None:
    """D3: the broker's time decides; a jump of our clock is only reported."""
    world = World()
    node = world.add("a", skew_s=-20.0)
    world.run(60)
    assert node.held
    node.skew_s = 500.0
    world.run(60)
    assert node.error is None
    assert node.events(Event.CLOCK_SKEW)
    rival = world.add("b")
    world.run(300)
    assert node.held
    assert not rival.held


# -- targets


def test_a_member_with_a_target_claims_what_it_names_and_hands_over_the_rest() -> None:
    world = World({"orders": 4})
    a = world.add("a", balanced=True)
    b = world.add("b", balanced=True)
    world.run(100)
    assert not a.frames()
    world.do(a, a.member.aim([("orders", partition) for partition in range(4)], world.now_s))
    world.run(1)
    assert held_by(world, a, b) == [{0, 1, 2, 3}, set()]
    kept = [a.started[place].epoch for place in sorted(a.started)[:2]]
    world.do(a, a.member.aim([("orders", 0), ("orders", 1)], world.now_s))
    world.do(b, b.member.aim([("orders", 2), ("orders", 3)], world.now_s))
    world.run(1)
    assert held_by(world, a, b) == [{0, 1}, {2, 3}]
    assert [a.started[place].epoch for place in sorted(a.started)] == kept
    assert len(a.all(Start)) == 4
    world.do(b, b.member.aim([], world.now_s))
    world.do(a, a.member.aim([("orders", partition) for partition in range(4)], world.now_s))
    world.run(1)
    assert held_by(world, a, b) == [{0, 1, 2, 3}, set()]


def test_a_static_member_that_returns_before_it_gets_its_target_changes_nothing() -> None:
    world = World({"orders": 2})
    first = world.add("a", balanced=True)
    world.do(first, first.member.aim([("orders", 0), ("orders", 1)], world.now_s))
    world.run(5)
    world.kill(first)
    again = world.add("a", balanced=True)
    world.run(1)
    assert held_by(world, again) == [{0, 1}]
    world.do(again, again.member.aim([("orders", 0), ("orders", 1)], world.now_s))
    world.run(1)
    assert len(again.all(Start)) == 2
    assert not again.frames(ClaimingPartition)


def test_topics_can_come_and_go() -> None:
    world = World({"orders": 2})
    node = world.add(greedy=True)
    world.run(5)
    world.topics["clicks"] = 2
    world.do(node, node.member.topics(["clicks"], world.now_s))
    world.do(node, node.member.partitions("clicks", 2, world.now_s))
    world.run(10)
    assert node.held == {("clicks", 0), ("clicks", 1)}
    assert world.owner("orders", 0) is None
    world.do(node, node.member.topics(["clicks", "orders"], world.now_s))
    world.run(10)
    assert len(node.held) == 4
