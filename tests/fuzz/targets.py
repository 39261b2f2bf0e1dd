"""Every decoder that reads bytes from outside: valid bytes to begin with, the errors it may raise, and,
where it has one, its inverse.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import google_crc32c
import msgspec

from holdfast.clients.tables.directory import Workers
from holdfast.core import ranges
from holdfast.core.broker_logs.folds import decode_group, decode_transaction
from holdfast.core.claims import frames, resets
from holdfast.core.engine import query_wire
from holdfast.core.engine.merge.strays import Audit
from holdfast.core.engine.positions import Position, decode_position, encode_position
from holdfast.core.engine.state.codec import RowCodec, decode_due, encode_due, row_key, text_key
from holdfast.core.groups import announcements
from holdfast.core.groups.announcements import Announce, Leave, Summary, partitions_of
from holdfast.core.kafka import compression
from holdfast.core.kafka import fetch_requests as fetches
from holdfast.core.kafka import transaction_requests as transactions
from holdfast.core.kafka.compression import Compression
from holdfast.core.kafka.record_batch import Record, RecordBatch, batches, decode_batch, encode_batch
from holdfast.core.outbox import harvest
from holdfast.core.outbox.election import LeaderRecord
from holdfast.core.producers import ledger, registry, stamps
from holdfast.errors import HoldfastError
from holdfast.models.requests import decode_init_producer_id_response, decode_produce_response, decode_request
from holdfast.outbox import commands

LIMIT_UNPACKED_BYTES: Final = 1 << 20
UNFIT: Final = (msgspec.DecodeError,)
"""The errors that callers of a bare decoder catch."""
_JSON = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One decoder.

    What it returns is compared after `encode` and another `decode`, where there is such an inverse.
    """

    name: str
    decode: Callable[[bytes], Any]
    seeds: tuple[bytes, ...]
    errors: tuple[type[Exception], ...] = (HoldfastError,)
    encode: Callable[[Any], bytes] | None = None
    unpacks: bool = False
    """True if LIMIT_UNPACKED_BYTES may be used in addition to the memory that the input explains."""


class Total(msgspec.Struct, frozen=True):
    """A row, as an application declares them."""

    count: int
    name: str = ""
    marks: tuple[int, ...] = ()


def two(decode: Callable[[bytes, bytes], Any]) -> Callable[[bytes], Any]:
    """Return a decoder of key and value, which follow each other with the length of the key before them."""

    def both(data: bytes) -> Any:
        size = int.from_bytes(data[:2], "big")
        return decode(data[2 : 2 + size], data[2 + size :])

    return both


def pair(key: bytes, value: bytes) -> bytes:
    return len(key).to_bytes(2, "big") + key + value


def batch_bytes(kind: Compression = Compression.NONE, *, attributes: int = 0) -> bytes:
    records = tuple(
        Record(at, b"key%d" % at, b"value" * at, (("name", b"x"), ("none", None))) for at in range(3)
    )
    return encode_batch(
        RecordBatch(
            base_offset=7,
            attributes=attributes | kind,
            last_offset_delta=2,
            producer_id=9,
            producer_epoch=1,
            base_sequence=0,
            records=records,
        )
    )


def headers_of(data: bytes) -> tuple[tuple[str, bytes | None], ...]:
    """Return headers made of any bytes: name, length and value, again and again."""
    out: list[tuple[str, bytes | None]] = []
    names = (*stamps.NAMES, stamps.DIGEST, "other")
    at = 0
    while at + 2 <= len(data):
        size = data[at + 1]
        out.append((names[data[at] % len(names)], data[at + 2 : at + 2 + size]))
        at += 2 + size
    return tuple(out)


def stamped(*fields: tuple[int, bytes]) -> bytes:
    return b"".join(bytes([name, len(value)]) + value for name, value in fields)


def crc_right(data: bytes) -> bytes:
    """Return a batch whose checksum fits, so that the bytes after it are read."""
    if len(data) < 61:
        return data
    out = bytearray(data)
    out[8:12] = (len(out) - 12).to_bytes(4, "big")
    out[17:21] = google_crc32c.value(bytes(out[21:])).to_bytes(4, "big")
    return bytes(out)


