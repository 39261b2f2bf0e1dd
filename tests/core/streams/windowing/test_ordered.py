"""Ordered windows fold their records by event time, origin and offset: a fold that depends on order gives at
any pace what it gives over the sorted logs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgspec
import pytest

from holdfast import Json, Source, Stream
from holdfast.core.engine.batches import Batch
from holdfast.core.engine.declared.sources import DecoderInput
from holdfast.core.engine.emits import Headers
from holdfast.core.engine.fold.folding import Folder
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.core.streams.windowing.due import AT_ONCE
from holdfast.errors import ConfigError
from holdfast.streams import (
    Session,
    StreamRow,
    Tumbling,
    Windowed,
    WindowResult,
    final,
    stream_key,
    updates,
)
from holdfast.testing import Topology
from tests.core.streams.paces import FARES, Fare, at_of, at_pace, by_driver, source_logs
from tests.core.streams.windowing.test_windows_at_any_pace import KINDS
from tests.support.scale import scaled

Numbers = tuple[int, ...]
RESULTS: Stream[WindowResult[Numbers]] = Stream("results", Json(WindowResult[Numbers]))
Found = list[tuple[str, int, int, Numbers]]


def append(numbers: Numbers | None, fare: Fare) -> Numbers:
    return (*(numbers or ()), fare.number)


def ordered(window: Any, source: Any = FARES, **more: Any) -> Windowed[Fare, Numbers]:
    given: dict[str, Any] = {"emit": final(RESULTS), **more}
    return Windowed(
        name="windows",
        source=source,
        by=lambda fare: fare.driver,
        window=window,
        fold=append,
        row=Numbers,
        ordered=True,
        **given,
    )


def coarse(logs: list[list[Fare]]) -> list[list[Fare]]:
    """Return *logs* with many records of one time."""
    return [[Fare(each.driver, each.at_ms - each.at_ms % 20, each.number) for each in log] for log in logs]


def in_order(oracle: Callable[[Sequence[Sequence[Fare]]], Found], logs: Sequence[Sequence[Fare]]) -> Found:
    """Return *oracle*'s windows, each with its records by time, origin and position in the log."""
    places = {
        fare.number: (fare.at_ms, log, at) for log, fares in enumerate(logs) for at, fare in enumerate(fares)
    }
    return [(*window[:3], tuple(sorted(window[3], key=places.__getitem__))) for window in oracle(logs)]


@pytest.mark.long
@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_records_are_folded_in_order_at_any_pace(kind: str, steps: int) -> None:
    for seed in range(scaled(4)):
        logs = coarse(source_logs(Random(seed), 3 if steps else 1, 25, 250))
        oracle = in_order(KINDS[kind][1], logs)
        for pace in range(3):
            assert folded(logs, kind, steps, Random(100 * seed + pace)) == oracle, (seed, pace)


def folded(logs: list[list[Fare]], kind: str, steps: int, pace: Random) -> Found:
    chain = by_driver("by-driver", FARES, steps) if steps else []
    windows = ordered(KINDS[kind][0], chain[-1] if chain else FARES)
    with Topology([*chain, windows], partitions=len(logs)) as topology:
        for partition, fare in at_pace(logs, pace):
            topology.pipe(FARES, fare, key=fare.driver, partition=partition)
        last = Fare("zz", 10**9, -1)
        for partition in range(len(logs)):  # closes all of before
            topology.pipe(FARES, last, partition=partition)
        done = [(r.key, r.start_ms, r.end_ms, r.value) for _, r in topology.values(RESULTS)]
        assert not topology.refused
        held = [key for key in topology.table(windows) if key.startswith("\x00held/") and "/zz@" not in key]
    assert not held, "no record is kept behind its windows"
    return sorted(each for each in done if each[0] != "zz")


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_after_a_chain_records_of_one_time_come_in_one_order_at_any_pace(kind: str) -> None:
    for seed in range(scaled(3)):
        logs = coarse(source_logs(Random(seed), 3, 25, 250))
        found = []
        for pace in range(3):
            chain = by_driver("by-driver", FARES, 3)
            windows = ordered(KINDS[kind][0], Source(chain[-1].to, Json(Fare), time=at_of))
            with Topology([*chain, windows], partitions=3, paces=False) as topology:
                for partition, fare in at_pace(logs, Random(100 * seed + pace)):
                    topology.pipe(FARES, fare, key=fare.driver, partition=partition)
                for partition in range(3):
                    topology.pipe(FARES, Fare("zz", 10**9, -1), partition=partition)
                found.append(sorted((r.key, r.start_ms, r.value) for _, r in topology.values(RESULTS)))
                assert not topology.refused
        plain = sorted((key, start, numbers) for key, start, _, numbers in KINDS[kind][1](logs))
        assert [(key, start, tuple(sorted(value))) for key, start, value in found[0] if key != "zz"] == plain
        assert found[1:] == found[:1] * 2, seed


