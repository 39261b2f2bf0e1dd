"""Members on a simulated log: how claims are come by.

Keeping and giving back are in test_member_keeping and test_member_leaving.
"""

from __future__ import annotations

import pytest

from holdfast.core.claims.frames import (
    ClaimingPartition,
    Frame,
    Heartbeat,
    ReleasingPartition,
    decode,
    encode,
)
from holdfast.core.claims.guarded import fold_guarded
from holdfast.core.member.actions import DeliveryToken, Event, FetchOffsets, Send, Start
from holdfast.core.member.settings import MemberSettings
from holdfast.errors import ClaimLostError, CommitError, ConfigError, FrameError
from tests.core.member.world import World, held_by

# -- the race


def test_one_of_ten_claimers_wins_and_nine_lose_for_certain() -> None:
    """M6 on the pure machine: all see the partition free and claim it within the same moment."""
    world = World({"orders": 1}, delay_s=4.0)
    nodes = [world.add(f"c{number}", seed=number) for number in range(10)]
    world.run(30)
    assert sum(len(node.started) for node in nodes) == 1
    attempts = sum(len(node.frames(ClaimingPartition)) for node in nodes)
    losses = sum(len(node.events(Event.RACE_LOST)) for node in nodes)
    assert attempts > 1
    assert losses == attempts - 1


def test_the_winner_writes_a_heartbeat_and_starts_where_the_log_says() -> None:
    """M4: a stale claim is taken over with the offset of its last heartbeat."""
    world = World()
    world.heartbeat("old", "orders", 0, 17)
    node = world.add("b")
    world.run(119)
    assert not node.frames()
    world.run(10)
    (start,) = node.all(Start)
    assert (start.offset, start.epoch) == (17, 2)
    assert [type(frame) for frame in node.frames()] == [ClaimingPartition, Heartbeat]
    assert world.owner("orders", 0) == "b"


def test_a_claim_that_comes_too_early_changes_nothing_and_is_a_loss() -> None:
    """M4: A's heartbeat at 0; a claim at 50 leaves owner and offset, one after 120 succeeds."""
    world = World()
    world.heartbeat("a", "orders", 0, 5)
    world.run(50)
    world.claiming("b", "orders", 0)
    row = world.row("orders", 0)
    assert row is not None
    assert (row.client_id, row.current_offset) == ("a", 5)


def test_a_foreign_release_is_ignored_and_the_owners_counts() -> None:
    """M5: the release of another instance of the client is ignored; the owner's frees the claim at once."""
    world = World()
    a = world.add("a", "i1")
    world.run(5)
    world.append(ReleasingPartition(1_700_000_005, "i2", "a", "g", "orders", 0, 99))
    world.run(1)
    assert a.held == {("orders", 0)}
    assert world.row("orders", 0) is not None
    world.do(a, a.member.terminate(True, world.now_s))
    world.run(1)
    row = world.row("orders", 0)
    assert row is not None
    assert (row.heartbeat_at_s, row.current_offset) == (None, 0)


def test_the_offset_comes_from_the_log_then_from_the_group_then_from_the_beginning_and_never_from_before_it() -> (  # noqa: E501
    None
):
    """D16: 0 is an offset."""
    for told, committed, earliest, expected in (
        (0, 50, 0, 0),
        (None, 50, 0, 50),
        (None, 0, 0, 0),
        (None, None, 7, 7),
        (3, None, 7, 7),
    ):
        world = World()
        world.marks["orders", 0] = (earliest, 100)  # type: ignore[index]
        if committed is not None:
            world.committed["orders", 0] = committed  # type: ignore[index]
        if told is not None:
            world.heartbeat("x", "orders", 0, told)
            world.releasing("x", "orders", 0, told)
        node = world.add()
        world.run(5)
        (start,) = node.all(Start)
        assert start.offset == expected
        (heartbeat,) = node.frames(Heartbeat)
        assert heartbeat.current_offset == expected


def test_a_claim_that_the_log_does_not_show_is_given_up_at_its_deadline() -> None:
    """D10: no wait without an end. The frame may come later all the same; then it is given back."""
    world = World({"orders": 1})
    world.heartbeat("x", "orders", 0, 4)
    world.releasing("x", "orders", 0, 4)
    node = world.add("a")
    node.deaf = True
    world.run(32)
    assert not node.member.claims
    assert len(node.events(Event.ATTEMPT_TIMED_OUT)) >= 1
    node.deaf = False
    world.run(1)
    assert world.owner("orders", 0) is None


def test_a_broker_that_refuses_frames_is_asked_again_soon() -> None:
    world = World()
    node = world.add()
    node.mute = True
    world.run(10)
    assert not node.started
    node.mute = False
    world.run(7)
    assert node.held == {("orders", 0)}


