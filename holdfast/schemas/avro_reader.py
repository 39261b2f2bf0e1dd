"""Reads Avro's binary form, and refuses what no writer writes.

fastavro counts the branches of a union and the symbols of an enum from the end for an index of -1, takes a
boolean of 7 and an array of fewer than no items, and drops the bits of a number beyond 64. So payloads are
read here; fastavro reads once more those that Avro's rules have to resolve.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from io import BytesIO
from struct import Struct
from typing import Any, Final, TypeAlias

from holdfast.errors import DecodeError
from holdfast.schemas.avro_logical import LIMIT_INT, MARK

Schema = Any
Step: TypeAlias = Callable[[bytes, int], tuple[Any, int]]
"""Reads a value at a position, and returns it with the position after it."""

_DOUBLE, _FLOAT = Struct("<d").unpack_from, Struct("<f").unpack_from
_MANY: Final = 16
"""Of so many numbers in a row it is looked at once where they end, and how long each is."""
_LONGEST: Final = 10
_ENDS: Final = bytes(b"c"[0] if byte >= 0x80 else b"t"[0] for byte in range(256))
"""Makes each byte that another of its number follows a c, and each that ends a number a t."""
_SMALL: Final = tuple((byte >> 1) ^ -(byte & 1) for byte in range(0x80))
"""Numbers of one byte."""
_BOOLEANS: Final = (False, True)


class AvroReader:
    """Reads payloads of one parsed schema, with its marks for logical types.

    With *tells_names*, a record of a union at the top is a pair of its full name and its fields. With
    *checks_alone*, long arrays of numbers are looked at and left out of the value.

    >>> AvroReader(["null", "string"]).read(b"\\x02\\x02a")
    'a'
    >>> AvroReader(["null", "string"]).read(b"\\x01\\x02a")
    Traceback (most recent call last):
    holdfast.errors.DecodeError: a union has no branch -1
    """

    def __init__(self, schema: Schema, *, tells_names: bool = False, checks_alone: bool = False) -> None:
        self._named: dict[str, Step] = {}
        self._longs = _skipped_longs if checks_alone else _longs
        if tells_names and isinstance(schema, list):
            self._step = _union([self._with_name(each) for each in schema])
        else:
            self._step = self._of(schema)

    def read(self, payload: bytes) -> Any:
        """Return the value of all of *payload*; raises DecodeError for bytes that are no value of the schema,
        and what conversions of logical types raise.
        """
        try:
            value, end = self._step(payload, 0)
        except IndexError:
            raise DecodeError("it ends too soon") from None
        if end != len(payload):
            raise DecodeError(f"{len(payload) - end} bytes follow the value")
        return value

    def _with_name(self, schema: Schema) -> Step:
        step = self._of(schema)
        if not isinstance(schema, dict) or schema["type"] not in ("record", "error"):
            return step
        name = schema["name"]

        def named(data: bytes, at: int) -> tuple[Any, int]:
            value, at = step(data, at)
            return (name, value), at

        return named

    def _of(self, schema: Schema) -> Step:
        if isinstance(schema, list):
            return _union(map(self._of, schema))
        if isinstance(schema, str):
            return _PRIMITIVE.get(schema) or partial(self._read_named, schema)
        step = self._of_kind(schema, schema["type"])
        return _converted(step, schema[MARK]) if MARK in schema else step

    def _of_kind(self, schema: Mapping[str, Any], kind: Any) -> Step:
        match kind:
            case "record" | "error":
                step = _record([(each["name"], self._of(each["type"])) for each in schema["fields"]])
            case "enum":
                step = _enum(tuple(schema["symbols"]))
            case "fixed":
                step = _fixed(schema["size"])
            case "array":
                item = self._of(schema["items"])
                return _array(self._longs if item is _long else partial(_each, item))
            case "map":
                return _map(self._of(schema["values"]))
            case _:
                return self._of(kind)
        self._named[schema["name"]] = step
        return step

    def _read_named(self, name: str, data: bytes, at: int) -> tuple[Any, int]:
        """Read a type by its name, which within the type itself is made later than this."""
        return self._named[name](data, at)


def _long(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    number, shift, at = byte & 0x7F, 7, at + 1
    while (byte := data[at]) >= 0x80:
        number |= (byte & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if shift > 63:
            raise _too_long()
    if shift == 63 and byte > 1:
        raise _too_long()
    number |= byte << shift
    return (number >> 1) ^ -(number & 1), at + 1


def _each(item: Step, data: bytes, at: int, count: int) -> tuple[list[Any], int]:
    """Read *count* items."""
    found = []
    for _ in range(count):
        value, at = item(data, at)
        found.append(value)
    return found, at


def _longs(data: bytes, at: int, count: int) -> tuple[list[int], int]:
    """Read *count* numbers as `_long` does, without a call for each."""
    if count >= _MANY and (end := _end_of_longs(data, at, count)) is not None:
        if end == at + count:
            return [*map(_SMALL.__getitem__, data[at:end])], end
        return _read_longs()(_head(count) + data[at:end] + b"\0"), end
    return _longs_by_byte(data, at, count)


def _skipped_longs(data: bytes, at: int, count: int) -> tuple[list[int], int]:
    """Look whether *count* numbers are there as `_longs` reads them."""
    if count >= _MANY and (end := _end_of_longs(data, at, count)) is not None:
        return [], end
    return _longs_by_byte(data, at, count)


def _end_of_longs(data: bytes, at: int, count: int) -> int | None:
    """Return where *count* numbers end; None where they are not all there, or one is as long as a number can
    be, or longer.
    """
    if at + count > len(data):
        return None
    if data[at : at + count].isascii():
        return at + count
    window = data[at : at + _LONGEST * count].translate(_ENDS)
    numbers = window.split(b"t", count)
    if len(numbers) <= count:
        return None
    rest = numbers.pop()
    return None if len(max(numbers)) >= _LONGEST - 1 else at + len(window) - len(rest)


def _head(count: int) -> bytes:
    """Return the head of a block of *count* items."""
    left, found = count << 1, bytearray()
    while left >= 0x80:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    found.append(left)
    return bytes(found)


@cache
def _read_longs() -> Callable[[bytes], list[int]]:
    """Return fastavro's reader of arrays of long, which is compiled."""
    from fastavro import parse_schema, schemaless_reader

    schema = parse_schema({"type": "array", "items": "long"})
    return lambda data: schemaless_reader(BytesIO(data), schema, None)  # type: ignore[return-value]


