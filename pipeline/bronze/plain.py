"""The types in which other programs store the same values: views, large offsets, dictionaries, other names
and orders inside structs.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the plain type of the same values.

    >>> plain_type(pa.dictionary(pa.int32(), pa.large_binary())), plain_type(pa.list_(pa.string_view()))
    (DataType(binary), ListType(list<element: string>))
    """
    types = pa.types
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if types.is_large_binary(kind) or types.is_binary_view(kind) or types.is_fixed_size_binary(kind):
        return pa.binary()
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if _is_list(kind):
        return pa.list_(pa.field("element", plain_type(kind.value_type)))
    if types.is_struct(kind):
        return pa.struct([pa.field(each.name, plain_type(each.type)) for each in kind])
    if types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    return kind


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    asked = (types.is_list, types.is_large_list, types.is_list_view, types.is_large_list_view)
    return any(is_one(kind) for is_one in (*asked, types.is_fixed_size_list))


def as_type(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return *column* as type *wanted*, whatever of the types of the same values it has; ArrowInvalid or
    ArrowNotImplementedError where its values are others.
    """
    if column.type == wanted:
        return column
    try:
        return column.cast(wanted)
    except pa.ArrowNotImplementedError:
        if not (pa.types.is_nested(wanted) and pa.types.is_nested(column.type)):
            raise
    # Arrow casts no views inside of lists. There are few such rows: those that another program wrote again.
    found: list[Any] = column.to_pylist()
    return pa.array(found, wanted)
