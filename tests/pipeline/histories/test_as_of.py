"""A row as it was: as in replays up to there, with the records that made it so, from topic or lake."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.cli.__main__ import main
from holdfast.clients.topics.admin import Admin
from holdfast.core.engine.declared.processor import Processor
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.errors import ConfigError, LostRecordsError, PipelineError
from holdfast.pipeline.bootstrap.bootstrap import bootstrap
from holdfast.pipeline.bronze.extent import Until
from holdfast.pipeline.folds.result_rows import TRANSITION, result_batch
from holdfast.pipeline.histories.as_of import TOTAL, AsOfOptions, LastChanges, row_as_of
from holdfast.pipeline.landing.land import land
from holdfast.pipeline.replay import ReplayOptions, replay
from tests.pipeline.accounts import doubled
from tests.support.books_app import MIGRATE, PARTITIONS, Books

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = ReplayOptions(engine="local")
Cmd = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(seed=31) as running:
        yield running


@pytest.fixture
def books(kafka: EmbeddedKafka) -> Books:
    return Books(kafka)


def in_one(key: str, partitions: int) -> int:
    return 1 % partitions


def routed(books: Books) -> Processor[Any, Any]:
    """Return the processor, whose rows are asked for in partition 1."""
    return replace(books.first, route=in_one)


def row_of(books: Books, key: str, last: int) -> str | None:
    """Return a row of partition 1 as a replay up to an offset has it."""
    options = replace(LOCAL, until=Until(offsets={1: last}), partitions=(1,))
    rows = replay(books.first, books.settings, options).table("rows", books.first).to_pylist()
    return next((each["row"] for each in rows if each["key"] == key), None)


@pytest.mark.long
@pytest.mark.parametrize("last", [0, 5, 16, 17, 60, 118, 119])
def test_a_row_is_what_a_replay_up_to_there_has(books: Books, last: int) -> None:
    for key in ("k0", "k3", "sum/k4"):
        found = row_as_of(routed(books), books.settings, key, last, AsOfOptions(replay=LOCAL))
        assert [each.row for each in found.rows] in ([row_of(books, key, last)], [])
        for row in found.rows:
            assert row.changes[-1].after == row.row
            assert all(
                one.after == other.before for one, other in zip(row.changes, row.changes[1:], strict=False)
            )
            assert all(each.offset <= last for each in row.changes)


@pytest.mark.long
def test_a_time_is_that_of_every_partition(books: Books) -> None:
    at_ms = 1_000 + 40 * 50
    found = row_as_of(books.first, books.settings, "k3", Until(at_ms=at_ms), AsOfOptions(replay=LOCAL))
    assert [each.partition for each in found.rows] == [0, 1]
    assert {each.row for each in found.rows} == {row_of(books, "k3", 50)}
    assert found.applied == {0: 50, 1: 50}


@pytest.mark.long
def test_the_records_are_those_of_the_changes_wherever_they_lie(books: Books, lake: Path) -> None:
    land(books.settings, books.source, str(lake))
    books.write(8, first=120)
    history = ReplayOptions(engine="local", source="history", lake=str(lake))
    Admin(books.settings).delete_before({(books.source, at): 100 for at in range(PARTITIONS)})
    found = row_as_of(routed(books), books.settings, "k1", 127, AsOfOptions(replay=history))
    [row] = found.rows
    lies = {each.offset: each.record.lies_in for each in row.changes if each.record is not None}
    assert lies[126] == "topic"
    assert {where for offset, where in lies.items() if offset < 120} == {"lake"}
    told = {each.offset: each.command for each in row.changes}
    assert told[126] == f"holdfast explain {books.source} 1 126"
    assert all((command is None) == (offset < 100) for offset, command in told.items())
    records = {each.offset: each.record.value for each in row.changes if each.record is not None}
    assert records[116] == b"add k1 19"
    assert records[126] == b"add k1 29"
    table = found.changes()
    assert table.column("offset").to_pylist() == [each.offset for each in row.changes]
    assert table.to_pandas()["after"].iloc[-1] == row.row
    with pytest.raises(LostRecordsError):
        row_as_of(routed(books), books.settings, "k1", 127, AsOfOptions(replay=LOCAL))
    bronze = ReplayOptions(engine="local", source="bronze", lake=str(lake))
    alone = row_as_of(routed(books), books.settings, "k1", 119, AsOfOptions(replay=bronze))
    assert {each.record.lies_in for each in alone.rows[0].changes if each.record} == {"lake"}
    assert {each.command for each in alone.rows[0].changes} == {None}
    few = row_as_of(routed(books), books.settings, "k1", 119, AsOfOptions(replay=bronze, limit=2))
    assert few.rows[0].changes == alone.rows[0].changes[-2:]
    assert few.rows[0].total == alone.rows[0].total > 2


@pytest.mark.long
def test_a_row_with_which_a_version_began_is_there_though_no_record_made_it(kafka: EmbeddedKafka) -> None:
    books = Books(kafka).begun()
    second = books.version(2, migrate={1: doubled})
    bootstrap(second, books.settings, MIGRATE)
    books.write(2, first=120)
    at = Until(offsets={0: 120})
    rows = replay(second, books.settings, replace(LOCAL, until=at)).table("rows", second).to_pylist()
    known = {each["key"]: each["row"] for each in rows if each["partition"] == 0}
    kept = 0
    for key, row in known.items():
        [found] = row_as_of(second, books.settings, key, at, AsOfOptions(replay=LOCAL)).rows
        assert (found.row, found.at, found.total) == (row, "offset 120", len(found.changes))
        kept += not found.changes
    assert 0 < kept < len(known)
    assert row_as_of(second, books.settings, "ghost", at, AsOfOptions(replay=LOCAL)).rows == ()


@pytest.mark.variant
def test_spark_finds_the_same(spark: SparkSession, books: Books) -> None:
    on_spark = AsOfOptions(replay=ReplayOptions(engine="spark"), limit=3)
    found = row_as_of(books.first, books.settings, "k3", Until(offsets={0: 118}), on_spark)
    alone = row_as_of(
        books.first, books.settings, "k3", Until(offsets={0: 118}), AsOfOptions(replay=LOCAL, limit=3)
    )
    assert (found.engine, found.rows) == ("spark", alone.rows)
    assert found.rows[0].total > len(found.rows[0].changes) == 3


def test_of_many_changes_the_last_are_kept_and_all_are_counted() -> None:
    through, changes = LastChanges(2), [(TRANSITION, at % 2, at, None, "k") for at in range(10)]
    told = [result_batch([("other", 0, 7)]), result_batch(changes[:7]), result_batch(changes[7:])]
    rows = [row for batch in through(iter(told)) for row in batch.to_pylist()]
    assert [(row["kind"], row["partition"], row["offset"]) for row in rows] == [
        ("other", 0, 7),
        *((TRANSITION, 0, at) for at in (6, 8)),
        *((TRANSITION, 1, at) for at in (7, 9)),
        (TOTAL, 0, 5),
        (TOTAL, 1, 5),
    ]
    assert [*LastChanges(2)(iter(()))] == []


@pytest.mark.long
def test_an_incomplete_request_is_refused(books: Books, lake: Path) -> None:
    land(books.settings, books.source, str(lake))
    bronze = AsOfOptions(
        replay=ReplayOptions(engine="local", source="bronze", lake=str(lake), allow_holes=True)
    )
    with pytest.raises(
        ConfigError, match=r"--at 7: which partition holds 'k1' is not known.*PARTITION:OFFSET"
    ):
        row_as_of(books.first, books.settings, "k1", 7, bronze)
    with pytest.raises(ConfigError, match="no table 'nothing'"):
        row_as_of(books.first, books.settings, "k1", 7, bronze, table="nothing")
    with pytest.raises(PipelineError, match="cannot be replayed up to and with 9999"):
        row_as_of(routed(books), books.settings, "k1", 9_999, bronze)
    assert row_as_of(routed(books), books.settings, "ghost", 119, bronze).rows == ()
    for options in (bronze, AsOfOptions(replay=LOCAL)):
        with pytest.raises(PipelineError, match="has no partition 9"):
            row_as_of(books.first, books.settings, "k1", Until(offsets={9: 5}), options)


@pytest.fixture
def command(books: Books, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cmd:
    module = ModuleType(f"app_{books.name.replace('-', '_')}")
    module.__dict__["processors"] = [routed(books)]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    kafka = [
        part for name, value in books.settings.kafka.items() for part in ("--set", f"kafka.{name}={value}")
    ]

    def run(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["--set", f"app={books.name}", *kafka, "-A", module.__name__, "explain", *words])
        told = capsys.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    return run


@pytest.mark.long
def test_the_command_prints_the_row_and_links_its_records(
    books: Books, kafka: EmbeddedKafka, command: Cmd, lake: Path
) -> None:
    land(books.settings, books.source, str(lake))
    here = ("--lake", str(lake), "--source", "bronze", "--allow-holes", "--engine", "local")
    code, out, err = command("accounts", "k3", "--at", "119", *here)
    assert code == 0, err
    assert "partition 1, after offset 119" in err
    code, out, err = command("accounts", "k3", "--at", "1:119", "--output", "json", "--changes", "1", *here)
    document = json.loads(out)
    assert document["rows"][0]["changes"] > len(document["changes"]) == 1
    assert (document["changes"][0]["record"], document["changes"][0]["after"]) == ("no value", None), (
        "removed"
    )
    for words, why in (
        (("accounts", "k3", "--at", "yesterday"), "--at 'yesterday'"),
        (("accounts", "--at", "7"), "name a row as PROCESSOR KEY"),
        (("accounts.nothing", "k3", "--at", "7", *here), "no table 'nothing'"),
        (("nobody", "k3", "--at", "7"), "nobody"),
        (("accounts", "k3", "7"), "is not a partition"),
        (("accounts", "7"), "a row as PROCESSOR KEY (--at TIME, if its key is a number)"),
        (("nobody", "k3"), "nobody"),
    ):
        code, _, err = command(*words)
        assert (code, why in err) == (2, True), err
    last = str(document["changes"][0]["offset"])
    assert command(books.source, "1", last)[0] == 0, "the command that a change names"


@pytest.mark.long
def test_without_a_time_the_command_prints_the_present_row(books: Books, command: Cmd, lake: Path) -> None:
    land(books.settings, books.source, str(lake))
    here = ("--lake", str(lake), "--source", "bronze", "--allow-holes", "--engine", "local")
    wanted = command("accounts", "k3", "--at", "1:119", "--output", "json", *here)
    assert wanted[0] == 0
    assert command("accounts", "k3", "--output", "json", *here)[1] == wanted[1]
    code, _, err = command("accounts", "ghost", *here)
    assert code == 0
    assert "there was never a row of 'ghost'\n" in err
