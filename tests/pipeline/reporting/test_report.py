"""The report page: its figures against the truth of a simulated fleet and a count second by second, and the
page itself in a browser.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from playwright.sync_api import Browser

from holdfast.cli.__main__ import main
from holdfast.config import Settings
from holdfast.errors import ConfigError
from holdfast.pipeline.derived.claim_intervals import INTERVALS, claim_intervals
from holdfast.pipeline.derived.claim_takeovers import TAKEOVERS, claim_takeovers
from holdfast.pipeline.derived.derive import TABLES, derive, derived_path, tables_named
from holdfast.pipeline.derived.group_moves import MOVES, GroupMove
from holdfast.pipeline.derived.lag_tables import ENDS
from holdfast.pipeline.derived.outbox_latency import LATENCY, OutboxLatency
from holdfast.pipeline.derived.producer_anomalies import ANOMALIES, ProducerAnomaly
from holdfast.pipeline.derived.quarantine_events import QUARANTINE, QuarantineEvent
from holdfast.pipeline.derived.table import time_at
from holdfast.pipeline.histories.fold import FoldOptions
from holdfast.pipeline.reporting import slices
from holdfast.pipeline.reporting.ownership import NOBODY, claim_times, held_over_time, largest_owners, ms_of
from holdfast.pipeline.reporting.report import TIMES, ReportedTime, ReportOptions, report
from holdfast.pipeline.reporting.report_page import report_page
from tests.pipeline.derived.fleet_of_claims import BEGIN_S, END_S, SimulatedFleet
from tests.pipeline.derived.test_claim_tables import put, rows_by_fold, value_of, with_resets
from tests.pipeline.topics_in_memory import TopicInMemory, land, landed_from
from tests.support.browser import started, violations
from tests.support.parts import part

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_KAFKA = Settings(app="derived")


# -- figures


def folded(table: Any, log: Any) -> list[dict[str, Any]]:
    over, current = rows_by_fold(table, log)
    return [
        {**msgspec.structs.asdict(row), "is_current": at}
        for at, rows in enumerate((over, current))
        for row in rows
    ]


@pytest.mark.parametrize("seed", range(6))
def test_idle_and_held_times_are_those_of_a_count_second_by_second(seed: int) -> None:
    rows = folded(claim_intervals(NO_KAFKA), with_resets(seed))
    begin_s, end_s = 10_300, 13_000
    claims = claim_times(rows, begin_s * 1000, end_s * 1000)
    assert claims
    for claim in claims:
        of = [
            row for row in rows if f"{row['group_id']}/{row['topic']}-{row['topic_partition']}" == claim.name
        ]
        known_s = max(begin_s, min(int(row["held_from"].timestamp()) for row in of))
        idle = sum(not any(_covers(row, second) for row in of) for second in range(known_s, end_s))
        assert (claim.known_from_ms, claim.idle_ms) == (known_s * 1000, idle * 1000)
        held = sum(each.to_ms - each.from_ms for each in claim.held)
        assert held == sum(_covers(row, second) for row in of for second in range(begin_s, end_s)) * 1000
    assert [claim.illness for claim in claims] == sorted((claim.illness for claim in claims), reverse=True)
    parts = [(begin_s * 1000 + at * 27_000, begin_s * 1000 + (at + 1) * 27_000) for at in range(100)]
    owners = largest_owners(claims, 2)
    series = held_over_time(claims, end_s * 1000, parts, owners, "others")
    assert [*series][:2] == owners
    idle_ms = sum(series.get(NOBODY, ())) * 27_000
    assert round(idle_ms) == sum(claim.idle_ms for claim in claims)
    known_ms = sum(end_s * 1000 - claim.known_from_ms for claim in claims)
    assert round(sum(map(sum, series.values())) * 27_000) == known_ms


def test_intervals_that_overlap_count_once() -> None:
    """A log that gets append times late may set a claim's time back."""
    begins = [(1_000, 1_500), (1_200, 1_400), (1_300, 1_600)]
    rows = [
        {
            "group_id": "g",
            "client_id": "c",
            "topic": "t",
            "topic_partition": 0,
            "epoch": at,
            "began_at": at,
            "held_from": time_at(begin * 1000),
            "held_until": time_at(end * 1000),
            "ended_by": "released",
        }
        for at, (begin, end) in enumerate(begins)
    ]
    [claim] = claim_times(rows, 1_000_000, 1_700_000)
    assert claim.idle_ms == 100_000


