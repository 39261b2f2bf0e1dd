"""The worker of `bench.windows_live`: holdfast's own, with the clock of `bench.worker`.

BENCH_FOLD=tumbling|sessions|interval BENCH_RECORDS=N BENCH_IN=T[,T] python -P -m bench.windows_worker worker
-l warn
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from bench.worker import FOLD, measure
from holdfast import Json, Source, Stream
from holdfast.agents.app import create_app
from holdfast.config import Settings, settings_from_environment
from holdfast.core.engine.declared.processor import Processor
from holdfast.streams import JoinWithin, Session, Tumbling, Windowed, final


class View(msgspec.Struct, frozen=True, gc=False):
    page: str
    at: int


def page_of(view: View) -> str:
    return view.page


def at_of(view: View) -> int:
    return view.at


def add(counted: int | None, view: View) -> int:
    return 1 if counted is None else counted + 1


def pair(left: View, right: View) -> tuple[View, View]:
    return left, right


def out_of(settings: Settings) -> str:
    """Return the topic that a worker of these settings sends to."""
    return f"{settings.app}-out"


def declared(fold: str, settings: Settings, sources: list[str]) -> list[Processor[Any, Any]]:
    """Return what a worker folds its topics with."""
    out = out_of(settings)
    if fold == "interval":
        left, right = (Source(topic, Json(View), time=at_of) for topic in sources)
        to: Stream[Any] = Stream(out, Json(tuple[View, View]))
        return [JoinWithin(name="pairs", left=left, right=right, join=pair, to=to, after="10s", grace="5m")]
    tumbling = fold == "tumbling"
    return [
        Windowed(
            name="windows",
            source=sources[0],
            decode=msgspec.json.Decoder(View).decode,
            by=page_of,
            time=at_of,
            window=Tumbling("1h", grace="5m") if tumbling else Session("10m", grace="5m"),
            fold=add,
            merge=None if tumbling else int.__add__,
            row=int,
            emit=final(out),
            retention=0,
        )
    ]


if __name__ == "__main__":
    measure()
    found = settings_from_environment()
    create_app(declared(FOLD, found, os.environ["BENCH_IN"].split(",")), found).main()
