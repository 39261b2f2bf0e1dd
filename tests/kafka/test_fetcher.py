"""Fetching from brokers whose answers are scripted: what a leader may answer, and what the feed makes of it.

Requests and answers are real bytes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from struct import Struct
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka.errors import KafkaConnectionError

from holdfast.core.kafka.fetch_requests import FETCH, Wanted, fetch_request, fetched, whole_batches
from holdfast.core.kafka.record_batch import Record, RecordBatch, encode_batch
from holdfast.core.kafka.wire import WireReader, put_compact, put_uvarint
from holdfast.errors import TopicError, WireError
from holdfast.kafka.fetching.source_fetcher import ATTEMPTS, Fetched, SourceFetcher
from holdfast.kafka.requests.raw_request import RawRequest
from tests.support.patience import DEADLINE_S

TOPIC = "events"
_PART = Struct(">ihqqq")


def batch(base: int, count: int = 1) -> bytes:
    records = tuple(Record(offset_delta=each, value=b"%d" % (base + each)) for each in range(count))
    return encode_batch(RecordBatch(base_offset=base, last_offset_delta=count - 1, records=records))


class Brokers:
    """A client of aiokafka's and its brokers:

    *logs* by partition, *codes* that are answered in turn before what there is.
    """

    def __init__(self, *partitions: int) -> None:
        self.logs: dict[int, dict[int, bytes]] = {number: {} for number in partitions}
        self.leaders = dict.fromkeys(partitions, 1)
        self.moved: dict[int, int] = {}
        self.codes: dict[int, list[int]] = {number: [] for number in partitions}
        self.faults: list[Exception] = []
        self.starts = dict.fromkeys(partitions, 0)
        self.asked: list[tuple[int, dict[int, int]]] = []
        self.answering = self.connecting = True
        self.clients = self.refreshed = 0
        self.unauthorized: set[str] = set()
        self.tamper: Callable[[int, bytes], bytes] = lambda asked, data: data
        self.cluster = SimpleNamespace(
            partitions_for_topic=lambda topic: set(self.leaders) if topic == TOPIC else None,
            leader_for_partition=lambda tp: self.leaders.get(tp.partition),
            unauthorized_topics=self.unauthorized,
        )

    def connect(self) -> Any:
        self.clients += 1
        return self

    async def bootstrap(self) -> None:
        if not self.connecting:
            raise KafkaConnectionError("nobody there")

    async def close(self) -> None: ...

    async def set_topics(self, topics: set[str]) -> bool:
        return True

    async def force_metadata_update(self) -> bool:
        self.refreshed += 1
        self.leaders |= self.moved
        return True

    async def ready(self, node: int) -> bool:
        return False

    async def send(self, node: int, request: Any) -> Any:
        await asyncio.sleep(0.001)
        if not self.answering:
            raise KafkaConnectionError("gone")
        if self.faults:
            raise self.faults.pop(0)
        if not isinstance(request, RawRequest):
            ((topic, ((partition, _),)),) = request._topics
            return SimpleNamespace(topics=[(topic, [(partition, 0, -1, self.starts[partition])])])
        assert request._key == FETCH
        answer = self.fetch(node, request._body)
        return 4, b"\0\0\0\0" + answer

    def fetch(self, node: int, body: bytes) -> bytes:
        reader = WireReader(body)
        reader.raw(25, "before")
        out = bytearray(b"\0\0\0\0" + b"\0\0" + b"\0\0\0\0")
        topics = reader.compact_array("topics")
        put_uvarint(out, topics + 1)
        asked: dict[int, int] = {}
        for _ in range(topics):
            put_compact(out, reader.compact("topic") or b"")
            count = reader.compact_array("partitions")
            put_uvarint(out, count + 1)
            for _ in range(count):
                partition, _ = reader.int32("partition"), reader.int32("epoch")
                asked[partition] = offset = reader.int64("offset")
                reader.raw(16, "rest")
                reader.tags("partition")
                out += self.answer(node, partition, offset)
            reader.tags("topic")
            out += b"\0"
        self.asked.append((node, asked))
        return bytes(out + b"\0")

    def answer(self, node: int, partition: int, offset: int) -> bytes:
        log, code, data = self.logs[partition], 0, b""
        if self.leaders.get(partition) != node or self.moved.get(partition, node) != node:
            code = 6
        elif self.codes[partition]:
            code = self.codes[partition].pop(0)
        elif offset < self.starts[partition]:
            code = 1
        else:
            data = b"".join(found for base, found in sorted(log.items()) if base >= offset)
        end = max(log, default=-1) + 1
        out = bytearray(
            _PART.pack(partition, code, *((-1, -1, -1) if code else (end, end, self.starts[partition])))
            + b"\x01"
            + b"\0\0\0\0"
        )
        put_compact(out, self.tamper(offset, data))
        return bytes(out + b"\0")


@asynccontextmanager
async def feeding(
    brokers: Brokers, positions: dict[int, int], advised: dict[int, int] | None = None
) -> AsyncIterator[SourceFetcher]:
    with ThreadPoolExecutor(1) as executor:
        feed = SourceFetcher(
            cast(Any, brokers.connect),
            executor,
            fetch_records=1_000,
            fetch_bytes=1 << 20,
            queue_bytes=1 << 20,
        )
        await feed.assign(
            {(TOPIC, number): at for number, at in positions.items()},
            {(TOPIC, number): at for number, at in (advised or {}).items()},
        )
        try:
            async with asyncio.timeout(DEADLINE_S):
                yield feed
        finally:
            await feed.close()


async def values(feed: SourceFetcher, count: int) -> list[bytes | None]:
    seen: list[Fetched] = []
    while sum(map(len, seen)) < count:
        seen += await feed.fetch(0, 0.5)
    return [value for each in seen for value in each.records.values]


async def fail(feed: SourceFetcher) -> None:
    while True:
        await feed.fetch(0, 0.2)


def test_a_leader_that_moves_is_followed() -> None:
    async def run() -> None:
        brokers = Brokers(0, 1)
        brokers.logs[0][0] = batch(0)
        async with feeding(brokers, {0: 0, 1: 0}) as feed:
            assert await values(feed, 1) == [b"0"]
            brokers.moved = {0: 2}
            brokers.logs[0][1] = batch(1)
            assert await values(feed, 1) == [b"1"]
            assert brokers.asked[-1][0] in (1, 2)
            assert any(node == 2 and asked == {0: 1} for node, asked in brokers.asked)
            assert not feed.broker_down

    asyncio.run(run())


@pytest.mark.parametrize("code", [3, 5, 6, 9, 74, 75, 76, 100, -1])
def test_what_passes_is_asked_again(code: int) -> None:
    async def run() -> None:
        brokers = Brokers(0)
        brokers.codes[0] = [code, code]
        brokers.logs[0][0] = batch(0)
        async with feeding(brokers, {0: 0}) as feed:
            assert await values(feed, 1) == [b"0"]
            assert brokers.refreshed

    asyncio.run(run())


def test_a_batch_that_comes_corrupt_once_is_fetched_again() -> None:
    async def run() -> None:
        brokers, times = Brokers(0), 0

        def tamper(offset: int, data: bytes) -> bytes:
            nonlocal times
            times += bool(data)
            return data[:-1] + b"?" if data and times < ATTEMPTS else data

        brokers.tamper = tamper
        brokers.logs[0] = {0: batch(0), 1: batch(1)}
        async with feeding(brokers, {0: 0}) as feed:
            assert await values(feed, 2) == [b"0", b"1"]
            assert feed.unreadable == {}

    asyncio.run(run())


@pytest.mark.parametrize("what", ["checksum", "garbage", "old format", "unknown codec"])
def test_a_batch_that_stays_corrupt_stops_its_partition(what: str, caplog: pytest.LogCaptureFixture) -> None:
    data = bytearray(batch(1, 3))
    match what:
        case "checksum":
            data[-1] ^= 1
        case "garbage":
            data[8:12] = b"\xff\xff\xff\xff"
        case "old format":
            data[16] = 1
        case "unknown codec":
            data[22] = 7

    async def run() -> None:
        brokers = Brokers(0, 1)
        brokers.logs[0] = {0: batch(0), 1: bytes(data), 4: batch(4)}
        async with feeding(brokers, {0: 0, 1: 0}) as feed:
            assert await values(feed, 1) == [b"0"]
            while not feed.unreadable:
                assert await feed.fetch(0, 0.2) == []
            found = feed.unreadable[TOPIC, 0]
            assert (found.first, found.last) == ((1, 1) if what == "garbage" else (1, 3)), (
                "where the next begins it ends"
            )
            asked_before = len(brokers.asked)
            while len(brokers.asked) < asked_before + 6:  # it is not asked for again; one may be under way
                await feed.fetch(0, 0.01)
            assert all(0 not in asked for _, asked in brokers.asked[-5:])
            assert len([each for each in caplog.records if each.levelno >= logging.ERROR]) == 1
            brokers.logs[1][0] = batch(0)
            assert await values(feed, 1) == [b"0"]
            feed.skip((TOPIC, 0), 3)
            assert await values(feed, 1) == [b"4"]

    asyncio.run(run())


def test_a_position_that_the_log_lost_is_an_error_and_an_advised_one_moves_to_the_beginning() -> None:
    async def run() -> None:
        brokers = Brokers(0)
        brokers.starts[0] = 7
        brokers.logs[0][7] = batch(7)
        async with feeding(brokers, {}, {0: 3}) as feed:
            assert await values(feed, 1) == [b"7"]
        async with feeding(brokers, {0: 0}) as feed:  # the beginning, wherever it is
            assert await values(feed, 1) == [b"7"]
        async with feeding(brokers, {0: 3}) as feed:
            with pytest.raises(TopicError, match=r"events partition 0: offset 3 is not in the log any more"):
                await fail(feed)

    asyncio.run(run())


@pytest.mark.parametrize("told_by", ["leader", "metadata"])
def test_a_topic_that_may_not_be_read_is_an_error(told_by: str) -> None:
    async def run() -> None:
        brokers = Brokers(0)
        if told_by == "leader":
            brokers.codes[0] = [29]
        else:
            brokers.unauthorized.add(TOPIC)
        async with feeding(brokers, {0: 0}) as feed:
            with pytest.raises(TopicError, match=r"Read"):
                await fail(feed)

    asyncio.run(run())


def test_an_unknown_topic_is_an_error_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.kafka.fetching.fetcher.UNKNOWN_TOPIC_S", 0.5)

    async def run() -> None:
        brokers = Brokers(0)
        async with feeding(brokers, {4: 0}) as feed:
            with pytest.raises(TopicError, match=r"events partition 4: unknown to the brokers"):
                await fail(feed)

    asyncio.run(run())


@pytest.mark.long
def test_brokers_that_are_away_are_reported_once_and_found_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("holdfast.kafka.fetching.fetcher.STALE_CLIENT_S", 0.5)

    async def run() -> None:
        brokers = Brokers(0)
        brokers.logs[0][0] = batch(0)
        async with feeding(brokers, {0: 0}) as feed:
            assert await values(feed, 1) == [b"0"]
            brokers.answering = brokers.connecting = False
            while not feed.broker_down or brokers.clients < 3:
                assert await feed.fetch(0, 0.1) == []
            brokers.logs[0][1] = batch(1)
            brokers.answering = brokers.connecting = True
            assert await values(feed, 1) == [b"1"]
            assert not feed.broker_down

    asyncio.run(run())
    assert (
        len(
            [
                each
                for each in caplog.records
                if each.levelno >= logging.WARNING and "no broker answers" in each.getMessage()
            ]
        )
        == 1
    )


def test_answers_that_are_no_answers_do_not_end_the_fetching() -> None:
    async def run() -> None:
        brokers = Brokers(0)
        brokers.logs[0][0] = batch(0)
        brokers.faults = [TimeoutError(), WireError("cut", offset=0), OSError("reset")]
        async with feeding(brokers, {0: 0}) as feed:
            assert await values(feed, 1) == [b"0"]

    asyncio.run(run())


def test_a_closed_feed_leaves_no_task_running() -> None:
    async def run() -> None:
        brokers = Brokers(0)
        brokers.logs[0][0] = batch(0)
        async with feeding(brokers, {0: 0}) as feed:
            assert await values(feed, 1) == [b"0"]
            assert await feed.fetch(0, 0.05) == []  # both of its tasks wait for something
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


def test_nothing_of_an_older_assignment_comes_out() -> None:
    async def run() -> None:
        brokers = Brokers(0)
        brokers.logs[0] = {number: batch(number) for number in range(10)}
        async with feeding(brokers, {0: 0}) as feed:
            while not feed.ends():  # noqa: ASYNC110  nobody tells an event of it
                await asyncio.sleep(0.01)
            await feed.assign({(TOPIC, 0): 8})
            assert await values(feed, 2) == [b"8", b"9"]
            await feed.assign({})
            assert await feed.fetch(0, 0.1) == []
            assert feed._fetcher._held_bytes == 0

    asyncio.run(run())


def test_a_request_and_an_answer_are_what_the_protocol_says() -> None:
    body = fetch_request(
        [Wanted(("a", 3), 7, 99), Wanted(("a", 4), 8, 99), Wanted(("b", 0), 9, 99)],
        max_wait_ms=5,
        max_bytes=1_000,
    )
    brokers = Brokers(3, 4, 0)
    brokers.logs[4] = {8: batch(8)}
    code, answers = fetched(brokers.fetch(1, body))
    assert (code, brokers.asked) == (0, [(1, {3: 7, 4: 8, 0: 9})])
    assert [(each.place, bytes(each.records)) for each in answers] == [
        (("a", 3), b""),
        (("a", 4), batch(8)),
        (("b", 0), b""),
    ]
    answer = brokers.fetch(1, body)
    for size in range(len(answer)):
        with pytest.raises(WireError):
            fetched(answer[:size])


def test_whole_batches_are_distinguished_from_one_that_is_cut() -> None:
    data = batch(5, 2) + batch(7, 3)
    assert whole_batches(data) == (len(data), 10)
    assert whole_batches(data[:-1]) == (len(batch(5, 2)), 7)
    assert whole_batches(data[:30]) is None
    with pytest.raises(WireError):
        whole_batches(bytes(100))
