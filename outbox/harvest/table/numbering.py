"""Detects that the numbers of an outbox's rows began again, and keeps notes for that in the database.

A table that was emptied with its numbers, restored from a backup, or lost its last commits in a failover
gives numbers a second time. What a database gave last, where it lets this user ask, is compared with the
highest that was published. The lease table notes that of each shard, in a row of the number -1 - shard, with
a token that distinguishes this outbox from another of the same name.
"""

from __future__ import annotations

import secrets
from typing import Any

import msgspec
from sqlalchemy import Table

from holdfast.errors import OutboxDatabaseError
from holdfast.outbox.schema.columns import MYSQL
from holdfast.outbox.schema.database import Database


class Noted(msgspec.Struct, frozen=True, kw_only=True):
    """The database's note about one shard's numbers."""

    outbox: str
    highest: int = 0
    again_from: int = 0
    again_ms: int = 0

    def packed(self) -> str:
        """Return all but the highest, as one text."""
        return f"{self.outbox}/{self.again_from}/{self.again_ms}"

    @staticmethod
    def read(highest: int, packed: str) -> Noted:
        """Return the decoded note; an unreadable one counts as none."""
        fields = str(packed).split("/")
        if len(fields) != 3 or not (fields[1].isdigit() and fields[2].isdigit()):
            return Noted(outbox="")
        return Noted(
            outbox=fields[0], highest=int(highest), again_from=int(fields[1]), again_ms=int(fields[2])
        )


def new_token() -> str:
    """Return a token for an outbox that has none."""
    return secrets.token_hex(8)


class Numbering:
    """Asks a database for the last number that it gave to a row of one outbox."""

    def __init__(self, database: Database, table: Table, column: str) -> None:
        self._database, self._table, self._column = database, table, column
        self._sequence: str | None = None
        self._is_asked = False

    def last(self) -> int | None:
        """Return it, 0 for none since numbers began; None where it cannot be known: the column is numbered
        by something else, or this user may not ask.
        """
        match self._database.name:
            case "postgresql":
                return self._of_postgres()
            case name if name in MYSQL:
                return self._of_mysql()
            case _:
                return self._of_sqlite()

    def _of_postgres(self) -> int | None:
        if not self._is_asked:
            found = self._database.rows(
                "SELECT CASE WHEN has_sequence_privilege(numbers, 'SELECT') THEN numbers::regclass::text END"
                " FROM (SELECT pg_get_serial_sequence(%(table)s, %(column)s) AS numbers) AS named",
                {"table": self._database.quoted(self._table), "column": self._column},
            )
            self._sequence, self._is_asked = found[0][0] if found else None, True
        if self._sequence is None:
            return None
        name = self._sequence.decode() if isinstance(self._sequence, bytes) else self._sequence
        ((last, is_called),) = self._database.rows(f"SELECT last_value, is_called FROM {name}")
        return int(last) if is_called else int(last) - 1

    def _of_mysql(self) -> int | None:
        # MySQL 8 otherwise answers from what it knew up to a day ago.
        self._database.run(
            "SET @holdfast = 0 /*!80000 , SESSION information_schema_stats_expiry = 0 */"
        ).close()
        found = self._database.rows(
            "SELECT auto_increment FROM information_schema.tables"
            " WHERE table_schema = coalesce(%(schema)s, database()) AND table_name = %(table)s",
            {"schema": self._table.schema, "table": self._table.name},
        )
        return None if not found or found[0][0] is None else int(found[0][0]) - 1

    def _of_sqlite(self) -> int | None:
        schema = f'"{self._table.schema}".' if self._table.schema else ""
        named = {"table": self._table.name}
        counted = f"SELECT 1 FROM {schema}sqlite_master WHERE name = 'sqlite_sequence'"
        made = self._database.rows(
            f"SELECT sql FROM {schema}sqlite_master WHERE type = 'table' AND name = :table", named
        )
        if not made or "AUTOINCREMENT" not in str(made[0][0]).upper() or not self._database.rows(counted):
            return None
        found: list[Any] = self._database.rows(
            f"SELECT seq FROM {schema}sqlite_sequence WHERE name = :table", named
        )
        return int(found[0][0] or 0) if found else 0

    def last_if_known(self) -> int | None:
        """Return the value of `last`, None also if the database refuses the question."""
        try:
            return self.last()
        except OutboxDatabaseError as error:
            if error.is_lost:
                raise
            return None
