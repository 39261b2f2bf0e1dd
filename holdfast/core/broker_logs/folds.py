"""The broker's own two logs, read as any other: what every application's transactions and committed offsets
have come to.

`__transaction_state` is what the transaction coordinators keep, `__consumer_offsets` what the group
coordinators do. Their records are folded on demand (`holdfast producers transactions`, `holdfast groups
committed`, `holdfast replay`), and never by workers: a worker's own transactions and commits would write to
the very logs it folds, and so keep it busy for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias, TypeVar

import msgspec

from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.state.rows import Rows
from holdfast.core.kafka.transaction_state import (
    ALLOWED_PREVIOUS,
    Transaction,
    TransactionState,
    transaction_key,
)
from holdfast.core.kafka.wire import WireReader, WireReason
from holdfast.errors import WireError

TRANSACTION_TOPIC, OFFSETS_TOPIC = "__transaction_state", "__consumer_offsets"
TRANSACTIONS, COMMITTED = "transactions", "committed"
GROUP_KIND: Final = 2
"""The version of a key of `__consumer_offsets` is what its record is about: 0 and 1 an offset, 2 a classic
group, others other kinds of groups.
"""
FIRST_FLEXIBLE: Final = {"transaction": 1, "offset": 4, "group": 4}
"""From these versions on, lengths are unsigned varints and fields may be tagged."""

T = TypeVar("T")


class _Fields:
    """Takes fields in the encoding of one version: plain or flexible."""

    def __init__(self, data: bytes, what: str, *, versions: range, flexible: int) -> None:
        self.reader, self._what = WireReader(data), what
        self.version = self.reader.int16(f"version of {what}")
        if self.version not in versions:
            raise self.reader.error(
                f"{what} has version {self.version}, known are {versions[0]} to {versions[-1]}",
                WireReason.API,
                0,
            )
        self.is_flexible = self.version >= flexible

    def _length(self, what: str) -> int:
        """Take an unsigned varint that is a length and one."""
        value = shift = 0
        for _ in range(5):
            byte = self.reader.int8(what) & 0xFF
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value - 1
            shift += 7
        raise self.reader.error(f"{what}: the varint has more than 5 bytes", WireReason.VARINT)

    def optional(self, what: str) -> str | None:
        if not self.is_flexible:
            return self.reader.string(what, nullable=True)
        size = self._length(what)
        if size < 0:
            return None
        at = self.reader.at
        try:
            return self.reader.raw(size, what).decode()
        except UnicodeDecodeError as error:
            raise self.reader.error(f"{what} is not UTF-8 ({error.reason})", WireReason.UTF8, at) from None

    def text(self, what: str) -> str:
        at, value = self.reader.at, self.optional(what)
        if value is None:
            raise self.reader.error(f"{what} is null", WireReason.LENGTH, at)
        return value

    def octets(self, what: str) -> bytes:
        """Take bytes; null is none."""
        return self.reader.raw(
            max(0, self._length(what) if self.is_flexible else self.reader.int32(what)), what
        )

    def array(self, what: str, least_bytes: int, take: Callable[[], T]) -> tuple[T, ...]:
        """Take an array; null is empty."""
        reader = self.reader
        count = self._length(what) if self.is_flexible else reader.int32(what)
        if count > 0 and count * least_bytes > reader.left:
            raise reader.error(
                f"{what}: {count} elements of at least {least_bytes} bytes do not fit", WireReason.LENGTH
            )
        return tuple(take() for _ in range(max(0, count)))

    def tags(self) -> dict[int, bytes]:
        """Take the tagged fields, as they are."""
        found: dict[int, bytes] = {}
        if self.is_flexible:
            for _ in range(self._length("count of tagged fields") + 1):
                number = self._length("tag") + 1
                found[number] = self.reader.raw(self._length("size of a tagged field") + 1, "tagged field")
        return found

    def finish(self) -> None:
        self.reader.finish(self._what)


def _number(tags: dict[int, bytes], tag: int, default: int) -> int:
    return int.from_bytes(tags[tag], "big", signed=True) if tag in tags else default


# -- transactions


class TransactionNote(msgspec.Struct, frozen=True, kw_only=True):
    """A coordinator's record of a transactional id; None once it has forgotten the id."""

    transactional_id: str
    noted: Transaction | None


