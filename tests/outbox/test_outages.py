"""Brokers that die, disks that are full, databases that may only be read: what is said, and that it goes on by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from holdfast.dev.databases import Postgres
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from tests.harness import wait_for
from tests.outbox.databases import FreshOutbox
from tests.outbox.harvesting import DEADLINE_S, PARTITIONS, Alone, Rig

pytestmark = pytest.mark.broker

FULL = """
CREATE FUNCTION {table}_full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  RAISE EXCEPTION 'could not extend file "base/5/16384": No space left on device' USING ERRCODE = 'disk_full';
END $$;
CREATE TRIGGER full_disk BEFORE DELETE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION {table}_full()
"""


@contextmanager
def read_only(postgres: Postgres, _: str) -> Iterator[None]:
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


@contextmanager
def full(postgres: Postgres, table: str) -> Iterator[None]:
    """Let deletions fail as they do on a full disk, with the server's own code for it."""
    with closing(postgres.connect()) as connection:
        connection.autocommit = True
        connection.execute(FULL.format(table=table))
        try:
            yield
        finally:
            connection.execute(f"DROP TRIGGER full_disk ON {table}")


READ_ONLY, FULL_DISK = "read-only transaction", "No space left on device"


@pytest.mark.parametrize(
    ("strategy", "layout", "trouble", "said"),
    [
        ("fenced", "holdfast", read_only, READ_ONLY),
        ("fenced", "holdfast", full, FULL_DISK),
        pytest.param("mark", "goharvest", read_only, READ_ONLY, marks=pytest.mark.slow),
        ("mark", "goharvest", full, FULL_DISK),
    ],
)
def test_a_database_that_takes_no_writes_is_named_and_waited_for(
    broker: SessionBroker, fresh_topic: FreshTopic, postgres: Postgres, strategy: str, layout: str, trouble: object, said: str
) -> None:
    rig = Rig(broker, FreshOutbox.make(postgres.url, layout), fresh_topic("events", partitions=PARTITIONS))
    rig.fill(1_000)
    with Alone(rig.settings(strategy=strategy, batch_rows=20)) as leader:
        with trouble(postgres, rig.outbox.table):  # type: ignore[operator]
            wait_for("the trouble", lambda: said in leader.stats.last_error, DEADLINE_S, lambda: leader.stats.last_error)
            wait_for("another attempt", lambda: leader.stats.restarts > 1, DEADLINE_S)
            assert rig.left() > 0
        rig.wait_empty()
    assert postgres.url.rpartition("/")[2] in leader.stats.last_error, "it says which database"
    records = rig.prove() if strategy == "fenced" else rig.read()
    assert {record.number for record in records} == set(range(1_000))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "layout", "away_s"), [("fenced", "holdfast", 0.0), ("mark", "goharvest", 0.0), ("fenced", "holdfast", 60.0)]
)
def test_a_broker_that_is_killed_and_comes_back_costs_nothing(
    broker: SessionBroker, fresh_topic: FreshTopic, postgres: Postgres, strategy: str, layout: str, away_s: float
) -> None:
    """O7: SIGKILL of the broker while rows flow; away for longer than a session, a transaction and a commit may last."""
    assert broker.cluster is not None
    rig = Rig(broker, FreshOutbox.make(postgres.url, layout), fresh_topic("events", partitions=PARTITIONS))
    rig.fill(2_000)
    with rig.harvester(strategy=strategy, batch_rows=50) as harvester:
        wait_for("some rows", lambda: harvester.stats[0].published, DEADLINE_S)
        broker.cluster.kill(1)
        try:
            rig.fill(500)
            time.sleep(away_s)
        finally:
            broker.cluster.restart(1)
        rig.wait_empty(harvester, 90.0)
        assert harvester.error is None
    records = rig.prove() if strategy == "fenced" else rig.read()
    assert {record.number for record in records} == set(range(rig.filled))
