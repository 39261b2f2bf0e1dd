"""A simulated fleet of workers, no broker: what a leader shares out, what the broker keeps of the group, the
directory, the console.

    python -P -m bench.fleet_workers [--only group,directory,console] [--workers 30,100,300,1000]

A hundred partitions to each worker and one standby of each. The group's own assignor (Faust's, as workers run
it) shares them out once from nothing and once from what all hold; then a worker has gone. Records of the
directory are those that workers announce.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from bench.run import load_average
from bench.worker import counting_of
from holdfast.agents.app import create_app
from holdfast.agents.partitions.held.announcer import announcement_of
from holdfast.clients.tables.directory import Workers, read_claims
from holdfast.config import Settings
from holdfast.console.desk import ConsoleDesk
from holdfast.console.pages.overview import OVERVIEW
from holdfast.console.pages.page import ConsolePage
from holdfast.console.pages.tables import TABLE
from holdfast.console.pages.workers import WORKERS
from holdfast.console.showing.rendering import render_block
from holdfast.console.watching.history import History, flows_of, positions_of
from holdfast.console.watching.picture import picture_of
from holdfast.console.watching.reports import (
    ChangelogReport,
    HeldReport,
    TableReport,
    WorkerReport,
    decode_report,
)

APP, SOURCE, EACH, STANDBYS = "shop", "orders.placed", 100, 1
NOW_MS = 1_795_600_000_000
GROUP_RECORD_BYTES = 1_048_588
"""Kafka's `max.message.bytes`: the broker keeps a group, all members with their assignments, as one record.
"""


def url_of(worker: int) -> str:
    return f"http://shop-{worker:05d}.shop.svc.cluster.local:6066"


def shares(workers: int) -> Iterator[tuple[str, list[int], list[int]]]:
    """Yield of each worker its URL, what it folds, and what it stands by for: the next one's."""
    for worker in range(workers):
        beside = (worker + 1) % workers
        yield (
            url_of(worker),
            list(range(worker, workers * EACH, workers)),
            list(range(beside, workers * EACH, workers)),
        )


# -- the group


class Cluster:
    """What an assignor asks of the cluster: all topics have as many partitions."""

    def __init__(self, partitions: int) -> None:
        self._numbers = set(range(partitions))

    def partitions_for_topic(self, topic: str) -> set[int]:
        return self._numbers


def group(workers: int, each: int) -> None:
    """Print what it takes to share out all partitions, and what is said about it."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(app=APP, data_dir=Path(folder), standbys=STANDBYS)
        app = create_app([counting_of(SOURCE)], settings)
    leader: Any = app.assignor
    cluster, topics = Cluster(workers * each), {SOURCE, *app.tables.changelog_topics}
    members = {url_of(worker): leader.metadata(topics) for worker in range(workers)}
    members = {url: told_by(each, url, None) for url, each in members.items()}
    fresh = shared(leader, cluster, members)
    members = {url: told_by(members[url], url, fresh.found[url], leader) for url in members}
    again = shared(leader, cluster, members)
    del members[url_of(0)]
    after = shared(leader, cluster, members)
    print(
        f"  {workers:>5} workers, {workers * each:>7,} partitions: shared out in {fresh.took_s:.1f} s of the"
        f" leader's processor, again {again.took_s:.1f} s, without one {after.took_s:.1f} s; members tell"
        f" {again.told / 1e6:.2f} MB in all, are told {again.answered / 1e6:.2f} MB; the broker's record"
        f" {again.record / GROUP_RECORD_BYTES:.0%} of its limit",
        flush=True,
    )


def told_by(metadata: Any, url: str, assignment: Any, leader: Any = None) -> Any:
    """Return what the member at *url* tells the leader, which had *assignment* until now."""
    told = json.loads(metadata.user_data)
    told["url"] = url
    if assignment is not None:
        told["assignment"] = json.loads(leader._decompress(assignment.user_data))["assignment"]
    return type(metadata)(metadata.version, metadata.subscription, json.dumps(told).encode())


def shared(leader: Any, cluster: Cluster, members: dict[str, Any]) -> Any:
    """Let the leader share out; return how long it took and how many bytes were said: by members, to them,
    and both in one record.
    """
    began_s = time.process_time()
    found = leader.assign(cluster, members)
    took_s = time.process_time() - began_s
    told = sum(len(each.encode()) for each in members.values())
    answered = sum(len(each.encode()) for each in found.values())
    names = sum(4 * len(url) for url in members)
    return SimpleNamespace(
        found=found, took_s=took_s, told=told, answered=answered, record=told + answered + names
    )


# -- the directory


def announced(workers: int) -> Iterator[tuple[str, bytes]]:
    """Yield the key and the value of each worker's record."""
    processor = counting_of(SOURCE)
    for url, active, standby in shares(workers):
        table = announcement_of(processor, workers * EACH, active, standby)
        record = {"url": url, "generation": 7, "started_ms": NOW_MS, "at_ms": NOW_MS}
        yield url, json.dumps({**record, "tables": {processor.name: table}}).encode()


