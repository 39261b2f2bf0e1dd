"""Members on a simulated log that give claims back: drains, the end of a member, pauses."""

from __future__ import annotations

import pytest

from holdfast.core.claims.frames import ReleasingPartition
from holdfast.core.member.actions import Event, Start, Stop
from holdfast.errors import ClaimLostError
from tests.core.member.world import ORDERS, World, row_offset, working

# -- giving back


def test_a_release_waits_for_messages_in_flight_and_no_longer_than_the_drain_window() -> None:
    """D21: their commits count."""
    world, node = working(drain_s=10.0)
    tokens = world.deliver(node, "orders", 0, range(3))
    world.do(node, node.member.terminate(True, world.now_s))
    assert node.all(Stop)
    assert not node.frames(ReleasingPartition)
    world.run(3)
    world.commit(node, *tokens)
    (release,) = node.frames(ReleasingPartition)
    assert release.current_offset == 3
    world.run(1)
    assert node.member.terminated

    world, node = working(drain_s=10.0)
    tokens = world.deliver(node, "orders", 0, range(3))
    world.do(node, node.member.terminate(True, world.now_s))
    world.commit(node, tokens[0])
    world.run(9.9)
    assert not node.frames(ReleasingPartition)
    world.run(0.2)
    (release,) = node.frames(ReleasingPartition)
    assert release.current_offset == 1
    with pytest.raises(ClaimLostError):
        world.commit(node, tokens[1])


def test_the_shell_may_withdraw_what_it_did_not_hand_out() -> None:
    world, node = working()
    tokens = world.deliver(node, "orders", 0, range(100))
    world.do(node, node.member.terminate(True, world.now_s))
    world.do(node, node.member.messages.withdrawn("orders", 0, 2, world.now_s))
    world.commit(node, *tokens[:2])
    (release,) = node.frames(ReleasingPartition)
    assert release.current_offset == 2


def test_a_claim_that_is_drained_stays_owned_until_then() -> None:
    world, node = working(drain_s=100.0, release_if_behind=False)
    world.deliver(node, "orders", 0, [0])
    world.do(node, node.member.terminate(True, world.now_s))
    rival = world.add("b")
    world.run(90)
    assert world.owner("orders", 0) == "a"
    world.run(20)
    assert rival.held


def test_terminating_without_release_leaves_the_claim_with_a_last_heartbeat() -> None:
    """TestTerminate, TestCommitOutstanding"""
    world, node = working()
    tokens = world.deliver(node, "orders", 0, range(5))
    world.commit(node, tokens[0], tokens[3])
    world.do(node, node.member.terminate(False, world.now_s))
    assert not node.held
    world.run(1)
    assert node.member.terminated
    assert (world.owner("orders", 0), row_offset(world)) == ("a", 1)
    assert node.member.wake_at_s() == float("inf")
    world.run(300)
    assert world.owner("orders", 0) == "a"


def test_terminating_ends_by_its_deadline_when_the_broker_is_gone() -> None:
    """D10, D12"""
    for release in (True, False):
        world, node = working(drain_s=1.0)
        node.mute = node.deaf = True
        world.deliver(node, "orders", 0, [0])
        world.do(node, node.member.terminate(release, world.now_s))
        world.run(32)
        assert node.member.terminated
        assert not node.held


def test_an_attempt_that_is_won_while_terminating_is_given_back() -> None:
    world = World(delay_s=0.5)
    world.heartbeat("x", "orders", 0, 9)
    world.releasing("x", "orders", 0, 9)
    node = world.add()
    while not node.frames():
        world.run(0.1)
    world.do(node, node.member.terminate(True, world.now_s))
    world.run(10)
    assert node.member.terminated
    assert world.owner("orders", 0) is None
    assert not node.all(Start)


# -- pauses


def test_a_pause_empties_the_group_within_a_health_period_and_it_resumes_at_exactly_the_offsets_set_0_included() -> (  # noqa: E501
    None
):
    """M13"""
    world = World({"orders": 2})
    world.marks[ORDERS] = (0, 1000)
    nodes = [world.add(f"c{number}", seed=number) for number in range(3)]
    world.run(20)
    assert sum(len(node.held) for node in nodes) == 2
    for node in nodes:
        for topic, partition in sorted(node.held):
            world.commit(node, *world.deliver(node, topic, partition, range(70)))
    paused_s = world.now_s
    world.pause(600)
    world.run(0.01)
    assert not any(
        node.member.may_deliver(topic, partition, world.now_s)
        for node in nodes
        for topic, partition in (ORDERS, ("orders", 1))
    )
    world.run(45)
    assert world.owner("orders", 0) is None
    assert world.owner("orders", 1) is None
    for partition, offset in ((0, 100), (1, 0)):
        world.claiming("admin", "orders", partition)
        world.heartbeat("admin", "orders", partition, 70)
        world.releasing("admin", "orders", partition, offset)
    late = world.add("late", seed=9)
    world.run(600 - 45 - 1)
    after = [
        (at_s, frame)
        for at_s, frame in world.log[0]
        if at_s > paused_s + 45 and getattr(frame, "client_id", "") != "admin"
    ]
    assert after == []
    world.run(60)
    starts = {
        (start.partition, start.offset)
        for node in (*nodes, late)
        for at_s, start in node.done
        if isinstance(start, Start) and at_s > paused_s
    }
    assert starts == {(0, 100), (1, 0)}
    assert sum(len(node.events(Event.PAUSED)) for node in nodes) == 3
    assert sum(len(node.events(Event.RESUMED)) for node in nodes) == 3


def test_a_pause_can_be_lifted_early() -> None:
    world, node = working()
    world.pause(600)
    world.run(20)
    assert not node.held
    world.pause(-1)
    world.run(5)
    assert node.held


def test_messages_in_flight_when_the_pause_comes_get_their_drain_window() -> None:
    world, node = working(drain_s=10.0)
    tokens = world.deliver(node, "orders", 0, range(3))
    world.pause(100)
    world.run(5)
    assert node.all(Stop)
    world.commit(node, *tokens)
    world.run(1)
    assert (world.owner("orders", 0), row_offset(world)) == (None, 3)
