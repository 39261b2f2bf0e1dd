"""The rows of derived tables that touch a time, read in this process or by Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from deltalake.exceptions import DeltaError
from pyarrow import compute, dataset

from holdfast.errors import ConfigError, LakeError
from holdfast.pipeline.bronze.lake import open_table
from holdfast.pipeline.derived.table import time_at
from holdfast.pipeline.spark.errors import explained
from holdfast.pipeline.spark.session import SparkOptions, open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIMIT_ROWS = 1_000_000
"""So many rows of one table are looked at; a page of more says nothing to anybody."""
DerivedRow = dict[str, Any]
SliceEngine = Literal["local", "spark"]


@dataclass(frozen=True, slots=True)
class TimeSlice:
    """The rows of a table that begin before *to_ms*, by the column *begins*, and are not over by *from_ms*, by the column *ends*; those that are current are not over."""

    begins: str
    ends: str
    from_ms: int
    to_ms: int

    @property
    def bounds(self) -> tuple[datetime, datetime]:
        return time_at(self.from_ms), time_at(self.to_ms)


SliceReader = Callable[[str, TimeSlice], list[DerivedRow]]
"""Reads a slice of the table at a path."""


@contextmanager
def slice_reader(engine: SliceEngine, spark: SparkOptions) -> Iterator[SliceReader]:
    """Give what reads slices; both engines give the same rows, in any order."""
    if engine == "local":
        yield read_here
        return
    with open_session(spark) as session:
        yield lambda path, of: read_on_spark(session, path, of)


def read_here(path: str, of: TimeSlice) -> list[DerivedRow]:
    """Return the rows of a slice; LakeError for a table that cannot be read, ConfigError for too many rows."""
    begin, end = of.bounds
    ends = compute.field(of.ends)
    wanted = (compute.field(of.begins) < end) & (compute.field("is_current") | (ends >= begin))
    try:
        files: dataset.Dataset = open_table(path).to_pyarrow_dataset()
        _check(path, files.count_rows(filter=wanted))
        rows: list[DerivedRow] = files.to_table(filter=wanted).to_pylist()
    except (DeltaError, OSError) as error:
        raise LakeError(f"{path} cannot be read: {error}") from error
    return rows


def read_on_spark(session: SparkSession, path: str, of: TimeSlice) -> list[DerivedRow]:
    """Return the rows of a slice as Spark reads them; raises as `read_here` does."""
    from pyspark.sql import functions as F

    begin, end = of.bounds
    with explained(path):
        ends = F.col(of.ends)
        table = session.read.format("delta").load(path)
        found = table.where((F.col(of.begins) < F.lit(end)) & (F.col("is_current") | (ends >= F.lit(begin))))
        _check(path, found.count())
        return found.toArrow().to_pylist()  # type: ignore[no-any-return]


def _check(path: str, rows: int) -> None:
    if rows > LIMIT_ROWS:
        raise ConfigError(
            f"{path} has {rows} rows of that time, a page is made of {LIMIT_ROWS} at most: name a shorter time (--from, --to)"
        )


def in_order(rows: Sequence[DerivedRow], *names: str) -> list[DerivedRow]:
    """Return rows in the order of columns, so that a page does not depend on how files lie."""
    return sorted(rows, key=lambda row: tuple(str(row[name]) for name in names))
