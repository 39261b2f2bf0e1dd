"""The lake: where bronze tables lie, what each commit says of itself, and the chain of commits that leaves no
overlap and no hole.

Every landing commit carries, as its Delta user metadata, the end vector it started from and the one it
reached (offsets by partition, the end not included), the topic's identity, and its own id. The table is
thereby its own checkpoint: a landing reads the vector of the last commit and goes on from there; nothing
beside the table can be lost or fall behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from holdfast.core.engine.fold.skips import OffsetRanges, merged
from holdfast.errors import LakeError

COLUMNS = {
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestamp_type": "int",
    "key": "binary",
    "value": "binary",
    "headers": "array<struct<key:string,value:binary>>",
}
"""Columns of a bronze table, one row per record; `timestamp` is in microseconds UTC, `timestamp_type` 0
create time, 1 append time.
"""

FIRST_LINK = "new"
HISTORY_LIMIT = 1000

# Operations of Delta that change how rows are stored, never which rows there are.
_UPKEEP = frozenset(
    {
        "CREATE TABLE",
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
        "COMPUTE STATS",
        "FSCK",
    }
)

Vector = Mapping[int, int]


def bronze_path(lake: str, topic: str) -> str:
    """Return where the bronze table of *topic* lies: a table of its own, so that topics land, and are
    repaired, independently.

    >>> bronze_path("s3a://lake/", "orders")
    's3a://lake/bronze/orders'
    """
    return f"{lake.rstrip('/')}/bronze/{topic}"


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """How far the sources of a processor had been landed when the choices of their order were read: *sources* are end
    offsets by topic and partition, *numbers* how many choices of each partition there were.
    """

    sources: dict[str, dict[int, int]]
    numbers: dict[int, int]


class Landed(msgspec.Struct, frozen=True, kw_only=True):
    """What a landing commit says of itself. *end* is the whole vector after it; *begins* where each
    partition's rows begin.

    *lost* lists all ranges [from, to) so far that the topic no longer held and that were given up by order. *skipped* are ranges, both
    ends included, that each application which landed here skips of the topic, since nobody can read them (holdfast/core/engine/fold/skips.py). *left_out*
    are those whose rows were therefore not written. *cut* is in a table of choices: what of the sources they are the order of.
    """

    topic: str
    topic_id: str
    batch: str
    start: dict[int, int]
    end: dict[int, int]
    begins: dict[int, int]
    lost: dict[int, list[tuple[int, int]]] = {}
    rebuilt: bool = False
    skipped: dict[str, dict[int, list[tuple[int, int]]]] = {}
    left_out: dict[int, list[tuple[int, int]]] = {}
    cut: Cut | None = None
    holdfast_landing: int = 1

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()

    def skips(self, app: str) -> dict[int, OffsetRanges]:
        """Return what *app* skips of each partition, as far as landings of its own have noted."""
        return {partition: merged(ranges) for partition, ranges in self.skipped.get(app, {}).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCommit:
    """One line of a Delta table's history."""

    version: int
    operation: str
    metadata: str | None


def landed_in(commit: TableCommit) -> Landed | None:
    """Return what a commit says of itself, None when it was not made by a landing."""
    if not commit.metadata or '"holdfast_landing":1' not in commit.metadata:
        return None
    try:
        return msgspec.json.decode(commit.metadata, type=Landed)
    except msgspec.DecodeError as error:
        raise LakeError(
            f"version {commit.version}: the landing's metadata is malformed ({error}); check who wrote it, then --rebuild"
        ) from error


def last_landed(where: str, history: Iterable[TableCommit]) -> Landed | None:
    """Return the newest landing commit, None for a table nothing was landed in yet. *history* comes newest
    first.

    Refuses a table whose rows something else has changed since: its vector would no longer tell what rows
    there are.
    """
    oldest = 0
    for commit in history:
        oldest = commit.version
        landed = landed_in(commit)
        if landed is not None:
            return landed
        if commit.operation.upper() not in _UPKEEP:
            raise LakeError(
                f"{where}: version {commit.version} ({commit.operation}) was not written by a landing, so its vector of offsets is lost: "
                "records could be doubled or missed. Make sure that no other landing runs, then `holdfast pipeline land --rebuild` "
                "reads the vector from the rows"
            )
    if oldest > 0:
        raise LakeError(
            f"{where}: the history reaches back to version {oldest} only and holds no landing; "
            "`holdfast pipeline land --rebuild` reads the vector of offsets from the rows"
        )
    return None


def check_identity(where: str, landed: Landed, topic: str, topic_id: str) -> None:
    """Refuse to add records of another topic, or of one that was deleted and made again: its offsets mean
    other records.
    """
    if landed.topic != topic:
        raise LakeError(
            f"{where} holds topic {landed.topic}, not {topic}; land each topic in a table of its own"
        )
    if landed.topic_id != topic_id:
        raise LakeError(
            f"{where}: topic {topic} was deleted and made again (its id was {landed.topic_id}, is {topic_id}), "
            "so its offsets mean other records; land it in another lake"
        )


def share(start: Vector, ends: Vector, limit: int) -> dict[int, int]:
    """Return the vector of the next batch: at most about *limit* offsets, shared by how much each partition
    has left.

    >>> share({0: 0, 1: 10}, {0: 900, 1: 110}, 100)
    {0: 90, 1: 20}
    >>> share({0: 0}, {0: 5}, 100)
    {0: 5}
    """
    left = {partition: end - start.get(partition, 0) for partition, end in ends.items()}
    total = sum(left.values())
    if total <= limit:
        return dict(ends)
    return {
        partition: min(ends[partition], start.get(partition, 0) + -(-each * limit // total))
        for partition, each in left.items()
    }


def describe(vector: Vector) -> str:
    """Return a vector as people write it.

    >>> describe({1: 7, 0: 5})
    '0:5,1:7'
    """
    return ",".join(f"{partition}:{offset}" for partition, offset in sorted(vector.items()))


# -- without a JVM


def open_table(path: str) -> Any:
    """Return the delta-rs table at *path*; LakeError when there is none, or none that delta-rs can open."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        return DeltaTable(path if "://" in path else Path(path).absolute().as_uri())
    except TableNotFoundError as error:
        raise LakeError(
            f"no Delta table at {path}: land the topic first (`holdfast pipeline land`)"
        ) from error
    except DeltaError as error:
        hint = "; delta-rs does not find folders with a percent sign in their name" if "%" in path else ""
        raise LakeError(f"cannot open the Delta table at {path}: {error}{hint}") from error


def history_of(table: Any, limit: int = HISTORY_LIMIT) -> Sequence[TableCommit]:
    """Return a delta-rs table's history, newest first."""
    return [
        TableCommit(
            version=int(each.get("version", -1)),
            operation=str(each.get("operation", "")),
            metadata=each.get("userMetadata"),
        )
        for each in table.history(limit)
    ]
