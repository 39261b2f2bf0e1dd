"""The outbox of a service: what waits, who leads, what was set aside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.clock import system_clock
from holdfast.config import Settings
from holdfast.console.desk import ConsoleDesk
from holdfast.console.pages.page import ConsolePage, Query
from holdfast.console.pages.quarantine import written
from holdfast.errors import HoldfastError

OUTBOX_EVERY_S = 5.0
LIMIT_ROWS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAsideRow:
    """A row of the outbox's quarantine."""

    id: int
    topic: str
    key: str
    reason: str
    attempts: int
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxPicture:
    """The outbox at one moment; *oldest_age_ms* is how long its first row waits. *leases* are (shard, leader, epoch, when)."""

    waiting: int
    oldest_age_ms: int | None
    failing: int
    quarantined: int
    leases: Sequence[tuple[int, str, int, int]]
    rows: Sequence[SetAsideRow]


async def build(desk: ConsoleDesk, query: Query) -> dict[str, Any]:
    settings, found, trouble = desk.settings, None, None
    if settings.outbox_database is not None:
        try:
            found = await desk.calls.run(lambda: _look(settings))
        except HoldfastError as error:
            trouble = str(error)
        except ModuleNotFoundError as error:
            trouble = f"{error}; pip install 'holdfast[outbox]'"
    return {
        "title": "Outbox",
        "database": settings.outbox_database is not None,
        "table": settings.outbox_table,
        "layout": settings.outbox_layout,
        "found": found,
        "trouble": trouble,
    }


def _look(settings: Settings) -> OutboxPicture:
    from holdfast.outbox.harvest.table.rows import OutboxRows

    assert settings.outbox_database is not None
    with OutboxRows(
        settings.outbox_database, table=settings.outbox_table, layout=settings.outbox_layout
    ) as rows:
        status, aside = rows.status(), rows.quarantined(LIMIT_ROWS)
    oldest_ms = status.oldest_created_ms
    return OutboxPicture(
        waiting=status.waiting,
        oldest_age_ms=None if oldest_ms is None else max(0, system_clock.now_ms() - oldest_ms),
        failing=status.failing,
        quarantined=status.quarantined,
        leases=[(each.shard, each.leader, each.epoch, each.updated_ms) for each in status.leases],
        rows=[
            SetAsideRow(
                id=each.row.id,
                topic=each.row.topic,
                key=written(each.row.key),
                reason=each.reason,
                attempts=each.row.attempts,
                at_ms=each.quarantined_ms,
            )
            for each in aside
        ],
    )


OUTBOX = ConsolePage(
    path="/outbox", menu="Outbox", template="outbox.html", build=build, every_s=OUTBOX_EVERY_S
)
