"""The classic coordinator: states, timers, error codes."""

from __future__ import annotations

import pytest

from holdfast.core.groups.codes import GroupCode as Code
from holdfast.models.group_coordinator.rules import next_deadline_ms, step
from holdfast.models.group_coordinator.types import (
    ClassicGroup,
    CoordinatorSettings,
    DeleteGroup,
    GroupReply,
    GroupState,
    HeartbeatRequest,
    JoinGroup,
    LeaveGroup,
    OffsetCommit,
    Request,
    SyncGroup,
    TimePasses,
)

RANGE = (("range", b"r"),)


class Group:
    """A coordinator with one group; *answers* holds the latest reply of each request."""

    def __init__(self, **settings: int) -> None:
        self.now_ms = 0
        self.value = ClassicGroup(settings=CoordinatorSettings(**settings))
        self.answers: dict[int, GroupReply] = {}
        self.asked = 0

    def ask(self, request: Request) -> GroupReply | None:
        self.value, replies = step(self.value, request, self.now_ms)
        self.answers.update((each.request, each) for each in replies)
        return self.answers.get(request.request)

    def number(self) -> int:
        self.asked += 1
        return self.asked

    def join(
        self,
        member_id: str = "",
        new_id: str = "",
        protocols: tuple[tuple[str, bytes], ...] = RANGE,
        **more: object,
    ) -> int:
        number = self.number()
        given = {"requires_id": False, **more}
        self.ask(JoinGroup(request=number, member_id=member_id, new_id=new_id, protocols=protocols, **given))  # type: ignore[arg-type]
        return number

    def sync(self, member_id: str, **more: object) -> int:
        number = self.number()
        given = {"generation": self.value.generation, **more}
        self.ask(SyncGroup(request=number, member_id=member_id, **given))  # type: ignore[arg-type]
        return number

    def beat(self, member_id: str, generation: int | None = None, instance_id: str | None = None) -> Code:
        number = self.number()
        generation = self.value.generation if generation is None else generation
        reply = self.ask(
            HeartbeatRequest(
                request=number, member_id=member_id, generation=generation, instance_id=instance_id
            )
        )
        assert reply is not None
        return reply.code

    def commit(self, member_id: str = "", generation: int = -1, instance_id: str | None = None) -> Code:
        number = self.number()
        reply = self.ask(
            OffsetCommit(request=number, member_id=member_id, generation=generation, instance_id=instance_id)
        )
        assert reply is not None
        return reply.code

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.ask(TimePasses())

    def where(self) -> GroupState:
        return self.value.state

    def ids(self) -> list[str]:
        return [each.member_id for each in self.value.members]

    def settle(self) -> None:
        """Sync everybody of a completing group; each gets its own name."""
        leader = self.value.leader
        for each in [*(name for name in self.ids() if name != leader), leader]:
            self.sync(
                each,
                assignments=tuple((name, name.encode()) for name in self.ids()) if each == leader else (),
            )


def stable(*names: str, instances: dict[str, str] | None = None, **more: object) -> Group:
    group = Group()
    for name in names:
        group.join(new_id=name, instance_id=(instances or {}).get(name), **more)  # type: ignore[arg-type]
    group.wait(6_001)
    group.settle()
    assert group.where() is GroupState.STABLE
    return group


def test_a_group_is_formed_by_joins_and_the_leader_s_assignment() -> None:
    group = Group()
    first, second = group.join(new_id="a"), group.join(new_id="b", protocols=(("range", b"other"),))
    group.wait(6_000)
    assert group.answers[first] == GroupReply(
        first, Code.NONE, "a", 1, "range", "a", (("a", b"r"), ("b", b"other"))
    )
    assert group.answers[second] == GroupReply(second, Code.NONE, "b", 1, "range", "a")
    waiting = group.sync("b")
    assert waiting not in group.answers
    led = group.sync("a", assignments=(("a", b"0"),))
    assert group.answers[led].assignment == b"0"
    assert group.answers[waiting].assignment == b"", "whom the leader forgot gets nothing"
    assert group.answers[group.sync("a")].assignment == b"0"


def test_the_first_join_waits_three_seconds_and_three_more_for_a_late_joiner() -> None:
    """G4: the initial delay is extended by newcomers, up to the rebalance timeout."""
    group = Group()
    group.join(new_id="a")
    group.wait(2_999)
    assert group.where() is GroupState.PREPARING
    group.join(new_id="b")
    group.wait(2_999)
    assert group.where() is GroupState.PREPARING
    group.wait(2)
    assert group.where() is GroupState.COMPLETING
    lone = Group()
    lone.join(new_id="a")
    lone.wait(3_000)
    assert lone.where() is GroupState.COMPLETING
    short = Group()
    short.join(new_id="a", rebalance_ms=4_000)
    short.wait(2_000)
    short.join(new_id="b", rebalance_ms=4_000)
    short.wait(2_000)
    assert short.where() is GroupState.COMPLETING, "the rebalance timeout bounds it"


