"""docs/PROTOCOL.md, "Balanced groups", against the code: each row of its tables is executed."""

from __future__ import annotations

import re

import msgspec
import pytest

from holdfast.core.groups import announcements, balancer, membership
from holdfast.core.groups.announcements import Announce, Announcement, Beat, Leave, Summary
from holdfast.core.groups.assignors.types import AssignorName
from holdfast.core.groups.codes import GroupCode
from holdfast.core.groups.java_order import coordinator_partition, string_hash
from holdfast.core.groups.membership import summary_of
from holdfast.core.kafka.topic_partition import TopicPartition
from holdfast.models.consumer_group import NOTHING, Partitions, next_step
from holdfast.models.group_coordinator.rules import step
from holdfast.models.group_coordinator.types import (
    ClassicGroup,
    DeleteGroup,
    GroupState,
    HeartbeatRequest,
    JoinGroup,
    LeaveGroup,
    OffsetCommit,
    Request,
    SyncGroup,
)
from tests.core.claims.test_protocol_page import PAGE, Row, plain, table
from tests.core.groups.balancing import Reader, announce

KINDS: dict[str, type[Announcement]] = {
    "announce": Announce,
    "beat": Beat,
    "leave": Leave,
    "summary": Summary,
}


def test_the_placement_s_examples_are_those_of_the_code() -> None:
    for row in table("Group", "Hash", "Partition of 50"):
        group = plain(row["Group"])
        assert string_hash(group) == int(row["Hash"])
        assert coordinator_partition(group) == int(row["Partition of 50"])


def test_the_page_has_every_kind_of_announcement_with_its_fields_in_order() -> None:
    rows = {
        plain(row["Kind"]): row["Fields"].split(", ")
        for row in table("Kind", "Fields", "Who says it, and when")
    }
    assert rows == {
        name: [field.encode_name for field in msgspec.structs.fields(kind)] for name, kind in KINDS.items()
    }
    for name, kind in KINDS.items():
        assert kind.__struct_config__.tag == name


def test_the_limits_are_those_of_the_code_and_the_page_has_all_of_them() -> None:
    rows = {
        plain(row["Limit"]): int(row["Value"])
        for row in table("Limit", "Value")
        if hasattr(announcements, plain(row["Limit"]))
    }
    assert rows == {
        name: value for name, value in vars(announcements).items() if name.startswith(("LIMIT_", "SESSION_"))
    }


def test_the_times_are_those_of_the_code() -> None:
    rows = [
        row for row in table("Constant", "Value", "What it is") if hasattr(balancer, plain(row["Constant"]))
    ]
    assert len(rows) == 10
    for row in rows:
        assert float(row["Value"]) == getattr(balancer, plain(row["Constant"])), row["Constant"]


def announced(kind: str, of: str, monkeypatch: pytest.MonkeyPatch) -> GroupCode:
    reader = Reader()
    reader.read(0, announce("old", client="a"), 0)
    reader.read(1, announce("a", client="a"), 0)
    match kind, of:
        case "announce", "a newcomer":
            said: Announcement = announce("b")
        case "announce", "a newcomer with no assignor in common":
            said = announce("b", assignors=("range",))
        case "announce", "a newcomer to a full group":
            monkeypatch.setattr(membership, "LIMIT_GROUP_MEMBERS", 1)
            said = announce("b")
        case "announce", "a process whose place a newer one has":
            said = announce("old", client="a")
        case "beat", _:
            said = Beat(
                "g",
                {"a member": "a", "a stranger": "z", "a process whose place a newer one has": "old"}[of],
                1,
            )
        case "leave", _:
            said = Leave("g", {"a member": "a", "a stranger": "z"}[of])
        case "summary", _:
            summary = summary_of(reader.rows, "g")
            assert summary is not None
            said = summary
            if of == "a state that something changed since":
                reader.read(2, announce("b"), 0)
        case _:
            raise AssertionError(f"no test for {kind} of {of}")
    return reader.read(3, said, 0)


