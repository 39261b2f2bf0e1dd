"""Expiry: the beginning of each partition of a bronze table, up to the first record that is young enough, is
removed.

The commit is a link of the chain of landings. It says where each partition begins now, and the rows and
digests of the rest, so that checks, replays and landings know of no hole but of a later beginning. A landing
that had written its files when the expiry came continues from there; an expiry that comes after a landing is
repeated at once, since only its metadata follow from that.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import xor
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from deltalake import CommitProperties, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import RemoveAction
from pyarrow import compute

from holdfast.clock import system_clock
from holdfast.errors import ConfigError, LakeError
from holdfast.pipeline.bronze import digests
from holdfast.pipeline.bronze.columns import PARTITIONED_BY
from holdfast.pipeline.bronze.commits import (
    LastLanding,
    counted_rows,
    history_of,
    sound_chain,
    transaction_name,
)
from holdfast.pipeline.bronze.files import File, FileReader, filesystem_of, remove
from holdfast.pipeline.bronze.lake import LAST_TIME_MS, Expired, Landed, bronze_path
from holdfast.pipeline.bronze.layout import Segment, segments
from holdfast.pipeline.bronze.ordered import in_order, overlapping
from holdfast.pipeline.bronze.segment_rows import rows_of_segments
from holdfast.pipeline.landing.bronze_file import BronzeFile
from holdfast.pipeline.upkeep.sound import (
    SoundTable,
    check_there,
    open_sound,
    removed_unless_named,
    version_after,
)
from holdfast.pipeline.upkeep.whole_rows import WholeRows, schema_of

ATTEMPTS = 50
"""The number of landings that may commit in between."""
_APPEND_ONLY = "delta.appendOnly"
_NEVER_US = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiredRows:
    """The removed part of a partition, or with a dry run the part to remove: its offsets from *first* up to
    and without *begins*, and *rows* of them.
    """

    topic: str
    partition: int
    first: int
    begins: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireReport:
    """The part of one table that an expiry removed: *version* of its commit, None where there was nothing to
    remove, or with *dry_run*.
    """

    topic: str
    table: str
    before_ms: int
    dry_run: bool
    expired: tuple[ExpiredRows, ...]
    version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beginning:
    """The part of a partition to remove: *files*, of which *split* have rows from *begins* on too, which are
    written again; *rows* and *digest* are those of the rows before that.
    """

    files: Sequence[File]
    split: Sequence[File]
    first: int
    begins: int
    rows: int
    digest: int


def expire(topic: str, lake: str, *, before_ms: int, dry_run: bool = False) -> ExpireReport:
    """Remove, of each partition of *topic*'s table, all records before the first one whose time is
    *before_ms* (ms since the epoch) or later. Records without a time go with their neighbours; a file without
    any by when it was landed.

    Older versions can still be read until a vacuum. Raises ConfigError for a time that is not in the past and
    for a table of choices, LakeError for a table that is not sound, and where another commit removed the same
    files first: nothing was changed then.
    """
    if not 0 <= before_ms <= min(LAST_TIME_MS, system_clock.now_ms()):
        raise ConfigError(
            f"records from before {before_ms} ms cannot expire: name a time in the past, after 1970"
        )
    path = bronze_path(lake, topic)
    sound = open_sound(path)
    if not sound.chain:
        raise LakeError(f"{path}: nothing was landed yet (`holdfast pipeline land`)")
    if sound.chain[0].landed.cut is not None:
        raise ConfigError(
            f"{path} holds the choices of a processor of several sources, and none expire: without one of"
            " them nobody could fold what is left of the sources"
        )
    goes = dict(_beginnings(sound, before_ms))
    told = tuple(
        ExpiredRows(topic=topic, partition=p, first=each.first, begins=each.begins, rows=each.rows)
        for p, each in goes.items()
    )
    version = None if dry_run or not goes else _removed(topic, path, sound, goes, before_ms)
    return ExpireReport(
        topic=topic, table=path, before_ms=before_ms, dry_run=dry_run, expired=told, version=version
    )


def holds_choices(topic: str, lake: str) -> bool:
    """Return whether the table of *topic* is one of choices, none of which expire."""
    path = bronze_path(lake, topic)
    chain = open_sound(path).chain
    return bool(chain) and chain[0].landed.cut is not None


# -- what goes


def _beginnings(sound: SoundTable, before_ms: int) -> Iterator[tuple[int, _Beginning]]:
    for partition, files in sorted(sound.files.items()):
        reader = sound.reader(partition)
        old, split, begins = _old_files(reader, files, before_ms)
        if not old and not split:
            continue
        if begins is None:
            begins = sound.chain[0].landed.end[partition]
        files = [*old, *split]
        rows, digest = _counted(reader, partition, files, begins, sound.chain)
        first = sound.chain[0].landed.begins.get(partition, 0)
        yield (
            partition,
            _Beginning(files=files, split=split, first=first, begins=begins, rows=rows, digest=digest),
        )


def _old_files(
    reader: FileReader, files: Sequence[File], before_ms: int
) -> tuple[list[File], Sequence[File], int | None]:
    """Return the files of which no row stays, those of which some do, and the offset of the first that does,
    None for none.
    """
    old = list[File]()
    for group in overlapping(files):
        first = group[0].first
        if first is None:
            raise LakeError(
                f"{reader.where}: the log does not tell the offsets of {group[0].path}: nothing expires"
            )
        if all(_latest_ms(reader, file) < before_ms for file in group):
            old += group
            continue
        young = first if _is_undated(group) else _first_young(reader, group, before_ms)
        if young == first:
            return old, (), first
        if young is not None:
            return old, group, young
        old += group
    return old, (), None


def _latest_ms(reader: FileReader, file: File) -> float:
    """Return the time of a file's newest record; of one without times, when it was landed; and where that is
    unknown, no end of time. No record is from after it was landed, whatever its clock said.
    """
    is_dated = file.latest_ms is not None and file.latest_ms >= 0
    # Whole ms, that seconds as a float may fall short of.
    latest_ms = round(file.latest_ms) if is_dated and file.latest_ms is not None else np.inf
    if file.landed_ms is None or latest_ms <= file.landed_ms:
        return latest_ms
    found = (compute.max(rows.column("landed_at")).as_py() for rows in reader.rows(file, ["landed_at"]))
    landed_ms = max((round(each.timestamp() * 1000) for each in found if each is not None), default=np.inf)
    return min(latest_ms, landed_ms)


def _is_undated(group: Sequence[File]) -> bool:
    return all(file.latest_ms is not None and file.latest_ms < 0 for file in group)


def _first_young(reader: FileReader, group: Sequence[File], before_ms: int) -> int | None:
    for rows in in_order(reader, group, ["offset", "timestamp_ms", "landed_at"]):
        landed_ms = rows.column("landed_at").cast(pa.int64()).fill_null(_NEVER_US).to_numpy() // 1000
        young = np.flatnonzero(np.minimum(rows.column("timestamp_ms").to_numpy(), landed_ms) >= before_ms)
        if len(young):
            return int(rows.column("offset")[int(young[0])].as_py())
    return None


def _counted(
    reader: FileReader, partition: int, files: Sequence[File], begins: int, chain: Sequence[LastLanding]
) -> tuple[int, int]:
    """Return rows and digest of *files* before *begins*; LakeError if a landing recorded others: the fault
    could not be found afterwards.
    """
    told = [each for each in segments(chain, partition) if each.first < begins]
    told[-1:] = [_cut(each, begins) for each in told[-1:]]
    found = rows_of_segments(reader, files, told)
    for segment, rows in zip(told, found, strict=True):
        if segment.rows not in (None, rows.rows) or segment.digest not in (None, rows.digest):
            raise LakeError(
                f"{reader.where} offsets {segment.first} to {segment.end - 1} are not as they were landed, so"
                " nothing expires: see `holdfast pipeline check --deep`"
            )
    return sum(rows.rows for rows in found), reduce(xor, (rows.digest for rows in found), 0)


def _cut(segment: Segment, end: int) -> Segment:
    """Return a segment up to *end*; the content of a part of it is unknown."""
    return segment if segment.end <= end else replace(segment, end=end, rows=None, digest=None)


# -- the commit


def _removed(topic: str, path: str, sound: SoundTable, goes: Mapping[int, _Beginning], before_ms: int) -> int:
    """Write again what stays of split files, and commit; where that was surely not done, no file is left."""
    table, written = sound.table, list[BronzeFile]()
    filesystem, schema = filesystem_of(str(table.table_uri)), schema_of(table)
    try:
        for partition, each in goes.items():
            if each.split:
                where = f"{path} partition {partition}"
                whole = WholeRows(where=where, filesystem=filesystem, schema=schema)
                reader = sound.guarded(partition, whole)
                written.append(BronzeFile.new(topic, partition))
                written[-1].write(filesystem, _from(each.begins, reader, each.split), schema)
        _allow_removal(path, table)
    except BaseException:
        remove(filesystem, [each.path for each in written])
        raise
    with removed_unless_named(filesystem, [each.path for each in written]):
        return _commit(topic, path, table, goes, written, before_ms)


def _from(begins: int, reader: FileReader, files: Sequence[File]) -> Iterator[pa.RecordBatch]:
    for rows in in_order(reader, files, reader.schema.names):
        stays = rows.slice(int(np.searchsorted(rows.column("offset").to_numpy(), begins)))
        if stays.num_rows:
            yield stays


def _allow_removal(path: str, table: Any) -> None:
    """Take the property from the table that forbids to remove rows: for good, since each change of it refuses
    the commits under way.
    """
    if table.metadata().configuration.get(_APPEND_ONLY) != "true":
        return
    try:
        table.alter.set_table_properties({_APPEND_ONLY: "false"})
    except DeltaError as error:
        raise LakeError(
            f"{path}: {_APPEND_ONLY} cannot be taken from it, so nothing expires: {error}"
        ) from error
    table.update_incremental()


def _commit(
    topic: str,
    path: str,
    table: Any,
    goes: Mapping[int, _Beginning],
    written: Sequence[BronzeFile],
    before_ms: int,
) -> int:
    commit, now_ms = uuid.uuid4().hex, system_clock.now_ms()
    taken = [(p, file) for p, each in goes.items() for file in each.files]
    removed = [
        RemoveAction(file.path, True, now_ms, file.size_bytes, {"topic": topic, "partition": str(p)})
        for p, file in taken
    ]
    actions = [*(each.action(topic) for each in written), *removed]
    failure: Exception | None = None
    for _ in range(ATTEMPTS):
        read = int(table.version())
        check_there(path, table, [file for _, file in taken], "removed")
        last = sound_chain(path, history_of(table))[0].landed
        told = _after(last, goes, counted_rows(table), before_ms, commit)
        properties = CommitProperties(
            custom_metadata={"userMetadata": told.encode()},
            app_transactions=[Transaction(transaction_name(last.batch), 1, now_ms)],
            max_commit_retries=0,  # what it says follows from the version that it was judged at
        )
        try:
            table.create_write_transaction(
                actions, "append", table.schema(), PARTITIONED_BY, commit_properties=properties
            )
        except (DeltaError, OSError) as error:
            failure = error
        if (version := version_after(commit, path, table, read, failure)) is not None:
            return version
    raise LakeError(f"{path}: nothing was removed, since others commit all the time: {failure}") from failure


def _after(
    last: Landed,
    goes: Mapping[int, _Beginning],
    counted: Mapping[int, int | None],
    before_ms: int,
    commit: str,
) -> Landed:
    """Return the commit's metadata: the last landing's, less the removed part."""
    rows = {p: each - (goes[p].rows if p in goes else 0) for p, each in counted.items() if each is not None}
    less = digests.told({p: each.digest for p, each in goes.items()})
    known = last.digests is not None and last.added_digests is not None
    return msgspec.structs.replace(
        last,
        batch=commit,
        start=last.end,
        begins={**last.begins, **{p: each.begins for p, each in goes.items()}},
        rebuilt=False,
        rows=rows if len(rows) == len(counted) else None,
        added={} if len(rows) == len(counted) else None,
        digests=(
            digests.joined(digests.joined(last.digests or {}, last.added_digests or {}), less)
            if known
            else None
        ),
        added_digests={} if known else None,
        expires=True,
        expired={
            **last.expired,
            **{p: _expired(last.expired.get(p), each, before_ms) for p, each in goes.items()},
        },
    )


def _expired(before: Expired | None, goes: _Beginning, before_ms: int) -> Expired:
    return Expired(rows=goes.rows + (before.rows if before else 0), before_ms=before_ms)
