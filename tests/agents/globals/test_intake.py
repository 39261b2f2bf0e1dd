"""A partition that reads a global: when it may resume, and its reports before that. No broker is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.agents.globals.copies import ALL, GlobalCopies
from holdfast.agents.globals.intake import GlobalIntake
from holdfast.agents.partitions.batches.merging_intake import MergingIntake
from holdfast.core.engine.batches import Batch
from holdfast.core.engine.declared.global_tables import Global
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.serdes import Text
from holdfast.core.engine.declared.sources import Source
from holdfast.core.engine.emits import Emit
from holdfast.core.engine.fold.folding import Folder
from holdfast.core.engine.merge.global_copies import GlobalCopy, WorkerGlobals
from holdfast.core.engine.positions import Position, start_of
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.core.engine.state.rows import Rows
from holdfast.errors import GlobalsError
from tests.agents.partitions.fold_events import event_of
from tests.agents.partitions.test_merging_intake import MergingHost
from tests.support.patience import DEADLINE_S


def keep(rows: Rows[str], event: str, at_ms: int) -> None:
    rows["rate"] = event


RATES: Global[str] = Global("rates", Source("rates", Text()), keep, row=str)


def meet(rows: Rows[str], event: str, at_ms: int) -> Iterator[Emit]:
    rows["all"] = rows.get("all", "") + event + rows.globals[RATES].get("rate", "?")
    yield Emit("out", value=b"")


PRICED: Processor[Any, str] = Processor(
    name="priced", on={Source("orders", Text()): meet}, row=str, reads=(RATES,), emits=("out",)
)


class GlobalsHost(MergingHost):
    """The calls of the intake and the copies to their host."""

    def __init__(self) -> None:
        super().__init__()
        self.stalled: dict[tuple[str, int], str] = {}
        self.settings = SimpleNamespace(stall_timeout_s=5.0)
        self.processors = {"priced": PRICED}
        self.globals = GlobalCopies(self)  # type: ignore[arg-type]
        self.copy = self.globals.copies["rates"] = GlobalCopy(RATES)

    def progressed(self) -> None:
        pass


class Bench:
    """An intake with its folder, and a copy of the global that is read by hand."""

    def __init__(self, marker: Position | None = None) -> None:
        self.host = GlobalsHost()
        views = self.host.globals.views(PRICED)
        assert isinstance(views, WorkerGlobals)
        self.folder: Folder[str] = Folder(PRICED, DictStore(), marker=marker, views=views)
        part: Any = SimpleNamespace(
            processor=PRICED,
            partition=0,
            places=[("orders", 0)],
            owner=SimpleNamespace(folder=self.folder, recorded=[], views=views),
            choices_topics=("app-priced-choices",),
        )
        self.intake = MergingIntake(self.host, part, GlobalIntake(self.host, part, self.host.globals))  # type: ignore[arg-type]
        self.following = 0
        self.choices: list[tuple[int, ...]] = []

    def rate(self, text: str, offset: int) -> None:
        self.host.copy.apply(0, Batch([offset], [offset], ([text.encode()],)))

    def fetch(self, text: str) -> None:
        offset = self.following
        self.following += 1
        self.intake.enqueue(
            event_of(
                offset, [text.encode()], topic="orders", epoch=self.host.epoch, at_ms=offset, size_bytes=1
            )
        )

    def turn(self, between: Any = lambda: None) -> str:
        """Fold what there is; *between* happens while the transaction is open."""
        self.intake.look()
        while self.intake.ready:
            if not self.intake.next_batch():
                continue
            between()
            changes = self.folder.fold(self.intake.records())
            if changes is not None:
                self.choices += [each.globals[0] for each in changes.choices if each.globals]
                self.folder.commit()
            self.intake.ack()
        return self.folder.rows.get("all", "")


def test_nothing_is_folded_before_the_topic_was_read_once() -> None:
    bench = Bench()
    bench.rate("a", 0)
    bench.fetch("1")
    assert bench.turn() == ""
    assert "must come to their ends first" in bench.host.stalled["priced", 0]
    bench.rate("b", 1)
    bench.host.globals.whole = True
    assert bench.turn() == "1b"
    assert bench.host.stalled == {}
    assert bench.choices == [(1,)]


def test_a_transaction_sees_the_copy_as_it_was_when_it_began() -> None:
    bench = Bench()
    bench.host.globals.whole = True
    bench.rate("a", 0)
    bench.fetch("1")
    bench.fetch("2")
    assert bench.turn(lambda: bench.rate("b", bench.host.copy.vector[0] + 1)) == "1a2a"
    bench.fetch("3")
    assert bench.turn() == "1a2a3b"
    assert bench.choices == [(0,), bench.host.copy.vector]


def test_no_choice_is_made_while_the_copy_is_stalled() -> None:
    bench = Bench()
    bench.host.globals.whole = True
    bench.rate("a", 0)
    for text in "123":
        bench.fetch(text)
        bench.turn()
    assert bench.choices == [(0,)]
    assert not [*bench.host.copy._views], "nothing is kept for a partition that rests"


def test_a_new_owner_waits_until_its_copy_is_where_the_one_before_it_was() -> None:
    start: Any = start_of(PRICED)
    marker = replace(start, globals=((4,),))
    bench = Bench(marker)
    bench.host.globals.whole = True
    bench.rate("a", 3)
    bench.fetch("1")
    assert bench.turn() == ""
    assert "are at {'rates': [3]} and must come to {'rates': [4]} first" in bench.host.stalled["priced", 0]
    assert bench.host.globals.waited_for == {"rates": (4,)}
    bench.rate("b", 4)
    assert bench.turn() == "1b"
    assert (bench.choices, bench.host.stalled, bench.host.globals.waited_for) == ([], {}, {})


def test_a_partition_that_is_given_up_leaves_no_reason() -> None:
    bench = Bench()
    bench.fetch("1")
    bench.turn()
    bench.host.owned = False
    bench.intake.revoked()
    assert (bench.host.stalled, bench.host.globals.waited_for) == ({}, {})


def test_a_copy_that_does_not_come_there_ends_the_worker() -> None:
    bench = Bench()
    tables, ends = bench.host.globals, {("rates", 0): 3}
    feed: Any = SimpleNamespace(unreadable=lambda: None)

    def look(idle_s: float) -> bool:
        idle: Any = SimpleNamespace(s=idle_s)
        idle.reset = lambda: setattr(idle, "s", 0.0)
        tables._look(feed, idle, ends)
        return bool(idle.s == 0.0)

    look(5.0)
    with pytest.raises(GlobalsError, match="nothing came for 6 s"):
        look(6.0)
    tables.whole = True
    assert look(600.0), "a topic to which nobody writes is no trouble"
    tables.waited_for["rates"] = (7,)
    with pytest.raises(GlobalsError, match=r"global table rates is at \[\] and must come to \[7\]"):
        look(6.0)
    tables.waited_for.clear()
    feed.unreadable = lambda: "rates partition 0: offset 3 cannot be read"
    look(0.0)
    assert "are stalled: rates partition 0" in bench.host.stalled[ALL]
    feed.unreadable = lambda: None
    look(0.0)
    assert bench.host.stalled == {}


def test_a_worker_without_globals_follows_nothing() -> None:
    host: Any = SimpleNamespace(processors={})
    tables = GlobalCopies(host)
    asyncio.run(asyncio.wait_for(tables.run(), DEADLINE_S))
    assert tables.whole
