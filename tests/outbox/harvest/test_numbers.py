"""Numbers of rows that begin again: a row is taken for published by what identifies it, not by its number."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from sqlalchemy import text

from holdfast.core.outbox.harvest import ProducerProgress
from holdfast.core.outbox.row_marks import MARKS
from holdfast.core.producers.audit import Rules
from holdfast.outbox.harvest.harvester import Strategy
from holdfast.outbox.harvest.table.numbering import Noted
from holdfast.pipeline.audit import AuditOptions, audit
from tests.outbox.databases import FreshOutbox, url_of
from tests.outbox.embedded import Bench, bench
from tests.support.harness import wait_for
from tests.support.patience import DEADLINE_S

OLD, NEW = [f"old {at}" for at in range(20)], [f"new {at}" for at in range(5)]
AGAIN = "numbers of the rows began again"


@pytest.fixture(params=["sqlite-holdfast", "sqlite-goharvest", "sqlite-debezium"])
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """Give an outbox of each layout."""
    kind, _, layout = request.param.partition("-")
    with bench(FreshOutbox.make(url_of(kind, request, tmp_path), layout)) as made:
        yield made


@pytest.fixture
def plain(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """Give an outbox of holdfast's layout in a file of SQLite."""
    with bench(FreshOutbox.make(url_of("sqlite", request, tmp_path))) as made:
        yield made


def begin_again(outbox: FreshOutbox) -> None:
    """Empty the table together with its numbers, each database in its way."""
    table = outbox.table
    with outbox.engine().begin() as connection:
        match outbox.dialect:
            case "postgresql":
                connection.execute(text(f"TRUNCATE {table} RESTART IDENTITY"))
            case "sqlite":
                connection.execute(text(f"DELETE FROM {table}"))
                connection.execute(text("DELETE FROM sqlite_sequence WHERE name = :name"), {"name": table})
            case _:
                connection.execute(text(f"TRUNCATE TABLE {table}"))


@pytest.mark.variants("sqlite-goharvest", "sqlite-debezium")
def test_rows_that_are_numbered_again_are_published(desk: Bench, caplog: pytest.LogCaptureFixture) -> None:
    desk.write(*OLD)
    desk.publish()
    begin_again(desk.outbox)
    desk.write(*NEW)
    desk.publish()
    assert desk.published() == OLD + NEW
    assert [AGAIN in record.getMessage() for record in caplog.records].count(True) == 1
    with desk.outbox.rows() as rows:
        assert "began again: found at" in (rows.status().numbers or "")
    desk.write(*OLD)
    desk.publish()
    with desk.outbox.rows() as rows:
        assert rows.status().numbers is None, "the numbers are above those of before"


