"""Derived tables that Spark continued, compared with those of this process alone: the same rows and the same
digests.
"""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from deltalake import DeltaTable

from holdfast.config import Settings
from holdfast.core.broker_logs.folds import OFFSETS_TOPIC
from holdfast.core.outbox.created_times import created_header
from holdfast.core.outbox.harvest import RowsProgress, rows_key
from holdfast.pipeline.derived.derive import derive, derived_path, tables_named
from holdfast.pipeline.histories.fold import FoldOptions
from tests.pipeline.derived import test_event_tables, test_group_tables, test_lag_tables, test_outbox_latency
from tests.pipeline.topics_in_memory import TopicInMemory, land, landed_from

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = Settings(app="derived", books="orders", progress="shop.progress")
OF_TOPIC = {
    "orders": ("producers.anomalies", "lag.ends"),
    OFFSETS_TOPIC: ("groups.moves", "lag.commits"),
    "shop.progress": ("outbox.latency",),
}


class _Logs:
    """The three topics, to which each turn appends."""

    def __init__(self) -> None:
        self.topics = {name: TopicInMemory(name) for name in OF_TOPIC}
        self._chance, self._numbers = random.Random(5), defaultdict[Any, list[int]](list)

    def append(self, turn: int) -> None:
        test_event_tables.stamped_records(self.topics["orders"], 60, self._chance, self._numbers)
        for number in range(turn * 20, turn * 20 + 20):
            members = {f"m{each}": [("orders", each)] for each in range(self._chance.randrange(3))}
            key, value = test_group_tables.key_of("g"), test_group_tables.generation(number, members, {})
            at_ms = 20_000 * (number + 1)
            test_group_tables.put(self.topics[OFFSETS_TOPIC], key, value, at_ms)
            test_lag_tables.commit(self.topics[OFFSETS_TOPIC], "billing", number % 2, number, at_ms)
            progress = msgspec.json.encode(RowsProgress(1, "shop-0", 1, [number, 1]))
            waited = created_header([at_ms - self._chance.randrange(900), at_ms - 3])
            test_outbox_latency.put(
                self.topics["shop.progress"], 0, at_ms, rows_key("shop-0"), progress, (waited,)
            )


def test_spark_continues_tables_as_this_process_does(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, lake: Path
) -> None:
    logs, digests = _Logs(), dict[str, set[str]]()
    for turn, engine in enumerate(("local", "spark")):
        logs.append(turn)
        for name, topic in logs.topics.items():
            landed_from(monkeypatch, topic)
            land(topic, lake)
            for table_name in OF_TOPIC[name]:
                [table] = tables_named(table_name, SETTINGS, ["orders"])
                for into, how in ((None, engine), (f"{lake}/alone/{table.path}", "local")):
                    options = FoldOptions(lake=str(lake), engine=how, into=into)  # type: ignore[arg-type]
                    report = derive(table, SETTINGS, options)
                    assert (report.engine, report.commits) == (how, 1)
                    digests.setdefault(f"{turn} {table.path}", set()).add(report.digest)
    assert {len(each) for each in digests.values()} == {1}
    for names in OF_TOPIC.values():
        for table_name in names:
            [table] = tables_named(table_name, SETTINGS, ["orders"])
            both, alone = (
                sorted(map(str, DeltaTable(path).to_pyarrow_table().to_pylist()))
                for path in (derived_path(str(lake), table.path), f"{lake}/alone/{table.path}/rows")
            )
            assert both == alone
            assert len(both) > 2, table_name
