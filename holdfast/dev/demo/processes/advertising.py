"""`python -P -m holdfast.dev.demo.processes.advertising worker`: an application of the demo that joins two
streams.

Each impression of an advertisement meets the clicks on it within two seconds of event time, or is emitted
without one.
"""

from __future__ import annotations

import msgspec

from holdfast.agents.app import create_app
from holdfast.core.engine.declared.serdes import Json
from holdfast.core.engine.declared.sources import Source
from holdfast.core.engine.declared.streams import Stream
from holdfast.streams import JoinWithin

WITHIN_MS, GRACE_MS, IDLE_MS = 2_000, 3_000, 1_000


class Shown(msgspec.Struct, frozen=True):
    """An impression: its number, and when it was shown, in ms of event time."""

    number: int
    at_ms: int


class AdOutcome(msgspec.Struct, frozen=True):
    """The outcome of an impression: *after_ms* is None for one without a click in time."""

    number: int
    after_ms: int | None


def outcome(shown: Shown, clicked: Shown | None) -> AdOutcome:
    """Return the outcome of an impression that met this click, or none."""
    return AdOutcome(shown.number, None if clicked is None else clicked.at_ms - shown.at_ms)


impressions = Source("impressions", Json(Shown), time=lambda shown: shown.at_ms)
clicks = Source("clicks", Json(Shown), time=lambda clicked: clicked.at_ms)
outcomes = Stream("outcomes", Json(AdOutcome))
joined = JoinWithin(
    name="outcomes",
    left=impressions,
    right=clicks,
    join=outcome,
    to=outcomes,
    after=WITHIN_MS,
    grace=GRACE_MS,
    how="left",
    idle=IDLE_MS,
)

if __name__ == "__main__":
    create_app([joined]).main()