def _longs_by_byte(data: bytes, at: int, count: int) -> tuple[list[int], int]:
    found = []
    for _ in range(count):
        number, at = data[at], at + 1
        if number >= 0x80:
            number, shift = number & 0x7F, 7
            while (byte := data[at]) >= 0x80:
                number |= (byte & 0x7F) << shift
                shift, at = shift + 7, at + 1
                if shift > 63:
                    raise _too_long()
            if shift == 63 and byte > 1:
                raise _too_long()
            number, at = number | byte << shift, at + 1
        found.append((number >> 1) ^ -(number & 1))
    return found, at


def _too_long() -> DecodeError:
    return DecodeError("a number has more than 64 bits")


def _int(data: bytes, at: int) -> tuple[int, int]:
    number, at = _long(data, at)
    if not -LIMIT_INT <= number < LIMIT_INT:
        raise DecodeError(f"{number} does not fit an int of 32 bits")
    return number, at


def _null(data: bytes, at: int) -> tuple[None, int]:
    return None, at


def _boolean(data: bytes, at: int) -> tuple[bool, int]:
    byte = data[at]
    if byte > 1:
        raise DecodeError(f"a boolean is {byte}")
    return _BOOLEANS[byte], at + 1


def _double(data: bytes, at: int) -> tuple[float, int]:
    data[at + 7]
    return _DOUBLE(data, at)[0], at + 8


