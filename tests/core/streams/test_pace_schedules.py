"""Workers of steps, windows and joins in random schedules come to what each source log alone says."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from os import cpu_count
from random import Random

import msgspec
import pytest

from tests.core.streams.pace_shapes import DONE, Shape, any_logs, any_of_folds, any_shape
from tests.core.streams.pace_world import World
from tests.support.scale import scaled

MANY, LOT = 100_000, 500
FOUND = (
    48,  # the watermark of a first log was taken for that of the origin, which is the least of several
    54,
    1_003_442,  # a pair was lost after an origin had let go, and no record was counted for it
)


def schedule(seed: int, any_shape: Callable[[Random], Shape] = any_shape) -> None:
    """Run one schedule; AssertionError where results are not those of the oracle, or of another version that
    folds the logs again.
    """
    rng = Random(seed)
    shape, partitions = any_shape(rng), rng.choice([1, 2, 3])
    logs = any_logs(rng, shape, partitions)
    grown, idle = partitions > 1 and rng.random() < 0.3, rng.random() < 0.2
    if grown:  # records of a new partition are of its time
        after_ms = max([each.at_ms for of in logs.values() for log in of[:-1] for each in log], default=0)
        for of in logs.values():
            of[-1] = [msgspec.structs.replace(each, at_ms=each.at_ms + after_ms) for each in of[-1]]
    world = World(shape.processors(), logs, rng, grown=grown, idle=idle)
    upgrade = rng.choice(["none", "none", "last", "all"])
    if upgrade != "none":
        world.run(turns=rng.randrange(60))
        raised = shape.processors(2, done=2) if upgrade == "all" else shape.processors(done=2)[-1:]
        world.upgrade(raised)
    world.run()
    told = f"schedule {seed}: {shape}, {partitions} partitions, {grown=}, {idle=}, {upgrade=}"
    try:
        shape.check(world, logs, idle=idle)
        assert not world.refused
        before, raised = world.told(DONE), shape.processors(2 if upgrade == "all" else 1, done=3)
        assert world.folded_again(raised[-1]) == before, "the logs give the same again"
    except AssertionError as error:
        raise AssertionError(f"{told}: {error}") from error


def schedule_of_an_old_release(seed: int) -> None:
    """Run one schedule that steps of an earlier release begin, which send no origins. AssertionError where
    other versions fold these logs otherwise, or where versions of steps and results that begin again do not
    come to the oracle's results.
    """
    rng = Random(seed)
    shape, partitions = any_shape(rng), rng.choice([1, 2, 3])
    logs = any_logs(rng, shape, partitions)
    world = World(shape.processors(), logs, rng, old=rng.randrange(1, 80))
    upgrade = rng.choice(["none", "last", "all"])
    world.run(turns=rng.randrange(160))
    if upgrade != "none":
        raised = shape.processors(2, done=2) if upgrade == "all" else shape.processors(done=2)[-1:]
        world.upgrade(raised)
    if upgrade == "all":
        world.old = 0  # the new versions are of the present release
    world.run()
    try:
        if upgrade == "all":
            shape.check(world, logs, idle=False)
        assert not world.refused
        before, raised = world.told(DONE), shape.processors(2 if upgrade == "all" else 1, done=3)
        assert world.folded_again(raised[-1]) == before, "the logs give the same again"
    except AssertionError as error:
        raise AssertionError(
            f"schedule {seed}: {shape}, {partitions} partitions, {upgrade=}: {error}"
        ) from error


@pytest.mark.long
def test_steps_of_an_old_release_are_replaced_and_versions_raised() -> None:
    for seed in range(scaled(60)):
        schedule_of_an_old_release(seed)


def schedules(first: int, count: int) -> int:
    for seed in range(first, first + count):
        schedule(seed)
    return count


@pytest.mark.long
def test_workers_come_to_what_each_log_alone_says() -> None:
    for seed in (*FOUND, *range(scaled(80))):
        schedule(seed)


@pytest.mark.long
def test_so_they_do_downstream_of_folds_that_emit() -> None:
    for seed in range(scaled(60)):
        schedule(seed, any_of_folds)


@pytest.mark.slow
def test_so_they_do_downstream_of_folds_in_many_schedules() -> None:
    for seed in range(1_000_000, 1_000_000 + MANY // 10):
        schedule(seed, any_of_folds)


@pytest.mark.slow
def test_they_do_in_many_schedules() -> None:
    with ProcessPoolExecutor(cpu_count(), mp_context=get_context("spawn")) as pool:
        lots = [pool.submit(schedules, first, LOT) for first in range(1_000_000, 1_000_000 + MANY, LOT)]
        assert sum(each.result() for each in lots) == MANY
