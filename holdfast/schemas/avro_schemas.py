"""Avro schemas that others wrote: parsed with those that they name, and read with care."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any

from msgspec import inspect

from holdfast.errors import DecodeError
from holdfast.schemas.avro_logical import install, logical, unmarked
from holdfast.schemas.avro_reader import AvroReader
from holdfast.schemas.avro_resolution import Resolution, fill_defaults, plain
from holdfast.schemas.registry import SchemaRegistry, SchemaText

Schema = Any
Named = dict[str, Any]


def parsed(schema: SchemaText, asked: SchemaRegistry) -> tuple[Schema, Named]:
    """Return *schema* as parsed by fastavro, and all named types in it and in those that it names."""
    from fastavro.schema import parse_schema

    named: Named = {}
    _parse_named(schema, asked, named, set())
    made = parse_schema(readable(json.loads(schema.text)), named_schemas=named)
    return made, named


def readable(schema: Any) -> Any:
    """Return a schema without logical types that do not fit their underlying types: Avro has them ignored,
    and fastavro refuses them.
    """
    match schema:
        case {"type": "bytes" | "fixed", "logicalType": "decimal"} if logical({"size": 0, **schema}) is None:
            return {name: each for name, each in schema.items() if name != "logicalType"}
        case dict():
            return {
                name: readable(each) if name in ("type", "items", "values", "fields") else each
                for name, each in schema.items()
            }
        case list():
            return [readable(each) for each in schema]
    return schema


def _parse_named(schema: SchemaText, asked: SchemaRegistry, named: Named, seen: set[tuple[str, int]]) -> None:
    from fastavro.schema import parse_schema

    for _, subject, version in schema.references:
        if (subject, version) not in seen:
            seen.add((subject, version))
            found = asked.version(subject, version).schema
            _parse_named(found, asked, named, seen)
            parse_schema(readable(json.loads(found.text)), named_schemas=named)


def reading(
    schema: Schema,
    named: Mapping[str, Any],
    own: Schema,
    owns: Mapping[str, Any],
    into: inspect.Type | None,
    *,
    by_name: bool,
    tells_names: bool,
) -> Callable[[bytes], Any]:
    """Return a function that reads payloads written with *schema*, with the logical types of *own* and the
    types that they go *into*; with *by_name* as *own* by Avro's rules. With *tells_names*, a record of a
    they go *into*; with *by_name* as *own* by Avro's rules. With *tells_names*, a record of a union of
    several records is a

    An array of what takes no bytes could have any length: such a schema is refused.
    """
    from fastavro import schemaless_reader
    from fastavro.read import SchemaResolutionError
    from fastavro.schema import parse_schema

    if _has_endless_array(schema, named):
        raise DecodeError("it has an array of items that take no bytes, which could have any length")
    recursive = is_recursive(schema, named)
    resolved = Resolution(named, owns, by_name=by_name).of(schema, own, into)
    if not by_name or (schema, named) == (own, owns):
        return AvroReader(resolved, tells_names=tells_names).read

    install()
    if recursive:  # fastavro's compiled reader ends the process on nesting without end
        from fastavro._read_py import schemaless_reader
    reader = parse_schema(plain(own), named_schemas={})
    fill_defaults(reader, own, owns)
    check = AvroReader(resolved, checks_alone=True).read
    written = parse_schema(resolved, named_schemas={})

    def read(payload: bytes) -> Any:
        check(payload)
        try:
            return schemaless_reader(
                BytesIO(payload),
                written,
                reader,
                return_record_name=tells_names,
                return_record_name_override=tells_names,
            )
        except SchemaResolutionError as error:
            raise DecodeError(unmarked(str(error))) from None

    return read


def is_recursive(schema: Schema, named: Mapping[str, Any]) -> bool:
    """Return whether values of *schema* may hold values of the same type.

    >>> is_recursive("string", {})
    False
    """
    return _walk(schema, named, frozenset())


def _walk(schema: Schema, named: Mapping[str, Any], within: frozenset[str]) -> bool:
    if isinstance(schema, str) and schema in named:
        return schema in within or _walk(named[schema], named, within)
    if isinstance(schema, list):
        return any(_walk(each, named, within) for each in schema)
    if not isinstance(schema, dict):
        return False
    if schema["type"] in ("record", "error"):
        inside = within | {schema["name"]}
        return any(_walk(each["type"], named, inside) for each in schema["fields"])
    inner = [schema[name] for name in ("items", "values") if name in schema]
    if isinstance(schema["type"], dict | list) or schema["type"] in named:
        inner.append(schema["type"])
    return any(_walk(each, named, within) for each in inner)


def _has_endless_array(schema: Schema, named: Mapping[str, Any]) -> bool:
    """Return whether some array in *schema* has items that may take no bytes."""
    pending, seen = [schema], set[str]()
    while pending:
        each = pending.pop()
        if isinstance(each, str) and each in named and each not in seen:
            seen.add(each)
            pending.append(named[each])
        elif isinstance(each, list):
            pending += each
        elif isinstance(each, dict):
            if each["type"] == "array" and _may_be_empty(each["items"], named, frozenset()):
                return True
            pending += [each[name] for name in ("items", "values") if name in each]
            pending += [field["type"] for field in each.get("fields", ())]
            pending += [each["type"]] if isinstance(each["type"], dict | list) else []
    return False


def _may_be_empty(schema: Schema, named: Mapping[str, Any], within: frozenset[str]) -> bool:
    if isinstance(schema, str) and schema in named:
        return schema not in within and _may_be_empty(named[schema], named, within | {schema})
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, dict):
        return _may_be_empty(kind, named, within)
    if kind == "record":
        inside = within | {schema["name"]}
        return all(_may_be_empty(each["type"], named, inside) for each in schema["fields"])
    return bool(kind == "null" or (kind == "fixed" and schema["size"] == 0))


def why_unlike(
    written: Schema,
    writers: Mapping[str, Any],
    read: Schema,
    readers: Mapping[str, Any],
    *,
    by_name: bool = False,
) -> str | None:
    """Return why no value of the schema *written* is one of *read*, None where some may be. Records may have
    other names, unless they are matched *by_name*.

    >>> why_unlike("int", {}, "double", {}), why_unlike(["null", "string"], {}, "string", {})
    (None, None)
    >>> why_unlike("string", {}, "long", {})
    'is string, not long'
    """
    return _Likeness(writers, readers, by_name).why(written, read, "")


_WIDER = {
    "int": {"int", "long", "float", "double"},
    "long": {"long", "int", "float", "double"},
    "float": {"float", "double"},
    "double": {"double", "float"},
    "string": {"string", "bytes", "enum"},
    "bytes": {"bytes", "string", "fixed"},
    "enum": {"enum", "string"},
    "fixed": {"fixed", "bytes"},
}

_BY_SCHEMA = {"string", "bytes"}
"""Each is read as the other by Avro's rules, which hold where the reader has a schema."""


