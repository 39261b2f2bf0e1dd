"""`python -P -m holdfast.dev.demo.processes.visiting worker`: an application of the demo that counts visits,
in version 1 of its table.

`visiting_next.py` runs version 2, which also adds up how long they were.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.agents.app import create_app
from holdfast.core.engine.declared.partitioners import by_key
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.state.rows import Rows

TABLE, SOURCE = "visits", "page-visits"


class Visit(msgspec.Struct, frozen=True):
    """One visit of a page, and how long it was."""

    page: str
    seconds: int


class VisitCount(msgspec.Struct, frozen=True):
    """A row of version 1."""

    visits: int = 0


class VisitTime(msgspec.Struct, frozen=True):
    """A row of version 2."""

    visits: int = 0
    seconds: int = 0


def count(rows: Rows[VisitCount], visit: Visit, at_ms: int) -> None:
    before = rows.get(visit.page) or VisitCount()
    rows[visit.page] = VisitCount(before.visits + 1)


def add_up(rows: Rows[VisitTime], visit: Visit, at_ms: int) -> None:
    before = rows.get(visit.page) or VisitTime()
    rows[visit.page] = VisitTime(before.visits + 1, before.seconds + visit.seconds)


decode = msgspec.json.Decoder(Visit).decode
visits: Processor[Any, VisitCount] = Processor(
    name=TABLE, source=SOURCE, decode=decode, fold=count, row=VisitCount, route=by_key
)
visits_next: Processor[Any, VisitTime] = Processor(
    name=TABLE, source=SOURCE, decode=decode, fold=add_up, row=VisitTime, route=by_key, version=2
)

if __name__ == "__main__":
    create_app([visits]).main()
