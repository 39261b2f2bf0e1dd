"""Schedules of every kind, at the size of a usual run. `make sim` runs thousands."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from holdfast.core.kafka.topic_partition import TopicPartition
from tests.simulation.checks import NAMES
from tests.simulation.plan import CROWD_EVERY, Kind, draw
from tests.simulation.trace import Violation
from tests.simulation.world import run_schedule
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT
from tests.support.scale import scaled

SEEDS = 24
FOUND = (
    788,
    401541,
    401965,
    404034,
    406815,
    407805,
    408075,
    409396,
    409785,
    409864,
    409937,
    500533,
    506239,
    604386,
)
"""Schedules that broke a rule once.

Each defect has a test of its own in `test_found` or `test_harness`.
"""


def seeds_of(kind: Kind, count: int) -> list[int]:
    """Return the first seeds whose schedules are of *kind*."""
    if kind is Kind.CROWD:
        return [CROWD_EVERY * (index + 1) - 1 for index in range(count)]
    found: list[int] = []
    seed = 0
    while len(found) < count:
        if draw(seed)[0].kind is kind:
            found.append(seed)
        seed += 1
    return found


@pytest.mark.variants("crowd")
@pytest.mark.parametrize(
    "kind", [pytest.param(each, marks=[pytest.mark.long] if each is Kind.CROWD else []) for each in Kind]
)
def test_no_schedule_breaks_a_rule(kind: Kind) -> None:
    outcomes = [run_schedule(seed) for seed in seeds_of(kind, 1 if kind is Kind.CROWD else scaled(SEEDS))]
    assert all(outcome.kind is kind for outcome in outcomes)
    if kind is not Kind.CROWD and len(outcomes) < SEEDS:
        return  # a few schedules may do little; `make variants` takes enough of them
    assert sum(outcome.handed_out for outcome in outcomes) > 100 * len(outcomes) / 2, (
        "the schedules do something"
    )
    assert sum(outcome.taken for outcome in outcomes) >= 2 * len(outcomes)
    if kind is Kind.TWINS:
        assert sum(outcome.conflicts for outcome in outcomes) > 0
    if kind is Kind.RACE:
        assert sum(outcome.redelivered for outcome in outcomes) > 0


@pytest.mark.parametrize("seed", FOUND)
def test_schedules_that_broke_a_rule_once_break_none(seed: int) -> None:
    run_schedule(seed)


@pytest.mark.process
def test_a_seed_gives_the_same_run_in_every_process() -> None:
    """Also where strings hash differently."""
    seeds = [seeds_of(kind, 1)[0] for kind in Kind if kind is not Kind.CROWD]
    code = f"from tests.simulation.world import run_schedule\nfor seed in {seeds}: print(run_schedule(seed))"
    runs = {
        subprocess.run(
            [sys.executable, "-P", "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": str(hash_seed)},
            check=True,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        ).stdout
        for hash_seed in (1, 2)
    }
    assert len(runs) == 1
    assert runs.pop().count("Outcome(") == len(seeds)


def test_a_violation_says_how_to_reproduce_it() -> None:
    violation = Violation(
        "one-owner",
        "two hand out",
        seed=7,
        step=12,
        at_s=3.5,
        place=TopicPartition("orders", 3),
        lines=["a line"],
    )
    assert str(violation).splitlines() == [
        "one-owner on orders/3: two hand out",
        "seed 7, step 12, at 3.500 s; again: make sim SEED=7 SCHEDULES=1",
        "  a line",
    ]


def test_every_check_has_a_planted_fault() -> None:
    from tests.simulation.test_planted_faults import FAULTS

    assert {fault.found for fault in FAULTS} == set(NAMES)
