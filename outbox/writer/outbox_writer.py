"""Writing to the outbox, inside the transaction of the service: rolled back rows are never published,
committed rows always are.

    writer = OutboxWriter(value_encoder=msgspec.json.encode)
    with Session(engine) as session, session.begin():
        session.add(order)
        writer.write(session, "orders", key=order.id, value={"total": 12})

One statement a call, on the connection the caller is in a transaction on: an SQLAlchemy 2 Session or
Connection, sync or async, or a plain connection or cursor of psycopg, psycopg2, pymysql, mysqlclient or
sqlite3. On Postgres the same statement notifies a listening harvester.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, Unpack

from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.engine import Dialect

from holdfast.config.client_arguments import require_encoder, require_type, require_whole
from holdfast.errors import OutboxDroppedError, OutboxRecordError, OutboxSchemaError
from holdfast.outbox.schema.database import lacks_table
from holdfast.outbox.schema.layouts import Layout, layout_named
from holdfast.outbox.schema.tables import outbox_tables
from holdfast.outbox.schema.wakeup import channel_of
from holdfast.outbox.writer.records import LIMIT_BYTES, Encoder, OutboxRecord, RecordFields, prepared
from holdfast.outbox.writer.targets import opened, opened_async
from holdfast.tracing.spans import sending

__all__ = ["Encoder", "OutboxRecord", "OutboxWriter"]

LIMIT_STATEMENT_BYTES: Final = 3_000_000
"""Four thirds of it on MySQL, in base64: below the least max_allowed_packet that servers have by default."""
LIMIT_RECORD_BYTES: Final = 2**31 - 1
"""Kafka's own, of any record."""

_LIMIT_ROWS: Final = {
    "postgresql": 10_000,
    "mysql": 5_000,
    "sqlite": 3_000,
}  # SQLite: at most 32,766 parameters
_DIALECTS: Mapping[str, Callable[[], Dialect]] = {
    "postgresql": postgresql.dialect,
    "mysql": mysql.dialect,
    "sqlite": sqlite.dialect,
}
# How a column's value is written where it is not simply a parameter; the second is the type that Postgres is
# given. What a driver makes of bytes in an array depends on the session (standard_conforming_strings), digits
# do not.
_FROM_ARRAY = {
    "jsonb": ("{}::jsonb", "text"),
    "text[]": ("ARRAY(SELECT jsonb_array_elements_text({}::jsonb))", "text"),
    "bytea": ("decode({}, 'hex')", "text"),
}
# MySQL's drivers write values into the statement, where what they mean depends on sql_mode and on three
# character sets of the session. Base64 means the same in all of them.
_FROM_BASE64 = {
    "bytea": "FROM_BASE64({})",
    **dict.fromkeys(("text", "text[]", "jsonb", "uuid"), "CONVERT(FROM_BASE64({}) USING utf8mb4)"),
}
_NUMBERED = "numeric_dollar"
"""The style of a driver that gives Postgres each parameter in its own form, and takes arrays as lists."""
_NOW = {
    "postgresql": "now()",
    "mysql": "CURRENT_TIMESTAMP(6)",
    "sqlite": "strftime('%Y-%m-%d %H:%M:%f', 'now')",
}


