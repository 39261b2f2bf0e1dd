"""A bronze table that is sound, opened for upkeep, and what upkeep asks of it once another commit came
first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from deltalake.exceptions import DeltaError

from holdfast.errors import LakeError, UnknownCommitError
from holdfast.pipeline.bronze.commits import LastLanding, history_of, listed_files, sound_chain
from holdfast.pipeline.bronze.features import refuse_features
from holdfast.pipeline.bronze.files import File, FileReader, filesystem_of, remove
from holdfast.pipeline.bronze.guarded import DigestGuards, bronze_reader
from holdfast.pipeline.bronze.lake import open_table
from holdfast.pipeline.bronze.layout import layout_faults, segments


class SoundTable(NamedTuple):
    """A delta-rs table, its files by partition in the order of their first offsets, and its landings, newest
    first.
    """

    path: str
    table: Any
    files: dict[int, list[File]]
    chain: list[LastLanding]
    guards: DigestGuards

    def guarded(self, partition: int, reader: FileReader) -> FileReader:
        """Return *reader*, which compares the rows it reads of a partition with the landed ones."""
        told = segments(self.chain, partition) if self.chain else []
        return self.guards.of(reader, partition, self.files.get(partition, ()), told)

    def reader(self, partition: int) -> FileReader:
        """Return a reader of a partition's rows that compares them with the log's statistics, and not with
        digests.
        """
        where = f"{self.path} partition {partition}"
        return replace(bronze_reader(where, filesystem_of(str(self.table.table_uri))), exact=True)


def open_sound(path: str) -> SoundTable:
    """Open the table at *path*; LakeError where it has faults, which upkeep would hide, or where its files
    do not hold its rows as they are.
    """
    table = open_table(path)
    refuse_features(path, table)
    listed, chain = listed_files(table), sound_chain(path, history_of(table))
    for fault in layout_faults(path, chain, listed):
        raise LakeError(f"{fault.told}: see `holdfast pipeline check`")
    return SoundTable(path, table, listed, chain, DigestGuards())


def version_of(commit: str, table: Any, read: int) -> int | None:
    """Return the version of a commit that was made after version *read*, None when there is none."""
    newer = history_of(table, int(table.version()) - read) if int(table.version()) > read else ()
    return next((each.version for each in newer if f'"{commit}"' in (each.metadata or "")), None)


@contextmanager
def removed_unless_named(filesystem: Any, paths: Sequence[str]) -> Iterator[None]:
    """Remove the files at *paths* if their commit, which is made in the block, surely was not made: else rows
    may be in them alone.
    """
    try:
        yield
    except UnknownCommitError:
        raise
    except LakeError:
        remove(filesystem, paths)
        raise


def version_after(commit: str, path: str, table: Any, read: int, failure: Exception | None) -> int | None:
    """Return the version of a commit of which *failure* is known at most; None where it was surely not made.

    UnknownCommitError where the table cannot be read.
    """
    try:
        table.update_incremental()
        return version_of(commit, table, read)
    except (DeltaError, OSError) as unread:
        raise UnknownCommitError(
            f"{path}: whether the commit was made is not known ({failure or 'no failure was told'}), since"
            f" the table cannot be read: {unread}. Run this again; if it was not, a vacuum takes the files"
            " that were written for it"
        ) from failure or unread


def check_there(path: str, table: Any, taken: Sequence[File], verb: str) -> None:
    """Refuse to continue if another program has removed files that were *taken*: their rows may be elsewhere
    by now.
    """
    there = {file.path for files in listed_files(table).values() for file in files}
    if gone := [file.path for file in taken if file.path not in there]:
        raise LakeError(
            f"{path}: nothing was {verb}, since another commit removed {gone[0]} meanwhile (another"
            " compaction or expiry, or OPTIMIZE); run one at a time"
        )