class _Likeness:
    def __init__(self, writers: Mapping[str, Any], readers: Mapping[str, Any], by_name: bool) -> None:
        self._writers, self._readers, self._by_name = writers, readers, by_name
        self._open: set[tuple[str, str]] = set()

    def why(self, written: Schema, read: Schema, where: str) -> str | None:
        written, read = _resolved(written, self._writers), _resolved(read, self._readers)
        if isinstance(written, list):
            found = [self.why(each, read, where) for each in written] or [
                f"{where and f'{where} '}is no type"
            ]
            return None if None in found else found[0]
        if isinstance(read, list):
            found = [self.why(written, each, where) for each in read] or [
                f"{where and f'{where} '}is of no type"
            ]
            return None if None in found else found[0]
        one, other = _kind(written), _kind(read)
        if not self._by_name and (told := logical(written)) is not None and told == logical(read):
            return None  # as text or as bytes, a number of both is one of Python's
        if other not in _WIDER.get(one, {one}) or (not self._by_name and {one, other} == _BY_SCHEMA):
            return f"{where and f'{where} '}is {one}, not {other}"
        match one:
            case "record":
                return self._records(written, read, where)
            case "array":
                return self.why(written["items"], read["items"], f"{where}[]")
            case "map":
                return self.why(written["values"], read["values"], f"{where}{{}}")
        return None

    def _records(self, written: Schema, read: Schema, where: str) -> str | None:
        pair = written["name"], read["name"]
        if pair in self._open:
            return None
        self._open.add(pair)
        if self._by_name and _short(pair[0]) not in map(_short, (pair[1], *read.get("aliases", ()))):
            return (
                f"{where and f'{where} '}is a record {_short(pair[0])}, not {_short(pair[1])}: give that an"
                " alias"
            )
        theirs = {each["name"]: each for each in written["fields"]}
        for field in read["fields"]:
            place = f"{where}.{field['name']}" if where else field["name"]
            same = next(
                (theirs[name] for name in (field["name"], *field.get("aliases", ())) if name in theirs), None
            )
            if same is None and "default" not in field:
                return f"{place} is missing, and has no default"
            if same is not None and (why := self.why(same["type"], field["type"], place)) is not None:
                return why
        return None


def _resolved(schema: Schema, named: Mapping[str, Any]) -> Schema:
    while isinstance(schema, str) and schema in named:
        schema = named[schema]
    return schema["type"] if isinstance(schema, dict) and isinstance(schema["type"], dict | list) else schema


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _kind(schema: Schema) -> str:
    return str(schema["type"] if isinstance(schema, dict) else schema)
