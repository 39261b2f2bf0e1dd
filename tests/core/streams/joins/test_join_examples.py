"""The example programs that join, in the test kit."""

from __future__ import annotations

import runpy
from types import SimpleNamespace

from holdfast.testing import Topology
from tests.support.places import example_file


def example(name: str) -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(example_file(name))))


def test_orders_get_the_name_that_their_customer_has_then() -> None:
    of = example("enrich.py")
    with Topology([of.joined]) as topology:
        topology.pipe(of.orders, of.CustomerOrder(1, 500), key="ada", at=10)
        topology.pipe(of.customers, of.Customer("Ada"), key="ada", at=20)
        topology.pipe(of.orders, of.CustomerOrder(2, 900), key="ada", at=30)
        topology.pipe(of.customers, None, key="ada", at=40)
        topology.pipe(of.orders, of.CustomerOrder(3, 100), key="ada", at=50)
        told = [(key, each.id, each.name) for key, each in topology.values(of.enriched)]
        assert told == [("ada", 1, None), ("ada", 2, "Ada"), ("ada", 3, None)]
        assert not topology.refused


def test_an_impression_without_a_click_is_sent_when_no_click_can_come_any_more() -> None:
    of = example("interval_join.py")
    with Topology([of.pairs]) as topology:
        topology.pipe(of.impressions, of.Impression("home", 1_000), key="ad-1", at=1_000)
        topology.pipe(of.impressions, of.Impression("news", 2_000), key="ad-1", at=2_000)
        topology.pipe(of.clicks, of.Click(11_500), key="ad-1", at=11_500)
        assert topology.values(of.outcomes) == [("ad-1", of.Outcome("news", 9_500))]
        topology.tick(11_500 + 120_000)
        assert topology.values(of.outcomes) == [("ad-1", of.Outcome("home", None))]
        assert not topology.refused
