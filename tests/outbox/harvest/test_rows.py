"""OutboxRows on three databases: the lowest rows first, nothing skipped, poison set aside with all that
belongs to it.
"""

from __future__ import annotations

import contextlib
import json
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, text
from sqlalchemy.orm import Session

from holdfast.clock import ManualClock, system_clock
from holdfast.dev.databases.servers import DatabaseServer, Postgres
from holdfast.errors import ConfigError, OutboxDatabaseError
from holdfast.outbox.harvest.table.rows import OutboxRows
from holdfast.outbox.schema.database import Database
from holdfast.outbox.schema.layouts import BUCKETS, OutboxRow, bucket_of, layout_named
from holdfast.outbox.schema.migrate import downgrade, upgrade
from holdfast.outbox.writer.outbox_writer import OutboxRecord
from tests.outbox.databases import DATABASES, LAYOUTS, FreshOutbox, killed, url_of
from tests.support.limits import at_most
from tests.support.parts import part
from tests.support.patience import DEADLINE_S


def write(outbox: FreshOutbox, *keys: str | None, topic: str = "orders") -> None:
    topic = f"outbox.event.{topic}" if outbox.layout.name == "debezium" else topic
    with Session(outbox.engine()) as session, session.begin():
        outbox.writer().write_many(session, [OutboxRecord(topic=topic, key=key, value="1") for key in keys])


def keys(rows: list[OutboxRow]) -> list[str]:
    return ["-" if row.key is None else row.key.decode() for row in rows]


@pytest.fixture(params=LAYOUTS)
@part("database")
def of_any_layout(request: pytest.FixtureRequest, tmp_path: Path) -> list[FreshOutbox]:
    """Give an outbox of one layout on every database."""
    return [FreshOutbox.make(url_of(kind, request, tmp_path), request.param) for kind in DATABASES]


# --- taking and deleting ------------------------------------------------------------------------------------


def test_the_lowest_rows_come_first_and_deleted_rows_are_gone(of_any_layout: list[FreshOutbox]) -> None:
    for outbox in of_any_layout:
        write(outbox, "a", "b", "c", "a", "b")
        with outbox.rows() as rows:
            first = rows.take(3)
            assert keys(first) == ["a", "b", "c"]
            assert keys(rows.take(10, after_id=first[-1].id)) == ["a", "b"]
            assert rows.delete([first[0].id, first[2].id, 10**9]) == 2
            assert keys(rows.take(10)) == ["b", "a", "b"]
            assert rows.count() == 3
            assert rows.delete([]) == 0


def test_a_row_that_becomes_visible_late_is_simply_the_lowest(postgres_outbox: FreshOutbox) -> None:
    """Ids are given at INSERT and seen at COMMIT: a reader that remembers how far it came loses the late
    one."""
    outbox = postgres_outbox
    with Session(outbox.engine()) as slow, outbox.rows() as rows:
        outbox.writer().write(slow, "orders", "slow")
        write(outbox, "fast")
        (fast,) = rows.take(10)
        rows.delete([fast.id])
        slow.commit()
        (late,) = rows.take(10)
        assert (late.key, late.id < fast.id) == (b"slow", True)


