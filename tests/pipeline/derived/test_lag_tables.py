"""The tables that lag is joined of, and the lag in the report, compared with a count over both logs for each
minute.
"""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from holdfast.config import Settings
from holdfast.core.broker_logs.folds import OFFSETS_TOPIC
from holdfast.errors import ConfigError
from holdfast.pipeline.derived.derive import derive, derived_path, tables_named, tables_to_derive
from holdfast.pipeline.derived.lag_by_minute import BY_MINUTE
from holdfast.pipeline.derived.lag_tables import COMMITS, ENDS
from holdfast.pipeline.histories.fold import FoldOptions
from holdfast.pipeline.reporting.lag import lags_over_time, total_over_time
from holdfast.pipeline.reporting.report import ReportOptions, report
from holdfast.pipeline.reporting.report_page import report_page
from tests.pipeline.accounts import Record
from tests.pipeline.derived.test_group_tables import text
from tests.pipeline.topics_in_memory import TopicInMemory, land, landed_from
from tests.support.scale import scaled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_KAFKA = Settings(app="derived")
BEGIN_MS, MINUTE_MS, MINUTES = 1_764_000_000_000, 60_000, 90
GROUPS, PARTITIONS = ("billing", "a/b"), (0, 1)
Commit = tuple[str, int, int | None, int]
"""Group, partition, offset (None for forgotten), and when, in ms."""


def put(topic: TopicInMemory, partition: int, at_ms: int, key: bytes | None, value: bytes | None) -> None:
    at = topic.end[partition]
    topic.logs[partition].append(Record(at, at_ms, key, value, ()))
    topic.end[partition] = at + 1


def commit(offsets: TopicInMemory, group: str, partition: int, offset: int | None, at_ms: int) -> None:
    key = struct.pack(">h", 1) + text(group) + text("orders") + struct.pack(">i", partition)
    value = struct.pack(">hqi", 3, offset or 0, -1) + text("") + struct.pack(">q", at_ms)
    put(offsets, GROUPS.index(group), at_ms, key, None if offset is None else value)


