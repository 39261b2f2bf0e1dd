"""The first and end offsets of logs: ListOffsets, OffsetForLeaderEpoch, DeleteRecords."""

from __future__ import annotations

from collections import Counter

from holdfast.core.kafka.topic_partition import Place
from holdfast.embedded.apis.call import Call, Fields
from holdfast.embedded.apis.records.fetching import READ_COMMITTED
from holdfast.embedded.protocol.codes import KafkaCode
from holdfast.embedded.security.acl_rules import AclOperation
from holdfast.embedded.topics.partition import EmbeddedPartition

LATEST, EARLIEST, MAX_TIME, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = -1, -2, -3, -4, -5, -6
_SINCE = {MAX_TIME: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING: 11}
"""From which version of ListOffsets on these may be asked for."""


def list_offsets(call: Call) -> Fields:
    """Answer ListOffsets."""
    counts = Counter(
        (topic["name"], each["partition_index"])
        for topic in call.fields["topics"]
        for each in topic["partitions"]
    )
    return {
        "topics": [
            {"name": topic["name"], "partitions": _listed(call, topic["name"], topic["partitions"], counts)}
            for topic in call.fields["topics"]
        ]
    }


def _listed(call: Call, topic: str, partitions: list[Fields], counts: Counter[Place]) -> list[Fields]:
    return [
        _failed(each, KafkaCode.TOPIC_AUTHORIZATION_FAILED)
        if not call.may_topic(AclOperation.DESCRIBE, topic)
        else _failed(each, KafkaCode.INVALID_REQUEST)
        if counts[topic, each["partition_index"]] > 1
        else _found(call, topic, each)
        for each in partitions
    ]


def _failed(told: Fields, code: KafkaCode) -> Fields:
    return {"partition_index": told["partition_index"], "error_code": code}


def _found(call: Call, topic: str, told: Fields) -> Fields:
    partition, at_ms = call.cluster.topics.partition(topic, told["partition_index"]), told["timestamp"]
    if at_ms < 0 and (at_ms < EARLIEST_PENDING or call.version < _SINCE.get(at_ms, 0)):
        return _failed(told, KafkaCode.UNSUPPORTED_VERSION)
    if partition is None:
        return _failed(told, KafkaCode.UNKNOWN_TOPIC_OR_PARTITION)
    if (code := partition.trouble(call.node_id, told["current_leader_epoch"])) is not None:
        return _failed(told, code)
    offset, time_ms, epoch = _offset(
        partition, at_ms, committed=call.fields["isolation_level"] == READ_COMMITTED
    )
    return {
        "partition_index": partition.index,
        "error_code": KafkaCode.NONE,
        "timestamp": time_ms,
        "offset": offset,
        "leader_epoch": epoch,
    }


def _offset(partition: EmbeddedPartition, at_ms: int, *, committed: bool) -> tuple[int, int, int]:
    """Return offset, time and leader epoch, -1 each for what there is not."""
    log = partition.log
    readable = log.last_stable_offset if committed else log.high_watermark
    if at_ms == LATEST:
        return readable, -1, partition.leader_epoch
    if at_ms in (EARLIEST, EARLIEST_LOCAL):
        return log.start_offset, -1, log.epoch_at(log.start_offset)
    if at_ms in (LATEST_TIERED, EARLIEST_PENDING):
        return -1, -1, -1
    found = log.latest_time() if at_ms == MAX_TIME else log.first_since(at_ms)
    if found is None or found.offset >= readable:
        return -1, -1, -1
    return found.offset, found.timestamp_ms, found.leader_epoch


def offset_for_leader_epoch(call: Call) -> Fields:
    """Answer OffsetForLeaderEpoch."""
    topics = []
    for topic in call.fields["topics"]:
        found = [_epoch_end(call, topic["topic"], each) for each in topic["partitions"]]
        topics.append({"topic": topic["topic"], "partitions": found})
    return {"topics": topics}


def _epoch_end(call: Call, topic: str, told: Fields) -> Fields:
    partition = call.cluster.topics.partition(topic, told["partition"])
    if not call.may_cluster(AclOperation.CLUSTER_ACTION) and not call.may_topic(AclOperation.DESCRIBE, topic):
        return {"error_code": KafkaCode.TOPIC_AUTHORIZATION_FAILED, "partition": told["partition"]}
    code = (
        KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
        if partition is None
        else partition.trouble(call.node_id, told["current_leader_epoch"])
    )
    if partition is None or code is not None:
        return {"error_code": code, "partition": told["partition"]}
    epoch, end = partition.log.epoch_end(told["leader_epoch"])
    return {"partition": partition.index, "leader_epoch": epoch, "end_offset": end}


def delete_records(call: Call) -> Fields:
    """Answer DeleteRecords."""
    topics = []
    for topic in call.fields["topics"]:
        found = [_deleted(call, topic["name"], each) for each in topic["partitions"]]
        topics.append({"name": topic["name"], "partitions": found})
    return {"topics": topics}


def _deleted(call: Call, topic: str, told: Fields) -> Fields:
    index, offset = told["partition_index"], told["offset"]
    partition = call.cluster.topics.partition(topic, index)
    if not call.may_topic(AclOperation.DELETE, topic):
        code: KafkaCode | None = KafkaCode.TOPIC_AUTHORIZATION_FAILED
    elif partition is None:
        code = KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
    elif (found := call.cluster.topics.get(topic)) is not None and found.is_internal:
        code = KafkaCode.INVALID_TOPIC_EXCEPTION
    elif (code := partition.trouble(call.node_id, -1)) is None:
        end = partition.log.high_watermark
        offset = end if offset == LATEST else offset
        if 0 <= offset <= end:
            partition.log.delete_before(offset)
            low = partition.log.start_offset
            return {"partition_index": index, "low_watermark": low, "error_code": KafkaCode.NONE}
        code = KafkaCode.OFFSET_OUT_OF_RANGE
    return {"partition_index": index, "low_watermark": -1, "error_code": code}
