"""The graph of an application: which processor folds which topic, and what it emits to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import msgspec

from holdfast.core.engine.declared.processor import Processor


class GraphNode(msgspec.Struct, frozen=True, kw_only=True):
    """A processor with its topics upstream and downstream; *table* is None for a stateless step, *tables*
    lists the named tables.
    """

    name: str
    version: int
    sources: tuple[str, ...]
    table: str | None
    emits: tuple[str, ...]
    timers: bool
    tables: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    """Topics of the global tables that it reads."""


@dataclass(frozen=True, slots=True)
class TopologyGraph:
    """Processors in topological order, upstream ones first. A cycle begins anywhere."""

    nodes: tuple[GraphNode, ...]

    @classmethod
    def of(cls, processors: Sequence[Processor[Any, Any]]) -> Self:
        """Return the graph of *processors*; those of equal rank are in the order of their names."""
        nodes = [
            GraphNode(
                name=each.name,
                version=each.version,
                sources=each.topics,
                table=None if each.stateless else each.table,
                emits=tuple(map(str, each.emits)),
                timers=any(call is not None for call in (each.on_wake, each.on_tick, each.on_event)),
                tables=tuple(each.tables),
                reads=tuple(read.topic for read in each.reads),
            )
            for each in sorted(processors, key=lambda each: each.name)
        ]
        ordered: list[GraphNode] = []
        while nodes:
            fed = {topic for node in nodes for topic in node.emits}
            free = [node for node in nodes if fed.isdisjoint((*node.sources, *node.reads))] or nodes[
                :1
            ]  # a circle begins anywhere
            ordered += free
            nodes = [node for node in nodes if node not in free]
        return cls(tuple(ordered))

    @property
    def internal(self) -> frozenset[str]:
        """Return the topics that processors of the application both emit to and fold."""
        emitted = {topic for node in self.nodes for topic in node.emits}
        return frozenset(emitted.intersection(topic for node in self.nodes for topic in node.sources))

    def records(self) -> list[dict[str, Any]]:
        """Return the nodes as records of output: lists for topics, and which of those are internal."""
        internal = self.internal
        return [
            {
                **msgspec.structs.asdict(node),
                "sources": list(node.sources),
                "emits": list(node.emits),
                "tables": list(node.tables),
                "reads": list(node.reads),
                "internal": sorted(internal.intersection((*node.sources, *node.emits))),
            }
            for node in self.nodes
        ]

    def text(self) -> str:
        """Return the graph as lines for people.

        >>> print(TopologyGraph((GraphNode(name="totals", version=2, sources=("orders",), table="totals.v2",
        ...     emits=("reminders",), timers=True),)).text())
        totals (version 2)
          folds   orders
          table   totals.v2, with timers
          emits   reminders
        """
        return "\n\n".join(self._block(node) for node in self.nodes)

    def _block(self, node: GraphNode) -> str:
        lines = [f"{node.name} (version {node.version})", f"  folds   {self._listed(node.sources)}"]
        if node.table is None:
            lines.append("  table   none: a stateless step")
        else:
            lines.append(f"  table   {node.table}{', with timers' if node.timers else ''}")
        if node.tables:
            lines.append(f"  named   {', '.join(node.tables)}")
        if node.reads:
            lines.append(f"  reads   {', '.join(node.reads)} (global)")
        if node.emits:
            lines.append(f"  emits   {self._listed(node.emits)}")
        return "\n".join(lines)

    def _listed(self, topics: Sequence[str]) -> str:
        internal = self.internal
        return ", ".join(f"{topic} (internal)" if topic in internal else topic for topic in topics)

    def mermaid(self) -> str:
        """Return the graph as a Mermaid flowchart, which Markdown pages draw.

        >>> print(TopologyGraph((GraphNode(name="totals", version=2, sources=("orders",), table="totals.v2",
        ...     emits=("reminders",), timers=True),)).mermaid())
        flowchart LR
          t0[/orders/]
          t1[/reminders/]
          p0["totals v2"]
          t0 --> p0
          p0 --> t1
        """
        topics = sorted({topic for node in self.nodes for topic in (*node.sources, *node.emits, *node.reads)})
        ids = {topic: f"t{at}" for at, topic in enumerate(topics)}
        lines = ["flowchart LR", *(f"  {ids[topic]}[/{topic}/]" for topic in topics)]
        for at, node in enumerate(self.nodes):
            named = f"{node.name} v{node.version}"
            lines.append(f'  p{at}["{named}"]' if node.table else f'  p{at}(["{named}"])')
        for at, node in enumerate(self.nodes):
            lines += [f"  {ids[topic]} --> p{at}" for topic in node.sources]
            lines += [f"  {ids[topic]} -.-> p{at}" for topic in node.reads]
            lines += [f"  p{at} --> {ids[topic]}" for topic in node.emits]
        return "\n".join(lines)


def origins_of_topic(processors: Sequence[Processor[Any, Any]], topic: str) -> tuple[str, ...]:
    """Return the topics whose partitions are the origins of *topic*: those that are read by what writes it
    with origins. It is *topic* itself where none of these does.
    """
    found = [each.topics for each in processors if topic in each.told_topics]
    return tuple(dict.fromkeys(name for topics in found for name in topics)) or (topic,)
