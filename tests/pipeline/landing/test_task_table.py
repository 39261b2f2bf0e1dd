"""Landing by Spark's tasks through delta-rs: the same rows, commits and races as by one process."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.errors import LakeError, LostRecordsError, SparkError
from holdfast.pipeline.bronze.commits import history_of, last_landed
from holdfast.pipeline.bronze.lake import bronze_path, open_table
from holdfast.pipeline.checks.check import check_table
from holdfast.pipeline.landing.landing import Landing
from holdfast.pipeline.landing.local_table import LocalTable
from holdfast.pipeline.landing.options import LandOptions
from holdfast.pipeline.landing.task_table import TaskTable
from holdfast.pipeline.topic import Span, TopicLog
from tests.support.books_app import PARTITIONS, Books

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(seed=47) as running:
        yield running


@pytest.fixture
def books(kafka: EmbeddedKafka) -> Books:
    return Books(kafka)


@pytest.fixture
def log(books: Books) -> Iterator[TopicLog]:
    with TopicLog(books.settings, books.source) as opened:
        yield opened


def rows(lake: Path, topic: str) -> list[dict[str, Any]]:
    columns = [
        "partition",
        "offset",
        "key",
        "value",
        "headers",
        "timestamp",
        "timestamp_ms",
        "timestamp_type",
    ]
    found = DeltaTable(bronze_path(str(lake), topic)).to_pyarrow_table(
        columns=[*columns, "date", "leader_epoch"]
    )
    return sorted(found.to_pylist(), key=lambda each: (each["partition"], each["offset"]))


def told(lake: Path, topic: str) -> Any:
    path = bronze_path(str(lake), topic)
    found = last_landed(path, history_of(open_table(path)))
    assert found is not None
    return found.end, found.rows, found.added, found.digests, found.added_digests


def landing(table: LocalTable, books: Books, log: TopicLog) -> Landing:
    return Landing(table, books.settings, log, LandOptions(max_records=150))


@pytest.mark.slow
def test_tasks_land_the_same_as_one_process_and_both_take_turns(
    spark: SparkSession, books: Books, log: TopicLog, tmp_path: Path
) -> None:
    lakes = {name: tmp_path / name for name in ("tasks", "alone", "turns")}
    for number in range(3):
        for name, lake in lakes.items():
            path = bronze_path(str(lake), books.source)
            by_tasks = name == "tasks" or (name == "turns" and number % 2 == 0)
            table = TaskTable(spark, books.settings, path) if by_tasks else LocalTable(books.settings, path)
            made = landing(table, books, log)
            while made.step(made.ends()) is not None:
                pass
        books.write(30, first=120 + 30 * number)
    found = {name: rows(lake, books.source) for name, lake in lakes.items()}
    assert len(found["alone"]) == PARTITIONS * 180
    assert found["tasks"] == found["alone"] == found["turns"]
    assert (
        told(lakes["tasks"], books.source)
        == told(lakes["alone"], books.source)
        == told(lakes["turns"], books.source)
    )
    for lake in lakes.values():
        assert check_table(books.settings, books.source, str(lake), deep=True).faults == ()


@pytest.mark.slow
def test_of_tasks_and_a_process_that_race_one_wins(
    spark: SparkSession, books: Books, log: TopicLog, lake: Path
) -> None:
    path, lost = bronze_path(str(lake), books.source), 0
    LocalTable(books.settings, path)
    with ThreadPoolExecutor(3) as pool:
        for number in range(4):
            books.write(20, first=120 + 20 * number)
            tables = [
                LocalTable(books.settings, path),
                *(TaskTable(spark, books.settings, path) for _ in range(2)),
            ]
            made = [Landing(each, books.settings, log, LandOptions()) for each in tables]
            errors = [each.exception(120) for each in [pool.submit(one.step, one.ends()) for one in made]]
            assert all(error is None or isinstance(error, LakeError) for error in errors), errors
            lost += sum(error is not None for error in errors)
    assert lost, "they raced"
    assert [(each["partition"], each["offset"]) for each in rows(lake, books.source)] == [
        (partition, offset) for partition in range(PARTITIONS) for offset in range(200)
    ]
    assert check_table(books.settings, books.source, str(lake), deep=True).faults == ()


@pytest.mark.slow
def test_records_that_are_gone_end_it_and_leave_no_file(
    spark: SparkSession, books: Books, lake: Path
) -> None:
    hasty = replace(books.settings, stall_timeout_s=10, commit_timeout_s=10)  # after which it knows
    table = TaskTable(spark, hasty, bronze_path(str(lake), books.source))
    with pytest.raises((SparkError, LostRecordsError)):
        table._write_files(books.source, {0: Span(first=0, end=120), 1: Span(first=0, end=9_999)}, {}, 0)
    assert not [each for each in lake.rglob("*.parquet") if "partition=1" in str(each)]
