"""Windows with records that are refused, for every reason, against their definition: such a record changes
nothing.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.streams import Session, Sliding, StreamRow, Windowed, final, stream_key, updates
from holdfast.testing import Topology
from tests.core.streams.windowing.oracle import Given, Oracle, Told, Window
from tests.core.streams.windowing.test_windows_by_oracle import KINDS, MODES, logs, told_of, windows
from tests.support.scale import scaled

Fault = Literal["", "decode", "time", "key", "fold"]
FAULTS: list[Fault] = ["decode", "time", "key", "fold"]
MOST = 3
"""The most records that a window of these tests may hold."""
UNSENDABLE = 11
"""The sum of the numbers of a window whose result cannot be encoded."""


class Happened(msgspec.Struct, frozen=True):
    number: int
    key: str
    at: int
    fault: Fault = ""


def read(value: bytes) -> Happened:
    happened = msgspec.json.decode(value, type=Happened)
    if happened.fault == "decode":
        raise ValueError("told to fail")
    return happened


def encode(result: Any) -> bytes:
    if sum(result.value) == UNSENDABLE:
        raise ValueError("told to fail")
    return msgspec.json.encode(result)


def held_of(held: tuple[int, ...]) -> tuple[int, ...]:
    if len(held) > MOST:
        raise ValueError("too many")
    return held


def declared(
    window: Window, mode: str, retention_ms: int, every_ms: int, idle_ms: int | None
) -> Windowed[Happened, Any]:
    sessions = isinstance(window, Session)

    def fold(held: tuple[int, ...] | None, happened: Happened) -> tuple[int, ...]:
        if happened.fault == "fold":
            raise ValueError("told to fail")
        after = held_of((*(held or ()), happened.number))
        return (*sorted(after),) if sessions else after

    emit = {
        "table": None,
        "updates": updates("out", encode=encode),
        "every": updates("out", encode=encode, every=every_ms),
        "final": final("out", encode=encode),
    }
    return Windowed(
        name="windows",
        source="in",
        decode=read,
        by=lambda happened: "\x00" if happened.fault == "key" else happened.key,
        time=lambda happened: -1 if happened.fault == "time" else happened.at,
        window=window,
        fold=fold,
        merge=(lambda earlier, later: held_of(earlier + later)) if sessions else None,
        row=tuple[int, ...],
        emit=emit[mode],
        late="late",
        retention=retention_ms,
        idle=idle_ms,
        route=None,
    )


class RefusingOracle:
    """The oracle of windows, which a record leaves as it was if it is refused."""

    def __init__(self, window: Window, mode: str, retention_ms: int, every_ms: int) -> None:
        self.found, self._mode = Oracle(window, mode, retention_ms, every_ms), mode

    def add(self, given: Given, fault: Fault) -> list[Told] | None:
        """Take a record and return the results sent for it, or None if it is refused."""
        if fault in ("decode", "time", "key"):
            return None
        after = deepcopy(self.found)
        told = after.add(given)
        if given.number not in after.late and (fault == "fold" or self._too_much(given, after)):
            return None
        self.found = after
        return told

    def go_on(self, stream_ms: int) -> list[Told]:
        """Let stream time advance without a record, and return the results sent then."""
        told: list[Told] = []
        for at_ms in range(self.found.stream_ms + 1, stream_ms + 1):
            self.found.stream_ms = at_ms
            told += self.found._settle()
        return told

    def _too_much(self, given: Given, after: Oracle) -> bool:
        mine = [held for _, held in after.windows().values() if given.number in held]
        cannot_be_sent = self._mode != "table" and any(sum(held) == UNSENDABLE for held in mine)
        return cannot_be_sent or any(len(held) > MOST for held in mine)


def check(
    window: Window,
    mode: str,
    log: list[tuple[Given, Fault, int]],
    retention_ms: int,
    every_ms: int,
    idle_ms: int | None = None,
) -> None:
    """Pipe records with their faults, and let the clock advance by so many ms after each where the windows
    have *idle_ms*.
    """
    kept_ms = max(retention_ms, window.difference_ms + 1) if isinstance(window, Sliding) else retention_ms
    oracle = RefusingOracle(window, mode, kept_ms, every_ms)
    processor = declared(window, mode, retention_ms, every_ms, idle_ms)
    now_ms, refused = 1_000_000, list[int]()
    with Topology([processor], partitions=1) as topology:
        for each, fault, ahead_ms in log:
            late = len(oracle.found.late)
            wanted = oracle.add(each, fault)
            topology.pipe("in", Happened(each.number, each.key, each.at, fault), at=now_ms)
            if wanted is None:
                refused.append(each.number)
            assert [found.record.offset for found in topology.refused if found.record] == refused, each
            told = wanted or []
            if idle_ms is not None:
                now_ms += ahead_ms
                topology.tick(now_ms)
                told += oracle.go_on(stream_of(topology).stream_ms)
            if mode != "table":
                assert told_of(topology.read("out")) == told, each
            sent = [msgspec.json.decode(record.value or b"")["number"] for record in topology.read("late")]
            assert sent == oracle.found.late[late:]
            kept = {(one.key, one.start_ms): (one.end_ms, one.value) for one in topology.windows(processor)}
            assert kept == oracle.found.table(), each
            stream = stream_of(topology)
            assert (stream.stream_ms, stream.late, stream.partly_late, stream.failed) == (
                oracle.found.stream_ms,
                len(oracle.found.late),
                oracle.found.partly_late,
                0,
            )


def stream_of(topology: Topology) -> StreamRow:
    found = topology.table("windows").get(stream_key(0), StreamRow())
    assert isinstance(found, StreamRow)
    return found


@st.composite
def faulty_logs(draw: st.DrawFn) -> list[tuple[Given, Fault, int]]:
    log = draw(logs())
    fault: st.SearchStrategy[Fault] = st.sampled_from(["", "", "", "", "", *FAULTS])
    ahead = st.sampled_from([0, 0, 1, 10, 249, 250, 300, 1_000])
    return [(each, draw(fault), draw(ahead)) for each in log]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=scaled(25), suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_refused_record_leaves_windows_as_they_were(
    kind: type[Window], mode: str, data: st.DataObject
) -> None:
    window, log = data.draw(windows(kind)), data.draw(faulty_logs())
    retention_ms, every_ms = data.draw(st.sampled_from([0, 3, 25])), data.draw(st.sampled_from([1, 5, 30]))
    idle_ms = data.draw(st.sampled_from([None, None, 1, 30, 500]))
    check(window, mode, log, retention_ms, every_ms, idle_ms)
