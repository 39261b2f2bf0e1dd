"""Replaying a processor of several sources: its topics in the order that was recorded, at most a batch of each in
memory. Spark's tasks run this as it is.
"""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import pyarrow as pa

from holdfast.config import Settings
from holdfast.core.engine.batches import Batch
from holdfast.core.engine.fold.skips import OffsetRanges
from holdfast.core.engine.fold.stepping import Transition
from holdfast.core.engine.merge.choices import (
    Choice,
    VectorMarker,
    decode_choice,
    encode_vector_marker,
    event_ms_of,
)
from holdfast.core.engine.merge.global_copies import GlobalLog, GlobalReplay, OpenLogs, folded_by
from holdfast.core.engine.merge.merging import Stretch, replayed
from holdfast.core.engine.merge.merging_folder import MergingFolder, beginning_upto, start_of
from holdfast.core.engine.merge.positions import counted
from holdfast.core.engine.state.codec import ROW_KINDS, TIMER_KINDS, digest
from holdfast.core.engine.state.global_rows import GlobalViews
from holdfast.core.engine.state.handover import Handover
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.errors import PipelineError
from holdfast.pipeline.folds.folding import (
    TRANSACTION_BYTES,
    TRANSACTION_RECORDS,
    FoldPlan,
    FoldSummary,
    Results,
    states,
    summary_batch,
    told_event_time,
)
from holdfast.pipeline.folds.merged_extent import MergedExtent
from holdfast.pipeline.folds.spilling import SpillingStore
from holdfast.pipeline.folds.waiting import fold_whole, waiting
from holdfast.pipeline.progress import advance
from holdfast.pipeline.stopping import ReplayEnd
from holdfast.pipeline.topic import TopicReader


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedTopics:
    """The topics of the sources of *plan* and of its choices, how much of them to fold, and what is left out of each. Can
    be pickled.
    """

    settings: Settings
    plan: FoldPlan
    extent: MergedExtent
    skips: Mapping[str, Mapping[int, OffsetRanges]]

    def fold(self, partitions: Iterable[int]) -> Iterator[pa.RecordBatch]:
        """Fold *partitions* and yield what they tell, as `local.fold_topic` does of one source."""
        processor, settings = self.plan.processor, self.settings
        with ExitStack() as stack:
            readers = [
                stack.enter_context(TopicReader(settings, topic, self.skips[topic]))
                for topic in processor.topics
            ]
            recorder = stack.enter_context(TopicReader(settings, processor.choices(settings.app)))
            for partition in partitions:
                with ExitStack() as opened:
                    yield from self._fold(partition, readers, recorder, self._globals(opened))

    def fold_named(self, named: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Fold the partitions whose numbers come in: what a Spark task runs."""
        return self.fold(partition for numbers in named for partition in numbers.column(0).to_pylist())

    def _globals(self, stack: ExitStack) -> OpenLogs:
        """Return what opens the logs of globals: a reader for each partition, since they are read in turns."""
        reads, settings = self.plan.processor.reads, self.settings

        def opened(number: int) -> dict[int, GlobalLog]:
            topic, inputs = reads[number].topic, folded_by(reads[number]).folds[0].inputs
            logs: dict[int, GlobalLog] = {}
            for partition, span in self.extent.globals[topic].items():
                reader = stack.enter_context(TopicReader(settings, topic, self.skips[topic]))
                read = reader.batches(partition, span, inputs)
                logs[partition] = GlobalLog((batch for batch, _ in read), span.end)
            return logs

        return opened

    def _fold(
        self,
        partition: int,
        readers: Sequence[TopicReader],
        recorder: TopicReader,
        open_logs: OpenLogs,
    ) -> Iterator[pa.RecordBatch]:
        extent = self.extent
        spans = [extent.spans[reader.topic][partition] for reader in readers]
        logs = [
            reader.batches(partition, span, fold.inputs)
            for reader, span, fold in zip(readers, spans, self.plan.processor.folds, strict=True)
        ]
        return fold_merged(
            self.plan,
            partition,
            logs,
            _recorded(recorder, partition, extent),
            [span.end for span in spans],
            extent.stops.get(partition),
            open_end=extent.is_open(partition),
            open_logs=open_logs,
        )


def _recorded(recorder: TopicReader, partition: int, extent: MergedExtent) -> Iterator[Choice]:
    read = recorder.records(partition, extent.choices[partition])
    values = (value for records, _ in read for value in records.values)
    return choices_upto(values, extent.upto.get(partition), f"{recorder.topic} partition {partition}")


def choices_upto(values: Iterable[bytes | None], upto: VectorMarker | None, where: str) -> Iterator[Choice]:
    """Yield the choices in *values*, as far as the position *upto* knows of them; raises PipelineError when one of these
    is missing.
    """
    number = 0
    for value in values:
        if upto is not None and number >= upto.choices:
            return
        choice = decode_choice(value)
        number = choice.number + 1
        yield choice
    if upto is not None and number < upto.choices:
        raise PipelineError(f"{where} ends before choice {upto.choices - 1}, which its table has obeyed")


def fold_merged(
    plan: FoldPlan,
    partition: int,
    logs: Sequence[Iterable[tuple[Batch, int]]],
    recorded: Iterable[Choice],
    ends: Sequence[int],
    stop: ReplayEnd | None = None,
    *,
    open_end: bool = False,
    open_logs: OpenLogs = lambda number: {},
) -> Iterator[pa.RecordBatch]:
    """Fold one partition from (records, their size in bytes) of each source and the recorded choices, up to *stop*, and
    with *open_end* no further than the sources were read; yield what it tells, the summary last. *open_logs* has the logs of
    the globals that the processor reads.
    """
    with ExitStack() as stack:
        copies = [stack.enter_context(closing(SpillingStore())) for _ in plan.processor.reads]
        views = GlobalReplay(plan.processor.reads, open_logs, copies, waiting(plan.later_timeout_s))
        yield from _fold_seeing(plan, partition, logs, recorded, ends, stop, views, open_end=open_end)


def _fold_seeing(
    plan: FoldPlan,
    partition: int,
    logs: Sequence[Iterable[tuple[Batch, int]]],
    recorded: Iterable[Choice],
    ends: Sequence[int],
    stop: ReplayEnd | None,
    views: GlobalViews,
    *,
    open_end: bool,
) -> Iterator[pa.RecordBatch]:
    results, store, sizes = Results(), DictStore(), _Sizes()
    on_later = waiting(plan.later_timeout_s)
    where = f"replay of {plan.processor.table} partition {partition}"

    def trace(each: Transition[object]) -> None:
        if plan.tells(each):
            results.transition(partition, each)

    folder = MergingFolder(
        plan.processor,
        store,
        trace=trace if plan.transitions else None,
        views=views,
        handover=plan.handover(partition),
    )
    folder.refused_before = plan.refused.get(partition, ())
    stretches = replayed(
        start_of(plan.processor), [sizes.of(log) for log in logs], recorded, ends, open_end=open_end
    )
    if stop is not None:
        stretches = stop.cut(stretches)
    records = refused = 0
    for is_due, section in _sections(plan, partition, stretches):
        while taken := sizes.transaction(section):
            changes = fold_whole(folder, taken, on_later, where)
            assert changes is not None, "a stretch is never empty"
            store.apply(changes.puts)
            for each in changes.refused:
                results.refused(partition, each)
            if plan.emits is not None:
                results.emitted(partition, changes.emits, is_due=is_due)
            records, refused = records + changes.records, refused + len(changes.refused)
            before = counted(folder.marker.applied)
            folder.commit()
            advance(counted(folder.marker.applied) - before)
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
            rows=sum(kinds[kind] for kind in ROW_KINDS),
            timers=sum(kinds[kind] for kind in TIMER_KINDS),
            digest=digest(store.everything()),
            sources=dict(zip(plan.processor.topics, marker.applied, strict=True)),
            choices=marker.choices,
            position=b64encode(encode_vector_marker(marker)).decode(),
            **told_event_time(event_ms_of(marker)),
        )
    )


def _sections(
    plan: FoldPlan, partition: int, stretches: Iterator[Stretch]
) -> Iterator[tuple[bool, Iterator[Stretch]]]:
    """Yield *stretches* as they lie between the places at which transactions have to end, and of each section whether its emits are due."""
    if plan.emits is None:
        yield True, stretches
        return
    pieces = _pieces(stretches, plan.emits.places(partition))
    for (*_, is_due), section in groupby(pieces, key=itemgetter(0)):
        yield is_due, (piece for _, piece in section)


def _pieces(
    stretches: Iterator[Stretch], places: Sequence[Handover]
) -> Iterator[tuple[tuple[bool, ...], Stretch]]:
    """Yield what of *stretches* lies equally to all *places*, with whether it lies up to each."""
    for stretch in stretches:
        rest = stretch
        while True:
            whole, sides = rest, list[bool]()
            for place in places:
                side, rest = beginning_upto(rest, place)
                sides.append(side)
            yield tuple(sides), rest
            if rest.records == whole.records:
                break
            rest = whole.slice(rest.records, whole.records)


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
