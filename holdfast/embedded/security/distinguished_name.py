"""The subject of a certificate as a principal's name, written as Java's X500Principal writes it (RFC
2253).
"""

from __future__ import annotations

from collections.abc import Iterator

_SEQUENCE, _SET, _OID, _VERSION = 0x30, 0x31, 0x06, 0xA0
_TEXTS = {0x0C: "utf-8", 0x13: "ascii", 0x14: "latin-1", 0x16: "ascii", 0x1C: "utf-32-be", 0x1E: "utf-16-be"}
"""Kinds of texts of ASN.1, with their encodings."""
_NAMES = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
_SPECIAL = frozenset(',=+<>#;"\\')


def subject_of(certificate: bytes) -> str:
    """Return the subject of a certificate in DER, which TLS has verified: ``CN=shop,O=ACME``."""
    (_, body), *_ = _elements(certificate)
    (_, told), *_ = _elements(body)
    parts = [each for each in _elements(told) if each[0] != _VERSION]
    # serial number, algorithm, issuer, validity, subject
    names = [_relative(body) for _, body in _elements(parts[4][1])]
    return ",".join(reversed(names))


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and body of each element of ASN.1 in *data*."""
    at = 0
    while at < len(data):
        tag, size, at = data[at], data[at + 1], at + 2
        if size & 0x80:
            count = size & 0x7F
            size, at = int.from_bytes(data[at : at + count], "big"), at + count
        yield tag, data[at : at + size]
        at += size


def _relative(data: bytes) -> str:
    return "+".join(_attribute(body) for _, body in _elements(data))


def _attribute(data: bytes) -> str:
    (_, kind), (tag, value) = _elements(data)
    oid = _oid(kind)
    if oid in _NAMES and tag in _TEXTS:
        return f"{_NAMES[oid]}={_escaped(value.decode(_TEXTS[tag], errors='replace'))}"
    size = bytes([len(value)]) if len(value) < 0x80 else b"\x81" + bytes([len(value)])
    return f"{_NAMES.get(oid, oid)}=#{(bytes([tag]) + size + value).hex()}"


def _oid(data: bytes) -> str:
    numbers, value = [min(2, data[0] // 40), data[0] - 40 * min(2, data[0] // 40)], 0
    for each in data[1:]:
        value = value << 7 | each & 0x7F
        if not each & 0x80:
            numbers.append(value)
            value = 0
    return ".".join(map(str, numbers))


def _escaped(text: str) -> str:
    """Return *text* with its special characters, and spaces at its ends, escaped."""
    inner = text.strip(" ")
    before, after = len(text) - len(text.lstrip(" ")), len(text) - len(text.rstrip(" "))
    escaped = "".join(f"\\{each}" if each in _SPECIAL else each for each in inner)
    return "\\ " * before + escaped + "\\ " * after * bool(inner)
