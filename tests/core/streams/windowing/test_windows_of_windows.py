"""Windows whose final results feed other windows: the same at any pace, and what plain loops over the logs
find.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from holdfast import Internal, Json, Source, Stream
from holdfast.core.engine.origins import StepReached
from holdfast.streams import OriginRow, Rekey, Tumbling, Windowed, WindowResult, final
from holdfast.testing import Topology
from tests.core.streams.paces import FARES, Fare, at_of, at_pace, by_driver, source_logs
from tests.core.streams.windowing.test_windows_at_any_pace import KINDS, Found, Numbers, add
from tests.support.scale import scaled

Result = WindowResult[Numbers]
DAYS: Stream[Result] = Stream("days", Json(Result))
TIMES = {"start": lambda result: result.start_ms, "end": lambda result: result.end_ms - 1}
END = 100_000


def gathered(so_far: Numbers | None, result: Result) -> Numbers:
    return tuple(sorted((*(so_far or ()), *result.value)))


def declared(kind: str, time: str, steps: int, between: bool, grace: int) -> list[Any]:
    window, _, merge = KINDS[kind]
    chain = by_driver("by-driver", FARES, steps) if steps else []
    results = Internal("hours", Json(Result), time=TIMES[time])
    hours: Windowed[Any, Any] = Windowed(
        name="hours",
        source=Source(chain[-1].to, Json(Fare), time=at_of) if chain else FARES,
        by=lambda fare: fare.driver,
        window=window,
        merge=merge,
        fold=add,
        row=Numbers,
        emit=final(results),
        in_place=not between,  # else they lie by the keys of their rows
    )
    by_all: Rekey[Any, Any] = Rekey(name="by-all", source=results, by=lambda result: result.key)
    days: Windowed[Any, Any] = Windowed(
        name="days",
        source=by_all if between else results,
        by=lambda result: result.key,
        window=Tumbling(1_000, grace=grace),
        fold=gathered,
        row=Numbers,
        emit=final(DAYS),
        late="late-results",
    )
    return [days, hours, *chain, *([by_all] if between else [])]


def folded(processors: list[Any], logs: Sequence[Sequence[Fare]], pace: Random) -> Found:
    with Topology(processors, partitions=len(logs), paces=False) as topology:
        for partition, fare in at_pace(logs, pace):
            topology.pipe(FARES, fare, key=fare.driver, partition=partition)
        for partition in range(len(logs)):
            for number in range(2):  # the first closes all hours, and the hour of the second all days
                topology.pipe(FARES, Fare("zz", END * (1 + number), -1), partition=partition)
        found = [(r.key, r.start_ms, r.end_ms, r.value) for _, r in topology.values(DAYS)]
        assert not topology.refused
        assert not topology.read("late-results")
    return sorted(each for each in found if each[0] != "zz")


def days_of(hours: Found, time: str) -> Found:
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    for key, start, end, numbers in hours:
        at = start if time == "start" else end - 1
        found[key, at - at % 1_000] += numbers
    return sorted((key, at, at + 1_000, tuple(sorted(numbers))) for (key, at), numbers in found.items())


@pytest.mark.long
@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("kind", ["tumbling", "hopping", "sliding"])
def test_days_of_hours_are_the_same_at_any_pace(kind: str, steps: int, between: bool) -> None:
    for seed in range(scaled(4)):
        time = ("start", "end")[seed % 2]
        logs = source_logs(Random(seed), 4, 20, 250)
        if not steps:  # the records of a driver are in one partition
            logs = [[each for each in log if ord(each.driver) % 4 == at] for at, log in enumerate(logs)]
        oracle = days_of([each for each in KINDS[kind][1](logs) if each[1] >= 0], time)
        for pace in range(3):
            processors = declared(kind, time, steps, between, 0)
            assert folded(processors, logs, Random(100 * seed + pace)) == oracle, (seed, pace, time)


@pytest.mark.long
def test_days_of_sessions_are_the_same_by_their_ends() -> None:
    for seed in range(scaled(4)):
        logs = source_logs(Random(seed), 3, 20, 250)
        oracle = days_of(KINDS["sessions"][1](logs), "end")
        for pace in range(3):
            processors = declared("sessions", "end", 1, True, 0)
            assert folded(processors, logs, Random(100 * seed + pace)) == oracle, (seed, pace)


@pytest.mark.long
def test_a_long_session_is_late_by_its_start_at_any_pace_alike() -> None:
    all_late = 0
    for seed in range(scaled(4)):
        logs = source_logs(Random(seed), 3, 60, 100)
        found = []
        for pace in range(3):
            with Topology(declared("sessions", "start", 1, True, 0), partitions=3, paces=False) as topology:
                for partition, fare in at_pace(logs, Random(100 * seed + pace)):
                    topology.pipe(FARES, fare, key=fare.driver, partition=partition)
                for partition in range(3):
                    for number in range(2):
                        topology.pipe(FARES, Fare("zz", END * (1 + number), -1), partition=partition)
                days = sorted((r.key, r.start_ms, r.value) for _, r in topology.values(DAYS))
                late = sorted((each.key, each.value) for each in topology.read("late-results"))
                found.append((days, late))
                all_late += len(late)
                rows = [row for row in topology.table("days").values() if isinstance(row, OriginRow)]
                assert not any(row.late_after_idle for row in rows)
        assert found[1:] == found[:1] * 2, seed
    assert all_late


def quiet(**more: Any) -> list[Any]:
    """Return hours of two partitions that no step writes, and days of them."""
    results = Internal("hours", Json(WindowResult[int]), time=lambda result: result.start_ms)
    common: dict[str, Any] = {
        "fold": lambda count, _: (count or 0) + 1,
        "row": int,
    }
    hours: Windowed[Fare, int] = Windowed(
        name="hours",
        source=FARES,
        by=lambda fare: fare.driver,
        window=Tumbling(100),
        emit=final(results),
        **common,
        **more,
    )
    days: Windowed[Any, int] = Windowed(
        name="days",
        source=Rekey(name="by-all", source=results, by=lambda result: "all"),
        by=lambda result: "all",
        window=Tumbling(1_000),
        emit=final(Stream("days", Json(WindowResult[int]))),
        late="late-results",
        **common,
    )
    return [hours, _step_of(days), days]


def _step_of(days: Windowed[Any, int]) -> Rekey[Any, Any]:
    results = Internal("hours", Json(WindowResult[int]), time=lambda result: result.start_ms)
    return Rekey(name="by-all", source=results, by=lambda result: "all")


def test_a_partition_with_an_open_window_holds_others_back_and_an_empty_one_does_not() -> None:
    with Topology(quiet(), partitions=3, paces=False) as topology:  # one has no record at all
        topology.pipe(FARES, Fare("a", 950, 0), partition=0)
        for at_ms in (950, 1_050, 2_150, 3_250):
            topology.pipe(FARES, Fare("b", at_ms, 0), partition=1)
        assert topology.read("days") == [], "the hour of partition 0 has yet to be told"
        topology.pipe(FARES, Fare("a", 3_250, 0), partition=0)
        days = [result.value for _, result in topology.values(Stream("days", Json(WindowResult[int])))]
        assert days == [2, 1, 1]
        assert topology.read("late-results") == []


def test_with_idle_the_clock_closes_what_a_quiet_partition_holds_back() -> None:
    with Topology(quiet(idle="1s"), partitions=2, paces=False) as topology:
        topology.pipe(FARES, Fare("a", 950, 0), partition=0, at=10_000)
        for at_ms in (950, 1_050, 2_150):
            topology.pipe(FARES, Fare("b", at_ms, 0), partition=1, at=10_000)
        assert topology.read("days") == []
        topology.tick(13_000)
        days = [result.value for _, result in topology.values(Stream("days", Json(WindowResult[int])))]
        assert days[:1] == [2]
        assert topology.read("late-results") == []


def test_a_partition_does_not_let_go_while_a_window_is_open_there() -> None:
    _, hours, by_driver, _ = declared("tumbling", "start", 1, True, 0)
    with Topology([by_driver, hours], partitions=4, paces=False) as topology:
        topology.pipe(FARES, Fare("a", 1_050, 0))
        (at,) = {each.partition for each in topology.read(by_driver.to)}
        for partition in range(4):
            reached = topology._run("hours", partition).reached(frozenset())
            assert reached == StepReached(1_050 - 150, partition != at)
        topology.pipe(FARES, Fare("zz", END, -1))
        topology.settle()
        assert topology._run("hours", at).reached(frozenset()) == StepReached(END - 150, True)
