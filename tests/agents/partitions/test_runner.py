"""When a runner begins its next transaction, and what goes into it."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.agents.partitions.runner import FEW_ROWS, Runner
from holdfast.core.engine.asides import emit_result
from holdfast.core.engine.folding import STEP_RECORDS, Changes, Folder
from holdfast.core.engine.memory_store import DictStore
from holdfast.core.engine.processor import Emit, Processor
from holdfast.core.engine.rows import Rows
from holdfast.kafka.feed import Fetched
from holdfast.tables.producer import UndeliverableError
from holdfast.tables.transactions import UNKNOWN_TOPIC, name_of


def count(rows: Rows[int], event: bytes, at_ms: int) -> None:
    rows["seen"] = rows.get("seen", 0) + 1


COUNT = Processor(name="count", source="events", decode=bytes, fold=count, row=int)


def echo(rows: Rows[int], event: bytes, at_ms: int) -> list[Emit]:
    rows["seen"] = seen = rows.get("seen", 0) + 1
    return [Emit("echoes", value=b"%d" % seen)]


ECHO = Processor(name="echo", source="events", decode=bytes, fold=echo, row=int, emits=("echoes",))


def each(rows: Rows[int], event: bytes, at_ms: int) -> None:
    rows["seen"] = seen = rows.get("seen", 0) + 1
    rows[f"{seen}"] = seen


EACH = Processor(name="each", source="events", decode=bytes, fold=each, row=int)


class Part:
    """A partition whose broker takes a while for each commit; what is written is noted in `transactions`,
    and in `kept` once it is here.
    """

    changelog, partition, fenced_in = "log", 0, True

    def __init__(self, processor: Processor[bytes, int] = COUNT) -> None:
        self.processor, self.folder = processor, Folder(processor, DictStore())
        self.transactions: list[int] = []
        self.emitted: list[list[Emit]] = []
        self.kept: list[tuple[int, int]] = []
        self.begun = asyncio.Event()
        self.refusals: list[Exception] = []

    async def commit(self, changes: Changes, extra: object, timeout_s: float) -> int:
        self.begun.set()
        if self.refusals:
            raise self.refusals.pop(0)
        await asyncio.sleep(0.02)
        self.transactions.append(changes.records)
        self.emitted.append(changes.emits)
        return len(self.transactions)

    def keep(self, changes: Changes, changelog_next: int) -> None:
        self.kept.append((changelog_next, len(changes.puts)))

    def wake_readers(self) -> None: ...


class Desk:
    """What a runner needs of its manager."""

    transaction_bytes, commit_timeout_s, quarantine_topic = 1 << 20, 10.0, "quarantine"

    def __init__(self) -> None:
        self.metrics = SimpleNamespace(partition=lambda *_: SimpleNamespace(committed=lambda **_: None))
        self.acked = self.progress = self.threads = 0
        self.failures: list[BaseException] = []
        self.long_folds, self.owned, self.voided = asyncio.Lock(), True, 0
        self.quarantine_limit, self.held = 0, dict[tuple[str, int], str]()
        self.resting = set[tuple[str, int]]()
        self.feed = SimpleNamespace(
            hold=lambda place, held: self.resting.add(place) if held else self.resting.discard(place)
        )

    def owns(self, part: object, epoch: int) -> bool:
        return self.owned

    def void(self, event: object) -> None:
        self.voided += 1

    async def thread(self, call: Callable[..., Any], *args: Any) -> None:
        self.threads += 1
        call(*args)

    def done(self, event: object) -> None:
        self.acked += 1

    def progressed(self) -> None:
        self.progress += 1

    def crash(self, error: BaseException) -> None:
        self.failures.append(error)


def event_of(first: int) -> Any:
    return events_of(first, 1)


def events_of(first: int, records: int) -> Any:
    fetched = Fetched(0, "events", 0, first, last=first + records - 1, size_bytes=records)
    fetched.records.append(
        range(first, first + records), [1_000] * records, [b"x"] * records, [None] * records, None
    )
    return SimpleNamespace(value=fetched)


def test_what_arrives_while_a_transaction_is_under_way_is_the_next_one() -> None:
    async def run() -> None:
        part, desk = Part(), Desk()
        runner = Runner(desk, part)  # type: ignore[arg-type]
        runner.hand(event_of(0))
        await asyncio.wait_for(part.begun.wait(), 10)
        runner.hand(event_of(1))
        runner.hand(event_of(2))
        await asyncio.wait_for(runner.job, 10)  # type: ignore[arg-type]
        assert (part.transactions, part.kept) == ([1, 2], [(1, 1), (2, 1)])
        assert (runner.idle(), desk.acked, desk.failures) == (True, 3, [])

    asyncio.run(run())


def test_a_partition_that_is_lost_while_its_transaction_is_written_ends_nothing_else() -> None:
    """A lost partition has no folder, nor has one whose store is found rotten by a reader; the transaction ends with that it began with."""

    async def run() -> None:
        part, desk = Part(), Desk()
        runner = Runner(desk, part)  # type: ignore[arg-type]
        runner.hand(event_of(0))
        await asyncio.wait_for(part.begun.wait(), 10)
        del part.folder
        await asyncio.wait_for(runner.job, 10)  # type: ignore[arg-type]
        assert (part.transactions, desk.acked, desk.failures) == ([1], 1, [])

    asyncio.run(run())


def test_many_rows_are_written_in_a_thread_and_few_are_not() -> None:
    async def run(records: int) -> int:
        part, desk = Part(EACH), Desk()
        runner = Runner(desk, part)  # type: ignore[arg-type]
        runner.hand(events_of(0, records))
        await asyncio.wait_for(runner.job, 10)  # type: ignore[arg-type]
        assert part.kept
        return desk.threads

    assert (asyncio.run(run(3)), asyncio.run(run(3 * FEW_ROWS))) == (0, 1)


def test_others_have_their_turn_while_a_large_transaction_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.agents.partitions.runner.TURN_S", 0.0)
    part, desk, turns = Part(), Desk(), 0

    async def run() -> None:
        nonlocal turns
        runner = Runner(desk, part)  # type: ignore[arg-type]
        for first in range(20):
            runner.hand(event_of(first))
        while not runner.idle():
            turns += 1
            await asyncio.sleep(0)

    asyncio.run(run())
    assert part.transactions == [20]
    assert turns > 20, "one for each fetch that is folded"


def test_others_have_their_turn_after_the_first_record_of_a_slow_fold() -> None:
    folds = late = 0

    def slow(rows: Rows[int], event: bytes, at_ms: int) -> None:
        nonlocal folds
        folds += 1
        time.sleep(0.05)

    async def run() -> None:
        nonlocal late
        part, desk = Part(Processor(name="slow", source="events", decode=bytes, fold=slow, row=int)), Desk()
        runner = Runner(desk, part)  # type: ignore[arg-type]
        runner.hand(events_of(0, 20))
        seen = 0
        while not runner.idle():
            await asyncio.sleep(0)
            late, seen = max(late, folds - seen), folds

    asyncio.run(run())
    assert (folds, late) == (20, 1)


def folded_side_by_side(monkeypatch: pytest.MonkeyPatch, long_turn_s: float) -> list[str]:
    """Fold two partitions of 20 steps or more, each longer than a turn, and return whose they were in
    order, consecutive ones once.
    """
    monkeypatch.setattr("holdfast.agents.partitions.runner.TURN_S", 0.0)
    monkeypatch.setattr("holdfast.agents.partitions.runner.LONG_TURN_S", long_turn_s)
    folded: list[str] = []

    def noting(name: str) -> Part:
        def note(rows: Rows[int], event: bytes, at_ms: int) -> None:
            folded.append(name)

        return Part(Processor(name=name, source="events", decode=bytes, fold=note, row=int))

    async def run() -> None:
        desk, parts = Desk(), [noting("a"), noting("b")]
        runners = [Runner(desk, part) for part in parts]  # type: ignore[arg-type]
        for runner in runners:
            runner.hand(events_of(0, 20 * STEP_RECORDS))
        for runner in runners:
            await asyncio.wait_for(runner.job, 10)  # type: ignore[arg-type]
        assert [sum(part.transactions) for part in parts] == [20 * STEP_RECORDS] * 2

    asyncio.run(run())
    return [name for name, _ in itertools.groupby(folded)]


def test_long_folds_go_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    assert folded_side_by_side(monkeypatch, 60.0) == ["a", "b", "a", "b"], (
        "a turn each, and then all that is left of it"
    )


def test_who_waits_for_a_long_fold_has_a_long_turn_before_it_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert len(folded_side_by_side(monkeypatch, 0.0)) >= 2 * 20, "by turns, each of a step"


def test_a_short_fold_waits_for_no_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.agents.partitions.runner.TURN_S", 60.0)

    async def run() -> None:
        part, desk = Part(), Desk()
        runner = Runner(desk, part)  # type: ignore[arg-type]
        async with desk.long_folds:
            runner.hand(events_of(0, 10))
            await asyncio.wait_for(runner.job, 10)  # type: ignore[arg-type]
        assert part.transactions == [10]

    asyncio.run(run())


def test_a_long_fold_whose_partition_is_lost_ends_and_the_next_has_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.agents.partitions.runner.TURN_S", 0.0)

    async def run() -> None:
        part, desk = Part(), Desk()
        runner = Runner(desk, part)  # type: ignore[arg-type]
        async with desk.long_folds:
            runner.hand(events_of(0, 20 * STEP_RECORDS))
            for _ in range(10):
                await asyncio.sleep(0)
            assert part.folder.applied == -1, "it waits"
            desk.owned = False
        await asyncio.wait_for(runner.job, 10)  # type: ignore[arg-type]
        assert sum(part.transactions) <= 2 * STEP_RECORDS
        assert (desk.acked, desk.voided, desk.failures, desk.long_folds.locked()) == (0, 1, [], False)

    asyncio.run(run())


def test_a_transaction_that_is_folded_for_long_ends_and_what_is_left_is_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.agents.partitions.runner.TRANSACTION_S", 0.0)
    part, desk = Part(), Desk()

    async def run() -> None:
        runner = Runner(desk, part)  # type: ignore[arg-type]
        runner.hand(events_of(0, 1_500))
        runner.hand(events_of(1_500, 10))
        while not runner.idle():
            await asyncio.wait_for(runner.job, 10)  # type: ignore[arg-type]

    asyncio.run(run())
    assert len(part.transactions) > 2
    assert (sum(part.transactions), part.folder.applied, part.folder.rows["seen"]) == (1_510, 1_509, 1_510)
    assert (desk.acked, desk.failures) == (2, []), "each when all of it is durable"
    assert desk.progress == len(part.transactions), "a fetch of many transactions is not stuck"


FETCH = 20 * STEP_RECORDS


def transactions_of(monkeypatch: pytest.MonkeyPatch, backlog_s: float, room: int) -> list[int]:
    """Hand over three fetches of 20 steps, two of them while the first is folded, and return what each
    transaction holds.
    """
    monkeypatch.setattr("holdfast.agents.partitions.runner.TURN_S", 0.0)
    monkeypatch.setattr("holdfast.agents.partitions.intake.BACKLOG_S", backlog_s)
    part, desk = Part(), Desk()
    desk.transaction_bytes = room

    async def run() -> None:
        runner = Runner(desk, part)  # type: ignore[arg-type]
        runner.hand(events_of(0, FETCH))
        for _ in range(3):
            await asyncio.sleep(0)
        assert 0 < part.folder.rows.get("seen", 0) < FETCH
        runner.hand(events_of(FETCH, FETCH))
        runner.hand(events_of(2 * FETCH, FETCH))
        await asyncio.wait_for(runner.job, 10)  # type: ignore[arg-type]
        assert (runner.idle(), desk.acked, desk.voided, desk.failures) == (True, 3, 0, [])

    asyncio.run(run())
    assert (part.folder.applied, part.folder.rows["seen"]) == (3 * FETCH - 1, 3 * FETCH)
    return part.transactions


def test_a_transaction_that_is_folded_for_long_takes_in_what_arrives_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert transactions_of(monkeypatch, 0.0, room=10 * FETCH) == [3 * FETCH]


def test_what_does_not_fit_a_transaction_is_left_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    assert transactions_of(monkeypatch, 0.0, room=2 * FETCH) == [2 * FETCH, FETCH]


def test_what_arrives_while_a_short_transaction_is_folded_is_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert transactions_of(monkeypatch, 60.0, room=10 * FETCH) == [FETCH, 2 * FETCH]


def transacted(processor: Processor[bytes, int], records: int) -> Part:
    """Hand over so many records at once, and return the partition that holds them all."""
    part, desk = Part(processor), Desk()

    async def run() -> None:
        runner = Runner(desk, part)  # type: ignore[arg-type]
        runner.hand(events_of(0, records))
        while not runner.idle():
            await asyncio.wait_for(runner.job, 10)  # type: ignore[arg-type]

    asyncio.run(run())
    assert (part.folder.applied, part.folder.rows["seen"], sum(part.transactions)) == (
        records - 1,
        records,
        records,
    )
    assert (desk.acked, desk.failures) == (1, [])
    return part


def test_a_transaction_that_emits_much_ends_and_what_is_left_is_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.agents.partitions.runner.TRANSACTION_EMITS", 100)
    part = transacted(ECHO, 5_000)
    assert max(map(len, part.emitted)) <= 100 + STEP_RECORDS, "some of a step more than wanted"
    assert [emit.value for emits in part.emitted for emit in emits] == [
        b"%d" % seen for seen in range(1, 5_001)
    ]


def test_a_transaction_that_changes_many_rows_ends_and_what_is_left_is_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.agents.partitions.runner.TRANSACTION_ROWS", 100)
    assert max(transacted(EACH, 5_000).transactions) <= 100 + STEP_RECORDS, "some of a step more than wanted"
    assert transacted(COUNT, 5_000).transactions == [5_000], "one row, changed often, is one row"


# -- partitions that stand still

TOO_LARGE = UndeliverableError("echoes", "MSG_SIZE_TOO_LARGE: too large")


def fail(rows: Rows[int], event: bytes, at_ms: int) -> None:
    if event == b"x":
        raise ValueError("poison")


POISON = Processor(name="poison", source="events", decode=bytes, fold=fail, row=int)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  several things are awaited in this way, none of which tells
            await asyncio.sleep(0.01)


def test_a_partition_whose_record_a_topic_refuses_stands_still_says_why_and_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.agents.partitions.runner.HOLD_S", 0.05)

    async def run() -> None:
        part, desk = Part(ECHO), Desk()
        part.refusals = [TOO_LARGE] * 3
        runner = Runner(desk, part)  # type: ignore[arg-type]
        runner.hand(event_of(0))
        await until(lambda: desk.held)
        assert "echo partition 0 stands still: topic echoes refused a record" in desk.held["echo", 0]
        assert "raise its max.message.bytes" in desk.held["echo", 0]
        assert desk.resting == {("events", 0)}, "it fetches nothing that others would have to wait for"
        progress = desk.progress
        await until(lambda: desk.progress > progress)
        assert runner.job is not None
        await asyncio.wait_for(runner.job, 30)
        assert (part.transactions, desk.acked, desk.failures, desk.held, desk.resting) == (
            [1],
            1,
            [],
            {},
            set(),
        )

    asyncio.run(run())


def test_a_partition_that_stands_still_is_given_up_when_it_is_revoked_and_may_come_back() -> None:
    async def run() -> None:
        part, desk = Part(ECHO), Desk()
        part.refusals = [TOO_LARGE]
        runner = Runner(desk, part)  # type: ignore[arg-type]
        runner.hand(event_of(0))
        await until(lambda: desk.held)
        desk.owned = False
        assert runner.job is not None
        await asyncio.wait_for(runner.job, 30)
        assert (part.transactions, desk.voided, desk.held, desk.failures) == ([], 1, {}, [])
        desk.owned = True
        runner.hand(event_of(0))
        await asyncio.wait_for(runner.job, 30)
        assert [emit.value for emits in part.emitted for emit in emits] == [b"1"], (
            "folded again from where it was"
        )

    asyncio.run(run())


def test_a_changelog_that_is_gone_ends_the_worker() -> None:
    async def run() -> None:
        part, desk = Part(ECHO), Desk()
        part.refusals = [UndeliverableError("log", name_of(UNKNOWN_TOPIC))]
        runner = Runner(desk, part)  # type: ignore[arg-type]
        runner.hand(event_of(0))
        await until(lambda: desk.failures)

    asyncio.run(run())


def test_a_partition_that_quarantines_without_end_stands_still_after_what_it_committed() -> None:
    async def run(limit: int) -> tuple[Part, Desk]:
        part, desk = Part(POISON), Desk()
        desk.quarantine_limit = limit
        runner = Runner(desk, part)  # type: ignore[arg-type]
        for first in range(0, 40, 10):
            runner.hand(events_of(first, 10))
            if first == 20 and limit:
                await until(lambda: desk.held)
                break
            await asyncio.wait_for(runner.job, 30)  # type: ignore[arg-type]
        if limit:
            assert (
                "20 records in a row were quarantined (quarantine_limit is 15), the last at offset 19 of events"
                in desk.held["poison", 0]
            )
            assert part.folder.applied == 19
            desk.owned = False
            await asyncio.wait_for(runner.job, 30)  # type: ignore[arg-type]
            assert (desk.held, desk.voided) == ({}, 1)
        return part, desk

    part, desk = asyncio.run(run(15))
    assert (part.transactions, desk.acked, desk.failures) == ([10, 10], 2, [])
    part, desk = asyncio.run(run(0))
    assert (part.transactions, desk.held) == ([10] * 4, {})


def test_one_record_that_is_accepted_begins_the_count_of_refused_ones_anew() -> None:
    async def run() -> None:
        part, desk = Part(POISON), Desk()
        desk.quarantine_limit = 15
        runner = Runner(desk, part)  # type: ignore[arg-type]
        for first in range(0, 60, 10):
            event = events_of(first, 10)
            if first % 20:
                event = SimpleNamespace(value=Fetched(0, "events", 0, first, last=first + 9, size_bytes=10))
                values = [b"x"] * 9 + [b"fine"]
                event.value.records.append(range(first, first + 10), [1_000] * 10, values, [None] * 10, None)
            runner.hand(event)
            await asyncio.wait_for(runner.job, 30)  # type: ignore[arg-type]
        assert (part.folder.applied, desk.held) == (59, {})

    asyncio.run(run())


def test_a_result_that_fails_at_each_record_stops_no_partition() -> None:
    def close(rows: Rows[int], event: bytes, at_ms: int) -> list[Emit]:
        emits: list[Emit] = []
        emit_result(rows, emits, "result of window 'w': ", lambda: Emit("echoes", value=1 // 0))  # type: ignore[arg-type]
        return emits

    closing = Processor(name="closing", source="events", decode=bytes, fold=close, row=int, emits=("echoes",))

    async def run() -> None:
        part, desk = Part(closing), Desk()
        desk.quarantine_limit = 5
        runner = Runner(desk, part)  # type: ignore[arg-type]
        for first in range(0, 40, 10):
            runner.hand(events_of(first, 10))
            await asyncio.wait_for(runner.job, 30)  # type: ignore[arg-type]
        assert (part.folder.applied, desk.held) == (39, {})

    asyncio.run(run())
