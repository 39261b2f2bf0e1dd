"""Topics made, grown and deleted: CreateTopics, CreatePartitions, DeleteTopics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from holdfast.embedded.apis.call import NO_KEPT_ROOM, Call, Fields
from holdfast.embedded.apis.describing import may_create
from holdfast.embedded.apis.topics.configuring import topic_config
from holdfast.embedded.configs.topic import SETTINGS
from holdfast.embedded.protocol.codes import FORBIDDEN_TOPIC, NO_PARTITION, KafkaCode
from holdfast.embedded.protocol.table import NO_UUID
from holdfast.embedded.security.acl_rules import AclOperation
from holdfast.embedded.topics.partition import EmbeddedTopic
from holdfast.embedded.topics.registry import NO_ROOM, TopicRefusal

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
_DUPLICATE_NAME = TopicRefusal(KafkaCode.INVALID_REQUEST, "Duplicate topic name.")
_UNNAMED = TopicRefusal(KafkaCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
_TOLD_TWICE = TopicRefusal(KafkaCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
_KNOWN_BY_ID = TopicRefusal(
    KafkaCode.INVALID_REQUEST, "The provided topic name maps to an ID that was already supplied."
)
NO_TOPIC_ID = "This server does not host this topic ID."


def create_topics(call: Call) -> Fields:
    """Answer CreateTopics."""
    if (refusal := _too_much(call)) is not None:
        return {"topics": [_refused(each["name"], refusal) for each in call.fields["topics"]]}
    counts = Counter(each["name"] for each in call.fields["topics"])
    refusals = {name: _uncreatable(call, name, count) for name, count in counts.items()}
    wanted = [each for each in call.fields["topics"] if refusals[each["name"]] is None]
    made = call.cluster.topics.create(wanted, only_check=call.fields["validate_only"])
    done = dict(zip((each["name"] for each in wanted), made, strict=True))
    return {
        "topics": [
            _refused(name, told) if isinstance(told, TopicRefusal) else _created(call, told)
            for name, told in ((name, refusal or done[name]) for name, refusal in refusals.items())
        ]
    }


def _uncreatable(call: Call, name: str, count: int) -> TopicRefusal | None:
    """Return why a topic that a request names *count* times is not made, whatever else it says of it."""
    if count > 1:
        return _DUPLICATE_NAME
    if name == "__cluster_metadata":
        text = "Creation of internal topic __cluster_metadata is prohibited."
        return TopicRefusal(KafkaCode.INVALID_REQUEST, text)
    return None if may_create(call, name) else _FORBIDDEN_CREATION


def _too_much(call: Call) -> TopicRefusal | None:
    """Return why a request is refused as a whole: it asks for more than is written at once."""
    if not call.has_room():
        return TopicRefusal(KafkaCode.POLICY_VIOLATION, NO_KEPT_ROOM)
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
    found: dict[str, TopicRefusal | None] = {}
    for told in call.fields["topics"]:
        name = told["name"]
        if counts[name] > 1:
            found[name] = _DUPLICATE_NAME
        else:
            room -= _growth(call, told)
            found[name] = _grown(call, told, has_room=room >= 0)
    results = []
    for name, refusal in found.items():
        code, text = (KafkaCode.NONE, None) if refusal is None else refusal
        results.append({"name": name, "error_code": code, "error_message": text})
    return {"results": results}


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
    if count - before > call.cluster.topics.room():
        return NO_ROOM
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
    deletion = _Deletion(call)
    call.cluster.delete_topics(deletion.doomed.values())
    for each in deletion.doomed.values():
        deletion.answer(each.name, each.topic_id, TopicRefusal(KafkaCode.NONE, None))
    return {"responses": deletion.answers}


class _Deletion:
    """The topics that a request deletes: *doomed*, by id. It checks in Kafka's order: the form of the
    request, the ids, the names; so a topic that is meant twice stays.
    """

    def __init__(self, call: Call) -> None:
        self._call, self._topics = call, call.cluster.topics
        self.answers: list[Fields] = []
        self.doomed: dict[bytes, EmbeddedTopic] = {}
        self._may_delete_all = call.may_cluster(AclOperation.DELETE)
        names, ids = self._counted()
        self._take_ids({each for each, count in ids.items() if count == 1})
        self._twice = {each for each, count in ids.items() if count > 1}
        for name in [each for each, count in names.items() if count == 1]:
            self._take_name(name)

    def answer(self, name: str | None, topic_id: bytes, told: TopicRefusal) -> None:
        answer = {"name": name, "topic_id": topic_id, "error_code": told.code, "error_message": told.text}
        self.answers.append(answer)

    def _counted(self) -> tuple[Counter[str], Counter[bytes]]:
        fields = self._call.fields
        names, ids = Counter[str](fields["topic_names"]), Counter[bytes]()
        for each in fields["topics"]:
            name, topic_id = each["name"], each["topic_id"]
            if name is None and topic_id == NO_UUID:
                self.answer(name, topic_id, _UNNAMED)
            elif name is not None and topic_id != NO_UUID:
                self.answer(name, topic_id, _TOLD_TWICE)
            elif name is None:
                ids[topic_id] += 1
            else:
                names[name] += 1
        for name in [each for each, count in names.items() if count > 1]:
            self.answer(name, NO_UUID, _DUPLICATE_NAME)
        for topic_id in [each for each, count in ids.items() if count > 1]:
            self.answer(None, topic_id, TopicRefusal(KafkaCode.INVALID_REQUEST, "Duplicate topic id."))
        return names, ids

    def _take_ids(self, ids: Iterable[bytes]) -> None:
        for topic_id in ids:
            topic = self._topics.by_id(topic_id)
            if topic is None:
                self.answer(None, topic_id, TopicRefusal(KafkaCode.UNKNOWN_TOPIC_ID, NO_TOPIC_ID))
            elif not self._may(AclOperation.DELETE, topic.name):
                shown = topic.name if self._may(AclOperation.DESCRIBE, topic.name) else None
                self.answer(shown, topic_id, _FORBIDDEN)
            else:
                self.doomed[topic_id] = topic

    def _take_name(self, name: str) -> None:
        topic = self._topics.get(name)
        if not self._may(AclOperation.DESCRIBE, name):
            self.answer(name, NO_UUID, _FORBIDDEN)
        elif topic is None:
            unknown = TopicRefusal(KafkaCode.UNKNOWN_TOPIC_OR_PARTITION, NO_PARTITION)
            self.answer(name, NO_UUID, unknown)
        elif not self._may(AclOperation.DELETE, name):
            self.answer(name, NO_UUID, _FORBIDDEN)
        elif topic.topic_id in self._twice or topic.topic_id in self.doomed:
            self._twice.add(topic.topic_id)
            self.doomed.pop(topic.topic_id, None)
            self.answer(name, topic.topic_id, _KNOWN_BY_ID)
        else:
            self.doomed[topic.topic_id] = topic

    def _may(self, operation: AclOperation, name: str) -> bool:
        return self._may_delete_all or self._call.may_topic(operation, name)
