"""A topic's records in the lake, read from the files of its bronze table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.declared.processor import Headers
from holdfast.core.engine.declared.sources import Input
from holdfast.errors import LakeError
from holdfast.pipeline.bronze.commits import all_told, check_rows, history_of, listed_files, sound_chain
from holdfast.pipeline.bronze.features import refuse_features
from holdfast.pipeline.bronze.files import File, FileReader, filesystem_of
from holdfast.pipeline.bronze.guarded import DigestGuards, bronze_reader, in_few
from holdfast.pipeline.bronze.lake import Landed, open_table
from holdfast.pipeline.bronze.layout import Segment, layout_faults, segments
from holdfast.pipeline.bronze.ordered import in_order
from holdfast.pipeline.topic import Span


def open_bronze(path: str) -> tuple[LakeLog, Landed | None]:
    """Return the files of a bronze table's newest version, and what its last landing said of itself."""
    table = open_table(path)
    refuse_features(path, table)
    listed = listed_files(table)
    chain = sound_chain(path, history_of(table))
    last = chain[0] if chain else None
    check_rows(path, last, all_told((at, file.rows) for at, files in listed.items() for file in files))
    for fault in layout_faults(path, chain, listed):
        raise LakeError(f"{fault.told}; `holdfast pipeline check` lists every fault")
    found = LakeLog(
        uri=str(table.table_uri),
        version=table.version(),
        files=listed,
        segments={at: in_few(segments(chain, at)) for at in listed} if chain else {},
    )
    return found, None if last is None else last.landed


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeLog:
    """The files of one version of a bronze table, by partition, in the order of their offsets.

    The object can be pickled.
    """

    uri: str
    version: int
    files: Mapping[int, Sequence[File]]
    segments: Mapping[int, Sequence[Segment]] = field(default_factory=dict)
    guards: DigestGuards = field(default_factory=DigestGuards, repr=False, compare=False)

    def _reader(self, partition: int) -> FileReader:
        plain = bronze_reader(f"{self.uri} partition {partition}", filesystem_of(self.uri))
        files, segments = self.files.get(partition, ()), self.segments.get(partition, ())
        return self.guards.of(plain, partition, files, segments)

    def batches(self, inputs: Sequence[Input], partition: int, span: Span) -> Iterator[tuple[Batch, int]]:
        """Yield the records of one partition in offset order, as a folder of *inputs* takes them, each batch
        with its size in bytes.

        Files in order, as landing writes them, are read as they are; see `in_order` for others.
        """
        files = [file for file in self.files.get(partition, ()) if file.touches(span)]
        wanted = dict.fromkeys(inputs)  # a decoder may take one of them twice
        columns = [
            "offset",
            "timestamp_ms",
            *(name for name in wanted if name not in ("offset", "partition")),
        ]
        for rows in in_order(self._reader(partition), files, columns):
            batch, size_bytes = _batch(rows, partition, span, inputs)
            if batch.offsets:
                yield batch, size_bytes

    def close(self) -> None:
        """There is nothing to close: files are opened one at a time."""


def _batch(rows: pa.RecordBatch, partition: int, span: Span, inputs: Sequence[Input]) -> tuple[Batch, int]:
    """Return the records of *rows* in *span*, and their size in bytes."""
    start, stop = np.searchsorted(rows.column("offset").to_numpy(), [span.first, span.end])
    kept = rows.slice(int(start), int(stop - start))
    if not kept.num_rows:
        return Batch((), (), ()), 0
    found = kept.column("offset").to_numpy()
    first, last = int(found[0]), int(found[-1])
    dense = last - first + 1 == len(found)
    offsets: Sequence[int] = range(first, last + 1) if dense else found.tolist()
    known: dict[str, Sequence[Any]] = {"offset": offsets, "partition": [partition] * len(offsets)}
    for name in inputs:
        if name not in known:
            known[name] = _COLUMN[name](kept.column(name))
    columns = tuple(known[name] for name in inputs)
    return Batch(offsets, kept.column("timestamp_ms").to_numpy().tolist(), columns), kept.nbytes


def _headers(column: pa.Array) -> list[Headers]:
    return [
        tuple((header["key"], header["value"]) for header in headers or ()) for headers in column.to_pylist()
    ]


_COLUMN: dict[str, Callable[[pa.Array], Sequence[Any]]] = {
    "value": pa.Array.to_pylist,
    "key": pa.Array.to_pylist,
    "headers": _headers,
}
