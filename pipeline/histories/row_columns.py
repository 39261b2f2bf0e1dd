"""The columns that a row type has in a table: structs, lists, maps and plain values of Arrow, and JSON where
a type has no such column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import inspect

from holdfast.pipeline.folds.result_rows import readable

Convert = Callable[[Any], Any]
LEAST_INT, LAST_INT = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class RowColumn:
    """The column of rows of one type."""

    type: pa.DataType
    convert: Convert

    def array(self, rows: Iterable[Any]) -> pa.Array:
        """Return *rows* as a column; None is no row."""
        return pa.array([None if row is None else self.convert(row) for row in rows], self.type)


def row_column(row: Any) -> RowColumn:
    """Return the column of row type *row*.

    An int that 64 bits do not hold is null there. What has no column of its own (unions, tuples of fixed
    length, `Any`, a type within itself) is JSON as text.

    >>> class Total(msgspec.Struct):
    ...     count: int
    ...     tags: frozenset[str] = frozenset()
    >>> column = row_column(Total)
    >>> str(column.type), column.array([Total(2, frozenset("ba"))])[0].as_py()
    ('struct<count: int64, tags: list<element: string>>', {'count': 2, 'tags': ['a', 'b']})
    """
    try:
        return _column(inspect.type_info(row), ())
    except (TypeError, NameError):  # a name in quotes that is not known from here
        return _JSON


_JSON = RowColumn(pa.string(), readable)


def _same(value: Any) -> Any:
    return value


def _int(value: int) -> int | None:
    return value if LEAST_INT <= value <= LAST_INT else None


_PLAIN: dict[type[inspect.Type], RowColumn] = {
    inspect.BoolType: RowColumn(pa.bool_(), _same),
    inspect.IntType: RowColumn(pa.int64(), _int),
    inspect.FloatType: RowColumn(pa.float64(), float),
    inspect.StrType: RowColumn(pa.string(), _same),
    inspect.BytesType: RowColumn(pa.binary(), _same),
    inspect.ByteArrayType: RowColumn(pa.binary(), bytes),
    inspect.DateType: RowColumn(pa.date32(), _same),
    inspect.DateTimeType: RowColumn(pa.timestamp("us", "UTC"), _same),
    inspect.TimeType: RowColumn(pa.string(), str),
    inspect.DecimalType: RowColumn(pa.string(), str),
    inspect.UUIDType: RowColumn(pa.string(), str),
}
_LISTS = (inspect.ListType, inspect.VarTupleType, inspect.SetType, inspect.FrozenSetType)


def _column(info: inspect.Type, within: tuple[type, ...]) -> RowColumn:
    if isinstance(info, inspect.Metadata):
        return _column(info.type, within)
    if (plain := _PLAIN.get(type(info))) is not None:
        return plain
    if isinstance(info, _LISTS):
        return _list(_column(info.item_type, within), in_order=isinstance(info, _LISTS[:2]))
    if isinstance(info, inspect.DictType):
        return _map(_column(info.key_type, within), _column(info.value_type, within))
    if isinstance(info, inspect.UnionType) and info.includes_none and len(info.types) == 2:
        return _optional(next(each for each in info.types if not isinstance(each, inspect.NoneType)), within)
    if isinstance(info, inspect.LiteralType):
        return _values(info.values, _same)
    if isinstance(info, inspect.EnumType):
        return _values([each.value for each in info.cls], lambda member: member.value)
    if isinstance(info, inspect.StructType | inspect.DataclassType | inspect.NamedTupleType):
        return _struct(info.cls, info.fields, getattr, within)
    if isinstance(info, inspect.TypedDictType):
        return _struct(info.cls, info.fields, dict.get, within)
    return _JSON


def _optional(info: inspect.Type, within: tuple[type, ...]) -> RowColumn:
    column = _column(info, within)
    convert = column.convert
    return RowColumn(column.type, lambda value: None if value is None else convert(value))


def _list(item: RowColumn, *, in_order: bool) -> RowColumn:
    convert = item.convert

    def listed(values: Iterable[Any]) -> list[Any]:
        # As sets are stored, so that equal rows are equal here.
        return [convert(each) for each in (values if in_order else sorted(values, key=msgspec.json.encode))]

    return RowColumn(pa.list_(pa.field("element", item.type)), listed)


def _map(key: RowColumn, value: RowColumn) -> RowColumn:
    if not (pa.types.is_string(key.type) or pa.types.is_integer(key.type)):
        return _JSON

    def pairs(mapping: dict[Any, Any]) -> list[tuple[Any, Any]]:
        return sorted((key.convert(one), value.convert(other)) for one, other in mapping.items())

    return RowColumn(pa.map_(key.type, value.type), pairs)


def _values(values: Sequence[Any], of: Convert) -> RowColumn:
    kinds = {type(each) for each in values}
    if kinds == {str}:
        return RowColumn(pa.string(), of)
    return RowColumn(pa.int64(), lambda value: _int(of(value))) if kinds == {int} else _JSON


def _struct(
    cls: type, fields: Sequence[inspect.Field], get: Callable[[Any, str], Any], within: tuple[type, ...]
) -> RowColumn:
    names = [field.name for field in fields]
    # Delta takes no other names, and holds those that differ in case alone for one.
    fits = all(name.isidentifier() for name in names) and len({*map(str.lower, names)}) == len(names)
    if cls in within or not names or not fits:
        return _JSON
    columns = {field.name: _column(field.type, (*within, cls)) for field in fields}
    converts = [(name, column.convert) for name, column in columns.items()]

    def struct(row: Any) -> dict[str, Any]:
        found = ((name, convert, get(row, name)) for name, convert in converts)
        return {
            name: None if value is None or value is msgspec.UNSET else convert(value)
            for name, convert, value in found
        }

    return RowColumn(pa.struct([pa.field(name, column.type) for name, column in columns.items()]), struct)
