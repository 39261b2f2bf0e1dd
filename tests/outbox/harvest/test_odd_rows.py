"""Rows with unintended values: SQLite keeps whatever it is given, and every database takes something that
Kafka does not. Text and bytes are taken for each other; a value without a meaning is set aside,
and all other rows continue.
"""

from __future__ import annotations

import contextlib
import sqlite3
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, make_url, text

from holdfast.clock import ManualClock
from holdfast.dev.databases.servers import Postgres
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from holdfast.errors import OutboxSchemaError
from holdfast.outbox.harvest.table.marks import MarkedRows
from holdfast.outbox.harvest.table.row_types import ShardEpoch
from holdfast.outbox.harvest.table.rows import OutboxRows
from holdfast.outbox.schema.layouts import BUCKETS, OutboxRow, layout_named
from tests.outbox.databases import LAYOUTS, FreshOutbox
from tests.outbox.harvesting import PARTITIONS, Alone, Rig

ODD: tuple[Any, ...] = (
    *(b"bytes", b"", b"\xff\xfe", b"a\0b", b"\x91\x92\xa1h\xc4\x01v", b"x" * 300),
    *("text", "", "a\0b", "\u00e4 b", "x" * 300, "7", "[]", "..", "\x90"),
    *(7, 0, -1, 255, 256, 2**40, 2**63 - 1, -(2**63), 7.5, -0.5, 1e300, float("inf"), None),
)
"""Values that a column of SQLite may be given; also `NOT_UTF8`, which Python's driver cannot bind."""
NOT_UTF8 = "CAST(x'61ff' AS TEXT)"
PLAIN: dict[str, dict[str, Any]] = {
    "holdfast": {
        "bucket": 44,
        "created_ms": 1_764_072_000_000,
        "topic": "orders",
        "key": b"k",
        "value": b"v",
    },
    "goharvest": {
        "create_time": "2026-01-01 00:00:00",
        "kafka_topic": "orders",
        "kafka_key": "k",
        "kafka_value": "v",
        "kafka_header_keys": '["h"]',
        "kafka_header_values": '["x"]',
    },
    "debezium": {
        "id": "5f8b7b0a-0d0b-4d3e-9d0a-6f3c2a1b4c5d",
        "aggregatetype": "order",
        "aggregateid": "k",
        "type": "Made",
        "payload": '{"a":1}',
    },
}
FLAWED = {
    "holdfast": {"id", "bucket", "topic", "key", "value", "headers", "partition", "timestamp_ms"},
    "goharvest": {"id", "kafka_topic", "kafka_header_keys", "kafka_header_values"},
    "debezium": {"holdfast_id", "id", "aggregatetype"},
}
"""Columns that SQLite lets hold something that means nothing. It makes text of numbers in columns of text."""


class File:
    """An outbox in a file of SQLite, into which anything may be put."""

    def __init__(self, folder: Path, layout: str) -> None:
        self.outbox = FreshOutbox.make(f"sqlite:///{folder / f'{layout}.db'}", layout)
        self.connection = sqlite3.connect(str(make_url(self.outbox.url).database), isolation_level=None)
        self.connection.execute("PRAGMA synchronous = OFF")
        self.order = self.outbox.layout.order

    def put(self, **odd: Any) -> bool:
        """Insert a row like most but for *odd*; False where SQLite does not take it."""
        row = {**PLAIN[self.outbox.layout.name], **odd}
        if row.get("id") == PLAIN["debezium"]["id"]:
            row["id"] = str(uuid.uuid4())
        marks = [NOT_UTF8 if value is NOT_UTF8 else "?" for value in row.values()]
        names = ", ".join(f'"{name}"' for name in row)
        sql = f"INSERT INTO {self.outbox.table} ({names}) VALUES ({', '.join(marks)})"
        try:
            self.connection.execute(sql, [value for value in row.values() if value is not NOT_UTF8])
        except (
            sqlite3.IntegrityError
        ):  # NOT NULL, a number that is there, or a primary key that is no whole number
            return False
        return True

    def put_odd(self, column: str, **more: Any) -> int:
        """Insert a row for each odd value of *column*, and return how many SQLite took."""
        is_order = column == self.order  # after the highest number of all, SQLite takes no row any more
        values = [each for each in (*ODD, NOT_UTF8) if not (is_order and each == 2**63 - 1)]
        return sum(self.put(**more | {column: value}) for value in values)

    def columns(self) -> list[str]:
        return [column.name for column in self.outbox.tables.outbox.columns]


