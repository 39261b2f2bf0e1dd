"""One partition of a processor of several sources, from a seed: logs, a worker that folds them by bad luck,
and two ways to fold them again.

The worker's fetches are short or late, its guesses about ends wrong, its clock ticks at will; its
transactions end early, are aborted or die with it. Its output is in `Journal`; `replay` folds the logs by the
recorded choices, `naive` does so with neither folder nor merger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import islice
from random import Random
from typing import Any
from zlib import crc32

import msgspec

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.choices import Choice, decode_choice, encode_choice
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.serdes import Msgpack
from holdfast.core.engine.declared.sources import FoldWith, Source
from holdfast.core.engine.declared.streams import Stream
from holdfast.core.engine.emits import Emit
from holdfast.core.engine.fold.folding import Changes, Folder
from holdfast.core.engine.fold.stepping import Refused
from holdfast.core.engine.fold.stretches import Stretch
from holdfast.core.engine.merge.merging import Merger, replayed
from holdfast.core.engine.positions import Position, decode_position
from holdfast.core.engine.state.codec import APPLIED, META, digest
from holdfast.core.engine.state.rows import NEVER, Clock, Rows
from holdfast.errors import Later

KEYS = "abcd"
ACTS = ("put", "put", "put", "wake", "tick", "both", "cancel", "raise", "rot")
TOPICS = ("north", "east", "south", "west", "up", "down", "left", "right")
OUT = Stream("out", Msgpack(tuple[str, int, int, int]))


class Event(msgspec.Struct, frozen=True, array_like=True):
    act: str
    key: str
    n: int
    own_ms: int | None = 0
    later: bool = False


def own_time(event: Event) -> int:
    if event.own_ms is None:
        raise ValueError("a time that cannot be")
    return event.own_ms


class Seen(msgspec.Struct, frozen=True):
    """A digest of all that a key has met, in order."""

    trail: int = 0


class Needed:
    """A dependency of folds. It is away now and then while a worker folds, and there for replays."""

    def __init__(self) -> None:
        self.chance: Random | None = None
        self.waits = 0

    def ask(self) -> None:
        if self.chance is not None and self.chance.random() < 0.003:
            self.waits += 1
            raise Later("it is away", needs="the registry")


NEEDED = Needed()


def _after(before: Seen | None, *met: object) -> Seen:
    return Seen(crc32(repr(((before or Seen()).trail, *met)).encode()))


def fold(
    rows: Rows[Seen], event: Event, at_ms: int, topic: str, offset: int, timestamp: int
) -> Iterator[Emit]:
    rows[event.key] = seen = _after(rows.get(event.key), topic, offset, at_ms, timestamp)
    NEEDED.ask()
    if event.act in ("wake", "both"):
        rows.wake_at(event.key, at_ms + event.n)
    if event.act in ("tick", "both"):
        rows.wake_at(event.key, at_ms + event.n, clock="tick")
    if event.later:
        rows.wake_at(event.key, (event.own_ms or 0) + event.n, clock="event")
    if event.act == "cancel":
        rows.wake_at(event.key, None)
        rows.wake_at(event.key, None, clock="tick")
        rows.wake_at(KEYS[0], None, clock="event")
    if event.act == "raise":
        raise RuntimeError("the fold failed")
    NEEDED.ask()
    yield OUT.emit(event.key, (topic, offset, seen.trail, at_ms))


def rung(clock: Clock, rows: Rows[Seen], key: str, at_ms: int) -> Iterator[Emit]:
    rows[key] = seen = _after(rows.get(key), clock, at_ms)
    NEEDED.ask()
    if seen.trail % 3 == 0:
        rows.wake_at(key, at_ms + seen.trail % 7, clock="tick")
    if seen.trail % 11 == 0:
        raise RuntimeError("the timer failed")
    if seen.trail % 5 == 0:
        rows.wake_at(KEYS[seen.trail % len(KEYS)], None, clock="tick")
    if seen.trail % 7 == 0:
        rows.wake_at(key, at_ms + seen.trail % 9, clock="event")
    yield OUT.emit(key, (clock, 0, seen.trail, at_ms))


def has_time(source: int) -> bool:
    """Return whether a source has event times: the first always, every third has stream time instead."""
    return source % 3 != 2


@cache
def processor_of(width: int, version: int = 1) -> Processor[Any, Seen]:
    told = FoldWith(fold, ("topic", "offset", "timestamp"))
    sources = [
        Source(topic, Msgpack(Event), time=own_time if has_time(at) else None)
        for at, topic in enumerate(TOPICS[:width])
    ]
    return Processor(
        name="seen",
        version=version,
        on=dict.fromkeys(sources, told),
        row=Seen,
        on_wake=partial(rung, "append"),
        on_tick=partial(rung, "tick"),
        on_event=partial(rung, "event"),
        emits=(OUT,),
    )


@dataclass(frozen=True, slots=True)
class Log:
    """One source partition: offsets, append times and values."""

    offsets: list[int]
    times_ms: list[int]
    values: list[bytes]

    def batch(self, start: int, stop: int) -> Batch:
        cut = slice(start, stop)
        return Batch(self.offsets[cut], self.times_ms[cut], (self.values[cut], self.offsets[cut]))

    def since(self, applied: int) -> Log:
        """Return the records behind *applied*."""
        at = self.before(applied)
        return Log(self.offsets[at:], self.times_ms[at:], self.values[at:])

    def before(self, applied: int) -> int:
        """Return how many records lie up to *applied*."""
        return sum(offset <= applied for offset in self.offsets)


def written_log(rng: Random) -> Log:
    log, offset, at_ms = Log([], [], []), -1, rng.randrange(20)
    own = Random(hash(rng.getstate()[1]))  # its own generator, so that *rng* draws the same as before
    apart_ms = own.choice((0, -40, 15))  # how far events' own times are from append times
    for _ in range(rng.randrange(40)):
        offset += rng.choice((1, 1, 1, 2, 5))
        at_ms += rng.choice((0, 0, 1, 2, 5, -3))  # the clock of a new leader goes back
        own_ms = None if own.random() < 0.04 else at_ms + apart_ms + own.choice((0, 0, 3, -9, 8))
        later = own.random() < 0.2
        event = Event(rng.choice(ACTS), rng.choice(KEYS), rng.randrange(-2, 12), own_ms, later)
        log.offsets.append(offset)
        log.times_ms.append(at_ms if rng.random() < 0.97 else -1)
        log.values.append(b"\xc1" if event.act == "rot" else msgspec.msgpack.encode(event))
    return log


class MemoryStore(dict[bytes, bytes]):
    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        yield from [(key, self[key]) for key in sorted(self) if key.startswith(prefix) and key >= start]

    def take(self, changes: Changes) -> None:
        for key, value in changes.stored():
            if value is None:
                self.pop(key, None)
            else:
                self[key] = value

    def digest(self) -> str:
        return digest(sorted(item for item in self.items() if item[0][:1] != META))


@dataclass(slots=True)
class Journal:
    """All that committed transactions of one version wrote."""

    store: MemoryStore = field(default_factory=MemoryStore)
    emits: list[Emit] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    choices: list[bytes] = field(default_factory=list)

    def commit(self, changes: Changes) -> None:
        self.store.take(changes)
        self.emits += changes.emits
        self.refused += changes.refused
        self.choices += map(encode_choice, changes.choices)

    @property
    def position(self) -> Position | None:
        stored = self.store.get(APPLIED)
        return None if stored is None else decode_position(stored)

    def told(self) -> tuple[Any, ...]:
        """Return the results that every fold must agree on: rows and timers, emits, refusals, position."""
        return self.store.digest(), self.emits, self.refused, self.store.get(APPLIED)


class Worker:
    """Owners of one partition, one after the other; each finds the commits of the one before."""

    def __init__(self, rng: Random, logs: Sequence[Log], journal: Journal, version: int = 1) -> None:
        self.rng, self.logs, self.journal = rng, logs, journal
        self.processor = processor_of(len(logs), version)
        self.is_old = False
        """True if it merges by append time alone, as workers of earlier releases do."""
        self.now_ms = 0
        # Not drawn from *rng*: schedules are the same with it and without.
        self.away = Random(repr([(log.offsets, log.times_ms) for log in logs]))
        self.restart()

    def restart(self) -> None:
        self.resume(self.journal.store, self.journal.position)

    def resume(self, store: MemoryStore, marker: Position | None) -> None:
        """Continue from *marker*, whose rows and timers are in *store*."""
        self.folder: Folder[Seen] = Folder(
            self.processor, store, marker=marker, cache_rows=self.rng.choice((2, 1000))
        )
        recorded = map(decode_choice, list(self.journal.choices))
        self.merger = Merger(self.folder.marker, recorded, None if self.is_old else self.folder.order)
        self.fetched = [
            log.before(applied) for log, applied in zip(self.logs, self.folder.marker.applied, strict=True)
        ]

    @property
    def done(self) -> bool:
        found = zip(self.logs, self.folder.marker.applied, strict=True)
        return all(not log.offsets or log.offsets[-1] == applied for log, applied in found)

    def fetch(self) -> None:
        for source, log in enumerate(self.logs):
            start = max(0, self.fetched[source] - self.rng.choice((0, 0, 0, 1)))  # some come twice
            stop = min(len(log.offsets), self.fetched[source] + self.rng.choice((0, 0, 1, 3, 10)))
            self.merger.offer(source, log.batch(start, stop))
            self.fetched[source] = max(self.fetched[source], stop)

    def ends(self) -> list[int | None] | None:
        """Return the worker's guesses of the sources' ends: all to be waited for, some, or none; wrong or
        right.
        """
        if self.fetched == [len(log.offsets) for log in self.logs]:
            return [0] * len(self.logs)
        guess = self.rng.random()
        if guess < 0.5:
            return None
        return [self.rng.choice((None, 0, 10, 1 << 40)) if guess < 0.8 else 0 for _ in self.logs]

    def stretches(self, ends: list[int | None] | None) -> Iterator[Stretch]:
        while (stretch := self.merger.take(ends)) is not None:
            yield stretch
            if self.rng.random() < 0.2:  # a transaction takes in records that arrive while it is folded
                self.fetch()

    def turn(self) -> None:
        """Fetch, perhaps tick, and fold one transaction, which may end in any way."""
        rng, folder, merger = self.rng, self.folder, self.merger
        self.fetch()
        self.now_ms += rng.choice((0, 1, 4, -2))
        if rng.random() < (0.5 if folder.next_tick_ms <= self.now_ms else 0.05):
            merger.tick(self.now_ms)
        NEEDED.chance = self.away
        try:
            for _ in folder.steps(self.stretches(self.ends())):
                if rng.random() < 0.15:
                    folder.close_early()
        except Later:
            merger.settle(folder.marker)
            return
        finally:
            NEEDED.chance = None
        fate = rng.random()
        if folder.changes is not None and fate > 0.2:
            self.commit(folder.changes)
            folder.commit()
        elif fate > 0.1 or folder.changes is None:
            folder.rollback()
        else:
            self.die()
            return
        merger.settle(folder.marker)

    def commit(self, changes: Changes) -> None:
        self.journal.commit(changes)

    def die(self) -> None:
        self.restart()

    def run(self, turns: int = 1 << 20) -> None:
        while turns and not self.done:
            self.turn()
            turns -= 1


# -- folding it again


def recorded_of(journal: Journal) -> list[Choice]:
    """Return the choices up to the journal's marker."""
    stored = journal.store.get(APPLIED)
    count = 0 if stored is None else decode_position(stored).choices
    return list(map(decode_choice, journal.choices))[:count]


