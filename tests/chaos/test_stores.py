"""Local state that does not fit is set aside and rebuilt from the changelog; the result is exact whatever
was found on disk.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import rocksdict

from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.types import AlterConfig
from holdfast.core.engine.state.codec import META
from holdfast.tables.store import STORE_FORMAT, StoreStamp
from tests.chaos.conftest import MakeApplication
from tests.support.harness import Application, Worker, wait_for
from tests.support.patience import DEADLINE_S
from tests.support.proof import prove, read_topic

RECORDS = 3_000


def worked(make: MakeApplication, **settings: float) -> tuple[Application, Worker]:
    """Return an application whose only worker has folded a load and stopped."""
    app = make(partitions=2, instance_id="only", **settings)
    worker = app.worker().start()
    app.load(rate=5_000, limit=RECORDS, seed=51).wait()
    prove(app, RECORDS)
    return app, worker


def on_disk(path: Path, change: Callable[[rocksdict.Rdict], None]) -> None:
    """Open a store as no worker would and change it."""
    database = rocksdict.Rdict(str(path), rocksdict.Options(raw_mode=True))
    try:
        change(database)
    finally:
        database.close()


def restamp(path: Path, **differences: object) -> None:
    def change(database: rocksdict.Rdict) -> None:
        key = META + b"stamp"
        stamp = msgspec.msgpack.decode(bytes(database[key]), type=StoreStamp)  # type: ignore[arg-type]
        database[key] = msgspec.msgpack.encode(msgspec.structs.replace(stamp, **differences))
        database[b"\x02kforeign"] = b"a row that must never be seen"

    on_disk(path, change)


def corrupt_files(path: Path) -> None:
    """Damage what RocksDB checks first, as a bad disk does."""
    for each in [*path.glob("MANIFEST-*"), *path.glob("*.log"), *path.glob("*.sst")]:
        content = bytearray(each.read_bytes())
        for at in range(len(content) // 3, len(content), 7):
            content[at] ^= 0xFF
        each.write_bytes(bytes(content))


def truncate_current(path: Path) -> None:
    (path / "CURRENT").write_bytes(b"")


def half_made(path: Path) -> None:
    """Simulate a kill between the creation of a store and its stamp."""
    shutil.rmtree(path)
    on_disk(path, lambda database: None)


def ahead(path: Path) -> None:
    """Simulate a store that is ahead of a changelog whose end the cluster lost."""

    def change(database: rocksdict.Rdict) -> None:
        database[META + b"changelog"] = b"%d" % 10_000_000
        database[b"\x02kforeign"] = b"a row that must never be seen"

    on_disk(path, change)


UNFIT: dict[str, tuple[Callable[[Path], None], str]] = {
    "corrupt files": (corrupt_files, "cannot be opened|cannot be read|is corrupt"),
    "an empty CURRENT file": (truncate_current, "cannot be opened"),
    "no stamp": (half_made, "is corrupt or of a newer format"),
    "another application's": (lambda path: restamp(path, app="someone-else"), "belongs to"),
    "another cluster's": (lambda path: restamp(path, cluster_id="elsewhere"), "belongs to"),
    "another partition's": (lambda path: restamp(path, partition=7), "belongs to"),
    "a newer format": (lambda path: restamp(path, format=STORE_FORMAT + 1), "belongs to|newer format"),
    "ahead of its changelog": (ahead, "outside the changelog"),
}


def test_every_kind_of_unfit_store_is_set_aside_and_rebuilt(application: MakeApplication) -> None:
    app, worker = worked(application)
    kinds = list(UNFIT.items())
    paths = [
        worker.data / each.table / str(partition)
        for each in app.processors
        for partition in range(app.partitions)
    ]
    for start in range(0, len(kinds), len(paths)):
        spoilt = list(zip(paths, kinds[start : start + len(paths)], strict=True))
        for path, (_, (spoil, _)) in spoilt:
            spoil(path)
        worker.start().wait_ready()
        for path, (name, (_, cause)) in spoilt:
            said = worker.said(rf"store {path} set aside as {path.name}\.set-aside and rebuilt: .*({cause})")
            assert len(said) == 1, f"{name}: {said}\n{worker.tail()}"
            assert path.with_name(f"{path.name}.set-aside").is_dir()
        prove(app, RECORDS)
    worker.start().wait_ready()
    assert worker.said("set aside") == [], "a fit store was not trusted"


@pytest.mark.variant
def test_a_store_in_use_by_another_worker_is_left_alone(application: MakeApplication) -> None:
    app = application(partitions=1)
    first = app.worker().start().wait_ready()
    second = app.worker("w2").share_data(first).start()
    # With one partition the second is idle until the first is gone; frozen, it still holds the lock.
    wait_for("the second in the group", lambda: second.ready, DEADLINE_S, second.tail)
    first.signal(signal.SIGSTOP)
    code = second.wait_exit(DEADLINE_S)
    assert code > 0
    assert second.said("is in use by another process: give each worker a data_dir of its own"), second.tail()


@pytest.mark.variant
def test_a_changelog_deleted_and_made_again_is_rebuilt_from_the_source(application: MakeApplication) -> None:
    app, worker = worked(application)
    app.remake_topic(app.processors[0].changelog(app.settings.app))
    worker.start().wait_ready()
    assert len(worker.said("set aside")) == 2, "both partitions of the one table"
    prove(app, from_source=True)


@pytest.mark.variant
def test_a_changelog_made_again_under_a_running_worker_is_never_taken_for_the_state(
    application: MakeApplication,
) -> None:
    app, worker = worked(application)
    worker.start().wait_ready()
    changelog = app.processors[0].changelog(app.settings.app)
    app.remake_topic(changelog)
    load = app.load(rate=500, seed=53)
    told = rf"leaving: .*{changelog} was deleted and made again while a worker wrote to it"
    for _ in ("at the first write", "at each start until somebody has deleted it once more"):
        code = worker.wait_exit(DEADLINE_S)
        assert code > 0
        assert worker.said(told), worker.tail()
        worker.start()
    worker.kill()
    load.stop()
    app.remake_topic(changelog)
    worker.start()
    prove(app, from_source=True)


@pytest.mark.variant
def test_a_store_away_for_longer_than_tombstones_are_kept_is_rebuilt(application: MakeApplication) -> None:
    app, worker = worked(application)
    topics = [each.changelog(app.settings.app) for each in app.processors]
    Admin(app.settings).apply(
        [AlterConfig(topic=topic, config={"delete.retention.ms": "1000"}) for topic in topics]
    )
    worker.start().wait_ready()
    worker.stop()
    stopped_s = time.monotonic()
    wait_for("a while", lambda: time.monotonic() - stopped_s > 1.5, DEADLINE_S)
    worker.start().wait_ready()
    assert len(worker.said("it was away for longer than the changelog keeps tombstones")) == 4
    prove(app, RECORDS)


@pytest.mark.slow
def test_tombstones_missed_by_a_store_do_not_bring_rows_back(application: MakeApplication) -> None:
    """Let the broker compact deletions away while a store is not there to see them."""
    app, worker = worked(application)
    eager = {
        "delete.retention.ms": "100",
        "min.cleanable.dirty.ratio": "0.01",
        "segment.ms": "500",
        "max.compaction.lag.ms": "500",
    }
    topics = [each.changelog(app.settings.app) for each in app.processors]
    Admin(app.settings).apply([AlterConfig(topic=topic, config=eager) for topic in topics])
    other = app.worker("w2", instance_id="other").start().wait_ready()
    more = app.load(rate=1_000, seed=52)

    def compacted() -> bool:
        messages = read_topic(app.broker, topics[0], committed=False)[0]
        return bool(messages) and (messages[0].offset() or 0) > 0

    wait_for("compaction", compacted, DEADLINE_S)
    total = RECORDS + more.stop()
    other.stop()
    worker.start().wait_ready()
    prove(app, total)
