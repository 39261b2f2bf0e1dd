"""Brokers that die, disks that are full, read-only databases: the log lines, and that work resumes by
itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from psycopg import OperationalError
from sqlalchemy.exc import DBAPIError

from holdfast.dev.databases.servers import Postgres
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from holdfast.outbox.harvest.table.row_types import ShardEpoch
from holdfast.outbox.harvest.table.rows import OutboxRows
from holdfast.outbox.settings import HarvestSettings
from tests.outbox.databases import FreshOutbox, killed, url_of
from tests.outbox.full_disks import small_disk
from tests.outbox.harvesting import PARTITIONS, Alone, Rig
from tests.support import own_broker
from tests.support.harness import end_transactions, wait_for
from tests.support.patience import DEADLINE_S, SCENARIO_S

holdfast_broker, broker = own_broker.holdfast_broker, own_broker.broker


@contextmanager
def read_only(postgres: Postgres) -> Iterator[None]:
    """Let the server take no writes, as one that has been demoted."""
    with closing(postgres.connect()) as connection:
        connection.autocommit = True
        connection.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        connection.execute("SELECT pg_reload_conf()")
        try:
            yield
        finally:
            connection.execute("SET default_transaction_read_only = off")
            connection.execute("ALTER SYSTEM RESET default_transaction_read_only")
            connection.execute("SELECT pg_reload_conf()")


@pytest.mark.variant
@pytest.mark.parametrize(
    ("strategy", "layout"),
    [("fenced", "holdfast"), pytest.param("mark", "goharvest", marks=pytest.mark.slow)],
)
def test_a_database_that_takes_no_writes_is_named_and_waited_for(
    broker: SessionBroker, fresh_topic: FreshTopic, postgres: Postgres, strategy: str, layout: str
) -> None:
    rig = Rig(broker, FreshOutbox.make(postgres.url, layout), fresh_topic("events", partitions=PARTITIONS))
    rig.fill(1_000)
    with Alone(rig.settings(strategy=strategy, batch_rows=20)) as leader:
        with read_only(postgres):
            wait_for(
                "the trouble",
                lambda: "read-only transaction" in leader.stats.last_error,
                DEADLINE_S,
                lambda: leader.stats.last_error,
            )
            wait_for("another attempt", lambda: leader.stats.restarts > 1, DEADLINE_S)
            assert rig.left() > 0
        rig.wait_empty()
    assert postgres.url.rpartition("/")[2] in leader.stats.last_error, "it says which database"
    records = rig.prove() if strategy == "fenced" else rig.read()
    assert {record.number for record in records} == set(range(1_000))


def use_up_the_log(server: Postgres) -> None:
    """Write until the server needs room for its log, which is the end of it."""
    for _ in range(64):
        try:
            with closing(server.connect()) as connection:
                connection.autocommit = True
                connection.execute(
                    "SELECT pg_logical_emit_message(false, 'test', repeat('x', 1000000)), pg_switch_wal()"
                )
        except OperationalError:
            return
    raise AssertionError("the server still has room")


@pytest.mark.variant
@pytest.mark.parametrize(
    ("strategy", "layout", "mounted"),
    [
        ("fenced", "holdfast", True),
        pytest.param("mark", "goharvest", True, marks=pytest.mark.slow),
        pytest.param("fenced", "holdfast", False, marks=pytest.mark.slow),
    ],
)
def test_a_full_disk_under_the_database_costs_nothing_but_time(
    broker: SessionBroker, fresh_topic: FreshTopic, strategy: str, layout: str, mounted: bool
) -> None:
    """Not one byte is left: services' transactions fail, then the server itself. Committed rows are published
    all the same, and no others.
    """
    with small_disk(mounted=mounted) as disk, Postgres(disk.folder / "postgres", durable=True) as server:
        rig = Rig(broker, FreshOutbox.make(server.url, layout), fresh_topic("events", partitions=PARTITIONS))
        rig.fill(10_000)
        with Alone(rig.settings(strategy=strategy, batch_rows=50)) as leader:
            wait_for("some rows", lambda: leader.stats.published, DEADLINE_S)
            disk.fill(server)
            with pytest.raises(DBAPIError) as failed:  # noqa: PT012  some still find room in what the server holds
                for _ in range(400):
                    rig.fill(50, size=9_000)
            use_up_the_log(server)
            wait_for(
                "the trouble", lambda: leader.stats.restarts > 1, DEADLINE_S, lambda: leader.stats.last_error
            )
            assert disk.said in str(failed.value) + (server.folder / "server.log").read_text()
            disk.free(server)
            server.restart()
            rig.fill(100)
            rig.wait_empty(deadline_s=SCENARIO_S)
        records = rig.prove() if strategy == "fenced" else rig.read()
        assert {record.number for record in records} == set(range(rig.filled))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_a_database_that_is_killed_again_and_again_costs_no_row(
    broker: SessionBroker,
    fresh_topic: FreshTopic,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    kind: str,
) -> None:
    outbox = FreshOutbox.make(url_of(kind, request, tmp_path))
    rig = Rig(broker, outbox, fresh_topic("events", partitions=PARTITIONS))
    rig.fill(4_000)
    with Alone(rig.settings(batch_rows=20)) as leader:

        def has(count: str, more_than: int) -> bool:
            return int(getattr(leader.stats, count)) > more_than

        for turn in range(4):
            wait_for("some rows", partial(has, "published", 100 * turn), DEADLINE_S)
            with killed(request.getfixturevalue(kind)):
                wait_for("the trouble", partial(has, "restarts", leader.stats.restarts), DEADLINE_S)
            rig.fill(100)
        rig.wait_empty()
    records = rig.prove()
    assert sorted(record.number for record in records) == [*range(rig.filled)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "layout", "away_s"),
    [("fenced", "holdfast", 0.0), ("mark", "goharvest", 0.0), ("fenced", "holdfast", 60.0)],
)
def test_a_broker_that_is_killed_and_comes_back_costs_nothing(
    broker: SessionBroker,
    fresh_topic: FreshTopic,
    postgres: Postgres,
    strategy: str,
    layout: str,
    away_s: float,
) -> None:
    """O7: SIGKILL of the broker while rows flow; away for longer than a session, a transaction and a commit
    may last.

    It resumes by itself, but where the only broker has lost the end of a transaction (docs/operating.md):
    then it says so, and waits.
    """
    assert broker.cluster is not None
    rig = Rig(broker, FreshOutbox.make(postgres.url, layout), fresh_topic("events", partitions=PARTITIONS))
    rig.fill(2_000)
    settings: dict[str, Any] = {"strategy": strategy, "batch_rows": 50}
    with rig.harvester(**settings, transaction_timeout_s=10, commit_timeout_s=10) as harvester:
        wait_for("some rows", lambda: harvester.stats[0].published, DEADLINE_S)
        broker.cluster.kill(1)
        try:
            rig.fill(500)
            time.sleep(away_s)
        finally:
            broker.cluster.restart(1)
        stats = harvester.stats[0]
        wait_for(
            "an end",
            lambda: rig.left() == 0 or "on a transaction is open" in stats.last_error,
            DEADLINE_S,
            lambda: str(stats),
        )
        assert harvester.error is None
    if rig.left():
        end_transactions(broker.bootstrap)
        with rig.harvester(**settings) as harvester:
            rig.wait_empty(harvester)
    records = rig.prove() if strategy == "fenced" else rig.read()
    assert {record.number for record in records} == set(range(rig.filled))


class FullRows(OutboxRows):
    """Rows of a leader whose SQLite file may not grow any more, until the limit is lifted."""

    LIMIT_PAGES = 1 << 30
    full = threading.Event()

    def set_aside(self, row: Any, reason: str, *, held: ShardEpoch | None = None) -> bool:
        (pages,) = self.database.run("PRAGMA page_count").fetchone()
        self.database.run(
            f"PRAGMA max_page_count = {pages if self.full.is_set() else self.LIMIT_PAGES}"
        ).close()
        return super().set_aside(row, reason, held=held)


def test_a_full_sqlite_file_holds_up_what_needs_room_until_there_is_some(
    broker: SessionBroker, fresh_topic: FreshTopic, tmp_path: Path
) -> None:
    """SQLite's own error: a row that is too large for Kafka is to be set aside, for which the file would
    have to grow.
    """
    rig = Rig(
        broker,
        FreshOutbox.make(f"sqlite:///{tmp_path / 'service.db'}"),
        fresh_topic("events", partitions=PARTITIONS),
    )
    rig.fill(100)
    rig.write([rig.record(100, size=2_000_000)])
    rig.filled += 1
    rig.fill(100)

    def make_rows(settings: HarvestSettings) -> OutboxRows:
        return FullRows(settings.database, table=settings.table, layout=settings.layout)

    FullRows.full.set()
    with Alone(rig.settings(attempts=1), make_rows=make_rows) as leader:
        wait_for(
            "the trouble", lambda: leader.stats.restarts > 1, DEADLINE_S, lambda: leader.stats.last_error
        )
        assert "database or disk is full" in leader.stats.last_error
        assert rig.left() > 0
        FullRows.full.clear()
        rig.wait_empty()
    rig.prove(missing=[100])
    with rig.outbox.rows() as rows:
        (aside,) = rows.quarantined(10)
    assert "too large" in aside.reason.lower()
