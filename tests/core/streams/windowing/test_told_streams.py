"""Streams of users that carry origins, topics half of which an older step wrote, retention by stream time,
and steps that part and join before windows.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from random import Random
from typing import Any

import msgspec
import pytest

from holdfast import Json, Source, Stream, by_key
from holdfast.core.engine.origins import NAMELESS, ORIGIN, is_mark
from holdfast.core.streams.windowing.rows import origin_key
from holdfast.errors import ConfigError
from holdfast.streams import (
    Branch,
    Merge,
    OriginRow,
    Rekey,
    Session,
    Sliding,
    Tumbling,
    Windowed,
    WindowResult,
    final,
)
from holdfast.testing import Topology
from tests.core.streams.paces import FARES, Fare, at_of, at_pace, source_logs
from tests.core.streams.windowing.test_windows_at_any_pace import (
    Found,
    Numbers,
    add,
    hours,
    joined,
    tumbling,
)
from tests.support.scale import scaled

TOLD: Stream[Fare] = Stream("told", Json(Fare), time=at_of, watermarks=True)


def appended(topology: Topology, topic: str) -> Iterable[Any]:
    return [each for log in topology._logs.of(topic) for each in log]


@pytest.mark.long
def test_another_application_reads_the_origins_of_a_stream() -> None:
    for seed in range(scaled(4)):
        logs = source_logs(Random(seed), 3, 25, 250)
        for pace in range(3):
            by: Rekey[Fare, Fare] = Rekey(name="by", source=FARES, by=lambda fare: fare.driver, to=TOLD)
            with Topology([by], partitions=3) as writes:
                for partition, fare in at_pace(logs, Random(100 * seed + pace)):
                    writes.pipe(FARES, fare, partition=partition)
                writes.settle()
                sent = appended(writes, "told")
            # Another application declares it as that one does.
            read: Stream[Fare] = Stream("told", Json(Fare), time=at_of, watermarks=True)
            windows: Windowed[Fare, Numbers] = Windowed(
                name="windows",
                source=read,
                by=lambda fare: fare.driver,
                window=Tumbling("100ms", grace="50ms"),
                fold=add,
                row=Numbers,
            )
            with Topology([windows], partitions=3) as reads:
                for each in sent:
                    reads.pipe(
                        "told",
                        each.value,
                        key=each.key,
                        headers=each.headers,
                        partition=each.partition,
                    )
                found = sorted((r.key, r.start_ms, r.end_ms, r.value) for r in reads.windows(windows))
                assert not reads.refused
            assert found == tumbling(logs), (seed, pace)


def test_a_stream_carries_origins_only_where_it_says_so() -> None:
    plain: Stream[Fare] = Stream("plain", Json(Fare), time=at_of)
    for to, tells in ((TOLD, True), (plain, False)):
        by: Rekey[Fare, Fare] = Rekey(name="by", source=FARES, by=lambda fare: fare.driver, to=to)
        with Topology([by], partitions=2) as topology:
            topology.pipe(FARES, Fare("a", 50, 0))
            topology.settle()
            sent = appended(topology, str(to))
        assert any(is_mark(each.headers) for each in sent) is tells
        assert any(name == ORIGIN for each in sent for name, _ in each.headers) is tells
    with pytest.raises(ConfigError, match="write True or False"):
        Stream("told", Json(Fare), watermarks=1)  # type: ignore[arg-type]


def test_what_a_stream_says_stays_with_it() -> None:
    written = pickle.loads(pickle.dumps(TOLD.written_by("by", None, mixed=True)))
    assert (written.watermarks, written.step, written.mixed) == (True, "by", True)
    assert written.time is at_of
    declared = pickle.loads(pickle.dumps(Source(TOLD, Json(Fare), idle="5s").declared))
    assert (declared.watermarks, declared.idle_ms) == (True, 5_000)
    by: Rekey[Fare, Fare] = Rekey(name="by", source=FARES, by=lambda fare: fare.driver)
    with pytest.raises(ConfigError, match="write idle= on the source that the writer reads"):
        Source(by.to, Json(Fare), idle="5s")


def test_marks_in_a_stream_are_not_folded_as_records() -> None:
    by: Rekey[Fare, Fare] = Rekey(name="by", source=FARES, by=lambda fare: fare.driver, to=TOLD)
    again: Rekey[Fare, Fare] = Rekey(name="again", source=TOLD, by=lambda fare: "all")
    with Topology([by, again], partitions=2) as topology:
        topology.pipe(FARES, Fare("a", 50, 0))
        assert [value for _, value in topology.values(again.to)] == [Fare("a", 50, 0)]


def test_a_log_half_of_which_an_older_step_wrote_counts_that_as_one_origin() -> None:
    old = [Fare("a", at_ms, number) for number, at_ms in enumerate((10, 150, 90, 250))]
    new = source_logs(Random(3), 2, 25, 250)
    found: list[Any] = []
    for pace in range(4):
        by: Rekey[Fare, Fare] = Rekey(name="by", source=FARES, by=lambda fare: fare.driver)
        counts = hours(Source(by.to, Json(Fare), time=at_of))
        with Topology([by, counts], partitions=2, paces=False) as topology:
            at = by_key("a", 2)
            for fare in old:
                topology.pipe(by.to, msgspec.json.encode(fare), key="a", partition=at)
            for partition, fare in at_pace(new, Random(pace)):
                topology.pipe(FARES, fare, partition=partition)
            late = sorted(each.value or b"" for each in topology.read("late"))
            windows = sorted((r.key, r.start_ms, r.value) for r in topology.windows(counts))
            rows = topology.table(counts)
            assert not any(row.late_after_idle for row in rows.values() if isinstance(row, OriginRow))
            assert rows[origin_key(at, 0, NAMELESS)].watermark_ms == 250
            assert msgspec.json.encode(old[2]) in late, "late by the highest before it, as it was"
            assert ("a", 0, 1) in windows
            found.append((windows, late))
    assert found[1:] == found[:1] * 3


def test_rows_of_closed_windows_stay_until_the_least_watermark_is_past_their_retention() -> None:
    by: Rekey[Fare, Fare] = Rekey(name="by", source=FARES, by=lambda fare: "all")
    windows: Windowed[Fare, Numbers] = Windowed(
        name="windows",
        source=Source(by.to, Json(Fare), time=at_of),
        by=lambda fare: "all",
        window=Tumbling("100ms"),
        fold=add,
        row=Numbers,
        retention="1s",
    )
    with Topology([by, windows], partitions=2, paces=False) as topology:
        run = topology._run("windows", by_key("all", 2))
        topology.pipe(FARES, Fare("a", 50, 0), partition=0)
        topology.pipe(FARES, Fare("a", 60, 1), partition=1)
        topology.pipe(FARES, Fare("a", 5_000, 2), partition=0)
        assert "all@0000000000000000" in run.rows(), "partition 1 has come to 60 only"
        topology.pipe(FARES, Fare("a", 1_099, 3), partition=1)
        assert "all@0000000000000000" in run.rows()
        topology.pipe(FARES, Fare("a", 1_100, 4), partition=1)
        assert "all@0000000000000000" not in run.rows()
        assert "all@0000000000001000" in run.rows()


GRACES = {"none": 0, "some": 50, "days": 10**8}


def with_grace(kind: str, grace: int) -> Any:
    match kind:
        case "tumbling":
            return Tumbling("100ms", grace=f"{grace}ms")
        case "sessions":
            return Session("30ms", grace=f"{grace}ms")
        case _:
            return Sliding("50ms", grace=f"{grace}ms")


def driver_of(fare: Fare) -> str:
    return fare.driver


def parted_and_joined() -> list[Any]:
    """Return steps: fares go two ways by their numbers, each under other keys, and come together again."""
    parted: Branch[Fare] = Branch(
        name="parted",
        source=FARES,
        into={"odd": lambda fare: fare.number % 2, "even": lambda fare: True},
    )
    ways = [
        Rekey(name=f"{way}-by", source=Source(parted[way], Json(Fare), time=at_of), by=driver_of)
        for way in ("odd", "even")
    ]
    merged: Merge[Fare] = Merge(
        name="merged", sources=[Source(each.to, Json(Fare), time=at_of) for each in ways]
    )
    return [parted, *ways, merged]


@pytest.mark.long
@pytest.mark.parametrize("grace", GRACES)
@pytest.mark.parametrize("kind", ["tumbling", "sessions", "sliding"])
def test_windows_after_branches_that_are_merged_are_the_same_at_any_pace(kind: str, grace: str) -> None:
    for seed in range(scaled(3)):
        logs = source_logs(Random(seed), 3, 20, 250)
        found: list[Found] = []
        late: list[list[int]] = []
        for pace in range(3):
            steps = parted_and_joined()
            windows: Windowed[Fare, Numbers] = Windowed(
                name="windows",
                source=Source(steps[-1].to, Json(Fare), time=at_of),
                by=lambda fare: fare.driver,
                window=with_grace(kind, GRACES[grace]),
                merge=joined if kind == "sessions" else None,
                fold=add,
                row=Numbers,
                emit=final(Stream("results", Json(WindowResult[Numbers]))),
                late="late",
            )
            with Topology([*steps, windows], partitions=3, paces=False) as topology:
                for partition, fare in at_pace(logs, Random(100 * seed + pace)):
                    topology.pipe(FARES, fare, key=fare.driver, partition=partition)
                found.append(
                    sorted((r.key, r.start_ms, r.end_ms, r.value) for r in topology.windows(windows))
                )
                told = [msgspec.json.decode(each.value or b"", type=Fare) for each in topology.read("late")]
                late.append(sorted(each.number for each in told))
                rows = topology.table(windows).values()
                assert not any(row.late_after_idle for row in rows if isinstance(row, OriginRow))
                assert not topology.refused
        assert late[0] == late_in(logs, kind, GRACES[grace]), seed
        assert late[1:] == late[:1] * 2, seed
        assert found[1:] == found[:1] * 2, seed
        assert bool(found[0]) is any(logs)


def late_in(logs: list[list[Fare]], kind: str, grace: int) -> list[int]:
    """Return the numbers of the records that are late in their own log."""
    over: Any = {
        "tumbling": lambda at: at - at % 100 + 100,
        "sessions": lambda at: at + 31,
        "sliding": lambda at: at + 1,
    }[kind]
    late = []
    for log in logs:
        highest = -1
        for fare in log:
            if over(fare.at_ms) + grace <= highest:
                late.append(fare.number)
            highest = max(highest, fare.at_ms)
    return sorted(late)