def _float(data: bytes, at: int) -> tuple[float, int]:
    data[at + 3]
    return _FLOAT(data, at)[0], at + 4


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size = data[at]
    if size < 0x80 and not size & 1:
        size, at = size >> 1, at + 1
    else:
        size, at = _long(data, at)
        if size < 0:
            raise DecodeError(f"a length is {size}")
    end = at + size
    if end > len(data):
        raise DecodeError(f"it ends too soon: {size} bytes should follow, {len(data) - at} do")
    return data[at:end], end


def _string(data: bytes, at: int) -> tuple[str, int]:
    size = data[at]
    if size < 0x80 and not size & 1:  # as most are; the same as below, without a call
        at += 1
        end = at + (size >> 1)
        if end <= len(data):
            return str(data[at:end], "utf-8"), end
        at -= 1
    value, at = _bytes(data, at)
    return value.decode(), at


_PRIMITIVE: Final[Mapping[str, Step]] = {
    "null": _null,
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "float": _float,
    "double": _double,
    "bytes": _bytes,
    "string": _string,
}


def _fixed(size: int) -> Step:
    def step(data: bytes, at: int) -> tuple[bytes, int]:
        end = at + size
        if end > len(data):
            raise DecodeError(f"it ends too soon: {size} bytes should follow, {len(data) - at} do")
        return data[at:end], end

    return step


def _enum(symbols: tuple[str, ...]) -> Step:
    def step(data: bytes, at: int) -> tuple[str, int]:
        index, at = _long(data, at)
        if not 0 <= index < len(symbols):
            raise DecodeError(f"an enum has no symbol {index}")
        return symbols[index], at

    return step


def _union(branches: Iterable[Step]) -> Step:
    steps = tuple(branches)

    by_byte = {index << 1: each for index, each in enumerate(steps[:64])}

    def step(data: bytes, at: int) -> tuple[Any, int]:
        known = by_byte.get(data[at])
        if known is not None:
            return known(data, at + 1)
        index, at = _long(data, at)
        if not 0 <= index < len(steps):
            raise DecodeError(f"a union has no branch {index}")
        return steps[index](data, at)

    return step


def _record(fields: Iterable[tuple[str, Step]]) -> Step:
    steps = tuple(fields)

    def step(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        found = {}
        for name, each in steps:
            found[name], at = each(data, at)
        return found, at

    return step


def _array(items: Callable[[bytes, int, int], tuple[list[Any], int]]) -> Step:
    def step(data: bytes, at: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        while True:
            count, end, at = _block(data, at)
            if not count:
                return found, at
            values, at = items(data, at, count)
            found += values
            _check_end(end, at)

    return step


def _map(item: Step) -> Step:
    def step(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        while True:
            count, end, at = _block(data, at)
            if not count:
                return found, at
            for _ in range(count):
                name, at = _string(data, at)
                found[name], at = item(data, at)
            _check_end(end, at)

    return step


def _block(data: bytes, at: int) -> tuple[int, int | None, int]:
    """Return a block's number of items, its end where it names its size, and where its items begin."""
    count, at = _long(data, at)
    if count >= 0:
        return count, None, at
    size, at = _long(data, at)
    if size < 0:
        raise DecodeError(f"a block's size is {size}")
    return -count, at + size, at


def _check_end(end: int | None, at: int) -> None:
    if end is not None and end != at:
        raise DecodeError(
            f"a block ends {abs(end - at)} bytes {'after' if end > at else 'before'} its last item"
        )


def _converted(step: Step, convert: Callable[[Any], Any]) -> Step:
    def converted(data: bytes, at: int) -> tuple[Any, int]:
        value, at = step(data, at)
        return convert(value), at

    return converted
