"""Which types rows may have, and which of them read back exactly as they were given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import inspect

_ONE_FORM = (
    inspect.BoolType,
    inspect.BytesType,
    inspect.DataclassType,
    inspect.EnumType,
    inspect.IntType,
    inspect.ListType,
    inspect.LiteralType,
    inspect.NamedTupleType,
    inspect.NoneType,
    inspect.StrType,
    inspect.StructType,
    inspect.TupleType,
    inspect.UnionType,
    inspect.UUIDType,
    inspect.VarTupleType,
)
_MUTABLE = (inspect.AnyType, inspect.ByteArrayType, inspect.DictType, inspect.ListType, inspect.SetType, inspect.TypedDictType)


def is_plain(row: Any) -> bool:
    """Return whether values of type *row* have one form only, so that reading one back gives what was written.

    A float also takes an int, a dict and a set any order, a datetime any zone: those are not plain.

    >>> is_plain(tuple[int, str | None]), is_plain(float), is_plain(dict[str, int])
    (True, False, False)
    """
    return all(isinstance(each, _ONE_FORM) for each in _parts(inspect.type_info(row), set()))


def _parts(info: inspect.Type, seen: set[type]) -> Iterator[inspect.Type]:
    """Yield a type and all it is made of, each class once."""
    inner: Iterable[inspect.Type] = ()
    match info:
        case inspect.Metadata():
            yield from _parts(info.type, seen)
            return
        case inspect.UnionType():
            inner = info.types
        case inspect.TupleType():
            inner = info.item_types
        case inspect.CollectionType():
            inner = (info.item_type,)
        case inspect.DictType():
            inner = (info.key_type, info.value_type)
        case inspect.StructType() | inspect.DataclassType() | inspect.NamedTupleType() | inspect.TypedDictType():
            if info.cls in seen:
                return
            seen.add(info.cls)
            inner = [each.type for each in info.fields]
    yield info
    for each in inner:
        yield from _parts(each, seen)


def why_unfit(row: Any) -> str | None:
    """Return why *row* cannot be the type of rows, or None when it can.

    Rows must be immutable: the one a fold changes in place would change in the cache, unseen by the changelog.

    >>> why_unfit(tuple[int, str]) is None
    True
    >>> why_unfit(dict[str, int])
    'rows must be immutable: make it a frozen Struct'
    """
    try:
        msgspec.msgpack.Decoder(row)
        info = inspect.type_info(row)
    except (TypeError, NameError) as error:
        return f"it cannot be decoded: {error}"
    for each in _parts(info, set()):
        if isinstance(each, inspect.CustomType):
            return f"it cannot be decoded: {each.cls!r} is not a type that MessagePack has a form for"
    for each in info.types if isinstance(info, inspect.UnionType) else (info,):
        inner = each.type if isinstance(each, inspect.Metadata) else each
        match inner:
            case inspect.StructType() if not inner.cls.__struct_config__.frozen:
                return f"rows must be immutable: declare {inner.cls.__name__} with frozen=True"
            case inspect.DataclassType() if not _frozen(inner.cls):
                return f"rows must be immutable: declare {inner.cls.__name__} with frozen=True"
            case _ if isinstance(inner, _MUTABLE):
                return "rows must be immutable: make it a frozen Struct"
            case inspect.NoneType():
                return "None stands for no row, it cannot be one"
    return None


def _frozen(cls: type) -> bool:
    config = getattr(cls, "__dataclass_params__", None)
    return config is None or bool(config.frozen)  # attrs classes, which msgspec takes for dataclasses, do not tell
