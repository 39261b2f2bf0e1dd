"""Each file of a bronze table read for itself, with all its columns: whether its rows can be read, whether
what the log and the file's footer say of them is so, and whether columns that follow from others do.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import google_crc32c
import pyarrow as pa
from pyarrow import compute

from holdfast.errors import LakeError
from holdfast.pipeline.bronze.columns import DERIVED, FILE_SCHEMA, untrue
from holdfast.pipeline.bronze.faults import FaultKind, LakeFault
from holdfast.pipeline.bronze.files import File, FileReader, has_checked_pages, told_bytes
from holdfast.pipeline.bronze.layout import Segment

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

_NUMBERS = ("offset", "timestamp", "timestamp_type", "timestamp_ms", "landed_at", "date", "leader_epoch")
_BYTES = ("key", "value")
_READ_BYTES = 1 << 20
_SEARCHED = (*_NUMBERS, *_BYTES)
_EPOCH = date(1970, 1, 1).toordinal()
_PER_US = {"s": 1_000_000, "ms": 1_000, "us": 1}
_CUT_US = 1_000
"""The most us by which statistics of timestamps may be off: Delta's are in ms."""


@dataclass(slots=True)
class Bounds:
    """The least and the greatest value of a column, as numbers or bytes, and how many are null."""

    least: Any = None
    greatest: Any = None
    nulls: int = 0

    def take(self, column: pa.Array) -> None:
        self.nulls += column.null_count
        found = compute.min_max(column).as_py()
        self.widen(found["min"], found["max"])

    def widen(self, least: Any, greatest: Any) -> None:
        if least is not None:
            self.least = least if self.least is None else min(self.least, least)
            self.greatest = greatest if self.greatest is None else max(self.greatest, greatest)


@dataclass(slots=True)
class _FoundRows:
    """The facts found in the rows of a file: *wrong* are the offsets of rows with a wrong value in a column,
    by the column's name.
    """

    bounds: dict[str, Bounds] = field(default_factory=dict)
    wrong: dict[str, list[int]] = field(default_factory=dict)
    rows: int = 0

    def note(self, name: str, offsets: Any, wrong: Any) -> None:
        if wrong.any():
            self.wrong.setdefault(name, []).extend(offsets[wrong].tolist())


def file_faults(
    reader: FileReader, partition: int, file: File, told: Mapping[str, Any], segments: Sequence[Segment]
) -> Iterator[LakeFault]:
    """Yield the faults of one file; *told* is the log's entry on it, as delta-rs gives it, and *segments* are
    the landed segments of its partition.
    """
    fault = _FaultsOf(reader, partition, file)
    found, ours = _FoundRows(), False
    try:
        with reader.opened(file) as opened:
            ours = has_checked_pages(opened, file)
            yield from _byte_faults(fault, opened)
            if missing := [f.name for f in FILE_SCHEMA if f.name not in opened.schema_arrow.names]:
                yield from _lacking(fault, missing, segments, file)
            for group in range(opened.metadata.num_row_groups):
                yield from _group_faults(fault, opened, group, found, segments)
    except LakeError as error:
        yield fault.of("unreadable", str(error))
        return
    for name, offsets in found.wrong.items():
        yield fault.of(
            "changed",
            f"{reader.place(file)} has {len(offsets)} rows, the first at offset {min(offsets)}, whose {name}"
            " is not what was landed",
            min(offsets),
            max(offsets),
        )
    yield from _log_faults(fault, told, found)
    if ours:
        yield from _untold(fault, told, found)


def _byte_faults(fault: _FaultsOf, opened: ParquetFile) -> Iterator[LakeFault]:
    """Yield where the bytes of a file that this package wrote are others than it wrote."""
    told = told_bytes(opened)
    if told is None:
        return
    left, found = told[0], 0
    with fault.reader.filesystem.open_input_stream(fault.file.path) as stream:
        while left > 0 and (some := stream.read(min(left, _READ_BYTES))):
            found = int(google_crc32c.extend(found, some))
            left -= len(some)
    if left or found != told[1]:
        where = fault.reader.place(fault.file)
        yield fault.of(
            "file", f"{where} has other bytes than were written: it was damaged, or changed by hand"
        )


