"""Reading and writing the primitive types of Kafka's protocol, never further than the bytes there are.

Every failure is a WireError that names the byte. A length is compared with the bytes left before anything of
that size is made, so a hostile length costs nothing.
"""

from __future__ import annotations

from enum import StrEnum
from struct import Struct
from typing import Any

from holdfast.errors import WireError

_INT8, _INT16, _INT32, _INT64 = Struct(">b"), Struct(">h"), Struct(">i"), Struct(">q")

LIMIT_INT16, LIMIT_INT32, LIMIT_INT64 = 1 << 15, 1 << 31, 1 << 63


class WireReason(StrEnum):
    """Why bytes are not what they should be."""

    TRUNCATED = "truncated"
    LENGTH = "length"
    VARINT = "varint"
    UTF8 = "utf-8"
    MAGIC = "magic"
    CHECKSUM = "checksum"
    COMPRESSION = "compression"
    SIZE = "too large"
    ORDER = "order"
    TRAILING = "trailing bytes"
    API = "api key or version"
    RANGE = "range"


class WireReader:
    """Takes values from *data* between *at* and *end*, one after the other; `at` is always the next byte.

    *base* is added to the offsets in errors: the position of `data[0]` in the caller's bytes.
    """

    __slots__ = ("at", "base", "data", "end")

    def __init__(
        self, data: bytes | memoryview, at: int = 0, end: int | None = None, *, base: int = 0
    ) -> None:
        self.data, self.at, self.base = data, at, base
        self.end = len(data) if end is None else min(end, len(data))

    @property
    def left(self) -> int:
        """Return how many bytes there are still."""
        return self.end - self.at

    def error(self, text: str, reason: WireReason, at: int | None = None) -> WireError:
        """Return the error to raise: *text*, here or at *at*."""
        return WireError(text, offset=self.base + (self.at if at is None else at), reason=reason)

    def _step(self, size: int, what: str) -> int:
        at = self.at
        if size > self.end - at:
            raise self.error(f"{what} needs {size} bytes, {self.end - at} are left", WireReason.TRUNCATED)
        self.at = at + size
        return at

    def int8(self, what: str) -> int:
        value: int = _INT8.unpack_from(self.data, self._step(1, what))[0]
        return value

    def int16(self, what: str) -> int:
        value: int = _INT16.unpack_from(self.data, self._step(2, what))[0]
        return value

    def int32(self, what: str) -> int:
        value: int = _INT32.unpack_from(self.data, self._step(4, what))[0]
        return value

    def int64(self, what: str) -> int:
        value: int = _INT64.unpack_from(self.data, self._step(8, what))[0]
        return value

    def raw(self, size: int, what: str) -> bytes:
        """Take *size* bytes as they are."""
        at = self._step(size, what)
        return bytes(self.data[at : at + size])

    def unpack(self, form: Struct, what: str) -> tuple[Any, ...]:
        """Take the values of *form*, the first of which is *what*."""
        return form.unpack_from(self.data, self._step(form.size, what))

    def view(self, size: int, what: str) -> memoryview:
        """Take *size* bytes without copying them."""
        at = self._step(size, what)
        return memoryview(self.data)[at : at + size]

    def utf8(self, size: int, what: str) -> str:
        """Take *size* bytes as text."""
        at = self.at
        return self._utf8(self.raw(size, what), what, at)

    def string(self, what: str, *, nullable: bool = False) -> str | None:
        """Take a string with its length in 16 bits; -1 is null."""
        at = self.at
        size = self.int16(what)
        if size < 0:
            if size == -1 and nullable:
                return None
            raise self.error(f"{what} has length {size}", WireReason.LENGTH, at)
        return self._utf8(self.raw(size, what), what, at)

    def text(self, what: str) -> str:
        """Take a string that may not be null."""
        value = self.string(what)
        assert value is not None
        return value

    def array(self, what: str, least_bytes: int) -> int:
        """Take the count of an array whose elements have *least_bytes* each; a count that cannot be is an
        error at once.
        """
        at = self.at
        count = self.int32(what)
        if not 0 <= count * least_bytes <= self.left or count < 0:
            raise self.error(
                f"{what}: {count} elements of at least {least_bytes} bytes do not fit {self.left} bytes",
                WireReason.LENGTH,
                at,
            )
        return count

    def varlong(self, what: str, limit_bytes: int = 10) -> int:
        """Take a zigzag varint of up to 64 bits."""
        data, at, value, shift = self.data, self.at, 0, 0
        for place in range(at, min(at + limit_bytes, self.end)):
            byte = data[place]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                self.at = place + 1
                if value >> (64 if limit_bytes == 10 else 32):
                    raise self.error(f"{what} does not fit its type", WireReason.VARINT, at)
                return value >> 1 ^ -(value & 1)
            shift += 7
        if self.end - at < limit_bytes:
            raise self.error(f"{what}: the varint does not end", WireReason.TRUNCATED, at)
        raise self.error(f"{what}: the varint has more than {limit_bytes} bytes", WireReason.VARINT, at)

    def varint(self, what: str) -> int:
        """Take a zigzag varint of up to 32 bits."""
        return self.varlong(what, 5)

    def varbytes(self, what: str) -> bytes | None:
        """Take bytes with their length as a varint; -1 is null."""
        at = self.at
        size = self.varint(what)
        if size < -1:
            raise self.error(f"{what} has length {size}", WireReason.LENGTH, at)
        return None if size == -1 else self.raw(size, what)

    def vartext(self, what: str) -> str:
        """Take a string with its length as a varint; null is an error."""
        at = self.at
        value = self.varbytes(what)
        if value is None:
            raise self.error(f"{what} is null", WireReason.LENGTH, at)
        return self._utf8(value, what, at)

    def uvarint(self, what: str) -> int:
        """Take an unsigned varint of up to 32 bits, in which newer versions of requests count."""
        data, at, value, shift = self.data, self.at, 0, 0
        for place in range(at, min(at + 5, self.end)):
            byte = data[place]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                self.at = place + 1
                if value >> 32:
                    raise self.error(f"{what} does not fit its type", WireReason.VARINT, at)
                return value
            shift += 7
        raise self.error(f"{what}: the varint does not end", WireReason.VARINT, at)

    def compact(self, what: str) -> bytes | None:
        """Take bytes with one more than their length as an unsigned varint; 0 is null."""
        size = self.uvarint(what)
        return None if size == 0 else self.raw(size - 1, what)

    def compact_text(self, what: str) -> str:
        """Take a string with one more than its length as an unsigned varint; null is empty."""
        at = self.at
        return self._utf8(self.compact(what) or b"", what, at)

    def compact_array(self, what: str) -> int:
        """Take the count of a compact array, whose elements have a byte at least; null is empty."""
        at, count = self.at, max(0, self.uvarint(what) - 1)
        if count > self.left:
            raise self.error(f"{what}: {count} elements do not fit {self.left} bytes", WireReason.LENGTH, at)
        return count

    def tags(self, what: str) -> dict[int, bytes]:
        """Take tagged fields: what a version has that need not be known."""
        out = {}
        for _ in range(self.uvarint(what)):
            tag = self.uvarint(what)
            out[tag] = self.raw(self.uvarint(what), what)
        return out

    def _utf8(self, value: bytes, what: str, at: int) -> str:
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise self.error(f"{what} is not UTF-8 ({error.reason})", WireReason.UTF8, at) from None

    def finish(self, what: str) -> None:
        """Raise when something is left."""
        if self.left:
            raise self.error(f"{self.left} bytes after the end of {what}", WireReason.TRAILING)


