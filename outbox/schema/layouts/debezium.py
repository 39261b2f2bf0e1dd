"""The layout of Debezium's outbox event router."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from sqlalchemy import (
    Column,
    ColumnElement,
    Identity,
    LargeBinary,
    String,
    Table,
    type_coerce,
)

from holdfast.errors import OutboxRecordError
from holdfast.outbox.schema.columns import JsonText, big_id, uuid_text
from holdfast.outbox.schema.layouts.layout import Layout
from holdfast.outbox.schema.layouts.odd_values import KnownTopics, OddValues
from holdfast.outbox.schema.layouts.outbox_row import (
    Header,
    OutboxRow,
    PreparedRecord,
)
from holdfast.outbox.schema.layouts.values import column_text, refuse_given

_UUIDS, _TEXTS = frozenset((str, uuid.UUID)), frozenset((str, bytes))


@dataclass(frozen=True)
class DebeziumLayout(Layout):
    """The table of Debezium's outbox event router, and one number more, *holdfast_id*, that orders its rows.

    Published as the router publishes with its defaults: topic *topic_prefix* + aggregatetype, key
    aggregateid, value payload (JSON as the database prints it, text and bytes as they are), header `id`; with
    *type_header*, the column type goes into that header, as `table.fields.additional.placement` would put it.
    """

    topic_prefix: str = "outbox.event."
    type_header: str | None = None
    name = "debezium"
    order = "holdfast_id"
    topic = "aggregatetype"
    key = "aggregateid"
    limit_text: ClassVar[int] = 255
    _topics: ClassVar[KnownTopics] = KnownTopics()
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
        # As its driver gives it, which `Database` forbids to parse JSON: a cast to text would make digits of
        # a column of bytes.
        return [*(table.c[name] for name in names), type_coerce(table.c.payload, LargeBinary())]

    def decode(self, raw: Sequence[Any]) -> OutboxRow:
        order, id_, aggregate, key, _, payload, attempts = raw
        topic = f"{self.topic_prefix}{aggregate}"
        if not (
            type(aggregate) is type(key) is str
            and topic in self._topics
            and type(id_) in _UUIDS
            and (payload is None or type(payload) in _TEXTS)
            and self.type_header is None
            and type(order) is int
            and order >= 0
        ):
            return self._decode_odd(raw)
        headers: list[Header] = [("id", str(id_).encode())]
        value = payload.encode() if type(payload) is str else payload
        return OutboxRow(order, topic, key.encode(), value, headers, None, None, 0, attempts, None)

    def _decode_odd(self, raw: Sequence[Any]) -> OutboxRow:
        """Decode a row with an odd value, of a topic met the first time, or with its type in a header."""
        order, id_, aggregate, key, type_, payload, attempts = raw
        odd = OddValues()
        row_id = odd.row_id("holdfast_id", order)
        headers: list[Header] = [("id", odd.as_text("id", id_).encode())]
        topic = odd.as_topic("aggregatetype", aggregate, self._topics, self.topic_prefix)
        if self.type_header is not None:
            headers.append((self.type_header, odd.as_bytes("type", type_)))
        key, value = odd.as_bytes("aggregateid", key), odd.as_bytes("payload", payload)
        return OutboxRow(row_id, topic, key, value, headers, None, None, 0, attempts, None, odd.flaw)

    def encode(self, record: PreparedRecord) -> tuple[Any, ...]:
        refuse_given(
            self.name,
            record,
            partition=record.partition,
            timestamp_ms=record.timestamp_ms,
            headers=record.headers or None,
        )
        aggregate = record.topic.removeprefix(self.topic_prefix)
        if aggregate == record.topic or not aggregate:
            raise OutboxRecordError(
                f"topic {record.topic}: the event router publishes to {self.topic_prefix}<aggregatetype>"
                " only; name such a topic"
            )
        if record.key is None:
            raise OutboxRecordError(
                f"a record for {record.topic} has no key; the layout debezium needs an aggregateid for"
                " every row"
            )
        key = column_text(record.key, "key", self.name, self.limit_text)
        payload = None
        if record.value is not None:
            payload = column_text(record.value, "value", self.name)
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
