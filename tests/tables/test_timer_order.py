"""Timers in a store are also in order of time, whatever was written, by any version."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.fold.folding import Folder
from holdfast.core.engine.positions import Position
from holdfast.core.engine.state import timers as timers_module
from holdfast.core.engine.state.codec import META, TIMER_KINDS, WAKE, encode_due, row_key
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.errors import ChangelogError
from holdfast.streams import dedupe
from holdfast.tables import store as module
from holdfast.tables.rocks import Budget
from holdfast.tables.store import PartitionStore, StoreStamp
from holdfast.tables.timer_order import ORDERED

BUDGET = Budget.of(8 << 20, 8 << 20)
STAMP = StoreStamp(app="a", processor="p", version=1, partition=0, cluster_id="c", changelog_id="l")
FIRST = (-(1 << 62), "")


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WRITE_ROWS", 5)


def opened(path: Path) -> PartitionStore:
    return PartitionStore(path / "store", STAMP, BUDGET)


def scanned(store: PartitionStore, kind: bytes) -> list[tuple[int, str]]:
    return sorted(
        (int.from_bytes(due, "big", signed=True), key[1:].decode()) for key, due in store.scan(kind)
    )


@pytest.mark.long
def test_the_order_is_that_of_the_timers_whatever_is_written(tmp_path: Path) -> None:
    store, rng = opened(tmp_path), Random(1)
    for offset in range(1, 120):
        keys = rng.sample([f"k{at}" for at in range(30)], rng.randrange(1, 12))
        puts: list[tuple[bytes, bytes | None]] = [
            (kind + key.encode(), rng.choice([None, encode_due(rng.randrange(-50, 1 << 40))]))
            for key in keys
            for kind in TIMER_KINDS
        ]
        puts += [(row_key(key), b"row") for key in keys]
        rng.shuffle(puts)
        store.write(puts, Position((offset,), 1, 1), offset)
        if rng.random() < 0.1:
            store.close()
            store = opened(tmp_path)
        for kind in TIMER_KINDS:
            wanted = scanned(store, kind)
            assert store.timers(kind, FIRST, 100) == wanted
            assert store.timers(kind, FIRST, 3) == wanted[:3]
            if wanted:
                at = rng.randrange(len(wanted))
                assert store.timers(kind, wanted[at], 5) == wanted[at + 1 : at + 6]
    assert all(key[:1] != META for key, _ in store.everything())
    store.close()


@pytest.mark.parametrize("since", [False, True])
def test_timers_of_a_store_that_an_older_version_wrote_last_are_put_in_order(
    tmp_path: Path, since: bool
) -> None:
    """*since*: after a version that had them in order."""
    store = opened(tmp_path)
    puts: list[tuple[bytes, bytes | None]] = [(WAKE + b"%d" % at, encode_due(100 - at)) for at in range(20)]
    store.write(puts, Position((1,), 1, 1), 5)
    if since:
        store._db[WAKE + b"7"] = encode_due(1_000)
        store._db[ORDERED] = b"4"
    else:
        del store._db[ORDERED]
        store._db.delete_range(META + b"due/", META + b"due0")
    store.close()
    store = opened(tmp_path)
    assert store.timers(WAKE, FIRST, 100) == scanned(store, WAKE)
    assert store._db.get(ORDERED) == b"5"
    store.close()


def test_a_timer_that_no_worker_wrote_is_refused_and_the_store_is_not_blamed(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with pytest.raises(ChangelogError, match="a timer of 3 bytes"):
        store.write([(WAKE + b"k", b"abc")], Position((1,), 1, 1), 1)
    assert store.rotten is None
    store.close()


@pytest.mark.long
def test_a_fold_over_a_store_that_holds_few_of_its_timers_is_that_over_one_that_holds_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timers_module, "MOST", 6)
    monkeypatch.setattr(timers_module, "FEW", 3)
    processor = dedupe(name="p", source="in", to="out", key=bytes.decode, ttl=40, decode=bytes)
    store, plain = opened(tmp_path), DictStore()
    rng, now_ms, offset = Random(5), 1_000, 0
    folder: Folder[Any] = Folder(processor, store)
    other: Folder[Any] = Folder(processor, plain)
    for number in range(150):
        values = [b"id%d" % rng.randrange(60) for _ in range(rng.randrange(1, 9))]
        times = [now_ms := now_ms + rng.randrange(6) for _ in values]
        nothing = [None] * len(values)
        batch = Batch(
            range(offset, offset + len(values)), times, (values, nothing, values, [()] * len(values))
        )
        offset += len(values)
        if rng.random() < 0.2:
            folder.fold([batch])
            folder.rollback()
        found, wanted = folder.fold([batch]), other.fold([batch])
        assert found is not None
        assert wanted is not None
        assert sorted(found.puts) == sorted(wanted.puts), number
        assert found.emits == wanted.emits
        store.write(found.puts, found.marker, number + 1)
        folder.commit()
        plain.apply(wanted.puts)
        other.commit()
        if rng.random() < 0.1:
            store.close()
            store = opened(tmp_path)
            folder = Folder(processor, store, marker=folder.marker)
    assert [*store.everything()] == [*plain.everything()]
    store.close()
