"""Produce: batches into logs, by the leader's rules."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from holdfast.core.kafka.producer_state import AppendOutcome, AppendVerdict
from holdfast.core.kafka.record_batch import BatchHeader, claims_transaction
from holdfast.core.kafka.topic_partition import Place
from holdfast.embedded.apis.call import Call, Fields, HangUp
from holdfast.embedded.apis.transactions.transacting import admitted
from holdfast.embedded.logs.batch_checks import BatchRefusal, checked, recoded, takes_long
from holdfast.embedded.protocol.codes import KafkaCode
from holdfast.embedded.security.acl_rules import AclOperation
from holdfast.embedded.topics.partition import EmbeddedPartition, EmbeddedTopic

ALL_IN_SYNC, NO_ANSWER = -1, 0
FIRST_BY_ID = 13
_ADMIN = "__admin_client"
_ADDS_ITSELF, _KNOWS_ABORTABLE = 12, 11
"""From then on a write adds its partition to the transaction (KIP-890), or gets the error that it may only
abort.
"""
_FORBIDDEN_TOPIC = BatchRefusal(KafkaCode.TOPIC_AUTHORIZATION_FAILED)
_FORBIDDEN_ID = BatchRefusal(KafkaCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
_UNVERIFIED = "Unable to verify the partition has been added to the transaction. Underlying error: "


class _AskedWrite(NamedTuple):
    """The records to write to one partition, and that partition, or why it is not written to."""

    told: Fields
    topic: EmbeddedTopic | None
    name: str | None
    found: EmbeddedPartition | BatchRefusal


_Packed: TypeAlias = "tuple[bytes | memoryview, BatchHeader] | BatchRefusal"


def produce(call: Call) -> Fields | Awaitable[Fields | None] | None:
    """Answer Produce; None where the producer asks for no answer. Where it does, and something was refused,
    HangUp: then it looks who leads, as after a leader that has moved.
    """
    asked = list(_asked(call))
    if any(_takes_long(call, each) for each in asked):
        return _later(call, asked)
    return _written(call, [(each, _packed(call, each)) for each in asked])


def _asked(call: Call) -> Iterator[_AskedWrite]:
    forbidden = _is_forbidden(call)
    for told in call.fields["topic_data"]:
        topic = _topic(call, told)
        for each in told["partition_data"]:
            found = _FORBIDDEN_ID if forbidden else _partition(call, topic, told["name"], each["index"])
            yield _AskedWrite(each, topic, told["name"], found)


def _takes_long(call: Call, asked: _AskedWrite) -> bool:
    if isinstance(asked.found, BatchRefusal) or asked.topic is None:
        return False
    return takes_long(asked.told["records"], asked.topic.configs, call.cluster.now_ms())


async def _later(call: Call, asked: list[_AskedWrite]) -> Fields | None:
    packed = []
    for each in asked:
        data = await call.cluster.beside(_packed, call, each)
        if isinstance(each.found, EmbeddedPartition):  # it may be gone by now, or have another leader
            again = _partition(call, _topic_again(call, each), each.name, each.told["index"])
            each = each._replace(found=again)
        packed.append((each, data))
    return _written(call, packed)


def _topic_again(call: Call, asked: _AskedWrite) -> EmbeddedTopic | None:
    return None if asked.topic is None else call.cluster.topics.by_id(asked.topic.topic_id)


def _packed(call: Call, asked: _AskedWrite) -> _Packed:
    """Return the batch as it is to be stored."""
    if isinstance(asked.found, BatchRefusal):
        return asked.found
    assert asked.topic is not None
    data, configs = asked.told["records"], asked.topic.configs
    header = checked(data, call.version, configs, asked.found.name, call.cluster.now_ms())
    return header if isinstance(header, BatchRefusal) else recoded(data, header, configs)


def _written(call: Call, packed: list[tuple[_AskedWrite, _Packed]]) -> Fields | None:
    admissions = _admissions(call, packed)
    answers = iter([_produced(call, asked, batch, admissions) for asked, batch in packed])
    responses = []
    for told in call.fields["topic_data"]:
        name = {"topic_id": told["topic_id"]} if call.version >= FIRST_BY_ID else {"name": told["name"]}
        partitions = [next(answers) for _ in told["partition_data"]]
        responses.append({**name, "partition_responses": partitions})
    if call.fields["acks"] != NO_ANSWER:
        return {"responses": responses}
    codes = [each["error_code"] for topic in responses for each in topic["partition_responses"]]
    if any(codes):
        raise HangUp(f"records that need no answer were refused with {codes[:10]}")
    return None


def _is_forbidden(call: Call) -> bool:
    """Return whether there are records of a transaction without a name, or by a client that may not transact
    under it.
    """
    name = call.fields["transactional_id"]
    may = name is not None and call.may_transact(AclOperation.WRITE, name)
    if may:
        return False
    every = (each["records"] for topic in call.fields["topic_data"] for each in topic["partition_data"])
    return any(claims_transaction(records or b"") for records in every)


def _topic(call: Call, told: Fields) -> EmbeddedTopic | None:
    topics = call.cluster.topics
    return topics.by_id(told["topic_id"]) if call.version >= FIRST_BY_ID else topics.get(told["name"])


def _produced(call: Call, asked: _AskedWrite, packed: _Packed, admissions: Mapping[Place, int]) -> Fields:
    index, found = asked.told["index"], asked.found
    if isinstance(found, BatchRefusal):
        return _refused(index, found)
    if isinstance(packed, BatchRefusal):
        return _refused(index, packed, found)
    assert asked.topic is not None
    refusal = _refusal_of(call, admissions.get((found.topic, index), KafkaCode.NONE))
    return _refused(index, refusal) if refusal is not None else _appended(call, asked.topic, found, packed)


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
) -> Fields:
    data, header = batch
    log = partition.log
    is_append_time = topic.configs.is_append_time
    verdict = log.append(
        data,
        header,
        leader_epoch=partition.leader_epoch,
        now_ms=call.cluster.now_ms(),
        is_append_time=is_append_time,
        verified=True,
    )
    if verdict.outcome is AppendOutcome.REFUSED:
        return _refused(partition.index, BatchRefusal(KafkaCode(verdict.error), in_log=True), partition)
    log.replicated(log.end_offset)
    return _answer(partition, verdict, is_append_time)


def _admissions(call: Call, packed: Iterable[tuple[_AskedWrite, _Packed]]) -> dict[Place, int]:
    """Return the code with which the coordinator answers for each partition that a transaction writes to, and
    is not open in; all of a producer's partitions are added at once, as in Kafka.
    """
    if call.fields["transactional_id"] is None:
        return {}  # what has no name was refused before, where it is of a transaction
    wanted: dict[tuple[int, int], list[Place]] = {}
    for asked, batch in packed:
        if isinstance(asked.found, BatchRefusal) or isinstance(batch, BatchRefusal):
            continue
        header, log = batch[1], asked.found.log
        producer = header.producer_id, header.producer_epoch
        if header.is_transactional and log.begin_verification(
            *producer, header.base_sequence, call.cluster.now_ms()
        ):
            wanted.setdefault(producer, []).append((asked.found.topic, asked.found.index))
    name, abortable = call.fields["transactional_id"] or "", call.version >= _KNOWS_ABORTABLE
    found: dict[Place, int] = {}
    for producer, places in wanted.items():
        together = [tuple(places)] if call.version >= _ADDS_ITSELF else [(each,) for each in places]
        for part in together:
            adds = call.version >= _ADDS_ITSELF
            code = admitted(call, name, producer, part, adds=adds, abortable=abortable)
            found |= dict.fromkeys(part, code)
    return found


def _refusal_of(call: Call, code: int) -> BatchRefusal | None:
    """Return why a transaction may not write, as its coordinator says; None when it may."""
    if code == KafkaCode.INVALID_TXN_STATE:
        return BatchRefusal(KafkaCode.INVALID_TXN_STATE, "Partition was not added to the transaction")
    if code == KafkaCode.CONCURRENT_TRANSACTIONS and call.version < _ADDS_ITSELF:
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
