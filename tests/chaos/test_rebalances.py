"""Workers come and go under load: no record is lost or doubled, and partitions that need not move stay
open.
"""

from __future__ import annotations

import json
import random
import re
import signal

import pytest

from holdfast.dev.ports import free_ports
from tests.chaos.conftest import MakeApplication
from tests.support.harness import UNDISTURBED, Application, Worker, wait_for
from tests.support.limits import at_most
from tests.support.patience import DEADLINE_S
from tests.support.proof import last_offsets, prove, read_topic

GENERATION = r"generation (\d+): kept (\[.*?\]), restored (\[.*?\]) \((\d+) records"


def wait_settled(app: Application) -> None:
    """Return when every partition of both tables has exactly one owner and all workers are ready."""
    wanted = sorted((each.name, partition) for each in app.processors for partition in range(app.partitions))

    def settled() -> bool:
        owned = [place for worker in app.live if worker.ready for place in worker.applied()]
        return sorted(owned) == wanted and all(worker.ready for worker in app.live)

    wait_for(f"{len(app.live)} workers share {len(wanted)} partitions", settled, DEADLINE_S, app.tails)


def change(app: Application, fleet: list[Worker], size: int, chance: random.Random) -> None:
    """Bring the fleet to *size* workers, politely or not."""
    while len(app.live) > size:
        victim = chance.choice(app.live)
        if chance.random() < 0.5:
            victim.stop()
        else:
            victim.kill()
    for worker in chance.sample(fleet, len(fleet)):
        if len(app.live) < size and not worker.running:
            worker.start()


def take_turns(make: MakeApplication, sizes: list[int], *, seed: int, standbys: int = 0) -> Application:
    """Change the number of workers through *sizes* under load and prove the result."""
    chance = random.Random(seed)
    app = make(partitions=6, standbys=standbys)
    fleet = [app.worker() for _ in range(max(sizes))]
    load = app.load(rate=2_000, seed=seed)
    for at, size in enumerate(sizes):
        change(app, fleet, size, chance)
        # Each third change comes while the one before is still under way.
        if at % 3 != 2:
            wait_settled(app)
    wait_settled(app)
    acked = load.stop()
    prove(app, acked)
    return app


def kept_ever(app: Application) -> bool:
    found = [
        re.search(GENERATION, line)
        for worker in app.workers
        for line in worker.log.read_text(errors="replace").splitlines()
    ]
    return any(each is not None and each[2] != "[]" and each[3] != "[]" for each in found)


def test_workers_come_and_go_and_nothing_is_lost_or_doubled(application: MakeApplication) -> None:
    take_turns(application, [1, 2, 3, 2, 1, 3], seed=61)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("standbys", [0, 1])
def test_twenty_changes_of_workers_lose_and_double_nothing(
    application: MakeApplication, standbys: int
) -> None:
    app = take_turns(application, [1, 2, 3, 2] * 5, seed=62 + standbys, standbys=standbys)
    assert kept_ever(app), "no worker ever kept a partition open while it took over another"


def test_partitions_that_stay_are_kept_open_and_only_the_others_are_restored(
    application: MakeApplication,
) -> None:
    app = application(partitions=4, **UNDISTURBED)
    load = app.load(rate=1_000, seed=63)
    first = app.worker().start().wait_ready()
    second = app.worker().start()
    wait_settled(app)
    line = first.said(GENERATION)[-1]
    assert re.search(
        r"kept \[\('counts', \d\), \('counts', \d\), \('tally', \d\), \('tally', \d\)\], restored \[\]", line
    ), line
    second.stop()
    wait_settled(app)
    kept = re.search(GENERATION, first.said(GENERATION)[-1])
    assert kept is not None
    assert kept[2].count("counts") == 2, f"kept {kept[2]}"
    assert kept[3].count("counts") == 2, f"restored {kept[3]}"
    prove(app, load.stop())


@pytest.mark.variant
def test_a_standby_follows_and_takes_over_with_only_the_tail_to_read(application: MakeApplication) -> None:
    app = application(partitions=2, standbys=1)
    load = app.load(rate=4_000, limit=20_000, seed=64)
    fleet = [app.worker().start(), app.worker().start()]
    wait_settled(app)
    load.wait()
    ends = last_offsets(read_topic(app.broker, app.source))
    app.wait_applied(ends, DEADLINE_S)
    wanted = {(each.name, partition): last for each in app.processors for partition, last in ends.items()}
    wait_for(
        "the standbys to be abreast",
        lambda: {place: at for worker in fleet for place, at in worker.applied("standby").items()} == wanted,
        DEADLINE_S,
        app.tails,
    )
    more = app.load(rate=1_000, seed=65)
    victim, heir = fleet
    moved = victim.applied()
    victim.kill()
    wait_settled(app)
    promoted = re.search(GENERATION, heir.said(GENERATION)[-1])
    assert promoted is not None
    assert all(f"('{name}', {partition})" in promoted[3] for name, partition in moved), promoted[0]
    # Without the standby the whole changelog of tens of thousands of records would have been read.
    assert int(promoted[4]) < 2_000, promoted[0]
    assert heir.said("set aside") == []
    prove(app, 20_000 + more.stop())


@pytest.mark.variant
def test_a_static_member_that_returns_within_its_session_moves_nothing(application: MakeApplication) -> None:
    app = application(partitions=4, **UNDISTURBED)
    load = app.load(rate=1_000, seed=66)
    stays, returns = app.worker(instance_id="stays").start(), app.worker(instance_id="returns").start()
    wait_settled(app)
    generations, held = len(stays.said(GENERATION)), returns.applied().keys()
    for number in (signal.SIGKILL, signal.SIGTERM):
        returns.signal(number)
        returns.wait_exit(DEADLINE_S)
        returns.start().wait_ready()
        wait_settled(app)
        assert returns.applied().keys() == held, "it came back to other partitions"
    assert len(stays.said(GENERATION)) == generations, "a quick restart made the other worker rebalance"
    prove(app, load.stop())


@pytest.mark.variant
def test_a_static_member_may_return_under_another_url_and_keeps_its_partitions(
    application: MakeApplication,
) -> None:
    app = application(partitions=4, **UNDISTURBED)
    load = app.load(rate=1_000, seed=67)
    stays, returns = app.worker(instance_id="stays").start(), app.worker(instance_id="returns").start()
    wait_settled(app)
    held, before = returns.applied().keys(), returns.url
    returns.kill()
    port = free_ports(1)[0]
    returns.url = f"http://127.0.0.1:{port}"
    with at_most(60, "less than half the session of before"):
        returns.start(HOLDFAST_WEB_PORT=str(port)).wait_ready()
    wait_settled(app)
    assert returns.applied().keys() == held, "it came back to other partitions"
    table, partition = next(iter(held))

    def redirected() -> bool:
        status, body = stays.ask(f"/tables/{table}/{partition}/rows/any")
        return status == 200 or (status == 421 and json.loads(body)["owner"] == returns.url != before)

    wait_for("the other worker to know the new URL", redirected, DEADLINE_S, app.tails)
    assert not returns.said("Unexpected error in coordinator routine"), returns.tail()
    prove(app, load.stop())


def test_a_worker_whose_part_in_the_group_dies_ends_at_once_and_says_why(
    application: MakeApplication,
) -> None:
    app = application(partitions=1)
    worker = app.worker().start(CHAOS_ASSIGNOR="fails")
    assert worker.wait_exit(DEADLINE_S) > 0
    assert worker.said("cannot take part in its group any more, .*told to fail"), worker.tail()
