"""Windows of every kind, with every way of sending results, against their definition (oracle.py)."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.core.streams.windowing.fold import TICK_EVERY_MS
from holdfast.errors import ConfigError
from holdfast.streams import (
    Hopping,
    Session,
    Sliding,
    StreamRow,
    Tumbling,
    Windowed,
    final,
    parse_window_key,
    stream_key,
    updates,
    window_key,
    windows_of,
)
from holdfast.testing import Topology
from tests.core.streams.windowing.oracle import Given, Oracle, Told, Window
from tests.support.scale import scaled

KINDS: list[type[Window]] = [Tumbling, Hopping, Sliding, Session]
MODES = ["table", "updates", "every", "final"]
KEYS = ["a", "a!", "a@0", "b"]


class Happened(msgspec.Struct, frozen=True):
    number: int
    key: str
    at: int


def declared(
    window: Window, mode: str, retention_ms: int, every_ms: int, idle_ms: int | None = None
) -> Windowed[Happened, Any]:
    """Return a declaration whose aggregates are the numbers of a window's records: in the order of their
    arrival, but of sessions, which merge, in that of the numbers.
    """
    sessions = isinstance(window, Session)

    def fold(held: tuple[int, ...] | None, happened: Happened) -> tuple[int, ...]:
        after = (*(held or ()), happened.number)
        return (*sorted(after),) if sessions else after

    def merge(earlier: tuple[int, ...], later: tuple[int, ...]) -> tuple[int, ...]:
        return earlier + later

    emit = {
        "table": None,
        "updates": updates("out"),
        "every": updates("out", every=every_ms),
        "final": final("out"),
    }
    return Windowed(
        name="windows",
        source="in",
        decode=msgspec.json.Decoder(Happened).decode,
        by=lambda happened: happened.key,
        time=lambda happened: happened.at,
        window=window,
        fold=fold,
        merge=merge if sessions else None,
        row=tuple[int, ...],
        emit=emit[mode],
        late="late",
        retention=retention_ms,
        idle=idle_ms,
        route=None,
    )


@st.composite
def windows(draw: st.DrawFn, kind: type[Window]) -> Window:
    size, grace = draw(st.integers(1, 15)), draw(st.sampled_from([0, 1, 4, 20]))
    if kind is Hopping:
        return Hopping(size, every=draw(st.integers(max(1, size // 4), size)), grace=grace)
    if kind is Tumbling:
        return Tumbling(size, grace=grace)
    return Sliding(size, grace=grace) if kind is Sliding else Session(size, grace=grace)


A_KEY = st.sampled_from(KEYS)
A_MOVE = st.one_of(st.integers(-12, 12), st.integers(0, 4), st.sampled_from([60, 5_000]))


@st.composite
def logs(draw: st.DrawFn) -> list[Given]:
    """Times that advance with steps back, around powers of ten, where the keys of rows get other first
    digits.
    """
    now = draw(st.sampled_from([0, 80, 990, 99_980]))
    out = []
    for number in range(draw(st.integers(1, 22))):
        now = max(0, now + draw(A_MOVE))
        out.append(Given(number, draw(A_KEY), now))
    return out


def told_of(records: Any) -> list[Told]:
    out = []
    for record in records:
        place = parse_window_key(record.key.decode())
        assert place is not None
        held = None
        if record.value is not None:
            found = msgspec.json.decode(record.value)
            assert (found["key"], found["start_ms"]) == place
            held = found["end_ms"], tuple(found["value"])
        out.append(Told(place, held))
    return out


def check(window: Window, mode: str, log: list[Given], retention_ms: int, every_ms: int) -> None:
    kept_ms = max(retention_ms, window.difference_ms + 1) if isinstance(window, Sliding) else retention_ms
    oracle = Oracle(window, mode, kept_ms, every_ms)
    with Topology([declared(window, mode, retention_ms, every_ms)], partitions=1) as topology:
        for each in log:
            late = len(oracle.late)
            wanted = oracle.add(each)
            topology.pipe("in", Happened(each.number, each.key, each.at))
            if mode != "table":
                assert told_of(topology.read("out")) == wanted, each
            sent = [msgspec.json.decode(record.value or b"")["number"] for record in topology.read("late")]
            assert sent == oracle.late[late:]
            rows = topology.table("windows")
            kept = {(one.key, one.start_ms): (one.end_ms, one.value) for one in windows_of(rows.items())}
            assert kept == oracle.table(), each
            stream = rows[stream_key(0)]
            assert isinstance(stream, StreamRow)
            assert (stream.stream_ms, stream.late, stream.partly_late) == (
                oracle.stream_ms,
                len(oracle.late),
                oracle.partly_late,
            )
        assert not topology.refused


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=scaled(25), suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_windows_are_what_they_are_by_definition(kind: type[Window], mode: str, data: st.DataObject) -> None:
    window = data.draw(windows(kind))
    retention_ms, every_ms = data.draw(st.sampled_from([0, 3, 25])), data.draw(st.sampled_from([1, 5, 30]))
    check(window, mode, data.draw(logs()), retention_ms, every_ms)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_left_of_windows_whose_time_is_over(kind: type[Window], mode: str) -> None:
    window: Window = Hopping(10, every=5) if kind is Hopping else kind(10)  # type: ignore[call-arg]
    with Topology([declared(window, mode, 7, 3)], partitions=1) as topology:
        for number, at in enumerate((100, 103, 95, 120, 131, 126, 10_000)):
            topology.pipe("in", Happened(number, "a" if number < 6 else "z", at))
        rows = set(topology.table("windows"))
        assert not [name for name in rows if "a@" in name or name.endswith("/a")], rows
        assert [name for name in rows if name.startswith("z@")]


def test_keys_of_windows_are_in_order_of_time() -> None:
    starts = [0, 9, 10, 99, 100, 10**12, 10**15 - 1]
    assert sorted(window_key("k", each) for each in starts) == [window_key("k", each) for each in starts]
    assert [parse_window_key(window_key("k@1", each)) for each in (-5, *starts)] == [
        ("k@1", each) for each in (-5, *starts)
    ]


def check_idle(window: Window, mode: str, log: list[Given], ahead: list[int], idle_ms: int) -> None:
    """Pipe *log* and let the clock tick between its records, each time *ahead* by so much: the clock advances
    stream time, less *idle_ms*, to where something is due, and each result is that of its definition
    then.
    """
    retention_ms, every_ms = 7, 5
    kept_ms = max(retention_ms, window.difference_ms + 1) if isinstance(window, Sliding) else retention_ms
    oracle = Oracle(window, mode, kept_ms, every_ms)
    now_ms = moved_ms = 1_000_000
    processor = declared(window, mode, retention_ms, every_ms, idle_ms)
    with Topology([processor], partitions=1) as topology:
        for each, ahead_ms in zip(log, ahead, strict=True):
            before_ms = oracle.stream_ms
            wanted = oracle.add(each)
            topology.pipe("in", Happened(each.number, each.key, each.at), at=now_ms)
            moved_ms = now_ms if oracle.stream_ms > before_ms else moved_ms
            if ahead_ms:
                now_ms += ahead_ms
                topology.tick(now_ms)
                before_ms, stream = oracle.stream_ms, topology.table(processor)[stream_key(0)]
                assert (
                    before_ms <= stream.stream_ms <= max(before_ms, before_ms + now_ms - moved_ms - idle_ms)
                )
                for oracle.stream_ms in range(before_ms + 1, stream.stream_ms + 1):
                    wanted += oracle._settle()
                nothing_due(oracle, before_ms + now_ms - moved_ms - idle_ms - TICK_EVERY_MS)
                moved_ms += stream.stream_ms - before_ms
            if mode != "table":
                assert told_of(topology.read("out")) == wanted, each
            rows = topology.table(processor)
            kept = {(one.key, one.start_ms): (one.end_ms, one.value) for one in windows_of(rows.items())}
            assert kept == oracle.table(), each
            assert rows[stream_key(0)].late == len(oracle.late)
        assert not topology.refused


def nothing_due(oracle: Oracle, until_ms: int) -> None:
    """Assert that nothing would change if it were *until_ms*."""
    if until_ms > oracle.stream_ms:
        later = deepcopy(oracle)
        later.stream_ms = until_ms
        assert not later._settle()
        assert later.table() == oracle.table()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=scaled(15), suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_windows_of_idle_partitions_end_by_ticks(kind: type[Window], mode: str, data: st.DataObject) -> None:
    log = data.draw(logs())
    jumps = st.sampled_from([0, 0, 1, 10, 249, 250, 300, 1_000])
    ahead = data.draw(st.lists(jumps, min_size=len(log), max_size=len(log)))
    check_idle(data.draw(windows(kind)), mode, log, ahead, data.draw(st.sampled_from([1, 30, 500])))


def test_a_final_result_comes_a_quarter_of_a_second_after_idle_at_most_and_without_another_record() -> None:
    processor = declared(Tumbling(1_000, grace=200), "final", 5_000, 1, idle_ms=3_000)
    with Topology([processor], partitions=1) as topology:
        topology.pipe("in", Happened(1, "a", 2_100), at=50_001)
        due_ms = 50_001 + (3_200 - 2_100) + 3_000
        topology.tick(due_ms - 1)
        assert topology.read("out") == []
        topology.tick(due_ms + TICK_EVERY_MS)
        assert [each.held for each in told_of(topology.read("out"))] == [(3_000, (1,))]
        topology.tick(due_ms + 5_000 + TICK_EVERY_MS)
        assert topology.windows(processor) == []
        assert [choice.tick_ms for choice in topology.choices(processor, 0)] == [
            due_ms - 1,
            due_ms + TICK_EVERY_MS,
            due_ms + 5_000 + TICK_EVERY_MS,
        ]
        assert topology.timers(processor, clock="tick") == {}


def test_traffic_puts_the_end_of_a_window_off_as_long_as_its_time_does_not_come() -> None:
    processor = declared(Tumbling(1_000), "final", 0, 1, idle_ms=500)
    with Topology([processor], partitions=1) as topology:
        for number in range(10):
            topology.pipe("in", Happened(number, "a", number * 100), at=10_000 + number * 1_000)
            topology.tick(10_000 + number * 1_000 + 590)
        assert topology.read("out") == []
        topology.tick(19_000 + 100 + 500 + TICK_EVERY_MS)
        assert [each.held for each in told_of(topology.read("out"))] == [(1_000, (*range(10),))]


def test_windows_without_idle_have_one_source_and_rows_as_ever() -> None:
    processor = declared(Tumbling(1_000), "final", 0, 1)
    assert (processor.on, processor.on_tick, processor.source) == (None, None, "in")
    with Topology([processor], partitions=1) as topology:
        topology.pipe("in", Happened(1, "a", 5))
        assert not [name for name in topology.table(processor) if name.startswith("\x00idle")]


@pytest.mark.parametrize("idle", [0, -1, "soon", 1.5])
def test_idle_is_a_duration(idle: Any) -> None:
    with pytest.raises(ConfigError, match="processor windows: idle"):
        declared(Tumbling(1_000), "final", 0, 1, idle_ms=idle)
