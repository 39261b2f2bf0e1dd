"""Members at most once that give a claim back: what the log has committed is handed out before, or is the
next owner's with what it has not.
"""

from __future__ import annotations

import pytest

from holdfast.core.claims.frames import Heartbeat, ReleasingPartition
from holdfast.core.kafka.topic_partition import TopicPartition
from holdfast.core.member.actions import Deliver, Event, Start, Stop
from holdfast.core.member.settings import Delivery
from tests.core.member.world import Node, World

ORDERS = TopicPartition("orders", 0)


def working(**settings: object) -> tuple[World, Node]:
    """Return a world with an interval of 60 s, and the owner of its partition of 1,000 messages."""
    world = World()
    world.marks[ORDERS] = (0, 1000)
    node = world.add("a", delivery=Delivery.AT_MOST_ONCE, release_if_behind=False, **settings)  # type: ignore[arg-type]
    world.run(5)
    assert node.held
    return world, node


def announce(world: World, node: Node, end: int) -> None:
    world.do(node, node.member.messages.fetched("orders", 0, end, world.now_s))


def hand_out(world: World, node: Node, begin: int, end: int) -> None:
    assert node.member.may_deliver("orders", 0, world.now_s)
    world.do(node, node.member.messages.delivered("orders", 0, range(begin, end), world.now_s))


def offset(world: World) -> int | None:
    row = world.row("orders", 0)
    return None if row is None else row.current_offset


@pytest.mark.parametrize("already_draining", [False, True])
def test_a_pause_is_obeyed_at_once_whatever_was_committed_for_hand_out(already_draining: bool) -> None:
    world, node = working(drain_s=100.0)
    announce(world, node, 100)
    world.run(0.1)
    assert node.batches
    if already_draining:
        world.do(node, node.member.fetch_failed("orders", 0, "planned", world.now_s))
    world.pause(600)
    world.run(0.1)
    assert node.all(Stop)
    assert not node.member.may_deliver("orders", 0, world.now_s)
    world.run(2)
    assert (world.owner("orders", 0), offset(world)) == (None, 0), "none of it was handed out"


def test_a_commit_that_is_seen_while_draining_does_not_make_the_drain_endless() -> None:
    world, node = working(drain_s=10.0)
    announce(world, node, 100)
    while not [frame for frame in node.frames(Heartbeat) if frame.current_offset == 100]:
        world.run(0.001)
    world.do(node, node.member.terminate(True, world.now_s))
    world.run(1)
    assert [each.offset_end for each in node.all(Deliver)] == [100]
    assert node.member.may_deliver("orders", 0, world.now_s)
    world.run(10)  # no member takes it
    assert world.owner("orders", 0) is None
    assert node.member.terminated


def test_a_batch_whose_commit_did_not_reach_the_log_is_the_next_owners() -> None:
    """It was announced, the heartbeat that commits it was lost, and then the claim is given back: no user
    was handed any of it.
    """
    world, node = working(drain_s=2.0)
    announce(world, node, 100)
    while not [frame for frame in node.frames(Heartbeat) if frame.current_offset == 100]:
        world.run(0.001)
    node.mute = True
    world.do(node, node.member.fetch_failed("orders", 0, "planned", world.now_s))
    world.run(0.5)
    assert not node.batches
    node.mute = False
    node.deaf = True  # it does not see what it retries, and the drain ends
    heartbeats = [frame for frame in node.frames(Heartbeat) if frame.current_offset == 100]
    world.log[0] = [(at_s, frame) for at_s, frame in world.log[0] if frame not in heartbeats]
    assert offset(world) == 0
    node.mute = True
    world.run(2)
    node.mute = node.deaf = False
    other = world.add("b", delivery=Delivery.AT_MOST_ONCE)
    world.run(120)
    assert {frame.current_offset for frame in node.frames(ReleasingPartition)} == {0}
    assert [start.offset for start in other.all(Start)] == [0]


def test_messages_committed_too_late_to_be_handed_out_are_the_next_owners() -> None:
    world, node = working(drain_s=2.0)
    announce(world, node, 100)
    while not [frame for frame in node.frames(Heartbeat) if frame.current_offset == 100]:
        world.run(0.001)
    node.deaf = True
    world.do(node, node.member.fetch_failed("orders", 0, "planned", world.now_s))
    world.run(3)
    assert node.all(Stop)
    node.deaf = False
    world.run(3)
    assert not node.batches
    assert offset(world) == 0
    assert not node.events(Event.UNDELIVERED)
