"""What is asked of both brokers. Each scenario is a conversation, and its transcript is the same on Apache Kafka."""

from __future__ import annotations

import json
import re
import struct
import time
from collections.abc import Callable
from typing import Any

from holdfast.core.groups.java_order import coordinator_partition
from holdfast.core.kafka.compression import Compression
from holdfast.core.kafka.record_batch import (
    CONTROL_BIT,
    TRANSACTIONAL_BIT,
    Record,
    RecordBatch,
    batches,
    encode_batch,
)
from holdfast.embedded.internal_log import KINDS
from holdfast.embedded.protocol.codec import decode, encode
from tests.embedded.talk import Talk

SCENARIOS: dict[str, Callable[[Talk], None]] = {}
ANY_SEQUENCE = {"producer_id": -1, "producer_epoch": -1, "base_sequence": -1}


def scenario(body: Callable[[Talk], None]) -> Callable[[Talk], None]:
    SCENARIOS[body.__name__] = body
    return body


def batch(*values: bytes, **fields: Any) -> bytes:
    """Return the bytes of a batch of *values*, of now."""
    now_ms = fields.pop("at_ms", int(time.time() * 1000))
    key = fields.pop("key", b"k")
    records = tuple(Record(offset_delta=number, key=key, value=value) for number, value in enumerate(values))
    told: dict[str, Any] = {
        "last_offset_delta": len(values) - 1,
        "base_timestamp_ms": now_ms,
        "max_timestamp_ms": now_ms,
        **fields,
    }
    return encode_batch(RecordBatch(records=records, **told))


def produce(talk: Talk, topic: str, data: bytes | None, version: int = 11, **more: Any) -> dict[str, Any]:
    """Produce one batch to partition 0."""
    told = {"acks": -1, "timeout_ms": 10_000, "index": 0, **more}
    partition = {"index": told.pop("index"), "records": data}
    named = {"topic_id": talk.topic_id(topic)} if version >= 13 else {"name": topic}
    return talk.ask("Produce", version, topic_data=[{**named, "partition_data": [partition]}], **told)


def fetch(talk: Talk, topic: str, offset: int, version: int = 12, **more: Any) -> dict[str, Any]:
    """Fetch from partition 0, without waiting."""
    told = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 20, "partition_max_bytes": 1 << 20, **more}
    one = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": told.pop("partition_max_bytes")}
    for name in ("current_leader_epoch", "last_fetched_epoch"):
        if name in told:
            one[name] = told.pop(name)
    named = {"topic_id": talk.topic_id(topic)} if version >= 13 else {"topic": topic}
    wanted = told.pop("topics", [{**named, "partitions": [one]}])
    return talk.ask("Fetch", version, topics=wanted, **told)


# -- what there is


@scenario
def versions(talk: Talk) -> None:
    for version in talk.versions("ApiVersions"):
        talk.ask("ApiVersions", version, client_software_name="raw", client_software_version="1")
    talk.ask("ApiVersions", 4)


@scenario
def metadata(talk: Talk) -> None:
    topic = talk.topic("orders", 3)
    for version in talk.versions("Metadata"):
        talk.ask("Metadata", version, topics=[{"name": topic}])
    talk.ask("Metadata", 12, topics=[])
    talk.ask(
        "Metadata",
        10,
        topics=[{"name": talk.name("nowhere")}, {"name": "no topic"}],
        allow_auto_topic_creation=True,
    )
    talk.ask("Metadata", 12, topics=[{"name": None, "topic_id": talk.topic_id(topic)}])
    talk.ask("Metadata", 12, topics=[{"name": None, "topic_id": b"x" * 16}])
    talk.ask("Metadata", 12, topics=[{"name": topic}], include_topic_authorized_operations=True)
    talk.ask("Metadata", 10, topics=[], include_cluster_authorized_operations=True)
    for version in talk.versions("DescribeCluster"):
        talk.ask("DescribeCluster", version)
    talk.ask("DescribeCluster", 2, include_cluster_authorized_operations=True)
    talk.ask("DescribeCluster", 2, endpoint_type=2)


@scenario
def partitions_by_pages(talk: Talk) -> None:
    one, other = talk.topic("orders", 3), talk.topic("payments", 2)

    def ask(*names: str, limit: int = 2_000, cursor: tuple[str, int] | None = None) -> None:
        at = None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]}
        told = [{"name": each} for each in names]
        talk.ask("DescribeTopicPartitions", 0, topics=told, response_partition_limit=limit, cursor=at)

    ask(other, one)
    ask(one, one)
    for limit in (-1, 0, 1, 2, 3, 4, 5, 6):
        ask(one, other, limit=limit)
    for cursor in ((one, 0), (one, 2), (one, 3), (one, 9), (one, -1), (other, 1), (talk.name("nowhere"), 0)):
        ask(one, other, limit=2, cursor=cursor)
    ask(talk.name("nowhere"), one, "b ad", limit=1)


