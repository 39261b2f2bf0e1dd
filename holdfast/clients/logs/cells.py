"""The cells of `holdfast explain`: for a batch, for a record, and for the end of a transaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast.core.broker_logs.folds import OFFSETS_TOPIC, TRANSACTION_TOPIC, decode_group, decode_transaction
from holdfast.core.kafka.compression import Compression
from holdfast.core.kafka.record_batch import (
    COMPRESSION_BITS,
    BatchFields,
    BatchHeader,
    ControlType,
    Record,
    RecordBatch,
    control_of,
)
from holdfast.core.producers.stamps import read_stamp
from holdfast.errors import DecodeError, WireError

Cell = str | int | float | bool | None | Sequence["Cell"] | Mapping[str, "Cell"]
"""A value in a report."""

COLUMNS = (
    *("offset", "last_offset", "time", "records", "bytes", "compression"),
    *("producer_id", "epoch", "sequence", "last_sequence", "kind", "transaction"),
)
FIELDS = (
    *(*COLUMNS, "position", "leader_epoch", "coordinator_epoch", "crc32c", "log_append_time"),
    *("base_time", "transactional", "control", "error"),
)
"""The fields of every batch in JSON; None where one does not apply."""

UNREADABLE = "unreadable"
SHOWN_BYTES = 200


@dataclass(frozen=True, slots=True)
class LocatedBatch:
    """One batch and where it begins in its file; None for one that was fetched.

    *batch* is None if its records are not wanted, and if they cannot be read: then *error* says why, and
    *header* is as it claims to be.
    """

    position: int | None
    header: BatchHeader
    batch: RecordBatch | None
    error: WireError | None = None


class Transactions:
    """The ends of a log's transactions: markers by producer, in the order of the log."""

    def __init__(self) -> None:
        self._markers: dict[int, list[tuple[int, ControlType]]] = {}

    def add(self, batch: RecordBatch) -> None:
        """Take in a batch; only markers count."""
        for _, kind, _ in markers_of(batch):
            self._markers.setdefault(batch.producer_id, []).append((batch.base_offset, kind))

    def outcome(self, batch: BatchFields) -> tuple[str, int | None]:
        """Return how the transaction that *batch* belongs to ended, and the offset of its marker; open when
        there is none.
        """
        for offset, kind in self._markers.get(batch.producer_id, ()):
            if offset > batch.last_offset:
                return ("committed" if kind is ControlType.COMMIT else "aborted"), offset
        return "open", None


def markers_of(batch: RecordBatch) -> Iterator[tuple[Record, ControlType, int | None]]:
    """Yield the ends of transactions in a batch, each with its coordinator's epoch."""
    if batch.is_control:
        for record in batch.records:
            control = control_of(batch, record)
            if control.type in (ControlType.COMMIT, ControlType.ABORT):
                yield record, control.type, control.coordinator_epoch


