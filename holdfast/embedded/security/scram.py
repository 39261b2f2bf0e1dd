"""SASL/SCRAM (RFC 5802), as Kafka's ScramSaslServer does it: no channel binding, names and passwords as
UTF-8.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from holdfast.embedded.security.digests import are_same, hashed, salted, signed
from holdfast.embedded.security.sasl import SaslRefusal

MECHANISMS: Mapping[str, str] = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""Each with the name of its hash."""
NUMBERS: Mapping[int, str] = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
"""As the protocol numbers them."""
LEAST_ITERATIONS, MOST_ITERATIONS = 4096, 16384
_SALT_BYTES = 18
_VALUE = r"[\x01-\x2b\x2d-\x7f]+"
_SASLNAME = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_PRINTABLE = r"[\x21-\x2b\x2d-\x7e]+"
_BASE64 = r"(?:[a-zA-Z0-9/+]{4})*(?:[a-zA-Z0-9/+]{3}=|[a-zA-Z0-9/+]{2}==)?"
_EXTENSIONS = rf"(?:,[A-Za-z]+={_VALUE})*"
_FIRST = re.compile(
    rf"n,(?:a=(?P<acts_as>{_SASLNAME}))?,(?P<bare>(?:m={_VALUE},)?n=(?P<user>{_SASLNAME}),"
    rf"r=(?P<nonce>{_PRINTABLE})(?P<extensions>{_EXTENSIONS}))"
)
_FINAL = re.compile(
    rf"(?P<unproved>c=(?P<binding>{_BASE64}),r=(?P<nonce>{_PRINTABLE}){_EXTENSIONS}),p=(?P<proof>{_BASE64})"
)
_OTHER_ID = "Authentication failed: Client requested an authorization id that is different from username"


class ScramCredential(NamedTuple):
    """A server's record of a password."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


def credential_of(
    mechanism: str, password: str, make: Callable[[int], bytes], iterations: int = LEAST_ITERATIONS
) -> ScramCredential:
    """Return the record of *password*; *make* returns as many random bytes for the salt as it is asked
    for.
    """
    salt = make(_SALT_BYTES)
    key = salted(MECHANISMS[mechanism], password.encode(), salt, iterations)
    return credential_of_salted(mechanism, key, salt, iterations)


def credential_of_salted(mechanism: str, key: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """Return the record of a password that its owner has salted."""
    client_key = _sign(mechanism, key, b"Client Key")
    stored_key = hashed(MECHANISMS[mechanism], client_key)
    return ScramCredential(salt, stored_key, _sign(mechanism, key, b"Server Key"), iterations)


def _sign(mechanism: str, key: bytes, text: bytes) -> bytes:
    return signed(MECHANISMS[mechanism], key, text)


class ScramExchange:
    """Takes two tokens: who comes, and the proof that it knows the password."""

    def __init__(
        self, mechanism: str, credentials: Mapping[str, ScramCredential], nonce: Callable[[], str]
    ) -> None:
        self._mechanism, self._credentials, self._make_nonce = mechanism, credentials, nonce
        self._begun: tuple[str, ScramCredential, str, str] | None = None
        self.user: str | None = None

    def take(self, token: bytes) -> bytes:
        return (self._first(token) if self._begun is None else self._final(token)).encode()

    def _first(self, token: bytes) -> str:
        told = _FIRST.fullmatch(token.decode(errors="replace"))
        if told is None:
            raise SaslRefusal
        name = told["user"].replace("=2C", ",").replace("=3D", "=")
        found = self._credentials.get(name)
        if found is None or "tokenauth=true" in told["extensions"].split(","):
            raise SaslRefusal
        if told["acts_as"] not in (None, name):
            raise SaslRefusal(_OTHER_ID)
        nonce = told["nonce"] + self._make_nonce()
        first = f"r={nonce},s={base64.b64encode(found.salt).decode()},i={found.iterations}"
        self._begun = name, found, nonce, f"{told['bare']},{first}"
        return first

    def _final(self, token: bytes) -> str:
        assert self._begun is not None
        name, known, nonce, before = self._begun
        told = _FINAL.fullmatch(token.decode(errors="replace"))
        if told is None or told["nonce"] != nonce:
            raise SaslRefusal
        text = f"{before},{told['unproved']}".encode()
        signature, proof = _sign(self._mechanism, known.stored_key, text), base64.b64decode(told["proof"])
        if len(proof) != len(signature):
            raise SaslRefusal
        client_key = bytes(one ^ other for one, other in zip(signature, proof, strict=True))
        shown = hashed(MECHANISMS[self._mechanism], client_key)
        if not are_same(shown, known.stored_key):
            raise SaslRefusal
        self.user = name
        return f"v={base64.b64encode(_sign(self._mechanism, known.server_key, text)).decode()}"
