"""Workers of steps and windows over logs in memory, in random order: transactions of any size, marks as
workers write them, crashes before and after a commit, owners that change, and sources that grow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.declared.partitioners import of_key
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.emits import Headers
from holdfast.core.engine.fold.folding import Folder
from holdfast.core.engine.origins import StepReached
from holdfast.core.engine.positions import Position
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.kafka.transactions.transactional_producer import Written
from holdfast.tables.marks import StepMarks
from tests.core.streams.paces import Fare

AT_MS = 1_700_000_000_000
COLUMNS = ("key", "value", "headers")


class Moving:
    """A clock of workers that advances at random."""

    def __init__(self, rng: Random) -> None:
        self._rng, self._now_s = rng, 1_000.0

    def monotonic_s(self) -> float:
        self._now_s += self._rng.choice([0.0, 0.01, 0.2, 11.0])
        return self._now_s


@dataclass(slots=True)
class Log:
    records: list[tuple[bytes | None, bytes | None, Headers]] = field(default_factory=list)

    def batch(self, columns: Sequence[str], partition: int, first: int, count: int) -> Batch:
        """Return *count* records from offset *first* on."""
        some = self.records[first : first + count]
        told: dict[str, list[Any]] = {name: [each[at] for each in some] for at, name in enumerate(COLUMNS)}
        told["partition"] = [partition] * len(some)
        offsets = range(first, first + len(some))
        return Batch(offsets, [AT_MS + each for each in offsets], tuple(told[name] for name in columns))


@dataclass(slots=True)
class Owner:
    """A partition of a processor, folded by some worker."""

    processor: Processor[Any, Any]
    partition: int
    rng: Random
    clock: Moving
    store: DictStore = field(default_factory=DictStore)
    marker: Position | None = None
    folder: Any = None
    marks: StepMarks | None = None

    @property
    def applied(self) -> int:
        return -1 if self.marker is None else self.marker.applied[0]

    def begin(self) -> None:
        """Take it up from the durable state: all else is forgotten."""
        self.folder = Folder(self.processor, self.store, marker=self.marker)
        if self.processor.told_topics:
            self.marks = StepMarks(self.processor, self.partition, clock=self.clock)  # type: ignore[arg-type]

    def turn(self, log: Log, out: list[Log], origins: int) -> None:
        """Fold some records in one transaction, unless a crash comes first."""
        if self.folder is None or self.rng.random() < 0.1:
            self.begin()
        batch = log.batch(
            self.processor.columns, self.partition, self.applied + 1, self.rng.choice([1, 2, 5, 40])
        )
        changes = self.folder.fold([batch])
        if self.rng.random() < 0.1:
            self.folder = None  # it dies with the transaction
            return
        assert not changes.refused
        if self.processor.told_topics:
            self._send(changes.emits, changes.reached, out, origins)
        self.store.apply(changes.puts)
        self.folder.commit()
        self.marker = changes.marker
        if self.rng.random() < 0.1:
            self.folder = None

    def let_go(self, out: list[Log], origins: int, *, is_source: bool) -> None:
        """Report that the log is at its end; with *is_source*, no step writes it."""
        if self.folder is None:
            self.begin()
        at_end = frozenset({0} if is_source else ())
        if self.processor.stateless:
            reached = self.folder.clock.reached_with(at_end)
        else:
            reached = self.processor.reached_in(self.folder.rows, self.partition, at_end)
        assert self.marks is not None
        if not self.marks.has_told(reached):
            self._send([], reached, out, origins)

    def _send(self, emits: Any, reached: StepReached, out: list[Log], origins: int) -> None:
        sent: list[list[Written]] = [[] for _ in out]
        for emit in emits:
            key = emit.key.encode() if isinstance(emit.key, str) else emit.key
            at = of_key(key, len(out)) if emit.partition is None else emit.partition
            sent[at].append((key, emit.value, list(emit.headers)))
        assert self.marks is not None
        assert reached is not None, "each record and mark tells it"
        self.marks.begin(reached)
        self.marks.add(self.marks.topics[0], sent, origins)
        self.marks.committed()
        for log, records in zip(out, sent, strict=True):
            log.records += [(key, value, tuple(headers)) for key, value, headers in records]


def folded(
    logs: Sequence[Sequence[Fare]],
    chain: Sequence[Processor[Any, Any]],
    rng: Random,
    *,
    grown: bool,
    quiet: bool = True,
    later: int = 0,
) -> list[dict[str, Any]]:
    """Fold *logs* through steps and windows in a random order of turns; return the rows of each partition of
    the last. Of a source that has *grown* the last partition was added when others were folded for a while.
    The last records of each log, *later* of them, come when all others are folded and have let go.
    With *quiet* partitions between them have nothing to read now and then, for so long that they could let
    go.
    """
    count, clock = len(logs), Moving(rng)
    known = count - grown
    topics = [[Log() for _ in range(count)] for _ in chain]
    for log, fares in zip(topics[0], logs, strict=True):
        log.records += [(fare.driver.encode(), msgspec.json.encode(fare), ()) for fare in fares]
    withheld = [log.records[len(log.records) - later :] for log in topics[0]] if later else []
    for log in topics[0] if later else ():
        del log.records[-later:]
    owners = [[Owner(each, at, rng, clock) for at in range(count)] for each in chain]
    between = [(depth, each) for depth, of in enumerate(owners[1:-1], 1) for each in of] if quiet else []
    steps_left = 100_000
    while steps_left:
        steps_left -= 1
        if between and rng.random() < 0.02:  # a partition gets nothing for a while, since others are slow
            depth, owner = rng.choice(between)
            if owner.applied + 1 == len(topics[depth][owner.partition].records):
                owner.let_go(topics[depth + 1], count, is_source=False)
        ready = [
            (depth, at)
            for depth, each in enumerate(owners)
            for at, owner in enumerate(each)
            if owner.applied + 1 < len(topics[depth][at].records) and (depth or at < known)
        ]
        if not ready and known == count:
            before = sum(len(log.records) for each in topics for log in each)
            for depth, each in enumerate(owners[:-1]):
                for owner in each:
                    if owner.applied + 1 == len(topics[depth][owner.partition].records):
                        owner.let_go(topics[depth + 1], count, is_source=not depth)
            if before == sum(len(log.records) for each in topics for log in each):
                if not withheld:
                    break
                for log, records in zip(topics[0], withheld, strict=True):
                    log.records += records
                withheld = []
            continue
        if known < count and (not ready or rng.random() < 0.05):
            known = count
            continue
        depth, at = rng.choice(ready)
        out = topics[depth + 1] if depth + 1 < len(topics) else []
        for _ in range(rng.choice([1, 1, 30])):
            if owners[depth][at].applied + 1 >= len(topics[depth][at].records):
                break
            owners[depth][at].turn(topics[depth][at], out, known if not depth else count)
    found: list[dict[str, Any]] = []
    for owner in owners[-1]:
        owner.begin()
        rows = owner.folder.rows
        found.append({key: rows[key] for key, _ in [*rows.scan("")]})
    return found


def by_kind(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return all rows by the names of their types."""
    kinds: dict[str, list[Any]] = defaultdict(list)
    for each in rows:
        for row in each.values():
            kinds[type(row).__name__].append(row)
    return kinds
