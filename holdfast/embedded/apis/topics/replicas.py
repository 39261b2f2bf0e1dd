"""Leaders, moving replicas, and log folders: ElectLeaders, ListPartitionReassignments, DescribeLogDirs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from holdfast.embedded.apis.call import Call, Fields
from holdfast.embedded.protocol.codes import KafkaCode
from holdfast.embedded.security.acl_rules import AclOperation
from holdfast.embedded.topics.partition import NO_LEADER, EmbeddedPartition

PREFERRED, UNCLEAN = 0, 1
_IN_MEMORY = "memory"
_WORDS = {
    KafkaCode.NONE: None,
    KafkaCode.ELECTION_NOT_NEEDED: "Leader election not needed for topic partition.",
    KafkaCode.PREFERRED_LEADER_NOT_AVAILABLE: "The preferred leader was not available.",
    KafkaCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: "Eligible topic partition leaders are not available.",
}


def elect_leaders(call: Call) -> Fields:
    """Answer ElectLeaders, as Kafka's controller does."""
    kind, wanted = call.fields["election_type"], call.fields["topic_partitions"]
    if not call.may_cluster(AclOperation.ALTER):
        text = "Request ElectLeaders needs ALTER permission."
        return _not_elected(call, KafkaCode.CLUSTER_AUTHORIZATION_FAILED, text)
    if kind not in (PREFERRED, UNCLEAN):
        return _not_elected(call, KafkaCode.INVALID_REQUEST, f"Unknown election type {kind}")
    if wanted is None:
        results = [
            _elected_of(call, each.name, range(len(each.partitions)), kind) for each in call.cluster.topics
        ]
        for each in results:  # of all partitions, those that have their leader already are left out
            each["partition_result"] = [one for one in each["partition_result"] if _is_news(one)]
    else:
        results = [_elected_of(call, each["topic"], each["partitions"], kind) for each in wanted]
    return {"error_code": KafkaCode.NONE, "replica_election_results": results}


def _not_elected(call: Call, code: KafkaCode, text: str) -> Fields:
    """Return the answer for each named partition where no election takes place."""
    results = [
        {
            "topic": each["topic"],
            "partition_result": [_result(index, code, text) for index in each["partitions"]],
        }
        for each in call.fields["topic_partitions"] or ()
    ]
    return {"error_code": code, "replica_election_results": results}


def _result(index: int, code: KafkaCode, text: str | None) -> Fields:
    return {"partition_id": index, "error_code": code, "error_message": text}


def _is_news(result: Fields) -> bool:
    return bool(result["error_code"] != KafkaCode.ELECTION_NOT_NEEDED)


def _elected_of(call: Call, topic: str, partitions: Iterable[int], kind: int) -> Fields:
    return {"topic": topic, "partition_result": [_elected(call, topic, each, kind) for each in partitions]}


def _elected(call: Call, topic: str, index: int, kind: int) -> Fields:
    partition = call.cluster.topics.partition(topic, index)
    if partition is None:
        known = call.cluster.topics.get(topic) is not None
        text = f"No such partition as {topic}-{index}" if known else f"No such topic as {topic}"
        return _result(index, KafkaCode.UNKNOWN_TOPIC_OR_PARTITION, text)
    code = _elect(partition, [each.node_id for each in call.cluster.alive], kind)
    return _result(index, code, _WORDS[code])


def _elect(partition: EmbeddedPartition, alive: list[int], kind: int) -> KafkaCode:
    preferred = partition.replicas[0]
    if partition.leader == preferred if kind == PREFERRED else partition.leader != NO_LEADER:
        return KafkaCode.ELECTION_NOT_NEEDED
    if kind == UNCLEAN:
        partition.elect_anyone(alive)
        return KafkaCode.NONE if partition.leader != NO_LEADER else KafkaCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    moved = preferred in alive and partition.move([preferred])
    return KafkaCode.NONE if moved else KafkaCode.PREFERRED_LEADER_NOT_AVAILABLE


def list_partition_reassignments(call: Call) -> Fields:
    """Answer ListPartitionReassignments: nothing is ever being moved."""
    if call.may_cluster(AclOperation.DESCRIBE):
        return {"error_code": KafkaCode.NONE, "error_message": None, "topics": []}
    return {
        "error_code": KafkaCode.CLUSTER_AUTHORIZATION_FAILED,
        "error_message": "Request ListPartitionReassignments needs DESCRIBE permission.",
        "topics": [
            {
                "name": each["name"],
                "partitions": [{"partition_index": one} for one in each["partition_indexes"]],
            }
            for each in call.fields["topics"] or ()
        ],
    }


def describe_log_dirs(call: Call) -> Fields:
    """Answer DescribeLogDirs: there is one, the broker's folder."""
    if not call.may_cluster(AclOperation.DESCRIBE):
        return {"error_code": KafkaCode.CLUSTER_AUTHORIZATION_FAILED, "results": []}
    folder, (total, usable) = call.cluster.settings.folder, call.cluster.storage.room()
    found = {
        "error_code": KafkaCode.NONE,
        "log_dir": _IN_MEMORY if folder is None else str(folder),
        "topics": [{"name": name, "partitions": sizes} for name, sizes in _sizes(call)],
        "total_bytes": total,
        "usable_bytes": usable,
    }
    return {"error_code": KafkaCode.NONE, "results": [found]}


def _sizes(call: Call) -> Iterator[tuple[str, list[Fields]]]:
    wanted = call.fields["topics"]
    asked = (
        None if wanted is None else {(each["topic"], one) for each in wanted for one in each["partitions"]}
    )
    for topic in call.cluster.topics:
        sizes = [
            {"partition_index": each.index, "partition_size": each.log.size_bytes}
            for each in topic.partitions
            if call.node_id in each.replicas and (asked is None or (topic.name, each.index) in asked)
        ]
        if sizes:
            yield topic.name, sizes
