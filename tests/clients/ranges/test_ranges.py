"""Ranges on a real broker: blocks shared, taken over after SIGKILL, put aside when they kill their
consumers.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from holdfast.clients.ranges import log
from holdfast.clients.ranges.consumer import RangeConsumer
from holdfast.config import Settings
from holdfast.core.ranges import Keep, Take, Wish
from holdfast.dev import parent_death
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from holdfast.errors import ClaimLostError, ConfigError, TopicError
from tests.clients.claims.claiming import LOG_APPEND, scenario, until
from tests.support import own_broker
from tests.support.limits import AwakeClock
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT

holdfast_broker, broker = own_broker.holdfast_broker, own_broker.broker

LEASE_S = 2.0


class Field:
    """Topics of one test, and members on them: those of this process lose no block if it stalls."""

    def __init__(self, broker: SessionBroker, create: FreshTopic) -> None:
        self.config = {name: str(value) for name, value in broker.config.items()}
        self.topic, self.dead = create("photos", partitions=2), create("dead")
        self.ranges = create("ranges", partitions=2, config=LOG_APPEND)
        self.group = f"resize-{uuid.uuid4().hex[:6]}"
        self.settings = Settings(kafka=self.config)
        self.children: list[subprocess.Popen[str]] = []
        self._awake = AwakeClock()
        self._awake.__enter__()

    def named(self, client: str) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "group": self.group,
            "client": client,
            "block_messages": 10,
            "lease_s": LEASE_S,
            "maximum_deliveries": 2,
            "dead_letters": self.dead,
            "ranges_topic": self.ranges,
            "request_timeout_s": DEADLINE_S,
        }

    def consumer(self, client: str, **more: Any) -> RangeConsumer:
        return RangeConsumer(self.settings, **{**self.named(client), "clock": self._awake, **more})

    def fill(self, count: int, partition: int = 0) -> None:
        producer = Producer({**self.config, "linger.ms": 0})
        for number in range(count):
            producer.produce(self.topic, b"%d" % number, partition=partition)
        assert producer.flush(DEADLINE_S) == 0

    def process(self, client: str, *, die_at: int = -1, work_s: float = 0.0) -> subprocess.Popen[str]:
        told = {"settings": self.config, "named": self.named(client), "die_at": die_at, "work_s": work_s}
        child = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-S",
                parent_death.__file__,
                str(os.getpid()),
                sys.executable,
                "-P",
                "-m",
                "tests.clients.ranges.process",
            ],
            env={**os.environ, "PYTHONPATH": str(ROOT), "RANGE_PROCESS": json.dumps(told)},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.children.append(child)
        return child

    def died(self, child: subprocess.Popen[str]) -> set[tuple[int, int]]:
        """Return the messages that a process handled before it died."""
        out, _ = child.communicate(timeout=DEADLINE_S)
        return {tuple(json.loads(line)) for line in out.splitlines()}

    def add_partitions(self, topic: str, count: int) -> None:
        admin = AdminClient({**self.config})
        admin.create_partitions([NewPartitions(topic, count)])[topic].result(DEADLINE_S)

    def delete_all(self) -> None:
        """Have all of the log of wishes deleted, as an administrator may."""
        reader = Consumer({**self.config, "group.id": "nobody"})
        try:
            places = [TopicPartition(self.ranges, home) for home in range(2)]
            for place in places:
                place.offset = reader.get_watermark_offsets(place, DEADLINE_S)[1]
        finally:
            reader.close()
        self.delete(*places)

    def delete(self, *places: TopicPartition) -> None:
        """Have all before these offsets deleted."""
        admin = AdminClient({**self.config})
        for deleted in admin.delete_records(list(places)).values():
            deleted.result(DEADLINE_S)

    def dead_letters(self) -> list[bytes]:
        reader = Consumer({**self.config, "group.id": "nobody", "enable.auto.commit": False})
        try:
            end = reader.get_watermark_offsets(TopicPartition(self.dead, 0), DEADLINE_S)[1]
            reader.assign([TopicPartition(self.dead, 0, OFFSET_BEGINNING)])
            found: list[bytes] = []
            for each in reader.consume(end, DEADLINE_S) if end else []:
                headers: Any = each.headers() or []
                found += [value for name, value in headers if name == "holdfast-source"]
            return found
        finally:
            reader.close()

    def close(self) -> None:
        self._awake.__exit__()
        for child in self.children:
            if child.poll() is None:
                child.kill()
            child.wait(DEADLINE_S)
            if child.stdout is not None:
                child.stdout.close()


@pytest.fixture
def field(broker: SessionBroker, fresh_topic: FreshTopic) -> Iterator[Field]:
    found = Field(broker, fresh_topic)
    yield found
    found.close()


async def work(
    consumer: RangeConsumer, seen: list[tuple[int, int]], pause_s: float = 0.0, done: list[int] | None = None
) -> None:
    """Note the messages *seen* and, block by block, how many messages were reported *done*."""
    async for block in consumer:
        for record in block.records:
            seen.append((block.partition, record.offset() or 0))
            if pause_s:
                await asyncio.sleep(pause_s)
        await block.done()
        if done is not None:
            done.append(len(block.records))


@scenario
async def test_three_members_share_two_partitions_and_handle_every_message_once(field: Field) -> None:
    field.fill(100, 0)
    field.fill(100, 1)
    seen: list[list[tuple[int, int]]] = [[], [], []]
    patient = {"lease_s": 600.0}
    async with (
        field.consumer("a", **patient) as a,
        field.consumer("b", **patient) as b,
        field.consumer("c", **patient) as c,
    ):
        tasks = [
            asyncio.create_task(work(each, out, 0.005)) for each, out in zip((a, b, c), seen, strict=True)
        ]
        await until("all to be handled", lambda: sum(map(len, seen)) >= 200)
        field.fill(5)  # into blocks that were claimed before there was anything in them
        await until("what came late to be handled", lambda: sum(map(len, seen)) >= 205)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    handled = [each for out in seen for each in out]
    assert sorted(handled) == [(0, offset) for offset in range(105)] + [(1, offset) for offset in range(100)]
    assert all(seen), "each had a part of it"


@scenario
async def test_the_open_blocks_of_a_killed_member_are_finished_by_another(field: Field) -> None:
    field.fill(60, 0)
    field.fill(60, 1)
    child = field.process("first", die_at=25, work_s=0.001)
    before = await asyncio.to_thread(field.died, child)
    assert child.returncode != 0
    assert len(before) < 120
    seen: list[tuple[int, int]] = []
    async with field.consumer("second") as second:
        task = asyncio.create_task(work(second, seen))
        await until(
            "the rest to be handled",
            lambda: before | set(seen) == {(at, offset) for at in (0, 1) for offset in range(60)},
        )
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert len(seen) == len(set(seen))
    assert len(before & set(seen)) <= 2 * 10, (
        "only what was not noted as done comes again: at most a block of each partition"
    )
    assert field.dead_letters() == []


@scenario
async def test_a_message_that_kills_every_member_goes_to_the_dead_letters_and_no_later_one_does(
    field: Field,
) -> None:
    field.fill(14)
    before: set[tuple[int, int]] = set()
    for client in ("first", "second"):
        before |= await asyncio.to_thread(field.died, field.process(client, die_at=13))
    field.fill(16)  # the first six into the block that killed them
    seen: list[tuple[int, int]] = []
    async with field.consumer("third") as third:
        task = asyncio.create_task(work(third, seen))
        await until("the block to be put aside", lambda: third.buried == 4)
        await until(
            "the rest to be handled",
            lambda: {offset for _, offset in before | set(seen)} >= {*range(10), *range(14, 30)},
        )
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert not {offset for _, offset in seen} & set(range(10, 14)), "nobody was given it a third time"
    assert field.dead_letters() == [f"{field.topic}/0/{offset}".encode() for offset in range(10, 14)]


@scenario
async def test_failed_messages_come_again_and_lost_ones_cannot_be_done(field: Field) -> None:
    field.fill(5)
    async with field.consumer("one", lease_s=600.0) as consumer:
        block = await anext(consumer)
        await block.fail()
        with pytest.raises(ClaimLostError):
            await block.done()
        again = await anext(consumer)
        assert (again.first_offset, again.next_offset, again.deliveries) == (0, 5, 2)
        await again.done()


@pytest.mark.variant
@scenario
async def test_a_handler_that_holds_up_the_event_loop_for_several_leases_keeps_its_block(
    field: Field,
) -> None:
    field.fill(5)
    async with field.consumer("one") as one, field.consumer("two") as two:
        block = await anext(one)
        time.sleep(3 * LEASE_S)  # noqa: ASYNC251  as a handler does that computes
        assert block.is_held
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(two), 2 * LEASE_S)
        await block.done()


@scenario
async def test_a_block_whose_handler_exceeds_its_deadline_goes_to_another(
    field: Field, caplog: pytest.LogCaptureFixture
) -> None:
    field.fill(5)
    async with field.consumer("one", handler_timeout_s=2 * LEASE_S) as one, field.consumer("two") as two:
        block = await anext(one)
        taken = await asyncio.wait_for(anext(two), DEADLINE_S)
        assert (taken.first_offset, taken.deliveries) == (0, 2)
        assert not block.is_held
        with pytest.raises(ClaimLostError):
            await block.done()
        await taken.done()
    told = [each.getMessage() for each in caplog.records if "handler_timeout_s is 4" in each.getMessage()]
    assert len(told) == 2
    assert "the block from offset 0 on" in told[0]


@scenario
async def test_who_leaves_gives_its_blocks_back_at_once_also_after_a_cancelled_wait(field: Field) -> None:
    field.fill(12)
    async with field.consumer("one", lease_s=600.0) as consumer:
        block = await anext(consumer)
        assert (block.partition, block.first_offset, block.next_offset) == (0, 0, 10)
        await block.done()
        block = await anext(consumer)
        waiting = asyncio.ensure_future(anext(consumer))
        await asyncio.sleep(0)
        waiting.cancel()
    assert not block.is_held
    async with field.consumer("two", lease_s=600.0) as consumer:
        again = await asyncio.wait_for(anext(consumer), DEADLINE_S)
        assert (again.first_offset, again.next_offset, again.deliveries) == (10, 12, 2)
        await again.done()
    assert field.dead_letters() == []


@pytest.mark.kafka
@scenario
async def test_an_error_of_the_callers_own_is_raised_also_where_no_broker_takes_the_blocks_back(
    field: Field, broker: SessionBroker, caplog: pytest.LogCaptureFixture
) -> None:
    field.fill(10)

    async def work() -> None:
        with ExitStack() as outage:
            async with field.consumer("one") as consumer:
                await anext(consumer)
                consumer._log._broker.timeout_s = 2.0
                outage.enter_context(own_broker.frozen(broker))
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await work()
    assert [each for each in caplog.records if "blocks were not given back" in each.getMessage()]


@scenario
async def test_a_topic_that_is_missing_is_named(field: Field) -> None:
    for more in ({"topic": "nowhere"}, {"ranges_topic": "nowhere"}, {"dead_letters": "nowhere"}):
        with pytest.raises(TopicError, match="nowhere"):
            async with field.consumer("one", **more):
                pass
    with pytest.raises(ConfigError):
        field.consumer("one", block_messages=0)
    for more in ({"dead_letters": field.topic}, {"ranges_topic": field.topic}, {"ranges_topic": field.dead}):
        with pytest.raises(ConfigError, match="must be three topics"):
            field.consumer("one", **more)


@scenario
async def test_a_topic_that_is_deleted_and_made_again_is_not_taken_for_the_old_one(
    field: Field, broker: SessionBroker, caplog: pytest.LogCaptureFixture
) -> None:
    field.topic = broker.create_topic("anew")
    field.fill(30)
    async with field.consumer("one") as consumer:
        for _ in range(3):
            await (await anext(consumer)).done()
        broker.delete_topics([field.topic])
        waiting = asyncio.ensure_future(anext(consumer))

        def is_told() -> bool:
            return any("until then this member waits" in each.getMessage() for each in caplog.records)

        await until("the line about the deleted topic", is_told)
        # Longer than a lease: what keeps blocks meets the missing topic too.
        await asyncio.sleep(2 * LEASE_S)
        assert not waiting.done()
        broker.create_topic(field.topic, exact=True)
        try:
            field.fill(5)
            block = await asyncio.wait_for(waiting, DEADLINE_S)
            assert (block.first_offset, len(block.records)) == (0, 5)
        except BaseException:
            broker.delete_topics([field.topic])
            raise
    try:
        async with field.consumer("one") as consumer:
            block = await anext(consumer)
            assert (block.first_offset, len(block.records)) == (0, 5)
            await block.done()
    finally:
        broker.delete_topics([field.topic])
    (told,) = [each.getMessage() for each in caplog.records if "made again" in each.getMessage()]
    assert told.startswith(f"{field.topic}/0 was deleted and made again: group {field.group} had done all")


@scenario
async def test_the_log_of_wishes_stays_short_and_a_member_that_finds_only_its_end_continues_exactly(
    field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "BASE_EVERY", 10)
    monkeypatch.setattr(log, "TRIM_RECORDS", 20)
    field.fill(300, 0)
    field.fill(300, 1)
    seen: list[tuple[int, int]] = []
    done: list[int] = []
    long = partial(field.consumer, lease_s=60.0)  # no block is another's because the machine is busy
    async with long("a") as a, long("b") as b:
        tasks = [asyncio.create_task(work(each, seen, done=done)) for each in (a, b)]
        await until("all to be done", lambda: sum(done) >= 600)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    reader = Consumer({**field.config, "group.id": "nobody"})
    try:
        ends = [
            reader.get_watermark_offsets(TopicPartition(field.ranges, home), DEADLINE_S) for home in range(2)
        ]
    finally:
        reader.close()
    written, kept = sum(end for _, end in ends), sum(end - begin for begin, end in ends)
    assert written > 150
    assert kept < 100, f"{ends}: what nobody needs is deleted"
    field.fill(40, 0)
    async with long("newcomer") as newcomer:
        task = asyncio.create_task(work(newcomer, seen))
        await until("what came later", lambda: len(set(seen)) >= 640)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert sorted(seen) == [(0, offset) for offset in range(340)] + [(1, offset) for offset in range(300)]


@pytest.mark.variant
@scenario
async def test_who_slept_while_its_log_was_shortened_begins_again_where_it_begins(
    field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "BASE_EVERY", 10)
    monkeypatch.setattr(log, "TRIM_RECORDS", 1)  # so that one Base is all there is
    field.fill(300, 0)
    field.fill(300, 1)
    seen: list[tuple[int, int]] = []
    done: list[int] = []
    long = partial(field.consumer, lease_s=60.0)
    async with long("sleeper") as sleeper:
        with asleep(sleeper, field):
            async with long("a") as a:
                await work_until(a, seen, done, 600)
        field.fill(40, 0)
        await work_until(sleeper, seen, done, 640)
    assert sorted(seen) == [(0, offset) for offset in range(340)] + [(1, offset) for offset in range(300)]


@scenario
async def test_a_member_that_slept_while_all_of_the_log_was_deleted_begins_at_the_groups_offset(
    field: Field,
) -> None:
    field.fill(100, 0)
    field.fill(100, 1)
    seen: list[tuple[int, int]] = []
    done: list[int] = []
    long = partial(field.consumer, lease_s=60.0)
    async with long("sleeper") as sleeper:
        with asleep(sleeper, field):
            async with long("a") as a:
                await work_until(a, seen, done, 200)
            field.delete_all()
        field.fill(40, 0)
        await work_until(sleeper, seen, done, 240)
        async with long("newcomer") as newcomer:
            field.fill(40, 1)
            await asyncio.gather(*(work_until(each, seen, done, 280) for each in (sleeper, newcomer)))
    assert sorted(seen) == [(at, offset) for at in (0, 1) for offset in range(140)]


@scenario
async def test_a_beginning_that_no_broker_reports_is_written_again_by_the_member_that_has_read_it(
    field: Field,
) -> None:
    """The next offset of a member who has read all is still there: only the beginning of the log shows the
    loss.
    """
    field.fill(60, 0)
    field.fill(60, 1)
    seen: list[tuple[int, int]] = []
    long = partial(field.consumer, lease_s=60.0)
    async with long("a") as a:
        await handle(a, seen, 3)
        early = await anext(a)
        held = len(early.records)
        field.delete_all()
        await a._do(a._keep_held)  # as its thread does, however long a handler takes
        async with long("newcomer") as newcomer:
            await handle(newcomer, seen, 8)
            assert early.is_held
            await early.done()
            field.fill(40, 0)
            done = [len(seen) + held]
            await asyncio.gather(*(work_until(each, seen, done, 160) for each in (a, newcomer)))
    seen += [(early.partition, each.offset() or 0) for each in early.records]
    assert sorted(seen) == [(0, offset) for offset in range(100)] + [(1, offset) for offset in range(60)]


@scenario
async def test_who_finds_that_another_has_begun_its_rows_takes_them_as_they_are(field: Field) -> None:
    """Its log was deleted while it was at work, and a newcomer was faster: what that one wrote counts."""
    field.fill(60, 0)
    field.fill(60, 1)
    seen: list[tuple[int, int]] = []
    long = partial(field.consumer, lease_s=600.0)  # nor does a see to its log while it has a block in hand
    async with long("a") as a:
        await handle(a, seen, 4)
        early = await anext(a)
        field.delete_all()
        async with long("newcomer") as newcomer:
            block = await anext(newcomer)
            assert (block.partition, block.first_offset) == (early.partition, early.first_offset)
            with pytest.raises(ClaimLostError):
                await early.done()
            await block.done()
            seen += [(block.partition, each.offset() or 0) for each in block.records]
            done = [len(seen)]
            await asyncio.gather(*(work_until(each, seen, done, 120) for each in (a, newcomer)))
            for _ in range(2):  # a take that was under way is written before the first is over
                await a._do(a._log.catch_up)
                await newcomer._do(newcomer._log.catch_up)
            rows = [a._log.row(number) for number in (0, 1)]
            assert [newcomer._log.row(number) for number in (0, 1)] == rows
    assert sorted(seen) == [(at, offset) for at in (0, 1) for offset in range(60)]


@scenario
async def test_who_finds_its_own_record_deleted_goes_by_what_that_led_to(
    field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another was so fast that its Base and the deletion came before the record was read."""
    field.fill(30)
    seen: list[tuple[int, int]] = []
    long = partial(field.consumer, lease_s=600.0)
    async with long("a") as a, long("fast") as fast:
        write, wishes = a._log._write, list[Wish]()

        def write_and_shorten(partition: int, wish: Wish) -> int:
            with unassigned(a):
                offset, number = write(partition, wish), fast._log._home_of[partition]
                fast._log.catch_up()
                home = fast._log._homes[number]
                assert all(fast._log._wish_base(row, home.base(row)) for row in list(home.rows))
                field.delete(TopicPartition(field.ranges, number, home.horizon.begin(home.next, 0)))
            wishes.append(wish)
            return offset

        monkeypatch.setattr(a._log, "_write", write_and_shorten)
        await handle(a, seen, 3)
        monkeypatch.setattr(a._log, "_write", write)
        assert a._log.row(0) == fast._log.row(0)
    assert sorted(seen) == [(0, offset) for offset in range(30)]
    assert {type(wish) for wish in wishes} == {Take, Keep}


