"""Joins of every kind against their definition: each result is found afresh among all records so far."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import Json, Source, Stream
from holdfast.core.streams.joins import within as join_within
from holdfast.core.streams.joins.joining import How, TableHow
from holdfast.streams import (
    JoinStreamRow,
    JoinStreamTable,
    JoinTables,
    JoinWithin,
    StreamRow,
    Version,
    stream_key,
)
from holdfast.testing import Topology
from tests.support.scale import scaled

BEGIN_MS = 1_000_000
Pair = tuple[int | None, int | None]


class Seen(msgspec.Struct, frozen=True):
    number: int
    at: int


def at_of(seen: Seen) -> int:
    return seen.at


LEFT: Source[Any] = Source("left", Json(Seen | None), time=at_of)
RIGHT: Source[Any] = Source("right", Json(Seen | None), time=at_of)
OUT: Stream[Any] = Stream("out", Json(tuple[int | None, int | None] | None))
LATE: Stream[Any] = Stream("late", Json(Seen | None))


def number_of(seen: Seen | None) -> int | None:
    return None if seen is None else seen.number


def pair(left: Seen | None, right: Seen | None) -> Pair:
    return number_of(left), number_of(right)


@dataclass(frozen=True, slots=True)
class Arrival:
    number: int
    left: bool
    key: str
    at: int
    gone: bool = False

    @property
    def source(self) -> Source[Any]:
        return LEFT if self.left else RIGHT

    @property
    def seen(self) -> Seen | None:
        return None if self.gone else Seen(self.number, self.at)


@st.composite
def arrivals(draw: st.DrawFn, *, tombstones: bool) -> list[Arrival]:
    """Draw records that are out of order, late, tied and of keys that look like each other's rows."""
    log, now = [], draw(st.sampled_from([0, 95, BEGIN_MS]))
    for number in range(draw(st.integers(1, 25))):
        now += draw(st.sampled_from([0, 0, 1, 3, 12]))
        at = max(0, now - draw(st.sampled_from([0, 0, 1, 4, 9, 30])))
        key = draw(st.sampled_from(["a", "a", f"a@{0:016d}", "l/a"]))
        log.append(Arrival(number, draw(st.booleans()), key, at, tombstones and draw(st.integers(0, 4)) == 0))
    return log


# -- tables


@pytest.mark.parametrize("how", ["inner", "left", "outer"])
@settings(deadline=None, max_examples=scaled(15), suppress_health_check=[HealthCheck.too_slow])
@given(log=arrivals(tombstones=True))
def test_two_tables_are_what_both_hold_now(how: How, log: list[Arrival]) -> None:
    joined = JoinTables(name="joined", left=LEFT, right=RIGHT, join=pair, to=OUT, how=how)
    wanted: dict[str, Pair] = {}
    with Topology([joined], partitions=1) as topology:
        for count, each in enumerate(log, 1):
            topology.pipe(each.source, each.seen, key=each.key)
            now = {
                side: next(
                    (one.seen for one in reversed(log[:count]) if (one.left, one.key) == (side, each.key)),
                    None,
                )
                for side in (True, False)
            }
            sides = now[True] is not None, now[False] is not None
            there = {"inner": all(sides), "left": sides[0], "outer": any(sides)}[how]
            told: list[tuple[str, Pair | None]] = []
            if there:
                wanted[each.key] = pair(now[True], now[False])
                told = [(each.key, wanted[each.key])]
            elif wanted.pop(each.key, None) is not None:
                told = [(each.key, None)]
            assert topology.values(OUT) == told, each
            assert (each.key in topology.table(joined)) == any(sides)
        assert not topology.refused


@pytest.mark.parametrize("how", ["inner", "left"])
@settings(deadline=None, max_examples=scaled(15), suppress_health_check=[HealthCheck.too_slow])
@given(log=arrivals(tombstones=True))
def test_a_stream_meets_the_row_that_is_there(how: TableHow, log: list[Arrival]) -> None:
    joined = JoinStreamTable(name="joined", stream=LEFT, table=RIGHT, join=pair, to=OUT, how=how)
    with Topology([joined], partitions=1) as topology:
        for count, each in enumerate(log, 1):
            topology.pipe(each.source, each.seen, key=each.key)
            row = next(
                (one.seen for one in reversed(log[:count]) if not one.left and one.key == each.key), None
            )
            meets = each.left and each.seen is not None and (row is not None or how == "left")
            assert topology.values(OUT) == ([(each.key, pair(each.seen, row))] if meets else []), each
        assert not topology.refused