@pytest.mark.parametrize("kind", ["postgres", "mariadb", "mysql"])
@pytest.mark.parametrize("layout", ["holdfast", "goharvest", "debezium"])
@pytest.mark.variants(
    "goharvest-postgres",
    "debezium-postgres",
    "holdfast-mariadb",
    "goharvest-mariadb",
    "debezium-mariadb",
    "holdfast-mysql",
    "goharvest-mysql",
    "debezium-mysql",
)
def test_so_are_those_of_every_server(
    layout: str, kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with bench(FreshOutbox.make(url_of(kind, request, tmp_path), layout)) as desk:
        desk.write(*OLD)
        with desk.leading() as alone:
            wait_for("the old rows", lambda: desk.left() == 0, DEADLINE_S)
            begin_again(desk.outbox)
            desk.write(*NEW[:2])
            wait_for(
                "new rows under one leader", lambda: desk.left() == 0, DEADLINE_S, lambda: str(alone.stats)
            )
        begin_again(desk.outbox)
        desk.write(*NEW[2:])
        desk.publish()
        assert desk.published() == OLD + NEW


@pytest.mark.variants("sqlite-goharvest", "sqlite-debezium")
def test_a_row_that_is_alike_but_for_its_time_is_another(desk: Bench) -> None:
    desk.write(*OLD)
    desk.publish()
    begin_again(desk.outbox)
    desk.write(*OLD)
    desk.publish()
    assert desk.published() == OLD + OLD


def test_rows_of_a_restored_backup_that_were_published_are_not_published_again(
    plain: Bench, tmp_path: Path
) -> None:
    plain.write(*OLD)
    file, copy = tmp_path / "service.db", tmp_path / "backup.db"
    with plain.outbox.engine().begin() as connection:
        connection.execute(text("PRAGMA wal_checkpoint(TRUNCATE)"))
    shutil.copy(file, copy)
    plain.publish()
    shutil.copy(copy, file)
    for each in ("-wal", "-shm"):
        Path(f"{file}{each}").unlink(missing_ok=True)
    plain.write(*NEW)
    plain.publish()
    assert plain.published() == OLD + NEW


def test_a_leader_that_runs_sees_numbers_begin_again(plain: Bench) -> None:
    with plain.leading() as alone:
        for values in (OLD, NEW, OLD):
            plain.write(*values)
            wait_for("an empty table", lambda: plain.left() == 0, DEADLINE_S, lambda: str(alone.stats))
            begin_again(plain.outbox)
    assert plain.published() == OLD + NEW + OLD
    assert alone.stats.began_again == 2


@pytest.mark.variants("sqlite-goharvest", "sqlite-debezium")
def test_numbers_that_only_rise_are_not_said_to_begin_again(
    desk: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    for values in (OLD, NEW, OLD):
        desk.write(*values)
        desk.publish()
    assert desk.published() == OLD + NEW + OLD
    assert not [record for record in caplog.records if AGAIN in record.getMessage()]
    with desk.outbox.rows() as rows:
        assert rows.status().numbers is None


def test_status_sees_it_before_any_harvester(plain: Bench) -> None:
    plain.write(*OLD)
    plain.publish()
    begin_again(plain.outbox)
    plain.write(*NEW)
    with plain.outbox.rows() as rows:
        assert rows.status().numbers == "began again: row 20 was published, and the last number given is 5"


def test_the_progress_of_an_earlier_release_names_only_rows_that_are_not_younger(plain: Bench) -> None:
    """Its records have no marks: a row that is younger than the record is another, an older one is not."""
    plain.write(*OLD)
    with plain.outbox.rows() as rows:
        before = rows.take(100)
    plain.publish()
    # The record as 0.1.0 writes it, of rows that its leader was killed before it deleted.
    progress = ProducerProgress("shop-0")
    progress.epoch = 9
    producer = Producer(plain.kafka.client_config())
    for key, value in progress.records([row.id for row in before], {}):
        producer.produce(plain.settings().progress_topic, value, key, 0)
    assert producer.flush(DEADLINE_S) == 0
    with plain.outbox.engine().begin() as connection:
        connection.execute(
            text("DELETE FROM sqlite_sequence WHERE name = :name"), {"name": plain.outbox.table}
        )
        connection.execute(
            text(
                f"INSERT INTO {plain.outbox.table} (bucket, created_ms, topic, key, value)"
                " VALUES (0, :at, 'orders', 'k', :value)"
            ),
            {"at": before[0].created_ms, "value": b'"old 0"'},
        )
    plain.write(*NEW)
    plain.publish()
    assert plain.published() == OLD + NEW


def test_marks_travel_in_a_header_that_earlier_releases_pass_over(plain: Bench) -> None:
    progress = ProducerProgress("shop-0")
    ids = [1, 2, 5]
    marks = dict.fromkeys(ids, 7 | 0xFFFFFFFF << 32)
    (_, value), *_ = progress.records(ids, {})
    assert value == b'{"version":1,"producer":"shop-0","epoch":0,"rows":[1,2,2,1]}'
    header = progress.marks_header(marks)
    assert header is not None
    assert header[0] == MARKS


def test_another_database_under_the_name_is_reported_and_its_rows_are_published(
    plain: Bench, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain.write(*OLD)
    plain.publish()
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "service.db").touch()
    other = Bench(plain.kafka, FreshOutbox.make(f"sqlite:///{folder / 'service.db'}"))
    other.write(*NEW)
    other.publish()
    assert other.published() == OLD + NEW
    assert any("two databases have the same --name" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("strategy", [Strategy.FENCED, Strategy.MARK])
def test_a_file_that_is_replaced_under_a_harvester_is_read_from_then_on(
    strategy: Strategy, request: pytest.FixtureRequest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection would show the file that is gone for ever."""
    layout = "goharvest" if strategy is Strategy.MARK else "holdfast"
    with bench(FreshOutbox.make(url_of("sqlite", request, tmp_path), layout)) as desk:
        desk.strategy = strategy
        file = Path(desk.outbox.url.removeprefix("sqlite:///"))
        kept = file.with_suffix(".kept")
        shutil.copy(file, kept)
        desk.write(*OLD)
        with desk.leading(strategy=strategy):
            wait_for("an empty table", lambda: desk.left() == 0, DEADLINE_S)
            desk.outbox.engine().dispose()
            kept.replace(file)
            desk.write(*NEW)
            wait_for("an empty table", lambda: desk.left() == 0, DEADLINE_S)
        assert desk.published() == OLD + NEW
    assert any("the file was replaced" in record.getMessage() for record in caplog.records)


def test_a_journal_that_is_deleted_under_a_harvester_hides_no_row(
    plain: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection would read the journal that is gone, and writers another."""
    file = plain.outbox.url.removeprefix("sqlite:///")
    with contextlib.closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
    plain.write(*OLD)
    with plain.leading():
        wait_for("an empty table", lambda: plain.left() == 0, DEADLINE_S)
        plain.outbox.engine().dispose()
        for ending in ("-wal", "-shm"):
            Path(f"{file}{ending}").unlink()
        # SQLite shares what it knows of a file within a process, so another one writes.
        writes = (
            f'import sqlite3; c = sqlite3.connect({file!r}); c.execute("INSERT INTO {plain.outbox.table}'
            " (bucket, topic, key, value) VALUES (0, 'orders', 'k', 'new')\"); c.commit()"
        )
        subprocess.run([sys.executable, "-c", writes], check=True, timeout=DEADLINE_S)
        wait_for("the new row", lambda: "new" in plain.published(), DEADLINE_S)
        wait_for("an empty table", lambda: plain.left() == 0, DEADLINE_S)
    assert plain.published() == [*OLD, "new"], "rows whose deletion was in the journal are published once"
    assert any("the file's journal" in record.getMessage() for record in caplog.records)


def test_a_progress_topic_that_was_made_again_is_said(plain: Bench, caplog: pytest.LogCaptureFixture) -> None:
    plain.write(*OLD)
    plain.publish()
    with plain.outbox.rows() as rows:
        noted = rows.noted(0)
        assert noted.highest == len(OLD)
        rows.note(0, Noted(outbox=noted.outbox, highest=10**6))
    plain.write(*NEW)
    plain.publish()
    assert plain.published() == OLD + NEW
    assert any("knows of none above 20" in record.getMessage() for record in caplog.records)


def test_the_audit_says_that_numbers_began_again_and_which_records_are_alike(plain: Bench) -> None:
    plain.write(*OLD)
    plain.publish()
    options = AuditOptions(rules=Rules(outbox="shop"), engine="local")
    assert audit(plain.settings().kafka, options).notes == ()
    begin_again(plain.outbox)
    plain.write("same", "same", "other", "same")
    plain.publish()
    report = audit(plain.settings().kafka, options)
    assert report.is_clean
    again, alike = report.notes
    assert "shop-0: the numbers of the rows began again" in again
    assert "1 record(s) are like the one before them of their key" in alike


def test_the_audit_finds_an_event_that_was_published_twice(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with bench(FreshOutbox.make(url_of("sqlite", request, tmp_path), "debezium")) as desk:
        table = desk.outbox.table
        with desk.outbox.engine().begin() as connection:
            connection.execute(text(f"CREATE TABLE kept AS SELECT * FROM {table} WHERE 0"))
        desk.write("one")
        with desk.outbox.engine().begin() as connection:
            connection.execute(text(f"INSERT INTO kept SELECT * FROM {table}"))
        desk.publish()
        with desk.outbox.engine().begin() as connection:  # under another number: it is not recognised
            connection.execute(text("UPDATE kept SET holdfast_id = 7"))
            connection.execute(text(f"INSERT INTO {table} SELECT * FROM kept"))
        desk.publish()
        report = audit(desk.settings().kafka, AuditOptions(rules=Rules(outbox="shop"), engine="local"))
        ((_, found),) = report.findings
        assert (found.kind, found.offset) == ("duplicate", 2)


def test_strategy_mark_publishes_them_too(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    with bench(FreshOutbox.make(url_of("sqlite", request, tmp_path), "goharvest")) as desk:
        with desk.leading(strategy=Strategy.MARK) as alone:
            for values in (OLD, NEW, OLD):
                desk.write(*values)
                wait_for("an empty table", lambda: desk.left() == 0, DEADLINE_S, lambda: str(alone.stats))
                begin_again(desk.outbox)
        assert desk.published() == OLD + NEW + OLD


def test_a_row_is_set_aside_next_to_another_of_its_number(plain: Bench) -> None:
    for value in ("first", "second"):
        plain.write(value)
        with plain.outbox.rows() as rows:
            (row,) = rows.take(1)
            assert row.id == 1
            assert rows.set_aside(row, "no such topic")
        begin_again(plain.outbox)
    with plain.outbox.rows() as rows:
        first, second = rows.quarantined(10)
        assert (first.row.id, first.row.value) == (1, b'"first"')
        assert second.row.value == b'"second"'
        assert "row 1 of the outbox" in second.reason
        assert rows.retry([first.row.id, second.row.id]) == 2
        assert [row.value for row in rows.take(10)] == [b'"first"', b'"second"']


def test_a_delete_takes_no_row_that_was_written_after_the_one_it_is_for(desk: Bench) -> None:
    desk.write("old")
    with desk.outbox.rows() as rows:
        taken = rows.take(1)
        begin_again(desk.outbox)
        desk.write("new")
        assert rows.delete(taken) == 0
        assert [row.value for row in rows.require_gone(taken)] == [b'"new"']