def test_watermarks_that_do_not_come_are_asked_for_again_and_in_the_end_the_claim_is_given_back() -> None:
    """D12: a set-up that fails leaves no trace."""
    world = World()
    world.heartbeat("x", "orders", 0, 4)
    world.releasing("x", "orders", 0, 4)
    node = world.add()
    node.blind = True
    world.run(120)
    assert len(node.all(FetchOffsets)) > 3
    assert not node.started
    assert world.owner("orders", 0) is None
    node.blind = False
    world.run(90)
    assert node.held == {("orders", 0)}


# -- how many


def test_without_greed_one_claim_is_made_at_a_time_and_the_limit_holds() -> None:
    """M10: MaximumClaims 2, five free partitions: one per loop, then it stops at 2."""
    world = World({"orders": 5})
    node = world.add(maximum_claims=2)
    world.run(60)
    attempts = [
        at_s
        for at_s, action in node.done
        if isinstance(action, Send) and isinstance(action.frame, ClaimingPartition)
    ]
    assert len(attempts) == 2
    assert attempts[0] < attempts[1]
    assert len(node.held) == 2


def test_a_member_at_its_limit_for_an_attempt_that_it_loses_tries_the_next() -> None:
    """M10: as many members as partitions, one each, all at the same time."""
    world = World({"orders": 4}, delay_s=4.0)
    nodes = [world.add(f"c{number}", seed=number, maximum_claims=1) for number in range(4)]
    world.run(100)
    assert sum(len(node.events(Event.RACE_LOST)) for node in nodes) > 0
    assert [len(node.held) for node in nodes] == [1] * 4


def test_greed_takes_all_that_the_limit_allows_at_once() -> None:
    """M10"""
    world = World({"orders": 5})
    node = world.add(maximum_claims=2, greedy=True)
    world.run(3.1)
    attempts = [
        at_s
        for at_s, action in node.done
        if isinstance(action, Send) and isinstance(action.frame, ClaimingPartition)
    ]
    assert len(attempts) == 2
    assert attempts[0] == attempts[1]
    unlimited = World({"orders": 5}).add(greedy=True)
    assert unlimited.member.settings.maximum_claims == 0


def test_greedy_members_without_a_limit_take_everything() -> None:
    world = World({"orders": 40, "clicks": 30}, logs=4)
    node = world.add(greedy=True)
    world.run(10)
    assert len(node.held) == 70


def test_new_partitions_are_claimed_and_vanished_ones_given_up() -> None:
    world = World({"orders": 1})
    node = world.add()
    world.run(10)
    world.do(node, node.member.partitions("orders", 3, world.now_s))
    world.run(20)
    assert held_by(world, node) == [{0, 1, 2}]
    world.do(node, node.member.partitions("orders", 2, world.now_s))
    assert held_by(world, node) == [{0, 1}]
    world.run(5)
    assert world.owner("orders", 2) is None


# -- fast reclaim


def test_a_restart_under_the_same_client_resumes_by_heartbeats_alone() -> None:
    """M12: within 120 s, at the heartbeat's offsets (2 and 0), with no ClaimingPartition and one heartbeat
    for each partition.
    """
    world = World({"test2": 2})
    first = world.add("a", greedy=True)
    world.run(10)
    world.commit(first, *world.deliver(first, "test2", 0, range(2)))
    world.do(first, first.member.terminate(False, world.now_s))
    world.run(1)
    assert first.member.terminated
    world.kill(first)
    world.run(60)
    again = world.add("a")
    world.run(1)
    assert {(start.partition, start.offset) for start in again.all(Start)} == {(0, 2), (1, 0)}
    assert [type(frame) for frame in again.frames()] == [Heartbeat, Heartbeat]


def test_after_twice_the_interval_a_restart_claims_like_everybody() -> None:
    """M12"""
    world = World({"test2": 2})
    first = world.add("a", greedy=True)
    world.run(10)
    world.kill(first)
    world.run(121 + 45)
    again = world.add("a", greedy=True)
    world.run(5)
    assert [type(frame) for frame in again.frames()] == [ClaimingPartition] * 2 + [Heartbeat] * 2


def test_fast_reclaim_is_not_held_up_by_the_limit_and_can_be_turned_off() -> None:
    """M10: FastReclaim with three previous claims and MaximumClaims 2 holds 3."""
    world = World({"orders": 5})
    first = world.add("a", maximum_claims=3, greedy=True)
    world.run(10)
    world.kill(first)
    again = world.add("a", maximum_claims=2)
    world.run(1)
    assert len(again.held) == 3
    world.kill(again)
    world.run(1)
    third = world.add("a", fast_reclaim=False)
    world.run(60)
    assert not any(frame.partition in {partition for _, partition in again.held} for frame in third.frames())


def test_fast_reclaim_takes_back_all_whole_topics_at_once() -> None:
    """M10, D15: three topics, no limit; the Go library takes one."""
    world = World({"t1": 1, "t2": 2, "t3": 2})
    first = world.add("a", whole_topic=True)
    world.run(30)
    assert len(first.held) == 5
    world.kill(first)
    again = world.add("a", whole_topic=True)
    world.run(1)
    assert len(again.held) == 5
    assert not again.frames(ClaimingPartition)


