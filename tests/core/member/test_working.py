"""A user at work is not a wedge: the handler's own deadline, its warnings, and the Go library's rule where
Go members are (M9).
"""

from __future__ import annotations

import pytest

from holdfast.core.claims.frames import ReleasingPartition
from holdfast.core.member.actions import Deliver, DeliveryToken, Event, ReleaseReason
from holdfast.core.member.settings import Delivery, MemberSettings
from holdfast.errors import ConfigError
from tests.core.member.world import ORDERS, Node, World, reasons, row_offset

INTERVAL_S = 3.0


def told(node: Node) -> list[str]:
    return [each.text for each in node.events(Event.HANDLER_SLOW)]


def owner(**settings: object) -> tuple[World, Node]:
    """Return a world at an interval of 3 s with 1,000 messages, and the member that holds its partition."""
    world = World(interval_s=INTERVAL_S)
    world.marks[ORDERS] = (0, 1000)
    node = world.add(**settings)  # type: ignore[arg-type]
    world.run(0.5)
    assert node.held
    return world, node


def work(world: World, node: Node, for_s: float, *, growth: int = 0) -> None:
    """Let time pass as an engine does: it looks up the log's end a few times in an interval."""
    for _ in range(int(for_s)):
        earliest, latest = world.marks[ORDERS]
        world.marks[ORDERS] = (earliest, latest + growth)
        world.look(node, ORDERS)
        world.run(1.0)


@pytest.mark.parametrize("growth", [0, 5])
def test_a_handler_that_works_on_one_message_keeps_its_claim_for_as_long_as_it_is_allowed_to(
    growth: int,
) -> None:
    world, node = owner()
    tokens = world.deliver(node, "orders", 0, range(10))
    work(world, node, 140, growth=growth)
    assert not reasons(node)
    assert not told(node)
    world.commit(node, tokens[0])
    work(world, node, 290, growth=0)
    assert not reasons(node), "the next message has its own time"
    world.commit(node, *tokens[1:])
    work(world, node, 3)
    assert row_offset(world) == 10


def test_the_user_is_warned_at_half_of_the_deadline_and_when_the_claim_is_given_up() -> None:
    world, node = owner(handler_timeout_s=40.0)
    world.deliver(node, "orders", 0, range(10))
    work(world, node, 19)
    assert not told(node)
    work(world, node, 10)
    (early,) = told(node)
    assert early.startswith("the message at offset 0 has been in hand for 2")
    assert "handler_timeout_s is 40: at that age the claim is given up" in early
    work(world, node, 20)
    assert reasons(node) == [ReleaseReason.HANDLER_TIMEOUT]
    assert [text.split(":")[1][:28] for text in told(node)] == [
        " at that age the claim is gi",
        " the claim is given up, and ",
    ]
    assert row_offset(world) == 0


@pytest.mark.parametrize("settings", [{"release_if_behind": False}, {"balanced": True}])
def test_who_is_not_to_give_up_for_being_slow_is_warned_only(settings: dict[str, bool]) -> None:
    world = World(interval_s=INTERVAL_S)
    world.marks[ORDERS] = (0, 1000)
    node = world.add(handler_timeout_s=40.0, **settings)  # type: ignore[arg-type]
    world.do(node, node.member.aim([ORDERS], world.now_s))
    world.run(0.5)
    world.deliver(node, "orders", 0, range(10))
    work(world, node, 100)
    assert not reasons(node)
    (only,) = told(node)
    assert "the claim is kept all the same" in only


def test_no_deadline_is_a_deadline_too() -> None:
    world, node = owner(handler_timeout_s=0.0)
    world.deliver(node, "orders", 0, range(10))
    work(world, node, 2_000, growth=5)
    assert not reasons(node)
    assert not told(node)


def test_next_to_go_members_an_owner_that_commits_nothing_is_wedged_as_ever() -> None:
    world, node = owner(interop=True)
    world.deliver(node, "orders", 0, range(10))
    work(world, node, 12)
    assert set(reasons(node)) == {ReleaseReason.WEDGED}


def test_a_partition_that_brings_nothing_although_there_are_records_is_given_up() -> None:
    world, node = owner()
    work(world, node, 12)
    assert set(reasons(node)) == {ReleaseReason.WEDGED}


