"""A chain of three processors with a join, in a version of one's choice: `CHAIN_VERSION=2 python -P -m
tests.chaos.chained worker`.

Orders, `NUMBER CUSTOMER`, are re-keyed by customer, joined with the customer's last name, `CUSTOMER NAME`,
and counted and summed. The rows of each version have another meaning, so that a mix-up of versions shows.
`CHAIN_SLEEP_S` makes each order take that long.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any
from zlib import crc32

import msgspec

from holdfast.agents.app import create_app
from holdfast.core.engine.declared.partitioners import by_key
from holdfast.core.engine.declared.processor import Emit, Processor
from holdfast.core.engine.declared.serdes import Json, Text
from holdfast.core.engine.declared.sources import Source
from holdfast.core.engine.declared.streams import Internal, Stream
from holdfast.core.engine.state.rows import Rows


class Placed(msgspec.Struct, frozen=True, array_like=True):
    """An order on its way, and its customer's name when it was joined."""

    number: int
    customer: str
    name: str = ""


class Seen(msgspec.Struct, frozen=True):
    """Number of orders of a key."""

    orders: int = 0


class Met(msgspec.Struct, frozen=True):
    """Name of a customer, and a digest of all events that were joined, in order."""

    name: str = ""
    trail: int = 0


class Sum(msgspec.Struct, frozen=True):
    """Count of a customer's orders, the sum of their numbers times the version, and the name of the last."""

    version: int
    orders: int = 0
    total: int = 0
    name: str = ""


def chain(app: str, version: int = 1, sleep_s: float = 0.0) -> list[Processor[Any, Any]]:
    """Return the processors, the last of which emits to `{app}-out` in all versions."""
    keyed = Internal(f"{app}-keyed", Json(Placed), version=version)
    named = Internal(f"{app}-named", Json(Placed), version=version)
    out = Stream(f"{app}-out", Json(Sum))

    def key_anew(rows: Rows[Seen], order: str, at_ms: int) -> Iterator[Emit]:
        if sleep_s:
            time.sleep(sleep_s)
        number, _, customer = order.partition(" ")
        rows[customer] = Seen(rows.get(customer, Seen()).orders + version)
        yield keyed.emit(customer, Placed(int(number), customer))

    def rename(rows: Rows[Met], customer: str, at_ms: int) -> None:
        key, _, name = customer.partition(" ")
        before = rows.get(key, Met())
        rows[key] = Met(name, crc32(b"%d %s %d" % (before.trail, name.encode(), version)))

    def meet(rows: Rows[Met], order: Placed, at_ms: int) -> Iterator[Emit]:
        before = rows.get(order.customer, Met())
        rows[order.customer] = Met(before.name, crc32(b"%d %d %d" % (before.trail, order.number, version)))
        yield named.emit(order.customer, msgspec.structs.replace(order, name=before.name))

    def add(rows: Rows[Sum], order: Placed, at_ms: int) -> Iterator[Emit]:
        before = rows.get(order.customer, Sum(version))
        after = Sum(version, before.orders + 1, before.total + version * order.number, order.name)
        rows[order.customer] = after
        yield out.emit(order.customer, after)

    declared: dict[str, Any] = {"version": version, "route": by_key}
    return [
        Processor(
            name="keyed",
            source=f"{app}-orders",
            decode=bytes.decode,
            fold=key_anew,
            row=Seen,
            emits=(keyed,),
            version=version,
        ),
        Processor(
            name="met",
            on={Source(f"{app}-customers", Text()): rename, Source(keyed, Json(Placed)): meet},
            row=Met,
            emits=(named,),
            **declared,
        ),
        Processor(
            name="sums",
            source=named,
            decode=msgspec.json.Decoder(Placed).decode,
            fold=add,
            row=Sum,
            emits=(out,),
            **declared,
        ),
    ]


def from_environment() -> list[Processor[Any, Any]]:
    version, sleep_s = int(os.environ["CHAIN_VERSION"]), float(os.environ.get("CHAIN_SLEEP_S", "0"))
    return chain(os.environ["HOLDFAST_APP"], version, sleep_s)


if "CHAIN_VERSION" in os.environ:
    app = create_app(from_environment())

if __name__ == "__main__":
    app.main()
