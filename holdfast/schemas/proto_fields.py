"""Checks that a message of one version of a Protobuf file is read exactly by a class of another.

Protobuf finds fields by number, and takes a value of another type for an unknown field, or cuts it, in
silence. So a number must keep its type, or widen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from holdfast.errors import DecodeError

_WIDER: Mapping[str, frozenset[str]] = {
    "INT32": frozenset({"INT64"}),
    "UINT32": frozenset({"UINT64", "INT64"}),
    "SINT32": frozenset({"SINT64"}),
    "ENUM": frozenset({"INT32", "INT64"}),
    "STRING": frozenset({"BYTES"}),
}
"""The types that a type may become, so that every value stays the same."""
_MANY = frozenset({"STRING", "BYTES", "MESSAGE"})
"""Types of which one may become many: each that is there is written, other than numbers, of which a zero is
left out.
"""


def why_misread(files: Iterable[Any], reads: Any) -> str | None:
    """Return why a message of *files*, FileDescriptorProtos of which the first imports the others, is not
    read exactly as *reads*, the descriptor of its class; None where it is.
    """
    written: dict[str, Any] = {}
    for file in files:
        written |= _messages(f".{file.package}" if file.package else "", file.message_type)
    return _why(written, f".{reads.full_name}", reads, set())


def may_lack_values(reads: Any) -> bool:
    """Return whether messages of a descriptor, or within it, have fields of closed enums: a number that such
    an enum does not have leaves its field as if it had not been written.
    """
    pending, seen = [reads], set[str]()
    while pending:
        each = pending.pop()
        if each.full_name in seen:
            continue
        seen.add(each.full_name)
        for field in each.fields:
            if field.enum_type is not None and field.enum_type.is_closed:
                return True
            if field.message_type is not None:
                pending.append(field.message_type)
    return False


def check_values(message: Any) -> None:
    """Raise DecodeError where a message, or one within it, has a number that a closed enum does not have."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    pending = [message]
    while pending:
        each = pending.pop()
        known = each.DESCRIPTOR.fields_by_number
        for unread in UnknownFieldSet(each):
            field = known.get(unread.field_number)
            if field is not None and field.enum_type is not None:
                raise DecodeError(
                    f"field {field.number} of {each.DESCRIPTOR.full_name} is {unread.data}, which"
                    f" {field.enum_type.full_name} does not have"
                )
        for field, value in each.ListFields():
            if field.message_type is not None:
                pending += _within(field, value)


def _within(field: Any, value: Any) -> Iterable[Any]:
    if not _is_many(field):
        return [value]
    if not field.message_type.GetOptions().map_entry:
        return list(value)
    is_message = field.message_type.fields_by_name["value"].message_type is not None
    return list(value.values()) if is_message else []


def _messages(prefix: str, types: Any) -> Iterator[tuple[str, Any]]:
    for each in types:
        name = f"{prefix}.{each.name}"
        yield name, each
        yield from _messages(name, each.nested_type)


def _why(written: Mapping[str, Any], name: str, reads: Any, seen: set[tuple[str, str]]) -> str | None:
    if name not in written or (name, reads.full_name) in seen:
        return None
    seen.add((name, reads.full_name))
    if (why := _why_lost(written[name], reads)) is not None:
        return why
    for field in written[name].field:
        read = reads.fields_by_number.get(field.number)
        if read is None:
            continue  # it is kept, unread
        if not _is_exact(field, read):
            return (
                f"field {field.number} of {name[1:]} is {_told(field)} {field.name} there, and here it is"
                f" {_told_read(read)} {read.name}"
            )
        if read.message_type is not None and (why := _why(written, field.type_name, read.message_type, seen)):
            return why
    return None


def _why_lost(written: Any, reads: Any) -> str | None:
    """Return which fields that may be set together only one may be of now."""
    for oneof in reads.oneofs:
        numbers = {field.number for field in oneof.fields}
        fields = [each for each in written.field if each.number in numbers]
        groups = {each.oneof_index if each.HasField("oneof_index") else -each.number for each in fields}
        if len(groups) > 1:
            names = " and ".join(f"{each.number}" for each in fields)
            return (
                f"fields {names} of {reads.full_name} may be set together there, and here only one of them,"
                f" in {oneof.name}"
            )
    return None


def _is_exact(field: Any, read: Any) -> bool:
    wrote, reads = _type_name(field.type), _type_name(read.type)
    if reads != wrote and reads not in _WIDER.get(wrote, ()):
        return False
    is_many = field.label == field.LABEL_REPEATED
    return is_many == _is_many(read) or (_is_many(read) and wrote in _MANY)


def _is_many(read: Any) -> bool:
    known = getattr(read, "is_repeated", None)  # which versions of protobuf before 6.31 have not
    return bool(read.label == read.LABEL_REPEATED if known is None else known)


def _type_name(number: int) -> str:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto

    name: str = FieldDescriptorProto.Type.Name(number)
    return name.removeprefix("TYPE_")


def _told(field: Any) -> str:
    return ("repeated " if field.label == field.LABEL_REPEATED else "") + _type_name(field.type).lower()


def _told_read(read: Any) -> str:
    return ("repeated " if _is_many(read) else "") + _type_name(read.type).lower()