@scenario
async def test_a_log_of_wishes_that_is_deleted_is_named_and_the_group_continues_in_a_new_one(
    field: Field, broker: SessionBroker
) -> None:
    field.ranges = broker.create_topic("wishes", config=LOG_APPEND)
    # How long a client takes a topic that is gone for one that is not known yet.
    field.settings = Settings(kafka={**field.config, "topic.metadata.propagation.max.ms": "1000"})
    try:
        field.fill(100)
        seen: list[tuple[int, int]] = []
        async with field.consumer("a", lease_s=600.0) as a:
            await handle(a, seen, 5)
            await a._do(a._give_all_back)
            broker.delete_topics([field.ranges])
            with pytest.raises(TopicError, match="and start the members again"):
                await anext(a)
        broker.create_topic(field.ranges, exact=True, config=LOG_APPEND)
        async with field.consumer("a") as a:
            await handle(a, seen, 5)
        assert sorted(seen) == [(0, offset) for offset in range(100)]
    finally:
        broker.delete_topics([field.ranges])


@scenario
async def test_partitions_that_are_added_are_worked_on_too(
    field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "COUNT_EVERY_S", 0.0)
    field.fill(20)
    seen: list[tuple[int, int]] = []
    done: list[int] = []
    async with field.consumer("a", lease_s=600.0) as a:
        await work_until(a, seen, done, 20)
        field.add_partitions(field.topic, 4)
        field.fill(20)
        for added in (2, 3):
            field.fill(20, added)
        async with field.consumer("newcomer", lease_s=600.0) as newcomer:
            await asyncio.gather(*(work_until(each, seen, done, 80) for each in (a, newcomer)))
    assert sorted(seen) == [
        *((0, offset) for offset in range(40)),
        *((at, offset) for at in (2, 3) for offset in range(20)),
    ]


