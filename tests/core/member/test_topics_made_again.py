"""A member whose topic was deleted and made again (PROTOCOL.md#topics-that-are-made-again)."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.core.claims.frames import UNMARKED, Heartbeat
from holdfast.core.member.actions import Deliver, DeliveryToken, Event, ReleaseReason, Start, Stop
from holdfast.core.member.settings import Delivery
from holdfast.errors import ClaimLostError, TopicError
from tests.core.member.world import ORDERS, Node, World, reasons, row_offset

OLD, NEW = 11, 12


def world_at(offset: int, mark: int = OLD) -> World:
    """Return a world in which ORDERS was released at *offset* of the old topic."""
    world = World()
    world.marks[ORDERS], world.topic_marks["orders"] = (0, 100), mark
    former = world.add("former")
    world.run(5)
    tokens = world.deliver(former, *ORDERS, range(offset))
    world.commit(former, *tokens)
    world.do(former, former.member.terminate(True, world.now_s))
    world.run(5)
    assert row_offset(world) == offset
    return world


def starts(node: Node) -> list[int]:
    return [each.offset for each in node.all(Start)]


def test_who_begins_at_another_topic_begins_at_its_beginning_and_says_so() -> None:
    world = world_at(40)
    world.topic_marks["orders"] = NEW
    node = world.add("a")
    world.run(5)
    assert starts(node) == [0]
    assert [each.text.split(";")[0] for each in node.events(Event.TOPIC_MADE_AGAIN)] == [
        "the group's offset 40 is of a topic of this name that was deleted"
    ]
    row = world.row(*ORDERS)
    assert row is not None
    assert (row.current_offset, row.topic_mark, row.former_marks) == (0, NEW, (OLD,))
    assert {frame.version for frame in node.frames(Heartbeat)} == {NEW}


def test_an_offset_of_an_unknown_topic_counts() -> None:
    world = World()
    world.marks[ORDERS], world.topic_marks["orders"] = (0, 100), NEW
    world.heartbeat("old", *ORDERS, 40)
    world.releasing("old", *ORDERS, 40)
    node = world.add("a")
    world.run(5)
    assert starts(node) == [40]
    assert not node.events(Event.TOPIC_MADE_AGAIN)


@pytest.mark.parametrize(("reset", "begins"), [("earliest", 3), ("latest", 50)])
def test_where_the_new_topic_begins_is_a_setting(reset: str, begins: int) -> None:
    world = world_at(40)
    world.topic_marks["orders"], world.marks[ORDERS] = NEW, (3, 50)
    node = world.add("a", auto_offset_reset=reset)
    world.run(5)
    assert starts(node) == [begins]


def test_with_none_the_member_ends_and_says_what_to_do() -> None:
    world = world_at(40)
    world.topic_marks["orders"] = NEW
    node = world.add("a", auto_offset_reset="none")
    world.run(5)
    assert not starts(node)
    assert isinstance(node.error, TopicError)
    assert "reset-offsets g --to-earliest --topic orders:0" in str(node.error)


def test_an_owner_notices_and_claims_again_and_offsets_of_the_old_topic_do_not_count_for_the_new() -> None:
    world = world_at(40)
    node = world.add("a")
    world.run(5)
    (token, *_) = world.deliver(node, *ORDERS, range(40, 43))
    world.topic_marks["orders"] = NEW
    world.look(node, ORDERS)
    assert node.all(Stop)
    world.run(30)
    assert reasons(node) == [ReleaseReason.TOPIC_MADE_AGAIN]
    assert starts(node) == [40, 0]
    with pytest.raises(ClaimLostError):
        world.commit(node, token)
    assert world.row(*ORDERS).current_offset == 0  # type: ignore[union-attr]
    world.commit(node, *world.deliver(node, *ORDERS, [0]))
    again = DeliveryToken(*ORDERS, 0, node.started[ORDERS].epoch)
    world.commit(node, again)
    world.do(node, node.member.messages.flush(world.now_s))
    world.run(1)
    assert row_offset(world) == 1


def test_a_broker_that_does_not_know_yet_that_the_topic_was_deleted_is_asked_again() -> None:
    world = world_at(40)
    world.topic_marks["orders"] = NEW
    world.run(1)
    first = world.add("a")
    world.run(5)
    world.do(first, first.member.terminate(True, world.now_s))
    world.run(5)
    world.topic_marks["orders"] = OLD
    node = world.add("b")
    world.run(5)
    assert not starts(node)
    world.topic_marks["orders"] = NEW
    world.run(30)
    assert starts(node) == [0]


def test_a_late_heartbeat_of_the_old_topic_gives_it_back_to_no_member() -> None:
    world = world_at(40)
    world.topic_marks["orders"] = NEW
    node = world.add("a")
    world.run(5)
    late = msgspec.structs.replace(node.frames(Heartbeat)[-1], current_offset=41, version=OLD)
    world.append(late)
    world.run(1)
    row = world.row(*ORDERS)
    assert row is not None
    assert (row.current_offset, row.topic_mark) == (0, NEW)
    world.append(msgspec.structs.replace(late, current_offset=0, version=UNMARKED))
    world.run(1)
    assert world.row(*ORDERS).topic_mark == NEW, "nothing moved"  # type: ignore[union-attr]


def test_at_most_once_nothing_is_handed_out_whose_topic_is_not_known() -> None:
    """The batch was fetched from the topic that was made again, at the offset of the old one."""
    world = world_at(40)
    node = world.add("a", delivery=Delivery.AT_MOST_ONCE)
    world.run(5)
    world.topic_marks["orders"] = NEW
    world.do(node, node.member.messages.fetched(*ORDERS, 50, world.now_s))
    world.run(30)
    assert not node.all(Deliver)
    assert starts(node) == [40, 0]
    world.do(node, node.member.messages.fetched(*ORDERS, 5, world.now_s))
    node.blind = True
    world.run(1)
    assert not node.all(Deliver), "nobody has said which topic there is"
    node.blind = False
    world.run(40)
    assert [each.offset_end for each in node.all(Deliver)] == [5]
