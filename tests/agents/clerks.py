"""An application of Faust agents alone, with all that Faust makes topics for: `python -P -m
tests.agents.clerks worker`.

It counts the words of a topic, grouped again by themselves.
"""

from __future__ import annotations

import os
from typing import Any

from holdfast.agents.app import App, create_app


def clerks_app(source: str) -> App:
    app = create_app([], topic_partitions=1)
    counts: Any = app.Table("words", default=int, partitions=1)

    async def count(stream: Any) -> None:
        async for word in stream.group_by(lambda word: word, name="word", partitions=1):
            counts[word] += 1

    async def lead() -> None:
        """Do nothing, as the leader."""

    app.agent(app.topic(source, value_type=str, value_serializer="raw"), name="count")(count)
    app.timer(1.0, on_leader=True)(lead)
    return app


app = clerks_app(os.environ["CLERKS_SOURCE"]) if "CLERKS_SOURCE" in os.environ else None

if __name__ == "__main__":
    assert app is not None
    app.main()
