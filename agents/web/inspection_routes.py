"""The web port's answers to `holdfast verify --store`: the digest of a partition that this worker serves, and
its rows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from holdfast.agents.serving import Replica, ReplicaState
from holdfast.agents.web.inspections import Inspections
from holdfast.agents.web.reaching import by_source
from holdfast.agents.web.replies import QueryTerms, inspect_of, respond, stored_of, terms_of, wants_msgpack
from holdfast.core.engine.query_wire import InspectReply, StoredReply, readable_bytes

WAIT_S = 1.0
"""The time that a request waits for a digest before the client has to ask again."""

Find = Callable[[web.Request, QueryTerms], Awaitable[Replica]]


class InspectionPages:
    """Handlers of `digest` and `stored`, guarded and found as any query of the partition is."""

    def __init__(self, find: Find) -> None:
        self._find, self._inspections = find, Inspections()

    async def digest(self, request: web.Request) -> web.Response:
        asked = await inspect_of(request)
        replica = await self._find(request, terms_of(request.query))
        state, found = await self._inspections.digest(replica, asked.inspection, WAIT_S)
        reply = InspectReply(
            **_about(replica, state),
            inspection=asked.inspection,
            changelog_next=state.changelog_next,
            digest=found.digest,
            rows=found.rows,
            timers=found.timers,
            position=state.position,
        )
        return respond(request, reply)

    async def stored(self, request: web.Request) -> web.Response:
        asked = await stored_of(request)
        replica = await self._find(request, terms_of(request.query))
        state, rows, ended = self._inspections.stored(replica, asked.inspection, asked.after, asked.limit)
        after = None if ended else rows[-1][0]
        if wants_msgpack(request):
            return respond(request, StoredReply(**_about(replica, state), rows=rows, after=after))
        shown = [[readable_bytes(key), readable_bytes(value)] for key, value in rows]
        return respond(
            request,
            {
                **_about(replica, state),
                "rows": shown,
                "after": None if after is None else readable_bytes(after),
            },
        )

    async def close(self, application: web.Application) -> None:
        self._inspections.close()


def _about(replica: Replica, state: ReplicaState) -> dict[str, Any]:
    return {
        "table": replica.processor.name,
        "version": replica.processor.version,
        "partition": replica.partition,
        "role": "active" if replica.active else "standby",
        "as_of_offset": state.applied,
        **by_source("as_of", replica.processor, state.offsets),
        "stream_ms": state.stream_ms,
    }
