"""SIGKILL at every step of a batch's path and of taking over, with and without the local state: counts
stay exact.
"""

from __future__ import annotations

import random
import signal
import time

import pytest

from tests.chaos.conftest import MakeApplication
from tests.chaos.faults import FAULTS
from tests.support.patience import DEADLINE_S
from tests.support.proof import prove


def die_at_each(make: MakeApplication, orders: list[tuple[str, int, bool]], *, seed: int) -> None:
    """Run one worker under load again and again; each time it dies at a point, then perhaps loses its
    data; prove the result.
    """
    # A static member, so that each restart has its partitions back at once.
    app = make(partitions=2, instance_id="only")
    worker = app.worker()
    load = app.load(rate=1_500, seed=seed)
    for point, visit, wiped in orders:
        if point == "restoring":
            worker.wipe()  # else there is nothing to restore
        worker.start(CHAOS_FAULT=f"{point}:{visit}")
        code = worker.wait_exit(DEADLINE_S)
        assert code == -9, f"meant to die at {point}, ended with {code}\n{worker.tail()}"
        if wiped:
            worker.wipe()
    acked = load.stop()
    worker.start()
    proof = prove(app, acked)
    assert sum(each.marker.applied[0] + 1 for each in proof.outcomes.values()) > 2_000, (
        "the load was too small to show anything"
    )


def visits(point: str, chance: random.Random) -> int:
    """Return at which visit to die: batches are many, takings over one for each table and partition."""
    return (
        chance.randint(1, 4)
        if point in ("fenced", "activated")
        else 1
        if point == "restoring"
        else chance.randint(1, 40)
    )


@pytest.mark.promise
def test_sigkill_at_every_step_leaves_counts_exact(application: MakeApplication) -> None:
    chance = random.Random(4)
    die_at_each(application, [(point, visits(point, chance), False) for point in FAULTS], seed=11)


@pytest.mark.variant
def test_sigkill_and_loss_of_the_local_state_leave_counts_exact(application: MakeApplication) -> None:
    chance = random.Random(5)
    points = ("produced", "committing", "committed", "storing", "acked", "restoring")
    die_at_each(application, [(point, visits(point, chance), True) for point in points], seed=12)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_sigkill_at_every_step_in_any_order_with_and_without_local_state(
    application: MakeApplication, seed: int
) -> None:
    chance = random.Random(seed)
    orders = [(point, visits(point, chance), wiped) for point in FAULTS for wiped in (False, True)]
    chance.shuffle(orders)
    while orders[0][0] == "restoring":  # nothing was written yet that could be restored
        chance.shuffle(orders)
    die_at_each(application, orders, seed=100 + seed)


def kill_at_random(make: MakeApplication, *, kills: int, seed: int, workers: int) -> None:
    """Kill one of *workers* again and again at moments of no meaning, each third time with its local
    state; prove the result.
    """
    chance = random.Random(seed)
    app = make(partitions=4, standbys=workers - 1)
    load = app.load(rate=2_000, seed=seed)
    fleet = [app.worker().start() for _ in range(workers)]
    for at in range(kills):
        worker = chance.choice(fleet)
        worker.wait_ready()
        time.sleep(chance.uniform(0, 1.5))
        worker.kill()
        if at % 3 == 2:
            worker.wipe()
        worker.start()
    acked = load.stop()
    prove(app, acked)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("seed", [31, 32, 33])
def test_many_random_sigkills_under_load_leave_counts_exact(
    application: MakeApplication, seed: int, workers: int
) -> None:
    kill_at_random(application, kills=10, seed=seed, workers=workers)


def test_a_crash_of_native_code_leaves_a_stack_trace(application: MakeApplication) -> None:
    worker = application(partitions=1).worker().start().wait_ready()
    worker.signal(signal.SIGSEGV)
    assert worker.wait_exit(DEADLINE_S) == -signal.SIGSEGV
    assert worker.said("Fatal Python error: Segmentation fault"), worker.tail()
    assert worker.said(r"File .*, line \d+ in "), worker.tail()
