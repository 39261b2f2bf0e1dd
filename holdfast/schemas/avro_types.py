"""The Avro schema of a type of Python, for writing and reading."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from math import isfinite
from typing import Any

import msgspec
from msgspec import inspect

from holdfast.errors import ConfigError
from holdfast.schemas.types import alternatives

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CURE = "give schema=, and a type that takes what it holds"


def schema_of(of: Any, namespace: str | None = None) -> Any:
    """Return the Avro schema of type *of*, parsed; raises ConfigError for a type that has none of its own.

    A field with a default has that default in the schema, so a schema with one field more can read values
    written before.

    >>> class Order(msgspec.Struct):
    ...     customer: str
    ...     cents: int = 0
    >>> schema_of(Order)["fields"]
    [{'name': 'customer', 'type': 'string'}, {'name': 'cents', 'type': 'long', 'default': 0}]
    """
    if namespace and not all(NAME.fullmatch(each) for each in namespace.split(".")):
        raise ConfigError(
            f"Avro: namespace {namespace!r:.100}: use names with dots between them, as in com.shop"
        )
    made = _Made(namespace)
    try:
        parts = [
            made.of(inspect.type_info(each), getattr(each, "__name__", str(each)))
            for each in alternatives(of)
        ]
    except (TypeError, NameError, NotImplementedError) as error:
        raise ConfigError(f"Avro({of!r:.200}): {error}") from error
    return parts[0] if len(parts) == 1 else parts


class _Made:
    """One schema: a record is written out where it comes first, and named from there on."""

    def __init__(self, namespace: str | None) -> None:
        self._namespace = namespace
        self._named: dict[str, type] = {}

    def of(self, info: inspect.Type, where: str) -> Any:
        """Return the schema of a type at *where*."""
        match info:
            case inspect.NoneType():
                return "null"
            case inspect.BoolType():
                return "boolean"
            case inspect.IntType():
                return "long"
            case inspect.FloatType():
                return "double"
            case inspect.StrType():
                return "string"
            case inspect.BytesType():
                return "bytes"
            case inspect.DateType():
                return {"type": "int", "logicalType": "date"}
            case inspect.UUIDType():
                return {"type": "string", "logicalType": "uuid"}
            case inspect.DateTimeType():
                return self._moment(info, where)
            case inspect.EnumType():
                return self._enum(info, where)
            case inspect.LiteralType():
                return self._literal(info, where)
            case inspect.ListType() | inspect.VarTupleType() | inspect.SetType() | inspect.FrozenSetType():
                return {"type": "array", "items": self.of(info.item_type, f"{where}[]")}
            case inspect.DictType():
                return self._map(info, where)
            case inspect.UnionType():
                return self._union(info, where)
            case inspect.StructType() | inspect.DataclassType():
                return self._record(info, where)
            case _:
                raise _unfit(
                    where, f"{type(info).__name__.removesuffix('Type')} has no Avro type of its own", _CURE
                )

    def _moment(self, info: inspect.DateTimeType, where: str) -> Any:
        if info.tz is not True:
            cure = "declare Annotated[datetime, msgspec.Meta(tz=True)]"
            raise _unfit(where, "a datetime without a zone means another moment on another machine", cure)
        return {"type": "long", "logicalType": "timestamp-micros"}

    def _enum(self, info: inspect.EnumType, where: str) -> Any:
        symbols = [each.value for each in info.cls]
        if all(type(each) is int for each in symbols):
            return "long"
        if not all(isinstance(each, str) and NAME.fullmatch(each) for each in symbols):
            return _strings(symbols, where)
        name = self._name(info.cls, where)
        if name in self._named:
            return name
        self._named[name] = info.cls
        return self._spaced({"type": "enum", "name": name, "symbols": symbols})

    def _literal(self, info: inspect.LiteralType, where: str) -> Any:
        return "long" if all(type(each) is int for each in info.values) else _strings(info.values, where)

    def _map(self, info: inspect.DictType, where: str) -> Any:
        if not isinstance(info.key_type, inspect.StrType):
            raise _unfit(where, "the keys of a map are text", "declare dict[str, ...]")
        return {"type": "map", "values": self.of(info.value_type, f"{where}{{}}")}

    def _union(self, info: inspect.UnionType, where: str) -> Any:
        parts = [self.of(each, where) for each in info.types]
        if sum(isinstance(each, inspect.StructType | inspect.DataclassType) for each in info.types) > 1:
            cure = (
                "declare one class with fields that may be None, or the union as the whole value: Avro(A | B)"
            )
            raise _unfit(where, "a field of one of several classes cannot be told apart", cure)
        return sorted(parts, key=lambda part: part != "null")

    def _record(self, info: inspect.StructType | inspect.DataclassType, where: str) -> Any:
        if getattr(info, "array_like", False):
            raise _unfit(where, "is array_like", "leave that out: an Avro record has names")
        name = self._name(info.cls, where)
        if name in self._named:
            return name
        self._named[name] = info.cls
        fields = [self._field(each, f"{where}.{each.encode_name}") for each in info.fields]
        return self._spaced({"type": "record", "name": name, "fields": fields})

    def _field(self, field: inspect.Field, where: str) -> dict[str, Any]:
        if not NAME.fullmatch(field.encode_name):
            raise _unfit(where, "is no name that Avro takes", "use letters, digits and _")
        made: dict[str, Any] = {"name": field.encode_name, "type": self.of(field.type, where)}
        if not field.required:
            default = _default(field, where)
            made["default"] = default
            if isinstance(made["type"], list) and default is not None:  # a default is of the first branch
                made["type"] = sorted(made["type"], key=lambda part: not _is_of(default, part))
        return made

    def _name(self, cls: type, where: str) -> str:
        name = cls.__name__
        if not NAME.fullmatch(name):
            raise _unfit(where, f"{name!r:.100} is no name that Avro takes", "give schema=")
        if self._named.get(name, cls) is not cls:
            raise _unfit(where, f"two classes are named {name}", "rename one, or give schema=")
        return name

    def _spaced(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return a named schema in the namespace, which those within it inherit."""
        return schema if self._namespace is None else {**schema, "namespace": self._namespace}


