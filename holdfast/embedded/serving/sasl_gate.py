"""The authentication of a connection before its requests are answered: Kafka's SaslServerAuthenticator."""

from __future__ import annotations

from enum import Enum, auto

from holdfast.embedded.apis.call import Fields
from holdfast.embedded.apis.handlers import API_VERSIONS
from holdfast.embedded.protocol.codes import KafkaCode
from holdfast.embedded.security.sasl import SaslExchange, SaslRefusal
from holdfast.embedded.security.users import SaslUsers

HANDSHAKE, AUTHENTICATE = "SaslHandshake", "SaslAuthenticate"
LIMIT_FRAME_BYTES = 524_288
"""Of a frame that comes before its sender is known (``sasl.server.max.receive.size``)."""
FIRST_WITH_HEADERS = 1
"""Of SaslHandshake: after an older one, tokens come as frames of their own, without a request around them."""


class GateState(Enum):
    """The message that is expected next."""

    VERSIONS_OR_HANDSHAKE = auto()
    HANDSHAKE = auto()
    TOKEN_REQUEST = auto()
    BARE_TOKEN = auto()
    PASSED = auto()
    CLOSED = auto()


class SaslGate:
    """One connection's way in, for *lifetime_ms* (0: for ever). *principal* is None until it has shown who it
    is.

    The gate *before* is that by which the connection came in, where it logs in again: as the same, by the
    same mechanism.
    """

    def __init__(self, users: SaslUsers, *, lifetime_ms: int = 0, before: SaslGate | None = None) -> None:
        self._users, self._lifetime_ms, self._before = users, lifetime_ms, before
        self._exchange: SaslExchange | None = None
        self.mechanism = ""
        self.state = GateState.VERSIONS_OR_HANDSHAKE if before is None else GateState.HANDSHAKE

    @property
    def principal(self) -> str | None:
        return (
            None
            if self.state is not GateState.PASSED or self._exchange is None
            else f"User:{self._exchange.user}"
        )

    def expects(self, api: str) -> bool:
        """Return whether a request of *api* may come now; any other one ends the connection."""
        match self.state:
            case GateState.VERSIONS_OR_HANDSHAKE:
                return api in (API_VERSIONS, HANDSHAKE)
            case GateState.HANDSHAKE:
                return api == HANDSHAKE
            case GateState.TOKEN_REQUEST:
                return api == AUTHENTICATE
        return False

    def told_versions(self) -> None:
        """Take note that the client has the list of versions: it may not ask again."""
        self.state = GateState.HANDSHAKE

    def handshake(self, mechanism: str, version: int) -> Fields:
        """Answer SaslHandshake; SaslRefusal if a client that logs in again names an unknown mechanism."""
        known = mechanism in self._users.mechanisms
        if self._before is not None and not known:
            raise SaslRefusal
        code = KafkaCode.NONE if known else KafkaCode.UNSUPPORTED_SASL_MECHANISM
        if known:
            self._exchange, self.mechanism = self._users.begin(mechanism), mechanism
            headers = version >= FIRST_WITH_HEADERS
            self.state = GateState.TOKEN_REQUEST if headers else GateState.BARE_TOKEN
        else:
            self.state = GateState.CLOSED
        return {"error_code": code, "mechanisms": list(self._users.mechanisms)}

    def authenticate(self, token: bytes) -> Fields:
        """Answer SaslAuthenticate; SaslRefusal if a client logs in again by another mechanism than before."""
        self._check_mechanism()  # before there is an answer
        try:
            answer = self.take(token)
            lifetime_ms = self._lifetime_ms if self.state is GateState.PASSED else 0
            return {"error_code": KafkaCode.NONE, "auth_bytes": answer, "session_lifetime_ms": lifetime_ms}
        except SaslRefusal as refusal:
            text = refusal.text or (
                "Authentication failed during authentication due to invalid credentials with SASL mechanism"
                f" {self.mechanism}"
            )
            return {"error_code": KafkaCode.SASL_AUTHENTICATION_FAILED, "error_message": text}

    def take(self, token: bytes) -> bytes:
        """Return the answer to a token; SaslRefusal, after which the gate is closed, for a wrong one."""
        assert self._exchange is not None
        self._check_mechanism()
        try:
            answer = self._exchange.take(token)
            self._check_user(self._exchange.user)
        except SaslRefusal:
            self.state = GateState.CLOSED
            raise
        if self._exchange.user is not None:
            self.state = GateState.PASSED
        return answer

    def _check_mechanism(self) -> None:
        if self._before is not None and self._before.mechanism != self.mechanism:
            raise SaslRefusal

    def _check_user(self, user: str | None) -> None:
        before = None if self._before is None else (self._before.principal or "").removeprefix("User:")
        if None not in (before, user) and before != user:
            raise SaslRefusal(
                f"Cannot change principals during re-authentication from User.{before}: User.{user}"
            )
