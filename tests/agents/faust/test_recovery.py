"""The part of an assignment that a worker takes up, also where workers of the group run other versions."""

from __future__ import annotations

from typing import Any

import pytest
from faust.types import TP

from holdfast.agents.faust.rebalancing.recovery import Share, require_known, share_of
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.serdes import Text
from holdfast.core.engine.declared.sources import Source
from holdfast.core.engine.state.rows import Rows
from holdfast.errors import TopicError


def keep(rows: Rows[int], event: Any, at_ms: int) -> None:
    rows["events"] = rows.get("events", 0) + 1


BOTH: Processor[Any, int] = Processor(
    name="both", on={Source("orders", Text()): keep, Source("between.v1", Text()): keep}, row=int
)


def shared(**assigned: set[int]) -> Share:
    """Return the share of `BOTH` in an assignment of orders, what lies between, and the changelog."""
    topics = {"orders": "orders", "between": "between.v1", "changelog": BOTH.changelog("app")}
    tps = {TP(topics[name], number) for name, numbers in assigned.items() for number in numbers}
    return share_of(BOTH, "app", tps)


def test_partitions_that_are_assigned_together_are_owned_and_others_are_standbys() -> None:
    share = shared(orders={0, 2}, between={0, 2}, changelog={0, 1, 2})
    assert share == Share(frozenset({0, 2}), frozenset({1}), frozenset())


def test_of_sources_that_fall_apart_only_those_that_are_together_are_owned() -> None:
    share = shared(orders={0}, between={0, 1}, changelog={0, 1})
    assert share == Share(frozenset({0}), frozenset({1}), frozenset({1}))


def test_a_partition_is_owned_by_the_worker_of_its_sources_and_not_of_its_changelog() -> None:
    share = shared(orders={0, 1}, between={0, 1}, changelog={1, 2})
    assert share == Share(frozenset({0, 1}), frozenset({2}), frozenset())


def test_nothing_assigned_is_nothing_owned() -> None:
    assert shared() == Share(frozenset(), frozenset(), frozenset())


@pytest.mark.parametrize("topic", ["orders", "between.v1", BOTH.changelog("app")])
def test_a_topic_that_got_more_partitions_since_the_start_is_named(topic: str) -> None:
    known = {
        TP(each, number) for each in ("orders", "between.v1", BOTH.changelog("app")) for number in (0, 1)
    }
    require_known(BOTH, "app", {*known, TP("other", 2)}, 2)
    with pytest.raises(
        TopicError, match=f"{topic} had 2 partitions when this worker started.*processor both.*topics check"
    ):
        require_known(BOTH, "app", {*known, TP(topic, 2)}, 2)
