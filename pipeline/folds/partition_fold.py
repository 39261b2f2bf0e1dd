"""The fold of one partition: stretches of records in the order in which they were folded go in, and the
results of a replay come out.

Spark's tasks run this, and the local engine too. It needs the core, pyarrow and numpy, no Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.core.engine.declared.global_tables import Global
from holdfast.core.engine.fold.folding import Folder
from holdfast.core.engine.fold.ordering import MergeOrder
from holdfast.core.engine.fold.stepping import WATERMARKS, Transition
from holdfast.core.engine.fold.stretches import Stretch
from holdfast.core.engine.merge.global_copies import GlobalLog, GlobalReplay
from holdfast.core.engine.positions import Position, start_of
from holdfast.core.engine.state.codec import ROW_KINDS, TIMER_KINDS, digest
from holdfast.pipeline.folds.plan import FoldPlan
from holdfast.pipeline.folds.positions import summary_at
from holdfast.pipeline.folds.result_rows import Results, states, summary_batch
from holdfast.pipeline.folds.spilling import FoldStore, SpillingStore
from holdfast.pipeline.folds.waiting import fold_whole, waiting

OpenGlobal = Callable[[Global[Any]], Mapping[int, GlobalLog]]
"""Gives the log of each partition of a global table, with the columns that its fold takes."""


def no_globals(table: Global[Any]) -> Mapping[int, GlobalLog]:
    """Return the logs of a global where there is none to read."""
    return {}


@dataclass(frozen=True, slots=True)
class FoldedState:
    """The state with which a fold of one partition continues: stored rows, at *position*. Its creator closes
    it.
    """

    store: FoldStore
    position: Position


def beginning_of(plan: FoldPlan, partition: int) -> FoldedState:
    """Return the first state of a partition, in a store of its own."""
    base, store = plan.bases.get(partition), SpillingStore(plan.memory_bytes)
    if base is None:
        return FoldedState(store, start_of(plan.processor))
    store.apply(base.stored)
    return FoldedState(store, base.position)


class PartitionFold:
    """The fold of one partition, from *state* (None: from its beginning) on. Close it when done: what it
    began with, and the copies of globals, may be in files.
    """

    def __init__(
        self,
        plan: FoldPlan,
        partition: int,
        results: Results,
        open_global: OpenGlobal = no_globals,
        state: FoldedState | None = None,
    ) -> None:
        self._owns_store = state is None
        processor, state = plan.processor, state or beginning_of(plan, partition)
        self._plan, self._partition, self._results, self._store = plan, partition, results, state.store
        self._on_later = waiting(plan.later_timeout_s)
        self._where = f"replay of {processor.table} partition {partition}"
        self._copies = [SpillingStore() for _ in processor.reads]
        self._folder: Folder[Any] = Folder(
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
        self._folder.refuse_again(plan.refused.get(partition, ()))
        self._folder.order.on_later = self._on_later
        self._records = self._refused = 0

    @property
    def position(self) -> Position:
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
        kinds = Counter(key[:1] for key, _ in self._store.everything())
        yield summary_batch(
            summary_at(
                self._plan.processor,
                self.position,
                self._store.get(WATERMARKS),
                partition=self._partition,
                records=self._records,
                refused=self._refused,
                rows=sum(kinds[kind] for kind in ROW_KINDS),
                timers=sum(kinds[kind] for kind in TIMER_KINDS),
                digest=digest(self._store.everything()),
            )
        )

    def close(self) -> None:
        """Remove the copies of globals, and release the state, unless another object owns it."""
        for each in self._copies:
            each.close()
        if self._owns_store:
            self._store.close()
