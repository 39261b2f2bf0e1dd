"""Questions to the leaders of partitions, with no timeout that ends the process; and whether there are any
leaders to ask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import IsolationLevel, TopicPartition

# the package does not declare what it re-exports
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    DeletedRecords,
    ListOffsetsResultInfo,
    OffsetSpec,
)

REQUEST_AT_LEAST_S = 1.0
"""The shortest `request_timeout` of a question to leaders.

librdkafka 2.16 frees such a question twice when its timeout is over before the client's own thread has looked
at it, and the process aborts: with 0 ms one of the first hundred questions does it, with 1 ms one in a
thousand.
"""


def has_leaders(topic: Any) -> bool:
    """Return whether a topic's metadata from librdkafka name a leader for every partition."""
    return (
        topic.error is None
        and bool(topic.partitions)
        and all(partition.leader >= 0 for partition in topic.partitions.values())
    )


def list_offsets(
    admin: AdminClient,
    wanted: Mapping[TopicPartition, OffsetSpec],
    *,
    timeout_s: float,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[TopicPartition, Future[ListOffsetsResultInfo]]:
    """Ask the leaders of *wanted* for offsets.

    A question that *timeout_s* ends may be ended a little later here: wait for the futures no longer than you
    can.
    """
    return admin.list_offsets(
        dict(wanted), isolation_level=isolation, request_timeout=max(timeout_s, REQUEST_AT_LEAST_S)
    )


def delete_records(
    admin: AdminClient, before: Sequence[TopicPartition], *, timeout_s: float
) -> dict[TopicPartition, Future[DeletedRecords]]:
    """Ask the leaders to delete what lies before the offsets of *before*; for *timeout_s* see
    `list_offsets`.
    """
    return admin.delete_records(list(before), request_timeout=max(timeout_s, REQUEST_AT_LEAST_S))
