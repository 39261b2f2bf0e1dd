"""The worker of `bench.days`: holdfast's own. BENCH_WORK=rekeyed|apart|woven BENCH_IN=T[,T] python -P -m
bench.days_worker worker -l warn
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from holdfast import Json, Source, Stream
from holdfast.agents.app import create_app
from holdfast.config import Settings, settings_from_environment
from holdfast.core.engine.declared.processor import Processor
from holdfast.streams import JoinWithin, Rekey, Tumbling, Windowed, final


class Look(msgspec.Struct, frozen=True, gc=False):
    page: str
    at: int
    id: int


def page_of(look: Look) -> str:
    return look.page


def at_of(look: Look) -> int:
    return look.at


def add(counted: int | None, look: Look) -> int:
    return 1 if counted is None else counted + 1


def pair(left: Look, right: Look) -> tuple[Look, Look]:
    return left, right


def out_of(settings: Settings) -> str:
    """Return the topic that a worker of these settings sends to."""
    return f"{settings.app}-out"


def declared(work: str, settings: Settings, topics: list[str]) -> list[Processor[Any, Any]]:
    """Return what a worker folds its topics with."""
    sources = [Source(topic, Json(Look), time=at_of) for topic in topics]
    out = out_of(settings)
    if work != "rekeyed":
        left, right = sources
        to: Stream[Any] = Stream(out, Json(tuple[Look, Look]))
        near = {"before": "10s", "after": "10s", "grace": "5m"}
        return [JoinWithin(name="pairs", left=left, right=right, join=pair, to=to, **near)]  # type: ignore[call-overload]
    by_page = Rekey(name=f"{settings.app}-by", source=sources[0], by=page_of)
    hours = Windowed(
        name="hours",
        source=by_page,
        by=page_of,
        window=Tumbling("1h"),
        fold=add,
        row=int,
        emit=final(out),
        retention=0,
    )
    return [by_page, hours]


if __name__ == "__main__":
    found = settings_from_environment()
    create_app(declared(os.environ["BENCH_WORK"], found, os.environ["BENCH_IN"].split(",")), found).main()