def test_records_of_one_time_and_origin_stay_in_the_order_of_their_log() -> None:
    with Topology([ordered(Tumbling("100ms"))], partitions=1) as topology:
        for at_ms, number in ((50, 9), (50, 1), (50, 5), (20, 7), (150, 2)):
            topology.pipe(FARES, Fare("a", at_ms, number))
        assert [result.value for _, result in topology.values(RESULTS)] == [(7, 9, 1, 5)]


def test_a_window_is_there_once_it_is_closed_and_then_until_its_retention() -> None:
    windows = ordered(Tumbling("100ms"), emit=None, retention="100ms")
    with Topology([windows], partitions=1) as topology:
        topology.pipe(FARES, Fare("a", 50, 0))
        assert topology.windows(windows) == []
        topology.pipe(FARES, Fare("a", 120, 1))
        assert [each.value for each in topology.windows(windows)] == [(0,)]
        topology.pipe(FARES, Fare("a", 210, 2))
        assert [each.start_ms for each in topology.windows(windows)] == [100]


def test_a_record_that_fails_when_its_window_closes_is_refused_alone() -> None:
    def fold(numbers: Numbers | None, fare: Fare) -> Numbers:
        if fare.number == 13:
            raise ValueError("unlucky")
        return append(numbers, fare)

    windows: Windowed[Fare, Numbers] = Windowed(
        name="windows",
        source=FARES,
        by=lambda fare: fare.driver,
        window=Tumbling("100ms"),
        fold=fold,
        row=Numbers,
        emit=final(RESULTS),
        ordered=True,
    )
    with Topology([windows], partitions=1) as topology:
        for at_ms, number in ((30, 3), (20, 13), (10, 1), (150, 4)):
            topology.pipe(FARES, Fare("a", at_ms, number))
        assert [result.value for _, result in topology.values(RESULTS)] == [(1, 3)]
        (refused,) = topology.refused
        assert (refused.stage, refused.record.offset if refused.record else None) == ("close", 3)
        assert "a@0000000000000020" in refused.reason
        assert "unlucky" in refused.reason
        stream = topology.table(windows)[stream_key(0)]
        assert isinstance(stream, StreamRow)
        assert stream.failed == 1


def test_decoders_get_the_columns_that_they_ask_for_again() -> None:
    def read(value: bytes, key: bytes, headers: Headers, offset: int, partition: int, timestamp: int) -> Fare:
        told = f"{key.decode()}/{headers[0][0]}/{offset}/{partition}/{timestamp}"
        return Fare(told, int(value), offset)

    inputs: tuple[DecoderInput, ...] = ("value", "key", "headers", "offset", "partition", "timestamp")
    windows: Windowed[Fare, tuple[str, ...]] = Windowed(
        name="windows",
        source="numbers",
        decode=read,
        inputs=inputs,
        by=lambda fare: "all",
        time=at_of,
        window=Tumbling("100ms"),
        fold=lambda seen, fare: (*(seen or ()), fare.driver),
        row=tuple[str, ...],
        emit=final(Stream("told", Json(WindowResult[tuple[str, ...]]))),
        ordered=True,
    )
    with Topology([windows], partitions=2, start_ms=5_000) as topology:
        for at_ms in (30, 20, 150):
            topology.pipe("numbers", str(at_ms), key="k", headers=(("h", b"1"),), partition=1)
        (told,) = topology.values(Stream("told", Json(WindowResult[tuple[str, ...]])))
        assert told[1].value == ("k/h/1/1/5000", "k/h/0/1/5000")


def test_a_window_of_many_records_is_folded_in_parts() -> None:
    windows = ordered(Tumbling("10s"), retention=0)
    folder: Folder[Any] = Folder(windows, DictStore())
    count = 2 * AT_ONCE + 10
    fares = [Fare("a", number, number) for number in range(count)] + [Fare("a", 10_000, -1)]
    values = [msgspec.json.encode(each) for each in fares]
    told: dict[str, Sequence[Any]] = {
        "value": values,
        "partition": [0] * len(fares),
        "offset": range(len(fares)),
    }
    told["headers"] = [()] * len(fares)
    columns = tuple(told[each] for each in windows.columns)
    steps = 0
    for _ in folder.steps([Batch(range(len(fares)), [1] * len(fares), columns)]):
        steps += 1
    assert folder.changes is not None
    (emit,) = folder.changes.emits
    assert emit.value is not None
    assert RESULTS.serde.decode(emit.value).value == tuple(range(count))
    assert steps > 5
    held = [key for key, value in folder.changes.puts if value is not None and b"held" in key]
    assert len(held) == 1, "what came and went in one transaction is not stored"


def test_what_makes_no_sense_with_order_is_refused_with_its_cure() -> None:
    for more, cure in (
        ({"emit": updates("out")}, r"write emit=final\('out'\), or leave out ordered="),
        ({"window": Session("1s"), "merge": lambda one, other: one}, "leave out merge="),
        ({"ordered": 1}, "write True or False"),
    ):
        given: dict[str, Any] = {"window": Tumbling("1s"), "ordered": True, **more}
        with pytest.raises(ConfigError, match=cure):
            Windowed(name="w", source=FARES, by=lambda fare: fare.driver, fold=append, row=Numbers, **given)
