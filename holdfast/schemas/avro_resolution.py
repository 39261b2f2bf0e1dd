"""Resolves the logical type of each part of a record for its reader: the reader's own holds, whatever the
writer declares for its numbers, texts and bytes.

That is settled once for two schemas, and put into a copy of the writer's as marks (`avro_logical`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import inspect

from holdfast.errors import DecodeError
from holdfast.schemas.avro_logical import MARK, Convert, Marked, checked_int, logical, reading, writing

Schema = Any
Named = Mapping[str, Any]

_FAST: Final[Mapping[str, frozenset[str]]] = {
    "int": frozenset({"int", "long", "float", "double"}),
    "long": frozenset({"long", "float", "double"}),
    "float": frozenset({"float", "double"}),
    "string": frozenset({"string", "bytes"}),
    "bytes": frozenset({"bytes", "string"}),
}
"""The types as which Avro lets a type be read."""
_WIDER: Final = {
    **_FAST,
    "long": frozenset({"long", "int", "float", "double"}),
    "double": frozenset({"float"}),
}
"""The schema types that may be read into a type of Python's."""
_NAMED: Final = ("record", "error", "enum", "fixed")


def plain(schema: Schema, *, writes: bool = False) -> Schema:
    """Return a parsed schema without its logical types; one to write with has marks instead.

    >>> plain({"type": "long", "logicalType": "timestamp-millis"})
    'long'
    """
    return _Plain(writes).of(schema)


class _Plain:
    def __init__(self, writes: bool) -> None:
        self._writes = writes

    def of(self, schema: Schema) -> Schema:
        if isinstance(schema, list):
            return [self.of(each) for each in schema]
        if not isinstance(schema, dict):
            return (
                {"type": "int", "logicalType": MARK, MARK: Marked.of(checked_int, {})}
                if self._writes and schema == "int"
                else schema
            )
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.of(kind)
        match kind:
            case "record" | "error":
                fields = [{**each, "type": self.of(each["type"])} for each in schema["fields"]]
                return {**_bare(schema), "fields": fields}
            case "array":
                return {**_bare(schema), "items": self.of(schema["items"])}
            case "map":
                return {**_bare(schema), "values": self.of(schema["values"])}
        if self._writes:
            if logical(schema) is not None:
                return {**_bare(schema), "logicalType": MARK, MARK: Marked.of(writing(schema), schema)}
            if kind == "int":
                return self.of("int")
        return _bare(schema) if kind in _NAMED else kind


def _bare(schema: dict[str, Any]) -> dict[str, Any]:
    dropped = ("logicalType", "precision", "scale", "__fastavro_parsed__", "__named_schemas")
    bare = {name: each for name, each in schema.items() if name not in dropped}
    if aliases := schema.get("aliases"):  # fastavro looks for the whole name that a copy has lost
        bare["aliases"] = list(dict.fromkeys((*aliases, *map(short_name, aliases))))
    return bare


def short_name(name: str) -> str:
    """Return a name without its namespace."""
    return name.rpartition(".")[2]


