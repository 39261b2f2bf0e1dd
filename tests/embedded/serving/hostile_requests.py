"""Requests of which each field is right for its type, and few make sense; random choices follow from a
seed.
"""

from __future__ import annotations

from random import Random
from typing import Any

from holdfast.embedded.protocol.table import MessageField, message
from tests.embedded.transcripts.asking import batch

_WORDS = (
    "orders",
    "",
    "payments",
    "__consumer_offsets",
    "g",
    "m",
    "t",
    "b ad",
    "x" * 300,
    "\0",
    "é",
    "range",
    "(",
)
_NUMBERS = (0, 1, -1, 2, 3, 7, 100, -2, 127, 32_767, 2**31 - 1)
_LIMITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
_UNSIGNED = {"uint16": 16, "uint32": 32}


class HostileRequests:
    """Makes the fields of requests; *ids* are those of topics, to be named among others."""

    def __init__(self, seed: int, ids: list[bytes]) -> None:
        self.chance, self._ids = Random(seed), [bytes(16), b"x" * 16, *ids]

    def request(self, api: str, version: int) -> dict[str, Any]:
        """Return the fields of a request to *api*."""
        return self._struct(message(f"{api}Request").fields, version)

    def _struct(self, fields: tuple[MessageField, ...], version: int) -> dict[str, Any]:
        return {each.name: self._field(each, version) for each in fields if version in each.versions}

    def _field(self, field: MessageField, version: int) -> Any:
        if version in field.nullable and self.chance.random() < 0.2:
            return None
        if not field.is_array:
            return self._value(field, version)
        return [self._value(field, version) for _ in range(self.chance.choice((0, 1, 1, 2, 3)))]

    def _value(self, field: MessageField, version: int) -> Any:
        chance = self.chance
        match field.kind:
            case "{}":
                return self._struct(field.fields, version)
            case "string":
                return chance.choice(_WORDS)
            case "bool":
                return chance.random() < 0.5
            case "bytes":
                return chance.randbytes(chance.choice((0, 1, 20)))
            case "records":
                return self._records()
            case "uuid":
                return chance.choice(self._ids)
            case "float64":
                return chance.choice((0.0, 1.5, -1.0, float("nan"), float("inf")))
        return self._number(field.kind)

    def _number(self, kind: str) -> int:
        bits = _LIMITS.get(kind) or _UNSIGNED[kind]
        low, high = (-(1 << bits) if kind in _LIMITS else 0), (1 << bits) - 1
        return max(low, min(high, self.chance.choice((*_NUMBERS, low, high))))

    def _records(self) -> bytes:
        chance = self.chance
        producer = {
            "producer_id": chance.choice((-1, 0, 1, 7)),
            "producer_epoch": chance.choice((0, 1, -1, 32_767)),
            "base_sequence": chance.choice((0, 1, -1, 2**31 - 1)),
        }
        data = batch(*[b"v"] * chance.choice((1, 2)), attributes=chance.choice((0, 16, 32)), **producer)
        return self.damaged(data) if chance.random() < 0.2 else data

    def damaged(self, data: bytes) -> bytes:
        """Return *data* with one bit flipped."""
        at, bit = self.chance.randrange(len(data)), 1 << self.chance.randrange(8)
        return data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]
