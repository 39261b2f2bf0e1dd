"""Limits on one client's cost to the broker: it checks before it works, and lets others have their turn."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import struct
import threading
import time
from collections.abc import Awaitable, Iterator
from random import Random
from typing import Any

import pytest

from holdfast.embedded.apis.call import Call
from holdfast.embedded.apis.handlers import HANDLERS, offered
from holdfast.embedded.apis.patterns import PatternTrouble, name_pattern
from holdfast.embedded.apis.records import producing
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.embedded.protocol.codec import FieldReader, decode, encode, is_flexible
from holdfast.embedded.protocol.codes import KafkaCode
from holdfast.embedded.protocol.table import Message, MessageField, message
from holdfast.embedded.serving import connection
from holdfast.embedded.serving.connection import _OFFERED
from holdfast.embedded.serving.limits import (
    LIMIT_BYTES,
    LIMIT_ELEMENTS,
    SharedRoom,
    SparingLog,
    limit_bytes,
    limit_elements,
)
from holdfast.errors import WireError
from tests.embedded.clients.raw_client import RawClient
from tests.embedded.transcripts.asking import batch
from tests.support.patience import DEADLINE_S

ONE = 1 << 20
FETCH = {
    "max_wait_ms": 3_600_000,
    "min_bytes": 1,
    "max_bytes": ONE,
    "session_epoch": -1,
    "topics": [{"topic": "orders", "partitions": [{"partition": 0, "partition_max_bytes": ONE}]}],
}


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(seed=1, queued_max_bytes=8 * ONE, max_connections=40) as running:
        yield running


def arrays() -> Iterator[tuple[str, int, MessageField]]:
    """Yield each array that a request of the newest version begins with, api by api."""
    for name, versions in _OFFERED.values():
        for field in message(f"{name}Request").fields:
            if field.is_array and versions[-1] in field.versions:
                yield name, versions[-1], field


def begun(told: Message, version: int, field: MessageField, count: int) -> bytes:
    """Return a request up to *field*, which says that *count* elements follow, and a zero for each."""
    given: dict[str, list[object]] = {each.name: [] for each in told.fields if each.is_array}
    whole = bytes(encode(told.name, version, given, bytearray()))
    flexible = is_flexible(told.name, version)
    for at in range(len(whole)):
        said = whole[:at] + (uvarint(count + 1) if flexible else struct.pack(">i", count)) + bytes(count * 40)
        with contextlib.suppress(WireError):
            decode(told.name, version, said, limit_elements=count - 1)
            continue
        try:
            decode(told.name, version, said, limit_elements=count - 1)
        except WireError as error:
            if f"{field.name}: {count} elements" in str(error):
                return said
    raise AssertionError(f"{told.name} has no place for {field.name}")


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


@pytest.mark.parametrize(
    ("api", "version", "field"), [pytest.param(*each, id=f"{each[0]}-{each[2].name}") for each in arrays()]
)
def test_every_array_of_every_api_is_counted_before_it_is_read(
    api: str, version: int, field: MessageField
) -> None:
    told = message(f"{api}Request")
    said = begun(told, version, field, 50)
    with pytest.raises(WireError, match=rf"{field.name}: 50 elements, 1 more than a request may have"):
        decode(told.name, version, said, limit_elements=49)
    assert limit_elements(api) <= 35_000


def test_the_arrays_within_elements_count_together() -> None:
    topics = [{"name": "t", "partitions": [{"partition_index": each} for each in range(10)]}] * 3
    whole = bytes(encode("ListOffsetsRequest", 7, {"topics": topics}, bytearray()))
    assert decode("ListOffsetsRequest", 7, whole, limit_elements=33)["topics"]
    with pytest.raises(WireError, match="partitions: 10 elements, 1 more"):
        decode("ListOffsetsRequest", 7, whole, limit_elements=32)


def test_tagged_fields_and_texts_are_bounded_too() -> None:
    with pytest.raises(WireError, match="1000000 elements"):
        FieldReader(uvarint(ONE) + bytes(2 * ONE), room=ONE - 1).tags("1000000 elements")
    name = b"x" * 40_000
    said = uvarint(2) + uvarint(len(name) + 1) + name + bytes(8)
    with pytest.raises(WireError, match="40000 bytes, at most 32767"):
        decode("DescribeGroupsRequest", 5, said)


def sent(kafka: EmbeddedKafka, api: int, version: int, size: int) -> socket.socket:
    """Return a connection that has begun a frame of *size* bytes."""
    stranger = socket.create_connection(("127.0.0.1", kafka.cluster.nodes[1].port), DEADLINE_S)
    stranger.sendall(struct.pack(">ihhih", size, api, version, 7, -1))
    return stranger


def is_served(kafka: EmbeddedKafka) -> bool:
    with RawClient(kafka.bootstrap) as client:
        return bool(client.ask("ApiVersions", 0)["error_code"] == 0)


def held(kafka: EmbeddedKafka) -> int:
    return int(kafka._on_loop(lambda: kafka._server._others.queued.total))


def test_a_frame_that_no_request_of_its_api_is_so_long_as_is_not_kept(kafka: EmbeddedKafka) -> None:
    """It is dropped as it comes, and its connection ends when all of it has come."""
    for key, name, versions in offered():
        size = limit_bytes(name, kafka.cluster.settings.request_max_bytes) + 1
        if size > 5 * ONE:
            continue
        with sent(kafka, key, versions[-1], size) as stranger:
            assert size == LIMIT_BYTES + 1
            stranger.sendall(bytes(ONE))
            assert held(kafka) < 1_000
            if name == "Metadata":
                stranger.sendall(bytes(size - 10 - ONE))
                assert stranger.recv(1) == b"", "the end, and no reset"
    for api, version in ((0, 1), (3, 99), (999, 0)):
        with sent(kafka, api, version, 3 * ONE) as stranger:
            stranger.sendall(bytes(ONE))
            assert held(kafka) < 1_000
    assert is_served(kafka)


def test_incomplete_requests_count_over_all_connections(kafka: EmbeddedKafka) -> None:
    strangers = [sent(kafka, 0, 9, 50 * ONE) for _ in range(6)]
    try:
        for number, stranger in enumerate(strangers):
            with contextlib.suppress(OSError):
                stranger.sendall(bytes((number + 1) * ONE))
        until_s = time.monotonic() + DEADLINE_S
        while held(kafka) > 8 * ONE:
            assert time.monotonic() < until_s
        assert len(kafka._server._connections[1]) < 6, "who held most was let go"
        assert is_served(kafka)
    finally:
        for stranger in strangers:
            stranger.close()


def test_the_largest_holder_is_let_go() -> None:
    gone: list[str] = []
    room = SharedRoom[str](100, gone.append)
    room.hold("a", 60)
    room.hold("b", 40)
    room.hold("a", 30)
    assert (room.total, gone) == (70, [])
    room.hold("c", 35)
    assert (room.total, gone) == (65, ["b"])
    room.hold("b", 0)
    room.hold("a", 0)
    assert room.total == 35


def test_more_connections_than_may_be_are_refused(kafka: EmbeddedKafka) -> None:
    with contextlib.ExitStack() as strangers, RawClient(kafka.bootstrap) as client:
        client.ask("ApiVersions", 0)
        address = ("127.0.0.1", kafka.cluster.nodes[1].port)
        for _ in range(60):
            stranger = strangers.enter_context(socket.create_connection(address, DEADLINE_S))
        with contextlib.suppress(ConnectionError):
            assert stranger.recv(1) == b""
        assert client.ask("ApiVersions", 0)["error_code"] == 0
        assert len(kafka._server._connections[1]) == 40


def test_a_connection_on_which_nothing_comes_is_closed(kafka: EmbeddedKafka) -> None:
    """But not one that waits for an answer."""
    fetch = {"max_wait_ms": 600_000, "min_bytes": 1, "max_bytes": ONE, "session_epoch": -1}
    topic = kafka.create_topic("orders")
    wanted = [{"topic": topic, "partitions": [{"partition": 0, "partition_max_bytes": ONE}]}]
    with RawClient(kafka.bootstrap) as idle, RawClient(kafka.bootstrap) as waiting:
        idle.ask("ApiVersions", 0)
        waiting.ask("ApiVersions", 0)
        waiting.send("Fetch", 12, topics=wanted, **fetch)
        waits = kafka.cluster.topics.partition(topic, 0)
        assert waits is not None
        until_s = time.monotonic() + DEADLINE_S
        while not waits.log._waiting:
            assert time.monotonic() < until_s
        for each in tuple(kafka._server._connections[1]):
            each._heard_s = -1e9
        kafka._on_loop(kafka._server._end_idle)
        with contextlib.suppress(ConnectionError):
            assert idle.settle(DEADLINE_S) == b""
        assert len(kafka._server._connections[1]) == 1


def test_a_client_that_asks_for_much_at_once_leaves_others_their_turn(
    kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once its turn is over, others have theirs; its next turn needs no further request."""
    monkeypatch.setattr(connection, "TURN_S", -1)
    frame = struct.pack(">ihhih", 10, 18, 0, 7, -1)
    with RawClient(kafka.bootstrap) as greedy:
        greedy.ask("ApiVersions", 0)
        (one,) = kafka._server._connections[1]

        def ask_for_much() -> int:
            one.data_received(frame * 40)
            return len(one._frames)

        assert kafka._on_loop(ask_for_much) == 39
        for _ in range(40):
            assert greedy.receive("ApiVersions", 0)["error_code"] == 0


