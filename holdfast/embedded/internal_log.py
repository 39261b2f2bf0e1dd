"""The coordinators' own topics: what they decide is written there, with Kafka's bytes, before it is
answered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.core.groups.java_order import coordinator_partition
from holdfast.core.kafka.producer_state import AppendOutcome, Origin
from holdfast.core.kafka.record_batch import (
    NO_PRODUCER,
    TRANSACTIONAL_BIT,
    ControlType,
    Record,
    RecordBatch,
    control_of,
    decode_batch,
    decode_header,
    encode_batch,
)
from holdfast.embedded.protocol.codec import decode, encode
from holdfast.embedded.topics.partition import EmbeddedPartition
from holdfast.embedded.topics.registry import TopicRegistry
from holdfast.errors import BrokerFolderError, WireError

OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
_MODERN = {
    "ConsumerGroupMetadata": 3,
    "ConsumerGroupPartitionMetadata": 4,
    "ConsumerGroupMemberMetadata": 5,
    "ConsumerGroupTargetAssignmentMetadata": 6,
    "ConsumerGroupTargetAssignmentMember": 7,
    "ConsumerGroupCurrentMemberAssignment": 8,
    "ConsumerGroupRegularExpression": 16,
}
KINDS: Mapping[str, int] = {"OffsetCommit": 1, "GroupMetadata": 2, "TransactionLog": 0, **_MODERN}
"""The number that begins the key of a record. Earlier versions of the key of an offset count from 0."""
VALUE_VERSIONS: Mapping[str, int] = {
    "OffsetCommit": 4,
    "GroupMetadata": 3,
    "TransactionLog": 1,
    **dict.fromkeys(_MODERN, 0),
}
"""The versions that are written, as Apache Kafka 4.3 does. Every version of the table is read: folders may
hold others.
"""


class Note(NamedTuple):
    """A record of a coordinator: *kind* as in `KINDS`, key and value by the table of messages; None is a
    tombstone.
    """

    kind: str
    key: Mapping[str, Any]
    value: Mapping[str, Any] | None


def home_of(topics: TopicRegistry, topic: str, key: str) -> EmbeddedPartition:
    """Return the partition whose leader coordinates the group or transactional id *key*."""
    found = topics.internal(topic)
    return found.partitions[coordinator_partition(key, len(found.partitions))]


def write_notes(
    home: EmbeddedPartition,
    notes: Sequence[Note],
    now_ms: int,
    *,
    producer: tuple[int, int] = (NO_PRODUCER, -1),
) -> bool:
    """Append *notes* as one batch, of the transaction of *producer* (id, epoch) where one is given; False
    where the leader refuses that.
    """
    batch = encode_batch(
        RecordBatch(
            attributes=TRANSACTIONAL_BIT if producer[0] != NO_PRODUCER else 0,
            last_offset_delta=len(notes) - 1,
            base_timestamp_ms=now_ms,
            max_timestamp_ms=now_ms,
            producer_id=producer[0],
            producer_epoch=producer[1],
            records=tuple(
                Record(offset_delta=number, key=_key(each), value=_value(each))
                for number, each in enumerate(notes)
            ),
        )
    )
    verdict = home.log.append(
        batch,
        decode_header(batch),
        leader_epoch=home.leader_epoch,
        now_ms=now_ms,
        is_append_time=False,
        verified=True,
        origin=Origin.COORDINATOR,
    )
    home.log.replicated(home.log.end_offset)
    return verdict.outcome is AppendOutcome.ACCEPTED


class Decision(NamedTuple):
    """The marker of a transaction that had written notes."""

    producer_id: int
    commit: bool


class WrittenNote(NamedTuple):
    """A note as it was read again; *producer_id* is that of its transaction, if it has one."""

    note: Note
    producer_id: int | None


def read_notes(home: EmbeddedPartition) -> Iterator[WrittenNote | Decision]:
    """Yield what the coordinator of *home* wrote, in its order. Kinds that it does not know are left out, as
    Kafka does; BrokerFolderError for what cannot be read.
    """
    kinds = {
        number: kind
        for kind, number in KINDS.items()
        if (kind == "TransactionLog") == (home.topic == TRANSACTIONS)
    }
    if home.topic == OFFSETS:
        kinds[0] = "OffsetCommit"
    for stored in home.log:
        try:
            yield from _notes_of(decode_batch(stored.data), kinds)
        except WireError as error:
            raise BrokerFolderError(
                f"{home.name} cannot be read at offset {stored.first_offset} ({error}): restore the folder"
            ) from error


def _notes_of(batch: RecordBatch, kinds: Mapping[int, str]) -> Iterator[WrittenNote | Decision]:
    for record in batch.records:
        if batch.is_control:
            yield Decision(batch.producer_id, control_of(batch, record).type is ControlType.COMMIT)
        elif (note := _note_of(record, kinds)) is not None:
            yield WrittenNote(note, batch.producer_id if batch.is_transactional else None)


def _note_of(record: Record, kinds: Mapping[int, str]) -> Note | None:
    key, value = record.key or b"", record.value
    kind = kinds.get(int.from_bytes(key[:2], "big"))
    if kind is None:
        return None
    told = decode(f"{kind}Key", 0, key, 2)
    if value is None:
        return Note(kind, told, None)
    return Note(kind, told, decode(f"{kind}Value", int.from_bytes(value[:2], "big"), value, 2))


def _key(note: Note) -> bytes:
    out = bytearray(KINDS[note.kind].to_bytes(2, "big"))
    return bytes(encode(f"{note.kind}Key", 0, dict(note.key), out))


def _value(note: Note) -> bytes | None:
    if note.value is None:
        return None
    version = VALUE_VERSIONS[note.kind]
    return bytes(
        encode(f"{note.kind}Value", version, dict(note.value), bytearray(version.to_bytes(2, "big")))
    )
