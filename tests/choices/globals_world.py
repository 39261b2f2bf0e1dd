"""One partition of a processor that reads two globals, from a seed: logs, workers whose copies run ahead or
lag, globals' topics to which partitions are added, and two ways to fold it all again.

A row holds a digest of all that its key has met, the globals' rows at that moment included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from random import Random
from typing import Any
from zlib import crc32

import msgspec

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.choices import decode_choice
from holdfast.core.engine.declared.global_tables import Global
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.serdes import Msgpack, Text
from holdfast.core.engine.declared.sources import FoldWith, Source
from holdfast.core.engine.emits import Emit
from holdfast.core.engine.fold.folding import Folder
from holdfast.core.engine.fold.stretches import Stretch
from holdfast.core.engine.merge.global_copies import GlobalCopy, GlobalLog, GlobalReplay, WorkerGlobals
from holdfast.core.engine.merge.merging import Merger, replayed
from holdfast.core.engine.positions import Position, decode_position
from holdfast.core.engine.state.codec import APPLIED
from holdfast.core.engine.state.global_rows import Vector, covers
from holdfast.core.engine.state.rows import Rows
from tests.choices.world import (
    KEYS,
    TOPICS,
    Event,
    Journal,
    Log,
    Seen,
    logs_of,
    recorded_of,
    written_log,
)

GlobalLogs = list[Log]
"""The partitions of a global's topic; a value is `key number`, without a number the key is removed, and "?"
is refused.
"""


def keep(rows: Rows[int], event: str, at_ms: int) -> None:
    key, _, number = event.partition(" ")
    if key == "?":
        rows["never"] = 0
        raise RuntimeError("the fold of the global failed")
    if number:
        rows[key] = rows.get(key, 0) * 3 + int(number)
    elif key in rows:
        del rows[key]


GLOBALS = tuple(Global(name, Source(f"{name}-log", Text()), keep, row=int) for name in ("rates", "names"))


def looked_up(
    get: Callable[[int, str], int | None], scan: Callable[[int], list[tuple[str, int]]], key: str
) -> list[Any]:
    """Return all that an event looks up in the globals."""
    return [get(0, key), get(1, key), scan(0) if key == "a" else None]


def fold(rows: Rows[Seen], event: Event, at_ms: int, topic: str, offset: int) -> Iterator[Emit]:
    def get(number: int, key: str) -> int | None:
        return rows.globals[GLOBALS[number]].get(key)

    met = looked_up(get, lambda number: [*rows.globals[GLOBALS[number]].scan()], event.key)
    if event.act in ("wake", "both"):
        rows.wake_at(event.key, at_ms + event.n)
    if event.act == "tick":
        rows.wake_at(event.key, at_ms + event.n, clock="tick")
    trail = (rows.get(event.key) or Seen()).trail
    rows[event.key] = Seen(crc32(repr((trail, topic, offset, at_ms, met)).encode()))
    if event.act == "raise":
        raise RuntimeError("the fold failed")
    yield Emit("out", event.key, repr(met).encode())


def rung(rows: Rows[Seen], key: str, at_ms: int) -> Iterator[Emit]:
    met = rows.globals[GLOBALS[0]].get(key)
    rows[key] = Seen(crc32(repr(((rows.get(key) or Seen()).trail, at_ms, met)).encode()))
    yield Emit("out", key, repr(met).encode())


def processor_of(width: int, version: int) -> Processor[Any, Seen]:
    told = FoldWith(fold, ("topic", "offset"))
    return Processor(
        name="seen",
        version=version,
        on={Source(topic, Msgpack(Event)): told for topic in TOPICS[:width]},
        row=Seen,
        on_wake=rung,
        on_tick=rung,
        emits=("out",),
        reads=GLOBALS,
    )


def written_global(rng: Random) -> GlobalLogs:
    partitions: GlobalLogs = []
    for number in range(rng.choice((1, 2, 3))):
        log, offset = Log([], [], []), -1
        for _ in range(rng.randrange(25)):
            offset += rng.choice((1, 1, 2, 4))
            key = KEYS[rng.randrange(len(KEYS))] if number == 0 else f"{number}{rng.choice(KEYS)}"
            text = rng.choice((f"{key} {rng.randrange(9)}",) * 6 + (key, "?", "\ud800"))
            log.offsets.append(offset)
            log.times_ms.append(rng.randrange(50))
            log.values.append(text.encode(errors="surrogatepass"))
        partitions.append(log)
    return partitions


def open_logs(rng: Random, tables: Sequence[GlobalLogs]) -> Callable[[int], dict[int, GlobalLog]]:
    """Return a function that gives a replay the whole log of each global, in batches of any size."""

    def opened(number: int) -> dict[int, GlobalLog]:
        return {
            at: GlobalLog(_batches(rng, log), log.offsets[-1] + 1 if log.offsets else 0)
            for at, log in enumerate(tables[number])
        }

    return opened


def _batches(rng: Random, log: Log) -> Iterator[Batch]:
    at = 0
    while at < len(log.offsets):
        stop = at + rng.choice((1, 2, 7))
        yield _batch(log, at, stop)
        at = stop


def _batch(log: Log, start: int, stop: int) -> Batch:
    return Batch(log.offsets[start:stop], log.times_ms[start:stop], (log.values[start:stop],))


class GlobalsWorker:
    """Owners of one partition, one after the other, each with copies of its own that follow at any pace."""

    def __init__(
        self, rng: Random, logs: Sequence[Log], tables: Sequence[GlobalLogs], journal: Journal, version: int
    ) -> None:
        self.rng, self.logs, self.tables, self.journal = rng, logs, tables, journal
        self.processor, self.now_ms, self.waited = processor_of(len(logs), version), 0, 0
        self._growing = Random(hash(rng.getstate()[1]))
        self.known = [self._growing.randint(1, len(table)) for table in tables]
        """Number of known partitions of each global's topic; the others are added later."""
        self.restart()

    def restart(self) -> None:
        stored = self.journal.store.get(APPLIED)
        marker = None if stored is None else decode_position(stored)
        self.copies = [GlobalCopy(each) for each in GLOBALS]
        self.read = [[0] * len(table) for table in self.tables]
        self.follow()
        self.globals = WorkerGlobals(self.copies)
        self.globals.history = GlobalReplay(GLOBALS, open_logs(self.rng, self.tables))
        self.folder: Folder[Seen] = Folder(
            self.processor, self.journal.store, marker=marker, views=self.globals
        )
        recorded = map(decode_choice, list(self.journal.choices))
        self.merger = Merger(self.folder.marker, recorded, self.folder.order)
        self.fetched = [
            log.before(applied) for log, applied in zip(self.logs, self.folder.marker.applied, strict=True)
        ]

    def follow(self) -> None:
        """Have the copies fold some of the records in their logs."""
        for copy, table, read, known in zip(self.copies, self.tables, self.read, self.known, strict=True):
            for partition, log in enumerate(table[:known]):
                stop = min(len(log.offsets), read[partition] + self.rng.choice((0, 0, 1, 3)))
                if stop > read[partition]:
                    copy.apply(partition, _batch(log, read[partition], stop))
                    read[partition] = stop

    @property
    def done(self) -> bool:
        found = zip(self.logs, self.folder.marker.applied, strict=True)
        return all(not log.offsets or log.offsets[-1] == applied for log, applied in found)

    def stretches(self, ends: list[int | None] | None) -> Iterator[Stretch]:
        while (stretch := self.merger.take(ends)) is not None:
            yield stretch
            if self.rng.random() < 0.5:  # the copies advance while a transaction is open
                self.follow()

    def turn(self) -> None:
        rng, folder, merger = self.rng, self.folder, self.merger
        self.known = [
            min(len(table), known + (self._growing.random() < 0.05))
            for table, known in zip(self.tables, self.known, strict=True)
        ]
        self.follow()
        for source, log in enumerate(self.logs):
            stop = min(len(log.offsets), self.fetched[source] + rng.choice((0, 1, 3, 10)))
            batch = log.batch(self.fetched[source], stop)
            merger.offer(source, Batch(batch.offsets, batch.times_ms, (batch.columns[0], batch.offsets)))
            self.fetched[source] = stop
        self.now_ms += rng.choice((0, 1, 4))
        if not self._begin():
            return
        if rng.random() < (0.5 if folder.next_tick_ms <= self.now_ms else 0.05):
            merger.tick(self.now_ms)
        ends: list[int | None] = [0] * len(self.logs)
        for _ in folder.steps(self.stretches(None if rng.random() < 0.3 and not self._all_read else ends)):
            if rng.random() < 0.15:
                folder.close_early()
        self._end(rng.random())
        merger.settle(folder.marker)

    @property
    def _all_read(self) -> bool:
        return self.fetched == [len(log.offsets) for log in self.logs]

    def _begin(self) -> bool:
        """Choose the position that the transaction sees; False when the copies have not reached the
        marker's.
        """
        if self.merger.next_choice is not None:
            return True
        self.globals.history = None
        if not self.globals.reach(_vectors(self.folder.marker)):
            self.waited += 1
            return False
        self.merger.see(self.globals.pin())
        return True

    def _end(self, fate: float) -> None:
        folder = self.folder
        if folder.changes is not None and fate > 0.2:
            self.journal.commit(folder.changes)
            folder.commit()
        elif fate > 0.1 or folder.changes is None:
            folder.rollback()
        else:
            self.restart()
        self.globals.release()

    def run(self, turns: int = 1 << 20) -> None:
        while turns and not self.done:
            self.turn()
            turns -= 1


