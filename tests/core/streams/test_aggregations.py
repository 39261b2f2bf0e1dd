"""Aggregations without windows, through the test kit, which also restarts and replays each."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast import Json, Msgpack, Source, Stream
from holdfast.errors import ConfigError
from holdfast.streams import (
    Hopping,
    Mean,
    Ranked,
    Session,
    Sliding,
    Tumbling,
    Windowed,
    WindowResult,
    aggregate,
    count,
    dedupe,
    final,
    latest,
    maximum,
    mean,
    minimum,
    reduce,
    top,
    total,
    updates,
)
from holdfast.testing import Topology


class Sale(msgspec.Struct, frozen=True):
    shop: str
    item: str
    cents: int


SALES = [
    Sale("a", "tea", 3),
    Sale("b", "tea", 5),
    Sale("a", "jam", 1),
    Sale("a", "tea", 4),
    Sale("b", "rye", 5),
]
DECLARED: dict[str, Any] = {
    "name": "sales",
    "source": "sales",
    "decode": msgspec.json.Decoder(Sale).decode,
    "key": lambda sale: sale.shop,
}


NO_FUNCTION: Any = "cents"
NO_FOLD: Any = str.upper


def cents(sale: Sale) -> int:
    return sale.cents


@pytest.mark.parametrize(
    ("processor", "rows"),
    [
        (count(**DECLARED), {"a": 3, "b": 2}),
        (total(value=cents, **DECLARED), {"a": 8, "b": 10}),
        (mean(value=cents, **DECLARED), {"a": Mean(3, 8), "b": Mean(2, 10)}),
        (minimum(value=cents, **DECLARED), {"a": 1, "b": 5}),
        (maximum(value=cents, **DECLARED), {"a": 4, "b": 5}),
        (latest(value=lambda sale: sale.item, row=str, **DECLARED), {"a": "tea", "b": "rye"}),
        (reduce(value=cents, by=lambda one, other: one * other, row=int, **DECLARED), {"a": 12, "b": 25}),
        (
            top(1, item=lambda sale: sale.item, score=cents, **DECLARED),
            {"a": (Ranked("tea", 4),), "b": (Ranked("rye", 5),)},
        ),
    ],
    ids=["count", "total", "mean", "minimum", "maximum", "latest", "reduce", "top"],
)
def test_each_keeps_what_its_name_says(processor: Any, rows: dict[str, Any]) -> None:
    with Topology([processor]) as topology:
        for sale in SALES:
            topology.pipe("sales", sale, key=sale.shop)
        assert topology.table(processor) == rows
        assert not topology.refused


def test_a_mean_is_that_of_its_values() -> None:
    assert Mean(3, 8).mean == pytest.approx(8 / 3)


def test_only_changes_are_sent() -> None:
    highest = maximum(value=cents, emits=updates("highest"), **DECLARED)
    with Topology([highest]) as topology:
        for sale in SALES:
            topology.pipe("sales", sale, key=sale.shop)
        assert [(each.key, each.value) for each in topology.read("highest")] == [
            (b"a", b"3"),
            (b"b", b"5"),
            (b"a", b"4"),
        ]


def test_a_none_aggregate_is_removed_and_a_tombstone_is_sent() -> None:
    def until_zero(so_far: int | None, sale: Sale) -> int | None:
        return sale.cents or None

    last: Any = aggregate(fold=until_zero, row=int, emits="last", **DECLARED)
    with Topology([last]) as topology:
        for cents_sold in (3, 0, 0, 4):
            topology.pipe("sales", Sale("a", "tea", cents_sold), key="a")
        assert [each.value for each in topology.read("last")] == [b"3", None, b"4"]
        assert topology.table(last) == {"a": 4}


@pytest.mark.parametrize("window", [Tumbling(10), Hopping(10, every=5), Sliding(10), Session(10)], ids=repr)
@pytest.mark.parametrize(
    "emit", [None, updates("counts"), final("counts")], ids=["silent", "updates", "final"]
)
def test_a_fold_that_forgets_its_aggregate_is_refused_wherever_the_log_is_cut(window: Any, emit: Any) -> None:
    def add(so_far: int | None, forgets: bool) -> int | None:
        return None if forgets else (so_far or 0) + 1

    merge: dict[str, Any] = (
        {"merge": lambda earlier, later: earlier + later} if isinstance(window, Session) else {}
    )
    counts: Any = Windowed(
        name="counts", source=Source("s", Json(bool)), by=lambda _: "k", time=lambda _: 7, window=window, fold=add,  # noqa: E501
        row=int, emit=emit, **merge,
    )  # fmt: skip
    with Topology([counts], partitions=1) as topology:
        for forgets in (False, False, True, False):
            topology.pipe("s", forgets)
        assert {each.value for each in topology.windows(counts, "k")} == {3}
        assert [(each.stage, each.reason) for each in topology.refused] == [
            ("fold", "fold gives None, which is no aggregate: does it lack a return?")
        ]


def test_a_merge_that_returns_none_refuses_the_record_and_the_sessions_stay() -> None:
    visits: Any = Windowed(
        name="visits", source=Source("s", Json(int)), by=lambda _: "k", time=lambda at_ms: at_ms,
        window=Session(5, grace=9), fold=lambda so_far, _: (so_far or 0) + 1, merge=lambda earlier, later: None, row=int,  # noqa: E501
    )  # fmt: skip
    with Topology([visits], partitions=1) as topology:
        for at_ms in (1, 8, 4):
            topology.pipe("s", at_ms)
        assert [(each.start_ms, each.value) for each in topology.windows(visits)] == [(1, 1), (8, 1)]
        assert [each.reason for each in topology.refused] == [
            "merge gives None, which is no aggregate: does it lack a return?"
        ]


def test_the_first_of_each_id_is_sent_unchanged_until_it_is_forgotten() -> None:
    once = dedupe(
        name="once", source="orders", to="unique", key=str, ttl="10s", decode=bytes.decode, in_place=True
    )
    with Topology([once]) as topology:
        headers = (("trace", b"1"),)
        topology.pipe("orders", "o-1", key="o-1", at=1_000, headers=headers)
        topology.pipe("orders", "o-1", key="o-1", at=10_999)
        topology.pipe("orders", "o-2", key="o-1", at=10_999)
        first, other = topology.read("unique")
        assert (first.key, first.value, first.headers) == (b"o-1", b"o-1", headers)
        assert other.value == b"o-2"
        topology.pipe("orders", "o-1", key="o-1", at=11_000)
        assert [each.value for each in topology.read("unique")] == [b"o-1"], "forgotten after ten seconds"


def test_windows_are_sent_when_they_are_closed_and_late_records_are_counted() -> None:
    hourly: Windowed[tuple[str, int], int] = Windowed(
        name="hourly",
        source="views",
        decode=msgspec.json.Decoder(tuple[str, int]).decode,
        by=lambda view: view[0],
        time=lambda view: view[1],
        window=Tumbling("1s", grace="500ms"),
        fold=lambda seen, view: (seen or 0) + 1,
        row=int,
        emit=final("hourly-views"),
        late="late-views",
    )
    with Topology([hourly], partitions=1) as topology:
        for at_ms in (100, 900, 1_200, 400, 1_499):
            topology.pipe("views", ("page", at_ms), key="page")
        assert topology.read("hourly-views") == [], "grace is not over"
        topology.pipe("views", ("page", 1_500), key="page")
        (told,) = topology.read("hourly-views")
        assert msgspec.json.decode(told.value or b"")["value"] == 3
        topology.pipe("views", ("page", 999), key="page")
        assert [each.value for each in topology.read("late-views")] == [b'["page",999]']
        assert [(each.start_ms, each.value) for each in topology.windows(hourly, "page")] == [
            (0, 3),
            (1_000, 3),
        ]


def test_a_source_gives_events_and_their_times() -> None:
    views = Source("views", Json(tuple[str, int]), time=lambda view: view[1])
    counted: Any = count(name="counted", source=views, key=lambda view: view[0])
    once = dedupe(name="once", source=views, to="firsts", key=lambda view: view[0], ttl="1h")
    hourly: Windowed[tuple[str, int], int] = Windowed(
        name="hourly",
        source=views,
        by=lambda view: view[0],
        window=Tumbling(10),
        fold=lambda seen, view: (seen or 0) + 1,
        row=int,
    )
    with Topology([counted, once, hourly], partitions=1) as topology:
        for at_ms in (1, 12, 3):
            topology.pipe(views, ("home", at_ms), key="home")
        assert topology.table(counted) == {"home": 3}
        assert [each.value for each in topology.read("firsts")] == [b'["home",1]']
        assert [(each.start_ms, each.value) for each in topology.windows(hourly)] == [(0, 1), (10, 1)]


def windows(**declared: Any) -> Windowed[str, int]:
    return Windowed(
        name="w",
        source="views",
        decode=bytes.decode,
        by=str,
        window=Tumbling("1s"),
        fold=lambda count, view: 1,
        row=int,
        **declared,
    )


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: top(0, item=str, score=int, **DECLARED), "top 0: a whole number from 1"),
        (lambda: total(value=NO_FUNCTION, **DECLARED), "value is 'cents', which cannot be called"),
        (
            lambda: count(emits=7, **DECLARED),  # type: ignore[arg-type]
            "emits 7: give a topic, or updates",
        ),
        (lambda: count(emits=updates("out", every="1s"), **DECLARED), "every= is for windows"),
        (lambda: aggregate(fold=NO_FOLD, row=int, **DECLARED), "fold takes"),
        (lambda: dedupe(name="d", source="s", to="t", key=str, ttl="soon", decode=bytes), "ttl"),
        (lambda: Tumbling("an hour"), "an hour"),
        (
            lambda: count(name="c", source="s", key=str),
            r"nothing decodes 's': write source=Source\(topic, serde\)",
        ),
        (
            lambda: count(name="c", source=Source("s", Json(str)), key=str, decode=bytes.decode),
            "leave out decode=, or name the topic",
        ),
        (
            lambda: count(name="c", source=Source("s", Json(str)), key=str, inputs=("key",)),
            "leave out inputs=, or name the topic",
        ),
        (
            lambda: count(**DECLARED, fold=1),  # type: ignore[call-arg]
            "count takes no fold; it takes besides name, source",
        ),
        (
            lambda: total(value=len, **DECLARED, by=max),  # type: ignore[call-arg]
            "total takes no by; it takes",
        ),
        (
            lambda: count(source="s", decode=bytes.decode, key=str),
            "count lacks name: write name='...'",
        ),
        (
            lambda: dedupe(name="d", source="s", to="s", key=str, ttl="1s", decode=bytes),
            "it emits to 's', which it reads",
        ),
        (
            lambda: count(name="c", source="s", emits="s", decode=bytes.decode, key=str),
            "it emits to 's', which it reads",
        ),
        (lambda: windows(emit=final("views")), "it emits to 'views', which it reads"),
        (lambda: windows(emit=updates("out"), late="views"), "it emits to 'views', which it reads"),
        (lambda: windows(emit=final("out"), late="out"), "'out' is named for two kinds of records"),
    ],
)
def test_what_cannot_be_is_said_at_declaration(make: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        make()


class Told(msgspec.Struct, frozen=True):
    name: str
    count: int


def test_results_to_a_stream_are_written_by_its_serde() -> None:
    """They were JSON whatever the stream declares, so that its readers were refused them."""
    sizes = Stream("sizes", Msgpack(int))
    counted = count(name="sizes", source="words", decode=bytes.decode, key=str, emits=sizes)
    with Topology([counted]) as topology:
        topology.pipe("words", b"a")
        topology.pipe("words", b"a")
        assert [sizes.serde.decode(each.value) for each in topology.read("sizes")] == [1, 2]
    views = Stream("views", Msgpack(WindowResult[int]))
    windowed = Windowed(
        name="hourly",
        source="words",
        decode=bytes.decode,
        by=str,
        window=Tumbling("1h"),
        fold=lambda so_far, word: (so_far or 0) + 1,
        row=int,
        emit=final(views),
    )
    with Topology([windowed]) as topology:
        topology.pipe("words", b"a", at=0)
        topology.pipe("words", b"b", at=3_600_000)
        (told,) = [views.serde.decode(each.value) for each in topology.read("views")]
        assert told == WindowResult("a", 0, 3_600_000, 1)
    own = count(
        name="own",
        source="words",
        decode=bytes.decode,
        key=str,
        emits=updates(sizes, encode=lambda row: b"!"),
    )
    with Topology([own]) as topology:
        topology.pipe("words", b"a")
        assert [each.value for each in topology.read("sizes")] == [b"!"], "what is given counts"


def test_a_result_that_its_stream_cannot_hold_refuses_the_record_that_makes_it() -> None:
    names = Stream("names", Json(Told))
    counted = count(name="wrong", source="words", decode=bytes.decode, key=str, emits=names)
    with Topology([counted]) as topology:
        topology.pipe("words", b"a")
        (refused,) = topology.refused
        assert (refused.stage, refused.error) == ("fold", "FoldError")
        assert topology.table("wrong") == {}
