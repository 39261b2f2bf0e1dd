"""The folds of the workers under test: counts, the worst case, because a record lost or folded twice shows in
a row for ever.

A record is `op key [number]` in ASCII. Every kind of change of state occurs: rows set, replaced and deleted,
timers set, moved and fired, records emitted by folds and by timers, and records that must be refused after
they have already changed something.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.core.engine.declared.processor import Emit, Processor
from holdfast.core.engine.state.rows import Rows

EMIT_EVERY = 10
QUIET_MS = 300
"""A key that sees no record for so long (of stream time) has its timer fire."""


class Count(msgspec.Struct, frozen=True, array_like=True):
    """Number of additions to a key, the sum of the numbers, how often its timer fired, and padding for large
    rows.
    """

    seen: int = 0
    total: int = 0
    woken: int = 0
    padding: str = ""


class CountedOrder(msgspec.Struct, frozen=True):
    """One record."""

    op: str
    key: str
    number: int


def decode(value: bytes) -> CountedOrder:
    op, key, number = value.decode().split(" ")
    return CountedOrder(op, key, int(number))


def processors(source: str, out: str, tally_version: int = 1) -> list[Processor[Any, Any]]:
    """Return two processors of one source: the one that does everything, and one that only counts, so that
    positions differ.
    """

    def fold(rows: Rows[Count], order: CountedOrder, at_ms: int) -> Iterator[Emit]:
        before = rows.get(order.key) or Count()
        match order.op:
            case "add":
                after = msgspec.structs.replace(
                    before, seen=before.seen + 1, total=before.total + order.number
                )
                rows[order.key] = after
                if after.seen % EMIT_EVERY == 0:
                    yield Emit(out, key=order.key, value=b"%d/%d" % (after.seen, after.total))
            case "watch":
                rows[order.key] = msgspec.structs.replace(before, seen=before.seen + 1)
                rows.wake_at(order.key, at_ms + QUIET_MS)
            case "delete":
                if order.key in rows:
                    del rows[order.key]
                    yield Emit(out, key=order.key, value=b"deleted %d" % before.seen)
            case "raise":
                rows[order.key] = Count(seen=-1)
                yield Emit(out, key=order.key, value=b"never")
                raise ValueError(f"told to fail at {order.number}")
            case "grow":
                rows[order.key] = Count(padding="x" * order.number)
            case "shout":
                yield Emit(out, key=order.key, value=b"x" * order.number)
            case "sleep":
                time.sleep(order.number / 1000)  # no fold may do this, and some will
            case _:
                raise ValueError(f"no such operation: {order.op}")

    def on_wake(rows: Rows[Count], key: str, at_ms: int) -> Iterator[Emit]:
        before = rows.get(key) or Count()
        rows[key] = msgspec.structs.replace(before, woken=before.woken + 1)
        yield Emit(out, key=key, value=b"woken %d" % before.woken)

    def tally(rows: Rows[Count], order: CountedOrder, at_ms: int) -> None:
        before = rows.get(order.op) or Count()
        rows[order.op] = Count(seen=before.seen + 1, total=before.total + order.number)

    return [
        Processor(
            name="counts", source=source, decode=decode, fold=fold, on_wake=on_wake, row=Count, emits=(out,)
        ),
        Processor(name="tally", version=tally_version, source=source, decode=decode, fold=tally, row=Count),
    ]
