"""The databases that every outbox contract runs on, and one fresh outbox on them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.pool import NullPool

from holdfast.dev.databases.server import DatabaseServer
from holdfast.outbox.harvest.table.rows import OutboxRows
from holdfast.outbox.schema.layouts import Layout, layout_named
from holdfast.outbox.schema.migrate import upgrade
from holdfast.outbox.schema.tables import OutboxTables, database_url, outbox_tables
from holdfast.outbox.writer.outbox_writer import OutboxWriter

DATABASES = ("postgres", "mariadb", "mysql", "sqlite")
LAYOUTS = ("holdfast", "goharvest", "debezium")


def url_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """Return the address of one database of this kind; servers are those of the session."""
    if kind == "sqlite":
        (folder / "service.db").touch()  # as a service has made it
        return f"sqlite:///{folder / 'service.db'}"
    server: DatabaseServer = request.getfixturevalue(kind)
    assert server.is_running, (
        f"{kind} does not run any more: an earlier test left it dead, or it ended by itself\n"
        + (server.folder / "server.log").read_text(errors="replace")[-4000:]
    )
    return str(server.url)


@contextmanager
def killed(server: DatabaseServer) -> Iterator[None]:
    """Kill a server of the session, and start it again after the block, whatever happens there."""
    server.kill()
    try:
        yield
    finally:
        server.restart()


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshOutbox:
    """An outbox that no other test has, migrated."""

    url: str
    table: str
    layout: Layout

    @classmethod
    def make(cls, url: str, layout: str | Layout = "holdfast") -> FreshOutbox:
        """Return a new one in the database at *url*."""
        made = cls(url=url, table=f"o_{uuid.uuid4().hex[:12]}", layout=layout_named(layout))
        upgrade(url, layout=made.layout, table=made.table)
        return made

    @property
    def dialect(self) -> str:
        """The kind of database, as SQLAlchemy names it."""
        return database_url(self.url).get_backend_name()

    @property
    def tables(self) -> OutboxTables:
        """Its tables."""
        return outbox_tables(self.layout, self.table, dialect=self.dialect)

    def engine(self, **more: object) -> Engine:
        """Return an engine that keeps no connection."""
        return create_engine(database_url(self.url), poolclass=NullPool, **more)

    def rows(self, **more: object) -> OutboxRows:
        """Return the rows as a harvester uses them; close the result."""
        return OutboxRows(self.url, table=self.table, layout=self.layout, **more)  # type: ignore[arg-type]

    def writer(self, **more: object) -> OutboxWriter:
        """Return the writer of a service."""
        return OutboxWriter(table=self.table, layout=self.layout, **more)  # type: ignore[arg-type]
