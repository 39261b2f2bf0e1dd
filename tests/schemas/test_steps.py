"""Steps, joins, and rows that are sent on, with schemas: each topic between has a subject of its own."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast import Avro, Internal, JsonSchema, Msgpack, Source, Stream
from holdfast.clients.topics.schemas import read, written
from holdfast.errors import ConfigError
from holdfast.streams import (
    Filter,
    JoinTables,
    Map,
    Rekey,
    Tumbling,
    Windowed,
    WindowResult,
    count,
    final,
    latest,
    updates,
)
from holdfast.testing import Topology


class Sale(msgspec.Struct, frozen=True):
    item: str
    at_ms: int
    cents: int = 0


class Offer(msgspec.Struct, frozen=True):
    cents: int
    pieces: int


SALES = [Sale("tea", 1_000, 5), Sale("jam", 2_000, 7), Sale("tea", 3_700_000, 6)]


def test_records_go_through_steps_each_under_its_own_subject() -> None:
    sales = Source("sales", Avro(Sale))
    dear = Filter(name="dear", source=sales, keep=lambda sale: sale.cents > 5)
    items: Any = Rekey(
        name="items",
        source=Source(dear.to, Avro(Sale)),
        pairs=lambda sale: [(sale.item, sale.cents)],
        serde=Avro(int),
    )
    told = Stream("euros", JsonSchema(float))
    euros = Map(name="euros", source=Source(items.to, Avro(int)), each=lambda cents: cents / 100, to=told)
    subjects = [each.serde.subject for each in written([dear, items, euros])]
    assert [each.serde.subject for each in read([dear, items, euros])] == [
        "sales-value",
        "dear.v1-value",
        "items.v1-value",
    ]
    assert subjects == ["dear.v1-value", "items.v1-value", "euros-value"]
    with Topology([dear, items, euros]) as topology:
        for sale in SALES:
            topology.pipe(sales, sale)
        assert sorted(topology.values(told)) == [("jam", 0.07), ("tea", 0.06)]
        assert not topology.refused


def test_a_join_of_tables_sends_tombstones() -> None:
    prices, stock = Source("prices", Avro(int | None)), Source("stock", Avro(int | None))
    offers = Stream("offers", Avro(Offer | None))
    joined: Any = JoinTables(name="offers", left=prices, right=stock, join=Offer, to=offers)
    with Topology([joined]) as topology:
        for source, value in ((prices, 30), (stock, 4), (prices, None)):
            topology.pipe(source, value, key="tea")
        assert topology.values(offers) == [("tea", Offer(30, 4)), ("tea", None)]


def test_rows_that_are_sent_on_are_written_by_the_streams_serde() -> None:
    sales = Source("sales", Avro(Sale))
    counts: Stream[Any] = Stream("counts", Avro(int))
    by_item: Any = count(name="counts", source=sales, key=lambda sale: sale.item, emits=counts)
    dearest: Stream[Any] = Stream("dearest", Msgpack(Sale))
    last: Any = latest(
        value=lambda sale: sale,
        name="last",
        source=sales,
        key=lambda sale: sale.item,
        row=Sale,
        emits=updates(dearest),
    )
    hourly: Stream[Any] = Stream("hourly", Avro(WindowResult[int]))
    windows: Any = Windowed(
        name="hourly",
        source=sales,
        by=lambda sale: sale.item,
        time=lambda sale: sale.at_ms,
        window=Tumbling("1h"),
        fold=lambda seen, sale: (seen or 0) + 1,
        row=int,
        emit=final(hourly),
    )
    with Topology([by_item, last, windows], partitions=1) as topology:
        for sale in SALES:
            topology.pipe(sales, sale)
        assert topology.values(counts) == [("tea", 1), ("jam", 1), ("tea", 2)]
        assert [value for _, value in topology.values(dearest)] == SALES
        found = dict(topology.values(hourly))
        assert [(each.key, each.start_ms, each.value) for each in found.values()] == [
            ("jam", 0, 1),
            ("tea", 0, 1),
        ]


def test_rows_keys_are_text() -> None:
    with pytest.raises(ConfigError, match="leave out key= of the stream"):
        updates(Stream("counts", Avro(int), key=Avro(str)))


def test_an_internal_topics_subject_follows_its_version() -> None:
    assert Internal("words", Avro(str), version=2).serde.subject == "words.v2-value"  # type: ignore[attr-defined]
