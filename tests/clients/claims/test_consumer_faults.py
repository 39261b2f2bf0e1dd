"""ClaimConsumer when things die: members killed or frozen, brokers gone for a while, crashes between the
steps of at most once.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.clients.claims.consumer import ClaimedMessage
from holdfast.core.claims.claim_keys import claim_key
from holdfast.core.claims.frames import ClaimingMessages, Frame, Heartbeat, decode
from holdfast.dev.broker.cluster import Cluster
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from holdfast.errors import ClaimLostError
from tests.clients.claims.claiming import (
    Child,
    GateClock,
    Ground,
    Ownership,
    drain,
    flow,
    scenario,
    take,
    until,
)
from tests.core.claims.test_capture import CAPTURE
from tests.support import own_broker
from tests.support.limits import Slowness, at_most, check

holdfast_broker, broker = own_broker.holdfast_broker, own_broker.broker

BEAT_S = 3.0


@pytest.fixture
def ground(broker: SessionBroker, fresh_topic: FreshTopic) -> Iterator[Ground]:
    with closing(Ground(broker.config, fresh_topic)) as found:
        yield found


@pytest.fixture
def children() -> Iterator[list[Child]]:
    """Give a list to put processes into; they end with the test."""
    started: list[Child] = []
    yield started
    for each in started:
        each.close()


async def feed(ground: Ground, every_s: float) -> None:
    async for _ in flow(ground, every_s):
        pass


@scenario
async def test_a_killed_owner_is_replaced_within_two_intervals_and_a_second(
    ground: Ground, children: list[Child]
) -> None:
    feeding = asyncio.create_task(feed(ground, 0.05))
    child = ground.process("first", heartbeat_interval_s=BEAT_S)
    children.append(child)
    await until("the first owner to work", lambda: len(child.messages) >= 10)
    async with ground.consumer("second", heartbeat_interval_s=BEAT_S) as heir:
        out: list[tuple[float, ClaimedMessage]] = []
        taking = asyncio.create_task(drain(heir, out))
        done = await told_by_a_heartbeat(ground, child)
        with at_most(2 * BEAT_S + 1, "the takeover"):
            child.kill()
            await until("the heir's first message", lambda: out)
        feeding.cancel()
        assert out[0][1].offset > done, "at least once: what a heartbeat has told does not come again"
        assert out[0][1].offset <= child.messages[-1]["offset"] + 1, "and nothing is left out"
        taking.cancel()


async def told_by_a_heartbeat(ground: Ground, child: Child) -> int:
    """Return the offset of the last message of the child, once a heartbeat has reported it done.

    An interval passes until then, or longer if the child or the broker stalls.
    """
    done: int = child.messages[-1]["offset"]
    await until(
        "a heartbeat that tells it is done",
        lambda: any(frame.current_offset > done for frame in ground.frames(Heartbeat)),
    )
    return done


@pytest.mark.promise
@scenario
async def test_a_frozen_owner_hands_out_nothing_after_its_thaw(ground: Ground, children: list[Child]) -> None:
    """But for the one message, if any, that had passed its gate and was on its way to the caller: see the
    next test.
    """
    ground.fill(2_000)
    child = ground.process("first", heartbeat_interval_s=2.0, hold_s=0.02, go_on=True)
    children.append(child)
    await until("the first owner to work", lambda: len(child.messages) >= 20)
    async with ground.consumer("second", heartbeat_interval_s=2.0) as heir:
        child.signal(signal.SIGSTOP)
        out: list[tuple[float, ClaimedMessage]] = []
        taking = asyncio.create_task(drain(heir, out, pause_s=0.01))
        await until("the heir's first message", lambda: out)
        last, stay_before = child.messages[-1]["offset"], child.messages[-1]["epoch"]
        assert last - out[0][1].offset <= 2 * 2.0 / 0.02 + 1, "the heartbeats had told the offset"
        thawed_s = time.monotonic()
        child.signal(signal.SIGCONT)
        await until("the thawed one to have had its chance", lambda: time.monotonic() > thawed_s + 2.5)
        # If the heir stalls in its turn, the claim comes back: only of that stay may there be more.
        late = [each for each in child.messages if each["at_s"] >= thawed_s and each["epoch"] <= stay_before]
        assert [each for each in late if each["gate_s"] >= thawed_s] == [], (
            "its gate was asked after the thaw"
        )
        assert len(late) <= 1
        taken = [message.offset for _, message in out if message.epoch == out[0][1].epoch]
        assert taken == list(range(taken[0], taken[0] + len(taken)))
        await until("an owner", lambda: heir.load == 1 or child.messages[-1]["epoch"] > stay_before)
        assert child.running
        taking.cancel()


FORMS = ("messages", "batches", "blocking")


@scenario
async def test_a_freeze_right_at_the_gate_lets_out_one_message_if_it_comes_after_it_and_none_before_it(
    ground: Ground, children: list[Child]
) -> None:
    """The child stops itself on either side of the gate of its fifth hand-out, until its claim is over;
    each has a group of its own.
    """
    feeding = asyncio.create_task(feed(ground, 0.02))
    for form in FORMS:
        for side in ("before", "after"):
            named = {
                "heartbeat_interval_s": 1.0,
                "form": form,
                "stop_at_gate": [side, 5],
                "go_on": True,
                "group": f"{ground.group}-{form}-{side}",
            }
            children.append(ground.process("frozen", **named))
    await until("all of them to have stopped themselves", lambda: all(each.stopped for each in children))
    stopped_s = time.monotonic()
    await until("their claims to be over", lambda: time.monotonic() > stopped_s + 2 * 1.0)
    thawed_s = time.monotonic()
    for each in children:
        each.signal(signal.SIGCONT)
    # They claim again, and what they then hand out comes after all that they could have handed out of the
    # stay before.
    await until(
        "new stays", lambda: all(each.messages[-1]["epoch"] > stay(each, thawed_s) for each in children)
    )
    feeding.cancel()
    for number, child in enumerate(children):
        form, side = FORMS[number // 2], ("before", "after")[number % 2]
        late = [
            each
            for each in child.messages
            if each["at_s"] >= thawed_s and each["epoch"] <= stay(child, thawed_s)
        ]
        assert [each for each in late if each["gate_s"] >= thawed_s] == [], (form, side)
        assert len({each["gate_s"] for each in late}) == (1 if side == "after" else 0), (form, side, late)
        assert len(late) <= 1 or form == "batches"


def stay(child: Child, before_s: float) -> int:
    """Return the epoch of the last stay that something was handed out of whose gate was asked before
    *before_s*.
    """
    return max(int(each["epoch"]) for each in child.messages if each["gate_s"] < before_s)


@pytest.mark.slow
@scenario
async def test_a_stopped_event_loop_gives_its_claim_up_and_hands_out_nothing_more(
    ground: Ground, children: list[Child], tmp_path: Path
) -> None:
    """Its heartbeats continue, so its health shows it: one message is in hand for longer than a handler may
    take.
    """
    ground.fill(5_000)
    # a busy machine may take a second or two over a message before
    patience = {"heartbeat_interval_s": BEAT_S, "handler_timeout_s": 5.0}
    child = ground.process("first", hold_s=0.01, block=[50, str(tmp_path / "go on")], **patience)
    children.append(child)
    await until("the loop to stand still", lambda: child.messages and child.messages[-1]["offset"] == 50)
    async with ground.consumer("second", heartbeat_interval_s=BEAT_S) as heir:
        out: list[tuple[float, ClaimedMessage]] = []
        taking = asyncio.create_task(drain(heir, out, pause_s=0.01))
        await until("the heir's first message", lambda: out)
        assert out[0][1].offset <= 51
        (tmp_path / "go on").touch()
        await until("the loop to go on", lambda: child.said("unblocked"))
        await until("it to learn that its message is another's now", lambda: child.said("error"))
        assert child.said("error")[0]["error"] == "ClaimLostError"
        assert child.messages[-1]["offset"] == 50
        taking.cancel()


@pytest.mark.kafka
@scenario
async def test_a_member_cut_off_from_the_broker_stops_before_its_claim_is_over(
    broker: SessionBroker, ground: Ground
) -> None:
    ground.fill(5_000)
    async with ground.consumer("first", heartbeat_interval_s=1.0) as consumer:
        out: list[tuple[float, ClaimedMessage]] = []
        taking = asyncio.create_task(drain(consumer, out, pause_s=0.01))
        await until("it to work", lambda: len(out) > 20)
        slowness = Slowness()
        slowness.start()
        with own_broker.frozen(broker):
            cut_s = time.monotonic()
            await asyncio.sleep(2.5)
            slower = slowness.stop()
        # Two intervals less a second less a margin after the last heartbeat that arrived: before any other
        # may own it.
        check(out[-1][0] - cut_s - slowness.stalled_s, 2.0, slower, "the last message")
        count = len(out)
        assert count < 5_000, "there was more to hand out"
        await until("it to go on after the outage", lambda: len(out) > count + 20)
        offsets = [message.offset for _, message in out]
        assert sorted(set(offsets)) == list(range(len(set(offsets)))), "nothing is left out"
        taking.cancel()


@pytest.mark.kafka
@scenario
async def test_a_flush_that_loses_its_claim_in_an_outage_is_an_error(
    broker: SessionBroker, ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    """It returned as if the log had the offset: the member held nothing any more, so nothing was missing."""
    ground.fill(1)
    async with ground.consumer("first", heartbeat_interval_s=1.0) as consumer:
        (message,) = await take(consumer, 1)
        with own_broker.frozen(broker):
            message.commit()
            with pytest.raises(ClaimLostError, match="lost before the log had its offset 1"):
                await consumer.flush()
        ground.fill(1, start=1)
        flushed = False
        while not flushed:  # a machine that stalls for a second costs it the claim again
            (later,) = await take(consumer, 1, commit=False)
            assert later.offset in (0, 1), "a frame that was under way may have brought the offset after all"
            with suppress(ClaimLostError):
                later.commit()
                await consumer.flush()
                flushed = True
    told = [each.getMessage().split(" ")[1] for each in caplog.records if "acknowledged" in each.getMessage()]
    assert ("frame", "frame") not in itertools.pairwise(told), "each outage is reported once, then its end"


@pytest.mark.kafka
@pytest.mark.slow
@scenario
async def test_a_restart_of_the_broker_is_survived(tmp_path: Path) -> None:
    with Cluster(tmp_path / "kafka", short_lived=True) as cluster:
        ground = Ground(
            cluster.client_config(),
            SessionBroker(config=cluster.client_config(), cluster=cluster).create_topic,
        )
        ground.fill(5_000)
        async with ground.consumer("first", heartbeat_interval_s=2.0) as consumer:
            out: list[tuple[float, ClaimedMessage]] = []
            taking = asyncio.create_task(drain(consumer, out, pause_s=0.01))
            await until("it to work", lambda: len(out) > 20)
            await asyncio.to_thread(cluster.kill, 1)
            await asyncio.to_thread(cluster.restart, 1)
            count = len(out)
            await until("it to go on after the restart", lambda: len(out) > count + 20)
            offsets = [message.offset for _, message in out]
            assert sorted(set(offsets)) == list(range(len(set(offsets)))), "nothing is left out"
            taking.cancel()


# -- at most once


async def at_most_once(
    ground: Ground, children: list[Child], die_after: str, count: int
) -> tuple[list[int], list[int]]:
    """Return the offsets that a process handed out before it killed itself at that point, and those that
    its successor did.
    """
    named: dict[str, Any] = {"heartbeat_interval_s": 1.0, "delivery": "at-most-once"}
    first = ground.process("same", die_after=die_after, **named)
    children.append(first)
    await until("it to have killed itself", lambda: not first.running)
    assert first.wait() == -signal.SIGKILL
    second = ground.process("same", **named)
    children.append(second)
    last = count - 1
    if die_after == "ClaimingMessages":
        await until(
            "the successor to be through", lambda: second.messages and second.messages[-1]["offset"] == last
        )
    else:
        await until("the successor to have started", lambda: second.said("started"))
        ground.fill(1, start=count)
        await until(
            "the successor to be through", lambda: second.messages and second.messages[-1]["offset"] == count
        )
    return [each["offset"] for each in first.messages], [each["offset"] for each in second.messages]


@scenario
async def test_a_crash_before_the_commit_of_a_batch_has_it_delivered_once(
    ground: Ground, children: list[Child]
) -> None:
    """M15: after ClaimingMessages, before the heartbeat."""
    ground.fill(10)
    first, second = await at_most_once(ground, children, "ClaimingMessages", 10)
    assert first == []
    assert second == list(range(10))


@scenario
async def test_a_crash_after_the_commit_of_a_batch_has_it_delivered_never(
    ground: Ground, children: list[Child]
) -> None:
    """M15: after the heartbeat, before anything was handed out."""
    ground.fill(10)
    first, second = await at_most_once(ground, children, "Heartbeat", 10)
    assert first == []
    assert second == [10]


@pytest.mark.promise
@scenario
async def test_kills_at_any_moment_deliver_nothing_twice_at_most_once(
    ground: Ground, children: list[Child]
) -> None:
    """M15, three kills under load."""
    feeding = asyncio.create_task(feed(ground, 0.005))
    seen: Counter[int] = Counter()
    for turn in range(3):
        child = ground.process("same", heartbeat_interval_s=1.0, delivery="at-most-once")
        children.append(child)
        await until("it to work", lambda child=child, turn=turn: len(child.messages) >= 20 + 7 * turn)  # type: ignore[misc]
        child.kill()
        seen.update(each["offset"] for each in child.messages)
    feeding.cancel()
    assert [offset for offset, times in seen.items() if times > 1] == []
    assert len(seen) >= 60
    proposed = ground.frames(ClaimingMessages)
    assert len(proposed) >= 3


@scenario
async def test_at_least_once_a_kill_brings_again_what_the_last_heartbeat_had_not(
    ground: Ground, children: list[Child]
) -> None:
    """M15, the other mode: no message is left out, and none comes again that a heartbeat has reported
    done.
    """
    feeding = asyncio.create_task(feed(ground, 0.01))
    children.append(first := ground.process("same", heartbeat_interval_s=1.0))
    await until("it to work", lambda: len(first.messages) >= 20)
    done = await told_by_a_heartbeat(ground, first)
    await until("it to do more", lambda: first.messages[-1]["offset"] > done)
    first.kill()
    children.append(second := ground.process("same", heartbeat_interval_s=1.0))
    await until("its successor to work", lambda: len(second.messages) >= 50)
    feeding.cancel()
    again = second.messages[0]["offset"]
    assert again <= first.messages[-1]["offset"] + 1, "nothing is left out"
    assert again > done, "what a heartbeat has told is not done again"


# -- with a Go fleet


def replayed(ground: Ground, group: str, topic: str) -> list[tuple[float, Frame]]:
    """Return the recorded fleet's frames about one topic, forty times as fast, on this ground's names:
    (seconds from the start, frame).
    """
    found, start_ms = [], min(each.at_ms for each in CAPTURE)
    for record in sorted(CAPTURE, key=lambda each: (each.at_ms, each.offset)):
        frame: Any = decode(record.value)
        if (frame.group_id, frame.topic) == (group, topic):
            changes = {name: getattr(frame, name) for name in frame.__struct_fields__}
            changes |= {"group_id": ground.group, "topic": ground.topic}
            found.append(((record.at_ms - start_ms) / 40_000, type(frame)(**changes)))
    return found


@scenario
async def test_with_the_recorded_go_fleet_nothing_is_delivered_without_owning_it(
    broker: SessionBroker, fresh_topic: FreshTopic
) -> None:
    """The fleet's 510 s in 13 s: its minute is our second and a half, so a claim that was stale after 120 s
    is stale after 3.
    """
    ground = Ground(broker.config, fresh_topic, partitions=6)
    frames = replayed(ground, "g1", "orders")
    assert {frame.client_id for _, frame in frames} > {"c1"}
    ground.fill(
        1 + max(getattr(frame, "current_offset", 0) for _, frame in frames)
    )  # the next owner begins at the fleet's offset
    feeding = asyncio.create_task(feed(ground, 0.02))
    out: list[tuple[int, ClaimedMessage]] = []

    clock = GateClock()

    async def work(consumer: Any) -> None:
        async for message in consumer:
            out.append((clock.asked_at_ms(), message))
            with suppress(ClaimLostError):  # the fleet may have taken it since: that is the fleet's right
                message.commit()

    async with ground.consumer("holdfast-1", heartbeat_interval_s=1.5, greedy=True, clock=clock) as consumer:
        working = asyncio.create_task(work(consumer))
        started_s = time.monotonic()
        for at_s, frame in frames:
            await asyncio.sleep(max(0.0, started_s + at_s - time.monotonic()))
            now: Any = type(frame)(
                **{name: getattr(frame, name) for name in frame.__struct_fields__}
                | {"time_s": int(time.time())}
            )
            ground.write(now)
        await until("the fleet's claims to have run out", lambda: consumer.load == 6)
        await until(
            "messages of every partition",
            lambda: {message.partition for _, message in out} == set(range(6)),
        )
        feeding.cancel()
        working.cancel()
        log = ground.written()
        judge = Ownership(log, stale_after_s=3)
        # At the ends of every stretch of one partition; in between nothing changed hands if nothing did at
        # both.
        wrong = []
        for partition, found in itertools.groupby(
            sorted(out, key=lambda each: each[1].partition), key=lambda each: each[1].partition
        ):
            for at_ms, message in list(found)[:: max(1, len(out) // 200)]:
                owner = judge.owner(claim_key(ground.group, ground.topic, partition), at_ms)
                if owner != consumer.instance:
                    wrong.append((at_ms, message, owner))
        assert wrong == []
        fleet = {each.frame.instance_id for each in log if isinstance(each.frame, Heartbeat)} - {
            consumer.instance
        }
        assert len(fleet) >= 3


def test_the_judge_finds_a_delivery_of_a_partition_of_another_member(ground: Ground) -> None:
    ground.write(Heartbeat(int(time.time()), "other001", "c1", ground.group, ground.topic, 0, 5))
    (written,) = ground.written()
    judge = Ownership([written], stale_after_s=2)
    key = claim_key(ground.group, ground.topic, 0)
    assert [judge.owner(key, written.at_ms + after_ms) for after_ms in (-1, 0, 900, 5_000)] == [
        None,
        "other001",
        "other001",
        None,
    ]
