"""The serde of Protobuf messages."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, TypeVar, overload

from holdfast.core.value_types import without_none
from holdfast.errors import ConfigError, DecodeError, FoldError
from holdfast.schemas.frames import path_bytes, split_path
from holdfast.schemas.proto_fields import check_values, may_lack_values, why_misread
from holdfast.schemas.proto_files import message_types
from holdfast.schemas.registry import SchemaRegistry, SchemaText
from holdfast.schemas.serde import Read, SchemaSerde
from holdfast.schemas.types import missing

M = TypeVar("M")

BUILT_IN = ("google/protobuf/", "google/type/", "confluent/")
"""Files that every reader has, and that are not registered."""


class Protobuf(SchemaSerde[M]):
    """Messages of *of*, a class that protoc has generated, as Confluent's serializer writes them.

    The schema is the class's file. Files that it imports are registered too, each under its own name, as
    other clients do. A record must hold a message of the same full name; fields that the class lacks are
    kept, and those that the record lacks have their defaults. A number whose type is another now, and no
    wider one, is refused: Protobuf would read a default, or a part, in silence.

    ConfigError for any other class.
    """

    name, kind, form = "Protobuf", "PROTOBUF", "serialized"

    @overload
    def __init__(self, of: type[M], *, subject: str | None = None) -> None: ...
    @overload
    def __init__(self: Protobuf[Any], of: Any, *, subject: str | None = None) -> None: ...
    def __init__(self, of: Any, *, subject: str | None = None) -> None:
        inner, tombstones = without_none(of)
        super().__init__(of, tombstones=tombstones, subject=subject)
        try:
            from google.protobuf.message import Message
        except ImportError as error:
            raise missing("protobuf", error) from error
        self._message: Any = inner
        if not isinstance(inner, type) or not issubclass(inner, Message) or self._message.DESCRIPTOR is None:
            raise ConfigError(f"Protobuf({inner!r:.200}): give a message class that protoc has generated")
        self._path = path_bytes(_path_of(self._message.DESCRIPTOR))

    @property
    def schema(self) -> SchemaText:
        return SchemaText("PROTOBUF", _text_of(self._message.DESCRIPTOR.file))

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (self.of,), {"subject": self._given}

    def needed(self, asked: SchemaRegistry, *, register: bool) -> SchemaText:
        return _with_imports(self._message.DESCRIPTOR.file, asked, register)

    def reader(self, schema: SchemaText, asked: SchemaRegistry) -> Read:
        types = message_types(schema.text)
        name, make = self._message.DESCRIPTOR.full_name, self._message.FromString
        if name not in types.names:
            raise DecodeError(
                f"it has no message {name}; it has {', '.join(sorted(types.names))[:200] or 'none'}"
            )
        if types.descriptor is not None:
            files = [types.descriptor, *_imported(schema, asked, set())]
            if why := why_misread(files, self._message.DESCRIPTOR):
                raise DecodeError(why)
        named = lru_cache(maxsize=64)(types.at)
        looks = may_lack_values(self._message.DESCRIPTOR)

        def value(payload: bytes) -> Any:
            path, message = split_path(payload)
            if (found := named(path)) != name:
                raise DecodeError(f"it holds a message {found}, not {name}")
            made = make(message)
            if looks:
                check_values(made)
            return made

        return value

    def payload(self, value: M) -> bytes:
        if type(value) is not self._message:
            raise FoldError(
                f"{value!r:.200} cannot be written as {self}: it is of type {type(value).__name__}"
            )
        try:
            message: bytes = value.SerializeToString(deterministic=True)  # type: ignore[attr-defined]
        except MemoryError:  # no record is to blame
            raise
        except Exception as error:
            raise FoldError(f"{value!r:.200} cannot be written as {self}: {error}") from error
        return self._path + message


def _imported(schema: SchemaText, asked: SchemaRegistry, seen: set[tuple[str, int]]) -> Iterator[Any]:
    """Yield the files that a schema refers to, and those that they do, as far as they are descriptors."""
    for _, subject, version in schema.references:
        if (subject, version) not in seen:
            seen.add((subject, version))
            found = asked.version(subject, version, Protobuf.form).schema
            if (descriptor := message_types(found.text).descriptor) is not None:
                yield descriptor
            yield from _imported(found, asked, seen)


def _text_of(file: Any) -> str:
    """Return a file as registries take it: its descriptor, in base 64."""
    return b64encode(file.serialized_pb).decode()


def _with_imports(file: Any, asked: SchemaRegistry, register: bool) -> SchemaText:
    """Return a file's schema with the versions of those that it imports, registered first if so asked."""
    references = []
    for each in file.dependencies:
        if not each.name.startswith(BUILT_IN):
            schema = _with_imports(each, asked, register)
            found = asked.register(each.name, schema) if register else asked.registered(each.name, schema)
            references.append((each.name, each.name, found.version))
    return SchemaText("PROTOBUF", _text_of(file), tuple(references))


def _path_of(message: Any) -> tuple[int, ...]:
    """Return the numbers that lead to a message type from the top of its file."""
    parent = message.containing_type
    beside = message.file.message_types_by_name.values() if parent is None else parent.nested_types
    number = [each.full_name for each in beside].index(message.full_name)
    return (number,) if parent is None else (*_path_of(parent), number)
