"""One partition folded by two versions at once: each change of a row is held against what the other made of the same record.

Only rows that ever differed are held here; those that never did are in the stores of the two folds, and either tells. Spark's tasks run this as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import merge
from itertools import groupby
from typing import Any

import msgspec
import pyarrow as pa

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.fold.stepping import Transition
from holdfast.pipeline.folds.folding import (
    OUT_ROWS,
    SUMMARY,
    FoldPlan,
    PartitionFold,
    Results,
    readable,
    result_batch,
)

PARTED, OTHER = "parted", "other"
"""Kinds of results: a key of which the rows differed, and the summary of the other version."""

Place = tuple[str, str]
"""The name of a row's table, "" for the processor's own, and its key."""


class Parted(msgspec.Struct):
    """The rows of one key, as JSON, since they first differed: at *offset*, of *at_ms*. *apart* tells whether they do now; None is no row."""

    offset: int
    at_ms: int
    mine: str | None
    theirs: str | None
    apart: bool = True


class _Changes(Results):
    """Keeps the changes of rows, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = list[Transition[Any]]()

    def transition(self, partition: int, each: Transition[Any]) -> None:
        self.changes.append(each)

    def refused(self, partition: int, each: object) -> None:
        """Refusals are counted in the summary."""


class PairedFold:
    """The two folds of one partition. *other* reads what the plan's processor does."""

    def __init__(self, other: Processor[Any, Any], plan: FoldPlan, partition: int, results: Results) -> None:
        self._partition, self._changes = partition, (_Changes(), _Changes())
        plans = (_traced(plan, plan.processor), _traced(plan, other))
        self._folds = [
            PartitionFold(each, partition, into) for each, into in zip(plans, self._changes, strict=True)
        ]
        self._parted = dict[Place, Parted]()

    def feed(self, batch: Batch, size_bytes: int) -> None:
        """Take records that follow the last ones, for both."""
        for fold in self._folds:
            fold.feed(batch, size_bytes)
        self._compare()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield the keys that ever differed, and a summary of each version."""
        mine, theirs = ([*fold.finish()] for fold in self._folds)
        self._compare()
        yield from self._told()
        for batch in theirs:
            assert set(batch.column("kind").to_pylist()) == {SUMMARY}, "its rows are left out"
            kinds = pa.array([OTHER] * batch.num_rows, pa.string())
            yield batch.set_column(0, "kind", kinds)
        yield from mine

    def _compare(self) -> None:
        """Take the changes since the last time. Both folds take the same records into the same transactions."""
        mine, theirs = (
            [(each.offset, side, each) for each in changes.changes]
            for side, changes in enumerate(self._changes)
        )
        for changes in self._changes:
            changes.changes = []
        for offset, changed in groupby(merge(mine, theirs, key=lambda each: each[0]), lambda each: each[0]):
            self._at_offset(offset, [(side, each) for _, side, each in changed])

    def _at_offset(self, offset: int, changed: Sequence[tuple[int, Transition[Any]]]) -> None:
        sides: tuple[dict[Place, Transition[Any]], ...] = ({}, {})
        first = dict[Place, Transition[Any]]()
        for side, each in changed:
            sides[side][each.table, each.key] = each  # the last change of a row at this offset counts
            first.setdefault((each.table, each.key), each)
        for place, each in first.items():
            self._of_row(place, offset, each, sides[0].get(place), sides[1].get(place))

    def _of_row(
        self,
        place: Place,
        offset: int,
        first: Transition[Any],
        mine: Transition[Any] | None,
        theirs: Transition[Any] | None,
    ) -> None:
        known = self._parted.get(place)
        # A row that never differed is the same in both, so either tells what it was.
        before = (readable(first.before),) * 2 if known is None else (known.mine, known.theirs)
        now = (
            before[0] if mine is None else readable(mine.after),
            before[1] if theirs is None else readable(theirs.after),
        )
        apart = now[0] != now[1]
        if known is not None:
            known.mine, known.theirs, known.apart = *now, apart
        elif apart:
            self._parted[place] = Parted(offset, first.at_ms, *now)

    def _told(self) -> Iterator[pa.RecordBatch]:
        rows = [
            (
                PARTED,
                self._partition,
                each.offset,
                each.at_ms,
                key,
                each.mine,
                each.theirs,
                table.encode(),
                flag,
            )
            for (table, key), each in sorted(self._parted.items())
            for flag in (b"1" if each.apart else b"",)
        ]
        for start in range(0, len(rows), OUT_ROWS):
            yield result_batch(rows[start : start + OUT_ROWS])


def _traced(plan: FoldPlan, processor: Processor[Any, Any]) -> FoldPlan:
    return replace(plan, processor=processor, begin=None, rows=False, transitions=True)


def widened(
    one: Processor[Any, Any], other: Processor[Any, Any]
) -> tuple[Processor[Any, Any], Processor[Any, Any]]:
    """Return both, each given all inputs that either of them decodes."""
    inputs = tuple(dict.fromkeys((*one.inputs, *other.inputs)))
    return _with_inputs(one, inputs), _with_inputs(other, inputs)


def _with_inputs(processor: Processor[Any, Any], inputs: tuple[Any, ...]) -> Processor[Any, Any]:
    if tuple(processor.inputs) == inputs:
        return processor
    chosen = [inputs.index(name) for name in processor.inputs]
    return replace(processor, inputs=inputs, decode=_Chosen(processor.decode, chosen))


class _Chosen:
    """A decoder that is given more columns than it takes."""

    def __init__(self, decode: Any, chosen: Iterable[int]) -> None:
        self._decode, self._chosen = decode, tuple(chosen)

    def __call__(self, *columns: Any) -> Any:
        return self._decode(*(columns[at] for at in self._chosen))