def _untold(fault: _FaultsOf, told: Mapping[str, Any], found: _FoundRows) -> Iterator[LakeFault]:
    """Yield of which columns of a file of this package the log has lost the statistics."""
    lost = list[str]()
    for name in _NUMBERS:
        if (bounds := found.bounds.get(name)) is None:
            continue
        wanted = ["null_count"] if bounds.least is None else ["null_count", "min", "max"]
        lost += [name] if any(told.get(f"{each}.{name}") is None for each in wanted) else []
    if told.get("num_records") is None:
        lost.append("the number of rows")
    if lost:
        where = fault.reader.place(fault.file)
        said = f"the table's log does not tell of {', '.join(lost)} any more: it was changed by hand"
        yield fault.of("statistics", f"{where}: {said}")


@dataclass(slots=True)
class _FaultsOf:
    reader: FileReader
    partition: int
    file: File

    def of(self, kind: FaultKind, told: str, first: int | None = None, last: int | None = None) -> LakeFault:
        return LakeFault(
            kind=kind,
            table=self.reader.where,
            partition=self.partition,
            first=self.file.first if first is None else first,
            last=self.file.last if last is None else last,
            file=self.file.path,
            told=told,
        )


def _lacking(
    fault: _FaultsOf, missing: Sequence[str], segments: Sequence[Segment], file: File
) -> Iterator[LakeFault]:
    """Yield which columns a file lacks that its rows were landed with."""
    newer = any(each.columns > 1 for each in segments if _holds(each, file))
    oldest = {"offset", "timestamp", "timestamp_type", "key", "value", "headers"}
    for name in missing:
        if newer or name in oldest:
            yield fault.of("changed", f"{fault.reader.place(file)} has no column {name}: no landing wrote it")


def _holds(segment: Segment, file: File) -> bool:
    if file.first is None or file.last is None:
        return True
    return segment.first <= file.last and file.first < segment.end


def _group_faults(
    fault: _FaultsOf, opened: ParquetFile, group: int, found: _FoundRows, segments: Sequence[Segment]
) -> Iterator[LakeFault]:
    """Read one row group, and yield where the footer's statistics of it are not so."""
    names = [name for name in FILE_SCHEMA.names if name in opened.schema_arrow.names]
    bounds = {name: Bounds() for name in _SEARCHED if name in names}
    rows = 0
    for batch in opened.iter_batches(fault.file.read_rows, row_groups=[group], columns=names):
        rows += batch.num_rows
        for name, each in bounds.items():
            each.take(_searched(batch.column(name)))
        _note_wrong(fault, batch, found, segments)
    meta = opened.metadata.row_group(group)
    where = f"{fault.reader.place(fault.file)} row group {group}"
    if meta.num_rows != rows:
        yield fault.of("statistics", f"{where} has {rows} rows, where its footer says {meta.num_rows}")
    for at in range(meta.num_columns):
        # Only of columns that were read: for a wrongly described one, Arrow ends the process.
        if (name := opened.schema.column(at).path) not in bounds:
            continue
        if (why := _footer_fault(meta.column(at).statistics, bounds[name], name)) is not None:
            yield fault.of("statistics", f"{where}: its footer says of {name} {why}")
    found.rows += rows
    for name, each in bounds.items():
        unit = _unit(opened.schema_arrow.field(name).type)
        whole = found.bounds.setdefault(name, Bounds())
        whole.nulls += each.nulls
        whole.widen(_scaled(each.least, unit), _scaled(each.greatest, unit))