def test_a_name_that_is_requested_twice_is_answered_once(kafka: EmbeddedKafka) -> None:
    with RawClient(kafka.bootstrap) as client:
        assert len(client.ask("DescribeGroups", 5, groups=["a"] * 1_000 + ["b"])["groups"]) == 2
        topics = [{"name": "a"}] * 1_000 + [{"name": ""}] * 1_000
        assert len(client.ask("Metadata", 12, topics=topics)["topics"]) == 2
        resource = {"resource_type": 2, "resource_name": "a", "configuration_keys": None}
        assert len(client.ask("DescribeConfigs", 4, resources=[resource] * 1_000)["results"]) == 1


def test_a_write_to_one_partition_wakes_a_fetch_for_that_one(
    kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.embedded.apis.records import fetching

    topic, looked = kafka.create_topic("orders", partitions=200), list[object]()
    read = fetching._read

    def counted(call: object, key: object, *rest: object, **more: object) -> object:
        looked.append(key)
        return read(call, key, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(fetching, "_read", counted)
    wanted = [{"partition": each, "partition_max_bytes": ONE} for each in range(200)]
    with RawClient(kafka.bootstrap) as reader:
        told = {"max_wait_ms": 600_000, "min_bytes": 300, "max_bytes": ONE, "session_epoch": -1}
        reader.send("Fetch", 12, topics=[{"topic": topic, "partitions": wanted}], **told)
        partition = kafka.cluster.topics.partition(topic, 0)
        assert partition is not None
        until_s = time.monotonic() + DEADLINE_S
        while not partition.log._waiting:
            assert time.monotonic() < until_s
        producer_config = kafka.client_config()
        from confluent_kafka import Producer

        producer = Producer(producer_config)
        for _ in range(3):
            producer.produce(topic, b"x" * 60, partition=0)
            assert producer.flush(DEADLINE_S) == 0
        (answer,) = reader.receive("Fetch", 12)["responses"]
    assert answer["partitions"]
    assert 3 * 200 <= len(looked) < 3 * 200 + 20, "at first, before it waits, and for the answer"


def test_a_group_takes_no_more_members_than_it_may() -> None:
    with EmbeddedKafka(group_max_size=2) as kafka, RawClient(kafka.bootstrap) as client:
        joins = {"rebalance_timeout_ms": 60_000, "topic_partitions": [], "subscribed_topic_names": ["orders"]}
        codes = [
            client.ask(
                "ConsumerGroupHeartbeat", 1, group_id="readers", member_id=each, member_epoch=0, **joins
            )["error_code"]
            for each in ("a", "b", "c", "a")
        ]
    assert codes == [0, 0, 81, 0]


def test_strangers_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    log = SparingLog(logging.getLogger(__name__))
    for number in range(1_000):
        log.warning("a frame of %(size)d bytes", size=number)
        log.warning("another")
    assert [each.getMessage() for each in caplog.records] == ["a frame of 0 bytes", "another"]


def test_topics_are_kept_once_for_a_whole_request(
    kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a request of many topics would be written as often as it has topics."""
    kept = []
    monkeypatch.setattr(kafka.cluster.storage, "keep_topics", lambda topics: kept.append(len(list(topics))))
    names = [f"t{number}" for number in range(30)]
    with RawClient(kafka.bootstrap) as client:
        wanted = [{"name": each, "num_partitions": 1, "replication_factor": 1} for each in names]
        wanted.append({"name": "a.b", "num_partitions": 1, "replication_factor": 1})
        wanted.append({"name": "a_b", "num_partitions": 1, "replication_factor": 1})
        made = client.ask("CreateTopics", 7, topics=wanted, timeout_ms=1)["topics"]
        assert [each["error_code"] for each in made] == [0] * 31 + [KafkaCode.INVALID_TOPIC_EXCEPTION]
        told = [{"name": "retention.ms", "config_operation": 0, "value": "1000"}]
        resources = [{"resource_type": 2, "resource_name": each, "configs": told} for each in names]
        client.ask("IncrementalAlterConfigs", 1, resources=resources)
        client.ask("DeleteTopics", 5, topic_names=names, timeout_ms=1)
    assert kept == [31, 31, 1]
    assert LIMIT_ELEMENTS > 10_000, "as many partitions as Kafka's controller takes at once"


def test_a_write_before_a_fetch_begins_to_wait_ends_its_wait() -> None:
    """Others have their turn between its first look and its wait."""

    async def fetched() -> object:
        async with EmbeddedKafka() as kafka:
            kafka.create_topic("orders")
            told = {"acks": -1, "timeout_ms": 1, "transactional_id": None}
            data = memoryview(batch(b"v"))
            written = [{"name": "orders", "partition_data": [{"index": 0, "records": data}]}]
            produced = Call(kafka.cluster, 1, 9, {**told, "topic_data": written})
            fields = decode("FetchRequest", 12, bytes(encode("FetchRequest", 12, FETCH, bytearray())))
            waiting = HANDLERS["Fetch"](Call(kafka.cluster, 1, 12, fields))
            HANDLERS["Produce"](produced)
            assert isinstance(waiting, Awaitable)
            return await asyncio.wait_for(waiting, DEADLINE_S)

    answer = asyncio.run(fetched())
    assert isinstance(answer, dict)
    assert answer["responses"][0]["partitions"][0]["high_watermark"] == 1


def test_a_batch_with_many_records_is_checked_outside_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """And still in its order, by the same rules."""
    looked = list[str]()
    packed = producing._packed

    def noted(*given: Any) -> Any:
        looked.append(threading.current_thread().name)
        return packed(*given)

    monkeypatch.setattr(producing, "_packed", noted)
    with EmbeddedKafka() as kafka, RawClient(kafka.bootstrap) as client:
        kafka.create_topic("compacted", config={"cleanup.policy": "compact"})
        kafka.create_topic("plain")

        def codes(topic: str, *batches: bytes) -> list[int]:
            for data in batches:
                partition = {"index": 0, "records": data}
                written = [{"name": topic, "partition_data": [partition]}]
                client.send("Produce", 9, acks=-1, timeout_ms=1, topic_data=written)
            answers = [client.receive("Produce", 9)["responses"] for _ in batches]
            return [each[0]["partition_responses"][0]["error_code"] for each in answers]

        many = batch(*[b"v"] * 600)
        assert codes("compacted", many, batch(b"v"), batch(*[b"v"] * 600, key=None)) == [0, 0, 87]
        assert codes("plain", many) == [0]
    beside = [each.startswith("embedded-kafka-records") for each in looked]
    assert beside == [True, False, True, False]


def test_a_transaction_over_many_partitions_is_logged_once(kafka: EmbeddedKafka) -> None:
    topic, home = kafka.create_topic("orders", partitions=50), "__transaction_state"
    with RawClient(kafka.bootstrap) as client:
        told = {"transactional_id": "pay", "transaction_timeout_ms": 60_000}
        new = client.ask("InitProducerId", 4, **told)
        producer = {"producer_id": new["producer_id"], "producer_epoch": new["producer_epoch"]}
        data = batch(b"v", **producer, base_sequence=0, attributes=1 << 4)
        partitions = [{"index": each, "records": data} for each in range(50)]
        written = [{"name": topic, "partition_data": partitions}]
        before = ends(kafka, home)
        answer = client.ask("Produce", 12, acks=-1, timeout_ms=1, transactional_id="pay", topic_data=written)
        (found,) = answer["responses"]
        assert {each["error_code"] for each in found["partition_responses"]} == {0}
        assert ends(kafka, home) == before + 1


def ends(kafka: EmbeddedKafka, topic: str) -> int:
    found = kafka.cluster.topics.get(topic)
    assert found is not None
    return sum(each.log.end_offset for each in found.partitions)


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|aa)*c", "((a*)*)*d", "a{1,200}b"])
def test_a_pattern_costs_no_more_than_the_name_is_long(pattern: str) -> None:
    found = name_pattern(pattern)
    assert not isinstance(found, PatternTrouble)
    assert not found.matches("a" * 249)


@pytest.mark.parametrize(
    "pattern", ["(", "(a{1000}){1000}", "((){1000}){1000}", "(?=a)a", r"(a)\1", "a" * 5_000]
)
def test_a_pattern_that_is_none_or_too_large_is_refused(pattern: str) -> None:
    assert isinstance(name_pattern(pattern), PatternTrouble)


def test_a_pattern_has_the_meaning_of_pythons_own_engine() -> None:
    chance = Random(1)

    def made(depth: int = 0) -> str:
        kind = chance.random()
        if depth > 4 or kind < 0.4:
            return chance.choice(["a", "b", ".", "[ab]", "[^a]", r"\d", r"\w", "c", ""])
        if kind < 0.6:
            return made(depth + 1) + made(depth + 1)
        if kind < 0.75:
            return f"({made(depth + 1)}|{made(depth + 1)})"
        if kind < 0.9:
            return f"({made(depth + 1)}){chance.choice(['*', '+', '?', '{2}', '{1,3}', '*?', '{2,}'])}"
        return chance.choice("^$") + made(depth + 1)

    for _ in range(400):
        pattern, name = made(), "".join(chance.choice("abc1-") for _ in range(chance.randrange(7)))
        found = name_pattern(pattern)
        assert not isinstance(found, PatternTrouble)
        assert found.matches(name) is bool(re.fullmatch(pattern, name, re.ASCII)), (pattern, name)
