"""Conversations about versions, brokers, topics and settings."""

from __future__ import annotations

from typing import Any

from tests.embedded.transcripts.asking import batch, produce, scenario
from tests.embedded.transcripts.talk import Talk

# -- descriptions


@scenario
def versions(talk: Talk) -> None:
    for version in talk.versions("ApiVersions"):
        talk.ask("ApiVersions", version, client_software_name="raw", client_software_version="1")
    talk.ask("ApiVersions", 4)
    for name in ("a b", "-a", "a-", "\u00e9", "a\n", "a.b-c"):
        talk.ask("ApiVersions", 3, client_software_name=name, client_software_version="1")
        talk.ask("ApiVersions", 3, client_software_name="raw", client_software_version=name)


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
def settings_that_are_refused(talk: Talk) -> None:
    topic = talk.topic("orders")

    def alter(*resources: tuple[int, str, str | None]) -> None:
        told = [
            {
                "resource_type": kind,
                "resource_name": name,
                "configs": [{"name": "cleanup.policy", "config_operation": 2, "value": value}],
            }
            for kind, name, value in resources
        ]
        talk.ask("IncrementalAlterConfigs", 1, resources=told)

    alter((2, topic, None))
    alter((2, "", "compact"))
    alter((9, topic, "compact"))
    alter((2, topic, "compact"), (2, topic, "delete"))
    unset = [{"name": "retention.ms", "value": None}, {"name": "segment.ms", "value": None}]
    talk.ask("AlterConfigs", 2, resources=[{"resource_type": 2, "resource_name": topic, "configs": unset}])
    talk.ask(
        "DescribeConfigs",
        4,
        resources=[{"resource_type": 2, "resource_name": "", "configuration_keys": None}],
    )


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
