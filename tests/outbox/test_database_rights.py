"""The rights of the service and the harvester in the database: with exactly these each does its job, without
any one of them it does not.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import closing

import pytest
from sqlalchemy import create_engine, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from holdfast.dev.databases.servers import Postgres
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from holdfast.errors import HoldfastError
from holdfast.outbox.grants import TableGrant, harvester_table_grants, service_table_grants
from holdfast.outbox.harvest.harvester import Harvester
from holdfast.outbox.settings import Strategy
from tests.outbox.databases import FreshOutbox
from tests.outbox.harvesting import Rig
from tests.support.harness import wait_for
from tests.support.patience import DEADLINE_S

LEAST_S = 18.0
SMALL = {"max.message.bytes": "5000"}


class Role:
    """A user of the database that may do nothing but what it is granted."""

    def __init__(self, postgres: Postgres) -> None:
        self._postgres, self.name, password = postgres, f"role_{uuid.uuid4().hex[:8]}", uuid.uuid4().hex
        self._run(f"CREATE ROLE {self.name} LOGIN PASSWORD '{password}'")
        self.url = (
            make_url(postgres.url)
            .set(username=self.name, password=password)
            .render_as_string(hide_password=False)
        )

    def may(self, grants: Iterable[TableGrant]) -> None:
        """Let it do what *grants* say, and nothing else."""
        self._run(f"REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {self.name}")
        for grant in grants:
            self._run(f"GRANT {grant.privilege} ON {grant.table} TO {self.name}")

    def drop(self) -> None:
        self._run(f"DROP OWNED BY {self.name}")
        self._run(f"DROP ROLE {self.name}")

    def _run(self, statement: str) -> None:
        with closing(self._postgres.connect()) as connection:
            connection.autocommit = True
            connection.execute(statement)


@pytest.fixture
def role(postgres: Postgres) -> Iterator[Role]:
    made = Role(postgres)
    yield made
    made.drop()


def write_as(role: Role, outbox: FreshOutbox, topic: str) -> None:
    engine = create_engine(make_url(role.url).set(drivername="postgresql+psycopg"), poolclass=NullPool)
    with engine.begin() as connection:
        outbox.writer().write(connection, topic, key=b"ada", value=b"one")


def test_a_service_inserts_and_does_nothing_else(role: Role, postgres_outbox: FreshOutbox) -> None:
    grants = service_table_grants(postgres_outbox.tables)
    role.may(grants)
    write_as(role, postgres_outbox, "orders")
    with postgres_outbox.rows() as rows:
        assert rows.count() == 1
    engine = create_engine(make_url(role.url).set(drivername="postgresql+psycopg"), poolclass=NullPool)
    for statement in (f"SELECT * FROM {postgres_outbox.table}", f"DELETE FROM {postgres_outbox.table}"):
        with pytest.raises(DBAPIError, match="permission denied"), engine.begin() as connection:
            connection.exec_driver_sql(statement)
    for without in grants:
        role.may(each for each in grants if each != without)
        with pytest.raises(DBAPIError, match="permission denied"):
            write_as(role, postgres_outbox, "orders")


class Publishing:
    """A job of a harvester: to publish a row, and to set aside one that is too large for its topic, at its
    second attempt.
    """

    def __init__(self, broker: SessionBroker, postgres: Postgres, topic: str, strategy: Strategy) -> None:
        self.strategy, layout = strategy, "goharvest" if strategy is Strategy.MARK else "holdfast"
        self.rig = Rig(broker, FreshOutbox.make(postgres.url, layout), topic)
        self.grants = harvester_table_grants(self.rig.outbox.tables, strategy)

    def run(self, role: Role, patience_s: float) -> float:
        """Do it as *role* and return how long it took; raises when it is not done in *patience_s*."""
        began_s, outbox, published = time.monotonic(), self.rig.outbox, len(self.rig.read())
        with outbox.engine().begin() as connection:
            outbox.writer().write(connection, self.rig.topic, key=b"ada", value=b"one")
            outbox.writer(limit_bytes=None).write(connection, self.rig.topic, key=b"ben", value=b"x" * 9_000)
        settings = self.rig.settings(database=role.url, strategy=self.strategy, attempts=2)
        with outbox.rows() as rows, Harvester(settings) as harvester:
            wait_for("an empty table", lambda: rows.count() == 0, patience_s, lambda: str(harvester.stats))
        assert len(self.rig.read()) == published + 1
        return time.monotonic() - began_s


@pytest.mark.parametrize("strategy", Strategy)
def test_a_harvester_works_with_exactly_its_rights(
    role: Role, broker: SessionBroker, postgres: Postgres, fresh_topic: FreshTopic, strategy: Strategy
) -> None:
    publishing = Publishing(broker, postgres, fresh_topic("events", partitions=4, config=SMALL), strategy)
    role.may(publishing.grants)
    publishing.run(role, DEADLINE_S)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("strategy", Strategy)
def test_a_harvester_fails_without_any_one_of_its_rights(
    role: Role, broker: SessionBroker, postgres: Postgres, fresh_topic: FreshTopic, strategy: Strategy
) -> None:
    publishing = Publishing(broker, postgres, fresh_topic("events", partitions=4, config=SMALL), strategy)
    role.may(publishing.grants)
    patience_s = max(LEAST_S, 9 * publishing.run(role, DEADLINE_S))
    needless = []
    for without in publishing.grants:
        outbox = publishing.rig.outbox
        with outbox.engine().begin() as connection:
            for table in outbox.tables.every:
                connection.execute(table.delete())
        role.may(grant for grant in publishing.grants if grant != without)
        try:
            publishing.run(role, patience_s)
        except (AssertionError, HoldfastError):
            continue
        needless.append(without)
    assert not needless
