"""The base of all SASL mechanisms of the embedded broker."""

from __future__ import annotations

from typing import Protocol


class SaslRefusal(Exception):
    """A client that is not let in. *text* is sent to it; None where it would say too much."""

    def __init__(self, text: str | None = None) -> None:
        super().__init__(text or "invalid credentials")
        self.text = text


class SaslExchange(Protocol):
    """One client's exchange of tokens; *user* is its name once it is complete, None before."""

    user: str | None

    def take(self, token: bytes) -> bytes:
        """Return the answer to a client's token; SaslRefusal for one that is wrong."""
        ...
