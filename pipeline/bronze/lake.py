"""The lake: the paths of bronze tables, their columns, and the metadata of each landing commit.

Every landing commit carries, as its Delta user metadata, the end vector it started from and the one it
reached (offsets by partition, the end not included), the topic's identity, and its own id. The table is
thereby its own checkpoint: a landing reads the vector of the last commit and continues from there; no second
record can be lost or lag behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast.core.engine.fold.skips import OffsetRanges, merged
from holdfast.errors import LakeError
from holdfast.pipeline.bronze.sealed import sealed

COLUMNS = {
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestamp_type": "int",
    "key": "binary",
    "value": "binary",
    "headers": "array<struct<key:string,value:binary>>",
    "timestamp_ms": "bigint",
    "landed_at": "timestamp",
    "date": "date",
    "leader_epoch": "int",
}
"""Columns of a bronze table, one row per record. `timestamp_ms` is Kafka's, as it is (-1 for none);
`timestamp` the same in microseconds UTC, held between the years 1 and 9999; `date` its day; `timestamp_type`
0 create time, 1 append time; `landed_at` when its commit was begun; `leader_epoch` null where the reader is
unknown.
"""
SCHEMA_VERSION = 2
"""Version 1 ends with `headers`. A table of it gets the others, empty, at its first landing of version 2; its
files stay.
"""
ADDED_COLUMNS = tuple(COLUMNS)[8:]

LEAST_TIME_MS, LAST_TIME_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999: times that SQL, Python and the readers of Delta's statistics can all express."""

PROPERTIES = {
    "delta.appendOnly": "true",
    "delta.checkpointInterval": "50",
    # One transaction id is spent per commit; a race between two landings is over in seconds.
    "delta.setTransactionRetentionDuration": "interval 7 days",
}
FIRST_LINK = "new"
Vector = Mapping[int, int]


def bronze_path(lake: str, topic: str) -> str:
    """Return where the bronze table of *topic* lies: a table of its own, so that topics land, and are
    repaired, independently.

    >>> bronze_path("s3a://lake/", "orders")
    's3a://lake/bronze/orders'
    """
    return f"{lake.rstrip('/')}/bronze/{topic}"


class TablePosition(msgspec.Struct, frozen=True):
    """The position of a partition of a table: the last offset *applied* of each source, by topic, and how
    many *choices* it had obeyed.
    """

    applied: dict[str, int]
    choices: int


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """The extent to which the sources of a processor had been landed when the choices of their order were
    read: *sources* are end offsets by topic and partition, *numbers* how many choices of each partition there
    were. *positions* are those of its table, as read before both: up to there the order is the one that
    workers chose, and later it may still change. Landings of an earlier holdfast have none.
    """

    sources: dict[str, dict[int, int]]
    numbers: dict[int, int]
    positions: dict[int, TablePosition] = {}


class Expired(msgspec.Struct, frozen=True, kw_only=True):
    """The count of *rows* of a partition that were removed for their age so far, the last of them since they
    were from before *before_ms*, in ms since the epoch.
    """

    rows: int
    before_ms: int


class Landed(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of a landing commit. *end* is the whole vector after it; *begins* where each partition's
    rows begin.

    *lost* lists all ranges [from, to) so far that the topic no longer held and that were given up by order.
    *skipped* are ranges, both ends included, that each application which landed here skips of the topic,
    since they cannot be read (holdfast/core/engine/fold/skips.py). *left_out* are those whose rows were
    therefore not written. *cut* is in a table of choices: the extent of the sources that they order. *rows*
    are those of each partition before this commit and *added* those of it, None if unknown. *removed* counts
    the rows of each partition that rebuilds found missing. *columns* is the version of the columns that its
    rows have, and *landed_at_ms* their landing time, None if unknown.

    *digests* are of the rows of each partition before this commit, from the offset in *digested_from* on (the
    beginning, where there is no entry), and *added_digests* of the rows of it
    (holdfast/pipeline/bronze/digests.py); None in commits of a holdfast before that.

    An expiry is a link of the chain too: *expires* is true, it adds no rows, and its *begins*, *rows* and
    *digests* are those of the remaining rows. *expired* counts all that expired so far, by partition.
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
    rows: dict[int, int] | None = None
    added: dict[int, int] | None = None
    removed: dict[int, int] = {}
    columns: int = 1
    landed_at_ms: int | None = None
    digests: dict[int, str] | None = None
    digested_from: dict[int, int] = {}
    added_digests: dict[int, str] | None = None
    expires: bool = False
    expired: dict[int, Expired] = {}
    holdfast_landing: int = 1

    def encode(self) -> str:
        return sealed(msgspec.json.encode(self).decode())

    def skips(self, app: str) -> dict[int, OffsetRanges]:
        """Return the skips of *app* in each partition, as far as its own landings have noted them."""
        return {partition: merged(ranges) for partition, ranges in self.skipped.get(app, {}).items()}


def check_identity(where: str, landed: Landed, topic: str, topic_id: str) -> None:
    """Refuse to add records of another topic, or of a recreated one: its offsets mean other records."""
    if landed.topic != topic:
        raise LakeError(
            f"{where} holds topic {landed.topic}, not {topic}; land each topic in a table of its own"
        )
    if landed.topic_id != topic_id:
        raise LakeError(
            f"{where}: topic {topic} was deleted and made again (its id was {landed.topic_id}, is"
            f" {topic_id}), so its offsets mean other records; land it in another lake"
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


def table_uri(path: str) -> str:
    """Return a table's path as delta-rs takes it, to which Hadoop's s3a is S3.

    >>> table_uri("s3a://lake/bronze/orders"), table_uri("/data/lake/bronze/orders")
    ('s3://lake/bronze/orders', 'file:///data/lake/bronze/orders')
    """
    if "://" not in path:
        return Path(path).absolute().as_uri()
    return f"s3://{path.removeprefix('s3a://')}" if path.startswith("s3a://") else path


def open_table(path: str) -> Any:
    """Return the delta-rs table at *path*; LakeError if there is none, or delta-rs cannot open it."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        return DeltaTable(table_uri(path))
    except TableNotFoundError as error:
        raise LakeError(
            f"no Delta table at {path}: land the topic first (`holdfast pipeline land`)"
        ) from error
    except (DeltaError, OSError) as error:  # an OSError where a store does not let us in, or is not there
        hint = "; delta-rs does not find folders with a percent sign in their name" if "%" in path else ""
        raise LakeError(f"cannot open the Delta table at {path}: {error}{hint}{far_hint(path)}") from error


def far_hint(path: str) -> str:
    """Return the remedy for a lake at *path* that is not reached; "" where the failure says it.

    >>> far_hint("/data/lake"), far_hint("hdfs://namenode/lake")
    ('', '; delta-rs reaches HDFS without a JVM: set HADOOP_CONF_DIR, or mount the folder and name its path')
    """
    if not path.startswith(("hdfs://", "viewfs://")):
        return ""
    return "; delta-rs reaches HDFS without a JVM: set HADOOP_CONF_DIR, or mount the folder and name its path"
