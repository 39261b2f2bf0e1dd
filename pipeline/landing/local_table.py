"""A bronze table as this process reads and writes it: Arrow makes the files, delta-rs the commits."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction

from holdfast.clock import system_clock
from holdfast.config import Settings
from holdfast.core.engine.fold.skips import OffsetRanges
from holdfast.errors import LakeError, LinkTakenError, LostRecordsError
from holdfast.kafka.fetching.records import Records
from holdfast.pipeline.bronze import digests
from holdfast.pipeline.bronze.columns import PARTITIONED_BY, SCHEMA
from holdfast.pipeline.bronze.commits import (
    TableCommit,
    check_upkeep,
    counted_rows,
    files_in,
    history_of,
    landed_in,
    listed_files,
    transaction_name,
)
from holdfast.pipeline.bronze.features import refuse_features
from holdfast.pipeline.bronze.files import File, FileReader, filesystem_of, remove
from holdfast.pipeline.bronze.guarded import bronze_reader
from holdfast.pipeline.bronze.lake import (
    ADDED_COLUMNS,
    PROPERTIES,
    Landed,
    describe,
    far_hint,
    open_table,
    table_uri,
)
from holdfast.pipeline.bronze.ordered import in_order
from holdfast.pipeline.landing.bronze_file import BronzeFile
from holdfast.pipeline.landing.columns import columns_of
from holdfast.pipeline.topic import Span, TopicReader

LOOK_BACK = 20
ATTEMPTS = 5
"""Commits that change the table's properties may come in between so often."""


class Contents(NamedTuple):
    """The rows of a table for one partition of a topic, and their digest."""

    topic: str
    partition: int
    first: int
    last: int
    rows: int
    offsets: int
    digest: int


class LandedRows(NamedTuple):
    """A commit's metadata, the rows that it has of each partition, and the bytes they take as stored."""

    landed: Landed
    added: Mapping[int, int]
    stored_bytes: int


