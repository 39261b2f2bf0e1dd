"""The fold of one partition of several sources: stretches in the order that was recorded go in, and the
results of a replay come out.
"""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from holdfast.core.engine.declared.global_tables import Global
from holdfast.core.engine.fold.stepping import WATERMARKS, Transition
from holdfast.core.engine.merge.global_copies import GlobalLog, GlobalReplay
from holdfast.core.engine.merge.merging import Stretch
from holdfast.core.engine.merge.merging_folder import MergingFolder
from holdfast.core.engine.merge.ordering import MergeOrder
from holdfast.core.engine.positions import Position, counted, encode_position
from holdfast.core.engine.state.codec import ROW_KINDS, TIMER_KINDS, digest
from holdfast.pipeline.folds.folding import (
    FoldedState,
    FoldPlan,
    FoldSummary,
    Results,
    beginning_of,
    states,
    summary_batch,
    told_event_time,
    told_watermarks,
)
from holdfast.pipeline.folds.spilling import SpillingStore
from holdfast.pipeline.folds.waiting import fold_whole, waiting

OpenGlobal = Callable[[Global[Any]], Mapping[int, GlobalLog]]
"""Gives the log of each partition of a global table, with the columns that its fold takes."""


def no_globals(table: Global[Any]) -> Mapping[int, GlobalLog]:
    """Return the logs of a global where there is none to read."""
    return {}


class FoldedStretches(Protocol):
    """The fold of one partition, which takes the stretches after its position in order, then yields
    results.
    """

    @property
    def marker(self) -> Position: ...

    @property
    def order(self) -> MergeOrder: ...

    def transact(self, taken: Sequence[Stretch], *, is_due: bool) -> None: ...

    def finish(self) -> Iterator[pa.RecordBatch]: ...

    def close(self) -> None: ...


class MergedFold:
    """The fold of one partition, from *state* (None: from its beginning) on. Close it when done: what it
    began with, and the copies of globals, may be in files.
    """

    def __init__(
        self,
        plan: FoldPlan,
        partition: int,
        results: Results,
        open_global: OpenGlobal,
        state: FoldedState | None = None,
    ) -> None:
        self._owns_store = state is None
        processor, state = plan.processor, state or beginning_of(plan, partition)
        assert state.position.reached_ms, "of several sources"
        self._plan, self._partition, self._results, self._store = plan, partition, results, state.store
        self._on_later = waiting(plan.later_timeout_s)
        self._where = f"replay of {processor.table} partition {partition}"
        self._copies = [SpillingStore() for _ in processor.reads]
        self._folder: MergingFolder[Any] = MergingFolder(
            processor,
            state.store,
            marker=state.position,
            trace=self._trace if plan.transitions else None,
            views=GlobalReplay(
                processor.reads,
                lambda number: open_global(processor.reads[number]),
                self._copies,
                self._on_later,
            ),
            handover=plan.handover(partition),
            partition=partition,
        )
        self._folder.refused_before = plan.refused.get(partition, ())
        self._folder.order.on_later = self._on_later
        self._records = self._refused = 0

    @property
    def marker(self) -> Position:
        """Return the position that it has come to."""
        return self._folder.marker

    @property
    def order(self) -> MergeOrder:
        """Return by which times what follows is merged."""
        return self._folder.order

    def _trace(self, each: Transition[Any]) -> None:
        if self._plan.tells(each):
            self._results.transition(self._partition, each)

    def transact(self, taken: Sequence[Stretch], *, is_due: bool) -> None:
        """Fold stretches that follow the position, in one transaction; *is_due* says whether its emits are
        due.
        """
        changes = fold_whole(self._folder, taken, self._on_later, self._where)
        assert changes is not None, "a stretch is never empty"
        self._store.apply(changes.puts)
        for each in changes.refused:
            self._results.refused(self._partition, each)
        if self._plan.emits is not None:
            self._results.emitted(self._partition, changes.emits, is_due=is_due)
        self._records += changes.records
        self._refused += len(changes.refused)
        self._folder.commit()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield the rest of the results: refused records, final rows, the summary last."""
        yield from self._results.take(1)
        if self._plan.rows:
            yield from states(self._store, self._partition)
        kinds, marker = Counter(key[:1] for key, _ in self._store.everything()), self.marker
        yield summary_batch(
            FoldSummary(
                partition=self._partition,
                applied=counted(marker.applied),
                stream_ms=marker.stream_ms,
                records=self._records,
                refused=self._refused,
                rows=sum(kinds[kind] for kind in ROW_KINDS),
                timers=sum(kinds[kind] for kind in TIMER_KINDS),
                digest=digest(self._store.everything()),
                sources=dict(zip(self._plan.processor.topics, marker.applied, strict=True)),
                choices=marker.choices,
                position=b64encode(encode_position(marker)).decode(),
                **told_event_time(marker.event_ms),
                **told_watermarks(self._store.get(WATERMARKS)),
            )
        )

    def close(self) -> None:
        """Remove the copies of globals, and release the state, unless another object owns it."""
        for each in self._copies:
            each.close()
        if self._owns_store:
            self._store.close()
