"""The files of a bronze table, read without a JVM, each checked against what the table's log says of it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import compute, parquet

from holdfast.errors import LakeError
from holdfast.pipeline.bronze.lake import open_table
from holdfast.pipeline.topic import Span

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

READ_ROWS = 20_000
READ_BYTES = 32 << 20
_EXPANSION = 4  # of compressed columns, at a guess
_PER_MS = {"s": (1000, 1), "ms": (1, 1), "us": (1, 1_000), "ns": (1, 1_000_000)}


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
    """

    where: str
    filesystem: Any

    def rows(self, file: File, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file; "timestamp_ms" is there in files of every age."""
        with self._opened(file) as opened:
            schema = opened.schema_arrow
            names = [name for name in columns if name != "timestamp_ms" or _tells_ms(opened)]
            if "timestamp_ms" in columns and not _all_tell_ms(opened):
                names.append("timestamp")
            missing = [name for name in names if name not in schema.names]
            if missing:
                raise LakeError(f"{self._place(file)} has no column {missing[0]}: no landing wrote it")
            for batch in opened.iter_batches(file.read_rows, columns=list(dict.fromkeys(names))):
                yield _with_ms(batch, columns)

    @contextmanager
    def _opened(self, file: File) -> Iterator[ParquetFile]:
        try:
            with self.filesystem.open_input_file(file.path) as source:
                opened = parquet.ParquetFile(source)
                if file.rows is not None and opened.metadata.num_rows != file.rows:
                    raise LakeError(
                        f"{self._place(file)} has {opened.metadata.num_rows} rows, where the table's log says"
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
                f"{self._place(file)} is gone: it was removed by hand, or by a vacuum while it was read. Run"
                " again; if it stays so, put the file back, or restore the table to a version without it and"
                " land again"
            ) from error
        except (pa.ArrowInvalid, OSError) as error:
            raise LakeError(f"{self._place(file)} cannot be read: {error}") from error

    def _place(self, file: File) -> str:
        offsets = "" if file.first is None else f" (offsets {file.first} to {file.last})"
        return f"{self.where}: file {file.path}{offsets}"


def _tells_ms(opened: ParquetFile) -> bool:
    return "timestamp_ms" in opened.schema_arrow.names


def _all_tell_ms(opened: ParquetFile) -> bool:
    """Tell whether every row has Kafka's own timestamp: files of older landings have none, and files joined
    with those have some.
    """
    if not _tells_ms(opened):
        return False
    at, meta = opened.schema_arrow.names.index("timestamp_ms"), opened.metadata
    groups = [meta.row_group(group) for group in range(meta.num_row_groups)]
    names = [groups[0].column(column).path_in_schema for column in range(meta.num_columns)] if groups else []
    column = names.index("timestamp_ms") if names else at
    stats = [group.column(column).statistics for group in groups]
    return all(each is not None and each.has_null_count and each.null_count == 0 for each in stats)


def _with_ms(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Return *columns* of a batch, with the number from the timestamp where there is none."""
    if "timestamp_ms" not in columns or "timestamp" not in batch.schema.names:
        return batch
    ms = whole_ms(batch.column("timestamp"))
    if "timestamp_ms" in batch.schema.names:
        ms = compute.coalesce(batch.column("timestamp_ms"), ms)
    arrays = [ms if name == "timestamp_ms" else batch.column(name) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


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
    """Tell whether a table is in the file system of this machine."""
    return uri.startswith(("/", "file://"))


def is_s3(uri: str) -> bool:
    """Tell whether a lake or table is in S3, or in a store that speaks as S3 does.

    >>> is_s3("s3a://lake"), is_s3("s3://lake"), is_s3("hdfs://lake")
    (True, True, False)
    """
    return uri.startswith(("s3://", "s3a://"))


def remove(filesystem: Any, paths: Sequence[str]) -> None:
    """Remove files that no commit names, as far as that is possible: a vacuum takes the others."""
    for path in paths:
        try:
            filesystem.delete_file(path)
        except OSError:
            continue
