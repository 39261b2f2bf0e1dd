"""Folds that have to wait for what they need (`Later`), or may not refuse: nothing is lost, nothing is done
twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.choices import Choice
from holdfast.core.engine.declared.processor import Emit, Processor
from holdfast.core.engine.declared.serdes import Text
from holdfast.core.engine.declared.sources import Source
from holdfast.core.engine.fold.asides import emit_result
from holdfast.core.engine.fold.folding import Folder, Refused, Transition
from holdfast.core.engine.merge.merging import Merger, replayed
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.core.engine.state.rows import Rows
from holdfast.errors import Later, StoppedError
from tests.support.scale import scaled

REGISTRY = "registry http://r:8081"
LIMIT_TRIES = 200


@dataclass
class World:
    """A service that folds need: it is away for the next `away` times that it is asked for `needed`."""

    away: int = 0
    needed: str = ""
    asked: int = 0

    def need(self, what: str) -> None:
        self.asked += 1
        if self.away and what == self.needed:
            self.away -= 1
            raise Later("nobody answers", needs=REGISTRY)


def processor_of(world: World, **declared: Any) -> Processor[Any, int]:
    """Return one that needs the world in each of its functions; an event is a text, and "bad…" is refused."""

    def decode(value: bytes) -> str:
        event = value.decode()
        world.need(f"decode {event}")
        return event

    def time(event: str) -> int:
        world.need(f"time {event}")
        return len(event)

    def fold(rows: Rows[int], event: str, at_ms: int) -> Iterator[Emit]:
        if event.startswith("bad"):
            raise ValueError(event)

        def close() -> Emit:
            world.need(f"close {event}")
            return Emit("out", event, b"closed")

        rows[event] = (rows.get(event) or 0) + 1
        rows["all"] = (rows.get("all") or 0) + 1
        rows.wake_at(event, at_ms + 3)
        rows.wake_at(event, len(event) + 2, clock="event")
        world.need(f"fold {event}")
        yield Emit("out", event, b"%d" % rows[event])
        world.need(f"emit {event}")
        emits: list[Emit] = []
        emit_result(rows, emits, "its result: ", close)
        yield from emits

    def on_wake(rows: Rows[int], key: str, at_ms: int) -> Iterator[Emit]:
        rows["woken"] = (rows.get("woken") or 0) + 1
        world.need(f"wake {key}")
        yield Emit("out", key, b"woken")

    def on_event(rows: Rows[int], key: str, at_ms: int) -> None:
        rows["passed"] = (rows.get("passed") or 0) + 1
        world.need(f"event {key}")

    return Processor(
        name="words",
        source="lines",
        decode=decode,
        fold=fold,
        row=int,
        on_wake=on_wake,
        on_event=on_event,
        time=time,
        emits=("out",),
        **declared,
    )


@dataclass
class Outcome:
    """The result of folding a log."""

    store: DictStore = field(default_factory=DictStore)
    emits: list[Emit] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    told: list[Transition[Any]] = field(default_factory=list)
    waits: list[tuple[str, int] | None] = field(default_factory=list)

    def same(self) -> tuple[Any, ...]:
        return [*self.store.everything()], self.emits, self.refused, self.told


def log_of(events: list[str]) -> list[tuple[int, int, bytes]]:
    """Return offset, append time and value of each."""
    return [(offset, 10 + 2 * offset, event.encode()) for offset, event in enumerate(events)]


def folded(
    processor: Processor[Any, int],
    events: list[str],
    *,
    cut: int = 1 << 30,
    trace: bool = False,
    whole: bool = False,
) -> Outcome:
    """Fold a log in transactions of *cut* records, as often as it has to wait."""
    outcome, log = Outcome(), log_of(events)
    folder: Folder[int] = Folder(processor, outcome.store, trace=outcome.told.append if trace else None)
    for _ in range(LIMIT_TRIES):
        given = log[folder.marker.applied[0] + 1 : folder.marker.applied[0] + 1 + cut]
        if not given:
            return outcome
        offsets, times, values = zip(*given, strict=True)
        batches = [Batch(offsets[:2], times[:2], (values[:2],)), Batch(offsets[2:], times[2:], (values[2:],))]
        try:
            for _ in folder.steps([each for each in batches if each.offsets], whole=whole):
                pass
        except Later as later:
            outcome.waits.append(later.at)
            continue
        changes = folder.changes
        assert changes is not None
        outcome.store.apply(changes.puts)
        outcome.emits += changes.emits
        outcome.refused += changes.refused
        folder.commit()
    raise AssertionError("it never ended")


EVENTS = ["a", "bb", "bad", "ccc", "a", "dddd", "bb", "eeeee"]


@pytest.mark.parametrize("trace", [False, True])
@pytest.mark.parametrize("cut", [1, 3, 100])
@pytest.mark.parametrize(
    "needed", ["decode dddd", "time dddd", "fold dddd", "emit dddd", "close dddd", "wake bb", "event a"]
)
def test_what_has_to_wait_is_folded_later_as_if_it_had_not(needed: str, cut: int, trace: bool) -> None:
    there = folded(processor_of(World()), EVENTS, cut=cut, trace=trace)
    world = World(away=5, needed=needed)
    waited = folded(processor_of(world), EVENTS, cut=cut, trace=trace)
    assert world.away == 0
    assert waited.same() == there.same()
    assert [each.offset for each in waited.refused] == [2]
    assert waited.waits, "it did wait"


def test_what_lies_before_the_record_that_waits_is_committed_and_the_record_is_named() -> None:
    world = World(away=9, needed="fold dddd")
    processor = processor_of(world)
    outcome = folded(processor, EVENTS)
    assert set(outcome.waits) == {("", 5)}
    folder: Folder[int] = Folder(processor_of(World(away=100, needed="fold dddd")), DictStore())
    offsets, times, values = zip(*log_of(EVENTS), strict=True)
    changes = None
    for _ in folder.steps([Batch(offsets, times, (values,))]):
        changes = folder.changes
    changes = folder.changes
    assert changes is not None
    assert (changes.marker.applied[0], changes.records) == (4, 5)
    assert changes.marker.stream_ms == 10 + 2 * 4, "the record that waits has moved nothing"
    assert changes.marker.event_ms == 3


def test_a_whole_transaction_that_has_to_wait_leaves_no_trace() -> None:
    world = World(away=6, needed="fold dddd")
    outcome = folded(processor_of(world), EVENTS, whole=True)
    assert outcome.same() == folded(processor_of(World()), EVENTS).same()
    assert outcome.waits == [("", 5)] * 6, "each time with care: a record before it is refused"


EVENT = st.sampled_from(["a", "bb", "ccc", "dddd", "bad"])


@given(
    events=st.lists(EVENT, min_size=1, max_size=12),
    cut=st.integers(1, 12),
    trace=st.booleans(),
    part=st.sampled_from(["decode", "time", "fold", "emit", "close", "wake", "event"]),
    of=EVENT,
    away=st.integers(0, 7),
    again=st.booleans(),
)
@settings(max_examples=scaled(150), deadline=None)
def test_whatever_waits_wherever_the_log_is_cut_gives_the_same(
    events: list[str], cut: int, trace: bool, part: str, of: str, away: int, again: bool
) -> None:
    world = World(away=away, needed=f"{part} {of}")
    waited = folded(processor_of(world), events, cut=cut, trace=trace, whole=again)
    assert waited.same() == folded(processor_of(World()), events, trace=trace).same()


# -- several sources


def merged_of(world: World) -> Processor[Any, str]:
    def note(rows: Rows[str], event: str, at_ms: int) -> None:
        rows["all"] = (rows.get("all") or "") + event
        rows.wake_at(event, at_ms + 5, clock="tick")
        world.need(f"fold {event}")

    def on_tick(rows: Rows[str], key: str, at_ms: int) -> list[Emit]:
        rows["ticks"] = (rows.get("ticks") or "") + key
        world.need(f"tick {key}")
        return [Emit("out", key, b"ticked")]

    return Processor(
        name="both",
        on={Source("letters", Text()): note, Source("digits", Text()): note},
        row=str,
        on_tick=on_tick,
        emits=("out",),
    )


def merged(world: World) -> tuple[list[tuple[bytes, bytes]], list[Emit], list[Choice]]:
    """Fold two sources live, one record of which comes too late for its position, and a tick."""
    processor, store = merged_of(world), DictStore()
    folder: Folder[str] = Folder(processor, store)
    merger = Merger(folder.marker)
    emits: list[Emit] = []
    choices: list[Choice] = []

    def fold_all(tick_ms: int | None = None) -> None:
        for _ in range(LIMIT_TRIES):
            if tick_ms is not None and folder.marker.tick_ms < tick_ms:
                merger.tick(tick_ms)
            try:
                for _ in folder.steps(iter(lambda: merger.take((0, 0)), None)):
                    pass
            except Later:
                merger.settle(folder.marker)
                continue
            if folder.changes is None:
                return
            store.apply(folder.changes.puts)
            emits.extend(folder.changes.emits)
            choices.extend(folder.changes.choices)
            folder.commit()
            merger.settle(folder.marker)
        raise AssertionError("it never ended")

    merger.offer(0, Batch([0, 1], [10, 14], ([b"a", b"b"],)))
    fold_all()
    merger.offer(1, Batch([0, 1], [12, 20], ([b"1", b"2"],)))
    fold_all()
    fold_all(tick_ms=30)
    return [*store.everything()], emits, choices


@pytest.mark.parametrize("needed", ["fold b", "fold 1", "fold 2", "tick a", "tick 2"])
def test_records_and_ticks_of_several_sources_wait_and_replay_to_the_same(needed: str) -> None:
    there = merged(World())
    waited = merged(World(away=5, needed=needed))
    assert waited[0] == there[0]
    assert waited[1] == there[1]
    store, choices = DictStore(), waited[2]
    folder: Folder[str] = Folder(merged_of(World()), store)
    logs = [[Batch([0, 1], [10, 14], ([b"a", b"b"],))], [Batch([0, 1], [12, 20], ([b"1", b"2"],))]]
    changes = folder.fold(list(replayed(folder.marker, logs, choices)))
    assert changes is not None
    store.apply(changes.puts)
    assert [*store.everything()] == waited[0]


# -- what may not be refused


def stopping(allowed: set[tuple[str, int]], events: list[str]) -> tuple[Outcome, list[StoppedError]]:
    """Fold *events*, and allow each record that stops it once it has."""
    outcome, log = Outcome(), log_of(events)
    folder: Folder[int] = Folder(processor_of(World()), outcome.store)
    folder.allowed, stops, reached = allowed, list[StoppedError](), list[int]()
    for _ in range(LIMIT_TRIES):
        given = log[folder.marker.applied[0] + 1 :]
        if not given:
            assert reached == [each.offset - 1 for each in stops], "all before it is committed"
            return outcome, stops
        offsets, times, values = zip(*given, strict=True)
        try:
            for _ in folder.steps([Batch(offsets, times, (values,))]):
                pass
        except StoppedError as stopped:
            stops.append(stopped)
            reached.append(folder.marker.applied[0])
            allowed.add((stopped.topic, stopped.offset))
            continue
        assert folder.changes is not None
        outcome.store.apply(folder.changes.puts)
        outcome.emits += folder.changes.emits
        outcome.refused += folder.changes.refused
        folder.commit()
    raise AssertionError("it never ended")


def test_a_record_that_may_not_be_refused_stops_what_follows_until_it_may() -> None:
    events = ["a", "bad", "bb", "bad", "ccc"]
    outcome, stops = stopping(set(), events)
    assert [(each.offset, each.stage, each.error, each.reason) for each in stops] == [
        (1, "fold", "ValueError", "bad"),
        (3, "fold", "ValueError", "bad"),
    ]
    assert outcome.same() == folded(processor_of(World()), events).same(), (
        "as one that quarantines, and as a replay"
    )


def test_only_the_record_that_is_named_may_be_refused() -> None:
    _, stops = stopping({("", 3), ("", 0)}, ["a", "bad", "bb", "bad", "ccc"])
    assert [each.offset for each in stops] == [1]


def test_a_timer_that_fails_stops_as_a_record_does() -> None:
    def on_wake(rows: Rows[int], key: str, at_ms: int) -> None:
        raise ValueError("it rings")

    processor = replace(processor_of(World()), on_wake=on_wake)
    folder: Folder[int] = Folder(processor, DictStore())
    folder.allowed = set()

    offsets, times, values = zip(*log_of(["a", "b", "c", "d"]), strict=True)
    for _ in folder.steps([Batch(offsets, times, (values,))]):
        pass
    assert folder.changes is not None
    assert folder.changes.marker.applied[0] == 1
    folder.commit()
    with pytest.raises(StoppedError, match="at wake: ValueError: timer 'a' due at 13: it rings"):
        folder.fold([Batch(offsets, times, (values,))])
