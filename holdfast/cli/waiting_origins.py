"""The origins that windows and joins of running workers wait for, in words."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from holdfast.cli.options.application import Application
from holdfast.clients.tables.directory import WorkersTopic
from holdfast.config import Settings
from holdfast.console.showing.durations import duration
from holdfast.console.watching.findings import is_worth_telling
from holdfast.console.watching.reports import HeldOriginReport, Silence, WorkerReport, WorkerReports


class WaitingPartition(NamedTuple):
    """A partition of a table whose stream time an origin holds back."""

    table: str
    partition: int
    held: HeldOriginReport

    @property
    def is_long(self) -> bool:
        """Return whether that lasts longer than the pace of reading explains."""
        return is_worth_telling(self.held)

    @property
    def told(self) -> str:
        """Return it in words."""
        held = self.held
        behind = "" if held.lag_s is None else f", {duration(held.lag_s * 1000)} of event time behind"
        place = f"{self.table} partition {self.partition}"
        return f"{place} waits for {held.named}{behind}, for {duration(held.held_s * 1000)}"


def follows_time(application: Application) -> bool:
    """Return whether any of the application's tables goes by the watermarks of origins."""
    return any(each.lateness is not None for each in application.processors)


def waiting_partitions(application: Application, timeout_s: float) -> list[WaitingPartition]:
    """Return for which origins the partitions of the application's workers wait, those that answer; in order
    of tables and partitions. BrokerError where the workers topic cannot be read in time.
    """
    reports = asyncio.run(_reports(application.settings, timeout_s))
    return sorted(
        WaitingPartition(name, line.partition, held)
        for report in reports.values()
        if isinstance(report, WorkerReport)
        for name, table in report.tables.items()
        for line in table.held
        for held in line.held_back
    )


async def _reports(settings: Settings, timeout_s: float) -> dict[str, WorkerReport | Silence]:
    directory = WorkersTopic(settings)
    try:
        await directory.refresh(timeout_s)
        async with WorkerReports(settings) as reports:
            return await reports.ask(each.url for each in directory.workers.announced)
    finally:
        await directory.close()
