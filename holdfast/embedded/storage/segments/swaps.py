"""Replaces segments by those that compaction has rewritten, whole or not at all.

A new segment is a ``.cleaned`` file at first. It is complete once its name is ``.swap``: then the segments
that it replaces are removed, and it gets its last name. Its name identifies them, ``<first>.<end>.swap``, so
a broker that starts after a crash continues there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from holdfast.embedded.logs.stored_batch import LogBatch
from holdfast.embedded.storage.disk import Disk
from holdfast.embedded.storage.segments.segment import LOG, SNAPSHOT, FiledBatch, LogSegment, named

CLEANED, SWAP = ".cleaned", ".swap"


def finish_swaps(disk: Disk, folder: Path) -> None:
    """Bring to its end what a crash has interrupted."""
    for each in folder.glob(f"*{CLEANED}"):
        disk.remove(each)
    for each in sorted(folder.glob(f"*{SWAP}")):
        _finish(disk, each)


def swap(
    disk: Disk, folder: Path, fresh: LogSegment, upper: int, kept: Sequence[LogBatch]
) -> list[FiledBatch]:
    """Have *fresh* hold *kept*, and be all there is from its base up to *upper*; return the batches as they
    lie there.
    """
    cleaned = folder / f"{named(fresh.base, '')}.{named(upper, CLEANED)}"
    disk.create(cleaned)
    filed = []
    for each in kept:
        data = each.data
        disk.append(cleaned, data)
        told = each.first_offset, each.last_offset, each.max_timestamp_ms, each.leader_epoch
        filed.append(fresh.found(*told, len(data)))
    fresh.end = upper
    complete = cleaned.with_suffix(SWAP)
    disk.rename(cleaned, complete)
    _finish(disk, complete)
    return filed


def _finish(disk: Disk, complete: Path) -> None:
    first, upper = map(int, complete.stem.split("."))
    snapshot = named(first, SNAPSHOT)
    for each in sorted(complete.parent.iterdir()):
        replaced = each.stem.isdecimal() and first <= int(each.stem) < upper
        if replaced and each.name != snapshot:
            disk.remove(each)
    disk.rename(complete, complete.parent / named(first, LOG))
