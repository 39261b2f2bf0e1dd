"""Kafka's error codes by what they mean for the caller: try again, give up, or blame the record.

Codes are numbers, so that librdkafka's errors and the answers to our own requests are judged alike. Codes
below zero are librdkafka's own. Only this module answers "can this be retried?", so that two clients never
answer it differently.
"""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

MISSING_TOPIC = frozenset((KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC))
"""The topic does not exist. A broker that has just started, or a topic just created, answers so for a moment.
"""

NO_TOPIC = MISSING_TOPIC | {KafkaError._UNKNOWN_PARTITION}
"""The topic or the partition does not exist, or this client does not know it yet.

Not retriable by itself: only the caller knows whether it waits for a topic or looks for one.
"""

CLOSED_TOPIC = NO_TOPIC | {KafkaError.TOPIC_AUTHORIZATION_FAILED}
"""The topic cannot be read: it does not exist, or this principal may not read it."""

UNAUTHORIZED = frozenset(
    (
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    )
)
"""This principal lacks a permission: a retry does not help, but a grant does, without a restart."""

OUT_OF_LOG = frozenset((KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE))
"""The offset is not in the log (any more)."""

LEADER_MOVES = frozenset(
    (
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError.INCONSISTENT_TOPIC_ID,
    )
)
"""The partition changes its leader, or the new one is not ready: ask for metadata, then again. Kafka's own
clients do so (its InvalidMetadataException).
"""

NO_LEADER = LEADER_MOVES | NO_TOPIC
"""Answers to a caller that waits for a partition to have a leader, including one just created."""

COORDINATOR_MOVES = frozenset(
    (
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
    )
)
"""The coordinator moves, or a broker that has just started still loads its state."""

NO_ANSWER = frozenset(
    (
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._WAIT_COORD,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
    )
)
"""No broker answered in time."""

RETRIABLE = (
    LEADER_MOVES
    | COORDINATOR_MOVES
    | NO_ANSWER
    | {
        KafkaError.INVALID_MSG,  # the bytes were damaged on their way
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.NOT_CONTROLLER,
        KafkaError.CONCURRENT_TRANSACTIONS,
    }
)
"""The next attempt may succeed. See `retriable`."""

FENCING = frozenset(
    (
        KafkaError._FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.INVALID_TXN_STATE,
    )
)
"""This producer's epoch is over: a newer producer has its transactional id, the broker has ended a
transaction that took too long, or it has forgotten an id that was not used for a week.
"""

ABORTABLE = frozenset(
    (
        KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
        KafkaError.DUPLICATE_SEQUENCE_NUMBER,
        KafkaError.UNKNOWN_PRODUCER_ID,
        KafkaError.TRANSACTION_ABORTABLE,
    )
)
"""The transaction must be aborted, and the same records can go into a new one."""

HAS_MEMBERS = frozenset(
    (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS)
)
"""The group has members, and the request is not from one of its present generation."""

NOT_A_MEMBER = frozenset(
    (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError.FENCED_INSTANCE_ID)
)
"""The sender is not a member of the group any more, and owns no partition."""

NO_GROUP = frozenset((KafkaError.GROUP_ID_NOT_FOUND, KafkaError.INVALID_GROUP_ID))
"""There is no such group."""

REFUSED_CONNECTION = frozenset((KafkaError._AUTHENTICATION, KafkaError._SSL))
"""The broker or its certificate was refused, or this client was."""

TOO_LARGE = frozenset(
    (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_MSG_SIZE)
)
"""The record, or the batch it is in, is larger than the topic takes."""

REFUSED_TOPIC = MISSING_TOPIC | {KafkaError.TOPIC_EXCEPTION, KafkaError.TOPIC_AUTHORIZATION_FAILED}
"""No record of the topic can be written."""

REFUSED_RECORD = (
    REFUSED_TOPIC
    | TOO_LARGE
    | {
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.INVALID_MSG,
        KafkaError.POLICY_VIOLATION,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._INVALID_ARG,
        KafkaError._BAD_MSG,
    }
)
"""The topic does not take the record. See `refuses_record`."""

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


def retriable(code: int | None) -> bool:
    """Return whether the same request may succeed a moment later, as Kafka's protocol says of *code*.

    Codes of NO_TOPIC are not retriable: a caller that waits for a topic to appear asks for them as well.

    >>> retriable(KafkaError.NOT_LEADER_FOR_PARTITION), retriable(KafkaError.UNKNOWN_TOPIC_OR_PART)
    (True, False)
    """
    return code in RETRIABLE


def fences(code: int | None) -> bool:
    """Return whether *code* forbids a producer to write again under its epoch.

    >>> fences(KafkaError.PRODUCER_FENCED), fences(KafkaError.CONCURRENT_TRANSACTIONS)
    (True, False)
    """
    return code in FENCING


def refuses_record(code: int | None) -> bool:
    """Return whether *code* blames the record or its topic, and no outage: a retry does not cure it.

    INVALID_TIMESTAMP is one: the topic refuses the record's time (message.timestamp.before.max.ms).
    INVALID_REQUEST is none: the request around the record was wrong, so the record is not to blame.
    INVALID_MSG is retriable too: a client that can send the same batch again does so first; librdkafka does
    not, and leaves the record to its caller.

    >>> refuses_record(KafkaError.INVALID_TIMESTAMP), refuses_record(KafkaError.INVALID_REQUEST)
    (True, False)
    """
    return code in REFUSED_RECORD


def refuses_connection(error: KafkaError) -> bool:
    """Return whether a connection failed in authentication or TLS, which no retry mends.

    If the broker's refusal arrives before the client first looks, librdkafka reports it from its connect
    rather than its handshake, as a transport error; only the text shows the cause then (its
    rd_kafka_transport_ssl_connect).

    >>> refuses_connection(KafkaError(KafkaError._AUTHENTICATION)), refuses_connection(KafkaError(KafkaError._TRANSPORT))
    (True, False)
    """  # noqa: E501
    return error.code() in REFUSED_CONNECTION or "certificate verify failed" in error.str()


def name_of(code: int) -> str:
    """Return the name of an error code, and what it means.

    >>> name_of(KafkaError.NOT_COORDINATOR)
    'NOT_COORDINATOR: Broker: Not coordinator'
    """
    error = KafkaError(code)
    return f"{error.name()}: {error.str()}"


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
    """Return whether *error* ends a reader. After any other, librdkafka tries again by itself."""
    return error.fatal() or not (error.retriable() or is_of_group(error))
