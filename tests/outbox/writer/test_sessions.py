"""Writing on connections whose settings change what a statement means, and to tables that drop rows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.engine import make_url

from holdfast.errors import OutboxDroppedError
from holdfast.outbox.schema.layouts import OutboxRow
from holdfast.outbox.writer.outbox_writer import OutboxRecord
from tests.outbox.databases import LAYOUTS, FreshOutbox, url_of

BYTES = bytes(range(256)) + b"'\\''\\\\x00\\"
TEXT = 'it\'s \\ \\\\n "x" % %s é € 😀 \\u0041'
POSTGRES = (
    "SET standard_conforming_strings = off",
    "SET bytea_output = 'escape'",
    "SET backslash_quote = off",
    "SET DateStyle = 'SQL, DMY'",
)
MYSQL = (
    "SET SESSION sql_mode = 'NO_BACKSLASH_ESCAPES'",
    "SET SESSION sql_mode = 'ANSI_QUOTES,PIPES_AS_CONCAT'",
    "SET SESSION character_set_connection = latin1",
    "SET SESSION character_set_client = latin1, SESSION character_set_connection = latin1",
    "SET NAMES gbk",
)


def records(outbox: FreshOutbox) -> list[OutboxRecord]:
    match outbox.layout.name:
        case "holdfast":
            return [
                OutboxRecord(topic="orders", key=BYTES, value=BYTES, headers=[("h", BYTES), ("h", None)]),
                OutboxRecord(topic="orders", key=None, value=b""),
                OutboxRecord(topic="orders", key=b"", value=None),
            ]
        case "goharvest":
            return [
                OutboxRecord(topic="orders", key=TEXT, value=TEXT, headers=[(TEXT, TEXT), ("e", "")]),
                OutboxRecord(topic="orders", key="k", value=None),
            ]
        case _:
            return [OutboxRecord(topic="outbox.event.orders", key=TEXT, value='"it\'s é 😀 %s"')]


def wanted(record: OutboxRecord) -> tuple[Any, ...]:
    def of(each: Any) -> Any:
        return each.encode() if isinstance(each, str) else each

    headers: Any = record.headers
    return of(record.key), of(record.value), [(name, of(value)) for name, value in headers]


def stored(row: OutboxRow, outbox: FreshOutbox) -> tuple[Any, ...]:
    return row.key, row.value, [] if outbox.layout.name == "debezium" else row.headers


def of_sqlalchemy(outbox: FreshOutbox, setting: str, given: list[OutboxRecord]) -> None:
    engine = create_engine(outbox.url)

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, _: object) -> None:
        with contextlib.closing(connection.cursor()) as cursor:
            cursor.execute(setting)
        connection.commit()

    with engine.begin() as connection:
        outbox.writer().write_many(connection, given)
    engine.dispose()


def of_driver(outbox: FreshOutbox, setting: str, given: list[OutboxRecord]) -> None:
    url = make_url(outbox.url)
    if outbox.dialect == "postgresql":
        place = url.set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(place, cursor_factory=psycopg.ClientCursor) as connection:
            connection.execute(setting)
            outbox.writer().write_many(connection, given)
        return
    with pymysql.connect(
        host=url.host,
        port=url.port or 0,
        user=url.username,
        password=url.password or "",
        database=url.database,
    ) as mysql:
        mysql.cursor().execute(setting)
        outbox.writer().write_many(mysql, given)
        mysql.commit()


@pytest.mark.database
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("write", [of_sqlalchemy, of_driver])
@pytest.mark.variants(
    "of_sqlalchemy-goharvest", "of_sqlalchemy-debezium", "of_driver-goharvest", "of_driver-debezium"
)
def test_written_rows_do_not_depend_on_the_session(
    layout: str,
    write: Callable[[FreshOutbox, str, list[OutboxRecord]], None],
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    for kind, settings in (("postgres", POSTGRES), ("mysql", MYSQL), ("mariadb", MYSQL)):
        outbox = FreshOutbox.make(url_of(kind, request, tmp_path), layout)
        for setting in settings:
            write(outbox, setting, records(outbox))
            with outbox.rows() as rows:
                found = rows.take(10)
                assert [stored(row, outbox) for row in found] == [
                    wanted(each) if layout != "debezium" else (*wanted(each)[:2], [])
                    for each in records(outbox)
                ], f"{kind}: {setting}"
                assert rows.delete(found) == len(found)


@pytest.mark.parametrize("notify", [True, False])
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.variants("sqlite-False", "postgres-False")
def test_rows_that_the_database_drops_are_refused(
    kind: str, notify: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """MySQL and MariaDB cannot drop a row without an error."""
    outbox = FreshOutbox.make(url_of(kind, request, tmp_path))
    table = outbox.table
    with outbox.engine().begin() as connection:
        match outbox.dialect:
            case "sqlite":
                connection.execute(
                    text(
                        f"CREATE TRIGGER {table}_no BEFORE INSERT ON {table} WHEN NEW.key = x'62' BEGIN"
                        " SELECT"
                        " RAISE(IGNORE); END"
                    )
                )
            case _:
                connection.execute(
                    text(
                        f"CREATE FUNCTION {table}_no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF"
                        " NEW.key ="
                        " ''b''::bytea THEN RETURN NULL; END IF; RETURN NEW; END'"
                    )
                )
                connection.execute(
                    text(
                        f"CREATE TRIGGER no BEFORE INSERT ON {table} FOR EACH ROW"
                        f" EXECUTE FUNCTION {table}_no()"
                    )
                )
    writer = outbox.writer(notify=notify)
    given = [OutboxRecord(topic="orders", key=key, value=b"1") for key in ("a", "b", "c")]
    with (
        pytest.raises(OutboxDroppedError, match="did not store all of 3"),
        outbox.engine().begin() as connection,
    ):
        writer.write_many(connection, given)
    with outbox.engine().begin() as connection:
        assert writer.write_many(connection, [given[0], given[2]]) == 2
    with outbox.rows() as rows:
        assert [row.key for row in rows.take(10)] == [b"a", b"c"]


def test_large_rows_are_written_and_read(outbox: FreshOutbox) -> None:
    values = [bytes([at]) * 900_000 for at in range(6)]
    with outbox.engine().begin() as connection:
        outbox.writer().write_many(connection, [OutboxRecord(topic="orders", value=each) for each in values])
    with outbox.rows() as rows:
        found = rows.take(10)
        assert [row.value for row in found] == values
        assert rows.delete(found) == len(values)
