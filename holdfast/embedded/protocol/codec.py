"""Reads and writes Kafka's messages as dicts of their fields, by the table.

Each version of a message is compiled once, when it is first met: fields of fixed size that follow one another
are one `struct`. A field that a version does not have reads as its default, and is left out when written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import groupby
from struct import Struct
from typing import Any, TypeAlias

from holdfast.core.kafka.wire import WireReader, WireReason, put_uvarint
from holdfast.embedded.protocol.table import Message, MessageField, message

Fields: TypeAlias = dict[str, Any]
Read: TypeAlias = "Callable[[FieldReader], Any]"
Write: TypeAlias = Callable[[bytearray, Any], None]

_FIXED = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
_LENGTH16, _LENGTH32 = Struct(">h"), Struct(">i")


NO_LIMIT = 1 << 62
LIMIT_TEXT = (1 << 15) - 1
"""Of a string, in bytes, whichever way its length is written."""


_NO_TAGS: dict[int, bytes] = {}


class FieldReader(WireReader):
    """A reader of a message whose arrays may have *room* elements together: it looks at counts before it
    takes anything.
    """

    __slots__ = ("room",)

    def __init__(self, data: bytes | memoryview, at: int = 0, *, room: int = NO_LIMIT) -> None:
        super().__init__(data, at)
        self.room = room

    def take_room(self, count: int, what: str, at: int) -> None:
        """Take *count* elements, of those that were read from *at* on; WireError where they are too many."""
        self.room -= count
        if self.room < 0:
            text = f"{what}: {count} elements, {-self.room} more than a request may have"
            raise self.error(text, WireReason.SIZE, at)

    def tags(self, what: str) -> dict[int, bytes]:
        if self.at < self.end and not self.data[self.at]:  # nearly always
            self.at += 1
            return _NO_TAGS
        at, out = self.at, {}
        count = self.uvarint(what)
        self.take_room(count, what, at)
        for _ in range(count):
            tag = self.uvarint(what)
            out[tag] = self.raw(self.uvarint(what), what)
        return out


def decode(
    name: str, version: int, data: bytes | memoryview, at: int = 0, *, limit_elements: int = NO_LIMIT
) -> Fields:
    """Return the fields of the message *name* in *data* from *at* on; WireError where they do not fit, or
    where its arrays have more than *limit_elements* together.

    Records are views of *data*. What follows the message is not looked at: Kafka does not, and librdkafka's
    Metadata requests end in bytes that their version has not.
    """
    fields: Fields = _reader(name, version)(FieldReader(data, at, room=limit_elements))
    return fields


def encode(name: str, version: int, fields: Fields, out: bytearray) -> bytearray:
    """Append the message *name* to *out* and return it. Fields that are missing have their defaults; one that
    no version of the message has is a bug.
    """
    _writer(name, version)(out, fields)
    return out


@cache
def is_flexible(name: str, version: int) -> bool:
    """Return, of a version that there is, whether lengths are varints there, and fields may be tagged."""
    return version in message(name).flexible


@cache
def _reader(name: str, version: int) -> Read:
    told = _checked(name, version)
    return _read_struct(told.fields, version, version in told.flexible)


@cache
def _writer(name: str, version: int) -> Write:
    told = _checked(name, version)
    return _write_struct(told.fields, version, version in told.flexible)


def _checked(name: str, version: int) -> Message:
    told = message(name)
    assert version in told.versions, f"{name} has no version {version}"
    return told


def _runs(
    fields: tuple[MessageField, ...], version: int
) -> Iterator[tuple[Struct | None, list[MessageField]]]:
    """Yield the fields of a version in their order, those of fixed size together with the struct that takes
    them.
    """
    there = [each for each in fields if version in each.versions and version not in each.tagged]
    for fixed, run in groupby(there, lambda each: not each.is_array and each.kind in _FIXED):
        found = list(run)
        if fixed:
            yield Struct(">" + "".join(_FIXED[each.kind] for each in found)), found
        else:
            yield from ((None, [each]) for each in found)


def _tagged(fields: tuple[MessageField, ...], version: int) -> list[MessageField]:
    return sorted((each for each in fields if version in each.tagged), key=lambda each: each.tag)


# -- reading


def _read_struct(fields: tuple[MessageField, ...], version: int, flexible: bool) -> Read:
    absent = {
        each.name: each.default for each in fields if version not in each.versions or version in each.tagged
    }
    steps: list[tuple[Struct | None, tuple[str, ...], Read | None]] = []
    for form, run in _runs(fields, version):
        names = tuple(each.name for each in run)
        steps.append((form, names, None if form else _read_field(run[0], version, flexible)))
    tags = {each.tag: (each.name, _read_tagged(each, version)) for each in _tagged(fields, version)}

    def read(reader: FieldReader) -> Fields:
        found = absent.copy()
        for form, names, take in steps:
            if form is not None:
                found.update(zip(names, reader.unpack(form, names[0]), strict=True))
            else:
                assert take is not None
                found[names[0]] = take(reader)
        if flexible:
            for tag, value in reader.tags("tagged fields").items():
                if tag in tags:
                    name, take = tags[tag]
                    inner = FieldReader(value, room=reader.room)
                    found[name] = take(inner)
                    reader.room = inner.room
        return found

    return read


def _read_tagged(field: MessageField, version: int) -> Read:
    """Structs that may be null say so there by 0, elsewhere by -1."""
    if field.is_array or field.kind != "{}" or version not in field.nullable:
        return _read_field(field, version, True)
    inner = _read_struct(field.fields, version, True)
    return lambda reader: inner(reader) if reader.int8(field.name) else None


def _read_field(field: MessageField, version: int, flexible: bool) -> Read:
    name, nullable = field.name, version in field.nullable
    if field.is_array:
        return _read_array(field, version, flexible, nullable)
    if field.kind == "{}":
        inner = _read_struct(field.fields, version, flexible)
        return (lambda reader: None if reader.int8(name) < 0 else inner(reader)) if nullable else inner
    if field.kind in _FIXED:
        form = Struct(">" + _FIXED[field.kind])
        return lambda reader: reader.unpack(form, name)[0]
    size = _read_size(name, flexible, 16 if field.kind == "string" else 32)
    if field.kind == "string":
        return lambda reader: _text(reader, size, name, nullable)
    if field.kind == "records":
        return lambda reader: _view(reader, size, name, nullable)
    return lambda reader: (
        None if (left := _sized(reader, size, name, nullable)) < 0 else reader.raw(left, name)
    )


def _read_size(name: str, flexible: bool, bits: int) -> Callable[[FieldReader], int]:
    if flexible:
        return lambda reader: reader.uvarint(name) - 1
    return (lambda reader: reader.int16(name)) if bits == 16 else (lambda reader: reader.int32(name))


def _sized(reader: FieldReader, size: Callable[[FieldReader], int], name: str, nullable: bool) -> int:
    at, found = reader.at, size(reader)
    if found < 0 and not (found == -1 and nullable):
        raise reader.error(f"{name} has length {found}", WireReason.LENGTH, at)
    return found


def _text(reader: FieldReader, size: Callable[[FieldReader], int], name: str, nullable: bool) -> str | None:
    found = _sized(reader, size, name, nullable)
    if found > LIMIT_TEXT:
        raise reader.error(f"{name} has {found} bytes, at most {LIMIT_TEXT} may be", WireReason.LENGTH)
    return None if found < 0 else reader.utf8(found, name)


def _view(
    reader: FieldReader, size: Callable[[FieldReader], int], name: str, nullable: bool
) -> memoryview | None:
    found = _sized(reader, size, name, nullable)
    return None if found < 0 else reader.view(found, name)


def _read_array(field: MessageField, version: int, flexible: bool, nullable: bool) -> Read:
    name, size = field.name, _read_size(field.name, flexible, 32)
    if field.kind in _FIXED:
        letter = _FIXED[field.kind]
        least = Struct(">" + letter).size

        def element_read(reader: FieldReader, count: int) -> list[Any]:
            letters = letter * count if letter == "16s" else f"{count}{letter}"
            return list(reader.unpack(Struct(">" + letters), name))
    else:
        take = _read_field(
            MessageField(
                name=name, kind=field.kind, is_array=False, versions=field.versions, fields=field.fields
            ),
            version,
            flexible,
        )
        least = 1

        def element_read(reader: FieldReader, count: int) -> list[Any]:
            return [take(reader) for _ in range(count)]

    def read(reader: FieldReader) -> list[Any] | None:
        at, count = reader.at, _sized(reader, size, name, nullable)
        if count * least > reader.left:
            raise reader.error(
                f"{name}: {count} elements do not fit {reader.left} bytes", WireReason.LENGTH, at
            )
        if count < 0:
            return None
        if count > reader.room:
            reader.take_room(count, name, at)
        reader.room -= count
        return element_read(reader, count)

    return read


# -- writing


def _write_struct(fields: tuple[MessageField, ...], version: int, flexible: bool) -> Write:
    known = dict.fromkeys(each.name for each in fields).keys()
    steps: list[tuple[Struct | None, tuple[tuple[str, Any], ...], Write | None]] = []
    for form, run in _runs(fields, version):
        asked = tuple((each.name, each.default) for each in run)
        steps.append((form, asked, None if form else _write_field(run[0], version, flexible)))
    tags = [
        (each.tag, each.name, each.default, _write_tagged(each, version)) for each in _tagged(fields, version)
    ]

    def write(out: bytearray, value: Fields) -> None:
        assert value.keys() <= known, f"no such fields: {', '.join(sorted(value.keys() - known))}"
        for form, asked, put in steps:
            if form is not None:
                out += form.pack(*[value.get(name, default) for name, default in asked])
            else:
                assert put is not None
                name, default = asked[0]
                put(out, value.get(name, default))
        if flexible:
            _put_tags(out, value, tags)

    return write


def _put_tags(out: bytearray, value: Fields, tags: list[tuple[int, str, Any, Write]]) -> None:
    there = []
    for tag, name, default, put in tags:
        found = value.get(name, default)
        if found is not default and found != default and found != []:
            there.append((tag, found, put))
    put_uvarint(out, len(there))
    for tag, found, put in there:
        one = bytearray()
        put(one, found)
        put_uvarint(out, tag)
        put_uvarint(out, len(one))
        out += one


def _write_tagged(field: MessageField, version: int) -> Write:
    if field.is_array or field.kind != "{}" or version not in field.nullable:
        return _write_field(field, version, True)
    return _or_null(_write_struct(field.fields, version, True), null=0)


def _write_field(field: MessageField, version: int, flexible: bool) -> Write:
    nullable = version in field.nullable
    if field.is_array:
        return _write_array(field, version, flexible)
    if field.kind == "{}":
        inner = _write_struct(field.fields, version, flexible)
        return _or_null(inner) if nullable else inner
    if field.kind in _FIXED:
        form = Struct(">" + _FIXED[field.kind])

        def fixed(out: bytearray, value: Any) -> None:
            out += form.pack(value)

        return fixed
    size = _write_size(flexible, _LENGTH16 if field.kind == "string" else _LENGTH32)

    def write(out: bytearray, value: Any) -> None:
        if value is None:
            assert nullable, f"{field.name} is null"
            size(out, -1)
            return
        data = value.encode() if isinstance(value, str) else value
        size(out, len(data))
        out += data

    return write


def _or_null(inner: Write, null: int = 0xFF) -> Write:
    def write(out: bytearray, value: Any) -> None:
        out.append(null if value is None else 1)
        if value is not None:
            inner(out, value)

    return write


def _write_size(flexible: bool, form: Struct) -> Callable[[bytearray, int], None]:
    def varint(out: bytearray, size: int) -> None:
        put_uvarint(out, size + 1)

    def plain(out: bytearray, size: int) -> None:
        out += form.pack(size)

    return varint if flexible else plain


def _write_array(field: MessageField, version: int, flexible: bool) -> Write:
    size = _write_size(flexible, _LENGTH32)
    nullable = version in field.nullable
    element = MessageField(
        name=field.name, kind=field.kind, is_array=False, versions=field.versions, fields=field.fields
    )
    put = _write_field(element, version, flexible)

    def write(out: bytearray, value: Any) -> None:
        if value is None:
            assert nullable, f"{field.name} is null"
            size(out, -1)
            return
        size(out, len(value))
        for each in value:
            put(out, each)

    return write