def _strings(values: Any, where: str) -> str:
    if not all(isinstance(each, str) for each in values):
        raise _unfit(where, "its values are of several types", _CURE)
    return "string"


def _default(field: inspect.Field, where: str) -> Any:
    """Return a field's default as the schema has it; ConfigError for one that differs from one process to the
    next, or is no number of Avro's.
    """
    if field.default_factory is msgspec.NODEFAULT:
        return _plain(field.default, where)
    made = _plain(field.default_factory(), where)
    if made != _plain(field.default_factory(), where):
        cure = "leave it out, and have the writer give it"
        raise _unfit(where, "its default is another each time, and so would be the schema", cure)
    return made


def _plain(value: Any, where: str) -> Any:
    """Return a default as JSON, and as Avro's logical types count it."""
    match value:
        case bytes():
            return value.decode("latin-1")
        case datetime():
            return (value - _EPOCH) // timedelta(microseconds=1)
        case date():
            return (value - _EPOCH.date()).days
        case dict():
            return {key: _plain(each, where) for key, each in value.items()}
        case list() | tuple():
            return [_plain(each, where) for each in value]
        case bool() | str() | None:
            return value
        case int() if not -(1 << 63) <= value < 1 << 63:
            raise _unfit(where, f"its default {value} is no number of 64 bits", "give another one")
        case float() if not isfinite(value):
            raise _unfit(where, f"a schema is JSON, which has no {value}", "give another default, or none")
        case int() | float():
            return value
    return _plain(
        msgspec.to_builtins(value, builtin_types=(bytes, date, datetime), order="deterministic"), where
    )


def _is_of(default: Any, schema: Any) -> bool:
    """Return whether *default* is a value of a branch of a union."""
    kind = schema["type"] if isinstance(schema, dict) else schema
    match default:
        case bool():
            return bool(kind == "boolean")
        case int():
            return kind in ("long", "int", "double")
        case float():
            return bool(kind == "double")
        case str():
            return kind in ("string", "bytes", "enum")
        case list():
            return bool(kind == "array")
        case _:
            return kind not in ("null", "boolean", "long", "double", "string", "bytes", "array", "enum")


def _unfit(where: str, why: str, cure: str) -> ConfigError:
    return ConfigError(f"Avro: {where}: {why}; {cure}")
