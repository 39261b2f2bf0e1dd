"""The transactional writer on a real broker: the changelog afterwards, its order, and the refused writes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from holdfast.config import Settings
from holdfast.core.engine.declared.partitioners import by_key
from holdfast.core.engine.declared.processor import Emit
from holdfast.core.engine.fold.folding import Changes
from holdfast.core.engine.positions import Position, encode_position
from holdfast.core.engine.state.codec import APPLIED
from holdfast.core.kafka import transaction_requests
from holdfast.core.kafka.sequences import MAX_EPOCH
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from holdfast.errors import BrokerError, FencedError
from holdfast.kafka.requests.connections import connector
from holdfast.kafka.transactions import transactional_client
from holdfast.kafka.transactions.transactional_client import (
    BATCH_RECORDS,
    ROUND_BYTES,
    TransactionalClient,
    producers,
)
from holdfast.kafka.transactions.transactional_producer import UndeliverableError
from holdfast.tables.changelog import ChangelogPart, ChangelogWriter
from tests.support.patience import DEADLINE_S, VAIN_S


@pytest.fixture
def topic(fresh_topic: FreshTopic) -> str:
    return fresh_topic("log", partitions=2)


@pytest.fixture(params=["new protocol", "old protocol"])
def protocol(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Have the broker speak both versions of transactions: what it says of its features is read as before
    Kafka 4.
    """
    if request.param == "old protocol":
        monkeypatch.setattr(transaction_requests, "transaction_version", lambda answer: 1)
    return str(request.param)


@asynccontextmanager
async def owning(broker: SessionBroker, topic: str, compression: int = 0) -> AsyncIterator[ChangelogWriter]:
    """Give the writer of a new owner of partition 1, which ends what the one before has left open."""
    connect = connector(Settings(app="writer", kafka=broker.client_config()), timeout_s=DEADLINE_S)
    writer = ChangelogWriter(
        producers(connect, transaction_timeout_s=60, compression=compression)(topic),
        changelog=topic,
        partition=1,
    )
    try:
        await writer.fence(DEADLINE_S)
        yield writer
    finally:
        await writer.close()


def own_producer(writer: ChangelogWriter) -> TransactionalClient:
    assert isinstance(writer._producer, TransactionalClient)
    return writer._producer


def owned(
    broker: SessionBroker, topic: str, use: Callable[[ChangelogWriter], Awaitable[None]], compression: int = 0
) -> None:
    async def run() -> None:
        async with owning(broker, topic, compression) as writer:
            await use(writer)

    asyncio.run(run())


def changes(puts: list[tuple[bytes, bytes | None]], applied: int, emits: list[Emit] | None = None) -> Changes:
    return Changes(marker=Position((applied,), 1_000, 1), records=len(puts), puts=puts, emits=emits or [])


def committed(broker: SessionBroker, topic: str, partition: int = 1) -> list[Message]:
    """Return the records that a reader of committed records finds in a partition."""
    config = {"group.id": "reader", "enable.partition.eof": True, "isolation.level": "read_committed"}
    consumer = Consumer(broker.client_config(**config))
    consumer.assign([TopicPartition(topic, partition, 0)])
    found: list[Message] = []
    until_s = time.monotonic() + DEADLINE_S
    while True:
        message = consumer.poll(DEADLINE_S)
        assert message is not None, "the end was not reached"
        if (error := message.error()) is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            # Markers come after the answer to a commit; until then an open transaction's beginning is
            # reported as the end.
            _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), cached=True)
            assert time.monotonic() < until_s, f"a transaction stays open at {message.offset()}"
            if message.offset() == end:
                consumer.close()
                return found
            continue
        found.append(message)


