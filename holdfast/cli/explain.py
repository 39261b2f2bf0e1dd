"""`holdfast explain`: record batches as they lie in a log, with producers, sequences, transactions and control records."""

from __future__ import annotations

import asyncio
import json
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from holdfast.cli.context import output_of, settings_of
from holdfast.cli.output import Cell, Output, note, show, show_json
from holdfast.config import Settings
from holdfast.core.broker_logs import OFFSETS_TOPIC, TRANSACTION_TOPIC, decode_group, decode_transaction
from holdfast.core.record_batch import (
    HEADER_BYTES,
    BatchFields,
    BatchHeader,
    ControlType,
    Record,
    RecordBatch,
    control_of,
    decode_header,
    read_batch,
)
from holdfast.core.stamps import read_stamp
from holdfast.errors import ConfigError, DecodeError, TopicError, WireError

COLUMNS = (
    *("offset", "last_offset", "time", "records", "bytes", "compression"),
    *("producer_id", "epoch", "sequence", "last_sequence", "kind", "transaction"),
)
FIELDS = (*COLUMNS, "position", "leader_epoch", "coordinator_epoch", "crc32c", "log_append_time")
"""What every batch has in JSON; None where it does not apply."""

LIMIT_BATCHES = 1_000
LIMIT_AHEAD = 10_000
SHOWN_BYTES = 200

app = typer.Typer(rich_markup_mode=None, help="Show record batches as they lie in the log.")


@dataclass(frozen=True, slots=True)
class Seen:
    """One batch and where it begins in its file; None for one that was fetched."""

    position: int | None
    header: BatchHeader
    batch: RecordBatch


class Transactions:
    """How the transactions of a log end: markers by producer, in the order of the log."""

    def __init__(self) -> None:
        self._markers: dict[int, list[tuple[int, ControlType]]] = {}

    def add(self, batch: RecordBatch) -> None:
        """Take in a batch; only markers count."""
        for _, kind, _ in markers_of(batch):
            self._markers.setdefault(batch.producer_id, []).append((batch.base_offset, kind))

    def outcome(self, batch: BatchFields) -> tuple[str, int | None]:
        """Return how the transaction that *batch* belongs to ended, and the offset of its marker; open when there is none."""
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


# -- what is shown


def _at(at_ms: int) -> str | None:
    """Return a time in UTC as people read it.

    >>> _at(1_520_810_318_475), _at(-1)
    ('2018-03-11T23:18:38.475Z', None)
    """
    if at_ms < 0:
        return None
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return f"@{at_ms}"


def kind_of(batch: RecordBatch) -> tuple[str, int | None]:
    """Return what a batch is, and the coordinator's epoch for a marker: data, transactional, commit, abort or another control record."""
    if not batch.is_control:
        return ("transactional" if batch.is_transactional else "data"), None
    if not batch.records:
        return "control, cleaned", None
    control = control_of(batch, batch.records[0])
    return control.type.name.lower().replace("_", "-"), control.coordinator_epoch


