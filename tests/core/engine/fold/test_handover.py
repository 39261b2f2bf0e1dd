"""A version that is silent up to where its predecessor stood: what both emit together is what one alone emits, wherever they change hands and
however the log is cut into transactions.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.declared.processor import Emit, Processor
from holdfast.core.engine.declared.serdes import Text
from holdfast.core.engine.declared.sources import Source
from holdfast.core.engine.declared.streams import Internal
from holdfast.core.engine.fold.folding import Folder
from holdfast.core.engine.merge.choices import VectorMarker, decode_choice
from holdfast.core.engine.merge.merging import Merger
from holdfast.core.engine.merge.merging_folder import MergingFolder
from holdfast.core.engine.state.handover import HANDOVER_FORMAT, Handover, decode_handover, encode_handover
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.errors import ChangelogError, ConfigError
from tests.choices.world import Journal, MemoryStore, Worker, recorded_of, replay, written_log

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
            out += [(changes.marker.applied, emit) for emit in changes.emits]
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


class Patient(Merger):
    """Looks at the clock once all is folded that its predecessor had, as workers do."""

    folder: MergingFolder[Any]
    handover: Handover

    def tick(self, now_ms: int) -> None:
        if self.folder.marker.applied[0] >= self.handover.applied[0]:
            super().tick(now_ms)


class Successor(Worker):
    """Owners of a partition in the version that is silent up to *handover*."""

    handover: Handover

    def resume(self, store: MemoryStore, marker: VectorMarker | None) -> None:
        super().resume(store, marker)
        self.folder = MergingFolder(
            self.processor,
            store,
            marker=marker,
            cache_rows=self.rng.choice((2, 1000)),
            handover=self.handover,
        )
        self.merger = Patient(self.folder.marker, map(decode_choice, list(self.journal.choices)))
        self.merger.folder, self.merger.handover = self.folder, self.handover


@pytest.mark.parametrize("seed", range(150))
def test_of_one_source_with_choices_both_versions_together_emit_what_one_alone_does(seed: int) -> None:
    """With timers of all clocks, barriers and ticks that owners decide, which die, and are cut anywhere."""
    rng = Random(seed)
    logs = [written_log(rng)]
    before = Journal()
    Worker(rng, logs, before).run(turns=rng.randrange(12))
    stood = before.position
    emitted, after = len(before.emits), Journal(choices=before.choices)
    Successor.handover = (
        Handover(HANDOVER_FORMAT, (-1,))
        if stood is None
        else Handover(HANDOVER_FORMAT, stood.applied, stood.choices)
    )
    Successor(rng, logs, after, version=2).run()
    whole = replay(rng, logs, recorded_of(after), version=2)
    assert whole.emits[:emitted] == before.emits
    assert after.emits == whole.emits[emitted:]
    assert after.store.digest() == whole.store.digest(), "what is silent is folded all the same"


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"version": 1}, "version 1 has none"),
        ({"emits": (BETWEEN,)}, "no topic of others"),
        ({"emits_from": "now"}, '"beginning" or "handover"'),
        (
            {
                "source": "",
                "decode": None,
                "fold": None,
                "on": {Source("a", Text()): fold, Source("b", Text()): fold},
            },
            "with 2 sources",
        ),
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