@scenario
def replicas(talk: Talk) -> None:
    topic = talk.topic("orders", 2)
    produce(talk, topic, batch(b"a" * 100))
    wanted = [
        {"topic": topic, "partitions": [1, 0, 7, -1]},
        {"topic": talk.name("nowhere"), "partitions": [0]},
    ]
    for version in talk.versions("ElectLeaders"):
        for kind in (0, 1) if version else (0,):
            talk.ask("ElectLeaders", version, election_type=kind, topic_partitions=wanted)
    talk.ask("ElectLeaders", 2, election_type=7, topic_partitions=wanted)
    talk.ask("ElectLeaders", 2, topic_partitions=[])
    for version in talk.versions("DescribeLogDirs"):
        talk.ask("DescribeLogDirs", version, topics=wanted)
    talk.ask("DescribeLogDirs", topics=[])
    talk.ask("DescribeLogDirs", topics=wanted[1:])
    moved = [
        {"name": topic, "partition_indexes": [0, 7]},
        {"name": talk.name("nowhere"), "partition_indexes": [0]},
    ]
    for asked in (moved, moved[1:], [], None):
        talk.ask("ListPartitionReassignments", 0, topics=asked)


# -- topics


@scenario
def topics_too_large(talk: Talk) -> None:
    def create(*counts: int, **more: Any) -> None:
        topics = [
            {"name": talk.name(f"large{number}"), "num_partitions": each, "replication_factor": -1, **more}
            for number, each in enumerate(counts)
        ]
        talk.ask("CreateTopics", 7, topics=topics, timeout_ms=10_000, validate_only=True)

    for counts in (
        (10_000,),
        (10_001,),
        (2**31 - 1,),
        (6_000, 6_000),
        (10_001, 0),
        (10_001, -5),
        (9_999, -5),
    ):
        create(*counts)
    create(9_998, configs=[{"name": "retention.ms", "value": "1000"}] * 2)
    topic = talk.topic("orders")
    for count in (20_000, 10_002):
        told = {"name": topic, "count": count, "assignments": None}
        talk.ask("CreatePartitions", 3, topics=[told], timeout_ms=10_000, validate_only=True)


@scenario
def topics_made(talk: Talk) -> None:
    def create(version: int = 7, only_check: bool = False, *topics: dict[str, Any]) -> None:
        told = [{"num_partitions": -1, "replication_factor": -1, **each} for each in topics]
        talk.ask("CreateTopics", version, topics=told, timeout_ms=10_000, validate_only=only_check)

    for version in talk.versions("CreateTopics"):
        partitions = {"num_partitions": 2, "replication_factor": 1}
        create(version, False, {"name": talk.name(f"made{version}"), **partitions})
    create(7, False, {"name": talk.name("made7")})
    create(7, False, *({"name": each} for each in ("b ad", ".", "..", "", "x" * 250)))
    create(7, False, {"name": talk.name("none"), "num_partitions": 0})
    create(7, False, {"name": talk.name("copies"), "replication_factor": 0})
    create(7, False, {"name": talk.name("copies"), "replication_factor": 3})
    for name, value in (
        ("nope", "1"),
        ("retention.ms", "soon"),
        ("retention.ms", "-2"),
        ("cleanup.policy", "keep"),
        ("compression.type", "rar"),
        ("message.timestamp.type", "Never"),
        ("min.cleanable.dirty.ratio", "2"),
        ("preallocate", "perhaps"),
        ("segment.bytes", "1"),
        ("max.message.bytes", "99999999999"),
    ):
        create(7, False, {"name": talk.name("set"), "configs": [{"name": name, "value": value}]})
    create(7, False, {"name": talk.name("null"), "configs": [{"name": "retention.ms", "value": None}]})
    create(7, False, {"name": talk.name("set"), "configs": [{"name": "retention.ms", "value": "1000"}]})
    create(7, True, {"name": talk.name("checked")})
    create(7, False, {"name": talk.name("twice")}, {"name": talk.name("twice")})
    create(7, False, {"name": talk.name("alike.it")})
    create(7, False, {"name": talk.name("alike_it")})
    for nodes in ([1], [7], [], [1, 1]):
        create(
            7,
            False,
            {"name": talk.name("placed"), "assignments": [{"partition_index": 0, "broker_ids": nodes}]},
        )
    create(7, False, {"name": talk.name("gap"), "assignments": [{"partition_index": 1, "broker_ids": [1]}]})
    both = {"num_partitions": 2, "assignments": [{"partition_index": 0, "broker_ids": [1]}]}
    create(7, False, {"name": talk.name("both"), **both})


