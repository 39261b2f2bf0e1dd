"""The walk of a store beside its changelog: every difference is found, and what changed since the state
was pinned is none.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import rocksdict as R

from holdfast.core.engine.codec import APPLIED, Marker, row_key, wake_key
from holdfast.tables.checking import _LATER, RECORDS_PER_S, CheckStopped, _compare, _Piece
from holdfast.tables.rocks import Budget
from holdfast.tables.store import PartitionStore, StoreStamp

BUDGET = Budget.of(4 << 20, 4 << 20)
STAMP = StoreStamp(app="a", processor="p", version=1, partition=0, cluster_id="c", changelog_id="l")
Rows = dict[bytes, bytes]
KEYS = [row_key(f"k{number:04d}") for number in range(1_500)]
RIGHT: Rows = {**{key: b"v" + key for key in KEYS}, wake_key("k0001"): b"12345678"}


def compared(
    folder: Path, store_rows: Rows, changelog_rows: Rows, later: frozenset[bytes] = frozenset()
) -> str | None:
    """Compare a store with what its changelog holds before the store's offset; *later* changed after it."""
    store = PartitionStore(folder / "store", STAMP, BUDGET)
    store.write(store_rows.items(), Marker(9, 90, 1), 10)
    scratch = R.Rdict(str(folder / "scratch"), BUDGET.options())
    try:
        for key, value in changelog_rows.items():
            scratch[key] = value
        for key in later:
            scratch[_LATER + key] = b""
        state = store.pin()
        store.write([(KEYS[5], b"of a later transaction"), (KEYS[6], None)], Marker(10, 100, 1), 20)
        return _compare(state, scratch, threading.Event())
    finally:
        scratch.close()
        store.close()


def test_a_store_that_is_its_changelog_is_sound(tmp_path: Path) -> None:
    assert compared(tmp_path, RIGHT, RIGHT) is None


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ({**RIGHT, KEYS[700]: b"other"}, "row 'k0700' is not that of its changelog"),
        ({key: value for key, value in RIGHT.items() if key != KEYS[0]}, "row 'k0000' is missing"),
        ({key: value for key, value in RIGHT.items() if key != KEYS[-1]}, "row 'k1499' is missing"),
        ({**RIGHT, row_key("z"): b"v"}, "row 'z' is not in its changelog"),
        ({**RIGHT, wake_key("k0001"): b"87654321"}, "timer 'k0001' is not that of its changelog"),
        ({}, "timer 'k0001' is missing"),
        ({**RIGHT, KEYS[3]: b"one", KEYS[700]: b"two"}, "row 'k0003' is not that of its changelog"),
    ],
)
def test_the_first_difference_is_named(tmp_path: Path, store: Rows, said: str) -> None:
    assert compared(tmp_path, store, RIGHT) == said


def test_rows_that_changed_since_are_left_out_whatever_a_compaction_made_of_them(tmp_path: Path) -> None:
    compacted = {key: value for key, value in RIGHT.items() if key not in (KEYS[5], KEYS[6], KEYS[-1])}
    assert compared(tmp_path, RIGHT, compacted, frozenset({KEYS[5], KEYS[6], KEYS[-1]})) is None


def test_a_row_that_did_not_change_since_is_found_beside_those_that_did(tmp_path: Path) -> None:
    compacted = {key: value for key, value in RIGHT.items() if key != KEYS[5]}
    assert (
        compared(tmp_path, {**RIGHT, KEYS[900]: b"other"}, compacted, frozenset({KEYS[5]}))
        == "row 'k0900' is not that of its changelog"
    )


def test_a_walk_that_is_told_to_stop_says_nothing_of_the_store(tmp_path: Path) -> None:
    store = PartitionStore(tmp_path / "store", STAMP, BUDGET)
    store.write(RIGHT.items(), Marker(9, 90, 1), 10)
    scratch = R.Rdict(str(tmp_path / "scratch"), BUDGET.options())
    for key, value in RIGHT.items():
        scratch[key] = value
    stop = threading.Event()
    stop.set()
    with pytest.raises(CheckStopped):
        _compare(store.pin(), scratch, stop)
    scratch.close()
    store.close()


class Message:
    """A changelog record."""

    def __init__(self, key: bytes | None, value: bytes | None, offset: int) -> None:
        self.key, self.value, self.offset = (lambda: key), (lambda: value), (lambda: offset)

    def error(self) -> None:
        return None


def test_what_lies_before_the_state_is_applied_and_what_lies_behind_it_is_only_noted(tmp_path: Path) -> None:
    scratch = R.Rdict(str(tmp_path / "scratch"), BUDGET.options())
    try:
        scratch[KEYS[1]] = b"deleted since"
        piece = _Piece(upto=10)
        for record in (
            Message(KEYS[0], b"one", 7),
            Message(KEYS[1], None, 8),
            Message(APPLIED, b"marker", 9),
            Message(KEYS[2], b"later", 10),
        ):
            piece.take(record, "changelog")  # type: ignore[arg-type]
        scratch.write(piece.batch)
        assert (piece.records, piece.reached) == (4, 10)
        assert sorted(scratch.keys()) == sorted([KEYS[0], _LATER + KEYS[2]])
        assert scratch[KEYS[0]] == b"one"
        assert piece.least_s >= 4 / RECORDS_PER_S
    finally:
        scratch.close()
