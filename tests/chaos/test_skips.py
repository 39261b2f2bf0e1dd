"""Skipping a batch that cannot be unpacked: by setting or by an operator's request, once, recorded, and the
same for every table and every restart.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from holdfast.clients.quarantine.records import Quarantine, QuarantinedRecord
from holdfast.clients.tables.blocking import BlockingTableClient
from holdfast.clients.topics.application import create_topics
from holdfast.core.engine.fold.skips import Skip, encode_skip
from holdfast.kafka.reading.skip_log import read_skips
from holdfast.pipeline.replay import ReplayOptions
from holdfast.pipeline.verify.table import verify
from tests.chaos.conftest import MakeApplication
from tests.support.damage import one_batch
from tests.support.harness import Application, Worker, wait_for
from tests.support.limits import at_most
from tests.support.patience import DEADLINE_S

MIB = 1 << 20
SMALL: dict[str, Any] = {"unpacked_batch_bytes": MIB}
HIDDEN = 70_000
"""Sound records in one batch: more than a worker of SMALL unpacks, and less than one of the default does."""


class Log:
    """Writes to partition 0 of an application's source, a batch for each call."""

    def __init__(self, shop: Application, **more: str) -> None:
        self._shop, self.end = shop, 0
        self._more = more

    def add(self, key: str, count: int = 1) -> tuple[int, int]:
        """Write *count* records that add one to *key*, in one batch; return their first and last offset."""
        producer = one_batch(self._shop.broker, self._shop.source, **self._more)
        if self._more:
            producer.init_transactions(DEADLINE_S)
            producer.begin_transaction()
        for _ in range(count):
            producer.produce(self._shop.source, f"add {key} 1".encode(), partition=0)
        assert producer.flush(DEADLINE_S) == 0
        first, self.end = self.end, self.end + count
        if self._more:
            producer.commit_transaction(DEADLINE_S)
            self.end += 1
        return first, first + count - 1


def rows(shop: Application, *keys: str) -> list[int]:
    counts = shop.processors[0]
    with BlockingTableClient(shop.settings, [counts]) as tables:
        found = [tables.get(counts, key, partition=0, timeout_s=DEADLINE_S).value for key in keys]
    return [0 if row is None else row.total for row in found]


def noted(shop: Application) -> list[QuarantinedRecord]:
    return Quarantine(shop.settings).records(lambda each: each.stage == "fetch")


def told(shop: Application) -> list[Message]:
    """Return every record of the application's skips as it was written."""

    def messages() -> Iterator[Message]:
        consumer = Consumer(
            shop.broker.client_config(
                **{"group.id": "none", "enable.partition.eof": True, "isolation.level": "read_committed"}
            )
        )
        consumer.assign([TopicPartition(shop.settings.skips_topic, 0, 0)])
        while (message := consumer.poll(DEADLINE_S)) is not None and message.error() is None:
            yield message
        consumer.close()

    return list(messages())


def until(shop: Application, worker: Worker, offset: int) -> None:
    wanted = {(each.name, 0): offset for each in shop.processors}
    wait_for(
        f"both tables at {offset}",
        lambda: wanted.items() <= worker.applied().items(),
        DEADLINE_S,
        worker.tail,
    )


@pytest.mark.variant
@pytest.mark.parametrize("transactional", [False, True])
def test_by_setting_a_worker_goes_past_it_at_once_and_every_other_obeys(
    application: MakeApplication, transactional: bool
) -> None:
    shop = application(partitions=1, unreadable="quarantine", **SMALL)
    log = Log(shop, **({"transactional.id": shop.name} if transactional else {}))
    worker = shop.worker().start()
    bad = [log.add("hidden", HIDDEN)]  # before any record was folded
    _, last = log.add("seen")
    until(shop, worker, last)
    bad.append(log.add("hidden", HIDDEN))
    bad.append(log.add("hidden", HIDDEN))
    _, last = log.add("seen")
    until(shop, worker, last)
    bad.append(log.add("hidden", HIDDEN))  # at the end of the log
    wait_for(
        "the last to be skipped",
        lambda: len(worker.said("are skipped and noted")) == 4,
        DEADLINE_S,
        worker.tail,
    )
    assert rows(shop, "seen", "hidden") == [2, 0]
    wait_for("it to be ready", lambda: worker.ready, DEADLINE_S, worker.tail)
    wait_for(
        "no lag",
        lambda: set(worker.metric("kafka_consumergroup_lag").values()) == {0.0},
        DEADLINE_S,
        worker.tail,
    )
    assert sum(worker.metric("holdfast_skipped_batches_total").values()) == 4
    assert worker.metric("holdfast_unreadable_batches") == {f'partition="0",topic="{shop.source}"': 0.0}
    assert [(each.first, each.last, each.made) for each in read_skips(shop.settings).all()] == [
        (*each, True) for each in bad
    ]
    assert len(told(shop)) == 4, "each is written once"
    names = sorted(each.name for each in shop.processors)
    assert sorted((each.offset, each.processor, each.error) for each in noted(shop)) == [
        (first, name, "TooLargeError") for first, _ in bad for name in names
    ]
    worker.kill()
    # One that starts from nothing, and one that could read all of it, leave out the same.
    able = shop.worker(unpacked_batch_bytes=64 * MIB, unreadable="halt").start()
    _, last = log.add("seen")
    until(shop, able, last)
    assert rows(shop, "seen", "hidden") == [3, 0]
    assert len(told(shop)) == 4
    for processor in shop.processors:
        verdict = verify(processor, shop.settings, ReplayOptions(engine="local"))
        assert (verdict.equal, verdict.records, verdict.skipped) == (True, 3, 4 * HIDDEN)
    able.stop()


