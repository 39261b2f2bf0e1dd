"""Hashes and signatures, each by the name of its hash: ``sha256``.

hashlib and hmac bring most of OpenSSL, nearly a megabyte that a broker without users does not need, so they
are imported where they are asked for.
"""

from __future__ import annotations


def salted(name: str, password: bytes, salt: bytes, iterations: int) -> bytes:
    """Return *password* salted (PBKDF2)."""
    import hashlib

    return hashlib.pbkdf2_hmac(name, password, salt, iterations)


def hashed(name: str, data: bytes) -> bytes:
    import hashlib

    return hashlib.new(name, data).digest()


def signed(name: str, key: bytes, text: bytes) -> bytes:
    """Return the HMAC of *text* by *key*."""
    import hmac

    return hmac.digest(key, text, name)


def are_same(one: bytes, other: bytes) -> bool:
    """Return whether two secrets are the same, in a time that does not reveal where they differ."""
    import hmac

    return hmac.compare_digest(one, other)
