"""Conversations of groups, classic and of KIP-848, and their records in the coordinator's log."""

from __future__ import annotations

import json
import re
import time
from typing import Any

from holdfast.embedded.internal_log import OFFSETS
from tests.embedded.transcripts.asking import scenario
from tests.embedded.transcripts.coordinator_logs import log_of
from tests.embedded.transcripts.talk import Talk
from tests.support.patience import DEADLINE_S

# -- groups


def join(talk: Talk, group: str, member: str = "", version: int = 9, *, by: str = "one", **more: Any) -> None:
    told: dict[str, Any] = {
        "session_timeout_ms": 60_000,
        "rebalance_timeout_ms": 60_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"\x00\x00"}],
        **more,
    }
    talk.client(by).send("JoinGroup", version, group_id=group, member_id=member, **told)


def joined(talk: Talk, version: int = 9, *, by: str = "one") -> dict[str, Any]:
    answer = talk.client(by).receive("JoinGroup", version)
    talk.tell(f"JoinGroup {version} by {by}", answer)
    return answer


@scenario
def group_of_one(talk: Talk) -> None:
    topic, group = talk.topic("orders", 2), talk.name("readers")
    talk.coordinated(group)
    for version in talk.versions("FindCoordinator"):
        asked = {"coordinator_keys": [group]} if version >= 4 else {"key": group}
        talk.ask("FindCoordinator", version, **asked)
    talk.ask("FindCoordinator", 6, coordinator_keys=[group], key_type=7)
    join(talk, group)
    member = joined(talk)["member_id"]
    join(talk, group, member)
    generation = joined(talk)["generation_id"]
    said = {"group_id": group, "member_id": member}
    talk.ask("Heartbeat", 4, generation_id=generation, **said)
    assigned = [{"member_id": member, "assignment": b"all"}]
    named = {"protocol_type": "consumer", "protocol_name": "range"}
    talk.ask("SyncGroup", 5, generation_id=generation + 1, assignments=assigned, **said, **named)
    talk.ask("SyncGroup", 5, generation_id=generation, assignments=assigned, **said, protocol_type="connect")
    talk.ask("SyncGroup", 5, generation_id=generation, assignments=assigned, **said, protocol_name="sticky")
    for version in talk.versions("SyncGroup"):
        talk.ask("SyncGroup", version, generation_id=generation, assignments=assigned, **said, **named)
    for version in talk.versions("Heartbeat"):
        talk.ask("Heartbeat", version, generation_id=generation, **said)
    talk.ask("Heartbeat", 4, generation_id=generation + 1, **said)
    talk.ask("Heartbeat", 4, generation_id=generation, group_id=group, member_id="nobody")
    talk.ask("Heartbeat", 4, generation_id=generation, group_id=talk.name("nowhere"), member_id=member)
    talk.ask("Heartbeat", 4, generation_id=generation, group_id="", member_id=member)

    def commit(
        version: int, offset: int, generation: int = generation, member: str = member, **more: Any
    ) -> None:
        told = {
            "partition_index": 0,
            "committed_offset": offset,
            "committed_leader_epoch": 0,
            "committed_metadata": "m",
            **more,
        }
        name = told.pop("name", topic)
        home = {"topic_id": talk.topic_id(name)} if version >= 10 else {"name": name}
        asked = [{**home, "partitions": [told]}]
        talk.ask(
            "OffsetCommit",
            version,
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member,
            topics=asked,
        )

    for version in talk.versions("OffsetCommit"):
        commit(version, version)
    commit(9, 5, generation=generation + 1)
    commit(9, 5, member="nobody")
    commit(9, 5, generation=-1, member="")
    commit(9, 5, partition_index=9)
    commit(9, 5, name=talk.name("nowhere"))
    commit(9, 5, committed_metadata="x" * 5000)
    for version in talk.versions("OffsetFetch"):
        home = {"topic_id": talk.topic_id(topic)} if version >= 10 else {"name": topic}
        wanted = [{**home, "partition_indexes": [0, 1]}]
        told: dict[str, Any] = (
            {"groups": [{"group_id": group, "topics": wanted}]}
            if version >= 8
            else {"group_id": group, "topics": wanted}
        )
        talk.ask("OffsetFetch", version, **told)
    talk.ask("OffsetFetch", 9, groups=[{"group_id": group, "topics": None}])
    talk.ask("OffsetFetch", 7, group_id=group, topics=None, require_stable=True)
    talk.ask(
        "OffsetFetch",
        9,
        groups=[{"group_id": talk.name("nowhere"), "topics": [{"name": topic, "partition_indexes": [0]}]}],
    )
    for version in talk.versions("DescribeGroups"):
        talk.ask(
            "DescribeGroups",
            version,
            groups=[group, talk.name("nowhere")],
            include_authorized_operations=version == 6,
        )
    talk.ask("DeleteGroups", 2, groups_names=[group, talk.name("nowhere"), ""])
    deleted = [{"name": topic, "partitions": [{"partition_index": 0}, {"partition_index": 9}]}]
    talk.ask("OffsetDelete", 0, group_id=group, topics=deleted)
    talk.ask("LeaveGroup", 5, group_id=group, members=[{"member_id": "nobody"}, {"member_id": member}])
    talk.ask("DescribeGroups", 6, groups=[group])
    talk.ask("OffsetDelete", 0, group_id=group, topics=deleted)
    talk.ask("OffsetFetch", 9, groups=[{"group_id": group, "topics": None}])
    commit(9, 5, generation=-1, member="")
    talk.ask("DeleteGroups", 2, groups_names=[group])
    talk.ask("DeleteGroups", 2, groups_names=[group])
    commit(9, 5, generation=3, member="")


