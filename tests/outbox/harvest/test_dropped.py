"""Databases that do less than they report: deletions, marks and writes without effect."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import select, text

from holdfast.agents.services.harvester_page import HarvesterPage
from holdfast.errors import OutboxDroppedError
from holdfast.outbox.commands import Verb, tell
from holdfast.outbox.harvest.harvester import Harvester, Strategy
from holdfast.outbox.harvest.table.marks import MarkedRows
from holdfast.outbox.harvest.table.published import RowsDone
from holdfast.outbox.harvest.table.row_types import ShardEpoch
from holdfast.outbox.harvest.table.rows import OutboxRows
from holdfast.outbox.schema.layouts import OutboxRow, marks_of
from holdfast.outbox.trial import trial_findings
from tests.outbox.databases import FreshOutbox, url_of
from tests.outbox.embedded import Bench, bench
from tests.support.harness import wait_for
from tests.support.patience import DEADLINE_S

RETURN_NULL = "CREATE FUNCTION {table}_drop() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"


def drop(outbox: FreshOutbox, event: str, ending: str = "", *, only: str = "") -> None:
    """Have the database drop each *event* on a table of *outbox* without an error, or *only* some."""
    table, when = f"{outbox.table}{ending}", f"WHEN ({only})" if only else ""
    with outbox.engine().begin() as connection:
        if outbox.dialect == "sqlite":
            connection.execute(
                text(
                    f"CREATE TRIGGER {table}_keep BEFORE {event} ON {table} {when}"
                    " BEGIN SELECT RAISE(IGNORE); END"
                )
            )
        else:
            connection.execute(text(RETURN_NULL.format(table=table)))
            connection.execute(
                text(
                    f"CREATE TRIGGER {table}_keep BEFORE {event} ON {table} FOR EACH ROW {when} EXECUTE"
                    f" FUNCTION {table}_drop()"
                )
            )


def secured(outbox: FreshOutbox, *verbs: str) -> FreshOutbox:
    """Return *outbox* as a user of Postgres sees it to whom row security leaves only *verbs*."""
    table, user = outbox.table, f"u_{outbox.table}"
    with outbox.engine().begin() as connection:
        connection.execute(text(f"CREATE ROLE {user} LOGIN PASSWORD 'pw'"))
        for each in outbox.tables.every:
            connection.execute(text(f"GRANT ALL ON {each.name} TO {user}"))
        connection.execute(text(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY"))
        for verb in verbs:
            body = "WITH CHECK (true)" if verb == "INSERT" else "USING (true)"
            connection.execute(text(f"CREATE POLICY p_{verb} ON {table} FOR {verb} TO {user} {body}"))
    head, _, rest = outbox.url.partition("://")
    url = f"{head}://{user}:pw@{rest.partition('@')[2]}"
    return FreshOutbox(url=url, table=table, layout=outbox.layout)


def mark_all(rows: OutboxRows) -> list[OutboxRow]:
    """Mark as a new leader does."""
    held = ShardEpoch(shard=0, epoch=rows.epoch(0, "me"))
    return MarkedRows(rows).mark(10, "6f0c2d9a-51be-4703-8c1e-5b1c7c2b3a11", held=held)


@pytest.fixture(params=["fenced-holdfast", "fenced-goharvest", "fenced-debezium", "mark-goharvest"])
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """Give an outbox of each layout and strategy."""
    strategy, _, layout = request.param.partition("-")
    with bench(FreshOutbox.make(url_of("sqlite", request, tmp_path), layout)) as made:
        made.strategy = Strategy(strategy)
        yield made


@contextmanager
def harvesting(desk: Bench) -> Iterator[Harvester]:
    with Harvester(desk.settings(strategy=desk.strategy, heartbeat_timeout_s=2.0)) as harvester:
        yield harvester


def stop_of(harvester: Harvester) -> str:
    """Return why a harvester has stopped its shard, once it has."""
    (stats,) = harvester.stats
    wait_for("a stop", lambda: stats.stopped, DEADLINE_S, lambda: str(stats))
    return stats.stopped


def harvest_until_it_stops(desk: Bench) -> str:
    """Return why a harvester stops its shard, and end that harvester."""
    with harvesting(desk) as harvester:
        said = stop_of(harvester)
    assert harvester.error is None
    return said


@pytest.mark.variants("fenced-goharvest", "fenced-debezium")
def test_a_row_that_a_delete_leaves_is_published_once_and_stops_its_shard(desk: Bench) -> None:
    drop(desk.outbox, "DELETE")
    desk.write("one", "two")
    said = harvest_until_it_stops(desk)
    assert "published and deleted" in said
    assert desk.published() == ["one", "two"]
    for _ in range(2):  # a supervisor starts it again
        assert harvest_until_it_stops(desk) == said
    assert desk.published() == ["one", "two"], "the next leader finds the stop"


@pytest.mark.variants("fenced-goharvest", "fenced-debezium")
def test_a_row_that_comes_back_after_each_delete_is_published_once(desk: Bench) -> None:
    table = desk.outbox.table
    with desk.outbox.engine().begin() as connection:
        names = ", ".join(column.name for column in desk.outbox.tables.outbox.columns)
        olds = ", ".join(
            "NULL" if column.name == "leader_id" else f"OLD.{column.name}"
            for column in desk.outbox.tables.outbox.columns
        )
        connection.execute(
            text(
                f"CREATE TRIGGER {table}_back AFTER DELETE ON {table} BEGIN INSERT INTO {table} ({names})"
                " VALUES"
                f" ({olds}); END"
            )
        )
    desk.write("one")
    assert "published and deleted" in harvest_until_it_stops(desk)
    assert desk.published() == ["one"]


@pytest.mark.variants("fenced-goharvest", "fenced-debezium", "mark-goharvest")
def test_a_row_that_a_delete_writes_again_under_another_number_stops_its_shard(desk: Bench) -> None:
    outbox, table = desk.outbox, desk.outbox.table
    others = [each.name for each in outbox.tables.outbox.columns if each.name != outbox.layout.order]
    olds = ", ".join("NULL" if name == "leader_id" else f"OLD.{name}" for name in others)
    with outbox.engine().begin() as connection:
        connection.execute(
            text(
                f"CREATE TRIGGER {table}_kept AFTER DELETE ON {table} BEGIN INSERT INTO {table}"
                f" ({', '.join(others)}) VALUES ({olds}); END"
            )
        )
    with outbox.rows() as rows:
        problems, _ = trial_findings(rows)
        assert any("comes back as row" in each for each in problems), problems
    desk.write("one")
    assert "published and deleted" in harvest_until_it_stops(desk)
    assert desk.published() == ["one"] * 2, "the second looked like another of the same transaction"
    for _ in range(2):
        harvest_until_it_stops(desk)
    assert desk.published() == ["one"] * 2, "no start publishes it once more"
    with harvesting(desk) as harvester:
        before = stop_of(harvester)
        stops = desk.stops()
        harvester.resume()  # without a cure
        wait_for("another stop", lambda: desk.stops() not in ([], stops), DEADLINE_S)
        assert stop_of(harvester) != before
        assert len(desk.published()) <= 4, "as often as before, since it was resumed"
        with outbox.engine().begin() as connection:
            connection.execute(text(f"DROP TRIGGER {table}_kept"))
            connection.execute(text(f"DELETE FROM {table}"))
        harvester.resume()
        desk.write("two")
        wait_for("an empty table", lambda: desk.left() == 0, DEADLINE_S)
        assert desk.published()[-1] == "two"
        assert harvester.stats[0].stopped == ""
    assert desk.stops() == []


@pytest.mark.variants("fenced-goharvest", "fenced-debezium", "mark-goharvest")
def test_rows_that_are_alike_are_all_published(desk: Bench) -> None:
    values = ["same"] * 300  # of one transaction, in several batches
    desk.write(*values)
    with Harvester(desk.settings(strategy=desk.strategy, heartbeat_timeout_s=2.0)):
        wait_for("an empty table", lambda: desk.left() == 0, DEADLINE_S)
    assert desk.published() == values


@pytest.mark.database
@pytest.mark.parametrize("layout", ["holdfast", "goharvest"])
@pytest.mark.parametrize("kind", ["postgres", "mariadb", "mysql"])
@pytest.mark.variants("mariadb-goharvest", "mysql-holdfast", "mysql-goharvest")
def test_a_row_that_is_written_while_others_like_it_are_deleted_is_not_taken_for_what_the_delete_wrote(
    kind: str, layout: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """In SQLite nothing can be written then."""
    outbox = FreshOutbox.make(url_of(kind, request, tmp_path), layout)

    table = outbox.tables.outbox
    columns = [each for each in table.columns if each.name != outbox.layout.order]
    again = table.insert().from_select(columns, select(*columns).limit(1))

    def write_like_it() -> None:
        """Write one that was created when the others were, as one whose transaction began then."""
        with outbox.engine().begin() as connection:
            connection.execute(again)

    with outbox.rows() as rows:
        with outbox.engine().begin() as connection:
            outbox.writer().write(connection, "orders", "k", "v")
        write_like_it()
        done, (first, second) = RowsDone(rows), rows.take(2)
        done.note(marks_of([first]))
        rows.delete([first])

        def delete() -> int:
            write_like_it()
            return rows.delete([second])

        assert done.are_suspect(marks_of([second]))
        assert done.delete_suspects([second], delete) == 1
        (third,) = rows.take(2)
        assert done.returned([third]) == []

        def replace() -> int:
            """Delete as a trigger does that keeps the deleted rows."""
            rows.database.count(*rows.database.compile(again))
            return rows.delete([third])

        assert done.delete_suspects([third], replace) == 1
        (fourth,) = rows.take(2)
        assert done.returned([fourth]) == [fourth]


@pytest.mark.database
@pytest.mark.parametrize("how", ["trigger", "rule", "row security"])
@pytest.mark.variants("rule", "row security")
def test_so_it_is_on_postgres(how: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    with bench(FreshOutbox.make(url_of("postgres", request, tmp_path))) as desk:
        table = desk.outbox.table
        match how:
            case "trigger":
                drop(desk.outbox, "DELETE")
            case "rule":
                with desk.outbox.engine().begin() as connection:
                    connection.execute(text(f"CREATE RULE keep AS ON DELETE TO {table} DO INSTEAD NOTHING"))
            case _:
                desk.outbox = secured(desk.outbox, "SELECT", "INSERT")
        desk.write("one", "two")
        for _ in range(3):  # a supervisor starts it again
            assert "published and deleted" in harvest_until_it_stops(desk)
        assert desk.published() == ["one", "two"]
        with desk.outbox.rows() as rows:
            problems, _ = trial_findings(rows)
            assert any("is still there" in each for each in problems), problems
            assert rows.count() == 2, "the trial is rolled back"


def test_marks_that_are_not_stored_end_strategy_mark(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    with bench(FreshOutbox.make(url_of("sqlite", request, tmp_path), "goharvest")) as desk:
        desk.strategy = Strategy.MARK
        drop(desk.outbox, "UPDATE")
        desk.write("one")
        assert "drops the UPDATE" in harvest_until_it_stops(desk)
        assert desk.published() == []


@pytest.mark.database
@pytest.mark.parametrize("how", ["trigger", "rule", "row security"])
@pytest.mark.variants("rule", "row security")
def test_marks_that_postgres_does_not_store_end_it_too(
    how: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    outbox = FreshOutbox.make(url_of("postgres", request, tmp_path), "goharvest")
    with bench(outbox) as desk:
        desk.write("one")
        match how:
            case "trigger":
                drop(outbox, "UPDATE")
            case "rule":
                with outbox.engine().begin() as connection:
                    connection.execute(
                        text(f"CREATE RULE keep AS ON UPDATE TO {outbox.table} DO INSTEAD NOTHING")
                    )
            case _:
                outbox = secured(outbox, "SELECT", "INSERT")
        with outbox.rows() as rows, pytest.raises(OutboxDroppedError, match="drops the UPDATE"):
            mark_all(rows)


@pytest.mark.database
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.variants("sqlite")
def test_a_mark_of_one_row_that_is_not_stored_ends_it_before_others_overtake_it(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    outbox = FreshOutbox.make(url_of(kind, request, tmp_path), "goharvest")
    with bench(outbox) as desk, outbox.rows() as rows:
        drop(outbox, "UPDATE", only="OLD.id = 2")
        desk.write("one", "two", "three")
        with pytest.raises(OutboxDroppedError, match="marking 3 rows changed 2"):
            mark_all(rows)
        assert rows.marks() == []


def test_a_row_that_the_quarantine_drops_stays(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    outbox = FreshOutbox.make(url_of("sqlite", request, tmp_path))
    drop(outbox, "INSERT", "_quarantine")
    with bench(outbox) as desk, outbox.rows() as rows:
        desk.write("one")
        (row,) = rows.take(1)
        with pytest.raises(OutboxDroppedError, match="_quarantine"):
            rows.set_aside(row, "refused")
        assert rows.count() == 1
        assert any("_quarantine" in each for each in trial_findings(rows)[0])


def test_nothing_is_lost_between_quarantine_and_outbox(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    outbox = FreshOutbox.make(url_of("sqlite", request, tmp_path))
    with bench(outbox) as desk, outbox.rows() as rows:
        desk.write("one")
        (row,) = rows.take(1)
        rows.set_aside(row, "refused")
        drop(outbox, "INSERT")
        with pytest.raises(OutboxDroppedError):
            rows.retry([row.id])
        drop(outbox, "DELETE", "_quarantine")
        with pytest.raises(OutboxDroppedError):
            rows.discard([row.id])
        assert len(rows.quarantined(10)) == 1


@pytest.mark.parametrize("ending", ["_attempts", "_lease"])
def test_attempts_and_leases_that_are_not_stored_are_said(
    ending: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    outbox = FreshOutbox.make(url_of("sqlite", request, tmp_path))
    drop(outbox, "INSERT", ending)
    with bench(outbox) as desk, outbox.rows() as rows:
        desk.write("one")
        (row,) = rows.take(1)
        with pytest.raises(OutboxDroppedError, match=ending):
            rows.attempt_failed(row, "refused", 0) if ending == "_attempts" else rows.epoch(0, "me")


def test_an_epoch_that_the_database_does_not_raise_is_said(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Two leaders with one epoch would each pass for the newest."""
    outbox = FreshOutbox.make(url_of("sqlite", request, tmp_path))
    lease = f"{outbox.table}_lease"
    with outbox.engine().begin() as connection:
        connection.execute(
            text(
                f"CREATE TRIGGER {lease}_first AFTER UPDATE ON {lease} BEGIN UPDATE {lease} SET epoch = 1"
                " WHERE shard = NEW.shard; END"
            )
        )
    with outbox.rows() as rows:
        assert any(lease in each for each in trial_findings(rows)[0])
        assert rows.epoch(0, "me") == 1
        with pytest.raises(OutboxDroppedError, match=lease):
            rows.epoch(0, "you")


