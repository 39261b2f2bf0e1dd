"""How a record lies in an outbox table: holdfast's own layout, goharvest's, and that of Debezium's outbox
event router.

A layout says which columns a table has, which of them make an `OutboxRow`, and which a written record fills.
What is the same for all of them (quarantine, attempts, leases) is in `schema.py`; where a row lies is no
concern of the harvester.
"""

from __future__ import annotations

import json
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import msgspec
from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Identity,
    Integer,
    LargeBinary,
    SmallInteger,
    String,
    Table,
    type_coerce,
)

from holdfast.core.engine.partitioners import murmur2
from holdfast.core.untrusted import careful
from holdfast.errors import ConfigError, OutboxRecordError
from holdfast.outbox.schema.columns import JsonText, big_id, blob, epoch_ms, instant, now_ms, texts, uuid_text

BUCKETS: Final = 256
LIMIT_TOPIC: Final = 249  # Kafka's own

Header = tuple[str, bytes | None]


class OutboxRow(msgspec.Struct, frozen=True, gc=False):
    """One row that waits to be published. *id* orders rows; *bucket* says which shard owns it; *attempts*
    have failed so far.

    *created_ms* is None where the layout has no time; *mark* is goharvest's, whose row it is among reapers. A row with a *flaw* cannot be published as it lies there: set it aside with
    the flaw as its reason.
    """

    id: int
    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[Header]
    partition: int | None
    timestamp_ms: int | None
    bucket: int
    attempts: int
    created_ms: int | None
    flaw: str | None = None
    mark: str | None = None


class PreparedRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One record as Kafka will be given it, checked. *value* None is a tombstone."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[Header]
    partition: int | None
    timestamp_ms: int | None
    event_id: str | None
    event_type: str | None


def bucket_of(topic: str, key: bytes | None) -> int:
    """Return the bucket, 0 to 255, that owns *key*; rows without a key go by their topic.

    >>> bucket_of("orders", b"key-0"), bucket_of("orders", None) == bucket_of("x", b"orders")
    (185, True)
    """
    return murmur2(topic.encode() if key is None else key) & (BUCKETS - 1)


# --- the layouts ------------------------------------------------------------------------------------------------------------------


class Layout(ABC):
    """One way to lay records out in columns."""

    name: ClassVar[str]
    order: ClassVar[str] = "id"
    """The column whose numbers order the rows."""
    topic: ClassVar[str]
    key: ClassVar[str]
    sharded: ClassVar[bool] = False
    """Whether rows carry a bucket, so that several leaders may share the table."""
    written: ClassVar[Mapping[str, str]]
    """Of each column that a written record fills, its type as Postgres names it; arrays are handed over as
    JSON.
    """
    kinds: ClassVar[Mapping[str, str]]
    """Of each column, which kind of types it may have (holdfast.outbox.schema.kinds)."""
    stamped: ClassVar[str | None] = None
    """The column that takes the time of writing, where the database does not fill it by itself."""

    @abstractmethod
    def columns(self, dialect: str) -> list[Column[Any]]:
        """Return new columns, for one table of that dialect."""

    @abstractmethod
    def selection(self, table: Table) -> list[ColumnElement[Any]]:
        """Return what `decode` takes, in its order, before the attempts."""

    @abstractmethod
    def decode(self, raw: Sequence[Any]) -> OutboxRow:
        """Return the row of one selection, its last element the attempts."""

    @abstractmethod
    def encode(self, record: PreparedRecord) -> tuple[Any, ...]:
        """Return the values of `written`, in its order; OutboxRecordError where the layout has no place
        for something.
        """


