"""Requests that are wrong in several ways at once: the error that Kafka returns shows the order of its
checks.
"""

from __future__ import annotations

import time
from itertools import product
from typing import Any

from tests.embedded.transcripts.asking import scenario
from tests.embedded.transcripts.group_scenarios import join, joined
from tests.embedded.transcripts.talk import Talk
from tests.support.patience import DEADLINE_S

NOWHERE = b"x" * 16
RANGE, STICKY = [{"name": name, "metadata": b"\x00\x00"} for name in ("range", "sticky")]


def ask_to_join(talk: Talk, group: str, member: str, version: int, **more: Any) -> dict[str, Any]:
    join(talk, group, member, version, **more)
    return joined(talk, version)


@scenario
def joins_that_are_wrong_in_several_ways(talk: Talk) -> None:
    """The session comes first of all, then the protocols, and only then who asks."""
    group, nowhere = talk.name("readers"), talk.name("nowhere")
    talk.coordinated(group)
    wrong: dict[str, list[Any]] = {
        "group": ["", nowhere],
        "member": ["", "nobody"],
        "session_timeout_ms": [1, 60_000],
        "protocols": [[], [RANGE]],
    }
    for group_id, member, session_ms, protocols in product(*wrong.values()):
        if protocols and not (session_ms == 60_000 and group_id and not member):
            ask_to_join(talk, group_id, member, 9, session_timeout_ms=session_ms, protocols=protocols)
            ask_to_join(talk, group_id, member, 3, session_timeout_ms=session_ms, protocol_type="")
    member = ask_to_join(talk, group, "", 9, protocols=[RANGE])["member_id"]
    ask_to_join(talk, group, member, 9, protocols=[RANGE], group_instance_id="static")
    joined_once = ask_to_join(talk, group, member, 9, protocols=[RANGE])
    for who, kind, protocols in product((member, "nobody", ""), ("consumer", "connect"), ([], [STICKY])):
        ask_to_join(talk, group, who, 9, protocol_type=kind, protocols=protocols)
    for who in ("nobody", member):
        ask_to_join(talk, group, who, 9, session_timeout_ms=1, protocols=[STICKY])
        ask_to_join(talk, group, who, 9, group_instance_id="nobody", protocols=[STICKY])
        ask_to_join(talk, group, who, 9, group_instance_id="nobody", protocols=[RANGE])
    talk.ask("DescribeGroups", 6, groups=[group])
    talk.ask("LeaveGroup", 5, group_id=group, members=[{"member_id": joined_once["member_id"]}])


@scenario
def syncs_and_heartbeats_that_are_wrong_in_several_ways(talk: Talk) -> None:
    group = talk.name("readers")
    talk.coordinated(group)
    member = ask_to_join(talk, group, "", 9)["member_id"]
    pending = {"group_id": group, "member_id": member, "generation_id": 1}
    talk.ask("SyncGroup", 5, **pending, protocol_type="consumer", protocol_name="range")
    talk.ask("Heartbeat", 4, **pending)
    generation = ask_to_join(talk, group, member, 9)["generation_id"]
    named: dict[str, list[Any]] = {
        "group_id": ["", talk.name("nowhere"), group],
        "member_id": ["nobody", member],
        "group_instance_id": [None, "nobody"],
        "generation_id": [generation + 1, generation],
    }
    kinds = [(None, "range"), ("consumer", None), ("connect", "range"), ("consumer", "sticky")]
    for values in product(*named.values()):
        said = dict(zip(named, values, strict=True))
        for kind, protocol in kinds:
            talk.ask("SyncGroup", 5, **said, protocol_type=kind, protocol_name=protocol)
        talk.ask("SyncGroup", 3, **said)
        talk.ask("Heartbeat", 4, **said)
    talk.ask("LeaveGroup", 5, group_id="", members=[{"member_id": "nobody"}])
    both = [
        {"member_id": member, "group_instance_id": "nobody"},
        {"member_id": member},
        {"member_id": member},
    ]
    talk.ask("LeaveGroup", 5, group_id=group, members=both)
    talk.ask("LeaveGroup", 2, group_id=group, member_id=member)


@scenario
def a_leader_that_is_back_is_told_by_its_version(talk: Talk) -> None:
    """From version 9 on, it learns that it need not assign again; in older ones, that another member
    leads.
    """
    for version in (5, 8, 9):
        group, static = talk.name(f"readers-{version}"), {"group_instance_id": "static"}
        talk.coordinated(group)
        first = ask_to_join(talk, group, "", version, **static)
        told = {"group_id": group, "generation_id": first["generation_id"], "member_id": first["member_id"]}
        named = {"protocol_type": "consumer", "protocol_name": "range"}
        assigned = [{"member_id": first["member_id"], "assignment": b"all"}]
        talk.ask("SyncGroup", 5, **told, **static, **named, assignments=assigned)
        again = ask_to_join(talk, group, "", version, **static)
        talk.ask("Heartbeat", 4, **told, **static)
        talk.ask("Heartbeat", 4, **{**told, "member_id": again["member_id"]}, **static)
        talk.ask("LeaveGroup", 5, group_id=group, members=[{"member_id": "", **static}])


