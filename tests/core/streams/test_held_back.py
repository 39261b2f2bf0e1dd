"""The origin that holds the event time of a partition back, by how much, and since when."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from holdfast import Json, Source, Stream
from holdfast.clock import ManualClock
from holdfast.core.engine.batches import Batch
from holdfast.core.engine.declared.graph import origins_of_topic
from holdfast.core.engine.emits import Headers
from holdfast.core.engine.fold.folding import Folder
from holdfast.core.engine.fold.traced import traced
from holdfast.core.engine.origins import HeldBack, Mark, mark_headers, record_header
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.core.streams.joins.within import JoinStreamRow
from holdfast.core.streams.windowing.rows import OriginRow, origin_key, stream_key
from holdfast.streams import JoinWithin, Merge, Rekey, Tumbling, Windowed
from holdfast.tables.held_origins import HeldOrigin, HeldOrigins
from holdfast.testing import Topology

MINUTE = 60_000


class Look(msgspec.Struct, frozen=True):
    page: str
    at_ms: int


LOOKS = Source("looks", Json(Look), time=lambda look: look.at_ms)
BUYS = Source("buys", Json(Look), time=lambda look: look.at_ms)
STEP = Rekey(name="by-page", source=LOOKS, by=lambda look: look.page)
HOURS = Windowed(
    name="hours",
    source=STEP,
    by=lambda look: look.page,
    window=Tumbling("1h"),
    fold=lambda seen, look: (seen or 0) + 1,
    row=int,
)


def folded(*headers: Headers) -> list[HeldBack]:
    """Return the origins that hold the windows back after records and marks of these headers."""
    folder: Folder[Any] = Folder(HOURS, DictStore())
    value = msgspec.json.encode(Look("home", 10 * MINUTE))
    known: dict[str, list[Any]] = {
        "value": [None if "mark" in each[0][0] else value for each in headers],
        "headers": [*headers],
        "partition": [0] * len(headers),
    }
    batch = Batch(range(len(headers)), [1_000] * len(headers), tuple(known[name] for name in HOURS.columns))
    assert folder.fold([batch]) is not None
    return HOURS.held_back(folder.rows, 0)


def test_windows_wait_for_the_last_origin_that_will_say_more() -> None:
    early = (record_header(0, 5 * MINUTE, 10 * MINUTE),)
    late = (record_header(1, 5 * MINUTE, 60 * MINUTE),)
    known = mark_headers(Mark(0, 10 * MINUTE, False, 2))
    assert folded(early) == [HeldBack(0, None, None)]
    assert folded(early, late) == [HeldBack(0, None, None)], "nothing has told how many there are"
    assert folded(early, late, known) == [HeldBack(0, 0, 50 * MINUTE)]
    assert folded(early, late, mark_headers(Mark(0, 10 * MINUTE, True, 2))) == []
    assert folded(early, (record_header(1, 0, 10 * MINUTE),), known) == []


def joined(**row: Any) -> list[HeldBack]:
    near = JoinWithin(
        name="near", left=LOOKS, right=BUYS, join=lambda a, b: a, to=Stream("near-looks", Json(Look))
    )
    folder: Folder[Any] = Folder(near, DictStore())
    folder.rows[stream_key(3)] = JoinStreamRow(**row)
    return near.held_back(folder.rows, 3)


@pytest.mark.parametrize(
    ("row", "held"),
    [
        ({"left_ms": 5 * MINUTE, "right_ms": 8 * MINUTE}, [HeldBack(0, 3, 3 * MINUTE)]),
        ({"left_ms": 9 * MINUTE, "right_ms": 8 * MINUTE}, [HeldBack(1, 3, MINUTE)]),
        ({"left_ms": 9 * MINUTE, "right_ms": -1}, [HeldBack(1, None, None)]),
        ({"left_ms": 9 * MINUTE, "right_ms": 8 * MINUTE, "ended": 2}, []),
        ({"left_ms": 9 * MINUTE, "right_ms": 8 * MINUTE, "ended": 1}, [HeldBack(1, 3, MINUTE)]),
        ({"left_ms": MINUTE, "right_ms": MINUTE}, []),
        ({"stream_ms": MINUTE, "left_ms": None, "right_ms": None}, []),
    ],
)
def test_a_join_waits_for_the_source_that_lags(row: dict[str, Any], held: list[HeldBack]) -> None:
    assert joined(**row) == held


def test_a_join_after_a_step_waits_for_the_last_origin_of_that() -> None:
    near = JoinWithin(
        name="near", left=STEP, right=BUYS, join=lambda a, b: a, to=Stream("near-looks", Json(Look))
    )
    folder: Folder[Any] = Folder(near, DictStore())
    rows = folder.rows
    rows[stream_key(0)] = JoinStreamRow(left_ms=4 * MINUTE, right_ms=20 * MINUTE)
    for origin, at_ms in ((0, 9 * MINUTE), (1, 4 * MINUTE), (2, 6 * MINUTE)):
        rows[origin_key(0, 0, origin)] = OriginRow(at_ms, False, 3)
    assert near.held_back(rows, 0) == [HeldBack(0, 1, 5 * MINUTE)]
    rows.derived.clear()
    rows[origin_key(0, 0, 1)] = OriginRow(4 * MINUTE, True, 3)
    rows[stream_key(0)] = JoinStreamRow(left_ms=9 * MINUTE, right_ms=20 * MINUTE)
    for origin in (0, 2):
        rows[origin_key(0, 0, origin)] = OriginRow(9 * MINUTE, False, 3)
    assert near.held_back(rows, 0) == [HeldBack(0, 0, 11 * MINUTE)], "one that let go holds nothing back"


def test_it_is_remembered_since_when_an_origin_is_waited_for_without_a_break() -> None:
    clock = ManualClock()
    held = HeldOrigins(clock)
    first, other = HeldBack(0, 3, 7_000), HeldBack(0, None, None)
    assert held.is_due
    assert held.look([first], ("by",)) == [HeldOrigin("by", "3", 7.0, 0.0)]
    assert not held.is_due
    clock.advance_ms(40_000)
    assert held.is_due
    assert held.look([first._replace(lag_ms=9_000)], ("by",)) == [HeldOrigin("by", "3", 9.0, 40.0)]
    assert held.look([other], ("by",)) == [HeldOrigin("by", "unheard", math.inf, 0.0)]
    clock.advance_ms(2_000)
    assert held.look([first, other], ("by",))[0].held_s == 0.0
    assert held.look([], ("by",)) == []


def test_origins_have_the_names_of_what_their_step_reads() -> None:
    both = Merge(name="both", sources=[LOOKS, BUYS])
    assert origins_of_topic([both], str(both.emits[0])) == ("looks", "buys")
    assert origins_of_topic([STEP, HOURS], str(HOURS.topics[0])) == ("looks",)
    assert origins_of_topic([HOURS], str(HOURS.topics[0])) == (HOURS.topics[0],)
    assert origins_of_topic([STEP, HOURS], "looks") == ("looks",)


def test_a_traced_join_after_a_step_uses_the_origins_of_its_records() -> None:
    near_looks = Stream("near-looks", Json(Look))
    near = JoinWithin(
        name="near",
        left=STEP,
        right=BUYS,
        join=lambda look, buy: look,
        to=near_looks,
    )
    told = []
    for each in (near, traced(near)):
        with Topology([STEP, each], partitions=2) as topology:
            topology.pipe(LOOKS, Look("home", 120 * MINUTE), key=None, partition=0)
            topology.pipe(LOOKS, Look("home", 10 * MINUTE), key=None, partition=1)
            topology.pipe(BUYS, Look("home", 10 * MINUTE), key="home")
            told.append(topology.values(near_looks))
    assert told[0] == told[1] == [("home", Look("home", 10 * MINUTE))], "it is in time by its own origin"