def _searched(column: pa.Array) -> pa.Array:
    """Return a column as its footer's statistics count: times and days as numbers."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        return column.cast(pa.int64())
    if pa.types.is_date32(kind):
        return column.cast(pa.int32())
    if pa.types.is_dictionary(kind):
        return _searched(column.dictionary_decode())
    return column.cast(pa.binary()) if pa.types.is_binary_view(kind) else column


def _unit(kind: pa.DataType) -> str | None:
    return str(kind.unit) if pa.types.is_timestamp(kind) else None


def _scaled(value: Any, unit: str | None) -> Any:
    """Return a time in microseconds."""
    if value is None or unit is None:
        return value
    return value // 1000 if unit == "ns" else value * _PER_US[unit]


def _note_wrong(
    fault: _FaultsOf, batch: pa.RecordBatch, found: _FoundRows, segments: Sequence[Segment]
) -> None:
    """Note rows whose columns are not what others make of them, or their commit says."""
    if "offset" not in batch.schema.names or "timestamp_ms" not in batch.schema.names:
        return
    plain = fault.reader.plain(fault.file, batch)
    offsets = plain.column("offset").to_numpy(zero_copy_only=False)
    for name in DERIVED:
        if name in plain.schema.names:
            found.note(name, offsets, untrue(plain, name))
    if len(offsets):
        ends = [each.end for each in segments]
        first, last = (bisect_right(ends, int(each)) for each in (offsets.min(), offsets.max()))
        for segment in segments[first : last + 1]:
            _note_unlike(found, plain, offsets, segment)


def _note_unlike(found: _FoundRows, rows: pa.RecordBatch, offsets: Any, segment: Segment) -> None:
    inside = (offsets >= segment.first) & (offsets < segment.end)
    if segment.columns > 1:
        lacking = rows.column("timestamp_ms").is_null().to_numpy(zero_copy_only=False)
        found.note("timestamp_ms", offsets, inside & lacking)
    if segment.landed_at_ms is not None and "landed_at" in rows.schema.names:
        want = pa.scalar(segment.landed_at_ms * 1000, pa.timestamp("us", "UTC"))
        wrong = compute.not_equal(rows.column("landed_at"), want).fill_null(True)
        found.note("landed_at", offsets, inside & wrong.to_numpy(zero_copy_only=False))


def _footer_fault(told: Any, bounds: Bounds, name: str) -> str | None:
    """Return the fault of statistics in a footer; those of bytes may be cut, and are bounds alone."""
    if told is None:
        return None
    if told.has_null_count and told.null_count != bounds.nulls:
        return f"that {told.null_count} are null, and {bounds.nulls} are"
    if not told.has_min_max:
        return None
    if bounds.least is None:
        return "that it has values, and it has none"
    least, greatest = told.min_raw, told.max_raw
    if name in _BYTES:
        least, greatest = (each.encode() if isinstance(each, str) else each for each in (least, greatest))
        wrong = least > bounds.least or greatest < bounds.greatest
    else:
        wrong = (least, greatest) != (bounds.least, bounds.greatest)
    return f"{told.min!r} to {told.max!r}, and its rows say otherwise" if wrong else None


def _log_faults(fault: _FaultsOf, told: Mapping[str, Any], found: _FoundRows) -> Iterator[LakeFault]:
    """Yield where the table's log says something else of a file's columns than its rows."""
    where = fault.reader.place(fault.file)
    for name, bounds in found.bounds.items():
        nulls, least, greatest = (told.get(f"{what}.{name}") for what in ("null_count", "min", "max"))
        if isinstance(nulls, int) and nulls != bounds.nulls:
            said = f"{nulls} are null, and {bounds.nulls} are"
            yield fault.of("statistics", f"{where}: the table's log says of {name} that {said}")
        if name in _BYTES:
            continue
        for what, value, is_so in (("least", least, bounds.least), ("greatest", greatest, bounds.greatest)):
            if value is None or _are_one(value, is_so):
                continue
            yield fault.of(
                "statistics",
                f"{where}: the table's log says that the {what} {name} is {value}, and its rows say"
                " otherwise: programs that search by it miss rows, or read too many",
            )


def _are_one(told: Any, found: Any) -> bool:
    """Return whether a value of the log's statistics is that of the rows, in the numbers of `Bounds`."""
    if found is None:
        return False
    if isinstance(told, datetime):
        at_us = round((told.replace(tzinfo=None) - datetime(1970, 1, 1)).total_seconds() * 1_000_000)
        return bool(abs(at_us - found) < _CUT_US)
    if isinstance(told, date):
        return bool(told.toordinal() - _EPOCH == found)
    return bool(told == found)
