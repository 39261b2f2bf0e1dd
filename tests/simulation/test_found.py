"""Defects that the simulation found: each of them once more, on its own."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.claims.frames import (
    ClaimingMessages,
    ClaimingPartition,
    Heartbeat,
    ReleaseGroup,
    ReleasingPartition,
)
from holdfast.core.member.actions import Deliver, Event, ReleaseReason, Send, Start
from holdfast.core.member.logs.log_view import LogView
from holdfast.core.member.settings import Delivery, MemberSettings
from tests.core.member.world import BEGAN_S, World


def test_late_frames_of_a_dead_process_do_not_end_its_successor() -> None:
    """Frames of the last process arrive in one burst after the restart, and one of them twice: their writer
    is dead.
    """
    world = World({"orders": 3}, interval_s=4.0)
    other = world.add("b", greedy=True)
    world.run(10.0)
    assert len(other.held) == 3
    successor = world.add("a", "a.2")
    late = [
        Heartbeat(int(BEGAN_S + world.now_s) - age_s, "a.1", "a", "g", "orders", 0, 5) for age_s in (4, 2, 0)
    ]
    for frame in late:
        world.append(frame)
    world.run(3.0)
    world.append(late[-1])
    world.run(10.0)
    assert successor.error is None
    assert successor.events(Event.RIVAL) == []


def test_of_two_processes_that_both_write_the_older_ends() -> None:
    """The counterpart: the rule for late frames does not hide a live rival (D17)."""
    world = World({"orders": 3}, interval_s=4.0)
    old = world.add("a", "a.1", greedy=True)
    world.run(10.0)
    new = world.add("a", "a.2")
    world.run(1.25 * 4.0 + 1.0)
    assert type(old.error).__name__ == "InstanceConflictError"
    assert new.error is None
    world.run(4.0)
    assert len(new.held) == 3


def test_an_acknowledgement_that_fails_late_keeps_no_member_awake() -> None:
    """At most once: the log has shown the announced batch, and then its producer reports that its fate is
    unknown.
    """
    world = World(interval_s=4.0)
    node = world.add("a", delivery=Delivery.AT_MOST_ONCE)
    world.run(1.0)
    member: Any = node.member
    told, held = member.sent, list[int]()

    def late(send_id: int, ok: bool, now_s: float) -> list[Any]:
        announced = any(
            send.send_id == send_id and isinstance(send.frame, ClaimingMessages) for send in node.all(Send)
        )
        if announced:
            held.append(send_id)
            return []
        return told(send_id, ok, now_s)  # type: ignore[no-any-return]

    member.sent = late
    world.do(node, member.messages.fetched("orders", 0, 5, world.now_s))
    world.run(0.1)
    assert [each.offset_end for each in node.all(Deliver)] == [5]
    world.do(node, told(held[0], False, world.now_s))
    world.run(3.5)
    world.do(node, member.tick(world.now_s))
    assert member.wake_at_s() > world.now_s


def test_a_member_whose_clock_is_wrong_claims_no_partition_of_live_go_members() -> None:
    """The log's time decides if a Go member lives; by a clock that is far ahead no Go member would."""
    world = World({"orders": 2})
    node = world.add("a", interop=True)
    world.run(10.0)
    assert len(node.held) == 2
    node.skew_s = 1e6
    for offset in range(20):
        # In the Go library's view, frames of our time are no claim: it takes the partition, and works.
        world.claiming("go", "orders", 0) if offset == 0 else world.heartbeat("go", "orders", 0, offset)
        world.run(30.0)
    late = [action.frame for at_s, action in node.done if at_s > 60 and isinstance(action, Send)]
    assert [frame for frame in late if isinstance(frame, ClaimingPartition) and frame.partition == 0] == []


def test_other_members_actions_do_not_end_the_cooldown_of_the_member_that_gave_a_partition_up() -> None:
    world = World()
    node = world.add("a", release_if_behind=True)
    world.run(1.0)
    world.marks[next(iter(node.started))] = (0, 1000)
    while not [
        each
        for each in node.events(Event.RELEASED)
        if each.reason in (ReleaseReason.WEDGED, ReleaseReason.BEHIND)
    ]:
        for place in list(node.started):
            world.look(node, place)
        world.run(5.0)
        assert world.now_s < 600
    released_s = world.now_s
    world.claiming("b", "orders", 0)
    world.releasing("b", "orders", 0, 0)
    world.run(45.0)
    assert not [at_s for at_s, action in node.done if isinstance(action, Send) and at_s > released_s]
    world.run(30.0)
    assert node.held