@pytest.mark.parametrize("how", ["inner", "left"])
@settings(deadline=None, max_examples=scaled(20), suppress_health_check=[HealthCheck.too_slow])
@given(log=arrivals(tombstones=True), history=st.sampled_from([1, 5, 20]))
def test_a_stream_meets_the_row_as_of_its_time(how: TableHow, log: list[Arrival], history: int) -> None:
    joined = JoinStreamTable(
        name="joined", stream=LEFT, table=RIGHT, join=pair, to=OUT, how=how, history=history
    )
    table_ms, late, taken = -1, 0, list[Arrival]()
    with Topology([joined], partitions=1) as topology:
        for each in log:
            topology.pipe(each.source, each.seen, key=each.key, at=each.at)
            told: list[Any] = []
            if not each.left and each.gone:
                if table_ms >= 0:  # a tombstone's time is that of the table
                    taken.append(replace(each, at=table_ms))
            elif not each.left:
                if each.at < table_ms - history:
                    late += 1
                else:
                    taken.append(each)
                    table_ms = max(table_ms, each.at)
            elif not each.gone:
                known = [one for one in taken if one.key == each.key and one.at <= each.at]
                row = max(known, key=lambda one: (one.at, one.number), default=None)
                found = None if row is None or each.at < table_ms - history else row.seen
                told = [(each.key, pair(each.seen, found))] if found is not None or how == "left" else []
            assert topology.values(OUT) == told, each
            rows = topology.table(joined)
            for key in {one.key for one in taken}:
                mine = sorted(
                    {
                        one.at: one for one in sorted(taken, key=lambda one: one.number) if one.key == key
                    }.items()
                )
                kept = [
                    one
                    for at, (_, one) in enumerate(mine)
                    if at + 1 == len(mine) or mine[at + 1][0] > table_ms - history
                ]
                if kept[0].gone and kept[0].at <= table_ms - history:
                    kept = kept[1:]
                found_rows = [
                    *(row for name, row in rows.items() if name[:-17] == f"\x00was/{len(key)}/{key}"),
                    *([rows[key]] if key in rows else []),
                ]
                assert all(isinstance(row, Version) for row in found_rows)
                held = [(row.from_ms, row.value) for row in found_rows]
                assert held == [(one.at, one.seen) for one in kept]
                assert key not in rows or rows[key].older == (len(kept) > 1)
            assert rows.get(stream_key(0), StreamRow()).late == late
        assert not topology.refused


def versioned(**declared: Any) -> JoinStreamTable[Any, Any, Any]:
    return JoinStreamTable(
        name="joined", stream=LEFT, table=RIGHT, join=pair, to=OUT, how="left", history=1_000, **declared
    )


def test_a_tombstone_of_a_backfill_removes_the_row_where_the_table_is_and_not_now() -> None:
    with Topology([versioned()], partitions=1) as topology:
        topology.pipe(RIGHT, Seen(1, 1_000), key="k")
        topology.pipe(RIGHT, Seen(2, 1_100), key="other")
        topology.pipe(RIGHT, None, key="k")
        topology.pipe(RIGHT, Seen(3, 2_000), key="k")
        for at in (1_099, 1_100, 1_999, 2_500):
            topology.pipe(LEFT, Seen(at, at), key="k")
        assert [right for _, (_, right) in topology.values(OUT)] == [1, None, None, 3]


def test_times_that_are_remembered_go_with_their_versions() -> None:
    with Topology([versioned()], partitions=1) as topology:
        for seen, key in (
            (Seen(1, 1_000), "k"),
            (Seen(2, 1_010), "other"),
            (None, "k"),
            (Seen(7, 1_018), "k"),
            (Seen(3, 1_020), "k"),
        ):
            topology.pipe(RIGHT, seen, key=key)
        topology.pipe(LEFT, Seen(4, 1_015), key="k")
        topology.pipe(RIGHT, Seen(5, 2_015), key="other")
        topology.pipe(LEFT, Seen(6, 1_016), key="k")
        assert topology.values(OUT) == [("k", (4, None)), ("k", (6, None))]
        assert not topology.refused


