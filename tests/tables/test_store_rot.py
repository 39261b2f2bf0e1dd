"""Damaged bytes on disk: found when they are read, and all at the opening after a kill; never served, never a
way to crash.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.core.engine.positions import Position
from holdfast.core.engine.state.codec import row_key
from holdfast.errors import RottenStoreError, StoreError
from holdfast.tables.aside import ROTTEN_KEPT, rotten_stores
from holdfast.tables.rocks import UNLOGGED, Budget
from holdfast.tables.store import PartitionStore, StoreStamp
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT

STAMP = StoreStamp(app="a", processor="p", version=1, partition=0, cluster_id="c", changelog_id="l")
KEYS = [row_key(f"k{number:05d}") for number in range(20_000)]
WHERE = "store"


def opened(folder: Path) -> PartitionStore:
    return PartitionStore(folder / WHERE, STAMP, Budget.of(4 << 20, 4 << 20))


def filled(folder: Path) -> PartitionStore:
    store = opened(folder)
    store.write([(key, key + os.urandom(60)) for key in KEYS], Position((7,), 70, 1), 80, options=UNLOGGED)
    # Else RocksDB may do so after the next opening, and meet damage before any read.
    store._db.compact_range(None, None)
    return store


def flip(folder: Path) -> None:
    """Flip a byte in the middle of the largest table file, as a disk may."""
    path = max((folder / WHERE).glob("*.sst"), key=lambda each: each.stat().st_size)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def left_by_a_kill(folder: Path) -> None:
    """Have a process of its own open the store and be killed."""
    code = f"""
import os, signal
from pathlib import Path
from tests.tables import test_store_rot as module
store = module.opened(Path({str(folder)!r}))
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL


@pytest.mark.process
def test_after_a_kill_a_damaged_store_is_set_aside_and_recreated(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path).close()
    left_by_a_kill(tmp_path)
    flip(tmp_path)
    with caplog.at_level(logging.ERROR):
        store = opened(tmp_path)
    assert "damaged" in caplog.text
    assert "checksum" in caplog.text
    assert (store.marker.applied[0], store.changelog_next, list(store.everything())) == (-1, 0, [])
    assert [path.name for path in rotten_stores(tmp_path / WHERE)] == ["store.rotten-1"]
    assert any((tmp_path / "store.rotten-1").glob("*.sst")), "to be looked at"
    store.close()


@pytest.mark.process
def test_after_a_kill_a_store_without_damage_is_kept(tmp_path: Path) -> None:
    filled(tmp_path).close()
    left_by_a_kill(tmp_path)
    store = opened(tmp_path)
    assert (store.marker.applied[0], len(list(store.everything()))) == (7, len(KEYS))
    store.close()


def test_a_store_closed_in_good_order_is_opened_without_reading_it(tmp_path: Path) -> None:
    """Damage that came while the store was closed shows when it is read."""
    filled(tmp_path).close()
    flip(tmp_path)
    store = opened(tmp_path)
    assert store.marker.applied[0] == 7
    store.close()


@pytest.mark.parametrize("read", ["get", "get_many", "everything", "scan", "page", "pin"])
def test_no_read_takes_a_damaged_block_for_missing_rows(tmp_path: Path, read: str) -> None:
    """rocksdict's own iteration ends at such a block without a word."""
    filled(tmp_path).close()
    flip(tmp_path)
    store = opened(tmp_path)
    told: list[str] = []
    store.on_rotten = told.append
    reads: dict[str, Callable[[], object]] = {
        "get": lambda: [store.get(key) for key in KEYS],
        "get_many": lambda: store.get_many(KEYS),
        "everything": lambda: list(store.everything()),
        "scan": lambda: list(store.scan(row_key(""))),
        "pin": lambda: store.pin().step(b"", len(KEYS) + 9),
        "page": lambda: store.page("", None, len(KEYS) + 1),
    }
    with pytest.raises(RottenStoreError, match="damaged: Corruption"):
        reads[read]()
    assert len(told) == 1
    assert store.rotten is not None
    store.close()
    again = opened(tmp_path)
    assert again.marker.applied[0] == -1, "what was found rotten is not believed at the next opening either"
    again.close()


def test_a_store_found_rotten_is_rebuilt_in_place_and_the_newest_are_kept(tmp_path: Path) -> None:
    store = filled(tmp_path)
    for turn in range(ROTTEN_KEPT + 2):
        store.condemn(f"reason {turn}")
        store.rebuild("reason")
        assert (store.rotten, store.marker.applied[0]) == (None, -1)
        store.write([(KEYS[0], b"%d" % turn)], Position((1,), 1, 1), 2)
    kept = [path.name for path in rotten_stores(tmp_path / WHERE)]
    assert kept == [f"store.rotten-{turn}" for turn in range(3, ROTTEN_KEPT + 3)]
    store.close()


@pytest.mark.process
def test_a_rotten_store_of_a_process_that_was_killed_is_not_believed_again(tmp_path: Path) -> None:
    """Its bytes fit their checksums: only the note shows it."""
    filled(tmp_path).close()
    code = f"""
import os, signal
from pathlib import Path
from tests.tables import test_store_rot as module
store = module.opened(Path({str(tmp_path)!r}))
store.condemn("a row is not the changelog's")
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=DEADLINE_S,
        check=False,
    )
    store = opened(tmp_path)
    assert store.marker.applied[0] == -1
    assert len(rotten_stores(tmp_path / WHERE)) == 1
    store.close()


def test_a_pinned_state_is_that_of_its_moment_and_ends_with_the_store(tmp_path: Path) -> None:
    store = filled(tmp_path)
    pinned = store.pin()
    store.write([(KEYS[0], b"later"), (KEYS[1], None)], Position((8,), 80, 1), 90)
    found = dict(pinned.step(b"\x02", len(KEYS) + 1))
    assert (pinned.applied, pinned.changelog_next, len(found)) == (7, 80, len(KEYS))
    assert found[KEYS[0]] != b"later"
    store.close()
    with pytest.raises(StoreError, match="closed while it was read"):
        pinned.step(b"", 1)
    again = opened(tmp_path)  # no iterator keeps it locked
    assert again.get(KEYS[0]) == b"later"
    again.close()


def test_a_state_pinned_between_the_pieces_of_a_write_is_the_one_before_it(tmp_path: Path) -> None:
    store = filled(tmp_path)
    store.write_pieces([(KEYS[0], b"of the next transaction")], 90)
    pinned = store.pin()
    assert pinned.step(KEYS[0], 1)[0][1] != b"of the next transaction"
    pinned.close()
    assert store.get(KEYS[0]) != b"of the next transaction", "readers share that state"
    store.write([], Position((8,), 80, 1), 90)
    assert store.pin().step(KEYS[0], 1) == [(KEYS[0], b"of the next transaction")]
    store.close()
