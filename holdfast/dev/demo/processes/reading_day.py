"""`python -P -m holdfast.dev.demo.processes.reading_day worker`: an application of the demo that counts the
views of each page in each hour, downstream of a step that sends them on by page.

Each run of it has a name of its own, that of its application: it reads the same day, and shares nothing else.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.agents.app import create_app
from holdfast.config.settings import settings_from_environment
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.serdes import Json
from holdfast.core.engine.declared.sources import Source
from holdfast.core.engine.declared.streams import Stream
from holdfast.streams import Rekey, Tumbling, Windowed, WindowResult, final


class PageView(msgspec.Struct, frozen=True):
    """A look at a page, at a time in ms."""

    page: str
    at_ms: int


day = Source("day", Json(PageView), time=lambda view: view.at_ms)


def hours_of(run: str) -> Stream[WindowResult[int]]:
    """Return where a run of the application sends its final windows."""
    return Stream(f"{run}-hours", Json(WindowResult[int]))


def reading_day(run: str) -> list[Processor[Any, Any]]:
    """Return the step and the windows of a run of the application."""
    by_page = Rekey(name=f"{run}-by-page", source=day, by=lambda view: view.page)
    hours = Windowed(
        name=f"{run}-hours",
        source=by_page,
        by=lambda view: view.page,
        window=Tumbling("1h"),
        fold=lambda seen, view: (seen or 0) + 1,
        row=int,
        emit=final(hours_of(run)),
    )
    return [by_page, hours]


if __name__ == "__main__":
    create_app(reading_day(settings_from_environment().app)).main()
