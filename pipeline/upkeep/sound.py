"""A bronze table that is sound, opened for upkeep, and what upkeep asks of it once another commit came
first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from deltalake.exceptions import DeltaError

from holdfast.errors import LakeError, UnknownCommitError
from holdfast.pipeline.bronze.commits import LastLanding, history_of, listed_files, sound_chain
from holdfast.pipeline.bronze.files import File, remove
from holdfast.pipeline.bronze.lake import open_table
from holdfast.pipeline.bronze.layout import layout_faults


class SoundTable(NamedTuple):
    """A delta-rs table, its files by partition in the order of their first offsets, and its landings, newest
    first.
    """

    table: Any
    files: dict[int, list[File]]
    chain: list[LastLanding]


def open_sound(path: str) -> SoundTable:
    """Open the table at *path*; LakeError where it has faults, which upkeep would hide, or where only Spark
    reads it.
    """
    table = open_table(path)
    refuse_features(path, table)
    listed, chain = listed_files(table), sound_chain(path, history_of(table))
    for fault in layout_faults(path, chain, listed):
        raise LakeError(f"{fault.told}: see `holdfast pipeline check`")
    return SoundTable(table, listed, chain)


def refuse_features(path: str, table: Any) -> None:
    """Raise LakeError where only Spark can read the files of a table."""
    if features := set(table.protocol().reader_features or ()) & {"deletionVectors", "columnMapping"}:
        raise LakeError(
            f"{path} uses {', '.join(sorted(features))}, which only Spark reads: use Spark for its upkeep"
            " (OPTIMIZE)"
        )


def version_of(commit: str, table: Any, read: int) -> int | None:
    """Return the version of a commit that was made after version *read*, None when there is none."""
    newer = history_of(table, int(table.version()) - read) if int(table.version()) > read else ()
    return next((each.version for each in newer if f'"{commit}"' in (each.metadata or "")), None)


@contextmanager
def removed_unless_named(filesystem: Any, paths: Sequence[str]) -> Iterator[None]:
    """Remove the files at *paths* where the commit of them, which is made meanwhile, surely was not: else
    rows may be in them alone.
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
    """Refuse to go on where something else has removed files that were *taken*: their rows may be elsewhere
    by now.
    """
    there = {file.path for files in listed_files(table).values() for file in files}
    if gone := [file.path for file in taken if file.path not in there]:
        raise LakeError(
            f"{path}: nothing was {verb}, since another commit removed {gone[0]} meanwhile (another"
            " compaction or expiry, or OPTIMIZE); run one at a time"
        )
