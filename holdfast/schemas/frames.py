"""Confluent's wire format: a zero byte and the schema's id in four bytes, or a one and its GUID in sixteen,
for Protobuf the path to a message, and the payload. Pure.

Newer serializers put all of it but the payload into a header of the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias
from uuid import UUID

from holdfast.core.engine.declared.serdes import KEY_ID, VALUE_ID
from holdfast.errors import DecodeError

SchemaId: TypeAlias = "int | UUID"
"""A registry's name for a schema: the number that it gave it, or its GUID, the same in every registry."""
MAGIC, MAGIC_GUID = 0, 1
HEADER_BYTES, GUID_HEADER_BYTES = 5, 17
ID_HEADERS = {"value": VALUE_ID, "key": KEY_ID}
"""The headers of records that hold the prefix of a payload otherwise."""
LIMIT_PATH = 32
"""Longest path to a nested message type; Protobuf's own compilers stop earlier."""


def header(schema_id: int) -> bytes:
    """Return the prefix of a payload.

    >>> header(258)
    b'\\x00\\x00\\x00\\x01\\x02'
    """
    return bytes([MAGIC]) + schema_id.to_bytes(4, "big")


def framed(part: str, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> bytes | None:
    """Return a record's *part* with the schema's prefix from a header before it, as others have it in there.

    >>> framed("value", b"abc", [("__value_schema_id", b"\\x00\\x00\\x00\\x01\\x02")])
    b'\\x00\\x00\\x00\\x01\\x02abc'
    >>> framed("key", b"abc", [("__value_schema_id", b"\\x00\\x00\\x00\\x01\\x02")])
    b'abc'
    """
    name = ID_HEADERS[part]
    told = next((found for each, found in headers if each == name and found is not None), None)
    return value if told is None or value is None else told + value


def split(value: bytes) -> tuple[SchemaId, bytes]:
    """Return the schema's id and the payload; raises DecodeError for bytes that are not framed so.

    >>> split(b"\\x00\\x00\\x00\\x01\\x02abc")
    (258, b'abc')
    >>> split(b'{"a": 1}')
    Traceback (most recent call last):
    holdfast.errors.DecodeError: begins with byte 0x7b, not 0x00: it was not written with a schema registry's serializer
    """  # noqa: E501
    if len(value) < HEADER_BYTES:
        raise DecodeError(
            f"has {len(value)} bytes, and the header of a schema's id alone takes {HEADER_BYTES}"
        )
    if value[0] == MAGIC_GUID and len(value) >= GUID_HEADER_BYTES:
        return UUID(bytes=value[1:GUID_HEADER_BYTES]), value[GUID_HEADER_BYTES:]
    if value[0] != MAGIC:
        raise DecodeError(
            f"begins with byte 0x{value[0]:02x}, not 0x00: it was not written with a schema registry's"
            " serializer"
        )
    return int.from_bytes(value[1:HEADER_BYTES], "big"), value[HEADER_BYTES:]


def path_bytes(path: Sequence[int]) -> bytes:
    """Return the path to a message type, as Protobuf's payloads begin: its length, then its numbers, as
    zigzag varints; a single zero for the first type of a file.

    >>> path_bytes((0,)), path_bytes((1, 0))
    (b'\\x00', b'\\x04\\x02\\x00')
    """
    return b"\0" if tuple(path) == (0,) else b"".join(_varint(number << 1) for number in (len(path), *path))


def split_path(payload: bytes) -> tuple[tuple[int, ...], bytes]:
    """Return the path to a message type and the message; raises DecodeError for an invalid path.

    >>> split_path(b"\\x00abc"), split_path(b"\\x04\\x02\\x00abc")
    (((0,), b'abc'), ((1, 0), b'abc'))
    """
    count, at = _number(payload, 0)
    if count == 0:
        return (0,), payload[at:]
    if count > LIMIT_PATH:
        raise DecodeError(f"its message lies {count} types deep, {LIMIT_PATH} are the most")
    path = []
    for _ in range(count):
        number, at = _number(payload, at)
        path.append(number)
    return tuple(path), payload[at:]


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at *at*, which is not negative, and the position after it."""
    found = 0
    for shift in range(0, 35, 7):
        if at >= len(data):
            raise DecodeError("the path to its message type is cut short")
        found |= (data[at] & 0x7F) << shift
        at += 1
        if not data[at - 1] & 0x80:
            if found & 1:
                raise DecodeError("the path to its message type has a negative number")
            return found >> 1, at
    raise DecodeError("the path to its message type has a number without an end")