def decode_transaction(key: bytes | None, value: bytes | None) -> TransactionNote:
    """Return the content of one record of `__transaction_state`; WireError, a DecodeError, if it is
    malformed.
    """
    if key is None:
        raise WireError("a record of the transaction log has no key", offset=0, reason=WireReason.LENGTH)
    name = _Fields(key, "transaction key", versions=range(1), flexible=1)
    transactional_id = name.text("transactional id")
    name.finish()
    if value is None:
        return TransactionNote(transactional_id=transactional_id, noted=None)
    fields = _Fields(value, "transaction", versions=range(2), flexible=FIRST_FLEXIBLE["transaction"])
    reader = fields.reader
    producer_id, epoch, timeout_ms = (
        reader.int64("producer id"),
        reader.int16("producer epoch"),
        reader.int32("timeout"),
    )
    at, status = reader.at, reader.int8("status")
    if status not in TransactionState._value2member_map_:
        raise reader.error(f"status {status} is none", WireReason.RANGE, at)

    def topic() -> tuple[str, tuple[int, ...]]:
        found = fields.text("topic"), fields.array("partitions", 4, lambda: reader.int32("partition"))
        fields.tags()
        return found

    topics = fields.array("topics", 5 if not fields.is_flexible else 3, topic)
    updated_ms, started_ms = reader.int64("time of update"), reader.int64("time of start")
    tags = fields.tags()
    fields.finish()
    return TransactionNote(
        transactional_id=transactional_id,
        noted=Transaction(
            producer_id=producer_id,
            timeout_ms=timeout_ms,
            updated_ms=updated_ms,
            epoch=epoch,
            previous_producer_id=_number(tags, 0, -1),
            next_producer_id=_number(tags, 1, -1),
            state=TransactionState(status),
            partitions=tuple((name, partition) for name, partitions in topics for partition in partitions),
            started_ms=started_ms,
            client_version=_number(tags, 2, 0),
        ),
    )


class TransactionRow(msgspec.Struct, frozen=True, array_like=True):
    """A transactional id as its coordinator last wrote it, and what became of its transactions in the log
    that is left.

    Compaction keeps the last record of each id, so counts begin somewhere; *jumps* are transitions that no
    coordinator makes, as seen where records between were removed.
    """

    noted: Transaction
    committed: int = 0
    aborted: int = 0
    fenced: int = 0
    """Times the epoch or producer id changed."""
    jumps: int = 0


def fold_transactions(rows: Rows[TransactionRow], note: TransactionNote, at_ms: int) -> None:
    """Keep the latest state of each transactional id."""
    key, after = transaction_key(note.transactional_id), note.noted
    before = rows.get(key)
    if after is None or after.state is TransactionState.DEAD:
        if before is not None:
            del rows[key]
        return
    if before is None:
        rows[key] = TransactionRow(noted=after)
        return
    was = before.noted
    rows[key] = TransactionRow(
        noted=after,
        committed=before.committed
        + (after.state is TransactionState.COMPLETE_COMMIT and was.state is not after.state),
        aborted=before.aborted
        + (after.state is TransactionState.COMPLETE_ABORT and was.state is not after.state),
        fenced=before.fenced + ((was.producer_id, was.epoch) != (after.producer_id, after.epoch)),
        jumps=before.jumps
        + (was.state not in ALLOWED_PREVIOUS[after.state] and was.state is not after.state),
    )


def transactions_log() -> Processor[TransactionNote, TransactionRow]:
    """Return the fold of `__transaction_state`, for replays."""
    return Processor(
        name=TRANSACTIONS,
        source=TRANSACTION_TOPIC,
        decode=decode_transaction,
        inputs=("key", "value"),
        fold=fold_transactions,
        row=TransactionRow,
    )


# -- committed offsets and groups


class Committed(msgspec.Struct, frozen=True, array_like=True, tag="o"):
    """A committed offset; *leader_epoch* -1 is unknown."""

    offset: int
    at_ms: int
    leader_epoch: int = -1
    metadata: str = ""
    commits: int = 1
    """The number of commits in the rest of the log."""


class ClassicGroupMember(msgspec.Struct, frozen=True, array_like=True):
    """A member of a classic group."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    session_timeout_ms: int


class Generation(msgspec.Struct, frozen=True, array_like=True, tag="g"):
    """A classic group's last generation."""

    generation: int
    protocol_type: str
    protocol: str | None
    leader: str | None
    members: tuple[ClassicGroupMember, ...]
    at_ms: int = -1


GroupRow: TypeAlias = Committed | Generation


