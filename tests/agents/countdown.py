"""An application whose processor folds what it emits itself: `python -P -m tests.agents.countdown worker`.

A number that is folded sends the next lower one round again, through an internal topic, down to 0. So a
number n makes n + 1 records. With `COUNTDOWN_ECHO` it goes round through plain topics and another processor,
and a next version emits from where the one before ended.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from holdfast.agents.app import create_app
from holdfast.core.engine.declared.processor import Emits, Processor
from holdfast.core.engine.declared.serdes import Json
from holdfast.core.engine.declared.sources import Source
from holdfast.core.engine.declared.streams import Internal, Stream
from holdfast.core.engine.state.rows import Rows
from tests.chaos.faults import let_gather


class Folded(msgspec.Struct, frozen=True, array_like=True):
    """The number of times that a number was folded."""

    times: int = 0


class Countdown:
    """The fold, which knows where it sends what goes round."""

    def __init__(self, again: Stream[int]) -> None:
        self._again = again

    def __call__(self, rows: Rows[Folded], number: int, at_ms: int) -> Emits:
        key = str(number)
        rows[key] = Folded(rows.get(key, Folded()).times + 1)
        return [self._again.emit(key, number - 1)] if number else []


def countdown(numbers: str, version: int = 1) -> Processor[Any, Folded]:
    """Return the processor of topic *numbers*."""
    again = Internal(f"{numbers}-again", Json(int), version=version)
    fold = Countdown(again)
    on = {Source(numbers, Json(int)): fold, Source(again, Json(int)): fold}
    return Processor(name="countdown", on=on, row=Folded, emits=(again,), version=version)


def echoed(numbers: str, version: int = 1) -> list[Processor[Any, Folded]]:
    """Return the processor of topic *numbers*, and the one that sends back what it emits."""
    there, back = Stream(f"{numbers}-there", Json(int)), Stream(f"{numbers}-back", Json(int))
    fold = Countdown(there)

    def echo(rows: Rows[Folded], number: int, at_ms: int) -> Emits:
        key = str(number)
        rows[key] = Folded(rows.get(key, Folded()).times + 1)
        return [back.emit(key, number)]

    down: Processor[Any, Folded] = Processor(
        name="countdown",
        on={Source(numbers, Json(int)): fold, Source(back, Json(int)): fold},
        row=Folded,
        emits=(there,),
        version=version,
        emits_from="beginning" if version == 1 else "handover",
    )
    return [
        down,
        Processor(name="echo", on={Source(there, Json(int)): echo}, row=Folded, emits=(back,)),
    ]


def declared(numbers: str, version: int = 1, *, echo: bool) -> list[Processor[Any, Folded]]:
    """Return the processors, of which the first counts down in *version*."""
    return echoed(numbers, version) if echo else [countdown(numbers, version)]


if "CHAOS_SOURCE" in os.environ:
    processors = declared(
        os.environ["CHAOS_SOURCE"],
        int(os.environ.get("COUNTDOWN_VERSION", "1")),
        echo="COUNTDOWN_ECHO" in os.environ,
    )

if __name__ == "__main__":
    if "CHAOS_GATHER" in os.environ:
        let_gather()
    create_app(processors).main()
