"""Requests of a transactional producer to its coordinator and to leaders, as bodies: KIP-98, and KIP-890
where brokers know it.

All in flexible versions (KIP-482), without their headers. With `transaction.version` 2 a batch joins its
transaction by being produced, and every end of a transaction raises the epoch: late requests of an older one
is refused, where before it could leak into the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import NamedTuple

from holdfast.core.kafka.topic_partition import Place
from holdfast.core.kafka.wire import WireReader, put_compact, put_uvarint

PRODUCE, API_VERSIONS, INIT_PRODUCER_ID, ADD_PARTITIONS, END_TRANSACTION = 0, 18, 22, 24, 26
PRODUCE_VERSIONS, PRODUCE_VERSIONS_2 = range(9, 12), range(12, 13)
API_VERSIONS_VERSIONS = range(3, 4)
INIT_PRODUCER_ID_VERSIONS = range(3, 6)
ADD_PARTITIONS_VERSIONS = range(3, 4)
END_VERSIONS, END_VERSIONS_2 = range(3, 5), range(5, 6)
NO_TAGS = b"\x00"
ALL_IN_SYNC = -1
_FINALIZED_FEATURES = 2
_TRANSACTION_VERSION = "transaction.version"

_PRODUCER = Struct(">qh")
_INIT = Struct(">iqh")
_ACKS = Struct(">hi")
_INT32 = Struct(">i")


class Identity(NamedTuple):
    """A producer's identity to the brokers."""

    producer_id: int
    epoch: int


NOBODY = Identity(-1, -1)


class Appended(NamedTuple):
    """A leader's answer for one batch: an error code (0 for success) and the offset of its first record."""

    place: Place
    code: int
    offset: int


def api_versions() -> bytes:
    """Return the body of an ApiVersions request; the answer includes the cluster's features."""
    out = bytearray()
    put_compact(out, b"holdfast")
    put_compact(out, b"1")
    return bytes(out + NO_TAGS)


def transaction_version(answer: bytes) -> int:
    """Return the version of the transaction protocol in an answer to `api_versions`, 0 if there is none."""
    reader = WireReader(answer)
    reader.int16("error code")
    for _ in range(reader.compact_array("versions")):
        reader.raw(6, "versions")
        reader.tags("versions")
    reader.int32("throttle time")
    features = WireReader(reader.tags("features").get(_FINALIZED_FEATURES, b"\x01"))
    for _ in range(features.compact_array("features")):
        name = features.compact("feature")
        highest, _ = features.int16("feature"), features.int16("feature")
        features.tags("feature")
        if name == _TRANSACTION_VERSION.encode():
            return highest
    return 0


def init_producer_id(transactional_id: str, timeout_ms: int, known: Identity = NOBODY) -> bytes:
    """Return the body of an InitProducerId request: as a new owner, who fences all others, or with *known*
    to raise the own epoch.
    """
    out = bytearray()
    put_compact(out, transactional_id.encode())
    out += _INIT.pack(timeout_ms, *known)
    return bytes(out + NO_TAGS)


def initialized(answer: bytes) -> tuple[int, Identity]:
    """Return the error code and the identity in an answer to `init_producer_id`."""
    reader = WireReader(answer)
    reader.int32("throttle time")
    return reader.int16("error code"), _identity(reader)


def add_partitions(transactional_id: str, me: Identity, places: Iterable[Place]) -> bytes:
    """Return the body of an AddPartitionsToTxn request, which `transaction.version` 2 does without."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in places:
        by_topic.setdefault(topic, []).append(partition)
    out = bytearray()
    put_compact(out, transactional_id.encode())
    out += _PRODUCER.pack(*me)
    put_uvarint(out, len(by_topic) + 1)
    for topic, partitions in by_topic.items():
        put_compact(out, topic.encode())
        put_uvarint(out, len(partitions) + 1)
        for partition in partitions:
            out += _INT32.pack(partition)
        out += NO_TAGS
    return bytes(out + NO_TAGS)


def added(answer: bytes) -> list[tuple[Place, int]]:
    """Return the error code of each topic partition in an answer to `add_partitions`."""
    reader = WireReader(answer)
    reader.int32("throttle time")
    out: list[tuple[Place, int]] = []
    for _ in range(reader.compact_array("topics")):
        topic = reader.compact_text("topic")
        for _ in range(reader.compact_array("partitions")):
            out.append(((topic, reader.int32("partition")), reader.int16("error code")))
            reader.tags("partition")
        reader.tags("topic")
    return out


def produce(transactional_id: str, timeout_ms: int, batches: Mapping[Place, bytes]) -> bytes:
    """Return the body of a Produce request with one record batch for each topic partition, acknowledged by
    all replicas in sync.
    """
    by_topic: dict[str, list[tuple[int, bytes]]] = {}
    for (topic, partition), batch in batches.items():
        by_topic.setdefault(topic, []).append((partition, batch))
    out = bytearray()
    put_compact(out, transactional_id.encode())
    out += _ACKS.pack(ALL_IN_SYNC, timeout_ms)
    put_uvarint(out, len(by_topic) + 1)
    for topic, parts in by_topic.items():
        put_compact(out, topic.encode())
        put_uvarint(out, len(parts) + 1)
        for partition, batch in parts:
            out += _INT32.pack(partition)
            put_compact(out, batch)
            out += NO_TAGS
        out += NO_TAGS
    return bytes(out + NO_TAGS)


def produced(answer: bytes) -> list[Appended]:
    """Return the outcome of each batch in an answer to `produce`."""
    reader = WireReader(answer)
    out: list[Appended] = []
    for _ in range(reader.compact_array("topics")):
        topic = reader.compact_text("topic")
        for _ in range(reader.compact_array("partitions")):
            place = (topic, reader.int32("partition"))
            out.append(Appended(place, reader.int16("error code"), reader.int64("offset")))
            reader.raw(16, "append time and log start")
            for _ in range(reader.compact_array("record errors")):
                reader.int32("record")
                reader.compact("message")
                reader.tags("record error")
            reader.compact("message")
            reader.tags("partition")
        reader.tags("topic")
    return out


def end_transaction(transactional_id: str, me: Identity, *, commit: bool) -> bytes:
    """Return the body of an EndTxn request."""
    out = bytearray()
    put_compact(out, transactional_id.encode())
    out += _PRODUCER.pack(*me)
    out.append(commit)
    return bytes(out + NO_TAGS)


def ended(answer: bytes, version: int) -> tuple[int, Identity | None]:
    """Return the error code of an answer to `end_transaction`, and who the producer is from now on, where
    that changes.
    """
    reader = WireReader(answer)
    reader.int32("throttle time")
    code = reader.int16("error code")
    return code, _identity(reader) if version in END_VERSIONS_2 else None


def _identity(reader: WireReader) -> Identity:
    return Identity(reader.int64("producer id"), reader.int16("epoch"))
