"""Writes the results of folded partitions to their changelogs: where the results are made, in this process or
in Spark's tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pyarrow as pa

from holdfast.clients.quarantine.copies import QUARANTINE_COPY_BYTES, quarantine_record
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Emit, Processor
from holdfast.core.engine.declared.streams import Internal
from holdfast.core.engine.fold.folding import Refused
from holdfast.core.engine.fold.stepping import WATERMARKS
from holdfast.core.engine.positions import Position, counted, encode_position
from holdfast.core.engine.state.codec import APPLIED, NOTHING_APPLIED
from holdfast.core.engine.state.evolution import ROW_TYPES, encode_row_types, evolved
from holdfast.core.engine.state.handover import HANDOVER, HANDOVER_FORMAT, Handover, encode_handover
from holdfast.errors import LostRecordsError, StoppedError
from holdfast.kafka.fetching.records import FetchedRecord
from holdfast.kafka.transactions.transactional_producer import UndeliverableError
from holdfast.loop_thread import LoopThread
from holdfast.pipeline.bootstrap.fencing import FENCE_S, TRANSACTION_S, fenced_writer
from holdfast.pipeline.bootstrap.spool import Spool
from holdfast.pipeline.folds.positions import position_of
from holdfast.pipeline.folds.result_rows import RESULT, SUMMARY, FoldSummary, watermarks_of
from holdfast.pipeline.folds.results import decode_summary
from holdfast.pipeline.topic import Span, TopicLog, TopicReader
from holdfast.pipeline.verify.table import read_live
from holdfast.tables.changelog import ChangelogPart

OUTCOME = "outcome"
"""The kind of a result that holds the outcome of a partition."""
NEAR_RECORDS = 5_000
"""Refused records so near to each other are fetched with those between them: a reading of its own costs about
as much.
"""
_GONE = FetchedRecord(None, None, (), -1)
"""A record that its topic no longer has: the quarantine notes its coordinates, and why it was refused."""


class BootstrapOutcome(StrEnum):
    """The outcome of a partition: it was *written*, it has a state of its own and was *kept*, or there is
    nothing to write.
    """

    WRITTEN = "written"
    KEPT = "kept"
    EMPTY = "empty"


class BootstrapStep(StrEnum):
    """The last finished step for a partition; a process that is killed after any of them leaves the whole
    state or none.
    """

    FOLDED = "folded"
    FENCED = "fenced"
    APPENDING = "appending"
    APPENDED = "appended"
    COMMITTED = "committed"


def silent(partition: int, step: BootstrapStep) -> None:
    return


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangelogSink:
    """Takes results (schema RESULT), those of a partition in order and its summary last, and yields the
    summaries, each after a row of kind OUTCOME. It can be pickled.

    *heads* has the first offsets of the sources' partitions, from which workers are to continue. *told* is
    called after each step.
    """

    processor: Processor[Any, Any]
    settings: Settings
    heads: Mapping[str, Mapping[int, int]]
    allowed: frozenset[tuple[str, int, int]] = frozenset()
    suppressed: bool = True
    told: Callable[[int, BootstrapStep], None] = silent

    def __reduce__(self) -> tuple[Any, ...]:
        # What hears of the steps stays in its process.
        return _sent, (self.processor, self.settings, self.heads, self.allowed, self.suppressed)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        spools: dict[int, Spool] = {}
        with ExitStack() as stack:
            for batch in batches:
                for partition, rows, summaries in _by_partition(batch):
                    if partition not in spools:
                        spools[partition] = Spool()
                        stack.callback(spools[partition].close)
                    spools[partition].add(rows)
                    for summary in summaries:
                        self.told(partition, BootstrapStep.FOLDED)
                        yield self._written(summary, spools[partition])
                        spools.pop(partition).close()

    def _written(self, summary: FoldSummary, spool: Spool) -> pa.RecordBatch:
        position = position_of(self.processor, summary)
        if counted(position.applied) == NOTHING_APPLIED:
            return _results(summary, BootstrapOutcome.EMPTY, 0)
        self._check(summary.partition, position, spool.refused)
        copies = self._refused(summary.partition, spool.refused)
        loop = LoopThread("holdfast-bootstrap")
        loop.start()
        try:
            notes = self.notes(position, watermarks_of(summary))
            writing = _Writing(self, summary.partition, position, spool, copies, notes)
            outcome = loop.wait(writing.run(), FENCE_S + TRANSACTION_S)
        finally:
            loop.stop(nothing())
        return _results(summary, outcome, spool.emits)

    def _check(self, partition: int, position: Position, refused: Iterable[Refused]) -> None:
        """Raise if no worker could continue from *position*, or could have come to it."""
        for topic, offset in zip(self.processor.topics, position.applied, strict=True):
            head = self.heads[topic][partition]
            if offset + 1 < head:
                raise LostRecordsError(
                    f"{topic} partition {partition} begins at offset {head}, and history ends at {offset}:"
                    " records in between are lost, and no worker could go on. Land what there is, or read"
                    " history up to the topic's end"
                )
        if self.processor.on_error != "stop":
            return
        for each in refused:
            topic = each.topic or self.processor.topics[0]
            if (topic, partition, each.offset) not in self.allowed:
                raise StoppedError(
                    topic=topic, offset=each.offset, stage=each.stage, error=each.error, reason=each.reason
                )

    # -- refused records

    def _refused(self, partition: int, refused: list[Refused]) -> list[tuple[str, Refused, FetchedRecord]]:
        """Return the source and content of each refused record, as far as its topic still has it."""
        found: list[tuple[str, Refused, FetchedRecord]] = []
        for topic in self.processor.topics if refused else ():
            mine = [each for each in refused if (each.topic or self.processor.topics[0]) == topic]
            head = self.heads[topic][partition]
            there = self._records(
                topic, partition, sorted({each.offset for each in mine if each.offset >= head})
            )
            found += [(topic, each, there.get(each.offset, _GONE)) for each in mine]
        return found

    def _records(self, topic: str, partition: int, offsets: list[int]) -> dict[int, FetchedRecord]:
        found: dict[int, FetchedRecord] = {}
        with TopicReader(self.settings, topic) as reader:
            for near in _neighbours(offsets):
                for records, _ in reader.records(partition, Span(first=near[0], end=near[-1] + 1)):
                    found |= {at: records.at(at) for at in near if at in records.offsets}
        return found

    def copies(
        self, partition: int, refused: Iterable[tuple[str, Refused, FetchedRecord]], copy_bytes: int
    ) -> list[Emit]:
        """Return the quarantine's copies of refused records."""
        topic, name = self.settings.quarantine_topic, self.processor.name
        return [
            quarantine_record(topic, name, (source, partition), each, record, copy_bytes)
            for source, each, record in refused
        ]

    def notes(self, position: Position, watermarks: bytes | None = None) -> list[tuple[bytes, bytes]]:
        """Return the notes of a first transaction, and of a step its *watermarks*: without them, late records
        of its source could not be distinguished from records in time.
        """
        notes: list[tuple[bytes, bytes]] = []
        if watermarks is not None:
            notes.append((WATERMARKS, watermarks))
        if not self.processor.stateless:
            notes.append((ROW_TYPES, encode_row_types(evolved(None, self.processor))))
        if self.suppressed and emits_to_others(self.processor):
            silent = Handover(HANDOVER_FORMAT, position.applied, position.choices)
            notes.append((HANDOVER, encode_handover(silent)))
        return notes


