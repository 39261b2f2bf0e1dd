"""Handlers that take far longer than a heartbeat, on a real broker: they keep their claims, and an event
reports their own deadline.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest

from holdfast.clients.claims.blocking import BlockingClaimConsumer
from holdfast.clients.claims.consumer import ClaimConsumer
from holdfast.core.member.actions import Event, ReleaseReason
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from tests.clients.claims.claiming import PATIENCE, Ground, drain, scenario, until
from tests.support.limits import AwakeClock
from tests.support.patience import DEADLINE_S

BEAT_S = 1.0
WORK_S = 9 * BEAT_S
"""The time that the first message takes: four times as long as it took to be called wedged."""


@pytest.fixture
def ground(broker: SessionBroker, fresh_topic: FreshTopic) -> Iterator[Ground]:
    with closing(Ground(broker.config, fresh_topic, partitions=2)) as found:
        yield found


@pytest.fixture
def awake() -> Iterator[AwakeClock]:
    """Give a clock by which no claim lapses because the machine stalls."""
    with AwakeClock() as clock:
        yield clock


def given_back(consumer: ClaimConsumer | BlockingClaimConsumer) -> list[ReleaseReason | None]:
    """Return why the consumer has given claims back, so far."""
    return [each.reason for each in consumer.recent_events if each.event is Event.RELEASING]


@pytest.mark.variants("{'queue_messages': 5}", "{'lanes': 2}", "{'delivery': 'at-most-once'}")
@pytest.mark.parametrize(
    "named", [{}, {"delivery": "at-most-once"}, {"lanes": 2}, {"queue_messages": 5}], ids=str
)
def test_a_slow_handler_gets_each_message_once_and_keeps_what_it_holds(
    ground: Ground, awake: AwakeClock, named: dict[str, Any]
) -> None:
    """While one message is worked on, the other partition's wait; and the log of both grows."""

    @scenario
    async def slow() -> None:
        ground.fill(20)
        seen: Counter[tuple[int, int]] = Counter()
        alone = {"heartbeat_interval_s": BEAT_S, "greedy": True, "clock": awake}
        async with ground.consumer("one", **alone, **named) as one:
            async for message in one:
                if not seen:
                    for step in range(9):
                        ground.fill(1, start=20 + step)
                        await asyncio.sleep(WORK_S / 9)
                    assert not given_back(one)
                seen[message.partition, message.offset] += 1
                message.commit()
                if len(seen) == 58:
                    break
        assert set(seen.values()) == {1}

    slow()


@pytest.mark.variant
def test_a_slow_handler_without_asyncio_gets_each_message_once(ground: Ground, awake: AwakeClock) -> None:
    ground.fill(20)
    seen: Counter[tuple[int, int]] = Counter()
    with BlockingClaimConsumer(
        ground.settings,
        topics=[ground.topic],
        group=ground.group,
        client="one",
        heartbeat_interval_s=BEAT_S,
        greedy=True,
        clock=awake,
        **PATIENCE,
    ) as one:
        for message in one:
            if not seen:
                time.sleep(WORK_S)
                assert not given_back(one)
            seen[message.partition, message.offset] += 1
            message.commit()
            if len(seen) == 40:
                break
    assert set(seen.values()) == {1}


@scenario
async def test_a_handler_that_exceeds_its_deadline_is_warned_of_twice_and_loses_its_claim(
    ground: Ground, awake: AwakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    ground.fill(3, partition=0)
    caplog.set_level(logging.INFO)
    timed = {"heartbeat_interval_s": BEAT_S, "clock": awake}
    async with ground.consumer("one", handler_timeout_s=6, **timed) as one:
        message = await one.get(DEADLINE_S)
        assert message is not None
        async with ground.consumer("two", **timed) as two:
            out: list[Any] = []
            taking = asyncio.create_task(drain(two, out))
            await until("the message at its next owner", lambda: out)
            taking.cancel()
            with suppress(asyncio.CancelledError):
                await taking
        assert given_back(one)[0] is ReleaseReason.HANDLER_TIMEOUT
    assert out[0][1].offset == message.offset
    told = [
        each.getMessage()
        for each in caplog.records
        if each.levelno == logging.WARNING and "handler_timeout_s is 6" in each.getMessage()
    ]
    assert len(told) == 2
    assert "the message at offset 0 has been in hand for" in told[0]
