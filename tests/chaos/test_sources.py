"""Sources of every shape: empty, cut by retention, written in transactions; two processors of one source; one
processor of several sources.
"""

from __future__ import annotations

import asyncio
import json

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from holdfast import BlockingTableClient
from holdfast.clients.tables.directory import WorkersTopic
from holdfast.pipeline.replay import ReplayOptions
from holdfast.pipeline.verify.table import verify
from tests.chaos.conftest import MakeApplication
from tests.support.harness import Application, wait_for
from tests.support.patience import DEADLINE_S
from tests.support.proof import last_offsets, prove, read_topic

TRANSACTIONS = 60


def write(app: Application, *values: bytes, partition: int = 0) -> None:
    producer = Producer(app.broker.client_config())
    for value in values:
        producer.produce(app.source, value, b"k1", partition)
    assert producer.flush(DEADLINE_S) == 0


def cut(app: Application, before: int, partition: int = 0) -> None:
    """Have retention take the records before an offset."""
    admin = AdminClient(app.broker.client_config())
    for future in admin.delete_records([TopicPartition(app.source, partition, before)]).values():
        future.result(DEADLINE_S)


def partial_partitions(app: Application) -> list[int]:
    """Return which partitions of "counts" workers announce as partial."""

    async def ask() -> list[int]:
        directory = WorkersTopic(app.settings)
        try:
            await directory.refresh(DEADLINE_S)
            return [each for each in range(app.partitions) if directory.workers.is_partial("counts", 1, each)]
        finally:
            await directory.close()

    return asyncio.run(ask())


def test_a_worker_on_an_empty_topic_is_ready_and_folds_the_first_record(application: MakeApplication) -> None:
    app = application(partitions=2)
    worker = app.worker().start().wait_ready()
    assert set(worker.applied().values()) == {-1}
    write(app, b"add k1 1")
    assert prove(app).source[0][-1].offset() == 0


@pytest.mark.variant
def test_a_table_that_begins_after_a_hole_says_so_for_good(application: MakeApplication) -> None:
    app = application(partitions=2, instance_id="only")
    app.load(rate=10_000, limit=4_000, seed=81).wait()
    cut(app, 700)
    worker = app.worker().start()

    def check_told() -> None:
        app.wait_applied(last_offsets(read_topic(app.broker, app.source)), DEADLINE_S)
        told = json.dumps({"partial": {app.source: 700}}, separators=(",", ":"))[1:-1]
        assert told in worker.ask("/tables/counts/0/rows/k1")[1]
        assert "partial" not in worker.ask("/tables/counts/1/rows/k1")[1]
        status, ready = worker.ask("/health/ready")
        assert (status, ready.count(f"{app.source} before offset 700")) == (200, 2), "two tables fold it"
        partial = worker.metric("holdfast_partial")
        assert {labels: value for labels, value in partial.items() if value} == {
            f'partition="0",role="active",table="{each.name}"': 1 for each in app.processors
        }
        wait_for("the announcement", lambda: partial_partitions(app) == [0], DEADLINE_S, worker.tail)

    check_told()
    assert worker.said("begins at offset 700, the records before it were deleted")
    worker.kill()
    worker.wipe()
    worker.start()  # which restores, and reads none of the deleted records
    check_told()
    assert not worker.said("begins at offset 700")
    with BlockingTableClient(app.settings, app.processors) as tables:
        found = [tables.get("counts", "k1", partition=each, timeout_s=DEADLINE_S).partial for each in (0, 1)]
    assert found == [True, False]
    verdict = verify(app.processors[0], app.settings, ReplayOptions(engine="local"))
    assert verdict.equal
    assert verdict.partial == (
        f"partition 0 began behind a hole: {app.source} before offset 700",
        f"topic {app.source} partition 0 begins at offset 700: earlier records were deleted",
    )
    proof = prove(app)
    assert proof.source[0][0].offset() == 700
    assert (proof.source[1][0].offset() or 0) == 0


def test_a_worker_whose_next_records_are_gone_stops_and_names_the_lost_offsets(
    application: MakeApplication,
) -> None:
    app = application(partitions=2, instance_id="only")
    worker = app.worker().start()
    app.load(rate=10_000, limit=2_000, seed=82).wait()
    prove(app)
    end = last_offsets(read_topic(app.broker, app.source))[0] + 1
    write(app, *[b"add k1 1"] * 50)
    cut(app, end + 20)
    code = worker.start().wait_exit(DEADLINE_S)
    assert code > 0
    assert worker.said(rf"leaving: {app.source} partition 0: offset {end} is not in the log any more"), (
        worker.tail()
    )


