"""A processor with two named tables, and the content of its logs: `python -P -m tests.support.visits worker`
runs it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.config import Settings
from holdfast.core.engine.declared.named_tables import Table
from holdfast.core.engine.declared.partitioners import by_key
from holdfast.core.engine.declared.processor import Emit, Processor
from holdfast.core.engine.state.rows import Rows
from tests.chaos.faults import Doom, plant


class Visitor(msgspec.Struct, frozen=True):
    """The processor's own rows: how many visits a visitor has made."""

    visits: int = 0


class Visit(msgspec.Struct, frozen=True, array_like=True):
    """A row of the table `open`: where a visit is, and how long it takes."""

    page: str
    since_ms: int


def decode(value: bytes) -> tuple[str, str, str]:
    op, visitor, page = value.decode().split(" ")
    return op, visitor, page


def fold(rows: Rows[Visitor], told: tuple[str, str, str], at_ms: int) -> Iterator[Emit]:
    """`enter V PAGE`, `leave V -`, and `break V PAGE`, which fails when all is changed."""
    op, visitor, page = told
    opened, pages = rows.table("open"), rows.table("pages")
    before = opened.get(visitor)
    if op == "leave":
        del opened[visitor]
        return
    rows[visitor] = Visitor(rows.get(visitor, Visitor()).visits + (before is None))
    opened[visitor] = Visit(page, at_ms if before is None else before.since_ms)
    pages[page] = pages.get(page, 0) + 1.0
    rows.wake_at(visitor, at_ms + 50)
    if op == "break":
        raise ValueError("the fold failed")
    yield Emit("visited", key=page, value=b"%d" % sum(1 for _ in pages.scan()))


def on_wake(rows: Rows[Visitor], visitor: str, at_ms: int) -> None:
    """Close a visit that was left open."""
    opened = rows.table("open")
    if visitor in opened:
        del opened[visitor]


def visits(source: str = "visits", version: int = 1, **more: Any) -> Processor[Any, Visitor]:
    """Return the processor; pages are counted in floats, which read back in another form than ints."""
    return Processor(
        name="visitors",
        source=source,
        decode=decode,
        fold=fold,
        on_wake=on_wake,
        row=Visitor,
        version=version,
        route=by_key,
        emits=("visited",),
        tables={"open": Table(Visit, by_key), "pages": float},
        **more,
    )


def processors(settings: Settings) -> list[Processor[Any, Any]]:
    """Return the processor of the application that the environment names."""
    return [visits(os.environ["VISITS_SOURCE"])]


if __name__ == "__main__":
    from holdfast.agents.app import create_app

    if fault := os.environ.get("CHAOS_FAULT"):
        plant(Doom(fault))
    create_app([visits(os.environ["VISITS_SOURCE"])]).main()
