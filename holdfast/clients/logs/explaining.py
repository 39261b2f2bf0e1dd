"""All that is known of one offset of a log: its batch, its record, and how its transaction ended."""

from __future__ import annotations

from holdfast.clients.logs.cells import (
    UNREADABLE,
    Cell,
    LocatedBatch,
    Transactions,
    batch_cells,
    broker_cells,
    record_cells,
)
from holdfast.config import Settings
from holdfast.core.kafka.compression import LIMIT_UNPACKED_BYTES
from holdfast.core.kafka.record_batch import BatchHeader, read_batch
from holdfast.core.kafka.unreadable import Unreadable
from holdfast.errors import TopicError, WireError
from holdfast.kafka.fetching.batch_at import BatchAt, Reading, batch_at
from holdfast.kafka.requests.raw_log import RawLog

LIMIT_AHEAD = 10_000
CONTROL_BYTES = 1 << 20


def batch_seen(data: bytes | memoryview, at: int, header: BatchHeader, *, records: bool) -> LocatedBatch:
    try:
        if header.is_control:
            return LocatedBatch(at, *read_batch(data, at, limit_bytes=CONTROL_BYTES))
        if records:
            return LocatedBatch(at, *read_batch(data, at))
    except WireError as error:
        return LocatedBatch(at, header, None, bare_error(error))
    reading = Reading(
        memoryview(data)[at : at + header.size_bytes], header.base_offset, limit_bytes=LIMIT_UNPACKED_BYTES
    )
    reading.run()
    return LocatedBatch(at, header, None, None if reading.error is None else bare_error(reading.error, at))


def bare_error(error: WireError, at: int = 0) -> WireError:
    """Return *error* as one of a file in which its bytes begin at *at*, and without the frames that hold on
    to them.
    """
    return WireError(str(error).partition(": ")[2], offset=at + error.offset, reason=error.reason)


async def fetch_explanation(
    settings: Settings, topic: str, partition: int, offset: int, timeout_s: float
) -> tuple[dict[str, Cell], Unreadable | None]:
    """Return all that is known of one offset: its batch, its record, and how its transaction ended; and what
    cannot be read, if it is that.
    """
    async with RawLog(settings, timeout_s=timeout_s) as log:
        # As much as a worker unpacks, but never more than a tool may take.
        limit_bytes = min(LIMIT_UNPACKED_BYTES, settings.unpacked_batch_bytes)
        held = await batch_at(log, topic, partition, offset, limit_bytes=limit_bytes)
        line, control = await _batch_line(log, topic, partition, held)
    fetched, found = held.fetched, held.unreadable
    readable = found is None or held.record is not None
    record = (
        None
        if held.record is None or held.header is None
        else record_cells(held.header, held.record) | broker_cells(topic, held.record)
    )
    return {
        "topic": topic,
        "partition": partition,
        "asked": offset,
        "committed_readers": _committed(
            line, offset, fetched.last_stable, control=control, readable=readable
        ),
        "unreadable": None
        if found is None
        else {
            "first": found.first,
            "last": found.last,
            "error": found.error,
            "reason": found.reason,
            "records_before": held.records,
        },
        "batch": line,
        "record": record,
        "log_start": fetched.log_start,
        "last_stable_offset": fetched.last_stable,
        "high_watermark": fetched.high_watermark,
    }, None if readable else found


async def _batch_line(log: RawLog, topic: str, partition: int, held: BatchAt) -> tuple[dict[str, Cell], bool]:
    """Return a batch as a line, and whether it is a control batch."""
    header = held.header
    if header is None:
        return _fragment(held.data), False
    seen = LocatedBatch(None, header, None, held.error)
    if header.is_control and held.error is None:
        seen = batch_seen(held.data, 0, header, records=True)
    transactions, unsure = Transactions(), ""
    if header.is_transactional and not header.is_control:
        unsure = await _find_end(log, topic, partition, header, transactions)
    line = batch_cells(seen, transactions)
    if unsure:
        line["transaction"] = unsure
    del line["position"]
    return line, header.is_control


def _fragment(data: memoryview) -> dict[str, Cell]:
    """Return the readable fields of a batch without a header of its format."""
    version = data[16] if len(data) > 16 else None
    return {
        "kind": UNREADABLE,
        "offset": int.from_bytes(data[:8], "big", signed=True) if len(data) >= 8 else None,
        "format": version,
    }


async def _find_end(
    log: RawLog, topic: str, partition: int, header: BatchHeader, transactions: Transactions
) -> str:
    """Look for the marker that follows a batch; return why it is not known whether there is one, else an
    empty text.
    """
    ahead = 0
    try:
        async for following, data in log.raw_batches(topic, partition, header.last_offset + 1):
            if following.is_control:
                transactions.add(read_batch(data, limit_bytes=CONTROL_BYTES)[1])
                if transactions.outcome(header)[1] is not None:
                    return ""
            ahead += 1
            if ahead >= LIMIT_AHEAD:
                return f"not ended within {LIMIT_AHEAD} batches"
    except TopicError:
        return ""  # no batch follows it yet
    except WireError as error:
        return f"unknown: {ahead + 1} batches on, {error}"
    return ""


def _committed(line: dict[str, Cell], offset: int, last_stable: int, *, control: bool, readable: bool) -> str:
    """Return the effect of an offset on readers of committed records."""
    ending = line.get("transaction")
    if control and readable:
        return "pass over it"
    if isinstance(ending, str) and ending.startswith("aborted"):
        return "never see it"
    if not readable:
        return "cannot read it"
    return "see it" if offset < last_stable else "wait for an open transaction"
