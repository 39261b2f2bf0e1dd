"""Members on a simulated log that hold claims: leases, commits, health, and what it costs."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest

from holdfast.core.claims.frames import ClaimingPartition, Frame, Heartbeat, ReleasingPartition
from holdfast.core.member.actions import CommitOffset, Event, ReleaseReason, Send
from holdfast.core.member.member import Member
from holdfast.errors import ClaimLostError
from tests.core.member.world import ORDERS, World, reasons, row_offset, working

# -- leases


def test_heartbeats_keep_the_claim_and_come_within_a_quarter_to_three_quarters_of_the_interval() -> None:
    world, node = working(release_if_behind=False)
    world.run(3600)
    sent = [
        at_s for at_s, action in node.done if isinstance(action, Send) and isinstance(action.frame, Heartbeat)
    ]
    gaps = [later - earlier for earlier, later in pairwise(sent)]
    assert min(gaps) >= 15
    assert max(gaps) <= 45
    assert node.held
    assert node.member.may_deliver("orders", 0, world.now_s)


def test_delivery_stops_before_anybody_else_can_have_the_claim() -> None:
    """The lease counts from when the last heartbeat that was accepted was sent: a process that freezes
    hands out nothing after it.
    """
    world, node = working(release_if_behind=False)
    world.run(100)
    rival = world.add("b", release_if_behind=False)
    world.run(1)
    node.alive = False  # frozen: neither ticks nor reads, and thaws at any moment
    gate_s = node.member.deliver_until_s("orders", 0)
    world.run(300)
    taken_s = next(
        appended_s
        for appended_s, frame in world.log[0]
        if isinstance(frame, ClaimingPartition) and frame.client_id == "b"
    )
    assert rival.held
    assert gate_s < taken_s
    assert taken_s - gate_s < 15
    assert not node.member.may_deliver("orders", 0, world.now_s)
    node.alive = True
    tokens = world.deliver(node, "orders", 0, [0])
    world.run(1)
    assert not node.held
    with pytest.raises(ClaimLostError):
        world.commit(node, *tokens)
    assert rival.held


def test_a_member_that_cannot_see_the_log_stops_although_its_heartbeats_arrive() -> None:
    """A heartbeat counts when it is seen in the log as accepted: an acknowledgement says nothing about who
    owns the claim.
    """
    world, node = working(release_if_behind=False)
    node.deaf = True
    world.run(130)
    assert not node.held
    assert ReleaseReason.EXPIRED in reasons(node)


def test_heartbeats_that_the_broker_refuses_are_repeated_and_in_the_end_the_claim_is_given_up_in_time() -> (
    None
):
    """D14: a heartbeat that failed renews nothing."""
    world, node = working(release_if_behind=False)
    node.mute = True
    world.run(40)
    gate_s = node.member.deliver_until_s("orders", 0)
    assert gate_s < 5 + 120
    assert len(node.frames(Heartbeat)) > 3
    world.run(60)
    assert not node.held
    assert ReleaseReason.EXPIRED in reasons(node)


def test_a_fenced_owner_stops_at_the_first_frame_that_says_so() -> None:
    world, node = working()
    world.append(Heartbeat(1_700_000_005, "a-new", "a", "g", "orders", 0, 0))
    world.run(0.01)
    assert not node.held
    assert not node.member.may_deliver("orders", 0, world.now_s)
    assert node.events(Event.FENCED)


def test_a_claim_lost_and_won_again_is_another_claim() -> None:
    world, node = working()
    tokens = world.deliver(node, "orders", 0, range(3))
    world.append(ReleasingPartition(1_700_000_005, "a0", "a", "g", "orders", 0, 0))
    world.run(0.01)
    assert not node.held
    world.run(10)
    assert node.held
    with pytest.raises(ClaimLostError):
        world.commit(node, tokens[0])


def test_a_heartbeat_repeated_late_does_not_make_the_log_lag() -> None:
    """Offsets never go back: what a late repetition sets back is put right at once."""
    world, node = working()
    first = node.frames(Heartbeat)[0]
    world.commit(node, *world.deliver(node, "orders", 0, range(50)))
    world.do(node, node.member.messages.flush(world.now_s))
    world.run(1)
    assert row_offset(world) == 50
    world.append(first)
    world.run(0.02)
    assert row_offset(world) == 50


def test_a_heartbeat_that_arrives_after_the_release_is_answered_by_another_release() -> None:
    world, node = working()
    world.do(node, node.member.fetch_failed("orders", 0, "gone", world.now_s))
    world.run(1)
    assert world.owner("orders", 0) is None
    world.append(Heartbeat(1_700_000_005, "a0", "a", "g", "orders", 0, 0))
    world.run(0.02)
    assert world.owner("orders", 0) is None


# -- commits


def test_commits_out_of_order_and_flush_write_the_first_hole_to_the_log_and_to_the_group() -> None:
    """M7, TestFlush"""
    world, node = working()
    tokens = world.deliver(node, "orders", 0, range(6))
    seen = []
    for message in (1, 3, 2, 4, 5, 6):
        world.commit(node, tokens[message - 1])
        flushed = node.member.messages.flushing()
        world.do(node, node.member.messages.flush(world.now_s))
        world.run(0.1)
        assert flushed()
        seen.append(row_offset(world))
    assert seen == [1, 1, 3, 4, 5, 6]
    assert [action.offset for action in node.all(CommitOffset)] == [0, 1, 3, 4, 5, 6]
    assert len(node.frames(Heartbeat)) == 6  # the set-up's and one for each advance


def test_a_flush_of_a_claim_that_is_lost_in_that_time_is_not_taken_for_done() -> None:
    world, node = working(release_if_behind=False)
    tokens = world.deliver(node, "orders", 0, range(2))
    world.commit(node, *tokens)
    node.alive = False  # what it writes from now on comes too late
    rival = world.add("b", release_if_behind=False)
    world.run(300)
    assert rival.held
    flushed = node.member.messages.flushing()
    assert not flushed()
    node.alive = True
    world.run(1)
    with pytest.raises(ClaimLostError, match="lost before the log had its offset 2"):
        flushed()


def test_a_flush_waits_neither_for_claims_released_with_their_offsets_nor_for_untouched_ones() -> None:
    world, node = working(release_if_behind=False)
    nothing_done = node.member.messages.flushing()
    tokens = world.deliver(node, "orders", 0, range(2))
    world.commit(node, *tokens)
    flushed = node.member.messages.flushing()
    world.do(node, node.member.terminate(True, world.now_s))
    in_release = node.member.messages.flushing()
    world.run(5)
    assert not node.member.claims
    assert row_offset(world) == 2
    assert flushed()
    assert in_release()
    assert nothing_done()


def test_whole_batches_are_committed_in_one_step() -> None:
    world, node = working()
    epoch = node.started[ORDERS].epoch
    world.do(node, node.member.messages.delivered("orders", 0, range(500), world.now_s))
    world.do(node, node.member.messages.commit_many("orders", 0, epoch, range(500), world.now_s))
    assert node.member.outstanding("orders", 0) == 0
    assert node.member.claims[ORDERS].offset == 500
    assert node.member.lag == 500


def test_too_many_messages_in_flight_close_the_gate_until_some_are_done() -> None:
    world, node = working(maximum_outstanding=10)
    tokens = world.deliver(node, "orders", 0, range(10))
    assert not node.member.may_deliver("orders", 0, world.now_s)
    world.commit(node, tokens[3])
    assert node.member.may_deliver("orders", 0, world.now_s)


def test_lanes_and_holes_move_the_offset_on_when_nothing_is_in_flight() -> None:
    world, node = working()
    tokens = world.deliver(node, "orders", 0, [4, 9])
    world.do(node, node.member.messages.skipped("orders", 0, 100, world.now_s))
    world.commit(node, *tokens)
    world.do(node, node.member.messages.flush(world.now_s))
    world.run(0.1)
    assert row_offset(world) == 100


# -- health


def test_an_owner_that_lags_gives_the_claim_back_and_lets_others_go_first() -> None:
    """M8, TestUnhealthyReclaim: three checks with a lag, then not claimed again inside the cooldown, and
    after it claimed.
    """
    world, node = working()
    world.marks[ORDERS] = (0, 10_000)
    for step in range(30):
        if not node.held:
            break
        if step < 29:
            for at in range(3):
                world.commit(node, *world.deliver(node, "orders", 0, [3 * step + at]))
        world.marks[ORDERS] = (0, 10_000 + 5_000 * step)
        world.look(node, ORDERS)
        world.run(15)
    assert reasons(node) == [ReleaseReason.BEHIND]
    world.run(15)
    (released_s,) = [
        at_s
        for at_s, action in node.done
        if isinstance(action, Send) and isinstance(action.frame, ReleasingPartition)
    ]
    world.run(100)
    again_s = next(
        at_s
        for at_s, action in node.done
        if isinstance(action, Send) and isinstance(action.frame, ClaimingPartition) and at_s > released_s
    )
    assert 60 <= again_s - released_s < 80


def test_a_wedged_owner_releases_and_one_with_nothing_to_read_keeps() -> None:
    """M9"""
    for latest, expected in ((1, [ReleaseReason.WEDGED]), (0, [])):
        for behind in (True, False):
            world = World()
            world.marks[ORDERS] = (0, latest)
            node = world.add(release_if_behind=behind)
            world.run(105)
            assert reasons(node)[:1] == (expected if behind else [])


def test_balanced_groups_and_whole_topics_do_not_release_for_being_slow() -> None:
    world = World()
    world.marks[ORDERS] = (0, 5)
    node = world.add(balanced=True)
    world.do(node, node.member.aim([ORDERS], world.now_s))
    world.run(1000)
    assert node.held
    assert not reasons(node)


# -- cost


@pytest.mark.long
def test_a_member_of_a_thousand_partitions_ticks_and_observes_in_little_time() -> None:
    world = World({"orders": 1000}, interval_s=3.0)
    node = world.add(greedy=True, release_if_behind=False)
    world.run(3)
    assert len(node.held) == 1000
    member: Member = node.member
    ticks = []
    frames: list[Frame] = []
    for step in range(100):
        now_s = world.now_s + step * 0.01
        began_s = time.process_time()
        actions = member.tick(now_s)
        ticks.append(time.process_time() - began_s)
        frames += [action.frame for action in actions if isinstance(action, Send)]
    assert len(frames) > 200
    assert sorted(ticks)[50] < 0.002
    offset = len(world.log[0])
    began_s = time.process_time()
    for index, frame in enumerate(frames):
        member.observe(frame, 0, offset + index, world.at_ms(world.now_s + 1), world.now_s + 1)
    assert (time.process_time() - began_s) / len(frames) < 0.0002