@scenario
def topics_grown(talk: Talk) -> None:
    topic = talk.topic("orders", 2)

    def grow(
        count: int, name: str = topic, nodes: list[list[int]] | None = None, version: int = 3, **more: Any
    ) -> None:
        placed = None if nodes is None else [{"broker_ids": each} for each in nodes]
        told = [{"name": name, "count": count, "assignments": placed}]
        talk.ask("CreatePartitions", version, topics=told, timeout_ms=10_000, **more)

    for version in talk.versions("CreatePartitions"):
        grow(3 + version, version=version)
    grow(1)
    grow(6)
    grow(7, validate_only=True)
    grow(9, talk.name("nowhere"))
    grow(7, nodes=[[9]])
    grow(8, nodes=[[1]])
    grow(7, nodes=[[1]])
    talk.led(topic, 7)
    talk.until("Metadata", 12, topics=[{"name": topic}])


@scenario
def topics_deleted(talk: Talk) -> None:
    for version in talk.versions("DeleteTopics"):
        topic = talk.topic(f"gone{version}")
        named = {"topics": [{"name": topic}]} if version >= 6 else {"topic_names": [topic]}
        talk.ask("DeleteTopics", version, timeout_ms=10_000, **named)
    talk.ask("DeleteTopics", 5, topic_names=[talk.name("gone1"), talk.name("nowhere")], timeout_ms=10_000)
    topic = talk.topic("by-id")
    talk.ask("DeleteTopics", 6, topics=[{"name": None, "topic_id": b"x" * 16}], timeout_ms=10_000)
    talk.ask("DeleteTopics", 6, topics=[{"name": None}], timeout_ms=10_000)
    talk.ask("DeleteTopics", 6, topics=[{"name": topic}, {"name": topic}], timeout_ms=10_000)
    talk.ask("DeleteTopics", 6, topics=[{"name": None, "topic_id": talk.topic_id(topic)}], timeout_ms=10_000)


@scenario
def settings_of_topics(talk: Talk) -> None:
    topic = talk.topic("orders", retention_ms="1000")

    def describe(version: int = 4, keys: list[str] | None = None, **more: Any) -> None:
        told = {"resource_type": 2, "resource_name": topic, "configuration_keys": keys}
        talk.until("DescribeConfigs", version, resources=[told], **more)

    def alter(name: str, operation: int, value: str | None, **more: Any) -> None:
        change = {"name": name, "config_operation": operation, "value": value}
        told = {"resource_type": 2, "resource_name": topic, "configs": [change], **more}
        talk.ask("IncrementalAlterConfigs", 1, resources=[told])

    for version in talk.versions("DescribeConfigs"):
        describe(version, include_synonyms=True)
    describe(keys=["retention.ms", "nope", "cleanup.policy"])
    alter("cleanup.policy", 2, "compact")
    talk.set(topic, cleanup_policy="delete,compact")
    describe(keys=["cleanup.policy"], include_synonyms=True)
    alter("cleanup.policy", 3, "delete")
    talk.set(topic, cleanup_policy="compact")
    describe(keys=["cleanup.policy"])
    alter("retention.ms", 1, None)
    talk.set(topic, retention_ms="604800000")
    describe(keys=["retention.ms"])
    alter("retention.ms", 0, "77")
    alter("retention.ms", 0, "soon")
    alter("retention.ms", 2, "5")
    alter("nope", 0, "1")
    alter("nope", 2, "1")
    alter("retention.ms", 9, "1")
    alter("retention.ms", 0, "1", resource_name=talk.name("nowhere"))
    told = {"resource_type": 2, "resource_name": topic, "configs": [{"name": "segment.ms", "value": "9"}]}
    for version in talk.versions("AlterConfigs"):
        talk.ask("AlterConfigs", version, resources=[told])
    talk.set(topic, segment_ms="9", retention_ms="604800000")
    describe(keys=["retention.ms", "segment.ms"])
    for kind, name in ((2, talk.name("nowhere")), (4, "9"), (4, "x"), (99, "x")):
        told = {"resource_type": kind, "resource_name": name, "configuration_keys": ["retention.ms"]}
        talk.ask("DescribeConfigs", 4, resources=[told])


