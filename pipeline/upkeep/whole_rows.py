"""Rows of bronze files as they are, with whatever columns the table has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.pipeline.bronze.files import File, FileReader
from holdfast.pipeline.landing.columns import FILE_SCHEMA, PARTITIONED_BY


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRows(FileReader):
    """Reads rows with all columns that the table has now: *schema*. Asked for other columns, it reads as any
    reader does.
    """

    schema: pa.Schema

    def rows(self, file: File, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        if list(columns) != self.schema.names:
            yield from FileReader.rows(self, file, columns)
            return
        with self._opened(file) as opened:
            for batch in opened.iter_batches(file.read_rows):
                yield _as(self.schema, batch)


def schema_of(table: Any) -> pa.Schema:
    """Return the columns of a file with all that somebody added to the table."""
    there = pa.schema(table.schema().to_arrow())
    known = {*FILE_SCHEMA.names, *PARTITIONED_BY}
    return pa.schema([*FILE_SCHEMA, *(field for field in there if field.name not in known)])


def _as(schema: pa.Schema, batch: pa.RecordBatch) -> pa.RecordBatch:
    arrays = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
