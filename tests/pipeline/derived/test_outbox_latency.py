"""The table outbox.latency: percentiles by sorting every row, and of a real outbox by the rows of its
table.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text

from holdfast.cli.__main__ import main
from holdfast.config import Settings
from holdfast.core.outbox.created_times import LIMIT_MS, LIMIT_TIMES, created_header, read_created
from holdfast.core.outbox.harvest import RowsProgress, SequencesProgress, rows_key, sequences_key
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.errors import DecodeError
from holdfast.outbox.settings import HarvestSettings
from holdfast.outbox.writer.records import OutboxRecord
from holdfast.pipeline.bronze.lake import bronze_path
from holdfast.pipeline.derived.derive import derive, derived_path, tables_named
from holdfast.pipeline.derived.outbox_latency import LATENCY
from holdfast.pipeline.histories.fold import FoldOptions
from tests.outbox.databases import FreshOutbox
from tests.outbox.harvesting import Alone
from tests.pipeline.accounts import Record
from tests.pipeline.topics_in_memory import TopicInMemory, land, landed_from
from tests.support.harness import wait_for
from tests.support.own_topics import ending
from tests.support.patience import DEADLINE_S

NO_KAFKA = Settings(app="derived", progress="shop.progress")
Published = tuple[str, int, int, list[int]]
"""A transaction in a test: its producer, epoch, when it was sent, and when its rows were created."""


# -- the header


TIMES = st.integers(1, LIMIT_MS - 1)
"""From 1970 to the end of the year 9999."""


@given(st.lists(TIMES | st.integers(-(2**63), 2**63 - 1), max_size=60))
def test_times_of_creation_are_read_as_they_were_written(created: list[int]) -> None:
    """A time in ns used to be written as in the column, and no reader took the header."""
    told = created_header(created)
    assert created_header([each for each in created if 0 < each < LIMIT_MS]) == told
    expanded = [] if told is None else [at for at, rows in read_created((told,)) for _ in range(rows)]
    assert expanded == sorted(each for each in created if 0 < each < LIMIT_MS)


def test_values_of_earlier_releases_that_are_no_time_are_passed_over() -> None:
    told = b"-9223372036854775808x2,9223372036854775809,1000x3,1764072000000000000"
    assert read_created((("holdfast-created", told),)) == [(1, 1), (1001, 3)]


def test_many_times_are_rounded_down_and_all_are_kept() -> None:
    created = [1_764_072_000_000 + at for at in range(7 * LIMIT_TIMES)]
    told = created_header(created)
    assert told is not None
    found = read_created((told,))
    assert [at for at, rows in found for _ in range(rows)] == [at - at % 10 for at in created]
    assert len(found) <= LIMIT_TIMES


@pytest.mark.parametrize("value", [b"", b"x3", b"1x", b"1,,2", b"1x2x3", b"1.5", b"9" * 300_000])
def test_an_invalid_time_is_refused(value: bytes) -> None:
    with pytest.raises(DecodeError):
        read_created((("holdfast-created", value),))


# -- the table


def ranked(values: Sequence[int], percent: int) -> int:
    return sorted(values)[-(-len(values) * percent // 100) - 1]


def model(published: Iterable[Published]) -> list[dict[str, Any]]:
    """Return the rows of the table, by sorting the waits of each minute and epoch."""
    waits, transactions = defaultdict[Any, list[int]](list), defaultdict[Any, int](int)
    for producer, epoch, sent_ms, created in published:
        if created:
            key = (*producer.rsplit("-", 1), epoch, sent_ms // 60_000)
            waits[key] += [sent_ms - each for each in created]
            transactions[key] += 1
    return [
        {
            "outbox": outbox,
            "shard": int(shard),
            "epoch": epoch,
            "minute": minute * 60,
            "transactions": transactions[outbox, shard, epoch, minute],
            "rows": len(found),
            "least_ms": min(found),
            "p50_ms": ranked(found, 50),
            "p95_ms": ranked(found, 95),
            "p99_ms": ranked(found, 99),
            "greatest_ms": max(found),
            "mean_ms": pytest.approx(sum(found) / len(found)),
        }
        for (outbox, shard, epoch, minute), found in waits.items()
    ]


def rows_in(lake: Path, topic: str) -> list[dict[str, Any]]:
    path = derived_path(str(lake), f"{LATENCY}/{topic}")
    return [
        {**row, "minute": int(row["minute"].timestamp())}
        for row in DeltaTable(path).to_pyarrow_table().to_pylist()
    ]


def by_place(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["outbox"], row["shard"], row["epoch"], row["minute"]))


def put(progress: TopicInMemory, partition: int, at_ms: int, key: bytes, value: bytes, headers: Any) -> None:
    at = progress.end[partition]
    progress.logs[partition].append(Record(at, at_ms, key, value, headers))
    progress.end[partition] = at + 1


@pytest.mark.long
def test_percentiles_are_those_of_all_rows_sorted(monkeypatch: pytest.MonkeyPatch, lake: Path) -> None:
    progress, chance = TopicInMemory("shop.progress"), random.Random(7)
    landed_from(monkeypatch, progress)
    published, now_ms, epochs = (
        list[Published](),
        1_764_072_000_000,
        {"shop-0": 1, "shop-1": 1, "shop-0:x-1": 4},
    )
    for number in range(300):
        now_ms += chance.choice([1, 400, 9_000])
        producer = chance.choice([*epochs])
        epochs[producer] += chance.random() < 0.05
        created = [
            now_ms - chance.choice([0, 3, 3, 50, 700]) - chance.randrange(5)
            for _ in range(chance.randrange(9))
        ]
        header = created_header(created)
        rows = RowsProgress(1, producer, epochs[producer], [number, 1])
        partition = int(producer[-1])
        put(
            progress,
            partition,
            now_ms,
            rows_key(producer),
            msgspec.json.encode(rows),
            () if header is None else (header,),
        )
        sequences = SequencesProgress(1, producer, epochs[producer], "paid", [(0, number)])
        put(progress, partition, now_ms, sequences_key(producer, "paid"), msgspec.json.encode(sequences), ())
        published.append((producer, epochs[producer], now_ms, created))
        if number % 100 == 99:
            land(progress, lake)
            [table] = tables_named(LATENCY, NO_KAFKA)
            derive(table, NO_KAFKA, FoldOptions(lake=str(lake), engine="local"))
            found = by_place(rows_in(lake, "shop.progress"))
            wanted = by_place(model(published))
            assert [
                {name: row[name] for name in each} for row, each in zip(found, wanted, strict=True)
            ] == wanted
    assert 0 < sum(row["is_current"] for row in found) <= 3


# -- a real outbox


@pytest.mark.long
def test_the_rows_of_a_real_outbox_are_in_the_table(
    embedded_kafka: EmbeddedKafka, lake: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"shop{ending()}"
    topic = embedded_kafka.create_topic(f"events-{name}", partitions=2)
    outbox = FreshOutbox.make(f"sqlite:///{tmp_path / 'shop.db'}")
    records = [OutboxRecord(topic=topic, key=b"%d" % at, value=b"v") for at in range(50)]
    with outbox.engine().begin() as connection:
        outbox.writer(limit_bytes=None).write_many(connection, records)
        created = [row[0] for row in connection.execute(text(f"SELECT created_ms FROM {outbox.table}"))]
    settings = HarvestSettings(
        database=outbox.url,
        kafka=Settings(kafka={"bootstrap.servers": embedded_kafka.bootstrap}),
        name=name,
        table=outbox.table,
        batch_rows=20,
        heartbeat_timeout_s=60.0,
        transaction_timeout_s=60.0,
        commit_timeout_s=60.0,
    )
    with Alone(settings) as leader, outbox.rows() as rows:
        wait_for("an empty outbox", lambda: rows.count() == 0, DEADLINE_S)
    assert leader.published == 50
    common = ("--bootstrap", embedded_kafka.bootstrap, "--set", f"progress={settings.progress_topic}")
    for words in (("land", "--topics", settings.progress_topic), ("derive", LATENCY)):
        with pytest.raises(SystemExit) as ended:
            main([*common, "pipeline", *words, "--lake", str(lake), "--engine", "local"])
        assert not ended.value.code, capsys.readouterr().err
    landed = DeltaTable(bronze_path(str(lake), settings.progress_topic)).to_pyarrow_table().to_pylist()
    told = [
        (f"{name}-0", 1, row["timestamp_ms"], [at for at, some in _created(row) for _ in range(some)])
        for row in landed
    ]
    assert sorted(at for _, _, _, some in told for at in some) == sorted(created)
    found, wanted = by_place(rows_in(lake, settings.progress_topic)), by_place(model(told))
    assert [{each: row[each] for each in wanted[0]} for row in found] == wanted
    assert sum(row["rows"] for row in found) == 50
    assert all(row["least_ms"] >= 0 for row in found)


def _created(row: dict[str, Any]) -> list[tuple[int, int]]:
    return read_created(tuple((each["key"], each["value"]) for each in row["headers"] or ()))