@pytest.fixture
def file_of(tmp_path: Path) -> Iterator[Callable[[str], File]]:
    """Give what makes an outbox of a layout."""
    with contextlib.ExitStack() as stack:

        def make(layout: str) -> File:
            made = File(tmp_path, layout)
            stack.enter_context(contextlib.closing(made.connection))
            return made

        yield make


@pytest.fixture(params=LAYOUTS)
def file(request: pytest.FixtureRequest, file_of: Callable[[str], File]) -> File:
    """Give an outbox of each layout."""
    return file_of(request.param)


def marked(rows: OutboxRows) -> list[OutboxRow]:
    held = ShardEpoch(shard=0, epoch=rows.epoch(0, "me"))
    return MarkedRows(rows).mark(10_000, "0af76519-16cd-43dd-8448-eb211c80319c", held=held)


def taken(rows: OutboxRows) -> list[OutboxRow]:
    return rows.take(10_000)


# --- every column of every layout, on SQLite


@pytest.mark.parametrize(
    ("layout", "take"), [*((layout, taken) for layout in LAYOUTS), ("goharvest", marked)]
)
def test_every_row_is_read_or_has_a_flaw_that_names_its_column(
    layout: str, take: Callable[[OutboxRows], list[OutboxRow]], file_of: Callable[[str], File]
) -> None:
    """Each of these ended every harvester of the outbox, or made Kafka's client raise, or was published as
    what it is not.
    """
    file = file_of(layout)
    put = sum(map(file.put_odd, file.columns())) + file.put()
    with file.outbox.rows(clock=ManualClock(now_ms=1_000)) as rows:
        found = take(rows)
        assert len(found) == put
        flawed = [row for row in found if row.flaw is not None]
        for row in found:
            _check(row)
        for row in flawed:
            assert rows.attempt_failed(row, row.flaw or "", retry_at_ms=0)
            assert rows.set_aside(row, row.flaw or "")
        assert {row.id for row in taken(rows)} == {row.id for row in found} - {row.id for row in flawed}
        aside = rows.quarantined(10_000)
        assert [each.row.flaw for each in aside] == sorted_by_id(flawed)
        assert rows.status().quarantined == len(flawed)
        assert rows.retry([each.row.id for each in aside]) == len(flawed)
        assert len(taken(rows)) == len(found)
    named = {row.flaw.split()[1].rstrip(":") for row in flawed if row.flaw and row.flaw.startswith("column ")}
    assert named == FLAWED[layout]


def sorted_by_id(rows: Sequence[OutboxRow]) -> list[str | None]:
    return [row.flaw for row in sorted(rows, key=lambda row: row.id)]


def _check(row: OutboxRow) -> None:
    """Check that *row* has a flaw, or is one that Kafka's client takes."""
    if row.flaw is not None:
        assert row.flaw.startswith(("column ", "unequal number of header keys"))
        assert row.flaw.isprintable()
        assert "\0" not in row.topic
        return
    assert row.id >= 0
    assert row.topic.isascii()
    assert all(type(each) is bytes or each is None for each in (row.key, row.value))
    for each in (row.partition, row.timestamp_ms):
        assert each is None or type(each) is int
    assert row.timestamp_ms is None or row.timestamp_ms >= 0
    assert row.created_ms is None or 0 < row.created_ms < 253_402_300_800_000
    assert type(row.bucket) is int
    for name, value in row.headers:
        assert type(name) is str
        assert value is None or type(value) is bytes


