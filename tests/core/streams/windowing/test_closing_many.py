"""Much that is due at one record: it is done in parts, and beyond a limit by the records that follow; the
state stays that of the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.serdes import Json
from holdfast.core.engine.declared.sources import Source
from holdfast.core.engine.declared.streams import Stream
from holdfast.core.engine.emits import Emit
from holdfast.core.engine.fold import stepping
from holdfast.core.engine.fold.folding import Changes, Folder
from holdfast.core.engine.state.codec import digest
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.core.engine.state.rows import Rows
from holdfast.core.streams.windowing import due
from holdfast.streams import Hopping, JoinWithin, Session, Sliding, Tumbling, Windowed, dedupe, final
from holdfast.testing import Topology
from tests.core.streams.windowing.test_windows_remembered import FoldedPartition, Hit, declared, hits
from tests.support.scale import scaled

KINDS = [Tumbling(10, grace=4), Hopping(9, every=4, grace=3), Sliding(7, grace=5), Session(4, grace=3)]
WAITING = due.LIMIT_DUE


@contextmanager
def at_once(parts: int, limit: int = WAITING) -> Iterator[None]:
    """Have *parts* of the due entries done without a pause, and *limit* at one record."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(due, "AT_ONCE", parts)
        patched.setattr(due, "LIMIT_DUE", limit)
        patched.setattr(due.take_due, "__defaults__", (parts,))
        yield


class Noted(FoldedPartition):
    """Keeps what each transaction writes, byte for byte, in the order of keys."""

    def __init__(self, processor: Any) -> None:
        super().__init__(processor)
        self.written: list[Any] = []

    def transact(self, hits: Sequence[Hit], *, aborted: bool = False) -> None:
        before = len(self.emits)
        folded = self.folder.fold

        def noting(batches: Any) -> Any:
            changes = folded(batches)
            assert changes is not None
            self.written.append(sorted(changes.stored(), key=lambda each: each[0]))
            return changes

        self.folder.fold = noting  # type: ignore[method-assign]
        try:
            super().transact(hits, aborted=aborted)
        finally:
            del self.folder.fold
        self.written.append(self.emits[before:])