def test_a_trial_of_a_sound_outbox_finds_nothing_and_leaves_nothing(desk: Bench) -> None:
    with desk.outbox.rows() as rows:
        assert trial_findings(rows) == ([], [])
        assert (rows.count(), rows.quarantined(10), rows.status().leases) == (0, [], ())


@pytest.mark.parametrize("event", ["INSERT", "DELETE"])
def test_a_trial_shows_a_dropped_statement(event: str, desk: Bench) -> None:
    drop(desk.outbox, event)
    with desk.outbox.rows() as rows:
        problems, _ = trial_findings(rows)
        assert problems
        assert rows.count() == 0


def test_a_trial_shows_a_changed_value(desk: Bench) -> None:
    table, key = desk.outbox.table, desk.outbox.layout.key
    with desk.outbox.engine().begin() as connection:
        connection.execute(
            text(
                f"CREATE TRIGGER {table}_alter AFTER INSERT ON {table} BEGIN UPDATE {table} SET {key} = 'x'"
                f" WHERE {desk.outbox.layout.order} = NEW.{desk.outbox.layout.order}; END"
            )
        )
    with desk.outbox.rows() as rows:
        problems, _ = trial_findings(rows)
        assert any("with another key" in each for each in problems), problems


@pytest.mark.variants("fenced-goharvest", "fenced-debezium", "mark-goharvest")
def test_a_stop_holds_until_a_person_resumes_it(desk: Bench) -> None:
    drop(desk.outbox, "DELETE")
    desk.write("one")
    settings = desk.settings(strategy=desk.strategy, heartbeat_timeout_s=2.0)
    with harvesting(desk) as harvester:
        assert "row security undoes the DELETE" in stop_of(harvester)
        (answer,) = tell(settings, Verb.STATUS)
        assert (answer.stopped, answer.paused) == (True, False)
        assert "row security undoes the DELETE" in answer.last_error
        (gauge,) = [
            each for each in HarvesterPage(harvester).collect() if each.name == "holdfast_outbox_stopped"
        ]
        assert [each.value for each in gauge.samples] == [1]
    with desk.outbox.rows() as rows:
        (stop,) = rows.status().stops
        assert (stop.shard, stop.why[:4]) == (0, "row ")
        assert rows.status().numbers is None
        assert [each.shard for each in rows.status().leases] == [0]
    with desk.outbox.engine().begin() as connection:
        connection.execute(text(f"DROP TRIGGER {desk.outbox.table}_keep"))
        connection.execute(text(f"DELETE FROM {desk.outbox.table}"))
    desk.write("two")
    with harvesting(desk) as harvester:
        stop_of(harvester)
        assert desk.left() == 1, "that the cause is gone is not looked for"
        (answer,) = tell(settings, Verb.RESUME)
        wait_for("an empty table", lambda: desk.left() == 0, DEADLINE_S)
    with harvesting(desk) as harvester:  # reads the last resume again
        desk.write("three")
        wait_for("an empty table", lambda: desk.left() == 0, DEADLINE_S)
        drop(desk.outbox, "DELETE")
        desk.write("four")
        stop_of(harvester)
    harvest_until_it_stops(desk)
    assert desk.published() == ["one", "two", "three", "four"], "an old resume resumes no later stop"


def test_a_stop_that_is_not_stored_ends_the_harvester(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    outbox = FreshOutbox.make(url_of("sqlite", request, tmp_path))
    with bench(outbox) as desk:
        drop(outbox, "DELETE")
        drop(outbox, "INSERT", "_lease", only="NEW.shard < -999")
        desk.write("one")
        with pytest.raises(OutboxDroppedError, match="_lease"), harvesting(desk) as harvester:
            harvester.wait(DEADLINE_S)