def test_shards_share_the_rows_and_keep_keys_together(outbox: FreshOutbox) -> None:
    names = [f"key-{at}" for at in range(64)]
    write(outbox, *names, *names, None)
    with outbox.rows() as rows:
        shards = [rows.take(1_000, buckets=range(low, low + 64)) for low in range(0, BUCKETS, 64)]
    assert sorted(row.id for shard in shards for row in shard) == list(range(1, 130))
    for low, shard in enumerate(shards):
        assert all(bucket_of("orders", row.key) == row.bucket and row.bucket // 64 == low for row in shard)
        assert len(shard) < 129


def test_excluded_keys_are_left_out_and_rows_without_a_key_are_not(of_any_layout: list[FreshOutbox]) -> None:
    for outbox in of_any_layout:
        write(outbox, "a", "b", "c", "d", "a")
        if outbox.layout.name == "holdfast":
            write(outbox, None)
        with outbox.rows() as rows:
            assert keys(rows.take(10, excluding={b"a", b"b", b"d"}))[0] == "c"
            assert len(rows.take(10, excluding={b"a", b"b", b"d"})) == (
                2 if outbox.layout.name == "holdfast" else 1
            )
            assert keys(rows.take(10, excluding=[b"x"] * 3))[:5] == ["a", "b", "c", "d", "a"]


# --- failing and setting aside ------------------------------------------------------------------------------


def test_a_row_that_failed_is_held_back_with_its_key_until_it_is_due(
    of_any_layout: list[FreshOutbox],
) -> None:
    for outbox in of_any_layout:
        clock = ManualClock(now_ms=1_000)
        write(outbox, "bad", "good", "bad", "good")
        with outbox.rows(clock=clock) as rows:
            bad = rows.take(1)[0]
            assert rows.attempt_failed(bad, "no such topic", retry_at_ms=2_000) == 1
            assert keys(rows.take(10)) == ["good", "good"]
            assert keys(rows.take(10, hold_keys=False)) == ["good", "bad", "good"]
            clock.advance_ms(1_000)
            again = rows.take(10)
            assert keys(again) == ["bad", "good", "bad", "good"]
            assert [row.attempts for row in again] == [1, 0, 0, 0]
            assert rows.attempt_failed(again[0], "still none", retry_at_ms=9_000) == 2
            assert keys(rows.take(10)) == ["good", "good"]
        with outbox.rows(clock=clock) as successor:  # which knows only what the database says
            assert keys(successor.take(10)) == ["good", "good"]
            assert successor.status().failing == 1
            clock.advance_ms(10_000)
            assert [row.attempts for row in successor.take(10)] == [2, 0, 0, 0]
            assert successor.delete([row.id for row in successor.take(1)]) == 1
            assert successor.status().failing == 0


def test_the_same_key_of_another_topic_is_not_held_back(outbox: FreshOutbox) -> None:
    write(outbox, "k", topic="missing")
    write(outbox, "k", topic="there")
    with outbox.rows() as rows:
        rows.attempt_failed(rows.take(1)[0], "unknown topic", retry_at_ms=system_clock.now_ms() + 60_000)
        assert [row.topic for row in rows.take(10)] == ["there"]


def test_poison_is_set_aside_whole_and_comes_back_at_the_end(of_any_layout: list[FreshOutbox]) -> None:
    for outbox in of_any_layout:
        write(outbox, "poison", "good", "poison")
        with outbox.rows(clock=ManualClock(now_ms=5_000)) as rows:
            poison = rows.take(1)[0]
            rows.attempt_failed(poison, "too large", retry_at_ms=0)
            poison = rows.take(1)[0]
            assert rows.set_aside(poison, "too large\u00e4" * 1_000)
            assert not rows.set_aside(poison, "again")
            assert keys(rows.take(10)) == ["good", "poison"]
            (aside,) = rows.quarantined(10)
            assert (aside.row, aside.quarantined_ms) == (poison, 5_000)
            assert aside.reason.startswith("too large\u00e4")
            assert len(aside.reason) == 2_000
            assert (rows.status().quarantined, rows.status().failing) == (1, 0)
            assert rows.retry([poison.id, 10**9]) == 1
            back = rows.take(10)
            assert keys(back) == ["good", "poison", "poison"]
            assert back[-1].id > back[-2].id
            assert (back[-1].attempts, back[-1].value, back[-1].headers) == (0, poison.value, poison.headers)
            assert rows.quarantined(10) == []
            rows.set_aside(back[-1], "for good")
            assert rows.quarantined(10, ids=[1]) == []
            assert rows.discard([back[-1].id]) == 1
            assert rows.count() == 2


@pytest.mark.parametrize("statement", ["INSERT", "DELETE"])
@pytest.mark.parametrize("kind", ["postgres", "mariadb", "mysql"])
@pytest.mark.variants("mysql-INSERT", "mysql-DELETE")
def test_what_two_put_back_at_the_same_time_comes_back_once(
    kind: str, statement: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second comes before a statement of the first; in SQLite it waits."""
    outbox = FreshOutbox.make(url_of(kind, request, tmp_path))
    write(outbox, "a")
    impatient = Database(outbox.url, statement_timeout_s=1.0)
    with outbox.rows() as rows, outbox.rows(database=impatient) as others:
        (row,) = rows.take(1)
        assert rows.set_aside(row, "x")
        count, moved = rows.database.count, list[int]()

        def interrupted(sql: str, *more: Any) -> int:
            if sql.startswith(statement):
                monkeypatch.undo()
                with contextlib.suppress(OutboxDatabaseError):
                    moved.append(others.retry([row.id]))
            return count(sql, *more)

        monkeypatch.setattr(rows.database, "count", interrupted)
        with contextlib.suppress(OutboxDatabaseError):
            moved.append(rows.retry([row.id]))
        assert (sum(moved), rows.count(), rows.quarantined(10)) == (1, 1, [])


def test_a_number_is_never_given_twice(of_any_layout: list[FreshOutbox]) -> None:
    """A leader that crashed between commit and delete deletes what its progress record names: a new row of
    that id would be lost.
    """
    for outbox in of_any_layout:
        write(outbox, "a", "b")
        with outbox.rows() as rows:
            before = [row.id for row in rows.take(10)]
            rows.delete(before)
            write(outbox, "c")
            assert rows.take(1)[0].id > max(before)


# --- rows that are wrong in themselves ----------------------------------------------------------------------


@pytest.mark.database
def test_unequal_header_arrays_are_that_rows_flaw_and_others_flow(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """O3: the row is named with the very words of the original, and its neighbours are taken."""
    for kind in DATABASES:
        outbox = FreshOutbox.make(url_of(kind, request, tmp_path), "goharvest")
        write(outbox, "a")
        names, values = (["h"], ["x", "y"]) if kind == "postgres" else ('["h"]', '["x", "y"]')
        with outbox.engine().begin() as connection:
            row = {
                "kafka_topic": "t",
                "kafka_key": "k",
                "kafka_header_keys": names,
                "kafka_header_values": values,
            }
            connection.execute(
                insert(outbox.tables.outbox).values(**row, create_time=text("CURRENT_TIMESTAMP"))
            )
        write(outbox, "b")
        with outbox.rows() as rows:
            taken = rows.take(10)
            assert [row.flaw for row in taken] == [
                None,
                "unequal number of header keys (1) and values (2)",
                None,
            ]
            assert rows.set_aside(taken[1], taken[1].flaw or "")
            assert rows.quarantined(1)[0].reason == "unequal number of header keys (1) and values (2)"
            assert keys(rows.take(10)) == ["a", "b"]


@pytest.mark.parametrize(
    "stored",
    [b"\xc1", b"\x91\x92\xa1\xff\xc4\x00", b"\x91" * 50_000, b"", b"\xdd\xff\xff\xff\xff"],
    ids=["no-msgpack", "a-name-that-is-not-utf-8", "nested-without-end", "empty", "cut"],
)
def test_headers_that_are_no_msgpack_are_that_rows_flaw(outbox: FreshOutbox, stored: bytes) -> None:
    """A name that was not UTF-8 ended each harvester that took the row, and no later row was published."""
    with outbox.engine().begin() as connection:
        connection.execute(insert(outbox.tables.outbox).values(bucket=1, topic="t", headers=stored))
    with outbox.rows() as rows:
        (row,) = rows.take(1)
    assert row.flaw is not None
    assert "column headers is not a msgpack list" in row.flaw


@pytest.mark.parametrize(
    "stored",
    ['["\\ud800"]', "[" * 50_000, "no JSON", '["a", 5]', "{}"],
    ids=["surrogate", "nested", "text", "number", "dict"],
)
def test_header_texts_that_kafka_could_not_take_are_that_rows_flaw(stored: str) -> None:
    row = layout_named("goharvest").decode((1, "t", "k", "v", stored, '["x"]', 0, None, 0))
    assert row.flaw is not None


# --- leases -------------------------------------------------------------------------------------------------


def test_every_epoch_is_given_once(outbox: FreshOutbox) -> None:
    taken: list[int] = []

    def ask(name: str) -> None:
        with outbox.rows() as rows:
            taken.extend(rows.epoch(0, name) for _ in range(10))

    with ThreadPoolExecutor(4) as threads:
        for asked in [threads.submit(ask, f"leader-{at}") for at in range(4)]:
            asked.result(DEADLINE_S)
    assert sorted(taken) == list(range(1, 41))
    with outbox.rows(clock=ManualClock(now_ms=7)) as rows:
        assert rows.epoch(1, "x" * 300) == 1
        lease = rows.lease(1)
        assert lease is not None
        assert (lease.epoch, lease.leader, lease.updated_ms) == (1, "x" * 255, 7)
        assert rows.lease(2) is None
        assert [each.shard for each in rows.status().leases] == [0, 1]


def test_the_status_shows_the_oldest_row(outbox: FreshOutbox) -> None:
    with outbox.rows() as rows:
        assert (rows.status().waiting, rows.status().oldest_id) == (0, None)
        write(outbox, "a", "b")
        status = rows.status()
        assert (status.waiting, status.oldest_id) == (2, 1)
        assert abs(system_clock.now_ms() - (status.oldest_created_ms or 0)) < 60_000


# --- a database that is not there ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["postgres", "mariadb", "mysql"])
def test_a_lost_connection_is_said_so_and_the_next_call_opens_another(
    kind: str, request: pytest.FixtureRequest
) -> None:
    server: DatabaseServer = request.getfixturevalue(kind)
    outbox = FreshOutbox.make(server.url)
    write(outbox, "a")
    with outbox.rows() as rows:
        rows.take(1)
        with killed(server):
            for _ in range(2):  # the connection is lost, then there is no server to connect to
                with pytest.raises(OutboxDatabaseError) as lost:
                    rows.take(1)
                assert lost.value.is_lost
                assert server.password not in str(lost.value)
        assert keys(rows.take(1)) == ["a"]


@pytest.mark.parametrize("kind", ["postgres", "mariadb", "mysql"])
def test_a_call_on_a_frozen_database_ends_at_an_interrupt(kind: str, request: pytest.FixtureRequest) -> None:
    """O7: a harvester stops within its deadline though its database does not answer."""
    server: DatabaseServer = request.getfixturevalue(kind)
    outbox = FreshOutbox.make(server.url)
    with outbox.rows() as rows:
        rows.take(1)
        server.freeze()
        try:
            timer = threading.Timer(0.3, rows.interrupt)
            timer.start()
            with at_most(10.0, "the interrupt"), pytest.raises(OutboxDatabaseError):
                rows.take(1)
            with pytest.raises(OutboxDatabaseError, match="interrupted"):
                rows.take(1)
        finally:
            server.thaw()


def test_a_refused_statement_is_no_lost_connection(outbox: FreshOutbox) -> None:
    with OutboxRows(outbox.url, table="no_such_table") as rows:
        with pytest.raises(OutboxDatabaseError, match="no_such_table") as refused:
            rows.take(1)
        assert not refused.value.is_lost


def test_a_transaction_that_fails_leaves_nothing_half_done(outbox: FreshOutbox) -> None:
    write(outbox, "a")
    with outbox.engine().begin() as connection:
        connection.execute(text(f"DROP TABLE {outbox.table}_attempts"))
    with outbox.rows() as rows:
        row = OutboxRow(1, "orders", b"a", b"1", [], None, None, 0, 1, 0)
        with pytest.raises(OutboxDatabaseError):
            rows.set_aside(row, "x")
        assert rows.count() == 1
        assert rows.quarantined(10) == []


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nonsense", "is not a database URL"),
        ("oracle://x/y", "does not know the database"),
        ("sqlite+nothing:///x", "is not installed"),
    ],
)
def test_a_database_that_cannot_be_is_a_setting_that_is_wrong(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        OutboxRows(url)


@pytest.mark.parametrize("table", ["a b", "x" * 41, "a.b.c", "a;drop", ""])
def test_a_table_that_is_no_name_is_refused(table: str) -> None:
    with pytest.raises(ConfigError, match="outbox table"):
        OutboxRows("sqlite://", table=table)


def test_the_interrupted_and_the_closed_are_different(postgres: Postgres) -> None:
    outbox = FreshOutbox.make(postgres.url)
    rows = outbox.rows()
    rows.take(1)
    rows.close()
    assert rows.take(1) == []
    rows.close()


# --- the query is as cheap as it must be --------------------------------------------------------------------


def test_taking_reads_the_primary_key_and_no_more_rows_than_it_gives(postgres_outbox: FreshOutbox) -> None:
    outbox = postgres_outbox
    with contextlib.closing(outbox.rows()) as rows:
        name = rows.database.quoted(rows.tables.outbox)
        rows.database.run(
            f"INSERT INTO {name} (bucket, topic, key) SELECT i % 256, 't', 'k'::bytea FROM generate_series(1,"
            " 20000) i"
        ).close()
        rows.database.run(f"ANALYZE {name}").close()
        rows.take(500)
        ((sql, own),) = rows._takes.values()
        named: dict[str, Any] = own | {"limit_rows": 500, "now_ms": 0}
        ((plan,),) = rows.database.rows(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", named)
    scans = [node for node in nodes(json.loads(plan)[0]["Plan"]) if node.get("Relation Name") == outbox.table]
    assert [(node["Node Type"], node["Actual Rows"]) for node in scans] == [("Index Scan", 500)]


def nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(inner for each in plan.get("Plans", ()) for inner in nodes(each))]


def test_an_outbox_in_a_schema_of_its_own(postgres: Postgres) -> None:
    schema = f"s_{uuid.uuid4().hex[:8]}"
    with contextlib.closing(postgres.connect()) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
        connection.commit()
    outbox = FreshOutbox(url=postgres.url, table=f"{schema}.outbox", layout=layout_named("holdfast"))
    upgrade(outbox.url, table=outbox.table)
    write(outbox, "a")
    with outbox.rows() as rows:
        (row,) = rows.take(1)
        assert rows.set_aside(row, "x")
        assert rows.retry([row.id]) == 1
        rows.delete([each.id for each in rows.take(1)])
        assert rows.epoch(0, "me") == 1
    downgrade(outbox.url, table=outbox.table)
