"""A step or a stream is a source: serde, key and event time come with it."""

from __future__ import annotations

import pickle
import struct
import warnings
from operator import attrgetter
from typing import Any

import msgspec
import pytest

from holdfast import Emit, FoldWith, Global, Json, Processor, Source, Stream, Text, create_app
from holdfast.core.engine.declared.streams import Internal
from holdfast.core.streams.steps import Step
from holdfast.errors import AppendTimeWarning, ConfigError
from holdfast.streams import (
    Branch,
    Filter,
    JoinForeign,
    JoinStreamTable,
    JoinTables,
    JoinWithin,
    Map,
    Merge,
    Rekey,
    Tumbling,
    Windowed,
    aggregate,
    cogroup,
    count,
    dedupe,
)
from holdfast.testing import Topology

NOW_MS = 1_700_000_000_000


class View(msgspec.Struct, frozen=True):
    user: str
    at_ms: int


class JavaInteger:
    """Four bytes, as Kafka's IntegerSerializer writes them."""

    def decode(self, value: bytes | None) -> int | Any:
        return None if value is None else struct.unpack(">i", value)[0]

    def encode(self, value: int | None) -> bytes | None:
        return None if value is None else struct.pack(">i", value)


views = Source("views", Json(View), time=lambda view: view.at_ms)
by_user = Rekey(name="by-user", source=views, by=lambda view: view.user)


def minutes(source: Any, **more: Any) -> Windowed[View, int]:
    return Windowed(
        name="minutes",
        source=source,
        by=lambda view: view.user,
        window=Tumbling("1m"),
        fold=lambda seen, view: (seen or 0) + 1,
        row=int,
        **more,
    )


