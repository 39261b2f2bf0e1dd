"""Values that folds of windows keep in memory with the rows: results are the same with them, without them,
and after they were wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.fold.folding import Folder
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.core.streams.windowing import due
from holdfast.core.streams.windowing import kinds as window_kinds
from holdfast.streams import Hopping, Session, Sliding, Tumbling, Windowed, final, updates
from tests.support.scale import scaled


class Hit(msgspec.Struct, frozen=True, array_like=True):
    number: int
    key: str
    at: int
    bad: bool = False


def number(held: tuple[int, ...] | None, hit: Hit) -> tuple[int, ...]:
    if hit.bad:
        raise ValueError("told to fail")
    return (*(held or ()), hit.number)


def declared(window: Any, *, every: bool) -> Windowed[Hit, Any]:
    return Windowed(
        name="windows",
        source="in",
        decode=msgspec.json.Decoder(Hit).decode,
        by=lambda hit: hit.key,
        time=lambda hit: hit.at,
        window=window,
        fold=number,
        merge=(lambda earlier, later: earlier + later) if isinstance(window, Session) else None,
        row=tuple[int, ...],
        emit=updates("out", every=5) if every else final("out"),
        retention=20,
    )


class FoldedPartition:
    """A partition that is folded in transactions; what it emits and refuses is kept."""

    def __init__(self, processor: Windowed[Hit, Any]) -> None:
        self.processor, self.store = processor, DictStore()
        self.folder: Folder[Any] = Folder(processor, self.store)
        self.emits: list[Any] = []
        self.refused: list[int] = []

    def transact(self, hits: Sequence[Hit], *, aborted: bool = False) -> None:
        values = [msgspec.json.encode(hit) for hit in hits]
        offsets = [hit.number for hit in hits]
        changes = self.folder.fold([Batch(offsets, [1] * len(hits), (values, [0] * len(hits)))])
        assert changes is not None
        if aborted:
            self.folder.rollback()
            return
        self.store.apply(changes.puts)
        self.folder.commit()
        self.emits += changes.emits
        self.refused += [each.offset for each in changes.refused]

    def restart(self) -> None:
        self.folder = Folder(self.processor, self.store, marker=self.folder.marker)

    @property
    def told(self) -> tuple[Any, ...]:
        return [*self.store.everything()], self.emits, self.refused


A_STEP = st.sampled_from([-9, -2, 0, 0, 1, 1, 3, 8, 40])
A_KEY = st.sampled_from(["a", "b", "c"])


@st.composite
def hits(draw: st.DrawFn) -> list[Hit]:
    now, out = draw(st.sampled_from([30, 990, 99_980])), []
    for at in range(draw(st.integers(1, 40))):
        now = max(0, now + draw(A_STEP))
        out.append(Hit(at, draw(A_KEY), now, draw(st.integers(0, 9)) == 0))
    return out


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize(
    "window", [Tumbling(10, grace=4), Hopping(9, every=4, grace=3), Sliding(7, grace=5), Session(4, grace=3)]
)
@settings(deadline=None, max_examples=scaled(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(log=hits(), data=st.data())
def test_values_kept_in_memory_change_nothing(
    window: Any, every: bool, log: list[Hit], data: st.DataObject
) -> None:
    """One worker runs on, with records refused and transactions aborted; another restarts before each record,
    and a third remembers next to nothing.
    """
    processor = declared(window, every=every)
    going, fresh, forgetful = (
        FoldedPartition(processor),
        FoldedPartition(processor),
        FoldedPartition(processor),
    )
    with pytest.MonkeyPatch.context() as patched:
        at = 0
        while at < len(log):
            size = data.draw(st.integers(1, 12))
            if data.draw(st.integers(0, 4)) == 0:
                going.transact(log[at : at + size], aborted=True)
                size = max(1, size - 1)
            going.transact(log[at : at + size])
            at += size
        for hit in log:
            fresh.restart()
            fresh.transact([hit])
        patched.setattr(due, "MOST", 2)
        patched.setattr(due, "FEW", 1)
        patched.setattr(window_kinds, "MOST_KEYS", 2)
        patched.setattr(window_kinds, "MOST_STARTS", 1)
        for first in range(0, len(log), 5):
            forgetful.transact(log[first : first + 5])
    assert going.told == fresh.told
    assert forgetful.told == fresh.told


def test_due_entries_are_looked_up_again_in_stretches_and_never_twice() -> None:
    """Entries lie on both sides of powers of ten, and there are more than are looked up at once."""
    processor = declared(Tumbling(1), every=False)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(due, "MOST", 4)
        patched.setattr(due, "FEW", 3)
        going = FoldedPartition(processor)
        times = [9_990, 9_999, 10_000, 10_001, 99_999, 100_000, 1_000_000, 10**9, 10**12, 10**14]
        offset = 0
        for at in times:
            for key in ("a", "b", "c", "d", "e"):
                going.transact([Hit(offset, key, at)])
                offset += 1
    told = [(emit.key, msgspec.json.decode(emit.value or b"")["start_ms"]) for emit in going.emits]
    assert told == [(f"{key}@{at:016d}", at) for at in times[:-1] for key in ("a", "b", "c", "d", "e")]
