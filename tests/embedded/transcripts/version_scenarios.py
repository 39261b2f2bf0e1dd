"""Successful answers in the versions that no other conversation asks for: clients in use speak several of
them.
"""

from __future__ import annotations

import time
from typing import Any

from tests.embedded.transcripts.asking import fetch, scenario
from tests.embedded.transcripts.talk import Talk
from tests.embedded.transcripts.transaction_scenarios import BareProducer
from tests.support.patience import DEADLINE_S

RANGE = [{"name": "range", "metadata": b"\x00\x00"}]
ASKS_FOR_AN_ID = 79
"""MEMBER_ID_REQUIRED: from version 4 on, a member joins twice."""


@scenario
def members_of_every_version(talk: Talk) -> None:
    """A group for each version of JoinGroup; its member joins, and leaves by the version of the same
    number.
    """
    for version in talk.versions("JoinGroup"):
        group, by = talk.name(f"readers-{version}"), f"member-{version}"
        talk.coordinated(group)
        join: dict[str, Any] = {"group_id": group, "protocol_type": "consumer", "protocols": RANGE}
        join.update(session_timeout_ms=120_000, rebalance_timeout_ms=120_000)
        answer = talk.ask("JoinGroup", version, by=by, **join)
        if answer["error_code"] == ASKS_FOR_AN_ID:
            answer = talk.ask("JoinGroup", version, by=by, **join, member_id=answer["member_id"])
        assert answer["error_code"] == 0, answer
        member = answer["member_id"]
        said = {"group_id": group, "member_id": member, "generation_id": answer["generation_id"]}
        talk.ask("SyncGroup", 3, by=by, assignments=[{"member_id": member, "assignment": b"all"}], **said)
        _refused_joins(talk, version, join)
        if version >= 5:
            static = {**join, "group_id": talk.name(f"static-{version}"), "group_instance_id": "desk"}
            talk.ask("JoinGroup", version, by=by, **static)
        talk.ask("JoinGroup", version, by=by, **join, member_id=member)
        _leave(talk, min(version, 5), group, member)
        talk.ask("DescribeGroups", 5, groups=[group])
        talk.ask("DeleteGroups", min(version, 2), groups_names=[group, talk.name("nobody")])


def _refused_joins(talk: Talk, version: int, join: dict[str, Any]) -> None:
    for change in (
        {"member_id": "nobody"},
        {"session_timeout_ms": 10},
        {"protocols": [{"name": "other", "metadata": b""}]},
        {"group_id": ""},
    ):
        talk.ask("JoinGroup", version, by="refused", **{**join, **change})


def _leave(talk: Talk, version: int, group: str, member: str) -> None:
    who: dict[str, Any] = {"member_id": member}
    if version >= 3:
        who = {"members": [{"member_id": "nobody"}, who]}
    talk.ask("LeaveGroup", version, group_id=group, **who)


@scenario
def members_of_the_new_protocol_of_every_version(talk: Talk) -> None:
    """Epochs are left out: Kafka counts its assignments in its own time. In version 0 a member may have no id
    yet.
    """
    topic = talk.topic("orders", 2)
    for version in talk.versions("ConsumerGroupHeartbeat"):
        group = talk.name(f"readers-{version}")
        talk.coordinated(group)

        def beat(
            member: str, epoch: int, version: int = version, group: str = group, **more: Any
        ) -> dict[str, Any]:
            told = {"rebalance_timeout_ms": -1, **more, "member_id": member, "member_epoch": epoch}
            return talk.client().ask("ConsumerGroupHeartbeat", version, group_id=group, **told)

        def tell(answer: dict[str, Any], version: int = version) -> None:
            counted = {"member_epoch": answer["member_epoch"] > 0, "member_id": bool(answer["member_id"])}
            talk.tell(f"ConsumerGroupHeartbeat {version}", {**answer, **counted})

        first: dict[str, Any] = {"rebalance_timeout_ms": 10_000, "subscribed_topic_names": [topic]}
        answer = beat("" if version == 0 else "member", 0, topic_partitions=[], **first)
        tell(answer)
        member, until_s = answer["member_id"] or "member", time.monotonic() + DEADLINE_S
        held: list[Any] = []
        while True:
            answer = beat(member, answer["member_epoch"], topic_partitions=held)
            held = answer["assignment"]["topic_partitions"] if answer["assignment"] else held
            (found,) = talk.client().ask("ConsumerGroupDescribe", version, group_ids=[group])["groups"]
            (one,) = found["members"]
            if found["group_state"] == "Stable" and one["assignment"]["topic_partitions"]:
                break
            assert time.monotonic() < until_s, found
            time.sleep(0.05)
        found = {key: each for key, each in found.items() if not key.endswith("_epoch")}
        named = {"member_id": one["member_id"] == member}
        named["member_epoch"] = one["member_epoch"] == answer["member_epoch"]
        talk.tell(f"ConsumerGroupDescribe {version}", {"groups": [{**found, "members": [{**one, **named}]}]})
        tell(beat(member, -1))


