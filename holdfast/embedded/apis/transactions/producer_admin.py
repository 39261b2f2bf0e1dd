"""Producers and transactions as administrators see them: DescribeProducers, DescribeTransactions,
ListTransactions.
"""

from __future__ import annotations

import re

from holdfast.core.kafka.producer_state import ProducerEntry
from holdfast.core.kafka.transaction_state import Transaction, TransactionState
from holdfast.embedded.apis.call import Call, Fields
from holdfast.embedded.apis.coordinators import elsewhere
from holdfast.embedded.apis.patterns import pattern_trouble
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
    return {"transaction_states": [_described(call, each) for each in call.fields["transactional_ids"]]}


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
    wanted = set(fields["state_filters"])
    unknown = [each for each in fields["state_filters"] if each not in _WORDS.values()]
    if wanted and len(unknown) == len(fields["state_filters"]):
        return {"error_code": KafkaCode.NONE, "unknown_state_filters": unknown, "transaction_states": []}
    if pattern_trouble(fields["transactional_id_pattern"] or "") is not None:
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
            for name, known in call.cluster.transactions.every()
            if elsewhere(call, TRANSACTIONS, name) is None and _is_wanted(call, name, known)
        ],
    }


def _is_wanted(call: Call, name: str, known: Transaction) -> bool:
    fields = call.fields
    running_ms = call.cluster.now_ms() - known.started_ms
    pattern = fields["transactional_id_pattern"]
    return (
        (not fields["state_filters"] or _WORDS[known.state] in fields["state_filters"])
        and (not fields["producer_id_filters"] or known.producer_id in fields["producer_id_filters"])
        and (
            fields["duration_filter"] < 0
            or (known.started_ms >= 0 and running_ms > fields["duration_filter"])
        )
        and call.may_transact(AclOperation.DESCRIBE, name)
        and (not pattern or re.fullmatch(pattern, name) is not None)
    )
