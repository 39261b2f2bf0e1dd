"""Reads a coordinator's records of one group or transactional id, over the wire."""

from __future__ import annotations

from typing import Any, NamedTuple

from holdfast.core.groups.java_order import coordinator_partition
from holdfast.core.kafka.record_batch import Record, batches
from holdfast.embedded.internal_log import KINDS, TRANSACTIONS
from holdfast.embedded.protocol.codec import decode, encode
from tests.embedded.transcripts.talk import Talk


class LoggedRecord(NamedTuple):
    """A record of a coordinator; *value* None is a tombstone, *version* that of the value."""

    kind: str
    key: dict[str, Any]
    value: dict[str, Any] | None
    version: int | None


def log_of(talk: Talk, topic: str, name: str) -> list[LoggedRecord]:
    """Return the records of the group or transactional id *name* in *topic*; each is written again as the
    same bytes.
    """
    found, place, offset = list[LoggedRecord](), coordinator_partition(name, 8), 0
    kinds = {
        number: kind
        for kind, number in KINDS.items()
        if (kind == "TransactionLog") == (topic == TRANSACTIONS)
    }
    while True:
        wanted = {"partition": place, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
        told = [{"topic": topic, "partitions": [wanted]}]
        limits: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 20}
        answer = talk.client().ask("Fetch", 12, topics=told, **limits)
        records = bytes(answer["responses"][0]["partitions"][0]["records"] or b"")
        if not records:
            return found
        for _, _, each in batches(records):
            offset = each.base_offset + each.last_offset_delta + 1
            if not each.is_control:
                found += [_read(one, kinds) for one in each.records if name.encode() in (one.key or b"")]


def _read(record: Record, kinds: dict[int, str]) -> LoggedRecord:
    assert record.key is not None
    kind = kinds[int.from_bytes(record.key[:2], "big")]
    key = decode(f"{kind}Key", 0, record.key, 2)
    assert bytes(encode(f"{kind}Key", 0, key, bytearray(record.key[:2]))) == record.key
    if record.value is None:
        return LoggedRecord(kind, key, None, None)
    version = int.from_bytes(record.value[:2], "big")
    value = decode(f"{kind}Value", version, record.value, 2)
    assert bytes(encode(f"{kind}Value", version, value, bytearray(record.value[:2]))) == record.value
    return LoggedRecord(kind, key, value, version)