class HoldfastLayout(Layout):
    """holdfast's own: bytes as they are, headers with order, duplicates and nulls, explicit partition and
    timestamp, 256 buckets.
    """

    name = "holdfast"
    topic = "topic"
    key = "key"
    sharded = True
    written: ClassVar[Mapping[str, str]] = {
        "bucket": "smallint",
        "topic": "text",
        "key": "bytea",
        "value": "bytea",
        "headers": "bytea",
        "partition": "integer",
        "timestamp_ms": "bigint",
    }
    kinds: ClassVar[Mapping[str, str]] = {
        "id": "id",
        "bucket": "number",
        "created_ms": "big number",
        "topic": "text",
        "key": "bytes",
        "value": "bytes",
        "headers": "bytes",
        "partition": "number",
        "timestamp_ms": "big number",
    }
    _read_headers = staticmethod(careful(msgspec.msgpack.Decoder(list[Header]).decode))
    _write_headers = msgspec.msgpack.Encoder().encode

    def columns(self, dialect: str) -> list[Column[Any]]:
        return [
            Column("id", big_id, Identity(always=False), primary_key=True),
            Column("bucket", SmallInteger(), nullable=False),
            Column("created_ms", BigInteger(), nullable=False, server_default=now_ms()),
            Column("topic", String(LIMIT_TOPIC), nullable=False),
            Column("key", blob),
            Column("value", blob),
            Column("headers", blob),
            Column("partition", Integer()),
            Column("timestamp_ms", BigInteger()),
        ]

    def selection(self, table: Table) -> list[ColumnElement[Any]]:
        names = (
            "id",
            "topic",
            "key",
            "value",
            "headers",
            "partition",
            "timestamp_ms",
            "bucket",
            "created_ms",
        )
        return [table.c[name] for name in names]

    def decode(self, raw: Sequence[Any]) -> OutboxRow:
        id_, topic, key, value, packed, partition, timestamp_ms, bucket, created_ms, attempts = raw
        headers: list[Header] = []
        flaw = None
        if packed is not None:
            try:
                headers = self._read_headers(packed)
            except msgspec.DecodeError as error:
                flaw = f"column headers is not a msgpack list of [name, bytes or null]: {error}"
        return OutboxRow(
            id_, topic, key, value, headers, partition, timestamp_ms, bucket, attempts, created_ms, flaw
        )

    def encode(self, record: PreparedRecord) -> tuple[Any, ...]:
        if record.event_id is not None or record.event_type is not None:
            raise OutboxRecordError(
                "event_id and event_type exist in the layout debezium only; put them in headers"
            )
        headers = self._write_headers(record.headers) if record.headers else None
        bucket = bucket_of(record.topic, record.key)
        return (
            bucket,
            record.topic,
            record.key,
            record.value,
            headers,
            record.partition,
            record.timestamp_ms,
        )


