"""Millions of live timers: de-duplication with a time to live over a store on disk, `python -P -m
bench.timers --ids 1000000`. Without a broker.

What folding so many ids stores, a row and a timer of each, is written as a restore or a standby writes it.
Then another process, which has done nothing else, takes the store over as the owner of a standby does: it
opens a folder over it and folds a transaction that makes the first timers fire. Its memory is the highest
resident size less what it was before the store was opened.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.fold.folding import Folder
from holdfast.core.engine.positions import Position
from holdfast.core.engine.state.codec import ROW, WAKE, RowCodec, encode_due
from holdfast.streams import dedupe
from holdfast.tables.rocks import UNLOGGED, Budget
from holdfast.tables.store import PartitionStore, StoreStamp

TRANSACTION, TTL_MS, START_MS = 20_000, 86_400_000, 1_700_000_000_000
CACHE_BYTES, BUFFER_BYTES = 64 << 20, 64 << 20
STAMP = StoreStamp(app="bench", processor="seen", version=1, partition=0, cluster_id="c", changelog_id="l")
SEEN = dedupe(name="seen", source="in", to="out", key=bytes.decode, ttl=TTL_MS, decode=bytes)


def batch_at(first: int, size: int, at_ms: int) -> Batch:
    values = [b"id-%012d" % (number * 7_919_317 % 1_000_000_007) for number in range(first, first + size)]
    nothing: list[Any] = [None] * size
    return Batch(
        range(first, first + size),
        [at_ms + at // 20 for at in range(size)],
        (values, nothing, values, [()] * size),
    )


def opened(folder: Path) -> PartitionStore:
    return PartitionStore(folder / "store", STAMP, Budget.of(CACHE_BYTES, BUFFER_BYTES))


def transact(store: PartitionStore, folder: Folder[Any], batch: Batch) -> int:
    changes = folder.fold([batch])
    assert changes is not None
    store.write(changes.puts, changes.marker, changes.marker.applied[0] + 1, options=UNLOGGED)
    folder.commit()
    return len(changes.puts)


def fill(path: Path, ids: int) -> None:
    store, row = opened(path), RowCodec[int](int).encode
    began_s = time.perf_counter()
    for first in range(0, ids, TRANSACTION):
        batch = batch_at(first, TRANSACTION, START_MS + first // 20)
        puts: list[tuple[bytes, bytes | None]] = []
        for value, at_ms in zip(batch.columns[0], batch.times_ms, strict=True):
            puts.append((ROW + value, row(at_ms)))
            puts.append((WAKE + value, encode_due(at_ms + TTL_MS)))
        last = first + TRANSACTION - 1
        store.write(puts, Position((last,), batch.times_ms[-1], 1), last + 1, options=UNLOGGED)
    took_s = time.perf_counter() - began_s
    print(
        f"{ids:,d} rows and timers are stored, {ids / took_s:,.0f}/s; {resident_mb():.0f} MB resident at"
        " most",
        flush=True,
    )
    store.close()


def resident_mb() -> float:
    """Return the highest resident size of this process: of what ran before an exec, `getrusage` would tell
    too.
    """
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def take_over(path: Path, ids: int) -> None:
    before_mb, store = resident_mb(), opened(path)
    began_s = time.perf_counter()
    folder: Folder[Any] = Folder(SEEN, store, marker=Position((ids - 1,), START_MS + ids // 20, SEEN.version))
    ready_s = time.perf_counter() - began_s
    puts = transact(store, folder, batch_at(ids, TRANSACTION, START_MS + TTL_MS))
    folded_s = time.perf_counter() - began_s
    fired = (puts - 2 * TRANSACTION) // 2
    print(
        f"taken over in {ready_s:.2f} s; its first transaction, of {TRANSACTION:,d} records and {fired:,d}"
        f" timers, is stored after {folded_s:.2f} s; {resident_mb() - before_mb:.0f} MB more than before"
    )
    store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ids", type=int, default=1_000_000)
    parser.add_argument("--store", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.store is not None:
        take_over(asked.store, asked.ids)
        return
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder), asked.ids)
        again = [sys.executable, "-P", "-m", "bench.timers", "--ids", str(asked.ids), "--store", folder]
        subprocess.run(again, check=True)


if __name__ == "__main__":
    main()