@pytest.mark.parametrize(
    ("layout", "odd", "means"),
    [
        ("holdfast", {"key": "k\u00e4", "value": "text"}, {"key": "k\u00e4".encode(), "value": b"text"}),
        ("holdfast", {"topic": b"orders"}, {"topic": "orders"}),
        ("holdfast", {"headers": "\x90"}, {"flaw": "column headers is not a msgpack list"}),
        ("holdfast", {"value": 7}, {"flaw": "column value holds the number 7; it takes bytes, or text"}),
        ("holdfast", {"topic": "a\0b"}, {"flaw": "column topic holds 'a\\x00b'; it takes names of topics"}),
        ("holdfast", {"topic": "", "key": 7.5}, {"flaw": "column topic holds ''"}),
        (
            "holdfast",
            {"topic": NOT_UTF8},
            {"flaw": "column topic holds b'a\\xff'; it takes text that is UTF-8"},
        ),
        ("holdfast", {"id": -5}, {"flaw": "column id holds the number -5; it takes numbers from 0"}),
        ("holdfast", {"timestamp_ms": -1}, {"flaw": "column timestamp_ms holds the number -1"}),
        ("holdfast", {"partition": 7.5}, {"flaw": "column partition holds the number 7.5"}),
        ("holdfast", {"bucket": "x"}, {"flaw": "column bucket holds 'x'; it takes whole numbers"}),
        ("holdfast", {"created_ms": 1_764_072_000_000_000_000}, {"created_ms": None, "flaw": None}),
        ("goharvest", {"kafka_key": b"k", "kafka_value": b"\xff"}, {"key": b"k", "value": b"\xff"}),
        ("goharvest", {"kafka_header_keys": b'["h"]'}, {"headers": [("h", b"x")]}),
        (
            "goharvest",
            {"kafka_header_values": b"\xff"},
            {"flaw": "column kafka_header_values holds no array"},
        ),
        ("goharvest", {"create_time": "the day before"}, {"created_ms": None, "flaw": None}),
        ("debezium", {"id": b"a-b"}, {"headers": [("id", b"a-b")]}),
        ("debezium", {"id": b"\xff"}, {"flaw": "column id holds b'\\xff'; it takes text that is UTF-8"}),
        ("debezium", {"aggregatetype": b"order"}, {"topic": "outbox.event.order"}),
        ("debezium", {"aggregatetype": "x" * 240}, {"flaw": "column aggregatetype holds 'xxx"}),
        ("debezium", {"payload": b"\xff"}, {"value": b"\xff", "flaw": None}),
    ],
)
def test_a_value_with_a_meaning_is_published_and_the_rest_is_named(
    layout: str, odd: dict[str, Any], means: dict[str, Any], file_of: Callable[[str], File]
) -> None:
    file = file_of(layout)
    assert file.put(**odd)
    with file.outbox.rows() as rows:
        (row,) = taken(rows)
    for name, value in means.items():
        if name == "flaw" and value is not None:
            assert (row.flaw or "").startswith(value)
        else:
            assert getattr(row, name) == value


def test_a_row_waits_for_one_of_its_key_that_failed_text_or_bytes(file: File) -> None:
    """SQLite holds text and the same bytes for different: a key of both would be published out of order."""
    key, topic = file.outbox.layout.key, file.outbox.layout.topic
    name = str(PLAIN[file.outbox.layout.name][topic])
    for odd in ({key: b"a"}, {key: "a"}, {key: b"a", topic: name.encode()}, {key: "b"}):
        assert file.put(**odd)
    with file.outbox.rows(clock=ManualClock(now_ms=1_000)) as rows:
        for first in (0, 1, 2):
            failed = taken(rows)[first]
            rows.attempt_failed(failed, "no such topic", retry_at_ms=9_000)
            assert [row.key for row in taken(rows)] == [b"a"] * first + [b"b"]
            rows.attempt_failed(failed, "no such topic", retry_at_ms=0)
        assert taken(rows)[-1].key == b"b"
        assert [row.key for row in rows.take(10, excluding=[b"a"])] == [b"b"]
        assert rows.take(10, without_topics={failed.topic}) == []


