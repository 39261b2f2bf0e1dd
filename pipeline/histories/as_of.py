"""A row as it was at some time or offset, and the records that made it so: from the lake, the topic, or
both.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import compute, dataset

from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.state.codec import RowCodec, key_in_table
from holdfast.errors import ConfigError, LakeError
from holdfast.kafka.reading.skip_log import read_skips
from holdfast.pipeline.bronze.extent import Until
from holdfast.pipeline.bronze.files import filesystem_of
from holdfast.pipeline.bronze.lake import bronze_path
from holdfast.pipeline.folds.bases import read_bases
from holdfast.pipeline.folds.result_rows import TRANSITION, FoldSummary, readable, result_batch
from holdfast.pipeline.folds.results import Replayed
from holdfast.pipeline.logs.lake_log import open_bronze
from holdfast.pipeline.replay import ReplayOptions, replay
from holdfast.pipeline.topic import Span, TopicLog, TopicReader

LIMIT_CHANGES = 20
TOTAL = "total"
"""A kind of results: how many changes a partition had."""
CHANGES = pa.schema(
    [
        ("partition", pa.int32()),
        ("topic", pa.string()),
        ("offset", pa.int64()),
        ("at_ms", pa.int64()),
        ("before", pa.string()),
        ("after", pa.string()),
        ("record_key", pa.binary()),
        ("record_value", pa.binary()),
        ("lies_in", pa.string()),
        ("command", pa.string()),
    ]
)
"""Columns of `RowsAsOf.table`: a row for each change, with the rows before and after as JSON and the record
that made it.
"""


class FoundRecord(NamedTuple):
    """A record of the source: its key and value, and whether it was read in the "lake" or the "topic"."""

    key: bytes | None
    value: bytes | None
    lies_in: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeChange:
    """A change of the row, and the record that made it. *topic* None: a tick did, and *offset* is the number
    of its choice. *command* shows the record's batch, None where the topic does not hold that any more.
    """

    topic: str | None
    offset: int
    at_ms: int
    before: str | None
    after: str | None
    record: FoundRecord | None = None
    command: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowAsOf:
    """The row of one partition *at* a point (in words), as JSON, None for no row; *changes* are the last of
    *total* that it had by then, in their order: none where the table's version began with that row.
    """

    partition: int
    at: str
    row: str | None
    total: int
    changes: tuple[MadeChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsAsOf:
    """The rows of a key in each partition that has ever had one by then: one where the processor routes its
    keys.
    """

    processor: str
    version: int
    table: str
    key: str
    engine: str
    applied: Mapping[int, int]
    rows: tuple[RowAsOf, ...]

    def changes(self) -> pa.Table:
        """Return the changes, with the records that made them, as an Arrow table of the columns CHANGES;
        `.to_pandas()` makes a DataFrame of it.
        """
        told = [
            {
                "partition": row.partition,
                "topic": each.topic,
                "offset": each.offset,
                "at_ms": each.at_ms,
                "before": each.before,
                "after": each.after,
                "record_key": None if each.record is None else each.record.key,
                "record_value": None if each.record is None else each.record.value,
                "lies_in": None if each.record is None else each.record.lies_in,
                "command": each.command,
            }
            for row in self.rows
            for each in row.changes
        ]
        return pa.Table.from_pylist(told, CHANGES)


@dataclass(frozen=True, slots=True, kw_only=True)
class AsOfOptions:
    """Options of *replay* that count are engine, source, lake, allow_holes and spark. At most the last
    *limit* changes of each partition are returned.
    """

    replay: ReplayOptions = field(default_factory=ReplayOptions)
    limit: int = LIMIT_CHANGES


def row_as_of(
    processor: Processor[Any, Any],
    settings: Settings,
    key: str,
    at: Until | int | None,
    options: AsOfOptions | None = None,
    *,
    table: str = "",
) -> RowsAsOf:
    """Return the row of *key* as it was, with the records that made it so; *table* is a named table of the
    processor.

    *at* is where to stop: an offset of the key's partition, the last that counts, or offsets by partition, or
    a time; None is all there is. The partitions are folded up to there, record by record. ConfigError where
    an offset does not name its partition, and any error of `replay`.
    """
    options = options or AsOfOptions()
    partitions = _partitions(processor, settings, key, table, options.replay)
    if isinstance(at, int):
        if len(partitions) != 1:
            raise ConfigError(
                f"--at {at}: which partition holds {key!r} is not known, since processor {processor.name} has"
                " no route=: write PARTITION:OFFSET"
            )
        at = Until(offsets={partitions[0]: at})
    if at is not None and (named := sorted({*at.offsets, *at.sources})):
        partitions = named
    asked = replace(
        options.replay,
        until=at,
        partitions=tuple(partitions),
        rows=False,
        transitions=True,
        of_key=(table, key),
        out=None,
        through=LastChanges(options.limit),
    )
    replayed = replay(processor, settings, asked)
    totals, found = _totals(replayed), _changes(replayed, processor)
    finder = _Finder(settings, options.replay)
    begun = _begun(
        processor, settings, replayed, [at for at in replayed.applied if at not in found], table, key
    )
    places = {each.partition: _place(each) for each in replayed.partitions}
    return RowsAsOf(
        processor=processor.name,
        version=processor.version,
        table=table,
        key=key,
        engine=replayed.engine,
        applied=replayed.applied,
        rows=tuple(
            RowAsOf(
                partition=partition,
                at=places[partition],
                row=found[partition][-1].after if partition in found else begun[partition],
                total=totals.get(partition, 0),
                changes=finder.with_records(partition, found.get(partition, ())),
            )
            for partition in sorted({*found, *begun})
        ),
    )


def _changes(replayed: Replayed, processor: Processor[Any, Any]) -> dict[int, list[MadeChange]]:
    """Return the changes in the replay's results, by partition, in their order."""
    found: dict[int, list[MadeChange]] = {}
    for each in replayed.table("transitions", processor).to_pylist():
        topic = each["topic"] if processor.named_sources else processor.topics[0]
        change = MadeChange(
            topic=topic,
            offset=each["offset"],
            at_ms=each["at_ms"],
            before=each["before"],
            after=each["after"],
        )
        found.setdefault(each["partition"], []).append(change)
    return found


