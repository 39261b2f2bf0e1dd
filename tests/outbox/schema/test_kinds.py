"""Foreign tables, whatever types their columns have: `init` and `check` take those that are published as they
were written, and no others.

Each layout, each of its columns, many types, each database: an accepted type is written by plain SQL, taken,
held, set aside, put back, and comes out byte by byte; another is refused with the column, the type found and
the types accepted, and nothing is made.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import inspect

from holdfast.dev.databases.servers import Postgres
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from holdfast.errors import OutboxSchemaError
from holdfast.outbox.schema.database import Database
from holdfast.outbox.schema.layouts import OutboxRow, layout_named
from holdfast.outbox.schema.migrate import downgrade, upgrade
from holdfast.outbox.schema.tables import problems
from tests.outbox.databases import DATABASES, FreshOutbox, url_of
from tests.outbox.harvesting import PARTITIONS, Alone, Rig

TEXT = {
    "postgres": ["varchar(255)", "varchar", "text", "char(20)", "bytea", "uuid", "bigint", "integer", "smallint", "numeric", "jsonb", "json",  # noqa: E501
                 "timestamptz", "boolean", "text[]"],
    "mysql": ["varchar(255)", "tinytext", "text", "mediumtext", "longtext", "char(20)", "varbinary(255)", "binary(20)", "blob", "bigint",  # noqa: E501
              "int", "decimal(20,4)", "json", "datetime", "enum('a','b')"],
    "sqlite": ["varchar(255)", "text", "char(20)", "clob", "blob", "integer", "bigint", "numeric", "json", "datetime", "real", ""],  # noqa: E501
}  # fmt: skip
TEXT["mariadb"] = [*TEXT["mysql"], "uuid"]
BYTES = {
    "postgres": [],
    "mysql": ["tinyblob", "mediumblob", "longblob", "varbinary(300)"],
    "mariadb": ["tinyblob", "mediumblob", "longblob", "varbinary(300)"],
    "sqlite": [],
}
DEFAULTS: dict[str, dict[str, dict[str, str]]] = {
    "debezium": {
        "postgres": {"id": "uuid", "aggregatetype": "varchar(255)", "aggregateid": "varchar(255)", "type": "varchar(255)", "payload": "jsonb"},  # noqa: E501
        "mysql": {"id": "char(36)", "aggregatetype": "varchar(255)", "aggregateid": "varchar(255)", "type": "varchar(255)", "payload": "json"},  # noqa: E501
        "sqlite": {"id": "text", "aggregatetype": "text", "aggregateid": "text", "type": "text", "payload": "text"},  # noqa: E501
    },
    "goharvest": {
        "postgres": {
            "create_time": "timestamptz", "kafka_topic": "varchar(249)", "kafka_key": "varchar(100)", "kafka_value": "varchar(10000)",  # noqa: E501
            "kafka_header_keys": "text[]", "kafka_header_values": "text[]", "leader_id": "uuid",
        },
        "mysql": {
            "create_time": "datetime", "kafka_topic": "varchar(249)", "kafka_key": "varchar(100)", "kafka_value": "varchar(10000)",  # noqa: E501
            "kafka_header_keys": "text", "kafka_header_values": "text", "leader_id": "char(36)",
        },
        "sqlite": {
            "create_time": "datetime", "kafka_topic": "text", "kafka_key": "text", "kafka_value": "text",
            "kafka_header_keys": "text", "kafka_header_values": "text", "leader_id": "text",
        },
    },
}  # fmt: skip
NUMBER = {
    "postgres": "bigserial PRIMARY KEY",
    "mysql": "bigint AUTO_INCREMENT PRIMARY KEY",
    "sqlite": "integer PRIMARY KEY AUTOINCREMENT",
}
NULLS = {"payload", "kafka_value", "leader_id"}
TEXTS = ["key-1", "042", "1.0", "1e2", "Ä'\"\\x00ff\n", " blank at the end ", "a"]
BINARIES = [b"\x00\xff", b"\x00\x00", b"\\x00ff", b"", b"plain", b"ends in blank  \x00", bytes(range(1, 256))]
TOPIC = re.compile(r"[A-Za-z0-9._-]+")
JSONS = ['{"a":1}', '"text"', "42", "null", "[]"]
UUIDS = ["5f8b7b0a-0d0b-4d3e-9d0a-6f3c2a1b4c5d", "00000000-0000-0000-0000-000000000001"]
ARRAYS = ['["a"]', "[]"]


def family(kind: str) -> str:
    return "mysql" if kind == "mariadb" else kind


def values(type_: str, column: str) -> Sequence[Any]:
    """Return the values that a service may write into *column* of this type."""
    if column.startswith("kafka_header"):
        return ARRAYS
    if type_.startswith("json"):
        return JSONS
    if column == "create_time":
        return ["2026-01-01 00:00:00"]
    if column in ("id", "leader_id"):
        return UUIDS
    if any(each in type_ for each in ("blob", "bytea", "binary")):
        return BINARIES
    return TEXTS


def columns_tried(layout: str) -> list[str]:
    return [*DEFAULTS[layout]["postgres"]]


class Table:
    """A table that another program made."""

    def __init__(self, url: str, kind: str, layout: str, types: Mapping[str, str]) -> None:
        self.url, self.kind, self.types = url, kind, types
        self.outbox = FreshOutbox(url=url, table=f"k_{uuid.uuid4().hex[:12]}", layout=layout_named(layout))
        self.database = Database(url)
        order = self.outbox.layout.order if layout == "goharvest" or kind != "postgres" else ""
        names = [f"{order} {NUMBER[family(kind)]}"] if order else []
        names += [f"{name} {type_} {'' if name in NULLS else 'NOT NULL'}" for name, type_ in types.items()]
        self.database.run(f"CREATE TABLE {self.outbox.table} ({', '.join(names)})").close()

    def insert(self, row: Mapping[str, Any]) -> None:
        marks = [f":{name}" if self.kind == "sqlite" else f"%({name})s" for name in row]
        for at, name in enumerate(row):
            if self.kind == "postgres" and isinstance(row[name], str):
                marks[at] += (
                    f"::{self.types[name]}" if self.types[name] not in ("text[]", "varchar[]") else ""
                )
        self.database.run(
            f"INSERT INTO {self.outbox.table} ({', '.join(row)}) VALUES ({', '.join(marks)})", row
        ).close()

    def close(self) -> None:
        self.database.run(f"DROP TABLE {self.outbox.table}").close()
        self.database.close()


def sample(layout: str, kind: str, number: int) -> dict[str, Any]:
    if layout == "debezium":
        return {
            "id": str(uuid.UUID(int=number + 99)),
            "aggregatetype": "order",
            "aggregateid": "k",
            "type": "t",
            "payload": '{"a":1}',
        }
    empty: Any = [] if kind == "postgres" else "[]"
    return {
        "create_time": "2026-01-01 00:00:00", "kafka_topic": "order", "kafka_key": "k", "kafka_value": "v",
        "kafka_header_keys": empty, "kafka_header_values": empty, "leader_id": None,
    }  # fmt: skip


def seen(row: OutboxRow, column: str) -> Any:
    """Return the value of *column* in a row that is to be published."""
    match column:
        case "aggregatetype" | "kafka_topic":
            return row.topic.removeprefix("outbox.event.").encode()
        case "aggregateid" | "kafka_key":
            return row.key
        case "payload" | "kafka_value":
            return row.value
        case "id":
            return dict(row.headers)["id"]
        case _:
            return None


def written(table: Table, column: str, type_: str, value: Any) -> bytes:
    """Return the bytes of *value*, JSON as the database itself prints it."""
    if isinstance(value, bytes):
        return value
    if type_ in ("json", "jsonb") and table.kind == "postgres":
        ((value,),) = table.database.rows(f"SELECT %(value)s::{type_}::text", {"value": value})
    elif type_ == "json" and table.kind == "mysql":
        ((value,),) = table.database.rows("SELECT CAST(CAST(%(value)s AS JSON) AS CHAR)", {"value": value})
    return str(value).encode()


def prove(table: Table, layout: str, column: str, type_: str) -> None:
    """Write rows by hand and check that each comes out whole: taken, held with what waits for it, set
    aside, put back.
    """
    given = [
        (at, value) for at, value in enumerate(values(type_, column)) if not (column == "leader_id" and at)
    ]
    for at, value in given:
        row = {**sample(layout, table.kind, at), column: value}
        if column == "kafka_header_keys":
            row["kafka_header_values"] = value
        elif column == "kafka_header_values":
            row["kafka_header_keys"] = value
        if table.kind == "postgres" and column.startswith("kafka_header"):
            row |= dict.fromkeys(("kafka_header_keys", "kafka_header_values"), ["a"] if "a" in value else [])
        table.insert(row)
    if column in ("payload", "kafka_value"):
        table.insert({**sample(layout, table.kind, 50), column: None})
    with table.outbox.rows() as rows:
        taken = rows.take(100)
        assert len(taken) >= len(given), (column, type_)
        for (_, value), each in zip(given, taken, strict=False):
            if (found := seen(each, column)) is not None:
                assert found == written(table, column, type_, value), (column, type_, value)
            is_no_topic = column in ("aggregatetype", "kafka_topic") and not TOPIC.fullmatch(value)
            assert (each.flaw is not None) == is_no_topic
        if column in ("payload", "kafka_value"):
            assert taken[-1].value is None
        rows.attempt_failed(taken[0], "refused", retry_at_ms=2**50)
        waiting = {each.id for each in taken if (each.topic, each.key) == (taken[0].topic, taken[0].key)}
        assert {each.id for each in rows.take(100)} == {each.id for each in taken} - waiting
        rows.retry_now()
        for each in taken:
            assert rows.set_aside(each, "refused")
        assert rows.retry([each.id for each in taken]) == len(taken)
        again = rows.take(100)
        assert [(row.topic, row.key, row.value, row.headers) for row in again] == [
            (row.topic, row.key, row.value, row.headers) for row in taken
        ]
        rows.delete([row.id for row in again])


def refused(url: str, kind: str, layout: str, type_: str) -> set[str]:
    """Return the columns of *layout* that must not be of this type; with all of them of it, `upgrade` makes
    nothing.
    """
    columns = columns_tried(layout)
    table = Table(url, kind, layout, dict.fromkeys(columns, type_))
    name = table.outbox.table
    try:
        with table.outbox.engine().connect() as connection:
            tables = table.outbox.tables
            told = problems(connection, tables, only=[tables.outbox])
        found = {column for column in columns if any(f"{name}.{column} is " in each for each in told)}
        if found:
            with pytest.raises(
                OutboxSchemaError, match=rf"{name}\.\w+ is \S+.*; this layout takes [A-Z]+"
            ) as error:
                upgrade(url, layout=layout, table=name)
            assert any(f"column {name}.{column} is " in str(error.value) for column in found)
            with table.outbox.engine().connect() as connection:
                assert not inspect(connection).has_table(f"{name}_attempts")
        return found
    finally:
        table.close()


def accept(url: str, kind: str, layout: str, column: str, type_: str) -> None:
    """Prove that *column* may be of this type, whatever the others are by default."""
    table = Table(url, kind, layout, {**DEFAULTS[layout][family(kind)], column: type_})
    try:
        upgrade(url, layout=layout, table=table.outbox.table)
        with table.outbox.engine().connect() as connection:
            assert problems(connection, table.outbox.tables) == []
        prove(table, layout, column, type_)
        downgrade(url, layout=layout, table=table.outbox.table)
    finally:
        table.close()


@pytest.mark.variants(
    "mysql-debezium", "mariadb-debezium", "mysql-goharvest", "mariadb-goharvest", "postgres-goharvest"
)
@pytest.mark.long
@pytest.mark.parametrize("layout", ["debezium", "goharvest"])
@pytest.mark.parametrize("kind", DATABASES)
def test_an_accepted_type_is_published_as_it_was_written_and_the_rest_is_refused(
    kind: str, layout: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = url_of(kind, request, tmp_path)
    accepted = {column: [type_] for column, type_ in DEFAULTS[layout][family(kind)].items()}
    for type_ in [*TEXT[kind], *BYTES[kind]]:
        for column in {*columns_tried(layout)} - refused(url, kind, layout, type_):
            if type_ not in accepted[column] and (type_ not in BYTES[kind] or column == "payload"):
                accepted[column].append(type_)
    for column, types in accepted.items():
        for type_ in types:
            accept(url, kind, layout, column, type_)
    if layout == "debezium":
        binary = {"postgres": "bytea", "sqlite": "blob"}.get(kind, "varbinary(255)")
        assert binary in accepted["payload"]
        assert not {"bigint", "uuid", "integer", "int"} & set(accepted["aggregateid"])
        assert ("char(20)" in accepted["aggregateid"]) == (kind == "sqlite"), (
            "only there it pads and trims nothing"
        )


@pytest.mark.parametrize("column", ["id", "aggregateid", "payload"])
@pytest.mark.parametrize(
    "made",
    ["TYPE {} AS ENUM ('k', 'l')", "DOMAIN {} AS bigint", "DOMAIN {} AS text", "text", "name", '"char"'],
)
def test_a_type_is_judged_by_what_it_is_and_not_by_what_its_name_begins_with(
    made: str, column: str, postgres: Postgres
) -> None:
    """An enum named text_kind passed for TEXT:

    `init` and `check` took it, and the harvester could not compare a row of it.
    """
    named = f"text_{uuid.uuid4().hex[:8]}"
    type_ = named if "{}" in made else made
    with closing(postgres.connect()) as connection:
        if type_ == named:
            connection.execute(f"CREATE {made.format(named)}")
            connection.commit()
    table = Table(postgres.url, "postgres", "debezium", {**DEFAULTS["debezium"]["postgres"], column: type_})
    try:
        if type_ == "text":
            upgrade(postgres.url, layout="debezium", table=table.outbox.table)
        else:
            with pytest.raises(OutboxSchemaError, match=rf"\.{column} is .*; this layout takes "):
                upgrade(postgres.url, layout="debezium", table=table.outbox.table)
    finally:
        table.close()


def test_avro_in_a_column_of_bytes_reaches_the_topic_as_bytes(
    broker: SessionBroker, fresh_topic: FreshTopic, postgres: Postgres
) -> None:
    """The two bytes 00 ff were published as six characters, and the row was gone."""
    topic = fresh_topic("outbox.event.order", partitions=PARTITIONS)
    types = {**DEFAULTS["debezium"]["postgres"], "payload": "bytea"}
    table = Table(postgres.url, "postgres", "debezium", types)
    upgrade(postgres.url, layout="debezium", table=table.outbox.table)
    rig = Rig(broker, table.outbox, topic)
    for at, value in enumerate(BINARIES):
        table.insert(
            {
                **sample("debezium", "postgres", at),
                "aggregatetype": topic.removeprefix("outbox.event."),
                "payload": value,
            }
        )
    with Alone(rig.settings()):
        rig.wait_empty()
    assert [record.value for record in rig.read()] == BINARIES


def test_a_quarantine_that_could_not_hold_the_rows_of_the_outbox_is_reported(postgres: Postgres) -> None:
    """An outbox whose column was changed after `init`, or that an older version made ready."""
    outbox = FreshOutbox.make(postgres.url, "debezium")
    with closing(postgres.connect()) as connection:
        connection.execute(
            f"ALTER TABLE {outbox.table} ALTER COLUMN payload TYPE bytea USING payload::text::bytea"
        )
        connection.execute(f"ALTER TABLE {outbox.table} ALTER COLUMN aggregateid TYPE text")
        connection.commit()
    with outbox.engine().connect() as connection:
        assert problems(connection, outbox.tables) == [
            f"column {outbox.table}_attempts.key is VARCHAR(255), and the outbox's aggregateid is TEXT",
            (
                f"column {outbox.table}_quarantine.aggregateid is VARCHAR(255), and the outbox's aggregateid"
                " is TEXT"
            ),
            f"column {outbox.table}_quarantine.payload is JSONB, and the outbox's payload is BYTEA",
        ]