@scenario
def members_of_the_new_protocol_that_are_refused(talk: Talk) -> None:
    topic, group = talk.topic("orders"), talk.name("readers")
    talk.coordinated(group)

    def beat(member: str, epoch: int, *, quiet: bool = False, **more: Any) -> int:
        joins = {"rebalance_timeout_ms": 60_000, "topic_partitions": [], "subscribed_topic_names": [topic]}
        usual = {"rebalance_timeout_ms": -1, "topic_partitions": None, "subscribed_topic_names": None}
        told = {**(joins if epoch == 0 else usual), **more}
        ask = talk.quietly if quiet else talk.ask
        answer = ask(
            "ConsumerGroupHeartbeat", 1, group_id=group, member_id=member, member_epoch=epoch, **told
        )
        found: int = answer["member_epoch"]
        return found

    epoch = beat("one", 0, quiet=True)
    beat("static", 0, quiet=True, instance_id="i")
    beat("one", -3)
    beat("one", -2)
    beat("two", 0, subscribed_topic_names=None)
    beat("other", 0, instance_id="i")
    beat("static", -1, instance_id="nowhere")
    beat("one", epoch, instance_id="nowhere")
    for number in (-1, 1_000):
        asked = {"group_id": group, "member_id": "nobody", "member_epoch": number, "topics": None}
        talk.ask("OffsetFetch", 9, groups=[asked])
    named: dict[str, Any] = {"protocol_type": "consumer", "protocol_name": "range", "assignments": []}
    talk.ask("SyncGroup", 5, group_id=group, generation_id=epoch, member_id="one", **named)
    for member in (
        {"member_id": "nobody"},
        {"member_id": "one", "group_instance_id": "i"},
        {"member_id": "", "group_instance_id": "i"},
        {"member_id": "one"},
        {"member_id": "one"},
    ):
        talk.ask("LeaveGroup", 5, group_id=group, members=[member])
    talk.ask("DeleteGroups", 2, groups_names=[group])


@scenario
def groups_without_a_name(talk: Talk) -> None:
    for version in (5, 6):
        talk.ask("DescribeGroups", version, groups=[""])
    talk.ask("ConsumerGroupDescribe", 1, group_ids=[""])
    talk.ask("DeleteGroups", 2, groups_names=["", talk.name("nobody")])
    talk.ask("OffsetDelete", 0, group_id="", topics=[])


