"""Topics made, grown and deleted: CreateTopics, CreatePartitions, DeleteTopics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from holdfast.embedded.apis.call import Call, Fields
from holdfast.embedded.apis.describing import may_create
from holdfast.embedded.apis.topics.configuring import topic_config
from holdfast.embedded.configs.topic import SETTINGS
from holdfast.embedded.protocol.codes import FORBIDDEN_TOPIC, NO_PARTITION, KafkaCode
from holdfast.embedded.protocol.table import NO_UUID
from holdfast.embedded.security.acl_rules import AclOperation
from holdfast.embedded.topics.partition import EmbeddedTopic
from holdfast.embedded.topics.registry import TopicRefusal

FIRST_BY_ID = 6
_FORBIDDEN_CREATION = TopicRefusal(KafkaCode.TOPIC_AUTHORIZATION_FAILED, "Authorization failed.")
_FORBIDDEN = TopicRefusal(KafkaCode.TOPIC_AUTHORIZATION_FAILED, FORBIDDEN_TOPIC)
LIMIT_BATCH = 10_000
"""Of what Kafka's controller writes for one request: partitions, and the records about them."""
_MANY_PARTITIONS = TopicRefusal(
    KafkaCode.POLICY_VIOLATION, "Excessively large number of partitions per request."
)
_MANY_RECORDS = TopicRefusal(
    KafkaCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation."
)
_NO_ROOM = TopicRefusal(KafkaCode.UNKNOWN_SERVER_ERROR, None)
"""Kafka says no more than that here, and with 2 billion partitions ends: it makes them before it looks."""
NO_TOPIC_ID = "This server does not host this topic ID."


def create_topics(call: Call) -> Fields:
    """Answer CreateTopics."""
    if (refusal := _too_much(call)) is not None:
        return {"topics": [_refused(each["name"], refusal) for each in call.fields["topics"]]}
    counts = Counter(each["name"] for each in call.fields["topics"])
    found: list[Fields] = []
    for told in call.fields["topics"]:
        if counts[told["name"]] > 1:
            if not any(each["name"] == told["name"] for each in found):
                found.append(
                    _refused(told["name"], TopicRefusal(KafkaCode.INVALID_REQUEST, "Duplicate topic name."))
                )
            continue
        if told["name"] == "__cluster_metadata":
            text = "Creation of internal topic __cluster_metadata is prohibited."
            found.append(_refused(told["name"], TopicRefusal(KafkaCode.INVALID_REQUEST, text)))
            continue
        if not may_create(call, told["name"]):
            found.append(_refused(told["name"], _FORBIDDEN_CREATION))
            continue
        made = call.cluster.topics.create(told, only_check=call.fields["validate_only"])
        found.append(_refused(told["name"], made) if isinstance(made, TopicRefusal) else _created(call, made))
    return {"topics": found}


def _too_much(call: Call) -> TopicRefusal | None:
    """Return why a request is refused as a whole: it asks for more than is written at once."""
    default, topics = call.cluster.settings.num_partitions, call.fields["topics"]
    asked = [len(each["assignments"]) or each["num_partitions"] for each in topics]
    counts = [default if each == -1 else each for each in asked if each == -1 or each > 0]
    if sum(counts) > LIMIT_BATCH:
        return _MANY_PARTITIONS
    return _MANY_RECORDS if sum(counts) + len(counts) > LIMIT_BATCH else None


def _refused(name: str, refusal: TopicRefusal) -> Fields:
    return {
        "name": name,
        "error_code": refusal.code,
        "error_message": refusal.text,
        "configs": [],
        "num_partitions": -1,
        "replication_factor": -1,
    }


def _created(call: Call, topic: EmbeddedTopic) -> Fields:
    if not call.may_topic(AclOperation.DESCRIBE_CONFIGS, topic.name):
        return {
            "name": topic.name,
            "topic_id": topic.topic_id,
            "error_message": None,
            "topic_config_error_code": KafkaCode.TOPIC_AUTHORIZATION_FAILED,
            "num_partitions": -1,
            "replication_factor": -1,
            "configs": [],
        }
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "error_code": KafkaCode.NONE,
        "error_message": None,
        "num_partitions": len(topic.partitions),
        "replication_factor": len(topic.partitions[0].replicas),
        "configs": [_plain(topic_config(topic, name)) for name in SETTINGS],
    }


def _plain(config: Fields) -> Fields:
    return {name: config[name] for name in ("name", "value", "read_only", "config_source", "is_sensitive")}


