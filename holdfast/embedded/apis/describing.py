"""Descriptions of the cluster: versions of apis, brokers, topics and their leaders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from holdfast.embedded.apis.call import Call, Fields
from holdfast.embedded.protocol.codes import KafkaCode
from holdfast.embedded.protocol.table import NO_UUID
from holdfast.embedded.security.acl_rules import CLUSTER_NAME, AclOperation, AclResource
from holdfast.embedded.topics.partition import EmbeddedPartition, EmbeddedTopic
from holdfast.embedded.topics.registry import name_trouble

NOT_ASKED = -(1 << 31)
FIRST_WITH_LEVEL_0 = 4
FIRST_BY_ID = 12
MISMATCHED_ENDPOINT, UNSUPPORTED_ENDPOINT = 114, 115
FEATURES = (
    ("group.version", 0, 1, 1),
    ("kraft.version", 0, 1, None),
    ("metadata.version", 7, 30, 30),
    ("share.version", 0, 1, 1),
    ("streams.version", 0, 1, 1),
    ("transaction.version", 0, 2, 2),
    ("eligible.leader.replicas.version", 0, 1, 1),
)
"""Of Kafka 4.3: name, lowest and highest level, and the level that is in force."""


def features(version: int) -> Fields:
    """Return the features as *version* of ApiVersions lists them: before 4, not those that have a level 0."""
    return {
        "supported_features": [
            {"name": name, "min_version": low, "max_version": high}
            for name, low, high, _ in FEATURES
            if low or version >= FIRST_WITH_LEVEL_0
        ],
        "finalized_features_epoch": 1,
        "finalized_features": [
            {"name": name, "max_version_level": level, "min_version_level": level}
            for name, _, _, level in FEATURES
            if level is not None
        ],
    }


def metadata(call: Call) -> Fields:
    """Answer Metadata."""
    wanted = call.fields["topics"]
    everything = wanted is None or (call.version == 0 and not wanted)
    brokers = [_broker(each.node_id, each.host, each.port) for each in call.cluster.alive]
    if not everything and call.version < FIRST_BY_ID and not all(map(_is_by_name, wanted)):
        return {
            "brokers": [],
            "error_code": KafkaCode.INVALID_REQUEST,
            "topics": list(map(_malformed, wanted)),
        }
    topics = (
        [
            _topic(call, each)
            for each in call.cluster.topics
            if call.may_topic(AclOperation.DESCRIBE, each.name)
        ]
        if everything
        else list(_wanted(call, wanted))
    )
    return {
        "brokers": brokers,
        "cluster_id": call.cluster.cluster_id,
        "controller_id": call.cluster.controller_id,
        "topics": topics,
        "cluster_authorized_operations": _cluster_operations(call),
    }


def _is_by_name(wanted: Fields) -> bool:
    return wanted["name"] is not None and wanted["topic_id"] == NO_UUID


def _malformed(wanted: Fields) -> Fields:
    return {
        "error_code": KafkaCode.INVALID_REQUEST,
        "name": wanted["name"] or "",
        "topic_id": wanted["topic_id"],
    }


def _cluster_operations(call: Call) -> int:
    if not call.fields["include_cluster_authorized_operations"]:
        return NOT_ASKED
    if not call.may_cluster(AclOperation.DESCRIBE):
        return 0
    return call.operations(AclResource.CLUSTER, CLUSTER_NAME)


def _broker(node_id: int, host: str, port: int) -> Fields:
    return {"node_id": node_id, "host": host, "port": port}


def _wanted(call: Call, wanted: Iterable[Fields]) -> Iterator[Fields]:
    """Yield the description of each topic, once however often it is asked for. Where there is an id, ids
    alone count, as in Kafka: clients send an empty name with them, or none.
    """
    ids = {each["topic_id"]: None for each in wanted if each["topic_id"] != NO_UUID}
    if ids:
        yield from (_by_id(call, each) for each in ids)
    else:
        yield from (_by_name(call, each) for each in dict.fromkeys(each["name"] for each in wanted))


def _by_id(call: Call, topic_id: bytes) -> Fields:
    topic = call.cluster.topics.by_id(topic_id)
    if topic is not None and not call.may_topic(AclOperation.DESCRIBE, topic.name):
        return _forbidden(None, topic_id)
    if topic is not None:
        return _topic(call, topic)
    code = KafkaCode.UNKNOWN_TOPIC_ID
    return {"error_code": code, "name": None, "topic_id": topic_id, "topic_authorized_operations": NOT_ASKED}


def _by_name(call: Call, name: str | None) -> Fields:
    name, topics = name or "", call.cluster.topics
    if not call.may_topic(AclOperation.DESCRIBE, name):
        return _forbidden(name)
    topic = topics.get(name)
    if topic is not None:
        return _topic(call, topic)
    if _creates(call) and not may_create(call, name):
        return _forbidden(name)
    if name_trouble(name) is not None:
        code = KafkaCode.INVALID_TOPIC_EXCEPTION
    else:
        code = KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
        if _creates(call):  # the client hears of it when it asks again, as from Kafka
            topics.make(name)
    return {"error_code": code, "name": name, "topic_authorized_operations": _topic_operations(call, name)}


def _topic_operations(call: Call, name: str) -> int:
    asked = call.fields["include_topic_authorized_operations"]
    return call.operations(AclResource.TOPIC, name) if asked else NOT_ASKED


def _forbidden(name: str | None, topic_id: bytes = NO_UUID) -> Fields:
    code = KafkaCode.TOPIC_AUTHORIZATION_FAILED
    return {"error_code": code, "name": name, "topic_id": topic_id, "topic_authorized_operations": NOT_ASKED}


def may_create(call: Call, topic: str) -> bool:
    """Return whether who asks may create *topic*."""
    return call.may_cluster(AclOperation.CREATE) or call.may_topic(AclOperation.CREATE, topic)


def _creates(call: Call) -> bool:
    return call.cluster.settings.auto_create_topics and call.fields["allow_auto_topic_creation"]


def _topic(call: Call, topic: EmbeddedTopic) -> Fields:
    return {
        "error_code": KafkaCode.NONE,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.is_internal,
        "partitions": [partition_fields(call, each) for each in topic.partitions],
        "topic_authorized_operations": _topic_operations(call, topic.name),
    }


def partition_fields(call: Call, partition: EmbeddedPartition) -> Fields:
    """Return the description of a partition for clients."""
    nodes = call.cluster.nodes
    return {
        "error_code": KafkaCode.NONE if partition.leader >= 0 else KafkaCode.LEADER_NOT_AVAILABLE,
        "partition_index": partition.index,
        "leader_id": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": partition.replicas,
        "isr_nodes": partition.in_sync,
        "offline_replicas": [each for each in partition.replicas if not nodes[each].alive],
    }


def describe_cluster(call: Call) -> Fields:
    """Answer DescribeCluster."""
    fields: dict[str, Any] = call.fields
    if fields["endpoint_type"] != 1:
        controller = fields["endpoint_type"] == 2
        wanted = "CONTROLLER" if controller else "UNKNOWN"
        text = (
            f"The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type {wanted}"
        )
        code = MISMATCHED_ENDPOINT if controller else UNSUPPORTED_ENDPOINT
        return {"error_code": code, "error_message": text}
    return {
        "endpoint_type": 1,
        "cluster_id": call.cluster.cluster_id,
        "controller_id": call.cluster.controller_id,
        "brokers": [
            {"broker_id": each.node_id, "host": each.host, "port": each.port} for each in call.cluster.alive
        ],
        "cluster_authorized_operations": _cluster_operations(call),
    }