def test_late_records_of_a_table_are_sent_on() -> None:
    with Topology([versioned(late=LATE)], partitions=1) as topology:
        topology.pipe(RIGHT, Seen(1, 5_000), key="k")
        topology.pipe(RIGHT, Seen(2, 3_999), key="k", headers=(("h", b"1"),))
        topology.pipe(RIGHT, Seen(3, 4_000), key="k")
        (late,) = topology.read(LATE)
        assert (late.key, late.value, late.headers) == (b"k", b'{"number":2,"at":3999}', (("h", b"1"),))


# -- streams within an interval


@dataclass(slots=True)
class Interval:
    """The definition: who is late, who meets whom, who is alone."""

    before: int
    after: int
    grace: int
    how: How
    own_ms: dict[bool, int] = field(default_factory=lambda: {True: -1, False: -1})
    late: int = 0
    taken: list[Arrival] = field(default_factory=list)
    told: set[int] = field(default_factory=set)
    met: set[int] = field(default_factory=set)

    @property
    def stream_ms(self) -> int:
        return min(self.own_ms.values())

    def done_ms(self, each: Arrival) -> int:
        return each.at + (self.after if each.left else self.before) + self.grace + 1

    def near(self, one: Arrival, other: Arrival) -> bool:
        left, right = (one, other) if one.left else (other, one)
        return (
            one.left != other.left
            and one.key == other.key
            and left.at - self.before <= right.at <= left.at + self.after
        )

    def alone(self, until_ms: int) -> list[Any]:
        done = [
            each
            for each in self.taken
            if self.done_ms(each) <= until_ms
            and each.number not in self.told | self.met
            and (self.how == "outer" or (self.how == "left" and each.left))
        ]
        self.told |= {each.number for each in done}
        done.sort(key=lambda each: (each.at, not each.left, f"{each.key}@{each.at:016d}", each.number))
        return [(each.key, (each.number, None) if each.left else (None, each.number)) for each in done]

    def add(self, each: Arrival) -> list[Any]:
        """A record that is not late by its own source meets all near ones: no record is gone too early."""
        own_ms = self.own_ms[each.left]
        self.own_ms[each.left] = max(own_ms, each.at)
        if each.at + self.grace < own_ms:
            self.late += 1
            return self.alone(self.stream_ms)
        others = sorted(
            (one for one in self.taken if self.near(one, each)),
            key=lambda one: (one.at, one.number),
        )
        self.taken.append(each)
        if others:
            self.met |= {each.number, *(one.number for one in others)}
        pairs = [(each.number, one.number) if each.left else (one.number, each.number) for one in others]
        return [(each.key, both) for both in pairs] + self.alone(self.stream_ms)

    def held(self) -> int:
        return sum(self.done_ms(each) > self.stream_ms for each in self.taken)