def logs_of(journal: Journal, logs: Sequence[Log]) -> list[Log]:
    """Return *logs* up to the journal's marker."""
    stored = journal.store.get(APPLIED)
    applied = [-1] * len(logs) if stored is None else decode_position(stored).applied
    cut = [log.before(last) for log, last in zip(logs, applied, strict=True)]
    return [
        Log(log.offsets[:count], log.times_ms[:count], log.values[:count])
        for log, count in zip(logs, cut, strict=True)
    ]


def batches(rng: Random, log: Log) -> Iterator[Batch]:
    at = 0
    while at < len(log.offsets):
        stop = at + rng.choice((1, 2, 7, 50))
        yield log.batch(at, stop)
        at = stop


def replay(
    rng: Random,
    logs: Sequence[Log],
    recorded: Sequence[Choice],
    version: int = 1,
    upto: Position | None = None,
) -> Journal:
    """Fold *logs* from their beginning by the recorded choices, in batches and transactions of any size, now
    and then from a marker on; *upto* is the marker at which the recorded choices end.
    """
    journal, processor = Journal(), processor_of(len(logs), version)

    def resumed() -> tuple[Folder[Seen], Iterator[Stretch]]:
        stored = journal.store.get(APPLIED)
        marker = None if stored is None else decode_position(stored)
        folder: Folder[Seen] = Folder(processor, journal.store, marker=marker)
        order = folder.order.as_at(upto)
        return folder, replayed(
            folder.marker, [batches(rng, log) for log in logs], iter(recorded), order=order
        )

    folder, stretches = resumed()
    while (changes := folder.fold(islice(stretches, rng.choice((1, 3, 40))))) is not None:
        assert not changes.choices, "a replay decides nothing"
        journal.commit(changes)
        folder.commit()
        if rng.random() < 0.05:
            folder, stretches = resumed()
    return journal


