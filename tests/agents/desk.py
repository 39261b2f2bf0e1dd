"""An application of its own that asks another one's tables: `python -P -m tests.agents.desk worker`.

Its ordinary Faust agent takes requests, writes claims frames for the claims application, asks that
application's tables for their state, and writes the answers to a topic. A processor next to it counts the
answers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal

import msgspec

from holdfast.agents.app import App, create_app
from holdfast.agents.services.rationalizer import processors
from holdfast.clients.tables.client import Answer, TableClient
from holdfast.config import Settings
from holdfast.core.claims.claim_keys import parse_claim_key
from holdfast.core.claims.claim_rows import Claim, GuardedRow
from holdfast.core.claims.frames import Heartbeat, coordination_partition, encode
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.state.rows import Rows
from holdfast.errors import HoldfastError
from tests.support.patience import DEADLINE_S


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request: heartbeat writes a frame and reads it back, get only reads, scan lists the keys with a
    prefix.
    """

    id: str
    verb: Literal["heartbeat", "get", "scan"]
    key: str
    client_id: str = ""
    time_s: int = 0
    offset: int = 0
    at_least: tuple[int, int] | None = None
    timeout_s: float = DEADLINE_S
    staleness_ms: int | None = None
    version: int = 1
    application: str = ""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to the agent, or the error it met; *written* is where its own frame lies."""

    id: str
    verb: str
    error: str = ""
    message: str = ""
    written: tuple[int, int] | None = None
    client_id: str = ""
    offset: int | None = None
    partition: int = -1
    as_of_offset: int = -1
    role: str = ""
    keys: tuple[str, ...] = ()


class Tally(msgspec.Struct, frozen=True, array_like=True):
    """The number of answers of a kind."""

    answers: int = 0


decode_request = msgspec.json.Decoder(Request).decode
decode_reply = msgspec.json.Decoder(Reply).decode


def fold(rows: Rows[Tally], reply: Reply, at_ms: int) -> None:
    kind = reply.error or reply.verb
    rows[kind] = Tally((rows.get(kind) or Tally()).answers + 1)


def tallies(answers: str) -> Processor[Reply, Tally]:
    """Return the desk's own processor: answers by their error or verb."""
    return Processor(name="tallies", source=answers, decode=decode_reply, fold=fold, row=Tally)


def claims_settings(environment: Mapping[str, str], own: Settings, application: str = "") -> Settings:
    """Return the settings of the claims application as its clients need them."""
    return Settings(
        app=application or environment["DESK_ASKS"],
        coordination_topic=environment["DESK_COORDINATION"],
        kafka=own.kafka,
        web_token=environment.get("DESK_TOKEN"),
    )


class Desk:
    """Carries out requests."""

    def __init__(self, app: App, environment: Mapping[str, str]) -> None:
        self._app, self._environment = app, environment
        self._partitions = int(environment["DESK_PARTITIONS"])
        self.settings = claims_settings(environment, app.settings)
        self.claims: Processor[Any, GuardedRow] = processors(self.settings)[0]

    async def serve(self, tables: TableClient, request: Request) -> Reply:
        """Return the reply to *request*; whatever holdfast refuses is a reply too."""
        try:
            if request.version == self.claims.version and not request.application:
                return await self._serve(tables, request)
            other = claims_settings(self._environment, self._app.settings, request.application)
            async with TableClient(other, [_of_version(self.claims, request.version)]) as client:
                return await self._serve(client, request)
        except HoldfastError as error:
            return Reply(id=request.id, verb=request.verb, error=type(error).__name__, message=str(error))

    async def _serve(self, tables: TableClient, request: Request) -> Reply:
        if request.verb == "scan":
            keys = [
                answer.key
                async for answer in tables.scan(
                    self.claims.name, request.key, page_rows=7, timeout_s=request.timeout_s
                )
            ]
            return Reply(id=request.id, verb=request.verb, keys=tuple(keys))
        written = await self._write(request) if request.verb == "heartbeat" else None
        answer: Answer[Any] = await tables.get(
            self.claims.name,
            request.key,
            at_least=written or request.at_least,
            timeout_s=request.timeout_s,
            max_staleness=None
            if request.staleness_ms is None
            else timedelta(milliseconds=request.staleness_ms),
        )
        claim = answer.value if isinstance(answer.value, Claim) else None
        return Reply(
            id=request.id,
            verb=request.verb,
            written=written,
            client_id=claim.client_id if claim else "",
            offset=claim.current_offset if claim else None,
            partition=answer.partition,
            as_of_offset=answer.as_of_offset,
            role=answer.role,
        )

    async def _write(self, request: Request) -> tuple[int, int]:
        group, topic, number = parse_claim_key(request.key)
        frame = encode(
            Heartbeat(request.time_s, "i1", request.client_id, group, topic, number, request.offset)
        )
        partition = coordination_partition(topic, self._partitions)
        placed = await self._app.producer.send_and_wait(
            self.settings.coordination_topic, None, frame, partition, None, None
        )
        return placed.partition, placed.offset


def _of_version(processor: Processor[Any, Any], version: int) -> Processor[Any, Any]:
    return Processor(
        name=processor.name,
        source=processor.source,
        decode=processor.decode,
        fold=processor.fold,
        row=processor.row,
        version=version,
    )


def desk_app(environment: Mapping[str, str]) -> App:
    """Return the application; topics and whom to ask come from *environment*."""
    app = create_app([tallies(environment["DESK_ANSWERS"])])
    requests = app.topic(environment["DESK_REQUESTS"], key_serializer="raw", value_serializer="raw")
    answers = app.topic(environment["DESK_ANSWERS"], key_serializer="raw", value_serializer="raw")
    desk = Desk(app, environment)

    async def serve(stream: Any) -> None:
        async with TableClient(desk.settings, [desk.claims]) as tables:
            async for event in stream.noack().events():
                reply = await desk.serve(tables, decode_request(event.value))
                await (await answers.send(key=reply.id.encode(), value=msgspec.json.encode(reply)))
                event.ack()

    app.agent(requests, name="desk")(serve)
    return app


if __name__ == "__main__":
    desk_app(os.environ).main()
