"""Kafka's error codes by what they mean for the caller: try again, give up, or blame the record. Codes below
zero are librdkafka's own.

One place answers "can this be retried?", so that two clients never answer it differently.
"""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

NO_TOPIC = frozenset(
    (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
)
"""The topic or the partition does not exist, or this client does not know it yet."""

LEADER_MOVES = frozenset(
    (
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
    )
)
"""The partition changes its leader: the next request may reach the new one."""

COORDINATOR_MOVES = frozenset(
    (
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
    )
)
"""The group's coordinator moves, or a broker that has just started still loads its offsets."""

NO_ANSWER = frozenset(
    (KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN, KafkaError.REQUEST_TIMED_OUT)
)
"""No broker answered in time."""

FENCING = frozenset(
    (
        KafkaError._FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.INVALID_TXN_STATE,
    )
)
"""A newer producer has this transactional id: this one must not write again."""

HAS_MEMBERS = frozenset(
    (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS)
)
"""The group has members, and the request is not from one of its present generation."""

NO_GROUP = frozenset((KafkaError.GROUP_ID_NOT_FOUND, KafkaError.INVALID_GROUP_ID))
"""There is no such group."""

TOO_LARGE = frozenset(
    (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_MSG_SIZE)
)
"""The record, or the batch it is in, is larger than the topic takes."""

REFUSED_TOPIC = frozenset(
    (
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError._UNKNOWN_TOPIC,
    )
)
"""No record of the topic can be written."""

REFUSED_RECORD = frozenset(
    {
        *REFUSED_TOPIC,
        *TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.INVALID_MSG,
        KafkaError.POLICY_VIOLATION,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._INVALID_ARG,
        KafkaError._BAD_MSG,
    }
)
"""A retry does not cure it. Anything else that keeps a record from its topic ends with the outage."""

UNREADABLE = frozenset(
    (
        KafkaError._BAD_COMPRESSION,
        KafkaError._BAD_MSG,
        KafkaError._UNDERFLOW,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.MSG_SIZE_TOO_LARGE,
    )
)
"""librdkafka cannot read the batch it was given."""


def code_of(error: BaseException | None) -> int | None:
    """Return the code of what a Kafka client raised, None for any other exception.

    >>> code_of(KafkaException(KafkaError(KafkaError._TIMED_OUT))) in NO_ANSWER
    True
    """
    return int(error.args[0].code()) if isinstance(error, KafkaException) else None


def is_end(error: KafkaError) -> bool:
    """Return whether *error* only says that the reader has reached the end of the partition."""
    return error.code() == KafkaError._PARTITION_EOF


def is_of_group(error: KafkaError) -> bool:
    """Return whether *error* is only about the group that a consumer must name: a reader that never joins it
    needs no right to it.

    librdkafka looks up the group's coordinator all the same, and reports what came of it as an error of the
    log.
    """
    return error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED


def ends_reading(error: KafkaError) -> bool:
    """Return whether a reader that met *error* cannot go on. Otherwise librdkafka tries again by itself."""
    return error.fatal() or not (error.retriable() or is_of_group(error))