@dataclass(slots=True)
class NaiveRows:
    rows: dict[str, Seen] = field(default_factory=dict)
    timers: dict[str, dict[str, int]] = field(default_factory=lambda: {"append": {}, "event": {}, "tick": {}})

    def get(self, key: str) -> Seen | None:
        return self.rows.get(key)

    def __setitem__(self, key: str, row: Seen) -> None:
        self.rows[key] = row

    def wake_at(self, key: str, at_ms: int | None, *, clock: Clock = "append") -> None:
        self.timers[clock].pop(key, None)
        if at_ms is not None:
            self.timers[clock][key] = at_ms


class Naive:
    """Folds one record at a time over plain dicts, in an order found by sorting."""

    def __init__(self) -> None:
        self.rows, self.stream_ms, self.event_ms = NaiveRows(), -1, -NEVER
        self.emits: list[Emit] = []
        self.refused: list[tuple[str, int, str]] = []

    def attempt(self, at: tuple[str, int, str], act: Callable[[], Iterator[Emit]]) -> None:
        rows, timers = dict(self.rows.rows), {name: dict(of) for name, of in self.rows.timers.items()}
        try:
            emits = list(act())
        except Exception:  # noqa: BLE001  as the folder does
            self.rows.rows, self.rows.timers = rows, timers
            self.refused.append(at)
        else:
            self.emits += emits

    def ring(self, clock: Clock, now_ms: int, at: tuple[str, int, str]) -> None:
        due = sorted((due, key) for key, due in self.rows.timers[clock].items() if due <= now_ms)
        for due_ms, key in due:
            timers = self.rows.timers[clock]  # another dict after one that failed
            if timers.get(key) == due_ms:
                del timers[key]
                self.attempt(at, partial(rung, clock, self.rows, key, due_ms))  # type: ignore[arg-type]

    def record(self, topic: str, offset: int, at_ms: int, value: bytes) -> None:
        if at_ms > self.stream_ms:
            self.stream_ms = at_ms
            self.ring("append", at_ms, (topic, offset, "wake"))
        if value == b"\xc1":
            self.refused.append((topic, offset, "decode"))
            return
        event, told = msgspec.msgpack.decode(value, type=Event), (topic, offset, at_ms)
        if has_time(TOPICS.index(topic)):
            if event.own_ms is None:
                self.refused.append((topic, offset, "decode"))
                return
            own_ms = event.own_ms
        else:
            own_ms = -NEVER if self.stream_ms < 0 else self.stream_ms
        if own_ms > self.event_ms:
            self.event_ms = own_ms
            self.ring("event", own_ms, (topic, offset, "wake"))
        self.attempt((topic, offset, "fold"), lambda: fold(self.rows, event, self.stream_ms, *told))  # type: ignore[arg-type]


