"""An application whose orders an ordinary agent hears: `python -P -m tests.agents.faust.reading_shop worker`.

The agent sends on what it hears, so that what it reads shows.
"""

from __future__ import annotations

from typing import Any

from holdfast.agents.app import App, create_app

ORDERS, HEARD = "orders", "heard"


def make_app() -> App:
    """Return the application, with its agent."""
    app = create_app(processors=[])
    heard = app.topic(HEARD, value_serializer="raw")

    @app.agent(app.topic(ORDERS, value_serializer="raw"))
    async def listen(orders: Any) -> None:
        async for order in orders:
            await heard.send(value=order)

    return app


if __name__ == "__main__":  # what looks for doctests imports this too
    make_app().main()
