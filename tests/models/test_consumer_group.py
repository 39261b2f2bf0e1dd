"""KIP-848's reconciliation: the answers to members, step by step."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.groups.codes import GroupCode
from holdfast.core.kafka.topic_partition import TopicPartition
from holdfast.models import consumer_group
from holdfast.models.consumer_group import (
    NOTHING,
    HeartbeatReply,
    MemberState,
    MemberStep,
    ModernGroup,
    ModernHeartbeat,
    ModernState,
    Partitions,
    commit_code,
    heartbeat,
    next_step,
)
from tests.support.scale import scaled


def parts(*numbers: int) -> Partitions:
    return frozenset(TopicPartition("t", number) for number in numbers)


class Broker:
    def __init__(self, partitions: int = 3) -> None:
        self.group, self.counts, self.at_ms = ModernGroup(), {"t": partitions}, 0

    def beat(
        self, member_id: str, epoch: int, owned: Iterable[int] | None = None, **more: object
    ) -> HeartbeatReply:
        topics = ("t",) if epoch == 0 else None
        said = ModernHeartbeat(
            member_id=member_id,
            epoch=epoch,
            topics=topics,
            owned=None if owned is None else parts(*owned),
            **more,  # type: ignore[arg-type]
        )
        self.group, answer = heartbeat(self.group, said, self.counts, self.at_ms)
        return answer

    def where(self) -> ModernState:
        return self.group.state

    def state(self, member_id: str) -> MemberState:
        return self.group.members[member_id].state


def test_a_newcomer_waits_until_the_owner_has_given_up_what_it_is_to_get() -> None:
    """G5: c1 owns 0, 1, 2; c2 joins: c1 must revoke 2, c2 gets nothing until c1 has confirmed it, then 2."""
    broker = Broker()
    assert broker.where() is ModernState.EMPTY
    assert broker.beat("c1", 0) == HeartbeatReply(GroupCode.NONE, 1, parts(0, 1, 2))
    assert broker.where() is ModernState.STABLE
    assert broker.beat("c2", 0) == HeartbeatReply(GroupCode.NONE, 2, NOTHING)
    assert broker.state("c2") is MemberState.UNRELEASED_PARTITIONS
    assert broker.beat("c1", 1, (0, 1, 2)) == HeartbeatReply(GroupCode.NONE, 1, parts(0, 1))
    assert broker.state("c1") is MemberState.UNREVOKED_PARTITIONS
    assert broker.beat("c2", 2, ()) == HeartbeatReply(GroupCode.NONE, 2, NOTHING)
    assert broker.beat("c1", 1) == HeartbeatReply(GroupCode.NONE, 1, parts(0, 1)), (
        "a heartbeat that says nothing acknowledges nothing"
    )
    assert broker.where() is ModernState.RECONCILING
    assert broker.beat("c1", 1, (0, 1)) == HeartbeatReply(GroupCode.NONE, 2, parts(0, 1))
    assert broker.beat("c2", 2, ()) == HeartbeatReply(GroupCode.NONE, 2, parts(2))
    assert broker.where() is ModernState.STABLE


@pytest.mark.parametrize(
    ("owned", "code"),
    [
        ((0,), GroupCode.NONE),
        ((0, 1), GroupCode.NONE),
        ((0, 1, 2), GroupCode.FENCED_MEMBER_EPOCH),
        (None, GroupCode.FENCED_MEMBER_EPOCH),
    ],
)
def test_the_epoch_before_is_accepted_from_a_member_that_owns_no_more_than_its_part(
    owned: tuple[int, ...] | None, code: GroupCode
) -> None:
    """G5: an epoch that is one older, with more than the part owned, is fenced."""
    broker = Broker()
    broker.beat("c1", 0)
    broker.beat("c2", 0)
    broker.beat("c1", 1, (0, 1, 2))
    assert broker.beat("c1", 1, (0, 1)).epoch == 2
    assert broker.beat("c1", 1, owned).code is code


@pytest.mark.parametrize("epoch", [3, 7])
def test_an_epoch_that_was_never_given_is_fenced(epoch: int) -> None:
    broker = Broker()
    broker.beat("c1", 0)
    assert broker.beat("c1", epoch, ()).code is GroupCode.FENCED_MEMBER_EPOCH
    assert broker.beat("c9", epoch, ()).code is GroupCode.UNKNOWN_MEMBER_ID


def test_a_static_member_on_leave_keeps_its_part_and_two_at_once_are_refused() -> None:
    broker = Broker()
    broker.beat("c1", 0, instance_id="i1")
    assert broker.beat("c1b", 0, instance_id="i1").code is GroupCode.UNRELEASED_INSTANCE_ID
    assert broker.beat("c1", -2, instance_id="i2").code is GroupCode.FENCED_INSTANCE_ID
    assert broker.beat("c1", -2, instance_id="i1").code is GroupCode.NONE
    epoch = broker.group.epoch
    assert broker.beat("c1b", 0, instance_id="i1") == HeartbeatReply(GroupCode.NONE, epoch, parts(0, 1, 2))
    assert broker.group.epoch == epoch


def test_what_leaves_or_falls_silent_frees_its_part() -> None:
    broker = Broker()
    broker.beat("c1", 0)
    broker.beat("c2", 0)
    assert broker.beat("c1", -1).code is GroupCode.NONE
    assert broker.beat("c2", 2, ()).assigned == parts(0, 1, 2)
    broker.at_ms += 44_999
    broker.beat("c3", 0)
    assert set(broker.group.members) == {"c2", "c3"}
    broker.at_ms += 1
    broker.beat("c3", broker.group.members["c3"].epoch, ())
    assert set(broker.group.members) == {"c3"}
    broker.beat("c3", broker.group.members["c3"].epoch, ())
    assert broker.group.members["c3"].assigned == parts(0, 1, 2)


def test_new_partitions_are_given_without_touching_the_others() -> None:
    broker = Broker(2)
    broker.beat("c1", 0)
    broker.counts = {"t": 4}
    assert broker.beat("c1", 1, (0, 1)) == HeartbeatReply(GroupCode.NONE, 2, parts(0, 1, 2, 3))


def test_an_assignor_the_broker_has_not_is_refused() -> None:
    assert Broker().beat("c1", 0, assignor="sticky").code is GroupCode.UNSUPPORTED_ASSIGNOR


def test_commits_are_accepted_in_the_member_s_epoch_only() -> None:
    broker = Broker()
    assert commit_code(broker.group, "", -1) is GroupCode.NONE
    broker.beat("c1", 0)
    broker.beat("c2", 0)
    assert commit_code(broker.group, "c1", 1) is GroupCode.NONE
    assert commit_code(broker.group, "c1", 0) is GroupCode.STALE_MEMBER_EPOCH
    assert commit_code(broker.group, "", -1) is GroupCode.UNKNOWN_MEMBER_ID
    assert commit_code(broker.group, "c9", 1) is GroupCode.UNKNOWN_MEMBER_ID


def violations(seed: int, steps: int) -> list[str]:
    """Return the violations in a drawn course of joins, leaves, lost answers and slow revocations."""
    draws, broker, found = random.Random(seed), Broker(7), []
    known: dict[str, tuple[int, Partitions]] = {}
    for _ in range(steps):
        name = draws.choice("abcd")
        kind = draws.random()
        if name not in known:
            answer = broker.beat(name, 0)
        elif kind < 0.08:
            broker.beat(name, -1)
            del known[name]
            continue
        else:
            epoch, held = known[name]
            answer = broker.beat(name, epoch, [number for _, number in held])
        if answer.code is not GroupCode.NONE:
            known.pop(name, None)
            broker.beat(name, -1)
            continue
        if draws.random() < 0.15 and name in known:
            continue  # the answer is lost
        known[name] = (answer.epoch, answer.assigned)
        for other, (_, held) in known.items():
            if other != name and held & answer.assigned:
                found.append(f"{sorted(held & answer.assigned)} with {name} and {other}")
    for _ in range(12):
        for name in sorted(broker.group.members):
            if name not in known:  # its answer was lost at joining: it asks again
                answer = broker.beat(name, 0, ())
            else:
                epoch, held = known[name]
                answer = broker.beat(name, epoch, [number for _, number in held])
            if answer.code is GroupCode.NONE:
                known[name] = (answer.epoch, answer.assigned)
            else:  # fenced: it drops what it holds and joins again
                known.pop(name, None)
    if known and (
        broker.group.state is not ModernState.STABLE
        or frozenset().union(*(held for _, held in known.values())) != parts(*range(7))
    ):
        found.append("not settled")
    return found


@given(st.integers(0, 1 << 32))
@settings(max_examples=scaled(100))
def test_no_two_members_ever_hold_a_partition_and_everybody_arrives(seed: int) -> None:
    assert not violations(seed, 60)


def _at_once(plain: Callable[..., MemberStep]) -> Callable[..., MemberStep]:
    def step(**given: object) -> MemberStep:
        return plain(**{**given, "taken": NOTHING})

    return step


def test_granting_a_partition_that_is_still_owned_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: partitions given before their holder has let go."""
    monkeypatch.setattr(consumer_group, "next_step", _at_once(next_step))
    assert any(violations(seed, 60) for seed in range(5))


def test_a_static_member_that_is_back_under_its_name_is_not_away_any_more() -> None:
    broker = Broker()
    broker.beat("c1", 0, instance_id="desk")
    broker.beat("c1", -2, instance_id="desk")
    assert broker.group.members["c1"].away
    broker.beat("c1", 0, instance_id="desk")
    assert not broker.group.members["c1"].away
    assert broker.beat("c2", 0, instance_id="desk").code is GroupCode.UNRELEASED_INSTANCE_ID


def test_members_and_groups_are_values() -> None:
    broker = Broker()
    before = broker.group
    broker.beat("c1", 0)
    assert before == ModernGroup()
    assert msgspec.structs.replace(broker.group) == broker.group