@scenario
def what_has_settings(talk: Talk) -> None:
    """Other topics of the broker are left out."""
    topic = talk.topic("orders")
    talk.ask("ListConfigResources", 0)
    for kinds in ([16], [32], [8], [4], [8, 4], [16, 4], [4, 4], [99], [0], [4, 99]):
        talk.ask("ListConfigResources", 1, resource_types=kinds)
    for kinds in ([2], [], [2, 4]):
        answer = talk.quietly("ListConfigResources", 1, resource_types=kinds)
        found = [
            each
            for each in answer["config_resources"]
            if each["resource_type"] != 2 or each["resource_name"] == topic
        ]
        talk.tell(f"ListConfigResources 1 of {kinds}", {**answer, "config_resources": found})


# -- records


@scenario
def produced(talk: Talk) -> None:
    topic = talk.topic("orders")
    for version in talk.versions("Produce"):
        produce(talk, topic, batch(b"a", b"b"), version)
    produce(talk, topic, batch(b"a"), acks=1)
    produce(talk, topic, batch(b"a"), acks=5)
    produce(talk, topic, batch(b"a"), index=1)
    produce(talk, talk.name("nowhere"), batch(b"a"))
    talk.ask(
        "Produce",
        13,
        acks=-1,
        timeout_ms=1000,
        topic_data=[{"topic_id": b"x" * 16, "partition_data": [{"index": 0, "records": batch(b"a")}]}],
    )
    produce(talk, topic, b"")
    produce(talk, topic, batch(b"a") + batch(b"b"))
    good = batch(b"a")
    produce(talk, topic, good[:30] + bytes([good[30] ^ 1]) + good[31:])
    produce(talk, topic, batch(b"a", attributes=CONTROL_BIT))
    produce(talk, topic, batch(b"a", attributes=Compression.ZSTD), 6)
    produce(talk, topic, batch(b"a", attributes=Compression.GZIP))
    produce(talk, topic, batch(b"x" * 1_100_000))
    produce(talk, topic, batch(b"a", at_ms=int(time.time() * 1000) + 7_200_000), 4)
    produce(talk, topic, batch(b"a", producer_id=9, producer_epoch=0, base_sequence=-1))
    for version in (4, 12):
        fetch(talk, topic, 0, version)


@scenario
def produced_as_topics_want(talk: Talk) -> None:
    stamped = talk.topic("stamped", message_timestamp_type="LogAppendTime")
    produce(talk, stamped, batch(b"a", b"b", at_ms=5))
    fetch(talk, stamped, 0)
    plain = talk.topic("plain", compression_type="uncompressed")
    produce(talk, plain, batch(b"a" * 100, attributes=Compression.GZIP))
    fetch(talk, plain, 0)
    small = talk.topic("small", max_message_bytes="200")
    produce(talk, small, batch(b"a" * 300))
    produce(talk, small, batch(b"a" * 100))
    past = talk.topic("past", message_timestamp_before_max_ms="1000")
    produce(talk, past, batch(b"a"))
    kept = talk.topic("kept", cleanup_policy="compact")
    produce(talk, kept, batch(b"a"))
    produce(talk, kept, batch(b"a", b"b", key=None), 8)
    produce(talk, kept, batch(b"a", key=None), 7)


@scenario
def repeated(talk: Talk) -> None:
    topic = talk.topic("orders")
    producer = talk.until("InitProducerId", 5, transactional_id=None, transaction_timeout_ms=1000)[
        "producer_id"
    ]

    def send(epoch: int, first: int, count: int = 1) -> None:
        told = {"producer_id": producer, "producer_epoch": epoch, "base_sequence": first}
        produce(talk, topic, batch(*([b"v"] * count), **told))

    for epoch, first, count in (
        *((0, 0, 3), (0, 0, 3), (0, 3, 1), (0, 5, 1), (0, 0, 2), (0, 4, 1), (0, 5, 1), (0, 6, 1), (0, 7, 1)),
        *((0, 8, 1), (0, 3, 1), (0, 5, 1), (2, 0, 1), (1, 0, 1), (2, 2, 1), (3, 1, 1), (3, 0, 2)),
    ):
        send(epoch, first, count)
    told = {"producer_id": producer + 100_000, "producer_epoch": 4, "base_sequence": 77}
    produce(talk, topic, batch(b"a", **told))
    talk.ask("DescribeProducers", 0, topics=[{"name": topic, "partition_indexes": [0, 1]}])
    talk.ask("DescribeProducers", 0, topics=[{"name": talk.name("nowhere"), "partition_indexes": [0]}])
    fetch(talk, topic, 0)


