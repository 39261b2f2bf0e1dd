"""An application of Faust's own parts next to the counting processors: `python -P -m tests.agents.market
worker`.

It has what Faust's documents show: models, codecs, agents that group, go through topics and take many at
once, tables with and without windows, timers, crontabs, tasks, pages, and an agent on the processors' source.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Mapping
from typing import Any

import faust
from faust.web import Request, View

from holdfast.agents.app import App, create_app
from tests.chaos.counting import processors

PARTITIONS = 3
MINUTE_S = 60.0


class Bought(faust.Record, serializer="json"):
    """One order of the market."""

    customer: str
    cents: int


def market_app(environment: Mapping[str, str]) -> App:
    """Return the application; its topics come from *environment*."""
    app = create_app(
        processors(environment["CHAOS_SOURCE"], environment["CHAOS_OUT"]),
        topic_partitions=PARTITIONS,
        store=environment["MARKET_STORE"],
        table_cleanup_interval=1.0,
        reply_create_topic=True,
    )
    name = app.conf.id
    bought = app.topic(f"{name}-bought", value_type=Bought)
    _tables(app, bought)
    _buffers(app, bought)
    _times(app)

    @app.agent(value_type=int, value_serializer="json")
    async def double(numbers: Any) -> Any:
        async for number in numbers:
            yield 2 * number

    @app.page("/double/{number}/")
    async def ask(view: View, request: Request, number: str) -> Any:
        return view.json({number: await double.ask(int(number))})

    seen = app.Table("seen", default=int, help="records of the processors' source by partition")

    @app.agent(app.topic(environment["CHAOS_SOURCE"], value_serializer="raw"))
    async def watch(stream: Any) -> None:
        async for event in stream.events():
            if "MARKET_HOLD" in os.environ:
                await asyncio.Event().wait()
            seen[str(event.message.partition)] += 1

    @app.page("/seen/")
    async def show_seen(view: View, request: Request) -> Any:
        return view.json(dict(seen.items()))

    return app


def _tables(app: App, bought: Any) -> None:
    totals = app.Table("totals", default=int, help="cents of each customer")
    minutes = app.Table("minutes", default=int).tumbling(MINUTE_S, expires=MINUTE_S * 60, key_index=True)
    hops = app.Table("hops", default=int).hopping(
        MINUTE_S, MINUTE_S / 2, expires=MINUTE_S * 60, key_index=True
    )
    brief = app.Table("brief", default=int).tumbling(1.0, expires=2.0, key_index=True)

    @app.agent(bought)
    async def count(orders: Any) -> None:
        async for order in orders.group_by(Bought.customer):
            if order.customer == "crash" and "MARKET_CRASH" in os.environ:
                raise ValueError(f"no such customer: {order}")
            totals[order.customer] += order.cents
            minutes[order.customer] += 1
            hops[order.customer] += 1
            brief[order.customer] += 1

    @app.page("/totals/{customer}/")
    @app.table_route(table=totals, match_info="customer")
    async def total(view: View, request: Request, customer: str) -> Any:
        return view.json({customer: totals[customer]})

    @app.page("/totals/")
    async def all_totals(view: View, request: Request) -> Any:
        return view.json(dict(totals.items()))

    @app.page("/windows/")
    async def windows(view: View, request: Request) -> Any:
        found = {"minutes": minutes, "hops": hops, "brief": brief}
        return view.json(
            {name: [[*key, value] for key, value in each.table.items()] for name, each in found.items()}
        )

    @app.page("/echo/")
    class Echo(View):
        async def put(self, request: Request) -> Any:
            return self.json({"got": await request.json()})


def _buffers(app: App, bought: Any) -> None:
    baskets = app.topic(f"{app.conf.id}-baskets", value_serializer="json")
    packed = app.topic(f"{app.conf.id}-packed", key_serializer="raw", value_serializer="json|binary")
    basket_sizes, copied = [0], Counter[str]()

    @app.agent(bought)
    async def fill(orders: Any) -> Any:
        async for taken in orders.take(5, within=0.2):
            basket_sizes.append(len(taken))
            await baskets.send(value=[order.cents for order in taken])

    @app.agent(bought)
    async def copy(orders: Any) -> None:
        async for order in orders.through(f"{app.conf.id}-copies"):
            copied[order.customer] += 1
            # A model's own serializer would come before the topic's.
            await packed.send(key=order.customer.encode(), value=order.asdict())

    @app.page("/buffers/")
    async def buffers(view: View, request: Request) -> Any:
        return view.json({"baskets": max(basket_sizes), "taken": sum(basket_sizes), "copied": copied.total()})


def _times(app: App) -> None:
    rung = Counter[str]()

    @app.timer(0.1)
    async def often() -> None:
        rung["timer"] += 1

    @app.crontab("* * * * * */1", on_leader=True)
    async def daily() -> None:
        rung["crontab"] += 1

    @app.task
    async def once() -> None:
        rung["task"] += 1

    @app.page("/rung/")
    async def show(view: View, request: Request) -> Any:
        return view.json(rung)


if __name__ == "__main__":
    market_app(os.environ).main()