def _vectors(marker: Position) -> tuple[Vector, ...]:
    found: tuple[Vector, ...] = marker.globals
    return found


class DiffersError(AssertionError):
    """A live state differs from a fold of its logs and choices."""


def check_replay(
    rng: Random, logs: Sequence[Log], tables: Sequence[GlobalLogs], live: Journal, version: int
) -> None:
    """Fold again up to the live marker, in transactions of any size, and hold each emit against plain
    look-ups.
    """
    recorded, cut = recorded_of(live), logs_of(live, logs)
    again, processor = Journal(), processor_of(len(logs), version)

    def resumed() -> tuple[Folder[Seen], Iterator[Stretch]]:
        stored = again.store.get(APPLIED)
        folder: Folder[Seen] = Folder(
            processor,
            again.store,
            marker=None if stored is None else decode_position(stored),
            views=GlobalReplay(GLOBALS, open_logs(rng, tables)),
        )
        batches = [_source_batches(rng, log) for log in cut]
        order = folder.order.as_at(live.position)
        return folder, replayed(folder.marker, batches, iter(recorded), order=order)

    folder, stretches = resumed()
    while (changes := folder.fold(islice(stretches, rng.choice((1, 3, 40))))) is not None:
        again.commit(changes)
        folder.commit()
        if rng.random() < 0.05:
            folder, stretches = resumed()
    if again.told() != live.told():
        raise DiffersError("the replay differs from the live state")
    _check_positions(recorded)
    _check_emits(cut, tables, recorded, live)


