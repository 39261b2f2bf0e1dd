"""Sources in event time, partly out of order by several times the grace, and paces at which to read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random

import msgspec

from holdfast import Json, Source
from holdfast.streams import Map, Rekey


class Fare(msgspec.Struct, frozen=True):
    driver: str
    at_ms: int
    number: int


def at_of(fare: Fare) -> int:
    return fare.at_ms


def source_logs(rng: Random, partitions: int, records: int, disorder: int) -> list[list[Fare]]:
    """Return of each partition a log that is nearly in order, and now and then not at all, or empty."""
    logs: list[list[Fare]] = []
    for partition in range(partitions):
        at_ms, log = 1_000 + rng.randrange(50), list[Fare]()
        for number in range(rng.choice([0, records, records, records // 2])):
            at_ms += rng.randrange(40)
            back = rng.randrange(disorder) if rng.random() < 0.3 else 0
            log.append(Fare(rng.choice("abcdef"), at_ms - back, partition * 1_000 + number))
        logs.append(log)
    return logs


def at_pace(logs: Sequence[Sequence[Fare]], rng: Random) -> Iterator[tuple[int, Fare]]:
    """Yield (log, record) in one of the orders in which readers of several logs may meet them."""
    at, live, runs = (
        [0] * len(logs),
        [number for number, log in enumerate(logs) if log],
        rng.choice([1, 5, 1_000]),
    )
    while live:
        number = rng.choice(live)
        for _ in range(rng.randint(1, runs)):
            yield number, logs[number][at[number]]
            at[number] += 1
            if at[number] == len(logs[number]):
                live.remove(number)
                break


FARES = Source("fares", Json(Fare), time=at_of)


def by_driver(name: str, source: Source[Fare], steps: int) -> list[Rekey[Fare, Fare] | Map[Fare, Fare]]:
    """Return steps that bring the records of a driver together: one, or a chain of three."""
    found: list[Rekey[Fare, Fare] | Map[Fare, Fare]] = [Rekey(name=name, source=source, by=_parity)]
    if steps == 1:
        return [Rekey(name=name, source=source, by=_driver)]
    behind = Source(found[0].to, Json(Fare))
    found.append(Map(name=f"{name}-same", source=behind, each=_same, serde=Json(Fare)))
    found.append(Rekey(name=f"{name}-again", source=Source(found[1].to, Json(Fare)), by=_driver))
    return found


def _driver(fare: Fare) -> str:
    return fare.driver


def _parity(fare: Fare) -> str:
    return "even" if fare.number % 2 else "odd"


def _same(fare: Fare) -> Fare:
    return fare


def timely(logs: Sequence[Sequence[Fare]], is_late: Callable[[int, int], bool]) -> list[Fare]:
    """Return the records in time, by each log alone: *is_late* gets a time and the highest before it."""
    found: list[Fare] = []
    for log in logs:
        highest = -(1 << 62)
        for fare in log:
            if not is_late(fare.at_ms, highest):
                found.append(fare)
            highest = max(highest, fare.at_ms)
    return found
