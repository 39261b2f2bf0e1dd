"""When a runner begins its next transaction, and what goes into it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError

from holdfast.agents.partitions.batches.commit import FEW_ROWS
from holdfast.agents.partitions.batches.intake import LogIntake
from holdfast.agents.partitions.batches.runner import TRANSACTION_S, Runner
from holdfast.agents.partitions.batches.stall import RETRY_S
from holdfast.agents.partitions.types import FoldEvent, FoldLimits
from holdfast.clock import ManualClock
from holdfast.core.engine.declared.processor import Emit, Processor
from holdfast.core.engine.fold.asides import emit_result
from holdfast.core.engine.fold.folding import STEP_RECORDS, Changes, Folder
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.core.engine.state.rows import Rows
from holdfast.errors import FencedError, Later, StillWaitingError
from holdfast.kafka.codes import name_of
from holdfast.kafka.transactions.transactional_producer import UndeliverableError
from tests.agents.partitions.fold_events import HandedEvent, event_of
from tests.support.patience import DEADLINE_S


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


def taking(clock: ManualClock, ms: int, name: str = "slow") -> Processor[bytes, int]:
    """Return a processor whose fold counts, and takes *ms* of *clock* for each record."""

    def fold(rows: Rows[int], event: bytes, at_ms: int) -> None:
        rows["seen"] = rows.get("seen", 0) + 1
        clock.advance_ms(ms)

    return Processor(name=name, source="events", decode=bytes, fold=fold, row=int)


class Part:
    """A partition whose broker answers a commit while `answering` is set; transactions are noted in
    `transactions`, and in `kept` once it is here.
    """

    changelog, partition, fenced_in, sources = "log", 0, True, None
    choices_topics = ()

    def __init__(self, processor: Processor[bytes, int] = COUNT) -> None:
        self.processor, self.folder = processor, Folder(processor, DictStore())
        self.transactions: list[int] = []
        self.emitted: list[list[Emit]] = []
        self.copies: list[list[Emit]] = []
        self.kept: list[tuple[int, int]] = []
        self.begun, self.answering = asyncio.Event(), asyncio.Event()
        self.answering.set()
        self.refusals: list[Exception] = []
        self.stalled: str | None = None

    async def commit(self, changes: Changes, extra: list[Emit], timeout_s: float) -> int:
        self.begun.set()
        self.copies.append(extra)
        if self.refusals:
            raise self.refusals.pop(0)
        await asyncio.sleep(0)
        await self.answering.wait()
        self.transactions.append(changes.records)
        self.emitted.append([*changes.emits])
        return len(self.transactions)

    def noted(self, changes: Changes) -> Changes:
        return changes

    def keep(self, changes: Changes, changelog_next: int) -> None:
        self.kept.append((changelog_next, len(changes.puts)))

    def wake(self) -> None: ...

    def look_at_origins(self) -> None: ...

    @property
    def owner(self) -> Part:
        return self

    @property
    def waiters(self) -> Part:
        return self


class Counts:
    """The counters of a partition, of which nothing is looked at here."""

    waits = 0

    def committed(self, **_: Any) -> None: ...


class Host:
    """The manager that a runner and its intake need. Time is the test's."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.transaction_bytes, self.quarantine_limit = 1 << 20, 0
        self.acked = self.progress = self.threads = self.voided = 0
        self.failures: list[BaseException] = []
        self.losses: list[int] = []
        self.long_folds, self.owned = asyncio.Lock(), True
        self.stalled = dict[tuple[str, int], str]()
        self.parked, self.uncounted = 0, 0
        self.allowed = set[tuple[str, int, int]]()
        self.resting = set[tuple[str, int]]()

    @property
    def feed(self) -> Host:
        return self

    def hold(self, place: tuple[str, int], held: bool) -> None:
        (self.resting.add if held else self.resting.discard)(place)

    @property
    def metrics(self) -> Any:
        return self

    def partition(self, table: str, partition: int) -> Counts:
        return Counts()

    def partitions(self, table: str) -> int:
        return 1

    def owns(self, part: object, epoch: int) -> bool:
        return self.owned

    def void(self, event: FoldEvent, *, counted: bool = True) -> None:
        self.voided += 1
        self.uncounted += not counted

    def done(self, event: FoldEvent, *, counted: bool = True) -> None:
        self.acked += 1
        self.uncounted += not counted

    def park(self, event: FoldEvent) -> None:
        self.parked += 1

    async def may_refuse(self, topic: str, partition: int, offset: int) -> bool:
        return (topic, partition, offset) in self.allowed

    def thread(self, call: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        self.threads += 1
        return asyncio.get_running_loop().run_in_executor(None, call, *args)

    def progressed(self) -> None:
        self.progress += 1

    def lost(self, part: object, epoch: int, error: FencedError) -> None:
        self.losses.append(epoch)

    def crash(self, error: BaseException) -> None:
        self.failures.append(error)


def runner_of(host: Host, part: Any) -> Runner:
    """Return the runner of a partition of one source."""
    limits = FoldLimits(
        transaction_bytes=host.transaction_bytes,
        commit_timeout_s=10.0,
        later_timeout_s=60.0,
        quarantine_topic="quarantine",
        quarantine_limit=host.quarantine_limit,
    )
    intake = LogIntake(host, part, limits.transaction_bytes, clock=host.clock)
    return Runner(host, part, intake, limits, clock=host.clock)


async def ended(runner: Runner) -> None:
    """Wait for the job under way."""
    assert runner.job is not None
    await asyncio.wait_for(runner.job, DEADLINE_S)


def events_of(first: int, records: int) -> HandedEvent:
    return event_of(first, [b"x"] * records)


def test_what_arrives_while_a_transaction_is_under_way_is_the_next_one() -> None:
    async def run() -> None:
        part, host = Part(), Host()
        part.answering.clear()
        runner = runner_of(host, part)
        runner.enqueue(events_of(0, 1))
        await asyncio.wait_for(part.begun.wait(), DEADLINE_S)
        runner.enqueue(events_of(1, 1))
        runner.enqueue(events_of(2, 1))
        part.answering.set()
        await ended(runner)
        assert (part.transactions, part.kept) == ([1, 2], [(1, 1), (2, 1)])
        assert (runner.idle(), host.acked, host.failures) == (True, 3, [])

    asyncio.run(run())


def test_a_partition_that_is_lost_while_its_transaction_is_written_ends_nothing_else() -> None:
    """A lost partition has no folder, nor has one whose store is found rotten by a reader; the transaction
    ends with that it began with.
    """

    async def run() -> None:
        part, host = Part(), Host()
        part.answering.clear()
        runner = runner_of(host, part)
        runner.enqueue(events_of(0, 1))
        await asyncio.wait_for(part.begun.wait(), DEADLINE_S)
        del part.folder
        part.answering.set()
        await ended(runner)
        assert (part.transactions, host.acked, host.failures) == ([1], 1, [])

    asyncio.run(run())


def test_many_rows_are_written_in_a_thread_and_few_are_not() -> None:
    async def run(records: int) -> int:
        part, host = Part(EACH), Host()
        runner = runner_of(host, part)
        runner.enqueue(events_of(0, records))
        await ended(runner)
        assert part.kept
        return host.threads

    assert (asyncio.run(run(3)), asyncio.run(run(3 * FEW_ROWS))) == (0, 1)


def test_a_partition_whose_write_is_fenced_is_lost_and_its_records_are_dropped() -> None:
    async def run() -> None:
        part, host = Part(), Host()
        part.refusals = [FencedError("there is a newer owner")]
        runner = runner_of(host, part)
        runner.enqueue(events_of(0, 3))
        await ended(runner)
        assert (part.transactions, host.losses, host.voided, host.acked, host.failures) == ([], [0], 1, 0, [])

    asyncio.run(run())


def test_others_have_their_turn_while_a_large_transaction_is_made() -> None:
    host = Host()
    part, turns = Part(taking(host.clock, 4)), 0

    async def run() -> None:
        nonlocal turns
        runner = runner_of(host, part)
        for first in range(20):
            runner.enqueue(events_of(first, 1))
        while not runner.idle():
            turns += 1
            await asyncio.sleep(0)

    asyncio.run(run())
    assert part.transactions == [20]
    assert turns > 20, "one for each fetch that is folded"


def test_others_have_their_turn_after_the_first_record_of_a_slow_fold() -> None:
    late = 0

    async def run() -> None:
        nonlocal late
        host = Host()
        part = Part(taking(host.clock, 60))
        runner = runner_of(host, part)
        runner.enqueue(events_of(0, 20))
        seen = 0
        while not runner.idle():
            await asyncio.sleep(0)
            folded = part.folder.rows.get("seen", 0)
            late, seen = max(late, folded - seen), folded
        assert seen == 20

    asyncio.run(run())
    assert late == 1


STEP_MS = 60
"""A record that takes so long is a step of its own, and longer than a turn."""


def folded_side_by_side(records: int) -> list[tuple[str, int]]:
    """Fold two partitions of slow *records* each; return whose they were in order, and how many in a row."""
    folded: list[str] = []
    host = Host()

    def noting(name: str) -> Part:
        def note(rows: Rows[int], event: bytes, at_ms: int) -> None:
            folded.append(name)
            host.clock.advance_ms(STEP_MS)

        return Part(Processor(name=name, source="events", decode=bytes, fold=note, row=int))

    async def run() -> None:
        parts = [noting("a"), noting("b")]
        runners = [runner_of(host, part) for part in parts]
        for runner in runners:
            runner.enqueue(events_of(0, records))
        for runner in runners:
            await ended(runner)
        assert [part.transactions for part in parts] == [[records]] * 2

    asyncio.run(run())
    return [(name, len(list(group))) for name, group in itertools.groupby(folded)]


def test_a_long_fold_that_ends_within_its_long_turn_is_not_interrupted() -> None:
    assert folded_side_by_side(4) == [
        ("a", 1),
        ("b", 1),
        ("a", 3),
        ("b", 3),
    ], "a turn each, and then all that is left of it"


def test_a_partition_that_waits_for_a_long_fold_has_its_long_turn_before_that_has_ended() -> None:
    rest = [("a", 4), ("b", 4)]  # 240 ms: the first step that ends after LONG_TURN_S
    assert folded_side_by_side(13) == [("a", 1), ("b", 1), *rest, *rest, *rest]


def test_a_wait_for_the_long_folds_of_other_partitions_does_not_end_a_transaction() -> None:
    records = int(TRANSACTION_S * 1000 / STEP_MS) - 3
    folded_side_by_side(records)  # together longer than TRANSACTION_S, and each is one transaction


def test_a_short_fold_waits_for_no_long_one() -> None:
    async def run() -> None:
        part, host = Part(), Host()
        runner = runner_of(host, part)
        async with host.long_folds:
            runner.enqueue(events_of(0, 10))
            await ended(runner)
        assert part.transactions == [10]

    asyncio.run(run())


def test_a_long_fold_whose_partition_is_lost_ends_and_the_next_has_its_turn() -> None:
    async def run() -> None:
        host = Host()
        part = Part(taking(host.clock, STEP_MS))
        runner = runner_of(host, part)
        async with host.long_folds:
            runner.enqueue(events_of(0, 20))
            for _ in range(10):
                await asyncio.sleep(0)
            assert part.folder.marker.applied[0] == -1, "it waits"
            host.owned = False
        await ended(runner)
        assert sum(part.transactions) <= 2
        assert (host.acked, host.voided, host.failures, host.long_folds.locked()) == (0, 1, [], False)

    asyncio.run(run())


def test_a_transaction_that_is_folded_for_long_ends_and_the_rest_is_the_next() -> None:
    host, each_ms = Host(), 10
    part = Part(taking(host.clock, each_ms))

    async def run() -> None:
        runner = runner_of(host, part)
        runner.enqueue(events_of(0, 1_500))
        runner.enqueue(events_of(1_500, 10))
        while not runner.idle():
            await ended(runner)

    asyncio.run(run())
    most = int(TRANSACTION_S * 1000) // each_ms
    *full, _ = part.transactions
    assert full
    assert all(most < records <= most + 6 for records in full), "it ends with the step that is under way"
    assert (sum(part.transactions), part.folder.marker.applied[0], part.folder.rows["seen"]) == (
        1_510,
        1_509,
        1_510,
    )
    assert (host.acked, host.failures) == (2, []), "each when all of it is durable"
    assert host.progress == len(part.transactions), "a fetch of many transactions is not stuck"


def transactions_of(records: int, room_bytes: int) -> list[int]:
    """Hand over three fetches of so many records of 1 ms, two of them while the first is folded, and return
    what each transaction holds.
    """
    host = Host()
    host.transaction_bytes = room_bytes
    part = Part(taking(host.clock, 1))

    async def run() -> None:
        runner = runner_of(host, part)
        runner.enqueue(events_of(0, records))
        for _ in range(3):
            await asyncio.sleep(0)
        assert 0 < part.folder.rows.get("seen", 0) < records
        runner.enqueue(events_of(records, records))
        runner.enqueue(events_of(2 * records, records))
        await ended(runner)
        assert (runner.idle(), host.acked, host.voided, host.failures) == (True, 3, 0, [])

    asyncio.run(run())
    assert (part.folder.marker.applied[0], part.folder.rows["seen"]) == (
        3 * records - 1,
        3 * records,
    )
    return part.transactions


LONG, SHORT = 200, 50
"""Records of 1 ms: so many take longer than BACKLOG_S, and so many do not."""


def test_a_transaction_that_is_folded_for_long_takes_the_records_that_arrive_in_that_time() -> None:
    assert transactions_of(LONG, room_bytes=10 * LONG) == [3 * LONG]


def test_what_does_not_fit_a_transaction_is_left_to_the_next() -> None:
    assert transactions_of(LONG, room_bytes=2 * LONG) == [2 * LONG, LONG]


def test_what_arrives_while_a_short_transaction_is_folded_is_the_next_one() -> None:
    assert transactions_of(SHORT, room_bytes=10 * SHORT) == [SHORT, 2 * SHORT]


def transacted(processor: Processor[bytes, int], records: int) -> Part:
    """Hand over so many records at once, and return the partition that holds them all."""
    part, host = Part(processor), Host()

    async def run() -> None:
        runner = runner_of(host, part)
        runner.enqueue(events_of(0, records))
        while not runner.idle():
            await ended(runner)

    asyncio.run(run())
    assert (part.folder.marker.applied[0], part.folder.rows["seen"], sum(part.transactions)) == (
        records - 1,
        records,
        records,
    )
    assert (host.acked, host.failures) == (1, [])
    return part


def test_a_transaction_that_emits_much_ends_and_the_rest_is_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.agents.partitions.batches.runner.TRANSACTION_EMITS", 100)
    part = transacted(ECHO, 5_000)
    assert max(map(len, part.emitted)) <= 100 + STEP_RECORDS, "some of a step more than wanted"
    assert [emit.value for emits in part.emitted for emit in emits] == [
        b"%d" % seen for seen in range(1, 5_001)
    ]


def test_a_transaction_that_changes_many_rows_ends_and_the_rest_is_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.agents.partitions.batches.runner.TRANSACTION_ROWS", 100)
    assert max(transacted(EACH, 5_000).transactions) <= 100 + STEP_RECORDS, "some of a step more than wanted"
    assert transacted(COUNT, 5_000).transactions == [5_000], "one row, changed often, is one row"


# -- partitions that are stalled

TOO_LARGE = UndeliverableError("echoes", "MSG_SIZE_TOO_LARGE: too large")


def fail(rows: Rows[int], event: bytes, at_ms: int) -> None:
    if event == b"x":
        raise ValueError("poison")


POISON = Processor(name="poison", source="events", decode=bytes, fold=fail, row=int)


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a stalled partition look in each turn of the event loop."""
    monkeypatch.setattr("holdfast.agents.partitions.batches.stall.LOOK_S", 0.0)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110  several things are awaited in this way, none of which tells
            await asyncio.sleep(0)


async def looked(host: Host, times: int) -> None:
    """Wait until a stalled partition has looked so often whether its time has come."""
    wanted = host.progress + times
    await until(lambda: host.progress >= wanted)


async def refused(host: Host, part: Part, left: int) -> None:
    """Wait until a partition is stalled and its topic will refuse *left* more transactions."""
    await until(lambda: len(part.refusals) == left and host.resting)


@pytest.mark.usefixtures("quick_looks")
def test_a_partition_whose_record_a_topic_refuses_is_stalled_says_why_and_resumes() -> None:
    async def run() -> None:
        part, host = Part(ECHO), Host()
        part.refusals = [TOO_LARGE] * 3
        runner = runner_of(host, part)
        runner.enqueue(events_of(0, 1))
        for tries_left in (2, 1, 0):
            await refused(host, part, tries_left)
            assert "echo partition 0 is stalled: topic echoes refused a record" in host.stalled["echo", 0]
            assert "raise its max.message.bytes" in host.stalled["echo", 0]
            assert host.resting == {("events", 0)}, "it fetches nothing that others would have to wait for"
            host.clock.advance_ms(int(RETRY_S * 1000) - 1)
            await looked(host, 2)
            assert len(part.refusals) == tries_left, "it does not try again before its time"
            host.clock.advance_ms(1)
        await ended(runner)
        assert (part.transactions, host.acked, host.failures, host.stalled, host.resting) == (
            [1],
            1,
            [],
            {},
            set(),
        )

    asyncio.run(run())


@pytest.mark.usefixtures("quick_looks")
def test_a_stalled_partition_is_given_up_when_it_is_revoked_and_may_come_back() -> None:
    async def run() -> None:
        part, host = Part(ECHO), Host()
        part.refusals = [TOO_LARGE]
        runner = runner_of(host, part)
        runner.enqueue(events_of(0, 1))
        await until(lambda: host.stalled)
        host.owned = False
        await ended(runner)
        assert (part.transactions, host.voided, host.stalled, host.failures) == ([], 1, {}, [])
        host.owned = True
        runner.enqueue(events_of(0, 1))
        await ended(runner)
        assert [emit.value for emits in part.emitted for emit in emits] == [b"1"], (
            "folded again from where it was"
        )

    asyncio.run(run())


@pytest.mark.usefixtures("quick_looks")
def test_a_quarantine_that_comes_back_gets_whole_copies() -> None:
    async def run() -> None:
        part, host = Part(POISON), Host()
        part.refusals = [UndeliverableError("quarantine", name_of(KafkaError.UNKNOWN_TOPIC_OR_PART))] * 3
        runner = runner_of(host, part)
        runner.enqueue(events_of(0, 1))
        await refused(host, part, 0)
        host.clock.advance_ms(int(RETRY_S * 1000))
        await ended(runner)
        assert [[each.value for each in copies] for copies in part.copies] == [[b"x"], [b"x"], [b""], [b"x"]]
        assert (host.acked, host.failures, host.stalled) == (1, [], {})

    asyncio.run(run())


def test_a_changelog_that_is_gone_ends_the_worker() -> None:
    async def run() -> None:
        part, host = Part(ECHO), Host()
        part.refusals = [UndeliverableError("log", name_of(KafkaError.UNKNOWN_TOPIC_OR_PART))]
        runner = runner_of(host, part)
        runner.enqueue(events_of(0, 1))
        await until(lambda: host.failures)

    asyncio.run(run())


@pytest.mark.usefixtures("quick_looks")
def test_a_partition_that_quarantines_without_end_stalls_after_its_committed_records() -> None:
    async def run(limit: int) -> tuple[Part, Host]:
        part, host = Part(POISON), Host()
        host.quarantine_limit = limit
        runner = runner_of(host, part)
        for first in range(0, 40, 10):
            runner.enqueue(events_of(first, 10))
            if first == 20 and limit:
                await until(lambda: host.stalled)
                break
            await ended(runner)
        if limit:
            assert (
                "20 records in a row were quarantined (quarantine_limit is 15), the last at offset 19 of"
                " events" in host.stalled["poison", 0]
            )
            assert part.folder.marker.applied[0] == 19
            host.owned = False
            await ended(runner)
            assert (host.stalled, host.voided) == ({}, 1)
        return part, host

    part, host = asyncio.run(run(15))
    assert (part.transactions, host.acked, host.failures) == ([10, 10], 2, [])
    part, host = asyncio.run(run(0))
    assert (part.transactions, host.stalled) == ([10] * 4, {})


def test_an_accepted_record_resets_the_count_of_refused_ones() -> None:
    async def run() -> None:
        part, host = Part(POISON), Host()
        host.quarantine_limit = 15
        runner = runner_of(host, part)
        for first in range(0, 60, 10):
            values = [b"x"] * 9 + [b"fine"] if first % 20 else [b"x"] * 10
            event = event_of(first, values)
            runner.enqueue(event)
            await ended(runner)
        assert (part.folder.marker.applied[0], host.stalled) == (59, {})

    asyncio.run(run())


def test_a_result_that_fails_at_each_record_stops_no_partition() -> None:
    def close(rows: Rows[int], event: bytes, at_ms: int) -> list[Emit]:
        emits: list[Emit] = []
        emit_result(rows, emits, "result of window 'w': ", lambda: Emit("echoes", value=1 // 0))  # type: ignore[arg-type]
        return emits

    closing = Processor(name="closing", source="events", decode=bytes, fold=close, row=int, emits=("echoes",))

    async def run() -> None:
        part, host = Part(closing), Host()
        host.quarantine_limit = 5
        runner = runner_of(host, part)
        for first in range(0, 40, 10):
            runner.enqueue(events_of(first, 10))
            await ended(runner)
        assert (part.folder.marker.applied[0], host.stalled) == (39, {})

    asyncio.run(run())


# -- folds that have to wait, and records that stop


class Registry:
    """A service that a fold needs: it answers while it is `there`."""

    def __init__(self) -> None:
        self.there, self.asked = False, 0

    def fold(self, rows: Rows[int], event: bytes, at_ms: int) -> None:
        rows["seen"] = rows.get("seen", 0) + 1
        if event == b"needs":
            self.asked += 1
            if not self.there:
                raise Later("nobody answers", needs="registry http://r:8081")

    def processor(self) -> Processor[bytes, int]:
        return Processor(name="needy", source="events", decode=bytes, fold=self.fold, row=int)


@pytest.mark.usefixtures("quick_looks")
def test_a_fold_that_has_to_wait_is_tried_again_and_its_partition_says_what_it_needs() -> None:
    async def run() -> None:
        registry = Registry()
        part, host = Part(registry.processor()), Host()
        runner = runner_of(host, part)
        runner.enqueue(event_of(0, [b"x", b"x", b"needs", b"x"]))
        runner.enqueue(events_of(4, 2))
        await until(lambda: host.stalled)
        said = "needy partition 0 waits for registry http://r:8081, at offset 2 of events: nobody answers"
        assert (host.stalled["needy", 0], part.stalled) == (said, said)
        assert part.transactions == [2], "what lies before it is committed"
        assert host.parked == 2, "what waits takes no room that others need"
        assert host.resting == {("events", 0)}
        asked = registry.asked
        host.clock.advance_ms(101)
        await until(lambda: registry.asked > asked)
        assert host.stalled["needy", 0] == said
        assert host.resting == {("events", 0)}, "nothing more is fetched between two tries"
        runner.enqueue(events_of(6, 1))
        assert host.parked == 3
        registry.there = True
        host.clock.advance_ms(5_000)
        await ended(runner)
        assert (
            part.folder.marker.applied[0],
            part.folder.rows["seen"],
            host.acked,
            host.failures,
        ) == (6, 7, 3, [])
        assert (host.stalled, host.resting, host.uncounted, part.stalled) == ({}, set(), 3, None)
        runner.enqueue(events_of(7, 1))
        await ended(runner)
        assert (host.acked, host.parked, host.uncounted) == (4, 3, 3), "counted again"

    asyncio.run(run())


@pytest.mark.usefixtures("quick_looks")
def test_a_worker_ends_when_what_a_fold_needs_does_not_come() -> None:
    async def run() -> None:
        registry = Registry()
        part, host = Part(registry.processor()), Host()
        runner = runner_of(host, part)
        runner.enqueue(event_of(0, [b"needs"]))
        for _ in range(1_000):
            host.clock.advance_ms(500)
            for _ in range(4):
                await asyncio.sleep(0)
            if host.failures:
                break
        (error,) = host.failures
        assert isinstance(error, StillWaitingError)
        assert error.needs == "registry http://r:8081"
        assert "needy: offset 0 of events partition 0 has waited 6" in str(error)
        assert 15 < registry.asked < 40, "twice as long each time, up to 5 s; at full speed and with care"

    asyncio.run(run())


@pytest.mark.usefixtures("quick_looks")
def test_a_partition_that_waits_is_given_up_when_it_is_revoked() -> None:
    async def run() -> None:
        registry = Registry()
        part, host = Part(registry.processor()), Host()
        runner = runner_of(host, part)
        runner.enqueue(event_of(0, [b"needs"]))
        await until(lambda: host.stalled)
        host.owned = False
        await ended(runner)
        assert (host.stalled, host.resting, host.voided, host.failures) == ({}, set(), 1, [])
        assert (part.stalled, part.folder.marker.applied[0]) == (None, -1)

    asyncio.run(run())


@pytest.mark.usefixtures("quick_looks")
def test_a_record_that_may_not_be_refused_stops_its_partition_until_an_operator_lets_it() -> None:
    async def run() -> None:
        stopping = Processor(
            name="poison", source="events", decode=bytes, fold=fail, row=int, on_error="stop"
        )
        part, host = Part(stopping), Host()
        runner = runner_of(host, part)
        runner.enqueue(event_of(0, [b"fine", b"x", b"fine", b"x"]))
        for offset in (1, 3):
            at = f"before offset {offset} "
            await until(lambda at=at: at in host.stalled.get(("poison", 0), ""))  # type: ignore[misc]
            said = host.stalled["poison", 0]
            assert "ValueError: poison" in said
            assert f"`holdfast quarantine skip events 0 {offset} --execute`" in said
            assert part.folder.marker.applied[0] == offset - 1
            host.clock.advance_ms(60_000)
            await looked(host, 3)
            assert part.folder.marker.applied[0] == offset - 1, "however long it takes"
            host.allowed.add(("events", 0, offset))
            host.clock.advance_ms(int(RETRY_S * 1000))
        await ended(runner)
        assert (part.folder.marker.applied[0], part.transactions, host.acked) == (3, [1, 2, 1], 1)
        assert (host.stalled, host.failures) == ({}, [])

    asyncio.run(run())
