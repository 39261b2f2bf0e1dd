"""The positions of topics and processors in the drawing of an application."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.console.showing.drawing import BOX_HEIGHT, BOX_WIDTH, LIMIT_NAME, DrawnBox, GraphDrawing, draw
from holdfast.core.engine.declared.graph import GraphNode, TopologyGraph


def node(
    name: str, sources: tuple[str, ...], emits: tuple[str, ...] = (), reads: tuple[str, ...] = ()
) -> GraphNode:
    return GraphNode(
        name=name, version=1, sources=sources, table=name, emits=emits, timers=False, reads=reads
    )


def boxes(drawing: GraphDrawing) -> dict[str, DrawnBox]:
    return {each.name: each for each in drawing.boxes}


def test_each_is_to_the_right_of_its_sources() -> None:
    drawing = draw(
        TopologyGraph(
            (node("split", ("in",), ("a", "b")), node("left", ("a",), ("out",)), node("join", ("b", "out")))
        )
    )
    places = boxes(drawing)
    assert len({places[name].x for name in ("a", "b")}) == 1
    for left, right in (("in", "split"), ("split", "a"), ("a", "left"), ("left", "out"), ("out", "join")):
        assert places[left].x + BOX_WIDTH < places[right].x, (left, right)
    assert [(each.kind, each.processor, each.topic) for each in drawing.edges].count(
        ("folds", "join", "b")
    ) == 1


def test_globals_are_read_and_a_circle_leads_back_once() -> None:
    drawing = draw(TopologyGraph((node("loop", ("a",), ("b",), ("rates",)), node("back", ("b",), ("a",)))))
    assert {(each.kind, each.topic) for each in drawing.edges} == {
        ("folds", "a"),
        ("reads", "rates"),
        ("emits", "b"),
        ("folds", "b"),
        ("emits", "a"),
    }


def test_a_long_name_is_cut_and_nothing_is_drawn_of_nothing() -> None:
    (topic, processor) = draw(TopologyGraph((node("p" * 60, ("t" * 60,)),))).boxes
    assert (len(topic.shown), len(processor.shown)) == (LIMIT_NAME, LIMIT_NAME)
    assert draw(TopologyGraph(())).boxes == ()


TOPICS = st.sampled_from([f"t{at}" for at in range(8)])


@pytest.mark.long
@given(
    st.lists(
        st.tuples(
            st.sets(TOPICS, min_size=1, max_size=3), st.sets(TOPICS, max_size=3), st.sets(TOPICS, max_size=2)
        ),
        max_size=6,
    )
)
def test_whatever_is_declared_no_two_boxes_overlap_and_all_is_within_the_drawing(
    declared: list[tuple[set[str], set[str], set[str]]],
) -> None:
    nodes = [
        node(f"p{at}", tuple(sorted(sources)), tuple(sorted(emits)), tuple(sorted(reads - sources)))
        for at, (sources, emits, reads) in enumerate(declared)
    ]
    drawing = draw(TopologyGraph(tuple(nodes)))
    assert {each.name for each in drawing.boxes} == {each.name for each in nodes} | {
        topic for each in nodes for topic in (*each.sources, *each.emits, *each.reads)
    }
    for one, other in combinations(drawing.boxes, 2):
        assert abs(one.x - other.x) >= BOX_WIDTH or abs(one.y - other.y) >= BOX_HEIGHT
    for each in drawing.boxes:
        assert 0 <= each.x <= drawing.width - BOX_WIDTH
        assert 0 <= each.y <= drawing.height - BOX_HEIGHT
