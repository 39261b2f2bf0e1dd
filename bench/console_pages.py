"""The console's bars: how soon a browser paints a page, and what the console costs while one is open. 1,000
partitions, 10,000 claims.

    PYTHONPATH=. python -P -m bench.console_pages [--rounds 9] [--open-s 20]

No Kafka: a worker in memory answers the console, each in a process of its own; the processor told is the
console's. Chromium (headless) opens each page several times; what it calls the first contentful paint counts
from the request on.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil  # type: ignore[import-untyped]
from playwright.sync_api import Page

from bench.run import load_average
from holdfast.dev.memory_tables import MemoryWorker
from holdfast.dev.ports import free_ports
from tests.console.opened import MadeUpGroups, console_settings, opened
from tests.console.shop import totals
from tests.support.browser import DEADLINE_MS, started

PARTITIONS, CLAIMS = 1_000, 10_000
PAGES = ("/", "/workers", "/tables/view?name=totals", "/groups/view?kind=claim&name=billing", "/topology")
OPEN = ("/", "/tables/view?name=totals")
SETTLE_S = 5.0
PARTS = WORK, SERVE = "--work", "--serve"
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"


def worker_at(port: int) -> MemoryWorker:
    return MemoryWorker(console_settings(web_port=port), [totals()], partitions=PARTITIONS)


async def work(port: int) -> None:
    """Serve the tables until stdin ends."""
    async with worker_at(port):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


async def serve(port: int) -> None:
    """Print the address of a console of the worker at *port*, and serve until stdin ends."""
    groups = MadeUpGroups(console_settings(), CLAIMS)
    async with opened(console_settings(), worker_at(port).directory(), groups) as browsing:
        print(browsing.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


@contextmanager
def running(part: str, port: int) -> Iterator[tuple[psutil.Process, str]]:
    """Run a part of this program in a process of its own, and give what it says first."""
    command = [sys.executable, "-P", "-m", "bench.console_pages", part, str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield psutil.Process(process.pid), process.stdout.readline().strip()
        finally:
            process.stdin.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--open-s", type=float, default=20.0)
    for part in PARTS:
        parser.add_argument(part, type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work or given.serve:
        asyncio.run(work(given.work) if given.work else serve(given.serve))
        return
    print(load_average(), flush=True)
    port = free_ports(1)[0]
    with running(WORK, port), running(SERVE, port) as (console, url):
        measure(url, console, given.rounds, given.open_s)


def measure(url: str, console: psutil.Process, rounds: int, open_s: float) -> None:
    with started() as browser:
        page = browser.new_context(base_url=url).new_page()
        page.set_default_timeout(DEADLINE_MS)
        for path in PAGES:
            painted = []
            for _ in range(rounds):
                page.goto(path)
                painted.append(painted_after(page))
            print(
                f"  {path}: painted after {statistics.median(painted):.0f} ms"
                f" [{min(painted):.0f}-{max(painted):.0f}]",
                flush=True,
            )
        page.goto("about:blank")
        print(f"  no page open: {share(console, open_s):.1%} of a core", flush=True)
        for path in OPEN:
            page.goto(path)
            print(f"  {path} open: {share(console, open_s):.1%} of a core", flush=True)


def painted_after(page: Page) -> float:
    """Return how long after the request a page was painted, in ms."""
    until_s = time.monotonic() + DEADLINE_MS / 1000
    while (at_ms := page.evaluate(PAINT)) is None:
        if time.monotonic() > until_s:
            raise TimeoutError(f"{page.url} was not painted within {DEADLINE_MS} ms")
        time.sleep(0.02)
    return float(at_ms)


def share(process: psutil.Process, for_s: float) -> float:
    """Return how much of a core *process* takes once it has settled."""
    time.sleep(SETTLE_S)
    before, began_s = process.cpu_times(), time.monotonic()
    time.sleep(for_s)
    after, passed_s = process.cpu_times(), time.monotonic() - began_s
    return float(after.user + after.system - before.user - before.system) / passed_s


if __name__ == "__main__":
    main()