@pytest.mark.parametrize("how", ["inner", "left", "outer"])
@pytest.mark.parametrize(("scans", "most"), [(64, 16_384), (1, 16_384), (2, 3)])
@settings(deadline=None, max_examples=scaled(20), suppress_health_check=[HealthCheck.too_slow])
@given(log=arrivals(tombstones=False), data=st.data())
def test_streams_meet_within_their_interval(
    scans: int, most: int, how: How, log: list[Arrival], data: st.DataObject
) -> None:
    """Found by scans, in the remembered names of waiting records, or in those until they are too many."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(join_within, "SCANS", scans)
        patched.setattr(join_within, "MOST_HELD", most)
        check_interval(how, log, data)


def check_interval(how: How, log: list[Arrival], data: st.DataObject) -> None:
    before, after, grace = (data.draw(st.sampled_from([0, 1, 5, 20])) for _ in range(3))
    oracle = Interval(before, after, grace, how)
    joined = JoinWithin(
        name="joined",
        left=LEFT,
        right=RIGHT,
        join=pair,
        to=OUT,
        before=before,
        after=after,
        grace=grace,
        how=how,
        idle=10,
    )
    with Topology([joined], partitions=1) as topology:
        for each in log:
            topology.pipe(each.source, each.seen, key=each.key)
            assert topology.values(OUT) == oracle.add(each), each
            rows = topology.table(joined)
            stream = rows[stream_key(0)]
            assert isinstance(stream, JoinStreamRow)
            assert (stream.stream_ms, stream.late) == (oracle.stream_ms, oracle.late)
            assert sum(key.startswith(("l/", "r/")) for key in rows) == oracle.held(), "bounded by the window"
        if how != "inner":
            wanted: list[Any] = []
            for done_ms in sorted({oracle.done_ms(each) for each in oracle.taken}):
                wanted += oracle.alone(done_ms)
            for more in range(3 * len(log) + 2):
                topology.tick(2_000_000_000_000 + more)
            assert topology.values(OUT) == wanted
            assert set(topology.table(joined)) == {stream_key(0)}
        assert not topology.refused


def test_an_idle_partition_sends_lone_records_by_ticks_and_later_ones_are_late() -> None:
    joined = JoinWithin(
        name="joined", left=LEFT, right=RIGHT, join=pair, to=OUT, after=10, grace=5, how="left", idle=100
    )
    with Topology([joined], partitions=1) as topology:
        topology.pipe(LEFT, Seen(1, 50), key="a", at=1_000)
        assert topology.timers(joined, clock="tick") == {"\x00idle/0": 1_000 + 16 + 100}
        topology.tick(1_115)
        assert topology.values(OUT) == []
        topology.tick(1_116)
        assert topology.values(OUT) == [("a", (1, None))]
        topology.pipe(RIGHT, Seen(2, 55), key="a", at=1_200)
        assert topology.values(OUT) == []
        assert topology.table(joined)[stream_key(0)].late == 1


def test_progress_puts_the_tick_off() -> None:
    joined = JoinWithin(
        name="joined", left=LEFT, right=RIGHT, join=pair, to=OUT, after=10, how="left", idle=100
    )
    with Topology([joined], partitions=1) as topology:
        topology.pipe(LEFT, Seen(1, 50), key="a", at=1_000)
        topology.pipe(LEFT, Seen(2, 55), key="b", at=1_090)
        topology.tick(1_111)
        assert topology.values(OUT) == [], "the partition is not idle for long enough"
        topology.tick(1_090 + 6 + 100)
        assert topology.values(OUT) == [("a", (1, None))]


def test_one_ms_out_of_order_within_the_interval_is_not_late() -> None:
    joined = JoinWithin(
        name="joined", left=LEFT, right=RIGHT, join=pair, to=OUT, before="10s", after="10s", late=LATE
    )
    with Topology([joined], partitions=1) as topology:
        topology.pipe(LEFT, Seen(1, 1_000), key="a")
        topology.pipe(RIGHT, Seen(2, 999), key="a")
        assert topology.values(OUT) == [("a", (1, 2))]
        topology.pipe(LEFT, Seen(3, 20_000), key="b")
        topology.pipe(RIGHT, Seen(4, 10_000), key="b")
        assert topology.values(OUT) == [("b", (3, 4))]
        topology.pipe(RIGHT, Seen(5, 9_999), key="b", headers=(("h", b"1"),))
        assert topology.table(joined)[stream_key(0)].late == 1
        (late,) = topology.read(LATE)
        assert (late.key, late.value, late.headers) == (b"b", b'{"number":5,"at":9999}', (("h", b"1"),))


def test_a_partner_is_not_let_go_before_the_last_that_may_come() -> None:
    joined = JoinWithin(name="joined", left=LEFT, right=RIGHT, join=pair, to=OUT, after=10, how="left")
    with Topology([joined], partitions=1) as topology:
        for source, seen, key in (
            (RIGHT, Seen(1, 1_000), "a"),
            (RIGHT, Seen(2, 1_001), "b"),
            (LEFT, Seen(3, 999), "a"),
        ):
            topology.pipe(source, seen, key=key)
        assert topology.values(OUT) == [("a", (3, 1))]
        topology.pipe(RIGHT, Seen(4, 2_000), key="b")
        assert topology.values(OUT) == [], "what has met one is not told alone"


def test_without_times_of_their_own_no_record_is_late_when_the_log_s_clock_goes_back() -> None:
    left, right = (Source(name, Json(int)) for name in ("left", "right"))
    joined = JoinWithin(name="joined", left=left, right=right, join=both_numbers, to=OUT, after="1s")
    with Topology([joined], partitions=1) as topology:
        topology.pipe(left, 1, key="a", at=6_000)
        topology.pipe(right, 2, key="a", at=1_000)
        topology.pipe(left, 3, key="a", at=1_000)
        topology.pipe(right, 4, key="a", at=6_500)
        topology.pipe(right, 5, key="a", at=7_001)
        assert topology.values(OUT) == [("a", each) for each in ((1, 2), (3, 2), (1, 4), (3, 4))]
        assert topology.table(joined)[stream_key(0)].late == 0


def both_numbers(one: int, other: int) -> tuple[int, int]:
    return one, other
