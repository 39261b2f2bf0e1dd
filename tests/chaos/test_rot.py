"""Stores that rot: a row changed without the worker's knowledge, bytes flipped on disk.

Served rows are compared, and damage is found and rebuilt.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import rocksdict
from confluent_kafka import Producer

from holdfast.clients.tables.blocking import BlockingTableClient
from holdfast.clients.tables.inspecting import StoreInspector
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.state.codec import APPLIED, META, RowCodec, row_key
from holdfast.pipeline.replay import ReplayOptions
from holdfast.pipeline.verify.store import StoreVerdict, verify_store
from holdfast.pipeline.verify.table import verify
from tests.chaos.conftest import MakeApplication
from tests.chaos.counting import Count
from tests.support.harness import Application, Worker, wait_for
from tests.support.patience import DEADLINE_S
from tests.support.proof import prove

RECORDS, COLD = 2_000, 10_000
LOCAL = ReplayOptions(engine="local")
CODEC = RowCodec[Count](Count)
Change = Callable[[rocksdict.Rdict], None]


def worked(make: MakeApplication, **settings: Any) -> tuple[Application, Worker]:
    """Return an application whose only worker has folded a load and runs."""
    app = make(partitions=2, instance_id="only", **settings)
    worker = app.worker().start()
    app.load(rate=5_000, limit=RECORDS, seed=61).wait()
    prove(app, RECORDS)
    return app, worker


def on_disk(path: Path, change: Change) -> None:
    """Open a store as no worker would and change it."""
    database = rocksdict.Rdict(str(path), rocksdict.Options(raw_mode=True))
    try:
        change(database)
    finally:
        database.close()


def changed_row(path: Path) -> str:
    """Change one row of a store and return its key; checksums and position stay right."""
    keys: list[str] = []

    def change(database: rocksdict.Rdict) -> None:
        stored = next(bytes(key) for key in database.keys(from_key=b"\x02") if bytes(key)[:1] == b"\x02")  # type: ignore[arg-type]
        row = CODEC.decode(bytes(database[stored]))  # type: ignore[arg-type]
        database[stored] = CODEC.encode(msgspec.structs.replace(row, seen=row.seen + 1_000))
        keys.append(stored[1:].decode())

    on_disk(path, change)
    return keys[0]


def add_cold_rows(app: Application, times: int = 1) -> None:
    """Fold so many rows that most blocks of partition 0's store hold nothing else."""
    producer = Producer(app.broker.client_config())
    for number in range(COLD * times):
        producer.produce(app.source, b"add cold%05d 1" % (number % COLD), partition=0)
    assert producer.flush(DEADLINE_S) == 0