@pytest.mark.parametrize(
    "step",
    [
        by_user,
        Filter(name="some", source=views, keep=lambda view: True),
        Merge(name="both", sources=[views, Source("more", Json(View), time=lambda view: view.at_ms)]),
        Filter(name="sent", source=by_user, keep=lambda view: True),
        Rekey(name="own", source=views, by=lambda view: view.user, to=Stream("own", Json(View))),
        Map(
            name="same", source=views, each=lambda view: view, serde=Json(View), time=lambda view: view.at_ms
        ),
        Rekey(
            name="pairs",
            source=views,
            pairs=lambda view: [(view.user, view)],
            serde=Json(View),
            time=lambda view: view.at_ms,
        ),
        Branch(name="one", source=views, into={"all": lambda view: True})["all"],
    ],
    ids=lambda step: getattr(step, "name", str(step)),
)
def test_a_window_of_a_step_goes_by_the_event_times_of_what_the_step_read(step: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        windows = minutes(step)
    steps = [by_user, step] if isinstance(step, Processor) and step.name == "sent" else [step]
    if not isinstance(step, Processor):
        steps = [Branch(name="one", source=views, into={"all": lambda view: True})]
    with Topology([*steps, windows], partitions=1) as topology:
        for at_ms in (5_000, 59_000, 61_000):
            topology.pipe(views, View("ada", at_ms), key="x", at=NOW_MS)
        assert [each.value for each in topology.windows(windows, "ada")] == [2, 1]


def test_the_key_of_a_step_is_read_as_the_step_writes_it() -> None:
    numbers = Source("numbers", JavaInteger(), key=JavaInteger())
    odd = Rekey(name="odd", source=numbers, by=lambda number: 1 if number % 2 else None, key=JavaInteger())

    def keep(rows: Any, number: int, at_ms: int, key: int) -> None:
        rows["key"] = key

    kept = Processor(name="kept", on={odd: FoldWith(keep, ("key",))}, row=int)
    with Topology([odd, kept], partitions=1) as topology:
        topology.pipe(numbers, 3)
        assert topology.table(kept) == {"key": 1}


@pytest.mark.parametrize("read", [by_user, by_user.to], ids=["step", "stream"])
def test_all_that_takes_a_source_takes_a_step(read: Any) -> None:
    names = Source("names", Json(View | None))
    out, tombstones = Stream("out", Json(list[Any])), Stream("gone", Json(list[Any] | None))

    def pair(one: Any, other: Any) -> list[Any]:
        return [one, other]

    made = [
        Processor(name="a", source=read, fold=lambda rows, view, at_ms: None, row=int),
        Processor(name="b", on={read: lambda rows, view, at_ms: None}, row=int),
        aggregate(
            name="c", source=read, key=lambda view: view.user, fold=lambda n, view: view.at_ms, row=int
        ),
        count(name="d", source=read, key=lambda view: view.user),
        dedupe(name="e", source=read, to="deduped", key=lambda view: view.user, ttl="1h"),
        cogroup(name="f", on={read: lambda so_far, view: view.at_ms}, row=int),
        JoinWithin(name="g", left=read, right=views, join=pair, to=out),
        JoinTables(name="h", left=read, right=names, join=pair, to=tombstones),
        JoinStreamTable(name="i", stream=read, table=names, join=pair, to=out),
        *JoinForeign(name="j", left=read, right=names, key=lambda view: view.user, join=pair, to=tombstones),
        Map(name="k", source=read, each=lambda view: view.user, serde=Text()),
        Branch(name="l", source=read, into={"m": lambda view: True}),
        Filter(name="n", source=read, keep=bool),
        Merge(name="o", sources=[read, views]),
    ]
    assert {str(by_user.to)} == {topic for each in made for topic in each.topics} - {"views", "names"} - {
        "j-subscriptions.v1",
        "j-answers.v1",
    }


def test_a_processor_of_a_step_with_event_timers_takes_the_step_s_time() -> None:
    def fold(rows: Any, view: View, at_ms: int) -> None:
        rows[view.user] = 1
        rows.wake_at(view.user, view.at_ms + 10, clock="event")

    def gone(rows: Any, key: str, at_ms: int) -> Any:
        del rows[key]
        yield Emit("gone", key=key, value=b"")

    timed = Processor(name="timed", source=by_user, fold=fold, on_event=gone, row=int, emits=("gone",))
    with Topology([by_user, timed], partitions=1) as topology:
        topology.pipe(views, View("ada", 5), key="x", at=NOW_MS)
        topology.pipe(views, View("bob", 15), key="x", at=NOW_MS)
        assert topology.table(timed) == {"bob": 1}


def test_a_global_folds_a_stream() -> None:
    rates = Stream("rates", Json(int), key=Text())
    seen: Global[int] = Global("rates", rates, fold=lambda rows, rate, at_ms: None, row=int)  # type: ignore[arg-type]
    assert seen.topic == "rates"


@pytest.mark.parametrize(
    "declare",
    [
        lambda: Source(by_user.to, Json(dict)),
        lambda: Source(by_user.to, Text()),
        lambda: Source(by_user.to, Json(View), key=Json(int)),
        lambda: Source(
            Rekey(name="own", source=views, by=lambda view: "x", to=Stream("mine", Json(View))).to, Text()
        ),
    ],
)
def test_another_serde_or_key_than_the_step_s_is_refused_and_both_are_named(declare: Any) -> None:
    with pytest.raises(ConfigError, match=r"reads (values|keys) with .* but step (by-user|own) writes"):
        declare()


@pytest.mark.parametrize("declared", [Windowed, count, Filter, "on"])
def test_a_topic_s_name_with_another_serde_than_the_step_s_is_refused_with_the_application(
    declared: Any,
) -> None:
    step = Rekey(name="own", source=views, by=lambda view: view.user, to=Stream("users", Json(View)))
    other = Source("users", Json(dict[str, Any]))
    reader: Any
    match declared:
        case "on":
            reader = Processor(name="reader", on={other: lambda rows, event, at_ms: None}, row=int)
        case _ if declared is Windowed:
            reader = minutes(other, time="append")
        case _ if declared is count:
            reader = count(name="reader", source=other, key=lambda event: event["user"])
        case _:
            reader = Filter(name="reader", source=other, keep=bool)
    with pytest.raises(ConfigError, match=r"'users' reads values with .* but step own writes"):
        Topology([step, reader])
    with pytest.raises(ConfigError, match=r"'users' reads values with .* but step own writes"):
        create_app([step, reader])


def test_a_step_of_several_branches_says_that_one_is_to_be_named() -> None:
    sizes = Branch(name="sizes", source=views, into={"a": lambda view: True, "b": lambda view: True})
    with pytest.raises(ConfigError, match=r"sizes-a.v1, sizes-b.v1: name the branch"):
        minutes(sizes)
    with pytest.raises(ConfigError, match="a Stream or a step"):
        Filter(name="f", source=count(name="c", source=views, key=str), keep=bool)  # type: ignore[arg-type]


def test_a_window_or_join_by_append_time_says_so_unless_that_is_meant() -> None:
    plain, timed = Source("plain", Json(View)), views
    meant = Source("meant", Json(View), time="append")
    out, names = Stream("out", Json(list[Any])), Source("names", Json(View | None))

    def pair(one: Any, other: Any) -> list[Any]:
        return [one, other]

    for declare, named in (
        (lambda: minutes(plain), "'plain'"),
        (lambda: minutes(Filter(name="f", source=plain, keep=bool)), "'f.v1'"),
        (lambda: minutes("plain", decode=msgspec.json.Decoder(View).decode), "'plain'"),
        (lambda: JoinWithin(name="j", left=plain, right=timed, join=pair, to=out), "'plain'"),
        (lambda: JoinWithin(name="j", left=plain, right=names, join=pair, to=out), "'plain' and 'names'"),
        (
            lambda: JoinStreamTable(name="j", stream=timed, table=names, join=pair, to=out, history="1h"),
            "'names'",
        ),
    ):
        with pytest.warns(AppendTimeWarning, match=rf"takes the records of {named} by append time") as caught:
            declare()
        assert [each.filename for each in caught] == [__file__], "the line that declares is named"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        minutes(meant)
        minutes(Filter(name="f", source=meant, keep=bool))
        minutes(plain, time="append")
        minutes(Stream("s", Json(View), time="append"))
        JoinWithin(name="j", left=meant, right=timed, join=pair, to=out)
        JoinStreamTable(name="j", stream=plain, table=names, join=pair, to=out)


def test_a_time_that_is_no_function_is_refused() -> None:
    for declare in (
        lambda: Source("views", Json(View), time="event"),  # type: ignore[arg-type]
        lambda: Stream("views", Json(View), time="event"),  # type: ignore[arg-type]
        lambda: minutes(views, time="event"),
    ):
        with pytest.raises(ConfigError, match=r"write a function of the (event|value)"):
            declare()


def time_of(view: View) -> int:
    return view.at_ms


def test_streams_and_sources_are_sent_to_other_processes_with_what_they_say() -> None:
    step = Filter(name="f", source=Source("v", Json(View), time=time_of), keep=bool)
    for given in (step.to, Stream("s", Json(View), retention="7d", time=time_of)):
        again = pickle.loads(pickle.dumps(given))
        assert again.time is not None
        assert again.time(View("ada", 7)) == 7
        assert (again, again.step, again.retention_ms) == (given, given.step, given.retention_ms)
        assert isinstance(again, Internal) == isinstance(given, Internal)
    topic = pickle.loads(pickle.dumps(Source("v", Json(View), retention="7d").topic))
    assert (topic, topic.retention_ms) == ("v", 604_800_000)


def test_a_topic_knows_whether_its_step_says_how_far_it_has_come() -> None:
    timed, plain = Source("timed", Json(View), time=lambda view: view.at_ms), Source("plain", Json(View))
    own: Stream[View] = Stream("own", Json(View))

    def same(view: View) -> View:
        return view

    def steps(source: Source[View]) -> list[Step[Any]]:
        by: Rekey[View, View] = Rekey(name="by", source=source, by=lambda view: view.user)
        return [
            by,
            Map(name="behind", source=Source(by.to, Json(View)), each=same, serde=Json(View)),
            Map(name="map", source=source, each=same, serde=Json(View), time=lambda view: view.at_ms),
            Branch(name="branch", source=source, into={"a": bool, "b": bool}),
            Branch(name="partly", source=source, into={"a": bool, own: bool}),
            Merge(name="merge", sources=[plain, source]) if source is timed else by,
        ]

    for each in (*steps(timed), *steps(plain)):
        found = [topic.tells for topic in each.emits if isinstance(topic, Internal)]
        clock = each.origin_clock()
        assert found == [clock is not None and clock.speaks] * len(found), (each.name, each.topics)
    kept: Rekey[View, View] = Rekey(
        name="by", source=Source("timed", Json(View), time=attrgetter("at_ms")), by=str
    )
    assert pickle.loads(pickle.dumps(kept.to)).tells
