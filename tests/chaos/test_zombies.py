"""An owner frozen for longer than its session, with another at work instead: the old owner's writes are
refused and it recognizes that it has lost the partition.
"""

from __future__ import annotations

import json
import random
import signal
import time

import pytest
from confluent_kafka import Producer

from tests.chaos.conftest import MakeApplication
from tests.support.harness import Application, Worker, wait_for
from tests.support.patience import DEADLINE_S
from tests.support.proof import prove

LOOK_S = 3.0


def freeze_and_thaw(app: Application, victim: Worker, heir: Worker) -> None:
    """Stop *victim* until *heir* has all its partitions and has continued from there, then let it run again
    and check its log.
    """
    held = victim.applied()
    assert held, "the victim owns nothing"
    victim.signal(signal.SIGSTOP)
    try:
        wait_for(
            "takeover",
            lambda: held.keys() <= heir.applied().keys() and heir.ready,
            DEADLINE_S,
            heir.tail,
        )
        wait_for(
            "progress",
            lambda: all(heir.applied().get(place, -1) > at + 50 for place, at in held.items()),
            DEADLINE_S,
            heir.tail,
        )
        reached = heir.applied()
    finally:
        victim.signal(signal.SIGCONT)
    stale, thawed_s = [], time.monotonic()
    while time.monotonic() - thawed_s < LOOK_S or (victim.running and not victim.ready):
        assert time.monotonic() - thawed_s < DEADLINE_S, (
            f"the zombie neither ends nor comes back\n{victim.tail()}"
        )
        for name, partition in held:
            status, body = victim.ask(f"/tables/{name}/{partition}/rows/any")
            if status == 200 and json.loads(body)["as_of_offset"] < reached[name, partition]:
                stale.append(body)
    assert not stale, f"the zombie answered as the owner: {stale[0]}"


def test_a_frozen_owner_is_fenced_and_rejoins_clean(application: MakeApplication) -> None:
    app = application(partitions=4)
    load = app.load(rate=2_000, seed=41)
    first, second = app.worker().start().wait_ready(), app.worker().start()
    wait_for(
        "both own partitions",
        lambda: first.ready and second.ready and first.applied() and second.applied(),
        DEADLINE_S,
        app.tails,
    )
    freeze_and_thaw(app, first, second)
    acked = load.stop()
    if not first.running:
        first.start()
    prove(app, acked)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [42, 43])
def test_freezes_of_any_length_at_any_moment_leave_counts_exact(
    application: MakeApplication, seed: int
) -> None:
    """Shorter and longer than a session, one or both at once, in the middle of batches, joins, fences and
    restores.
    """
    chance = random.Random(seed)
    app = application(partitions=4, standbys=1)
    load = app.load(rate=1_500, seed=seed)
    fleet = [app.worker().start() for _ in range(3)]
    wait_for("all at work", lambda: all(worker.ready for worker in fleet), DEADLINE_S, app.tails)
    for _ in range(12):
        victims = chance.sample(fleet, chance.choice([1, 1, 2]))
        for victim in victims:
            victim.signal(signal.SIGSTOP)
        asleep_s, length_s = time.monotonic(), chance.choice([0.5, 2.0, 5.5, 6.5, 9.0, 14.0])
        wait_for("a freeze", lambda end_s=asleep_s + length_s: time.monotonic() > end_s, DEADLINE_S)  # type: ignore[misc]
        for victim in victims:
            victim.signal(signal.SIGCONT)
        awake_s, length_s = time.monotonic(), chance.uniform(0, 3)
        wait_for("a moment", lambda end_s=awake_s + length_s: time.monotonic() > end_s, DEADLINE_S)  # type: ignore[misc]
        for worker in fleet:
            if not worker.running:
                assert worker.process.returncode > 0, f"{worker.name} ended in silence\n{worker.tail()}"
                worker.start()
    wait_for("all well again", lambda: all(worker.ready for worker in fleet), DEADLINE_S, app.tails)
    prove(app, load.stop())


@pytest.mark.slow
def test_a_stranger_with_the_same_transactional_id_is_not_fought_for_ever(
    application: MakeApplication,
) -> None:
    app = application(partitions=1)
    load = app.load(rate=500, seed=44)
    worker = app.worker().start().wait_ready()
    strange_id = app.processors[0].transactional_id(app.name, 0)

    def taken_once_more() -> bool:
        stranger = Producer(app.broker.client_config(**{"transactional.id": strange_id}))
        stranger.init_transactions(DEADLINE_S)
        return not worker.running

    wait_for("the worker to give up", taken_once_more, DEADLINE_S, worker.tail)
    assert worker.process.returncode > 0
    assert worker.said("for the .*th time: does another application use this transactional id"), worker.tail()
    worker.start()
    prove(app, load.stop())