def flip_a_block(path: Path) -> None:
    """Flip bytes in the middle of the largest table file."""
    table = max(path.glob("*.sst"), key=lambda each: each.stat().st_size)
    content = bytearray(table.read_bytes())
    for at in range(len(content) // 2 - 100, len(content) // 2 + 100):
        content[at] ^= 0xFF
    table.write_bytes(bytes(content))


def verified(app: Application, processor: Processor[Any, Any]) -> StoreVerdict:
    with StoreInspector(app.settings) as inspector:
        return verify_store(processor, app.settings, inspector, LOCAL)


@pytest.mark.variant
def test_a_row_changed_in_the_store_is_served_and_only_the_three_together_find_it(
    application: MakeApplication,
) -> None:
    app, worker = worked(application)
    counts = app.processors[0]
    key = changed_row(worker.data / counts.table / "1")
    worker.start().wait_ready()
    with BlockingTableClient(app.settings, [counts]) as tables:
        served = tables.get(counts, key, partition=1, timeout_s=DEADLINE_S).value
    assert served is not None
    assert served.seen > 1_000, "the lie is served"
    assert verify(counts, app.settings, LOCAL).equal, "the changelog knows nothing of it"
    verdict = verified(app, counts)
    assert [each.equal for each in verdict.partitions] == [True, False]
    found = verdict.partitions[1].difference
    assert found is not None
    assert (found.kind, found.key, found.differs) == ("row", key, ("store",))
    assert found.changelog == found.replayed != found.store
    assert found.changed_at is not None
    assert f"row '{key}' differs in the store: store" in verdict.partitions[1].explain()


@pytest.mark.variant
def test_a_fleet_that_folds_on_is_equal_in_all_three_wherever_each_store_is(
    application: MakeApplication,
) -> None:
    app = application(partitions=2)
    worker = app.worker().start()
    load = app.load(rate=1_000, seed=62)
    wait_for(
        "rows everywhere",
        lambda: [at > 200 for at in worker.applied().values()] == [True] * 4,
        DEADLINE_S,
        worker.tail,
    )
    for processor in app.processors:
        verdict = verified(app, processor)
        assert verdict.equal, [each.explain() for each in verdict.partitions]
        assert verdict.records > 0
    total = load.stop()
    prove(app, total)


def test_a_store_left_by_a_kill_and_damaged_is_rebuilt_and_never_served(application: MakeApplication) -> None:
    app, worker = worked(application)
    worker.start().wait_ready()
    add_cold_rows(app)
    prove(app)
    worker.start().wait_ready()
    worker.kill()
    path = worker.data / app.processors[0].table / "0"
    flip_a_block(path)
    worker.start().wait_ready()
    said = worker.said(
        rf"store {path} set aside as 0\.rotten-1 and rebuilt: it was not closed in good order and is damaged:"
        r" .*checksum"
    )
    assert len(said) == 1, worker.tail()
    assert len(worker.said("set aside")) == 1, "the others were left by the same kill and are sound"
    assert path.with_name("0.rotten-1").is_dir()
    prove(app)


@pytest.mark.variant
def test_a_block_that_goes_bad_under_a_worker_is_found_when_it_is_folded_into(
    application: MakeApplication,
) -> None:
    """The worker was closed in good order, so nothing was read at its start.

    It keeps serving the other partitions, and recovers this one.
    """
    app, worker = worked(application)
    worker.start().wait_ready()
    add_cold_rows(app)
    prove(app)
    path = worker.data / app.processors[0].table / "0"
    flip_a_block(path)
    worker.start().wait_ready()
    assert not worker.said("set aside")
    add_cold_rows(app, 2)
    worker.wait_said(
        r"store rotten: counts partition 0 as of offset \d+: it cannot be read: .*checksum", DEADLINE_S
    )
    worker.wait_said(rf"store {path} set aside as 0\.rotten-1", DEADLINE_S)
    wait_for("ready again", lambda: worker.ready, DEADLINE_S, worker.tail)
    assert sum(worker.metric("holdfast_rotten_stores_total").values()) == 1
    prove(app)


@pytest.mark.variant
def test_a_query_that_meets_a_bad_block_gets_no_answer_until_the_store_is_rebuilt(
    application: MakeApplication,
) -> None:
    app, worker = worked(application)
    counts = app.processors[0]
    worker.start().wait_ready()
    add_cold_rows(app)
    prove(app)
    flip_a_block(worker.data / counts.table / "0")
    worker.start().wait_ready()
    with BlockingTableClient(app.settings, [counts]) as tables:
        found = [
            answer.value.seen for answer in tables.scan(counts, "cold", partition=0, timeout_s=DEADLINE_S)
        ]
    assert found == [1] * COLD, "rows that cannot be read are not left out"
    assert worker.said("store rotten: counts partition 0")
    prove(app)


def test_the_store_knows_its_notes(application: MakeApplication) -> None:
    """A store closed in good order says so; while it is open, or after a kill, it does not."""
    app, worker = worked(application)
    path = worker.data / app.processors[0].table / "0"
    seen: list[bool] = []
    on_disk(path, lambda database: seen.append(META + b"closed" in database and APPLIED in database))
    worker.start().wait_ready()
    worker.kill()
    on_disk(path, lambda database: seen.append(META + b"closed" in database))
    assert seen == [True, False]
    assert row_key("k")[:1] == b"\x02"


@pytest.mark.variant
def test_the_background_check_finds_a_changed_row_by_itself_and_rebuilds_the_store(
    application: MakeApplication,
) -> None:
    app, worker = worked(application, store_check_interval_s=1)
    counts = app.processors[0]
    path = worker.data / counts.table / "1"
    key = changed_row(path)
    worker.start().wait_ready()
    said = worker.wait_said(
        r"store rotten: counts partition 1 as of offset \d+: row '.*' is not that of its changelog",
        DEADLINE_S,
    )
    assert repr(key) in said
    worker.wait_said(rf"store {path} set aside as 1\.rotten-1", DEADLINE_S)
    wait_for("ready again", lambda: worker.ready, DEADLINE_S, worker.tail)
    assert sum(worker.metric("holdfast_rotten_stores_total").values()) == 1
    load = app.load(rate=500, seed=64)
    checked = sum(worker.metric("holdfast_store_checks_total").values())
    wait_for(
        "more checks",
        lambda: sum(worker.metric("holdfast_store_checks_total").values()) > checked + 6,
        DEADLINE_S,
        worker.tail,
    )
    assert len(worker.said("store rotten")) == 1, "sound stores are not found rotten while rows change"
    total = RECORDS + load.stop()
    verdict = verified(app, counts)
    assert verdict.equal, [each.explain() for each in verdict.partitions]
    prove(app, total)
    assert not list(path.parent.glob("*.checking"))
