"""The graph of an application."""

from __future__ import annotations

from holdfast.core.engine.declared.graph import TopologyGraph
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.state.rows import Rows


def processor(name: str, source: str, *emits: str) -> Processor[str, int]:
    return Processor(
        name=name,
        source=source,
        decode=bytes.decode,
        fold=lambda rows, event, at_ms: None,
        row=int,
        emits=emits,
    )


def test_each_comes_after_those_that_feed_it() -> None:
    graph = TopologyGraph.of(
        [processor("c", "two", "three"), processor("a", "three"), processor("b", "one", "two")]
    )
    assert [node.name for node in graph.nodes] == ["b", "c", "a"]
    assert graph.internal == {"two", "three"}


def test_a_circle_is_drawn_all_the_same() -> None:
    graph = TopologyGraph.of([processor("b", "one", "two"), processor("a", "two", "one")])
    assert [node.name for node in graph.nodes] == ["a", "b"]
    assert graph.mermaid().splitlines()[-4:] == ["  t1 --> p0", "  p0 --> t0", "  t0 --> p1", "  p1 --> t1"]
    assert graph.records()[0]["internal"] == ["one", "two"]


def test_timers_of_every_clock_are_drawn() -> None:
    def keep(rows: Rows[int], event: str, at_ms: int) -> None:
        rows.wake_at("k", 7, clock="event")

    def on_event(rows: Rows[int], key: str, at_ms: int) -> None:
        rows[key] = at_ms

    timed = Processor(
        name="timed", source="lines", decode=bytes.decode, fold=keep, row=int, time=int, on_event=on_event
    )
    assert "timed.v1, with timers" in TopologyGraph.of([timed]).text()
