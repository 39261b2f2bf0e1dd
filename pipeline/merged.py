"""Replaying a processor of several sources without a JVM: its topics in the order that was recorded, at most a
batch of each in memory.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pyarrow as pa

from holdfast.clock import system_clock
from holdfast.config import Settings
from holdfast.core.engine.batches import Batch
from holdfast.core.engine.choices import Choice, VectorMarker, decode_choice
from holdfast.core.engine.codec import ROW, TICK, WAKE, digest
from holdfast.core.engine.memory_store import DictStore
from holdfast.core.engine.merging import Stretch, replayed
from holdfast.core.engine.merging_folder import MergingFolder, start_of
from holdfast.core.engine.positions import counted
from holdfast.core.engine.skips import OffsetRanges, kept
from holdfast.core.engine.stepping import Transition
from holdfast.errors import BrokerError, LostRecordsError, PipelineError, TopicError
from holdfast.pipeline.folding import (
    TRANSACTION_BYTES,
    TRANSACTION_RECORDS,
    FoldPlan,
    FoldSummary,
    Results,
    states,
    summary_batch,
)
from holdfast.pipeline.topic import RETRY_S, Span, TopicLog, TopicReader


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedExtent:
    """What to read: of each source and of the choices, by partition. *upto* are positions to stop at, where given:
    no choice from theirs on is obeyed.
    """

    spans: Mapping[str, Mapping[int, Span]]
    choices: Mapping[int, Span]
    upto: Mapping[int, VectorMarker]
    holes: tuple[str, ...] = ()

    @property
    def partitions(self) -> list[int]:
        return sorted(self.choices)

    def skipped(self, skips: Mapping[str, Mapping[int, OffsetRanges]]) -> int:
        """Return how many offsets of it are skipped."""
        return sum(
            span.end
            - span.first
            - sum(end - first for first, end in kept(skips[topic].get(partition, ()), span.first, span.end))
            for topic, spans in self.spans.items()
            for partition, span in spans.items()
        )


def merged_extent(
    settings: Settings, plan: FoldPlan, upto: Mapping[int, VectorMarker], wanted: Iterable[int] | None
) -> MergedExtent:
    """Return what of the topics to read: up to the positions in *upto*, else all there is.

    Choices first: what they tell of the sources is there by then. Raises LostRecordsError when choices were
    deleted, since nothing else tells the order.
    """
    processor = plan.processor
    with TopicLog(settings, processor.choices(settings.app)) as log:
        _wait_settled(log, settings.request_timeout_s)
        choices = log.spans()
    spans: dict[str, dict[int, Span]] = {}
    for topic in processor.topics:
        with TopicLog(settings, topic) as log:
            spans[topic] = log.spans()
        if set(spans[topic]) != set(choices):
            raise TopicError(
                f"{processor.choices(settings.app)} has {len(choices)} partitions, the source {topic} has {len(spans[topic])}: "
                "they must be equal; check with `holdfast topics check`"
            )
    partitions = set(choices) if wanted is None else set(wanted)
    for partition in sorted(partitions):
        if choices[partition].first > 0:
            raise LostRecordsError(
                f"choices in {processor.choices(settings.app)} partition {partition} were deleted before offset {choices[partition].first}: "
                "in which order the sources were folded is not known any more"
            )
    return MergedExtent(
        spans={
            topic: {
                partition: _upto(topic, partition, span, number, upto)
                for partition, span in found.items()
                if partition in partitions
            }
            for number, (topic, found) in enumerate(spans.items())
        },
        choices={partition: span for partition, span in choices.items() if partition in partitions},
        upto=upto,
        holes=tuple(
            f"topic {topic} partition {partition} begins at offset {span.first}: earlier records were deleted"
            for topic, found in spans.items()
            for partition, span in found.items()
            if partition in partitions and span.first > 0
        ),
    )


def _upto(topic: str, partition: int, span: Span, number: int, upto: Mapping[int, VectorMarker]) -> Span:
    if partition not in upto:
        return span
    end = upto[partition].applied[number] + 1
    if end > span.end:
        raise PipelineError(
            f"topic {topic} partition {partition} ends at offset {span.end}, so it cannot be replayed up to and with {end - 1}"
        )
    return Span(first=min(span.first, end), end=end)


def _wait_settled(log: TopicLog, timeout_s: float) -> None:
    """Wait until all that is written now is committed or aborted: the markers that end one transaction are
    written to each of its partitions in its own time.
    """
    partitions = log.partitions()
    written, until_s = log.written(partitions), system_clock.monotonic_s() + timeout_s
    while any(end < written[partition] for partition, end in log.ends(partitions).items()):
        if system_clock.monotonic_s() > until_s:
            raise BrokerError(f"topic {log.topic}: a transaction is open for more than {timeout_s:g} s")
        time.sleep(RETRY_S)


def fold_topics(
    settings: Settings,
    plan: FoldPlan,
    extent: MergedExtent,
    skips: Mapping[str, Mapping[int, OffsetRanges]],
) -> Iterator[pa.RecordBatch]:
    """Fold what *extent* names and yield what it tells, as `local.fold_topic` does of one source."""
    processor = plan.processor
    with ExitStack() as stack:
        readers = [
            stack.enter_context(TopicReader(settings, topic, skips[topic])) for topic in processor.topics
        ]
        recorder = stack.enter_context(TopicReader(settings, processor.choices(settings.app)))
        for partition in extent.partitions:
            logs = [
                reader.batches(partition, extent.spans[reader.topic][partition], fold.inputs)
                for reader, fold in zip(readers, processor.folds, strict=True)
            ]
            recorded = _recorded(recorder, partition, extent)
            ends = [extent.spans[reader.topic][partition].end for reader in readers]
            yield from fold_merged(plan, partition, logs, recorded, ends)


def _recorded(recorder: TopicReader, partition: int, extent: MergedExtent) -> Iterator[Choice]:
    """Yield the choices of a partition, in order; raises PipelineError when one that a position knows of is
    missing.
    """
    upto, number = extent.upto.get(partition), 0
    for records, _ in recorder.records(partition, extent.choices[partition]):
        for value in records.values:
            if upto is not None and number >= upto.choices:
                return
            choice = decode_choice(value)
            number = choice.number + 1
            yield choice
    if upto is not None and number < upto.choices:
        raise PipelineError(
            f"{recorder.topic} partition {partition} ends before choice {upto.choices - 1}, which its table has obeyed"
        )


def fold_merged(
    plan: FoldPlan,
    partition: int,
    logs: Sequence[Iterable[tuple[Batch, int]]],
    recorded: Iterable[Choice],
    ends: Sequence[int],
) -> Iterator[pa.RecordBatch]:
    """Fold one partition from (records, their size in bytes) of each source and the recorded choices; yield what it
    tells, the summary last.
    """
    results, store, sizes = Results(), DictStore(), _Sizes()

    def trace(each: Transition[object]) -> None:
        if plan.of_key in (None, each.key):
            results.transition(partition, each)

    folder = MergingFolder(plan.processor, store, trace=trace if plan.transitions else None)
    stretches = replayed(start_of(plan.processor), [sizes.of(log) for log in logs], recorded, ends)
    records = refused = 0
    while taken := sizes.transaction(stretches):
        changes = folder.fold(taken)
        assert changes is not None, "a stretch is never empty"
        store.apply(changes.puts)
        for each in changes.refused:
            results.refused(partition, each)
        records, refused = records + changes.records, refused + len(changes.refused)
        folder.commit()
        yield from results.take()
    yield from results.take(1)
    if plan.rows:
        yield from states(store, partition)
    kinds, marker = Counter(key[:1] for key, _ in store.everything()), folder.marker
    yield summary_batch(
        FoldSummary(
            partition=partition,
            applied=counted(marker.applied),
            stream_ms=marker.stream_ms,
            records=records,
            refused=refused,
            rows=kinds[ROW],
            timers=kinds[WAKE] + kinds[TICK],
            digest=digest(store.everything()),
            sources=dict(zip(plan.processor.topics, marker.applied, strict=True)),
            choices=marker.choices,
        )
    )


class _Sizes:
    """Cuts what is replayed into transactions of limited size: what was read counts, since stretches tell no
    bytes.
    """

    def __init__(self) -> None:
        self._bytes = 0

    def of(self, log: Iterable[tuple[Batch, int]]) -> Iterator[Batch]:
        for batch, size_bytes in log:
            self._bytes += size_bytes
            yield batch

    def transaction(self, stretches: Iterator[Stretch]) -> list[Stretch]:
        taken, records, self._bytes = list[Stretch](), 0, 0
        while records < TRANSACTION_RECORDS and self._bytes < TRANSACTION_BYTES:
            if (stretch := next(stretches, None)) is None:
                break
            taken.append(stretch)
            records += max(1, stretch.records)
        return taken