@scenario
async def test_partitions_that_are_added_to_the_log_of_wishes_are_reported(
    field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "COUNT_EVERY_S", 0.0)
    async with field.consumer("a") as a:
        field.add_partitions(field.ranges, 3)
        with pytest.raises(TopicError, match=r"has 3 partitions, and had 2: .* stop all members"):
            await anext(a)


async def handle(consumer: RangeConsumer, seen: list[tuple[int, int]], blocks: int) -> None:
    """Have *consumer* handle so many blocks, each to its end."""
    for _ in range(blocks):
        block = await anext(consumer)
        seen += [(block.partition, each.offset() or 0) for each in block.records]
        await block.done()


@contextmanager
def unassigned(consumer: RangeConsumer) -> Iterator[None]:
    """Have a member read nothing in a call of its own thread; then it reads on where it was."""
    reader = consumer._log._reader
    assert reader is not None
    starts = dict(reader.next)
    reader.consumer.unassign()
    yield
    reader.consumer.assign([TopicPartition(*place, offset) for place, offset in starts.items()])


@contextmanager
def asleep(consumer: RangeConsumer, field: Field) -> Iterator[None]:
    """Have the client of a member fetch nothing, like the client of a stalled process."""
    reader = consumer._log._reader
    assert reader is not None
    homes = [TopicPartition(field.ranges, home) for home in range(2)]
    reader.consumer.pause(homes)
    yield
    reader.consumer.resume(homes)


async def work_until(
    consumer: RangeConsumer, seen: list[tuple[int, int]], done: list[int], total: int
) -> None:
    """Let *consumer* work until *total* messages are done."""
    task = asyncio.create_task(work(consumer, seen, done=done))
    await until(f"{total} to be done", lambda: sum(done) >= total or task.done())
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
