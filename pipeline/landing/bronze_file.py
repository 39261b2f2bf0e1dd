"""A file of a bronze table as this process writes it, and its entry in the table's log."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any

import pyarrow as pa
from deltalake.transaction import AddAction
from pyarrow import compute, parquet

from holdfast.clock import system_clock
from holdfast.pipeline.bronze.columns import FILE_SCHEMA
from holdfast.pipeline.bronze.files import CHECKED_PAGES, SummedStream

GROUP_ROWS, GROUP_BYTES = 128 << 10, 32 << 20
"""A row group of a file is written, and its memory let go, at so many rows or bytes."""
_REPEATING = ["timestamp_type", "landed_at", "date", "leader_epoch", "key", "headers.list.element.key"]


def _groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield *batches* as row groups of bounded size."""
    gathered: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        gathered.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= GROUP_ROWS or size >= GROUP_BYTES:
            yield pa.Table.from_batches(gathered)
            gathered, rows, size = [], 0, 0
    if gathered:
        yield pa.Table.from_batches(gathered)


_COUNTED = ("offset", "timestamp", "timestamp_type", "timestamp_ms", "landed_at", "date", "leader_epoch")
"""Columns whose least and greatest value the log keeps for each file, for searches and pruning."""


@dataclass(slots=True, kw_only=True)
class BronzeFile:
    """A file that was written, and its entry in the log: of the columns *counted*, the least and greatest
    value.
    """

    partition: int
    path: str
    counted: Sequence[str] = _COUNTED
    rows: int = 0
    digest: int = 0
    size_bytes: int = 0
    least: dict[str, Any] = field(default_factory=dict)
    greatest: dict[str, Any] = field(default_factory=dict)
    nulls: Counter[str] = field(default_factory=Counter)

    @classmethod
    def new(cls, topic: str, partition: int) -> BronzeFile:
        name = f"part-{uuid.uuid4().hex}.snappy.parquet"
        return cls(partition=partition, path=f"topic={topic}/partition={partition}/{name}")

    def write(
        self, filesystem: Any, batches: Iterator[pa.RecordBatch], schema: pa.Schema = FILE_SCHEMA
    ) -> None:
        """Write *batches*, which are in the order of their offsets, a group of rows at a time."""
        if getattr(getattr(filesystem, "base_fs", None), "type_name", "") != "s3":  # which has no folders
            filesystem.create_dir(self.path.rpartition("/")[0], recursive=True)
        with (
            filesystem.open_output_stream(self.path) as opened,
            parquet.ParquetWriter(
                stream := SummedStream(opened),
                schema,
                compression="snappy",
                use_dictionary=_REPEATING,
                write_page_checksum=True,
            ) as out,
        ):
            for group in _groups(batches):
                self.note(group)
                out.write_table(group, row_group_size=group.num_rows)
            out.add_key_value_metadata({CHECKED_PAGES: stream.told()})
        self.size_bytes = filesystem.get_file_info(self.path).size

    def note(self, group: pa.Table) -> None:
        """Take a row group into account."""
        self.rows += group.num_rows
        for name in self.counted:
            column = group.column(name)
            self.nulls[name] += column.null_count
            found = compute.min_max(column).as_py()
            if found["min"] is not None:
                self.least[name] = min(found["min"], self.least.get(name, found["min"]))
                self.greatest[name] = max(found["max"], self.greatest.get(name, found["max"]))

    def action(self, topic: str, *, new_rows: bool = True) -> AddAction:
        return self.add({"topic": topic, "partition": str(self.partition)}, new_rows=new_rows)

    def add(self, values: dict[str, str | None], *, new_rows: bool = True) -> AddAction:
        """Return the action that adds it to a table, with the values of what that is partitioned by."""
        told = {
            "numRecords": self.rows,
            "minValues": {name: _told(value) for name, value in self.least.items()},
            "maxValues": {name: _told(value) for name, value in self.greatest.items()},
            "nullCount": dict(self.nulls),
        }
        return AddAction(
            self.path, self.size_bytes, values, system_clock.now_ms(), new_rows, json.dumps(told)
        )


def _told(value: Any) -> Any:
    """Return a value as Delta's statistics write it; times are cut to ms, as Kafka's are whole ms."""
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%dT%H:%M:%S}.{value.microsecond // 1000:03d}Z".rjust(24, "0")
    return value.isoformat() if isinstance(value, date) else value
