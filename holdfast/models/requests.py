"""InitProducerId version 0 and Produce version 5, requests and responses, byte for byte: what an idempotent
producer says (KIP-98).

It reads captures, and shows what they mean; the producer that talks it is `holdfast.kafka.transactions`.
Each frame begins with its size, as on the wire.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

import msgspec

from holdfast.core.kafka.record_batch import RecordBatch, encode_batch, read_batch
from holdfast.core.kafka.wire import WireReader, WireReason, put_int16, put_int32, put_int64, put_string
from holdfast.errors import WireError

PRODUCE, INIT_PRODUCER_ID = 0, 22
PRODUCE_VERSION, INIT_PRODUCER_ID_VERSION = 5, 0
SIZE_BYTES = 4

T = TypeVar("T")


class InitProducerIdRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A producer asks for its id; with *transactional_id* for the one it has had, and an epoch that fences
    older ones.
    """

    correlation_id: int
    client_id: str | None
    transactional_id: str | None
    transaction_timeout_ms: int


class InitProducerIdResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The id and epoch to write with."""

    correlation_id: int
    throttle_time_ms: int
    error_code: int
    producer_id: int
    producer_epoch: int


class ProducePartition(msgspec.Struct, frozen=True, kw_only=True):
    """The records to append to one partition; None is the protocol's null."""

    partition: int
    batches: tuple[RecordBatch, ...] | None


class ProduceTopic(msgspec.Struct, frozen=True, kw_only=True):
    """The records to append to one topic."""

    topic: str
    partitions: tuple[ProducePartition, ...]


class ProduceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Batches to append. *acks* -1 asks for all replicas in sync."""

    correlation_id: int
    client_id: str | None
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: tuple[ProduceTopic, ...]


class ProducedPartition(msgspec.Struct, frozen=True, kw_only=True):
    """The offset of a batch, or why it was not appended."""

    partition: int
    error_code: int
    base_offset: int
    log_append_time_ms: int
    log_start_offset: int


class ProducedTopic(msgspec.Struct, frozen=True, kw_only=True):
    """The answers for one topic."""

    topic: str
    partitions: tuple[ProducedPartition, ...]


class ProduceResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answers for every partition of a request."""

    correlation_id: int
    responses: tuple[ProducedTopic, ...]
    throttle_time_ms: int


Request: TypeAlias = InitProducerIdRequest | ProduceRequest
Response: TypeAlias = InitProducerIdResponse | ProduceResponse


# -- reading


def _framed(data: bytes, what: str) -> WireReader:
    reader = WireReader(data)
    size = reader.int32(f"size of {what}")
    if size != reader.left:
        reason = WireReason.TRUNCATED if size > reader.left else WireReason.LENGTH
        raise WireError(f"{what} of {size} bytes, {reader.left} follow", offset=0, reason=reason)
    return reader


def decode_request(data: bytes) -> Request:
    """Return the request in *data*, its size included; WireError for another API or version, and for bytes
    that do not fit.
    """
    reader = _framed(data, "a request")
    key, version = reader.int16("api_key"), reader.int16("api_version")
    correlation_id, client_id = reader.int32("correlation_id"), reader.string("client_id", nullable=True)
    request: Request
    match key, version:
        case (22, 0):
            request = InitProducerIdRequest(
                correlation_id=correlation_id,
                client_id=client_id,
                transactional_id=reader.string("transactional_id", nullable=True),
                transaction_timeout_ms=reader.int32("transaction_timeout_ms"),
            )
        case (0, 5):
            request = ProduceRequest(
                correlation_id=correlation_id,
                client_id=client_id,
                transactional_id=reader.string("transactional_id", nullable=True),
                acks=reader.int16("acks"),
                timeout_ms=reader.int32("timeout_ms"),
                topics=_array(reader, "topics", 6, _produce_topic),
            )
        case _:
            raise WireError(
                f"api {key} version {version}; this reads InitProducerId (22) version 0 and Produce (0)"
                " version 5",
                offset=SIZE_BYTES,
                reason=WireReason.API,
            )
    reader.finish("the request")
    return request


def _array(reader: WireReader, what: str, least_bytes: int, read: Callable[[WireReader], T]) -> tuple[T, ...]:
    return tuple(read(reader) for _ in range(reader.array(what, least_bytes)))


def _produce_topic(reader: WireReader) -> ProduceTopic:
    return ProduceTopic(
        topic=reader.text("topic"), partitions=_array(reader, "partitions", 8, _produce_partition)
    )


