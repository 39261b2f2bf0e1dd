"""A worker frozen at the worst moments: just given its assignment, or in the middle of a commit.

Thawed, it is no owner and comes back.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from holdfast.pipeline.topic import TopicLog
from tests.chaos.conftest import MakeApplication
from tests.support.harness import Application, Worker, wait_for
from tests.support.patience import DEADLINE_S
from tests.support.proof import prove

LOOK_S = 3.0


class Victim:
    """A worker that stops itself at a given point, with *settings* of its own."""

    def __init__(self, app: Application, folder: Path, **settings: float) -> None:
        self.order = folder / "freeze"
        self.worker = app.worker(**settings)  # type: ignore[arg-type]

    def start(self) -> Worker:
        return self.worker.start(CHAOS_FREEZE=str(self.order))

    def will_freeze(self, point: str) -> None:
        written = self.order.with_suffix(".new")
        written.write_text(point)
        written.rename(self.order)

    def wait_frozen(self) -> None:
        wait_for("the victim to freeze", self._frozen, DEADLINE_S, self.worker.tail)

    def _frozen(self) -> bool:
        state = (
            Path(f"/proc/{self.worker.process.pid}/stat")
            .read_text(encoding="utf-8")
            .rpartition(")")[2]
            .split()[0]
        )
        return state == "T"

    def thaw(self) -> None:
        self.worker.signal(signal.SIGCONT)


def positions(workers: list[Worker]) -> dict[tuple[str, int], int]:
    return {place: at for worker in workers for place, at in worker.applied().items()}


def wait_taken_over(
    app: Application, held: Iterable[tuple[str, int]], heirs: list[Worker]
) -> dict[tuple[str, int], int]:
    """Return the offsets of *heirs* once they own all that was *held*, and have continued beyond any offset
    that a worker frozen now can have.
    """
    with TopicLog(app.settings, app.source) as log:
        ends = log.ends(log.partitions())

    def gone_on() -> dict[tuple[str, int], int]:
        now = positions(heirs)
        return (
            now if all(now.get((name, partition), -1) > ends[partition] for name, partition in held) else {}
        )

    return wait_for(
        "others to take over and go on",
        gone_on,
        DEADLINE_S,
        lambda: "\n".join(heir.tail() for heir in heirs),
    )


def stale_answers(
    victim: Worker, reached: Mapping[tuple[str, int], int], held: Iterable[tuple[str, int]]
) -> list[str]:
    """Query the thawed *victim* without pause until it is ready again; return its answers as an owner that
    are older than *reached*.
    """
    stale, thawed_s = [], time.monotonic()
    while time.monotonic() - thawed_s < LOOK_S or not victim.ready:
        assert victim.running, f"the victim ended\n{victim.tail()}"
        assert time.monotonic() - thawed_s < DEADLINE_S, f"the victim does not come back\n{victim.tail()}"
        for name, partition in held:
            status, body = victim.ask(f"/tables/{name}/{partition}/rows/any")
            if status == 200 and json.loads(body)["as_of_offset"] < reached[name, partition]:
                stale.append(f"{time.monotonic() - thawed_s:.2f} s after the thaw: {body}")
    return stale


def freeze_between_sync_and_adoption(application: MakeApplication, folder: Path, times: int) -> None:
    app = application(partitions=4)
    load = app.load(
        rate=300, seed=51
    )  # slow enough to last for fifty freezes: a load ends at a million records
    victim = Victim(app, folder)
    victim.start().wait_ready()
    heir, third = app.worker().start(), app.worker()
    wait_for(
        "both at work",
        lambda: all(each.ready and each.applied() for each in (victim.worker, heir)),
        DEADLINE_S,
        app.tails,
    )
    for _ in range(times):
        held = list(victim.worker.applied())
        assert held, "the victim owns nothing"
        victim.will_freeze("synced")
        # Each is a rebalance, in which the victim keeps some of its partitions.
        if third.running:
            third.stop()
        else:
            third.start()
        victim.wait_frozen()
        try:
            reached = wait_taken_over(app, held, [heir, third])
        finally:
            victim.thaw()
        stale = stale_answers(victim.worker, reached, held)
        assert not stale, (
            f"{len(stale)} answers as the owner of before: {stale[0]} … {stale[-1]}\n{victim.worker.tail()}"
        )
        wait_for(
            "all at work",
            lambda: all(each.ready and each.applied() for each in app.live),
            DEADLINE_S,
            app.tails,
        )
    prove(app, load.stop())


@pytest.mark.slow
def test_a_worker_frozen_between_its_assignment_and_its_adoption_does_not_answer_as_an_owner(
    application: MakeApplication, tmp_path: Path
) -> None:
    freeze_between_sync_and_adoption(application, tmp_path, 2)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_fifty_freezes_between_assignment_and_adoption_give_no_stale_answer(
    application: MakeApplication, tmp_path: Path
) -> None:
    freeze_between_sync_and_adoption(application, tmp_path, 50)


@pytest.mark.slow
def test_a_worker_thawed_in_a_commit_after_all_its_deadlines_rejoins(
    application: MakeApplication, tmp_path: Path
) -> None:
    app = application(partitions=2)
    load = app.load(rate=500, seed=52)
    hasty = {"commit_timeout_s": 5, "stall_timeout_s": 5, "request_timeout_s": 10}
    victim, heir = Victim(app, tmp_path, **hasty), app.worker()
    victim.start().wait_ready()
    heir.start()
    wait_for(
        "both at work",
        lambda: all(each.ready and each.applied() for each in (victim.worker, heir)),
        DEADLINE_S,
        app.tails,
    )
    held, process = list(victim.worker.applied()), victim.worker.process
    victim.will_freeze("committing")
    victim.wait_frozen()
    frozen_s = time.monotonic()
    try:
        reached = wait_taken_over(app, held, [heir])
        wait_for(
            "a freeze longer than any deadline of the victim's",
            lambda: time.monotonic() - frozen_s > 12,
            DEADLINE_S,
        )
    finally:
        victim.thaw()
    assert not stale_answers(victim.worker, reached, held)
    wait_for(
        "both at work again",
        lambda: all(each.ready and each.applied() for each in (victim.worker, heir)),
        DEADLINE_S,
        app.tails,
    )
    assert victim.worker.process is process, "it went on, it was not started anew"
    assert not victim.worker.said("is the broker reachable"), victim.worker.tail()
    prove(app, load.stop())