class _Writing:
    """The one transaction of a partition."""

    def __init__(
        self,
        sink: ChangelogSink,
        partition: int,
        position: Position,
        spool: Spool,
        refused: list[tuple[str, Refused, FetchedRecord]],
        notes: list[tuple[bytes, bytes]],
    ) -> None:
        self._sink, self._partition, self._refused = sink, partition, refused
        marker = encode_position(position)
        self._last = ChangelogPart([*notes, (APPLIED, marker)], [])
        self._spool = spool

    async def run(self) -> BootstrapOutcome:
        sink, partition = self._sink, self._partition
        beside = sink.suppressed and sink.processor.builds_beside
        async with fenced_writer(sink.processor, sink.settings, partition, beside=beside) as writer:
            sink.told(partition, BootstrapStep.FENCED)
            if has_state(sink.processor, sink.settings, partition):
                return BootstrapOutcome.KEPT
            for copy_bytes in QUARANTINE_COPY_BYTES:
                copies = sink.copies(partition, self._refused, copy_bytes)
                read = self._spool.reader(ChangelogPart([], copies), self._last)
                try:
                    await writer.write_parts(lambda read=read: self._telling(read()), TRANSACTION_S)  # type: ignore[misc]
                    break
                except UndeliverableError as error:
                    if error.topic != sink.settings.quarantine_topic or not copy_bytes:
                        raise
        sink.told(partition, BootstrapStep.COMMITTED)
        return BootstrapOutcome.WRITTEN

    def _telling(self, parts: Iterable[ChangelogPart]) -> Iterator[ChangelogPart]:
        for part in parts:
            if part.puts or part.emits:
                self._sink.told(self._partition, BootstrapStep.APPENDING)
                yield part
        self._sink.told(self._partition, BootstrapStep.APPENDED)


