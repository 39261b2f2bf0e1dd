"""The chain of a bronze table's commits, which leaves no overlap and no hole: read from its history, and
refused where something else than a landing has changed rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec
import pyarrow as pa

from holdfast.errors import LakeError
from holdfast.pipeline.bronze.digests import joined
from holdfast.pipeline.bronze.faults import LakeFault
from holdfast.pipeline.bronze.files import File, filesystem_of
from holdfast.pipeline.bronze.lake import Landed, describe
from holdfast.pipeline.bronze.sealed import check_seal

_decode = msgspec.json.Decoder(Landed).decode
HISTORY_LIMIT = 1000

# Operations of Delta that change how rows are stored, never which rows there are. FSCK is none of them: it
# forgets files.
_UPKEEP = frozenset(
    {
        "CREATE TABLE",
        "ADD COLUMN",
        "ADD COLUMNS",
        "ADD FEATURE",
        "UPDATE FIELD METADATA",
        "UPDATE TABLE METADATA",
        "OPTIMIZE",
        "REORG",
        "VACUUM START",
        "VACUUM END",
        "SET TBLPROPERTIES",
        "UNSET TBLPROPERTIES",
        "UPGRADE PROTOCOL",
        "ADD CONSTRAINT",
        "DROP CONSTRAINT",
        "CHANGE COLUMN",
        "DROP FEATURE",
        "RENAME COLUMN",
        "DROP COLUMNS",
        "COMPUTE STATS",
    }
)

_REBUILD = (
    "records could be doubled or missed. Make sure that no other landing runs, then `holdfast pipeline land"
    " --rebuild` reads the vector from the rows, and notes what is missing"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCommit:
    """One line of a Delta table's history. *added* is how many rows it wrote, None if unknown."""

    version: int
    operation: str
    metadata: str | None
    added: int | None = None


def commit_of(version: int, operation: str, metadata: str | None, metrics: Mapping[str, Any]) -> TableCommit:
    """Return a commit from its columns in the history, as Spark or delta-rs give them."""
    added = metrics.get("numOutputRows", metrics.get("num_added_rows"))
    return TableCommit(
        version=version, operation=operation, metadata=metadata, added=None if added is None else int(added)
    )


def landed_in(commit: TableCommit) -> Landed | None:
    """Return a commit's landing metadata, None when it was not made by a landing."""
    if not commit.metadata or '"holdfast_landing":1' not in commit.metadata:
        return None
    try:
        check_seal(commit.metadata)
        found = _decode(commit.metadata)
        for told in (found.digests, found.added_digests):
            joined(told or {}, told or {})  # they are numbers
    except (msgspec.DecodeError, LakeError, ValueError) as error:
        raise LakeError(
            f"version {commit.version}: the landing's metadata is malformed ({error}); check who wrote it,"
            " then --rebuild"
        ) from error
    return found


UPKEEP_MARK = "holdfast_upkeep"
"""In the user's metadata of commits that join files without changing rows."""


def is_upkeep(commit: TableCommit) -> bool:
    """Return whether a commit is one of `holdfast pipeline compact`."""
    return bool(commit.metadata) and f'"{UPKEEP_MARK}":1' in str(commit.metadata)


def is_data_kept(commit: TableCommit) -> bool:
    """Return whether a commit changes how rows are stored at most, never which rows there are."""
    return commit.operation.upper() in _UPKEEP or is_upkeep(commit)


class LastLanding(NamedTuple):
    """The newest landing commit of a table: what it says of itself, its version, and how many rows it
    wrote.
    """

    landed: Landed
    version: int
    added: int | None


class Chain(NamedTuple):
    """The landings of a table, newest first, and the faults between them, in the same order."""

    landings: list[LastLanding]
    faults: list[LakeFault]


