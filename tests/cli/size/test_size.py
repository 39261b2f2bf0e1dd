"""`holdfast size`: the figures follow from the load, without a broker."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.cli.__main__ import main
from holdfast.cli.size.capacity import Figure, Load, capacity
from holdfast.config import Settings
from holdfast.errors import ConfigError

Run = Callable[..., tuple[int, str, str]]
SETTINGS = Settings(app="shop", standbys=1, replication_factor=3)
LOAD = Load(partitions=32, workers=4, records_per_s=10_000, keys=1_000_000, row_bytes=200)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def command(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main([*arguments])
        captured = capsys.readouterr()
        return int(left.value.code or 0), captured.out, captured.err

    return command


def named(load: Load, settings: Settings = SETTINGS) -> dict[str, Figure]:
    return {each.figure: each for each in capacity(load, settings)}


def of_all(load: Load, figure: str, settings: Settings = SETTINGS) -> float:
    found = named(load, settings)[figure].all
    assert found is not None
    return found


def test_a_worker_folds_its_share_and_has_as_much_again_as_standby() -> None:
    found = named(LOAD)
    assert (found["partitions folded"].each, found["partitions held"].each) == (8, 16)
    assert found["partitions held"].all == 64


def test_a_lone_worker_has_no_standbys() -> None:
    assert of_all(replace(LOAD, workers=1), "partitions held") == 32


def test_the_busiest_worker_counts_where_partitions_do_not_divide() -> None:
    assert named(replace(LOAD, workers=5))["partitions folded"].each == 7


@pytest.mark.parametrize(
    ("more", "figure"),
    [
        ({"keys": 2_000_000}, "disk of stores, at most"),
        ({"row_bytes": 400}, "disk of stores, at most"),
        ({"keys": 2_000_000}, "memory, at most"),
        ({"row_bytes": 400}, "written to changelogs, at most"),
        ({"changes": 2.0}, "written to changelogs, at most"),
        ({"record_bytes": 200}, "disk of sources"),
        ({"retention_s": 7 * 86_400.0}, "disk of sources"),
        ({"keys": 2_000_000}, "disk of changelogs, at most"),
        ({"emits": 1.0, "brokers": 9}, "connections to brokers"),
        ({"workers": 8}, "the broker's record of the group"),
        ({"fold_us": 5.0}, "processor for records"),
    ],
)
def test_more_needs_more(more: dict[str, float], figure: str) -> None:
    assert of_all(replace(LOAD, **more), figure) > of_all(LOAD, figure)  # type: ignore[arg-type]


def test_decoded_rows_are_bounded_by_the_setting() -> None:
    large = replace(LOAD, keys=10**9)
    small = Settings(app="shop", cache_rows=1_000)
    assert of_all(large, "memory, at most", small) < 0.5 * of_all(large, "memory, at most")


def test_transactions_are_no_more_than_records_nor_than_a_share_of_a_core_allows() -> None:
    assert of_all(replace(LOAD, records_per_s=100), "transactions, at most") == 100
    assert of_all(replace(LOAD, records_per_s=10**6), "transactions, at most") < 10_000


def test_only_tables_of_several_sources_write_choices() -> None:
    assert "written as choices, at most" not in named(LOAD)
    assert of_all(replace(LOAD, sources=2), "written as choices, at most") > 0


def test_each_claim_member_reads_what_all_write() -> None:
    load = replace(LOAD, claim_members=100, claim_partitions=1_000)
    read, twice = (named(each)["read by claim members"] for each in (load, replace(load, claim_members=200)))
    assert read.each is not None
    assert (read.each, read.all) == (twice.each, 100 * read.each)
    assert twice.all == 200 * read.each


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"partitions": 0}, "partitions is 0: it is at least 1"),
        ({"records_per_s": float("nan")}, "records_per_s is nan: write a number"),
        ({"fold_us": float("inf")}, "fold_us is inf: write a number"),
        ({"claim_members": 3}, "claim_members and claim_partitions belong together"),
    ],
)
def test_what_no_application_is_like_is_refused(more: dict[str, float], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        replace(LOAD, **more)  # type: ignore[arg-type]


def test_json_has_plain_numbers_and_the_formula_of_each(run: Run) -> None:
    code, out, _ = run("size", "--partitions", "8", "--output", "json")
    told = json.loads(out)
    assert (code, told["workers"]) == (0, 1)
    for each in told["figures"]:
        assert each["how"]
        assert each["unit"]
        assert each["a_worker"] is not None or each["all"] is not None


def test_the_table_shows_formulas_when_asked(run: Run) -> None:
    assert "128 + 7 a partition" not in run("size", "--partitions", "8")[1]
    assert "128 + 7 a partition" in run("size", "--partitions", "8", "--formulas")[1]


def test_workers_are_as_many_as_the_records_need_and_at_most_one_a_partition(run: Run) -> None:
    assert "for 18 workers" in run("size", "--partitions", "64", "--records-per-s", "5000000")[2]
    assert "for 4 workers" in run("size", "--partitions", "4", "--records-per-s", "5000000")[2]


def test_a_load_that_comes_near_a_limit_is_reported(run: Run) -> None:
    _, _, err = run("size", "--partitions", "100000", "--workers", "1000")
    assert "the broker's record of the group: " in err
    assert "max.message.bytes" in err
    assert "limit" not in run("size", "--partitions", "8")[2]


@pytest.mark.long
def test_settings_count(run: Run, tmp_path: Path) -> None:
    def disk(*options: str) -> float:
        told = json.loads(run(*options, "size", "--partitions", "8", "--output", "json")[1])
        return float(next(each["all"] for each in told["figures"] if each["figure"] == "disk of sources"))

    assert disk("--set", "replication_factor=3") == 3 * disk()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--partitions", "8", "--retention", "forever"), "--retention 'forever': write a duration"),
        (("--partitions", "8", "--records-per-s", "inf"), "records_per_s is inf: write a number"),
        (
            ("--partitions", "8", "--records-per-s", "1e308", "--fold-us", "1e5"),
            "records_per_s is 1e+308: write a number",
        ),
        (("--partitions", "8", "--claim-members", "3"), "tell how many members share how many partitions"),
        (("--partitions", "0"), "Invalid value for '--partitions'"),
        ((), "Missing option '--partitions'"),
    ],
)
def test_a_wrong_load_is_reported_in_a_line(run: Run, options: tuple[str, ...], why: str) -> None:
    code, out, err = run("size", *options)
    assert (code, out) == (2, "")
    assert why in err
    assert "Traceback" not in err
