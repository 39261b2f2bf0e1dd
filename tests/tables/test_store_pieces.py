"""A large transaction goes to the store in pieces: readers see all of it or nothing, and a crash in between
is noticed and cured.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.engine.positions import Position
from holdfast.core.engine.state.codec import row_key
from holdfast.errors import StoreError
from holdfast.tables import rocks
from holdfast.tables import store as module
from holdfast.tables.rocks import Budget
from holdfast.tables.store import PartitionStore, StoreStamp

BUDGET = Budget.of(8 << 20, 8 << 20)
STAMP = StoreStamp(app="a", processor="p", version=1, partition=0, cluster_id="c", changelog_id="l")
KEYS = [row_key(f"k{number:02d}") for number in range(10)]


def rows(value: bytes, keys: list[bytes] = KEYS) -> list[tuple[bytes, bytes | None]]:
    return [(key, value) for key in keys]


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WRITE_ROWS", 3)


def opened(path: Path) -> PartitionStore:
    return PartitionStore(path / "store", STAMP, BUDGET)


def at_each_piece(monkeypatch: pytest.MonkeyPatch, act: Callable[[int], None]) -> None:
    plain, seen = rocks.batch_of, [0]

    def watched(*args: Any) -> Any:
        act(seen[0])
        seen[0] += 1
        return plain(*args)

    monkeypatch.setattr(module, "batch_of", watched)


def test_readers_between_the_pieces_see_the_state_before_in_every_kind_of_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path)
    store.write(rows(b"old", KEYS[:9]), Position((1,), 1, 1), 10)
    seen: list[tuple[Any, ...]] = []

    def look(piece: int) -> None:
        scanned = [value for _, value in store.page("", None, 100)]
        everything = [value for _, value in store.everything()]
        seen.append(
            (
                store.get(KEYS[0]),
                store.get(KEYS[9]),
                store.get_many([KEYS[8], KEYS[9]]),
                scanned,
                everything,
                store.marker.applied[0],
            )
        )

    at_each_piece(monkeypatch, look)
    store.write(rows(b"new"), Position((2,), 2, 1), 20)

    assert seen == [(b"old", None, [b"old", None], [b"old"] * 9, [b"old"] * 9, 1)] * 4
    assert store.get_many(KEYS) == [b"new"] * 10
    assert (store.marker.applied[0], store.changelog_next, store.whole) == (2, 20, True)
    store.close()


class Meanwhile:
    """A database in which, just before it is read, a writer gets further than the reader knows."""

    def __init__(self, db: Any, act: Callable[[], None]) -> None:
        self._db, self._act = db, [act]

    def __getattr__(self, name: str) -> Any:
        if name in ("get", "items") and self._act:
            self._act.pop()()
        return getattr(self._db, name)


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize(
    "read",
    [lambda store: store.get_many(KEYS), lambda store: [value for _, value in store.page("", None, 100)]],
    ids=["many", "scan"],
)
def test_a_read_that_meets_the_beginning_of_a_write_is_of_one_state(
    tmp_path: Path, read: Callable[[PartitionStore], list[bytes]], closed: bool
) -> None:
    store = opened(tmp_path)
    store.write(rows(b"old"), Position((1,), 1, 1), 10)

    def meanwhile() -> None:
        store.write_pieces(rows(b"new", KEYS[:4]), 15)
        if closed:
            store.write(rows(b"new", KEYS[4:]), Position((2,), 2, 1), 20)

    db = store._db
    store._db = Meanwhile(db, meanwhile)  # type: ignore[assignment]
    assert read(store) == [b"new" if closed else b"old"] * 10
    assert store.readable
    store._db = db
    store.close()


def test_a_write_cut_between_its_pieces_is_found_when_the_store_is_opened_and_cured_by_the_changelog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path)
    store.write(rows(b"old"), Position((1,), 1, 1), 10)

    def fail(piece: int) -> None:
        if piece == 2:
            raise OSError("cut")

    with monkeypatch.context() as cut:
        at_each_piece(cut, fail)
        with pytest.raises(StoreError):
            store.write(rows(b"new"), Position((3,), 3, 1), 30)
    assert not store.whole
    assert store.get(KEYS[0]) == b"old"
    store.close()

    again = opened(tmp_path)
    assert (again.marker.applied[0], again.changelog_next, again.whole) == (1, 10, False)
    assert {again.get(key) for key in KEYS} == {b"old", b"new"}, (
        "the cut left a mixture, else this test shows nothing"
    )
    # The changelog may come in smaller steps than it was written in: not whole before the last of them.
    again.write(rows(b"mid", KEYS[:2]), Position((2,), 2, 1), 20)
    assert not again.whole
    again.write(rows(b"new"), Position((3,), 3, 1), 30)
    assert again.whole
    again.close()
    assert opened(tmp_path).whole


def test_a_store_rebuilt_after_a_cut_write_is_empty_to_its_readers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path)
    store.write(rows(b"old"), Position((1,), 1, 1), 10)

    def fail(piece: int) -> None:
        if piece == 2:
            raise OSError("cut")

    with monkeypatch.context() as cut:
        at_each_piece(cut, fail)
        with pytest.raises(StoreError):
            store.write(rows(b"new"), Position((2,), 2, 1), 20)
    store.rebuild("told to")
    assert (store.get(KEYS[0]), list(store.everything()), store.whole) == (None, [], True)
    store.close()


def test_a_small_transaction_is_one_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path)
    pieces: list[int] = []
    at_each_piece(monkeypatch, pieces.append)
    for size in (0, 1, 3):
        store.write(rows(b"v", KEYS[:size]), Position((size,), 1, 1), size)
    assert pieces == [0, 1, 2]
    store.close()


def test_deletions_are_written_with_their_piece(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.write(rows(b"v"), Position((1,), 1, 1), 1)
    store.write([(key, None) for key in reversed(KEYS)], Position((2,), 1, 1), 2)
    assert list(store.everything()) == []
    store.close()
