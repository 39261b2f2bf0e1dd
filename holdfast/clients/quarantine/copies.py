"""The quarantine's copy of a refused record."""

from __future__ import annotations

from holdfast.core.engine.emits import Emit
from holdfast.core.engine.fold.folding import Refused
from holdfast.core.engine.fold.user_frames import calls_line
from holdfast.core.kafka.topic_partition import Place
from holdfast.kafka.fetching.records import FetchedRecord

QUARANTINE_COPY_BYTES = (4 << 20) - (64 << 10), 900_000, 0
"""The parts of a record's size that are copied to the quarantine, the next when the topic refuses one: what a
topic made by holdfast takes, what Kafka takes by default, and only the record's position and why it was
refused.
"""


def topic_id_of(cluster_id: str, topic_id: str) -> str:
    """Return how the quarantine names a topic that may be deleted and made again; "" where it has no id.

    An id may have a slash.
    """
    return f"{cluster_id} {topic_id}" if topic_id else ""


def quarantine_record(
    topic: str,
    processor: str,
    place: Place,
    refused: Refused,
    record: FetchedRecord,
    copy_bytes: int,
    topic_id: str = "",
) -> Emit:
    """Return the quarantine's copy of a refused record: value and headers as they were, coordinates and
    reason as headers; *topic_id* as well, the source's id and its cluster's (`topic_id_of`), where known.

    Where value and headers take more than *copy_bytes*, the value is left out and `holdfast-truncated` holds
    its size; where the headers alone do, they are left out too. The record itself is still in the source.
    """
    (source, partition), value, key, original = place, record.value, record.key, record.headers
    calls = calls_line(refused.frames).encode(errors="backslashreplace")
    headers: list[tuple[str, bytes | None]] = [
        # Before the others, where earlier releases take it for one of the record's own.
        *([("holdfast-topic-id", topic_id.encode())] if topic_id else []),
        *([("holdfast-calls", calls)] if calls else []),
        ("holdfast-processor", processor.encode()),
        ("holdfast-topic", source.encode()),
        ("holdfast-partition", b"%d" % partition),
        ("holdfast-offset", b"%d" % refused.offset),
        ("holdfast-stage", refused.stage.encode()),
        ("holdfast-error", refused.error.encode()),
        ("holdfast-reason", refused.reason.encode(errors="backslashreplace")),
        ("holdfast-at-ms", b"%d" % record.at_ms),
    ]
    if key is not None:
        headers.append(("holdfast-key", key if len(key) <= max(copy_bytes // 4, 1024) else key[:1024]))
    size = sum(len(name.encode()) + len(content or b"") for name, content in original) + min(
        len(key or b""), copy_bytes // 4
    )
    if size + len(value or b"") > copy_bytes:
        headers.append(("holdfast-truncated", b"%d" % len(value or b"")))
        value = b""
        original = () if size > copy_bytes else original
    where = f"{source}/{partition}/{refused.offset}/{processor}"
    return Emit(topic, where, value, (*original, *headers))
