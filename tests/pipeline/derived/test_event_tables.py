"""The tables of events, producers.anomalies and quarantine, each by a second computation over the whole
log.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from holdfast.clients.quarantine.copies import quarantine_record
from holdfast.clients.quarantine.records import RETRIED_TO
from holdfast.config import Settings
from holdfast.core.engine.fold.folding import Refused
from holdfast.core.producers.stamps import Stamp, stamp_headers
from holdfast.errors import ConfigError
from holdfast.kafka.fetching.records import FetchedRecord
from holdfast.pipeline.derived.derive import derive, derived_path, tables_named
from holdfast.pipeline.derived.producer_anomalies import ANOMALIES
from holdfast.pipeline.derived.quarantine_events import QUARANTINE
from holdfast.pipeline.histories.fold import FoldOptions, FoldReport
from tests.pipeline.accounts import Record
from tests.pipeline.topics_in_memory import TopicInMemory, land, landed_from

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_KAFKA = Settings(app="derived", books="orders")


def run(lake: Path, name: str, engine: str = "local") -> FoldReport:
    [table] = tables_named(name, NO_KAFKA)
    return derive(table, NO_KAFKA, FoldOptions(lake=str(lake), engine=engine))  # type: ignore[arg-type]


def rows_in(lake: Path, name: str, by: str) -> list[dict[str, Any]]:
    [table] = tables_named(name, NO_KAFKA)
    found: list[dict[str, Any]] = (
        DeltaTable(derived_path(str(lake), table.path)).to_pyarrow_table().to_pylist()
    )
    assert not any(row["is_current"] for row in found)
    return sorted(found, key=lambda row: (row["partition"], row[by]))


def put(
    topic: TopicInMemory, partition: int, at_ms: int, key: bytes | None, value: bytes | None, headers: Any
) -> int:
    at = topic.end[partition]
    topic.logs[partition].append(Record(at, at_ms, key, value, tuple(headers)))
    topic.end[partition] = at + 1
    return at


# -- producers.anomalies


def stamped_records(
    topic: TopicInMemory, count: int, chance: random.Random, told: dict[Any, list[int]]
) -> None:
    """Append records of two producers: mostly the next one, some left out, late, twice, or of an epoch
    before; some without a stamp.
    """
    for _ in range(count):
        partition, producer = chance.randrange(2), chance.choice("pq")
        numbers = told[partition, producer]
        epoch, last = (numbers[0], numbers[1]) if numbers else (1, -1)
        match chance.choice(["next"] * 6 + ["skip", "again", "late", "zombie", "newer", "anew", "bare"]):
            case "next":
                stamp = Stamp(producer, epoch, last + 1)
            case "skip":
                stamp = Stamp(producer, epoch, last + chance.randrange(2, 5))
            case "again":
                stamp = Stamp(producer, epoch, max(last, 0))
            case "late":
                stamp = Stamp(producer, epoch, max(last - 2, 0))
            case "zombie":
                stamp = Stamp(producer, epoch - 1, last + 1)
            case "newer":
                stamp = Stamp(producer, epoch + 1, last + 1)
            case "anew":
                stamp = Stamp(producer, epoch + 1, chance.randrange(2), first=0)
            case _:
                put(topic, partition, 1_000, None, b"v", ())
                continue
        if stamp.epoch >= epoch:
            anew = stamp.first is not None
            told[partition, producer] = [stamp.epoch, stamp.sequence if anew else max(last, stamp.sequence)]
        put(topic, partition, 1_000 * len(topic.logs[partition]), None, b"v", stamp_headers(stamp))


def anomalies_model(records: Iterable[Record]) -> list[tuple[Any, ...]]:
    """Return the anomalies of *records*, by sets of numbers that came and have not come, kept for ever."""
    found = list[tuple[Any, ...]]()
    state = dict[str, tuple[int, int, set[int]]]()
    for each in records:
        names = {name: (value or b"").decode() for name, value in each.headers}
        if "holdfast-producer" not in names:
            continue
        producer, epoch = names["holdfast-producer"], int(names["holdfast-epoch"])
        sequence = int(names["holdfast-sequence"])
        first = int(names["holdfast-first"]) if "holdfast-first" in names else None
        if producer not in state:
            state[producer] = epoch, sequence, set()
            continue
        newest, last, missing = state[producer]
        expected = last + 1
        if epoch < newest:
            found.append(("zombie", producer, epoch, sequence, expected, 0, each.offset))
            continue
        if epoch > newest and first is not None:
            found.append(("restart", producer, epoch, sequence, first, 0, each.offset))
            last, missing, expected = first - 1, set(), first
        if sequence in missing:
            found.append(("out-of-order", producer, epoch, sequence, expected, 0, each.offset))
            missing = missing - {sequence}
        elif sequence <= last:
            found.append(("duplicate", producer, epoch, sequence, expected, 0, each.offset))
        else:
            if sequence > expected:
                lacking = sequence - expected
                found.append(("gap", producer, epoch, sequence, expected, lacking, each.offset))
                missing = missing | {*range(expected, sequence)}
            last = sequence
        state[producer] = epoch, last, missing
    return found


def anomalies_in(lake: Path) -> dict[int, list[tuple[Any, ...]]]:
    out = defaultdict(list)
    for row in rows_in(lake, ANOMALIES, "topic_offset"):
        names = ("kind", "producer", "epoch", "sequence", "expected", "missing", "topic_offset")
        out[row["partition"]].append(tuple(row[name] for name in names))
    return out


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> TopicInMemory:
    made = TopicInMemory("orders")
    landed_from(monkeypatch, made)
    return made


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_anomalies_are_those_that_remembering_every_number_finds(
    orders: TopicInMemory, lake: Path, seed: int
) -> None:
    chance, told = random.Random(seed), defaultdict[Any, list[int]](list)
    for _ in range(3):
        stamped_records(orders, 60, chance, told)
        land(orders, lake)
        run(lake, ANOMALIES)
        for partition, rows in orders.logs.items():
            # One record may show both a restart and a gap: their order is that of the rows, which files do
            # not keep.
            assert sorted(anomalies_in(lake)[partition], key=str) == sorted(anomalies_model(rows), key=str)
    assert {row["kind"] for row in rows_in(lake, ANOMALIES, "topic_offset")} >= {
        "gap",
        "duplicate",
        "zombie",
        "restart",
    }


def test_anomalies_need_the_names_of_topics(lake: Path) -> None:
    with pytest.raises(ConfigError, match="name them in the setting books"):
        tables_named(ANOMALIES, Settings(app="derived"))


# -- quarantine


@pytest.fixture
def set_aside(monkeypatch: pytest.MonkeyPatch) -> TopicInMemory:
    made = TopicInMemory(NO_KAFKA.quarantine_topic)
    landed_from(monkeypatch, made)
    return made


def refuse(set_aside: TopicInMemory, number: int) -> dict[str, Any]:
    """Append a worker's copy of a refused record, and return its row in the table."""
    refused = Refused(offset=number, stage="fold", error="ValueError", reason=f"no {number}", topic="orders")
    record = FetchedRecord(
        at_ms=500, value=b"v" * number, key=None, headers=(("holdfast-stage", b"its own"),)
    )
    copied = quarantine_record("q", "totals", ("orders", 1), refused, record, 1_000)
    partition = number % 2
    at = put(set_aside, partition, 9_000 + number, str(copied.key).encode(), copied.value, copied.headers)
    return {
        "partition": partition,
        "noted_at": at,
        "event": "refused",
        "offset": number,
        "reason": refused.reason,
        "size_bytes": number,
    }


