"""The traces that `traced` carries are a function of the log, and change nothing else."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from holdfast import Bytes, Emit, FoldWith, Internal, Json, Processor, Rows, Source, Stream, Text, traced
from holdfast.core.engine.batches import Batch
from holdfast.core.engine.emits import Headers
from holdfast.core.engine.fold.folding import Changes, Folder
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.core.engine.trace_context import ROOM_BYTES
from holdfast.errors import ConfigError
from holdfast.streams import Filter, JoinTables, Tumbling, Windowed, final
from holdfast.testing import Topology

PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = b"00-0af7651916cd43dd8448eb211c80319d-b7ad6b7169203332-00"
TRACE: Headers = (("traceparent", PARENT), ("tracestate", b"a=1"), ("baggage", b"who=ada"))


def echo(rows: Rows[int], event: str, at_ms: int) -> Iterator[Emit]:
    rows["seen"] = (rows.get("seen") or 0) + 1
    if event == "bad":
        raise ValueError(event)
    yield Emit("out", event, event.encode())


def declared(fold: Callable[..., Any] = echo, **more: Any) -> Processor[Any, int]:
    return traced(
        Processor(name="echo", source="in", decode=bytes.decode, fold=fold, row=int, emits=("out",), **more)
    )


def emitted(
    processor: Processor[Any, Any], headers: Iterable[Headers], events: Iterable[bytes] = (b"a",) * 9
) -> list[Headers]:
    """Return the headers of the emits for records with *headers*, folded in any way that a worker or
    replay may.
    """
    with Topology([processor]) as topology:
        for event, each in zip(events, headers, strict=False):
            topology.pipe("in", event, key="k", headers=each)
        return [record.headers for record in topology.read("out")]


def test_an_emit_carries_the_trace_of_its_record_alone() -> None:
    other: Headers = (("who", b"ada"), ("traceparent", OTHER))
    assert emitted(declared(), [TRACE, (), other]) == [TRACE, (), (("traceparent", OTHER),)]


def test_without_traced_nothing_is_carried() -> None:
    processor: Processor[Any, int] = Processor(
        name="echo", source="in", decode=bytes.decode, fold=echo, row=int, emits=("out",)
    )
    assert emitted(processor, [TRACE]) == [()]


def test_it_is_the_same_record_by_record_and_folded_again_after_a_refusal() -> None:
    headers = [(("traceparent", b"%s-%032x-%016x-01" % (b"00", at, at)),) for at in range(1, 6)]
    events = [b"a", b"b", b"bad", b"d", b"e"]
    plain: Processor[Any, int] = Processor(
        name="echo", source="in", decode=bytes.decode, fold=echo, row=int, emits=("out",)
    )

    def fold(processor: Processor[Any, int], *columns: list[Any]) -> Changes:
        changes = Folder(processor, DictStore()).fold([Batch(range(5), [1] * 5, columns)])
        assert changes is not None
        return changes

    with_trace, without = fold(declared(), events, headers), fold(plain, events)
    assert [emit.headers for emit in with_trace.emits] == [headers[at] for at in (0, 1, 3, 4)]
    assert [refused.offset for refused in with_trace.refused] == [2]
    assert with_trace.refused == without.refused
    assert [*with_trace.stored()] == [*without.stored()], "rows are the same with and without"
    assert [emit.value for emit in with_trace.emits] == [emit.value for emit in without.emits]


@pytest.mark.parametrize(
    "headers",
    [
        (("traceparent", None),),
        (("traceparent", b""),),
        (("traceparent", PARENT[:-1]),),
        (("traceparent", PARENT.upper()),),
        (("traceparent", b"\xff" * 55),),
        (("traceparent", b"ff" + PARENT[2:]),),
        (("traceparent", b"00-" + b"0" * 32 + PARENT[35:]),),
        (("tracestate", b"a=1"),),
        (("Traceparent", PARENT),),
    ],
    ids=repr,
)
def test_a_malformed_trace_is_not_carried(headers: Headers) -> None:
    assert emitted(declared(), [headers]) == [()]


def test_a_header_that_is_too_long_is_dropped_and_of_two_the_first_counts() -> None:
    long: Headers = (
        ("traceparent", PARENT),
        ("traceparent", OTHER),
        ("tracestate", b"a" * 513),
        ("baggage", b"b" * 8193),
    )
    assert emitted(declared(), [long]) == [(("traceparent", PARENT),)]


def test_a_fold_may_say_which_trace_an_emit_is_of() -> None:
    def own(rows: Rows[int], event: str, at_ms: int) -> Iterator[Emit]:
        yield Emit("out", "k", b"1", (("traceparent", OTHER),))
        yield Emit("out", "k", b"2", (("x", b"y"),))

    assert emitted(declared(own), [TRACE]) == [(("traceparent", OTHER),), (("x", b"y"), *TRACE)]


def test_to_carry_a_trace_never_makes_a_record_refused() -> None:
    def large(rows: Rows[int], event: str, at_ms: int) -> Iterator[Emit]:
        yield Emit("out", "", b"v" * 999_990)
        yield Emit("out", "", b"v" * ROOM_BYTES)

    assert emitted(declared(large), [TRACE]) == [(), TRACE]


@pytest.mark.parametrize("emits", [3, [b"no emit"], [Emit("out", b"k", b"", 7)], [Emit("out", 7, b"")]])  # type: ignore[arg-type]
def test_what_may_not_be_emitted_is_refused_for_the_same_reason(emits: Any) -> None:
    def wrong(rows: Rows[int], event: str, at_ms: int) -> Any:
        return emits

    def reasons(processor: Processor[Any, Any], *columns: list[Any]) -> list[str]:
        changes = Folder(processor, DictStore()).fold([Batch([0], [1], columns)])
        assert changes is not None
        return [each.reason for each in changes.refused]

    plain: Processor[Any, int] = Processor(
        name="echo", source="in", decode=bytes.decode, fold=wrong, row=int, emits=("out",)
    )
    found = reasons(declared(wrong), [b"a"], [TRACE])
    assert len(found) == 1
    assert found == reasons(plain, [b"a"])


def test_a_timer_carries_nothing_even_if_a_traced_record_makes_it_fire() -> None:
    def later(rows: Rows[int], event: str, at_ms: int) -> None:
        rows.wake_at("k", at_ms + 5)

    def woken(rows: Rows[int], key: str, at_ms: int) -> Iterator[Emit]:
        yield Emit("out", key, b"woken")

    processor = declared(later, on_wake=woken)
    with Topology([processor]) as topology:
        topology.pipe("in", b"a", key="k", headers=TRACE, at=100)
        topology.pipe("in", b"a", key="k", headers=TRACE, at=200)
        assert [record.headers for record in topology.read("out")] == [()]


def test_event_time_is_that_of_the_event() -> None:
    def moved(rows: Rows[int], key: str, at_ms: int) -> Iterator[Emit]:
        yield Emit("out", key, str(at_ms).encode())

    def fold(rows: Rows[int], event: int | None, at_ms: int) -> Iterator[Emit]:
        if event is not None:
            rows.wake_at("k", event + 1, clock="event")
        yield Emit("out", "k", b"none" if event is None else b"some")

    processor = traced(
        Processor(
            name="echo",
            source="in",
            decode=lambda value: None if value is None else int(value),
            fold=fold,
            time=lambda event: event,
            on_event=moved,
            row=int,
            emits=("out",),
        )
    )
    with Topology([processor]) as topology:
        for value in (b"10", None, b"20"):
            topology.pipe("in", value, key="k", headers=TRACE)
        found = [(record.value, record.headers) for record in topology.read("out")]
    assert found == [(b"some", TRACE), (b"none", TRACE), (b"11", ()), (b"some", TRACE)]


def test_a_decoder_that_takes_headers_still_gets_them() -> None:
    def decode(headers: Headers, value: bytes) -> str:
        return dict(headers).get("who", b"nobody").decode() + value.decode()  # type: ignore[union-attr]

    processor = traced(
        Processor(
            name="echo",
            source="in",
            decode=decode,
            inputs=("headers", "value"),
            fold=echo,
            row=int,
            emits=("out",),
        )
    )
    with Topology([processor]) as topology:
        topology.pipe("in", b"!", key="k", headers=(("who", b"ada"), *TRACE))
        (record,) = topology.read("out")
    assert (record.value, record.headers) == (b"ada!", TRACE)


def test_each_of_several_sources_is_carried() -> None:
    letters, digits = Source("letters", Text()), Source("digits", Text(), key=Text())

    def of_letters(rows: Rows[str], event: str, at_ms: int) -> Iterator[Emit]:
        yield Emit("out", "l", event.encode())

    def of_digits(rows: Rows[str], event: str, at_ms: int, headers: Headers, key: str) -> Iterator[Emit]:
        yield Emit("out", key, f"{event}{len(headers)}".encode())

    on: dict[Source[Any], Any] = {letters: of_letters, digits: FoldWith(of_digits, ("headers", "key"))}
    processor: Processor[Any, str] = traced(Processor(name="both", on=on, row=str, emits=("out",)))
    with Topology([processor]) as topology:
        topology.pipe(letters, "a", key="k", headers=TRACE, at=1)
        topology.pipe(digits, "1", key="k", headers=(("traceparent", OTHER),), at=2)
        topology.pipe(digits, "2", key="k", at=3)
        found = [(record.value, record.headers) for record in topology.read("out")]
    assert found == [(b"a", TRACE), (b"11", (("traceparent", OTHER),)), (b"20", ())]


def test_windows_are_carried_too() -> None:
    idles: list[dict[str, Any]] = [{}, {"idle": "1h"}]
    late: list[Any] = [
        traced(
            Windowed(
                name="counts",
                source="in",
                decode=bytes.decode,
                by=lambda event: event,
                window=Tumbling("10ms"),
                row=int,
                fold=lambda count, event: (count or 0) + 1,
                emit=final("out"),
                **idle,
            )
        )
        for idle in idles
    ]
    for processor in late:
        assert isinstance(processor, Windowed)
        with Topology([processor]) as topology:
            topology.pipe("in", b"a", key="k", headers=(("traceparent", OTHER),), at=1)
            topology.pipe("in", b"b", key="k", headers=TRACE, at=100)
            # What closes a window is the record that lets its time pass: its results come of that one.
            assert [record.headers for record in topology.read("out")] == [TRACE]


def test_steps_pass_all_headers_on_and_stay_as_they_are() -> None:
    source = Source("in", Bytes())
    step = Filter(name="all", source=source, keep=lambda event: True)
    assert traced(step) is step
    silent: Processor[Any, int] = Processor(
        name="s", source="in", decode=bytes.decode, fold=lambda rows, event, at_ms: None, row=int
    )
    assert traced(silent) is silent, "emits nothing"


def test_joins_are_carried_too() -> None:
    left, right = Source("left", Json(str)), Source("right", Json(str))
    joined = JoinTables(
        name="j", left=left, right=right, join=lambda left, right: left + right, to=Stream("out", Text())
    )
    with Topology([traced(joined)]) as topology:
        topology.pipe(left, "a", key="k", headers=(("traceparent", OTHER),))
        topology.pipe(right, "b", key="k", headers=TRACE)
        assert [(record.value, record.headers) for record in topology.read("out")] == [(b"ab", TRACE)]


def test_a_processor_is_traced_once_and_keeps_its_type_and_all_else() -> None:
    made = declared(version=2)
    assert traced(made) is made
    assert (made.name, made.version, made.emits, made.inputs) == ("echo", 2, ("out",), ("value", "headers"))
    internal = Internal("between", Text())
    other: Processor[Any, int] = Processor(
        name="o", source="in", decode=bytes.decode, fold=echo, row=int, emits=(internal,)
    )
    assert traced(other).emits == (internal,)
    assert other.inputs == ("value",), "the given one is as it was"


def test_a_traced_processor_can_be_sent_to_other_processes() -> None:
    again = pickle.loads(pickle.dumps(declared()))
    assert emitted(again, [TRACE]) == [TRACE]


def test_an_object_that_is_no_processor_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"traced\(\[\]\): give it a Processor, one at a time"):
        traced([])  # type: ignore[type-var]
