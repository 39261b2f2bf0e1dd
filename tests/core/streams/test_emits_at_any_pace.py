"""Windows downstream of every kind of processor that emits: its emits carry their origins, so the windows are
the same whichever source partition is read first, and lack no record that was in order in its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, cast

import msgspec
import pytest

from holdfast import FoldWith, Internal, Json, Processor, Source, Stream, traced
from holdfast.core.engine.origins import is_mark, told_of
from holdfast.streams import (
    JoinForeign,
    JoinStreamTable,
    JoinTables,
    Rekey,
    Tumbling,
    Windowed,
    WindowResult,
    cogroup,
    dedupe,
    final,
    latest,
    updates,
)
from holdfast.testing import Topology
from tests.core.streams.paces import FARES, Fare, at_of

Numbers = tuple[int, ...]
RESULTS: Stream[WindowResult[Numbers]] = Stream("results", Json(WindowResult[Numbers]))
EMITTED: Internal[Fare | None] = Internal("emitted", Json(Fare | None), time=cast("Any", at_of))
NAMES = Source("names", Json(str))
PARTITIONS, HOUR, END = 3, 100, 10_000


def log_of(partition: int) -> list[Fare]:
    """Return a day of a partition, in order: each partition begins a little later than the one before."""
    return [
        Fare("abc"[number % 3], 7 * partition + 59 * number, 100 * partition + number) for number in range(20)
    ]


LOGS = [log_of(partition) for partition in range(PARTITIONS)]


def sent(fare: Fare) -> Any:
    return EMITTED.emit(f"{fare.number}", fare)


# -- the kinds


def of_one_source(rows: Any, fare: Fare, at_ms: int) -> Iterator[Any]:
    rows[f"{fare.number}"] = fare.number
    yield sent(fare)


def one_source() -> list[Any]:
    return [Processor(name="emits", source=FARES, fold=of_one_source, row=int, emits=(EMITTED,))]


def one_traced_source() -> list[Any]:
    return [traced(each) for each in one_source()]


def one_step() -> list[Any]:
    by = Rekey(name="by", source=FARES, by=lambda fare: fare.driver)
    return [by, Processor(name="emits", source=by, fold=of_one_source, row=int, emits=(EMITTED,))]


def several_sources() -> list[Any]:
    by = Rekey(name="by", source=FARES, by=lambda fare: fare.driver)
    keep = FoldWith(lambda rows, name, at_ms, key: rows.__setitem__(key, len(name)), ("key",))
    return [by, Processor(name="emits", on={by: of_one_source, NAMES: keep}, row=int, emits=(EMITTED,))]


def event_timers() -> list[Any]:
    """Each record is sent when event time has passed it, in the order of their times."""

    def fold(rows: Any, fare: Fare, at_ms: int) -> None:
        rows[f"{fare.number}"] = fare
        rows.wake_at(f"{fare.number}", fare.at_ms + 1, clock="event")

    def due(rows: Any, key: str, at_ms: int) -> Iterator[Any]:
        yield sent(rows[key])
        del rows[key]

    by = Rekey(name="by", source=FARES, by=lambda fare: fare.driver)
    return [by, Processor(name="emits", source=by, fold=fold, row=Fare, on_event=due, emits=(EMITTED,))]


def deduped() -> list[Any]:
    return [dedupe(name="emits", source=FARES, to=EMITTED, key=lambda fare: f"{fare.number}", ttl="1h")]


def deduped_by_event() -> list[Any]:
    by = Rekey(name="by", source=FARES, by=lambda fare: fare.driver)
    once = dedupe(
        name="emits", source=by, to=EMITTED, key=lambda fare: f"{fare.number}", ttl="1h", clock="event"
    )
    return [by, once]


def aggregated() -> list[Any]:
    return [
        latest(
            name="emits",
            source=FARES,
            key=lambda fare: f"{fare.number}",
            value=lambda fare: fare,
            row=Fare,
            emits=updates(EMITTED, encode=EMITTED.serde.encode),
        )
    ]


def cogrouped() -> list[Any]:
    return [cogroup(name="emits", on={FARES: lambda _, fare: fare}, row=Fare, to=EMITTED)]


def stream_and_table() -> list[Any]:
    return [
        JoinStreamTable(
            name="emits",
            stream=FARES,
            table=NAMES,
            join=lambda fare, name: fare,
            how="left",
            to=EMITTED,
            by=lambda fare: fare.driver,
        )
    ]


def stream_and_history() -> list[Any]:
    by = Rekey(name="by", source=FARES, by=lambda fare: fare.driver)
    names = Source("names", Json(str), time="append")
    return [
        by,
        JoinStreamTable(
            name="emits",
            stream=by,
            table=names,
            join=lambda fare, name: fare,
            how="left",
            to=EMITTED,
            history="1h",
        ),
    ]


def two_tables() -> list[Any]:
    return [
        JoinTables(name="emits", left=FARES, right=NAMES, join=lambda fare, _: fare, to=EMITTED, how="left")
    ]


def foreign_keys() -> list[Any]:
    return [
        *JoinForeign(
            name="emits",
            left=FARES,
            right=NAMES,
            key=lambda fare: fare.driver,
            join=lambda fare, name: fare,
            how="left",
            to=EMITTED,
        )
    ]


KINDS: list[Callable[[], list[Any]]] = [
    one_source,
    one_traced_source,
    one_step,
    several_sources,
    event_timers,
    deduped,
    deduped_by_event,
    aggregated,
    cogrouped,
    stream_and_table,
    stream_and_history,
    two_tables,
    foreign_keys,
]


# -- the paces


def origin_by_origin() -> Iterator[tuple[int, Fare]]:
    yield from ((partition, fare) for partition, log in enumerate(LOGS) for fare in log)


def backwards() -> Iterator[tuple[int, Fare]]:
    yield from ((at, fare) for at in reversed(range(PARTITIONS)) for fare in LOGS[at])


def round_robin() -> Iterator[tuple[int, Fare]]:
    yield from chain.from_iterable(enumerate(each) for each in zip(*LOGS, strict=True))


def windows_of(kind: Callable[[], list[Any]], records: Iterator[tuple[int, Fare]]) -> dict[int, Numbers]:
    processors = kind()
    emitted: Any = processors[-1].emits[0]
    hourly: Windowed[Fare, Numbers] = Windowed(
        name="hourly",
        source=Source(emitted, Json(Fare | None)),
        by=lambda fare: "all",
        window=Tumbling(HOUR, grace=0),
        fold=lambda numbers, fare: tuple(sorted((*(numbers or ()), fare.number))),
        row=Numbers,
        emit=final(RESULTS),
        late="late",
        route=None,
    )
    with Topology([*processors, hourly], partitions=PARTITIONS, paces=False) as topology:
        ends = ((partition, Fare("end", END, 1_000 + partition)) for partition in range(PARTITIONS))
        more = ((partition, Fare("end", 2 * END, 2_000 + partition)) for partition in range(PARTITIONS))
        for partition, fare in chain(records, ends, more):
            topology.pipe(FARES, fare, key=f"{fare.number}", partition=partition)
        assert not topology.refused
        found: dict[int, Numbers] = {}
        for _, result in topology.values(RESULTS):
            if result.start_ms < END:
                found[result.start_ms] = tuple(sorted((*found.get(result.start_ms, ()), *result.value)))
        assert not topology.read("late")
        logs = topology._logs.of(emitted)
        assert all(is_mark(each.headers) or told_of(each.headers) for log in logs for each in log)
    return found


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_windows_of_emits_of_each_kind_are_the_same_at_any_pace(kind: Any) -> None:
    every = sorted(fare.number for log in LOGS for fare in log)
    found = windows_of(kind, origin_by_origin())
    assert sorted(chain.from_iterable(found.values())) == every, "all records are in order in their logs"
    assert windows_of(kind, round_robin()) == found
    assert windows_of(kind, backwards()) == found


def parts_of(fare: Fare) -> list[tuple[str, Fare]]:
    """Return a fare as two: the second is earlier, and not late by its own log."""
    early = max(fare.at_ms - 58, 0)
    return [("all", fare), ("all", msgspec.structs.replace(fare, at_ms=early, number=-1 - fare.number))]


def pairs() -> list[Any]:
    rekey: Rekey[Fare, Any] = Rekey(
        name="emits", source=FARES, pairs=parts_of, serde=Json(Fare | None), time=at_of
    )
    return [rekey]


def emitted_pairs() -> list[Any]:
    def fold(rows: Any, fare: Fare, at_ms: int) -> Iterator[Any]:
        for key, part in parts_of(fare):
            yield EMITTED.emit(key, part)

    return [Processor(name="emits", source=FARES, fold=fold, row=int, emits=(EMITTED,))]


@pytest.mark.long
@pytest.mark.parametrize("kind", [pairs, emitted_pairs])
def test_several_emits_for_a_record_are_the_same_at_any_pace(kind: Any) -> None:
    found = windows_of(kind, origin_by_origin())
    for pace in (round_robin(), backwards()):
        assert windows_of(kind, pace) == found
