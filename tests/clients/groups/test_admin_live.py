"""A claim group of live consumers, paused and reset (M13): all obey, and start exactly where they were sent
even if some die on the way.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from holdfast.clients.claims.consumer import ClaimConsumer, ClaimedMessage
from holdfast.clients.groups.admin import GroupAdmin
from holdfast.clients.groups.records import ResetProgress, ResetStep
from holdfast.config import Settings
from holdfast.core.claims.resets import Aim, Where
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from tests.clients.claims.claiming import PATIENT_S, Ground, drain, scenario, until
from tests.support.group_desk import killed_administrator
from tests.support.limits import Slowness, check
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT

INTERVAL_S = 2.0
"""Between heartbeats where members wait for a claim to be over."""
OBEYED_S = 2.0
RECORDS = 30
Taken = list[tuple[float, ClaimedMessage]]


class Live(Ground):
    """Consumers on four partitions with RECORDS messages each, whose resets are decided on a topic of
    their own.
    """

    def __init__(self, broker: SessionBroker, fresh_topic: FreshTopic) -> None:
        super().__init__(broker.config, fresh_topic, partitions=4, coordination=4)
        self.interval_s = INTERVAL_S
        self.resets = f"{self.coordination}-resets"
        self.broker = broker
        self.fill(RECORDS)

    def close(self) -> None:
        super().close()
        self.broker.delete_topics([self.resets])

    def member(self, client: str, group: str) -> ClaimConsumer:
        return self.consumer(
            client, group=group, heartbeat_interval_s=self.interval_s, greedy=True, resets_topic=self.resets
        )

    def admin(self) -> GroupAdmin:
        settings = Settings(
            coordination_topic=self.coordination, claim_interval_s=self.interval_s, kafka=self.config
        )
        return GroupAdmin(settings, resets_topic=self.resets)


@pytest.fixture
def live(broker: SessionBroker, fresh_topic: FreshTopic) -> Iterator[Live]:
    with closing(Live(broker, fresh_topic)) as made:
        yield made


def offsets(taken: Taken, since: int = 0) -> dict[int, list[int]]:
    """Return the offsets of the messages taken, by partition."""
    found: dict[int, list[int]] = {}
    for _, message in taken[since:]:
        found.setdefault(message.partition, []).append(message.offset)
    return found


@scenario
async def test_live_members_release_for_a_reset_and_begin_again_exactly_where_it_says(live: Live) -> None:
    """M13: no member works while the reset does; all four partitions begin at 0 afterwards, not at the
    committed offsets.
    """
    live.interval_s = PATIENT_S
    taken: Taken = []
    steps: dict[ResetStep, float] = {}

    def reset() -> None:
        with live.admin() as admin:
            assert {member.obeys_pause for member in admin.members("shop")} == {True}
            admin.reset_offsets(
                admin.plan_reset("shop", Aim(Where.EARLIEST)), deadline_s=DEADLINE_S, tell=note
            )

    def note(progress: ResetProgress) -> None:
        steps.setdefault(progress.step, time.monotonic())

    async with live.member("first", "shop") as first, live.member("second", "shop") as second:
        tasks = [asyncio.create_task(drain(each, taken)) for each in (first, second)]
        await until("every message once", lambda: len(taken) == 4 * RECORDS)
        await first.flush()
        await second.flush()
        slowness = Slowness()
        slowness.start()
        await asyncio.to_thread(reset)
        slower = slowness.stop()
        await until("every message again", lambda: len(taken) >= 8 * RECORDS)
        for task in tasks:
            task.cancel()
    assert offsets(taken, 4 * RECORDS) == {partition: list(range(RECORDS)) for partition in range(4)}
    assert not [at_s for at_s, _ in taken if steps[ResetStep.CLAIMED] <= at_s <= steps[ResetStep.DECIDED]]
    # "Within a health period": they obey when they read it, not when the next heartbeat is due.
    took_s = steps[ResetStep.CLAIMING] - steps[ResetStep.PAUSED]
    check(took_s - slowness.stalled_s, OBEYED_S, slower, "their obedience")


@pytest.mark.variant
@scenario
async def test_members_carry_on_by_themselves_after_the_administrator_was_killed(live: Live) -> None:
    """M13, no second administrator: one group's reset was decided when its administrator died, the other's
    was not.
    """
    groups = {"decided": ResetStep.DECIDED, "undecided": ResetStep.CLAIMED}
    taken: dict[str, Taken] = {group: [] for group in groups}
    async with live.member("first", "decided") as first, live.member("second", "undecided") as second:
        tasks = [
            asyncio.create_task(drain(each, taken[group]))
            for each, group in zip((first, second), groups, strict=True)
        ]
        await until("every message once", lambda: all(len(each) == 4 * RECORDS for each in taken.values()))
        await first.flush()
        await second.flush()
        bootstrap = live.settings.bootstrap_servers
        children = [
            await asyncio.create_subprocess_exec(
                *killed_administrator(
                    live.coordination,
                    live.resets,
                    bootstrap,
                    group,
                    step,
                    interval_s=INTERVAL_S,
                    deadline_s=6,  # members wait until it is over
                    offset=10,
                ),
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
            for group, step in groups.items()
        ]
        assert [await child.wait() for child in children] == [-signal.SIGKILL] * 2
        live.fill(1, start=RECORDS)
        await until(
            "all groups at work again",
            lambda: _whole(taken["decided"]) and _whole(taken["undecided"]),
            within_s=DEADLINE_S,
        )
        for task in tasks:
            task.cancel()
    assert offsets(taken["decided"], 4 * RECORDS) == {
        partition: list(range(10, RECORDS + 1)) for partition in range(4)
    }
    assert offsets(taken["undecided"], 4 * RECORDS) == {partition: [RECORDS] for partition in range(4)}


def _whole(taken: Taken) -> bool:
    """Return whether the last message of every partition was taken."""
    return sum(message.offset == RECORDS for _, message in taken) >= 4
