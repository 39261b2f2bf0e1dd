"""Checking a bronze table: cheap from its log and the list of its files, deep from its rows, and against its
topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain as chained
from typing import Any
from urllib.parse import unquote

from holdfast.config import Settings
from holdfast.errors import LakeError
from holdfast.pipeline.bronze.commits import (
    LastLanding,
    check_rows,
    counted_rows,
    history_of,
    listed_files,
    read_chain,
)
from holdfast.pipeline.bronze.faults import LakeFault
from holdfast.pipeline.bronze.files import File, FileReader, filesystem_of
from holdfast.pipeline.bronze.lake import bronze_path, open_table
from holdfast.pipeline.bronze.layout import layout_faults
from holdfast.pipeline.checks.against_topic import topic_faults
from holdfast.pipeline.checks.deep import deep_faults


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeVerdict:
    """What is wrong with one bronze table. *rows* is how many its files have, by their own counts, *commits*
    how many landings its history still tells of; *undigested* says up to which offset of each partition no
    digest was landed, so that a deep check proves only the count there.
    """

    topic: str
    table: str
    version: int
    rows: int
    files: int
    commits: int
    deep: bool
    faults: tuple[LakeFault, ...]
    undigested: Mapping[int, int]

    @property
    def sound(self) -> bool:
        return not self.faults

    def document(self) -> dict[str, Any]:
        """Return the verdict as JSON values."""
        return {**asdict(self), "sound": self.sound, "faults": [asdict(each) for each in self.faults]}


def check_table(
    settings: Settings, topic: str, lake: str, *, deep: bool = False, against_topic: bool = False
) -> LakeVerdict:
    """Check the table of *topic* and return all that is wrong with it; *deep* reads all rows, *against_topic*
    compares with what the topic still holds.

    Raises LakeError where there is no table, or one that only Spark reads; TopicError and BrokerError for the
    topic's side.
    """
    path = bronze_path(lake, topic)
    table = open_table(path)
    features = set(table.protocol().reader_features or ())
    if features & {"deletionVectors", "columnMapping"}:
        raise LakeError(
            f"{path} uses {', '.join(sorted(features))}, which only Spark reads: it cannot be checked"
        )
    version, files = int(table.version()), listed_files(table)
    history = history_of(table, version + 1)
    chain = read_chain(path, history)
    found = [*chain.faults, *_cheap_faults(path, table, chain.landings, files)]
    readers = {
        p: FileReader(where=f"{path} partition {p}", filesystem=filesystem_of(str(table.table_uri)))
        for p in files
    }
    if deep:
        for partition, reader in sorted(readers.items()):
            found += (
                deep_faults(reader, partition, files[partition], chain.landings) if chain.landings else ()
            )
    if against_topic and chain.landings:
        found += topic_faults(settings, path, chain.landings, files, readers)
    return LakeVerdict(
        topic=topic,
        table=path,
        version=version,
        rows=sum(file.rows or 0 for file in chained.from_iterable(files.values())),
        files=sum(map(len, files.values())),
        commits=len(chain.landings),
        deep=deep,
        faults=tuple(found),
        undigested=_undigested(chain.landings),
    )


def _cheap_faults(
    path: str, table: Any, chain: Sequence[LastLanding], files: Mapping[int, Sequence[File]]
) -> Iterator[LakeFault]:
    placed = list(layout_faults(path, chain, files))
    yield from placed
    if not placed and chain:
        try:
            check_rows(path, chain[0], counted_rows(table))
        except LakeError as error:  # landed by a holdfast that told counts of the whole alone
            yield LakeFault(kind="missing", table=path, told=str(error))
    yield from _file_faults(path, str(table.table_uri), files)


def _file_faults(path: str, uri: str, files: Mapping[int, Sequence[File]]) -> Iterator[LakeFault]:
    """Yield files that are gone, or of another size than the log says: their folders are listed, and none is
    opened.
    """
    from pyarrow import fs

    filesystem = filesystem_of(uri)
    for partition, listed in sorted(files.items()):
        folders = {file.path.rpartition("/")[0] for file in listed}
        there = {
            unquote(each.path).lstrip("/"): each.size
            for folder in folders
            for each in filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True))
        }
        for file in listed:
            size = there.get(unquote(file.path))
            if size is None:
                said = "is gone: it was removed by hand, or by a vacuum that came too early"
            elif file.size_bytes is not None and size != file.size_bytes:
                said = (
                    f"has {size} bytes, where the table's log says {file.size_bytes}: it was changed by hand"
                )
            else:
                continue
            yield LakeFault(
                kind="file",
                table=path,
                partition=partition,
                first=file.first,
                last=file.last,
                file=file.path,
                told=(
                    f"{path} partition {partition} offsets {file.first} to {file.last}: file {file.path}"
                    f" {said}"
                ),
            )


def _undigested(chain: Sequence[LastLanding]) -> dict[int, int]:
    if not chain:
        return {}
    landed = chain[0].landed
    if landed.digests is None:
        return dict(landed.end)
    return {p: at for p, at in sorted(landed.digested_from.items()) if at > landed.begins.get(p, 0)}