def test_heartbeats_are_answered_by_state() -> None:
    """G4: PREPARING 27, COMPLETING ok, STABLE ok, EMPTY 25; a wrong generation 22, a stranger 25."""
    group = stable("a", "b")
    assert group.beat("a") is Code.NONE
    assert group.beat("a", 9) is Code.ILLEGAL_GENERATION
    assert group.beat("z") is Code.UNKNOWN_MEMBER_ID
    rejoined = group.join("a")
    assert rejoined not in group.answers
    assert group.beat("b") is Code.REBALANCE_IN_PROGRESS
    group.join("b")
    assert group.where() is GroupState.COMPLETING
    assert group.beat("a") is Code.NONE
    for name in ("a", "b"):
        group.ask(LeaveGroup(request=group.number(), member_id=name))
    assert group.where() is GroupState.EMPTY
    assert group.beat("a") is Code.UNKNOWN_MEMBER_ID


def test_commits_are_answered_by_state() -> None:
    """G4:

    COMPLETING 27; generation -1 is accepted in EMPTY and refused with 25 in STABLE; other generations 22.
    """
    group = Group()
    assert group.commit() is Code.NONE
    group.join(new_id="a")
    group.wait(3_000)
    assert group.commit("a", 1) is Code.REBALANCE_IN_PROGRESS
    group.settle()
    assert group.commit("a", 1) is Code.NONE
    assert group.commit() is Code.UNKNOWN_MEMBER_ID
    assert group.commit("a", 0) is Code.ILLEGAL_GENERATION


def test_who_does_not_rejoin_in_time_is_dropped_but_static_members_stay() -> None:
    """G4."""
    group = stable("a", "b", "c", instances={"c": "i"}, session_ms=1_800_000, rebalance_ms=60_000)
    group.join("a", session_ms=1_800_000, rebalance_ms=60_000)
    group.wait(59_999)
    assert group.where() is GroupState.PREPARING
    group.wait(1)
    assert group.where() is GroupState.COMPLETING
    assert group.ids() == ["a", "c"]
    assert group.value.generation == 2


@pytest.mark.parametrize(("away_s", "kept"), [(44, True), (46, False)])
def test_a_static_member_back_within_its_session_causes_no_rebalance(away_s: int, kept: bool) -> None:
    """G3: at 44 s of 45 s the generation and the assignment are the same and the old id is fenced with 82;
    at 46 s there is a rebalance.
    """
    group = stable("b", "old", instances={"old": "i", "b": "j"}, session_ms=45_000)
    for _ in range(away_s // 2):
        group.wait(2_000)
        group.beat("b", instance_id="j")
    back = group.join(new_id="new", instance_id="i")
    if kept:
        assert group.answers[back][:4] == (back, Code.NONE, "new", 1)
        assert group.answers[group.sync("new", instance_id="i")].assignment == b"old"
        assert group.beat("old", instance_id="i") is Code.FENCED_INSTANCE_ID
        assert group.where() is GroupState.STABLE
    else:
        assert back not in group.answers
        assert group.where() is GroupState.PREPARING
        assert group.beat("b", instance_id="j") is Code.REBALANCE_IN_PROGRESS


def test_a_static_leader_that_returns_is_asked_to_assign_nothing() -> None:
    group = stable("old", instances={"old": "i"})
    reply = group.answers[group.join(new_id="new", instance_id="i")]
    assert reply.skip_assignment
    assert reply.leader == "new"


def test_a_static_member_that_returns_while_the_group_completes_rebalances_it_and_fences_the_old_sync() -> (
    None
):
    group = Group()
    group.join(new_id="a")
    group.join(new_id="old", instance_id="i")
    group.wait(6_000)
    waiting = group.sync("old", instance_id="i")
    group.join(new_id="new", instance_id="i")
    assert group.answers[waiting].code is Code.FENCED_INSTANCE_ID
    assert group.where() is GroupState.PREPARING


def test_a_newcomer_must_join_again_with_the_id_it_is_given() -> None:
    """KIP-394: 79, and the id is forgotten after the session timeout."""
    group = Group()
    asked = group.join(new_id="a-1", requires_id=True)
    assert group.answers[asked] == GroupReply(asked, Code.MEMBER_ID_REQUIRED, "a-1")
    group.join("a-1")
    assert group.ids() == ["a-1"]
    group.join(new_id="a-2", requires_id=True, session_ms=6_000)
    group.wait(6_000)
    late = group.join("a-2")
    assert group.answers[late].code is Code.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("join", "code"),
    [
        ({"session_ms": 5_999}, Code.INVALID_SESSION_TIMEOUT),
        ({"session_ms": 1_800_001}, Code.INVALID_SESSION_TIMEOUT),
        ({"protocols": (("sticky", b""),)}, Code.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "z"}, Code.UNKNOWN_MEMBER_ID),
        ({"member_id": "z", "instance_id": "i"}, Code.FENCED_INSTANCE_ID),
    ],
)
def test_joins_that_cannot_be_are_refused(join: dict[str, object], code: Code) -> None:
    group = stable("a", "b", instances={"b": "i"})
    before = group.value
    number = group.join(**{"new_id": "n", **join})  # type: ignore[arg-type]
    assert group.answers[number].code is code
    assert group.value == before


