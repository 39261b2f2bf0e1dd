"""A version that is silent up to where its predecessor ended: both together emit the records that one alone
emits, wherever they change hands and however the log is cut into transactions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.choices import Choice, decode_choice, encode_choice
from holdfast.core.engine.declared.processor import Emit, Processor
from holdfast.core.engine.declared.serdes import Text
from holdfast.core.engine.declared.streams import Internal
from holdfast.core.engine.fold.folding import Changes, Folder
from holdfast.core.engine.merge.handing_over import barrier_at
from holdfast.core.engine.merge.merging import Merger
from holdfast.core.engine.positions import Position, start_of
from holdfast.core.engine.state.handover import HANDOVER_FORMAT, Handover, decode_handover, encode_handover
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.errors import ChangelogError, ChoicesError, ConfigError
from tests.choices.world import (
    Journal,
    Log,
    MemoryStore,
    Worker,
    logs_of,
    processor_of,
    recorded_of,
    replay,
    written_log,
)
from tests.support.scale import scaled

BETWEEN = Internal("between", Text(), version=2)


def fold(rows: Any, event: str, at_ms: int) -> Iterator[Emit]:
    before = rows.get("all") or 0
    rows["all"] = before + 1
    if event != "bad":
        rows.wake_at(event, at_ms + 3)
        yield Emit("out", event, b"%d" % before)
        yield Emit(str(BETWEEN), event, b"%d" % before)
    else:
        raise ValueError(event)


def wake(rows: Any, key: str, at_ms: int) -> Iterator[Emit]:
    yield Emit("out", key, b"woken %d" % at_ms)


EMITS = ("out", BETWEEN)
ONE: Processor[Any, int] = Processor(
    name="one",
    version=2,
    source="in",
    decode=bytes.decode,
    fold=fold,
    row=int,
    on_wake=wake,
    emits=EMITS,
    emits_from="handover",
)
events = st.lists(st.tuples(st.sampled_from(["a", "b", "bad"]), st.integers(0, 3)), max_size=12)


def emitted_of_one(log: Batch, cuts: list[int], handover: Handover | None) -> list[tuple[int, Emit]]:
    """Fold a log in transactions cut at *cuts*; return what each emits, with the position that it ends at."""
    store, out = DictStore(), list[tuple[int, Emit]]()
    folder = Folder(ONE, store, handover=handover)
    for start, stop in zip([0, *cuts], [*cuts, len(log.offsets)], strict=True):
        while (
            changes := folder.fold([log.slice(start, stop)])
        ) is not None:  # the rest of it is the next one's
            out += [(changes.marker.applied[0], emit) for emit in changes.emits]
            store.apply(changes.puts)
            folder.commit()
    return out


def batch_of(records: list[tuple[str, int]], gaps: int = 2) -> Batch:
    at_ms, times = 0, list[int]()
    for _, passes_ms in records:
        at_ms += passes_ms
        times.append(at_ms)
    values = [event.encode() for event, _ in records]
    return Batch([gaps * at for at in range(len(records))], times, (values,))


@given(records=events, upto=st.integers(-1, 25), data=st.data())
def test_of_one_source_both_versions_together_emit_what_one_alone_does(
    records: list[tuple[str, int]], upto: int, data: st.DataObject
) -> None:
    log = batch_of(records)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(records)), max_size=4)))
    whole = emitted_of_one(log, [*range(1, len(records))] if records else [], None)
    heard = emitted_of_one(log, cuts, Handover(HANDOVER_FORMAT, (upto,)))
    to_others = [emit for at, emit in whole if emit.topic == "out" and at > upto]
    assert [emit for _, emit in heard if emit.topic == "out"] == to_others
    to_ours = [emit for _, emit in whole if emit.topic == BETWEEN]
    assert [emit for _, emit in heard if emit.topic == BETWEEN] == to_ours, (
        "whoever folds that needs all of it"
    )


class Successor(Worker):
    """Owners of a partition in a version that is silent up to the position of *before*, each of which reads
    that again as long as it may have moved.
    """

    def __init__(
        self, rng: Random, logs: Sequence[Log], journal: Journal, version: int, before: Journal
    ) -> None:
        self.before, self.noted = before, None
        super().__init__(rng, logs, journal, version)

    noted: Handover | None
    """The note on the changelog."""

    def resume(self, store: MemoryStore, marker: Position | None) -> None:
        super().resume(store, marker)
        here, stood = self.folder.marker, self.before.position or start_of(self.processor)
        self.handover, self.barrier = self.noted, None
        if self.noted is None or self.noted.covers(here.applied, here.choices):
            recorded = [decode_choice(value) for value in self.journal.choices[here.choices :]]
            learned, self.barrier = barrier_at(
                Handover(HANDOVER_FORMAT, stood.applied, stood.choices), here, recorded, stood.by_event
            )
            if self.noted is None or not self.noted.covers(learned.applied, learned.choices):
                self.handover = learned
        self.folder = Folder(
            self.processor,
            store,
            marker=marker,
            cache_rows=self.rng.choice((2, 1000)),
            handover=self.handover,
        )
        mine = [] if self.barrier is None else [self.barrier]
        recorded = [*map(decode_choice, self.journal.choices), *mine]
        self.merger = Merger(here, recorded, self.folder.order)

    def commit(self, changes: Changes) -> None:
        if self.barrier is not None:
            self.journal.choices.append(encode_choice(self.barrier))
            self.barrier = None
        self.noted = self.handover
        super().commit(changes)


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("seed", range(scaled(100)))
def test_with_choices_both_versions_together_emit_what_one_alone_does(seed: int, width: int) -> None:
    """With timers of all clocks, barriers and ticks that owners decide, which die, and are cut anywhere; and
    with the version before back for a while.
    """
    rng = Random(seed)
    logs = [written_log(rng) for _ in range(width)]
    before = Journal()
    after = Journal(choices=before.choices)
    Worker(rng, logs, before).run(turns=rng.randrange(12))
    if rng.random() < 0.5:
        new = Successor(rng, logs, after, 2, before)
        new.run(turns=rng.randrange(3))
        at = after.position or start_of(new.processor)
        if new.noted is None or new.noted.covers(at.applied, at.choices):
            Worker(rng, logs, before).run(turns=rng.randrange(12))  # it continues, by the recorded choices
        new.restart()
    else:
        new = Successor(rng, logs, after, 2, before)
    emitted = len(before.emits)
    new.run()
    whole = replay(rng, logs, recorded_of(after), version=2)
    assert whole.emits[:emitted] == before.emits
    assert after.emits == whole.emits[emitted:]
    assert after.store.digest() == whole.store.digest(), "what is silent is folded all the same"
    both = replay(rng, logs_of(before, logs), recorded_of(before))
    assert both.told() == before.told(), "and the version before is what its own replay gives"


def _barrier(choices: int, recorded: Sequence[Choice], stood: Handover) -> tuple[Handover, Choice | None]:
    start = start_of(processor_of(2))
    return barrier_at(stood, msgspec.structs.replace(start, choices=choices), recorded, 0)


def test_the_position_of_a_handover_is_recorded_where_nothing_else_brings_all_versions_through_it() -> None:
    sources = start_of(processor_of(2)).sources

    def choice(number: int, *applied: int, tick_ms: int | None = None) -> Choice:
        return Choice(number=number, sources=sources, applied=applied, tick_ms=tick_ms)

    def stood(*applied: int, choices: int) -> Handover:
        return Handover(HANDOVER_FORMAT, applied, choices)

    first, tick = choice(0, 1, 1), choice(1, 4, 4, tick_ms=9)
    assert _barrier(0, [first], stood(3, 2, choices=1)) == (stood(3, 2, choices=2), choice(1, 3, 2))
    assert _barrier(0, [first, choice(1, 3, 2)], stood(3, 2, choices=1)) == (stood(3, 2, choices=2), None)
    assert _barrier(0, [first, tick], stood(4, 4, choices=2)) == (stood(4, 4, choices=2), None)
    assert _barrier(0, [first, tick], stood(4, 4, choices=1)) == (stood(4, 4, choices=1), None), "no barrier"
    assert _barrier(0, [], stood(-1, -1, choices=0)) == (stood(-1, -1, choices=0), None)
    with pytest.raises(ChoicesError, match="has obeyed 2 choices, and the topic ends with 1"):
        _barrier(0, [first], stood(4, 4, choices=2))


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"version": 1}, "version 1 has none"),
        ({"emits": (BETWEEN,)}, "no topic of others"),
        ({"emits_from": "now"}, '"beginning" or "handover"'),
        ({"source": Internal("words", Text(), version=1)}, "where it stood"),
    ],
)
def test_a_declaration_that_nothing_could_be_handed_over_to_is_refused(
    wrong: dict[str, Any], why: str
) -> None:
    good: dict[str, Any] = {
        "name": "one",
        "version": 2,
        "source": "in",
        "decode": bytes,
        "fold": fold,
        "row": int,
        "emits": ("out",),
        "emits_from": "handover",
    }
    assert Processor(**good).hands_over
    with pytest.raises(ConfigError, match=why):
        Processor(**{**good, **wrong})


def test_the_note_reads_back_and_one_that_cannot_be_read_is_an_error() -> None:
    note = Handover(HANDOVER_FORMAT, (7, -1), 2)
    assert decode_handover(encode_handover(note)) == note
    assert decode_handover(None) is None
    for value, why in (
        (b"\x01", "malformed"),
        (encode_handover(Handover(2, (1,))), "format 2, this version reads 1"),
    ):
        with pytest.raises(ChangelogError, match=why):
            decode_handover(value)
