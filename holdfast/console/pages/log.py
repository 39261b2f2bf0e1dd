"""All that is known of one offset of a topic."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.clients.logs.cells import Cell
from holdfast.clients.logs.explaining import fetch_explanation
from holdfast.console.access import RequestDenied
from holdfast.console.desk import ConsoleDesk
from holdfast.console.pages.page import ConsolePage, Query
from holdfast.console.showing.paging import number
from holdfast.errors import HoldfastError

TIMEOUT_S = 5.0
LIMIT_PARTITION = 1 << 31


async def build(desk: ConsoleDesk, query: Query) -> dict[str, Any]:
    topic, partition, offset = (
        query.get("topic", "").strip(),
        number(query, "partition"),
        number(query, "offset"),
    )
    if partition is not None and partition >= LIMIT_PARTITION:
        raise RequestDenied(400, f"partition is {partition}: no topic has so many.")
    known = sorted({name for each in desk.processors for name in (*each.topics, *map(str, each.emits))})
    context: dict[str, Any] = {
        "title": "Log",
        "topics": known,
        "parts_of_offset": [],
        "trouble": None,
        "offset": offset,
    }
    if not topic or partition is None or offset is None:
        return context
    try:
        found, unreadable = await fetch_explanation(desk.settings, topic, partition, offset, TIMEOUT_S)
    except HoldfastError as error:
        return {**context, "trouble": str(error)}
    trouble = None if unreadable is None else f"Offset {offset} cannot be read: {unreadable.reason}"
    return {**context, "parts_of_offset": [*_parts(found)], "trouble": trouble}


def _parts(found: Mapping[str, Cell]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the known facts in parts, each a title with lines: the offset itself, its record, its batch.

    >>> [*_parts({"asked": 3, "record": {"key": "a", "headers": []}, "batch": None})]
    [('Offset', [('asked', '3')]), ('Record', [('key', 'a'), ('headers', '[]')])]
    """
    own = [
        (name, value) for name, value in found.items() if not isinstance(value, Mapping) and value is not None
    ]
    yield "Offset", [(_name(name), _text(value)) for name, value in own]
    for part in ("unreadable", "record", "batch"):
        inner = found.get(part)
        if isinstance(inner, Mapping):
            lines = [(_name(name), _text(value)) for name, value in inner.items() if value is not None]
            yield part.capitalize(), lines


def _name(name: str) -> str:
    return name.replace("_", " ")


def _text(value: Cell) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


LOG = ConsolePage(path="/log", menu="Log", template="log.html", build=build, live=False)
