"""Windows downstream of steps are functions of the sources' logs: equal at any pace, and to an oracle that
sees each log alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgspec
import pytest

from holdfast import Json, Source, Stream, by_key
from holdfast.core.engine.origins import NAMELESS, UNHEARD, Mark, mark_headers, record_header
from holdfast.core.streams.windowing.rows import origin_key
from holdfast.streams import (
    Hopping,
    Map,
    OriginRow,
    Rekey,
    Session,
    Sliding,
    StreamRow,
    Tumbling,
    Windowed,
    WindowResult,
    final,
    stream_key,
)
from holdfast.testing import Topology
from tests.core.streams.paces import FARES, Fare, at_of, at_pace, by_driver, source_logs, timely
from tests.support.scale import scaled

Numbers = tuple[int, ...]
RESULTS: Stream[WindowResult[Numbers]] = Stream("results", Json(WindowResult[Numbers]))
Found = list[tuple[str, int, int, Numbers]]
Comes = Callable[[Fare], bool]
"""True for a record that comes through the steps; the other records move the watermark all the same."""


def add(numbers: Numbers | None, fare: Fare) -> Numbers:
    return tuple(sorted((*(numbers or ()), fare.number)))


def joined(earlier: Numbers, later: Numbers) -> Numbers:
    return tuple(sorted((*earlier, *later)))


def every_fare(fare: Fare) -> bool:
    return True


def tumbling(logs: Sequence[Sequence[Fare]], comes: Comes = every_fare) -> Found:
    return _fixed(logs, comes, 100, 100, 50)


def hopping(logs: Sequence[Sequence[Fare]], comes: Comes = every_fare) -> Found:
    return _fixed(logs, comes, 100, 50, 30)


def _fixed(logs: Sequence[Sequence[Fare]], comes: Comes, size: int, every: int, grace: int) -> Found:
    windows: dict[tuple[str, int], list[int]] = defaultdict(list)
    for log in logs:
        highest = -1
        for fare in log:
            for start in range(0, fare.at_ms + 1, every) if comes(fare) else ():
                if start <= fare.at_ms < start + size and start + size + grace > highest:
                    windows[fare.driver, start].append(fare.number)
            highest = max(highest, fare.at_ms)
    return sorted((key, at, at + size, tuple(sorted(numbers))) for (key, at), numbers in windows.items())


def sessions(logs: Sequence[Sequence[Fare]], comes: Comes = every_fare) -> Found:
    gap, grace = 30, 20
    kept = [*filter(comes, timely(logs, lambda at, highest: at + gap + 1 + grace <= highest))]
    found: Found = []
    for driver in sorted({each.driver for each in kept}):
        mine, lot = sorted((each for each in kept if each.driver == driver), key=at_of), list[Fare]()
        for each in [*mine, Fare(driver, 1 << 60, -1)]:
            if lot and each.at_ms > lot[-1].at_ms + gap:
                numbers = tuple(sorted(one.number for one in lot))
                found.append((driver, lot[0].at_ms, lot[-1].at_ms + gap + 1, numbers))
                lot = []
            lot.append(each)
    return sorted(found)


def sliding(logs: Sequence[Sequence[Fare]], comes: Comes = every_fare) -> Found:
    span, grace = 50, 20
    kept = [*filter(comes, timely(logs, lambda at, highest: at + 1 + grace <= highest))]
    found = dict[tuple[str, int], Numbers]()
    for each in kept:
        mine = [one for one in kept if one.driver == each.driver]
        for start in (each.at_ms - span, each.at_ms + 1):
            inside = tuple(sorted(one.number for one in mine if start <= one.at_ms <= start + span))
            if inside:
                found[each.driver, start] = inside
    return sorted((key, at, at + span + 1, numbers) for (key, at), numbers in found.items())


KINDS: dict[str, tuple[Any, Callable[..., Found], Any]] = {
    "tumbling": (Tumbling(100, grace=50), tumbling, None),
    "hopping": (Hopping(100, every=50, grace=30), hopping, None),
    "sessions": (Session(30, grace=20), sessions, joined),
    "sliding": (Sliding(50, grace=20), sliding, None),
}


def folded(logs: list[list[Fare]], kind: str, steps: int, pace: Random) -> Found:
    window, _, merge = KINDS[kind]
    chain = by_driver("by-driver", FARES, steps)
    windows: Windowed[Fare, Numbers] = Windowed(
        name="windows",
        source=Source(chain[-1].to, Json(Fare), time=at_of),
        by=lambda fare: fare.driver,
        window=window,
        merge=merge,
        fold=add,
        row=Numbers,
        emit=final(RESULTS),
    )
    with Topology([*chain, windows], partitions=len(logs)) as topology:
        for partition, fare in at_pace(logs, pace):
            topology.pipe(FARES, fare, key=fare.driver, partition=partition)
        done = [(r.key, r.start_ms, r.end_ms, r.value) for _, r in topology.values(RESULTS)]
        found = sorted((r.key, r.start_ms, r.end_ms, r.value) for r in topology.windows(windows))
        assert len({*done}) == len(done), "each is final once"
        assert {*done} <= {*found}
        rows = topology.table(windows).values()
        assert not any(row.late_after_idle for row in rows if isinstance(row, OriginRow))
        assert not topology.refused
    return found


@pytest.mark.long
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_windows_hold_what_each_log_alone_says(kind: str, steps: int) -> None:
    for seed in range(scaled(4)):
        logs = source_logs(Random(seed), 3, 25, 250)
        oracle = KINDS[kind][1](logs)
        for pace in range(3):
            assert folded(logs, kind, steps, Random(100 * seed + pace)) == oracle, (seed, pace)


def hours(source: Source[Any]) -> Windowed[Fare, int]:
    return Windowed(
        name="hours",
        source=source,
        by=lambda fare: fare.driver,
        window=Tumbling(100),
        fold=lambda count, fare: (count or 0) + 1,
        row=int,
        emit=final(Stream("hours-done", Json(WindowResult[int]))),
        late="late",
    )


def test_an_origin_that_is_slow_holds_windows_open_until_it_lets_go() -> None:
    by: Rekey[Fare, Fare] = Rekey(name="by", source=FARES, by=lambda fare: "all")
    counts = hours(Source(by.to, Json(Fare), time=at_of))
    with Topology([by, counts], partitions=2) as topology:
        for at_ms, partition in ((50, 0), (950, 0), (60, 1), (70, 1)):
            topology.pipe(FARES, Fare("a", at_ms, 0), partition=partition)
        assert topology.read("late") == []
        done = [result.value for _, result in topology.values(Stream("hours-done", Json(WindowResult[int])))]
        assert done == [3], "that of the first hour, once nothing more is said"
        topology.pipe(FARES, Fare("a", 80, 0), partition=1)
        (late,) = topology.read("late")
        assert late.headers == (), "what tells of origins is not shown"
        origins = {key: row for key, row in topology.table(counts).items() if isinstance(row, OriginRow)}
        assert sum(row.late for row in origins.values()) == 0
        (idle,) = (key for key, row in origins.items() if row.late_after_idle)
        assert idle.endswith("/0/1"), "of the origin that had let go"


def test_a_record_late_in_its_own_log_is_late_though_other_logs_are_slow() -> None:
    by: Rekey[Fare, Fare] = Rekey(name="by", source=FARES, by=lambda fare: "all")
    counts = hours(Source(by.to, Json(Fare), time=at_of))
    with Topology([by, counts], partitions=2) as topology:
        topology.pipe(FARES, Fare("a", 20, 0), partition=1)
        topology.pipe(FARES, Fare("a", 150, 0), partition=0)
        topology.pipe(FARES, Fare("a", 99, 0), partition=0)
        assert len(topology.read("late")) == 1


def test_a_step_without_event_time_reports_nothing_and_windows_after_it_are_as_ever() -> None:
    by: Rekey[Any, Any] = Rekey(name="by", source=Source("fares", Json(Fare)), by=lambda fare: "all")
    counts = hours(Source(by.to, Json(Fare), time=at_of))
    with Topology([by, counts], partitions=2) as topology:
        topology.pipe("fares", Fare("a", 150, 0), partition=0)
        topology.pipe("fares", Fare("a", 20, 0), partition=1)
        assert len(topology.read("late")) == 1
        stream = [row for key, row in topology.table(counts).items() if key in map(stream_key, range(2))]
        assert stream == [StreamRow(150, 200, 1)]


def test_a_chain_without_event_time_reports_nothing() -> None:
    by: Rekey[Any, Any] = Rekey(name="by", source=Source("fares", Json(Fare)), by=lambda fare: "all")
    same = Map(name="same", source=Source(by.to, Json(Fare)), each=lambda fare: fare, serde=Json(Fare))
    counts = hours(Source(same.to, Json(Fare), time=at_of))
    with Topology([by, same, counts], partitions=2) as topology:
        for at_ms, partition in ((150, 0), (20, 1), (320, 0)):
            topology.pipe("fares", Fare("a", at_ms, 0), partition=partition)
        assert len(topology.read("late")) == 1
        rows = topology.table(counts)
        assert not any(isinstance(row, OriginRow) for row in rows.values())
        assert [row.stream_ms for row in rows.values() if isinstance(row, StreamRow)] == [320]


def test_records_of_an_older_step_are_one_origin_until_all_others_are_known() -> None:
    by: Rekey[Fare, Fare] = Rekey(name="by", source=FARES, by=lambda fare: "all")
    counts = hours(Source(by.to, Json(Fare), time=at_of))
    with Topology([by, counts], partitions=2) as topology:
        at = by_key("all", 2)
        for at_ms in (10, 150, 90):  # written without a header: stream time is the highest
            topology.pipe(by.to, msgspec.json.encode(Fare("a", at_ms, 0)), key="all", partition=at)
        assert len(topology.read("late")) == 1
        rows = topology.table(counts)
        assert rows[stream_key(at)] == StreamRow(150, 200, 1)
        topology.pipe(FARES, Fare("a", 120, 0), partition=0)
        topology.pipe(FARES, Fare("a", 420, 0), partition=0)
        rows = topology.table(counts, partition=at)
        assert rows[stream_key(at)].stream_ms == 420, "the others let go, as does what is no more written"
        assert rows[stream_key(at)].late == 1
        topology.pipe(by.to, msgspec.json.encode(Fare("a", 140, 0)), key="all", partition=at)
        rows = topology.table(counts, partition=at)
        assert rows[stream_key(at)].late == 2, "an older worker that writes again does not bring time back"
        assert rows[origin_key(at, 0, NAMELESS)] == OriginRow(150, late_after_idle=1)


@pytest.mark.parametrize("ordered", [False, True])
def test_the_clock_closes_no_window_that_a_step_may_still_have_records_for(ordered: bool) -> None:
    """A step that is slow, or down, is not an origin without traffic: that it says in a mark."""
    by: Rekey[Fare, Fare] = Rekey(name="by", source=FARES, by=lambda fare: "all")
    counts: Windowed[Fare, int] = Windowed(
        name="hours",
        source=by,
        by=lambda fare: fare.driver,
        window=Tumbling(100),
        fold=lambda count, fare: (count or 0) + 1,
        row=int,
        emit=final(Stream("hours-done", Json(WindowResult[int]))),
        late="late",
        idle="1s",
        ordered=ordered,
    )
    with Topology([counts], partitions=1) as topology:

        def fare(origin: int, at_ms: int, before_ms: int, now_ms: int) -> None:
            told = (record_header(origin, before_ms, max(before_ms, at_ms)),)
            topology.pipe(by.to, msgspec.json.encode(Fare("a", at_ms, 0)), key="a", at=now_ms, headers=told)

        def mark(origin: int, at_ms: int, now_ms: int, *, ended: bool) -> None:
            headers = mark_headers(Mark(origin, at_ms, ended, 2))
            topology.pipe(by.to, None, at=now_ms, headers=headers)

        def closed() -> list[tuple[int, int]]:
            """Return start and count of the windows that have closed since the last call."""
            results = topology.values(Stream("hours-done", Json(WindowResult[int])))
            return [(each.start_ms, each.value) for _, each in results]

        mark(1, 20, 1_000, ended=False)
        fare(0, 50, UNHEARD, 1_000)
        fare(0, 950, 50, 1_000)
        for now_ms in (10_000, 100_000):
            topology.tick(now_ms)
            assert closed() == [], "origin 1 has yet to say that it is at its end"
        fare(1, 60, 20, 100_000)
        mark(1, 60, 100_000, ended=True)
        assert closed() == [(0, 2)]
        topology.tick(200_000)
        assert closed() == [], "origin 0 may go on"
        mark(0, 950, 200_000, ended=True)
        topology.tick(210_000)
        assert closed() == [(900, 1)], "nothing more is said, and the clock goes on"
        assert not topology.read("late")
