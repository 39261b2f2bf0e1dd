"""The rows of derived tables that touch a time, read in this process or by Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from deltalake.exceptions import DeltaError
from pyarrow import compute, dataset

from holdfast.errors import LakeError
from holdfast.pipeline.bronze.lake import open_table
from holdfast.pipeline.derived.table import time_at
from holdfast.pipeline.spark.errors import explained
from holdfast.pipeline.spark.session import SparkOptions, open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIMIT_ROWS = 200_000
"""The most rows of one table that are looked at; a page of more is of no use."""
THIN_ROWS = 1 << 19
"""The number of rows that are held before they are thinned."""
DerivedRow = dict[str, Any]
SliceEngine = Literal["local", "spark"]


@dataclass(frozen=True, slots=True)
class Thinned:
    """The last of the rows with the same *keys* in each part of *part_ms* from the beginning of the slice:
    that with the latest time in the column *by*.

    So a row by the minute for each of a thousand partitions stays a page's worth. *values* are the other
    columns that are kept.
    """

    keys: tuple[str, ...]
    values: tuple[str, ...]
    by: str
    part_ms: int


@dataclass(frozen=True, slots=True)
class TimeSlice:
    """The rows of a table that begin before *to_ms*, by the column *begins*, and are not over by *from_ms*,
    by the column *ends*; those that are current are not over.
    """

    begins: str
    ends: str
    from_ms: int
    to_ms: int
    thinned: Thinned | None = None

    @property
    def bounds(self) -> tuple[datetime, datetime]:
        return time_at(self.from_ms), time_at(self.to_ms)


@dataclass(frozen=True, slots=True)
class TooManyRows:
    """A slice that is not looked at: it has so many *rows*, more than LIMIT_ROWS."""

    rows: int


SliceReader = Callable[[str, TimeSlice], list[DerivedRow] | TooManyRows]
"""Reads a slice of the table at a path."""


@contextmanager
def slice_reader(engine: SliceEngine, spark: SparkOptions) -> Iterator[SliceReader]:
    """Give what reads slices; both engines give the same rows, in any order."""
    if engine == "local":
        yield read_here
        return
    with open_session(spark) as session:
        yield lambda path, of: read_on_spark(session, path, of)


def read_here(path: str, of: TimeSlice) -> list[DerivedRow] | TooManyRows:
    """Return the rows of a slice; LakeError for a table that cannot be read."""
    begin, end = of.bounds
    ends = compute.field(of.ends)
    wanted = (compute.field(of.begins) < end) & (compute.field("is_current") | (ends >= begin))
    try:
        files: dataset.Dataset = open_table(path).to_pyarrow_dataset()
        if of.thinned is None:
            if (rows := files.count_rows(filter=wanted)) > LIMIT_ROWS:
                return TooManyRows(rows)
            found = files.to_table(filter=wanted)
        else:
            found = _thinned_files(files, wanted, of.from_ms, of.thinned)
        return found.to_pylist() if found.num_rows <= LIMIT_ROWS else TooManyRows(found.num_rows)
    except (DeltaError, OSError) as error:
        raise LakeError(f"{path} cannot be read: {error}") from error


def _thinned_files(
    files: dataset.Dataset, wanted: compute.Expression, from_ms: int, how: Thinned
) -> pa.Table:
    """Return the rows that are kept, a part at a time: a day by the minute may be more than memory takes."""
    columns = [*how.keys, how.by, *how.values]
    kept, rows = [files.schema.empty_table().select(columns)], 0
    for batch in files.to_batches(filter=wanted, columns=columns):
        kept.append(pa.Table.from_batches([batch]))
        rows += batch.num_rows
        if rows >= THIN_ROWS:
            kept, rows = [_thinned(pa.concat_tables(kept), from_ms, how).select(columns)], 0
    return _thinned(pa.concat_tables(kept), from_ms, how)


def _thinned(table: pa.Table, from_ms: int, how: Thinned) -> pa.Table:
    ms = compute.divide(compute.cast(table.column(how.by), pa.int64()), 1000)
    part = compute.divide(compute.subtract(ms, from_ms), how.part_ms)
    ordered = table.append_column("part", part).sort_by(how.by)
    keep_nulls = compute.ScalarAggregateOptions(skip_nulls=False)
    kept = (how.by, *how.values)
    found = ordered.group_by([*how.keys, "part"], use_threads=False).aggregate(
        [(name, "last", keep_nulls) for name in kept]
    )
    return found.rename_columns({f"{name}_last": name for name in kept})


def read_on_spark(session: SparkSession, path: str, of: TimeSlice) -> list[DerivedRow] | TooManyRows:
    """Return the rows of a slice as Spark reads them; raises as `read_here` does."""
    from pyspark.sql import functions as F

    begin, end = of.bounds
    with explained(path):
        ends = F.col(of.ends)
        table = session.read.format("delta").load(path)
        found = table.where((F.col(of.begins) < F.lit(end)) & (F.col("is_current") | (ends >= F.lit(begin))))
        if (how := of.thinned) is not None:
            part = F.expr(f"(unix_millis({how.by}) - {of.from_ms}) div {how.part_ms}").alias("part")
            last = [F.max_by(F.struct(name), how.by)[name].alias(name) for name in how.values]
            found = found.groupBy(*how.keys, part).agg(F.max(how.by).alias(how.by), *last)
        if (rows := found.count()) > LIMIT_ROWS:
            return TooManyRows(rows)
        return found.toArrow().to_pylist()  # type: ignore[no-any-return]


def in_order(rows: Sequence[DerivedRow], *names: str) -> list[DerivedRow]:
    """Return rows in the order of columns, so that a page does not depend on how files lie."""
    return sorted(rows, key=lambda row: tuple(str(row[name]) for name in names))
