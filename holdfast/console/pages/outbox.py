"""The outbox of a service: its waiting rows, its leaders, how long rows wait, the quarantined rows."""

from __future__ import annotations

from typing import Any

from holdfast.console.desk import ConsoleDesk
from holdfast.console.pages.page import ConsolePage, Query
from holdfast.console.pages.quarantine import written
from holdfast.console.watching.outbox import WAITS_MS

OUTBOX_EVERY_S = 5.0


async def build(desk: ConsoleDesk, query: Query) -> dict[str, Any]:
    look = desk.outbox
    if look is not None:
        await look.fresh()
    return {
        "title": "Outbox",
        "database": look is not None,
        "table": desk.settings.outbox_table,
        "layout": desk.settings.outbox_layout,
        "found": None if look is None else look.found,
        "trouble": None if look is None else look.trouble,
        "waits_ms": WAITS_MS,
        "written": written,
    }


OUTBOX = ConsolePage(
    path="/outbox", menu="Outbox", template="outbox.html", build=build, every_s=OUTBOX_EVERY_S
)