def _produce_partition(reader: WireReader) -> ProducePartition:
    partition, at = reader.int32("partition"), reader.at
    size = reader.int32("length of the records")
    if size == -1:
        return ProducePartition(partition=partition, batches=None)
    if not 0 <= size <= reader.left:
        raise reader.error(f"{size} bytes of records, {reader.left} are left", WireReason.TRUNCATED, at)
    found, end = [], reader.at + size
    view = memoryview(reader.data)[:end]
    while reader.at < end:
        header, batch = read_batch(view, reader.at)
        found.append(batch)
        reader.at += header.size_bytes
    return ProducePartition(partition=partition, batches=tuple(found))


def decode_init_producer_id_response(data: bytes) -> InitProducerIdResponse:
    """Return the response in *data*, its size included.

    A response does not say what it answers: the caller knows.
    """
    reader = _framed(data, "a response")
    response = InitProducerIdResponse(
        correlation_id=reader.int32("correlation_id"),
        throttle_time_ms=reader.int32("throttle_time_ms"),
        error_code=reader.int16("error_code"),
        producer_id=reader.int64("producer_id"),
        producer_epoch=reader.int16("producer_epoch"),
    )
    reader.finish("the response")
    return response


def decode_produce_response(data: bytes) -> ProduceResponse:
    """Return the response in *data*, its size included."""
    reader = _framed(data, "a response")
    response = ProduceResponse(
        correlation_id=reader.int32("correlation_id"),
        responses=_array(reader, "responses", 6, _produced_topic),
        throttle_time_ms=reader.int32("throttle_time_ms"),
    )
    reader.finish("the response")
    return response


def _produced_topic(reader: WireReader) -> ProducedTopic:
    return ProducedTopic(
        topic=reader.text("topic"), partitions=_array(reader, "partitions", 30, _produced_partition)
    )


def _produced_partition(reader: WireReader) -> ProducedPartition:
    return ProducedPartition(
        partition=reader.int32("partition"),
        error_code=reader.int16("error_code"),
        base_offset=reader.int64("base_offset"),
        log_append_time_ms=reader.int64("log_append_time"),
        log_start_offset=reader.int64("log_start_offset"),
    )


# -- writing


def _frame(out: bytearray) -> bytes:
    return len(out).to_bytes(SIZE_BYTES, "big") + out


def encode_request(request: Request) -> bytes:
    """Return the bytes of *request*, its size first."""
    out = bytearray()
    produce = isinstance(request, ProduceRequest)
    put_int16(out, PRODUCE if produce else INIT_PRODUCER_ID, "api_key")
    put_int16(out, PRODUCE_VERSION if produce else INIT_PRODUCER_ID_VERSION, "api_version")
    put_int32(out, request.correlation_id, "correlation_id")
    put_string(out, request.client_id, "client_id")
    put_string(out, request.transactional_id, "transactional_id")
    if isinstance(request, InitProducerIdRequest):
        put_int32(out, request.transaction_timeout_ms, "transaction_timeout_ms")
        return _frame(out)
    put_int16(out, request.acks, "acks")
    put_int32(out, request.timeout_ms, "timeout_ms")
    put_int32(out, len(request.topics), "topics")
    for topic in request.topics:
        put_string(out, topic.topic, "topic")
        put_int32(out, len(topic.partitions), "partitions")
        for each in topic.partitions:
            put_int32(out, each.partition, "partition")
            if each.batches is None:
                put_int32(out, -1, "length of the records")
                continue
            records = b"".join(map(encode_batch, each.batches))
            put_int32(out, len(records), "length of the records")
            out += records
    return _frame(out)


def encode_response(response: Response) -> bytes:
    """Return the bytes of *response*, its size first."""
    out = bytearray()
    put_int32(out, response.correlation_id, "correlation_id")
    if isinstance(response, InitProducerIdResponse):
        put_int32(out, response.throttle_time_ms, "throttle_time_ms")
        put_int16(out, response.error_code, "error_code")
        put_int64(out, response.producer_id, "producer_id")
        put_int16(out, response.producer_epoch, "producer_epoch")
        return _frame(out)
    put_int32(out, len(response.responses), "responses")
    for topic in response.responses:
        put_string(out, topic.topic, "topic")
        put_int32(out, len(topic.partitions), "partitions")
        for each in topic.partitions:
            put_int32(out, each.partition, "partition")
            put_int16(out, each.error_code, "error_code")
            put_int64(out, each.base_offset, "base_offset")
            put_int64(out, each.log_append_time_ms, "log_append_time")
            put_int64(out, each.log_start_offset, "log_start_offset")
    put_int32(out, response.throttle_time_ms, "throttle_time_ms")
    return _frame(out)