class Resolution:
    """The writer's schema, as a reader with another one reads it. With *by_name* by Avro's rules, else into a
    type by the names of fields.
    """

    def __init__(self, writers: Named, readers: Named, *, by_name: bool) -> None:
        self._writers, self._readers, self._by_name = writers, readers, by_name
        self._made: dict[tuple[str, int, int], str] = {}
        self._kept: list[Any] = []
        self._names: set[str] = set()

    def of(self, written: Schema, read: Schema | None, into: inspect.Type | None = None) -> Schema:
        """Return *written* with marks where its values are converted to *read*'s types, and the type that
        they go *into*; None for values that are not read.
        """
        written = _resolved(written, self._writers)
        if isinstance(written, list):
            return [self.of(each, read, into) for each in written]
        found, marked = self._chosen(written, read)
        match kind := kind_of(written):
            case "record" | "error" | "enum":
                return self._of_named(written, found, into, kind)
            case "array" | "map":
                inner = "items" if kind == "array" else "values"
                below = _resolved(found, self._readers)
                part = below[inner] if isinstance(below, dict) and kind_of(below) == kind else None
                return {"type": kind, inner: self.of(written[inner], part, _inner(into, kind))}
        convert = None if found is None else self._conversion(written, found, into, marked)
        if kind == "fixed":
            return self._of_fixed(written, convert)
        if convert is None:
            return kind
        return {"type": kind, "logicalType": MARK, MARK: Marked.of(convert, written)}

    def _of_named(
        self, written: dict[str, Any], read: Schema | None, into: inspect.Type | None, kind: str
    ) -> Schema:
        into = _of_name(into, written["name"])
        same = written["name"], id(read), id(into)
        if same in self._made:
            return self._made[same]
        self._kept += [read, into]  # so that nothing else has their ids
        name = self._made[same] = self._name(written["name"])
        made: dict[str, Any] = {"type": kind, "name": name}
        if kind == "enum":
            return made | {"symbols": written["symbols"]}
        types = {each.encode_name: each.type for each in getattr(into, "fields", ())}
        made["fields"] = []
        for each in written["fields"]:
            field = self._field(each["name"], read)
            known = {} if field is None else {"into": types.get(field["name"])}
            made["fields"].append(
                {"name": each["name"], "type": self.of(each["type"], field and field["type"], **known)}
            )
        return made

    def _of_fixed(self, written: dict[str, Any], convert: Convert | None) -> Schema:
        name = self._name(written["name"])
        marks = {} if convert is None else {"logicalType": MARK, MARK: Marked.of(convert, written)}
        return {"type": "fixed", "name": name, "size": written["size"], **marks}

    def _name(self, name: str) -> str:
        """Return a name that no other part has: one type of the writer may be read as several."""
        number, free = 0, name
        while free in self._names:
            number += 1
            free = f"holdfast{number}.{short_name(name)}"
        self._names.add(free)
        return free

    @staticmethod
    def _field(name: str, read: Schema | None) -> dict[str, Any] | None:
        if not isinstance(read, dict) or kind_of(read) not in ("record", "error"):
            return None
        fields: list[dict[str, Any]] = read["fields"]
        named = next((each for each in fields if each["name"] == name), None)
        return named or next((each for each in fields if name in each.get("aliases", ())), None)

    def _chosen(self, written: Schema, read: Schema | None) -> tuple[Schema | None, bool]:
        """Return the schema as which a value of *written* is read, of a union the part of the same type, else
        the first that it may be; and whether fastavro would take another one.
        """
        read = _resolved(read, self._readers)
        if not isinstance(read, list):
            return read, False
        kind, parts = kind_of(written), [_resolved(each, self._readers) for each in read]
        same = [each for each in parts if kind_of(each) == kind]
        if not self._by_name and not same and (told := logical(written)) is not None:
            same = [each for each in parts if logical(each) == told]
        if kind in _NAMED:
            named = [each for each in same if self._is_named(written, each)]
            return next(iter(named or ([] if self._by_name else same)), None), False
        rules = _FAST if self._by_name else _WIDER
        fits = [each for each in parts if kind_of(each) in rules.get(kind, frozenset({kind})) | {kind}]
        chosen = next(iter(same or fits), None)
        return chosen, bool(fits) and chosen is not fits[0]

    @staticmethod
    def _is_named(written: Any, read: Any) -> bool:
        if kind_of(read) not in _NAMED:
            return False
        names = (read["name"], *read.get("aliases", ()))
        return short_name(written["name"]) in map(short_name, names)

    @staticmethod
    def _conversion(written: Schema, read: Schema, into: inspect.Type | None, marked: bool) -> Convert | None:
        told, wanted = logical(written), logical(read)
        one, other = kind_of(written), kind_of(read)
        if wanted is None or _is_plain(into, wanted):
            return _promoted(one, other) if marked else None
        if told is None:
            promote = _promoted(one, other)
            return reading(read) if promote is _as_it_is else _both(promote, reading(read))
        if told[0] != wanted[0]:
            raise DecodeError(f"a {told[1]} there is a {wanted[1]} here")
        return reading(written)  # which knows its own unit and scale


_NUMBERS = (inspect.IntType, inspect.FloatType, inspect.EnumType, inspect.LiteralType)
_PLAIN: Final[Mapping[str, tuple[type, ...]]] = {
    "decimal": (inspect.BytesType, inspect.ByteArrayType),
    "uuid": (inspect.StrType, inspect.BytesType),
}
_RICH = (
    inspect.DateTimeType,
    inspect.DateType,
    inspect.TimeType,
    inspect.DecimalType,
    inspect.UUIDType,
    inspect.AnyType,
)


def _is_plain(into: inspect.Type | None, wanted: tuple[str, str]) -> bool:
    """Return whether a type holds the written value, and not the one that a logical type makes of it."""
    parts = _alternatives(into)
    family, name = wanted
    if not parts or any(isinstance(each, inspect.AnyType) for each in parts):
        return name.endswith("nanos")  # which few readers know, and no datetime holds for sure
    if any(isinstance(each, _RICH) for each in parts):
        return False
    return any(isinstance(each, _PLAIN.get(family, _NUMBERS)) for each in parts)