def test_a_key_that_is_no_text_can_be_held(file_of: Callable[[str], File]) -> None:
    file = file_of("goharvest")
    assert file.put(kafka_key=b"\xff")
    assert file.put(kafka_key=b"\xff")
    with file.outbox.rows(clock=ManualClock(now_ms=1_000)) as rows:
        rows.attempt_failed(taken(rows)[0], "no such topic", retry_at_ms=9_000)
        assert taken(rows) == []


def test_a_table_whose_rows_have_no_numbers_is_named() -> None:
    for layout, raw in (
        ("holdfast", (None, "t", None, None, None, None, None, 0, 1, 0)),
        ("goharvest", ("7", "t", "k", "v", "[]", "[]", 1, None, 0)),
        ("debezium", (7.5, "i", "t", "k", "made", None, 0)),
    ):
        with pytest.raises(OutboxSchemaError, match="must number the rows"):
            layout_named(layout).decode(raw)


# --- shards


def test_every_row_belongs_to_one_shard_whatever_its_bucket(file_of: Callable[[str], File]) -> None:
    """A row outside of all shards waited for ever, and there was no report."""
    file = file_of("holdfast")
    for change in (
        "DROP COLUMN bucket",
        "ADD COLUMN bucket SMALLINT",
    ):  # as others may have made it: with nulls
        file.connection.execute(f"ALTER TABLE {file.outbox.table} {change}")
    buckets = (None, -(2**40), -1, -0.5, 0, 84, 84.5, 85, 255, 255.5, 256, 2**40, "x", b"x")
    for bucket in buckets:
        assert file.put(bucket=bucket)
    with file.outbox.rows() as rows:
        for shards in (range(0, 256, 256), range(0, 256, 128), range(0, 256, 1)):
            found = [rows.take(100, buckets=range(low, low + shards.step)) for low in shards]
            flaws = {row.id: row.flaw for some in found for row in some}
            assert sorted(row.id for some in found for row in some) == list(range(1, len(buckets) + 1))
            fit = [id_ for id_, flaw in flaws.items() if flaw is None]
            assert fit == [at for at, bucket in enumerate(buckets, 1) if bucket in (0, 84, 85, 255)]
            assert all(flaw is None or flaw.startswith("column bucket holds ") for flaw in flaws.values())
        assert [row.flaw for row in taken(rows)].count(None) == 8, "one shard needs no bucket from 0 to 255"


def test_a_bucket_outside_of_all_shards_is_set_aside_on_servers_too(outbox: FreshOutbox) -> None:
    values = [{"bucket": bucket, "topic": "t", "key": b"k"} for bucket in (-1, 7, 300)]
    with outbox.engine().begin() as connection:
        connection.execute(insert(outbox.tables.outbox), values)
    with outbox.rows() as rows:
        first, last = (rows.take(10, buckets=half) for half in (range(128), range(128, BUCKETS)))
    assert [(row.bucket, row.flaw is None) for row in first] == [(-1, False), (7, True)]
    ((bucket, flaw),) = [(row.bucket, row.flaw) for row in last]
    assert bucket == 300
    assert (flaw or "").startswith("column bucket holds the number 300; it takes numbers from 0 to 255")


# --- what servers take


