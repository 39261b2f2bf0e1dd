"""Downstream of steps, the past that a table with history knows follows from the sources' logs, at whatever
pace they are read; compared with an oracle that sees each log alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest

from holdfast import Json, Source, Stream
from holdfast.streams import JoinStreamTable, OriginRow, StreamRow, stream_key
from holdfast.testing import Topology
from tests.core.streams.paces import Fare, at_of, at_pace, by_driver, source_logs
from tests.support.scale import scaled

PARTITIONS, HISTORY = 3, "200ms"
Found = tuple[int, int | None]
FOUND: Stream[Found] = Stream("found", Json(Found))
LATE: Stream[Fare] = Stream("late", Json(Fare))
RIDES, RATES = (Source(name, Json(Fare), time=at_of) for name in ("rides", "rates"))


def with_rate(ride: Fare, rate: Fare | None) -> Found:
    return ride.number, None if rate is None else rate.number


def joined(rides: Source[Fare], rates: Source[Fare]) -> JoinStreamTable[Fare, Fare, Found]:
    return JoinStreamTable(
        name="rated",
        stream=rides,
        table=rates,
        join=with_rate,
        to=FOUND,
        how="left",
        history=HISTORY,
        late=LATE,
    )


def apart(logs: list[list[Fare]]) -> list[list[Fare]]:
    """Return *logs* with no time in two of them: of one time it would be the last that counts."""
    return [
        [Fare(each.driver, each.at_ms * len(logs) + number, each.number) for each in log]
        for number, log in enumerate(logs)
    ]


def is_in_time(log: Sequence[Fare]) -> list[bool]:
    """Return of each record whether it is at most the history before the highest time before it."""
    highest, found = -(10**9), list[bool]()
    for each in log:
        found.append(each.at_ms >= highest - 200)
        highest = max(highest, each.at_ms)
    return found


def oracle(rides: list[list[Fare]], rates: list[list[Fare]]) -> tuple[Counter[Found], set[int]]:
    kept = [each for log in rates for each, ok in zip(log, is_in_time(log), strict=True) if ok]
    late = {each.number for log in rates for each, ok in zip(log, is_in_time(log), strict=True) if not ok}
    found = Counter[Found]()
    for log in rides:
        for ride, ok in zip(log, is_in_time(log), strict=True):
            before = [each for each in kept if each.driver == ride.driver and each.at_ms <= ride.at_ms]
            last = max(enumerate(before), key=lambda each: (each[1].at_ms, each[0]), default=None)
            found[ride.number, last[1].number if ok and last is not None else None] += 1
    return found, late


@pytest.mark.long
@pytest.mark.parametrize("steps", [1, pytest.param(3, marks=pytest.mark.variant)])
def test_a_backlog_of_the_table_hides_nothing_from_rides_that_are_read_after_it(steps: int) -> None:
    lost = 0
    for seed in range(scaled(4)):
        rng = Random(seed)
        rides, rates = (apart(source_logs(rng, PARTITIONS, 25, 300)) for _ in range(2))
        wanted, late = oracle(rides, rates)
        lost += len(late)
        for pace in range(2):
            chance = Random(seed * 100 + pace)
            chains = [by_driver(f"{source.topic}-by", source, steps) for source in (RIDES, RATES)]
            ends = [Source(chain[-1].to, Json(Fare), time=at_of) for chain in chains]
            processors = [*chains[0], *chains[1], joined(ends[0], ends[1])]
            with Topology(processors, partitions=PARTITIONS, paces=False) as topology:
                for source, logs in ((RATES, rates), (RIDES, rides)):
                    for at, fare in at_pace(logs, chance):
                        topology.pipe(source, fare, key=fare.driver, partition=at)
                found = Counter((number, rate) for _, (number, rate) in topology.values(FOUND))
                assert found == wanted, f"seed {seed}, pace {pace}"
                assert {fare.number for _, fare in topology.values(LATE)} == late, f"seed {seed}"
                rows = topology.table("rated")
                assert sum(row.late for row in rows.values() if isinstance(row, StreamRow)) == len(late)
                told = [row for row in rows.values() if isinstance(row, OriginRow)]
                assert sum(row.late for row in told) == len(late)
                assert not any(row.late_after_idle for row in told)
    assert lost, "some of the table are late"


def test_versions_that_no_record_may_ask_for_any_more_are_dropped_once_both_have_come_past_them() -> None:
    chains = [by_driver(f"{source.topic}-by", source, 1) for source in (RIDES, RATES)]
    ends = [Source(chain[-1].to, Json(Fare), time=at_of) for chain in chains]
    processors = [*chains[0], *chains[1], joined(ends[0], ends[1])]
    with Topology(processors, partitions=1, paces=False) as topology:
        for at_ms in range(0, 2_000, 100):
            topology.pipe(RATES, Fare("ada", at_ms, at_ms), key="ada")
        topology.pipe(RIDES, Fare("ada", 450, 1), key="ada")
        assert topology.values(FOUND) == [("ada", (1, 400))], "no origin had come past it"
        rows = topology.table("rated")
        assert rows[stream_key(0)].stream_ms == 1_900, "both let go, and rides had no more to ask"
        assert sorted(int(key[-16:]) for key in rows if "was/" in key) == [1_700, 1_800]
