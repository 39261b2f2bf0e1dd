"""Ordered windows against unordered ones, of the same records: microseconds of processor time a record,
`python -P -m bench.ordered`. Pure folding over a store in memory, as `bench.windows` does it.

50,000 records of 500 keys over 24 hours, in order, in transactions of 8,000. Both are folded in turn, twice;
the least of each counts.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from bench.windows import DAY_MS, START_MS, TRANSACTION, PageView, windows
from holdfast.core.engine.batches import Batch
from holdfast.core.engine.fold.folding import Folder
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.streams import Hopping, Session, Sliding, Tumbling, final

RECORDS, KEYS, TURNS = 50_000, 500, 2
KINDS: dict[str, tuple[Any, bool]] = {
    "tumbling, 1 h": (Tumbling("1h"), False),
    "hopping, 1 h every 15 min": (Hopping("1h", every="15m"), False),
    "sliding, 5 min": (Sliding("5m"), False),
    "sessions, 30 min": (Session("30m"), True),
}


def cost(window: Any, given: list[bytes], **more: Any) -> tuple[float, int, int]:
    """Return microseconds a record, and how many records were emitted and rows and removals written."""
    processor, store, emitted, puts = windows(window, final("out"), **more), DictStore(), 0, 0
    folder: Folder[Any] = Folder(processor, store)
    began_s = time.process_time()
    for first in range(0, len(given), TRANSACTION):
        part = given[first : first + TRANSACTION]
        offsets = range(first, first + len(part))
        columns: dict[str, Sequence[Any]] = {"value": part, "partition": [0] * len(part), "offset": offsets}
        columns["headers"] = [()] * len(part)
        batch = Batch(offsets, [START_MS] * len(part), tuple(columns[each] for each in processor.columns))
        changes = folder.fold([batch])
        assert changes is not None
        assert not changes.refused
        emitted, puts = emitted + len(changes.emits), puts + len(changes.puts)
        store.apply(changes.puts)
        folder.commit()
    return (time.process_time() - began_s) / len(given) * 1e6, emitted, puts


def main() -> None:
    given = [
        msgspec.json.encode(PageView(f"page-{number * 7919 % KEYS}", START_MS + number * DAY_MS // RECORDS))
        for number in range(RECORDS)
    ]
    for name, (window, merges) in KINDS.items():
        plain: dict[str, Any] = {"merge": lambda one, other: one + other} if merges else {}
        ways = {"unordered": plain, "ordered": {"ordered": True}}
        turns = [{way: cost(window, given, **more) for way, more in ways.items()} for _ in range(TURNS)]
        least = {way: min(turn[way] for turn in turns) for way in ways}
        one, other = least["unordered"], least["ordered"]
        assert one[1] == other[1]
        took = f"unordered {one[0]:6.2f} us, ordered {other[0]:6.2f} us a record ({other[0] / one[0]:.2f})"
        written = f"{one[2] / RECORDS:.2f} and {other[2] / RECORDS:.2f}"
        print(f"{name:28} {took}; written {written} a record", flush=True)


if __name__ == "__main__":
    main()