class OffsetNote(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A coordinator's record of a group's offset in a partition; None once it is forgotten."""

    group: str
    topic: str
    partition: int
    noted: Committed | None


class GroupNote(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A coordinator's record of a classic group; None once it is gone."""

    group: str
    noted: Generation | None


class OtherNote(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A record of another kind: of consumer, share and streams groups, whose members the broker assigns."""

    kind: int


GroupEvent: TypeAlias = OffsetNote | GroupNote | OtherNote


def decode_group(key: bytes | None, value: bytes | None) -> GroupEvent:
    """Return the content of one record of `__consumer_offsets`; WireError, a DecodeError, if it is
    malformed.
    """
    if key is None:
        raise WireError("a record of the offsets log has no key", offset=0, reason=WireReason.LENGTH)
    name = _Fields(key, "key of the offsets log", versions=range(64), flexible=64)
    if name.version > GROUP_KIND:
        return OtherNote(kind=name.version)
    group = name.text("group")
    if name.version == GROUP_KIND:
        name.finish()
        return GroupNote(group=group, noted=None if value is None else read_generation(value)[0])
    topic, partition = name.text("topic"), name.reader.int32("partition")
    name.finish()
    return OffsetNote(
        group=group, topic=topic, partition=partition, noted=None if value is None else _committed(value)
    )


def decode_group_key(key: bytes | None) -> str | None:
    """Return which classic group a record of `__consumer_offsets` is about, None for a record about something
    else.
    """
    if key is None:
        raise WireError("a record of the offsets log has no key", offset=0, reason=WireReason.LENGTH)
    name = _Fields(key, "key of the offsets log", versions=range(64), flexible=64)
    if name.version != GROUP_KIND:
        return None
    group = name.text("group")
    name.finish()
    return group


def _committed(value: bytes) -> Committed:
    fields = _Fields(value, "committed offset", versions=range(5), flexible=FIRST_FLEXIBLE["offset"])
    offset = fields.reader.int64("offset")
    leader_epoch = fields.reader.int32("leader epoch") if fields.version >= 3 else -1
    metadata, at_ms = fields.text("metadata"), fields.reader.int64("time of commit")
    if fields.version == 1:
        fields.reader.int64("time of expiry")
    fields.tags()
    fields.finish()
    return Committed(offset=offset, at_ms=at_ms, leader_epoch=leader_epoch, metadata=metadata)


def read_generation(value: bytes) -> tuple[Generation, dict[str, bytes]]:
    """Return a classic group's generation, and each member's assignment by member id, as the group's leader
    encoded it.
    """
    fields = _Fields(value, "group", versions=range(5), flexible=FIRST_FLEXIBLE["group"])
    reader, version = fields.reader, fields.version
    protocol_type, generation = fields.text("protocol type"), reader.int32("generation")
    protocol, leader = fields.optional("protocol"), fields.optional("leader")
    at_ms = reader.int64("time of state") if version >= 2 else -1
    assignments: dict[str, bytes] = {}

    def member() -> ClassicGroupMember:
        member_id = fields.text("member id")
        instance_id = fields.optional("instance id") if version >= 3 else None
        client_id, host = fields.text("client id"), fields.text("host")
        if version >= 1:
            reader.int32("rebalance timeout")
        session_timeout_ms = reader.int32("session timeout")
        fields.octets("subscription")
        assignments[member_id] = fields.octets("assignment")
        fields.tags()
        return ClassicGroupMember(member_id, instance_id, client_id, host, session_timeout_ms)

    members = fields.array("members", 8, member)
    fields.tags()
    fields.finish()
    return Generation(generation, protocol_type, protocol, leader, members, at_ms), assignments


def offset_key(group: str, topic: str, partition: int) -> str:
    """Return the row key of a committed offset; no topic has a slash in its name.

    >>> offset_key("a/b", "orders", 3), place_of_key("o/a/b/orders/3")
    ('o/a/b/orders/3', ('a/b', 'orders', 3))
    """
    return f"o/{group}/{topic}/{partition}"


def place_of_key(key: str) -> tuple[str, str, int]:
    """Return group, topic and partition of the row key of an offset."""
    group, topic, partition = key[2:].rsplit("/", 2)
    return group, topic, int(partition)


def group_key(group: str) -> str:
    return f"g/{group}"


def fold_groups(rows: Rows[GroupRow], event: GroupEvent, at_ms: int) -> None:
    """Keep the last offset that each group committed in each partition, and its last generation."""
    match event:
        case OffsetNote(noted=None):
            _forget(rows, offset_key(event.group, event.topic, event.partition))
        case OffsetNote():
            key = offset_key(event.group, event.topic, event.partition)
            before = rows.get(key)
            assert event.noted is not None
            commits = before.commits + 1 if isinstance(before, Committed) else 1
            rows[key] = msgspec.structs.replace(event.noted, commits=commits)
        case GroupNote(noted=None):
            _forget(rows, group_key(event.group))
        case GroupNote():
            assert event.noted is not None
            rows[group_key(event.group)] = event.noted
        case OtherNote():
            pass


def _forget(rows: Rows[GroupRow], key: str) -> None:
    if key in rows:
        del rows[key]


def committed_log() -> Processor[GroupEvent, GroupRow]:
    """Return the fold of `__consumer_offsets`, for replays."""
    return Processor(
        name=COMMITTED,
        source=OFFSETS_TOPIC,
        decode=decode_group,
        inputs=("key", "value"),
        fold=fold_groups,
        row=GroupRow,
    )