def test_postgres_takes_times_without_end_and_arrays_of_arrays(postgres: Postgres) -> None:
    """One `infinity` failed the statement that reads the outbox, for all rows and for ever."""
    outbox = FreshOutbox.make(postgres.url, "goharvest")
    row = "INSERT INTO {0} VALUES (DEFAULT, {1}, 't', 'k', 'v', {2}, {2})"
    with outbox.engine().begin() as connection:
        for time, names in (
            ("'infinity'", "'{}'"),
            ("'-infinity'", "'{}'"),
            ("'4000-01-01 BC'", "'{h}'"),
            ("now()", "'{{a,b},{c,d}}'"),
            ("now()", "'{NULL}'"),
        ):
            connection.execute(text(row.format(outbox.table, time, names)))
    with outbox.rows() as rows:
        found = taken(rows)
        assert [row.id for row in marked(rows)] == [row.id for row in found]
    assert [row.created_ms is None for row in found] == [True, True, True, False, False]
    assert [(row.flaw or "").partition(":")[0] for row in found] == [
        *("", "", ""),
        "column kafka_header_keys holds no array of texts",
        "column kafka_header_keys",
    ]


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_mysql_takes_topics_that_kafka_does_not(kind: str, request: pytest.FixtureRequest) -> None:
    outbox = FreshOutbox.make(request.getfixturevalue(kind).url)
    topics = ["a\0b", "", "\u00e4", "orders", "x" * 249]
    with outbox.engine().begin() as connection:
        for topic in topics:
            connection.execute(insert(outbox.tables.outbox).values(bucket=1, topic=topic, created_ms=2**62))
    with outbox.rows() as rows:
        found = taken(rows)
        for row in found[:3]:
            rows.attempt_failed(row, row.flaw or "", retry_at_ms=2**60)
            assert rows.set_aside(row, row.flaw or "")
    assert [row.flaw is None for row in found] == [False, False, False, True, True]
    assert {row.created_ms for row in found} == {None}


# --- on their way to Kafka


@pytest.fixture(
    params=[("holdfast", "fenced"), ("goharvest", "fenced"), ("goharvest", "mark"), ("debezium", "fenced")]
)
def way(
    request: pytest.FixtureRequest,
    file_of: Callable[[str], File],
    broker: SessionBroker,
    fresh_topic: FreshTopic,
) -> Iterator[tuple[File, Rig, str]]:
    layout, strategy = request.param
    file = file_of(layout)
    topic = fresh_topic("events", partitions=PARTITIONS)
    if layout == "debezium":
        topic = f"outbox.event.{topic}"
        broker.create_topic(topic, partitions=PARTITIONS, exact=True)
    yield file, Rig(broker, file.outbox, topic), strategy
    if layout == "debezium":
        broker.delete_topics([topic])


def test_no_odd_row_ends_a_harvester_and_the_others_are_published(way: tuple[File, Rig, str]) -> None:
    file, rig, strategy = way
    layout, name = file.outbox.layout, rig.topic.removeprefix("outbox.event.")
    columns = [each for each in file.columns() if each != "leader_id" or strategy == "mark"]
    for number, column in enumerate(columns):
        file.put_odd(column, **{layout.topic: name})
        assert file.put(**{layout.topic: name, layout.key: f"good-{number}"})
    with Alone(rig.settings(strategy=strategy, attempts=1)) as leader:
        rig.wait_empty()
    assert leader.stats.restarts == 0, leader.stats.last_error
    keys = [record.key for record in rig.read()]
    assert {key for key in keys if key and key.startswith(b"good-")} == {
        b"good-%d" % at for at in range(len(columns))
    }
    assert leader.published == len(keys)
    with rig.outbox.rows() as rows:
        reasons = [each.reason for each in rows.quarantined(10_000)]
    kafkas = ("UNKNOWN_TOPIC_OR_PART", "INVALID_TIMESTAMP", f"topic {rig.topic} has no partition")
    own = ("column ", "unequal number", *kafkas)
    assert [each for each in reasons if not each.startswith(own)] == []
    with Alone(rig.settings(strategy=strategy)) as successor:  # which reads the progress of the first
        assert file.put(**{layout.topic: name, layout.key: "later"})
        rig.wait_empty()
    assert (successor.published, successor.stats.restarts) == (1, 0)