def batch_cells(seen: Seen, transactions: Transactions) -> dict[str, Cell]:
    """Return one batch as a line of the result."""
    header, batch = seen.header, seen.batch
    kind, coordinator_epoch = kind_of(batch)
    ending: str | None = None
    if kind == "transactional":
        outcome, marker = transactions.outcome(batch)
        ending = outcome if marker is None else f"{outcome} at {marker}"
    known = batch.producer_id >= 0
    return {
        "offset": batch.base_offset,
        "last_offset": batch.last_offset,
        "time": _at(batch.max_timestamp_ms),
        "records": len(batch.records),
        "bytes": header.size_bytes,
        "compression": batch.compression.name.lower(),
        "producer_id": batch.producer_id if known else None,
        "epoch": batch.producer_epoch if known else None,
        "sequence": batch.base_sequence if batch.base_sequence >= 0 else None,
        "last_sequence": batch.last_sequence if batch.base_sequence >= 0 else None,
        "kind": kind,
        "transaction": ending,
        "position": seen.position,
        "leader_epoch": batch.partition_leader_epoch,
        "coordinator_epoch": coordinator_epoch,
        "crc32c": f"{header.crc32c:08x}",
        "log_append_time": batch.is_log_append_time,
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


def record_cells(batch: RecordBatch, record: Record) -> dict[str, Cell]:
    """Return one record as part of the result; *sequence* is the broker's, *stamp* holdfast's own."""
    sequence = None if batch.base_sequence < 0 else batch.base_sequence + record.offset_delta & 0x7FFFFFFF
    try:
        found = read_stamp(record.headers)
        stamp: Cell = None if found is None else {"producer": found.producer, "epoch": found.epoch, "sequence": found.sequence}
    except DecodeError as error:
        stamp = f"broken: {error}"
    return {
        "offset": batch.base_offset + record.offset_delta,
        "time": _at(batch.timestamp_ms(record)),
        "sequence": sequence,
        "key": _shown(record.key),
        "value": _shown(record.value),
        "headers": [f"{name}={_shown(value)}" for name, value in record.headers],
        "stamp": stamp,
    }


def broker_cells(topic: str, record: Record) -> dict[str, Cell]:
    """Return what a record of one of the broker's own logs says; nothing for others."""
    if topic not in (TRANSACTION_TOPIC, OFFSETS_TOPIC):
        return {}
    try:
        found: Any = decode_transaction(record.key, record.value) if topic == TRANSACTION_TOPIC else decode_group(record.key, record.value)
    except WireError as error:
        return {"says": f"unknown: {error}"}
    return {"says": {name: msgspec.to_builtins(getattr(found, name)) for name in found.__struct_fields__}}


# -- a segment file


def read_segment(data: bytes | memoryview, *, first: int = 0) -> Iterator[Seen]:
    """Yield the batches of a segment that hold offsets from *first* on. A segment may end in zeros, as brokers allocate them ahead."""
    at, size = 0, len(data)
    while size - at >= HEADER_BYTES:
        if not any(data[at : at + 17]):
            return  # allocated, not written
        header = decode_header(data, at)
        if header.last_offset >= first or header.is_control:
            yield Seen(at, *read_batch(data, at))
        at += header.size_bytes
    if at < size and any(data[at:]):
        raise WireError(f"a batch is cut short: {size - at} bytes at the end of the file", offset=at)


def _explain_segment(path: Path, first: int, limit: int, records: bool, output: Output) -> None:
    try:
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                show([], COLUMNS, output)
                note(f"{path} is empty")
                return
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                view = memoryview(mapped)
                try:
                    _show_segment(view, first, limit, records, output)
                finally:
                    view.release()
    except OSError as error:
        raise ConfigError(f"--segment {path}: {error.strerror}; name a .log file of a broker's data folder") from error


def _show_segment(view: memoryview, first: int, limit: int, records: bool, output: Output) -> None:
    """Show a segment in two passes: how a transaction ends stands behind it. What lies before a broken batch is shown all the same."""
    transactions, broken = Transactions(), None
    try:
        for seen in read_segment(view, first=first):
            transactions.add(seen.batch)
    except WireError as error:
        broken = error
    found: list[Seen] = []
    more = False
    try:
        for seen in read_segment(view, first=first):
            if seen.batch.last_offset < first:
                continue
            if len(found) == limit:
                more = True
                break
            found.append(seen)
    except WireError:
        pass  # the same as in the first pass, told below
    _show(found, transactions, records, output)
    if more:
        note(f"there are more than {limit} batches: go on with --from {found[-1].batch.last_offset + 1}, or set --limit")
    if broken is not None and not more:
        raise broken


def _show(found: Sequence[Seen], transactions: Transactions, records: bool, output: Output) -> None:
    lines = [batch_cells(seen, transactions) for seen in found]
    if output is Output.JSON:
        if records:
            lines = [
                {**line, "content": [record_cells(seen.batch, each) for each in seen.batch.records]}
                for line, seen in zip(lines, found, strict=True)
            ]
        show_json(lines)
        return
    show(lines, COLUMNS, output)
    if records:
        print()
        content = [record_cells(seen.batch, each) for seen in found if not seen.batch.is_control for each in seen.batch.records]
        show(content, ("offset", "time", "sequence", "key", "value", "headers"), output)


# -- an offset of a topic


async def fetch_explanation(settings: Settings, topic: str, partition: int, offset: int, timeout_s: float) -> dict[str, Cell]:
    """Return all that is known of one offset: its batch, its record, and how its transaction ended."""
    from holdfast.kafka.raw_log import RawLog

    transactions, ahead = Transactions(), 0
    async with RawLog(settings, timeout_s=timeout_s) as log:
        fetched = await log.fetch(topic, partition, offset)
        held: Seen | None = None
        async for header, batch in log.batches(topic, partition, offset):
            if held is None:
                held = Seen(None, header, batch)
            transactions.add(batch)
            ahead += 1
            if (
                not held.batch.is_transactional
                or held.batch.is_control
                or transactions.outcome(held.batch)[1] is not None
                or ahead >= LIMIT_AHEAD
            ):
                break
    if held is None or held.batch.base_offset > offset:
        after = "" if held is None else f"; the next batch begins at {held.batch.base_offset}"
        raise TopicError(
            f"{topic} partition {partition}: offset {offset} is not in the log (it holds {fetched.log_start} to "
            f"{fetched.high_watermark - 1}), or compaction has removed it{after}"
        )
    line = batch_cells(held, transactions)
    if line["transaction"] == "open" and ahead >= LIMIT_AHEAD:
        line["transaction"] = f"not ended within {LIMIT_AHEAD} batches"
    record = next((each for each in held.batch.records if held.batch.base_offset + each.offset_delta == offset), None)
    del line["position"]
    return {
        "topic": topic,
        "partition": partition,
        "asked": offset,
        "committed_readers": _committed(line["transaction"], held.batch, offset, fetched.last_stable),
        "batch": line,
        "record": None if record is None or held.batch.is_control else {**record_cells(held.batch, record), **broker_cells(topic, record)},
        "log_start": fetched.log_start,
        "last_stable_offset": fetched.last_stable,
        "high_watermark": fetched.high_watermark,
    }


def _committed(ending: Cell, batch: RecordBatch, offset: int, last_stable: int) -> str:
    """Return what readers of committed records make of an offset."""
    if batch.is_control:
        return "pass over it"
    if isinstance(ending, str) and ending.startswith("aborted"):
        return "never see it"
    return "see it" if offset < last_stable else "wait for an open transaction"


def _show_explanation(found: dict[str, Cell], output: Output) -> None:
    if output is Output.JSON:
        show_json(found)
        return
    lines: list[dict[str, Cell]] = []
    for name, cell in found.items():
        if isinstance(cell, dict):
            lines += [{"name": f"{name}.{inner}".replace("_", "-"), "value": value} for inner, value in cell.items() if value is not None]
        else:
            lines.append({"name": name.replace("_", "-"), "value": cell})
    show([{"name": line["name"], "value": _one_line(line["value"])} for line in lines], ("name", "value"), output)


def _one_line(cell: Cell) -> Cell:
    return json.dumps(cell, ensure_ascii=False) if isinstance(cell, dict | list) else cell


# -- the command


@app.command(help="Show the batches of a segment file (--segment FILE), or everything known about one offset (TOPIC PARTITION OFFSET).")
def explain(
    context: typer.Context,
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC")] = None,
    partition: Annotated[int | None, typer.Argument(metavar="PARTITION", min=0)] = None,
    offset: Annotated[int | None, typer.Argument(metavar="OFFSET", min=0)] = None,
    segment: Annotated[Path | None, typer.Option("--segment", metavar="FILE", help="A .log file of a broker's data folder.")] = None,
    first: Annotated[int, typer.Option("--from", min=0, metavar="OFFSET", help="Of a segment, begin at this offset.")] = 0,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="Of a segment, show at most so many batches.")] = LIMIT_BATCHES,
    records: Annotated[bool, typer.Option("--records", help="Of a segment, show the records too.")] = False,
    timeout: Annotated[float, typer.Option("--timeout", min=0.1, max=600, help="Longest wait for an answer, in seconds.")] = 10.0,
) -> None:
    output = output_of(context)
    if segment is not None:
        if topic is not None:
            raise ConfigError("give either --segment FILE or TOPIC PARTITION OFFSET, not both")
        _explain_segment(segment, first, limit, records, output)
        return
    if topic is None or partition is None or offset is None:
        raise ConfigError("name an offset as TOPIC PARTITION OFFSET, or a file with --segment FILE")
    _show_explanation(asyncio.run(fetch_explanation(settings_of(context), topic, partition, offset, timeout)), output)
