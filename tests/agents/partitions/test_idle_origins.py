"""Source partitions of steps that stay at the ends of their logs let go, once they have for long enough."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import Json, Source
from holdfast.agents.partitions.upkeep.idle_origins import IdleOrigins
from holdfast.core.engine.declared.chains import spoken_topics
from holdfast.streams import Rekey

STEP: Rekey[int, int] = Rekey(
    name="step", source=Source("numbers", Json(int), time=lambda number: number), by=str
)
PLACE = ("numbers", 0)


class World:
    """A worker that owns one partition of a step."""

    def __init__(self) -> None:
        self.now_s, self.told = 100.0, list[frozenset[int]]()
        owner = SimpleNamespace(marks=object(), fenced_in=True)
        self.part = SimpleNamespace(places=[PLACE], offsets={"numbers": 4}, owner=owner, partition=0)
        runner = SimpleNamespace(mark_idle=lambda at_end, epoch: self.told.append(at_end))
        self.ends: dict[Any, int] = {PLACE: 5}
        self.gate = SimpleNamespace(open=True, epoch=1)
        self.feed = SimpleNamespace(ends=lambda: self.ends, broker_down=False)
        owned = {("step", 0): SimpleNamespace(part=self.part, runner=runner)}
        self._parts: Any = {
            "gate": self.gate,
            "holdings": SimpleNamespace(owned=owned),
            "feed": self.feed,
            "clock": SimpleNamespace(monotonic_s=lambda: self.now_s),
        }
        self.origins = self.looking({"step": STEP})

    def looking(self, processors: dict[str, Any]) -> IdleOrigins:
        """Return the idle origins of the processor "step"."""
        settings: Any = SimpleNamespace(origin_idle_ms=1_000)
        return IdleOrigins(settings, processors, **self._parts)

    def looks(self, seconds: float) -> bool:
        """Look every 0.1 s for so long; return whether the last look marked it as having let go."""
        for _ in range(round(seconds * 10)):
            self.now_s += 0.1
            self.told.clear()
            self.origins.look()
        return self.told == [frozenset({0})]


@pytest.fixture
def world() -> World:
    return World()


def test_one_that_stays_at_its_end_for_long_enough_lets_go(world: World) -> None:
    assert not world.looks(0.9)
    assert world.looks(0.3)


def test_a_record_restarts_the_time(world: World) -> None:
    world.looks(0.9)
    world.ends[PLACE] = 6
    assert not world.looks(2.0), "it is read and not folded"
    world.part.offsets["numbers"] = 5
    assert not world.looks(0.9)
    assert world.looks(0.3)


@pytest.mark.parametrize("what", ["unknown", "closed", "down", "lost", "frozen"])
def test_an_origin_whose_end_is_unknown_does_not_let_go(world: World, what: str) -> None:
    world.looks(0.9)
    match what:
        case "unknown":
            world.ends.clear()
        case "closed":
            world.gate.open = False
        case "down":
            world.feed.broker_down = True
        case "lost":
            world.part.owner.fenced_in = False
        case "frozen":
            world.now_s += 60
    assert not world.looks(0.9)


def test_what_reads_a_step_waits_for_the_word_of_its_origins() -> None:
    again: Rekey[int, int] = Rekey(name="again", source=STEP, by=str)
    untold: Rekey[int, int] = Rekey(name="untold", source=Source("plain", Json(int)), by=str)
    behind: Rekey[int, int] = Rekey(
        name="behind", source=Source(untold.to, Json(int), time=lambda number: number), by=str
    )
    assert spoken_topics([again, STEP, untold, behind]) == {"again.v1", "step.v1", "behind.v1"}
    world = World()
    world.origins = world.looking({"step": again, "before": STEP})
    world.part.places, world.part.offsets = [("step.v1", 0)], {"step.v1": 4}
    world.ends = {("step.v1", 0): 5}
    world.looks(2.0)
    assert world.told == [frozenset()], "that it gets nothing says nothing of the sources"


def test_a_source_says_how_long_its_partitions_stay_at_the_end() -> None:
    world = World()
    slow = Source("numbers", Json(int), time=lambda number: number, idle="5s")
    world.origins = world.looking({"step": Rekey(name="step", source=slow, by=str)})
    assert not world.looks(4.9)
    assert world.looks(0.3)
