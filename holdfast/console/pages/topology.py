"""The graph of topics and processors, with what flows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.console.desk import ConsoleDesk
from holdfast.console.pages.page import ConsolePage, Query
from holdfast.console.showing.drawing import BOX_HEIGHT, BOX_WIDTH, DrawnEdge, draw
from holdfast.core.engine.declared.graph import TopologyGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """An arrow with what flows along it: records a second, and records that wait before its head; None where
    it is not known.

    Of a global table the copy with the largest lag counts. Emitted records never wait: they are committed
    with the fold.
    """

    edge: DrawnEdge
    rate: float | None
    behind: int | None


async def build(desk: ConsoleDesk, query: Query) -> dict[str, Any]:
    drawing = draw(TopologyGraph.of(desk.processors))
    return {
        "title": "Topology",
        "drawing": drawing,
        "flows": [_flow(desk, each) for each in drawing.edges],
        "box": (BOX_WIDTH, BOX_HEIGHT),
    }


def _flow(desk: ConsoleDesk, edge: DrawnEdge) -> Flow:
    picture, history = desk.watch.picture, desk.watch.history
    if edge.kind == "reads":
        behind = [
            each.behind for each in picture.copies if each.topic == edge.topic and each.behind is not None
        ]
        return Flow(
            edge=edge, rate=history.rate(("reads", "", 0, edge.topic)), behind=max(behind, default=None)
        )
    table = picture.table(edge.processor, edge.version)
    rate = history.rate((edge.kind, edge.processor, edge.version, edge.topic))
    folds = edge.kind == "folds" and table is not None
    return Flow(edge=edge, rate=rate, behind=table.behind_of.get(edge.topic) if table and folds else None)


TOPOLOGY = ConsolePage(path="/topology", menu="Topology", template="topology.html", build=build)
