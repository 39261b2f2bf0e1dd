"""The layout of holdfast's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec
from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Identity,
    Integer,
    SmallInteger,
    String,
    Table,
)

from holdfast.core.outbox.created_times import LIMIT_MS
from holdfast.core.untrusted import UNFIT
from holdfast.errors import OutboxRecordError
from holdfast.outbox.schema.columns import big_id, blob, now_ms
from holdfast.outbox.schema.layouts.layout import Layout
from holdfast.outbox.schema.layouts.odd_values import KnownTopics, OddValues, created_time
from holdfast.outbox.schema.layouts.outbox_row import (
    LIMIT_TOPIC,
    Header,
    OutboxRow,
    PreparedRecord,
    bucket_of,
)


def _headers_flaw(error: Exception) -> str:
    return f"column headers is not a msgpack list of [name, bytes or null]: {error}"


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
    _read_headers = msgspec.msgpack.Decoder(list[Header]).decode
    _topics = KnownTopics()
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

    def created(self, table: Table) -> ColumnElement[Any] | None:
        return table.c.created_ms

    def decode(self, raw: Sequence[Any]) -> OutboxRow:
        id_, topic, key, value, packed, partition, timestamp_ms, bucket, created_ms, attempts = raw
        if not (
            topic in self._topics
            and (key is None or type(key) is bytes)
            and (value is None or type(value) is bytes)
            and (packed is None or type(packed) is bytes)
            and (partition is None or type(partition) is int)
            and (timestamp_ms is None or (type(timestamp_ms) is int and timestamp_ms >= 0))
            and type(bucket) is type(id_) is type(created_ms) is int
            and id_ >= 0
            and 0 < created_ms < LIMIT_MS
        ):
            return self._decode_odd(raw)
        headers: list[Header] = []
        flaw = None
        if packed is not None:
            try:
                headers = self._read_headers(packed)
            except UNFIT as error:
                flaw = _headers_flaw(error)
        return OutboxRow(
            id_, topic, key, value, headers, partition, timestamp_ms, bucket, attempts, created_ms, flaw
        )

    def _decode_odd(self, raw: Sequence[Any]) -> OutboxRow:
        """Decode a row with an odd value, or of a topic that is met the first time."""
        id_, topic, key, value, packed, partition, timestamp_ms, bucket, created_ms, attempts = raw
        odd = OddValues()
        row_id, name = odd.row_id("id", id_), odd.as_topic("topic", topic, self._topics)
        key, value = odd.as_bytes("key", key), odd.as_bytes("value", value)
        packed = odd.as_bytes("headers", packed)
        headers: list[Header] = []
        flaw = None
        if packed is not None:
            try:
                headers = self._read_headers(packed)
            except UNFIT as error:
                flaw = _headers_flaw(error)
        return OutboxRow(
            row_id,
            name,
            key,
            value,
            headers,
            odd.number("partition", partition),
            odd.number("timestamp_ms", timestamp_ms, least=0),
            odd.number("bucket", bucket, is_wanted=True) or 0,
            attempts,
            created_time(created_ms),
            odd.flaw or flaw,
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