def test_a_full_group_and_a_deleted_one_refuse() -> None:
    group = Group(max_size=1)
    group.join(new_id="a")
    assert group.answers[group.join(new_id="b")].code is Code.GROUP_MAX_SIZE_REACHED
    group.ask(DeleteGroup(request=group.number()))
    assert group.where() is GroupState.DEAD
    assert group.answers[group.join(new_id="c")].code is Code.COORDINATOR_NOT_AVAILABLE
    assert group.beat("a") is Code.COORDINATOR_NOT_AVAILABLE
    assert group.commit() is Code.COORDINATOR_NOT_AVAILABLE


def test_a_rejoin_with_nothing_new_is_answered_at_once_unless_the_leader_asks() -> None:
    group = stable("a", "b")
    follower = group.join("b")
    assert group.answers[follower].generation == 1
    assert group.where() is GroupState.STABLE
    group.join("a")
    assert group.where() is GroupState.PREPARING
    group.join("b")
    assert group.where() is GroupState.COMPLETING
    again = group.join("a")
    assert group.answers[again].members == (("a", b"r"), ("b", b"r"))
    group.join("b", protocols=(("range", b"changed"),))
    assert group.where() is GroupState.PREPARING


def test_syncs_are_answered_by_state() -> None:
    group = stable("a", "b")
    assert group.answers[group.sync("a", generation=7)].code is Code.ILLEGAL_GENERATION
    assert group.answers[group.sync("a", protocol="sticky")].code is Code.INCONSISTENT_GROUP_PROTOCOL
    group.join("a")
    assert group.answers[group.sync("b")].code is Code.REBALANCE_IN_PROGRESS
    group.join("b")
    waiting = group.sync("b")
    group.join(new_id="c")
    assert group.answers[waiting].code is Code.REBALANCE_IN_PROGRESS


def test_who_never_syncs_is_dropped_when_the_rebalance_timeout_is_over() -> None:
    group = Group()
    for name in ("a", "b"):
        group.join(new_id=name, session_ms=1_800_000, rebalance_ms=10_000)
    group.wait(6_000)
    group.sync("a")
    group.wait(10_000)
    assert group.ids() == ["a"]
    assert group.where() is GroupState.PREPARING


def test_a_session_that_ends_or_a_member_that_leaves_starts_a_rebalance_and_another_leads() -> None:
    group = stable("a", "b", "c")
    group.wait(40_000)
    group.beat("b")
    group.beat("c")
    group.wait(10_000)
    assert group.ids() == ["b", "c"]
    assert group.where() is GroupState.PREPARING
    group.join("b")
    group.join("c")
    assert group.value.leader in ("b", "c")
    assert group.value.generation == 2
    group.settle()
    left = group.number()
    group.ask(LeaveGroup(request=left, member_id="c"))
    assert group.answers[left].code is Code.NONE
    assert group.beat("b") is Code.REBALANCE_IN_PROGRESS


def test_the_last_to_leave_empties_the_group_and_the_generation_counts_on() -> None:
    group = stable("a")
    group.ask(LeaveGroup(request=group.number(), member_id="a"))
    assert group.where() is GroupState.EMPTY
    assert group.value.generation == 2


def test_an_administrator_removes_a_static_member_by_its_instance_id() -> None:
    group = stable("a", "b", instances={"b": "i"})
    number = group.number()
    group.ask(LeaveGroup(request=number, instance_id="i"))
    assert group.answers[number].code is Code.NONE
    assert group.ids() == ["a"]
    group.ask(LeaveGroup(request=number, instance_id="i"))
    assert group.answers[number].code is Code.UNKNOWN_MEMBER_ID