class LocalTable:
    """A table at *path*, made or given its newer columns where it lacks them.

    One handle judges the state of the table and makes the next commit: delta-rs refuses that commit if
    another with its link was made since the handle read the log. A handle opened in between would let both
    through.
    """

    def __init__(self, settings: Settings, path: str) -> None:
        self._settings, self.path = settings, path
        self._table = self._open()
        self._filesystem = filesystem_of(str(self._table.table_uri))

    def _open(self) -> DeltaTable:
        if not self._is_there():
            try:
                DeltaTable.create(
                    table_uri(self.path),
                    Schema.from_arrow(SCHEMA),
                    mode="ignore",
                    partition_by=PARTITIONED_BY,
                    configuration=PROPERTIES,
                )
            except (DeltaError, OSError) as error:
                # Another landing made it first, or it cannot be made.
                if not self._is_there():
                    raise LakeError(f"cannot make a Delta table at {self.path}: {error}") from error
        table: DeltaTable = open_table(self.path)
        refuse_features(self.path, table, writes=True)
        there = {field.name for field in table.schema().fields}
        missing = [SCHEMA.field(name) for name in ADDED_COLUMNS if name not in there]
        if missing:
            table.alter.add_columns([Field.from_arrow(field) for field in missing])
            table = open_table(self.path)
        return table

    def _is_there(self) -> bool:
        try:
            return DeltaTable.is_deltatable(table_uri(self.path))
        except (DeltaError, OSError) as error:
            raise LakeError(
                f"cannot look for a Delta table at {self.path}: {error}{far_hint(self.path)}"
            ) from error

    def identity(self) -> str:
        """Return the table's id: one that was made again has another."""
        return str(self._table.metadata().id)

    def history(self, limit: int) -> Sequence[TableCommit]:
        """Return the newest commits, newest first."""
        return history_of(self._table, limit)

    def counted(self, version: int) -> dict[int, int | None]:
        """Return how many rows each partition has in the newest version that `history` gave, None if
        unknown.
        """
        assert version == self._table.version(), "a handle's history ends at its version"
        return counted_rows(self._table)

    def below(self, version: int, vector: Mapping[int, int]) -> dict[int, int]:
        """Return how many rows before *vector* each partition had in a version; LakeError when that is
        gone.
        """
        table = open_table(self.path)
        try:
            table.load_as_version(version)
        except (DeltaError, OSError) as error:
            raise LakeError(f"{self.path}: version {version} cannot be read any more: {error}") from error
        rows = Counter[int]()
        for partition, files in listed_files(table).items():
            for file in files:
                for each in self._reader(partition).rows(file, ["offset"]):
                    rows[partition] += int(
                        (each.column("offset").to_numpy() < vector.get(partition, 0)).sum()
                    )
        return rows

    def contents(self) -> Sequence[Contents]:
        """Return the content of the table by its rows themselves."""
        topics = {
            unquote(each["path"]): each.get("partition.topic") for each in files_in(self._table).to_pylist()
        }
        found = list[Contents]()
        for partition, files in sorted(listed_files(self._table).items()):
            by_topic = defaultdict[str, list[File]](list)
            for file in files:
                by_topic[str(topics.get(file.path))].append(file)
            for topic, some in by_topic.items():
                found += self._contents(topic, partition, some)
        return found

    def _contents(self, topic: str, partition: int, files: Sequence[File]) -> Iterator[Contents]:
        first, last, count, digest = -1, -1, 0, 0
        for rows in in_order(self._reader(partition), files, digests.DIGESTED):
            if rows.num_rows == 0:
                continue
            offsets = rows.column("offset").to_numpy()
            first, last = first if count else int(offsets[0]), int(offsets[-1])
            count, digest = count + len(offsets), digest ^ digests.digest_of(digests.hashes_in(rows))
        if count:
            yield Contents(topic, partition, first, last, count, count, digest)

    def _reader(self, partition: int) -> FileReader:
        return bronze_reader(f"{self.path} partition {partition}", self._filesystem)

    # -- writing

    def write(
        self, landed: Landed, link: str, spans: Mapping[int, Span], skips: Mapping[int, OffsetRanges]
    ) -> LandedRows:
        """Append the records of *spans* in one commit, the only one that may ever follow *link*.

        LakeError when another landing's does, or when something else has changed rows.
        """
        self._judge(landed, link)
        landed_at_ms = system_clock.now_ms()
        files = self._write_files(landed.topic, spans, skips, landed_at_ms)
        rows = Counter({file.partition: file.rows for file in files})
        told = msgspec.structs.replace(
            landed,
            landed_at_ms=landed_at_ms,
            added=None if landed.rows is None else dict(rows),
            added_digests=digests.told({file.partition: file.digest for file in files}),
        )
        self._commit(told, link, [file.action(landed.topic) for file in files])
        return LandedRows(told, rows, sum(file.size_bytes for file in files))

    def _judge(self, landed: Landed, link: str) -> None:
        """Bring the handle up to date, and refuse commits that it then shows after *link*: later ones are
        refused by the commit.
        """
        judged = self._table.version()
        self._table.update_incremental()
        if self._table.transaction_version(transaction_name(link)) is not None:
            raise taken(self.path, landed.start)
        newer = self._table.version() - judged
        for commit in self.history(newer) if newer else ():
            told = landed_in(commit)
            if told is None:
                check_upkeep(self.path, commit, None)
            elif told.batch != link:
                raise taken(self.path, landed.start)

    def _commit(self, landed: Landed, link: str, actions: list[AddAction]) -> None:
        properties = CommitProperties(
            custom_metadata={"userMetadata": landed.encode()},
            # Spark forgets transactions without a time, and would let a second commit through.
            app_transactions=[Transaction(transaction_name(link), 1, system_clock.now_ms())],
        )
        failure: DeltaError | None = None
        for _ in range(ATTEMPTS):
            read = int(self._table.version())
            try:
                self._table.create_write_transaction(
                    [*actions], "append", self._table.schema(), PARTITIONED_BY, commit_properties=properties
                )
                return
            except DeltaError as error:
                failure = error
            self._table.update_incremental()
            told = [landed_in(commit) for commit in self.history(LOOK_BACK)]
            if any(each is not None and each.batch == landed.batch for each in told):
                return  # it is there, only the answer was lost
            if self._table.transaction_version(transaction_name(link)) is not None:
                raise taken(self.path, landed.start) from failure
            if int(self._table.version()) == read:
                break
            # Another program set a property or added a column since, which refuses every commit that was
            # begun before.
            for commit in self.history(int(self._table.version()) - read):
                check_upkeep(self.path, commit, None)
        raise LakeError(f"{self.path}: the commit failed, nothing was landed by it: {failure}") from failure

    def _write_files(
        self, topic: str, spans: Mapping[int, Span], skips: Mapping[int, OffsetRanges], landed_at_ms: int
    ) -> list[BronzeFile]:
        """Write a file for each partition that has records; if reading fails, no file is left."""
        files: list[BronzeFile] = []
        try:
            with TopicReader(self._settings, topic, skips) as reader:
                for partition, span in sorted(spans.items()):
                    made = write_partition(reader, self._filesystem, topic, partition, span, landed_at_ms)
                    files += [] if made is None else [made]
        except BaseException:
            remove(self._filesystem, [file.path for file in files])
            raise
        return files


def write_partition(
    reader: TopicReader, filesystem: Any, topic: str, partition: int, span: Span, landed_at_ms: int
) -> BronzeFile | None:
    """Write a file of the records of *span*; None where there are none. Where that fails, no file is left."""
    lots = (records for records, _ in reader.records(partition, span))
    file = BronzeFile.new(topic, partition)
    try:
        if (first := next(lots, None)) is None:
            return None
        file.write(filesystem, _columns(file, chain((first,), lots), landed_at_ms))
    except LostRecordsError as error:
        remove(filesystem, [file.path])
        raise LostRecordsError(
            f"{topic}: records were deleted while they were read: {error.__cause__}. Raise retention.ms;"
            " `land --accept-loss` goes on without"
        ) from error
    except OSError as error:
        remove(filesystem, [file.path])
        raise LakeError(
            f"{topic} partition {partition}: file {file.path} cannot be written: {error}"
        ) from error
    except BaseException:
        remove(filesystem, [file.path])
        raise
    return file


def _columns(file: BronzeFile, lots: Iterable[Records], landed_at_ms: int) -> Iterator[pa.RecordBatch]:
    """Yield records as columns, and note their digest."""
    for records in lots:
        file.digest ^= digests.digest_of(digests.hashes_of(records))
        yield columns_of(records, landed_at_ms)


def taken(path: str, start: Mapping[int, int]) -> LinkTakenError:
    """Return the error of a landing that lost a race for one link of the chain."""
    return LinkTakenError(
        f"{path}: another landing extended the table from the same offsets ({describe(start)}); nothing was"
        " written by this one. Run one landing per topic and lake"
    )
