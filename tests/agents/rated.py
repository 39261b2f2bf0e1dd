"""Rides with the rate of their time, of two raw topics: `python -P -m tests.agents.rated worker`."""

from __future__ import annotations

from typing import Any

from holdfast.agents.app import create_app
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.serdes import Json
from holdfast.core.engine.declared.sources import Source
from holdfast.core.engine.declared.streams import Stream
from holdfast.core.streams.joins.stream_table import JoinStreamTable

Told = tuple[str, int]
"""A name, and its time in ms."""
RATES: Source[Told] = Source("rates", Json(Told), time=lambda told: told[1])
RIDES: Source[Told] = Source("rides", Json(Told), time=lambda told: told[1])
RATED: Stream[tuple[str, str]] = Stream("rated", Json(tuple[str, str]))


def rate(ride: Told, of: Told | None) -> tuple[str, str]:
    return ride[0], "" if of is None else of[0]


def processors() -> list[Processor[Any, Any]]:
    """Return the join: each ride with the rate that its key has when the ride is folded."""
    return [JoinStreamTable(name="rating", stream=RIDES, table=RATES, join=rate, to=RATED, how="left")]


if __name__ == "__main__":
    create_app(processors()).main()
