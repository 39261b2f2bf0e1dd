"""Windows that end together: what it costs to tell and to remove them, `python -P -m bench.closing`.

24 windows of 10,000 keys, and 1,000 windows of 1,000 keys, all closed by one record, and all removed by a
later one. A real store; the changelog's records are counted. "stall" is the longest step, in processor time.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.fold.folding import Batch, Changes, Folder
from holdfast.core.engine.state.rows import Rows
from holdfast.streams import Tumbling, Windowed, final
from holdfast.tables.rocks import Budget
from holdfast.tables.store import PartitionStore, StoreStamp

HOUR_MS = 3_600_000
SHAPES = {"24 windows x 10,000 keys": (24, 10_000), "1,000 windows x 1,000 keys": (1_000, 1_000)}
TRANSACTION = 8_000
RECORD_BYTES = 12
"""What a record of a batch takes besides key and value, about."""


def read(value: bytes) -> tuple[str, int]:
    key, _, at = value.decode().partition(" ")
    return key, int(at)


def declared(windows: int) -> Processor[Any, Any]:
    return Windowed(
        name="closing",
        source="views",
        decode=read,
        by=lambda view: view[0],
        time=lambda view: view[1],
        window=Tumbling("1h", grace=f"{windows}h"),
        fold=lambda counted, view: (counted or 0) + 1,
        row=int,
        emit=final("hours"),
        retention=f"{5 * windows}h",
    )


class Life:
    """A partition of windows in a store; *stall_s* is the longest step so far."""

    def __init__(self, folder: Path, windows: int) -> None:
        processor = declared(windows)
        stamp = StoreStamp(
            app="bench", processor="closing", version=1, partition=0, cluster_id="c", changelog_id="i"
        )
        self.store = PartitionStore(folder, stamp, Budget.of(64 << 20, 64 << 20))
        self.folder: Folder[Any] = Folder(processor, self.store)
        self.offset, self.stall_s, self.transactions = 0, 0.0, 0

    def fold(self, values: list[bytes]) -> Iterator[Changes]:
        """Fold *values* as a worker does, one transaction after another, and yield what each writes."""
        first, left = self.offset, values
        while left:
            batch = Batch(
                range(self.offset, self.offset + len(left)), [1] * len(left), (left, [0] * len(left))
            )
            self._step(batch)
            changes = self.folder.changes
            assert changes is not None
            assert not changes.refused
            yield changes
            self.store.write(changes.puts, changes.marker, self.offset + 1)
            self.folder.commit()
            self.transactions += 1
            self.offset = changes.marker.applied[0] + 1
            left = values[self.offset - first :]

    def _step(self, batch: Batch) -> None:
        began_s = time.thread_time()
        for _ in self.folder.steps([batch]):
            now_s = time.thread_time()
            self.stall_s = max(self.stall_s, now_s - began_s)
            self.folder.stepped(now_s - began_s)
            if self.folder.changing > 100_000 or self.folder.emitted > 10_000:
                self.folder.close_early()
            began_s = time.thread_time()
        self.stall_s = max(self.stall_s, time.thread_time() - began_s)


def resident_mib() -> int:
    """Return the memory of this process, MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4 >> 10


def measured(name: str, windows: int, keys: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        life = Life(Path(folder) / "store", windows)
        opened = [
            b"key-%06d %d" % (key, window * HOUR_MS) for window in range(windows) for key in range(keys)
        ]
        for first in range(0, len(opened), TRANSACTION):
            for _ in life.fold(opened[first : first + TRANSACTION]):
                pass
        count, closing_ms = len(opened), (3 * windows) * HOUR_MS
        del opened
        for what, at_ms in (("told", closing_ms), ("removed", 3 * closing_ms)):
            life.stall_s, life.transactions, records, size, emits = 0.0, 0, 0, 0, 0
            began_s, before_mib, peak_mib = time.process_time(), resident_mib(), 0
            for changes in life.fold([b"last %d" % at_ms] * 30):
                records += len(changes.puts)
                size += sum(len(key) + len(value or b"") + RECORD_BYTES for key, value in changes.puts)
                emits += len(changes.emits)
                peak_mib = max(peak_mib, resident_mib())
            took_s = time.process_time() - began_s
            print(
                f"{name:28s} {what:8s} {took_s / count * 1e6:6.2f} us a window  stall"
                f" {life.stall_s * 1e3:8.1f} ms  {life.transactions} transactions  {records / count:4.2f}"
                f" records and {size / count:6.1f} bytes of changelog a window  {emits:,d} emitted "
                f" {peak_mib - before_mib:,d} MiB more"
            )
        rows: Rows[Any] = life.folder.rows
        left = sum(1 for _ in rows.scan())
        print(f"{'':28s} {left} rows are left")
        life.store.close()


def main() -> None:
    gc.freeze()
    gc.set_threshold(50_000, 4, 2_000)  # as in workers
    for name in sys.argv[1:] or SHAPES:
        measured(name, *SHAPES[name])


if __name__ == "__main__":
    main()
