"""Windows that feed windows, in random schedules of workers, come to what each source log alone says."""

from __future__ import annotations

from random import Random

import pytest

from holdfast.streams import windows_of
from tests.core.streams.pace_world import World, by_kind
from tests.core.streams.paces import Fare, source_logs
from tests.core.streams.windowing.test_windows_at_any_pace import KINDS
from tests.core.streams.windowing.test_windows_of_windows import END, days_of, declared
from tests.support.scale import scaled

MANY = 25_000


def schedule_of_days(seed: int) -> None:
    """Run one schedule of windows that feed windows after a step; AssertionError where these are not those
    of the oracle.
    """
    rng = Random(seed)
    kind, steps = rng.choice([*KINDS]), rng.choice([1, 1, 3])
    time = "end" if kind == "sessions" else rng.choice(["start", "end"])
    logs = source_logs(rng, rng.choice([1, 2, 3]), rng.choice([3, 15]), rng.choice([20, 250]))
    hours = [each for each in KINDS[kind][1](logs) if each[1] >= 0]
    for log in logs:
        log.append(Fare("zz", END, -1))  # closes all hours
    days, by_hours, *chain = declared(kind, time, steps, True, 0)
    ways = [*chain[:-1], by_hours, chain[-1], days]
    world = World(ways, {"fares": logs}, rng, quiet=True, later=rng.choice([0, 1]))
    world.run()
    rows = world.rows("days")
    found = sorted(
        (each.key, each.start_ms, each.end_ms, each.value) for of in rows for each in windows_of(of.items())
    )
    assert found == days_of(hours, time), f"schedule {seed}: days of {kind} by {time} behind {steps} steps"
    assert not any(row.late or row.late_after_idle for row in by_kind(rows)["OriginRow"]), f"schedule {seed}"
    assert not any(owner.committed.refused for of in world.owners.values() for owner in of), (
        f"schedule {seed}"
    )


@pytest.mark.long
def test_workers_of_windows_of_windows_come_to_what_each_log_alone_says() -> None:
    for seed in range(scaled(60)):
        schedule_of_days(seed)


@pytest.mark.slow
def test_they_do_in_many_schedules_of_days() -> None:
    for seed in range(1_000_000, 1_000_000 + MANY):
        schedule_of_days(seed)