@dataclass(frozen=True, slots=True)
class LastChanges:
    """Lets the last *limit* changes of each partition through, and how many there were: a key may have
    changed more often than memory holds.
    """

    limit: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        counts, last = Counter[int](), dict[int, deque[pa.RecordBatch]]()
        for batch in batches:
            is_change = compute.equal(batch.column("kind"), TRANSITION)
            yield batch.filter(compute.invert(is_change))
            changes = batch.filter(is_change)
            for at, row in enumerate(changes.column("partition").to_pylist()):
                counts[row] += 1
                last.setdefault(row, deque(maxlen=self.limit)).append(changes.slice(at, 1))
        for rows in last.values():
            yield from rows
        if counts:
            yield result_batch([(TOTAL, partition, count) for partition, count in counts.items()])


def _totals(replayed: Replayed) -> dict[int, int]:
    assert replayed.results is not None, "nothing is written to a folder"
    told = replayed.results.filter(compute.equal(replayed.results["kind"], TOTAL))
    return dict(zip(told["partition"].to_pylist(), told["offset"].to_pylist(), strict=True))


def _place(reached: FoldSummary) -> str:
    """Return in words up to where a partition was folded."""
    if isinstance(reached.sources, dict):
        return ", ".join(f"{topic} {offset}" for topic, offset in reached.sources.items())
    return f"offset {reached.applied}"


def _begun(
    processor: Processor[Any, Any],
    settings: Settings,
    replayed: Replayed,
    unchanged: Collection[int],
    table: str,
    key: str,
) -> dict[int, str | None]:
    """Return the row with which *unchanged* partitions began, of those that did with one: a version may begin
    with the rows of the one before it.
    """
    wanted = [at for at in unchanged if at in replayed.bases]
    bases = read_bases(processor, settings, wanted) if wanted else {}
    stored_key, codec = key_in_table(table, key), RowCodec[Any](processor.row_of(table))
    rows = {at: next((v for k, v in each.stored if k == stored_key), None) for at, each in bases.items()}
    return {at: readable(codec.decode(row)) for at, row in rows.items() if row is not None}