class OutboxWriter:
    """Writes records to the outbox *table*. It holds no connection and no state: one for a whole service, for
    all its threads.

    Keys and values are bytes, or str (written as UTF-8), or whatever the encoder takes; with an encoder str
    goes through it too, bytes never do, and None is always none. *notify* notifies a harvester on Postgres at
    the commit; without it the harvester polls. *limit_bytes* refuses what the broker would refuse later (None
    for no limit).
    """

    def __init__(
        self,
        *,
        table: str = "outbox",
        layout: str | Layout = "holdfast",
        key_encoder: Encoder | None = None,
        value_encoder: Encoder | None = None,
        notify: bool = True,
        limit_bytes: int | None = LIMIT_BYTES,
    ) -> None:
        require_type("table", table, str)
        require_encoder("key_encoder", key_encoder)
        require_encoder("value_encoder", value_encoder)
        require_type("notify", notify, bool)
        if limit_bytes is not None:
            limit_bytes = require_whole("limit_bytes", limit_bytes, 1, LIMIT_RECORD_BYTES)
        self.table = table
        self.layout = layout_named(layout)
        self._key_encoder = key_encoder
        self._value_encoder = value_encoder
        self._notify = notify
        self._limit_bytes = limit_bytes
        self._channel = channel_of(outbox_tables(self.layout, table).outbox)
        self._statements: dict[tuple[str, str, int], str] = {}

    def write(
        self, target: Any, topic: str, key: Any = None, value: Any = None, **more: Unpack[RecordFields]
    ) -> None:
        """Write one record on *target*, in its transaction; *value* None is a tombstone.

        *headers* keep order and duplicates. *partition* and *timestamp_ms* go to Kafka as they are. *trace*
        is a W3C traceparent, or the carrier that a tracer filled (traceparent, tracestate, baggage), and
        becomes headers; without it, that of the current span of OpenTelemetry does, and "" is for none.
        *event_id* and *event_type* exist in Debezium's layout. Raises OutboxRecordError before anything is
        sent to the database, OutboxSchemaError where that lacks the table.
        """
        self.write_many(target, (OutboxRecord(topic=topic, key=key, value=value, **more),))

    def write_many(self, target: Any, records: Iterable[OutboxRecord]) -> int:
        """Write *records* on *target* in their order, in one statement (large ones in several), and return
        how many there were.
        """
        with self._span():
            encoded = self._encoded(records)
            execute, kind, style = opened(target)
            for sql, parameters, rows, wanted in self._calls(encoded, kind, style):
                with self._telling():
                    self._require_stored(execute(sql, parameters), rows, wanted)
        return len(encoded)

    def _span(self) -> AbstractContextManager[Any]:
        return sending(f"create {self.table}", "PRODUCER", {"messaging.system": "kafka"})

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Report a missing table with its remedy; any other failure reaches the caller as its driver raises
        it.
        """
        try:
            yield
        except Exception as error:
            if not lacks_table(error):
                raise
            raise OutboxSchemaError(
                f"the database has no table {self.table}: run `holdfast outbox init` on it, or name the table"
                " that it has (table=...)"
            ) from error

    async def write_async(
        self, target: Any, topic: str, key: Any = None, value: Any = None, **more: Unpack[RecordFields]
    ) -> None:
        """Write one record as `write` does, on an AsyncSession, an AsyncConnection, or an async connection
        of psycopg or aiosqlite.
        """
        await self.write_many_async(target, (OutboxRecord(topic=topic, key=key, value=value, **more),))

    async def write_many_async(self, target: Any, records: Iterable[OutboxRecord]) -> int:
        """Write *records* as `write_many` does, on an async target."""
        with self._span():
            encoded = self._encoded(records)
            execute, kind, style = await opened_async(target)
            for sql, parameters, rows, wanted in self._calls(encoded, kind, style):
                with self._telling():
                    self._require_stored(await execute(sql, parameters), rows, wanted)
        return len(encoded)

    # --- from records to values -----------------------------------------------------------------------------

    def _encoded(self, records: Iterable[OutboxRecord]) -> list[tuple[Any, ...]]:
        if not isinstance(records, Iterable):
            raise OutboxRecordError(f"records is {records!r:.200}: write a list of OutboxRecord")
        encode = self.layout.encode
        named = {"key_encoder": self._key_encoder, "value_encoder": self._value_encoder}
        return [encode(prepared(record, limit_bytes=self._limit_bytes, **named)) for record in records]

    # --- from values to statements --------------------------------------------------------------------------

    def _require_stored(self, found: int, rows: int, wanted: int) -> None:
        """Raise OutboxDroppedError where a statement that was to store *rows* did not say *wanted*."""
        if found not in (wanted, -1):
            raise OutboxDroppedError(
                f"the database did not store all of {rows} record(s) in table {self.table}, and reported no"
                " error: a trigger, a rule or row security drops them. Roll the transaction back;"
                " `holdfast outbox check` names what stands on the table"
            )

    def _calls(
        self, encoded: list[tuple[Any, ...]], kind: str, style: str
    ) -> Iterator[tuple[str, tuple[Any, ...], int, int]]:
        """Yield each statement with its parameters, how many rows it stores, and which count says that it
        did.
        """
        for part in _parts(encoded, _LIMIT_ROWS[kind]):
            rows = len(part)
            if kind == "postgresql":
                # One array a column: the statement is the same for any number of rows, and prepared once.
                sql = self._statement(kind, style, 0)
                arrays = self._arrays(part, style)
                yield (sql, (*arrays, rows), rows, 1) if self._notify else (sql, arrays, rows, rows)
            else:
                values = (value for row in part for value in row)
                given = tuple(map(_in_base64, values) if kind == "mysql" else values)
                yield self._statement(kind, style, rows), given, rows, rows

    def _arrays(self, rows: Sequence[tuple[Any, ...]], style: str) -> tuple[Any, ...]:
        return tuple(
            _hex_array(column) if type_ == "bytea" and style != _NUMBERED else list(column)
            for column, type_ in zip(zip(*rows, strict=True), self.layout.written.values(), strict=True)
        )

    def _statement(self, kind: str, style: str, rows: int) -> str:
        shape = (kind, style, rows)
        found = self._statements.get(shape)
        if found is None:
            found = self._postgres(style) if kind == "postgresql" else self._values(kind, style, rows)
            if rows <= 1:
                self._statements[shape] = found
        return found

    def _names(self, kind: str) -> tuple[str, list[str]]:
        preparer = _DIALECTS[kind]().identifier_preparer
        table = outbox_tables(self.layout, self.table, dialect=kind).outbox
        stamped = [self.layout.stamped] if self.layout.stamped else []
        return preparer.format_table(table), [
            preparer.quote(name) for name in [*self.layout.written, *stamped]
        ]

    def _postgres(self, style: str) -> str:
        table, names = self._names("postgresql")
        types = list(self.layout.written.values())
        marks = _marks(style, len(types) + 1)
        plain = ("bytea",) if style == _NUMBERED else ()
        forms = [
            ("{}", type_) if type_ in plain else _FROM_ARRAY.get(type_, ("{}", type_)) for type_ in types
        ]
        arrays = ", ".join(f"{mark}::{given}[]" for mark, (_, given) in zip(marks, forms, strict=False))
        fields = [f"c{index}" for index in range(len(types))]
        values = [form.format(field) for field, (form, _) in zip(fields, forms, strict=True)]
        values += [_NOW["postgresql"]] if self.layout.stamped else []
        insert = (
            f"INSERT INTO {table} ({', '.join(names)}) SELECT {', '.join(values)} "
            f"FROM unnest({arrays}) WITH ORDINALITY AS given({', '.join(fields)}, place) ORDER BY place"
        )
        if not self._notify:
            return insert
        # In the same statement, so that notifying costs no round trip; Postgres sends it at the commit, once
        # a transaction. It returns a row when all were stored.
        return (
            f"WITH written AS ({insert} RETURNING 1) SELECT pg_notify('{self._channel}', '') FROM (SELECT"
            f" count(*) AS stored FROM written) AS counted WHERE stored = {marks[-1]}::bigint"
        )

    def _values(self, kind: str, style: str, rows: int) -> str:
        table, names = self._names(kind)
        types = list(self.layout.written.values())
        width = len(types)
        marks = _marks(style, width * rows)
        if kind == "mysql":
            marks = [_FROM_BASE64.get(types[at % width], "{}").format(mark) for at, mark in enumerate(marks)]
        now = [_NOW[kind]] if self.layout.stamped else []
        tuples = (f"({', '.join([*marks[at : at + width], *now])})" for at in range(0, width * rows, width))
        return f"INSERT INTO {table} ({', '.join(names)}) VALUES {', '.join(tuples)}"


def _parts(encoded: list[tuple[Any, ...]], limit_rows: int) -> Iterator[list[tuple[Any, ...]]]:
    """Yield *encoded* in parts that each fit one statement."""
    part: list[tuple[Any, ...]] = []
    size = 0
    for row in encoded:
        weight = sum(len(value) for value in row if isinstance(value, bytes | str))
        if part and (len(part) == limit_rows or size + weight > LIMIT_STATEMENT_BYTES):
            yield part
            part, size = [], 0
        part.append(row)
        size += weight
    if part:
        yield part


def _hex_array(values: Iterable[bytes | None]) -> str:
    """Return bytes as the text of an array of hexadecimal digits, in which no session reads an escape.

    >>> _hex_array([b"v\\xff", None, b""])
    '{76ff,NULL,""}'
    """
    return "{" + ",".join("NULL" if each is None else each.hex() or '""' for each in values) + "}"


def _in_base64(value: Any) -> Any:
    if isinstance(value, str):
        value = value.encode()
    return b64encode(value).decode() if isinstance(value, bytes) else value


def _marks(style: str, count: int) -> list[str]:
    match style:
        case "qmark":
            return ["?"] * count
        case "numeric_dollar":
            return [f"${index + 1}" for index in range(count)]
        case _:
            return ["%s"] * count