def test_the_result_does_not_depend_on_when_the_group_is_looked_at() -> None:
    often, seldom = stable("a", "b"), stable("a", "b")
    for _ in range(60):
        often.wait(1_000)
    seldom.wait(60_000)
    assert often.value == seldom.value
    assert often.where() is GroupState.EMPTY


def test_transactions_commit_offsets_without_a_member_and_while_a_group_completes() -> None:
    group = Group(initial_delay_ms=0)
    group.join(new_id="a")
    group.now_ms += 1
    group.ask(TimePasses())
    assert group.value.state is GroupState.COMPLETING

    def commit(**told: object) -> Code | None:
        reply = group.ask(OffsetCommit(request=group.number(), **told))  # type: ignore[arg-type]
        return None if reply is None else reply.code

    member = {"member_id": "a", "generation": group.value.generation}
    assert commit(**member) is Code.REBALANCE_IN_PROGRESS
    assert commit(**member, transactional=True) is Code.NONE
    assert commit() is Code.UNKNOWN_MEMBER_ID
    assert commit(transactional=True) is Code.NONE
    assert commit(member_id="z", generation=1, transactional=True) is Code.UNKNOWN_MEMBER_ID


def test_a_newcomer_with_another_protocol_is_refused_before_it_has_an_id() -> None:
    group = Group(initial_delay_ms=0)
    group.join(new_id="a")
    number = group.join(new_id="b", protocols=(("sticky", b""),), requires_id=True)
    assert group.answers[number].code is Code.INCONSISTENT_GROUP_PROTOCOL
    assert group.value.pending == ()


def test_the_next_deadline_is_when_something_happens() -> None:
    group = Group(initial_delay_ms=0)
    assert next_deadline_ms(group.value) is None
    group.join(new_id="a", session_ms=10_000)
    while (due_ms := next_deadline_ms(group.value)) is not None:
        before, group.now_ms = group.value, due_ms - 1
        group.ask(TimePasses())
        assert group.value == before
        group.now_ms = due_ms
        group.ask(TimePasses())
        assert group.value != before
    assert group.value.members == ()


def test_members_that_join_together_are_of_one_kind_before_the_first_is_answered() -> None:
    group = Group()
    first, second = group.join(new_id="a"), group.join(new_id="b")
    stranger = group.join(new_id="c", protocol_type="connect")
    assert group.answers[stranger].code is Code.INCONSISTENT_GROUP_PROTOCOL
    group.wait(6_001)
    assert [group.answers[each].code for each in (first, second)] == [Code.NONE, Code.NONE]
    assert group.value.protocol_type == "consumer"


def test_an_empty_group_takes_members_of_another_kind() -> None:
    group = stable("a")
    group.ask(LeaveGroup(request=group.number(), member_id="a"))
    group.join(new_id="b", protocol_type="connect", protocols=(("compatible", b""),))
    group.wait(3_000)
    assert (group.value.protocol_type, group.value.protocol) == ("connect", "compatible")


def test_a_join_is_checked_in_kafkas_order() -> None:
    """The session, then room, protocols, and last of all who asks; its own protocols count too."""
    group = Group(max_size=2)
    for name in ("a", "b"):
        group.join(new_id=name)
    group.wait(6_001)
    group.settle()
    sticky = (("sticky", b""),)

    def code(member_id: str, **more: object) -> Code:
        return group.answers[group.join(member_id, new_id="new", **more)].code  # type: ignore[arg-type]

    assert code("z", session_ms=1, protocols=sticky) is Code.INVALID_SESSION_TIMEOUT
    assert code("z", protocols=sticky) is Code.GROUP_MAX_SIZE_REACHED
    assert code("", protocols=sticky) is Code.GROUP_MAX_SIZE_REACHED
    assert code("a", instance_id="z", protocols=sticky) is Code.INCONSISTENT_GROUP_PROTOCOL
    assert code("a", instance_id="z") is Code.UNKNOWN_MEMBER_ID
    roomy = stable("a")
    number = roomy.join("a", protocols=sticky)
    assert roomy.answers[number].code is Code.INCONSISTENT_GROUP_PROTOCOL, "alone, and still not another kind"


def test_a_leader_that_is_back_under_a_new_id_does_not_lead_by_an_older_version() -> None:
    for may_skip in (False, True):
        group = stable("a", instances={"a": "i"})
        answer = group.answers[group.join(new_id="a2", instance_id="i", may_skip_assignment=may_skip)]
        led = (answer.leader, bool(answer.members), answer.skip_assignment)
        assert led == (("a2", True, True) if may_skip else ("a", False, False))
