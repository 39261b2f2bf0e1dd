"""Schemas of row types as stored, and the check that one type reads rows that were written as another.

A schema is made of plain lists, so that it can be written down and compared when the type no longer exists.
Each node begins with its kind. A node of an unknown kind is compared as it is: then only the same reads
the same.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeAlias, get_origin

import msgspec
from msgspec import inspect

Node: TypeAlias = list[Any]

_PLAIN: dict[type[inspect.Type], str] = {
    inspect.BoolType: "bool",
    inspect.NoneType: "none",
    inspect.UUIDType: "uuid",
    inspect.DateType: "date",
    inspect.TimeDeltaType: "timedelta",
    inspect.DecimalType: "decimal",
    inspect.ExtType: "ext",
}
_NUMBERS = ("ge", "gt", "le", "lt", "multiple_of")
_LENGTHS = ("min_length", "max_length")
_UPPER = ("le", "lt", "max_length")
_NO_DEFAULT: list[Any] = []


class FieldSchema(msgspec.Struct, frozen=True, array_like=True):
    """One field: its name as written, and its *default* (encoded; for a factory, the value that it makes); []
    for a required one, and [None] for a default that cannot be encoded.
    """

    name: str
    node: Node
    default: list[str | None]


class StructSchema(msgspec.Struct, frozen=True, array_like=True):
    """A class with fields. *tag* are field and value that distinguish a tagged class from others."""

    kind: str
    fields: list[FieldSchema]
    is_array: bool
    omits: bool
    forbids: bool
    tag: list[str | int]


class RowSchema(msgspec.Struct, frozen=True, array_like=True):
    """The schema of a row type: *node*, and the classes that it names by their numbers in *structs*."""

    node: Node
    structs: list[StructSchema]


def schema_of(row: Any) -> RowSchema:
    """Return the schema of a row type. Every partition asks for that of the same few types.

    >>> class Total(msgspec.Struct, frozen=True):
    ...     count: int
    ...     note: str = "-"
    >>> schema = schema_of(Total)
    >>> schema.node, [(each.name, each.node[0]) for each in schema.structs[0].fields]
    (['struct', 0], [('count', 'int'), ('note', 'str')])
    """
    try:
        return _remembered(row)
    except TypeError:  # annotated with what has no hash; another TypeError comes again
        return _remembered.__wrapped__(row)


@lru_cache(maxsize=256)
def _remembered(row: Any) -> RowSchema:
    writer = _SchemaWriter()
    node = writer.node(inspect.type_info(row))
    return RowSchema(node, [each for each in writer.structs if each is not None])


class _SchemaWriter:
    def __init__(self) -> None:
        self.structs: list[StructSchema | None] = []
        self._numbers: dict[Any, int] = {}

    def node(self, info: inspect.Type) -> Node:
        match info:
            case inspect.Metadata():
                return self.node(info.type)
            case inspect.IntType():
                return ["int", _limits(info, _NUMBERS)]
            case inspect.FloatType():
                return ["float", _limits(info, _NUMBERS)]
            case inspect.StrType():
                return ["str", {**_limits(info, _LENGTHS), **_limits(info, ("pattern",))}]
            case inspect.BytesType():
                return ["bytes", _limits(info, _LENGTHS)]
            case inspect.DateTimeType():
                return _zoned("datetime", info.tz)
            case inspect.TimeType():
                return _zoned("time", info.tz)
            case inspect.LiteralType():
                return ["literal", list(info.values)]
            case inspect.EnumType():
                return ["literal", [each.value for each in info.cls]]
            case inspect.UnionType():
                return ["union", [self.node(each) for each in info.types]]
            case inspect.TupleType():
                return ["tuple", [self.node(each) for each in info.item_types]]
            case inspect.VarTupleType():
                return ["items", self.node(info.item_type), _limits(info, _LENGTHS)]
            case inspect.FrozenSetType():
                return ["set", self.node(info.item_type), _limits(info, _LENGTHS)]
            case inspect.StructType() | inspect.DataclassType() | inspect.NamedTupleType():
                return ["struct", self._struct(info)]
        return [_PLAIN.get(type(info), repr(info))]

    def _struct(self, info: Any) -> int:
        if (known := self._numbers.get(info.cls)) is not None:
            return known
        number = self._numbers[info.cls] = len(self.structs)
        self.structs.append(None)
        fields = [FieldSchema(each.encode_name, self.node(each.type), _default(each)) for each in info.fields]
        config = getattr(get_origin(info.cls) or info.cls, "__struct_config__", None)
        is_named = isinstance(info, inspect.NamedTupleType)
        tag = getattr(info, "tag", None)
        self.structs[number] = StructSchema(
            kind=type(info).__name__,
            fields=fields,
            is_array=is_named or bool(getattr(info, "array_like", False)),
            omits=bool(config and config.omit_defaults),
            forbids=is_named or bool(getattr(info, "forbid_unknown_fields", False)),
            tag=[] if tag is None else [str(info.tag_field), tag],
        )
        return number


def _zoned(kind: str, tz: bool | None) -> Node:
    """Return the node of a moment: with the zone that it must have (True) or may not have (False), where that
    is said.
    """
    return [kind] if tz is None else [kind, tz]


def _limits(info: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: limit for name in names if (limit := getattr(info, name)) is not None}


def _default(field: inspect.Field) -> list[str | None]:
    if field.required:
        return _NO_DEFAULT
    try:
        value = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        return [msgspec.msgpack.encode(value, order="deterministic").hex()]
    except Exception:  # noqa: BLE001  whatever a factory of users does, it cannot be compared
        return [None]


def why_unreadable(written: RowSchema, read: RowSchema) -> str | None:
    """Return why some rows written as one schema do not read as another with the same content; None when all
    do.

    Fields that are gone are left out, and fields that are new get their default.

    >>> def of(**fields): return schema_of(msgspec.defstruct("Row", [each if isinstance(each, tuple) else (each,) for each in fields.values()], frozen=True))
    >>> one = of(a=("count", int))
    >>> why_unreadable(one, of(a=("count", int), b=("note", str, "")))
    >>> why_unreadable(one, of(a=("count", str)))
    'field count was int and is str'
    >>> why_unreadable(one, of(a=("count", int), b=("note", str)))
    'field note is new and has no default'
    """  # noqa: E501
    return _SchemaReader(written, read).why(written.node, read.node)


def why_reread(written: RowSchema, before: RowSchema, read: RowSchema) -> str | None:
    """Return why rows *written* as one schema mean another now than they did when they were read as the
    schema *before*; None when they mean the same: a field that is not in them must have the default that it
    had.
    """
    return _SchemaReader(written, read, before).why(written.node, read.node, before.node)


class _SchemaReader:
    """Compares two schemas; each pair of classes once, since they may hold themselves."""

    def __init__(self, written: RowSchema, read: RowSchema, before: RowSchema | None = None) -> None:
        self._written, self._read, self._before = written, read, before
        self._seen: set[tuple[int, int]] = set()

    def why(self, old: Node, new: Node, before: Node | None = None) -> str | None:
        if old[0] == "union":
            return next((why for each in old[1] if (why := self.why(each, new, before)) is not None), None)
        if new[0] == "union":
            found = [self._why_not_alike(old, each, self._member(old, before)) for each in new[1]]
            return None if None in found else _most_told(old, found)
        return self._why_not_alike(old, new, before)

    def _member(self, old: Node, before: Node | None) -> Node | None:
        """Return the member of a union that *old* was read as *before*."""
        if before is None or before[0] != "union" or self._before is None:
            return before
        reader = _SchemaReader(self._written, self._before)
        return next((each for each in before[1] if reader.why(old, each) is None), None)

    def _why_not_alike(self, old: Node, new: Node, before: Node | None) -> str | None:
        kind, other = old[0], new[0]
        before = self._member(old, before)
        if kind == "literal":
            return _why_not_literal(old, new)
        if kind == "tuple" and other == "items":
            return self._first(old[1], [new[1]] * len(old[1])) or (
                None if not new[2] else "a tuple of limited length"
            )
        if kind != other:
            return f"{kind} and is {other}"
        match kind:
            case "struct":
                return self._why_struct(old[1], new[1], before)
            case "tuple":
                if len(old[1]) != len(new[1]):
                    return f"a tuple of {len(old[1])} and is one of {len(new[1])}"
                return self._first(old[1], new[1], before[1] if before and before[0] == "tuple" else None)
            case "items" | "set":
                inner = before[1] if before and before[0] == kind else None
                return self.why(old[1], new[1], inner) or _why_stricter(old[2], new[2])
            case "int" | "float" | "str" | "bytes":
                return _why_stricter(old[1], new[1])
            case "datetime" | "time" if new[1:] and old[1:] != new[1:]:
                return f"a {kind} {_zone(old)} and is one {_zone(new)}"
        return None

    def _first(self, old: list[Node], new: list[Node], before: list[Node] | None = None) -> str | None:
        earlier: list[Node | None] = [None] * len(old) if before is None else [*before]
        pairs = zip(old, new, earlier, strict=False)
        return next((why for each in pairs if (why := self.why(*each)) is not None), None)

    def _why_struct(self, old: int, new: int, before: Node | None) -> str | None:
        if (old, new) in self._seen:
            return None
        self._seen.add((old, new))
        was, now = self._written.structs[old], self._read.structs[new]
        if (was.is_array, was.tag) != (now.is_array, now.tag):
            return "written in another form: array_like, or the tag, is another"
        names = [each.name for each in was.fields]
        if was.is_array and (why := _why_other_order(names, now)) is not None:
            return why
        if now.forbids and (gone := set(names) - {each.name for each in now.fields}):
            return f"field {min(gone)} is gone, and unknown fields are forbidden"
        known = {each.name: each for each in was.fields}
        earlier: dict[str, FieldSchema] = {}
        if self._before is not None and before is not None and before[0] == "struct":
            earlier = {each.name: each for each in self._before.structs[before[1]].fields}
        for field in now.fields:
            if (
                why := self._why_field(was, known.get(field.name), field, earlier.get(field.name))
            ) is not None:
                return why
        return None

    def _why_field(
        self, was: StructSchema, old: FieldSchema | None, new: FieldSchema, before: FieldSchema | None
    ) -> str | None:
        if old is None:
            if not new.default:
                return f"field {new.name} is new and has no default"
            if before is not None and (None in before.default or before.default != new.default):
                return f"the default of field {new.name} is another, and there are rows without the field"
            return None
        if (why := self.why(old.node, new.node, None if before is None else before.node)) is not None:
            return why if why.startswith(("field ", "the default ")) else f"field {new.name} was {why}"
        if was.omits and old.default and (None in old.default or old.default != new.default):
            return f"the default of field {new.name} is another, and rows leave out defaults"
        return None


def _zone(node: Node) -> str:
    return {None: "with a zone or none", True: "with a zone", False: "without a zone"}[
        next(iter(node[1:]), None)
    ]


def _why_other_order(names: list[str], now: StructSchema) -> str | None:
    there = [each.name for each in now.fields]
    for at, (one, other) in enumerate(zip(names, there, strict=False)):
        if one != other:
            return f"item {at} was {one} and is {other}: array_like rows tell fields by their order"
    return None


def _why_not_literal(old: Node, new: Node) -> str | None:
    if new[0] == "literal":
        gone = [each for each in old[1] if not any(each == one and type(each) is type(one) for one in new[1])]
        return f"one of {old[1]!r:.200} and may not be {gone[0]!r:.80}" if gone else None
    kinds = {int: "int", str: "str", type(None): "none"}
    if not all(kinds.get(type(each)) == new[0] for each in old[1]) or any(new[1:]):
        return f"literal and is {new[0]}"
    return None


def _why_stricter(old: dict[str, Any], new: dict[str, Any]) -> str | None:
    for name, limit in new.items():
        before = old.get(name)
        if before is None or (name in ("pattern", "multiple_of") and before != limit):
            return f"without {name}={limit!r:.80}"
        if name not in ("pattern", "multiple_of") and (before > limit if name in _UPPER else before < limit):
            return f"{name}={before!r:.80} and is {name}={limit!r:.80}"
    return None


def _most_told(old: Node, found: list[str | None]) -> str:
    told = [each for each in found if each is not None and " and is " not in each]
    return told[0] if told else f"{old[0]} and may not be that any more"
