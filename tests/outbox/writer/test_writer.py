"""OutboxWriter on three databases and on every kind of session and connection: inside the caller's
transaction, exactly the given records.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pymysql
import pytest
from sqlalchemy import Column, Integer, MetaData, Table, event, insert, select
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from holdfast import OutboxWriter as ExportedWriter
from holdfast.clock import system_clock
from holdfast.dev.databases.servers import Postgres
from holdfast.errors import OutboxDatabaseError, OutboxError, OutboxRecordError, OutboxSchemaError
from holdfast.outbox.schema.layouts import OutboxRow, bucket_of
from holdfast.outbox.schema.tables import database_url
from holdfast.outbox.writer.outbox_writer import OutboxRecord, OutboxWriter
from tests.outbox.databases import FreshOutbox
from tests.support.patience import DEADLINE_S

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def taken(outbox: FreshOutbox, limit: int = 100_000) -> list[OutboxRow]:
    with outbox.rows() as rows:
        return rows.take(limit)


def plain(outbox: FreshOutbox, **more: Any) -> Any:
    """Return a connection of the driver itself, in its default mode."""
    url = database_url(outbox.url)
    match outbox.dialect:
        case "sqlite":
            return sqlite3.connect(str(url.database), **more)
        case "postgresql":
            return psycopg.connect(
                url.set(drivername="postgresql").render_as_string(hide_password=False), **more
            )
        case _:
            where: dict[str, Any] = {
                "host": url.host,
                "port": url.port,
                "user": url.username,
                "password": url.password,
            }
            return pymysql.connect(**where, database=url.database, charset="utf8mb4", **more)


# --- written rows are the published ones --------------------------------------------------------------------


def test_every_field_comes_back_as_it_was_given(outbox: FreshOutbox) -> None:
    """H14: bytes, no key, a partition and a time, on every database."""
    everything = bytes(range(256)) * 3
    headers: list[tuple[str, str | bytes | None]] = [
        ("b", b"\x00\xff"),
        ("a", "ä"),
        ("b", None),
        ("b", b""),
        ("", b"no name"),
    ]
    with Session(outbox.engine()) as session, session.begin():
        outbox.writer().write(
            session,
            "orders.v1",
            everything,
            everything,
            headers=headers,
            partition=3,
            timestamp_ms=1_700_000_000_123,
        )
        outbox.writer().write(session, "orders.v1", "key-0", None)
        outbox.writer().write(session, "orders.v1", None, "ü%s$1:x", trace=TRACE)
    full, tombstone, keyless = taken(outbox)
    assert (full.topic, full.key, full.value, full.partition, full.timestamp_ms) == (
        "orders.v1",
        everything,
        everything,
        3,
        1_700_000_000_123,
    )
    assert full.headers == [
        ("b", b"\x00\xff"),
        ("a", "ä".encode()),
        ("b", None),
        ("b", b""),
        ("", b"no name"),
    ]
    assert (tombstone.key, tombstone.value, tombstone.headers, tombstone.bucket) == (
        b"key-0",
        None,
        [],
        bucket_of("", b"key-0"),
    )
    assert (keyless.key, keyless.value, keyless.headers) == (
        None,
        "ü%s$1:x".encode(),
        [("traceparent", TRACE.encode())],
    )
    assert keyless.bucket == bucket_of("orders.v1", None)
    assert all(
        row.flaw is None and row.attempts == 0 and row.created_ms for row in (full, tombstone, keyless)
    )


def test_empty_bytes_are_no_null(outbox: FreshOutbox) -> None:
    with outbox.engine().begin() as connection:
        outbox.writer().write(connection, "orders", b"", b"")
    (row,) = taken(outbox)
    assert (row.key, row.value) == (b"", b"")


def test_many_records_are_one_statement_and_keep_their_order(outbox: FreshOutbox) -> None:
    records = [
        OutboxRecord(topic="orders", key=f"key-{at % 7}", value=str(at), headers={"at": str(at)})
        for at in range(2_500)
    ]
    engine, statements = outbox.engine(), []
    event.listen(engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    with engine.begin() as connection:
        statements.clear()
        assert outbox.writer().write_many(connection, iter(records)) == 2_500
        assert len(statements) == 1
    assert [row.value for row in taken(outbox)] == [str(at).encode() for at in range(2_500)]


def test_records_too_large_for_one_statement_go_in_several(outbox: FreshOutbox) -> None:
    records = [OutboxRecord(topic="orders", key=str(at), value=bytes([at]) * 900_000) for at in range(10)]
    with Session(outbox.engine()) as session, session.begin():
        outbox.writer().write_many(session, records)
    assert [(row.key, row.value) for row in taken(outbox)] == [
        (str(at).encode(), bytes([at]) * 900_000) for at in range(10)
    ]


def test_nothing_to_write_is_no_statement(outbox: FreshOutbox) -> None:
    with outbox.engine().begin() as connection:
        assert outbox.writer().write_many(connection, []) == 0


def test_encoders_take_values_other_than_bytes(outbox: FreshOutbox) -> None:
    writer = outbox.writer(key_encoder=lambda key: f"k{key}".encode(), value_encoder=msgspec.json.encode)
    with outbox.engine().begin() as connection:
        writer.write(connection, "orders", 7, {"total": 12})
        writer.write(connection, "orders", 8, "text")
        writer.write(connection, "orders", b"raw", b"raw")
        writer.write(connection, "orders", 9, None)
    assert [(row.key, row.value) for row in taken(outbox)] == [
        (b"k7", b'{"total":12}'),
        (b"k8", b'"text"'),
        (b"raw", b"raw"),
        (b"k9", None),
    ]


def test_a_tracers_whole_carrier_becomes_headers_after_the_records_own(outbox: FreshOutbox) -> None:
    with outbox.engine().begin() as connection:
        outbox.writer().write(
            connection, "orders", headers=[("a", b"1")], trace={"traceparent": TRACE, "tracestate": "x=1"}
        )
    assert taken(outbox)[0].headers == [("a", b"1"), ("traceparent", TRACE.encode()), ("tracestate", b"x=1")]


# --- inside the caller's transaction, whatever that is on ---------------------------------------------------


def _session(outbox: FreshOutbox, write: Callable[[Any], None], commit: bool) -> None:
    with Session(outbox.engine()) as session:
        write(session)
        session.commit() if commit else session.rollback()


def _connection(outbox: FreshOutbox, write: Callable[[Any], None], commit: bool) -> None:
    with outbox.engine().connect() as connection:
        write(connection)
        connection.commit() if commit else connection.rollback()


def _plain_connection(outbox: FreshOutbox, write: Callable[[Any], None], commit: bool) -> None:
    with contextlib.closing(plain(outbox)) as connection:
        write(connection)
        connection.commit() if commit else connection.rollback()


def _plain_cursor(outbox: FreshOutbox, write: Callable[[Any], None], commit: bool) -> None:
    with contextlib.closing(plain(outbox)) as connection, contextlib.closing(connection.cursor()) as cursor:
        write(cursor)
        connection.commit() if commit else connection.rollback()


def _savepoint(outbox: FreshOutbox, write: Callable[[Any], None], commit: bool) -> None:
    with Session(outbox.engine()) as session, session.begin():
        session.execute(select(1))
        nested = session.begin_nested()
        write(session)
        nested.commit() if commit else nested.rollback()


@pytest.mark.parametrize("on", [_session, _connection, _plain_connection, _plain_cursor, _savepoint])
def test_a_rolled_back_row_is_not_there_and_a_committed_one_is(
    outbox: FreshOutbox, on: Callable[..., None]
) -> None:
    on(outbox, lambda target: outbox.writer().write(target, "orders", "rolled back"), False)
    assert taken(outbox) == []
    on(outbox, lambda target: outbox.writer().write(target, "orders", "committed"), True)
    assert [row.key for row in taken(outbox)] == [b"committed"]


@pytest.mark.parametrize("on", [_session, _plain_cursor])
def test_a_database_without_the_table_is_reported_with_the_command_that_makes_it(
    outbox: FreshOutbox, on: Callable[..., None]
) -> None:
    writer = OutboxWriter(table="nowhere")
    with pytest.raises(OutboxSchemaError, match="has no table nowhere: run `holdfast outbox init`"):
        on(outbox, lambda target: writer.write(target, "orders", "key"), False)


def test_the_record_and_the_change_share_one_fate(outbox: FreshOutbox) -> None:
    orders = Table(f"{outbox.table}_orders", MetaData(), Column("id", Integer(), primary_key=True))
    orders.create(outbox.engine())
    for id_, fails in ((1, True), (2, False)):
        with contextlib.suppress(RuntimeError), Session(outbox.engine()) as session, session.begin():
            session.execute(insert(orders).values(id=id_))
            outbox.writer().write(session, "orders", str(id_))
            if fails:
                raise RuntimeError
    with outbox.engine().connect() as connection:
        assert connection.execute(select(orders.c.id)).scalars().all() == [2]
    assert [row.key for row in taken(outbox)] == [b"2"]


@pytest.mark.database
@pytest.mark.parametrize("driver", ["postgresql+psycopg", "sqlite+aiosqlite"])
def test_async_sessions_and_connections_write_the_same(
    driver: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}" if "sqlite" in driver else request.getfixturevalue("postgres").url
    outbox = FreshOutbox.make(url)
    writer = outbox.writer()

    async def run() -> None:
        engine = create_async_engine(database_url(url).set(drivername=driver))
        try:
            async with AsyncSession(engine) as session:
                await writer.write_async(session, "orders", "gone")
                await session.rollback()
            async with AsyncSession(engine) as session, session.begin():
                await writer.write_async(session, "orders", "one", b"1", headers=[("a", None)])
            async with engine.begin() as connection:
                assert (
                    await writer.write_many_async(
                        connection, [OutboxRecord(topic="orders", key=key) for key in ("two", "three")]
                    )
                    == 2
                )
                with pytest.raises(OutboxError, match="await write_async"):
                    writer.write(connection, "orders")
        finally:
            await engine.dispose()

    asyncio.run(run())
    assert [(row.key, row.headers) for row in taken(outbox)] == [
        (b"one", [("a", None)]),
        (b"two", []),
        (b"three", []),
    ]


def test_psycopgs_own_async_connection_is_written_on(postgres_outbox: FreshOutbox) -> None:
    outbox = postgres_outbox

    async def run() -> None:
        address = database_url(outbox.url).set(drivername="postgresql").render_as_string(hide_password=False)
        async with await psycopg.AsyncConnection.connect(address) as connection:
            await outbox.writer().write_async(connection, "orders", "one")
            async with connection.cursor() as cursor:
                await outbox.writer().write_async(cursor, "orders", "two")

    asyncio.run(run())
    assert [row.key for row in taken(outbox)] == [b"one", b"two"]


# --- misuse -------------------------------------------------------------------------------------------------


def _autocommitting(outbox: FreshOutbox) -> Any:
    match outbox.dialect:
        case "sqlite":
            return plain(outbox, isolation_level=None)
        case _:
            return plain(outbox, autocommit=True)


def test_a_connection_in_autocommit_mode_is_refused_until_it_is_in_a_transaction(outbox: FreshOutbox) -> None:
    with (
        contextlib.closing(_autocommitting(outbox)) as connection,
        contextlib.closing(connection.cursor()) as cursor,
    ):
        for target in (connection, cursor):
            with pytest.raises(OutboxError, match="begin a transaction first"):
                outbox.writer().write(target, "orders", "alone")
        cursor.execute("BEGIN")
        outbox.writer().write(cursor, "orders", "with others")
        cursor.execute("COMMIT")
    with (
        outbox.engine(isolation_level="AUTOCOMMIT").connect() as connection,
        pytest.raises(OutboxError, match="begin a transaction"),
    ):
        outbox.writer().write(connection, "orders", "alone")
    assert [row.key for row in taken(outbox)] == [b"with others"]


def test_something_else_is_refused_with_what_would_do() -> None:
    with pytest.raises(
        OutboxError, match=r"cannot be written on builtins\.int; give it an SQLAlchemy Session"
    ):
        OutboxWriter().write(7, "orders")


class Silent:
    """A target on which nothing may be executed."""


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no topic": ({"topic": ""}, "Kafka takes 1 to 249"),
    "dots": ({"topic": ".."}, "Kafka takes"),
    "a blank": ({"topic": "a b"}, "Kafka takes"),
    "no text": ({"topic": b"orders"}, "Kafka takes"),
    "long": ({"topic": "x" * 250}, "Kafka takes"),
    "a number for a key": (
        {"key": 7},
        "the key for orders is int; give bytes or str, or the writer a key_encoder",
    ),
    "a dict for a value": ({"value": {}}, "give bytes or str, or the writer a value_encoder"),
    "half a character": ({"value": "\ud800"}, "cannot be written as UTF-8"),
    "headers are text": ({"headers": "ab"}, "give pairs of name and value"),
    "a header is no pair": ({"headers": [("a",)]}, r"\('a',\) is not a pair"),
    "a header is text": ({"headers": ["ab"]}, "'ab' is not a pair"),
    "a header's name": ({"headers": [(b"a", b"")]}, "the name b'a' is not text"),
    "a header's value": ({"headers": [("a", 1)]}, "the value of a is int"),
    "a header of ours": ({"headers": [("holdfast-sequence", b"1")]}, "is written by the harvester"),
    "partition -1": ({"partition": -1}, "partition -1 for orders"),
    "partition True": ({"partition": True}, "partition True"),
    "partition 2^31": ({"partition": 2**31}, "from 0 to 2147483647"),
    "a timestamp in seconds and a half": ({"timestamp_ms": 1.5}, "timestamp_ms 1.5"),
    "a trace of zeros": ({"trace": f"00-{'0' * 32}-b7ad6b7169203331-01"}, "is not a W3C traceparent"),
    "no headers": ({"headers": None}, "give pairs of name and value, or a mapping, not NoneType"),
    "a number for a trace": ({"trace": 7}, "give a W3C traceparent, or the mapping .* not int"),
    "a number in a trace": ({"trace": {"tracestate": 7}}, "holds what is not text"),
    "a trace in upper case": ({"trace": TRACE.upper()}, "is not a W3C traceparent"),
    "too large": ({"value": b"x" * 1_000_000}, "and 1000000 is the limit"),
    "an id of Debezium's": ({"event_id": "x"}, "exist in the layout debezium only"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_before_any_sql(what: str) -> None:
    arguments, said = BAD[what]
    with pytest.raises(OutboxRecordError, match=said):
        OutboxWriter().write_many(
            Silent(),
            [OutboxRecord(topic="orders", key=b"good"), OutboxRecord(**({"topic": "orders"} | arguments))],
        )


@pytest.mark.parametrize(
    ("records", "said"),
    [
        (None, "records is None: write a list of OutboxRecord"),
        (OutboxRecord(topic="orders"), "write a list of OutboxRecord"),
        (["orders"], r"'orders' is no record: write OutboxRecord\("),
        ("orders", "'o' is no record"),
        ([{"topic": "orders"}], "is no record"),
    ],
    ids=repr,
)
def test_a_value_that_is_no_list_of_records_is_refused_before_any_sql(records: Any, said: str) -> None:
    with pytest.raises(OutboxRecordError, match=said):
        OutboxWriter().write_many(Silent(), records)


def test_an_encoder_that_fails_is_named() -> None:
    def broken(_: object) -> bytes:
        raise ZeroDivisionError("by zero")

    with pytest.raises(
        OutboxRecordError,
        match="value_encoder could not encode the value for orders: ZeroDivisionError: by zero",
    ):
        OutboxWriter(value_encoder=broken).write(Silent(), "orders", value=1)
    with pytest.raises(OutboxRecordError, match="key_encoder returned str"):
        OutboxWriter(key_encoder=str).write(Silent(), "orders", 1)  # type: ignore[arg-type]


def test_the_limit_can_be_lifted(outbox: FreshOutbox) -> None:
    with outbox.engine().begin() as connection:
        outbox.writer(limit_bytes=None).write(connection, "orders", value=b"x" * 1_500_000)
    assert len(taken(outbox)[0].value or b"") == 1_500_000


def test_services_import_it_from_clients() -> None:
    assert ExportedWriter is OutboxWriter


# --- waking a harvester on Postgres -------------------------------------------------------------------------


@pytest.fixture
def listening(postgres: Postgres, postgres_outbox: FreshOutbox) -> Iterator[Any]:
    with postgres_outbox.rows() as rows:
        wakeup = rows.wakeup()
        assert wakeup is not None
        assert wakeup.wait(
            0
        )  # commits from before it listened send no notification, so the first answer is yes
        yield wakeup
        wakeup.close()


def test_a_commit_wakes_the_harvester_once_and_a_rollback_never(
    listening: Any, postgres_outbox: FreshOutbox
) -> None:
    outbox = postgres_outbox
    with Session(outbox.engine()) as session:
        outbox.writer().write(session, "orders")
        session.rollback()
    assert not listening.wait(0.05)
    with Session(outbox.engine()) as session:
        outbox.writer().write(session, "orders")
        outbox.writer().write(session, "orders")
        assert not listening.wait(0.05)  # not before the commit
        session.commit()
    assert listening.wait(DEADLINE_S)
    assert not listening.wait(0.05)
    with Session(outbox.engine()) as session, session.begin():
        outbox.writer(notify=False).write(session, "orders")
    assert not listening.wait(0.05)


def wait_long(wakeup: Any) -> None:
    until_s = system_clock.monotonic_s() + DEADLINE_S
    while not wakeup.wait(5):
        assert system_clock.monotonic_s() < until_s


def test_waiting_ends_at_an_interrupt_and_listens_again_after_a_loss(
    listening: Any, postgres: Postgres
) -> None:
    with contextlib.closing(postgres.connect()) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
        )
        connection.commit()
    with pytest.raises(OutboxDatabaseError) as lost:
        wait_long(listening)
    assert lost.value.is_lost
    assert listening.wait(0)  # again
    listening.interrupt()
    assert not listening.wait(DEADLINE_S)


def test_other_databases_have_no_wake_up_and_are_polled(outbox: FreshOutbox) -> None:
    with outbox.rows() as rows:
        wakeup = rows.wakeup()
        assert (wakeup is None) == (outbox.dialect != "postgresql")
        if wakeup is not None:
            wakeup.close()
