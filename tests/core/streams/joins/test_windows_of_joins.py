"""Windows of what an interval join sends: the same at any pace, and what plain loops over the logs find."""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import Any

import msgspec
import pytest

from holdfast import Internal, Json, Source, Stream
from holdfast.streams import JoinWithin, OriginRow, Rekey, Tumbling, Windowed, WindowResult, final
from holdfast.testing import Topology
from tests.core.streams.joins.test_joins_at_any_pace import AFTER, BEFORE, GRACE, LEFT, RIGHT, oracle
from tests.core.streams.paces import Fare, at_of, at_pace, by_driver, source_logs
from tests.support.scale import scaled

END = 100_000


class Met(msgspec.Struct, frozen=True):
    left: Fare | None
    right: Fare | None


def first_of(met: Met) -> int:
    return min(each.at_ms for each in (met.left, met.right) if each)


def last_of(met: Met) -> int:
    return max(each.at_ms for each in (met.left, met.right) if each)


TIMES = {"first": first_of, "last": last_of}
COUNTS: Stream[WindowResult[int]] = Stream("counts", Json(WindowResult[int]))


def processors(time: str, steps: int) -> list[Any]:
    of_left, of_right = (by_driver(source.topic, source, steps) if steps else [] for source in (LEFT, RIGHT))
    left, right = (
        Source(chain[-1].to, Json(Fare), time=at_of) if chain else source
        for chain, source in ((of_left, LEFT), (of_right, RIGHT))
    )
    pairs = Internal("pairs", Json(Met), time=TIMES[time])
    joined: JoinWithin[Fare, Fare, Met] = JoinWithin(
        name="joined",
        left=left,
        right=right,
        join=Met,
        to=pairs,
        before=BEFORE,
        after=AFTER,
        grace=GRACE,
        how="outer",
    )
    by_all: Rekey[Any, Any] = Rekey(name="by-all", source=pairs, by=lambda met: "all")
    counts: Windowed[Met, int] = Windowed(
        name="counted",
        source=by_all,
        by=lambda met: "all",
        window=Tumbling("100ms"),
        fold=lambda count, met: (count or 0) + 1,
        row=int,
        emit=final(COUNTS),
        late="late-pairs",
    )
    return [counts, by_all, joined, *of_left, *of_right]


@pytest.mark.long
@pytest.mark.parametrize("steps", [0, 1])
def test_windows_of_pairs_and_records_alone_are_the_same_at_any_pace(steps: int) -> None:
    partitions = 3 if steps else 1
    for seed in range(scaled(6)):
        time = ("first", "last")[seed % 2]
        lefts, rights = (source_logs(Random(2 * seed + side), partitions, 25, 100) for side in (0, 1))
        times = (
            {each.number: each.at_ms for log in lefts for each in log},
            {each.number: each.at_ms for log in rights for each in log},
        )
        wanted: dict[int, int] = defaultdict(int)
        for (left, right), count in oracle(lefts, rights).items():
            met = [of[each] for of, each in zip(times, (left, right), strict=True) if each is not None]
            at_ms = min(met) if time == "first" else max(met)
            wanted[at_ms - at_ms % 100] += count
        for pace in range(3):
            with Topology(processors(time, steps), partitions=partitions, paces=False) as topology:
                for number, fare in at_pace([*lefts, *rights], Random(100 * seed + pace)):
                    side = LEFT if number < partitions else RIGHT
                    topology.pipe(side, fare, key=fare.driver, partition=number % partitions)
                for side in (LEFT, RIGHT):  # closes all of before
                    for partition in range(partitions):
                        for at_ms in (END, 2 * END):
                            topology.pipe(side, Fare("zz", at_ms, -1), key="zz", partition=partition)
                counts = {each.start_ms: each.value for _, each in topology.values(COUNTS)}
                late = topology.read("late-pairs")
                rows = [row for row in topology.table("counted").values() if isinstance(row, OriginRow)]
                assert not topology.refused
            assert {at: count for at, count in counts.items() if at < END} == wanted, (seed, pace, time)
            assert not late
            assert not any(row.late_after_idle for row in rows)
