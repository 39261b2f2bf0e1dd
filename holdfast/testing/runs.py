"""One partition of one processor, folded in each way in which a worker or a replay may come to fold it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.choices import Choice
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.emits import Emit
from holdfast.core.engine.fold.folding import Changes, Folder, Refused
from holdfast.core.engine.fold.stepping import TopicOffset
from holdfast.core.engine.fold.stretches import Stretch
from holdfast.core.engine.merge.global_copies import GlobalReplay
from holdfast.core.engine.merge.merging import Merger, merger_of, replayed
from holdfast.core.engine.origins import StepReached
from holdfast.core.engine.positions import Position
from holdfast.core.engine.state.codec import (
    EVENT,
    TICK,
    WAKE,
    RowCodec,
    decode_due,
    digest,
    place_of_row,
    table_prefix,
    text_key,
)
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.errors import ImpureFoldError, Later, StoppedError
from holdfast.testing.globals import KitGlobals
from holdfast.testing.logs import TopicRecord, batch_of, batches_of
from holdfast.testing.notes import told_rows
from holdfast.testing.tracebacks import of_the_kit

__tracebackhide__ = of_the_kit

REPLAY_CUTS = (7, 1 << 30)
"""The sizes of a replay's transactions, in records or stretches of them: a few, and all of them."""
_TOLD = {
    "puts": "gives other rows or timers",
    "emits": "emits other records",
    "refused": "refuses other records",
}


@dataclass(slots=True)
class FoldOutcome:
    """The result of one way of folding a partition."""

    store: DictStore = field(default_factory=DictStore)
    emits: list[Emit] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)

    def take(self, changes: Changes) -> None:
        self.store.apply(changes.puts)
        self.emits += changes.emits
        self.refused += changes.refused