def _strays(data: bytes) -> Any:
    audit = Audit(1)
    for _, _, batch in batches(crc_right(data), limit_bytes=LIMIT_UNPACKED_BYTES):
        audit.add(batch)
    return audit.findings().mend().puts


def _progress(key: bytes, value: bytes) -> Any:
    found = harvest.decode_progress(key, value)
    if (
        isinstance(found, harvest.RowsProgress) and sum(map(abs, found.rows)) < 10_000
    ):  # it has a limit of its own, of a million rows
        return harvest.unpack_ids(found.rows)
    return found


def _announced(value: bytes) -> Any:
    found = announcements.decode(value)
    if isinstance(found, Announce):
        assert len(partitions_of(found.owned)) < 1_000_000
    return found


_ANNOUNCE = Announce(
    "g", "m-1", "c", None, ("orders",), None, (("orders", 6),), (("orders", (0, 1, 2)),), 4, ("range",), 6_000
)
_TABLE: dict[str, Any] = {
    "table": "totals",
    "version": 1,
    "partition": 0,
    "role": "active",
    "as_of_offset": 5,
    "stream_ms": 7,
}
_ROWS = query_wire.RowsReply(**_TABLE, values=[b"x", None])
_PAGE = query_wire.PageReply(**_TABLE, rows=[("a", b"x")], after=None)
_REFUSAL = msgspec.convert({"error": "moved", "message": "restoring"}, query_wire.Refusal)
_WORKER = {
    "url": "http://a:6066",
    "generation": 3,
    "started_ms": 1,
    "at_ms": 2,
    "tables": {"totals": {"version": 1, "partitions": 4, "active": [0, 1], "standby": [2]}},
}
_ID = struct.pack(">hh", 0, 8) + b"orders-1"
_TRANSACTION = (
    struct.pack(">hqhib", 0, 1005, 3, 60_000, 1)
    + struct.pack(">ih", 1, 1)
    + b"t"
    + struct.pack(">iii", 2, 0, 7)
    + struct.pack(">qq", 2_000, 1_000)
)
_FLEXIBLE = (
    struct.pack(">hqhib", 1, 1005, 3, 60_000, 1)
    + b"\x02\x02t\x03"
    + struct.pack(">ii", 0, 7)
    + b"\0"
    + struct.pack(">qq", 2, 1)
    + b"\0"
)
_OFFSET_KEY = struct.pack(">hh", 1, 1) + b"g" + struct.pack(">h", 1) + b"t" + struct.pack(">i", 0)
_OFFSET = struct.pack(">hqih", 3, 41, 0, 0) + struct.pack(">q", 5)
_GROUP_KEY = struct.pack(">hh", 2, 1) + b"g"
_GROUP = struct.pack(">hh", 3, 8) + b"consumer" + struct.pack(">ihhqi", 1, -1, -1, 5, 0)
_ANSWER_VERSIONS = struct.pack(">h", 0) + b"\x02" + bytes(6) + b"\0" + bytes(4) + b"\0"
_TOPIC_ANSWER = bytes(4) + b"\x02\x02t\x02" + bytes(4) + bytes(2) + b"\0\0\0"

