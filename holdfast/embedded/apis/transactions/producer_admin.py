"""Producers and transactions as administrators see them: DescribeProducers, DescribeTransactions,
ListTransactions.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.kafka.producer_state import ProducerEntry
from holdfast.core.kafka.transaction_state import Transaction, TransactionState
from holdfast.embedded.apis.call import Call, Fields
from holdfast.embedded.apis.coordinators import elsewhere
from holdfast.embedded.apis.patterns import PatternTrouble, name_pattern
from holdfast.embedded.internal_log import TRANSACTIONS
from holdfast.embedded.protocol.codes import FORBIDDEN_TOPIC, NO_PARTITION, KafkaCode
from holdfast.embedded.security.acl_rules import AclOperation
from holdfast.embedded.topics.partition import EmbeddedPartition

_WORDS = {each: "".join(part.capitalize() for part in each.name.split("_")) for each in TransactionState}
"""Kafka's words for states: ``PrepareCommit``."""


def describe_producers(call: Call) -> Fields:
    """Answer DescribeProducers."""
    topics = []
    for topic in call.fields["topics"]:
        found = [_producers(call, topic["name"], each) for each in topic["partition_indexes"]]
        topics.append({"name": topic["name"], "partitions": found})
    return {"topics": topics}


def _producers(call: Call, topic: str, index: int) -> Fields:
    if not call.may_topic(AclOperation.READ, topic):
        told = {"error_code": KafkaCode.TOPIC_AUTHORIZATION_FAILED, "error_message": FORBIDDEN_TOPIC}
        return {"partition_index": index, **told, "active_producers": []}
    partition = call.cluster.topics.partition(topic, index)
    if partition is None:
        code = KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
        text = NO_PARTITION if call.cluster.topics.get(topic) is None else None
        return {"partition_index": index, "error_code": code, "error_message": text, "active_producers": []}
    if partition.leader != call.node_id:
        code = KafkaCode.NOT_LEADER_OR_FOLLOWER
        return {"partition_index": index, "error_code": code, "active_producers": []}
    return {"partition_index": index, "error_code": KafkaCode.NONE, "active_producers": _active(partition)}


def _active(partition: EmbeddedPartition) -> list[Fields]:
    return [
        {
            "producer_id": int(key.removeprefix("p/")),
            "producer_epoch": entry.epoch,
            "last_sequence": entry.last_sequence,
            "last_timestamp": entry.last_timestamp_ms,
            "coordinator_epoch": entry.coordinator_epoch,
            "current_txn_start_offset": -1 if entry.txn_first_offset is None else entry.txn_first_offset,
        }
        for key, entry in partition.log.rows.scan("p/")
        if isinstance(entry, ProducerEntry)
    ]


def describe_transactions(call: Call) -> Fields:
    """Answer DescribeTransactions."""
    asked = dict.fromkeys(call.fields["transactional_ids"])
    return {"transaction_states": [_described(call, each) for each in asked]}


def _described(call: Call, transactional_id: str) -> Fields:
    answer: Fields = {"transactional_id": transactional_id, "topics": []}
    if not call.may_transact(AclOperation.DESCRIBE, transactional_id):
        return {**answer, "error_code": KafkaCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
    if not transactional_id:
        return {**answer, "error_code": KafkaCode.INVALID_REQUEST}
    if (code := elsewhere(call, TRANSACTIONS, transactional_id)) is not None:
        return {**answer, "error_code": code}
    known = call.cluster.transactions.get(transactional_id)
    if known is None:
        return {**answer, "error_code": KafkaCode.TRANSACTIONAL_ID_NOT_FOUND}
    topics: dict[str, list[int]] = {}
    for topic, index in known.partitions:
        if call.may_topic(AclOperation.DESCRIBE, topic):
            topics.setdefault(topic, []).append(index)
    return {
        **answer,
        "error_code": KafkaCode.NONE,
        "transaction_state": _WORDS[known.state],
        "transaction_timeout_ms": known.timeout_ms,
        "transaction_start_time_ms": known.started_ms,
        "producer_id": known.producer_id,
        "producer_epoch": known.epoch,
        "topics": [{"topic": topic, "partitions": indexes} for topic, indexes in topics.items()],
    }


def list_transactions(call: Call) -> Fields:
    """Answer ListTransactions."""
    fields = call.fields
    words = set(_WORDS.values())
    unknown = [each for each in fields["state_filters"] if each not in words]
    if unknown and len(unknown) == len(fields["state_filters"]):
        return {"error_code": KafkaCode.NONE, "unknown_state_filters": unknown, "transaction_states": []}
    pattern = name_pattern(fields["transactional_id_pattern"] or "")
    if isinstance(pattern, PatternTrouble):
        return {"error_code": KafkaCode.INVALID_REGULAR_EXPRESSION, "transaction_states": []}
    return {
        "error_code": KafkaCode.NONE,
        "unknown_state_filters": unknown,
        "transaction_states": [
            {
                "transactional_id": name,
                "producer_id": known.producer_id,
                "transaction_state": _WORDS[known.state],
            }
            for name, known in _wanted(call)
            if elsewhere(call, TRANSACTIONS, name) is None
            and call.may_transact(AclOperation.DESCRIBE, name)
            and (not fields["transactional_id_pattern"] or pattern.matches(name))
        ],
    }


def _wanted(call: Call) -> Iterator[tuple[str, Transaction]]:
    """Yield the transactions that the filters of a request let through, all but its pattern."""
    fields, now_ms = call.fields, call.cluster.now_ms()
    states, ids = set(fields["state_filters"]), set(fields["producer_id_filters"])
    least_ms = fields["duration_filter"]
    for name, known in call.cluster.transactions.every():
        long_enough = least_ms < 0 or (known.started_ms >= 0 and now_ms - known.started_ms > least_ms)
        in_state = not states or _WORDS[known.state] in states
        if long_enough and in_state and (not ids or known.producer_id in ids):
            yield name, known