@scenario
def fetched(talk: Talk) -> None:
    topic = talk.topic("orders", 2)
    for value in (b"a", b"b", b"c"):
        produce(talk, topic, batch(value, value))
    for version in talk.versions("Fetch"):
        fetch(talk, topic, 3, version)
    for offset in (0, 6, 7, -1):
        fetch(talk, topic, offset)
    fetch(talk, topic, 0, max_bytes=1, partition_max_bytes=1)
    for epoch in (0, 1):
        fetch(talk, topic, 0, current_leader_epoch=epoch)
    for epoch in (0, 1):
        fetch(talk, topic, 6, last_fetched_epoch=epoch)
    fetch(talk, talk.name("nowhere"), 0)
    part = {"partition": 5, "fetch_offset": 0, "partition_max_bytes": 1000}
    fetch(talk, topic, 0, topics=[{"topic": topic, "partitions": [part]}])
    talk.ask(
        "Fetch", 13, max_wait_ms=0, topics=[{"topic_id": b"x" * 16, "partitions": [{**part, "partition": 0}]}]
    )


@scenario
def fetch_sessions(talk: Talk) -> None:
    topic = talk.topic("orders", 2)
    both = [
        {
            "topic": topic,
            "partitions": [
                {"partition": each, "fetch_offset": 0, "partition_max_bytes": 1000} for each in (0, 1)
            ],
        }
    ]
    told: dict[str, Any] = {"max_wait_ms": 0, "max_bytes": 1 << 20}
    session = talk.ask("Fetch", 12, session_id=0, session_epoch=0, topics=both, **told)["session_id"]
    assert session > 0
    talk.ask("Fetch", 12, session_id=session, session_epoch=1, topics=[], **told)
    produce(talk, topic, batch(b"a"))
    talk.ask("Fetch", 12, session_id=session, session_epoch=2, topics=[], **told)
    on = [{"topic": topic, "partitions": [{"partition": 0, "fetch_offset": 1, "partition_max_bytes": 1000}]}]
    talk.ask("Fetch", 12, session_id=session, session_epoch=3, topics=on, **told)
    talk.ask("Fetch", 12, session_id=session, session_epoch=3, topics=[], **told)
    talk.ask("Fetch", 12, session_id=session + 1, session_epoch=4, topics=[], **told)
    forgotten = [{"topic": topic, "partitions": [0]}]
    talk.ask(
        "Fetch", 12, session_id=session, session_epoch=4, topics=[], forgotten_topics_data=forgotten, **told
    )
    produce(talk, topic, batch(b"b"))
    talk.ask("Fetch", 12, session_id=session, session_epoch=5, topics=[], **told)
    talk.ask("Fetch", 12, session_id=session, session_epoch=-1, topics=both, **told)
    talk.ask("Fetch", 12, session_id=session, session_epoch=6, topics=[], **told)


@scenario
def waited_for(talk: Talk) -> None:
    topic = talk.topic("orders")
    want = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    waiting = {"max_wait_ms": 10_000, "min_bytes": 1, "max_bytes": 1 << 20}
    talk.client("reader").send("Fetch", 12, topics=[{"topic": topic, "partitions": [want]}], **waiting)
    produce(talk, topic, batch(b"a"))
    talk.tell("the reader", talk.client("reader").receive("Fetch", 12))
    talk.ask(
        "Fetch",
        12,
        topics=[{"topic": topic, "partitions": [{**want, "fetch_offset": 1}]}],
        max_wait_ms=50,
        min_bytes=1,
    )


# -- positions


@scenario
def offsets_listed(talk: Talk) -> None:
    topic = talk.topic("orders")

    def at(at_ms: int, version: int = 10, name: str = topic, **more: Any) -> None:
        told = {"partition_index": 0, "timestamp": at_ms, "current_leader_epoch": -1, **more}
        isolation = told.pop("isolation_level", 0)
        partition = [{"name": name, "partitions": [told]}]
        talk.ask(
            "ListOffsets",
            version,
            replica_id=-1,
            isolation_level=isolation,
            topics=partition,
            timeout_ms=1000,
        )

    for at_ms in (-1, -2, -3, -4, -5):
        at(at_ms)
    for at_ms in (1000, 3000, 2000):
        produce(talk, topic, batch(b"a", at_ms=at_ms))
    for at_ms in (-1, -2, -3, -4, -5, 0, 1000, 1001, 2500, 3000, 3001):
        at(at_ms)
    for version in talk.versions("ListOffsets"):
        at(-1, version)
        at(1000, version)
    at(-1, isolation_level=1)
    for version, at_ms in ((6, -3), (7, -4), (8, -5), (10, -6), (11, -6), (11, -7)):
        at(at_ms, version)
    at(-1, current_leader_epoch=5)
    at(-1, name=talk.name("nowhere"))
    at(-1, partition_index=9)


