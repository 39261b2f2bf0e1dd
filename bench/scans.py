"""Folds that scan: records a second of processor time by the size of a transaction, `python -P -m
bench.scans`. Pure folding over a store in memory.

Each record sets a row of its own and scans the few of its customer, or 50 rows set before; without a scan,
the same fold tells what that costs.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.fold.folding import Batch, Folder
from holdfast.core.engine.state.rows import Rows

RECORDS = 40_000
SIZES = 200, 2_000, 8_000, 20_000
CUSTOMERS = 4_000
FIFTY = 50


class Nothing:
    """A store without rows: what is measured is the transaction's own."""

    def get(self, key: bytes) -> bytes | None:
        return None

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        return iter(())


def scanning(rows: Rows[int], number: int, at_ms: int) -> None:
    customer = number * 7919 % CUSTOMERS
    rows[f"{customer:05d}/{number:07d}"] = 1
    rows[f"total/{customer:05d}"] = sum(found for _, found in rows.scan(f"{customer:05d}/"))


def scanning_50(rows: Rows[int], number: int, at_ms: int) -> None:
    """Scan the 50 rows that were set before the 50 of which this is one."""
    rows[f"{number // FIFTY:06d}/{number:07d}"] = 1
    deque(rows.scan(f"{max(0, number // FIFTY - 1):06d}/"), 0)


def plain(rows: Rows[int], number: int, at_ms: int) -> None:
    customer = number * 7919 % CUSTOMERS
    rows[f"{customer:05d}/{number:07d}"] = 1
    rows[f"total/{customer:05d}"] = rows.get(f"total/{customer:05d}", 0) + 1


def rate(fold: Callable[[Rows[int], int, int], None], size: int) -> float:
    """Return how many records a second are folded in transactions of *size*."""
    counted: Processor[int, int] = Processor(name="scans", source="numbers", decode=int, fold=fold, row=int)
    folder: Folder[Any] = Folder(counted, Nothing())
    began_s, records = time.process_time(), 0
    while records < RECORDS and time.process_time() - began_s < 20:
        numbers = range(records, records + size)
        folder.fold([Batch(numbers, [0] * size, (numbers,))])
        folder.commit()
        records += size
    return records / (time.process_time() - began_s)


def main() -> None:
    for size in SIZES:
        print(
            f"{size:6d} records a transaction: {rate(scanning, size):9,.0f}/s with a scan each,"
            f" {rate(scanning_50, size):9,.0f}/s with one of 50 rows, {rate(plain, size):9,.0f}/s without"
        )


if __name__ == "__main__":
    main()
