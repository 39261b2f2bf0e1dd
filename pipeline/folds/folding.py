"""The fold of a partition from its logs, in the order that was recorded: at most a batch of each source is in
memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import groupby
from operator import itemgetter

import pyarrow as pa

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.choices import Choice
from holdfast.core.engine.fold.stretches import Stretch, beginning_upto
from holdfast.core.engine.merge.merging import replayed
from holdfast.core.engine.positions import Position, counted
from holdfast.core.engine.state.handover import Handover
from holdfast.errors import OrderError
from holdfast.pipeline.folds.partition_fold import FoldedState, OpenGlobal, PartitionFold, no_globals
from holdfast.pipeline.folds.plan import FoldPlan
from holdfast.pipeline.folds.result_rows import Results
from holdfast.pipeline.folds.version_diff import VersionDiff
from holdfast.pipeline.progress import advance
from holdfast.pipeline.stopping import ReplayEnd

TRANSACTION_RECORDS = 50_000
TRANSACTION_BYTES = 32 << 20


def fold_partition(
    plan: FoldPlan,
    partition: int,
    logs: Sequence[Iterable[tuple[Batch, int]]],
    recorded: Iterable[Choice] = (),
    ends: Sequence[int] | None = None,
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
    results, the summary last.

    With *state* it continues from there: *logs* and choices then begin after it. *upto* is the position of a
    table that it is to come to. *open_global* has the logs of a global that the processor reads.
    """
    results, sizes = results or Results(), _Sizes()
    fold: PartitionFold | VersionDiff
    if plan.other is None:
        fold = PartitionFold(plan, partition, results, open_global, state)
    else:
        fold = VersionDiff(plan, plan.other, partition, open_global)
    with closing(fold):
        read = [sizes.of(log, f"partition {partition}") for log in logs]
        order = fold.order.as_at(upto)
        stretches = replayed(fold.position, read, recorded, ends, order=order, open_end=open_end)
        if stop is not None:
            stretches = stop.cut(stretches)
        if limit is not None:
            stretches = _first(stretches, limit)
        for is_due, section in _sections(plan, partition, stretches):
            while taken := sizes.transaction(section):
                before = counted(fold.position.applied)
                fold.transact(taken, is_due=is_due)
                advance(counted(fold.position.applied) - before)
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
    pieces = _pieces(stretches, plan.emits.ends(partition))
    for (*_, is_due), section in groupby(pieces, key=itemgetter(0)):
        yield is_due, (piece for _, piece in section)


def _pieces(
    stretches: Iterator[Stretch], ends: Sequence[Handover]
) -> Iterator[tuple[tuple[bool, ...], Stretch]]:
    """Yield the parts of *stretches* that lie on one side of all *ends*, with whether they lie up to each."""
    for stretch in stretches:
        rest = stretch
        while True:
            whole, sides = rest, list[bool]()
            for end in ends:
                side, rest = beginning_upto(rest, end)
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

    def of(self, log: Iterable[tuple[Batch, int]], where: str) -> Iterator[Batch]:
        """Yield the batches of *log*; raises OrderError where one does not follow the last."""
        last = -1
        for batch, size_bytes in log:
            if batch.offsets and batch.offsets[0] <= last:
                raise OrderError(f"{where}: offset {batch.offsets[0]} came after {last}")
            last = batch.offsets[-1] if batch.offsets else last
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
