"""A processor of one source writes, to the byte, what the release before processors of several
sources wrote.

The digest is that of commit db5052b3, by the same program. A change of it is a change of stored bytes:
replicas of two releases would not agree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from random import Random
from typing import Any

import msgspec
import pytest

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.declared.processor import Emit, Processor
from holdfast.core.engine.fold.folding import Folder
from holdfast.core.engine.state.rows import Rows

RECORDS, TRANSACTION, START_MS = 6_000, 500, 1_700_000_000_000
DIGEST = "63cd40df5eb84d27725fa727fec068393119a0f8b4227ecfb3452f764a80e6d3"


class Visit(msgspec.Struct, frozen=True):
    count: int = 0
    last_ms: int = 0
    mean: float = 0.0
    pages: tuple[str, ...] = ()


class Kept(dict[bytes, bytes]):
    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        yield from [(key, self[key]) for key in sorted(self) if key.startswith(prefix) and key >= start]


def fold(rows: Rows[Visit], event: tuple[str, str], at_ms: int) -> Any:
    what, key = event
    row = rows.get(key) or Visit()
    if what == "fail":
        rows[key] = Visit(count=-1)
        raise ValueError(key)
    if what == "leave":
        if key in rows:
            del rows[key]
        return [Emit("out", key.encode(), None)]
    if what == "wake":
        rows.wake_at(key, at_ms + 40 * len(key))
    rows[key] = Visit(row.count + 1, at_ms, row.mean / 2 + len(what), (*row.pages[-2:], what))
    return [Emit("out", key.encode(), str(row.count).encode())] if row.count % 3 == 0 else None


def on_wake(rows: Rows[Visit], key: str, at_ms: int) -> Any:
    row = rows.get(key)
    if row is not None and row.count > 4:
        del rows[key]
    return [Emit("woken", key.encode(), str(at_ms).encode())]


@pytest.mark.long
def test_a_processor_of_one_source_writes_the_bytes_that_it_always_wrote() -> None:
    random = Random(17)
    visits: Processor[Any, Visit] = Processor(
        name="visits",
        source="clicks",
        decode=lambda value: value,
        fold=fold,
        row=Visit,
        on_wake=on_wake,
        emits=("out", "woken"),
    )
    store = Kept()
    folder, written = Folder(visits, store), hashlib.sha256()
    at_ms = START_MS
    for first in range(0, RECORDS, TRANSACTION):
        events, times = [], []
        for _ in range(TRANSACTION):
            what = random.choice(("see", "see", "see", "wake", "leave", "fail"))
            events.append((what, random.choice("abcxyzéß漢") * random.randrange(1, 30)))
            at_ms += random.choice((0, 1, 7, 300, -200))
            times.append(at_ms)
        changes = folder.fold([Batch(range(first, first + TRANSACTION), times, (events,))])
        assert changes is not None
        for key, value in changes.stored():
            written.update(b"%d %s %s\n" % (len(key), key, b"-" if value is None else b"=" + value))
            if value is None:
                store.pop(key, None)
            else:
                store[key] = value
        for emit in changes.emits:
            written.update(repr((emit.topic, emit.key, emit.value)).encode())
        for refused in changes.refused:
            written.update(repr((refused.offset, refused.stage, refused.reason)).encode())
        folder.commit()
    assert written.hexdigest() == DIGEST
