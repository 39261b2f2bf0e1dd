"""The application that the console's tests show: `python -P -m tests.console.shop worker`."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from holdfast import Emit, FoldWith, Global, Json, Processor, Settings, Source, Text, by_key


class OrderTotal(msgspec.Struct, frozen=True):
    """The orders of a customer."""

    count: int = 0


def fold(rows: Any, key: str, at_ms: int) -> None:
    rows[key] = OrderTotal((rows.get(key) or OrderTotal()).count + 1)


def totals(source: str = "orders") -> Processor[Any, OrderTotal]:
    return Processor(
        name="totals", source=source, decode=bytes.decode, fold=fold, row=OrderTotal, route=by_key
    )


def fold_rate(rows: Any, rate: float, at_ms: int, currency: str) -> None:
    rows[currency] = rate


def rated_totals(source: str) -> Processor[Any, OrderTotal]:
    """Return `totals` with arrows of every kind: it reads a global table of SOURCE-rates, and emits each key
    to SOURCE-counted.
    """
    rates: Global[float] = Global(
        "rates", Source(f"{source}-rates", Json(float)), FoldWith(fold_rate, ("key",)), row=float
    )
    counted = f"{source}-counted"

    def fold_and_tell(rows: Any, key: str, at_ms: int) -> list[Emit]:
        fold(rows, key, at_ms)
        return [Emit(counted, key, b"1")]

    return Processor(
        name="totals",
        on={Source(source, Text()): fold_and_tell},
        row=OrderTotal,
        route=by_key,
        emits=(counted,),
        reads=(rates,),
    )


def totals_of(settings: Settings) -> list[Processor[Any, OrderTotal]]:
    """Return the processors, as `holdfast -A tests.console.shop:totals_of` asks for them."""
    declared = rated_totals if os.environ.get("CONSOLE_RATED") else totals
    return [declared(os.environ.get("CONSOLE_SOURCE", "orders"))]


if __name__ == "__main__":
    from holdfast.agents.app import create_app

    create_app(totals_of(Settings())).main()