def read_chain(where: str, history: Iterable[TableCommit]) -> Chain:
    """Return a table's landings as far as *history*, newest first, has them. Landings before a rebuilt vector
    were judged when that was rebuilt.
    """
    oldest, chain, follows = 0, Chain([], []), True
    for commit in history:
        oldest = commit.version
        try:
            landed = landed_in(commit)
        except LakeError as error:
            told = f"{where}: {error}"
            chain.faults.append(LakeFault(kind="chain", table=where, version=commit.version, told=told))
            follows = False
            continue
        if landed is None:
            chain.faults.extend(_stranger(where, commit, chain.landings[0] if chain.landings else None))
            continue
        if follows and chain.landings and landed.end != chain.landings[-1].landed.start:
            chain.faults.append(_torn(where, chain.landings[-1], commit.version, landed))
        chain.landings.append(LastLanding(landed, commit.version, commit.added))
        follows = True
        if landed.rebuilt:
            return chain
    if not chain.landings and oldest > 0:
        told = (
            f"{where}: the history reaches back to version {oldest} only and holds no landing; "
            "`holdfast pipeline land --rebuild` reads the vector of offsets from the rows"
        )
        chain.faults.append(LakeFault(kind="chain", table=where, version=oldest, told=told))
    return chain


def _torn(where: str, later: LastLanding, version: int, landed: Landed) -> LakeFault:
    start, end = later.landed.start, landed.end
    partition = min(p for p in {*start, *end} if start.get(p) != end.get(p))
    bounds = sorted((start.get(partition, 0), end.get(partition, 0)))
    return LakeFault(
        kind="chain",
        table=where,
        partition=partition,
        first=bounds[0],
        last=bounds[1] - 1,
        version=later.version,
        told=(
            f"{where}: version {later.version} lands from {describe(start)} on, but version {version} "
            f"before it ended at {describe(end)}: {_REBUILD}"
        ),
    )


def last_landing(where: str, history: Iterable[TableCommit]) -> LastLanding | None:
    """Return the newest landing commit, None for a table nothing was landed in yet. *history* comes newest
    first.

    Refuses a table whose rows another program has changed, since the last landing or between two of them: its
    vector would not match its rows.
    """
    chain = sound_chain(where, history)
    return chain[0] if chain else None


def sound_chain(where: str, history: Iterable[TableCommit]) -> list[LastLanding]:
    """Return a table's landings, newest first; otherwise as `last_landing`."""
    chain = read_chain(where, history)
    if chain.faults:
        raise LakeError(chain.faults[0].told)
    return chain.landings


def check_upkeep(where: str, commit: TableCommit, newest: LastLanding | None) -> None:
    """Refuse a commit that may have changed rows; *newest* is the last landing before it."""
    for fault in _stranger(where, commit, newest):
        raise LakeError(fault.told)


def _stranger(where: str, commit: TableCommit, newest: LastLanding | None) -> Iterator[LakeFault]:
    if is_data_kept(commit):
        return
    told = f"{where}: version {commit.version} ({commit.operation}) was not written by a landing, so "
    told += (
        f"its vector of offsets is lost: {_REBUILD}"
        if newest is None
        else f"what was landed up to version {newest.version} may lack rows: {_REBUILD}"
    )
    yield LakeFault(kind="stranger", table=where, version=commit.version, told=told)


def last_landed(where: str, history: Iterable[TableCommit]) -> Landed | None:
    """Return the metadata of the newest landing commit; otherwise as `last_landing`."""
    found = last_landing(where, history)
    return None if found is None else found.landed


def check_rows(where: str, last: LastLanding | None, counted: Mapping[int, int | None]) -> None:
    """Refuse a table that holds more or fewer rows than were landed. *counted* are the rows of each partition
    by its files, None if a file does not have a count.
    """
    if last is None or last.landed.rows is None or None in counted.values():
        return
    landed, before = last.landed, last.landed.rows
    known = {partition: rows or 0 for partition, rows in counted.items()}
    for partition in sorted({*before, *known, *landed.end}):
        least = before.get(partition, 0)
        if landed.added is not None:
            most = least = least + landed.added.get(partition, 0)
        else:
            most = least + landed.end.get(partition, 0) - landed.start.get(partition, 0)
        if not least <= known.get(partition, 0) <= most:
            want = str(least) if least == most else f"{least} to {most}"
            raise LakeError(
                f"{where} partition {partition} has {known.get(partition, 0)} rows, where {want} were landed:"
                f" {_REBUILD}"
            )
    total, want_total = sum(known.values()), sum(before.values()) + (last.added or 0)
    if landed.added is None and last.added is not None and total != want_total:
        raise LakeError(f"{where} has {total} rows, where {want_total} were landed: {_REBUILD}")


# -- without a JVM


def history_of(table: Any, limit: int = HISTORY_LIMIT) -> Sequence[TableCommit]:
    """Return the history of a delta-rs table as `newest_first` reads it, at most *limit* commits."""
    return [*islice(newest_first(table), limit)]


