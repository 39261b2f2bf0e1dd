"""The application that the console's tests show: `python -P -m tests.console.shop worker`."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from holdfast import Processor, Settings, by_key


class OrderTotal(msgspec.Struct, frozen=True):
    """What a customer has ordered."""

    count: int = 0


def fold(rows: Any, key: str, at_ms: int) -> None:
    rows[key] = OrderTotal((rows.get(key) or OrderTotal()).count + 1)


def totals(source: str = "orders") -> Processor[Any, OrderTotal]:
    return Processor(
        name="totals", source=source, decode=bytes.decode, fold=fold, row=OrderTotal, route=by_key
    )


def totals_of(settings: Settings) -> list[Processor[Any, OrderTotal]]:
    """Return the processors, as `holdfast -A tests.console.shop:totals_of` asks for them."""
    return [totals(os.environ.get("CONSOLE_SOURCE", "orders"))]


if __name__ == "__main__":
    from holdfast.agents.app import create_app

    create_app([totals(os.environ["CONSOLE_SOURCE"])]).main()
