"""One client's connection: requests are answered one after the other, in the order in which they came."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable
from functools import partial
from struct import Struct
from typing import NamedTuple

from holdfast.clock import system_clock
from holdfast.core.kafka.wire import WireReason
from holdfast.embedded.apis.call import Call, Fields, HangUp
from holdfast.embedded.apis.handlers import (
    API_VERSIONS,
    HANDLERS,
    api_versions,
    offered,
    unknown_version,
)
from holdfast.embedded.cluster import EmbeddedCluster
from holdfast.embedded.faults import Fault, FaultKind
from holdfast.embedded.protocol.codec import FieldReader, decode, encode, is_flexible
from holdfast.embedded.protocol.codes import KafkaCode
from holdfast.embedded.protocol.table import apis
from holdfast.embedded.security.distinguished_name import subject_of
from holdfast.embedded.security.sasl import SaslRefusal
from holdfast.embedded.security.tls import ANONYMOUS
from holdfast.embedded.serving.descriptors import is_crowded
from holdfast.embedded.serving.limits import (
    TURN_S,
    Connections,
    limit_bytes,
    limit_elements,
    sparing,
)
from holdfast.embedded.serving.sasl_gate import (
    AUTHENTICATE,
    HANDSHAKE,
    LIMIT_FRAME_BYTES,
    GateState,
    SaslGate,
)
from holdfast.errors import BrokerFolderError, WireError

logger = logging.getLogger(__name__)

SIZE_BYTES = 4
_HEADER, _API = Struct(">hhi"), Struct(">hh")
LIMIT_TAGS = 100
"""In the header of a request; Kafka knows none."""
LEAST_REAUTH_MS = 1_000
LEAST_HELD = 1 << 14
"""Bytes that wait on one connection before they count with those of other connections."""
LIMIT_WAITING, LIMIT_WAITING_BYTES = 100, 1 << 24
"""Frames of one connection that wait for those before them; with more it is not read from."""
_FIRST = {key: versions[0] for key, _, versions in apis()}
_OFFERED = {
    key: (name, range(max(_FIRST[key], versions[0]), versions[-1] + 1)) for key, name, versions in offered()
}
"""The apis that are answered: of Produce fewer versions than are listed."""


class _Asked(NamedTuple):
    """A request whose header has been read."""

    api: str
    version: int
    correlation_id: int
    call: Call
    known: bool = True
    """False if the version is newer than ours: its client gets the list of versions."""


class KafkaConnection(asyncio.Protocol):
    """Frames in, frames out. Anything but a request of Kafka's protocol closes it."""

    def __init__(self, cluster: EmbeddedCluster, node_id: int, others: Connections[KafkaConnection]) -> None:
        self._cluster, self._node_id, self._others = cluster, node_id, others
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._frames: deque[bytes] = deque()
        self._frames_bytes, self._may_read = 0, True
        self._is_sound = False
        """True if the known part of the next frame is that of a request: its size, api and version."""
        self._heard_s = system_clock.monotonic_s()
        self._counts = False
        """True if the frames waiting here count with those waiting elsewhere."""
        self._refused = 0
        """Bytes that are still to come of a frame that is not taken."""
        self._task: asyncio.Task[None] | None = None
        self._may_write = True
        self._delays: asyncio.Task[None] | None = None
        """Set while an answer is late by a fault."""
        self._behind: deque[tuple[_Asked, bytearray]] = deque()
        """Answers that follow it: they have waited for the disk."""
        self._gate = self._new_gate() if cluster.security.users else None
        """Set until the client has shown who it is, where it must."""
        self._passed: SaslGate | None = None
        """The gate by which it came in, where it must log in again; until when."""
        self._session_ends_ms = self._session_begun_ms = 0
        self._principal = ANONYMOUS
        self._held: bytearray | None = None
        """An answer that a fault sends after the next one."""
        self._undurable = 0
        """Answers that wait for the disk."""
        self._goes_on = False
        """True if it has asked for another turn."""

    # -- of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if is_crowded(transport.get_extra_info("socket").fileno()):
            sparing.warning("too many files are open: a connection is refused; raise the limit (ulimit -n)")
            return self.close()
        if not self._others.take(self._node_id, self):
            sparing.warning("a connection is refused: there are as many as max_connections allows")
            return self.close()
        secure = transport.get_extra_info("ssl_object")
        certificate = None if secure is None else secure.getpeercert(binary_form=True)
        if certificate is not None:
            self._principal = f"User:{subject_of(certificate)}"
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self._others.forget(self._node_id, self)
        self._transport = None
        self._frames.clear()
        self._received.clear()
        for each in (self._task, self._delays):
            if each is not None:
                each.cancel()

    def pause_writing(self) -> None:
        self._may_write = False
        if self._transport is not None:
            self._others.unsent.hold(self, self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._may_write = True
        self._others.unsent.hold(self, 0)
        self._work()

    def data_received(self, data: bytes) -> None:
        self._heard_s = system_clock.monotonic_s()
        if self._refused:
            return self._drop(len(data))
        if not self._received and self._is_one_frame(data):  # most come so, and are not copied twice
            self._frames.append(data[SIZE_BYTES:])
            self._frames_bytes += len(data) - SIZE_BYTES
            return self._work()
        self._received += data
        at, trouble = 0, None
        with memoryview(self._received) as received:
            while len(received) - at >= SIZE_BYTES:
                size = int.from_bytes(received[at : at + SIZE_BYTES], "big", signed=True)
                begun = bytes(received[at + SIZE_BYTES : at + SIZE_BYTES + _API.size])
                if not self._is_sound and (trouble := self._trouble(size, begun)) is not None:
                    text = "a frame of %(size)d bytes (%(trouble)s): the connection is closed"
                    sparing.warning(text, size=size, trouble=trouble)
                    self._refused = SIZE_BYTES + size if 0 <= size <= self._most else 0
                    break
                end = at + SIZE_BYTES + size
                if end > len(received):
                    break
                self._frames.append(bytes(received[at + SIZE_BYTES : end]))
                self._frames_bytes += size
                self._is_sound = False
                at = end
        if at:
            del self._received[:at]
        self._work()
        if trouble is not None:
            self._refuse()
        return None

    def _is_one_frame(self, data: bytes) -> bool:
        """Return whether *data* is one whole request, and one that is waited for."""
        size = len(data) - SIZE_BYTES
        if size < _API.size or int.from_bytes(data[:SIZE_BYTES], "big", signed=True) != size:
            return False
        whole = self._trouble(size, data[SIZE_BYTES : SIZE_BYTES + _API.size]) is None
        self._is_sound = False
        return whole

    def _refuse(self) -> None:
        """Close it for the frame that has begun: once its sender has sent it all, where any request may be so
        long, so that it finds the end rather than a reset. Nothing of it is kept.
        """
        come = len(self._received)
        self._received.clear()
        self._note_held()
        if self._refused:
            self._drop(come)
        else:
            self.close()

    def _drop(self, size: int) -> None:
        self._refused -= min(size, self._refused)
        if not self._refused:
            self._hang_up()

    @property
    def _most(self) -> int:
        """Return the size limit of any frame."""
        return self._cluster.settings.request_max_bytes if self._gate is None else LIMIT_FRAME_BYTES

    def _trouble(self, size: int, begun: bytes) -> str | None:
        """Return why a frame of *size* bytes that begins with *begun* is not waited for."""
        most = self._most
        if not 0 <= size <= most:
            return f"at most {most} may come"
        if self._gate is not None or len(begun) < _API.size:
            return None  # it is looked at when it is whole, or more of it has come
        api, version = _API.unpack(begun)
        if api not in _OFFERED:
            return f"api {api} is not offered"
        name, versions = _OFFERED[api]
        if version not in versions and name != API_VERSIONS:
            return f"{name} has no version {version}"
        most = limit_bytes(name, most)
        self._is_sound = size <= most
        return None if self._is_sound else f"{name} may have at most {most}"

    def _note_held(self) -> None:
        """Have what this connection has sent and was not answered count with that of all others, if it is
        much.
        """
        held = len(self._received) + self._frames_bytes
        if held >= LEAST_HELD or self._counts:
            self._counts = held >= LEAST_HELD
            self._others.queued.hold(self, held if self._counts else 0)

    def _read_on(self) -> None:
        """Read from the client, or let it wait while what it has asked is more than the limit."""
        may_read = len(self._frames) <= LIMIT_WAITING and self._frames_bytes <= LIMIT_WAITING_BYTES
        if self._transport is None or self._transport.is_closing() or may_read is self._may_read:
            return
        self._may_read = may_read
        (self._transport.resume_reading if may_read else self._transport.pause_reading)()

    def close(self) -> None:
        """Close it, whatever waits."""
        self._frames.clear()
        self._frames_bytes = 0
        if self._transport is not None:
            self._transport.abort()

    # -- requests

    @property
    def _is_free(self) -> bool:
        """Return whether the next request may be answered."""
        has_room = self._undurable < LIMIT_WAITING
        return self._task is None and self._may_write and self._delays is None and has_room

    @property
    def idle_since_s(self) -> float | None:
        """Since when nothing has come and nothing is due; None while an answer is."""
        waits = self._task is not None or self._delays is not None or self._undurable
        return None if waits else self._heard_s

    def _work(self) -> None:
        """Answer what has come, until an answer must wait, or others should have their turn."""
        self._answer_frames()
        self._note_held()
        self._read_on()

    def _answer_frames(self) -> None:
        if not self._frames:
            return None
        ends_s = system_clock.monotonic_s() + TURN_S
        while self._frames and self._is_free and self._transport is not None:
            frame = self._frames.popleft()
            self._frames_bytes -= len(frame)
            try:
                if self._gate is not None:
                    self._knock(self._gate, frame)
                    continue
                asked = self._read(frame)
                if self._passed is not None and self._must_log_in(self._passed, asked, frame):
                    continue
                answer = HANDLERS[asked.api](asked.call) if asked.known else unknown_version()
            except WireError as error:
                sparing.warning("not a request (%(error)s): the connection is closed", error=error)
                return self._hang_up()
            except SaslRefusal:
                return self.close()
            except HangUp as reason:
                logger.info("%(reason)s: the connection is closed", {"reason": reason})
                return self._hang_up()
            except BrokerFolderError:
                return self.close()  # the disk has reported it, and the broker stops
            except Exception:
                logger.exception("a request could not be answered: the connection is closed")
                return self.close()
            if isinstance(answer, Awaitable):
                self._task = asyncio.ensure_future(self._later(asked, answer))
            elif answer is not None:
                self._write(asked, answer)
            if self._frames and system_clock.monotonic_s() > ends_s:
                return self._ask_for_turn()
        return None

    def _ask_for_turn(self) -> None:
        if self._frames and not self._goes_on:
            self._goes_on = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._goes_on = False
        self._work()

    def _knock(self, gate: SaslGate, frame: bytes) -> None:
        """Answer a client that has not authenticated yet; SaslRefusal where no answer is due."""
        if gate.state is GateState.BARE_TOKEN:
            token = gate.take(frame)
            self._let_in(gate)
            self._send(bytearray(len(token).to_bytes(SIZE_BYTES, "big") + token))
        else:
            asked = self._read(frame)
            answer = self._answer_to_knock(gate, asked)
            self._let_in(gate)
            self._deliver(asked, _encoded(asked, answer))
        if gate.state is GateState.CLOSED:
            self._hang_up()

    def _let_in(self, gate: SaslGate) -> None:
        """Record the authenticated principal before sending the success response."""
        if gate.principal is not None:
            self._principal, self._gate = gate.principal, None
            if (lifetime_ms := self._cluster.security.reauth_ms) > 0:
                self._passed = gate
                self._session_ends_ms = self._cluster.steady_ms() + lifetime_ms

    def _new_gate(self, before: SaslGate | None = None) -> SaslGate:
        lifetime_ms = self._cluster.security.reauth_ms
        return SaslGate(self._cluster.users, lifetime_ms=lifetime_ms, before=before)

    def _must_log_in(self, passed: SaslGate, asked: _Asked, frame: bytes) -> bool:
        """Return whether *asked*, which is dealt with then, begins to log in again; SaslRefusal where that
        comes too late. It may once a second.
        """
        now_ms = self._cluster.steady_ms()
        begins = asked.api == HANDSHAKE and now_ms - self._session_begun_ms >= LEAST_REAUTH_MS
        if not begins and now_ms >= self._session_ends_ms:
            logger.info("a session that has ended is used: the connection is closed")
            raise SaslRefusal
        if begins:
            self._session_begun_ms = now_ms
            self._gate = self._new_gate(passed)
            self._knock(self._gate, frame)
        return begins

    @staticmethod
    def _answer_to_knock(gate: SaslGate, asked: _Asked) -> Fields:
        fields = asked.call.fields
        if asked.api == HANDSHAKE:
            return gate.handshake(fields["mechanism"], asked.version)
        if asked.api == AUTHENTICATE:
            return gate.authenticate(fields["auth_bytes"])
        if not asked.known:
            return unknown_version()
        answer = api_versions(asked.call)
        if answer["error_code"] == KafkaCode.NONE:
            gate.told_versions()
        return answer

    def _hang_up(self) -> None:
        """Close it once all written data are sent."""
        self._frames.clear()
        self._frames_bytes = 0
        if self._transport is not None:
            self._transport.close()

    async def _later(self, asked: _Asked, answer: Awaitable[Fields | None]) -> None:
        try:
            fields = await answer
            if fields is not None:
                self._write(asked, fields)
        except HangUp as reason:
            logger.info("%(reason)s: the connection is closed", {"reason": reason})
            self._hang_up()
        except BrokerFolderError:
            self.close()
        except Exception:
            logger.exception("%(api)s could not be answered: the connection is closed", {"api": asked.api})
            self.close()
        finally:
            self._task = None
        self._work()

    def _read(self, frame: bytes) -> _Asked:
        reader = FieldReader(frame, room=LIMIT_TAGS)
        api, version, correlation_id = reader.unpack(_HEADER, "api key, version and correlation id")
        client_id = reader.string("client id", nullable=True) or ""
        if api not in _OFFERED:
            raise reader.error(f"api {api} is not offered", WireReason.API, 0)
        name, versions = _OFFERED[api]
        if self._gate is not None and not self._gate.expects(name):
            raise reader.error(f"{name} from a client that has not shown who it is", WireReason.API, 0)
        call = Call(
            self._cluster,
            self._node_id,
            version,
            {},
            client_id,
            principal=self._principal,
            size=len(frame),
        )
        if version not in versions:
            if name != API_VERSIONS:
                raise reader.error(f"{name} has no version {version}", WireReason.API, 2)
            return _Asked(API_VERSIONS, 0, correlation_id, call, known=False)
        if is_flexible(f"{name}Request", version):
            reader.tags("tagged fields")
        call.fields = decode(f"{name}Request", version, frame, reader.at, limit_elements=limit_elements(name))
        return _Asked(name, version, correlation_id, call)

    def _write(self, asked: _Asked, fields: Fields) -> None:
        if self._transport is None:
            return
        out, answers = _encoded(asked, fields), self._cluster.answers
        if answers is not None and answers.hold(partial(self._now_durable, asked, out)):
            self._undurable += 1
        else:
            self._deliver(asked, out)

    def _now_durable(self, asked: _Asked, out: bytearray) -> None:
        self._undurable -= 1
        self._deliver(asked, out)
        self._work()

    def _deliver(self, asked: _Asked, out: bytearray) -> None:
        if self._delays is not None:
            self._behind.append((asked, out))
            return
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
        while self._behind and self._delays is None:
            self._deliver(*self._behind.popleft())
        self._work()

    def _let_go(self, out: bytearray) -> None:
        if self._held is out:
            self._held = None
            self._send(out)


def _encoded(asked: _Asked, fields: Fields) -> bytearray:
    """Return the frame that answers a request."""
    out = bytearray(SIZE_BYTES)
    out += asked.correlation_id.to_bytes(4, "big", signed=True)
    if asked.api != API_VERSIONS and is_flexible(f"{asked.api}Response", asked.version):
        out.append(0)
    encode(f"{asked.api}Response", asked.version, fields, out)
    out[:SIZE_BYTES] = (len(out) - SIZE_BYTES).to_bytes(SIZE_BYTES, "big")
    return out
