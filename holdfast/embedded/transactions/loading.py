"""Transactions as `__transaction_state` has them, for a coordinator that starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.core.kafka.transaction_state import Transaction, TransactionState
from holdfast.embedded.internal_log import TRANSACTIONS, WrittenNote, read_notes
from holdfast.embedded.topics.registry import TopicRegistry


def read_transactions(topics: TopicRegistry) -> dict[str, Transaction]:
    """Return the last state of each transactional id that was not forgotten since."""
    found: dict[str, Transaction] = {}
    topic = topics.get(TRANSACTIONS)
    for home in topic.partitions if topic is not None else ():
        for each in read_notes(home):
            if not isinstance(each, WrittenNote):
                continue
            name = each.note.key["transactional_id"]
            if each.note.value is None:
                found.pop(name, None)
            else:
                found[name] = _transaction(each.note.value)
    return found


def _transaction(value: Mapping[str, Any]) -> Transaction:
    places = [
        (each["topic"], index)
        for each in value["transaction_partitions"] or ()
        for index in each["partition_ids"]
    ]
    return Transaction(
        producer_id=value["producer_id"],
        timeout_ms=value["transaction_timeout_ms"],
        updated_ms=value["transaction_last_update_timestamp_ms"],
        epoch=value["producer_epoch"],
        previous_producer_id=value["previous_producer_id"],
        next_producer_id=value["next_producer_id"],
        state=TransactionState(value["transaction_status"]),
        partitions=tuple(sorted(places)),
        started_ms=value["transaction_start_timestamp_ms"],
        client_version=value["client_transaction_version"],
    )
