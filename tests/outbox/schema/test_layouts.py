"""The foreign layouts, column for column: rows of goharvest and Debezium are harvested, and they could read
our rows.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, inspect, select, text
from sqlalchemy.orm import Session

from holdfast.dev.databases.servers import Postgres
from holdfast.errors import ConfigError, OutboxRecordError
from holdfast.outbox.schema.layouts import DebeziumLayout, layout_named
from holdfast.outbox.schema.migrate import downgrade, upgrade
from holdfast.outbox.writer.outbox_writer import OutboxRecord, OutboxWriter
from tests.outbox.databases import DATABASES, FreshOutbox, url_of
from tests.support.places import TESTDATA

VECTORS = json.loads((TESTDATA / "debezium_outbox.json").read_text())

GOHARVEST_DDL = """
CREATE TABLE {table} (
  id                  BIGSERIAL PRIMARY KEY,
  create_time         TIMESTAMP WITH TIME ZONE NOT NULL,
  kafka_topic         VARCHAR(249) NOT NULL,
  kafka_key           VARCHAR(100) NOT NULL,
  kafka_value         VARCHAR(10000),
  kafka_header_keys   TEXT[] NOT NULL,
  kafka_header_values TEXT[] NOT NULL,
  leader_id           UUID
)"""
STASH = (
    "INSERT INTO {table} (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys,"
    " kafka_header_values) VALUES (NOW(), :topic, :key, :value, CAST(:names AS TEXT[]), CAST(:values AS"
    " TEXT[]))"
)
MARK = (
    "UPDATE {table} SET leader_id = :me WHERE id IN (SELECT id FROM {table} WHERE leader_id IS NULL ORDER BY"
    " id LIMIT 9) RETURNING *"
)


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


# --- goharvest ----------------------------------------------------------------------------------------------


def test_a_goharvest_record_comes_back_as_it_was_given(url: str) -> None:
    outbox = FreshOutbox.make(url, "goharvest")
    headers = [("b", "ä,\"'{}\\"), ("a", ""), ("b", "NULL")]
    with Session(outbox.engine()) as session, session.begin():
        outbox.writer().write(session, "orders", "k" * 100, "v" * 10_000, headers=headers)
        outbox.writer().write(session, "orders", "tombstone", None)
    with outbox.rows() as rows:
        full, tombstone = rows.take(10)
    assert (full.topic, full.key, full.value) == ("orders", b"k" * 100, b"v" * 10_000)
    assert full.headers == [(name, value.encode()) for name, value in headers]
    assert (tombstone.value, tombstone.headers, tombstone.flaw, tombstone.bucket) == (None, [], None, 0)
    assert abs((full.created_ms or 0) - (tombstone.created_ms or 0)) < 60_000


def test_a_table_that_goharvest_made_and_filled_is_harvested_in_place(postgres: Postgres) -> None:
    outbox = FreshOutbox(
        url=postgres.url, table=f"g_{uuid.uuid4().hex[:8]}", layout=layout_named("goharvest")
    )
    with outbox.engine().begin() as connection:
        connection.execute(text(GOHARVEST_DDL.format(table=outbox.table)))
        for at, value in enumerate(("one", None)):
            record = {
                "topic": "t",
                "key": f"k{at}",
                "value": value,
                "names": ["Seq"] * at,
                "values": ["1"] * at,
            }
            connection.execute(text(STASH.format(table=outbox.table)), record)
    upgrade(outbox.url, layout="goharvest", table=outbox.table)
    with outbox.rows() as rows:
        taken = rows.take(10)
        assert [(row.key, row.value, row.headers) for row in taken] == [
            (b"k0", b"one", []),
            (b"k1", None, [("Seq", b"1")]),
        ]
        rows.set_aside(taken[0], "poison")
        rows.retry([taken[0].id])
        rows.delete([row.id for row in rows.take(10)])
    downgrade(outbox.url, layout="goharvest", table=outbox.table)
    with outbox.engine().connect() as connection:
        assert inspect(connection).has_table(outbox.table)  # it was theirs


def test_a_running_goharvest_marks_our_rows(postgres: Postgres) -> None:
    outbox = FreshOutbox.make(postgres.url, "goharvest")
    with Session(outbox.engine()) as session, session.begin():
        outbox.writer().write(session, "t", "k", "v", headers={"h": "x"})
        outbox.writer().write(session, "t", "k", None)
    with outbox.engine().begin() as connection:
        marked = sorted(
            connection.execute(text(MARK.format(table=outbox.table)), {"me": str(uuid.uuid4())})
            .mappings()
            .all(),
            key=lambda row: row["id"],
        )
    columns = [
        "id",
        "create_time",
        "kafka_topic",
        "kafka_key",
        "kafka_value",
        "kafka_header_keys",
        "kafka_header_values",
        "leader_id",
    ]
    assert list(marked[0]) == columns
    assert [(row["kafka_value"], row["kafka_header_keys"], row["kafka_header_values"]) for row in marked] == [
        ("v", ["h"], ["x"]),
        (None, [], []),
    ]


GOHARVEST_BAD: dict[str, tuple[dict[str, Any], str]] = {
    "bytes that are no text": (
        {"key": "k", "value": b"\xff"},
        "value is not UTF-8 .* layout goharvest holds text only",
    ),
    "a key that is no text": ({"key": b"\xff"}, "key is not UTF-8"),
    "a NUL": ({"key": "k", "value": "a\0b"}, "NUL character"),
    "a long key": ({"key": "k" * 101}, "key has 101 characters; the layout goharvest holds 100"),
    "a long value": ({"key": "k", "value": "v" * 10_001}, "value has 10001 characters"),
    "no key": ({}, "needs one for every row"),
    "a partition": (
        {"key": "k", "partition": 0},
        "has partition 0, and the layout goharvest has no column for it",
    ),
    "a timestamp": ({"key": "k", "timestamp_ms": 1}, "has timestamp_ms 1"),
    "a null header": ({"key": "k", "headers": {"h": None}}, "no null header values"),
    "a binary header": ({"key": "k", "headers": {"h": b"\xff"}}, "header h is not UTF-8"),
}


@pytest.mark.parametrize("what", GOHARVEST_BAD)
def test_a_value_that_goharvest_cannot_hold_is_refused_before_any_sql(what: str) -> None:
    arguments, said = GOHARVEST_BAD[what]
    with pytest.raises(OutboxRecordError, match=said):
        OutboxWriter(layout="goharvest").write(object(), "orders", **arguments)


# --- Debezium -----------------------------------------------------------------------------------------------


def test_the_event_routers_examples_are_published_as_it_would(url: str) -> None:
    outbox = FreshOutbox.make(url, "debezium")
    with outbox.engine().begin() as connection:
        for example in VECTORS["examples"]:
            connection.execute(insert(outbox.tables.outbox).values(**example["row"]))
    with outbox.rows() as rows:
        taken = rows.take(10)
    for example, row in zip(VECTORS["examples"], taken, strict=True):
        assert (row.topic, row.key) == (example["topic"], example["key"].encode())
        assert row.headers == [("id", example["row"]["id"].encode())]
        assert [name for name, _ in row.headers] == example["header_names"]
        assert (row.value is None) == example["tombstone"]
        assert row.value is None or json.loads(row.value) == json.loads(example["row"]["payload"])


def test_the_table_has_the_routers_columns_and_one_more(postgres: Postgres) -> None:
    outbox = FreshOutbox.make(postgres.url, "debezium")
    with outbox.engine().connect() as connection:
        there = {
            column["name"]: str(column["type"]).lower()
            for column in inspect(connection).get_columns(outbox.table)
        }
    assert there.pop("holdfast_id") == "bigint"
    assert there == {column["name"]: column["type"] for column in VECTORS["columns"]}


def test_the_router_reads_our_rows(url: str) -> None:
    outbox = FreshOutbox.make(url, "debezium")
    id_ = "5f8b7b0a-0d0b-4d3e-9d0a-6f3c2a1b4c5d"
    writer = outbox.writer(value_encoder=lambda value: json.dumps(value).encode())
    with Session(outbox.engine()) as session, session.begin():
        writer.write(session, "outbox.event.order", "42", {"id": 42}, event_id=id_, event_type="OrderCreated")
        writer.write(session, "outbox.event.order", "42", None)
    table = outbox.tables.outbox
    with outbox.engine().connect() as connection:
        first, second = connection.execute(select(table).order_by(table.c.holdfast_id)).mappings().all()
    assert {name: str(first[name]) for name in ("id", "aggregatetype", "aggregateid", "type")} == {
        "id": id_,
        "aggregatetype": "order",
        "aggregateid": "42",
        "type": "OrderCreated",
    }
    assert json.loads(first["payload"]) == {"id": 42}
    assert (second["payload"], second["type"], uuid.UUID(str(second["id"])).version) == (None, "order", 4)


@pytest.mark.parametrize("kind", ["postgres", "mariadb", "mysql"])
def test_a_table_that_debezium_reads_already_gets_a_number_for_its_rows(
    kind: str, request: pytest.FixtureRequest
) -> None:
    outbox = FreshOutbox(
        url=request.getfixturevalue(kind).url,
        table=f"d_{uuid.uuid4().hex[:8]}",
        layout=layout_named("debezium"),
    )
    id_type, payload = ("uuid", "jsonb") if kind == "postgres" else ("char(36)", "json")
    columns = (
        f"id {id_type} PRIMARY KEY, aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL,"
        " type varchar(255) NOT NULL"
    )
    waiting = text(f"INSERT INTO {outbox.table} VALUES (:id, 'order', '1', 'Made', NULL)")
    with outbox.engine().begin() as connection:
        connection.execute(text(f"CREATE TABLE {outbox.table} ({columns}, payload {payload})"))
        connection.execute(waiting, {"id": str(uuid.uuid4())})
    upgrade(outbox.url, layout="debezium", table=outbox.table)
    with (
        outbox.engine().begin() as connection
    ):  # services name their columns, as Debezium's documentation does
        named = "(id, aggregatetype, aggregateid, type, payload)"
        connection.execute(
            text(f"INSERT INTO {outbox.table} {named} VALUES (:id, 'order', '2', 'Made', NULL)"),
            {"id": str(uuid.uuid4())},
        )
    with outbox.rows() as rows:
        assert [(row.id, row.key) for row in rows.take(10)] == [(1, b"1"), (2, b"2")]
    downgrade(outbox.url, layout="debezium", table=outbox.table)
    with outbox.engine().begin() as connection:
        connection.execute(waiting, {"id": str(uuid.uuid4())})  # as it was


def test_another_prefix_and_a_header_for_the_type_follow_the_routers_settings(postgres: Postgres) -> None:
    outbox = FreshOutbox.make(postgres.url, DebeziumLayout(topic_prefix="events.", type_header="eventType"))
    with Session(outbox.engine()) as session, session.begin():
        outbox.writer().write(session, "events.order", "1", "[]", event_type="OrderMade")
    with outbox.rows() as rows:
        (row,) = rows.take(1)
        assert (row.topic, row.headers[1]) == ("events.order", ("eventType", b"OrderMade"))
        rows.attempt_failed(row, "no such topic", retry_at_ms=2**60)
        assert rows.take(1) == []
        with Session(outbox.engine()) as session, session.begin():
            outbox.writer().write_many(
                session, [OutboxRecord(topic="events.order", key=key, value="1") for key in ("1", "2")]
            )
        assert [each.key for each in rows.take(10)] == [b"2"]


DEBEZIUM_BAD: dict[str, tuple[dict[str, Any], str]] = {
    "another topic": ({"topic": "orders", "key": "k"}, r"publishes to outbox\.event\.<aggregatetype> only"),
    "no aggregate": ({"topic": "outbox.event.", "key": "k"}, "publishes to"),
    "no key": ({}, "needs an aggregateid"),
    "headers": ({"key": "k", "headers": {"a": "1"}}, "has headers"),
    "no JSON": ({"key": "k", "value": "{"}, "is not JSON"),
    "no UUID": ({"key": "k", "event_id": "7"}, "'7' is not a UUID"),
    "a partition": ({"key": "k", "partition": 1}, "has partition 1"),
}


@pytest.mark.parametrize("what", DEBEZIUM_BAD)
def test_a_value_that_debezium_cannot_hold_is_refused_before_any_sql(what: str) -> None:
    arguments, said = DEBEZIUM_BAD[what]
    with pytest.raises(OutboxRecordError, match=said):
        OutboxWriter(layout="debezium").write(object(), **({"topic": "outbox.event.order"} | arguments))


def test_an_unknown_layout_is_named_with_those_there_are() -> None:
    with pytest.raises(
        ConfigError, match="no outbox layout 'kafka'; choose one of holdfast, goharvest, debezium"
    ):
        OutboxWriter(layout="kafka")
