"""One record for the outbox, and every check that needs no database: a wrong record is refused before any
SQL.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypedDict

import msgspec

from holdfast.core.engine.trace_context import ROOM_BYTES, is_traceparent
from holdfast.errors import OutboxRecordError
from holdfast.outbox.schema.layouts import LIMIT_TOPIC, Header, PreparedRecord
from holdfast.tracing.spans import record_headers

LIMIT_BYTES: Final = 1_000_000  # of one record: message.max.bytes of Kafka's clients
RESERVED: Final = frozenset({"holdfast-producer", "holdfast-epoch", "holdfast-sequence", "holdfast-digest"})

Encoder = Callable[[Any], bytes]
HeadersLike = Mapping[str, str | bytes | None] | Iterable[tuple[str, str | bytes | None]]

_TOPIC = re.compile(rf"[A-Za-z0-9._-]{{1,{LIMIT_TOPIC}}}")


class RecordFields(TypedDict, total=False):
    """The fields of an `OutboxRecord` that few records need."""

    headers: HeadersLike
    partition: int | None
    timestamp_ms: int | None
    trace: str | Mapping[str, str] | None
    event_id: str | None
    event_type: str | None


class OutboxRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One record to be written, for `OutboxWriter.write_many`; its fields are the arguments of
    `OutboxWriter.write`.
    """

    topic: str
    key: Any = None
    value: Any = None
    headers: HeadersLike = ()
    partition: int | None = None
    timestamp_ms: int | None = None
    trace: str | Mapping[str, str] | None = None
    event_id: str | None = None
    event_type: str | None = None


def prepared(
    record: OutboxRecord,
    *,
    key_encoder: Encoder | None,
    value_encoder: Encoder | None,
    limit_bytes: int | None,
) -> PreparedRecord:
    """Return *record* as it will be passed to Kafka; OutboxRecordError names its fault."""
    if not isinstance(record, OutboxRecord):
        raise OutboxRecordError(f"{record!r:.200} is no record: write OutboxRecord(topic='orders', ...)")
    topic = record.topic
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise OutboxRecordError(
            f"topic {topic!r}: Kafka takes 1 to {LIMIT_TOPIC} letters, digits, '.', '_' and '-'"
        )
    made = PreparedRecord(
        topic=topic,
        key=_bytes(record.key, key_encoder, "key", topic),
        value=_bytes(record.value, value_encoder, "value", topic),
        headers=[*_headers(record.headers, topic), *_trace(record.trace, topic)],
        partition=_number(record.partition, "partition", topic, limit=2**31 - 1),
        timestamp_ms=_number(record.timestamp_ms, "timestamp_ms", topic, limit=2**63 - 1),
        event_id=record.event_id,
        event_type=record.event_type,
    )
    size = _size(made)
    if limit_bytes is not None and size > limit_bytes:
        raise OutboxRecordError(
            f"a record for {topic} has {size} bytes, and {limit_bytes} is the limit; store the data elsewhere"
            " and send where it is, or raise limit_bytes together with the topic's max.message.bytes and the"
            " harvester's message.max.bytes"
        )
    if record.trace is None:  # then that which the writing is a part of, if the record has room for it
        room_bytes = ROOM_BYTES if limit_bytes is None else limit_bytes * 9 // 10
        made.headers.extend(record_headers(made.headers, size, room_bytes))
    return made


def _bytes(value: Any, encoder: Encoder | None, what: str, topic: str) -> bytes | None:
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if encoder is None:
        if isinstance(value, str):
            return _utf8(value, f"the {what} for {topic}")
        raise OutboxRecordError(
            f"the {what} for {topic} is {type(value).__name__}; give bytes or str, or the writer a"
            f" {what}_encoder"
        )
    try:
        encoded = encoder(value)
    except Exception as error:
        raise OutboxRecordError(
            f"the {what}_encoder could not encode the {what} for {topic}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(encoded, bytes):
        raise OutboxRecordError(
            f"the {what}_encoder returned {type(encoded).__name__} for {topic} instead of bytes"
        )
    return encoded


def _utf8(value: str, what: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise OutboxRecordError(f"{what} cannot be written as UTF-8: {error}") from error


def _headers(given: HeadersLike, topic: str) -> list[Header]:
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise OutboxRecordError(
            f"headers for {topic}: give pairs of name and value, or a mapping, not {type(given).__name__}"
        )
    headers: list[Header] = []
    pairs: Iterable[Any] = given.items() if isinstance(given, Mapping) else given
    for pair in pairs:
        if not isinstance(pair, Sequence) or isinstance(pair, str | bytes) or len(pair) != 2:
            raise OutboxRecordError(f"headers for {topic}: {pair!r} is not a pair of name and value")
        name, value = pair
        if not isinstance(name, str):
            raise OutboxRecordError(f"headers for {topic}: the name {name!r} is not text")
        _utf8(name, f"the header name {name!r}")
        if name in RESERVED:
            raise OutboxRecordError(
                f"headers for {topic}: {name} is written by the harvester; choose another name"
            )
        if isinstance(value, str):
            value = _utf8(value, f"header {name}")
        elif value is not None and not isinstance(value, bytes):
            raise OutboxRecordError(
                f"headers for {topic}: the value of {name} is {type(value).__name__}; give bytes, str or None"
            )
        headers.append((name, value))
    return headers


def _trace(trace: str | Mapping[str, str] | None, topic: str) -> list[Header]:
    """Return the headers of a trace context.

    >>> _trace("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "orders")
    [('traceparent', b'00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01')]
    """
    if not trace:
        return []
    if not isinstance(trace, str | Mapping):
        raise OutboxRecordError(
            f"trace for {topic}: give a W3C traceparent, or the mapping that a tracer filled, not"
            f" {type(trace).__name__}"
        )
    carrier = {"traceparent": trace} if isinstance(trace, str) else dict(trace)
    if not all(isinstance(each, str) for field in carrier.items() for each in field):
        raise OutboxRecordError(f"trace for {topic}: {carrier!r:.200} holds what is not text")
    parent = carrier.get("traceparent")
    if parent is not None and not is_traceparent(_utf8(parent, f"trace for {topic}")):
        raise OutboxRecordError(
            f"trace for {topic}: {parent!r} is not a W3C traceparent (version-traceid-parentid-flags,"
            " lower-case hex)"
        )
    return [(name, _utf8(value, f"trace field {name}")) for name, value in carrier.items()]


def _number(value: Any, what: str, topic: str, *, limit: int) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= limit:
        raise OutboxRecordError(
            f"{what} {value!r} for {topic}: give a whole number from 0 to {limit}, or None"
        )
    return value


def _size(record: PreparedRecord) -> int:
    """Return about how many bytes Kafka will count."""
    headers = sum(len(name) + len(value or b"") + 4 for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers + 70
