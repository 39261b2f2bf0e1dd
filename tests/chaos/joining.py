"""The application of two sources under test, and its worker: `python -P -m tests.chaos.joining worker`.

A row has a digest of all that its key has met, in order, so that two orders never give the same row. A record
is `op key number`. `JOIN_LIE=1` reports to the worker that every source has ended, and delivers customers
half a second late, or `JOIN_LATE_S`; customers that arrive while the file `JOIN_HELD` exists are delivered
once it is gone: each guess is wrong. With `JOIN_WINDOWS` it has sessions of the orders. `CHAOS_FAULT` is as
for `tests.chaos.worker`.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec

from holdfast.agents.app import create_app
from holdfast.agents.partitions.batches.merging_intake import MergingIntake
from holdfast.agents.partitions.upkeep.source_ends import SourceEnds
from holdfast.core.engine.declared.global_tables import Global
from holdfast.core.engine.declared.partitioners import by_key
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.serdes import Text
from holdfast.core.engine.declared.sources import FoldWith, Source
from holdfast.core.engine.emits import Emit
from holdfast.core.engine.state.rows import Rows
from holdfast.core.kafka.topic_partition import Place
from holdfast.kafka.transactions.transactional_client import TransactionalClient
from holdfast.streams import Session, Windowed, final
from tests.chaos.faults import Doom, plant

TICK_MS = 300
LOOK_S = 0.02


class Known(msgspec.Struct, frozen=True, array_like=True):
    """Digest of a key's joined events, their number, and how often its timers fired."""

    trail: int = 0
    met: int = 0
    ticked: int = 0


def table_of(rates: str) -> Global[int]:
    """Return a global whose row of a key is the number of its last record, and how many there were."""

    def keep(rows: Rows[int], event: str, at_ms: int) -> None:
        key, _, number = event.partition(" ")
        rows[key] = rows.get(key, 0) * 3 % 1_000_003 + int(number)

    return Global("rates", Source(rates, Text()), keep, row=int)


def joined(
    customers: str, orders: str, out: str, version: int = 1, rates: str = "", *, handover: bool = False
) -> Processor[Any, Known]:
    """Return the processor. Its emits show the order in which it has met its records, and not the version.
    Without *customers* it has one source, and ticks all the same. With *rates* each record is also joined
    with the row of its key in a global. With *handover* its emits continue from the position of the previous
    version.
    """
    reads = (table_of(rates),) if rates else ()

    def meet(
        rows: Rows[Known], event: str, at_ms: int, topic: str, offset: int, timestamp: int
    ) -> Iterator[Emit]:
        op, key, number = event.split(" ")
        before = rows.get(key) or Known()
        looked_up = [rows.globals[each].get(key) for each in reads]
        trail = crc32(repr((before.trail, topic, offset, timestamp, at_ms, number, *looked_up)).encode())
        rows[key] = Known(trail, before.met + 1, before.ticked)
        if op == "later":
            rows.wake_at(key, at_ms + TICK_MS, clock="tick")
        if op == "raise":
            raise ValueError(f"told to fail at {number}")
        yield Emit(out, key=key, value=b"%s/%d/%d" % (topic.encode(), offset, trail))

    def on_tick(rows: Rows[Known], key: str, at_ms: int) -> Iterator[Emit]:
        before = rows.get(key) or Known()
        rows[key] = Known(crc32(repr((before.trail, at_ms)).encode()), before.met, before.ticked + 1)
        yield Emit(out, key=key, value=b"ticked/%d" % at_ms)

    told = FoldWith(meet, ("topic", "offset", "timestamp"))
    return Processor(
        name="joined",
        on={Source(topic, Text()): told for topic in (customers, orders) if topic},
        row=Known,
        version=version,
        on_tick=on_tick,
        route=by_key,
        emits=(out,),
        reads=reads,
        emits_from="handover" if handover else "beginning",
    )


def windowed(orders: str, out: str) -> Processor[Any, Any]:
    """Return sessions of each key in *orders*; ticks emit the final results once no more events come."""

    def key_of(event: str) -> str:
        return event.split(" ")[1]

    def number(seen: int | None, event: str) -> int:
        return crc32(event.encode(), seen or 0)

    def merge(earlier: int, later: int) -> int:
        return crc32(b"%d" % later, earlier)

    return Windowed(
        name="joined",
        source=orders,
        decode=bytes.decode,
        by=key_of,
        window=Session(300),
        fold=number,
        merge=merge,
        row=int,
        emit=final(out),
        retention=0,
        idle=1_000,
    )


def from_environment() -> Processor[Any, Any]:
    customers, orders, out = (os.environ[f"JOIN_{name}"] for name in ("CUSTOMERS", "ORDERS", "OUT"))
    if "JOIN_WINDOWS" in os.environ:
        return windowed(orders, out)
    version, rates = int(os.environ.get("JOIN_VERSION", "1")), os.environ.get("JOIN_RATES", "")
    return joined(customers, orders, out, version, rates, handover="JOIN_HANDOVER" in os.environ)


class Latecomers:
    """Delivers events in their order: each *late_s* after it came, or, if *held* existed when it came, as
    soon as that is gone.
    """

    def __init__(self, late_s: float, held: Path) -> None:
        self._late_s, self._held = late_s, held
        self._hand = MergingIntake.enqueue
        self._waiting: deque[tuple[float, MergingIntake, Any]] = deque()

    def take(self, intake: MergingIntake, event: Any) -> None:
        late_s = 0.0 if self._held.exists() else self._late_s
        self._waiting.append((asyncio.get_running_loop().time() + late_s, intake, event))
        if len(self._waiting) == 1:
            self._look()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting and self._waiting[0][0] <= loop.time() and not self._held.exists():
            _, intake, event = self._waiting.popleft()
            self._hand(intake, event)
        if self._waiting:
            loop.call_later(max(LOOK_S, self._waiting[0][0] - loop.time()), self._look)


def lie(customers: str) -> None:
    """Report that every source has ended, and have the customers come late."""
    hand = MergingIntake.enqueue
    latecomers = Latecomers(float(os.environ.get("JOIN_LATE_S", "0.5")), Path(os.environ["JOIN_HELD"]))

    def late(self: MergingIntake, event: Any) -> None:
        if event.value.topic == customers:
            latecomers.take(self, event)
        else:
            hand(self, event)

    async def ended(self: SourceEnds, client: object, places: Iterable[Place]) -> dict[Place, int]:
        return dict.fromkeys(places, 0)

    MergingIntake.enqueue = late  # type: ignore[method-assign]
    SourceEnds._ask = ended  # type: ignore[method-assign]


def die_between_choice_and_marker(doom: Doom) -> None:
    """Have choices appended by themselves, and die when the leader has one of them and nothing else of its
    transaction.
    """
    append = TransactionalClient.append

    async def choices_first(self: TransactionalClient, records: Mapping[Place, Any]) -> dict[Place, int]:
        choices = {place: each for place, each in records.items() if place[0].endswith("-choices")}
        offsets = await append(self, choices) if choices else {}
        if choices:
            doom.strike("chosen")
        return offsets | await append(
            self, {place: each for place, each in records.items() if place not in choices}
        )

    TransactionalClient.append = choices_first  # type: ignore[method-assign]


processors = [from_environment()] if "JOIN_OUT" in os.environ else []

if __name__ == "__main__":
    if fault := os.environ.get("CHAOS_FAULT"):
        plant(Doom(fault))
        die_between_choice_and_marker(Doom(fault))
    if os.environ.get("JOIN_LIE"):
        lie(os.environ["JOIN_CUSTOMERS"])
    create_app(processors).main()