@scenario
def settings_changed_by_the_first_version(talk: Talk) -> None:
    topic = talk.topic("orders")
    for value in ("77", "soon"):
        change = [{"name": "retention.ms", "config_operation": 0, "value": value}]
        told = [{"resource_type": 2, "resource_name": topic, "configs": change}]
        talk.ask("IncrementalAlterConfigs", 0, resources=told)


@scenario
def partitions_of_transactions_verified(talk: Talk) -> None:
    """Brokers add partitions for their clients, or ask whether they were added (KIP-890)."""
    topic, one = talk.topic("orders"), BareProducer(talk, "writer")
    topics = [{"name": topic, "partitions": [0]}]
    for version in (4, 5):
        for verify in (True, False, True):
            asked: list[dict[str, Any]] = [{**one.named, "verify_only": verify, "topics": topics}]
            talk.until("AddPartitionsToTxn", version, transactions=asked)
        stranger = {**one.named, "producer_epoch": 9, "transactional_id": talk.name("nobody")}
        asked.append({**stranger, "verify_only": True, "topics": topics})
        talk.until("AddPartitionsToTxn", version, transactions=asked)
        one.end(False)
        one.describe()


@scenario
def offsets_of_transactions_by_version_4(talk: Talk) -> None:
    topic, group, one = talk.topic("orders"), talk.name("readers"), BareProducer(talk, "writer")
    talk.coordinated(group)
    talk.until("AddOffsetsToTxn", 3, group_id=group, **one.named)
    told = {"partition_index": 0, "committed_offset": 5, "committed_metadata": "m"}
    member: dict[str, Any] = {"generation_id": -1, "member_id": "", **one.named}
    asked = [{"name": topic, "partitions": [told]}]
    talk.until("TxnOffsetCommit", 4, group_id=group, topics=asked, **member)
    one.end(True)


@scenario
def markers_written(talk: Talk) -> None:
    """By a client, as an operator does who ends a transaction that hangs."""
    topic, one = talk.topic("orders", 2), BareProducer(talk, "writer")
    one.start()  # for there to be an epoch before its own
    for version in talk.versions("WriteTxnMarkers"):
        for commits in (False, True):
            one.add(topic)
            one.send(topic, b"a")
            for change in (
                {"producer_epoch": one.epoch - 1},
                {"topics": [{"name": talk.name("nowhere"), "partition_indexes": [0]}]},
                {"topics": [{"name": topic, "partition_indexes": [7]}]},
                {"coordinator_epoch": -1},
                {},
            ):
                marker: dict[str, Any] = {"producer_id": one.id, "producer_epoch": one.epoch}
                marker.update(transaction_result=commits, coordinator_epoch=0)
                marker["topics"] = [{"name": topic, "partition_indexes": [0]}]
                talk.ask("WriteTxnMarkers", version, markers=[{**marker, **change}])
            fetch(talk, topic, 0, isolation_level=1)
            talk.ask("DescribeProducers", 0, topics=[{"name": topic, "partition_indexes": [0]}])
            one.end(commits)
            one.describe()
