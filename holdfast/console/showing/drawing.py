"""The positions of an application's topics and processors in a drawing: each to the right of its sources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from holdfast.core.engine.declared.graph import GraphNode, TopologyGraph

BOX_WIDTH, BOX_HEIGHT = 190, 44
COLUMN_WIDTH, LINE_HEIGHT, MARGIN = 330, 78, 12
LIMIT_NAME = 22
LABEL_GAP = 10
"""The distance of a label from the head of its arrow."""
LABEL_PULL = 0.352
"""So much of the height of an arrow's tail it has, as the curve has at six tenths of its way: labels of
arrows to one box lie apart.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnBox:
    """A topic or a processor; *x* and *y* are its upper left corner, in pixels."""

    name: str
    version: int | None
    x: int
    y: int

    @property
    def is_topic(self) -> bool:
        return self.version is None

    @property
    def shown(self) -> str:
        """Return its name, cut where the box is too narrow."""
        name = self.name if self.version is None else f"{self.name} v{self.version}"
        return name if len(name) <= LIMIT_NAME else f"{name[: LIMIT_NAME - 1]}…"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnEdge:
    """An arrow. *kind* is folds, reads (a global table) or emits; *processor* and *topic* are its ends, and
    text ends at *x* and *y*.
    """

    kind: str
    processor: str
    version: int
    topic: str
    path: str
    x: int
    y: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphDrawing:
    """A whole drawing, in pixels."""

    width: int
    height: int
    boxes: tuple[DrawnBox, ...]
    edges: tuple[DrawnEdge, ...]


Box = tuple[str, int | None]
"""A topic by its name, or a processor by name and version."""


def draw(graph: TopologyGraph) -> GraphDrawing:
    """Return the positions of all boxes and arrows. In a circle one arrow leads back to the left."""
    edges = [*_edges(graph.nodes)]
    columns = _columns(graph.nodes)
    boxes = {box: _box(box, column, line) for column, line, box in _places(columns, edges)}
    return GraphDrawing(
        width=max((box.x for box in boxes.values()), default=0) + BOX_WIDTH + MARGIN,
        height=max((box.y for box in boxes.values()), default=0) + BOX_HEIGHT + MARGIN,
        boxes=tuple(boxes.values()),
        edges=tuple(_edge(kind, boxes[start], boxes[end]) for kind, start, end in edges),
    )


def _edges(nodes: Sequence[GraphNode]) -> Iterator[tuple[str, Box, Box]]:
    for node in nodes:
        own: Box = (node.name, node.version)
        yield from (("folds", (topic, None), own) for topic in node.sources)
        yield from (("reads", (topic, None), own) for topic in node.reads)
        yield from (("emits", own, (topic, None)) for topic in node.emits)


def _columns(nodes: Sequence[GraphNode]) -> dict[Box, int]:
    """Return each box's column: one more than the rightmost of its sources that has a column already.

    >>> node = GraphNode(name="t", version=1, sources=("a",), table="t", emits=("b",), timers=False)
    >>> _columns([node])
    {('a', None): 0, ('t', 1): 1, ('b', None): 2}
    """
    columns: dict[Box, int] = {}
    for node in nodes:  # each after its sources
        fed = [columns.setdefault((topic, None), 0) for topic in (*node.sources, *node.reads)]
        own = columns[node.name, node.version] = max(fed, default=-1) + 1
        for topic in node.emits:
            if (topic, None) not in columns or topic not in (*node.sources, *node.reads):
                columns[topic, None] = max(columns.get((topic, None), 0), own + 1)
    return columns


def _places(
    columns: Mapping[Box, int], edges: Sequence[tuple[str, Box, Box]]
) -> Iterator[tuple[int, int, Box]]:
    """Yield (column, line, box): in each column at the height of what feeds a box, as far as there is
    room.
    """
    lines: dict[Box, int] = {}
    for column in sorted({*columns.values()}):
        here = [box for box, at in columns.items() if at == column]
        here.sort(key=lambda box: (_mean([lines[a] for _, a, b in edges if b == box and a in lines]), box[0]))
        for line, box in enumerate(here):
            lines[box] = line
            yield column, line, box


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values) if values else 0.0


def _box(box: Box, column: int, line: int) -> DrawnBox:
    name, version = box
    return DrawnBox(
        name=name, version=version, x=MARGIN + column * COLUMN_WIDTH, y=MARGIN + line * LINE_HEIGHT
    )


def _edge(kind: str, start: DrawnBox, end: DrawnBox) -> DrawnEdge:
    processor, topic = (end, start) if start.is_topic else (start, end)
    assert processor.version is not None
    x, y = start.x + BOX_WIDTH, start.y + BOX_HEIGHT // 2
    to_x, to_y = end.x, end.y + BOX_HEIGHT // 2
    bend = max(40, abs(to_x - x) // 2)
    return DrawnEdge(
        kind=kind,
        processor=processor.name,
        version=processor.version,
        topic=topic.name,
        path=f"M{x} {y} C{x + bend} {y} {to_x - bend} {to_y} {to_x} {to_y}",
        x=to_x - LABEL_GAP,
        y=round(LABEL_PULL * y + (1 - LABEL_PULL) * to_y) - LABEL_GAP,
    )
