"""The store of a worker's copy of a global: what it holds, and that nothing of it outlives the worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import RLock

import pytest

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.declared.global_tables import Global
from holdfast.core.engine.declared.serdes import Text
from holdfast.core.engine.declared.sources import Source
from holdfast.core.engine.merge.global_copies import GlobalCopy
from holdfast.core.engine.state.codec import ROW
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.core.engine.state.rows import Rows
from holdfast.errors import StoreError
from holdfast.tables.global_store import GlobalStore
from holdfast.tables.rocks import Budget


def keep(rows: Rows[str], event: str, at_ms: int) -> None:
    key, _, value = event.partition(" ")
    if value:
        rows[key] = value
    elif key in rows:
        del rows[key]


NAMES: Global[str] = Global("names", Source("names", Text()), keep, row=str)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[GlobalStore]:
    """Give an empty store."""
    made = GlobalStore(tmp_path / "globals" / "names", Budget.of(1 << 20, 1 << 20))
    yield made
    made.destroy()


def batch(first: int, *events: str) -> Batch:
    offsets = range(first, first + len(events))
    return Batch(offsets, [*offsets], ([event.encode() for event in events],))


def test_a_view_shows_its_rows_in_a_store_as_in_memory(store: GlobalStore) -> None:
    found = []
    for each in (store, DictStore()):
        copy = GlobalCopy(NAMES, each, lock=RLock())
        copy.apply(0, batch(0, "a 1", "b 2", "c 3"))
        copy.apply(2, batch(0, "d 4"))
        before = copy.view()
        scan = before.scan(ROW)
        first = next(scan)
        copy.apply(0, batch(3, "b", "a 9", "e 5"))
        copy.apply(1, batch(0, "f 6"))
        now = copy.view()
        found.append(
            (
                [first, *scan] if each is store else [*before.scan(ROW)],
                [*before.scan(ROW)],
                [*now.scan(ROW)],
                [before.get(ROW + key) for key in (b"a", b"b", b"d", b"e", b"f")],
                [now.get(ROW + key) for key in (b"a", b"b", b"d", b"e", b"f")],
                (before.vector, now.vector),
            )
        )
    assert found[0] == found[1]
    assert found[0][5] == ((2, -1, 0), (5, 0, 0))
    assert (
        found[0][0]
        == found[0][1]
        == [(ROW + bytes([at]), b"\x01\xa1" + bytes([n])) for at, n in zip(b"abcd", b"1234", strict=True)]
    )


def test_a_view_keeps_nothing_once_it_is_let_go(store: GlobalStore) -> None:
    copy = GlobalCopy(NAMES, store, lock=RLock())
    copy.apply(0, batch(0, "a 1"))
    before = copy.view()
    assert copy.view() is before
    copy.apply(0, batch(1, "a 2", "a 3"))
    assert len(before.undone) == 1
    del before
    copy.apply(0, batch(3, "a 4"))
    assert not [*copy._views]


def test_nothing_is_left_of_an_earlier_worker(tmp_path: Path) -> None:
    budget, path = Budget.of(1 << 20, 1 << 20), tmp_path / "globals" / "names"
    first = GlobalStore(path, budget)
    first.apply([(b"a", b"1"), (b"b", None)])
    assert path.stat().st_mode & 0o077 == 0
    first._db.close()
    second = GlobalStore(path, budget)
    assert second.get(b"a") is None
    second.destroy()
    assert not path.exists()
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="check the disk"):
        GlobalStore(tmp_path / "file" / "names", budget)