def retry(set_aside: TopicInMemory, number: int) -> dict[str, Any]:
    key, copy = f"orders/1/{number}/totals".encode(), f"orders/1/{number + 100}"
    at = put(set_aside, number % 2, 20_000 + number, key, None, [(RETRIED_TO, copy.encode())])
    return {"partition": number % 2, "noted_at": at, "event": "retried", "offset": number, "retried_to": copy}


def check_quarantine(lake: Path, expected: list[dict[str, Any]]) -> None:
    found = rows_in(lake, QUARANTINE, "noted_at")
    wanted = sorted(expected, key=lambda row: (row["partition"], row["noted_at"]))
    assert [{name: row[name] for name in want} for row, want in zip(found, wanted, strict=True)] == wanted
    for row in found:
        assert (row["processor"], row["topic"], row["topic_partition"]) == ("totals", "orders", 1)
        if row["event"] == "refused":
            assert (row["stage"], row["error"], row["appended"].timestamp()) == ("fold", "ValueError", 0.5)
            assert row["at"].timestamp() == (9_000 + row["offset"]) / 1000


def test_quarantine_has_the_workers_records_on_both_engines(
    spark: SparkSession, set_aside: TopicInMemory, lake: Path
) -> None:
    expected = [refuse(set_aside, number) for number in range(20)]
    land(set_aside, lake)
    run(lake, QUARANTINE)
    check_quarantine(lake, expected)
    expected += [retry(set_aside, number) for number in (3, 8)] + [refuse(set_aside, 30)]
    put(set_aside, 0, 1, None, b"nobody's", ())
    put(set_aside, 0, 1, b"half/a/key", None, [(RETRIED_TO, b"x")])
    land(set_aside, lake)
    report = run(lake, QUARANTINE, "spark")
    assert sum(each.refused for each in report.partitions.values()) == 2
    check_quarantine(lake, expected)
