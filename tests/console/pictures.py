"""Pictures of applications that do not run, as large as wanted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.clients.tables.directory import Workers
from holdfast.console.watching.picture import Picture, picture_of
from holdfast.console.watching.reports import HeldReport, Silence, TableReport, WorkerReport
from holdfast.core.engine.query_wire import TableClaims, WorkerClaims
from tests.console.shop import totals

NOW_MS = 1_795_600_000_000
APP = "shop"


def url(number: int) -> str:
    return f"http://worker-{number}:6066"


def claims(
    number: int, partitions: int, *, generation: int = 1, version: int = 1, **held: Any
) -> WorkerClaims:
    """Return a worker's announcement of `totals`."""
    table = TableClaims(version=version, partitions=partitions, **held)
    return WorkerClaims(
        url=url(number),
        generation=generation,
        started_ms=NOW_MS - 60_000,
        at_ms=NOW_MS,
        tables={"totals": table},
    )


def held(partition: int, role: str = "active", **more: Any) -> HeldReport:
    return HeldReport(**{"partition": partition, "role": role, "serving": True, "behind": 0, **more})


def report(number: int, *of: HeldReport, partitions: int = 4, **more: Any) -> WorkerReport:
    """Return a worker's own report."""
    table = TableReport(version=1, partitions=partitions, held=list(of))
    return WorkerReport(app=APP, url=url(number), tables={"totals": table}, **more)


def picture(
    announced: list[WorkerClaims], told: Mapping[str, WorkerReport | Silence], **more: Any
) -> Picture:
    return picture_of(APP, [totals()], Workers(announced), told, at_ms=NOW_MS, **more)
