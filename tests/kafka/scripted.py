"""A client and its brokers, whose answers are scripted: the requests and the protocol are real."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from struct import Struct
from types import SimpleNamespace

from aiokafka.errors import KafkaConnectionError

from holdfast.core.kafka import transaction_requests as wire
from holdfast.core.kafka.record_batch import RecordBatch, decode_batch
from holdfast.core.kafka.topic_partition import Place
from holdfast.core.kafka.wire import WireReader, put_compact, put_uvarint
from holdfast.kafka.requests.raw_request import RawRequest

LOG: Place = ("log", 0)
OUT: Place = ("out", 1)
NOT_LEADER, SEQUENCE, TOO_LARGE, CONCURRENT, LOADING, MOVED, FENCED = 6, 45, 10, 51, 14, 16, 90
_IDENTITY, _CODE = Struct(">qh"), Struct(">ih")
FEATURES = {
    1: b"\x02\x14transaction.version\x00\x01\x00\x01\x00",
    2: b"\x02\x14transaction.version\x00\x02\x00\x02\x00",
}

SECOND = {wire.PRODUCE: 12, wire.END_TRANSACTION: 5}

Fault = int | Exception


class Brokers:
    """A client of aiokafka's and its brokers.

    Faults of an API are met in turn, each by one request.
    """

    def __init__(self, protocol: int) -> None:
        self.protocol, self.me, self.coordinator = protocol, (7, 0), 1
        self.cluster = SimpleNamespace(
            partitions_for_topic=lambda topic: (
                {place[1] for place in self.leaders if place[0] == topic} or None
            ),
            leader_for_partition=lambda tp: self.leaders.get((tp.topic, tp.partition)),
            unauthorized_topics=set(),
        )
        self.leaders: dict[Place, int] = {LOG: 1, ("out", 0): 1, OUT: 2}
        self.moved: dict[Place, int] = {}
        self.faults: dict[int, list[Fault]] = defaultdict(list)
        self.asked: list[tuple[int, int]] = []
        self.appended: list[tuple[Place, RecordBatch]] = []
        self.sent: list[bytes] = []
        self.ends: list[bool] = []
        self.refreshed = 0
        self.dead: set[int] = set()
        self.closed = False

    # what the writer asks of its client

    async def bootstrap(self) -> None: ...

    async def close(self) -> None:
        self.closed = True

    async def add_topic(self, topic: str) -> bool:
        return True

    async def force_metadata_update(self) -> bool:
        self.refreshed += 1
        self.leaders |= self.moved
        return True

    async def coordinator_lookup(self, kind: int, name: str) -> int:
        assert (kind, name) == (1, "me")
        return self.coordinator

    async def send(self, node: int, request: RawRequest) -> bytes:
        await asyncio.sleep(0)
        prepared = request.prepare({key: (0, 99) for key in (0, 18, 22, 24, 26)})
        key, body = prepared._key, prepared.encode()
        if key in SECOND:
            assert (prepared.version >= SECOND[key]) == (self.protocol == 2), (
                "the version tells the broker which protocol is spoken"
            )
        self.asked.append((key, node))
        fault = self.faults[key].pop(0) if self.faults[key] else 0
        if key != wire.PRODUCE:
            if isinstance(fault, Exception):
                self.dead.add(node)
            if node in self.dead:
                self.coordinator, fault = 2, KafkaConnectionError("gone")
            elif fault == MOVED:
                self.coordinator = 2
            elif node != self.coordinator and key != wire.API_VERSIONS:
                fault = MOVED
        if isinstance(fault, Exception):
            raise fault
        return {
            wire.API_VERSIONS: self.features,
            wire.INIT_PRODUCER_ID: self.initialize,
            wire.ADD_PARTITIONS: self.add,
            wire.PRODUCE: self.produce,
            wire.END_TRANSACTION: self.end,
        }[key](body, fault)

    def features(self, body: bytes, code: int) -> bytes:
        out = bytearray(b"\x00\x00\x01" + b"\x00\x00\x00\x00" + b"\x01\x02")
        put_uvarint(out, len(FEATURES[self.protocol]))
        return bytes(out + FEATURES[self.protocol])

    def initialize(self, body: bytes, code: int) -> bytes:
        if not code:
            self.me = (self.me[0], self.me[1] + 1)
        return _CODE.pack(0, code) + _IDENTITY.pack(*self.me) + b"\x00"

    def add(self, body: bytes, code: int) -> bytes:
        reader = WireReader(body)
        reader.compact("id")
        assert (reader.int64("producer"), reader.int16("epoch")) == self.me
        out = bytearray(b"\x00\x00\x00\x00")
        topics = reader.compact_array("topics")
        put_uvarint(out, topics + 1)
        for _ in range(topics):
            put_compact(out, reader.compact("topic") or b"")
            partitions = reader.compact_array("partitions")
            put_uvarint(out, partitions + 1)
            for _ in range(partitions):
                out += _CODE.pack(reader.int32("partition"), code) + b"\x00"
            reader.tags("topic")
            out += b"\x00"
        return bytes(out + b"\x00")

    def produce(self, body: bytes, code: int) -> bytes:
        self.sent.append(body)
        reader = WireReader(body)
        reader.compact("id")
        assert reader.int16("acks") == -1
        reader.int32("timeout")
        out = bytearray()
        topics = reader.compact_array("topics")
        put_uvarint(out, topics + 1)
        for _ in range(topics):
            topic = reader.compact("topic") or b""
            put_compact(out, topic)
            partitions = reader.compact_array("partitions")
            put_uvarint(out, partitions + 1)
            for _ in range(partitions):
                place = (topic.decode(), reader.int32("partition"))
                batch = decode_batch(reader.compact("batch") or b"")
                reader.tags("partition")
                if not code:
                    assert (batch.producer_id, batch.producer_epoch) == self.me
                    self.appended.append((place, batch))
                offset = 100 * len(self.appended)
                out += _CODE.pack(place[1], code) + Struct(">qqq").pack(offset, -1, 0) + b"\x01\x00\x00"
            reader.tags("topic")
            out += b"\x00"
        return bytes(out + b"\x00\x00\x00\x00\x00")

    def end(self, body: bytes, code: int) -> bytes:
        if not code:
            reader = WireReader(body)
            reader.compact("id")
            reader.raw(10, "who")
            self.ends.append(bool(reader.int8("commit")))
            if self.protocol == 2:
                self.me = (self.me[0], self.me[1] + 1)
        return _CODE.pack(0, code) + (_IDENTITY.pack(*self.me) if self.protocol == 2 else b"") + b"\x00"

    def count(self, key: int) -> int:
        return sum(asked == key for asked, _ in self.asked)
