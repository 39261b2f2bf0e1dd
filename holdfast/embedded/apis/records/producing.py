"""Produce: batches into logs, by the leader's rules."""

from __future__ import annotations

from typing import Any

from holdfast.core.kafka.producer_state import AppendOutcome, AppendVerdict
from holdfast.core.kafka.record_batch import BatchHeader, claimed_header
from holdfast.embedded.apis.call import Call, Fields, HangUp
from holdfast.embedded.apis.transactions.transacting import admitted
from holdfast.embedded.logs.batch_checks import BatchRefusal, checked, recoded
from holdfast.embedded.protocol.codes import KafkaCode
from holdfast.embedded.security.acl_rules import AclOperation
from holdfast.embedded.topics.partition import EmbeddedPartition, EmbeddedTopic

ALL_IN_SYNC, NO_ANSWER = -1, 0
FIRST_BY_ID = 13
_ADMIN = "__admin_client"
_ADDS_ITSELF, _KNOWS_ABORTABLE = 12, 11
"""From then on a write adds its partition to the transaction (KIP-890), or is told that it may only abort."""
_FORBIDDEN_TOPIC = BatchRefusal(KafkaCode.TOPIC_AUTHORIZATION_FAILED)
_FORBIDDEN_ID = BatchRefusal(KafkaCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
_UNVERIFIED = "Unable to verify the partition has been added to the transaction. Underlying error: "


def produce(call: Call) -> Fields | None:
    """Answer Produce; None where the producer asks for no answer. Where it does, and something was refused,
    HangUp: then it looks who leads, as after a leader that has moved.
    """
    acks = call.fields["acks"]
    forbidden = _is_forbidden(call)
    responses = []
    for told in call.fields["topic_data"]:
        topic = _topic(call, told)
        name = {"topic_id": told["topic_id"]} if call.version >= FIRST_BY_ID else {"name": told["name"]}
        partitions = [
            _refused(each["index"], _FORBIDDEN_ID)
            if forbidden
            else _produced(call, topic, told["name"], each)
            for each in told["partition_data"]
        ]
        responses.append({**name, "partition_responses": partitions})
    if acks != NO_ANSWER:
        return {"responses": responses}
    codes = [each["error_code"] for topic in responses for each in topic["partition_responses"]]
    if any(codes):
        raise HangUp(f"records that need no answer were refused with {codes}")
    return None


def _is_forbidden(call: Call) -> bool:
    """Return whether there are records of a transaction without a name, or by one who may not transact under
    it.
    """
    name = call.fields["transactional_id"]
    may = name is not None and call.may_transact(AclOperation.WRITE, name)
    if may:
        return False
    every = (each["records"] for topic in call.fields["topic_data"] for each in topic["partition_data"])
    return any(map(_is_transactional, every))


def _is_transactional(records: bytes | memoryview | None) -> bool:
    header = claimed_header(records or b"")
    return header is not None and header.is_transactional


def _topic(call: Call, told: Fields) -> EmbeddedTopic | None:
    topics = call.cluster.topics
    return topics.by_id(told["topic_id"]) if call.version >= FIRST_BY_ID else topics.get(told["name"])


def _produced(call: Call, topic: EmbeddedTopic | None, name: str | None, told: Fields) -> Fields:
    index = told["index"]
    found = _partition(call, topic, name, index)
    if isinstance(found, BatchRefusal):
        return _refused(index, found)
    assert topic is not None
    now_ms = call.cluster.now_ms()
    header = checked(told["records"], call.version, topic.configs, found.name, now_ms)
    if isinstance(header, BatchRefusal):
        return _refused(index, header, found)
    packed = recoded(told["records"], header, topic.configs)
    if isinstance(packed, BatchRefusal):
        return _refused(index, packed, found)
    return _appended(call, topic, found, packed, now_ms)


def _partition(
    call: Call, topic: EmbeddedTopic | None, name: str | None, index: int
) -> EmbeddedPartition | BatchRefusal:
    if topic is None:
        by_id = call.version >= FIRST_BY_ID
        known = by_id or call.may_topic(AclOperation.WRITE, name or "")
        if not known:
            return _FORBIDDEN_TOPIC
        return BatchRefusal(KafkaCode.UNKNOWN_TOPIC_ID if by_id else KafkaCode.UNKNOWN_TOPIC_OR_PARTITION)
    if not call.may_topic(AclOperation.WRITE, topic.name):
        return _FORBIDDEN_TOPIC
    if not 0 <= index < len(topic.partitions):
        return BatchRefusal(KafkaCode.UNKNOWN_TOPIC_OR_PARTITION)
    acks = call.fields["acks"]
    if acks not in (-1, 0, 1):
        return BatchRefusal(KafkaCode.INVALID_REQUIRED_ACKS)
    if topic.is_internal and call.client_id != _ADMIN:
        return BatchRefusal(KafkaCode.INVALID_TOPIC_EXCEPTION)
    if call.cluster.faults.disk_is_full:
        return BatchRefusal(KafkaCode.KAFKA_STORAGE_ERROR)
    partition = topic.partitions[index]
    if partition.trouble(call.node_id, -1) is not None:
        return BatchRefusal(KafkaCode.NOT_LEADER_OR_FOLLOWER)
    if acks == ALL_IN_SYNC and len(partition.in_sync) < topic.configs.min_in_sync:
        return BatchRefusal(KafkaCode.NOT_ENOUGH_REPLICAS)
    return partition


def _refused(index: int, refusal: BatchRefusal, partition: EmbeddedPartition | None = None) -> Fields:
    start = partition.log.start_offset if partition is not None and refusal.in_log else -1
    return {
        "index": index,
        "error_code": refusal.code,
        "base_offset": -1,
        "log_start_offset": start,
        "error_message": refusal.text,
        "record_errors": [
            {"batch_index": number, "batch_index_error_message": text} for number, text in refusal.records
        ],
    }


def _appended(
    call: Call,
    topic: EmbeddedTopic,
    partition: EmbeddedPartition,
    batch: tuple[bytes | memoryview, BatchHeader],
    now_ms: int,
) -> Fields:
    data, header = batch
    if header.is_transactional and (refusal := _not_admitted(call, partition, header, now_ms)) is not None:
        return _refused(partition.index, refusal)
    log = partition.log
    is_append_time = topic.configs.is_append_time
    verdict = log.append(
        data,
        header,
        leader_epoch=partition.leader_epoch,
        now_ms=now_ms,
        is_append_time=is_append_time,
        verified=True,
    )
    if verdict.outcome is AppendOutcome.REFUSED:
        return _refused(partition.index, BatchRefusal(KafkaCode(verdict.error), in_log=True), partition)
    log.replicated(log.end_offset)
    return _answer(partition, verdict, is_append_time)


def _not_admitted(
    call: Call, partition: EmbeddedPartition, header: BatchHeader, now_ms: int
) -> BatchRefusal | None:
    """Return why a transaction may not write here, as its coordinator says; None when it may, or is open
    here.
    """
    producer = header.producer_id, header.producer_epoch
    if not partition.log.begin_verification(*producer, header.base_sequence, now_ms):
        return None
    adds = call.version >= _ADDS_ITSELF
    code = admitted(
        call,
        call.fields["transactional_id"] or "",
        producer,
        (partition.topic, partition.index),
        adds=adds,
        abortable=call.version >= _KNOWS_ABORTABLE,
    )
    if code == KafkaCode.INVALID_TXN_STATE:
        return BatchRefusal(KafkaCode.INVALID_TXN_STATE, "Partition was not added to the transaction")
    if code == KafkaCode.CONCURRENT_TRANSACTIONS and not adds:
        return BatchRefusal(KafkaCode.NOT_ENOUGH_REPLICAS, _UNVERIFIED + KafkaCode(code).name)
    return BatchRefusal(KafkaCode(code)) if code else None


def _answer(partition: EmbeddedPartition, verdict: AppendVerdict, is_append_time: bool) -> dict[str, Any]:
    told = is_append_time or verdict.outcome is AppendOutcome.DUPLICATE
    return {
        "index": partition.index,
        "error_code": KafkaCode.NONE,
        "base_offset": verdict.base_offset,
        "log_append_time_ms": verdict.timestamp_ms if told else -1,
        "log_start_offset": partition.log.start_offset,
    }
