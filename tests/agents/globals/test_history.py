"""A partition that reads a part of a global again applies it as it comes. No broker is asked."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.agents.globals.history import GlobalHistory
from holdfast.core.engine.declared.global_tables import Global
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.serdes import Text
from holdfast.core.engine.declared.sources import FoldWith, Source
from holdfast.core.engine.fold.patience import OnLater, never_wait
from holdfast.core.engine.merge.global_copies import GlobalView
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.core.engine.state.rows import Rows
from holdfast.core.kafka.topic_partition import Place
from holdfast.kafka.fetching.source_fetcher import Fetched

LOG, FETCHED = 400, 10
"""Records of each partition, and how many of them a fetch brings."""


def keep(rows: Rows[str], event: str, at_ms: int, key: str) -> None:
    rows[key] = event


RATES: Global[str] = Global("rates", Source("rates", Text()), FoldWith(keep, ("key",)), row=str)
PRICED: Processor[Any, str] = Processor(
    name="priced", on={Source("orders", Text()): lambda rows, event, at_ms: None}, row=str, reads=(RATES,)
)


class Feed:
    """Two partitions of one length; every fetch brings some of each that is not held."""

    def __init__(self) -> None:
        self.at = {("rates", 0): 0, ("rates", 1): 0}
        self.held: set[Place] = set()
        self.buffers: Any = None
        self.most_held = 0

    async def assign(self, starts: dict[Place, int]) -> None: ...

    def hold(self, place: Place, held: bool) -> None:
        (self.held.add if held else self.held.discard)(place)

    def reached(self, place: Place) -> int:
        return self.at[place]

    async def fetch(self) -> list[Fetched]:
        waiting = sum(
            len(batch.offsets)
            for parts in self.buffers
            for part, _ in parts.values()
            for batch in part.batches
        )
        self.most_held = max(self.most_held, waiting)
        out = []
        for place, at in self.at.items():
            if place in self.held or at >= LOG:
                continue
            values = [b"%d" % offset for offset in range(at, at + FETCHED)]
            fetched = Fetched(0, "rates", place[1], at, last=at + FETCHED - 1, size_bytes=FETCHED)
            keys = [b"key-%d" % place[1]] * FETCHED
            fetched.records.append(range(at, at + FETCHED), [1_000] * FETCHED, values, keys, None)
            self.at[place] = at + FETCHED
            out.append(fetched)
        return out

    async def close(self) -> None: ...


class Tables:
    """The worker's copies, as a history needs them."""

    def __init__(self) -> None:
        self.counts = {"rates": 2}

    def patience(self) -> OnLater:
        return never_wait

    def store(self, name: str) -> DictStore:
        return DictStore()

    def thread(self, call: Any, *args: Any) -> asyncio.Future[Any]:
        done = asyncio.get_running_loop().create_future()
        done.set_result(call(*args))
        return done

    def fold(self, name: str, call: Any, *args: Any) -> asyncio.Future[Any]:
        return self.thread(call, *args)


def test_records_are_applied_as_they_come_and_no_more_is_fetched_than_is_needed() -> None:
    async def run() -> None:
        feed, tables = Feed(), Tables()
        history = GlobalHistory(tables, PRICED, 0, feed)  # type: ignore[arg-type]
        feed.buffers = history._buffers
        first, second = (24, 199), (34, 399)
        await history.stage((first,), 5.0)
        assert feed.at["rates", 0] == 30, "held once it had come to its position"
        assert history.replay is not None
        before = history.replay.view(0, first)
        assert rows_of(before) == ("24", "199")
        await history.stage((second,), 5.0)
        after = history.replay.view(0, second)
        assert rows_of(after) == ("34", "399")
        assert rows_of(before) == ("24", "199"), "what the open transaction saw stays readable"
        assert feed.most_held <= 2 * FETCHED

    asyncio.run(run())


def rows_of(view: GlobalView) -> tuple[str, ...]:
    found = [view.get(b"\x02key-%d" % partition) for partition in range(2)]
    return tuple("" if each is None else each[2:].decode() for each in found)
