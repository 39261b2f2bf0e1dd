"""Memory of a task on a cluster when partitions are of unequal size, many, or hold a million keys: at most
the figures of docs/lake.md.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil  # type: ignore[import-untyped]
import pytest

from holdfast.core.engine.state.codec import RowCodec, combine_digests, digest, row_key
from tests.pipeline.accounts import Log, Record
from tests.pipeline.lakes import write_bronze
from tests.pipeline.spark.standalone import StandaloneCluster, make_project, on_master, replayed, standalone
from tests.support.places import DOCS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2400),
    pytest.mark.process,
    pytest.mark.spark,
]

STATE_MB = 64
LOOK_S = 0.3


def stated_mb(what: str) -> int:
    """Return the memory of *what* by the table in docs/lake.md."""
    found = re.search(rf"^\| {re.escape(what)} \| (\d+) MB \|$", (DOCS / "lake.md").read_text(), re.MULTILINE)
    assert found is not None, f"docs/lake.md has no row of {what}"
    return int(found[1])


def keyed(partition: int, records: int, keys: int) -> list[Record]:
    return [
        Record(at, 1_000 + at, None, b"%d-%08d %d" % (partition, at * 7919 % keys, at))
        for at in range(records)
    ]


def skewed() -> Log:
    """Return a log of which one partition has four fifths."""
    return {0: keyed(0, 200_000, 50_000), **{at: keyed(at, 16_667, 5_000) for at in (1, 2, 3)}}


def many() -> Log:
    return {at: keyed(at, 1_000, 100) for at in range(64)}


def million() -> Log:
    return {0: keyed(0, 1_000_000, 1_000_000)}


class Row(msgspec.Struct, frozen=True):
    """The application's row."""

    total: int = 0


def digest_of(log: Log) -> str:
    """Return the digest of the application's result for *log*, by adding up."""
    codec: RowCodec[Row] = RowCodec(Row)
    by_partition = dict[int, str]()
    for partition, records in log.items():
        totals = Counter[bytes]()
        for each in records:
            key, amount = (each.value or b"").split(b" ")
            totals[key] += 3 * int(amount)
        rows = sorted((row_key(key.decode()), codec.encode(Row(total))) for key, total in totals.items())
        by_partition[partition] = digest(rows)
    return combine_digests(by_partition.items())


class Peak:
    """The most resident memory that a Python worker, and an executor, of a cluster has had."""

    def __init__(self, cluster: StandaloneCluster) -> None:
        self._roots = [psutil.Process(each.pid) for each in cluster.processes]
        self.python_mb = self.executor_mb = 0

    def look(self) -> None:
        for root in self._roots:
            for each in root.children(recursive=True):
                try:
                    words, rss_mb = each.cmdline(), each.memory_info().rss >> 20
                except psutil.Error:  # it has just ended
                    continue
                if "pyspark.daemon" in words:
                    self.python_mb = max(self.python_mb, rss_mb)
                elif "org.apache.spark.executor.CoarseGrainedExecutorBackend" in words:
                    self.executor_mb = max(self.executor_mb, rss_mb)


@contextmanager
def peak_of(cluster: StandaloneCluster) -> Iterator[Peak]:
    peak, done = Peak(cluster), threading.Event()

    def watch() -> None:
        while not done.wait(LOOK_S):
            peak.look()

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield peak
    finally:
        done.set()
        watching.join()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with standalone(tmp_path_factory.mktemp("standalone"), workers=2) as made:
        yield made


@pytest.mark.parametrize(
    ("log", "what"),
    [
        (skewed, "one partition with four fifths of the records"),
        (many, "64 small partitions"),
        (million, "1,000,000 keys in one partition"),
    ],
    ids=["skewed", "many", "million"],
)
def test_a_task_takes_no_more_memory_than_is_said(
    cluster: StandaloneCluster, tmp_path: Path, log: Callable[[], Log], what: str
) -> None:
    records = log()
    write_bronze(tmp_path / "lake", "t", records)
    project = make_project(tmp_path / "project")
    bronze = ["--from", "bronze", "--lake", str(tmp_path / "lake")]
    with peak_of(cluster) as peak:
        there = replayed(project, *bronze, "--state-memory-mb", str(STATE_MB), *on_master(cluster.master))
    assert (there["engine"], there["digest"]) == ("spark", digest_of(records))
    print(f"{what}: Python {peak.python_mb} MB, executor {peak.executor_mb} MB")
    assert 0 < peak.python_mb <= stated_mb(what)
    assert 0 < peak.executor_mb <= stated_mb("the JVM of an executor")