class PartitionRun:
    """A partition's state, kept twice: by a worker that continues, and by one that restarts before each
    record; with the choices that were made of it.

    Both fold each record; `replay` folds the whole log again. Where two differ, the fold looked at something
    that is not in the log, and ImpureFoldError says at which record.

    Each record is folded when it is piped, so one of several sources that is piped with a lower append time
    than those before it comes too late for its turn, and is folded after a barrier, as a worker does that had
    not fetched it.
    """

    def __init__(self, processor: Processor[Any, Any], partition: int, tables: KitGlobals) -> None:
        self.processor, self.partition = processor, partition
        self.outcome, self._restored = FoldOutcome(), FoldOutcome()
        self._folded = self._replayed = 0
        self.held = deque[TopicRecord | int]()
        """Records, and times of ticks, that are not folded yet: the first of them waits, or stops the
        partition.
        """
        self.cause: Later | StoppedError | None = None
        """Why it does."""
        self._allowed = set[TopicOffset]()
        self._folds, self._topics = processor.folds, processor.topics
        self._logs: list[list[TopicRecord]] = [[] for _ in self._topics]
        self._tables, self._views = tables, tables.views(processor.reads)
        self._folder = self._folding(self.outcome.store)
        self._merger = merger_of(self._folder.marker, (), self._folder.order)
        self.choices: list[Choice] = []

    def offer(self, what: TopicRecord | int) -> None:
        """Take a record, or the time of a tick: it is folded after those that are held."""
        self.held.append(what)

    def step(self) -> Changes | None:
        """Fold the first that is held; None where it must wait, as `cause` explains, or where no fold takes
        it.
        """
        first = self.held[0]
        try:
            changes = self.tick(first) if isinstance(first, int) else self.fold(first)
        except (Later, StoppedError) as cause:
            self.cause = cause
            return None
        self.cause = None
        self.held.popleft()
        return changes

    def allow(self) -> None:
        """Let what stops the partition be refused."""
        if isinstance(self.cause, StoppedError):
            self._allowed.add((self.cause.topic, self.cause.offset))

    def _folding(self, store: DictStore, marker: Position | None = None) -> Folder[Any]:
        """Return a folder, which stops where a worker's would."""
        folder: Folder[Any] = Folder(
            self.processor, store, marker=marker, views=self._views, partition=self.partition
        )
        folder.allowed = self._allowed if self.processor.on_error == "stop" else None
        return folder

    def fold(self, record: TopicRecord) -> Changes:
        """Fold one record and return what it changed; ImpureFoldError when a restart before it would have
        changed something else.
        """
        source = self._topics.index(record.topic)
        changes = self._compared(
            f"record {record}", *self._step(source, batch_of(self._folds[source].inputs, [record]))
        )
        self._logs[source].append(record)
        return changes

    def tick(self, to_ms: int) -> Changes | None:
        """Record that the worker's clock says *to_ms*, and fire the timers of ticks that are due; None where
        no fold takes ticks.
        """
        if to_ms <= self._folder.marker.tick_ms or not self._folder.marker.reached_ms:
            return None
        return self._compared(f"tick {to_ms}", *self._step(0, Batch((), (), ()), tick_ms=to_ms))

    def _step(self, source: int, batch: Batch, tick_ms: int | None = None) -> tuple[Changes, Changes]:
        """Return the changes by a record or tick for the worker that continues, and for the one that
        restarts.
        """
        restarted, vectors = self._folding(self._restored.store, self._folder.marker), self._views.vectors
        merger = merger_of(restarted.marker, (), restarted.order)
        for each in (merger, self._merger):
            each.see(vectors)
        try:
            changes, again = _two(
                (self._folder, _merged(self._folder, self._merger, source, batch, tick_ms)),
                (restarted, _merged(restarted, merger, source, batch, tick_ms)),
            )
        finally:
            self._merger.settle(self._folder.marker)
        self.choices += changes.choices
        return changes, again

    def _compared(self, what: str, changes: Changes, again: Changes) -> Changes:
        for part, told in _TOLD.items():
            if (one := getattr(changes, part)) != (other := getattr(again, part)):
                differs = self._rows_told(one, other) if part == "puts" else _first_told(one, other)
                raise self._impure(f"{what}, folded after a restart, {told}", differs)
        self._folded += 1
        self.outcome.take(changes)
        self._restored.take(again)
        return changes

    def replay(self) -> None:
        """Fold the whole log again in transactions of other sizes; ImpureFoldError when anything differs."""
        if self._replayed == self._folded:
            return
        for cut in REPLAY_CUTS:
            outcome = FoldOutcome()
            for changes in self._again(cut, outcome.store):
                outcome.take(changes)
            self._compare_replay(outcome)
        self._replayed = self._folded

    def _compare_replay(self, outcome: FoldOutcome) -> None:
        live, where = self.outcome, f"replay of {self._folded} records"
        if outcome.emits != live.emits:
            raise self._impure(f"{where} {_TOLD['emits']}", _first_told(live.emits, outcome.emits))
        if outcome.refused != live.refused:
            raise self._impure(f"{where} {_TOLD['refused']}", _first_told(live.refused, outcome.refused))
        if digest(outcome.store.everything()) != digest(live.store.everything()):
            differs = self._rows_told(live.store.everything(), outcome.store.everything())
            raise self._impure(f"{where} {_TOLD['puts']}", differs)

    def reached(self, at_end: frozenset[int]) -> StepReached | None:
        """Return how far it has come, at the ends of the logs *at_end*; None where it has no marks."""
        if self.processor.stateless:
            clock = self._folder.clock
            return clock.reached_with(at_end) if clock is not None and clock.speaks else None
        return self.processor.reached_in(self._folder.rows, self.partition, at_end)

    def _again(self, cut: int, store: DictStore) -> Iterator[Changes]:
        """Yield what each transaction of a replay changes, *cut* records or stretches in each."""
        views = GlobalReplay(self.processor.reads, self._tables.logs_of(self.processor.reads))
        folder: Folder[Any] = Folder(self.processor, store, views=views, partition=self.partition)
        logs = [batches_of(fold.inputs, log, 5) for fold, log in zip(self._folds, self._logs, strict=True)]
        stretches = replayed(folder.marker, logs, self.choices, order=folder.order)
        while taken := [*islice(stretches, cut)]:
            changes = _folded(folder, taken)
            folder.commit()
            assert not changes.choices, "a replay decides nothing"
            yield changes

    def _impure(self, where: str, told: str) -> ImpureFoldError:
        return ImpureFoldError(
            f"{self.processor.name} partition {self.partition}: {where}: {told}; a fold may use its arguments"
            " alone: no clock, no randomness, no global, nothing kept from one call to the next"
        )

    def _rows_told(
        self, one: Iterable[tuple[bytes, bytes | None]], other: Iterable[tuple[bytes, bytes | None]]
    ) -> str:
        one, other = list(one), list(other)
        if (had := dict(one)) == (has := dict(other)):
            return _first_told(one, other)  # the same rows, written in another order
        return told_rows(self.processor.name, had, has)

    # -- what a test looks at

    def rows(self, table: str = "") -> dict[str, Any]:
        """Return the rows by key; of a named *table*, or the processor's own."""
        codec: RowCodec[Any] = RowCodec(self.processor.row_of(table))
        found = self.outcome.store.scan(table_prefix(table))
        return {place_of_row(key)[1]: codec.decode(value) for key, value in found}

    def timers(self, clock: str = "append") -> dict[str, int]:
        """Return when each timer of a clock is due, in ms, by key."""
        found = self.outcome.store.scan({"append": WAKE, "event": EVENT, "tick": TICK}[clock])
        return {text_key(key): decode_due(value) for key, value in found}


def _first_told(one: Sequence[Any], other: Sequence[Any]) -> str:
    pairs = enumerate(zip(one, other, strict=False))
    counts = (min(len(one), len(other)), (f"{len(one)} of them", f"{len(other)} of them"))
    at, (had, has) = next(((at, pair) for at, pair in pairs if pair[0] != pair[1]), counts)
    return f"number {at} was {had!r:.300}, is {has!r:.300}"


def _merged(
    folder: Folder[Any], merger: Merger, source: int, batch: Batch, tick_ms: int | None
) -> Iterator[Stretch]:
    """Return the stretches that one record, or one tick, adds to the fold: nothing is waited for."""
    merger.offer(source, batch)
    if tick_ms is not None:
        merger.tick(tick_ms)
    ends = (0,) * len(folder.marker.applied)
    return iter(lambda: merger.take(ends), None)


def _two(*given: tuple[Any, Any]) -> tuple[Any, Any]:
    """Fold one transaction twice, and commit both; neither where one of them has to wait, or is stopped."""
    try:
        one, other = [_folded(folder, what) for folder, what in given]
    except (Later, StoppedError):
        for folder, _ in given:
            folder.rollback()
        raise
    for folder, _ in given:
        folder.commit()
    return one, other


def _folded(folder: Any, given: Any) -> Any:
    changes = folder.fold(given)
    assert changes is not None, "offsets ascend"
    return changes