class GoharvestLayout(Layout):
    """goharvest's table, column for column: text only, a key for every row, no partition and no timestamp."""

    name = "goharvest"
    topic = "kafka_topic"
    key = "kafka_key"
    stamped = "create_time"
    limit_key: ClassVar[int] = 100
    limit_value: ClassVar[int] = 10_000
    written: ClassVar[Mapping[str, str]] = {
        "kafka_topic": "text",
        "kafka_key": "text",
        "kafka_value": "text",
        "kafka_header_keys": "text[]",
        "kafka_header_values": "text[]",
    }
    kinds: ClassVar[Mapping[str, str]] = {
        "id": "id",
        "create_time": "time",
        "kafka_topic": "text",
        "kafka_key": "text",
        "kafka_value": "text",
        "kafka_header_keys": "texts",
        "kafka_header_values": "texts",
        "leader_id": "mark",
    }

    def columns(self, dialect: str) -> list[Column[Any]]:
        return [
            Column("id", big_id, primary_key=True, autoincrement=True),
            Column("create_time", instant, nullable=False),
            Column("kafka_topic", String(LIMIT_TOPIC), nullable=False),
            Column("kafka_key", String(self.limit_key), nullable=False),
            Column("kafka_value", String(self.limit_value)),
            Column("kafka_header_keys", texts, nullable=False),
            Column("kafka_header_values", texts, nullable=False),
            Column("leader_id", uuid_text),
        ]

    def selection(self, table: Table) -> list[ColumnElement[Any]]:
        names = ("id", "kafka_topic", "kafka_key", "kafka_value", "kafka_header_keys", "kafka_header_values")
        return [*(table.c[name] for name in names), epoch_ms(table.c.create_time), table.c.leader_id]

    def decode(self, raw: Sequence[Any]) -> OutboxRow:
        id_, topic, key, value, names, values, created_ms, leader_id, attempts = raw
        flaw = None
        headers: list[Header] = []
        try:
            names, values = _texts(names), _texts(values)
        except ValueError as error:
            flaw = f"header columns hold no JSON array of texts: {error}"
        else:
            if None in names:
                flaw = "a header has no key"
            elif len(names) == len(values):
                headers = [
                    (str(name), None if each is None else each.encode())
                    for name, each in zip(names, values, strict=True)
                ]
            else:
                flaw = f"unequal number of header keys ({len(names)}) and values ({len(values)})"
        mark = None if leader_id is None else str(leader_id)
        return OutboxRow(
            id_, topic, _bytes(key), _bytes(value), headers, None, None, 0, attempts, created_ms, flaw, mark
        )

    def encode(self, record: PreparedRecord) -> tuple[Any, ...]:
        _refuse(self.name, record, partition=record.partition, timestamp_ms=record.timestamp_ms)
        _refuse(self.name, record, event_id=record.event_id, event_type=record.event_type)
        if record.key is None:
            raise OutboxRecordError(
                f"a record for {record.topic} has no key; the layout goharvest needs one for every row"
            )
        key = _text(record.key, "key", self.name, self.limit_key)
        value = None if record.value is None else _text(record.value, "value", self.name, self.limit_value)
        names = [_text(name.encode(), "a header's name", self.name) for name, _ in record.headers]
        values = []
        for name, each in record.headers:
            if each is None:
                raise OutboxRecordError(
                    f"header {name}: the layout goharvest has no null header values; leave the header out or make it empty"
                )
            values.append(_text(each, f"header {name}", self.name))
        return (record.topic, key, value, _array(names), _array(values))


@dataclass(frozen=True)
class DebeziumLayout(Layout):
    """The table of Debezium's outbox event router, and one number more, *holdfast_id*, that orders its rows.

    Published as the router publishes with its defaults: topic *topic_prefix* + aggregatetype, key
    aggregateid, value payload (JSON as the database prints it, text and bytes as they are), header `id`; with
    *type_header*, the column type goes into that header, as `table.fields.additional.placement` would place
    it.
    """

    topic_prefix: str = "outbox.event."
    type_header: str | None = None
    name = "debezium"
    order = "holdfast_id"
    topic = "aggregatetype"
    key = "aggregateid"
    limit_text: ClassVar[int] = 255
    written: ClassVar[Mapping[str, str]] = {
        "id": "uuid",
        "aggregatetype": "text",
        "aggregateid": "text",
        "type": "text",
        "payload": "jsonb",
    }
    kinds: ClassVar[Mapping[str, str]] = {
        "holdfast_id": "id",
        "id": "uuid",
        "aggregatetype": "text",
        "aggregateid": "text",
        "type": "text",
        "payload": "payload",
    }

    def columns(self, dialect: str) -> list[Column[Any]]:
        by_number = (
            dialect != "postgresql"
        )  # elsewhere a table numbers its rows by its primary key, or not at all
        return [
            Column(
                "holdfast_id",
                big_id,
                Identity(always=False),
                nullable=False,
                primary_key=by_number,
                unique=None if by_number else True,
            ),
            Column(
                "id", uuid_text, nullable=False, primary_key=not by_number, unique=True if by_number else None
            ),
            Column("aggregatetype", String(self.limit_text), nullable=False),
            Column("aggregateid", String(self.limit_text), nullable=False),
            Column("type", String(self.limit_text), nullable=False),
            Column("payload", JsonText()),
        ]

    def selection(self, table: Table) -> list[ColumnElement[Any]]:
        names = ("holdfast_id", "id", "aggregatetype", "aggregateid", "type")
        # As its driver gives it, which `Database` tells not to parse JSON: a cast to text would make digits
        # of a column of bytes.
        return [*(table.c[name] for name in names), type_coerce(table.c.payload, LargeBinary())]

    def decode(self, raw: Sequence[Any]) -> OutboxRow:
        order, id_, aggregate, key, type_, payload, attempts = raw
        headers: list[Header] = [("id", str(id_).encode())]
        if self.type_header is not None:
            headers.append((self.type_header, _bytes(type_)))
        value = _bytes(payload)
        return OutboxRow(
            order,
            f"{self.topic_prefix}{aggregate}",
            _bytes(key),
            value,
            headers,
            None,
            None,
            0,
            attempts,
            None,
        )

    def encode(self, record: PreparedRecord) -> tuple[Any, ...]:
        _refuse(
            self.name,
            record,
            partition=record.partition,
            timestamp_ms=record.timestamp_ms,
            headers=record.headers or None,
        )
        aggregate = record.topic.removeprefix(self.topic_prefix)
        if aggregate == record.topic or not aggregate:
            raise OutboxRecordError(
                f"topic {record.topic}: the event router publishes to {self.topic_prefix}<aggregatetype> only; name such a topic"
            )
        if record.key is None:
            raise OutboxRecordError(
                f"a record for {record.topic} has no key; the layout debezium needs an aggregateid for every row"
            )
        key = _text(record.key, "key", self.name, self.limit_text)
        payload = None
        if record.value is not None:
            payload = _text(record.value, "value", self.name)
            try:
                json.loads(payload)
            except ValueError as error:
                raise OutboxRecordError(
                    f"the value for {record.topic} is not JSON, as the column payload must be: {error}"
                ) from error
        try:
            id_ = str(uuid.uuid4() if record.event_id is None else uuid.UUID(record.event_id))
        except ValueError as error:
            raise OutboxRecordError(f"event_id {record.event_id!r} is not a UUID: {error}") from error
        return (id_, aggregate, key, record.event_type or aggregate, payload)


