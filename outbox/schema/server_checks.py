"""Checks of a database's own settings, and of other objects on an outbox's tables.

A problem loses, changes or repeats rows, or keeps them; a note is worth knowing and may be meant so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.engine import Connection

from holdfast.outbox.schema.tables import OutboxTables

LEAST_PACKET_BYTES: Final = 16 << 20
TEXT_LAYOUTS: Final = ("goharvest", "debezium")

Finding = tuple[bool, str]
"""True for a problem, and its text."""


def server_findings(connection: Connection, tables: OutboxTables) -> tuple[list[str], list[str]]:
    """Return the problems and the notes of a database whose tables are there."""
    look: Callable[[Connection, OutboxTables], Iterator[Finding]] = {
        "postgresql": _of_postgres,
        "sqlite": _of_sqlite,
    }.get(connection.dialect.name, _of_mysql)
    found = list(look(connection, tables))
    return [what for is_problem, what in found if is_problem], [
        what for is_problem, what in found if not is_problem
    ]


def _rows(connection: Connection, sql: str, **named: Any) -> list[Any]:
    return list(connection.execute(text(sql), named))


def _one(connection: Connection, sql: str) -> Any:
    return connection.execute(text(sql)).scalar()


# --- PostgreSQL --------------------------------------------------------------------------------------------

_PG_TABLES = """
SELECT c.oid, n.nspname, c.relname, c.relkind::text, c.relpersistence::text, c.relreplident::text,
  c.relrowsecurity, row_security_active(c.oid),
  EXISTS (SELECT 1 FROM pg_publication_tables p WHERE p.schemaname = n.nspname AND p.tablename = c.relname),
  EXISTS (SELECT 1 FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(:name)
"""


def _of_postgres(connection: Connection, tables: OutboxTables) -> Iterator[Finding]:
    named = dict(
        _rows(
            connection,
            "SELECT name, setting FROM pg_settings WHERE name IN ('server_encoding', 'TimeZone',"
            " 'standard_conforming_strings', 'default_transaction_isolation',"
            " 'default_transaction_read_only', 'session_replication_role')",
        )
    )
    encoding = named["server_encoding"]
    if encoding != "UTF8":
        wider = tables.layout.name in TEXT_LAYOUTS
        yield (
            encoding == "SQL_ASCII" and wider,
            f"server_encoding is {encoding}: "
            + (
                "texts are stored unchecked, as whatever bytes a client sends"
                if encoding == "SQL_ASCII"
                else "texts with characters that it lacks are refused"
            )
            + ("; make the database with ENCODING 'UTF8'" if wider else "; keys and values are bytes here"),
        )
    if named["standard_conforming_strings"] != "on":
        yield (
            False,
            (
                "standard_conforming_strings is off: holdfast's own statements do not depend on it, but"
                " programs"
                " that write rows by SQL of their own may store other bytes; set it on"
            ),
        )
    if _one(connection, "SELECT pg_is_in_recovery()"):
        yield True, "the server is a standby, which cannot be written: name the primary in the URL"
    elif named["default_transaction_read_only"] == "on":
        yield True, "default_transaction_read_only is on: harvesters of this user cannot delete rows"
    if named["default_transaction_isolation"] not in ("read committed", "read uncommitted"):
        yield (
            False,
            (
                f"default_transaction_isolation is {named['default_transaction_isolation']}: harvesters set"
                " read"
                " committed for themselves"
            ),
        )
    if named["session_replication_role"] == "replica":
        yield False, "session_replication_role is replica: triggers and foreign keys do nothing here"
    zone = named["TimeZone"]
    if tables.layout.name == "goharvest" and "without" in str(_pg_type(connection, tables, "create_time")):
        yield (
            zone not in ("UTC", "Etc/UTC"),
            f"column create_time has no time zone, and the server's is {zone}: set UTC",
        )
    for each in tables.every:
        yield from _of_postgres_table(
            connection, tables, connection.dialect.identifier_preparer.format_table(each)
        )


def _pg_type(connection: Connection, tables: OutboxTables, column: str) -> Any:
    return _rows(
        connection,
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = to_regclass(:name) AND attname = :column",
        name=connection.dialect.identifier_preparer.format_table(tables.outbox),
        column=column,
    )


def _of_postgres_table(connection: Connection, tables: OutboxTables, name: str) -> Iterator[Finding]:
    for oid, schema, table, kind, persistence, identity, _, secured, published, keyed in _rows(
        connection, _PG_TABLES, name=name
    ):
        if kind not in ("r", "p"):
            yield True, f"{name} is no table, but a view or foreign table: its rows may not be deletable"
        if persistence == "u":
            yield False, f"{name} is UNLOGGED: a crash of the server empties it, and its rows are lost"
        if secured:
            yield (
                False,
                (
                    f"row security applies to this user on {name}: rows that its policies hide are neither"
                    " published nor deleted; give the harvester's user BYPASSRLS, or policies that allow all"
                ),
            )
        if published and (identity == "n" or (identity == "d" and not keyed)):
            yield (
                True,
                (
                    f"{name} is in a publication and has no replica identity: the server refuses to"
                    " delete from"
                    f" it; ALTER TABLE {name} REPLICA IDENTITY FULL, or give it a primary key"
                ),
            )
        for rule, of in _rows(
            connection,
            "SELECT rulename, definition FROM pg_rules WHERE schemaname = :schema AND tablename = :table",
            schema=schema,
            table=table,
        ):
            yield True, f"rule {rule} on {name} rewrites its statements ({' '.join(of.split())}); drop it"
        for (trigger,) in _rows(
            connection,
            "SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = :oid AND NOT tgisinternal AND"
            " tgenabled <> 'D'",
            oid=oid,
        ):
            yield False, f"a trigger on {name}: {trigger}"
        for column, _ in _rows(
            connection,
            "SELECT attname, attgenerated::text FROM pg_attribute WHERE attrelid = :oid AND attnum > 0 AND"
            " attgenerated <> ''",
            oid=oid,
        ):
            if column in tables.layout.written or column == tables.layout.stamped:
                yield True, f"column {name}.{column} is generated: what a service writes to it is refused"


# --- MySQL and MariaDB -------------------------------------------------------------------------------------


def _of_mysql(connection: Connection, tables: OutboxTables) -> Iterator[Finding]:
    modes = set(str(_one(connection, "SELECT @@global.sql_mode") or "").split(","))
    if not modes & {"STRICT_TRANS_TABLES", "STRICT_ALL_TABLES"}:
        yield (
            False,
            (
                "sql_mode is not strict: values that do not fit a column are cut without an error, those of"
                " programs that write by SQL of their own too; add STRICT_TRANS_TABLES"
            ),
        )
    if "NO_BACKSLASH_ESCAPES" in modes:
        yield (
            False,
            (
                "sql_mode has NO_BACKSLASH_ESCAPES: holdfast's own statements do not depend on it, but"
                " programs"
                " that escape with backslashes store other bytes"
            ),
        )
    packet = int(_one(connection, "SELECT @@global.max_allowed_packet"))
    if packet < LEAST_PACKET_BYTES:
        yield (
            False,
            (
                f"max_allowed_packet is {packet}: a row takes four thirds of its size in the statement that"
                f" writes it, so rows above {packet * 3 // 4} bytes are refused; 16M is usual"
            ),
        )
    if int(_one(connection, "SELECT @@global.read_only") or 0):
        yield True, "the server is read-only, as a replica is: name the primary in the URL"
    variables = dict(
        _rows(connection, "SHOW VARIABLES WHERE Variable_name IN ('tx_isolation', 'transaction_isolation')")
    )
    isolation = next(iter(variables.values()), "REPEATABLE-READ")
    if isolation not in ("REPEATABLE-READ", "READ-COMMITTED"):
        yield (
            False,
            f"the isolation of transactions is {isolation}: harvesters set REPEATABLE READ for themselves",
        )
    for each in tables.every:
        yield from _of_mysql_table(connection, tables, each)


def _of_mysql_table(connection: Connection, tables: OutboxTables, table: Any) -> Iterator[Finding]:
    name = table.fullname
    at = {"schema": table.schema, "table": table.name}
    where = "table_schema = coalesce(:schema, database()) AND table_name = :table"
    for engine, kind in _rows(
        connection, f"SELECT engine, table_type FROM information_schema.tables WHERE {where}", **at
    ):
        if str(engine or "").lower() != "innodb":
            yield (
                True,
                (
                    f"{name} is {str(kind).lower()} of engine {engine}: what is rolled back stays, and is"
                    f" published; ALTER TABLE {name} ENGINE=InnoDB"
                ),
            )
    for trigger, event in _rows(
        connection,
        "SELECT trigger_name, event_manipulation FROM information_schema.triggers WHERE event_object_schema"
        " = coalesce(:schema, database()) AND event_object_table = :table",
        **at,
    ):
        yield False, f"a trigger on {name}: {trigger} at {event}"
    for column, charset, expression in _rows(
        connection,
        "SELECT column_name, character_set_name, generation_expression FROM information_schema.columns WHERE"
        f" {where}",
        **at,
    ):
        if expression and (column in tables.layout.written or column == tables.layout.stamped):
            yield True, f"column {name}.{column} is generated: what a service writes to it is refused"
        if charset not in (None, "utf8mb4", "binary") and column in tables.layout.written:
            # A topic of Kafka's is ASCII in any of them.
            narrow = tables.layout.name in TEXT_LAYOUTS and column != tables.layout.topic
            yield (
                narrow,
                (
                    f"column {name}.{column} has the character set {charset}, which lacks some: a server"
                    " that is not strict stores ? for them; use utf8mb4"
                ),
            )


# --- SQLite ------------------------------------------------------------------------------------------------


def _of_sqlite(connection: Connection, tables: OutboxTables) -> Iterator[Finding]:
    encoding = _one(connection, "PRAGMA encoding")
    if encoding != "UTF-8":
        yield False, f"the file's texts are {encoding}: text given where bytes belong is stored in it"
    if str(_one(connection, "PRAGMA journal_mode")).lower() != "wal":
        yield False, "the journal is not in WAL mode: a harvester's reading delays the service; run init"
    for each in tables.every:
        named = {"name": each.name}
        for kind, sql in _rows(connection, "SELECT type, sql FROM sqlite_master WHERE name = :name", **named):
            if kind != "table":
                yield True, f"{each.name} is a {kind}: its rows may not be deletable"
            elif each is tables.outbox and "AUTOINCREMENT" not in str(sql).upper():
                yield (
                    False,
                    (
                        f"{each.name} is without AUTOINCREMENT: its numbers begin again whenever it is empty;"
                        " rows are told apart by what they hold"
                    ),
                )
        for trigger, of in _rows(
            connection,
            "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = :name",
            **named,
        ):
            yield False, f"a trigger on {each.name}: {trigger}: {' '.join(str(of).split())}"
        quoted = connection.dialect.identifier_preparer.quote(each.name)
        if _rows(connection, f"PRAGMA foreign_key_list({quoted})"):
            yield (
                False,
                (
                    f"{each.name} has foreign keys, and a harvester's connection does not check them (PRAGMA"
                    " foreign_keys is off)"
                ),
            )
        for column in _rows(connection, f"PRAGMA table_xinfo({quoted})"):
            if column[6] in (2, 3) and column[1] in tables.layout.written:
                yield (
                    True,
                    f"column {each.name}.{column[1]} is generated: what a service writes to it is refused",
                )