@scenario
def commits_that_are_wrong_in_several_ways(talk: Talk) -> None:
    """Errors of a partition come before errors of the group, except for those of its metadata."""
    topic, group = talk.topic("orders"), talk.name("readers")
    talk.coordinated(group)
    member = ask_to_join(talk, group, "", 9)["member_id"]
    generation = ask_to_join(talk, group, member, 9)["generation_id"]
    whose = [
        (group, generation, "nobody", None),
        (group, generation + 1, member, None),
        (group, generation, member, "nobody"),
        (group, -1, "", None),
        (group, -7, "", None),
        (talk.name("nowhere"), 3, "", None),
        ("", 3, "", None),
    ]
    places: list[dict[str, Any]] = [
        {"name": talk.name("nowhere"), "partitions": [{"partition_index": 0, "committed_offset": 1}]},
        {
            "name": topic,
            "partitions": [
                {"partition_index": 9, "committed_offset": 1},
                {"partition_index": -1, "committed_offset": 1},
                {"partition_index": 0, "committed_offset": 1, "committed_metadata": "x" * 5_000},
            ],
        },
    ]
    by_id = [
        {"topic_id": NOWHERE, "partitions": places[0]["partitions"]},
        {"topic_id": talk.topic_id(topic), "partitions": places[1]["partitions"]},
    ]
    for group_id, epoch, who, instance in whose:
        named: dict[str, Any] = {"group_id": group_id, "member_id": who, "group_instance_id": instance}
        for version, topics in product((8, 9, 10), ((0, 1), (0,))):
            asked = [(by_id if version >= 10 else places)[each] for each in topics]
            talk.ask("OffsetCommit", version, **named, generation_id_or_member_epoch=epoch, topics=asked)
        producer: dict[str, Any] = {
            "transactional_id": talk.name("pay"),
            "producer_id": 9,
            "producer_epoch": 3,
        }
        talk.ask("TxnOffsetCommit", 5, **named, **producer, generation_id=epoch, topics=places[:1])
        deleted = [
            {"name": each["name"], "partitions": [{"partition_index": 9}, {"partition_index": 0}]}
            for each in places
        ]
        talk.ask("OffsetDelete", 0, group_id=group_id, topics=deleted)
    talk.ask("OffsetCommit", 9, group_id=group, generation_id_or_member_epoch=99, member_id="z", topics=[])
    wanted: list[dict[str, Any]] = [{"topic_id": NOWHERE, "partition_indexes": [0]}]
    for told in ({"member_id": "z", "member_epoch": 3}, {"member_id": None, "member_epoch": -1}):
        talk.ask("OffsetFetch", 10, groups=[{"group_id": group, **told, "topics": wanted}])
    talk.ask("LeaveGroup", 5, group_id=group, members=[{"member_id": member}])


@scenario
def commits_to_a_modern_group_in_an_earlier_epoch(talk: Talk) -> None:
    """A member may commit in an epoch since which it has had the partition, whatever came afterwards."""
    topic, other, group = talk.topic("orders", 2), talk.topic("bills", 1), talk.name("readers")
    talk.coordinated(group)

    def beat(epoch: int, names: list[str] | None) -> int:
        joins: dict[str, Any] = {"rebalance_timeout_ms": 60_000, "topic_partitions": []}
        usual: dict[str, Any] = {"rebalance_timeout_ms": -1, "topic_partitions": None}
        told = {**(joins if epoch == 0 else usual), "subscribed_topic_names": names}
        answer = talk.quietly(
            "ConsumerGroupHeartbeat", 1, group_id=group, member_id="one", member_epoch=epoch, **told
        )
        found: int = answer["member_epoch"]
        return found

    first = beat(0, [topic])
    last = beat(first, [topic, other])
    until_s = time.monotonic() + DEADLINE_S
    while last == first or (epoch := beat(last, None)) != last:
        assert time.monotonic() < until_s
        last = beat(last, None) if last == first else epoch
    for epoch, name, version in product((first, first - 1, last, last + 1), (topic, other), (8, 9)):
        told = [{"name": name, "partitions": [{"partition_index": 0, "committed_offset": 1}]}]
        named: dict[str, Any] = {
            "group_id": group,
            "member_id": "one",
            "generation_id_or_member_epoch": epoch,
        }
        talk.ask("OffsetCommit", version, **named, topics=told)
    both = [
        {"name": each, "partitions": [{"partition_index": 0, "committed_offset": 1}]}
        for each in (topic, other)
    ]
    talk.ask(
        "OffsetCommit", 9, group_id=group, member_id="one", generation_id_or_member_epoch=first, topics=both
    )
    for told_epoch in (first, last):
        asked = {"group_id": group, "member_id": "one", "member_epoch": told_epoch}
        wanted = [{"name": topic, "partition_indexes": [0]}]
        talk.ask("OffsetFetch", 9, groups=[{**asked, "topics": wanted}])
    beat(-1, None)
    for member, epoch in (("one", -1), ("one", 3), ("", -1)):
        asked = {"group_id": group, "member_id": member, "member_epoch": epoch}
        talk.ask("OffsetFetch", 9, groups=[{**asked, "topics": [{"name": topic, "partition_indexes": [0]}]}])


