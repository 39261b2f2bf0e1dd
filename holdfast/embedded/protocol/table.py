"""The fields of Kafka's messages, read from messages.txt.

A line there is a message (name, key of its api, versions, flexible versions) or, deeper by one space than
what holds it, a field: name, type, versions, then `null` versions, `tag` number versions, `= default`.
tests/embedded draws the file from the definitions in Kafka's archives.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

NO_VERSIONS = range(0)
NEVER_ENDS = 1 << 15
NO_UUID = bytes(16)
_PLAIN: dict[str, Any] = {
    **dict.fromkeys(("int8", "int16", "uint16", "int32", "uint32", "int64"), 0),
    "float64": 0.0,
    "bool": False,
    "string": "",
    "bytes": b"",
    "records": b"",
    "uuid": NO_UUID,
}


class MessageField(msgspec.Struct, frozen=True, kw_only=True):
    """A field; *kind* is the type of its elements where *is_array*, and "{}" where *fields* define it."""

    name: str
    kind: str
    is_array: bool
    versions: range
    nullable: range = NO_VERSIONS
    tag: int = -1
    tagged: range = NO_VERSIONS
    default: Any = None
    fields: tuple[MessageField, ...] = ()


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A request, a response, or the key or value of a stored record (whose *api* is -1)."""

    name: str
    api: int
    versions: range
    flexible: range
    fields: tuple[MessageField, ...]


def versions_of(text: str) -> range:
    """Return the versions that "3", "3-7", "3+" or "none" name.

    >>> versions_of("3-7"), versions_of("0"), versions_of("none"), 900 in versions_of("3+")
    (range(3, 8), range(0, 1), range(0, 0), True)
    """
    if text == "none":
        return NO_VERSIONS
    if text.endswith("+"):
        return range(int(text[:-1]), NEVER_ENDS)
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


@cache
def _sections() -> dict[str, str]:
    text = Path(__file__).with_name("messages.txt").read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for section in text.replace("\n ", "\0").splitlines():
        head, _, body = section.partition("\0")
        found[head.partition(" ")[0]] = f"{head}\n{body}"
    return found


@cache
def message(name: str) -> Message:
    """Return the message of that name: ``message("FetchRequest")``. KeyError for one that is not served."""
    head, _, body = _sections()[name].partition("\n")
    _, api, versions, _, flexible = head.split()
    lines = [(len(line) - len(line.lstrip()), line.split()) for line in body.split("\0") if line]
    return Message(
        name=name,
        api=-1 if api == "-" else int(api),
        versions=versions_of(versions),
        flexible=versions_of(flexible),
        fields=tuple(_fields(iter(_tree(lines)))),
    )


def apis() -> Iterator[tuple[int, str, range]]:
    """Yield key, name and versions of every api in the table."""
    for name, section in _sections().items():
        if name.endswith("Request"):
            _, api, versions, *_ = section.partition("\n")[0].split()
            yield int(api), name.removesuffix("Request"), versions_of(versions)


def _tree(lines: list[tuple[int, list[str]]]) -> list[tuple[list[str], list[Any]]]:
    """Return each line with those below it."""
    roots: list[tuple[list[str], list[Any]]] = []
    levels = [roots]
    for depth, words in lines:
        del levels[depth + 1 :]
        levels[depth].append((words, []))
        levels.append(levels[depth][-1][1])
    return roots


def _fields(tree: Iterator[tuple[list[str], list[Any]]]) -> Iterator[MessageField]:
    for (name, kind, versions, *more), below in tree:
        told = _told(more)
        fields = tuple(_fields(iter(below)))
        element = kind.removeprefix("[]")
        tag, _, tagged = told.get("tag", "-1 none").partition(" ")
        yield MessageField(
            name=name,
            kind=element,
            is_array=element != kind,
            versions=versions_of(versions),
            nullable=versions_of(told.get("null", "none")),
            tag=int(tag),
            tagged=versions_of(tagged),
            default=_default(kind, told.get("="), fields),
            fields=fields,
        )


def _told(words: list[str]) -> dict[str, str]:
    told, at = {}, 0
    while at < len(words):
        size = 2 if words[at] == "tag" else 1
        told[words[at]] = " ".join(words[at + 1 : at + 1 + size])
        at += 1 + size
    return told


def _default(kind: str, text: str | None, fields: tuple[MessageField, ...]) -> Any:
    if text == "null":
        return None
    if kind.startswith("[]"):
        return ()
    if kind == "{}":
        return {each.name: each.default for each in fields}
    if text is None or kind in ("string", "bytes", "records", "uuid"):
        return _PLAIN[kind] if text is None else text
    return text == "true" if kind == "bool" else float(text) if kind == "float64" else int(text, 0)
