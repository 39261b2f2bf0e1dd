"""One client's connection: requests are answered one after the other, in the order in which they came."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable
from functools import partial
from typing import NamedTuple

from holdfast.core.kafka.wire import WireReader, WireReason
from holdfast.embedded.apis.call import Call, Fields
from holdfast.embedded.apis.handlers import API_VERSIONS, HANDLERS, offered, unknown_version
from holdfast.embedded.cluster import EmbeddedCluster
from holdfast.embedded.faults import Fault, FaultKind
from holdfast.embedded.protocol.codec import decode, encode, is_flexible
from holdfast.errors import WireError

logger = logging.getLogger(__name__)

SIZE_BYTES = 4
LIMIT_WAITING = 100
"""Frames of one connection that wait for those before them; with more it is not read from."""
_OFFERED = {key: (name, versions) for key, name, versions in offered()}


class _Asked(NamedTuple):
    """A request whose header has been read."""

    api: str
    version: int
    correlation_id: int
    call: Call
    known: bool = True
    """Whether the version is one of ours: a client that asks in a newer one is told which there are."""


class KafkaConnection(asyncio.Protocol):
    """Frames in, frames out. What is not a request of Kafka's protocol closes it."""

    def __init__(self, cluster: EmbeddedCluster, node_id: int, connections: set[KafkaConnection]) -> None:
        self._cluster, self._node_id, self._connections = cluster, node_id, connections
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._frames: deque[bytes] = deque()
        self._task: asyncio.Task[None] | None = None
        self._may_write = True
        self._delays: asyncio.Task[None] | None = None
        """Set while an answer is late by a fault."""
        self._held: bytearray | None = None
        """An answer that a fault sends behind the next one."""
        self._undurable = 0
        """Answers that wait for the disk."""

    # -- of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._transport = None
        self._frames.clear()
        for each in (self._task, self._delays):
            if each is not None:
                each.cancel()

    def pause_writing(self) -> None:
        self._may_write = False

    def resume_writing(self) -> None:
        self._may_write = True
        self._work()

    def data_received(self, data: bytes) -> None:
        self._received += data
        at, received = 0, self._received
        while len(received) - at >= SIZE_BYTES:
            size = int.from_bytes(received[at : at + SIZE_BYTES], "big", signed=True)
            if not 0 <= size <= self._cluster.settings.request_max_bytes:
                logger.warning("a frame of %(size)d bytes: the connection is closed", {"size": size})
                return self.close()
            end = at + SIZE_BYTES + size
            if end > len(received):
                break
            self._frames.append(bytes(received[at + SIZE_BYTES : end]))
            at = end
        del received[:at]
        if len(self._frames) > LIMIT_WAITING and self._transport is not None:
            self._transport.pause_reading()
        return self._work()

    def close(self) -> None:
        """Close it, whatever waits."""
        if self._transport is not None:
            self._transport.abort()

    # -- requests

    @property
    def _is_free(self) -> bool:
        """Whether the next request may be answered."""
        has_room = self._undurable < LIMIT_WAITING
        return self._task is None and self._may_write and self._delays is None and has_room

    def _work(self) -> None:
        """Answer what has come, until an answer must wait."""
        while self._frames and self._is_free and self._transport is not None:
            frame = self._frames.popleft()
            if len(self._frames) == LIMIT_WAITING:
                self._transport.resume_reading()
            try:
                asked = self._read(frame)
                answer = HANDLERS[asked.api](asked.call) if asked.known else unknown_version()
            except WireError as error:
                logger.warning("not a request (%(error)s): the connection is closed", {"error": error})
                return self.close()
            except Exception:
                logger.exception("a request could not be answered: the connection is closed")
                return self.close()
            if isinstance(answer, Awaitable):
                self._task = asyncio.ensure_future(self._later(asked, answer))
            elif answer is not None:
                self._write(asked, answer)
        return None

    async def _later(self, asked: _Asked, answer: Awaitable[Fields | None]) -> None:
        try:
            fields = await answer
            if fields is not None:
                self._write(asked, fields)
        except Exception:
            logger.exception("%(api)s could not be answered: the connection is closed", {"api": asked.api})
            self.close()
        finally:
            self._task = None
        self._work()

    def _read(self, frame: bytes) -> _Asked:
        reader = WireReader(frame)
        api, version = reader.int16("api key"), reader.int16("api version")
        correlation_id = reader.int32("correlation id")
        client_id = reader.string("client id", nullable=True) or ""
        if api not in _OFFERED:
            raise reader.error(f"api {api} is not offered", WireReason.API, 0)
        name, versions = _OFFERED[api]
        call = Call(self._cluster, self._node_id, version, {}, client_id)
        if version not in versions:
            if name != API_VERSIONS:
                raise reader.error(f"{name} has no version {version}", WireReason.API, 2)
            return _Asked(API_VERSIONS, 0, correlation_id, call, known=False)
        if is_flexible(f"{name}Request", version):
            reader.tags("tagged fields")
        call.fields = decode(f"{name}Request", version, frame, reader.at)
        return _Asked(name, version, correlation_id, call)

    def _write(self, asked: _Asked, fields: Fields) -> None:
        if self._transport is None:
            return
        out = bytearray(SIZE_BYTES)
        out += asked.correlation_id.to_bytes(4, "big", signed=True)
        if asked.api != API_VERSIONS and is_flexible(f"{asked.api}Response", asked.version):
            out.append(0)
        encode(f"{asked.api}Response", asked.version, fields, out)
        out[:SIZE_BYTES] = (len(out) - SIZE_BYTES).to_bytes(SIZE_BYTES, "big")
        answers = self._cluster.answers
        if answers is not None and answers.hold(partial(self._now_durable, asked, out)):
            self._undurable += 1
        else:
            self._deliver(asked, out)

    def _now_durable(self, asked: _Asked, out: bytearray) -> None:
        self._undurable -= 1
        self._deliver(asked, out)
        self._work()

    def _deliver(self, asked: _Asked, out: bytearray) -> None:
        faults = self._cluster.faults
        fault = faults.next(asked.api, asked.call.client_id) if faults else None
        if fault is None:
            self._send(out)
        else:
            self._go_wrong(fault, out)

    def _send(self, out: bytearray) -> None:
        if self._transport is not None:
            self._transport.write(out)
            held, self._held = self._held, None
            if held is not None:
                self._transport.write(held)

    # -- faults

    def _go_wrong(self, fault: Fault, out: bytearray) -> None:
        match fault.kind:
            case FaultKind.DROP:
                pass
            case FaultKind.CUT:
                self.close()
            case FaultKind.REPEAT:
                self._send(out + out)
            case FaultKind.DELAY:
                self._delays = asyncio.ensure_future(self._delayed(fault, out))
            case FaultKind.REORDER:
                self._held = out
                loop = asyncio.get_running_loop()
                loop.call_later(fault.delay_ms / 1000, self._let_go, out)

    async def _delayed(self, fault: Fault, out: bytearray) -> None:
        await asyncio.sleep(fault.delay_ms / 1000)
        self._delays = None
        self._send(out)
        self._work()

    def _let_go(self, out: bytearray) -> None:
        if self._held is out:
            self._held = None
            self._send(out)