LAYOUTS: Final[Mapping[str, Layout]] = {
    each.name: each for each in (HoldfastLayout(), GoharvestLayout(), DebeziumLayout())
}


def layout_named(layout: str | Layout) -> Layout:
    """Return the layout of this name (or the one given); ConfigError when there is none."""
    if isinstance(layout, Layout):
        return layout
    if layout not in LAYOUTS:
        raise ConfigError(f"there is no outbox layout {layout!r}; choose one of {', '.join(LAYOUTS)}")
    return LAYOUTS[layout]


def _texts(found: Any) -> list[str | None]:
    """Return an array of texts, however its database gave it."""
    if isinstance(found, list):
        return found
    try:
        read = json.loads(found)
    except (RecursionError, TypeError) as error:
        raise ValueError(f"{found!r:.200}: {error}") from error
    if not isinstance(read, list) or not all(each is None or isinstance(each, str) for each in read):
        raise ValueError(f"{found!r:.200}")
    "".join(
        each or "" for each in read
    ).encode()  # a lone surrogate, which JSON can spell, is no text for Kafka
    return read


def _bytes(found: str | bytes | memoryview | None) -> bytes | None:
    """Return text as UTF-8, and bytes (which SQLite gives for any column they were put into) as they are."""
    if found is None:
        return None
    return found.encode() if isinstance(found, str) else bytes(found)


def _array(texts: list[str]) -> str:
    return json.dumps(texts, ensure_ascii=False)


def _text(value: bytes, what: str, layout: str, limit: int | None = None) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        raise OutboxRecordError(
            f"{what} is not UTF-8 ({error}); the layout {layout} holds text only, the layout holdfast any bytes"
        ) from error
    if "\0" in text:
        raise OutboxRecordError(
            f"{what} has a NUL character, which text columns cannot hold; the layout holdfast holds any bytes"
        )
    if limit is not None and len(text) > limit:
        raise OutboxRecordError(f"{what} has {len(text)} characters; the layout {layout} holds {limit}")
    return text


def _refuse(layout: str, record: PreparedRecord, **given: object) -> None:
    for name, value in given.items():
        if value is not None:
            raise OutboxRecordError(
                f"a record for {record.topic} has {name} {value!r}, and the layout {layout} has no column for it; use holdfast's"
            )
