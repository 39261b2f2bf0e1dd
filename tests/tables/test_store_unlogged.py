"""A restore writes without RocksDB's log: whatever a crash takes, the rest is an earlier state, whole, and
nothing later follows a hole.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.core.engine.positions import Position
from holdfast.core.engine.state.codec import row_key
from holdfast.tables.rocks import LOGGED, UNLOGGED, Budget
from holdfast.tables.store import PartitionStore, StoreStamp
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT

STAMP = StoreStamp(app="a", processor="p", version=1, partition=0, cluster_id="c", changelog_id="l")
KEYS = [row_key(f"k{number:04d}") for number in range(2_000)]


def opened(path: Path) -> PartitionStore:
    return PartitionStore(path / "store", STAMP, Budget.of(4 << 20, 4 << 20))


def transaction(store: PartitionStore, number: int, *, logged: bool) -> None:
    """Write every row with the transaction's number: rows of two numbers are two transactions mixed."""
    rows: list[tuple[bytes, bytes | None]] = [(key, b"%06d" % number + bytes(200)) for key in KEYS]
    store.write(rows, Position((number,), number, 1), number * 10, options=LOGGED if logged else UNLOGGED)


def restore(store: PartitionStore, transactions: int) -> None:
    for number in range(1, transactions + 1):
        transaction(store, number, logged=False)


def restore_and_go_on(store: PartitionStore, transactions: int) -> None:
    """Restore, then change half of the rows as a worker does."""
    restore(store, transactions)
    half: list[tuple[bytes, bytes | None]] = [(key, b"%06d" % transactions + b"later") for key in KEYS[::2]]
    store.write(half, Position((transactions,), transactions, 1), transactions * 10)


def restore_and_touch(store: PartitionStore, transactions: int) -> None:
    restore(store, transactions)
    store.touch(1_000)


def killed_after(path: Path, work: Callable[[PartitionStore, int], None], transactions: int) -> None:
    """Do *work* on a store in a process of its own that is killed then."""
    command = [sys.executable, "-P", "-c", _CHILD, str(path), work.__name__, str(transactions)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == -signal.SIGKILL


_CHILD = """
import os, signal, sys
from pathlib import Path
from tests.tables import test_store_unlogged as module
store = module.opened(Path(sys.argv[1]))  # kept: RocksDB flushes a store that is dropped
getattr(module, sys.argv[2])(store, int(sys.argv[3]))
os.kill(os.getpid(), signal.SIGKILL)
"""


def state(path: Path) -> int:
    """Return the transaction whose rows the store holds, all of them and no other's; -1 for none."""
    store = opened(path)
    try:
        numbers = {int(value[:6]) for _, value in store.everything()}
        (applied,) = store.marker.applied
        assert numbers == ({applied} if applied >= 0 else set()), "not one transaction's rows"
        assert store.whole
        assert store.changelog_next == max(0, applied * 10)
        return applied
    finally:
        store.close()


@pytest.mark.parametrize("transactions", [1, 30])
@pytest.mark.process
def test_a_process_killed_while_it_restores_leaves_an_earlier_state(
    tmp_path: Path, transactions: int
) -> None:
    killed_after(tmp_path, restore, transactions)
    assert state(tmp_path) <= transactions


@pytest.mark.parametrize("transactions", [1, 30])
@pytest.mark.process
def test_a_transaction_after_a_restore_is_there_with_all_before_it(tmp_path: Path, transactions: int) -> None:
    """Its rows are half of all: without the flush before it they would be among older ones, or alone."""
    killed_after(tmp_path, restore_and_go_on, transactions)
    assert state(tmp_path) == transactions
    store = opened(tmp_path)
    assert len(list(store.everything())) == len(KEYS)
    store.close()


@pytest.mark.process
def test_the_note_that_a_restored_store_is_current_is_not_older_than_its_rows(tmp_path: Path) -> None:
    killed_after(tmp_path, restore_and_touch, 5)
    assert state(tmp_path) == 5


def test_a_closed_store_has_all_that_was_restored(tmp_path: Path) -> None:
    store = opened(tmp_path)
    transaction(store, 3, logged=False)
    store.close()
    assert state(tmp_path) == 3
