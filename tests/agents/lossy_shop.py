"""An application of every kind of table that may lose its changelog: `python -P -m tests.agents.lossy_shop
worker`.

Each result bears the key and the count of the record that made it, so that one that is sent twice shows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from holdfast.agents.app import create_app
from holdfast.core.engine.declared.partitioners import by_key
from holdfast.core.engine.declared.processor import Emit, Processor
from holdfast.core.engine.declared.serdes import Text
from holdfast.core.engine.declared.sources import Source
from holdfast.core.engine.state.rows import Rows
from holdfast.core.streams.steps import Map

ORDERS, CUSTOMERS = "orders", "customers"


def count(rows: Rows[int], order: str, at_ms: int) -> Iterator[Emit]:
    if order == "bad":
        raise ValueError("a bad order")
    rows[order] = (rows.get(order) or 0) + 1
    yield Emit("big", key=order, value=f"{order} {rows[order]}".encode())


def join(rows: Rows[int], event: str, at_ms: int) -> Iterator[Emit]:
    rows[event] = (rows.get(event) or 0) + 1
    yield Emit("joined", key=event, value=f"{event} {rows[event]}".encode())


def heard(rows: Rows[int], word: str, at_ms: int) -> Iterator[Emit]:
    rows[word] = (rows.get(word) or 0) + 1
    yield Emit("heard", key=word, value=f"{word} {rows[word]}".encode())


def shout(word: str) -> str:
    if word == "bad":
        raise ValueError("a bad order")
    return word.upper()


def totals(how: str = "") -> Processor[Any, int]:
    """Return a table of one source: version 1, or a version 2 that begins as *how* says."""
    later: dict[str, Any] = {
        "": {},
        "bootstrap": {"version": 2},
        "handover": {"version": 2, "emits_from": "handover"},
        "migration": {"version": 2, "migrate": {1: kept}},
    }
    return Processor(
        name="totals",
        source=ORDERS,
        decode=bytes.decode,
        fold=count,
        row=int,
        route=by_key,
        emits=("big",),
        **later[how],
    )


def kept(rows: Rows[int], order: str, row: int) -> None:
    rows[order] = row


def processors(how: str | None = None) -> list[Processor[Any, Any]]:
    """Return the table of totals as *how* says, or the environment; one of two sources, a step, and a table
    downstream of it.
    """
    shouts = Map(name="shouts", source=Source(ORDERS, Text()), each=shout, serde=Text())
    return [
        totals(os.environ.get("LOSSY_TOTALS", "") if how is None else how),
        Processor(
            name="both",
            on={Source(ORDERS, Text()): join, Source(CUSTOMERS, Text()): join},
            row=int,
            emits=("joined",),
        ),
        shouts,
        Processor(name="ears", source=shouts.to, decode=bytes.decode, fold=heard, row=int, emits=("heard",)),
    ]


if "LOSSY_COMMAND" in os.environ or __name__ == "__main__":
    app = create_app(processors=processors())

if __name__ == "__main__":
    app.main()