def _neighbours(offsets: list[int]) -> list[list[int]]:
    """Return ascending offsets in lots that are worth one reading each.

    >>> _neighbours([1, 4, 90_000])
    [[1, 4], [90000]]
    """
    lots: list[list[int]] = []
    for each in offsets:
        if lots and each - lots[-1][-1] <= NEAR_RECORDS:
            lots[-1].append(each)
        else:
            lots.append([each])
    return lots


def _sent(
    processor: Processor[Any, Any],
    settings: Settings,
    heads: Mapping[str, Mapping[int, int]],
    allowed: frozenset[tuple[str, int, int]],
    suppressed: bool,
) -> ChangelogSink:
    return ChangelogSink(
        processor=processor, settings=settings, heads=heads, allowed=allowed, suppressed=suppressed
    )


async def nothing() -> None:
    return


def emits_to_others(processor: Processor[Any, Any]) -> bool:
    """Return whether a processor emits to topics that more than one of its versions write to."""
    return any(not isinstance(topic, Internal) for topic in processor.emits)


def has_state(processor: Processor[Any, Any], settings: Settings, partition: int) -> bool:
    """Return whether a partition's changelog holds a state, or a base that is empty; ChangelogError for one
    that is damaged.
    """
    with TopicLog(settings, processor.changelog(settings.app)) as log:
        span = log.spans()[partition]
    if span.first == span.end:
        return False
    (live,) = read_live(processor, settings, partitions=[partition])
    return live.has_begun


def _by_partition(
    batch: pa.RecordBatch,
) -> Iterator[tuple[int, pa.RecordBatch, list[FoldSummary]]]:
    """Yield the results of each partition in *batch* without its summaries, and the summaries."""
    import pyarrow.compute as pc

    for partition in pc.unique(batch.column("partition")).to_pylist():
        own = batch.filter(pc.equal(batch.column("partition"), partition))
        is_summary = pc.equal(own.column("kind"), SUMMARY)
        told = own.filter(is_summary).column("after").to_pylist()
        yield partition, own.filter(pc.invert(is_summary)), [decode_summary(text) for text in told]


def _results(summary: FoldSummary, outcome: BootstrapOutcome, emits: int) -> pa.RecordBatch:
    import msgspec

    text = msgspec.json.encode(summary).decode()
    rows = [
        {"kind": OUTCOME, "partition": summary.partition, "name": outcome.value, "offset": emits},
        {"kind": SUMMARY, "partition": summary.partition, "after": text},
    ]
    return pa.RecordBatch.from_pylist(rows, RESULT)
