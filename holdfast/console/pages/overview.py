"""The application's faults, and its throughput."""

from __future__ import annotations

from itertools import chain
from typing import Any

from holdfast.console.desk import ConsoleDesk
from holdfast.console.pages.page import ConsolePage, Query
from holdfast.console.watching.findings import Urgency, findings
from holdfast.console.watching.picture import PartitionHealth, WorkerState

LIMIT_FINDINGS = 50


async def build(desk: ConsoleDesk, query: Query) -> dict[str, Any]:
    picture, groups = desk.watch.picture, desk.watch.groups
    known = () if groups is None else groups.groups
    beside = desk.watch.beside
    found = findings(picture, known, chain.from_iterable(each.findings() for each in beside))
    current = [table for table in picture.tables if table.current]
    points = desk.watch.history.points
    return {
        "title": "Overview",
        "findings": found[:LIMIT_FINDINGS],
        "unseen": [each.name for each in beside if not each.looked],
        "more_findings": max(0, len(found) - LIMIT_FINDINGS),
        "worst": found[0].urgency if found else None,
        "critical": sum(each.urgency is Urgency.CRITICAL for each in found),
        "workers": sum(each.state is not WorkerState.GONE for each in picture.workers),
        "workers_ready": sum(each.state is WorkerState.READY for each in picture.workers),
        "partitions": sum(len(table.partitions) for table in current),
        "partitions_served": sum(table.served for table in current),
        "restoring": sum(
            each.state is PartitionHealth.RESTORING for table in current for each in table.partitions
        ),
        "groups": len(known),
        "groups_trouble": None if groups is None else groups.trouble,
        "point": points[-1] if points else None,
        "tables": current,
    }


OVERVIEW = ConsolePage(path="/", menu="Overview", template="overview.html", build=build)