@scenario
def group_of_two(talk: Talk) -> None:
    group = talk.name("readers")
    talk.coordinated(group)
    join(talk, group, version=3)
    one = joined(talk, 3)
    told = {"group_id": group, "generation_id": one["generation_id"], "member_id": one["member_id"]}
    named = {"protocol_type": "consumer", "protocol_name": "range"}
    talk.ask("SyncGroup", 3, assignments=[{"member_id": one["member_id"], "assignment": b"all"}], **told)
    join(talk, group, by="two")
    two = joined(talk, by="two")
    join(talk, group, two["member_id"], by="two")
    until_s = time.monotonic() + DEADLINE_S
    while talk.client().ask("Heartbeat", 4, **told)["error_code"] == 0:  # until the second has joined
        assert time.monotonic() < until_s
    talk.ask("Heartbeat", 4, **told)
    join(talk, group, one["member_id"], by="one")
    first, second = joined(talk), joined(talk, by="two")
    assert first["generation_id"] == second["generation_id"]
    told["generation_id"] = first["generation_id"]
    waiting = {**told, "member_id": two["member_id"]}
    talk.client("two").send("SyncGroup", 5, assignments=[], **waiting, **named)
    parts = [
        {"member_id": each["member_id"], "assignment": each["client"]}
        for each in ({**one, "client": b"a"}, {**two, "client": b"b"})
    ]
    talk.ask("SyncGroup", 5, assignments=parts, **told)
    talk.ask("SyncGroup", 5, assignments=parts, **told, **named)
    talk.tell("SyncGroup by two", talk.client("two").receive("SyncGroup", 5))
    talk.ask(
        "JoinGroup",
        9,
        group_id=group,
        session_timeout_ms=60_000,
        protocol_type="connect",
        protocols=[{"name": "range", "metadata": b""}],
    )
    talk.ask(
        "JoinGroup",
        9,
        group_id=group,
        session_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=[{"name": "other", "metadata": b""}],
    )
    talk.ask(
        "JoinGroup",
        9,
        group_id=group,
        session_timeout_ms=10,
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b""}],
    )
    talk.ask(
        "JoinGroup", 9, group_id=group, session_timeout_ms=60_000, protocol_type="consumer", protocols=[]
    )
    talk.ask(
        "JoinGroup",
        9,
        group_id=group,
        member_id="nobody",
        session_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b""}],
    )
    talk.ask(
        "JoinGroup",
        9,
        group_id="",
        session_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b""}],
    )
    for version, member in ((1, two["member_id"]), (0, one["member_id"])):
        talk.ask("LeaveGroup", version, group_id=group, member_id=member)
        talk.ask("Heartbeat", 4, **told)
    for version in talk.versions("ListGroups"):
        found = talk.client().ask("ListGroups", version)
        mine = [each for each in found["groups"] if each["group_id"] == group]
        talk.tell(f"ListGroups {version}", {**found, "groups": mine})
    talk.ask("ListGroups", 5, states_filter=["Nonsense"])


@scenario
def group_of_static_members(talk: Talk) -> None:
    group = talk.name("readers")
    talk.coordinated(group)
    join(talk, group, group_instance_id="desk")
    one = joined(talk)
    told = {"group_id": group, "generation_id": one["generation_id"], "group_instance_id": "desk"}
    named = {"protocol_type": "consumer", "protocol_name": "range"}
    talk.ask(
        "SyncGroup",
        5,
        assignments=[{"member_id": one["member_id"], "assignment": b"all"}],
        member_id=one["member_id"],
        **told,
        **named,
    )
    join(talk, group, group_instance_id="desk", by="two")
    two = joined(talk, by="two")
    talk.ask("Heartbeat", 4, member_id=one["member_id"], **told)
    talk.ask("Heartbeat", 4, member_id=two["member_id"], **told)
    talk.ask("SyncGroup", 5, member_id=two["member_id"], assignments=[], **told, **named)
    talk.ask(
        "LeaveGroup",
        5,
        group_id=group,
        members=[{"member_id": one["member_id"], "group_instance_id": "desk"}],
    )
    talk.ask("LeaveGroup", 5, group_id=group, members=[{"member_id": "", "group_instance_id": "nobody"}])
    talk.ask("DescribeGroups", 6, groups=[group])
    talk.ask("LeaveGroup", 5, group_id=group, members=[{"member_id": "", "group_instance_id": "desk"}])


