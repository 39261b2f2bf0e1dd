"""An application whose code does not return where `HANG` says: `python -P -m tests.agents.hanging_shop
worker`.
"""

from __future__ import annotations

import os
import re
import time
from typing import Any

from holdfast.agents.app import create_app
from holdfast.core.engine.declared.global_tables import Global
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.serdes import Text
from holdfast.core.engine.declared.sources import Source
from holdfast.core.engine.state.rows import Rows
from holdfast.core.streams.steps import Rekey

HANG, PLACE = os.environ.get("HANG", ""), os.environ.get("HANG_AT", "fold")
ORDERS, CUSTOMERS = "orders", "customers"


def hang() -> None:
    """Never return, in the way that `HANG` names."""
    if HANG == "loop":
        while True:
            pass
    if HANG == "sleep":
        time.sleep(1e6)
    if HANG == "lock":
        re.match(r"(a+)+$", "a" * 60 + "!")


def at(place: str, event: str) -> None:
    if place == PLACE and event == "hang":
        hang()


def decode(value: bytes) -> str:
    event = value.decode()
    at("decode", event)
    return event


def count(rows: Rows[int], event: str, at_ms: int) -> None:
    at("fold", event)
    if event == "timer":
        rows.wake_at("hang", at_ms + 1)
    rows[event] = (rows.get(event) or 0) + 1


def wake(rows: Rows[int], key: str, at_ms: int) -> None:
    at("timer", key)


def rate(rows: Rows[int], event: str, at_ms: int) -> None:
    at("global", event)
    rows[event] = at_ms


def time_of(event: str) -> int:
    at("time", event)
    return 0


def key_of(event: str) -> str:
    at("key", event)
    return event


RATES = Global("rates", Source(ORDERS, Text()), rate, row=int)


def processors() -> list[Processor[Any, Any]]:
    """Return a table of one source, one of two sources, or one that reads a global."""
    if PLACE == "merged":
        on = {Source(ORDERS, Text()): merge, Source(CUSTOMERS, Text()): merge}
        return [Processor(name="both", on=on, row=int)]
    if PLACE == "time":
        on = {Source(CUSTOMERS, Text(), time=time_of): merge, Source(ORDERS, Text(), time=time_of): merge}
        return [Processor(name="both", on=on, row=int)]
    if PLACE == "key":
        return [Rekey(name="both", source=Source(ORDERS, Text()), by=key_of)]
    if PLACE == "global":
        on = {Source(CUSTOMERS, Text()): merge}
        return [Processor(name="both", on=on, row=int, reads=(RATES,))]
    return [Processor(name="totals", source=ORDERS, decode=decode, fold=count, row=int, on_wake=wake)]


def merge(rows: Rows[int], event: str, at_ms: int) -> None:
    at("merged", event)
    rows[event] = (rows.get(event) or 0) + 1


if __name__ == "__main__":
    create_app(processors=processors()).main()
