"""Two versions over one history: the keys, the first offsets and the fields are those of a model, on both
engines.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as hypothesis_settings

from holdfast.cli.__main__ import main
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.serdes import Text
from holdfast.core.engine.declared.sources import Source
from holdfast.core.engine.state.rows import Rows
from holdfast.errors import ConfigError
from holdfast.pipeline.comparing.compare import Comparison, compare
from holdfast.pipeline.comparing.page import comparison_page
from holdfast.pipeline.folds import folding
from holdfast.pipeline.folds.version_diff import ONLY_HERE, ONLY_THERE
from holdfast.pipeline.replay import ReplayOptions, replay
from holdfast.pipeline.spark.session import SparkOptions
from tests.pipeline.accounts import Log, Record, accounts, logs
from tests.pipeline.comparing.compared import second
from tests.pipeline.lakes import write_bronze
from tests.support.scale import scaled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_KAFKA = Settings()
State = dict[tuple[int, str], str]


def changes(processor: Processor[Any, Any], lake: Path) -> list[dict[str, Any]]:
    options = ReplayOptions(engine="local", source="bronze", lake=str(lake), transitions=True)
    told: list[dict[str, Any]] = (
        replay(processor, NO_KAFKA, options).table("transitions", processor).to_pylist()
    )
    return told


def model(one: Processor[Any, Any], other: Processor[Any, Any], lake: Path) -> tuple[Any, Any, Any]:
    """Return the rows apart at the end, the first differing change of each key, and the fields: from two
    replays, and whole states after each offset.
    """
    told = [changes(each, lake) for each in (one, other)]
    offsets = sorted({(each["partition"], each["offset"]) for side in told for each in side})
    states: tuple[State, State] = ({}, {})
    first: dict[tuple[int, str], int] = {}
    for partition, offset in offsets:
        for state, side in zip(states, told, strict=True):
            for each in side:
                if (each["partition"], each["offset"]) == (partition, offset):
                    state.pop((partition, each["key"]), None)
                    if each["after"] is not None:
                        state[partition, each["key"]] = each["after"]
        for key in {*states[0], *states[1]}:
            if key[0] == partition and states[0].get(key) != states[1].get(key):
                first.setdefault(key, offset)
    apart = {
        key: (states[0].get(key), states[1].get(key))
        for key in {*states[0], *states[1]}
        if states[0].get(key) != states[1].get(key)
    }
    fields = Counter[str]()
    for mine, theirs in apart.values():
        if mine is None or theirs is None:
            fields[ONLY_THERE if mine is None else ONLY_HERE] += 1
            continue
        a, b = msgspec.json.decode(mine), msgspec.json.decode(theirs)
        fields.update(name for name in a if a[name] != b[name])
    return apart, first, dict(fields)


def bronze(lake: Path, engine: str = "local", **more: Any) -> ReplayOptions:
    return ReplayOptions(engine=engine, source="bronze", lake=str(lake), **more)  # type: ignore[arg-type]


def shown(found: Comparison) -> tuple[Any, Any, Any]:
    return (
        {(each.partition, each.key): (each.mine, each.theirs) for each in found.keys if each.apart},
        {(each.partition, each.key): each.offset for each in found.keys},
        dict(found.fields),
    )


@pytest.mark.long
@hypothesis_settings(
    max_examples=scaled(20),
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)
@given(log=logs(partitions=2, limit=60))
def test_the_differences_are_those_of_a_model(tmp_path_factory: pytest.TempPathFactory, log: Log) -> None:
    lake = tmp_path_factory.mktemp("lake")
    write_bronze(lake, "t", log)
    found = compare(accounts("t"), second("t"), NO_KAFKA, bronze(lake))
    assert shown(found) == model(accounts("t"), second("t"), lake)
    assert found.records == sum(map(len, log.values()))
    assert found.equal == (not found.keys and all(each.equal for each in found.partitions))


def test_each_version_is_given_the_columns_that_its_decoder_takes(tmp_path: Path) -> None:
    """One takes none, and the other the value twice."""
    write_bronze(tmp_path, "t", {0: [Record(at, 1_000 + at, b"k", b"7") for at in range(3)]})

    def keep(rows: Rows[int], number: int, at_ms: int) -> None:
        rows[str(at_ms)] = number

    times: Processor[int, int] = Processor(
        name="p", source="t", decode=lambda at_ms: at_ms, inputs=("timestamp",), fold=keep, row=int
    )
    twice: Processor[int, int] = Processor(
        name="p",
        source="t",
        decode=lambda one, other: int(one) + int(other),
        inputs=("value", "value"),
        fold=keep,
        row=int,
        version=2,
    )
    apart, _, _ = shown(compare(times, twice, NO_KAFKA, bronze(tmp_path)))
    assert apart == {(0, str(at_ms)): (str(at_ms), "14") for at_ms in (1_000, 1_001, 1_002)}


@pytest.fixture
def some(tmp_path: Path) -> Path:
    """Give a lake with 300 records of two partitions, some of which part the two versions for a while."""
    values = [b"add k%d %d" % (at % 17, at * 7 % 60) for at in range(150)]
    log: Log = {p: [Record(at, 1_000 + at, b"k", value) for at, value in enumerate(values)] for p in (0, 1)}
    log[1][40] = Record(40, 1_040, b"k3", None)
    log[1][41] = Record(41, 1_041, b"k3", b"add k3 99")
    write_bronze(tmp_path, "t", log, commits=3)
    return tmp_path


@pytest.mark.long
@pytest.mark.parametrize("transaction", [1, 7, 50_000])
def test_where_transactions_end_does_not_matter(
    some: Path, transaction: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "TRANSACTION_RECORDS", transaction)
    assert shown(compare(accounts("t"), second("t"), NO_KAFKA, bronze(some))) == model(
        accounts("t"), second("t"), some
    )


@pytest.mark.variant
@pytest.mark.spark
@pytest.mark.parametrize("far", [False, True])
def test_spark_finds_the_same(spark: SparkSession, some: Path, far: bool) -> None:
    on_cluster = bronze(
        some, "spark", spark=SparkOptions(master="spark://elsewhere:7077") if far else SparkOptions()
    )
    found = compare(accounts("t"), second("t"), NO_KAFKA, on_cluster)
    assert found.engine == "spark"
    assert found == replace(compare(accounts("t"), second("t"), NO_KAFKA, bronze(some)), engine="spark")
    assert found.apart


def test_a_version_is_equal_to_itself(some: Path) -> None:
    found = compare(accounts("t"), replace(accounts("t"), version=2), NO_KAFKA, bronze(some))
    assert (found.equal, found.keys, found.fields) == (True, (), {})
    assert "never differed" in comparison_page(found)


def test_rows_that_meet_again_are_listed_and_are_not_apart(tmp_path: Path) -> None:
    log: Log = {
        0: [Record(0, 5, b"a", b"add a 51"), Record(1, 6, b"a", None), Record(2, 7, b"a", b"add a 1")]
    }
    write_bronze(tmp_path, "t", log)
    found = compare(accounts("t"), second("t"), NO_KAFKA, bronze(tmp_path))
    assert [(each.key, each.offset, each.at_ms, each.apart) for each in found.keys] == [("a", 0, 5, False)]
    assert (found.apart, found.partitions[0].met_again, found.fields, found.equal) == (0, 1, {}, False)


def test_what_cannot_be_compared_is_refused(some: Path) -> None:
    joined: Any = Processor(
        name="accounts", on={Source("t", serde=Text()): lambda rows, value, at_ms: ()}, row=int
    )
    with pytest.raises(ConfigError, match=r"folds t \(on=\), and accounts folds t: there is no one history"):
        compare(joined, second("t"), NO_KAFKA, bronze(some))
    with pytest.raises(ConfigError, match="there is no one history"):
        compare(accounts("t"), second("u"), NO_KAFKA, bronze(some))


@pytest.mark.long
def test_the_command_prints_table_json_and_page(
    some: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "compared.html"

    def run(name: str, other: str, *more: str) -> tuple[Any, str, str]:
        given = ["compare", name, "--with", other, "--from", "bronze", "--lake", str(some), *more]
        with pytest.raises(SystemExit) as ended:
            main(["-A", "tests.pipeline.comparing.compared", *given])
        told = capsys.readouterr()
        return ended.value.code, told.out, told.err

    code, out, err = run("same", "tests.pipeline.comparing.compared:accounts", "--html", str(page))
    assert (code, "MET-AGAIN" in out, "keys differ in total" in err, "DIFFERENT" in err) == (
        1,
        True,
        True,
        True,
    )
    text = page.read_text()
    assert text.count("<svg") == 2
    assert "http" not in text.replace("http-equiv", ""), "nothing is fetched"
    code, out, _ = run("same", "tests.pipeline.comparing.compared:accounts", "-o", "json")
    told = json.loads(out)
    assert (code, told["equal"], told["fields"]["total"] > 3) == (1, False, True)
    assert run("same", "tests.pipeline.comparing.compared:same")[0] == 0
    assert "write MODULE:PROCESSOR" in run("same", "tests.pipeline.comparing.compared")[2]
    assert (
        "cannot be written"
        in run("same", "tests.pipeline.comparing.compared:same", "--html", "/nowhere/x.html")[2]
    )


def test_texts_of_rows_cannot_break_the_page(tmp_path: Path) -> None:
    write_bronze(tmp_path, "t", {0: [Record(0, 5, b"a", b"add <script>x 51")]})
    text = comparison_page(compare(accounts("t"), second("t"), NO_KAFKA, bronze(tmp_path)))
    assert "<script" not in text
    assert "&lt;script&gt;x" in text