# -- in parts


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("window", KINDS)
@settings(deadline=None, max_examples=scaled(10), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(log=hits())
def test_parts_change_no_record_that_is_written(window: Any, every: bool, log: list[Hit]) -> None:
    """With records that are refused, so that transactions are folded with care too."""
    processor = declared(window, every=every)
    whole, parted = Noted(processor), Noted(processor)
    for first in range(0, len(log), 7):
        whole.transact(log[first : first + 7])
    with at_once(2):
        for first in range(0, len(log), 7):
            parted.transact(log[first : first + 7])
    assert parted.written == whole.written
    assert parted.refused == whole.refused


# -- beyond the limit


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("window", KINDS)
@settings(deadline=None, max_examples=scaled(10), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(log=hits(), data=st.data())
def test_the_rest_for_later_records_depends_on_the_log_alone(
    window: Any, every: bool, log: list[Hit], data: st.DataObject
) -> None:
    processor = declared(window, every=every)
    going, fresh = FoldedPartition(processor), FoldedPartition(processor)
    with at_once(1, 2):
        at = 0
        while at < len(log):
            size = data.draw(st.integers(1, 12))
            if data.draw(st.integers(0, 4)) == 0:
                going.transact(log[at : at + size], aborted=True)
            going.transact(log[at : at + size])
            at += size
        for hit in log:
            fresh.restart()
            fresh.transact([hit])
    assert going.told == fresh.told


@pytest.mark.parametrize("window", KINDS)
@settings(deadline=None, max_examples=scaled(10), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(log=hits())
def test_all_is_done_in_the_end_and_in_the_same_order(window: Any, log: list[Hit]) -> None:
    """Final results are those of a fold without a limit, and so is the state once nothing is left."""
    processor = declared(window, every=False)
    unlimited, limited = FoldedPartition(processor), FoldedPartition(processor)
    end = max(hit.at for hit in log) + 1_000
    more = [Hit(len(log) + at, "end", end, True) for at in range(200)]
    tail = [Hit(len(log) + 200, "end", end + 1)]
    unlimited.transact([*log, *more, *tail])
    with at_once(1, 2):
        limited.transact(log)
        for each in [*more, *tail]:
            limited.transact([msgspec.structs.replace(each, bad=False)])
    clean = FoldedPartition(processor)
    clean.transact([*log, *(msgspec.structs.replace(each, bad=False) for each in more), *tail])
    assert limited.emits == clean.emits
    assert digest(limited.store.everything()) == digest(clean.store.everything())


def test_a_record_does_no_more_than_the_limit_and_each_later_one_continues() -> None:
    partition = FoldedPartition(declared(Tumbling(10), every=False))
    for at in range(20):
        partition.transact([Hit(at, f"key-{at:02d}", 5)])
    told = []
    with at_once(3, 8):
        for at in range(20, 24):
            partition.transact([Hit(at, "next", 20)])
            told.append(len(partition.emits))
    assert told == [8, 16, 20, 20]
    assert [emit.key for emit in partition.emits] == [f"key-{at:02d}@{0:016d}" for at in range(20)]


def test_a_tick_does_no_more_than_the_limit_and_the_next_continues() -> None:
    views = Source("views", Json(tuple[str, int]), time=lambda view: view[1])
    windows = Windowed(
        name="windows",
        source=views,
        by=lambda view: view[0],
        window=Tumbling(10),
        fold=lambda count, view: (count or 0) + 1,
        row=int,
        emit=final("out"),
        idle="1s",
        retention=0,
    )
    out = Source("out", Json(Any))
    with at_once(2, 5), Topology([windows], partitions=1, start_ms=1_000_000) as topology:
        for at in range(12):
            topology.pipe(views, (f"key-{at:02d}", 5), key="k")
        counts = []
        for at in range(1, 7):
            topology.tick(1_000_000 + 2_000 * at)
            counts.append(len([*topology.read(out.topic)]))
    assert sum(counts) == 12
    assert max(counts) <= 5


# -- without a stall


def many(count: int) -> tuple[Folder[Any], DictStore]:
    """Return a partition with *count* open windows."""
    store = DictStore()
    folder: Folder[Any] = Folder(declared(Tumbling(10), every=False), store)
    fold(folder, store, [Hit(at, f"key-{at:05d}", 5) for at in range(count)])
    return folder, store


def fold(
    folder: Folder[Any], store: DictStore, log: Sequence[Hit], *, early: bool = False
) -> tuple[Changes, int]:
    """Fold *log* as one transaction, *early* ended as soon as it changes much; return what it writes, and how
    many steps it took.
    """
    values = [msgspec.json.encode(hit) for hit in log]
    steps = 0
    for _ in folder.steps([Batch([hit.number for hit in log], [1] * len(log), (values, [0] * len(log)))]):
        steps += 1
        if early and folder.changing > 50:
            folder.close_early()
    changes = folder.changes
    assert changes is not None
    store.apply(changes.puts)
    folder.commit()
    return changes, steps


@pytest.mark.parametrize("careful", [False, True])
def test_a_transaction_that_ends_early_ends_after_a_record_that_is_begun(careful: bool) -> None:
    folder, store = many(3_000)
    bad = [Hit(3_000, "bad", 5, True)] if careful else []
    first = len(bad) + 3_000
    changes, steps = fold(
        folder, store, [*bad, Hit(first, "last", 50), Hit(first + 1, "more", 50)], early=True
    )
    assert steps >= 3_000 // due.AT_ONCE
    assert len(changes.emits) == 3_000
    assert changes.marker.applied[0] == first
    assert len(changes.refused) == careful


def test_timers_of_one_record_fire_in_parts_and_with_it() -> None:
    ids: Processor[Any, Any] = dedupe(name="ids", source="in", to="out", key=str, decode=bytes.decode, ttl=10)
    stores = DictStore(), DictStore()
    with pytest.MonkeyPatch.context() as patched:
        for store, parts in zip(stores, (1_000_000, 7), strict=True):
            patched.setattr(stepping, "WAKE_AT_ONCE", parts)
            folder: Folder[Any] = Folder(ids, store)
            applied = []
            for first, count, at_ms in ((0, 100, 1), (100, 3, 11)):
                values = [b"%d" % at for at in range(first, first + count)]
                left = Batch(
                    range(first, first + count),
                    [at_ms] * count,
                    (values, [None] * count, values, [()] * count),
                )
                while left.offsets:
                    for _ in folder.steps([left]):
                        folder.close_early()
                    changes = folder.changes
                    assert changes is not None
                    assert changes.records
                    store.apply(changes.puts)
                    folder.commit()
                    applied.append(folder.marker.applied[0])
                    left = left.after(folder.marker.applied[0])
            assert applied[-1] == 102
    assert [*stores[0].everything()] == [*stores[1].everything()]
    assert sum(1 for _ in stores[0].scan(b"\x02")) == 3


def test_event_timers_of_one_record_fire_in_parts_and_before_its_fold() -> None:
    def fold(rows: Rows[Any], event: int, at_ms: int) -> list[Emit]:
        rows[f"{event}"] = event
        rows.wake_at(f"{event}", 1_000, clock="event")
        return [Emit("out", "folded", b"%d" % event)]

    timed: Processor[Any, Any] = Processor(
        name="timed", source="in", decode=int, time=lambda event: event, fold=fold, row=int, emits=("out",),
        on_event=lambda rows, key, at_ms: [Emit("out", key, b"fired")],
    )  # fmt: skip
    found = []
    for parts in (1_000_000, 7):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(stepping, "WAKE_AT_ONCE", parts)
            store = DictStore()
            folder: Folder[Any] = Folder(timed, store)
            values = [b"%d" % at for at in range(100)] + [b"2000", b"3000"]
            steps = sum(1 for _ in folder.steps([Batch(range(102), [1] * 102, (values,))]))
            changes = folder.changes
            assert changes is not None
            assert not changes.refused
            store.apply(changes.puts)
            found.append((changes.emits, [*store.everything()], steps))
    (emits, rows, few), (parted, same_rows, many_steps) = found
    assert (parted, same_rows) == (emits, rows)
    assert many_steps > few + 100 // 7
    assert [each.value for each in emits[100:202]] == [b"fired"] * 100 + [b"2000", b"fired"]


def test_lone_partners_are_sent_in_parts_and_as_before() -> None:
    left, right = (Source(name, Json(int), time=lambda at: at) for name in ("left", "right"))
    pairs = JoinWithin(
        name="pairs", left=left, right=right, join=lambda one, other: [one, other], to=Stream("out", Json(list[int | None])), before=5,  # noqa: E501
        how="left",
    )  # fmt: skip
    found = []
    for parts in (1_000, 2):
        with at_once(parts), Topology([pairs], partitions=1) as topology:
            for at in range(20):
                topology.pipe(left, 1, key=f"k{at:02d}")
            topology.pipe(left, 500, key="last")
            topology.pipe(right, 500, key="other")
            found.append(([*topology.read("out")], topology.table("pairs")))
    assert found[0] == found[1]
    assert len(found[0][0]) == 20
