"""Groups on a real broker: looked at, paused, resumed, reset.

Members are played frame by frame, so that nothing depends on timing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from holdfast.clients.groups.records import GroupKind, ResetProgress, ResetStep
from holdfast.core.claims.claim_keys import ClaimKey
from holdfast.core.claims.claim_rows import Pause
from holdfast.core.claims.frames import Heartbeat
from holdfast.core.claims.resets import Aim, ResetCommit, Scope, Where, parse_scope
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from holdfast.errors import ConfigError, GroupError, TopicError
from tests.support.group_desk import EndingClock, GroupDesk, LaterClock
from tests.support.patience import DEADLINE_S
from tests.support.strangers import leave_offsets


@pytest.fixture
def desk(broker: SessionBroker, fresh_topic: FreshTopic) -> Iterator[GroupDesk]:
    made = GroupDesk(broker, fresh_topic)
    yield made
    made.close()


def committed_group(broker: SessionBroker, topic: str, group: str, offsets: dict[int, int]) -> None:
    """Leave an empty consumer group with these committed offsets."""
    places = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
    leave_offsets(broker.client_config(), group, places)


# -- looking


def test_groups_of_both_kinds_are_listed_and_the_shadow_of_a_claim_group_is_not(
    desk: GroupDesk, broker: SessionBroker
) -> None:
    topic = desk.topic()
    shop, ledger = f"shop-{topic}", f"ledger-{topic}"
    desk.hold("worker-7/i7", topic, {0: 40}, group=shop)
    committed_group(broker, topic, shop, {0: 40})
    committed_group(broker, topic, ledger, {1: 3})
    with desk.admin() as admin:
        found = [
            (group.group, group.kind, group.state, group.members)
            for group in admin.list()
            if group.group in (shop, ledger)
        ]
        assert found == [(ledger, GroupKind.CONSUMER, "Empty", 0), (shop, GroupKind.CLAIM, "Stable", 1)]
        assert (
            admin.state(shop, GroupKind.CONSUMER).state == "Empty"
        )  # asked for by its type it is still there


def test_a_claim_group_is_described_with_offsets_lag_and_owners(desk: GroupDesk) -> None:
    topic = desk.topic(partitions=3)
    desk.hold("worker-7/i7", topic, {0: 40, 1: 44})
    desk.give_back("worker-7/i7", topic, {1: 45})
    with desk.admin() as admin:
        lines = [
            (line.partition, line.current_offset, line.log_end_offset, line.lag, line.consumer_id)
            for line in admin.describe("shop")
        ]
        assert lines == [(0, 40, 50, 10, "worker-7-i7"), (1, 45, 50, 5, None)]
        (member,) = admin.members("shop")
        assert (member.consumer_id, member.assignment, member.obeys_pause) == (
            "worker-7-i7",
            ((topic, 0),),
            True,
        )
        state = admin.state("shop")
        assert (state.state, state.members, state.partitions_held, state.partitions) == ("Stable", 1, 1, 2)
    with desk.admin(clock=LaterClock(60)) as admin:
        assert [line.consumer_id for line in admin.describe("shop")] == [None, None]
        assert admin.state("shop").state == "Empty"
        assert admin.members("shop") == ()


def test_a_consumer_group_is_described_as_kafkas_tool_does(desk: GroupDesk, broker: SessionBroker) -> None:
    topic = desk.topic()
    group = f"ledger-{topic}"
    committed_group(broker, topic, group, {0: 20, 1: 50})
    with desk.admin() as admin:
        assert [
            (line.partition, line.current_offset, line.lag, line.client_id) for line in admin.describe(group)
        ] == [
            (0, 20, 30, None),
            (1, 50, 0, None),
        ]
        with pytest.raises(GroupError, match="there is no group absent"):
            admin.describe("absent")
        with pytest.raises(GroupError, match="kept by the broker"):
            admin.pause(group, 60)


# -- pausing


def test_a_pause_reaches_every_coordination_partition_of_the_group_and_resume_lifts_it(
    desk: GroupDesk,
) -> None:
    """M13, first part."""
    topics = [desk.topic(name) for name in ("orders", "clicks", "ledger")]
    for topic in topics:
        desk.hold("worker-7/i7", topic, {0: 1})
    with desk.admin() as admin, desk.view() as view:
        places = view.places("shop")
        paused = admin.pause("shop", 600)
        view.refresh()
        rows = [view._rows[place].get("/pause//shop") for place in sorted(places)]
        assert all(isinstance(row, Pause) and row.expires_at_s == paused.expires_at_s for row in rows)
        assert admin.state("shop").state == "Paused"
        assert admin.resume("shop") == 0
        view.refresh()
        assert not any("/pause//shop" in rows for rows in view._rows.values())
        with pytest.raises(ConfigError, match=r"0\.2 s"):
            admin.pause("shop", 0.2)
        with pytest.raises(GroupError, match="there is no group"):
            admin.pause("nobody", 60)


def test_members_that_cannot_obey_are_named_and_nothing_is_written(desk: GroupDesk) -> None:
    """D6: one Go member, of whatever group, forbids every pause, since all of them read the whole topic."""
    topic = desk.topic(partitions=3)
    desk.hold("worker-7/i7", topic, {0: 1})
    desk.hold("go-1/g1", topic, {1: 5, 2: 6}, group="legacy", capable=False)
    with desk.admin() as admin:
        plan = admin.plan_reset("shop", Aim(Where.EARLIEST))
        for forbidden in (lambda: admin.pause("shop", 60), lambda: admin.reset_offsets(plan)):
            with pytest.raises(GroupError, match=rf"go-1-g1 \(legacy: {topic}/1,2\)"):
                forbidden()
        assert admin.state("shop").state == "Stable"
        assert admin.state("shop").paused_until_s is None
    # A member with as few frames as a Go member's is live: the fleet's own short interval does not hide it.
    # After 120 s it is gone.
    with desk.admin(clock=LaterClock(60)) as admin, pytest.raises(GroupError, match="go-1-g1"):
        admin.pause("shop", 60)
    with desk.admin(clock=LaterClock(130)) as admin:
        admin.pause("shop", 600)


# -- resetting a claim group


def test_a_plan_says_where_each_partition_would_go_and_changes_nothing(desk: GroupDesk) -> None:
    topic = desk.topic(partitions=3)
    desk.hold("worker-7/i7", topic, {0: 40, 1: 10})
    before = desk.claims()
    with desk.admin() as admin:
        for aim, expected in (
            (Aim(Where.EARLIEST), [0, 0, 0]),
            (Aim(Where.LATEST), [50, 50, 50]),
            (Aim(Where.OFFSET, 7), [7, 7, 7]),
            (Aim(Where.OFFSET, 1_000), [50, 50, 50]),
            (Aim(Where.SHIFT, -15), [25, 0, 0]),
            (Aim(Where.SHIFT, 15), [50, 25, 15]),
            (Aim(Where.DATETIME, 0), [0, 0, 0]),
            (Aim(Where.DATETIME, 4_000_000_000_000), [50, 50, 50]),
        ):
            plan = admin.plan_reset("shop", aim)
            assert [(move.partition, move.current_offset) for move in plan.moves] == [
                (0, 40),
                (1, 10),
                (2, None),
            ]
            assert [move.new_offset for move in plan.moves] == expected, aim
    assert desk.claims() == before


def test_a_plan_takes_only_the_partitions_named(desk: GroupDesk) -> None:
    orders, clicks = desk.topic("orders", partitions=3), desk.topic("clicks")
    desk.hold("worker-7/i7", orders, {0: 40})
    desk.hold("worker-7/i7", clicks, {0: 1})
    with desk.admin() as admin:

        def places(scope: Scope) -> list[tuple[str, int]]:
            return [
                (move.topic, move.partition)
                for move in admin.plan_reset("shop", Aim(Where.LATEST), scope).moves
            ]

        assert places(parse_scope([f"{orders}:0,2", clicks])) == [
            (clicks, 0),
            (clicks, 1),
            (orders, 0),
            (orders, 2),
        ]
        for wrong, why in (
            ("absent", "absent: no such topic there"),
            (f"{orders}:3", "there is no partition 3"),
        ):
            with pytest.raises(TopicError, match=why):
                places(parse_scope([wrong]))


def test_every_partition_starts_at_its_new_offset_zero_included_once_members_have_released(
    desk: GroupDesk,
) -> None:
    """M13: offsets {0: 20, 1: 0} reach the log exactly; the decision has old and new of both topics."""
    orders, clicks = desk.topic("orders"), desk.topic("clicks", records=10)
    desk.hold("worker-7/i7", orders, {0: 40})
    desk.hold("worker-8/i8", orders, {1: 12})
    desk.hold("worker-8/i8", clicks, {0: 3})
    steps: list[ResetProgress] = []
    obey = desk.obeying(
        ("worker-7/i7", orders, {0: 41}),
        ("worker-8/i8", orders, {1: 12}),
        ("worker-8/i8", clicks, {0: 4}),
        then=steps.append,
    )
    with desk.admin() as admin:
        moves = admin.reset_offsets(admin.plan_reset("shop", Aim(Where.SHIFT, -21)), tell=obey)
        assert {(move.topic, move.partition): (move.current_offset, move.new_offset) for move in moves} == {
            (orders, 0): (41, 20),
            (orders, 1): (12, 0),
            (clicks, 0): (4, 0),
            (clicks, 1): (0, 0),
        }
        assert desk.offsets() == {(orders, 0): 20, (orders, 1): 0, (clicks, 0): 0, (clicks, 1): 0}
        state = admin.state("shop")
        assert (state.state, state.paused_until_s, state.resets) == ("Empty", None, ())
    (decision,) = desk.decisions()
    assert isinstance(decision, ResetCommit)
    assert decision.offsets[orders] == ((0, 41, 20), (1, 12, 0))
    # As often as there was news, and in this order.
    assert list(dict.fromkeys(progress.step for progress in steps)) == [
        ResetStep.PAUSED,
        ResetStep.CLAIMING,
        ResetStep.CLAIMED,
        ResetStep.DECIDED,
        ResetStep.MOVING,
        ResetStep.RESUMED,
    ]


def test_a_member_that_does_not_release_is_named_and_everything_stays_as_it_was(desk: GroupDesk) -> None:
    topic = desk.topic()
    desk.hold("worker-7/i7", topic, {0: 40})
    desk.hold("worker-8/i8", topic, {1: 12})
    waits, clock = list[tuple[str, ...]](), EndingClock()

    def tell(progress: ResetProgress) -> None:
        desk.put(Heartbeat(desk.now_s, "i8", "worker-8", "shop", topic, 1, 12))
        if progress.step is ResetStep.WAITING:
            waits.append(progress.waiting_for)
            clock.over = progress.waiting_for == ("worker-8-i8",)

    with desk.admin(clock=clock) as admin:
        plan = admin.plan_reset("shop", Aim(Where.EARLIEST))
        with pytest.raises(
            GroupError,
            match=r"after 60 s worker-8-i8 still hold 1 partitions; every partition keeps its offset",
        ):
            admin.reset_offsets(
                plan, deadline_s=60, tell=desk.obeying(("worker-7/i7", topic, {0: 41}), then=tell)
            )
        assert ("worker-8-i8",) in waits
        clock.over = False
        claims = desk.claims()
        assert claims[ClaimKey("shop", topic, 0)].current_offset == 41
        assert claims[ClaimKey("shop", topic, 1)].client_id == "worker-8"
        assert admin.state("shop").paused_until_s is None
        assert desk.decisions() == []


def test_claims_that_a_member_leaves_when_it_dies_are_taken_over_once_they_are_stale(
    broker: SessionBroker, fresh_topic: FreshTopic
) -> None:
    desk = GroupDesk(broker, fresh_topic, interval_s=1)
    topic = desk.topic()
    desk.hold("worker-7/i7", topic, {0: 40, 1: 41})
    with desk.admin() as admin:
        admin.reset_offsets(admin.plan_reset("shop", Aim(Where.OFFSET, 5)))
    assert desk.offsets() == {(topic, 0): 5, (topic, 1): 5}
    desk.close()


def test_of_two_resets_at_once_one_moves_everything_and_the_other_nothing(desk: GroupDesk) -> None:
    topic = desk.topic(partitions=6)
    desk.hold("worker-7/i7", topic, {0: 40})
    desk.give_back("worker-7/i7", topic, {0: 40})
    outcomes: list[int | GroupError] = []

    def reset(target: int) -> None:
        with desk.admin(client=f"admin-{target}") as admin:
            plan = admin.plan_reset("shop", Aim(Where.OFFSET, target))
            barrier.wait(DEADLINE_S)
            try:
                admin.reset_offsets(plan, deadline_s=DEADLINE_S)
                outcomes.append(target)
            except GroupError as error:
                outcomes.append(error)

    barrier = threading.Barrier(2)
    threads = [threading.Thread(target=reset, args=(target,)) for target in (7, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    moved = [outcome for outcome in outcomes if isinstance(outcome, int)]
    assert len(outcomes) == 2
    # Both may give way to the other, and both may succeed one after the other: never a mixture.
    expected: set[int | None] = {*moved} or {40, None}
    found = set(desk.offsets().values())
    assert len(found) == 1 or not moved, outcomes
    assert found <= expected | {0}, outcomes


def test_a_reset_under_way_is_in_the_way_of_resume_unless_forced(desk: GroupDesk) -> None:
    topic = desk.topic()
    desk.hold("worker-7/i7", topic, {0: 40})
    desk.give_back("worker-7/i7", topic, {0: 40})
    refused: list[str] = []

    def interfere(progress: ResetProgress) -> None:
        if progress.step is not ResetStep.CLAIMED:
            return
        with desk.admin(client="colleague") as other:
            assert other.state("shop").state == "Resetting"
            with pytest.raises(GroupError, match="under way and holds 2 partitions") as caught:
                other.resume("shop")
            refused.append(str(caught.value))
            with pytest.raises(GroupError, match="wait for it"):
                other.reset_offsets(other.plan_reset("shop", Aim(Where.LATEST)), deadline_s=5)
            assert other.resume("shop", force=True) == 2

    with desk.admin() as admin:
        plan = admin.plan_reset("shop", Aim(Where.OFFSET, 5))
        with pytest.raises(GroupError, match="colleague gave it up"):
            admin.reset_offsets(plan, tell=interfere)
    assert refused
    assert desk.offsets() == {(topic, 0): 40, (topic, 1): 0}


# -- resetting a consumer group


def test_a_consumer_group_is_reset_only_while_it_is_empty(desk: GroupDesk, broker: SessionBroker) -> None:
    topic = desk.topic()
    group = f"ledger-{topic}"
    committed_group(broker, topic, group, {0: 20, 1: 30})
    with desk.admin() as admin:
        plan = admin.plan_reset(group, Aim(Where.SHIFT, -25))
        assert [move.new_offset for move in plan.moves] == [0, 5]
        consumer = Consumer(
            broker.client_config(
                **{"group.id": group, "client.id": "reader-1", "auto.offset.reset": "earliest"}
            )
        )
        consumer.subscribe([topic])
        try:
            assert consumer.poll(DEADLINE_S) is not None
            with pytest.raises(GroupError, match=rf"group {group} is Stable: .*reader-1"):
                admin.reset_offsets(plan)
            (member,) = admin.members(group)
            assert (member.client_id, len(member.assignment), member.obeys_pause) == ("reader-1", 2, None)
        finally:
            consumer.close()
        plan = admin.plan_reset(group, Aim(Where.EARLIEST), parse_scope([f"{topic}:1"]))
        admin.reset_offsets(plan)
        assert {line.partition: line.current_offset for line in admin.describe(group)}[1] == 0
