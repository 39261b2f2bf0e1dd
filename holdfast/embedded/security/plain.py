"""SASL/PLAIN (RFC 4616), with the words of Kafka's PlainSaslServer."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.embedded.security.digests import are_same
from holdfast.embedded.security.sasl import SaslRefusal

PLAIN = "PLAIN"
_FAILED = "Authentication failed: "


class PlainExchange:
    """Takes one token: authorization id, user and password."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = passwords
        self.user: str | None = None

    def take(self, token: bytes) -> bytes:
        parts = token.decode(errors="replace").split("\0", 3)
        if len(parts) != 3:
            raise SaslRefusal(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
        acts_as, user, password = parts
        if not user:
            raise SaslRefusal(f"{_FAILED}username not specified")
        if not password:
            raise SaslRefusal(f"{_FAILED}password not specified")
        expected = self._passwords.get(user)
        if expected is None or not are_same(expected.encode(), password.encode()):
            raise SaslRefusal(f"{_FAILED}Invalid username or password")
        if acts_as not in ("", user):
            raise SaslRefusal(
                f"{_FAILED}Client requested an authorization id that is different from username"
            )
        self.user = user
        return b""
