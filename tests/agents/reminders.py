"""An application of one processor with timers, in a version of one's choice:

`python -P -m tests.agents.reminders worker`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.agents.app import create_app
from holdfast.core.engine.declared.partitioners import by_key
from holdfast.core.engine.declared.processor import Emit, Processor
from holdfast.core.engine.state.rows import Rows
from tests.chaos.faults import Doom, plant


class Reminded(msgspec.Struct, frozen=True, array_like=True):
    """The amount added under a key, and the number of times that its timer fired."""

    total: int = 0
    woken: int = 0


class RemindedOrder(msgspec.Struct, frozen=True):
    """One record: `add KEY NUMBER`, or `remind KEY MS`, which sets a timer; its own time in ms may follow."""

    op: str
    key: str
    number: int
    own_ms: int = 0


def decode(value: bytes) -> RemindedOrder:
    op, key, *numbers = value.decode().split(" ")
    return RemindedOrder(op, key, *map(int, numbers))


def own_time(order: RemindedOrder) -> int:
    return order.own_ms


def reminders(
    app: str, version: int = 1, *, timed: bool = False, handover: bool = False
) -> Processor[Any, Any]:
    """Return the processor; version 2 counts double, so that the rows of one cannot be taken for the other's.
    If it is *timed*, its timers are those of event time; with *handover*, it emits from where the version
    before it ended.
    """

    def fold(rows: Rows[Reminded], order: RemindedOrder, at_ms: int) -> Iterator[Emit]:
        before = rows.get(order.key) or Reminded()
        if order.op == "remind":
            rows[order.key] = before
            if timed:
                rows.wake_at(order.key, order.own_ms + order.number, clock="event")
            else:
                rows.wake_at(order.key, at_ms + order.number)
        else:
            rows[order.key] = msgspec.structs.replace(before, total=before.total + version * order.number)
            yield Emit(f"{app}-out", key=order.key, value=b"v%d added %d" % (version, order.number))

    def on_wake(rows: Rows[Reminded], key: str, at_ms: int) -> Iterator[Emit]:
        before = rows[key]
        rows[key] = msgspec.structs.replace(before, woken=before.woken + 1)
        yield Emit(f"{app}-out", key=key, value=b"v%d woken" % version)

    return Processor(
        name="reminders",
        source=f"{app}-in",
        decode=decode,
        fold=fold,
        time=own_time if timed else None,
        on_wake=None if timed else on_wake,
        on_event=on_wake if timed else None,
        row=Reminded,
        version=version,
        route=by_key,
        emits=(f"{app}-out",),
        emits_from="handover" if handover else "beginning",
    )


if __name__ == "__main__":
    if fault := os.environ.get("CHAOS_FAULT"):
        plant(Doom(fault))
    version, timed = int(os.environ.get("REMINDERS_VERSION", "1")), "REMINDERS_TIMED" in os.environ
    handover = "REMINDERS_HANDOVER" in os.environ
    create_app([reminders(os.environ["HOLDFAST_APP"], version, timed=timed, handover=handover)]).main()