def check_range(what: str, value: int, low: int, limit: int) -> int:
    """Return *value* if it is within low..limit-1; else WireError, since a reader would decode another
    value.
    """
    if not low <= value < limit:
        raise WireError(f"{what} {value} is not within {low}..{limit - 1}", offset=0, reason=WireReason.RANGE)
    return value


def put_int16(out: bytearray, value: int, what: str) -> None:
    out += _INT16.pack(check_range(what, value, -LIMIT_INT16, LIMIT_INT16))


def put_int32(out: bytearray, value: int, what: str) -> None:
    out += _INT32.pack(check_range(what, value, -LIMIT_INT32, LIMIT_INT32))


def put_int64(out: bytearray, value: int, what: str) -> None:
    out += _INT64.pack(check_range(what, value, -LIMIT_INT64, LIMIT_INT64))


def put_string(out: bytearray, value: str | None, what: str) -> None:
    """Append a string with its length in 16 bits; None as -1."""
    if value is None:
        put_int16(out, -1, what)
        return
    encoded = value.encode()
    put_int16(out, len(encoded), f"length of {what}")
    out += encoded


def put_varlong(out: bytearray, value: int) -> None:
    """Append a zigzag varint; the caller has checked the range.

    >>> out = bytearray(); put_varlong(out, -1); put_varlong(out, 7); put_varlong(out, -65); out.hex()
    '010e8101'
    """
    value = value << 1 if value >= 0 else ~value << 1 | 1
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def put_varbytes(out: bytearray, value: bytes | None) -> None:
    """Append bytes with their length as a varint; None as -1."""
    if value is None:
        out.append(1)
        return
    put_varlong(out, len(value))
    out += value


def put_uvarint(out: bytearray, value: int) -> None:
    """Append an unsigned varint.

    >>> out = bytearray(); put_uvarint(out, 7); put_uvarint(out, 300); out.hex()
    '07ac02'
    """
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def put_compact(out: bytearray, value: bytes) -> None:
    """Append bytes with one more than their length as an unsigned varint."""
    put_uvarint(out, len(value) + 1)
    out += value
