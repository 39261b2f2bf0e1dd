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
from holdfast.core.member.actions import Event, ReleaseReason
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from tests.clients.claims.claiming import Ground, drain, scenario, until

BEAT_S = 1.0
WORK_S = 9 * BEAT_S
"""How long the first message takes: four times as long as it took to be called wedged."""


@pytest.fixture
def ground(broker: SessionBroker, fresh_topic: FreshTopic) -> Iterator[Ground]:
    with closing(Ground(broker.config, fresh_topic, partitions=2)) as found:
        yield found


@pytest.mark.parametrize(
    "named", [{}, {"delivery": "at-most-once"}, {"lanes": 2}, {"queue_messages": 5}], ids=str
)
def test_a_slow_handler_gets_each_message_once_and_keeps_what_it_holds(
    ground: Ground, named: dict[str, Any]
) -> None:
    """While one message is worked on, the other partition's wait; and the log of both grows."""

    @scenario
    async def slow() -> None:
        ground.fill(20)
        seen: Counter[tuple[int, int]] = Counter()
        async with ground.consumer("one", heartbeat_interval_s=BEAT_S, greedy=True, **named) as one:
            async for message in one:
                if not seen:
                    for step in range(9):
                        ground.fill(1, start=20 + step)
                        await asyncio.sleep(WORK_S / 9)
                seen[message.partition, message.offset] += 1
                message.commit()
                if len(seen) == 58:
                    break
            given = [each for each in one.recent_events if each.event is Event.RELEASING]
        assert not given
        assert set(seen.values()) == {1}

    slow()


def test_a_slow_handler_without_asyncio_gets_each_message_once(ground: Ground) -> None:
    ground.fill(20)
    seen: Counter[tuple[int, int]] = Counter()
    with BlockingClaimConsumer(
        ground.settings,
        topics=[ground.topic],
        group=ground.group,
        client="one",
        heartbeat_interval_s=BEAT_S,
        greedy=True,
    ) as one:
        for message in one:
            if not seen:
                time.sleep(WORK_S)
            seen[message.partition, message.offset] += 1
            message.commit()
            if len(seen) == 40:
                break
        assert not [each for each in one.recent_events if each.event is Event.RELEASING]
    assert set(seen.values()) == {1}


@scenario
async def test_a_handler_that_exceeds_its_deadline_is_warned_of_twice_and_loses_its_claim(
    ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    ground.fill(3, partition=0)
    caplog.set_level(logging.INFO)
    async with ground.consumer("one", heartbeat_interval_s=BEAT_S, handler_timeout_s=6) as one:
        message = await one.get(60)
        assert message is not None
        async with ground.consumer("two", heartbeat_interval_s=BEAT_S) as two:
            out: list[Any] = []
            taking = asyncio.create_task(drain(two, out))
            await until("the message at its next owner", lambda: out)
            taking.cancel()
            with suppress(asyncio.CancelledError):
                await taking
        given = [each.reason for each in one.recent_events if each.event is Event.RELEASING]
        assert given[0] is ReleaseReason.HANDLER_TIMEOUT
    assert out[0][1].offset == message.offset
    told = [
        each.getMessage()
        for each in caplog.records
        if each.levelno == logging.WARNING and "handler_timeout_s is 6" in each.getMessage()
    ]
    assert len(told) == 2
    assert "the message at offset 0 has been in hand for" in told[0]
