"""Decoders that see whole records or whole fetches: keys, values and headers together; and the answers to
inspections.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from confluent_kafka import Message

from holdfast.clients.quarantine.records import read_record
from holdfast.clients.tables.directory import read_claims
from holdfast.core.engine import query_wire
from holdfast.core.engine.fold import skips
from holdfast.core.engine.state.codec import RowCodec
from holdfast.core.groups import announcements, membership
from holdfast.core.kafka.compression import Compression
from holdfast.core.outbox import harvest, progress
from holdfast.core.producers import audit, cleaning, registry, row_digests, stamps
from holdfast.kafka.fetching.batch_reader import BatchReader
from holdfast.kafka.fetching.records import Records
from tests.fuzz.targets import (
    LIMIT_UNPACKED_BYTES,
    UNFIT,
    Target,
    batch_bytes,
    crc_right,
    headers_of,
    pair,
    stamped,
    two,
)

_JSON = msgspec.json.Encoder().encode
_NOTES: Final = (
    "processor",
    "topic",
    "partition",
    "offset",
    "stage",
    "error",
    "reason",
    "at-ms",
    "key",
    "truncated",
    "last",
    "codec",
)
_TERMS: dict[str, Any] = {
    "table": "totals",
    "version": 1,
    "partition": 0,
    "role": "active",
    "as_of_offset": 5,
    "stream_ms": 7,
}
_STAMP = ((0, b"orders-0"), (1, b"7"), (2, b"1041"))
_DIGEST = row_digests.RowDigests(b"orders-0", b"7").header(b"1041", 1, 12, b"k", b"v", [])


def _noted(data: bytes) -> list[tuple[str, str | bytes | None]]:
    """Return headers of the quarantine made of any bytes: name, length and value, again and again."""
    out: list[tuple[str, str | bytes | None]] = []
    at = 0
    while at + 2 <= len(data):
        size = data[at + 1]
        out.append((f"holdfast-{_NOTES[data[at] % len(_NOTES)]}", data[at + 2 : at + 2 + size]))
        at += 2 + size
    return out


def _notes(**changes: bytes) -> bytes:
    notes = {
        "processor": b"totals",
        "topic": b"orders",
        "partition": b"3",
        "offset": b"41",
        "stage": b"fold",
        "error": b"E",
        "reason": b"r",
    }
    notes |= {"at-ms": b"-1", "key": b"k", **changes}
    return stamped(*((_NOTES.index(name), value) for name, value in notes.items()))


def _quarantined(data: bytes) -> Any:
    found = read_record(Message(topic="q", value=b"value", headers=_noted(data), timestamp=(1, 5)))
    if found is not None:
        assert 0 <= found.partition < 1 << 31
        assert 0 <= found.offset < 1 << 63
        assert found.size_bytes >= 0
    return found


def _examined(data: bytes) -> Any:
    headers = headers_of(data)
    stamp = stamps.read_stamp(headers)
    return None if stamp is None else row_digests.examine(stamp, 1, b"k", b"v", headers)


def _audited(key: bytes, rest: bytes) -> Any:
    rules = audit.Rules(outbox="orders", number="other", partitions=12)
    return audit.decode(key, headers_of(rest), 3, b"v", 1, rules=rules)


def _columns(data: bytes) -> int:
    """Read as a worker does, with a batch of above the piece unpacked apart."""
    reader, records, bound = (
        BatchReader(memoryview(crc_right(data)), [(9, 3)], 5, limit_bytes=LIMIT_UNPACKED_BYTES),
        Records(),
        0,
    )
    while not reader.done:
        if reader.packed is not None:
            reader.unpacked(reader.unpack())
        reader.take(records, 64)
        bound += 1
        assert bound < 10_000 + len(data), "it turns in circles"
        assert list(records.offsets) == sorted(set(records.offsets))
    return len(records)


WHOLE_RECORDS: tuple[Target, ...] = (
    Target(
        name="quarantine",
        decode=_quarantined,
        seeds=(
            _notes(),
            _notes(truncated=b"5000000"),
            _notes(offset=b"9" * 200, partition=b"-1"),
            _notes(key=b"k" * 200),
        ),
    ),
    Target(
        name="digests of rows",
        decode=_examined,
        seeds=(
            stamped(*_STAMP, (4, _DIGEST)),
            stamped(*_STAMP, (4, b"6f0c2d9a51be7703/9999999999/9999999999")),
        ),
    ),
    Target(
        name="audited rows",
        decode=two(_audited),
        seeds=(pair(b"k", stamped(*_STAMP, (4, _DIGEST), (5, b"17"))), pair(b"k", stamped((5, b"9" * 18)))),
    ),
    Target(
        name="what the books pass on",
        decode=lambda data: cleaning.decode_whole(b"v", b"k", headers_of(data), 0, 3),
        seeds=(stamped(*_STAMP), stamped(*_STAMP, (3, b"9"))),
    ),
    Target(
        name="outbox books",
        decode=two(lambda key, value: progress.decode(key, value, 3)),
        seeds=(
            pair(
                harvest.sequences_key("o", "t"),
                _JSON(harvest.SequencesProgress(harvest.VERSION, "o", 7, "t", [(0, 5)])),
            ),
        ),
    ),
    Target(
        name="group members",
        decode=lambda data: membership.decode_numbered(data, 3),
        seeds=(
            announcements.encode(announcements.Beat("g", "m-1", 7)),
            announcements.encode(announcements.Leave("g", "m-1")),
        ),
    ),
    Target(
        name="skips",
        decode=two(skips.decode_skip),
        seeds=(
            pair(
                b"orders/0/7",
                skips.encode_skip(skips.Skip(topic="orders", partition=0, first=5, last=7, made=True)),
            ),
            pair(
                b"orders/0/9",
                skips.encode_skip(skips.Skip(topic="orders", partition=0, first=0, last=1 << 62, made=True)),
            ),
        ),
    ),
    Target(
        name="records of workers",
        decode=two(lambda key, value: read_claims(key.decode(), value)),
        errors=(ValueError,),
        seeds=(
            pair(
                b"http://a:6066",
                b'{"url":"http://a:6066","generation":3,"started_ms":1,"at_ms":2,"tables":{"t":{"version":1,"partitions":4,"active":[0]}}}',
            ),
        ),
    ),
    Target(
        name="fetches, as columns",
        decode=_columns,
        seeds=tuple(
            batch_bytes(kind) + batch_bytes(attributes=0x10) + batch_bytes(attributes=0x30)
            for kind in Compression
        ),
        unpacks=True,
    ),
    Target(
        name="rows at once",
        decode=lambda data: RowCodec[tuple[int, ...]](tuple[int, ...]).decode(data),
        seeds=(RowCodec[tuple[int, ...]](tuple[int, ...]).encode((1, 2, 3)),),
    ),
)

ANSWERS: tuple[Target, ...] = (
    Target(
        name="answers of the registry",
        decode=registry.decode_answer,
        errors=UNFIT,
        seeds=(
            registry.encode_answer(
                registry.RegistryAnswer(request="r", name="billing", producer_id=3, epoch=1)
            ),
        ),
        encode=registry.encode_answer,
    ),
    Target(
        name="replies: inspection",
        decode=query_wire.decode_inspect_reply,
        errors=UNFIT,
        seeds=(
            query_wire.encode(
                query_wire.InspectReply(
                    **_TERMS, inspection="i", changelog_next=9, digest="ab", rows=3, timers=1
                )
            ),
        ),
        encode=query_wire.encode,
    ),
    Target(
        name="replies: stored rows",
        decode=query_wire.decode_stored_reply,
        errors=UNFIT,
        seeds=(query_wire.encode(query_wire.StoredReply(**_TERMS, rows=[(b"a", b"x")], after=b"a")),),
        encode=query_wire.encode,
    ),
    Target(
        name="questions: page",
        decode=query_wire.decode_page,
        errors=UNFIT,
        seeds=(query_wire.encode(query_wire.Page(prefix="a", after="b", limit=5)),),
        encode=query_wire.encode,
    ),
    Target(
        name="questions: inspection",
        decode=query_wire.decode_inspect,
        errors=UNFIT,
        seeds=(query_wire.encode(query_wire.Inspect("i")),),
        encode=query_wire.encode,
    ),
    Target(
        name="questions: inspection in JSON",
        decode=query_wire.decode_inspect_json,
        errors=UNFIT,
        seeds=(_JSON(query_wire.Inspect("i")),),
    ),
    Target(
        name="questions: stored rows",
        decode=query_wire.decode_stored,
        errors=UNFIT,
        seeds=(query_wire.encode(query_wire.Stored(inspection="i", after=b"a")),),
        encode=query_wire.encode,
    ),
    Target(
        name="questions: stored rows in JSON",
        decode=query_wire.decode_stored_json,
        errors=UNFIT,
        seeds=(_JSON(query_wire.Stored(inspection="i", after=b"a")),),
    ),
    Target(
        name="questions: staleness",
        decode=lambda data: query_wire.Staleness.parse(data.decode("latin-1")),
        errors=(ValueError,),
        seeds=(b"100", b"250ms", b"100,250ms"),
        encode=lambda found: str(found).encode(),
    ),
)

__all__ = ["ANSWERS", "WHOLE_RECORDS"]
