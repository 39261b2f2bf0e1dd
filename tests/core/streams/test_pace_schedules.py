"""Workers of steps and windows in random schedules come to what each source log alone says."""

from __future__ import annotations

from random import Random

import pytest

from holdfast import Json, Source
from holdfast.streams import Windowed, final, windows_of
from tests.core.streams.pace_world import by_kind, folded
from tests.core.streams.paces import FARES, Fare, at_of, by_driver, source_logs
from tests.core.streams.windowing.test_windows_at_any_pace import KINDS, RESULTS, Numbers, add
from tests.core.streams.windowing.test_windows_of_windows import END, days_of, declared
from tests.support.scale import scaled

MANY = 100_000
FOUND = (
    639,  # the one origin that was heard was taken for the only one
    2_155,  # a partition that the source had got was heard before others told of it
)


def schedule(seed: int) -> None:
    """Run one schedule; AssertionError where windows are not those of the oracle."""
    rng = Random(seed)
    kind, steps = rng.choice([*KINDS]), rng.choice([1, 1, 3])
    window, oracle, merge = KINDS[kind]
    logs = source_logs(rng, rng.choice([1, 2, 3]), rng.choice([3, 15]), rng.choice([20, 250]))
    grown = len(logs) > 1 and rng.random() < 0.3
    if grown:  # what is written to a new partition is of its time
        after_ms = max([each.at_ms for log in logs[:-1] for each in log], default=0)
        logs[-1] = [Fare(each.driver, each.at_ms + after_ms, each.number) for each in logs[-1]]
    chain = by_driver("by-driver", FARES, steps)
    windows = Windowed(
        name="windows",
        source=Source(chain[-1].to, Json(Fare), time=at_of),
        by=lambda fare: fare.driver,
        window=window,
        merge=merge,
        fold=add,
        row=Numbers,
        emit=final(RESULTS),
    )
    rows = folded(logs, [*chain, windows], rng, grown=grown, quiet=seed not in FOUND)
    found = sorted(
        (each.key, each.start_ms, each.end_ms, each.value) for of in rows for each in windows_of(of.items())
    )
    assert found == oracle(logs), f"schedule {seed}: {kind} behind {steps} steps"
    assert not any(row.late_after_idle for row in by_kind(rows)["OriginRow"]), f"schedule {seed}"


@pytest.mark.long
def test_workers_come_to_what_each_log_alone_says() -> None:
    for seed in (*FOUND, *range(scaled(60))):
        schedule(seed)


def schedule_of_days(seed: int) -> None:
    """Run one schedule of windows that feed windows behind a step; AssertionError where these are not those
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
    rows = folded(logs, ways, rng, grown=False, later=rng.choice([0, 1]))
    found = sorted(
        (each.key, each.start_ms, each.end_ms, each.value) for of in rows for each in windows_of(of.items())
    )
    assert found == days_of(hours, time), f"schedule {seed}: days of {kind} by {time} behind {steps} steps"
    assert not any(row.late or row.late_after_idle for row in by_kind(rows)["OriginRow"]), f"schedule {seed}"


@pytest.mark.long
def test_workers_of_windows_of_windows_come_to_what_each_log_alone_says() -> None:
    for seed in range(scaled(60)):
        schedule_of_days(seed)


@pytest.mark.slow
def test_they_do_in_many_schedules() -> None:
    for seed in range(1_000_000, 1_000_000 + MANY):
        schedule(seed)
        if seed % 4 == 0:
            schedule_of_days(seed)