def test_a_process_that_takes_over_from_a_running_one_does_not_set_it_back() -> None:
    """Offsets never go back: what the old process commits between our look and our heartbeat counts."""
    world = World(delay_s=1.0)
    old = world.add("a", "i1")
    world.run(10)
    world.commit(old, *world.deliver(old, "orders", 0, range(30)))
    world.do(
        old, old.member.messages.flush(world.now_s)
    )  # appended in a second, just before the other's heartbeat
    new = world.add("a", "i2")
    world.run(4)
    (start,) = new.all(Start)
    row = world.row("orders", 0)
    assert row is not None
    assert (start.offset, row.current_offset, row.instance_id) == (30, 30, "i2")


# -- with the Go library


def test_with_interop_only_what_both_views_call_free_is_claimed() -> None:
    world = World()
    world.run(1000)
    # Its clock is slow: by the log's time it was stale 100 s ago, by its own it is live... and the other way
    # round.
    world.append(Heartbeat(1_700_000_000 + 1110, "go1", "go", "g", "orders", 0, 5))
    node = world.add("a", interop=True, skew_limit_s=1000.0)
    plain = World()
    world.run(125)
    assert not node.started
    world.run(110)
    assert node.held
    assert plain.logs == 1


def test_with_interop_an_owner_that_the_go_view_replaced_stops() -> None:
    """A Go member's heartbeat makes it the owner for every Go member, whatever the guarded view says."""
    for interop, stays in ((True, False), (False, True)):
        world = World()
        node = world.add("a", interop=interop)
        world.run(10)
        world.append(Heartbeat(1_700_000_010, "go1", "go", "g", "orders", 0, 0))
        world.run(1)
        assert bool(node.held) is stays


def test_nothing_but_frames_that_the_original_decodes_is_sent() -> None:
    world = World({"orders": 3})
    node = world.add(interop=True, greedy=True)
    world.run(100)
    world.do(node, node.member.terminate(True, world.now_s))
    world.run(1)
    kinds = {type(frame).__name__ for frame in node.frames()}
    assert kinds == {"ClaimingPartition", "Heartbeat", "ReleasingPartition"}
    assert all(decode(encode(frame)) == frame and frame.version == 1 for frame in node.frames())


# -- settings


def test_settings_that_cannot_work_are_refused() -> None:
    def settings(**changes: object) -> MemberSettings:
        return MemberSettings(
            **{"group_id": "g", "client_id": "c", "instance_id": "i", "topics": ("t",), **changes}  # type: ignore[arg-type]
        )

    assert settings(heartbeat_interval_s=1.5).stale_after_s == 3
    for changes in (
        {"topics": ()},
        {"topics": "orders"},
        {"topics": ("t", "t")},
        {"heartbeat_interval_s": 0.5},
        {"heartbeat_interval_s": 1.3},
        {"maximum_claims": -1},
        {"maximum_outstanding": 0},
        {"drain_s": 119.9},
        {"skew_limit_s": 0.1},
        {"instance_id": "reset-1"},
    ):
        with pytest.raises(ConfigError):
            settings(**changes)
    with pytest.raises(FrameError, match="rename"):
        settings(client_id="a/b")


def test_frames_read_twice_or_of_other_groups_change_nothing() -> None:
    world = World()
    node = world.add()
    world.run(5)
    before = node.member.row("orders", 0)
    frame = Heartbeat(1_700_000_001, "z", "z", "g", "orders", 0, 99)
    assert node.member.observe(frame, 0, 0, world.at_ms(5), world.now_s) == []
    other = Heartbeat(1_700_000_001, "z", "z", "other", "orders", 0, 99)
    assert node.member.observe(other, 0, 10, world.at_ms(5), world.now_s) == []
    assert node.member.row("orders", 0) is before


def test_tokens_of_a_claim_that_is_gone_are_refused_and_so_are_offsets_never_delivered() -> None:
    world = World()
    node = world.add()
    world.run(5)
    (token,) = world.deliver(node, "orders", 0, [0])
    with pytest.raises(CommitError):
        world.commit(node, DeliveryToken("orders", 0, 95, token.epoch))
    with pytest.raises(ClaimLostError, match="epoch 7"):
        world.commit(node, DeliveryToken("orders", 0, 0, 7))
    world.commit(node, token, token)
    assert node.member.outstanding("orders", 0) == 0
    with pytest.raises(ClaimLostError):
        world.commit(node, DeliveryToken("orders", 1, 0, 1))


def test_a_fleet_with_another_interval_folds_with_its_own_threshold() -> None:
    rows: dict[str, object] = {}

    def frame(client: str, time_s: int) -> Frame:
        return ClaimingPartition(time_s, client, client, "g", "t", 0)

    for at_s, client in ((100, "a"), (105, "b"), (106, "c")):
        fold_guarded(rows, frame(client, at_s), at_s * 1000, 6)  # type: ignore[arg-type]
    assert rows["g/t/0"].client_id == "c"  # type: ignore[attr-defined]