def _alternatives(into: inspect.Type | None) -> tuple[inspect.Type, ...]:
    if into is None:
        return ()
    found = into.types if isinstance(into, inspect.UnionType) else (into,)
    return tuple(each.type if isinstance(each, inspect.Metadata) else each for each in found)


def _of_name(into: inspect.Type | None, name: str) -> inspect.Type | None:
    """Return the class of a union that a record goes into: that of its name, else the first."""
    classes = [each for each in _alternatives(into) if hasattr(each, "fields")]
    named = [each for each in classes if getattr(each, "cls", type(None)).__name__ == short_name(name)]
    return next(iter(named or classes), None)


def _inner(into: inspect.Type | None, kind: str) -> inspect.Type | None:
    """Return the item type of a list or a dictionary."""
    name = "item_type" if kind == "array" else "value_type"
    return next((getattr(each, name) for each in _alternatives(into) if hasattr(each, name)), None)


def _resolved(schema: Schema | None, named: Named) -> Schema | None:
    while True:
        if isinstance(schema, str) and schema in named:
            schema = named[schema]
        elif isinstance(schema, dict) and isinstance(schema["type"], dict | list):
            schema = schema["type"]
        else:
            return schema


def kind_of(schema: Schema) -> str:
    """Return the type that a schema's values are written as."""
    if isinstance(schema, list):
        return "union"
    return str(schema["type"] if isinstance(schema, dict) else schema)


def _as_it_is(value: Any) -> Any:
    return value


def _promoted(written: str, read: str) -> Convert:
    if (written, read) == ("string", "bytes"):
        return str.encode
    if (written, read) == ("bytes", "string"):
        return bytes.decode
    if read in ("float", "double") and written in ("int", "long"):
        return float
    return _as_it_is


def _both(first: Convert, then: Convert) -> Convert:
    def convert(value: Any) -> Any:
        return then(first(value))

    return convert


def fill_defaults(copy: Schema, own: Schema, named: Named) -> None:
    """Put into *copy*, which is *own* without logical types, the values that its defaults mean: JSON has
    neither bytes nor moments.
    """
    own = _resolved(own, named)
    if isinstance(copy, list):
        for one, other in zip(copy, own, strict=True):
            fill_defaults(one, other, named)
    if not isinstance(copy, dict):
        return  # a name refers to a type that is filled where it is declared
    if kind_of(own) in ("record", "error"):
        for one, other in zip(copy["fields"], own["fields"], strict=True):
            if "default" in other:
                one["default"] = default_of(other["type"], other["default"], named)
            fill_defaults(one["type"], other["type"], named)
    for name in ("items", "values"):
        if name in copy:
            fill_defaults(copy[name], own[name], named)


def default_of(schema: Schema, default: Any, named: Named) -> Any:
    """Return the value that a default of *schema* means, of a union its first part that fits.

    >>> default_of("bytes", "\\u00ff", {}), default_of({"type": "int", "logicalType": "date"}, 1, {})
    (b'\\xff', datetime.date(1970, 1, 2))
    """
    if isinstance(schema, str) and schema in named:
        schema = named[schema]
    if isinstance(schema, list):
        part = next((each for each in schema if _may_be(default, each, named)), None)
        return default if part is None else default_of(part, default, named)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, dict | list):
        return default_of(kind, default, named)
    if kind in ("bytes", "fixed") and isinstance(default, str):
        default = default.encode("latin-1")
    if logical(schema) is not None:
        return reading(schema)(default)
    if kind in ("float", "double"):
        return float(default)
    if kind == "array":
        return [default_of(schema["items"], each, named) for each in default]
    if kind == "map":
        return {name: default_of(schema["values"], each, named) for name, each in default.items()}
    if kind in ("record", "error"):
        return {
            each["name"]: default_of(each["type"], default.get(each["name"], each.get("default")), named)
            for each in schema["fields"]
        }
    return default


def _may_be(default: Any, schema: Schema, named: Named) -> bool:
    if isinstance(schema, str) and schema in named:
        schema = named[schema]
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, dict | list):
        return True
    match default:
        case None:
            return bool(kind == "null")
        case bool():
            return bool(kind == "boolean")
        case int():
            return kind in ("int", "long", "float", "double")
        case float():
            return kind in ("float", "double")
        case str():
            return kind in ("string", "bytes", "fixed", "enum")
        case list():
            return bool(kind == "array")
    return kind in ("map", "record", "error")
