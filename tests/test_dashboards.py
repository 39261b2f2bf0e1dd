"""Dashboards and alert rules against the program: every metric they name exists, with the labels that they
select, sum by and show.

A worker's metrics are in tables of docs/operating.md, which test_operating_page.py compares with a real one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import promql_parser as promql
import pytest
import yaml
from prometheus_client import ProcessCollector
from prometheus_client.core import Metric

from holdfast.agents.books_metrics import book_families
from holdfast.agents.services.harvester_page import HarvesterPage
from holdfast.cli.groups.lag_page import LagPage
from holdfast.cli.groups.partition_lag import PartitionLag
from holdfast.cli.pipeline.landing_status import LandingPage
from holdfast.core.broker_logs.lag import LagStanding
from holdfast.core.producers.ledger import BookRow
from holdfast.outbox.harvest.harvester import Harvester
from holdfast.outbox.settings import HarvestSettings
from tests.support.places import DOCS, ROOT

RULES = DOCS / "alerts.yml"
GRAFANA = ROOT / "deploy" / "grafana"
DASHBOARDS = sorted((GRAFANA / "dashboards").glob("*.json"))
EVERYWHERE = frozenset({"instance", "job"})
"""The labels that Prometheus adds to every sample."""
VARIABLES = {"$__rate_interval": "5m", "$instance": ".*"}
Known = Mapping[str, frozenset[str]]


# -- what there is


def groups_page() -> LagPage:
    found = PartitionLag(
        group="billing",
        place=("orders", 0),
        standing=LagStanding.STOP,
        committed=4,
        end=9,
        commits=2,
        committed_at_ms=0,
    )
    return LagPage([found], 1_000)


def of_families(families: Iterable[Metric]) -> Iterator[tuple[str, frozenset[str]]]:
    for family in families:
        for sample in family.samples:
            yield sample.name, frozenset(sample.labels)


def of_tables(page: str) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield the samples of the metrics in the tables of a page with their labels."""
    for name, kind, labels in re.findall(
        r"^\| `(\w+)` \| (gauge|counter|histogram) \| ([^|]*) \|", page, re.MULTILINE
    ):
        of_it = frozenset(filter(None, re.split(r",\s*", labels.strip())))
        if kind == "histogram":
            yield from ((f"{name}_sum", of_it), (f"{name}_count", of_it), (f"{name}_bucket", of_it | {"le"}))
        else:
            yield name, of_it


@pytest.fixture(scope="module")
def known() -> Known:
    """Give every sample that a process of holdfast exports, with its labels."""
    book: Any = SimpleNamespace(
        processor=SimpleNamespace(name="b", row=BookRow, topics=("orders",)),
        active=True,
        serving=True,
        partition=0,
        get=lambda key: None,
    )
    report: Any = SimpleNamespace(rows=1, commits=1, lag={0: 1}, committed_ms=1)
    collected = [
        *HarvesterPage(Harvester(HarvestSettings(database="sqlite:///never-opened.db"))).collect(),
        *book_families([book]),
        *LandingPage({"orders": report}).collect(),
        *groups_page().collect(),
        *ProcessCollector(registry=None).collect(),
    ]
    found = dict(of_families(collected))
    for name, labels in of_tables((DOCS / "operating.md").read_text()):
        found[name] = found.get(name, labels) & labels
    return found


# -- what a query names


class WrongQueryError(Exception):
    """A query that no process of holdfast can answer."""


def labels_of(query: Any, known: Known) -> frozenset[str]:
    """Return the labels of what *query* gives; WrongQueryError for a metric or label that does not exist.

    >>> labels_of(promql.parse("sum by (a) (rate(x_total[5m])) > 0"), {"x_total": frozenset({"a", "b"})})
    frozenset({'a'})
    """
    match query:
        case promql.VectorSelector():
            return _of_selector(query, known)
        case promql.MatrixSelector():
            return _of_selector(query.vector_selector, known)
        case promql.ParenExpr() | promql.UnaryExpr() | promql.SubqueryExpr():
            return labels_of(query.expr, known)
        case promql.Call():
            given = frozenset[str]().union(*(labels_of(each, known) for each in query.args))
            return given - {"le"} if query.func.name == "histogram_quantile" else given
        case promql.AggregateExpr():
            return _of_aggregate(query, known)
        case promql.BinaryExpr():
            return _of_binary(query, known)
        case _:
            return frozenset()


def _of_selector(selector: Any, known: Known) -> frozenset[str]:
    if selector.name not in known:
        raise WrongQueryError(f"no process tells {selector.name}")
    labels = known[selector.name] | EVERYWHERE
    if strange := {each.name for each in selector.matchers.matchers} - labels:
        raise WrongQueryError(f"{selector.name} has no {sorted(strange)}")
    return labels


def _of_aggregate(query: Any, known: Known) -> frozenset[str]:
    inner = labels_of(query.expr, known)
    if query.modifier is None:
        return frozenset()
    assert query.modifier.type == promql.AggModifierType.By
    if strange := set(query.modifier.labels) - inner:
        raise WrongQueryError(f"{query} sums by {sorted(strange)}, which {query.expr} has not")
    return frozenset(query.modifier.labels)


