"""The layout of goharvest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from sqlalchemy import (
    Column,
    ColumnElement,
    String,
    Table,
)

from holdfast.core.outbox.created_times import LIMIT_MS
from holdfast.errors import OutboxRecordError
from holdfast.outbox.schema.columns import big_id, epoch_ms, instant, texts, uuid_text
from holdfast.outbox.schema.layouts.layout import Layout
from holdfast.outbox.schema.layouts.odd_values import KnownTopics, OddValues, created_time
from holdfast.outbox.schema.layouts.outbox_row import (
    LIMIT_TOPIC,
    Header,
    OutboxRow,
    PreparedRecord,
)
from holdfast.outbox.schema.layouts.values import array_text, column_text, read_texts, refuse_given


class GoharvestLayout(Layout):
    """goharvest's table, column for column: text only, a key for every row, no partition and no timestamp."""

    name = "goharvest"
    topic = "kafka_topic"
    key = "kafka_key"
    stamped = "create_time"
    limit_key: ClassVar[int] = 100
    limit_value: ClassVar[int] = 10_000
    _topics: ClassVar[KnownTopics] = KnownTopics()
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

    def created(self, table: Table) -> ColumnElement[Any] | None:
        return epoch_ms(table.c.create_time)

    def decode(self, raw: Sequence[Any]) -> OutboxRow:
        id_, topic, key, value, names, values, created_ms, leader_id, attempts = raw
        if not (
            topic in self._topics
            and type(key) is str
            and (value is None or type(value) is str)
            and type(id_) is type(created_ms) is int
            and id_ >= 0
            and 0 < created_ms < LIMIT_MS
        ):
            return self._decode_odd(raw)
        headers, flaw = _headers(names, values)
        return OutboxRow(
            id_,
            topic,
            key.encode(),
            None if value is None else value.encode(),
            headers,
            None,
            None,
            0,
            attempts,
            created_ms,
            flaw,
            None if leader_id is None else str(leader_id),
        )

    def _decode_odd(self, raw: Sequence[Any]) -> OutboxRow:
        """Decode a row with an odd value, or of a topic that is met the first time."""
        id_, topic, key, value, names, values, created_ms, leader_id, attempts = raw
        odd = OddValues()
        row_id, name = odd.row_id("id", id_), odd.as_topic("kafka_topic", topic, self._topics)
        headers, flaw = _headers(names, values)
        return OutboxRow(
            row_id,
            name,
            odd.as_bytes("kafka_key", key),
            odd.as_bytes("kafka_value", value),
            headers,
            None,
            None,
            0,
            attempts,
            created_time(created_ms),
            odd.flaw or flaw,
            None if leader_id is None else str(leader_id),
        )

    def encode(self, record: PreparedRecord) -> tuple[Any, ...]:
        refuse_given(self.name, record, partition=record.partition, timestamp_ms=record.timestamp_ms)
        refuse_given(self.name, record, event_id=record.event_id, event_type=record.event_type)
        if record.key is None:
            raise OutboxRecordError(
                f"a record for {record.topic} has no key; the layout goharvest needs one for every row"
            )
        key = column_text(record.key, "key", self.name, self.limit_key)
        value = (
            None if record.value is None else column_text(record.value, "value", self.name, self.limit_value)
        )
        names = [column_text(name.encode(), "a header's name", self.name) for name, _ in record.headers]
        values = []
        for name, each in record.headers:
            if each is None:
                raise OutboxRecordError(
                    f"header {name}: the layout goharvest has no null header values; leave the header out or"
                    " make it empty"
                )
            values.append(column_text(each, f"header {name}", self.name))
        return (record.topic, key, value, array_text(names), array_text(values))


def _headers(names: Any, values: Any) -> tuple[list[Header], str | None]:
    """Return the headers of a row from its two columns, or no headers and the fault of the columns."""
    column = "kafka_header_keys"
    try:
        read = read_texts(names)
        column = "kafka_header_values"
        told = read_texts(values)
    except ValueError as error:
        return [], f"column {column} holds no array of texts: {error}"
    if None in read:
        return [], "column kafka_header_keys: a header has no key"
    if len(read) != len(told):
        return [], f"unequal number of header keys ({len(read)}) and values ({len(told)})"
    headers: list[Header] = [
        (str(name), None if each is None else each.encode()) for name, each in zip(read, told, strict=True)
    ]
    return headers, None
