"""The message types of a `.proto` file as registries keep it: its text, or its descriptor in base 64."""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import DecodeError


@dataclass(slots=True)
class MessageType:
    """A message type with those that are declared in it; the entries of its maps are among them."""

    name: str
    inside: list[MessageType] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class MessageTypes:
    """All message types of a file, and its *descriptor* where that is known."""

    package: str
    top: list[MessageType]
    descriptor: Any = None

    @property
    def names(self) -> set[str]:
        """The full names of all."""
        return set(_names(self.package, self.top))

    def at(self, path: tuple[int, ...]) -> str:
        """Return the full name of the type that *path* leads to; raises DecodeError where there is none."""
        name, beside = self.package, self.top
        for number in path:
            if number >= len(beside):
                raise DecodeError(f"its schema has no message type {'.'.join(map(str, path))}")
            name, beside = _joined(name, beside[number].name), beside[number].inside
        return name


def _names(prefix: str, types: list[MessageType]) -> Iterator[str]:
    for each in types:
        name = _joined(prefix, each.name)
        yield name
        yield from _names(name, each.inside)


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def message_types(text: str) -> MessageTypes:
    """Return the message types of a file; raises DecodeError for an invalid one.

    >>> types = message_types('package shop; message A { map<string, int32> m = 1; message B {} } message C {}')
    >>> types.at((0, 1)), types.at((1,))
    ('shop.A.B', 'shop.C')
    """  # noqa: E501
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError as ProtobufError

    try:
        file = FileDescriptorProto.FromString(b64decode(text, validate=True))
    except (binascii.Error, ValueError, ProtobufError):
        return _Parser(text).file()
    return MessageTypes(file.package, [_of_descriptor(each) for each in file.message_type], file)


def _of_descriptor(message: Any) -> MessageType:
    return MessageType(message.name, [_of_descriptor(each) for each in message.nested_type])


_TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?(?:\*/|\Z)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?|[A-Za-z_][\w.]*|[{};<=]|[^\s{};<="'/\w]+|\d[\w.+-]*|/""",
    re.DOTALL,
)
"""An unclosed string or comment ends with the text: no character is read twice."""
LIMIT_DEPTH = 64


class _Parser:
    """Reads of a file's text only what declares message types: the rest is passed over by its braces."""

    def __init__(self, text: str) -> None:
        self._tokens = [each for each in _TOKEN.findall(text) if not each.startswith(("//", "/*"))]
        self._at = 0

    def file(self) -> MessageTypes:
        package, top = "", MessageType("")
        self._body(top, 0)
        if self._at < len(self._tokens):
            raise DecodeError("its text is no .proto file: a brace closes what none has opened")
        for at, token in enumerate(self._tokens[:-1]):
            if token == "package" and (at == 0 or self._tokens[at - 1] in (";", "}")):
                package = self._tokens[at + 1]
        return MessageTypes(package, top.inside)

    def _body(self, into: MessageType, depth: int) -> None:
        """Read up to the brace that closes *into*, which is left to be read."""
        if depth > LIMIT_DEPTH:
            raise DecodeError(f"its text nests more than {LIMIT_DEPTH} deep")
        begins = True
        while self._at < len(self._tokens) and self._tokens[self._at] != "}":
            token, after = self._tokens[self._at], self._tokens[self._at + 1 : self._at + 3]
            self._at += 1
            if token == "message" and begins and after[1:] == ["{"]:
                self._declared(into, after[0], depth)
            elif token == "group" and after[1:] == ["="]:
                self._group(into, after[0], depth)
            elif token == "map" and after[:1] == ["<"]:
                into.inside.append(MessageType("(entry)"))
            elif token == "{":
                self._at -= 1
                self._block(into, depth)
            begins = token in (";", "{", "}") or self._tokens[self._at - 1] == "}"

    def _declared(self, into: MessageType, name: str, depth: int) -> None:
        made = MessageType(name)
        into.inside.append(made)
        self._at += 1
        self._block(made, depth)

    def _group(self, into: MessageType, name: str, depth: int) -> None:
        while self._at < len(self._tokens) and self._tokens[self._at] not in ("{", ";"):
            self._at += 1
        made = MessageType(name)
        into.inside.append(made)
        self._block(made, depth)

    def _block(self, into: MessageType, depth: int) -> None:
        """Read a block in braces: of a message, or of what may hold groups, as a oneof does."""
        if self._tokens[self._at : self._at + 1] != ["{"]:
            return
        self._at += 1
        self._body(into, depth + 1)
        if self._at >= len(self._tokens):
            raise DecodeError("its text is no .proto file: a brace is never closed")
        self._at += 1