def _source_batches(rng: Random, log: Log) -> Iterator[Batch]:
    at = 0
    while at < len(log.offsets):
        stop = at + rng.choice((1, 2, 7, 50))
        batch = log.batch(at, stop)
        yield Batch(batch.offsets, batch.times_ms, (batch.columns[0], batch.offsets))
        at = stop


def _check_positions(recorded: Iterable[Any]) -> None:
    before: tuple[Vector, ...] = ((), ())
    for each in recorded:
        if each.globals:
            if not all(map(covers, each.globals, before)) or each.globals == before:
                raise DiffersError("a position does not go on")
            before = each.globals


def naive_rows(table: GlobalLogs, vector: Vector) -> dict[str, int]:
    """Return the rows of a global at *vector*, by a plain loop."""
    found: dict[str, int] = {}
    for log, last in zip(table, vector, strict=False):
        for offset, value in zip(log.offsets, log.values, strict=True):
            try:
                key, _, number = value.decode().partition(" ")
            except UnicodeDecodeError:
                continue
            if offset > last or key == "?":
                continue
            if number:
                found[key] = found.get(key, 0) * 3 + int(number)
            else:
                found.pop(key, None)
    return dict(sorted(found.items()))


def _check_emits(
    logs: Sequence[Log], tables: Sequence[GlobalLogs], recorded: Sequence[Any], live: Journal
) -> None:
    """Compare the values of globals in the records with the model: without timers, whose order is proved
    elsewhere.
    """
    keyed: list[list[tuple[int, int, int]]] = []
    for source, log in enumerate(logs):
        highest, entries = -1, []
        for at, at_ms in enumerate(log.times_ms):
            highest = max(highest, at_ms)
            entries.append((highest, source, at))
        keyed.append(entries)
    seen, done, told = [naive_rows(table, ()) for table in tables], [0] * len(logs), []
    for choice in (*recorded, None):
        upto = [
            len(log.offsets) if choice is None else log.before(choice.applied[source])
            for source, log in enumerate(logs)
        ]
        for _, source, at in sorted(
            entry for part, a, b in zip(keyed, done, upto, strict=True) for entry in part[a:b]
        ):
            told += _told(logs[source].values[at], seen)
        done = upto
        if choice is not None and choice.globals:
            seen = [naive_rows(table, vector) for table, vector in zip(tables, choice.globals, strict=True)]
    lists = [each.value for each in live.emits if (each.value or b"").startswith(b"[")]
    if lists != told:
        raise DiffersError("a fold saw something else than the globals at the recorded positions")


def _told(value: bytes, seen: Sequence[dict[str, int]]) -> list[bytes]:
    if value == b"\xc1":
        return []
    event = msgspec.msgpack.decode(value, type=Event)
    if event.act == "raise":
        return []
    met = looked_up(
        lambda number, key: seen[number].get(key), lambda number: [*seen[number].items()], event.key
    )
    return [repr(met).encode()]


def check_schedule(seed: int) -> tuple[int, int]:
    """Run the schedule of *seed* and compare it with its replays; return how many positions were recorded and
    how often a worker had to wait for its copies.
    """
    rng = Random(seed)
    logs = [written_log(rng) for _ in range(rng.choice((1, 2)))]
    tables = [written_global(rng) for _ in GLOBALS]
    live = Journal()
    worker = GlobalsWorker(rng, logs, tables, live, 1)
    worker.run(rng.randrange(15))
    check_replay(rng, logs, tables, live, 1)
    if rng.random() < 0.4:  # a new version obeys the recorded choices, then decides
        obeyed = list(live.choices)
        live = Journal(choices=live.choices)
        worker = GlobalsWorker(rng, logs, tables, live, 2)
        worker.run()
        assert live.choices[: len(obeyed)] == obeyed
        check_replay(rng, logs, tables, live, 2)
    else:
        worker.run()
        check_replay(rng, logs, tables, live, 1)
    recorded = [decode_choice(each) for each in live.choices]
    return sum(bool(each.globals) for each in recorded), worker.waited
