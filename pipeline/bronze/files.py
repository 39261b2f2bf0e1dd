"""The files of a bronze table, read without a JVM, each checked against what the table's log says of it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import google_crc32c
import numpy as np
import pyarrow as pa
from pyarrow import compute, parquet

from holdfast.errors import LakeError
from holdfast.pipeline.bronze.columns import shown_ms
from holdfast.pipeline.bronze.lake import ADDED_COLUMNS, open_table
from holdfast.pipeline.bronze.plain import as_type, plain_type
from holdfast.pipeline.topic import Span

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

READ_ROWS = 20_000
READ_BYTES = 32 << 20
_EXPANSION = 4  # of compressed columns, at a guess
_PER_MS = {"s": (1000, 1), "ms": (1, 1), "us": (1, 1_000), "ns": (1, 1_000_000)}

CHECKED_PAGES = "holdfast.checked-pages"
"""In the footer of a file whose pages all have checksums: how many bytes lie before the footer, and their
checksum. A program that writes the file again gives it other pages, and does not write this.
"""


NO_SCHEMA = pa.schema([])


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One file of a bronze table; *first* and *last* are its lowest and highest offset, None when its
    statistics are missing; so are *rows*, and *landed_ms*, when its last row was landed.
    """

    path: str
    first: int | None
    last: int | None
    latest_ms: float | None
    row_bytes: int
    rows: int | None = None
    size_bytes: int | None = None
    landed_ms: float | None = None

    @property
    def read_rows(self) -> int:
        """Return how many rows to read at once, so that large values do not fill the memory."""
        return max(16, min(READ_ROWS, READ_BYTES // max(1, self.row_bytes * _EXPANSION)))

    def touches(self, span: Span) -> bool:
        return self.first is None or self.last is None or (self.first < span.end and self.last >= span.first)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReader:
    """Reads files of the table *where* through *filesystem*; a file that is gone, damaged, or does not hold
    what the table's log says is a LakeError that names it.

    Rows come in the types of *schema* if a column is in it, else in plain types, however the file stores
    them. Checksums of pages are compared. A file without them is passed to *unchecked* before any of its rows
    are. An *exact* reader also compares rows, offsets and times with the log's statistics.
    """

    where: str
    filesystem: Any
    schema: pa.Schema = NO_SCHEMA
    exact: bool = False
    unchecked: Callable[[File], None] | None = None

    def rows(self, file: File, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file, with *columns* in this order; "timestamp_ms" is there in files of every
        age, and other columns that older landings did not have are null.
        """
        with self._opened(file) as opened:
            there = opened.schema_arrow.names
            names = [name for name in columns if name in there or not self._may_lack(name)]
            if "timestamp_ms" in columns and "timestamp_ms" not in there:
                names.append("timestamp")
            self._check_columns(file, there, names)
            yield from self._counted(file, self._read(file, opened, names, columns))

    def whole_rows(self, file: File) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file as they are, with the columns of `schema`; those that the file lacks are
        null.
        """
        with self._opened(file) as opened:
            names = [name for name in self.schema.names if name in opened.schema_arrow.names]
            yield from self._counted(file, self._whole(file, opened, names))

    def _may_lack(self, name: str) -> bool:
        """Return whether files of older landings may lack this column."""
        return name == "timestamp_ms" or (name in ADDED_COLUMNS and name in self.schema.names)

    def _check_columns(self, file: File, there: Sequence[str], wanted: Sequence[str]) -> None:
        if missing := [name for name in wanted if name not in there]:
            raise LakeError(f"{self.place(file)} has no column {missing[0]}: no landing wrote it")

    def _read(
        self, file: File, opened: ParquetFile, names: Sequence[str], columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        done = 0
        for batch in opened.iter_batches(file.read_rows, columns=list(dict.fromkeys(names))):
            if _lacks_times(batch, columns):
                break
            done += batch.num_rows
            yield self._told(file, batch, columns)
        else:
            return
        # Files joined with those of older landings: some rows have their time in the other column alone.
        self._check_columns(file, opened.schema_arrow.names, ["timestamp"])
        for batch in opened.iter_batches(file.read_rows, columns=list(dict.fromkeys([*names, "timestamp"]))):
            if done < batch.num_rows:
                yield self._told(file, batch.slice(done), columns)
            done = max(0, done - batch.num_rows)

    def _told(self, file: File, batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
        arrays = [
            self._times_ms(file, batch)
            if name == "timestamp_ms"
            else self._column(file, batch, name)
            if name in batch.schema.names
            else pa.nulls(batch.num_rows, self.schema.field(name).type)
            for name in columns
        ]
        return pa.RecordBatch.from_arrays(arrays, names=list(columns))

    def _whole(self, file: File, opened: ParquetFile, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for batch in opened.iter_batches(file.read_rows, columns=list(names)):
            arrays = [
                self._column(file, batch, field.name)
                if field.name in names
                else pa.nulls(batch.num_rows, field.type)
                for field in self.schema
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _column(self, file: File, batch: pa.RecordBatch, name: str) -> pa.Array:
        column = batch.column(name)
        at = self.schema.get_field_index(name)
        wanted = plain_type(column.type) if at < 0 else self.schema.field(at).type
        try:
            return as_type(column, wanted)
        except (pa.ArrowException, ValueError) as error:
            raise LakeError(
                f"{self.place(file)} has column {name} as {column.type}, which cannot be read as {wanted}"
                f" ({error}): no landing wrote it"
            ) from error

    def plain(self, file: File, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns of a batch of a file in the types of `schema`."""
        names = batch.schema.names
        return pa.RecordBatch.from_arrays([self._column(file, batch, name) for name in names], names=names)

    def _times_ms(self, file: File, batch: pa.RecordBatch) -> pa.Array:
        """Return Kafka's own timestamps; the number from the column `timestamp` where there is none."""
        if "timestamp_ms" not in batch.schema.names:
            return whole_ms(batch.column("timestamp"))
        told = self._column(file, batch, "timestamp_ms")
        if told.null_count == 0:
            return told
        return compute.coalesce(told, whole_ms(batch.column("timestamp")))

    def _counted(self, file: File, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield *batches*; LakeError at their end where they are not what the log says of the file."""
        if not self.exact:
            yield from batches
            return
        seen = _SeenRows()
        for batch in batches:
            seen.take(batch)
            yield batch
        if (why := seen.differs_from(file)) is not None:
            raise LakeError(f"{self.place(file)} {why}: file or log was changed by hand")

    @contextmanager
    def _opened(self, file: File) -> Iterator[ParquetFile]:
        with self.opened(file) as opened:
            if self.unchecked is not None and not has_checked_pages(opened, file):
                self.unchecked(file)
            yield opened

    @contextmanager
    def opened(self, file: File) -> Iterator[ParquetFile]:
        """Give the file itself; what Arrow raises while it is read becomes a LakeError that names it."""
        try:
            with self.filesystem.open_input_file(file.path) as source:
                opened = parquet.ParquetFile(source, page_checksum_verification=True)
                if file.rows is not None and opened.metadata.num_rows != file.rows:
                    raise LakeError(
                        f"{self.place(file)} has {opened.metadata.num_rows} rows, where the table's log says"
                        f" {file.rows}: it was changed by hand; put the file back as it was"
                    )
                yield opened
        except FileNotFoundError as error:
            from pyarrow.fs import FileType

            if self.filesystem.get_file_info("").type == FileType.NotFound:
                raise LakeError(
                    f"{self.where}: {os.uname().nodename} does not see this table: executors of a cluster"
                    " need a lake at the same path as the driver"
                ) from error
            raise LakeError(
                f"{self.place(file)} is gone: it was removed by hand, or by a vacuum while it was read. Run"
                " again; if it stays so, put the file back, or restore the table to a version without it and"
                " land again"
            ) from error
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise LakeError(f"{self.place(file)} cannot be read: {error}") from error

    def place(self, file: File) -> str:
        """Return where a file is, for people."""
        offsets = "" if file.first is None else f" (offsets {file.first} to {file.last})"
        return f"{self.where}: file {file.path}{offsets}"


@dataclass(slots=True)
class _SeenRows:
    """The totals of a file's rows, as far as they were read."""

    rows: int = 0
    first: int | None = None
    last: int | None = None
    latest_ms: int | None = None
    undated: int = 0

    def take(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        if batch.num_rows == 0:
            return
        if "offset" in batch.schema.names and batch.schema.field("offset").type == pa.int64():
            offsets = batch.column("offset").to_numpy(zero_copy_only=False)
            low, high = int(offsets.min()), int(offsets.max())
            self.first = low if self.first is None else min(self.first, low)
            self.last = high if self.last is None else max(self.last, high)
        if "timestamp_ms" not in batch.schema.names:
            return
        times_ms = batch.column("timestamp_ms")
        if times_ms.null_count:
            self.undated += times_ms.null_count
            return
        latest = int(shown_ms(times_ms.to_numpy()).max())
        self.latest_ms = latest if self.latest_ms is None else max(self.latest_ms, latest)

    def differs_from(self, file: File) -> str | None:
        """Say in what the log is not right about the file; None where it is."""
        if file.rows is not None and self.rows != file.rows:
            return f"has {self.rows} rows, where the table's log says {file.rows}"
        if None not in (self.first, file.first) and (self.first, self.last) != (file.first, file.last):
            return f"has offsets {self.first} to {self.last}, where the table's log says otherwise"
        if self.undated or self.latest_ms is None or file.latest_ms is None:
            return None
        # Spark's statistics are cut to ms, and those of other writers may be in microseconds.
        if abs(self.latest_ms - file.latest_ms) >= 1.5:
            latest = np.datetime64(self.latest_ms, "ms")
            return f"has records up to {latest}Z, where the table's log says otherwise"
        return None


def _lacks_times(batch: pa.RecordBatch, columns: Sequence[str]) -> bool:
    names = batch.schema.names
    if "timestamp_ms" not in columns or "timestamp_ms" not in names or "timestamp" in names:
        return False
    return bool(batch.column("timestamp_ms").null_count)


def has_checked_pages(opened: ParquetFile, file: File) -> bool:
    """Return whether all pages of a file have checksums: this package wrote it, and no other program has
    written it again.
    """
    told = told_bytes(opened)
    if told is None or file.size_bytes is None:
        return False
    return bool(told[0] == file.size_bytes - opened.metadata.serialized_size - 8)


def told_bytes(opened: ParquetFile) -> tuple[int, int] | None:
    """Return how many bytes lie before the footer of a file of this package, and their checksum (CRC-32C);
    None for another's.
    """
    told = (opened.metadata.metadata or {}).get(CHECKED_PAGES.encode(), b"")
    found = re.fullmatch(rb"(\d{1,18}) ([0-9a-f]{8})", told)
    return None if found is None else (int(found[1]), int(found[2], 16))


class SummedStream:
    """A stream that writes to *through*, and checksums the written bytes."""

    def __init__(self, through: Any) -> None:
        self._through, self._sum = through, 0
        self.closed = False

    def write(self, content: Any) -> int:
        self._sum = int(google_crc32c.extend(self._sum, bytes(content)))
        return int(self._through.write(content))

    def tell(self) -> int:
        return int(self._through.tell())

    def flush(self) -> None:
        self._through.flush()

    def close(self) -> None:
        self.closed = True

    def told(self) -> str:
        """Return the value of `CHECKED_PAGES`, once all before the footer is written."""
        return f"{self.tell()} {self._sum:08x}"


def whole_ms(column: pa.Array) -> pa.Array:
    """Return timestamps of any unit as whole ms, rounded down.

    The unit is read from the type: a file written as INT96 comes back in nanoseconds, and taking those for
    microseconds would give other states without any error.

    >>> [whole_ms(pa.array([1_999], pa.timestamp(unit, "UTC")))[0].as_py() for unit in ("s", "ms", "us", "ns")]
    [1999000, 1999, 1, 0]
    """  # noqa: E501
    times, per = _PER_MS[column.type.unit]
    return pa.array(column.cast(pa.int64()).to_numpy(zero_copy_only=False) * times // per, pa.int64())


def filesystem_of(uri: str) -> Any:
    """Return Arrow's file system whose root is the table at *uri*, as delta-rs names it."""
    from pyarrow import fs

    if is_local(uri):
        return fs.SubTreeFileSystem(unquote(uri.removeprefix("file://")), fs.LocalFileSystem())
    if uri.startswith("s3://"):
        return fs.SubTreeFileSystem(uri.removeprefix("s3://").rstrip("/"), _s3())
    from deltalake.fs import DeltaStorageHandler

    return fs.PyFileSystem(DeltaStorageHandler.from_table(open_table(uri)._table))


def _s3() -> Any:
    """Return Arrow's own client of S3, set up as delta-rs is. That of delta-rs keeps Python's lock while it
    waits, and two threads that write through it wait for each other for ever.
    """
    from pyarrow import fs

    scheme, _, host = os.environ.get("AWS_ENDPOINT_URL", "").rpartition("://")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not host:
        return fs.S3FileSystem(region=region)
    return fs.S3FileSystem(region=region, endpoint_override=host, scheme=scheme or "https")


def is_local(uri: str) -> bool:
    """Return whether a table is in the file system of this machine."""
    return uri.startswith(("/", "file://"))


def is_s3(uri: str) -> bool:
    """Return whether a lake or table is in S3, or in a store that speaks as S3 does.

    >>> is_s3("s3a://lake"), is_s3("s3://lake"), is_s3("hdfs://lake")
    (True, True, False)
    """
    return uri.startswith(("s3://", "s3a://"))


def takes_writers(uri: str) -> bool:
    """Return whether several threads of this process may write files of tables at *uri* at once: those that
    write through delta-rs itself may wait for each other for ever.
    """
    return is_local(uri) or is_s3(uri)


def remove(filesystem: Any, paths: Sequence[str]) -> None:
    """Remove files that no commit names, as far as that is possible: a vacuum takes the others."""
    for path in paths:
        try:
            filesystem.delete_file(path)
        except OSError:
            continue