@scenario
def group_of_the_new_protocol(talk: Talk) -> None:
    """Epochs are left out: Kafka works out assignments in its own time, and counts each of them."""
    topic, group = talk.topic("orders", 2), talk.name("readers")
    talk.coordinated(group)

    def beat(member: str, epoch: int, **more: Any) -> int:
        told = {"group_id": group, "member_id": member, "member_epoch": epoch, **more}
        answer = talk.client().ask("ConsumerGroupHeartbeat", 1, **told)
        at: int = answer["member_epoch"]
        text = re.sub(r"epoch \(\d+\)|group coordinator \(\d+\)", "<epoch>", answer["error_message"] or "")
        talk.tell(f"{member} beats", {**answer, "member_epoch": at > 0, "error_message": text})
        return at

    def settled(member: str, epoch: int) -> int:
        """Beat until the member owns its target assignment."""
        until_s = time.monotonic() + DEADLINE_S
        held: list[Any] | None = None
        while True:
            told = {"group_id": group, "member_id": member, "member_epoch": epoch, "topic_partitions": held}
            answer = talk.client().ask("ConsumerGroupHeartbeat", 1, **told)
            epoch = answer["member_epoch"]
            held = answer["assignment"]["topic_partitions"] if answer["assignment"] else held
            (found,) = talk.client().ask("ConsumerGroupDescribe", 1, group_ids=[group])["groups"]
            if found["group_state"] == "Stable" and found["members"][0]["assignment"]["topic_partitions"]:
                return epoch
            assert time.monotonic() < until_s, found
            time.sleep(0.1)

    first: dict[str, Any] = {
        "rebalance_timeout_ms": 60_000,
        "subscribed_topic_names": [topic],
        "topic_partitions": [],
    }
    talk.ask("ConsumerGroupHeartbeat", 1, group_id="", member_id="a", member_epoch=0, **first)
    told = {"group_id": group, "member_id": "a", "member_epoch": 0, **first, "subscribed_topic_regex": "("}
    answer = talk.client().ask("ConsumerGroupHeartbeat", 1, **told)
    words = str(answer["error_message"]).rpartition(": ")
    talk.tell("a wrong pattern", {**answer, "error_message": words[0]})
    beat("", 0, **first)
    beat("a", 0, subscribed_topic_names=[topic], topic_partitions=[])
    beat("a", 0, **{**first, "server_assignor": "mine"})
    beat("a", 3, **first)
    epoch = settled("a", beat("a", 0, **first))
    beat("b", epoch)
    beat("a", epoch + 5)
    beat("a", epoch)
    groups = talk.client().ask("ConsumerGroupDescribe", 1, group_ids=[group, talk.name("nowhere")])["groups"]
    for each in sorted(groups, key=lambda each: str(each["group_id"])):
        counted = {"group_epoch", "assignment_epoch"}
        members = [{**one, "member_epoch": one["member_epoch"] == epoch} for one in each["members"]]
        kept = {name: value for name, value in each.items() if name not in counted}
        talk.tell("ConsumerGroupDescribe 1", {**kept, "members": members})
    talk.ask("DescribeGroups", 6, groups=[group])
    place = {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}
    asked = [{"topic_id": talk.topic_id(topic), "partitions": [place]}]
    for member, at in (("a", epoch), ("a", epoch + 7), ("nobody", epoch), ("", -1)):
        named: dict[str, Any] = {
            "group_id": group,
            "generation_id_or_member_epoch": at,
            "member_id": member,
        }
        talk.ask("OffsetCommit", 10, topics=asked, **named)
    beat("b", -1)
    beat("a", -1)
    beat("a", -1)


# -- records of a group of the new protocol in the log