def _at(at_ms: int) -> str | None:
    """Return a time in UTC as people read it.

    >>> _at(1_520_810_318_475), _at(-1)
    ('2018-03-11T23:18:38.475Z', None)
    """
    if at_ms < 0:
        return None
    try:
        return (
            datetime.fromtimestamp(at_ms / 1000, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z")
        )
    except (ValueError, OverflowError, OSError):
        return f"@{at_ms}"


def codec_of(header: BatchHeader) -> str:
    """Return how a batch says that it is packed."""
    kind = header.attributes & COMPRESSION_BITS
    return Compression(kind).name.lower() if kind <= max(Compression) else f"unknown ({kind})"


def kind_of(seen: LocatedBatch) -> tuple[str, int | None]:
    """Return a batch's kind, and the coordinator's epoch for a marker: data, transactional, commit, abort or
    another control record.
    """
    if seen.error is not None:
        return UNREADABLE, None
    if not seen.header.is_control:
        return ("transactional" if seen.header.is_transactional else "data"), None
    if seen.batch is None or not seen.batch.records:
        return "control, cleaned", None
    control = control_of(seen.batch, seen.batch.records[0])
    return control.type.name.lower().replace("_", "-"), control.coordinator_epoch


def batch_cells(seen: LocatedBatch, transactions: Transactions) -> dict[str, Cell]:
    """Return one batch as a line of the result; for an unreadable one, its header's claims."""
    header = seen.header
    kind, coordinator_epoch = kind_of(seen)
    ending: str | None = None
    if header.is_transactional and not header.is_control:
        outcome, marker = transactions.outcome(header)
        ending = outcome if marker is None else f"{outcome} at {marker}"
    known = header.producer_id >= 0
    return {
        "offset": header.base_offset,
        "last_offset": header.last_offset,
        "time": _at(header.max_timestamp_ms),
        "records": header.records_count,
        "bytes": header.size_bytes,
        "compression": codec_of(header),
        "producer_id": header.producer_id if known else None,
        "epoch": header.producer_epoch if known else None,
        "sequence": header.base_sequence if header.base_sequence >= 0 else None,
        "last_sequence": header.last_sequence if header.base_sequence >= 0 else None,
        "kind": kind,
        "transaction": ending,
        "position": seen.position,
        "leader_epoch": header.partition_leader_epoch,
        "coordinator_epoch": coordinator_epoch,
        "crc32c": f"{header.crc32c:08x}",
        "log_append_time": header.is_log_append_time,
        "base_time": _at(header.base_timestamp_ms),
        "transactional": header.is_transactional,
        "control": header.is_control,
        "error": None if seen.error is None else str(seen.error),
    }


def _shown(data: bytes | None) -> str | None:
    """Return bytes as people read them: text where it is text, else hex; long ones cut.

    >>> _shown(b"abc"), _shown(b"\\xff\\x00"), _shown(None)
    ('abc', '0xff00', None)
    """
    if data is None:
        return None
    rest = f"... ({len(data)} bytes)" if len(data) > SHOWN_BYTES else ""
    try:
        text = data[:SHOWN_BYTES].decode() if not rest else data[:SHOWN_BYTES].decode(errors="ignore")
        if text.isprintable():
            return text + rest
    except UnicodeDecodeError:
        pass
    return f"0x{data[:SHOWN_BYTES].hex()}{rest}"


def record_cells(header: BatchHeader, record: Record) -> dict[str, Cell]:
    """Return one record as part of the result; *sequence* is the broker's, *stamp* holdfast's own."""
    sequence = None if header.base_sequence < 0 else header.base_sequence + record.offset_delta & 0x7FFFFFFF
    at_ms = (
        header.max_timestamp_ms
        if header.is_log_append_time
        else header.base_timestamp_ms + record.timestamp_delta
    )
    try:
        found = read_stamp(record.headers)
        stamp: Cell = (
            None
            if found is None
            else {"producer": found.producer, "epoch": found.epoch, "sequence": found.sequence}
        )
    except DecodeError as error:
        stamp = f"broken: {error}"
    return {
        "offset": header.base_offset + record.offset_delta,
        "time": _at(at_ms),
        "sequence": sequence,
        "key": _shown(record.key),
        "value": _shown(record.value),
        "headers": [f"{name}={_shown(value)}" for name, value in record.headers],
        "stamp": stamp,
    }


def broker_cells(topic: str, record: Record) -> dict[str, Cell]:
    """Return the content of a record of one of the broker's own logs; empty for other topics."""
    if topic not in (TRANSACTION_TOPIC, OFFSETS_TOPIC):
        return {}
    try:
        found: Any = (
            decode_transaction(record.key, record.value)
            if topic == TRANSACTION_TOPIC
            else decode_group(record.key, record.value)
        )
    except WireError as error:
        return {"says": f"unknown: {error}"}
    return {"says": {name: msgspec.to_builtins(getattr(found, name)) for name in found.__struct_fields__}}