@scenario
def heartbeats_of_the_new_protocol_that_are_wrong_in_several_ways(talk: Talk) -> None:
    topic, group = talk.topic("orders"), talk.name("readers")
    talk.coordinated(group)
    joins: dict[str, Any] = {
        "rebalance_timeout_ms": 60_000,
        "topic_partitions": [],
        "subscribed_topic_names": [topic],
    }

    def beat(group_id: str, member: str, epoch: int, version: int = 1, **more: Any) -> None:
        told = {**joins, **more, "group_id": group_id, "member_id": member, "member_epoch": epoch}
        answer = talk.client().ask("ConsumerGroupHeartbeat", version, **told)
        text = answer["error_message"] if answer["error_code"] in (42, 69, 112) else None
        shown = {"error_code": answer["error_code"], "error_message": text, "member_id": answer["member_id"]}
        talk.tell(f"ConsumerGroupHeartbeat {version}", shown)

    wrong: dict[str, Any] = {"server_assignor": "nobody", "subscribed_topic_regex": "("}
    for group_id, member, epoch in product(("", " ", group), ("", " ", "one"), (-3, -2, -1, 0, 7)):
        for version in (0, 1):
            told: dict[str, Any] = {**wrong} if version else {"server_assignor": "nobody"}
            beat(group_id, member, epoch, version, **told)
    several: list[dict[str, Any]] = [
        {"instance_id": "", "rack_id": ""},
        {"rack_id": " "},
        {"rebalance_timeout_ms": -1},
    ]
    for more in several:
        beat(group, "one", 0, **wrong, **more)
    beat(group, "one", 0, subscribed_topic_regex="(")
    beat(group, "one", 7, subscribed_topic_regex="(")
    beat(group, "one", -1, subscribed_topic_regex="(")
    beat(group, "one", 0)
    for member, epoch in product(("one", "two"), (0, 7, -1)):
        beat(group, member, epoch, subscribed_topic_regex="(" if epoch else None)
    beat(group, "one", 0)
    beat(group, "one", 0, subscribed_topic_regex="(")
    beat(group, "one", -1)


@scenario
def producers_that_are_wrong_in_several_ways(talk: Talk) -> None:
    name = talk.name("pay")
    talk.coordinated(name, 1)
    tried: dict[str, list[Any]] = {
        "transactional_id": [None, "", name],
        "transaction_timeout_ms": [0, -1, 1 << 30, 60_000],
        "producer_id": [-1, 7, -7],
        "producer_epoch": [-1, 3],
    }
    for values in product(*tried.values()):
        told = dict(zip(tried, values, strict=True))
        if told["transaction_timeout_ms"] != 60_000 or told["transactional_id"] == "":
            talk.until("InitProducerId", 5, **told)
    nowhere: Any = [{"name": talk.name("nowhere"), "partitions": [0]}]
    prefix = "v3_and_below_"
    for transactional_id in ("", talk.name("nobody")):
        said: dict[str, Any] = {
            "transactional_id": transactional_id,
            "producer_id": 9,
            "producer_epoch": 3,
        }
        old: dict[str, Any] = {f"{prefix}{key}": value for key, value in said.items()}
        talk.ask("AddPartitionsToTxn", 3, **{**old, f"{prefix}topics": nowhere})
        talk.ask("AddOffsetsToTxn", 4, **said, group_id="")
        talk.ask("EndTxn", 5, **said, committed=True)


@scenario
def topics_by_id_and_by_name(talk: Talk) -> None:
    """An id wins over a name, and one id in a request over every name in it."""
    topic, other = talk.topic("orders", 2), talk.topic("bills")
    known = talk.topic_id(topic)

    def ask(version: int, *told: tuple[str | None, bytes], **more: Any) -> None:
        wanted = [{"name": name, "topic_id": topic_id} for name, topic_id in told]
        talk.ask("Metadata", version, topics=wanted, **more)

    nobody = bytes(16)
    for version in (10, 11, 12, 13):
        ask(version, ("", known))
        ask(version, (other, known))
        ask(version, (other, NOWHERE))
        ask(version, (other, nobody), ("", known), (topic, NOWHERE))
    ask(12, (None, known), (None, known), ("", known))
    ask(12, (topic, nobody), (topic, nobody), (other, nobody))
    ask(12, ("", nobody), (talk.name("nowhere"), nobody), include_topic_authorized_operations=True)
    ask(12, (None, known), (None, NOWHERE), include_topic_authorized_operations=True)
    for name, topic_id in ((other, known), ("", known), (None, NOWHERE), (None, nobody), ("", nobody)):
        talk.ask("DeleteTopics", 6, topics=[{"name": name, "topic_id": topic_id}], timeout_ms=10_000)
    twice = [{"name": topic, "topic_id": nobody}, {"name": None, "topic_id": known}]
    talk.ask("DeleteTopics", 6, topics=twice, timeout_ms=10_000)
    talk.ask("Metadata", 12, topics=[{"name": other}])