def _partitions(
    processor: Processor[Any, Any], settings: Settings, key: str, table: str, options: ReplayOptions
) -> list[int]:
    """Return the partitions that may hold a key."""
    topic = str(processor.topics[0])
    if options.source == "bronze":
        _, landed = open_bronze(bronze_path(str(options.lake), topic))
        every = sorted(landed.end) if landed is not None else []
    else:
        with TopicLog(settings, topic) as log:
            every = log.partitions()
    route = processor.route_of(table)
    place = None if route is None else route(key, len(every))
    return every if place is None else [place]


class _Finder:
    """Finds records where they lie: in the lake as far as that goes, else in the topic."""

    def __init__(self, settings: Settings, options: ReplayOptions) -> None:
        self._settings, self._options = settings, options

    def with_records(self, partition: int, changes: Sequence[MadeChange]) -> tuple[MadeChange, ...]:
        wanted: dict[str, list[int]] = {}
        for each in changes:
            if each.topic is not None:
                wanted.setdefault(each.topic, []).append(each.offset)
        found = {topic: self._of(topic, partition, offsets) for topic, offsets in wanted.items()}
        firsts = {topic: self._first(topic, partition) for topic in wanted}
        return tuple(
            (
                each
                if each.topic is None
                else replace(
                    each,
                    record=found[each.topic].get(each.offset),
                    command=_command(each.topic, partition, each.offset, firsts[each.topic]),
                )
            )
            for each in changes
        )

    def _of(self, topic: str, partition: int, offsets: Sequence[int]) -> dict[int, FoundRecord]:
        options = self._options
        found: dict[int, FoundRecord] = {}
        if options.source != "topic":
            found = dict(_in_lake(bronze_path(str(options.lake), topic), partition, offsets))
        if options.source != "bronze":
            found |= self._in_topic(topic, partition, [each for each in offsets if each not in found])
        return found

    def _in_topic(self, topic: str, partition: int, offsets: Sequence[int]) -> dict[int, FoundRecord]:
        if not offsets:
            return {}
        found = {}
        with TopicReader(self._settings, topic, read_skips(self._settings).of_topic(topic)) as reader:
            for offset in dict.fromkeys(offsets):
                for records, _ in reader.records(partition, Span(first=offset, end=offset + 1)):
                    found[offset] = FoundRecord(records.keys[0], records.values[0], "topic")
        return found

    def _first(self, topic: str, partition: int) -> int | None:
        """Return the first offset that the topic holds, None where it is not asked."""
        if self._options.source == "bronze":
            return None
        with TopicLog(self._settings, topic) as log:
            return log.firsts([partition])[partition]


def _command(topic: str, partition: int, offset: int, first: int | None) -> str | None:
    if first is None or offset < first:
        return None
    return f"holdfast explain {topic} {partition} {offset}"


def _in_lake(path: str, partition: int, offsets: Iterable[int]) -> Iterator[tuple[int, FoundRecord]]:
    files, _ = open_bronze(path)
    wanted = pa.array(sorted({*offsets}), pa.int64())
    spans = [Span(first=each, end=each + 1) for each in wanted.to_pylist()]
    paths = [
        file.path for file in files.files.get(partition, ()) if any(file.touches(span) for span in spans)
    ]
    if not paths:
        return
    try:
        rows = dataset.dataset(paths, filesystem=filesystem_of(files.uri), format="parquet").to_table(
            columns=["offset", "key", "value"], filter=compute.field("offset").isin(wanted)
        )
    except (OSError, pa.ArrowInvalid) as error:
        raise LakeError(f"{path} partition {partition}: its files cannot be read: {error}") from error
    for row in rows.to_pylist():
        yield row["offset"], FoundRecord(row["key"], row["value"], "lake")