def newest_first(table: Any) -> Iterator[TableCommit]:
    """Yield the commits of a delta-rs table, newest first, from the version that the table is read at; each
    is read when it is asked for.

    The commits' own files are read: `DeltaTable.history` begins with those that were made since, and numbers
    them as if they had not been.
    """
    filesystem = filesystem_of(str(table.table_uri))

    def read(version: int) -> bytes | None:
        try:
            with filesystem.open_input_stream(f"_delta_log/{version:020d}.json") as opened:
                return bytes(opened.read())
        except FileNotFoundError:
            return None

    return _commits_by(read, int(table.version()))


def _commits_by(read: Callable[[int], bytes | None], version: int) -> Iterator[TableCommit]:
    for at in range(version, -1, -1):
        content = read(at)
        if content is not None:
            yield _commit_in(at, content)
            continue
        if at == version:
            yield TableCommit(version=version, operation="a commit that was cleaned up", metadata=None)
        return


def _commit_in(version: int, content: bytes) -> TableCommit:
    try:
        for line in content.splitlines():
            if b'"commitInfo"' in line and (told := msgspec.json.decode(line).get("commitInfo")) is not None:
                operation, metadata = str(told.get("operation", "")), told.get("userMetadata")
                told_by_user = metadata if isinstance(metadata, str) else None
                return commit_of(version, operation, told_by_user, told.get("operationMetrics") or {})
    except (msgspec.DecodeError, UnicodeDecodeError, AttributeError, TypeError, ValueError):
        pass  # it was changed by hand: a reader of the chain sees a stranger's commit
    return TableCommit(version=version, operation="a commit that does not tell what it is", metadata=None)


def files_in(table: Any) -> pa.Table:
    """Return the entries of a delta-rs table's log about its files."""
    # pa.table() would do it too, but imports pandas first, for longer than a landing that finds nothing
    # takes.
    return pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all()


def listed_files(table: Any) -> dict[int, list[File]]:
    """Return the files of a delta-rs table by partition, in the order of their first offsets; LakeError if
    the log does not name a file's partition.
    """
    listed: dict[int, list[File]] = {}
    for each in files_in(table).to_pylist():
        listed.setdefault(partition_of(str(table.table_uri), each), []).append(file_of(each))
    for files in listed.values():
        files.sort(key=lambda file: -1 if file.first is None else file.first)
    return listed


def partition_of(where: str, told: Mapping[str, Any]) -> int:
    """Return the partition that the log says of a file."""
    partition = told.get("partition.partition")
    if not isinstance(partition, int):
        raise LakeError(
            f"{where}: the log does not tell of which partition file {told.get('path')} is: it was changed by"
            " hand. Put the log back as it was, or land the topic in another lake"
        )
    return partition


def file_of(told: Mapping[str, Any]) -> File:
    """Return a file from what the log says of it."""
    latest, landed_at = told.get("max.timestamp"), told.get("max.landed_at")
    return File(
        path=unquote(told["path"]),
        first=told.get("min.offset"),
        last=told.get("max.offset"),
        latest_ms=None if latest is None else latest.timestamp() * 1000,
        row_bytes=told["size_bytes"] // max(1, told.get("num_records") or 1),
        rows=told.get("num_records"),
        size_bytes=told["size_bytes"],
        landed_ms=None if landed_at is None else landed_at.timestamp() * 1000,
    )


def counted_rows(table: Any) -> dict[int, int | None]:
    """Return how many rows each partition has by a delta-rs table's files, None if a file has no count."""
    actions = files_in(table)
    if "partition.partition" not in actions.column_names:
        for each in actions.to_pylist():
            partition_of(str(table.table_uri), each)
        return {}
    names = ("partition.partition", "num_records")
    return all_told(zip(*(actions.column(name).to_pylist() for name in names), strict=True))


def all_told(files: Iterable[tuple[Any, int | None]]) -> dict[int, int | None]:
    """Return how many rows each partition has, None if one of its *files*, pairs of partition and rows, has
    no count.
    """
    counts: dict[int, int | None] = {}
    for partition, rows in files:
        before = counts.get(int(partition), 0)
        counts[int(partition)] = None if before is None or rows is None else before + rows
    return counts


def transaction_name(link: str) -> str:
    """Return the name under which Delta lets one commit through: the successor of *link*."""
    return f"holdfast-landing-{link}"
