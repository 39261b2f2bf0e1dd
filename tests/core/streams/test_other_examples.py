"""The example programs of windows, tables, chains and aggregations, in the test kit."""

from __future__ import annotations

import ast
import json
import re

from holdfast.streams import Ranked
from holdfast.testing import Topology
from tests.core.streams.joins.test_join_examples import example
from tests.support.places import ROOT, example_file

MINUTE_MS = 60_000


def lines_of(text: str) -> int:
    """Return how many lines of a program are neither blank nor a comment, a docstring or an import."""
    told: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.stmt) and (is_text or isinstance(node, ast.Import | ast.ImportFrom)):
            told |= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    return sum(
        bool(line.strip()) and not line.lstrip().startswith("#") and at not in told
        for at, line in enumerate(text.splitlines(), 1)
    )


def test_the_page_says_how_many_lines_each_program_has() -> None:
    page = (ROOT / "docs" / "from-kafka-streams.md").read_text()
    told = re.findall(r"\]\(\.\./examples/\w+/(\w+\.py)\) \| (\d+) \|", page)
    assert len(told) >= 10
    for name, lines in told:
        assert int(lines) == lines_of(example_file(name).read_text()), name


def test_views_are_sent_once_their_hour_and_its_grace_are_over() -> None:
    of = example("page_views.py")
    with Topology([of.hourly], partitions=1) as topology:
        for minute in (0, 59, 61, 69, 50, 71, 55):
            view = {"page": "home", "at_ms": minute * MINUTE_MS}
            topology.pipe("views", view, key="home")
        assert [json.loads(each.value or b"")["value"] for each in topology.read("hourly-views")] == [3]
        assert [json.loads(each.value or b"")["at_ms"] for each in topology.read("late-views")] == [
            55 * MINUTE_MS
        ]
        assert not topology.refused


def test_visits_that_a_late_look_connects_are_one() -> None:
    of = example("visits.py")
    with Topology([of.visits], partitions=1) as topology:
        for minute, item in ((0, "tea"), (34, "books"), (17, "toys"), (100, "tea")):
            look = {"visitor": "ada", "item": item, "at_ms": minute * MINUTE_MS}
            topology.pipe("looks", look, key="ada")
        (told,) = [json.loads(each.value or b"") for each in topology.read("ended-visits")]
        assert told["value"] == ["tea", "books", "toys"], "in the order they came"
        assert not topology.refused


def test_an_item_is_offered_while_it_has_a_price_and_a_stock() -> None:
    of = example("shelves.py")
    with Topology([of.shelves]) as topology:
        for at, (source, value) in enumerate(
            ((of.prices, 250), (of.stock, 3), (of.stock, 2), (of.prices, None))
        ):
            topology.pipe(source, value, key="tea", at=at)
        assert topology.values(of.offers) == [
            ("tea", of.Offer(250, 3)),
            ("tea", of.Offer(250, 2)),
            ("tea", None),
        ]
        assert not topology.refused


def test_an_order_costs_what_its_product_costs_now() -> None:
    of = example("priced_orders.py")
    with Topology([*of.priced]) as topology:
        topology.pipe(of.orders, of.OpenOrder("tea", 2), key="o-1", at=10)
        topology.pipe(of.products, 30, key="tea", at=20)
        topology.pipe(of.products, 40, key="tea", at=30)
        topology.pipe(of.orders, None, key="o-1", at=40)
        assert topology.values(of.costs) == [("o-1", 60), ("o-1", 80), ("o-1", None)]
        assert not topology.refused


def test_a_payment_that_is_sent_again_goes_through_once_a_day() -> None:
    of = example("payments_once.py")
    day_ms = 24 * 60 * MINUTE_MS
    with Topology([of.once]) as topology:
        for at in (1, 5, day_ms + 1):
            topology.pipe("payments", {"id": "p-1", "cents": 500}, key="p-1", at=at)
        assert len(topology.read("payments-once")) == 2
        assert not topology.refused


def test_each_shelf_has_its_three_bestsellers() -> None:
    of = example("bestsellers.py")
    with Topology([of.sold, of.by_shelf, of.best]) as topology:
        for item, pieces in (("green", 2), ("black", 5), ("white", 1), ("red", 4), ("white", 6)):
            sale = {"item": item, "shelf": "tea", "pieces": pieces}
            topology.pipe("sales", sale, key=item)
        assert topology.table(of.best) == {
            "tea": (Ranked("white", 7), Ranked("black", 5), Ranked("red", 4)),
        }
        assert not topology.refused


def test_a_balance_is_the_sum_paid_in_less_the_sum_paid_out() -> None:
    of = example("balances.py")
    with Topology([of.balances]) as topology:
        topology.pipe(of.paid_in, 500, key="ada", at=10)
        topology.pipe(of.paid_out, 200, key="ada", at=20)
        assert topology.values(of.changed) == [("ada", 500), ("ada", 300)]
        assert topology.table(of.balances) == {"ada": 300}
        assert not topology.refused


def test_orders_are_converted_at_the_rate_that_was_known_then() -> None:
    of = example("currency_rates.py")
    with Topology([of.converted]) as topology:
        topology.pipe(of.orders, of.ForeignOrder("o-1", "usd", 100), key="ada")
        topology.pipe(of.rates.source, 0.9, key="usd")
        topology.pipe(of.orders, of.ForeignOrder("o-2", "usd", 100), key="ada")
        topology.pipe(of.rates.source, 0.8, key="usd")
        topology.pipe(of.orders, of.ForeignOrder("o-3", "usd", 100), key="bob")
        assert [each.amount for _, each in topology.values(of.in_euros)] == [None, 90.0, 80.0]
        assert not topology.refused
