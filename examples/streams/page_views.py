"""Views of each page by the hour, emitted once an hour is over; those that come too late go to a topic."""

from __future__ import annotations

import msgspec

from holdfast import create_app
from holdfast.streams import Tumbling, Windowed, final


class View(msgspec.Struct, frozen=True):
    """The value of a record of `views`, keyed by page: {"page": "home", "at_ms": 1}."""

    page: str
    at_ms: int


hourly = Windowed(
    name="hourly",
    source="views",
    decode=msgspec.json.Decoder(View).decode,
    by=lambda view: view.page,
    time=lambda view: view.at_ms,
    window=Tumbling("1h", grace="10m"),
    fold=lambda seen, view: (seen or 0) + 1,
    row=int,
    emit=final("hourly-views"),
    late="late-views",
    idle="1m",
)
app = create_app(processors=[hourly])