def test_a_partition_that_brings_nothing_after_a_long_message_is_given_up() -> None:
    world, node = owner()
    tokens = world.deliver(node, "orders", 0, [0])
    work(world, node, 100)
    world.commit(node, *tokens)
    work(world, node, 40)
    assert set(reasons(node)) == {ReleaseReason.WEDGED}


def test_messages_that_wait_for_a_user_who_is_at_work_elsewhere_are_no_wedge_until_the_deadline() -> None:
    world, node = owner(handler_timeout_s=60.0)
    for _ in range(50):
        world.do(node, node.member.messages.waiting("orders", 0, True, world.now_s))
        work(world, node, 1)
    assert not reasons(node)
    (early,) = told(node)
    assert early.startswith("messages from offset 0 on have waited to be taken for 3")
    work(world, node, 14)
    assert reasons(node) == [ReleaseReason.HANDLER_TIMEOUT]


def test_the_first_message_after_a_long_silence_has_its_time_to_be_fetched() -> None:
    world, node = owner()
    world.commit(node, *world.deliver(node, "orders", 0, range(1000)))
    work(world, node, 100)
    world.marks[ORDERS] = (0, 1001)
    world.look(node, ORDERS)
    world.run(2.4)  # one check at least
    assert not reasons(node)


@pytest.mark.parametrize("batches", [1, 2])
def test_at_most_once_a_handler_at_work_keeps_its_claim_and_has_the_same_deadline(batches: int) -> None:
    """No offset of a batch in hand is announced before all of it is handed out, and the next one waits
    until then.
    """
    world, node = owner(delivery=Delivery.AT_MOST_ONCE, handler_timeout_s=60.0)
    for number in range(batches):
        if number:
            world.do(
                node,
                node.member.messages.delivered("orders", 0, range(5 * (number - 1), 5 * number), world.now_s),
            )
        world.do(node, node.member.messages.fetched("orders", 0, 5 * (number + 1), world.now_s))
        world.run(0.5)
    assert len(node.all(Deliver)) == batches
    work(world, node, 50, growth=5)
    assert not reasons(node)
    assert len(told(node)) == 1
    work(world, node, 14)
    assert reasons(node) == [ReleaseReason.HANDLER_TIMEOUT]


def falling_behind() -> tuple[World, Node, list[DeliveryToken]]:
    """Return a member that gives its claim up since the log grows faster than its user works: with a
    message in hand.
    """
    world, node = owner()
    offset = 0
    tokens = world.deliver(node, "orders", 0, [offset])
    for _ in range(60):
        work(world, node, 2, growth=50)
        if reasons(node):
            break
        world.commit(node, *tokens)
        offset += 1
        tokens = world.deliver(node, "orders", 0, [offset])
    assert reasons(node) == [ReleaseReason.BEHIND]
    return world, node, tokens


def test_a_member_that_gives_up_for_its_lag_lets_its_user_finish_the_messages_in_hand() -> None:
    """Nothing is done in vain, and no message is delivered twice."""
    world, node, tokens = falling_behind()
    work(world, node, 20)
    assert not node.frames(ReleasingPartition)
    world.commit(node, *tokens)
    world.run(0.1)
    assert [frame.current_offset for frame in node.frames(ReleasingPartition)] == [tokens[0].offset + 1]


def test_a_farewell_does_not_wait_for_a_member_that_gives_up_for_its_lag() -> None:
    world, node, tokens = falling_behind()
    work(world, node, 20)
    world.do(node, node.member.terminate(True, world.now_s))
    world.run(1)
    assert node.member.terminated
    assert [frame.current_offset for frame in node.frames(ReleasingPartition)] == [tokens[0].offset]


def test_a_process_that_died_or_froze_loses_its_claim_as_ever_whatever_its_handler_may_take() -> None:
    world, node = owner(handler_timeout_s=3_600.0)
    world.deliver(node, "orders", 0, range(10))
    rival = world.add("b")
    world.run(5)
    assert not rival.held
    node.alive = False
    world.run(9)
    assert rival.events(Event.CLAIMED)


@pytest.mark.parametrize("value", [-1.0, 0.5, 7 * 86_400 + 1])
def test_a_deadline_that_cannot_be_is_refused(value: float) -> None:
    with pytest.raises(ConfigError, match="handler_timeout_s is"):
        MemberSettings(
            group_id="g", client_id="c", instance_id="i", topics=("orders",), handler_timeout_s=value
        )
