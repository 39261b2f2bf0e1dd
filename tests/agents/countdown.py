"""An application whose processor folds what it emits itself: `python -P -m tests.agents.countdown worker`.

A number that is folded sends the next lower one round again, through an internal topic, down to 0. So a number n makes n + 1 records.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from holdfast.agents.app import create_app
from holdfast.core.engine.declared.processor import Emits, Processor
from holdfast.core.engine.declared.serdes import Json
from holdfast.core.engine.declared.sources import Source
from holdfast.core.engine.declared.streams import Internal
from holdfast.core.engine.state.rows import Rows
from tests.chaos.faults import let_gather


class Folded(msgspec.Struct, frozen=True, array_like=True):
    """How often a number was folded."""

    times: int = 0


class Countdown:
    """The fold, which knows where it sends what goes round."""

    def __init__(self, again: Internal[int]) -> None:
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


if "CHAOS_SOURCE" in os.environ:
    processors = [countdown(os.environ["CHAOS_SOURCE"], int(os.environ.get("COUNTDOWN_VERSION", "1")))]

if __name__ == "__main__":
    if "CHAOS_GATHER" in os.environ:
        let_gather()
    create_app(processors).main()