@scenario
def epochs_and_deletions(talk: Talk) -> None:
    topic = talk.topic("orders")

    def epoch(number: int, version: int = 4, **more: Any) -> None:
        told = {"partition": 0, "leader_epoch": number, "current_leader_epoch": -1, **more}
        asked = [{"topic": topic, "partitions": [told]}]
        talk.ask("OffsetForLeaderEpoch", version, replica_id=-1, topics=asked)

    def delete(offset: int, version: int = 2, index: int = 0, name: str = topic) -> None:
        told = [{"name": name, "partitions": [{"partition_index": index, "offset": offset}]}]
        talk.ask("DeleteRecords", version, topics=told, timeout_ms=10_000)

    epoch(0)
    for _ in range(3):
        produce(talk, topic, batch(b"a", b"b"))
    for version in talk.versions("OffsetForLeaderEpoch"):
        epoch(0, version)
    epoch(3)
    epoch(-1)
    epoch(0, current_leader_epoch=3)
    epoch(0, partition=7)
    for version in talk.versions("DeleteRecords"):
        delete(1 + version, version)
    delete(2)
    delete(9)
    delete(-2)
    delete(0, index=4)
    delete(0, name=talk.name("nowhere"))
    fetch(talk, topic, 2)
    fetch(talk, topic, 3)
    delete(-1)
    fetch(talk, topic, 6)


# -- groups