@pytest.mark.parametrize(
    "row", table("Announcement", "Of", "Code"), ids=lambda row: f"{row['Announcement']}-{row['Of']}"
)
def test_each_announcement_is_answered_as_the_page_says(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    code = announced(row["Announcement"], row["Of"], monkeypatch)
    assert f"{code.value} {code.name}" == row["Code"]


def classic(state: GroupState) -> ClassicGroup:
    """Return a group of one member "a" in *state*; in Empty and Dead it was there before."""
    group = ClassicGroup()

    def ask(request: Request, at_ms: int = 0) -> None:
        nonlocal group
        group, _ = step(group, request, at_ms)

    ask(JoinGroup(request=1, member_id="", new_id="a", protocols=(("range", b""),), requires_id=False))
    ask(HeartbeatRequest(request=2, member_id="z", generation=0), 3_000)
    if state is not GroupState.COMPLETING:
        ask(SyncGroup(request=3, member_id="a", generation=1), 3_000)
    match state:
        case GroupState.EMPTY:
            ask(LeaveGroup(request=4, member_id="a"), 3_000)
        case GroupState.PREPARING:
            ask(
                JoinGroup(
                    request=5, member_id="", new_id="b", protocols=(("range", b""),), requires_id=False
                ),
                3_000,
            )
        case GroupState.DEAD:
            ask(DeleteGroup(request=6), 3_000)
    assert group.state is state
    return group


@pytest.mark.parametrize("state", GroupState)
@pytest.mark.parametrize(
    "row",
    table("Request", "Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead"),
    ids=lambda row: row["Request"],
)
def test_the_classic_coordinator_answers_as_the_page_says(row: Row, state: GroupState) -> None:
    group = classic(state)
    requests: dict[str, Request] = {
        "Heartbeat of a member": HeartbeatRequest(request=9, member_id="a", generation=group.generation),
        "OffsetCommit of a member": OffsetCommit(request=9, member_id="a", generation=group.generation),
        "OffsetCommit, generation -1, no member": OffsetCommit(request=9),
        "SyncGroup of a member": SyncGroup(request=9, member_id="a", generation=group.generation),
    }
    if (row["Request"], state) == ("SyncGroup of a member", GroupState.COMPLETING):
        # A follower's: the leader's ends the waiting.
        group = ClassicGroup()
        for number, name in enumerate("ab"):
            join = JoinGroup(
                request=number, member_id="", new_id=name, protocols=(("range", b""),), requires_id=False
            )
            group, _ = step(group, join, 0)
        group, replies = step(group, SyncGroup(request=9, member_id="b", generation=1), 6_000)
        assert not [each for each in replies if each.request == 9]
        _, replies = step(group, SyncGroup(request=10, member_id="a", generation=1), 6_000)
        assert [each.code for each in replies if each.request == 9] == [GroupCode.NONE]
        assert row[state.value] == "waits"
        return
    _, replies = step(group, requests[row["Request"]], 3_000)
    assert [str(each.code.value) for each in replies if each.request == 9] == [row[state.value]]


def parts(*numbers: int) -> Partitions:
    return frozenset(TopicPartition("t", number) for number in numbers)


@pytest.mark.parametrize(
    "row",
    table("Revoking", "Still owned", "Pending", "State", "Epoch", "Holds next"),
    ids=lambda row: f"{row['Revoking']}-{row['Still owned']}-{row['Pending']}",
)
def test_reconciliation_steps_as_the_page_says(row: Row) -> None:
    target = parts(0, 2, 3)
    current = parts(0, 1) if row["Revoking"] == "some" else parts(0)
    takens: list[Partitions] = {
        "any": [NOTHING, parts(2)],
        "all free": [NOTHING],
        "some taken": [parts(2), parts(2, 3)],
    }[row["Pending"]]
    saying: dict[str, list[Partitions | None]] = {
        "yes, or not said": [parts(0, 1), None],
        "no": [parts(0)],
        "any": [parts(0), None],
    }
    for taken in takens:
        for owned in saying[row["Still owned"]]:
            found = next_step(
                current=current, target=target, owned=owned, taken=taken, epoch=4, target_epoch=6
            )
            assert found.state.name == row["State"]
            assert found.epoch == {"stays": 4, "the target's": 6}[row["Epoch"]]
            free = parts(2, 3) - taken
            holds = {
                "assigned": parts(0),
                "assigned and pending": target,
                "assigned and what is free of pending": parts(0) | free,
            }
            assert found.assigned == holds[row["Holds next"]]


def test_the_page_names_every_assignor() -> None:
    section = PAGE[PAGE.index("### Assignors") : PAGE.index("### Where the assignors differ")]
    assert set(re.findall(r"`([a-z-]+)`", section)) == set(AssignorName)
