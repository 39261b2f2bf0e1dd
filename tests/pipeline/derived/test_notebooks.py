"""The notebooks, cell by cell without Jupyter: their Spark SQL gives the figures of the report and of the
models.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from holdfast.config import Settings
from holdfast.core.broker_logs.folds import OFFSETS_TOPIC
from holdfast.core.outbox.created_times import created_header
from holdfast.core.outbox.harvest import RowsProgress, rows_key
from holdfast.pipeline.derived.claim_intervals import INTERVALS, claim_intervals
from holdfast.pipeline.derived.claim_takeovers import TAKEOVERS, claim_takeovers
from holdfast.pipeline.derived.derive import TABLES, derive, tables_named
from holdfast.pipeline.histories.fold import FoldOptions
from holdfast.pipeline.reporting.ownership import claim_times, known_to_ms, ms_of
from tests.pipeline.derived import test_event_tables, test_group_tables, test_lag_tables, test_outbox_latency
from tests.pipeline.derived.fleet_of_claims import END_S, SimulatedFleet
from tests.pipeline.derived.test_claim_tables import append, rows_by_fold
from tests.pipeline.topics_in_memory import TopicInMemory, land, landed_from
from tests.support.places import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = Settings(app="derived", books="orders", progress="shop.progress")
NOTEBOOKS = ROOT / "examples" / "notebooks"


def cells_of(name: str) -> list[str]:
    """Return the code cells of a notebook, which must be of the format that Jupyter reads."""
    book = json.loads((NOTEBOOKS / name).read_text())
    assert (book["nbformat"], book["metadata"]["kernelspec"]["language"]) == (4, "python")
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])
    code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code), (
        "no output is kept"
    )
    return ["".join(cell["source"]) for cell in code]


def run(name: str) -> dict[str, Any]:
    """Run the cells of a notebook in their order, and return their variables."""
    made: dict[str, Any] = {"__name__": "__main__"}
    for at, source in enumerate(cells_of(name)):
        exec(compile(source, f"{name} cell {at}", "exec"), made)  # noqa: S102  as a notebook does
    return made


def derived(lake: Path, topic: TopicInMemory, *names: str) -> None:
    land(topic, lake)
    for name in names:
        [table] = tables_named(name, SETTINGS, ["orders"])
        derive(table, SETTINGS, FoldOptions(lake=str(lake), engine="local"))


def topic_of(monkeypatch: pytest.MonkeyPatch, name: str) -> TopicInMemory:
    made = TopicInMemory(name)
    landed_from(monkeypatch, made)
    return made


@pytest.fixture
def at_lake(monkeypatch: pytest.MonkeyPatch, lake: Path) -> Path:
    monkeypatch.setenv("LAKE", str(lake))
    return lake


@pytest.mark.slow
def test_the_notebook_of_claims_finds_the_figures_of_the_report(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, at_lake: Path
) -> None:
    fleet = SimulatedFleet(partitions=24)
    fleet.run()
    topic = topic_of(monkeypatch, SETTINGS.coordination_topic)
    append(topic, fleet.frames)
    derived(at_lake, topic, INTERVALS, TAKEOVERS)
    made = run("claims.ipynb")
    rows = [
        msgspec.structs.asdict(row)
        for part in rows_by_fold(claim_intervals(SETTINGS), fleet.frames)
        for row in part
    ]
    known_ms = known_to_ms(rows, 1 << 60)
    assert known_ms == ms_of(made["known"])
    idle = {row["topic_partition"]: row["idle_s"] for row in made["idle"].collect()}
    begin_ms = min(ms_of(row["held_from"]) for row in rows)
    claims = claim_times(rows, begin_ms, known_ms)
    assert {f"billing/orders-{partition}": idle_s * 1000 for partition, idle_s in idle.items()} == {
        claim.name: claim.idle_ms for claim in claims
    }
    assert max(idle.values()) > 0
    owners = {row["topic_partition"]: row["client_id"] for row in made["held"].collect()}
    assert owners == {partition: each[-1][0] for partition, each in fleet.truth.items()}
    takeovers = Counter(
        row.cause for part in rows_by_fold(claim_takeovers(SETTINGS), fleet.frames) for row in part
    )
    assert {row["cause"]: row["takeovers"] for row in made["causes"].collect()} == takeovers
    assert all(row["gaps"] == 0 for row in made["causes"].collect())
    assert made["shown"]._repr_html_().startswith("<iframe")
    assert made["shown"].page.count("<title>m") >= 24
    assert END_S > 0


@pytest.mark.slow
def test_the_notebook_of_events_counts_the_written_records(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, at_lake: Path
) -> None:
    set_aside = topic_of(monkeypatch, SETTINGS.quarantine_topic)
    refused = [test_event_tables.refuse(set_aside, number) for number in range(12)]
    retried = {test_event_tables.retry(set_aside, number)["offset"] for number in (3, 8)}
    derived(at_lake, set_aside, "quarantine")
    orders = topic_of(monkeypatch, "orders")
    test_event_tables.stamped_records(orders, 200, random.Random(3), defaultdict(list))
    derived(at_lake, orders, "producers.anomalies", "lag.ends")
    offsets = topic_of(monkeypatch, OFFSETS_TOPIC)
    for number, members in enumerate(
        ({"a": [("t", 0), ("t", 1)]}, {"a": [("t", 0)], "b": [("t", 1)]}, {"b": [("t", 0), ("t", 1)]})
    ):
        test_group_tables.put(
            offsets, test_group_tables.key_of("g"), test_group_tables.generation(number, members, {}), number
        )
    test_lag_tables.commit(offsets, "billing", 0, 3, 70_000)
    derived(at_lake, offsets, "groups.moves", "lag.commits")
    progress = topic_of(monkeypatch, "shop.progress")
    for number in range(30):
        value = msgspec.json.encode(RowsProgress(1, "shop-0", 1, [number, 1]))
        header = created_header([max(1, 10_000 * number - number)])
        test_outbox_latency.put(progress, 0, 10_000 * number, rows_key("shop-0"), value, (header,))
    derived(at_lake, progress, "outbox.latency")
    [table] = tables_named("lag.by_minute", SETTINGS, ["orders"])
    derive(table, SETTINGS, FoldOptions(lake=str(at_lake), engine="local"))
    made = run("what_went_wrong.ipynb")
    assert sum(row["records"] for row in made["reasons"].collect()) == len(refused)
    assert {row["offset"] for row in made["still_open"].collect()} == {
        each["offset"] for each in refused
    } - retried
    wrong = [each for records in orders.logs.values() for each in test_event_tables.anomalies_model(records)]
    found = {
        (row["producer"], row["kind"]): (row["records"], row["missing"])
        for row in made["producers"].collect()
    }
    assert {key: some for key, (some, _) in found.items()} == Counter((each[1], each[0]) for each in wrong)
    assert sum(missing for _, missing in found.values()) == sum(each[5] for each in wrong)
    assert [tuple(row)[:3] for row in made["lag"].collect()] == [("billing", 0, orders.end[0] - 3)]
    assert [tuple(row) for row in made["moved"].collect()] == [("g", 3, 4, 1)]
    assert [(row["rows"], row["p50_ms"], row["p99_ms"]) for row in made["slowest"]] == [
        (6, 6 * at + 2, 6 * at + 5) for at in range(5)
    ]
    assert "<iframe" in made["shown"]._repr_html_()


def test_every_derived_table_is_in_a_notebook() -> None:
    text = "".join(source for path in NOTEBOOKS.glob("*.ipynb") for source in cells_of(path.name))
    assert [name for name in TABLES if name not in text] == ["lag.ends"]  # lag.by_minute is joined of it


@pytest.mark.variant
@pytest.mark.parametrize("name", ["what_went_wrong.ipynb", "claims.ipynb"])
def test_a_notebook_shows_what_there_is_where_tables_were_not_derived(
    spark: SparkSession, at_lake: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    made = run(name)
    assert "was not derived" in capsys.readouterr().out
    assert "<iframe" in made["shown"]._repr_html_()
