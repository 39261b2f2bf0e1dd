"""Workers of windows after a step or a fold, and of a join: `python -P -m tests.chaos.pacing worker`.

Environment variables: `PACED_PREFIX` is the prefix of names, `PACED_STEP_VERSION` and `PACED_DONE_VERSION`
are the versions of the step and of the processor of results, and `CHAOS_FAULT` is the point at which to die.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast import Emit, Internal, Json, Rows, Source, Stream
from holdfast.agents.app import create_app
from holdfast.core.engine.declared.processor import Processor
from holdfast.streams import JoinWithin, Rekey, Tumbling, Windowed, WindowResult, final


class Fare(msgspec.Struct, frozen=True):
    driver: str
    at_ms: int
    number: int = 0


def at_of(fare: Fare) -> int:
    return fare.at_ms


def driver_of(fare: Fare) -> str:
    return fare.driver


def plus_one(count: int | None, fare: Fare) -> int:
    return (count or 0) + 1


def both(left: Fare, right: Fare) -> tuple[int, int]:
    return left.number, right.number


def windows(prefix: str, step: int = 1, done: int = 1, *, emitted: bool = False) -> list[Processor[Any, Any]]:
    """Return the fares of an hour by driver, after a re-key and without grace; with *emitted*, after a fold
    of rows instead of the re-key.
    """
    fares = Source(f"{prefix}-fares", Json(Fare), time=at_of)
    by: Processor[Any, Any]
    if emitted:
        by = counting(f"{prefix}-by", fares, step)
    else:
        by = Rekey(name=f"{prefix}-by", source=fares, by=driver_of, version=step)
    hours: Windowed[Fare, int] = Windowed(
        name=f"{prefix}-hours",
        source=Source(by.emits[0], Json(Fare), time=at_of),
        by=driver_of,
        window=Tumbling("1h"),
        fold=plus_one,
        row=int,
        emit=final(Stream(f"{prefix}-done.v{done}", Json(WindowResult[int]))),
        version=done,
    )
    return [by, hours]


def counting(name: str, fares: Source[Fare], version: int) -> Processor[Any, int]:
    """Return a fold that counts the fares of each driver and sends them on."""
    to = Internal(name, Json(Fare), version=version)

    def fold(rows: Rows[int], fare: Fare, at_ms: int) -> Iterator[Emit]:
        rows[fare.driver] = rows.get(fare.driver, 0) + 1
        yield to.emit(fare.driver, fare)

    return Processor(name=name, source=fares, fold=fold, row=int, emits=(to,), version=version)


def joined(prefix: str, done: int = 1) -> list[Processor[Any, Any]]:
    """Return the pairs of two topics within ten seconds, with five minutes of grace."""
    left, right = (Source(f"{prefix}-{side}", Json(Fare), time=at_of) for side in ("left", "right"))
    pairs: JoinWithin[Fare, Fare, tuple[int, int]] = JoinWithin(
        name=f"{prefix}-pairs",
        left=left,
        right=right,
        join=both,
        to=Stream(f"{prefix}-pairs.v{done}", Json(tuple[int, int])),
        before="10s",
        after="10s",
        grace="5m",
        version=done,
    )
    return [pairs]


def from_environment() -> list[Processor[Any, Any]]:
    prefix, of = os.environ["PACED_PREFIX"], os.environ["PACED_OF"]
    step, done = (int(os.environ.get(f"PACED_{name}_VERSION", "1")) for name in ("STEP", "DONE"))
    return joined(prefix, done) if of == "join" else windows(prefix, step, done, emitted=of == "emits")


processors = from_environment() if "PACED_PREFIX" in os.environ else []

if __name__ == "__main__":
    if fault := os.environ.get("CHAOS_FAULT"):
        from tests.chaos.faults import Doom, plant

        plant(Doom(fault))
    create_app(processors).main()
