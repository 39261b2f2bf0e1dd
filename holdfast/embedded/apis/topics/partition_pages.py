"""DescribeTopicPartitions: partitions of topics page by page, in the order of the topics' names (KIP-966)."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.embedded.apis.call import Call, Fields
from holdfast.embedded.apis.describing import partition_fields
from holdfast.embedded.protocol.codes import KafkaCode
from holdfast.embedded.protocol.table import NO_UUID
from holdfast.embedded.security.acl_rules import AclOperation, AclResource
from holdfast.embedded.topics.registry import name_trouble

LIMIT_PARTITIONS = 2_000
"""Of one answer, however many a client asks for (``max.request.partition.size.limit``)."""


def describe_topic_partitions(call: Call) -> Fields:
    """Answer DescribeTopicPartitions."""
    fields, cursor = call.fields, call.fields["cursor"]
    first = "" if cursor is None else cursor["topic_name"]
    asked = [each["name"] for each in fields["topics"]]
    names = sorted({name for name in asked or (each.name for each in call.cluster.topics) if name >= first})
    wrong = cursor is not None and ((asked and first not in names) or cursor["partition_index"] < 0)
    if wrong:
        return {"topics": [{"name": name, "error_code": KafkaCode.INVALID_REQUEST} for name in asked]}
    may = {name: None for name in names if call.may_topic(AclOperation.DESCRIBE, name)}
    topics, following = _page(
        call, may, {first: 0 if cursor is None else cursor["partition_index"]}, bool(asked)
    )
    for each in topics:
        each["topic_authorized_operations"] = call.operations(AclResource.TOPIC, each["name"])
    forbidden = [
        _failed(name, KafkaCode.TOPIC_AUTHORIZATION_FAILED) for name in names if asked and name not in may
    ]
    return {"topics": [*topics, *forbidden], "next_cursor": following}


def _page(
    call: Call, names: Iterable[str], begin: dict[str, int], tells_missing: bool
) -> tuple[list[Fields], Fields | None]:
    """Return the topics of one answer, and where the next one begins; None after the last."""
    left = max(min(LIMIT_PARTITIONS, call.fields["response_partition_limit"]), 1)
    found: list[Fields] = []
    for name in names:
        if left == 0:
            return found, {"topic_name": name, "partition_index": 0}
        topic = call.cluster.topics.get(name)
        if topic is None:
            if tells_missing:
                found.append(_missing(name))
            continue
        start = begin.get(name, 0)
        shown = topic.partitions[start : start + left]
        found.append(
            {
                "error_code": KafkaCode.NONE,
                "name": name,
                "topic_id": topic.topic_id,
                "is_internal": topic.is_internal,
                "partitions": [
                    {**partition_fields(call, each), "eligible_leader_replicas": [], "last_known_elr": []}
                    for each in shown
                ],
            }
        )
        left -= len(shown)
        if start + len(shown) < len(topic.partitions):
            return found, {"topic_name": name, "partition_index": start + len(shown)}
    return found, None


def _missing(name: str) -> Fields:
    valid = name_trouble(name) is None
    return _failed(name, KafkaCode.UNKNOWN_TOPIC_OR_PARTITION if valid else KafkaCode.INVALID_TOPIC_EXCEPTION)


def _failed(name: str, code: KafkaCode) -> Fields:
    return {"name": name, "topic_id": NO_UUID, "error_code": code}