def join(talk: Talk, group: str, member: str = "", version: int = 9, *, by: str = "one", **more: Any) -> None:
    told: dict[str, Any] = {
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
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
    until_s = time.monotonic() + 20
    while talk.client().ask("Heartbeat", 4, **told)["error_code"] == 0:  # until the second has been heard of
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
        session_timeout_ms=10_000,
        protocol_type="connect",
        protocols=[{"name": "range", "metadata": b""}],
    )
    talk.ask(
        "JoinGroup",
        9,
        group_id=group,
        session_timeout_ms=10_000,
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
        "JoinGroup", 9, group_id=group, session_timeout_ms=10_000, protocol_type="consumer", protocols=[]
    )
    talk.ask(
        "JoinGroup",
        9,
        group_id=group,
        member_id="nobody",
        session_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b""}],
    )
    talk.ask(
        "JoinGroup",
        9,
        group_id="",
        session_timeout_ms=10_000,
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
    """Epochs are not told: Kafka works out assignments in its own time, and counts what it did meanwhile."""
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
        """Beat until the member has what it is to have."""
        until_s = time.monotonic() + 20
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
        "rebalance_timeout_ms": 10_000,
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


# -- transactions


class _Producer:
    """A transactional producer of the bare protocol."""

    def __init__(self, talk: Talk, name: str) -> None:
        self.talk, self.name, self.sequence = talk, talk.name(name), 0
        talk.coordinated(self.name, 1)
        self.start()

    def start(self, version: int = 5, **more: Any) -> None:
        told = {"transactional_id": self.name, "transaction_timeout_ms": 60_000, **more}
        answer = self.talk.until("InitProducerId", version, **told)
        if answer["error_code"] == 0:
            self.id, self.epoch, self.sequence = answer["producer_id"], answer["producer_epoch"], 0

    @property
    def named(self) -> dict[str, Any]:
        return {"transactional_id": self.name, "producer_id": self.id, "producer_epoch": self.epoch}

    def add(self, topic: str, version: int = 3) -> None:
        told = {f"v3_and_below_{name}": value for name, value in self.named.items()}
        topics = [{"name": topic, "partitions": [0]}]
        self.talk.until("AddPartitionsToTxn", version, v3_and_below_topics=topics, **told)

    def send(self, topic: str, value: bytes, version: int = 11) -> None:
        told = {"producer_id": self.id, "producer_epoch": self.epoch, "base_sequence": self.sequence}
        data = batch(value, attributes=TRANSACTIONAL_BIT, **told)
        answer = produce(self.talk, topic, data, version, transactional_id=self.name)
        code = answer["responses"][0]["partition_responses"][0]["error_code"]
        self.sequence += code == 0

    def end(self, commit: bool, version: int = 4, **more: Any) -> dict[str, Any]:
        told = {**self.named, "committed": commit, **more}
        answer = self.talk.until("EndTxn", version, **told)
        if version >= 5 and answer["error_code"] == 0:
            self.sequence = 0 if answer["producer_epoch"] != self.epoch else self.sequence
            self.id, self.epoch = answer["producer_id"], answer["producer_epoch"]
        return answer

    def describe(self) -> None:
        """Tell of the transaction, once its markers are written."""
        until_s = time.monotonic() + 10
        while True:
            answer = self.talk.client().ask("DescribeTransactions", 0, transactional_ids=[self.name])
            if not answer["transaction_states"][0]["transaction_state"].startswith("Prepare"):
                break
            assert time.monotonic() < until_s
            time.sleep(0.02)
        self.talk.tell("DescribeTransactions 0", answer)


@scenario
def transactions(talk: Talk) -> None:
    topic = talk.topic("orders")
    one = _Producer(talk, "writer")
    one.send(topic, b"unannounced")
    one.send(topic, b"unannounced", 10)
    for version in range(4):
        one.add(topic, version)
    one.describe()
    one.send(topic, b"a")
    one.send(topic, b"b")
    fetch(talk, topic, 0, isolation_level=1)
    talk.ask(
        "ListOffsets",
        10,
        replica_id=-1,
        isolation_level=1,
        topics=[
            {
                "name": topic,
                "partitions": [{"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}],
            }
        ],
    )
    talk.ask("DescribeProducers", 0, topics=[{"name": topic, "partition_indexes": [0]}])
    one.end(True)
    one.describe()
    one.end(True)
    one.end(False)
    one.add(topic)
    one.send(topic, b"dropped")
    one.end(False)
    one.describe()
    for level in (0, 1):
        fetch(talk, topic, 0, isolation_level=level)
        fetch(talk, topic, 3, isolation_level=level)
    for version in range(4):
        one.add(topic, version)
        one.end(True, version)
        one.describe()
    one.end(True, producer_epoch=one.epoch + 1)
    one.end(True, 1, producer_epoch=one.epoch + 1)
    one.end(True, producer_id=one.id + 10**12)
    one.end(True, transactional_id=talk.name("nobody"))
    one.end(True, transactional_id="")
    one.add(talk.name("nowhere"))
    talk.ask("DescribeTransactions", 0, transactional_ids=[talk.name("nobody"), ""])
    for version in talk.versions("ListTransactions"):
        found = talk.client().ask("ListTransactions", version, producer_id_filters=[one.id])
        talk.tell(f"ListTransactions {version}", found)
    talk.tell("ListTransactions", talk.client().ask("ListTransactions", 0, state_filters=["Nonsense"]))


@scenario
def transactions_of_the_new_protocol(talk: Talk) -> None:
    topic = talk.topic("orders")
    one = _Producer(talk, "writer")
    one.end(True, 5)
    one.end(False, 5)
    one.describe()
    one.send(topic, b"a", 12)
    one.describe()
    one.send(topic, b"b", 12)
    epoch = one.epoch
    one.end(True, 5)
    one.describe()
    talk.until("EndTxn", 5, **{**one.named, "producer_epoch": epoch}, committed=True)
    talk.until("EndTxn", 5, **{**one.named, "producer_epoch": epoch}, committed=False)
    one.send(topic, b"dropped", 12)
    one.end(False, 5)
    one.end(False, 5)
    one.end(True, 5)
    fetch(talk, topic, 0, isolation_level=1)
    talk.ask("DescribeProducers", 0, topics=[{"name": topic, "partition_indexes": [0]}])
    late = {"producer_id": one.id, "producer_epoch": epoch, "base_sequence": 2}
    produce(talk, topic, batch(b"late", attributes=TRANSACTIONAL_BIT, **late), 12, transactional_id=one.name)


@scenario
def fenced(talk: Talk) -> None:
    topic = talk.topic("orders")
    for version in talk.versions("InitProducerId"):
        talk.until("InitProducerId", version, transactional_id=None, transaction_timeout_ms=1000)
    one = _Producer(talk, "writer")
    old = dict(one.named)
    one.add(topic)
    one.send(topic, b"a")
    one.start()
    one.describe()
    talk.ask("EndTxn", 4, **old, committed=True)
    talk.ask("EndTxn", 1, **old, committed=True)
    told = {f"v3_and_below_{name}": value for name, value in old.items()}
    for version in (1, 3):
        talk.ask(
            "AddPartitionsToTxn", version, v3_and_below_topics=[{"name": topic, "partitions": [0]}], **told
        )
    stale = {"producer_id": old["producer_id"], "producer_epoch": old["producer_epoch"], "base_sequence": 1}
    produce(talk, topic, batch(b"late", attributes=TRANSACTIONAL_BIT, **stale), transactional_id=one.name)
    produce(talk, topic, batch(b"late", **stale))
    one.start(producer_id=one.id, producer_epoch=one.epoch)
    one.start(producer_id=one.id, producer_epoch=one.epoch - 1)
    for version in (3, 5):
        one.start(version, producer_id=one.id, producer_epoch=old["producer_epoch"])
        one.start(version, producer_id=one.id + 10**12, producer_epoch=0)
    one.start(transaction_timeout_ms=0)
    one.start(transaction_timeout_ms=10**8)
    one.start(transactional_id="")
    one.start(producer_id=5)
    fetch(talk, topic, 0, isolation_level=1)


@scenario
def offsets_of_transactions(talk: Talk) -> None:
    topic, group = talk.topic("orders"), talk.name("readers")
    talk.coordinated(group)
    one = _Producer(talk, "writer")

    def commit(offset: int, version: int = 3, **more: Any) -> None:
        told = {"partition_index": 0, "committed_offset": offset, "committed_metadata": "m"}
        asked = [{"name": topic, "partitions": [told]}]
        named = {**one.named, "generation_id": -1, "member_id": "", **more}
        talk.until("TxnOffsetCommit", version, group_id=group, topics=asked, **named)

    def look() -> None:
        asked = [{"name": topic, "partition_indexes": [0]}]
        for stable in (False, True):
            talk.ask("OffsetFetch", 9, groups=[{"group_id": group, "topics": asked}], require_stable=stable)

    commit(1)
    for version in talk.versions("AddOffsetsToTxn"):
        talk.until("AddOffsetsToTxn", version, group_id=group, **one.named)
    for version in range(4):
        commit(2 + version, version)
    look()
    one.end(True)
    one.describe()
    look()
    talk.until("AddOffsetsToTxn", 3, group_id=group, **one.named)
    commit(9)
    one.end(False)
    one.describe()
    look()
    commit(9, 4)
    commit(9, 3, generation_id=5, member_id="nobody")
    commit(10, 5)
    one.end(True, 5)
    one.describe()
    look()
    talk.ask("AddOffsetsToTxn", 3, group_id=group, **{**one.named, "producer_epoch": one.epoch - 1})
    talk.ask("AddOffsetsToTxn", 1, group_id=group, **{**one.named, "producer_epoch": one.epoch - 1})


@scenario
def internal_topics(talk: Talk) -> None:
    group = talk.name("readers")
    talk.coordinated(group)
    _Producer(talk, "writer")
    for topic in ("__consumer_offsets", "__transaction_state"):
        talk.until("Metadata", 12, topics=[{"name": topic}])
        told = {"resource_type": 2, "resource_name": topic, "configuration_keys": None}
        found = talk.quietly("DescribeConfigs", 4, resources=[told])["results"][0]["configs"]
        own = [each for each in found if each["config_source"] == 1]
        talk.tell(f"settings of {topic}", {"configs": own})
        produce(talk, topic, batch(b"a"))


def hostile_frame(key: int, version: int) -> bytes:
    """Return a request without a body."""
    return struct.pack(">hhih", key, version, 1, -1)


# -- what a group of the new protocol leaves in the log


def log_of(talk: Talk, group: str) -> list[tuple[str, dict[str, Any], dict[str, Any] | None]]:
    """Return the records of *group* in the coordinators' topic; each is written again as the same bytes."""
    found, place, offset = list[Any](), coordinator_partition(group, 8), 0
    kinds = {number: kind for kind, number in KINDS.items() if kind != "TransactionLog"}
    while True:
        wanted = {"partition": place, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
        told = [{"topic": "__consumer_offsets", "partitions": [wanted]}]
        limits: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 20}
        answer = talk.client().ask("Fetch", 12, topics=told, **limits)
        records = bytes(answer["responses"][0]["partitions"][0]["records"] or b"")
        if not records:
            return found
        for _, _, each in batches(records):
            offset = each.base_offset + each.last_offset_delta + 1
            if not each.is_control:
                found += [
                    _read(record, kinds) for record in each.records if group.encode() in (record.key or b"")
                ]


def _read(record: Record, kinds: dict[int, str]) -> tuple[str, dict[str, Any], dict[str, Any] | None]:
    assert record.key is not None
    kind = kinds[int.from_bytes(record.key[:2], "big")]
    key, value = decode(f"{kind}Key", 0, record.key, 2), None
    assert bytes(encode(f"{kind}Key", 0, key, bytearray(record.key[:2]))) == record.key
    if record.value is not None:
        version = int.from_bytes(record.value[:2], "big")
        value = decode(f"{kind}Value", version, record.value, 2)
        assert bytes(encode(f"{kind}Value", version, value, bytearray(record.value[:2]))) == record.value
    return kind, key, value


@scenario
def log_of_the_new_protocol(talk: Talk) -> None:
    """The last record of each key, once the group has come to rest. Epochs count what Kafka did in its own time, and who
    has which partition is the assignors' business: neither is told.
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
        """Beat until all partitions are with somebody, and nothing changes any more."""
        until_s = time.monotonic() + 30
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
        last = {json.dumps([kind, key]): (kind, key, value) for kind, key, value in log_of(talk, group)}
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
