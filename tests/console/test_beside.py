"""The looks at outbox, quarantine and lake: how often they are taken, and the part that the overview
shows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer

from holdfast.clients.quarantine.records import LIMIT_LISTED, RETRIED_TO, Quarantine, QuarantinedRecord
from holdfast.clients.tables.directory import FixedDirectory
from holdfast.clock import ManualClock, system_clock
from holdfast.config import Settings
from holdfast.console.asking.lake import LakeTopicLine
from holdfast.console.watching import refused
from holdfast.console.watching.beside import BesideLook
from holdfast.console.watching.findings import HealthFinding, Urgency
from holdfast.console.watching.landed import judge_landed
from holdfast.console.watching.outbox import LONG_MS, OutboxPicture, judge_outbox
from holdfast.console.watching.refused import RECENT_MS, RefusedCount, RefusedLooks, judge_refused
from holdfast.console.watching.watch import WATCHED_FOR_S, Watch
from holdfast.errors import OutboxDatabaseError
from tests.agents.web.test_server import scenario
from tests.console.test_pages import TOTALS, worker_settings
from tests.console.test_quarantine import settings  # noqa: F401  a fixture
from tests.support.patience import DEADLINE_S


class Ledger:
    """The result of a look in a test: a number, or a failure."""

    def __init__(self) -> None:
        self.looks = 0
        self.fails: str | None = None
        self.goes = asyncio.Event()
        self.goes.set()

    async def look(self) -> int:
        self.looks += 1
        await self.goes.wait()
        if self.fails is not None:
            raise OutboxDatabaseError(self.fails)
        return self.looks


def judge(found: int) -> Iterator[HealthFinding]:
    yield HealthFinding(urgency=Urgency.NOTE, what=f"look {found}", cure="", page="/outbox")


def look_at(ledger: Ledger, clock: ManualClock) -> BesideLook[int]:
    return BesideLook(
        "outbox", "/outbox", ledger.look, judge, every_s=5.0, urgency=Urgency.CRITICAL, clock=clock
    )


@scenario
async def test_a_look_holds_for_a_while_and_many_who_come_share_one() -> None:
    ledger, clock = Ledger(), ManualClock()
    look = look_at(ledger, clock)
    assert (look.looked, look.findings()) == (False, [])
    ledger.goes.clear()
    asked = [asyncio.ensure_future(look.fresh()) for _ in range(8)]
    await asyncio.sleep(0)
    ledger.goes.set()
    await asyncio.gather(*asked)
    assert (ledger.looks, look.found) == (1, 1)
    clock.advance_ms(4_999)
    await look.fresh()
    assert ledger.looks == 1
    await look.now()
    clock.advance_ms(5_000)
    await look.fresh()
    assert ledger.looks == 3


@scenario
async def test_a_failed_look_is_reported_and_the_state_before_stays() -> None:
    ledger, clock = Ledger(), ManualClock()
    look = look_at(ledger, clock)
    await look.now()
    ledger.fails = "connection refused"
    await look.now()
    assert [(each.urgency, each.what) for each in look.findings()] == [
        (Urgency.NOTE, "look 1"),
        (Urgency.CRITICAL, "The outbox cannot be looked at: connection refused"),
    ]
    ledger.fails = None
    await look.now()
    assert [each.what for each in look.findings()] == ["look 3"]


@scenario
async def test_only_the_workers_are_looked_at_while_the_console_is_not_watched() -> None:
    ledger, clock = Ledger(), ManualClock()
    clock.advance_ms(int(WATCHED_FOR_S * 1000) + 1)
    watch = Watch(worker_settings(), [TOTALS], FixedDirectory(), None, [look_at(ledger, clock)], clock=clock)
    async with watch:
        for _ in range(10):
            await asyncio.sleep(0)
        assert ledger.looks == 0
        watch.asked()
        async with asyncio.timeout(DEADLINE_S):
            while not ledger.looks:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


def outbox(**changes: object) -> OutboxPicture:
    given = {
        "waiting": 7,
        "oldest_age_ms": LONG_MS - 1,
        "failing": 0,
        "quarantined": 0,
        "leases": [],
        "rows": [],
        "waits": [],
        "waits_trouble": None,
    }
    return OutboxPicture(**{**given, **changes})  # type: ignore[arg-type]


def told(found: Iterator[HealthFinding]) -> list[tuple[str, str]]:
    return [(each.urgency, each.what) for each in found]


def test_an_outbox_is_well_while_its_rows_move() -> None:
    assert told(judge_outbox(outbox())) == []
    assert told(judge_outbox(outbox(waiting=0, oldest_age_ms=None))) == []
    assert told(judge_outbox(outbox(oldest_age_ms=3 * LONG_MS, failing=2, quarantined=1_000))) == [
        ("critical", "7 rows of the outbox wait, the first for 180 s"),
        ("warning", "2 rows of the outbox have failed, and are tried again"),
        ("warning", "1,000 rows of the outbox are set aside"),
    ]
    assert told(judge_outbox(outbox(stops=[(2, "row 7 is still there")]))) == [
        ("critical", "shard 2 of the outbox is stopped: row 7 is still there")
    ]


def test_refusals_within_a_day_count_for_more() -> None:
    def of(waiting: int, recent: int, *, more: bool = False) -> list[tuple[str, str]]:
        return told(judge_refused(RefusedCount(waiting=waiting, recent=recent, more=more)))

    assert of(0, 0) == []
    assert of(3, 0) == [("note", "3 records were refused, and not tried again")]
    assert of(3, 1) == [("warning", "1 record was refused within a day, and not tried again")]
    assert of(500, 500, more=True)[0][1].startswith("At least 500 records were refused within a day")


def test_a_lake_is_not_well_where_a_table_has_faults_or_cannot_be_read() -> None:
    found = [
        LakeTopicLine(topic="orders", table="t"),
        LakeTopicLine(topic="paid", table="t", trouble="no Delta table at t"),
        LakeTopicLine(topic="late", table="t", faults=["a file is gone"], faults_count=1),
    ]
    assert told(judge_landed(found)) == [
        ("warning", "Topic paid cannot be read in the lake: no Delta table at t"),
        ("critical", "Topic late has 1 fault in the lake"),
    ]


def test_the_quarantine_is_read_again_once_something_was_written_to_it(
    settings: Settings,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[int] = []

    class Counting(Quarantine):
        def records(
            self,
            wanted: Callable[[QuarantinedRecord], bool],
            *,
            values: bool = False,
            limit: int = LIMIT_LISTED,
        ) -> list[QuarantinedRecord]:
            found = super().records(wanted, values=values, limit=limit)
            read.append(len(found))
            return found

    monkeypatch.setattr(refused, "Quarantine", Counting)
    clock = ManualClock(now_ms=system_clock.now_ms())
    looks = RefusedLooks(settings, clock)
    assert (looks.look(), looks.look()) == (RefusedCount(waiting=12, recent=12, more=False),) * 2
    assert read == [12]
    clock.advance_ms(RECENT_MS + 60_000)
    assert looks.look() == RefusedCount(waiting=12, recent=0, more=False)
    producer = Producer({"bootstrap.servers": settings.bootstrap_servers})
    producer.produce(
        settings.quarantine_topic, None, b"orders/0/9/p", 0, headers=[(RETRIED_TO, b"orders/0/11")]
    )
    assert producer.flush(DEADLINE_S) == 0
    assert looks.look().waiting == 11
    assert len(read) == 2


def test_an_application_without_a_quarantine_has_refused_nothing(settings: Settings) -> None:  # noqa: F811
    other = Settings(app="none", kafka={"bootstrap.servers": settings.bootstrap_servers})
    assert RefusedLooks(other).look() == RefusedCount(waiting=0, recent=0, more=False)
