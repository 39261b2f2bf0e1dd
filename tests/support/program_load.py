"""Input of the example programs in their tests: records in phases, each with offsets after the previous
one's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

PHASES = 4
NAMES = ("ada", "bob", "cy", "dot", "eve", "flo", "gus", "hal")
SHELVES = ("tea", "books", "toys")
HOUR_MS = 3_600_000


class Given(NamedTuple):
    """A record to write."""

    topic: str
    key: str
    value: bytes | None


def load(phase: int) -> list[list[Given]]:
    """Return the records of a phase in steps: the records of a step are appended before the next begins.

    Tables come before the streams that are joined with them, so that the result does not depend on the clock.
    """
    chance = Random(phase)
    return [
        [*_tables(phase, chance), *_alone(phase, chance), *_shown(phase)],
        [*_streams(phase), *_clicked(phase)],
    ]


def _given(topic: str, key: str, value: object) -> Given:
    return Given(topic, key, None if value is None else json.dumps(value).encode())


def _tables(phase: int, chance: Random) -> Iterator[Given]:
    if phase == 0:  # before any worker starts, so that all of them see these
        for currency, rate in (("usd", 0.9), ("gbp", 1.2), ("chf", 1.05)):
            yield _given("rates", currency, rate)
    for at, name in enumerate(NAMES):
        gone = (phase + at) % 5 == 4
        yield _given("customers", name, None if gone else {"name": f"{name} {phase}"})
        yield _given("products", name, None if gone else 100 * phase + at)
        yield _given("item-prices", name, None if gone else 10 * phase + at)
        yield _given("item-stock", name, chance.randrange(100))


def _streams(phase: int) -> Iterator[Given]:
    for at, name in enumerate(NAMES):
        yield _given("orders", name, {"id": 100 * phase + at, "cents": at})
        currency = ("usd", "gbp", "sek")[at % 3]
        yield _given(
            "foreign-orders", name, {"id": f"f-{phase}-{at}", "currency": currency, "amount": 100 + at}
        )
        yield _given("open-orders", f"o-{phase}-{at}", {"product": name, "pieces": 1 + at})


def _alone(phase: int, chance: Random) -> Iterator[Given]:
    """Yield records for programs of one source, or whose sources need no order among them."""
    for at in range(60):
        name, shelf = NAMES[at % len(NAMES)], SHELVES[at % len(SHELVES)]
        then = phase * 3 * HOUR_MS + at * 60_000
        payment = f"p-{chance.randrange(40)}"
        yield Given("lines", name, f"{name} likes {shelf} and {chance.choice(NAMES)}".encode())
        yield _given("views", name, {"page": name, "at_ms": then})
        yield _given("looks", name, {"visitor": name, "item": shelf, "at_ms": then})
        yield _given("payments", payment, {"id": payment, "cents": at})
        yield _given(
            "sales", f"{name} {shelf}", {"item": f"{name} {shelf}", "shelf": shelf, "pieces": 1 + at}
        )
        yield _given("paid-in", name, 100 + at)
        yield _given("paid-out", name, at)


def _shown(phase: int) -> Iterator[Given]:
    for at, name in enumerate(NAMES):
        yield _given("impressions", name, {"page": f"{phase}-{at}", "at_ms": phase * 60_000 + at})


def _clicked(phase: int) -> Iterator[Given]:
    for at, name in enumerate(NAMES):
        if (phase + at) % 3:
            yield _given("clicks", name, {"at_ms": phase * 60_000 + 1_000 + at})
