"""A test of a topology is folded at other paces too, and fails where final results differ."""

from __future__ import annotations

import msgspec
import pytest

from holdfast import Internal, Json, Source, Stream
from holdfast.errors import PaceError
from holdfast.streams import Rekey, Tumbling, Windowed, WindowResult, final
from holdfast.testing import Topology


class Ride(msgspec.Struct, frozen=True):
    number: int
    at_ms: int


RIDES = Source("rides", Json(Ride), time=lambda ride: ride.at_ms)
ALL: Rekey[Ride, Ride] = Rekey(name="all", source=RIDES, by=lambda ride: "all")
DONE: Stream[WindowResult[int]] = Stream("done", Json(WindowResult[int]))


def windows(last: bool) -> Windowed[Ride, int]:
    def fold(so_far: int | None, ride: Ride) -> int:
        return ride.number if last else (so_far or 0) + ride.number

    return Windowed(
        name="windows",
        source=Source(ALL.to, Json(Ride), time=lambda ride: ride.at_ms),
        by=lambda ride: "all",
        window=Tumbling(100),
        fold=fold,
        row=int,
        emit=final(DONE),
    )


def pipe_rides(topology: Topology) -> None:
    for number, at_ms in enumerate((10, 40, 20, 150, 30, 170)):
        topology.pipe(RIDES, Ride(number, at_ms), partition=number % 2)


def test_a_fold_that_depends_on_the_order_of_records_fails_and_two_paces_are_named() -> None:
    with (
        pytest.raises(PaceError, match=r"as it was piped and each source partition as a whole: done has"),
        Topology([ALL, windows(last=True)], partitions=2) as topology,
    ):
        pipe_rides(topology)


@pytest.mark.parametrize("way", ["paces", "backlog", "commutes"])
def test_a_fold_that_does_not_is_the_same_at_each_pace(way: str) -> None:
    with Topology([ALL, windows(last=way != "commutes")], partitions=2, paces=way != "paces") as topology:
        pipe_rides(topology)
        if way == "backlog":
            records = topology.pipe_backlog(
                RIDES, [Ride(7, 180), Ride(8, 190)], key=lambda ride: str(ride.number)
            )
            assert [record.key for record in records] == [b"7", b"8"]


def test_records_do_not_leave_the_stretch_between_two_looks() -> None:
    with Topology([ALL, windows(last=True)], partitions=2) as topology:
        for number, at_ms in enumerate((10, 120, 230)):
            topology.pipe(RIDES, Ride(number, at_ms), partition=number % 2)
            topology.values(DONE)


def test_marks_among_final_results_are_no_results() -> None:
    """The number of marks depends on pace: windows of windows read results in an `Internal` topic."""
    told = Internal("told", Json(WindowResult[int]), time=lambda result: result.end_ms - 1)
    hundreds: Windowed[Ride, int] = Windowed(
        name="hundreds",
        source=ALL,
        by=lambda ride: "all",
        window=Tumbling("100ms", grace="20ms"),
        fold=lambda so_far, ride: (so_far or 0) + 1,
        row=int,
        emit=final(told),
    )
    with Topology([ALL, hundreds], partitions=2) as topology:
        for number, (partition, at_ms) in enumerate(
            ((1, 0), (0, 30), (0, 150), (1, 900), (0, 350), (0, 920))
        ):
            topology.pipe(RIDES, Ride(number, at_ms), partition=partition)
