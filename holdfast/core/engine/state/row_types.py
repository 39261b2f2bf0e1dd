"""The types that rows may have, and the check that one reads back exactly as it was given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, get_origin

import msgspec
from msgspec import inspect

from holdfast.core.value_types import is_model

_ONE_FORM = (
    inspect.BoolType,
    inspect.BytesType,
    inspect.IntType,
    inspect.LiteralType,
    inspect.NoneType,
    inspect.StrType,
    inspect.StructType,
    inspect.TupleType,
    inspect.UnionType,
    inspect.UUIDType,
    inspect.VarTupleType,
)


def is_plain(row: Any) -> bool:
    """Return whether values of type *row* have one form only, so that reading one back gives the written
    value.

    A float also takes an int, a dict and a set any order, a datetime any zone: those are not plain. Nor are
    types whose values equal values of other types, so that comparing does not distinguish them: a named
    tuple equals a bare one, a member of a StrEnum its value.

    >>> is_plain(tuple[int, str | None]), is_plain(float), is_plain(dict[str, int])
    (True, False, False)
    """
    return all(_has_one_form(each) for _, each in _parts(row))


def _has_one_form(info: inspect.Type) -> bool:
    match info:
        case inspect.EnumType():
            return not issubclass(info.cls, int | str)
        case inspect.DataclassType():
            cls = get_origin(info.cls) or info.cls
            return is_dataclass(cls) and all(each.compare for each in fields(cls))
        case _:
            return isinstance(info, _ONE_FORM)


def has_lookalikes(row: Any) -> bool:
    """Return whether rows of type *row* may hold what can be changed in place and is written as the declared
    type is.

    A list is written as a tuple is, a bytearray as bytes are, a dict as a Struct is.

    >>> has_lookalikes(tuple[int, ...]), has_lookalikes(bytes), has_lookalikes(int | str)
    (True, True, False)
    """
    return any(
        isinstance(each, inspect.BytesType | inspect.CollectionType | inspect.TupleType)
        or (bool(where) and isinstance(each, inspect.StructType | inspect.DataclassType))
        for where, each in _parts(row)
    )


def nests_without_end(row: Any) -> bool:
    """Return whether a row of type *row* may hold another of its own type, or of a class that holds itself.

    >>> nests_without_end(tuple[tuple[int, str], ...])
    False
    """
    return _is_within(inspect.type_info(row), frozenset())


def _is_within(info: inspect.Type, outer: frozenset[Any]) -> bool:
    if isinstance(info, inspect.Metadata):
        info = info.type
    match info:
        case inspect.UnionType():
            inner = info.types
        case inspect.TupleType():
            inner = info.item_types
        case inspect.CollectionType():
            inner = (info.item_type,)
        case inspect.StructType() | inspect.DataclassType() | inspect.NamedTupleType():
            if info.cls in outer:
                return True
            inner, outer = tuple(each.type for each in info.fields), outer | {info.cls}
        case _:
            return False
    return any(_is_within(each, outer) for each in inner)


def why_unfit(row: Any) -> str | None:
    """Return why *row* cannot be the type of rows, or None when it can.

    Rows must be immutable at any depth: what a fold changes in place changes in the cache, unseen by the
    changelog, and is not taken back when the record is refused.

    >>> why_unfit(tuple[int, str]) is None
    True
    >>> why_unfit(dict[str, int])
    'rows must be immutable: make it a frozen Struct'
    >>> why_unfit(tuple[int, list[str]])
    'rows must be immutable: item 1 is a list: declare it tuple[..., ...]'
    """
    try:
        msgspec.msgpack.Decoder(row)
        info = inspect.type_info(row)
    except (TypeError, NameError, AttributeError) as error:
        return f"it cannot be decoded: {error!s:.300}; write a type, such as int or a frozen msgspec.Struct"
    for _, each in _located("", info, set()):
        if isinstance(each, inspect.CustomType) and is_model(each.cls):
            name = each.cls.__name__
            return (
                f"{name} is a pydantic model, which may change after it was stored: declare a frozen"
                f" msgspec.Struct or dataclass with its fields, or keep {name}.model_dump_json() in a row of"
                " str"
            )
        if isinstance(each, inspect.CustomType):
            return f"it cannot be decoded: {each.cls!r} is not a type that MessagePack has a form for"
    for each in info.types if isinstance(info, inspect.UnionType) else (info,):
        inner = each.type if isinstance(each, inspect.Metadata) else each
        if isinstance(inner, _CONTAINERS):
            return "rows must be immutable: make it a frozen Struct"
        if isinstance(inner, inspect.NoneType):
            return "None stands for no row, it cannot be one"
    for where, each in _located("", info, set()):
        if (cure := _cure(each)) is not None:
            return f"rows must be immutable: {where}{' ' if where else ''}{cure}"
    return None


_CONTAINERS = (
    inspect.AnyType,
    inspect.ByteArrayType,
    inspect.DictType,
    inspect.ListType,
    inspect.SetType,
    inspect.TypedDictType,
)
_CURES = {
    inspect.AnyType: (
        "names no type, so it may hold what can change: say which types it holds, as in int | str or Box[int]"
    ),
    inspect.ByteArrayType: "is a bytearray: declare it bytes",
    inspect.DictType: (
        "is a dict: declare it tuple[tuple[key, value], ...], or give each entry a row of its own"
    ),
    inspect.ExtType: "is an Ext: declare it a frozen Struct",
    inspect.ListType: "is a list: declare it tuple[..., ...]",
    inspect.MemoryViewType: "is a memoryview: declare it bytes",
    inspect.RawType: "is a Raw, which shows memory of others: declare it bytes",
    inspect.SetType: "is a set: declare it frozenset[...]",
    inspect.TypedDictType: "is a TypedDict: make it a frozen Struct",
}
"""Types whose values can be changed in place, and what to write instead."""


def _parts(row: Any) -> tuple[tuple[str, inspect.Type], ...]:
    """Return *row* and the types that it is made of, each with its path.

    Every partition makes a codec of the same few types, and looking into one takes milliseconds.
    """
    try:
        return _remembered(row)
    except TypeError:  # annotated with what has no hash; another TypeError comes again
        return _remembered.__wrapped__(row)


@lru_cache(maxsize=256)
def _remembered(row: Any) -> tuple[tuple[str, inspect.Type], ...]:
    return tuple(_located("", inspect.type_info(row), set()))


def _cure(info: inspect.Type) -> str | None:
    """Return the fault of a type by itself, whatever it is made of, and what to write instead; None for an
    immutable one.
    """
    if isinstance(info, inspect.StructType | inspect.DataclassType):
        cls = get_origin(info.cls) or info.cls
        return None if _frozen(cls) else f"declare {cls.__name__} with frozen=True"
    return _CURES.get(type(info))


def _located(where: str, info: inspect.Type, seen: set[Any]) -> Iterator[tuple[str, inspect.Type]]:
    """Yield a type and the types that it is made of with the path of each, a class once; the path of the
    outermost is ''.

    What dicts hold is left out: they are refused whatever they hold.
    """
    if isinstance(info, inspect.Metadata):
        info = info.type
    yield where, info
    match info:
        case inspect.UnionType():
            for each in info.types:
                yield from _located(where, each, seen)
        case inspect.TupleType():
            for at, each in enumerate(info.item_types):
                yield from _located(f"{where}[{at}]" if where else f"item {at}", each, seen)
        case inspect.CollectionType():
            yield from _located(f"{where}[...]" if where else "an item", info.item_type, seen)
        case inspect.StructType() | inspect.DataclassType() | inspect.NamedTupleType() if (
            info.cls not in seen
        ):
            seen.add(info.cls)
            name = (get_origin(info.cls) or info.cls).__name__
            for field in info.fields:
                yield from _located(f"{name}.{field.name}", field.type, seen)


def _frozen(cls: Any) -> bool:
    if issubclass(cls, msgspec.Struct):
        return bool(cls.__struct_config__.frozen)
    if (told := getattr(cls, "__dataclass_params__", None)) is not None:
        return bool(told.frozen)
    # An attrs class, which msgspec takes for a dataclass, shows it only by how its attributes are set.
    return getattr(cls.__setattr__, "__name__", "") == "_frozen_setattrs"