def _covers(row: dict[str, Any], second: int) -> bool:
    until = row["held_until"]
    return bool(row["held_from"].timestamp() <= second and (until is None or second < until.timestamp()))


@pytest.fixture(scope="module")
def fleet() -> SimulatedFleet:
    made = SimulatedFleet()
    made.run()
    return made


@pytest.mark.long
def test_the_tables_have_the_true_history_of_a_fleet_of_a_thousand_partitions(fleet: SimulatedFleet) -> None:
    """The simulation knows every owner, without any fold."""
    told: dict[int, list[tuple[Any, ...]]] = {}
    for row in folded(claim_intervals(NO_KAFKA), fleet.frames):
        until = None if row["ended_by"] is None else int(row["held_until"].timestamp()) - BEGIN_S
        interval = (row["client_id"], row["instance_id"], int(row["held_from"].timestamp()) - BEGIN_S, until)
        told.setdefault(row["topic_partition"], []).append(interval)
    assert {
        partition: sorted(each, key=lambda one: one[2]) for partition, each in told.items()
    } == fleet.truth
    causes = Counter(row["cause"] for row in folded(claim_takeovers(NO_KAFKA), fleet.frames))
    assert causes == {"expired": 125, "replaced": 125, "released": 125}


# -- the page


def rows_of_a_day(fleet: SimulatedFleet) -> ReportedTime:
    """Return the rows of the fleet's tables, with anomalies and records that were set aside."""
    anomalies = [
        ProducerAnomaly(kind, time_at((BEGIN_S + at * 7) * 1000), f"p{at % 5}", 1, 1, at, at, at % 3, at)
        for at in range(300)
        for kind in (("gap", "duplicate", "zombie")[at % 3],)
    ]
    set_aside = [
        QuarantineEvent(
            "refused",
            time_at((BEGIN_S + 900 + at) * 1000),
            "totals",
            "orders",
            1,
            at,
            "fold",
            "ValueError",
            f"<b>no {at % 40}</b>",
        )
        for at in range(400)
    ]
    moved = [
        GroupMove(
            f"group {at % 3}",
            "orders",
            at,
            time_at((BEGIN_S + at) * 1000),
            1,
            "left",
            "a",
            "a",
            "/h",
            "b",
            "b",
            "/h",
            at,
        )
        for at in range(100)
    ]
    waited = [
        OutboxLatency(
            "shop",
            at % 2,
            1,
            time_at((BEGIN_S + at // 2 * 60) * 1000),
            1,
            10,
            1,
            5 + at,
            40 + at,
            90,
            200,
            9.0,
        )
        for at in range(60)
    ]
    return ReportedTime(
        from_ms=BEGIN_S * 1000,
        to_ms=(BEGIN_S + END_S) * 1000,
        tables={
            INTERVALS: folded(claim_intervals(NO_KAFKA), fleet.frames),
            TAKEOVERS: folded(claim_takeovers(NO_KAFKA), fleet.frames),
            MOVES: [{**msgspec.structs.asdict(each), "of_topic": "__consumer_offsets"} for each in moved],
            LATENCY: [{**msgspec.structs.asdict(each), "of_topic": "shop.progress"} for each in waited],
            ANOMALIES: [{**msgspec.structs.asdict(each), "of_topic": "orders"} for each in anomalies],
            QUARANTINE: [{**msgspec.structs.asdict(each), "of_topic": "q"} for each in set_aside],
        },
    )


@pytest.fixture(scope="module")
@part("browser")
def browser() -> Iterator[Browser]:
    with started() as found:
        yield found


@pytest.fixture(scope="module")
def page_of_a_day(fleet: SimulatedFleet) -> str:
    """Give the page of the fleet, which is the same in all colours."""
    return report_page(rows_of_a_day(fleet))


@pytest.mark.variants("dark")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_shows_the_page_of_a_thousand_partitions(
    browser: Browser, page_of_a_day: str, tmp_path: Path, scheme: Any
) -> None:
    file = tmp_path / "report.html"
    file.write_text(page_of_a_day)
    assert file.stat().st_size < 2_000_000
    context = browser.new_context(color_scheme=scheme, viewport={"width": 1280, "height": 900})
    page, complaints, asked = context.new_page(), list[str](), list[str]()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file.as_uri())
    page.screenshot(path=str(tmp_path / f"{scheme}.png"), full_page=True)
    text = page.inner_text("body")
    assert "1000 claims are known, 375 of them were without an owner for a while or lost one" in text
    assert "375 claims changed hands: 125 expired, 125 replaced, 125 released" in text
    assert "All that told an offset went on where the owner before stood" in text
    assert "400 records were set aside" in text
    assert "<b>no 1</b>" in text, "reasons are text, and no part of the page"
    assert page.locator("figure").count() == 8
    # The bars of a lane lie within the plot, and the least well claim is one that a dead member held.
    boxes = page.locator("figure svg rect").evaluate_all(
        "all => all.map(each => each.getBoundingClientRect().right)"
    )
    assert max(boxes) <= 1280
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    worst = page.locator("figure").nth(1).locator("title").all_text_contents()[:2]
    assert worst[0].startswith("billing/orders-")
    assert worst[1].startswith("billing/m1 (m1-1), epoch 1, from 2025-11-24 16:00:00, expired")
    assert complaints == []
    assert asked == [file.as_uri()], "nothing is fetched from elsewhere"
    assert violations(page) == [], "\n".join(violations(page)[:40])
    context.close()


# -- the command


@pytest.fixture
def derived(monkeypatch: pytest.MonkeyPatch, lake: Path) -> Path:
    """Give a lake with the tables of claims."""
    topic = TopicInMemory(NO_KAFKA.coordination_topic)
    landed_from(monkeypatch, topic)
    for frame, at_ms in with_resets(1, 200):
        put(topic, 0, value_of(frame), at_ms)
    land(topic, lake)
    for name in (INTERVALS, TAKEOVERS):
        [table] = tables_named(name, NO_KAFKA)
        derive(table, NO_KAFKA, FoldOptions(lake=str(lake), engine="local"))
    return lake


def options(lake: Path, from_s: int, to_s: int, **more: Any) -> ReportOptions:
    return ReportOptions(lake=str(lake), from_ms=from_s * 1000, to_ms=to_s * 1000, **more)


@pytest.mark.long
def test_a_slice_has_the_rows_that_touch_it_and_no_others(derived: Path) -> None:
    found = report(NO_KAFKA, options(derived, 12_000, 14_000))
    rows = DeltaTable(derived_path(str(derived), INTERVALS)).to_pyarrow_table().to_pylist()
    wanted = [
        row["began_at"]
        for row in rows
        if ms_of(row["held_from"]) < 14_000_000
        and (row["is_current"] or ms_of(row["held_until"]) >= 12_000_000)
    ]
    assert 0 < len(wanted) < len(rows)
    assert sorted(row["began_at"] for row in found.tables[INTERVALS]) == sorted(wanted)
    assert [*found.tables] == [INTERVALS, TAKEOVERS]


@pytest.mark.variant
def test_both_engines_make_the_same_page(spark: SparkSession, derived: Path) -> None:
    here, there = (
        report(NO_KAFKA, options(derived, 12_000, 14_000, engine=engine)) for engine in ("local", "spark")
    )
    assert here == there
    assert report_page(here) == report_page(there)


def test_every_table_has_times_by_which_it_is_cut() -> None:
    assert {*TABLES} - {*TIMES} == {ENDS}  # whose rows lag.by_minute has
    for name in TIMES:
        [table] = tables_named(name, Settings(books="orders", progress="shop.progress"), ["orders"])
        assert {*TIMES[name]} <= {*table.schema.names}


@pytest.mark.long
def test_the_command_writes_the_page(
    derived: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(["--set", "app=derived", "report", "--lake", str(derived), *words])
        return int(ended.value.code or 0), capsys.readouterr().err

    page = tmp_path / "page.html"
    at = [datetime.fromtimestamp(second, UTC).isoformat() for second in (12_000, 14_000)]
    code, err = command("--from", at[0], "--to", at[1], "--html", str(page))
    assert (code, "rows of claims.intervals" in err) == (0, True), err
    assert "This table was not derived" in page.read_text()
    assert "Ownership" in page.read_text()
    assert "is not before" in command("--from", at[1], "--to", at[0])[1]
    assert "--from '0:17': write a time with its zone" in command("--from", "0:17")[1]
    assert "--to 'noon': write" in command("--to", "noon")[1]
    assert "cannot be written" in command("--from", at[0], "--to", at[1], "--html", "/nowhere/x.html")[1]
    code, err = command("--html", str(page))
    assert (code, "Nothing is known of claims in this time" in page.read_text()) == (0, True)


@pytest.mark.long
def test_a_table_with_too_many_rows_of_the_time_is_left_out_with_a_notice(
    derived: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = report(NO_KAFKA, options(derived, 0, 14_000))
    counts = {name: len(rows) for name, rows in whole.tables.items()}
    assert counts[INTERVALS] > counts[TAKEOVERS], counts
    monkeypatch.setattr(slices, "LIMIT_ROWS", counts[TAKEOVERS])
    found = report(NO_KAFKA, options(derived, 0, 14_000))
    assert found.tables == {TAKEOVERS: whole.tables[TAKEOVERS]}
    assert found.left_out == {INTERVALS: counts[INTERVALS]}
    shown = report_page(found)
    assert f"Left out: this time has {counts[INTERVALS]:,} rows of it" in shown
    at = [datetime.fromtimestamp(second, UTC).isoformat() for second in (0, 14_000)]
    words = ("--from", at[0], "--to", at[1], "--html", str(tmp_path / "page.html"))
    with pytest.raises(SystemExit) as ended:
        main(["--set", "app=derived", "report", "--lake", str(derived), *words])
    told = capsys.readouterr().err
    assert not ended.value.code, told
    assert f"claims.intervals is left out: this time has {counts[INTERVALS]} rows of it" in told


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_rows_thinned_as_they_are_read_are_those_thinned_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance, path = random.Random(seed), str(tmp_path / "table")
    minutes = [(group, partition, minute) for group in "ab" for partition in range(3) for minute in range(90)]
    chance.shuffle(minutes)
    every: list[dict[str, Any]] = [
        {
            "group_id": group,
            "partition": partition,
            "minute": datetime.fromtimestamp(minute * 60, UTC),
            "until": datetime.fromtimestamp(minute * 60 + 60, UTC),
            "lag": None if chance.random() < 0.1 else chance.randrange(1_000),
            "is_current": False,
        }
        for group, partition, minute in minutes[:400]
    ]
    for at in range(0, len(every), 40):
        write_deltalake(path, pa.Table.from_pylist(every[at : at + 40], schema=THIN_SCHEMA), mode="append")
    how = slices.Thinned(keys=("group_id", "partition"), values=("lag",), by="minute", part_ms=600_000)
    of = slices.TimeSlice("minute", "until", 600_000, 4_800_000, how)
    wanted: dict[Any, Any] = {}
    for row in sorted(every, key=lambda each: each["minute"]):
        if row["minute"].timestamp() < 4_800 and row["until"].timestamp() >= 600:
            part = (int(row["minute"].timestamp() * 1000) - 600_000) // 600_000
            wanted[row["group_id"], row["partition"], max(part, 0)] = (row["minute"], row["lag"])
    held: list[int] = []
    thin = slices._thinned

    def noted(table: pa.Table, from_ms: int, how: slices.Thinned) -> pa.Table:
        held.append(table.num_rows)
        return thin(table, from_ms, how)

    monkeypatch.setattr(slices, "_thinned", noted)
    monkeypatch.setattr(slices, "THIN_ROWS", 50)
    rows = slices.read_here(path, of)
    assert not isinstance(rows, slices.TooManyRows)
    found = {(r["group_id"], r["partition"], r["part"]): (r["minute"], r["lag"]) for r in rows}
    assert (found, len(rows)) == (wanted, len(wanted))
    assert len(held) > 2
    assert max(held) < len(wanted) + 50 + 40, "never all of them"


THIN_SCHEMA = pa.schema(
    [
        ("group_id", pa.string()),
        ("partition", pa.int32()),
        ("minute", pa.timestamp("us", "UTC")),
        ("until", pa.timestamp("us", "UTC")),
        ("lag", pa.int64()),
        ("is_current", pa.bool_()),
    ]
)


def test_a_lake_without_derived_tables_is_reported(lake: Path) -> None:
    with pytest.raises(ConfigError, match="make them first"):
        report(NO_KAFKA, options(lake, 1, 2))
