"""Members on a simulated log, delivery: at most once in its two steps, and what a crash repeats at least
once.
"""

from __future__ import annotations

import pytest

from holdfast.core.claims.frames import ClaimingMessages, Heartbeat
from holdfast.core.member.actions import Deliver, DeliveryToken, Start
from holdfast.core.member.settings import Delivery
from tests.core.member.world import ORDERS, Node, World, row_offset, working

# -- at most once


def batch(world: World, node: Node, end: int) -> None:
    world.do(node, node.member.messages.fetched("orders", 0, end, world.now_s))


def test_a_batch_is_handed_out_only_after_the_log_has_committed_it() -> None:
    """M15: the six steps, frame by frame."""
    world, node = working(delivery=Delivery.AT_MOST_ONCE)
    batch(world, node, 100)
    assert isinstance(node.frames()[-1], ClaimingMessages)
    assert not node.batches
    world.run(0.1)
    assert [action.offset_end for action in node.batches] == [100]
    delivered_s = next(at_s for at_s, action in node.done if isinstance(action, Deliver))
    committed_s = next(
        at_s for at_s, frame in world.log[0] if isinstance(frame, Heartbeat) and frame.current_offset == 100
    )
    assert committed_s < delivered_s
    world.do(node, node.member.messages.delivered("orders", 0, range(100), world.now_s))
    world.commit(node, DeliveryToken("orders", 0, 5, node.started[ORDERS].epoch))
    batch(world, node, 130)
    world.run(0.1)
    assert len(node.batches) == 2


@pytest.mark.parametrize("cut_s", [0.0, 0.001, 0.003, 0.005, 0.007, 0.009, 0.02])
def test_a_crash_at_any_moment_delivers_a_batch_once_or_never(cut_s: float) -> None:
    """M15: after ClaimingMessages, after the Heartbeat, after the hand-out: the next owner never repeats
    messages that were handed out.
    """
    world, node = working(delivery=Delivery.AT_MOST_ONCE)
    rival = world.add("b", delivery=Delivery.AT_MOST_ONCE, release_if_behind=False)
    batch(world, node, 100)
    world.run(cut_s)
    handed = bool(node.batches)
    world.kill(node)
    world.run(300)
    (start,) = rival.all(Start)
    assert start.offset in (0, 100)
    if handed:
        assert start.offset == 100


def test_a_takeover_between_announcement_and_commit_leaves_the_batch_to_the_new_owner() -> None:
    world, node = working(delivery=Delivery.AT_MOST_ONCE)
    node.deaf = True
    batch(world, node, 100)
    world.run(0.003)
    world.append(Heartbeat(1_700_000_005, "new", "a", "g", "orders", 0, 0))
    node.deaf = False
    world.run(1)
    assert not node.batches
    assert row_offset(world) == 0


def test_a_lost_announcement_or_commit_is_sent_again() -> None:
    world, node = working(delivery=Delivery.AT_MOST_ONCE)
    node.mute = True
    batch(world, node, 100)
    world.run(5)
    assert not node.batches
    node.mute = False
    world.run(5)
    assert len(node.batches) == 1


def test_a_release_at_most_once_waits_until_the_committed_batch_is_handed_out() -> None:
    world, node = working(delivery=Delivery.AT_MOST_ONCE, drain_s=10.0)
    batch(world, node, 100)
    while not any(isinstance(frame, Heartbeat) and frame.current_offset == 100 for frame in node.frames()):
        world.run(0.001)
    world.do(node, node.member.terminate(True, world.now_s))
    world.run(1)
    assert len(node.batches) == 1
    assert node.member.may_deliver("orders", 0, world.now_s)
    world.do(node, node.member.messages.delivered("orders", 0, range(100), world.now_s))
    assert not node.held
    world.run(1)
    assert (world.owner("orders", 0), row_offset(world)) == (None, 100)


def test_at_least_once_a_crash_repeats_no_more_than_a_heartbeat_interval() -> None:
    """M15: messages committed before the last heartbeat are not delivered again."""
    world, node = working(release_if_behind=False)
    committed: list[tuple[float, int]] = []
    for offset in range(200):
        world.commit(node, *world.deliver(node, "orders", 0, [offset]))
        committed.append((world.now_s, offset))
        world.run(1)
    world.kill(node)
    rival = world.add("b", release_if_behind=False)
    world.run(300)
    (start,) = rival.all(Start)
    again = [at_s for at_s, offset in committed if offset >= start.offset]
    assert len(again) <= 46