def test_an_operator_gets_a_partition_past_it_and_no_other_offset(application: MakeApplication) -> None:
    shop = application(partitions=1, **SMALL)
    log = Log(shop)
    log.add("seen")
    bad = log.add("hidden", HIDDEN)
    log.add("seen")
    later = log.add("hidden", HIDDEN)
    worker = shop.worker().start()
    worker.wait_said(f"stands before offsets {bad[0]} to {bad[1]}, which cannot be read", DEADLINE_S)
    producer = Producer(shop.broker.client_config())

    def ask(first: int, last: int) -> None:
        skip = Skip(topic=shop.source, partition=0, first=first, last=last, made=False, by="ada@desk")
        producer.produce(shop.settings.skips_topic, encode_skip(skip), skip.key, partition=0)
        assert producer.flush(DEADLINE_S) == 0

    ask(0, 0)  # of a record that can be read: no worker makes it
    ask(bad[1], bad[1])  # one offset of the batch is as good as all
    worker.wait_said(f"stands before offsets {later[0]} to {later[1]}, which cannot be read", DEADLINE_S)
    assert rows(shop, "seen", "hidden") == [2, 0]
    made = [each for each in read_skips(shop.settings).all() if each.made]
    assert [(each.first, each.last) for each in made] == [bad]
    assert made[0].by.startswith("ada@desk by http")
    assert not worker.ready
    assert worker.metric("holdfast_unreadable_batches") == {f'partition="0",topic="{shop.source}"': 1.0}
    worker.stop()


@pytest.mark.variant
def test_a_flood_of_them_is_skipped_quickly_and_stops_at_the_limit(application: MakeApplication) -> None:
    shop = application(partitions=2, unreadable="quarantine", quarantine_limit=30, **SMALL)
    log, flood = Log(shop), 40
    worker = shop.worker().start().wait_ready()
    log.add("seen")
    producer = Producer(
        shop.broker.client_config(
            **{"compression.type": "zstd", "message.max.bytes": 64 * MIB, "linger.ms": 0}
        )
    )
    with at_most(60, "to skip 30 batches"):
        for _ in range(flood):
            producer.produce(shop.source, bytes(4 * MIB), partition=0)
            assert producer.flush(DEADLINE_S) == 0
        worker.wait_said("it is not skipped: 30 records in a row were quarantined", DEADLINE_S)
    assert [each.first for each in read_skips(shop.settings).all()] == list(range(1, 31))
    status, told_why = worker.ask("/health/ready")
    assert (status, "quarantine_limit is 30" in told_why) == (503, True)
    producer.produce(shop.source, b"add beside 1", partition=1)
    assert producer.flush(DEADLINE_S) == 0
    wait_for(
        "the other partition to go on",
        lambda: worker.applied().get(("counts", 1)) == 0,
        DEADLINE_S,
        worker.tail,
    )
    worker.stop()


@pytest.mark.variant
def test_without_the_topic_of_skips_a_worker_stalls_and_says_so_until_it_is_made(
    application: MakeApplication,
) -> None:
    shop = application(partitions=2, unreadable="quarantine", **SMALL)
    log = Log(shop)
    log.add("seen")
    bad = log.add("hidden", HIDDEN)
    _, last = log.add("seen")
    shop.broker.delete_topics([shop.settings.skips_topic])
    worker = shop.worker().start()
    worker.wait_said(f"it is not skipped: topic {shop.settings.skips_topic} is missing", DEADLINE_S)
    assert "run `holdfast topics create`" in worker.ask("/health/ready")[1]
    producer = Producer(shop.broker.client_config())
    producer.produce(shop.source, b"add beside 1", partition=1)
    assert producer.flush(DEADLINE_S) == 0
    wait_for(
        "the other partition to be folded",
        lambda: worker.applied().get(("counts", 1)) == 0,
        DEADLINE_S,
        worker.tail,
    )
    create_topics(shop.settings, shop.processors)
    until(shop, worker, last)
    assert rows(shop, "seen", "hidden") == [2, 0]
    assert [(each.first, each.last) for each in read_skips(shop.settings).all()] == [bad]
    worker.stop()


@pytest.mark.variant
def test_a_batch_that_one_table_has_folded_is_not_skipped_for_another(application: MakeApplication) -> None:
    shop = application(partitions=1)
    log = Log(shop)
    _, last = log.add("read", HIDDEN)
    able = shop.worker().start()
    until(shop, able, last)
    able.stop()
    shop.remake_topic(shop.processors[1].changelog(shop.settings.app))
    unable = shop.worker(unreadable="quarantine", **SMALL).share_data(able)
    unable.start()
    unable.wait_said("it is not skipped: table counts.* has folded up to offset", DEADLINE_S)
    assert "has folded up to offset" in unable.ask("/health/ready")[1]
    assert len(read_skips(shop.settings)) == 0
    unable.stop()


@pytest.mark.slow
def test_workers_killed_at_any_time_skip_each_batch_once_and_lose_nothing(
    application: MakeApplication,
) -> None:
    shop = application(partitions=1, unreadable="quarantine", **SMALL)
    log, workers = Log(shop), [shop.worker(), shop.worker()]
    bad, seen = [], 0
    for round_ in range(5):
        worker = workers[round_ % 2].start()
        bad.append(log.add("hidden", HIDDEN))
        log.add("seen")
        seen += 1
        worker.wait_said("stands before offsets" if round_ % 2 else "are skipped and noted", DEADLINE_S)
        worker.signal(signal.SIGKILL)
        worker.wait_exit(DEADLINE_S)
    _, last = log.add("seen")
    worker = workers[1].start()
    until(shop, worker, last)
    assert rows(shop, "seen", "hidden") == [seen + 1, 0]
    assert [(each.first, each.last) for each in read_skips(shop.settings).all()] == bad
    worker.stop()
