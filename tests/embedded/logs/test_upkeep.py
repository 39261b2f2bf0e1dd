"""Deletion of records after their retention, and of producers that have been silent for long."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.embedded.logs.partition_log import PartitionLog
from holdfast.embedded.storage.folder import FolderStorage
from holdfast.embedded.topics.partition import EmbeddedPartition
from holdfast.errors import BrokerFolderError
from tests.embedded.clients.raw_client import RawClient
from tests.embedded.transcripts.asking import batch
from tests.support.patience import DEADLINE_S

HOUR_MS = 3_600_000


def log_of(kafka: EmbeddedKafka, topic: str) -> PartitionLog:
    partition = kafka.cluster.topics.partition(topic, 0)
    assert partition is not None
    return partition.log


def produce(kafka: EmbeddedKafka, topic: str, data: bytes) -> int:
    told = [{"name": topic, "partition_data": [{"index": 0, "records": data}]}]
    with RawClient(kafka.bootstrap) as client:
        answer = client.ask("Produce", 11, acks=-1, timeout_ms=1000, topic_data=told)
    code: int = answer["responses"][0]["partition_responses"][0]["error_code"]
    return code


@pytest.mark.parametrize(
    ("config", "start"),
    [
        ({}, 0),
        ({"retention.ms": str(HOUR_MS)}, 2),
        ({"retention.ms": "-1"}, 0),
        ({"retention.ms": str(HOUR_MS), "cleanup.policy": "compact"}, 0),
        ({"retention.ms": "0"}, 3),
        ({"retention.bytes": "100"}, 1),
        ({"retention.bytes": "0"}, 3),
    ],
)
def test_records_go_when_they_were_kept_for_long_enough(config: dict[str, str], start: int) -> None:
    with EmbeddedKafka() as kafka:
        topic = kafka.create_topic("orders", config=config)
        now_ms = int(time.time() * 1000)
        for at_ms in (now_ms - 3 * HOUR_MS, now_ms - 2 * HOUR_MS, now_ms - 1000):
            assert produce(kafka, topic, batch(b"a" * 20, at_ms=at_ms)) == 0
        kafka.run_upkeep()
        log = log_of(kafka, topic)
        assert (log.start_offset, log.end_offset) == (start, 3)


def test_it_looks_by_itself() -> None:
    with EmbeddedKafka(retention_check_ms=20) as kafka:
        topic = kafka.create_topic("orders", config={"retention.ms": "1"})
        assert produce(kafka, topic, batch(b"a", at_ms=1000)) == 0
        until_s = time.monotonic() + DEADLINE_S
        while log_of(kafka, topic).start_offset == 0:
            assert time.monotonic() < until_s
            time.sleep(0.01)


def test_a_producer_that_was_idle_for_a_day_is_forgotten() -> None:
    with EmbeddedKafka() as kafka:
        topic = kafka.create_topic("orders")
        told = {"producer_id": 7, "producer_epoch": 0}
        assert produce(kafka, topic, batch(b"a", base_sequence=0, **told)) == 0
        assert produce(kafka, topic, batch(b"a", base_sequence=5, **told)) == 45
        kafka.shift_clock(25 * HOUR_MS)
        kafka.run_upkeep()
        kafka.shift_clock(-25 * HOUR_MS)
        assert produce(kafka, topic, batch(b"a", base_sequence=5, **told)) == 0


def test_a_topic_that_is_deleted_while_others_are_looked_at_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []

    async def run() -> None:
        twice = asyncio.Event()
        async with EmbeddedKafka(retention_check_ms=1) as kafka:
            for name in ("first", "second"):
                kafka.create_topic(name)

            def keep_up(partition: EmbeddedPartition, *_: object) -> Iterator[None]:
                if partition.topic in seen:
                    twice.set()
                seen.append(partition.topic)
                second = kafka.cluster.topics.get("second")
                if second is not None:
                    kafka.cluster.delete_topics([second])
                yield
                seen.append(f"{partition.topic}, its second turn")

            monkeypatch.setattr("holdfast.embedded.upkeep._keep_up", keep_up)
            await twice.wait()

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))
    assert {*seen} == {"first", "first, its second turn"}


def test_a_topic_that_is_deleted_between_two_turns_gets_no_further_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns: list[str] = []

    async def run() -> None:
        twice = asyncio.Event()
        async with EmbeddedKafka(retention_check_ms=1) as kafka:
            kafka.create_topic("orders")

            def keep_up(partition: EmbeddedPartition, *_: object) -> Iterator[None]:
                while True:
                    turns.append(partition.topic)
                    if len(turns) == 2:
                        twice.set()
                    yield

            monkeypatch.setattr("holdfast.embedded.upkeep._keep_up", keep_up)
            await twice.wait()
            orders = kafka.cluster.topics.get("orders")
            assert orders is not None
            kafka.cluster.delete_topics([orders])
            turns.clear()
            await asyncio.sleep(0.02)

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))
    assert turns == []


@pytest.mark.parametrize("failure", [IndexError("a fault of its own"), ValueError("another")])
def test_a_partition_whose_upkeep_fails_is_logged_and_the_others_are_kept_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failure: Exception
) -> None:
    seen: list[str] = []

    async def run() -> None:
        twice = asyncio.Event()
        async with EmbeddedKafka(retention_check_ms=1) as kafka:
            for name in ("first", "second"):
                kafka.create_topic(name)

            def keep_up(partition: EmbeddedPartition, *_: object) -> Iterator[None]:
                if partition.topic == "first":
                    raise failure
                seen.append(partition.topic)
                if len(seen) == 2:
                    twice.set()
                yield

            monkeypatch.setattr("holdfast.embedded.upkeep._keep_up", keep_up)
            await twice.wait()

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))
    told = next(each for each in caplog.records if each.levelname == "ERROR")
    assert told.getMessage() == "upkeep of first-0 failed: it is tried again in 0.001 s"
    assert told.exc_info is not None
    assert told.exc_info[1] is failure


def test_a_folder_that_cannot_be_written_stops_the_broker_and_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    async def run() -> BrokerFolderError | None:
        stopped = asyncio.Event()
        kafka = EmbeddedKafka(retention_check_ms=1, folder=tmp_path)
        kafka.on_failure(stopped.set)
        async with kafka:
            for name in ("first", "second"):
                kafka.create_topic(name)
            storage = kafka.cluster.storage
            assert isinstance(storage, FolderStorage)
            disk = storage.disk

            def keep_up(partition: EmbeddedPartition, *_: object) -> Iterator[None]:
                raise disk.fail(BrokerFolderError("the folder is gone"))
                yield

            monkeypatch.setattr("holdfast.embedded.upkeep._keep_up", keep_up)
            await stopped.wait()
        return kafka.failure

    failure = asyncio.run(asyncio.wait_for(run(), DEADLINE_S))
    told = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
    assert (str(failure), told) == ("the folder is gone", ["the folder is gone; it stops"])
