"""Advertisements that were clicked within ten seconds: two streams joined within an interval."""

from __future__ import annotations

import msgspec

from holdfast import Json, Source, Stream, create_app
from holdfast.streams import JoinWithin


class Impression(msgspec.Struct, frozen=True):
    """The value of a record of `impressions`, keyed by advertisement and user: {"page": "home", "at_ms":
    1}.
    """

    page: str
    at_ms: int


class Click(msgspec.Struct, frozen=True):
    """The value of a record of `clicks`, keyed as the impressions are."""

    at_ms: int


class Outcome(msgspec.Struct, frozen=True):
    """The value of a record of `outcomes`; *after_ms* is None without a click."""

    page: str
    after_ms: int | None


def outcome(impression: Impression, click: Click | None) -> Outcome:
    return Outcome(impression.page, None if click is None else click.at_ms - impression.at_ms)


impressions = Source("impressions", Json(Impression), time=lambda impression: impression.at_ms)
clicks = Source("clicks", Json(Click), time=lambda click: click.at_ms)
outcomes = Stream("outcomes", Json(Outcome))
pairs = JoinWithin(
    name="outcomes",
    left=impressions,
    right=clicks,
    join=outcome,
    to=outcomes,
    after="10s",
    grace="5s",
    how="left",
    idle="30s",
)
app = create_app(processors=[pairs])
