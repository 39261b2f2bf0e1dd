"""The arguments of `create_app`, and the parts next to it, work or are refused in one line before anything is
lost.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import faust
import pytest

from holdfast.agents.app import App, create_app
from holdfast.agents.faust.declared.options import INSTEAD, TAKEN
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.errors import ConfigError


def declare(**changed: Any) -> Processor[Any, Any]:
    declared: dict[str, Any] = {
        "name": "totals",
        "source": "orders",
        "decode": bytes,
        "fold": lambda *_: None,
        "row": int,
    }
    return Processor(**declared | changed)


@pytest.mark.parametrize(
    ("processors", "why"),
    [
        (declare(), r"processors is the processor totals alone; write a list: \[totals\]"),
        (None, "processors is None; write a list of Processor"),
        ("totals", "processors is 'totals'; write a list"),
        ([declare(), int], "which is not a Processor"),
        ([declare(), declare(source="other")], "two processors share a name, totals of orders and of other"),
        ([declare()] * 2, "two processors share a name"),
    ],
)
def test_an_application_is_a_list_of_processors_of_different_names(processors: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        create_app(processors)
    assert "\n" not in str(refused.value)


# -- Faust's own parts next to processors


def app_of(tmp_path: Path) -> App:
    return create_app([declare()], Settings(app="shop", data_dir=tmp_path))


@pytest.mark.parametrize(
    ("make", "cure"),
    [
        (lambda app: app.Table("counts", default=int, use_partitioner=True), "group_by the key before"),
        (lambda app: app.GlobalTable("counts", default=int), r"declare `Global\(...\)` of its topic"),
        (lambda app: app.SetTable("counts"), r"declare it by app.Table\(...\), with a list for a set"),
        (lambda app: app.SetTable("counts", start_manager=True), "declare it by app.Table"),
        (lambda app: app.SetGlobalTable("counts"), r"declare `Global\(...\)`"),
        (lambda app: app.tables.add(faust.Table(app, name="counts", default=int)), "declare it by app.Table"),
    ],
)
def test_a_table_that_could_not_be_restored_as_it_was_is_refused(
    make: Callable[[App], Any], cure: str, tmp_path: Path
) -> None:
    app = app_of(tmp_path)
    with pytest.raises(ConfigError, match=f"table counts: .*; {cure}.* the fold of a Processor") as refused:
        make(app)
    assert "\n" not in str(refused.value)
    assert list(app.tables) == ["totals.v1"]


def test_tables_of_fausts_are_taken_with_windows_and_without(tmp_path: Path) -> None:
    app = app_of(tmp_path)
    app.Table("counts", default=int)
    app.Table("minutes", default=int).tumbling(10.0, expires=60.0, key_index=True)
    app.Table("hops", default=int, window=faust.windows.HoppingWindow(10, 5))
    assert [table.changelog_topic_name for table in app.tables.stock.by_changelog().values()] == [  # type: ignore[attr-defined]
        "shop-counts-changelog",
        "shop-minutes-changelog",
        "shop-minutes-key_index-changelog",
        "shop-hops-changelog",
    ]


@pytest.mark.parametrize(
    "declared",
    [
        lambda app: app.agent(app.topic("shop-totals.v1-changelog")),
        lambda app: app.agent(app.topic("others", "shop-totals.v1-changelog")),
        lambda app: app.agent("shop-totals.v1-changelog"),
        lambda app: app.actor(app.topic(pattern="shop-.*")),
        lambda app: app.stream(app.topic("shop-totals.v1-changelog")),
        lambda app: app.topic("shop-totals.v1-changelog").stream(),
    ],
)
def test_an_agent_or_stream_of_a_processors_own_topic_is_refused(
    declared: Callable[[App], Any], tmp_path: Path
) -> None:
    app = app_of(tmp_path)
    with pytest.raises(ConfigError, match=r"processor totals's own, .*; have a fold emit") as refused:
        declared(app)
    assert "\n" not in str(refused.value)
    assert set(app.agents) == {"holdfast.totals"}


@pytest.mark.parametrize(
    "path", ["/tables", "/tables/", "/tables/x", "/globals/x", "/health/live", "/metrics"]
)
def test_a_page_where_the_workers_own_are_is_refused(path: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the worker's own pages are .*; give the page another path"):
        app_of(tmp_path).page(path)


@pytest.mark.parametrize("path", ["/", "/table", "/healthy/", "/metrics-of-mine"])
def test_other_pages_are_taken(path: str, tmp_path: Path) -> None:
    app = app_of(tmp_path)

    async def show(view: Any, request: Any) -> Any: ...

    app.page(path)(show)
    assert path in {resource.canonical for resource in app.page_resources()}


@pytest.mark.parametrize(
    ("options", "cure"),
    [
        ({"broker": "kafka://there"}, "broker: set bootstrap.servers"),
        ({"version": 2}, "version: set app to the old application's whole id"),
        ({"datadir": "/tmp"}, "datadir: set data_dir"),
        (
            {"processing_guarantee": "exactly_once"},
            "processing_guarantee: leave it out: processors are exactly once",
        ),
        ({"TableManager": "mine"}, "TableManager: leave it out; those that it takes are .*agent_supervisor"),
        ({"store": "aerospike://"}, "store='aerospike://': .* memory:// or rocksdb://"),
    ],
)
def test_a_setting_of_fausts_that_holdfast_governs_is_refused(
    options: dict[str, Any], cure: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"create_app does not take .*{cure}") as refused:
        create_app([], Settings(app="shop", data_dir=tmp_path), **options)
    assert "\n" not in str(refused.value)


def test_each_setting_that_is_named_is_one_of_fausts() -> None:
    known = set(vars(faust.Settings))
    assert known >= TAKEN
    assert known >= INSTEAD.keys()
    assert not TAKEN & INSTEAD.keys()


def test_settings_of_fausts_that_concern_agents_are_theirs(tmp_path: Path) -> None:
    app = create_app([], Settings(app="shop", data_dir=tmp_path), topic_partitions=3, store="rocksdb://")
    assert (app.conf.topic_partitions, str(app.conf.store)) == (3, "rocksdb:")


def test_a_leader_is_had_where_something_asks_for_one(tmp_path: Path) -> None:
    app = app_of(tmp_path)
    app.timer(1.0)
    assert not app.has_leader
    app.crontab("* * * * *", on_leader=True)
    app.timer(1.0)
    assert app.has_leader


def test_ordinary_agents_are_taken_on_processors_sources_too(tmp_path: Path) -> None:
    app = app_of(tmp_path)

    async def work(stream: Any) -> None: ...

    others = (app.topic("jobs"), "more-jobs", None, app.topic(pattern="jobs.*"))
    folded = ("orders", app.topic("orders", value_serializer="raw"), app.topic(pattern="ord.*"))
    for at, channel in enumerate((*others, *folded)):
        app.agent(channel, name=f"agent {at}")(work)
    assert len(app.agents) == 8
