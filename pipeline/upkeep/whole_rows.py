"""Rows of bronze files as they are, with whatever columns the table has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.pipeline.bronze.columns import FILE_SCHEMA, PARTITIONED_BY
from holdfast.pipeline.bronze.files import File, FileReader


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRows(FileReader):
    """Reads rows with all columns that the table has now: *schema*. Asked for other columns, it reads as any
    reader does.
    """

    def rows(self, file: File, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        if list(columns) == self.schema.names:
            yield from self.whole_rows(file)
        else:
            yield from FileReader.rows(self, file, columns)


def schema_of(table: Any) -> pa.Schema:
    """Return the columns of a file with all that other programs added to the table."""
    there = pa.schema(table.schema().to_arrow())
    known = {*FILE_SCHEMA.names, *PARTITIONED_BY}
    return pa.schema([*FILE_SCHEMA, *(field for field in there if field.name not in known)])
