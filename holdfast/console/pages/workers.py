"""The workers, and what each has."""

from __future__ import annotations

from typing import Any

from holdfast.console.access import RequestDenied
from holdfast.console.desk import ConsoleDesk
from holdfast.console.pages.page import ConsolePage, Query
from holdfast.console.showing.paging import paged
from holdfast.console.watching.picture import WorkerState


async def build_list(desk: ConsoleDesk, query: Query) -> dict[str, Any]:
    workers = desk.watch.picture.workers
    order = list(WorkerState)
    here = sorted(
        (each for each in workers if each.state is not WorkerState.GONE),
        key=lambda each: (-order.index(each.state), each.url),
    )
    return {
        "title": "Workers",
        "page": paged(here, "/workers", query),
        "gone": [each for each in workers if each.state is WorkerState.GONE],
        "releases": sorted({each.release for each in here if each.release}),
    }


async def build_view(desk: ConsoleDesk, query: Query) -> dict[str, Any]:
    url = query.get("url", "")
    worker = desk.watch.picture.worker(url)
    if worker is None:
        raise RequestDenied(404, f"No worker {url[:100]} of {desk.settings.app} has announced itself.")
    lines = desk.watch.picture.partitions_of(url)
    return {
        "title": f"Worker {url}",
        "worker": worker,
        "page": paged(lines, "/workers/view", query),
    }


WORKERS = ConsolePage(path="/workers", menu="Workers", template="workers.html", build=build_list)
WORKER = ConsolePage(path="/workers/view", menu="Workers", template="worker.html", build=build_view)
