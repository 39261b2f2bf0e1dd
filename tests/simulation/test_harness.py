"""Properties of the simulation itself on which its checks depend."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from holdfast.core.claims.frames import ClaimingPartition, Frame, Heartbeat, ReleasingPartition
from holdfast.core.claims.resets import ResetCommit
from holdfast.core.kafka.topic_partition import TopicPartition
from tests.simulation.broker import Broker, Stay
from tests.simulation.checks import LIMIT_STALLED_AUDITS, STALLED
from tests.simulation.plan import Kind, draw
from tests.simulation.process import Process
from tests.simulation.test_simulation import seeds_of
from tests.simulation.timeline import BEGAN_S
from tests.simulation.trace import Violation
from tests.simulation.world import World

PLACE = TopicPartition("t0", 0)


def quiet_world() -> World:
    """Return a world of one log in which no process acts by itself."""
    seed = next(
        each
        for each in seeds_of(Kind.RACE, 50)
        if (plan := draw(each)[0]).logs == 1 and plan.interval_s == 3.0
    )
    return World(*draw(seed))


def said(world: World, kind: type[Any], instance: str, *last: int) -> Frame:
    """Append a frame about partition 0 of the first topic, and return it."""
    frame: Frame = kind(
        int(BEGAN_S + world.timeline.now_s), instance, instance.partition(".")[0], "g", *PLACE, *last
    )
    world.broker.append(0, frame)
    return frame


def repeats(world: World, frame: Frame, stay: Stay) -> bool:
    """Return whether the wire appends *frame* of *stay* once more."""
    records = world.broker.logs[0].records
    before = len(records)
    wire = Process(
        world.broker, world.checks, world.trace, "c0", "c0.1", Random(1), rate=1.0, skew_s=0.0
    ).wire
    wire._repeat(frame, 0, stay)
    return len(records) > before


def test_frames_are_repeated_but_those_that_would_be_taken_for_ones_of_a_later_stay() -> None:
    """A producer that is not idempotent may repeat any frame, except those that no reader can distinguish
    from a frame that was sent today.
    """
    world = quiet_world()
    broker: Broker = world.broker
    claim, beat = said(world, ClaimingPartition, "c0.1"), said(world, Heartbeat, "c0.1", 0)
    first = broker.stay(beat, 0)
    assert (first.instance_id, first.epoch, first.reset_by) == ("c0.1", 1, None)
    assert repeats(world, beat, first)
    assert repeats(world, claim, first)
    release = said(world, ReleasingPartition, "c0.1", 0)
    assert repeats(world, release, first), "it is free already"
    said(world, ClaimingPartition, "c1.1")
    assert repeats(world, release, first), "it is another's"
    assert repeats(world, beat, first), "an owner from before does not get it back"
    said(world, ReleasingPartition, "c1.1", 0)
    said(world, ClaimingPartition, "c0.1")
    assert repeats(world, beat, first), "it says less than is done"
    assert not repeats(world, release, first), "it would be taken for the release of the present stay"


def test_a_heartbeat_from_before_a_reset_is_not_repeated_after_its_process_has_claimed_again() -> None:
    world = quiet_world()
    said(world, ClaimingPartition, "c0.1")
    world.checks.ledgers[PLACE].done.update(range(5))
    beat = said(world, Heartbeat, "c0.1", 5)
    before = world.broker.stay(beat, 0)
    said(world, ReleasingPartition, "c0.1", 5)
    said(world, ClaimingPartition, "reset-1")
    assert repeats(world, beat, before), "nobody takes from a reset"
    offsets: dict[str, tuple[tuple[int, int, int], ...]] = {PLACE.topic: ((PLACE.partition, 5, 0),)}
    world.checks.decisions.add(
        ResetCommit(reset_id="1", group="g", client="reset-1", at_s=0, offsets=offsets)
    )
    said(world, ReleasingPartition, "reset-1", 0)
    assert repeats(world, beat, before), "nor takes what it gave back by a heartbeat"
    assert world.broker.row(0, PLACE).current_offset == 0  # type: ignore[union-attr]
    said(world, ClaimingPartition, "c0.1")
    assert not repeats(world, beat, before), "what the reset has moved back would go forward again"


def stalled_after(world: World, *, lapsed: bool, held: bool, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Return whether the audit finds an owner stalled that hands out nothing."""
    world.start("c0", skew_s=0.0)
    node = world.checks.nodes["c0.1"]
    for name, answer in {"healthy": True, "holds": held, "is_full": False, "position": 0}.items():
        monkeypatch.setattr(node, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(world.checks, "_is_free", lambda ledger: lapsed)
    ledger = world.checks.ledgers[PLACE]
    ledger.owner, ledger.owner_since_s = "c0.1", -1e6
    world.broker.latest[PLACE] = 5
    found = ""
    for _ in range(LIMIT_STALLED_AUDITS + 2):
        try:
            world.checks._audit_stalled(0.0)
        except Violation as violation:
            found = violation.name
    return found == STALLED


@pytest.mark.parametrize(
    ("lapsed", "held", "found"),
    [(False, True, True), (False, False, True), (True, True, True), (True, False, False)],
)
def test_an_owner_stalls_by_the_log_or_by_its_own_book(
    lapsed: bool, held: bool, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Named by the log, or thinking that it holds it: both must work on it.

    A claim that lapsed and was given up has no owner.
    """
    assert stalled_after(quiet_world(), lapsed=lapsed, held=held, monkeypatch=monkeypatch) is found
