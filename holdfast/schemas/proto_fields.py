"""Whether a message of one version of a Protobuf file is read exactly by a class of another.

Protobuf finds fields by number, and takes a value of another type for an unknown field, or cuts it, in
silence. So a number must keep its type, or widen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_WIDER: Mapping[str, frozenset[str]] = {
    "INT32": frozenset({"INT64"}),
    "UINT32": frozenset({"UINT64", "INT64"}),
    "SINT32": frozenset({"SINT64"}),
    "ENUM": frozenset({"INT32", "INT64"}),
    "STRING": frozenset({"BYTES"}),
}
"""What a type may become, so that every value stays what it was."""
_MANY = frozenset({"STRING", "BYTES", "MESSAGE"})
"""Types of which one may become many: each that is there is written, other than numbers, of which a zero is
left out.
"""


def why_misread(file: Any, reads: Any) -> str | None:
    """Return why a message of *file*, a FileDescriptorProto, is not read exactly as *reads*, the descriptor
    of its class; None where it is. What a file imports is not looked into.
    """
    written = dict(_messages(f".{file.package}" if file.package else "", file.message_type))
    return _why(written, f".{reads.full_name}", reads, set())


def _messages(prefix: str, types: Any) -> Iterator[tuple[str, Any]]:
    for each in types:
        name = f"{prefix}.{each.name}"
        yield name, each
        yield from _messages(name, each.nested_type)


def _why(written: Mapping[str, Any], name: str, reads: Any, seen: set[tuple[str, str]]) -> str | None:
    if name not in written or (name, reads.full_name) in seen:
        return None
    seen.add((name, reads.full_name))
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