def directory(workers: int) -> None:
    """Print what a client spends on the directory of the whole fleet."""
    records = list(announced(workers))
    size = sum(len(url) + len(value) for url, value in records)
    gc.collect()
    tracemalloc.start()
    claims = [read_claims(url, value) for url, value in records]
    known = Workers(claims)
    gc.collect()
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert known.owner("count", 1, 1) == url_of(1 % workers)
    read_s = used(lambda: [read_claims(url, value) for url, value in records])
    indexed_s = used(lambda: Workers(claims))
    partitions = workers * EACH
    print(
        f"  {workers:>5} workers, {partitions:>7,} partitions: {size / 1e6:.2f} MB on the topic,"
        f" {size / partitions:.0f} B a partition; a client reads it in {read_s * 1e3:.0f} ms, sorts it in"
        f" {indexed_s * 1e3:.0f} ms, keeps {held / 1e6:.1f} MB",
        flush=True,
    )


def used(act: Any) -> float:
    began_s = time.process_time()
    act()
    return time.process_time() - began_s


# -- the console


def reports(workers: int) -> Iterator[bytes]:
    """Yield what each worker answers the console."""
    for url, active, standby in shares(workers):
        held = [_held(partition, "active") for partition in active]
        held += [_held(partition, "standby") for partition in standby]
        table = TableReport(version=1, partitions=workers * EACH, held=held)
        yield msgspec.msgpack.encode(WorkerReport(app=APP, url=url, tables={"count": table}, release="0.1.0"))


def _held(partition: int, role: str) -> HeldReport:
    return HeldReport(
        partition=partition,
        role=role,
        serving=True,
        as_of_offset=1_000_000 + partition,
        as_of={SOURCE: 1_000_000 + partition},
        stream_ms=NOW_MS,
        behind=0,
        age_ms=None if role == "active" else 20,
        changelog=ChangelogReport(next=2_000_000, end=2_000_000),
    )


def console(workers: int) -> None:
    """Print what one look of the console takes, and how large its pages are."""
    answers = list(reports(workers))
    known = Workers(read_claims(url, value) for url, value in announced(workers))
    began_s = time.process_time()
    told = {report.url: report for report in map(decode_report, answers)}
    asked_s = time.process_time() - began_s
    picture = picture_of(APP, [counting_of(SOURCE)], known, told, at_ms=NOW_MS)
    painted_s = time.process_time() - began_s - asked_s
    history = History()
    history.learn(positions_of(picture), now_s=1.0, at_s=1.0)
    history.learn_flows(flows_of(picture), now_s=1.0)
    look_s = time.process_time() - began_s
    watch = SimpleNamespace(picture=picture, groups=None, history=history, beside=())
    desk = cast(
        ConsoleDesk,
        SimpleNamespace(
            watch=watch, settings=SimpleNamespace(app=APP), processors=[counting_of(SOURCE)], globals={}
        ),
    )
    pages = ", ".join(page(desk, *each) for each in ((OVERVIEW, ""), (WORKERS, ""), (TABLE, "count")))
    print(
        f"  {workers:>5} workers, {workers * EACH:>7,} partitions: a look {look_s * 1e3:,.0f} ms of processor"
        f" ({asked_s * 1e3:.0f} decoding {sum(map(len, answers)) / 1e6:.1f} MB of answers,"
        f" {painted_s * 1e3:.0f} putting them together); {pages}",
        flush=True,
    )


def page(desk: ConsoleDesk, shown: ConsolePage, name: str) -> str:
    async def build() -> dict[str, Any]:
        return await shown.build(desk, {"name": name})

    began_s = time.process_time()
    context = asyncio.run(build())
    html = render_block(shown.template, "live", {"picture": desk.watch.picture, "root": "", **context})
    return f"{shown.path} {len(html) / 1000:.0f} kB in {(time.process_time() - began_s) * 1e3:.0f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="group,directory,console")
    parser.add_argument("--workers", default="30,100,300,1000")
    parser.add_argument(
        "--group", default="25x4,25x40,50x40,100x40,100x80", help="workers x partitions of each"
    )
    given = parser.parse_args()
    groups = [tuple(map(int, each.split("x"))) for each in given.group.split(",")]
    fleets = [(int(each),) for each in given.workers.split(",")]
    parts: dict[str, tuple[Callable[..., None], Sequence[tuple[int, ...]]]] = {
        "group": (group, groups),
        "directory": (directory, fleets),
        "console": (console, fleets),
    }
    for name in given.only.split(","):
        print(f"{name}; {load_average()}", flush=True)
        part, sizes = parts[name]
        for size in sizes:
            part(*size)


if __name__ == "__main__":
    main()
