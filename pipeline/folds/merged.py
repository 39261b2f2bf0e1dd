"""Replaying a processor of several sources: its topics in the order that was recorded, at most a batch of
each in memory. Spark's tasks run this as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa

from holdfast.config import Settings
from holdfast.core.engine.batches import Batch
from holdfast.core.engine.choices import Choice, decode_choice
from holdfast.core.engine.declared.global_tables import Global
from holdfast.core.engine.declared.processor import Input
from holdfast.core.engine.fold.skips import OffsetRanges
from holdfast.core.engine.merge.global_copies import GlobalLog, folded_by
from holdfast.core.engine.merge.merging import Stretch, replayed
from holdfast.core.engine.merge.merging_folder import beginning_upto
from holdfast.core.engine.positions import Position, counted
from holdfast.core.engine.state.handover import Handover
from holdfast.errors import PipelineError
from holdfast.pipeline.folds.folding import (
    TRANSACTION_BYTES,
    TRANSACTION_RECORDS,
    FoldedState,
    FoldPlan,
    Results,
)
from holdfast.pipeline.folds.kept_logs import KeptLogs
from holdfast.pipeline.folds.merged_extent import MergedExtent
from holdfast.pipeline.folds.merged_fold import FoldedStretches, MergedFold, OpenGlobal, no_globals
from holdfast.pipeline.progress import advance
from holdfast.pipeline.stopping import ReplayEnd
from holdfast.pipeline.topic import Span, TopicReader


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedTopics:
    """The topics of the sources of *plan* and of its choices, the extent to fold, and the offsets left out of
    each. It can be pickled.
    """

    settings: Settings
    plan: FoldPlan
    extent: MergedExtent
    skips: Mapping[str, Mapping[int, OffsetRanges]]

    def fold(self, partitions: Iterable[int]) -> Iterator[pa.RecordBatch]:
        """Fold *partitions* and yield their results, as `local.fold_topic` does of one source."""
        processor, settings = self.plan.processor, self.settings
        with ExitStack() as stack:
            readers = [
                stack.enter_context(TopicReader(settings, topic, self.skips[topic]))
                for topic in processor.topics
            ]
            recorder = stack.enter_context(TopicReader(settings, processor.choices(settings.app)))
            kept = KeptLogs()
            for partition in partitions:
                with ExitStack() as opened:
                    yield from self._fold(partition, readers, recorder, self._globals(kept, stack, opened))

    def fold_named(self, named: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Fold the partitions whose numbers come in: what a Spark task runs."""
        return self.fold(partition for numbers in named for partition in numbers.column(0).to_pylist())

    def _globals(self, kept: KeptLogs, stack: ExitStack, own: ExitStack) -> OpenGlobal:
        """Return a function that opens the logs of globals, which are *kept* for other partitions as far as
        there is room.

        Each partition of a log has a reader of its own, since they are read in turns: in *stack* one that
        reads for all, in *own* one for this partition.
        """

        def opened(table: Global[Any]) -> dict[int, GlobalLog]:
            topic, inputs = table.topic, folded_by(table).folds[0].inputs
            logs: dict[int, GlobalLog] = {}
            for partition, span in self.extent.globals[topic].items():
                read, again = (partial(self._read, topic, inputs, partition, each) for each in (stack, own))
                found = kept.batches(topic, inputs, partition, span, read, again)
                logs[partition] = GlobalLog(found, span.end)
            return logs

        return opened

    def _read(
        self, topic: str, inputs: Sequence[Input], partition: int, stack: ExitStack, span: Span
    ) -> Iterator[tuple[Batch, int]]:
        reader = stack.enter_context(TopicReader(self.settings, topic, self.skips[topic]))
        return reader.batches(partition, span, inputs)

    def _recorded(self, recorder: TopicReader, partition: int) -> Iterator[Choice]:
        extent = self.extent
        read = recorder.records(partition, extent.choices[partition])
        values = (value for records, _ in read for value in records.values)
        where = f"{recorder.topic} partition {partition}"
        return choices_upto(values, extent.upto.get(partition), where, first_choice(self.plan, partition))

    def _fold(
        self,
        partition: int,
        readers: Sequence[TopicReader],
        recorder: TopicReader,
        open_global: OpenGlobal,
    ) -> Iterator[pa.RecordBatch]:
        extent = self.extent
        spans = [extent.spans[reader.topic][partition] for reader in readers]
        logs = [
            reader.batches(partition, span, inputs)
            for reader, span, inputs in zip(readers, spans, self.plan.source_inputs, strict=True)
        ]
        return fold_merged(
            self.plan,
            partition,
            logs,
            self._recorded(recorder, partition),
            [span.end for span in spans],
            extent.stops.get(partition),
            open_end=extent.is_open(partition),
            upto=extent.upto.get(partition),
            open_global=open_global,
        )


def first_choice(plan: FoldPlan, partition: int) -> int:
    """Return the number of the first choice that is not in what a partition began with."""
    base = plan.bases.get(partition)
    return 0 if base is None else base.position.choices


def choices_upto(
    values: Iterable[bytes | None], upto: Position | None, where: str, first: int = 0
) -> Iterator[Choice]:
    """Yield the choices in *values* from the *first* on, as far as the position *upto* knows of them; raises
    PipelineError when one of these is missing.
    """
    number = first
    for value in values:
        if upto is not None and number >= upto.choices:
            return
        choice = decode_choice(value)
        if choice.number < first:
            continue
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
    upto: Position | None = None,
    open_global: OpenGlobal = no_globals,
    state: FoldedState | None = None,
    results: Results | None = None,
    limit: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Fold one partition from (records, their size in bytes) of each source and the recorded choices, up to
    *stop*, with *open_end* no further than the sources were read, and at most *limit* records; yield its
    results, the summary last. With *state* it continues from there: *logs* and choices then begin after it.
    *upto* is the position of a table that it is to come to. *open_global* has the logs of a global that
    the processor reads.
    """
    results, sizes = results or Results(), _Sizes()
    fold: FoldedStretches
    if plan.beside is None:
        fold = MergedFold(plan, partition, results, open_global, state)
    else:
        fold = plan.beside.of_several(plan, partition, results, open_global)
    with closing(fold):
        order = fold.order.as_at(upto)
        read = [sizes.of(log) for log in logs]
        stretches = replayed(fold.marker, read, recorded, ends, order=order, open_end=open_end)
        if stop is not None:
            stretches = stop.cut(stretches)
        if limit is not None:
            stretches = _first(stretches, limit)
        for is_due, section in _sections(plan, partition, stretches):
            while taken := sizes.transaction(section):
                before = counted(fold.marker.applied)
                fold.transact(taken, is_due=is_due)
                advance(counted(fold.marker.applied) - before)
                yield from results.take()
        yield from fold.finish()


def _first(stretches: Iterator[Stretch], limit: int) -> Iterator[Stretch]:
    """Yield *stretches* up to the record with the number *limit*."""
    for stretch in stretches:
        if stretch.records >= limit:
            yield stretch.slice(0, limit)
            return
        limit -= stretch.records
        yield stretch


def _sections(
    plan: FoldPlan, partition: int, stretches: Iterator[Stretch]
) -> Iterator[tuple[bool, Iterator[Stretch]]]:
    """Yield *stretches* in sections between the positions at which transactions have to end, each with
    whether its emits are due.
    """
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
    """Cuts a replay into transactions of limited size: the bytes read count, since stretches do not know
    theirs.
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