def test_the_estimate_of_log_time_stays_one_from_below_over_weeks() -> None:
    """A clock that ticks 100 ppm faster than the broker's gains four minutes in a month: a pause would end
    that much too early.
    """
    view = LogView(MemberSettings(group_id="g", client_id="a", instance_id="a.1", topics=("orders",)))
    view.known = True
    broker_s = 0.0
    for hour in range(24 * 30):
        now_s = hour * 3600.0
        broker_s = BEGAN_S + now_s * (1 - 1e-4)
        view.arrive(hour, int(broker_s * 1000), now_s)
        assert view.now_s(now_s, now_s) <= broker_s
        assert view.now_s(now_s + 60.0, now_s) <= broker_s + 60.0 * (1 - 1e-4)
        assert view.now_s(now_s + 60.0, now_s) >= broker_s + 59.0


def test_a_member_that_catches_up_does_not_undo_a_reset_of_a_partition_it_has_claimed_again() -> None:
    """A member was cut off, gave its claim back, and claimed it again before it read that a reset had moved
    the offset in between.
    """
    world = World(interval_s=4.0)
    node = world.add("a", release_if_behind=False)
    world.run(1.0)
    node.deaf = True
    world.pause(100.0)
    tokens = world.deliver(node, "orders", 0, range(8))
    world.commit(node, *tokens[:3])
    world.do(
        node, node.member.messages.flush(world.now_s)
    )  # the log names it the owner at 3: it has yet to read so
    world.run(0.1)
    world.commit(node, *tokens[3:])
    while world.owner("orders", 0) is not None:
        world.run(0.1)  # it hears nothing, so it stops and gives the claim back, and tries again later
    world.claiming("admin", "orders", 0)
    world.releasing("admin", "orders", 0, 0)
    while world.owner("orders", 0) is None:
        world.run(0.1)
    row = world.row("orders", 0)
    assert row is not None
    assert (row.client_id, row.current_offset) == ("a", 0)
    world.pause(0.0)
    heard_s = world.now_s
    node.deaf = False
    world.run(20.0)
    released = [
        frame.current_offset
        for at_s, frame in world.log[0]
        if isinstance(frame, ReleasingPartition) and at_s > heard_s
    ]
    assert set(released) == {0}, "what it reads is what was: it gives back, and moves nothing"
    assert [action.offset for at_s, action in node.done if isinstance(action, Start) and at_s > heard_s] == [
        0
    ]


def test_an_attempt_that_looks_like_the_one_before_is_leased_from_the_first() -> None:
    """Two attempts within one second of the clock: the one that the log shows may be the first, whatever
    the broker said of it.
    """
    world = World(interval_s=1.0)
    node = world.add("a")
    node.deaf = True
    node.mute = True
    while len(node.frames(ClaimingPartition)) < 2:
        world.run(0.001)
    first, second = ((at_s, action.frame) for at_s, action in node.done if isinstance(action, Send))
    assert first[1] == second[1]
    assert second[0] - first[0] >= 0.05
    world.append(first[1])  # late, and the second is in vain
    node.deaf = node.mute = False
    world.run(0.008)
    assert node.held
    assert node.member.deliver_until_s("orders", 0) <= first[0] + node.member.settings.lease_s


def test_a_claim_named_by_a_frame_before_the_pause_is_given_back_after_a_vain_attempt() -> None:
    """Its heartbeat comes late, then the pause, then an attempt that changes nothing: the claim is its own
    all the same.
    """
    world = World(interval_s=4.0)
    node = world.add("a", release_if_behind=False)
    world.run(1.0)
    world.commit(node, *world.deliver(node, "orders", 0, range(5)))
    beat = node.frames(Heartbeat)[-1]
    node.deaf = node.mute = True
    while not node.events(Event.ABANDONED):
        world.run(0.1)  # the release does not reach the log
    node.mute = False
    while len(node.frames(ClaimingPartition)) == 1:
        world.run(0.001)  # in the end it tries again
    world.append(msgspec.structs.replace(beat, time_s=beat.time_s + 1, current_offset=5))
    world.pause(100.0)
    node.deaf = False
    world.run(0.1)
    assert [type(frame) for _, frame in world.log[0][2:5]] == [Heartbeat, ReleaseGroup, ClaimingPartition]
    assert node.events(Event.PAUSED)
    assert world.owner("orders", 0) is None
    assert world.row("orders", 0).current_offset == 5  # type: ignore[union-attr]
