"""An application with an ordinary Faust agent next to the counting processors:
`python -P -m tests.agents.jobs worker`.

The agent does jobs: it notes each in a topic, with the run of this process (`JOBS_RUN`), and acks it. The job
`keep` is noted and kept in hand as long as the process lives, unless `JOBS_ACK_ALL` is set.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.agents.app import App, create_app
from tests.chaos.counting import processors
from tests.chaos.faults import let_gather

KEEP = b"keep"


class Done(msgspec.Struct, frozen=True, array_like=True):
    """One delivery of a job."""

    run: str
    partition: int
    offset: int


def jobs_app(environment: Mapping[str, str]) -> App:
    """Return the application; its topics come from *environment*."""
    app = create_app(processors(environment["CHAOS_SOURCE"], environment["CHAOS_OUT"]))
    jobs = app.topic(environment["JOBS"], key_serializer="raw", value_serializer="raw")
    done = app.topic(environment["JOBS_DONE"], key_serializer="raw", value_serializer="raw")
    run, ack_all = environment["JOBS_RUN"], "JOBS_ACK_ALL" in environment

    kept: list[Any] = []

    async def work(stream: Any) -> None:
        async for event in stream.noack().events():
            message = event.message
            note = msgspec.json.encode(Done(run, message.partition, message.offset))
            await (await done.send(key=b"%d" % message.partition, value=note))
            if ack_all or event.value != KEEP:
                event.ack()
            else:
                kept.append(event)

    app.agent(jobs, name="work")(work)
    return app


if __name__ == "__main__":
    if "CHAOS_GATHER" in os.environ:
        let_gather()
    jobs_app(os.environ).main()
