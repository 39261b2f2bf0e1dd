"""Two versions of one partition folded at once: each change of a row is compared with the other version's for
the same record.

Only rows that ever differed are held here, in a file when they become many; those that never did are in the
stores of the two folds, and either has them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from heapq import merge, nsmallest
from itertools import count, groupby
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.declared.sources import Input
from holdfast.core.engine.fold.ordering import MergeOrder
from holdfast.core.engine.fold.stepping import Transition
from holdfast.core.engine.fold.stretches import Portion, Stretch
from holdfast.core.engine.positions import Position, start_of
from holdfast.pipeline.folds.partition_fold import FoldedState, OpenGlobal, PartitionFold
from holdfast.pipeline.folds.plan import FoldPlan, OtherVersion
from holdfast.pipeline.folds.result_rows import OUT_ROWS, SUMMARY, Results, readable, result_batch
from holdfast.pipeline.folds.spilling import SpillingStore
from holdfast.pipeline.folds.waiting import waiting

PARTED, COUNTED, OTHER = "parted", "counted", "other"
"""Kinds of results: a key of which the rows differed, the counts of all such keys, and the summary of the
other version.
"""
ONLY_HERE, ONLY_THERE, WHOLE = "(row only in this version)", "(row only in the other)", "(row)"
"""Shown instead of a field where there is no row to compare, or no row with fields."""
SETTLE_KEYS = 10_000
"""So many keys that differ are looked at before they are stored."""

Place = tuple[str, str]
"""The name of a row's table, "" for the processor's own, and its key."""
Numbered = tuple[int, Transition[Any]]
"""A change, and the number of the record that made it in the order in which both fold."""


class Parted(msgspec.Struct, array_like=True):
    """The rows of one key, as JSON, since they first differed: at *offset* (of *topic*, where there are
    several sources), of *at_ms*, with the record *number* in the order. *apart* is True if they do now; None
    is no row.
    """

    number: int
    topic: str
    offset: int
    at_ms: int
    mine: str | None
    theirs: str | None
    apart: bool = True


class PartedCounts(msgspec.Struct, frozen=True):
    """Counts of differing keys of a partition: *apart* at the end, *met_again* only in between, and *fields*
    by the fields in which they differ. The first of all did at *offset* of *topic*.
    """

    apart: int = 0
    met_again: int = 0
    offset: int | None = None
    topic: str = ""
    fields: dict[str, int] = {}


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Parted).decode
_decode_place = msgspec.msgpack.Decoder(Place).decode
_PLACE = b"p"


class RowsApart:
    """The rows of one partition that ever differed between two folds; about *memory_bytes* of them are in
    memory. Close it when done.
    """

    def __init__(self, partition: int, memory_bytes: int) -> None:
        self._partition = partition
        self._stored = SpillingStore(memory_bytes)
        self._fresh = dict[Place, Parted]()

    def compare(self, mine: Iterable[Numbered], theirs: Iterable[Numbered]) -> None:
        """Take the changes that follow the last ones: those that each version made of the same records, in
        their order.
        """
        sides = [[(number, side, each) for number, each in one] for side, one in enumerate((mine, theirs))]
        for number, changed in groupby(merge(*sides, key=itemgetter(0)), itemgetter(0)):
            self._at(number, [(side, each) for _, side, each in changed])
        if len(self._fresh) >= SETTLE_KEYS:
            self._settle()

    def _at(self, number: int, changed: Sequence[tuple[int, Transition[Any]]]) -> None:
        sides: tuple[dict[Place, Transition[Any]], ...] = ({}, {})
        first = dict[Place, Transition[Any]]()
        for side, each in changed:
            sides[side][each.table, each.key] = each  # the last change of a row at this record counts
            first.setdefault((each.table, each.key), each)
        for place, each in first.items():
            self._of_row(place, number, each, sides[0].get(place), sides[1].get(place))

    def _of_row(
        self,
        place: Place,
        number: int,
        first: Transition[Any],
        mine: Transition[Any] | None,
        theirs: Transition[Any] | None,
    ) -> None:
        known = self._known(place)
        # A row that never differed is the same in both, so either shows its former value.
        before = (readable(first.before),) * 2 if known is None else (known.mine, known.theirs)
        now = (
            before[0] if mine is None else readable(mine.after),
            before[1] if theirs is None else readable(theirs.after),
        )
        apart = now[0] != now[1]
        if known is not None:
            known.mine, known.theirs, known.apart = *now, apart
            self._fresh[place] = known
        elif apart:
            self._fresh[place] = Parted(number, first.topic, first.offset, first.at_ms, *now)

    def _known(self, place: Place) -> Parted | None:
        if (fresh := self._fresh.get(place)) is not None:
            return fresh
        stored = self._stored.get(_PLACE + _encode(place))
        return None if stored is None else _decode(stored)

    def _settle(self) -> None:
        fresh, self._fresh = self._fresh, {}
        self._stored.apply((_PLACE + _encode(place), _encode(each)) for place, each in fresh.items())

    def told(self, limit: int) -> Iterator[pa.RecordBatch]:
        """Yield at most *limit* keys, those that differ at the end first and of these the earliest, and the
        counts of all.
        """
        self._settle()
        rows = [self._row(place, each) for place, each in sorted(nsmallest(limit, self._all(), key=_rank))]
        for start in range(0, len(rows), OUT_ROWS):
            yield result_batch(rows[start : start + OUT_ROWS])
        counts = msgspec.json.encode(self._counts()).decode()
        yield result_batch([(COUNTED, self._partition, None, None, None, None, counts)])

    def _all(self) -> Iterator[tuple[Place, Parted]]:
        for place, each in self._stored.scan(_PLACE):
            yield _decode_place(place[len(_PLACE) :]), _decode(each)

    def _row(self, place: Place, each: Parted) -> tuple[Any, ...]:
        what = (each.offset, each.at_ms, place[1], each.mine, each.theirs, place[0].encode())
        return PARTED, self._partition, *what, (b"+" if each.apart else b"=") + each.topic.encode()

    def _counts(self) -> PartedCounts:
        apart = met_again = 0
        fields, first = Counter[str](), None
        for _, each in self._all():
            first = each if first is None or each.number < first.number else first
            if each.apart:
                apart += 1
                fields.update(fields_apart(each.mine, each.theirs))
            else:
                met_again += 1
        if first is None:
            return PartedCounts()
        return PartedCounts(apart, met_again, first.offset, first.topic, dict(fields))

    def close(self) -> None:
        self._stored.close()


def _rank(each: tuple[Place, Parted]) -> tuple[Any, ...]:
    place, parted = each
    return not parted.apart, parted.number, place


def fields_apart(mine: str | None, theirs: str | None) -> tuple[str, ...]:
    """Return the names of the fields in which two rows differ.

    >>> fields_apart('{"a":1,"b":2}', '{"a":1,"b":3,"c":4}'), fields_apart(None, '{"a":1}'), fields_apart("1", "2")
    (('b', 'c'), ('(row only in the other)',), ('(row)',))
    """  # noqa: E501
    if mine is None or theirs is None:
        return (ONLY_THERE if mine is None else ONLY_HERE,)
    one, other = _fields(mine), _fields(theirs)
    if one is None or other is None:
        return (WHOLE,)
    missing = object()
    return tuple(
        sorted(name for name in {*one, *other} if one.get(name, missing) != other.get(name, missing))
    )


def _fields(row: str) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(row)
    except msgspec.DecodeError:  # values that JSON cannot write are shown otherwise
        return None
    return found if isinstance(found, dict) else None


class _Changes(Results):
    """Keeps the changes of rows, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self._changes = list[Transition[Any]]()

    def transition(self, partition: int, each: Transition[Any]) -> None:
        self._changes.append(each)

    def refused(self, partition: int, each: object) -> None:
        """Refusals are counted in the summary."""

    def all(self) -> list[Transition[Any]]:
        """Return the changes since the last time."""
        changes, self._changes = self._changes, []
        return changes


