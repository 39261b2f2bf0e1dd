"""What `create_app` is given, and what is put beside it, works or is refused in one line before anything
is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import faust
import pytest

from holdfast.agents.app import App, create_app
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


# -- Faust's own parts beside processors


def app_of(tmp_path: Path) -> App:
    return create_app([declare()], Settings(app="shop", data_dir=tmp_path))


@pytest.mark.parametrize(
    "make",
    [
        lambda app: app.Table("counts", default=int),
        lambda app: app.Table("counts", default=int, use_partitioner=True),
        lambda app: app.Table("counts", default=int).tumbling(10.0),
        lambda app: app.Table("counts", default=int, window=faust.windows.HoppingWindow(10, 5)),
        lambda app: app.GlobalTable("counts", default=int),
        lambda app: app.SetTable("counts"),
        lambda app: app.SetTable("counts", start_manager=True),
        lambda app: app.SetGlobalTable("counts"),
        lambda app: app.tables.add(faust.Table(app, name="counts", default=int)),
    ],
)
def test_a_table_that_nothing_would_restore_is_refused(make: Callable[[App], Any], tmp_path: Path) -> None:
    app = app_of(tmp_path)
    with pytest.raises(
        ConfigError, match=r"table counts: .* would be empty after a restart; .* the fold of a Processor"
    ) as refused:
        make(app)
    assert "\n" not in str(refused.value)
    assert list(app.tables) == ["totals.v1"]


@pytest.mark.parametrize(
    "declared",
    [
        lambda app: app.agent(app.topic("orders")),
        lambda app: app.agent("orders"),
        lambda app: app.actor(app.topic("orders", value_serializer="raw")),
        lambda app: app.agent(app.topic("others", "orders")),
        lambda app: app.agent(app.topic(pattern="ord.*")),
        lambda app: app.agent(app.topic("shop-totals.v1-changelog")),
        lambda app: app.stream(app.topic("orders")),
        lambda app: app.topic("orders").stream(),
    ],
)
def test_an_agent_or_stream_that_would_get_batches_for_records_is_refused(
    declared: Callable[[App], Any], tmp_path: Path
) -> None:
    app = app_of(tmp_path)
    with pytest.raises(
        ConfigError, match=r"processor totals folds it in this application, .*; have the fold emit"
    ) as refused:
        declared(app)
    assert "\n" not in str(refused.value)
    assert set(app.agents) == {"holdfast.totals"}


def test_ordinary_agents_on_other_topics_are_taken(tmp_path: Path) -> None:
    app = app_of(tmp_path)

    async def work(stream: Any) -> None: ...

    for channel in (app.topic("jobs"), "more-jobs", None, app.topic(pattern="jobs.*")):
        app.agent(channel, name=f"on {channel}")(work)
    assert len(app.agents) == 5
