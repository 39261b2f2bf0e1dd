"""The test kit over processors with event time: of one source, and of several with ticks as well."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from holdfast import Emit, Json, Processor, Rows, Source, Stream
from holdfast.errors import ImpureFoldError
from holdfast.testing import Topology

QUIET_MS = 1_000


class Reading(msgspec.Struct, frozen=True):
    meter: str
    own_ms: int


SILENT = Stream("silent", Json(int))
READINGS: Source[Reading] = Source("readings", Json(Reading), time=lambda reading: reading.own_ms)
REPAIRS: Source[str] = Source("repairs", Json(str))


def read(rows: Rows[int], reading: Reading, at_ms: int) -> None:
    rows[reading.meter] = rows.get(reading.meter, 0) + 1
    rows.wake_at(reading.meter, reading.own_ms + QUIET_MS, clock="event")


def repaired(rows: Rows[int], meter: str, at_ms: int) -> None:
    rows.wake_at(meter, None, clock="event")


def silent(rows: Rows[int], meter: str, at_ms: int) -> Iterator[Emit]:
    yield SILENT.emit(meter, at_ms)


ONE: Processor[Reading, int] = Processor(
    name="one",
    source="readings",
    decode=READINGS.serde.decode,
    time=lambda reading: reading.own_ms,
    fold=read,
    on_event=silent,
    row=int,
    emits=(SILENT,),
)
SEVERAL: Processor[Any, int] = Processor(
    name="several", on={READINGS: read, REPAIRS: repaired}, on_event=silent, row=int, emits=(SILENT,)
)


@pytest.mark.parametrize("processor", [ONE, SEVERAL], ids=["one source", "several"])
def test_a_meter_is_notified_when_event_time_passes_its_last_reading(processor: Processor[Any, int]) -> None:
    with Topology([processor], partitions=1) as topology:
        topology.pipe("readings", Reading("a", 10_000), at=5)
        topology.pipe("readings", Reading("b", 10_999), at=900_000)
        assert topology.timers(processor, clock="event") == {"a": 11_000, "b": 11_999}
        assert topology.read("silent") == []
        topology.pipe("readings", Reading("b", 11_000), at=900_001)
        assert topology.values(SILENT) == [("a", 11_000)]
        topology.pipe("readings", Reading("c", 9_000), at=900_002)
        assert topology.timers(processor, clock="event") == {"b": 12_000, "c": 10_000}
        topology.pipe("readings", Reading("c", 13_000), at=900_003)
        assert topology.values(SILENT) == [("c", 10_000), ("b", 12_000)]


def test_a_source_without_time_moves_event_time_to_stream_time() -> None:
    with Topology([SEVERAL], partitions=1) as topology:
        topology.pipe(READINGS, Reading("a", 10_000), at=5)
        topology.pipe(REPAIRS, "b", at=10_500)
        assert topology.read("silent") == []
        topology.pipe(REPAIRS, "b", at=11_000)
        assert topology.values(SILENT) == [("a", 11_000)]


def test_a_timer_that_another_source_cancels_does_not_fire() -> None:
    with Topology([SEVERAL], partitions=1) as topology:
        topology.pipe(READINGS, Reading("a", 10_000), at=5)
        topology.pipe(REPAIRS, "a", at=6)
        topology.pipe(READINGS, Reading("b", 99_000), at=7)
        assert topology.read("silent") == []


def test_an_event_timer_that_looks_at_a_clock_is_caught() -> None:
    calls = iter(range(1_000))

    def drawn(rows: Rows[int], meter: str, at_ms: int) -> Iterator[Emit]:
        yield SILENT.emit(meter, next(calls))

    topology = Topology([replace(ONE, on_event=drawn)], partitions=1)
    topology.pipe("readings", Reading("a", 1), at=1)
    with pytest.raises(ImpureFoldError, match="folded after a restart, emits other records"):
        topology.pipe("readings", Reading("a", 5_000), at=2)
