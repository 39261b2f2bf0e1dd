"""Workers of steps, windows and joins over logs in memory, in random order: sources that are written while
they are read, transactions of any size, marks as workers write them, crashes before and after a commit,
owners that change, sources that grow, origins that let go, and versions that fold the logs again. Each
transaction of windows that feed others, and of folds that emit, is sent on as that of a step is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from random import Random
from typing import Any

import msgspec

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.choices import Choice, decode_choice, encode_choice
from holdfast.core.engine.declared.partitioners import of_key
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.emits import Emit, Headers
from holdfast.core.engine.fold.folding import Folder
from holdfast.core.engine.fold.stepping import WATERMARKS
from holdfast.core.engine.merge.merging import Merger, merger_of
from holdfast.core.engine.origins import StepReached, is_mark, plain
from holdfast.core.engine.state.codec import digest
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.core.engine.state.rows import NEVER
from holdfast.kafka.transactions.transactional_producer import Written
from holdfast.tables.marks import StepMarks
from tests.core.streams.paces import Fare

AT_MS = 1_700_000_000_000
IDLE_MS = 10_000_000
"""The distance of the ticks by which all let go in the end."""
TURNS = 100_000
"""A schedule that takes more does not come to its end."""


class Moving:
    """A clock of workers that advances at random."""

    def __init__(self, rng: Random) -> None:
        self._rng, self._now_s = rng, 1_000.0

    def monotonic_s(self) -> float:
        self._now_s += self._rng.choice([0.0, 0.01, 0.2, 11.0])
        return self._now_s


@dataclass(slots=True)
class Log:
    """One partition of a topic: records with their append times."""

    records: list[tuple[bytes | None, bytes | None, Headers]] = field(default_factory=list)
    times_ms: list[int] = field(default_factory=list)

    def append(self, at_ms: int, *records: tuple[bytes | None, bytes | None, Headers]) -> None:
        self.records += records
        self.times_ms += [at_ms] * len(records)

    def batch(self, columns: Sequence[str], partition: int, first: int, count: int) -> Batch:
        """Return *count* records from offset *first* on."""
        some = self.records[first : first + count]
        offsets = range(first, first + len(some))
        told: dict[str, Sequence[Any]] = {
            "key": [each[0] for each in some],
            "value": [each[1] for each in some],
            "headers": [each[2] for each in some],
            "partition": [partition] * len(some),
            "offset": offsets,
        }
        return Batch(offsets, self.times_ms[first : first + count], tuple(told[name] for name in columns))


@dataclass(slots=True)
class Committed:
    """The durable state of one partition of a processor, and all that it has emitted."""

    store: DictStore = field(default_factory=DictStore)
    position: Any = None
    emits: list[Emit] = field(default_factory=list)
    refused: int = 0

    @property
    def digest(self) -> str:
        return digest(self.store.everything())


class Owner:
    """One partition of a processor, folded by some worker from the durable state."""

    def __init__(
        self, world: World, processor: Processor[Any, Any], partition: int, choices: list[bytes]
    ) -> None:
        self.world, self.processor, self.partition = world, processor, partition
        self.choices, self.committed = choices, Committed()
        self.folder: Any = None
        self.merger: Merger | None = None
        self.marks: StepMarks | None = None
        self.sources = [world.topics[topic][partition] for topic in processor.topics]

    @property
    def applied(self) -> tuple[int, ...]:
        position = self.committed.position
        if position is None:
            return (-1,) * len(self.sources)
        found: tuple[int, ...] = position.applied
        return found

    @property
    def obeyed(self) -> int:
        """Return how many of the recorded choices are in the state."""
        position = self.committed.position
        return 0 if position is None else position.choices

    @property
    def at_end(self) -> frozenset[int]:
        """Return the numbers of the sources of which all that is written is folded."""
        found = enumerate(zip(self.sources, self.applied, strict=True))
        return frozenset(number for number, (log, last) in found if last + 1 == len(log.records))

    @property
    def ready(self) -> bool:
        return len(self.at_end) < len(self.sources)

    def begin(self) -> None:
        """Take it up from the durable state: all else is forgotten."""
        processor, store, position = self.processor, self.committed.store, self.committed.position
        self.folder = Folder(processor, store, marker=position, partition=self.partition)
        self.merger = merger_of(self.folder.marker, self._recorded())
        self.fetched = [each + 1 for each in self.folder.marker.applied]
        if processor.told_topics:
            self.marks = StepMarks(processor, self.partition, clock=self.world.clock)  # type: ignore[arg-type]

    def _recorded(self) -> Iterator[Choice]:
        return map(decode_choice, [*self.choices])

    def turn(self, *, now_ms: int | None = None) -> None:
        """Fold some records in one transaction, unless a crash comes first; with *now_ms* a tick."""
        rng = self.world.rng
        if self.folder is None or rng.random() < 0.1:
            self.begin()
        changes = self._folded(rng, now_ms)
        if rng.random() < 0.1:
            self.folder = None  # it dies with the transaction
            return
        if changes is None:
            return
        self.committed.refused += len(changes.refused)
        self.committed.emits += changes.emits
        if self.processor.told_topics:
            self._send(changes.emits, changes.reached)
        puts = changes.puts
        if self.world.old and self.processor.stateless:
            puts = [each for each in puts if each[0] != WATERMARKS]
        self.committed.store.apply(puts)
        self.committed.position = changes.marker
        self.choices += map(encode_choice, changes.choices)
        self.folder.commit()
        if self.merger is not None:
            self.merger.settle(self.folder.marker)
        if rng.random() < 0.1:
            self.folder = None

    def _folded(self, rng: Random, now_ms: int | None) -> Any:
        count = rng.choice([1, 2, 5, 40])
        merger = self.merger
        assert merger is not None
        for number, (log, fold) in enumerate(zip(self.sources, self.processor.folds, strict=True)):
            more = rng.choice([0, 1, count])
            merger.offer(number, log.batch(fold.inputs, self.partition, self.fetched[number], more))
            self.fetched[number] = min(len(log.records), self.fetched[number] + more)
        if now_ms is not None:
            merger.tick(now_ms)
        ends = [len(log.records) for log in self.sources]
        return self.folder.fold(islice(iter(lambda: merger.take(ends), None), count))

    def let_go(self) -> None:
        """Report which sources are at the ends of their logs; marks say so of those that others write."""
        if not self.at_end or not self.processor.told_topics or self.world.old:
            return
        if self.folder is None:
            self.begin()
        clock, topics = self.folder.clock, self.processor.topics
        at_end = frozenset(each for each in self.at_end if topics[each] in self.world.sources)
        if clock is None:
            reached = self.processor.reached_in(self.folder.rows, self.partition, at_end)
        else:
            reached = clock.reached_with(at_end) if clock.speaks else None
        assert self.marks is not None
        if reached is not None and not self.marks.has_told(reached):
            self._send([], reached)

    def tick_in_the_end(self) -> bool:
        """Have the clock pass the ticks asked for; return whether there were any."""
        if self.folder is None:
            self.begin()
        if self.merger is None or self.folder.next_tick_ms == NEVER:
            return False
        self.world.now_ms = max(self.world.now_ms, self.folder.next_tick_ms) + 1
        self.turn(now_ms=self.world.now_ms)
        return True

    def _send(self, emits: Sequence[Emit], reached: StepReached | None) -> None:
        topics = self.world.topics
        sent: dict[str, list[list[Written]]] = {
            topic: [[] for _ in topics[topic]] for topic in self.processor.told_topics
        }
        for emit in emits:
            if (there := sent.get(emit.topic)) is None:
                continue
            key = emit.key.encode() if isinstance(emit.key, str) else emit.key
            at = of_key(key or b"", len(there)) if emit.partition is None else emit.partition
            there[at].append((key, emit.value, list(emit.headers)))
        assert self.marks is not None
        if reached is not None and not self.world.old:
            self.marks.begin(reached)
            for topic in self.marks.topics:
                self.marks.add(topic, sent[topic], self.world.origins_of(self.processor))
            self.marks.committed()
        for topic, of in sent.items():
            for log, records in zip(topics[topic], of, strict=True):
                for key, value, told in records:
                    shown = plain(tuple(told)) if self.world.old else tuple(told)
                    log.append(self.world.now_ms, (key, value, shown))


class World:
    """An application of *processors*, the last of which gives results, over sources that are being written.

    *written* are the logs of each source topic. If it is *grown*, the last partition was added when
    others were folded for a while. With *idle* steps let go now and then, though more comes. With *quiet*,
    partitions between processors have nothing to read for so long that they could let go. The *later* last
    records of each log come when all others are folded and all have let go. In the first turns, *old* of
    them, steps are of a release that knew no origins: they send neither headers nor marks, and note nothing.
    """

    def __init__(
        self,
        processors: Sequence[Processor[Any, Any]],
        written: Mapping[str, Sequence[Sequence[Fare]]],
        rng: Random,
        *,
        grown: bool = False,
        idle: bool = False,
        quiet: bool = False,
        later: int = 0,
        old: int = 0,
    ) -> None:
        self.old = old
        self.rng, self.clock, self.now_ms, self.idle, self.quiet = rng, Moving(rng), AT_MS, idle, quiet
        self.count = max(map(len, written.values()))
        self.known = self.count - grown
        self._unwritten = {
            (topic, at): [(fare.driver.encode(), msgspec.json.encode(fare), ()) for fare in log]
            for topic, logs in written.items()
            for at, log in enumerate(logs)
        }
        self.topics: dict[str, list[Log]] = {topic: [Log() for _ in logs] for topic, logs in written.items()}
        self.sources = frozenset(written)
        self._withheld = {
            place: left[len(left) - later :] for place, left in self._unwritten.items() if later
        }
        for place in self._withheld:
            del self._unwritten[place][-later:]
        for each in processors:
            self._make_topics(each)
        self._choices: dict[str, list[list[bytes]]] = {}
        """The choices of a processor, by their topic: those of versions that read the same."""
        self.owners = {each.name: self._owners_of(each) for each in processors}

    def _make_topics(self, processor: Processor[Any, Any]) -> None:
        for topic in processor.told_topics:
            self.topics[topic] = [Log() for _ in range(self.count)]

    def _owners_of(self, processor: Processor[Any, Any]) -> list[Owner]:
        choices = self._choices.setdefault(processor.choices("app"), [[] for _ in range(self.count)])
        return [Owner(self, processor, at, choices[at]) for at in range(self.count)]

    def origins_of(self, processor: Processor[Any, Any]) -> int:
        """Return of how many partitions a worker knows of the processor's sources."""
        return self.known if any(topic in self.sources for topic in processor.topics) else self.count

    def upgrade(self, processors: Sequence[Processor[Any, Any]]) -> None:
        """Have other versions of the same names begin: those that are raised alone read the same topics and
        obey the choices that are recorded.
        """
        for each in processors:
            assert each.version != self.owners[each.name][0].processor.version
            self._make_topics(each)
            self.owners[each.name] = self._owners_of(each)

    def run(self, turns: int | None = None) -> None:
        """Write, fold, crash and let go at random until there is nothing left to do, or for some turns."""
        rng = self.rng
        for _ in range(TURNS if turns is None else turns):
            if self.old:
                self._grow_older()
            if self._turn(rng):
                continue
            if turns is not None:
                return
            if self.old:
                continue
            before = self._records()
            for owner in self._all():
                owner.let_go()
            if before == self._records() and not any(self._ticked()):
                if not self._withheld:
                    return
                self._unwritten, self._withheld = self._withheld, {}
        if turns is None:
            raise AssertionError(f"not at its end after {TURNS} turns")

    def _grow_older(self) -> None:
        """Come a turn nearer to the present release: then all workers are replaced."""
        self.old -= 1
        if not self.old:
            for owner in self._all():
                owner.folder = None

    def _ticked(self) -> list[bool]:
        """Have the clock pass what each owner asks for; return of each whether there was anything."""
        return [owner.tick_in_the_end() for owner in self._all()]

    def _turn(self, rng: Random) -> bool:
        """Do one thing; return False where nothing is left."""
        self.now_ms += rng.choice([0, 1, 1, 500])
        ready = [owner for owner in self._all() if owner.ready]
        unwritten = [place for place, left in self._unwritten.items() if left and place[1] < self.known]
        if self.known < self.count and ((not ready and not unwritten) or rng.random() < 0.02):
            self.known = self.count
            return True
        if not ready and not unwritten:
            return False
        if self.quiet and rng.random() < 0.02:
            between = [each for each in self._all() if self.sources.isdisjoint(each.processor.topics)]
            rng.choice(between).let_go()
        if self.idle and rng.random() < 0.1:
            rng.choice([*self._all()]).let_go()
        if rng.random() < 0.1:
            self._tick(rng)
        if unwritten and (not ready or rng.random() < 0.4):
            self._write(rng, rng.choice(unwritten))
        elif ready:
            owner = rng.choice(ready)
            for _ in range(rng.choice([1, 1, 30])):
                if not owner.ready:
                    break
                owner.turn()
        return True

    def _tick(self, rng: Random) -> None:
        """Have an owner that has folded all there is see what time it is: one of topics that no step writes
        would take them to be at their ends.
        """
        able = [
            owner
            for owner in self._all()
            if owner.processor.ticks_at_ends
            and not owner.ready
            and (self.idle or not self.sources.intersection(owner.processor.topics))
        ]
        if able:
            self.now_ms += rng.choice([0, 2_000, 100_000])
            rng.choice(able).turn(now_ms=self.now_ms)

    def _write(self, rng: Random, place: tuple[str, int]) -> None:
        count, left = rng.choice([1, 3, 30, 1_000]), self._unwritten[place]
        self.topics[place[0]][place[1]].append(self.now_ms, *left[:count])
        del left[:count]

    def _all(self) -> list[Owner]:
        return [owner for of in self.owners.values() for owner in of]

    def _records(self) -> int:
        return sum(len(log.records) for logs in self.topics.values() for log in logs)

    # -- what has come of it

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of each partition of a processor."""
        found: list[dict[str, Any]] = []
        for owner in self.owners[name]:
            owner.begin()
            rows = owner.folder.rows
            found.append({key: rows[key] for key, _ in [*rows.scan("")]})
        return found

    @property
    def refused(self) -> int:
        """Return how many records were refused."""
        return sum(owner.committed.refused for owner in self._all())

    def sent(self, name: str, topic: str) -> list[bytes | None]:
        """Return the values that a processor has sent to *topic*."""
        return [
            emit.value
            for owner in self.owners[name]
            for emit in owner.committed.emits
            if emit.topic == topic and not is_mark(emit.headers)
        ]

    def told(self, name: str) -> list[tuple[str, list[Any]]]:
        """Return of each partition of a processor the digest of its state, and all that it has emitted."""
        return [
            (
                owner.committed.digest,
                [(each.topic, each.key, each.value, plain(each.headers)) for each in owner.committed.emits],
            )
            for owner in self.owners[name]
        ]

    def folded_again(self, processor: Processor[Any, Any]) -> list[tuple[str, list[Any]]]:
        """Fold the logs of a processor again, as another version, and return what it `told`."""
        self.upgrade([processor])
        for owner in self.owners[processor.name]:
            while owner.ready or owner.obeyed < len(owner.choices):
                owner.turn()
        return self.told(processor.name)


def by_kind(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return all rows by the names of their types."""
    kinds: dict[str, list[Any]] = defaultdict(list)
    for each in rows:
        for row in each.values():
            kinds[type(row).__name__].append(row)
    return kinds