def _of_binary(query: Any, known: Known) -> frozenset[str]:
    left, right = labels_of(query.lhs, known), labels_of(query.rhs, known)
    matching = getattr(query.modifier, "matching", None)
    if matching is not None and (strange := set(matching.labels) - (left & right)):
        raise WrongQueryError(f"{query} matches on {sorted(strange)}, which one side has not")
    return left or right


def check(query: str, shown: Iterable[str], known: Known) -> str | None:
    """Return the fault of a query of which the labels *shown* are read; None for a query without one."""
    for variable, value in VARIABLES.items():
        query = query.replace(variable, value)
    try:
        given = labels_of(promql.parse(query), known)
    except (ValueError, WrongQueryError) as error:
        return f"{query}: {error}"
    strange = set(shown) - given
    return f"{query} has no {sorted(strange)} to show" if strange else None


# -- rules


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_every_alert_is_of_exported_metrics(rule: dict[str, Any], known: Known) -> None:
    text = " ".join(rule["annotations"].values())
    assert check(rule["expr"], re.findall(r"\$labels\.(\w+)", text), known) is None
    assert rule["labels"]["severity"] in ("page", "ticket")


def test_everything_that_the_pages_call_worth_an_alert_has_a_rule() -> None:
    page = (DOCS / "operating.md").read_text()
    listed = page.partition("Alert on these conditions")[2].partition("\n\nWorkers also")[0]
    worth = set(re.findall(r"`((?:holdfast|kafka)_\w+)`", listed))
    outbox = (DOCS / "outbox.md").read_text()
    worth |= {
        name
        for name, text in re.findall(r"^\| `(holdfast_\w+)` \| (.*) \|$", outbox, re.MULTILINE)
        if "alert" in text
    }
    ruled = " ".join(rule["expr"] for rule in rules())
    assert len(worth) >= 15
    assert {name for name in worth if name not in ruled} == set()


# -- dashboards


def queries(dashboard: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"], re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
    for variable in dashboard["templating"]["list"]:
        for metric, label in re.findall(r"label_values\((\w+), (\w+)\)", variable.get("definition", "")):
            yield metric, [label]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_every_panel_is_of_exported_metrics(path: Path, known: Known) -> None:
    found = [*queries(json.loads(path.read_text()))]
    assert len(found) >= 10
    assert [wrong for query, shown in found if (wrong := check(query, shown, known)) is not None] == []


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_is_laid_out_and_bound_to_no_installation(path: Path) -> None:
    dashboard = json.loads(path.read_text())
    panels = dashboard["panels"]
    assert dashboard["uid"] == f"holdfast-{path.stem}"
    assert dashboard.get("id") is None, "the installation's own number"
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells)), "panels overlap"
    assert max(x for x, _ in cells) < 24
    assert {panel["datasource"]["uid"] for panel in panels if "datasource" in panel} == {"${datasource}"}


def test_the_metrics_of_workers_are_on_a_dashboard(known: Known) -> None:
    shown = " ".join(path.read_text() for path in DASHBOARDS) + RULES.read_text()
    unshown = {
        name
        for name in known
        if name.startswith("holdfast_")
        and not name.endswith(("_created", "_sum", "_count"))
        and name not in shown
        and not name.endswith("standing")  # the old name of a metric that is shown
    }
    assert unshown == {
        "holdfast_applied_offset",
        "holdfast_stream_time_seconds",
        "holdfast_global_serving",
        "holdfast_global_rows",
        "holdfast_global_applied_offset",
        "holdfast_outbox_reset_total",
    }


def test_grafana_is_provisioned_from_the_dashboards_folder() -> None:
    (provider,) = yaml.safe_load((GRAFANA / "provisioning/dashboards/holdfast.yaml").read_text())["providers"]
    assert (provider["type"], provider["options"]["path"]) == ("file", "/var/lib/grafana/dashboards/holdfast")
    (source,) = yaml.safe_load((GRAFANA / "provisioning/datasources/holdfast.yaml").read_text())[
        "datasources"
    ]
    assert source["type"] == "prometheus"


# -- the checks above can fail


@pytest.mark.parametrize(
    ("query", "shown", "wrong"),
    [
        ("holdfast_redy == 0", [], "no process tells holdfast_redy"),
        ("rate(holdfast_quarantined[5m])", [], "no process tells holdfast_quarantined"),
        ('holdfast_rows{rolle="active"}', [], r"holdfast_rows has no \['rolle'\]"),
        ("sum by (topic) (holdfast_rows)", [], r"sums by \['topic'\]"),
        ("sum(holdfast_rows)", ["table"], r"has no \['table'\] to show"),
        ("holdfast_rows and on (topic) holdfast_ready", [], r"matches on \['topic'\]"),
        (
            "histogram_quantile(0.9, sum by (le, topic) (rate(holdfast_commit_seconds_bucket[5m])))",
            [],
            "sums by",
        ),
        ("sum(", [], "sum"),
    ],
)
def test_a_wrong_query_is_found(query: str, shown: list[str], wrong: str, known: Known) -> None:
    found = check(query, shown, known)
    assert found is not None
    assert re.search(wrong, found)
