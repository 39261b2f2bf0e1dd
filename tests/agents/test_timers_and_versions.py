"""Timers fire inside the transaction of the record that makes them due; versions of a processor share
nothing. On real workers.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.clients.tables.client import TableClient
from holdfast.clients.tables.inspecting import StoreInspector
from holdfast.clients.topics.application import create_topics
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.positions import position_format
from holdfast.core.engine.state.codec import APPLIED, WAKE, row_key, wake_key
from holdfast.dev.fixtures import SessionBroker
from holdfast.errors import NoSuchTableError
from holdfast.pipeline.replay import ReplayOptions, replay
from holdfast.pipeline.verify.store import verify_store
from holdfast.pipeline.verify.table import verify
from tests.agents.fleet import Fleet, Writer
from tests.agents.reminders import Reminded, reminders
from tests.support.harness import Worker, wait_for
from tests.support.patience import DEADLINE_S
from tests.support.proof import read_topic

TIMER_MS = 400


class Reminders(Fleet):
    """One partition, one static worker: each restart has it back at once."""

    def __init__(self, broker: SessionBroker, folder: Path, *, timed: bool = False) -> None:
        super().__init__(
            broker,
            folder,
            app="reminders",
            partitions=1,
            module="tests.agents.reminders",
            declare=lambda settings: [reminders(settings.app, timed=timed)],
            standbys=0,
            instance_id="only",
        )
        self.create_topics()
        self.source, self.out = f"{self.settings.app}-in", f"{self.settings.app}-out"
        self.writer = Writer(broker)

    def write(self, *orders: str) -> int:
        """Append *orders* and return the offset of the last."""
        return self.writer.write_all(self.source, [(order.encode(), None, 0, 0) for order in orders])[-1][1]

    def wait_applied(self, worker: Worker, offset: int) -> None:
        def condition() -> bool:
            assert worker.running, worker.tail()
            return worker.applied().get(("reminders", 0), -1) >= offset

        wait_for(f"offset {offset} applied", condition, DEADLINE_S, worker.tail)

    def emitted(self, *, committed: bool = True) -> Counter[str]:
        messages = read_topic(self.broker, self.out, committed=committed)
        return Counter(
            f"{(each.key() or b'').decode()}: {(each.value() or b'').decode()}"
            for found in messages.values()
            for each in found
        )

    def logged(
        self, processor: Processor[Any, Any], *, committed: bool = True
    ) -> list[tuple[bytes, bytes | None]]:
        messages = read_topic(self.broker, processor.changelog(self.settings.app), committed=committed)[0]
        return [(message.key() or b"", message.value()) for message in messages]

    def rows(self, processor: Processor[Any, Any], offset: int) -> dict[str, Reminded]:
        """Return the live table as of *offset* at least."""

        async def scan() -> dict[str, Reminded]:
            async with TableClient(self.settings, [processor]) as tables:
                found = tables.scan(processor, at_least=(0, offset), timeout_s=DEADLINE_S)
                return {answer.key: answer.value async for answer in found}

        return asyncio.run(scan())


@pytest.fixture
def fleet(broker: SessionBroker, tmp_path: Path) -> Iterator[Reminders]:
    fleet = Reminders(broker, tmp_path)
    try:
        yield fleet
    finally:
        fleet.close()


def transactions(log: list[tuple[bytes, bytes | None]]) -> list[dict[bytes, bytes | None]]:
    """Return a changelog's transactions: each ends with its marker."""
    out: list[dict[bytes, bytes | None]] = [{}]
    for key, value in log:
        if key == APPLIED:
            out.append({})
        else:
            out[-1][key] = value
    assert out.pop() == {}, "a changelog ends with a marker"
    return out


@pytest.mark.variant
def test_a_timer_survives_sigkill_and_loss_of_the_store_and_fires_once_with_the_record_that_makes_it_due(
    fleet: Reminders,
) -> None:
    worker = fleet.worker().start().wait_ready()
    processor = fleet.processors[0]
    set_at = fleet.write("add bob 1", f"remind ada {TIMER_MS}")  # nothing follows that might be late
    fleet.wait_applied(worker, set_at)
    worker.kill()
    worker.wipe()
    # The next process dies in the transaction in which the timer fires; the one after it does the same work
    # again.
    worker.start(CHAOS_FAULT="produced:1").wait_ready()
    assert fleet.rows(processor, set_at) == {"ada": Reminded(), "bob": Reminded(total=1)}, (
        "not due before a record says what time it is"
    )
    appended = wait_for("stream time past the timer", lambda: due(fleet, set_at), DEADLINE_S)
    assert worker.wait_exit(DEADLINE_S) == -9
    worker.start().wait_ready()
    assert fleet.rows(processor, appended)["ada"] == Reminded(woken=1)
    more = fleet.write("add bob 2")
    assert fleet.rows(processor, more)["ada"] == Reminded(woken=1), "once"
    worker.stop()
    assert fleet.emitted()["ada: v1 woken"] == 1
    assert fleet.emitted(committed=False)["ada: v1 woken"] == 2, (
        "the transaction that was cut off had emitted it too"
    )
    firing = [
        each
        for each in transactions(fleet.logged(processor))
        if wake_key("ada") in each and each[wake_key("ada")] is None
    ]
    assert len(firing) == 1
    assert row_key("ada") in firing[0], "row, timer and the record's own row change together"
    assert row_key("carl") in firing[0]
    assert not [
        key for key, value in dict(fleet.logged(processor)).items() if key[:1] == WAKE and value is not None
    ], "no timer is left"