def own_ms_of(log: Log, source: int, at: int, by_event: int) -> int:
    """Return the time that a record is ordered by, -1 where it has none."""
    if not by_event >> source & 1:
        return max(log.times_ms[at], -1)
    if log.values[at] == b"\xc1":
        return -1
    own_ms = msgspec.msgpack.decode(log.values[at], type=Event).own_ms
    return -1 if own_ms is None else max(own_ms, -1)


def in_turn(
    logs: Sequence[Log], done: Sequence[int], upto: Sequence[int], by_event: int
) -> Iterator[tuple[int, int]]:
    """Yield source and number of the records from *done* up to *upto*: always the first of the source whose
    first has the least time, and of these of the source of the least number.
    """
    at = [*done]
    while left := [source for source in range(len(logs)) if at[source] < upto[source]]:
        source = min(left, key=lambda each: (own_ms_of(logs[each], each, at[each], by_event), each))
        yield source, at[source]
        at[source] += 1


def by_append_time(
    logs: Sequence[Log], done: Sequence[int], upto: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Yield the same sorted by the highest append time so far, source and offset; a time below -1 is none."""
    keyed = [
        (max(-1, *log.times_ms[: at + 1]), source, at)
        for source, log in enumerate(logs)
        for at in range(done[source], upto[source])
    ]
    return ((source, at) for _, source, at in sorted(keyed))


def naive(logs: Sequence[Log], recorded: Sequence[Choice], upto: Position) -> Naive:
    """Fold *logs* between *recorded*, each part in the order that its choice says, the last as *upto*
    does.
    """
    out, done = Naive(), [0] * len(logs)
    for choice in (*recorded, None):
        ends = [
            len(log.offsets) if choice is None else log.before(choice.applied[source])
            for source, log in enumerate(logs)
        ]
        by_event = (upto if choice is None else choice).by_event
        part = in_turn(logs, done, ends, by_event) if by_event else by_append_time(logs, done, ends)
        for source, at in part:
            log = logs[source]
            out.record(TOPICS[source], log.offsets[at], log.times_ms[at], log.values[at])
        done = ends
        if choice is not None and choice.tick_ms is not None:
            out.ring("tick", choice.tick_ms, ("", choice.number, "tick"))
    return out
