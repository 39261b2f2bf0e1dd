"""Compares the number of rows that a bronze table should have between certain offsets, by its commits, with
its files' own counts: from the log alone, so that it costs next to nothing before each replay.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from holdfast.pipeline.bronze.commits import LastLanding
from holdfast.pipeline.bronze.digests import joined
from holdfast.pipeline.bronze.faults import LakeFault
from holdfast.pipeline.bronze.files import File
from holdfast.pipeline.bronze.lake import Landed


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Offsets [first, end) of a partition that were landed together: how many rows there are and their
    digest, None if unknown. *digest_first* is where the digest begins to count. *columns* is the version of
    the columns that its rows have at least, *landed_at_ms* their landing time, None if unknown.
    """

    first: int
    end: int
    rows: int | None
    digest: int | None
    digest_first: int
    columns: int = 1
    landed_at_ms: int | None = None


def segments(chain: Sequence[LastLanding], partition: int) -> list[Segment]:
    """Return a partition's content by its commits, in the order of offsets; *chain* comes newest first.

    The newest commit's total is the sum: rows that older, known commits do not account for was landed before
    them, in one segment.
    """
    landed = chain[0].landed
    begin = landed.begins.get(partition, 0)
    rows, digest = _total(landed, partition)
    found = list[Segment]()
    reached = landed.end.get(partition, begin)
    for each in chain:
        one = _own(each.landed, partition)
        if one.first < begin or one.end > reached or one.rows is None:
            break
        if one.end == one.first:
            continue
        found.append(one)
        reached, rows = one.first, None if rows is None else rows - one.rows
        digest = None if digest is None or one.digest is None else digest ^ one.digest
    if reached > begin:
        first = min(max(begin, landed.digested_from.get(partition, begin)), reached)
        found.append(Segment(first=begin, end=reached, rows=rows, digest=digest, digest_first=first))
    return found[::-1]


def _own(landed: Landed, partition: int) -> Segment:
    first = landed.start.get(partition, landed.begins.get(partition, 0))
    return Segment(
        first=first,
        end=landed.end.get(partition, first),
        rows=None if landed.added is None else landed.added.get(partition, 0),
        digest=None if landed.added_digests is None else int(landed.added_digests.get(partition, "0"), 16),
        digest_first=first,
        columns=landed.columns,
        landed_at_ms=landed.landed_at_ms,
    )


def _total(landed: Landed, partition: int) -> tuple[int | None, int | None]:
    rows = digest = None
    if landed.rows is not None and landed.added is not None:
        rows = landed.rows.get(partition, 0) + landed.added.get(partition, 0)
    if landed.digests is not None and landed.added_digests is not None:
        digest = int(joined(landed.digests, landed.added_digests).get(partition, "0"), 16)
    return rows, digest


def layout_faults(
    table: str, chain: Sequence[LastLanding], files: Mapping[int, Sequence[File]]
) -> Iterator[LakeFault]:
    """Yield where a table's files have other counts, or other offsets, than its commits."""
    if not chain:
        return
    for partition in sorted({*files, *chain[0].landed.end}):
        listed = sorted(files.get(partition, ()), key=lambda file: file.first or 0)
        yield from _strays(table, partition, listed, chain[0].landed)
        if all(file.rows is not None and file.first is not None and file.last is not None for file in listed):
            yield from _counts(table, partition, listed, segments(chain, partition))


def _strays(table: str, partition: int, files: Sequence[File], landed: Landed) -> Iterator[LakeFault]:
    begin, end = landed.begins.get(partition, 0), landed.end.get(partition, 0)
    for file in files:
        if file.first is None or file.last is None or (begin <= file.first and file.last < end):
            continue
        yield LakeFault(
            kind="extra",
            table=table,
            partition=partition,
            first=file.first,
            last=file.last,
            file=file.path,
            told=(
                f"{table} partition {partition}: file {file.path} has offsets {file.first} to {file.last},"
                f" but only {begin} to {end - 1} were landed"
            ),
        )


def _counts(
    table: str, partition: int, files: Sequence[File], told: Sequence[Segment]
) -> Iterator[LakeFault]:
    """Compare counts between offsets that are the bounds of a commit and in the midst of no file."""
    firsts, starts = [file.first or 0 for file in files], [each.first for each in told]
    reach = [*accumulate((file.last or 0 for file in files), max)]  # of a file and those before it

    def is_clean(at: int) -> bool:
        before = bisect_left(firsts, at)
        return before == 0 or reach[before - 1] < at

    bounds = sorted({*starts, *(each.end for each in told)})
    for first, end in pairwise(filter(is_clean, bounds)):
        want = [each.rows for each in told[bisect_left(starts, first) : bisect_left(starts, end)]]
        inside = files[bisect_left(firsts, first) : bisect_left(firsts, end)]
        have = sum(file.rows or 0 for file in inside)
        if None in want or have == (wanted := sum(rows or 0 for rows in want)):
            continue
        yield LakeFault(
            kind="missing" if have < wanted else "extra",
            table=table,
            partition=partition,
            first=first,
            last=end - 1,
            told=(
                f"{table} partition {partition} has {have} rows, where {wanted} were landed, at offsets"
                f" {first} to {end - 1}"
            )
            + _overlapping(inside),
        )


def _overlapping(files: Sequence[File]) -> str:
    for one, other in pairwise(files):
        if one.last is not None and other.first is not None and other.first <= one.last:
            return f"; files {one.path} and {other.path} overlap from offset {other.first} on"
    return ""