TARGETS: tuple[Target, ...] = (
    Target(
        name="claim frames",
        decode=frames.decode,
        seeds=(
            b"Heartbeat/1/1476147600/3c5a0f1e/worker-7/foo.bar_consumer/orders/3/1024",
            b"ClaimingPartition/1/1476147590/3c5a0f1e/worker-7/foo.bar_consumer/orders/3",
            b"ReleasingPartition/1/1476147700/3c5a0f1e/worker-7/foo.bar_consumer/orders/3/2048",
            b"ClaimingMessages/1/1476147601/3c5a0f1e/worker-7/foo.bar_consumer/orders/3/1100",
            b"ReleaseGroup/0/1476147600/3c5a0f1e/admin-1/foo.bar_consumer//0/1476148500",
        ),
        encode=frames.encode,
    ),
    Target(
        name="announcements",
        decode=_announced,
        seeds=(
            announcements.encode(_ANNOUNCE),
            announcements.encode(announcements.Beat("g", "m-1", 7)),
            announcements.encode(Leave("g", "m-1")),
            announcements.encode(Summary("g", 4, 2, "range", (), (), ())),
        ),
        encode=announcements.encode,
    ),
    Target(
        name="resets",
        decode=resets.decode_decision,
        seeds=(
            resets.encode_decision(
                resets.ResetCommit(
                    reset_id="5e", group="g", client="admin", at_s=7, offsets={"orders": ((0, 40, 0),)}
                )
            ),
            resets.encode_decision(
                resets.ResetAbort(reset_id="5e", group="g", client="c", at_s=1, reason="silent")
            ),
        ),
        encode=resets.encode_decision,
    ),
    Target(
        name="ranges",
        decode=ranges.decode_wish,
        seeds=(
            ranges.encode_wish(ranges.Take(0, 10, "a", "i")),
            ranges.encode_wish(ranges.Keep(0, 1, "i", 5, False, 7)),
            ranges.encode_wish(
                ranges.Base(3, ranges.Ranges(0, (ranges.Block(0, 10, 2, "a", "i", 1, 1, 4, 99),)))
            ),
        ),
        encode=lambda wish: b"" if wish is None else ranges.encode_wish(wish),
    ),
    Target(
        name="outbox commands",
        decode=commands.read_command,
        errors=UNFIT,
        seeds=(
            _JSON(commands.Command(id="c-1", verb=commands.Verb.PAUSE, at_ms=5)),
            b'{"id":"c-1","verb":"pause","x":[[[]]]}',
        ),
    ),
    Target(
        name="outbox answers",
        decode=commands.read_answer,
        errors=UNFIT,
        seeds=(
            _JSON(
                commands.CommandReply(
                    id="c-1",
                    verb=commands.Verb.PAUSE,
                    shard=0,
                    leader="h",
                    epoch=1,
                    paused=True,
                    published=3,
                    quarantined=0,
                    waiting_topics=["t"],
                )
            ),
        ),
    ),
    Target(
        name="outbox progress",
        decode=two(_progress),
        seeds=(
            pair(
                harvest.rows_key("orders-3"),
                _JSON(harvest.RowsProgress(harvest.VERSION, "orders-3", 7, [10, 3, 7, 1])),
            ),
            pair(
                harvest.sequences_key("o", "t"),
                _JSON(harvest.SequencesProgress(harvest.VERSION, "o", 7, "t", [(0, 5)])),
            ),
            pair(
                harvest.rows_key("orders-3"),
                _JSON(harvest.RowsProgress(harvest.VERSION, "orders-3", 7, [1, 10**12])),
            ),
        ),
    ),
    Target(name="leaders of an outbox", decode=LeaderRecord.decode, seeds=(b"7%a%n%1%3%", b"7%a%n%1%4%120")),
    Target(
        name="registry commands",
        decode=lambda data: registry.decode(data, 0),
        seeds=(
            _JSON(registry.Register(name="billing", request="r-1")),
            b'{"type":"register","name":"\\ud800","request":"r"}',
        ),
    ),
    Target(
        name="producer stamps",
        decode=lambda data: stamps.read_stamp(headers_of(data)),
        seeds=(stamped((0, b"billing"), (1, b"7"), (2, b"1041")),),
    ),
    Target(
        name="producer books",
        decode=lambda data: ledger.decode(headers_of(data), 3),
        seeds=(
            stamped((0, b"billing"), (1, b"7"), (2, b"1041")),
            stamped((4, b"d"), (0, b"b"), (1, b"7"), (2, b"1")),
        ),
    ),
    Target(
        name="position markers",
        decode=decode_position,
        seeds=(encode_position(Position((41,), 99, 1)), encode_position(Position((41,), 99, 1, event_ms=7))),
        encode=encode_position,
    ),
    Target(name="timers", decode=decode_due, seeds=(encode_due(1_700_000_000_000),), encode=encode_due),
    Target(name="row keys", decode=text_key, seeds=(row_key("a key"),), encode=row_key),
    Target(
        name="rows",
        decode=RowCodec[Total](Total).decode,
        seeds=(RowCodec[Total](Total).encode(Total(3, "x", (1, 2))),),
        encode=RowCodec[Total](Total).encode,
    ),
    Target(
        name="strays of a changelog",
        decode=_strays,
        seeds=(batch_bytes(), batch_bytes(attributes=0x10), batch_bytes(attributes=0x30)),
        unpacks=True,
    ),
    Target(
        name="announced workers",
        decode=lambda data: Workers([query_wire.decode_worker(data)]).urls,
        seeds=(_JSON(_WORKER), b'{"url":"\\ud800","x":' + b"[" * 400 + b"]" * 400 + b"}"),
        errors=UNFIT,
    ),
    Target(
        name="replies: rows",
        decode=query_wire.decode_rows_reply,
        seeds=(query_wire.encode(_ROWS),),
        errors=UNFIT,
        encode=query_wire.encode,
    ),
    Target(
        name="replies: page",
        decode=query_wire.decode_page_reply,
        seeds=(query_wire.encode(_PAGE),),
        errors=UNFIT,
        encode=query_wire.encode,
    ),
    Target(
        name="replies: refusal",
        decode=query_wire.decode_refusal,
        seeds=(query_wire.encode(_REFUSAL),),
        errors=UNFIT,
        encode=query_wire.encode,
    ),
    Target(
        name="questions: keys",
        decode=query_wire.decode_keys,
        seeds=(query_wire.encode(query_wire.Keys(["a"])),),
        errors=UNFIT,
        encode=query_wire.encode,
    ),
    Target(
        name="questions: keys in JSON",
        decode=query_wire.decode_keys_json,
        seeds=(_JSON(query_wire.Keys(["a"])),),
        errors=UNFIT,
    ),
    Target(
        name="questions: page in JSON",
        decode=query_wire.decode_page_json,
        seeds=(_JSON(query_wire.Page()),),
        errors=UNFIT,
    ),
    Target(
        name="record batches",
        decode=lambda data: decode_batch(data, limit_bytes=LIMIT_UNPACKED_BYTES),
        seeds=tuple(batch_bytes(kind) for kind in Compression),
        unpacks=True,
    ),
    Target(
        name="record batches with a good checksum",
        decode=lambda data: decode_batch(crc_right(data), limit_bytes=LIMIT_UNPACKED_BYTES),
        seeds=tuple(batch_bytes(kind) for kind in Compression),
        unpacks=True,
    ),
    *(
        Target(
            name=f"{kind.name.lower()} of records",
            decode=lambda data, kind=kind: compression.decompress(
                kind, data, limit_bytes=LIMIT_UNPACKED_BYTES
            ),  # type: ignore[misc]
            seeds=(
                compression.compress(kind, b"record " * 50),
                compression.compress(kind, bytes(8 << 20)),
                compression.compress(kind, b"a") * 2_000,
            ),
            unpacks=True,
        )
        for kind in Compression
        if kind is not Compression.NONE
    ),
    Target(
        name="__transaction_state",
        decode=two(decode_transaction),
        seeds=(pair(_ID, _TRANSACTION), pair(_ID, _FLEXIBLE)),
    ),
    Target(
        name="__consumer_offsets",
        decode=two(decode_group),
        seeds=(pair(_OFFSET_KEY, _OFFSET), pair(_GROUP_KEY, _GROUP)),
    ),
    Target(
        name="requests of producers",
        decode=decode_request,
        seeds=(struct.pack(">ihhih", 16, 22, 0, 1, -1) + struct.pack(">hi", -1, 60_000),),
    ),
    Target(
        name="answers: producer id",
        decode=decode_init_producer_id_response,
        seeds=(struct.pack(">iiihqh", 20, 1, 0, 0, 5, 0),),
    ),
    Target(
        name="answers: produce",
        decode=decode_produce_response,
        seeds=(struct.pack(">iii", 12, 1, 0) + bytes(4),),
    ),
    Target(name="answers: versions", decode=transactions.transaction_version, seeds=(_ANSWER_VERSIONS,)),
    Target(name="answers: added", decode=transactions.added, seeds=(_TOPIC_ANSWER,)),
    Target(name="answers: appended", decode=transactions.produced, seeds=(_TOPIC_ANSWER,)),
    Target(
        name="answers: fetched",
        decode=fetches.fetched,
        seeds=(bytes(11) + b"\x02\x02t\x02" + bytes(40) + b"\0\0\0",),
    ),
)

__all__ = [
    "LIMIT_UNPACKED_BYTES",
    "TARGETS",
    "Target",
    "batch_bytes",
    "crc_right",
    "headers_of",
    "pair",
    "stamped",
    "two",
]