class VersionDiff:
    """The two folds of one partition, each with globals of its own: two `PartitionFold`s of the same
    stretches. Close it when done.
    """

    def __init__(self, plan: FoldPlan, other: OtherVersion, partition: int, open_global: OpenGlobal) -> None:
        self._topics, self._number, self._limit_keys = (
            plan.processor.named_sources or ("",),
            0,
            other.limit_keys,
        )
        self._stack, inputs = ExitStack(), plan.source_inputs
        self._apart = RowsApart(partition, other.memory_bytes)
        self._stack.callback(self._apart.close)
        refused = plan.refused.get(partition, ())
        self.order = MergeOrder(
            plan.processor, lambda: refused, inputs, on_later=waiting(plan.later_timeout_s)
        )
        """By which times what follows is merged for both: those of the first."""
        self._sides = [
            self._side(replace(plan, processor=each), other, partition, open_global, inputs)
            for each in plan.processors
        ]

    def _side(
        self,
        plan: FoldPlan,
        other: OtherVersion,
        partition: int,
        open_global: OpenGlobal,
        inputs: Sequence[Sequence[Input]],
    ) -> _Side:
        store, changes = SpillingStore(other.memory_bytes), _Changes()
        self._stack.callback(store.close)
        state = FoldedState(store, start_of(plan.processor))
        plan = replace(plan, other=None, rows=False, transitions=True)
        fold = PartitionFold(plan, partition, changes, open_global, state)
        self._stack.callback(fold.close)
        takes = [each.inputs for each in plan.processor.folds]
        return _Side(fold, changes, [_chosen(a, b) for a, b in zip(inputs, takes, strict=True)])

    @property
    def position(self) -> Position:
        return self._sides[0].fold.position

    def transact(self, taken: Sequence[Stretch], *, is_due: bool) -> None:
        """Fold stretches that follow the position, in a transaction of each version."""
        for side in self._sides:
            side.fold.transact([_with_columns(each, side.columns) for each in taken], is_due=is_due)
        order = dict(zip(_places(self._topics, taken), count(self._number), strict=False))
        self._number += len(order)
        self._apart.compare(
            *([(order[each.topic, each.offset], each) for each in side.changes.all()] for side in self._sides)
        )

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield the keys that ever differed, and a summary of each version."""
        mine, theirs = ([*side.fold.finish()] for side in self._sides)
        yield from self._apart.told(self._limit_keys)
        for batch in theirs:
            assert set(batch.column("kind").to_pylist()) == {SUMMARY}, "its rows are left out"
            kinds = pa.array([OTHER] * batch.num_rows, pa.string())
            yield batch.set_column(0, "kind", kinds)
        yield from mine

    def close(self) -> None:
        """Remove the temporary files."""
        self._stack.close()


class _Side(NamedTuple):
    """One version: its fold, the changes of its rows, and the columns of each source that it takes."""

    fold: PartitionFold
    changes: _Changes
    columns: list[list[int] | None]


def _places(topics: Sequence[str], stretches: Iterable[Stretch]) -> Iterator[tuple[str, int]]:
    """Yield topic and offset of each record in its order, and of each choice "" and its number, as changes
    have them.
    """
    for stretch in stretches:
        if stretch.choice is not None:
            yield "", stretch.choice.number
            continue
        offsets = [iter(() if each is None else each.batch.offsets) for each in stretch.portions]
        for source in stretch.order:
            yield topics[source], next(offsets[source])


def _chosen(inputs: Sequence[Input], wanted: Sequence[Input]) -> list[int] | None:
    """Return the indexes of the columns *wanted* in *inputs*; None where they are the same."""
    return None if tuple(inputs) == tuple(wanted) else [inputs.index(name) for name in wanted]


def _with_columns(stretch: Stretch, columns: Sequence[list[int] | None]) -> Stretch:
    """Return a stretch with those columns of each source that a fold takes."""
    if stretch.choice is not None or all(each is None for each in columns):
        return stretch
    portions = tuple(
        each if each is None or at is None else _portion(each, at)
        for each, at in zip(stretch.portions, columns, strict=True)
    )
    return Stretch(portions, stretch.order, stretch.reached_ms, by_event=stretch.by_event)


def _portion(portion: Portion, columns: Sequence[int]) -> Portion:
    batch = portion.batch
    chosen = tuple(batch.columns[at] for at in columns)
    return replace(portion, batch=Batch(batch.offsets, batch.times_ms, chosen))