class Logs:
    """Records and commits at random times, landed and derived in three turns."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, lake: Path, seed: int, minutes: int = MINUTES
    ) -> None:
        self.orders, self.offsets = TopicInMemory("orders"), TopicInMemory(OFFSETS_TOPIC)
        self.commits, self.lake = list[Commit](), lake
        chance = random.Random(seed)
        for minute in range(minutes):
            for second in sorted(chance.sample(range(60), 4)):
                self._step(chance, BEGIN_MS + minute * MINUTE_MS + second * 1_000)
            if minute % 30 == 29:
                for topic in (self.orders, self.offsets):
                    landed_from(monkeypatch, topic)
                    land(topic, lake)
                for table in tables_to_derive([BY_MINUTE], str(lake), NO_KAFKA, ["orders"]):
                    derive(table, NO_KAFKA, FoldOptions(lake=str(lake), engine="local"))

    def _step(self, chance: random.Random, at_ms: int) -> None:
        partition = chance.choice(PARTITIONS)
        if chance.random() < 0.6:
            for _ in range(chance.randrange(5)):
                put(self.orders, partition, at_ms, None, b"v")
            return
        offset = None if chance.random() < 0.1 else chance.randrange(self.orders.end[partition] + 2)
        made = (chance.choice(GROUPS), partition, offset, at_ms)
        commit(self.offsets, *made)
        self.commits.append(made)

    def lag_at(self, group: str, partition: int, minute: int) -> int | None:
        """Return a group's lag at the end of a minute, by looking at every record up to there."""
        until_ms = BEGIN_MS + (minute + 1) * MINUTE_MS
        committed = [
            each[2] for each in self.commits if each[:2] == (group, partition) and each[3] < until_ms
        ]
        end = sum(each.at_ms < until_ms for each in self.orders.logs[partition])
        if not committed or committed[-1] is None or not end:
            return None
        return max(0, end - committed[-1])

    def rows(self, path: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (
            DeltaTable(derived_path(str(self.lake), path)).to_pyarrow_table().to_pylist()
        )
        return found


@pytest.mark.long
@pytest.mark.parametrize("seed", range(scaled(4)))
def test_lag_is_that_of_a_count_over_both_logs(
    monkeypatch: pytest.MonkeyPatch, lake: Path, seed: int
) -> None:
    logs = Logs(monkeypatch, lake, seed)
    commits = sorted(logs.rows(COMMITS), key=lambda row: row["minute"])
    found = lags_over_time(
        [{**row, "of_topic": "orders"} for row in logs.rows(f"{BY_MINUTE}/orders")], commits
    )
    for each in found:
        for minute in range(MINUTES):
            lag = logs.lag_at(each.group, each.partition, minute)
            assert each.at(BEGIN_MS + minute * MINUTE_MS) == (lag or 0), (each.group, each.partition, minute)
        last_ms = max(
            at_ms
            for group, partition, _, at_ms in logs.commits
            if (group, partition) == (each.group, each.partition)
        )
        every = [at_ms for *_, at_ms in logs.commits] + [
            one.at_ms for log in logs.orders.logs.values() for one in log
        ]
        assert each.silent_ms == (max(every) // MINUTE_MS - last_ms // MINUTE_MS) * MINUTE_MS
    parts = [(BEGIN_MS + at * MINUTE_MS, BEGIN_MS + (at + 1) * MINUTE_MS) for at in range(MINUTES)]
    totals = total_over_time(found, ["billing"], "others", parts)
    for minute in range(MINUTES):
        assert totals["billing"][minute] == sum(logs.lag_at("billing", at, minute) or 0 for at in PARTITIONS)
        assert totals["others"][minute] == sum(logs.lag_at("a/b", at, minute) or 0 for at in PARTITIONS)


@pytest.mark.long
def test_the_tables_have_a_row_for_each_minute_in_which_something_moved(
    monkeypatch: pytest.MonkeyPatch, lake: Path
) -> None:
    logs = Logs(monkeypatch, lake, 9)
    wanted: dict[Any, list[Any]] = {}
    for group, partition, offset, at_ms in logs.commits:
        row = wanted.setdefault((group, partition, at_ms // MINUTE_MS), [None, 0])
        row[:] = [offset, row[1] + (offset is not None)]
    told = {
        (row["group_id"], row["topic_partition"], int(row["minute"].timestamp()) // 60): [
            row["offset"],
            row["commits"],
        ]
        for row in logs.rows(COMMITS)
    }
    assert told == wanted
    assert len(logs.rows(COMMITS)) == len(wanted)
    ends: dict[Any, list[int]] = {}
    for partition, log in logs.orders.logs.items():
        for each in log:
            row = ends.setdefault((partition, each.at_ms // MINUTE_MS), [0, 0])
            row[:] = [each.offset + 1, row[1] + 1]
    assert {
        (row["partition"], int(row["minute"].timestamp()) // 60): [row["end_offset"], row["records"]]
        for row in logs.rows(f"{ENDS}/orders")
    } == ends
    assert sum(row["is_current"] for row in logs.rows(f"{ENDS}/orders")) == len(PARTITIONS)


@pytest.mark.long
def test_the_page_shows_lag_where_topics_are_named(monkeypatch: pytest.MonkeyPatch, lake: Path) -> None:
    logs = Logs(monkeypatch, lake, 3)
    to_ms = BEGIN_MS + MINUTES * MINUTE_MS
    asked = ReportOptions(lake=str(lake), from_ms=to_ms - 30 * MINUTE_MS, to_ms=to_ms, topics=("orders",))
    page = report_page(report(NO_KAFKA, asked))
    behind = [logs.lag_at(group, partition, MINUTES - 1) for group in GROUPS for partition in PARTITIONS]
    assert (
        f"4 partitions of groups are known, {sum(bool(each) for each in behind)} of them are behind" in page
    )
    made = report(NO_KAFKA, asked)
    for each in lags_over_time(made.tables[BY_MINUTE], made.tables[COMMITS]):
        for minute in range(MINUTES - 30, MINUTES):  # a part of half an hour is a minute
            wanted = logs.lag_at(each.group, each.partition, minute)
            assert each.at(BEGIN_MS + minute * MINUTE_MS) == (wanted or 0)
    without = ReportOptions(lake=str(lake), from_ms=asked.from_ms, to_ms=to_ms)
    assert "Name topics" in report_page(report(NO_KAFKA, without))
    with pytest.raises(ConfigError, match="--topics orders,payments"):
        tables_named(ENDS, NO_KAFKA)


@pytest.mark.variant
def test_parts_of_many_minutes_have_the_lag_at_their_ends_on_both_engines(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, lake: Path
) -> None:
    logs = Logs(monkeypatch, lake, 5)
    begin_ms = BEGIN_MS - 150 * MINUTE_MS  # parts of 4 minutes
    asked: dict[str, Any] = {
        "lake": str(lake),
        "from_ms": begin_ms,
        "to_ms": begin_ms + 240 * MINUTE_MS,
        "topics": ("orders",),
    }
    here = report(NO_KAFKA, ReportOptions(**asked))
    assert here == report(NO_KAFKA, ReportOptions(**asked, engine="spark"))
    part_ms = 4 * MINUTE_MS
    assert len(here.tables[BY_MINUTE]) < len(logs.rows(f"{BY_MINUTE}/orders"))
    for each in lags_over_time(here.tables[BY_MINUTE], here.tables[COMMITS]):
        for until_ms in range(begin_ms + part_ms, begin_ms + 240 * MINUTE_MS + 1, part_ms):
            minute = (until_ms - BEGIN_MS) // MINUTE_MS - 1
            assert each.at(until_ms - MINUTE_MS) == (logs.lag_at(each.group, each.partition, minute) or 0), (
                minute
            )