@pytest.mark.parametrize("compression", [0, 3])
def test_rows_arrive_whole_in_order_and_the_marker_last(
    broker: SessionBroker, topic: str, protocol: str, compression: int
) -> None:
    """More rows than are in a batch, with removed and empty ones among them; then a transaction of a
    marker alone.
    """
    puts: list[tuple[bytes, bytes | None]] = [
        (b"\x02%d" % number, b"v%d" % number) for number in range(2 * BATCH_RECORDS + 7)
    ]
    puts[3], puts[BATCH_RECORDS] = (b"\x02gone", None), (b"\x02empty", b"")
    first = changes(puts, applied=99)
    nexts: list[int] = []

    async def use(writer: ChangelogWriter) -> None:
        nexts.append(await writer.write(first, (), DEADLINE_S))
        nexts.append(await writer.write(changes([], applied=100), (), DEADLINE_S))

    owned(broker, topic, use, compression)
    found = committed(broker, topic)
    assert [(message.key(), message.value()) for message in found[:-1]] == [
        *puts,
        (APPLIED, encode_position(first.marker)),
    ]
    assert found[-1].key() == APPLIED
    assert nexts == [(message.offset() or 0) + 1 for message in found[-2:]]


def test_rows_of_more_than_one_round_arrive_in_order(
    broker: SessionBroker, topic: str, protocol: str
) -> None:
    rows: list[tuple[bytes, bytes | None]] = [
        (b"\x02%d" % number, b"x" * 100_000) for number in range(ROUND_BYTES * 2 // 100_000)
    ]
    owned(broker, topic, lambda writer: write(writer, changes(rows, 1)))
    assert [message.key() for message in committed(broker, topic)] == [*(key for key, _ in rows), APPLIED]


async def write(writer: ChangelogWriter, what: Changes) -> None:
    await writer.write(what, (), DEADLINE_S)


@pytest.mark.long
def test_emits_go_where_they_say_or_where_their_key_does(
    broker: SessionBroker, topic: str, fresh_topic: FreshTopic, protocol: str
) -> None:
    elsewhere = fresh_topic("out", partitions=3)
    emits = [
        Emit(elsewhere, "ключ", b"1", (("name", b"of"), ("none", None), ("name", b"twice"))),
        Emit(elsewhere, b"\x00\xff", b"2", partition=2),
        Emit(elsewhere, "ключ", None),
        Emit(elsewhere, None, b"3"),
    ]
    owned(broker, topic, lambda writer: write(writer, changes([(b"\x02a", b"1")], 1, emits)))
    found = {number: committed(broker, elsewhere, number) for number in range(3)}
    mine = by_key("ключ", 3)
    by = [(m.key(), m.value(), m.headers()) for m in found[mine] if m.key() == "ключ".encode()]
    assert by == [
        ("ключ".encode(), b"1", [("name", b"of"), ("none", None), ("name", b"twice")]),
        ("ключ".encode(), None, None),
    ]
    assert [(m.key(), m.value()) for m in found[2] if m.key() == b"\x00\xff"] == [(b"\x00\xff", b"2")]
    assert [m.value() for each in found.values() for m in each if m.key() is None] == [b"3"]


@pytest.mark.long
@pytest.mark.parametrize("partition", [None, 7])
def test_an_emit_to_a_topic_or_partition_that_does_not_exist_takes_the_transaction_back(
    broker: SessionBroker, topic: str, protocol: str, monkeypatch: pytest.MonkeyPatch, partition: int | None
) -> None:
    monkeypatch.setattr(transactional_client, "UNKNOWN_TOPIC_S", 1.0)
    missing = topic if partition else f"{topic}-missing"

    async def use(writer: ChangelogWriter) -> None:
        with pytest.raises(
            UndeliverableError, match=f"topic {missing} refused a record: UNKNOWN_TOPIC_OR_PART"
        ):
            await write(
                writer, changes([(b"\x02a", b"1")], 1, [Emit(missing, "k", b"v", partition=partition)])
            )
        await write(writer, changes([(b"\x02b", b"2")], 2))

    owned(broker, topic, use)
    assert [message.key() for message in committed(broker, topic)] == [b"\x02b", APPLIED], (
        "the next transaction is as any other"
    )


def test_a_row_that_is_too_large_fails_the_transaction_by_name(
    broker: SessionBroker, topic: str, protocol: str
) -> None:
    puts: list[tuple[bytes, bytes | None]] = [
        (b"\x02a", b"1"),
        (b"\x02b", b"x" * (9 << 20)),
        (b"\x02c", b"3"),
    ]

    async def use(writer: ChangelogWriter) -> None:
        with pytest.raises(UndeliverableError, match="MSG_SIZE_TOO_LARGE"):
            await write(writer, changes(puts, 1))
        await write(writer, changes([(b"\x02a", b"4")], 2))

    owned(broker, topic, use)
    assert [message.value() for message in committed(broker, topic)][:1] == [b"4"]


def test_an_older_owner_is_refused_from_the_fence_on(
    broker: SessionBroker, topic: str, protocol: str
) -> None:
    async def run() -> None:
        async with owning(broker, topic) as old:
            await write(old, changes([(b"\x02a", b"old")], 1))
            await old._append(ChangelogPart([(b"\x02a", b"half")], []))
            async with owning(broker, topic) as new:
                with pytest.raises(FencedError, match="there is a newer one"):
                    await own_producer(old).end(commit=True)
                with pytest.raises(FencedError):
                    await write(old, changes([(b"\x02a", b"zombie")], 3))
                await write(new, changes([(b"\x02a", b"new")], 2))

    asyncio.run(run())
    assert [message.value() for message in committed(broker, topic) if message.key() != APPLIED] == [
        b"old",
        b"new",
    ]


@pytest.mark.long
def test_many_small_transactions_follow_each_other_closely(
    broker: SessionBroker, topic: str, protocol: str
) -> None:
    """Each begins before the broker has written the markers of the one before."""

    async def use(writer: ChangelogWriter) -> None:
        for applied in range(200):
            await write(writer, changes([(b"\x02a", b"%d" % applied)], applied))

    owned(broker, topic, use)
    found = [message.value() for message in committed(broker, topic) if message.key() != APPLIED]
    assert found == [b"%d" % number for number in range(200)]


def test_the_end_of_a_transaction_to_which_nothing_was_written_is_no_error(
    broker: SessionBroker, topic: str, protocol: str
) -> None:
    """A batch may be refused before its partition has joined."""

    async def use(writer: ChangelogWriter) -> None:
        for applied in range(2):
            own_producer(writer)._begun = True
            await own_producer(writer).end(commit=False)
            await write(writer, changes([(b"\x02a", b"%d" % applied)], applied))

    owned(broker, topic, use)
    assert [message.value() for message in committed(broker, topic) if message.key() != APPLIED] == [
        b"0",
        b"1",
    ]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_more_transactions_than_there_are_epochs(broker: SessionBroker, topic: str) -> None:
    """The second version of the protocol raises the epoch each time; when they are used up the coordinator
    gives another producer id.
    """
    transactions_made, identities = MAX_EPOCH + 200, set()

    async def use(writer: ChangelogWriter) -> None:
        for applied in range(transactions_made):
            await write(writer, changes([(b"\x02a", b"%d" % applied)], applied))
            identities.add(own_producer(writer)._me.producer_id)

    owned(broker, topic, use)
    assert len(identities) == 2
    found = [message.value() for message in committed(broker, topic) if message.key() != APPLIED]
    assert found == [b"%d" % number for number in range(transactions_made)]


@pytest.mark.long
def test_a_missing_broker_is_an_error_at_the_deadline() -> None:
    async def run() -> None:
        connect = connector(Settings(app="writer", kafka={"bootstrap.servers": "127.0.0.1:1"}), timeout_s=1)
        for within_s in (1, *VAIN_S):
            writer = ChangelogWriter(
                producers(connect, transaction_timeout_s=10)("t"), changelog="c", partition=0
            )
            with pytest.raises(
                BrokerError, match=rf"cannot fence t: not settled within {within_s} s: "
            ) as told:
                await writer.fence(within_s)
            await writer.close()
            if " s: None; " not in str(told.value):  # a frozen one has not been asked yet
                break
        assert "Unable to bootstrap" in str(told.value)

    asyncio.run(run())
