"""Rows of a bronze table's partition in the order of their offsets, in memory for a few thousand of them.

Landings write files in order. OPTIMIZE joins them in any order: files whose offsets overlap, or that are not
in order themselves, are passed through a temporary file, cut into stretches of offsets, and read back a
stretch at a time.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import IO

import numpy as np
import pyarrow as pa

from holdfast.errors import LakeError, RepeatedOffsetError
from holdfast.pipeline.bronze.files import File, FileReader

logger = logging.getLogger(__name__)


def in_order(reader: FileReader, files: Sequence[File], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of *files*, which are sorted by their first offset, by ascending offset; "offset" must
    be one of *columns*.

    RepeatedOffsetError where an offset is there twice, which names the files.
    """
    for group in overlapping(files):
        if len(group) == 1 and _is_ascending(reader, group[0]):
            yield from reader.rows(group[0], columns)
        else:
            logger.info(
                "putting %(files)s files of %(table)s in order", {"files": len(group), "table": reader.where}
            )
            yield from _put_in_order(reader, group, columns)


def overlapping(files: Sequence[File]) -> Iterator[list[File]]:
    """Yield files whose offsets overlap together; those without known offsets overlap all."""
    if any(file.first is None or file.last is None for file in files):
        yield list(files)
        return
    group, last = list[File](), -1
    for file in files:
        assert file.first is not None
        assert file.last is not None
        if group and file.first > last:
            yield group
            group = []
        group.append(file)
        last = max(last, file.last)
    if group:
        yield group


def _is_ascending(reader: FileReader, file: File) -> bool:
    last = -1
    for rows in reader.rows(file, ["offset"]):
        offsets = rows.column("offset").to_numpy()
        if len(offsets) and (offsets[0] <= last or (np.diff(offsets) <= 0).any()):
            return False
        last = int(offsets[-1]) if len(offsets) else last
    return True


def _put_in_order(
    reader: FileReader, files: Sequence[File], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    with tempfile.TemporaryFile(prefix="holdfast-order-") as spilled:
        stretches = _spill(reader, files, columns, spilled, min(file.read_rows for file in files))
        if not stretches:
            return
        spilled.flush()
        stored = pa.ipc.open_file(pa.PythonFile(spilled, mode="r"))
        for _, parts in sorted(stretches.items()):
            found = pa.Table.from_batches([stored.get_batch(number) for number, _ in parts])
            offsets = found.column("offset").to_numpy()
            by_offset = np.argsort(offsets, kind="stable")
            twice = np.flatnonzero(np.diff(offsets[by_offset]) == 0)
            if len(twice):
                raise _doubled(reader, files, parts, found, int(offsets[by_offset][twice[0]]))
            yield from found.take(pa.array(by_offset)).combine_chunks().to_batches()


def _spill(
    reader: FileReader, files: Sequence[File], columns: Sequence[str], to: IO[bytes], width: int
) -> dict[int, list[tuple[int, int]]]:
    """Write the rows of *files* in pieces that each belong to one stretch of *width* offsets; return, by
    stretch, the numbers of the pieces and of the files that they are from.

    Offsets are there once each, so a stretch has at most *width* rows: as many as are read at once.
    """
    stretches: dict[int, list[tuple[int, int]]] = {}
    sink: pa.ipc.RecordBatchFileWriter | None = None
    pieces = 0
    try:
        for number, file in enumerate(files):
            for rows in reader.rows(file, columns):
                sink = sink or pa.ipc.new_file(pa.PythonFile(to, mode="w"), rows.schema)
                for stretch, piece in _pieces(rows, width):
                    sink.write_batch(piece)
                    stretches.setdefault(stretch, []).append((pieces, number))
                    pieces += 1
    except OSError as error:
        raise LakeError(
            f"{reader.where}: its rows cannot be put in order in {tempfile.gettempdir()}: {error}; give it"
            " room, or set TMPDIR to a folder with more"
        ) from error
    finally:
        if sink is not None:
            sink.close()
    return stretches


def _pieces(rows: pa.RecordBatch, width: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    stretch = rows.column("offset").to_numpy() // width
    if (np.diff(stretch) < 0).any():
        by_stretch = np.argsort(stretch, kind="stable")
        rows, stretch = rows.take(pa.array(by_stretch)), stretch[by_stretch]
    cuts = [0, *(np.flatnonzero(np.diff(stretch)) + 1).tolist(), len(stretch)]
    for start, stop in pairwise(cuts):
        if stop > start:
            yield int(stretch[start]), rows.slice(start, stop - start)


def _doubled(
    reader: FileReader,
    files: Sequence[File],
    parts: Sequence[tuple[int, int]],
    found: pa.Table,
    offset: int,
) -> RepeatedOffsetError:
    """Return the error for an offset that is there twice; *found* has a chunk for each of *parts*."""
    named = dict.fromkeys(
        files[number].path
        for (_, number), chunk in zip(parts, found.column("offset").chunks, strict=True)
        if offset in chunk.to_pylist()
    )
    return RepeatedOffsetError(
        f"{reader.where}: offset {offset} is there twice, in {' and '.join(named)}; remove what came last"
        " (Delta's history shows that commit, and RESTORE puts the table back to the version before), then"
        " `holdfast pipeline land --rebuild`"
    )
