"""Reads MessagePack without making a dict, whose keys a stranger may have chosen."""

from __future__ import annotations

from struct import Struct
from typing import Any, Final

import msgspec


class Pairs(list[tuple[Any, Any]]):
    """A map as its keys and values, in the order in which they were written."""


_NUMBERS: Final = {
    0xCA: Struct(">f"),
    0xCB: Struct(">d"),
    0xCC: Struct(">B"),
    0xCD: Struct(">H"),
    0xCE: Struct(">I"),
    0xCF: Struct(">Q"),
    0xD0: Struct(">b"),
    0xD1: Struct(">h"),
    0xD2: Struct(">i"),
    0xD3: Struct(">q"),
}
_WORDS: Final = {0xC0: None, 0xC2: False, 0xC3: True}
_TEXTS: Final = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_BYTES: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4}
_ARRAYS: Final = {0xDC: 2, 0xDD: 4}
_MAPS: Final = {0xDE: 2, 0xDF: 4}
_EXTENSIONS: Final = {0xC7: 1, 0xC8: 2, 0xC9: 4}
_EXTENSION: Final = Struct(">BIB")
_FIXED_EXTENSIONS: Final = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}


def read_msgpack(data: bytes) -> Any:
    """Return the value in *data*, its maps as `Pairs`; raises msgspec.DecodeError, or RecursionError for a
    value that nests too deep.

    >>> read_msgpack(msgspec.msgpack.encode({(1, 2): "a", -3: [None]}))
    [([1, 2], 'a'), (-3, [None])]
    """
    try:
        value, end = _value(data, 0)
    except (IndexError, UnicodeDecodeError) as error:
        raise msgspec.DecodeError(f"MessagePack data is malformed: {error}") from None
    if end != len(data):
        raise msgspec.DecodeError(f"MessagePack data is malformed: {len(data) - end} bytes follow the value")
    return value


def _value(data: bytes, at: int) -> tuple[Any, int]:
    kind, at = data[at], at + 1
    if kind < 0x80:
        return kind, at
    if kind >= 0xE0:
        return kind - 0x100, at
    if kind < 0x90:
        return _pairs(data, at, kind & 0x0F)
    if kind < 0xA0:
        return _items(data, at, kind & 0x0F)
    if kind < 0xC0:
        text, at = _cut(data, at, kind & 0x1F)
        return text.decode(), at
    if kind in _NUMBERS:
        number, at = _cut(data, at, _NUMBERS[kind].size)
        return _NUMBERS[kind].unpack(number)[0], at
    if kind in _WORDS:
        return _WORDS[kind], at
    if kind in _FIXED_EXTENSIONS:
        return _extension(data, at, _FIXED_EXTENSIONS[kind])
    return _sized(data, at, kind)


def _sized(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    """Read what has its length, or its number of items, before it."""
    for sizes in (_TEXTS, _BYTES, _ARRAYS, _MAPS, _EXTENSIONS):
        if kind in sizes:
            written, at = _cut(data, at, sizes[kind])
            size = int.from_bytes(written)
            break
    else:
        raise IndexError(f"no value begins with {kind}")
    if sizes is _ARRAYS:
        return _items(data, at, size)
    if sizes is _MAPS:
        return _pairs(data, at, size)
    if sizes is _EXTENSIONS:
        return _extension(data, at, size)
    cut, at = _cut(data, at, size)
    return (cut.decode() if sizes is _TEXTS else cut), at


def _cut(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    if at + size > len(data):
        raise IndexError("it ends too soon")
    return data[at : at + size], at + size


def _items(data: bytes, at: int, count: int) -> tuple[list[Any], int]:
    found = []
    for _ in range(count):
        value, at = _value(data, at)
        found.append(value)
    return found, at


def _pairs(data: bytes, at: int, count: int) -> tuple[Pairs, int]:
    found = Pairs()
    for _ in range(count):
        key, at = _value(data, at)
        value, at = _value(data, at)
        found.append((key, value))
    return found, at


def _extension(data: bytes, at: int, size: int) -> tuple[Any, int]:
    """Read an extension as msgspec does: of them it knows the moment."""
    number, at = data[at], at + 1
    cut, at = _cut(data, at, size)
    return msgspec.msgpack.decode(_EXTENSION.pack(0xC9, size, number) + cut), at
