"""Tumbling windows, emitted when they close, against a plain count of the same records: records a second of
processor time, `python -P -m bench.windows`. Pure folding over a store in memory.

1,000,000 records of 10,000 keys over 24 hours, in order, in transactions of 8,000; windows of one hour, kept
for another. About four records of a key are in each window.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.fold.folding import Batch, Folder
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.streams import Hopping, Session, Sliding, Tumbling, Windowed, count, final, updates

RECORDS, KEYS, DAY_MS, TRANSACTION = 1_000_000, 10_000, 86_400_000, 8_000
START_MS = 1_700_006_400_000


class PageView(msgspec.Struct, frozen=True, gc=False):
    page: str
    at: int


def add(counted: int | None, view: PageView) -> int:
    return 1 if counted is None else counted + 1


def windows(window: Any, emit: Any, **more: Any) -> Processor[Any, Any]:
    return Windowed(
        name="windows",
        source="views",
        decode=msgspec.json.Decoder(PageView).decode,
        by=lambda view: view.page,
        time=lambda view: view.at,
        window=window,
        fold=add,
        row=int,
        emit=emit,
        retention="1h",
        **more,
    )


def values(records: int) -> list[bytes]:
    return [
        msgspec.json.encode(PageView(f"page-{number * 7919 % KEYS}", START_MS + number * DAY_MS // RECORDS))
        for number in range(records)
    ]


def rate(processor: Processor[Any, Any], given: list[bytes]) -> tuple[float, int]:
    """Return how many microseconds a record takes, and how many records were emitted."""
    store, emitted = DictStore(), 0
    folder: Folder[Any] = Folder(processor, store)
    began_s = time.process_time()
    for first in range(0, len(given), TRANSACTION):
        part = given[first : first + TRANSACTION]
        columns: dict[str, Sequence[Any]] = {"value": part, "partition": [0] * len(part)}
        batch = Batch(
            range(first, first + len(part)),
            [START_MS] * len(part),
            tuple(columns[each] for each in processor.inputs),
        )
        changes = folder.fold([batch])
        assert changes is not None
        assert not changes.refused
        emitted += len(changes.emits)
        store.apply(changes.puts)
        folder.commit()
    return (time.process_time() - began_s) / len(given) * 1e6, emitted


def main() -> None:
    given = values(RECORDS)
    plain: Processor[Any, int] = count(
        name="plain", source="views", decode=msgspec.json.Decoder(PageView).decode, key=lambda view: view.page
    )
    hourly = windows(Tumbling("1h", grace="5m"), final("out"))
    shapes = {
        "plain count": (plain, RECORDS),
        "tumbling 1h, final": (hourly, RECORDS),
        "tumbling 1h, updates": (windows(Tumbling("1h", grace="5m"), updates("out")), RECORDS // 4),
        "hopping 1h every 15m, final": (
            windows(Hopping("1h", every="15m", grace="5m"), final("out")),
            RECORDS // 4,
        ),
        "sessions of gap 10m, final": (
            windows(Session("10m", grace="5m"), final("out"), merge=int.__add__),
            RECORDS // 4,
        ),
        "sliding 20m, final": (windows(Sliding("20m", grace="5m"), final("out")), RECORDS // 20),
    }
    for name, (processor, records) in shapes.items():
        took_us, emitted = rate(processor, given[:records])
        print(
            f"{name:28s} {records:9,d} records  {1e6 / took_us:9,.0f}/s  {took_us:6.2f} us  {emitted:9,d}"
            " emitted"
        )


if __name__ == "__main__":
    main()
