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
    """An arrow with what flows along it: records a second, and records that wait; None where it is not known."""

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
    table = desk.watch.picture.table(edge.processor, edge.version)
    if edge.kind != "folds" or table is None:
        return Flow(edge=edge, rate=None, behind=None)
    return Flow(
        edge=edge,
        rate=desk.watch.history.rate(edge.processor, edge.version, edge.topic),
        behind=table.behind if len(table.sources) == 1 else None,
    )


TOPOLOGY = ConsolePage(path="/topology", menu="Topology", template="topology.html", build=build)