def test_an_event_timer_survives_sigkill_and_loss_of_the_store_and_so_does_event_time(
    broker: SessionBroker, tmp_path: Path
) -> None:
    fleet, timed = Reminders(broker, tmp_path, timed=True), {"REMINDERS_TIMED": "1"}
    with closing(fleet):
        worker, processor = fleet.worker().start(**timed).wait_ready(), fleet.processors[0]
        set_at = fleet.write("remind ada 400 1000", "add bob 1 1399")
        fleet.wait_applied(worker, set_at)
        worker.kill()
        worker.wipe()
        # The next process dies in the transaction in which the timer fires; the one after it does the same
        # work again.
        worker.start(CHAOS_FAULT="produced:1", **timed).wait_ready()
        assert fleet.rows(processor, set_at)["ada"] == Reminded(), (
            "append time is long past what it waits for"
        )
        fires = fleet.write("add carl 1 1400")
        assert worker.wait_exit(DEADLINE_S) == -9
        worker.start(**timed).wait_ready()
        assert fleet.rows(processor, fires)["ada"] == Reminded(woken=1)
        worker.kill()
        worker.wipe()
        worker.start(**timed).wait_ready()
        # Event time has been 1400: a time that is not later moves nothing.
        before = fleet.write("remind dora 0 1100", "add bob 1 1300", "add bob 1 1400")
        assert fleet.rows(processor, before)["dora"] == Reminded()
        after = fleet.write("add bob 1 1401")
        assert fleet.rows(processor, after)["dora"] == Reminded(woken=1)
        assert fleet.emitted()["ada: v1 woken"] == fleet.emitted()["dora: v1 woken"] == 1
        here = ReplayOptions(engine="local")
        verdict = verify(processor, fleet.settings, here)
        assert verdict.equal, [each.explain() for each in verdict.partitions]
        with StoreInspector(fleet.settings) as stores:
            served = verify_store(processor, fleet.settings, stores, here)
        assert served.equal, served
        replayed = replay(processor, fleet.settings, here)
        assert [each.event_ms for each in replayed.partitions] == [1401]
        marker = dict(fleet.logged(processor))[APPLIED]
        assert marker is not None
        assert position_format(processor).decode(marker).event_ms == 1401


def due(fleet: Reminders, set_at: int) -> int | None:
    """Write the record that makes the timer due, as soon as the broker's clock has passed it; return its
    offset.
    """
    messages = read_topic(fleet.broker, fleet.source)[0]
    set_ms = messages[set_at].timestamp()[1]
    return fleet.write("add carl 1") if time.time() * 1000 > set_ms + TIMER_MS + 50 else None


def refused(fleet: Reminders, processor: Processor[Any, Any]) -> bool:
    """Return whether the table is no longer served in that version."""
    try:
        fleet.rows(processor, 0)
    except NoSuchTableError as error:
        return "version 2, not 1" in str(error)
    return False


def folded(worker: Worker) -> float:
    return sum(worker.metric("holdfast_records_folded_total").values())


@pytest.mark.variant
def test_versions_of_a_processor_share_no_state(fleet: Reminders) -> None:
    old, new = fleet.processors[0], reminders(fleet.settings.app, version=2)
    worker = fleet.worker().start().wait_ready()
    last = fleet.write(*(f"add k{number % 3} 1" for number in range(30)))
    assert fleet.rows(old, last) == {f"k{number}": Reminded(total=10) for number in range(3)}
    worker.stop()
    logged = fleet.logged(old)

    create_topics(fleet.settings, [new])
    worker.start(REMINDERS_VERSION="2").wait_ready()
    assert fleet.rows(new, last) == {f"k{number}": Reminded(total=20) for number in range(3)}, (
        "built from the log's beginning"
    )
    assert fleet.rows(old, last)["k0"] == Reminded(total=10), "what version 1 has left is still read"
    more = fleet.write("add k0 5")
    assert fleet.rows(new, more)["k0"] == Reminded(total=30)
    worker.stop()
    assert fleet.logged(old) == logged, "the old version's changelog is as it was"
    assert fleet.emitted()["k0: v1 added 1"] == fleet.emitted()["k0: v2 added 1"] == 10, (
        "a rebuild emits again"
    )

    worker.start(REMINDERS_VERSION="2", HOLDFAST_EARLIER_VERSION_S="0").wait_ready()
    wait_for("the end of version 1", lambda: refused(fleet, old), DEADLINE_S, worker.tail)
    worker.stop()

    worker.start(REMINDERS_VERSION="1").wait_ready()
    assert fleet.rows(old, more)["k0"] == Reminded(total=15)
    wait_for("one record folded", lambda: folded(worker) > 0, DEADLINE_S, worker.tail)
    assert folded(worker) == 1, "the old version went on from its own state"
    worker.stop()