@scenario
def log_of_the_new_protocol(talk: Talk) -> None:
    """The last record of each key, once the group has come to rest. Two things are left out: epochs, which
    count Kafka's own work, and the assignment of partitions, which is the assignors' business.
    """
    topic, group = talk.topic("orders", 4), talk.name("readers")
    pattern = talk.name("or.*")
    talk.coordinated(group)
    epochs: dict[str, int] = {}
    held: dict[str, list[Any]] = {}

    def beat(member: str, **more: Any) -> dict[str, Any]:
        told = {"member_epoch": epochs.get(member, 0), "topic_partitions": held.get(member, []), **more}
        told = {"group_id": group, "member_id": member, "rebalance_timeout_ms": -1, **told}
        answer = talk.client().ask("ConsumerGroupHeartbeat", 1, **told)
        assert answer["error_code"] == 0, answer
        epochs[member] = answer["member_epoch"]
        if answer["assignment"] is not None:
            held[member] = answer["assignment"]["topic_partitions"]
        return answer

    def settle(*members: str) -> None:
        """Beat until every partition is owned, and no assignment changes any more."""
        until_s = time.monotonic() + DEADLINE_S
        while True:
            for each in members:
                beat(each)
            (found,) = talk.client().ask("ConsumerGroupDescribe", 1, group_ids=[group])["groups"]
            holds = [one["assignment"]["topic_partitions"] for one in found["members"]]
            counts = [sum(len(each["partitions"]) for each in one) for one in holds]
            if found["group_state"] == "Stable" and sum(counts) == 4 and all(counts):
                return
            assert time.monotonic() < until_s, found
            time.sleep(0.05)

    def masked(kind: str, value: dict[str, Any], epoch: int) -> dict[str, Any]:
        told = {name: each for name, each in value.items() if not name.endswith("timestamp")}
        if "metadata_hash" in told:
            told["metadata_hash"] = told["metadata_hash"] != 0
        for name in ("epoch", "assignment_epoch", "member_epoch", "previous_member_epoch"):
            if name in told and told[name] >= 0:
                told[name] = "the group's" if told[name] == epoch else "before"
        if kind.endswith("CurrentMemberAssignment"):
            told["previous_member_epoch"] = "before"
            for each in (*told["assigned_partitions"], *told["partitions_pending_revocation"]):
                assert len(each["assignment_epochs"]) == len(each["partitions"])
                known = {True: "one before", False: "none"}
                each["assignment_epochs"] = [known[0 < one <= epoch] for one in each["assignment_epochs"]]
        for each in (*told.get("topic_partitions", ()), *told.get("assigned_partitions", ())):
            each["partitions"] = len(each["partitions"])
        told.pop("version", None)
        return told

    def tell() -> None:
        last = {json.dumps(each[:2]): each[:3] for each in log_of(talk, OFFSETS, group)}
        epoch = max(
            [value["epoch"] for _, _, value in last.values() if value and "epoch" in value], default=0
        )
        for _, (kind, key, value) in sorted(last.items()):
            talk.tell(
                f"{kind} {sorted(key.items())}".replace(f"-{topic[-8:]}", ""),
                None if value is None else masked(kind, value, epoch),
            )
        talk.lines.append("")

    join: dict[str, Any] = {
        "rebalance_timeout_ms": 10_000,
        "subscribed_topic_names": [topic],
        "topic_partitions": [],
    }
    beat("a", **join)
    settle("a")
    tell()
    beat("b", **join, instance_id="desk", server_assignor="range")
    settle("a", "b")
    tell()
    place = {"partition_index": 0, "committed_offset": 5, "committed_metadata": "m"}
    asked = [{"topic_id": talk.topic_id(topic), "partitions": [place]}]
    member: dict[str, Any] = {"group_id": group, "member_id": "a"}
    member["generation_id_or_member_epoch"] = epochs["a"]
    talk.ask("OffsetCommit", topics=asked, **member)
    named = [{"name": topic, "partitions": [{**place, "partition_index": 1}]}]
    talk.ask("OffsetCommit", 9, topics=named, **member)
    beat("b", member_epoch=-2, instance_id="desk")
    tell()
    beat("c", **join, instance_id="desk")
    settle("a", "c")
    tell()
    beat("d", **{**join, "subscribed_topic_names": None}, subscribed_topic_regex=pattern)
    settle("a", "c", "d")
    tell()
    for each in ("d", "a", "c"):
        beat(each, member_epoch=-1)
    tell()
    talk.ask("DeleteGroups", 2, groups_names=[group])
    tell()
