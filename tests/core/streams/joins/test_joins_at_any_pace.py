"""Joins within an interval are functions of the sources' logs: at any pace the same pairs and the same
records alone, equal to an oracle that sees each log alone.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from holdfast import Json, Source, Stream
from holdfast.streams import JoinStreamRow, JoinWithin, stream_key
from holdfast.testing import Topology
from tests.core.streams.paces import Fare, at_of, at_pace, by_driver, source_logs, timely
from tests.support.scale import scaled

BEFORE, AFTER, GRACE = 15, 30, 20
Pair = tuple[int | None, int | None]
PAIRS: Stream[Pair] = Stream("pairs", Json(Pair))
LEFT, RIGHT = (Source(name, Json(Fare), time=at_of) for name in ("left", "right"))


def pair(left: Fare | None, right: Fare | None) -> Pair:
    return None if left is None else left.number, None if right is None else right.number


def oracle(lefts: list[list[Fare]], rights: list[list[Fare]]) -> Counter[Pair]:
    left, right = (timely(logs, lambda at, highest: at + GRACE < highest) for logs in (lefts, rights))
    found = Counter(
        (one.number, other.number)
        for one in left
        for other in right
        if one.driver == other.driver and -BEFORE <= other.at_ms - one.at_ms <= AFTER
    )
    met = {number for number, _ in found}, {number for _, number in found}
    alone: Counter[Pair] = Counter((each.number, None) for each in left if each.number not in met[0])
    alone.update((None, each.number) for each in right if each.number not in met[1])
    return Counter[Pair](found) + alone


def within(left: Source[Fare], right: Source[Fare]) -> JoinWithin[Fare, Fare, Pair]:
    return JoinWithin(
        name="pairs-of",
        left=left,
        right=right,
        join=pair,
        to=PAIRS,
        before=BEFORE,
        after=AFTER,
        grace=GRACE,
        how="outer",
    )


@pytest.mark.long
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_pairs_and_records_alone_are_what_each_log_says(steps: int) -> None:
    partitions = 3 if steps else 1
    for seed in range(scaled(6)):
        lefts, rights = (source_logs(Random(2 * seed + side), partitions, 25, 100) for side in (0, 1))
        wanted = oracle(lefts, rights)
        for pace in range(3):
            of_left, of_right = (
                by_driver(source.topic, source, steps) if steps else [] for source in (LEFT, RIGHT)
            )
            sources = [
                Source(chain[-1].to, Json(Fare), time=at_of) if chain else source
                for chain, source in ((of_left, LEFT), (of_right, RIGHT))
            ]
            joined = within(*sources)
            with Topology([*of_left, *of_right, joined], partitions=partitions) as topology:
                for number, fare in at_pace([*lefts, *rights], Random(100 * seed + pace)):
                    side = LEFT if number < partitions else RIGHT
                    topology.pipe(side, fare, key=fare.driver, partition=number % partitions)
                found = Counter(result for _, result in topology.values(PAIRS))
                for more in range(1, 4):
                    topology.tick(1_800_000_000_000 + more * 10_000_000)
                found.update(result for _, result in topology.values(PAIRS))
                assert found == wanted, (seed, pace)
                rows = topology.table(joined)
                assert not any(row.late_after_idle for row in rows.values() if isinstance(row, JoinStreamRow))
                assert not any(key.startswith(("l/", "r/")) for key in rows), "nothing is kept for ever"
                assert not topology.refused


def test_a_source_that_says_nothing_lets_go_by_a_recorded_tick() -> None:
    joined = JoinWithin(name="joined", left=LEFT, right=RIGHT, join=pair, to=PAIRS, before=10, after=10)
    with Topology([joined], partitions=1) as topology:
        for at_ms in (100, 200, 300):
            topology.pipe(LEFT, Fare("a", at_ms, at_ms), key="a", at=5_000 + at_ms)
        rows = topology.table(joined)
        assert sum(key.startswith("l/") for key in rows) == 3, "each waits for a right one"
        topology.tick(6_000)
        assert topology.table(joined)[stream_key(0)].stream_ms == -1
        topology.tick(6_500)
        rows = topology.table(joined)
        assert rows[stream_key(0)].stream_ms == 300
        assert sum(key.startswith("l/") for key in rows) == 1
        topology.pipe(RIGHT, Fare("a", 200, 1), key="a", at=7_000)
        assert topology.values(PAIRS) == []
        stream = topology.table(joined)[stream_key(0)]
        assert (stream.late, stream.late_after_idle, stream.ended) == (1, 1, 0)
        assert [choice.tick_ms for choice in topology.choices(joined, 0)] == [6_000, 6_500]


def test_a_source_says_how_long_it_may_say_nothing() -> None:
    slow = Source("right", Json(Fare), time=at_of, idle="3s")
    joined = JoinWithin(name="joined", left=LEFT, right=slow, join=pair, to=PAIRS, before=10, after=10)
    with Topology([joined], partitions=1) as topology:
        for at_ms in (100, 200, 300):
            topology.pipe(LEFT, Fare("a", at_ms, at_ms), key="a", at=5_000 + at_ms)
        topology.tick(8_000)
        assert topology.table(joined)[stream_key(0)].stream_ms == -1
        topology.tick(8_500)
        assert topology.table(joined)[stream_key(0)].stream_ms == 300
