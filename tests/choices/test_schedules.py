"""Live = restored = replayed, whatever the schedule; tests/choices/test_planted_faults.py shows that it can
fail.
"""

from __future__ import annotations

import pytest

from tests.choices.checks import check_schedule, check_turns
from tests.choices.world import NEEDED
from tests.support.scale import scaled

QUICK, MANY = 500, 10_000


def run(seeds: range) -> None:
    barriers, ticks, waits = 0, 0, NEEDED.waits
    for seed in seeds:
        try:
            found = check_schedule(seed)
        except BaseException as error:
            error.add_note(f"schedule {seed}: tests.choices.checks.check_schedule({seed})")
            raise
        barriers, ticks = barriers + found[0], ticks + found[1]
    assert barriers > len(seeds), "schedules that record nothing prove nothing"
    assert ticks > len(seeds) // 4
    assert NEEDED.waits - waits > len(seeds) // 4, "what folds need is away now and then"


@pytest.mark.long
def test_live_restored_and_replayed_states_are_equal() -> None:
    run(range(scaled(QUICK)))


@pytest.mark.long
def test_versions_that_take_turns_agree_or_say_so() -> None:
    found = [check_turns(seed) for seed in range(scaled(300))]
    few = len(found) // 20
    assert few < sum(found) < len(found) - few, "some agree, some do not"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_they_are_equal_in_many_schedules() -> None:
    run(range(QUICK, QUICK + scaled(MANY)))