def test_a_source_that_was_made_again_is_refused_though_it_reaches_as_far(
    application: MakeApplication,
) -> None:
    app = application(partitions=1, instance_id="only")
    worker = app.worker().start()
    write(app, *[b"add k1 1"] * 50)
    prove(app)
    app.broker.delete_topics([app.source])
    app.create_topics()
    write(app, *[b"add k1 1"] * 80)  # another log, which has the next offset too
    worker.wipe()  # the changelog has its state too, not this machine alone
    assert worker.start().wait_exit(DEADLINE_S) > 0
    told = (
        rf"leaving: topic {app.source} was deleted and made again .* has folded the old one up to offset 49:"
        r" write version="
    )
    assert worker.said(told), worker.tail()


@pytest.mark.variant
def test_a_worker_at_the_very_end_of_a_log_that_retention_has_emptied_continues(
    application: MakeApplication,
) -> None:
    app = application(partitions=1, instance_id="only")
    worker = app.worker().start()
    write(app, *[b"add k1 1"] * 50)
    prove(app)
    cut(app, 50)
    worker.start().wait_ready()
    write(app, *[b"add k1 1"] * 5)
    wait_for("the new records", lambda: worker.applied().get(("counts", 0)) == 54, DEADLINE_S, worker.tail)
    status, body = worker.ask("/tables/counts/0/rows/k1")
    assert (status, '"seen":55' in body or "[55," in body) == (200, True), body


@pytest.mark.variant
def test_transactional_producers_are_folded_exactly(application: MakeApplication) -> None:
    """Control records leave holes in the offsets, aborted records must not be folded, and a log may end in
    either.
    """
    app = application(partitions=2, instance_id="only")
    worker = app.worker().start()
    producer = Producer(
        app.broker.client_config(
            **{"transactional.id": f"{app.name}-writer", "transaction.timeout.ms": 120_000}
        )
    )
    producer.init_transactions(DEADLINE_S)
    kept = 0
    for at in range(TRANSACTIONS):
        producer.begin_transaction()
        for number in range(20):
            producer.produce(app.source, b"add k%d %d" % (number % 4, at), b"k%d" % (number % 4), number % 2)
        if at % 3 == 1:
            producer.flush(DEADLINE_S)
            producer.abort_transaction(DEADLINE_S)
        else:
            producer.commit_transaction(DEADLINE_S)
            kept += 20
        if at == TRANSACTIONS // 2:
            worker.wait_ready().kill()
            worker.start()
    # An open transaction holds back other producers' later records; the worker folds up to it and no further.
    producer.begin_transaction()
    producer.produce(app.source, b"add k0 1", b"k0", 0)
    producer.flush(DEADLINE_S)
    write(app, b"add k0 1")
    before = last_offsets(read_topic(app.broker, app.source))
    app.wait_applied(before, DEADLINE_S)
    producer.abort_transaction(DEADLINE_S)
    proof = prove(app, kept + 1)
    assert [each.offset() for each in proof.source[0]] != list(range(len(proof.source[0]))), (
        "the log is dense, so it shows nothing"
    )


@pytest.mark.variant
def test_two_processors_of_one_source_each_fold_all_of_it_from_positions_of_their_own(
    application: MakeApplication,
) -> None:
    app = application(partitions=2, instance_id="only")
    worker = app.worker().start()
    app.load(rate=10_000, limit=3_000, seed=83).wait()
    prove(app)
    # One of them loses everything and starts over while the other stays: records that only one needs reach
    # both.
    app.remake_topic(app.processors[1].changelog(app.settings.app))
    worker.start()
    more = app.load(rate=1_000, limit=2_000, seed=84)
    more.wait()
    prove(app, from_source=True)


@pytest.mark.variant
def test_workers_beyond_the_number_of_partitions_are_idle_and_take_over(application: MakeApplication) -> None:
    app = application(partitions=1)
    load = app.load(rate=1_000, seed=85)
    first = app.worker().start().wait_ready()
    second = app.worker().start()
    wait_for(
        "both ready, one with work",
        lambda: first.ready and second.ready and len(first.applied()) + len(second.applied()) == 2,
        DEADLINE_S,
        app.tails,
    )
    busy, idle = (first, second) if first.applied() else (second, first)
    busy.stop()
    wait_for("takeover", lambda: len(idle.applied()) == 2 and idle.ready, DEADLINE_S, app.tails)
    prove(app, load.stop())


def test_a_source_that_ends_with_the_marker_of_a_commit_leaves_no_lag(application: MakeApplication) -> None:
    app = application(partitions=1, instance_id="only")
    producer = Producer(app.broker.client_config(**{"transactional.id": app.name}))
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    producer.produce(app.source, b"add key 1", partition=0)
    producer.commit_transaction(DEADLINE_S)
    worker = app.worker().start().wait_ready()

    def told() -> bool:
        lags = list(worker.metric("kafka_consumergroup_lag").values())
        return worker.applied().get(("counts", 0)) == 0 and lags == [0]

    wait_for(
        "a lag of 0", told, DEADLINE_S, lambda: f"{worker.metric('kafka_consumergroup_lag')}\n{worker.tail()}"
    )