def create_partitions(call: Call) -> Fields:
    """Answer CreatePartitions."""
    counts = Counter(each["name"] for each in call.fields["topics"])
    room = LIMIT_BATCH
    found: list[Fields] = []
    for told in call.fields["topics"]:
        if counts.pop(told["name"], 0) > 1:
            refusal: TopicRefusal | None = TopicRefusal(KafkaCode.INVALID_REQUEST, "Duplicate topic name.")
            counts[told["name"]] = 0
        elif told["name"] in {each["name"] for each in found}:
            continue
        else:
            room -= _growth(call, told)
            refusal = _grown(call, told, has_room=room >= 0)
        code, text = (KafkaCode.NONE, None) if refusal is None else refusal
        found.append({"name": told["name"], "error_code": code, "error_message": text})
    return {"results": found}


def _growth(call: Call, told: Fields) -> int:
    """Return how many partitions a topic would have more."""
    topic = call.cluster.topics.get(told["name"])
    return 0 if topic is None else max(0, told["count"] - len(topic.partitions))


def _grown(call: Call, told: Fields, *, has_room: bool) -> TopicRefusal | None:
    if not call.may_topic(AclOperation.ALTER, told["name"]):
        return TopicRefusal(KafkaCode.TOPIC_AUTHORIZATION_FAILED, None)
    topic, count, assignments = call.cluster.topics.get(told["name"]), told["count"], told["assignments"]
    if topic is None:
        return TopicRefusal(KafkaCode.UNKNOWN_TOPIC_OR_PARTITION, None)
    before = len(topic.partitions)
    if count == before:
        return TopicRefusal(KafkaCode.INVALID_PARTITIONS, f"Topic already has {before} partition(s).")
    if count < before:
        text = (
            f"The topic {topic.name} currently has {before} partition(s); {count} would not be an increase."
        )
        return TopicRefusal(KafkaCode.INVALID_PARTITIONS, text)
    if not has_room:
        return _NO_ROOM
    placed = None if assignments is None else [each["broker_ids"] for each in assignments]
    if placed is not None and len(placed) != count - before:
        text = (
            f"Attempted to add {count - before} additional partition(s), but only {len(placed)} assignment(s)"
            " were specified."
        )
        return TopicRefusal(KafkaCode.INVALID_REPLICA_ASSIGNMENT, text)
    for nodes in placed or ():
        if (refusal := call.cluster.topics.misplaced(nodes)) is not None:
            return refusal
    if not call.fields["validate_only"]:
        call.cluster.topics.grow(topic, count, placed)
    return None


def delete_topics(call: Call) -> Fields:
    """Answer DeleteTopics."""
    return {"responses": list(_deleted(call))}


def _deleted(call: Call) -> Iterator[Fields]:
    asked = (
        [(each["name"], each["topic_id"]) for each in call.fields["topics"]]
        if call.version >= FIRST_BY_ID
        else [(name, NO_UUID) for name in call.fields["topic_names"]]
    )
    counts = Counter(asked)
    for (name, topic_id), count in counts.items():
        topics = call.cluster.topics
        topic = topics.get(name) if name is not None else topics.by_id(topic_id)
        refusal = _forbidden_deletion(call, topic, name)
        if refusal is not None:
            pass
        elif name is None and topic_id == NO_UUID:
            refusal = TopicRefusal(KafkaCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
        elif name is not None and topic_id != NO_UUID:
            refusal = TopicRefusal(
                KafkaCode.INVALID_REQUEST, "You may not specify both topic name and topic id."
            )
        elif count > 1:
            what = "topic id" if name is None else "topic name"
            refusal = TopicRefusal(KafkaCode.INVALID_REQUEST, f"Duplicate {what}.")
        elif topic is None:
            by_id = name is None
            refusal = TopicRefusal(
                KafkaCode.UNKNOWN_TOPIC_ID if by_id else KafkaCode.UNKNOWN_TOPIC_OR_PARTITION,
                NO_TOPIC_ID if by_id else NO_PARTITION,
            )
        if refusal is not None or topic is None:
            assert refusal is not None
            yield {
                "name": _shown(call, topic, name),
                "topic_id": topic_id,
                "error_code": refusal.code,
                "error_message": refusal.text,
            }
            continue
        call.cluster.delete_topic(topic)
        yield {"name": topic.name, "topic_id": topic.topic_id, "error_code": KafkaCode.NONE}


def _forbidden_deletion(call: Call, topic: EmbeddedTopic | None, name: str | None) -> TopicRefusal | None:
    """Return what one is told who may not delete a topic that it named, or told the id of, or not even know
    of it.
    """
    named = topic.name if topic is not None else name
    if named is None:
        return None
    may_know = call.may_topic(AclOperation.DESCRIBE, named)
    may = may_know and (topic is None or call.may_topic(AclOperation.DELETE, named))
    return None if may else _FORBIDDEN


def _shown(call: Call, topic: EmbeddedTopic | None, name: str | None) -> str | None:
    """Return the name of a topic that is not deleted, if who asks may know it."""
    if name is None and topic is not None and call.may_topic(AclOperation.DESCRIBE, topic.name):
        return topic.name
    return name
