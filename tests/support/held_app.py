"""An application with windows only, downstream of a step that other programs run: the test writes the step's
output.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from holdfast import Json, Source
from holdfast.agents.app import create_app
from holdfast.core.engine.declared.processor import Processor
from holdfast.streams import Rekey, Tumbling, Windowed, final


class Look(msgspec.Struct, frozen=True):
    """A page that was looked at."""

    page: str
    at_ms: int


def held(prefix: str) -> list[Processor[Any, Any]]:
    """Return the windows of an application."""
    return behind_step(prefix)[1:]


def behind_step(prefix: str) -> list[Processor[Any, Any]]:
    """Return the windows with the step before them, which no worker runs."""
    looks = Source(f"{prefix}-looks", Json(Look), time=lambda look: look.at_ms)
    by_page = Rekey(name=f"{prefix}-by", source=looks, by=lambda look: look.page)
    hours = Windowed(
        name="hours",
        source=by_page,
        by=lambda look: look.page,
        window=Tumbling("1h", grace="5m"),
        fold=lambda seen, look: (seen or 0) + 1,
        row=int,
        emit=final(f"{prefix}-hours"),
    )
    return [by_page, hours]


processors = held(os.environ["HELD_PREFIX"]) if "HELD_PREFIX" in os.environ else []

if __name__ == "__main__":
    create_app(processors).main()
