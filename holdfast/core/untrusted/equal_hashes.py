"""Numbers that were chosen to have one hash, found before a set or dict is made of them.

Python's hashes of text and bytes differ from process to process. Those of numbers, and of tuples, Structs and
UUIDs made of numbers, do not: a stranger can choose many that are equal, and each is then compared with all
before it. 35,000 numbers, in 0.7 MB of JSON, took 6 seconds; UUIDs take seven times as long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, time, timedelta
from decimal import Decimal
from operator import eq
from typing import Any, Final, Literal, NamedTuple, Union
from uuid import UUID

import msgspec
from msgspec import inspect

from holdfast.core.untrusted.msgpack_pairs import Pairs

LIMIT_EQUAL: Final = 64
"""More different keys of one hash are refused. Of the powers of two that a float holds, 35 have the same."""
LIMIT_BYTES: Final = 8 * LIMIT_EQUAL
"""Shorter values do not hold more keys of a hash that can be chosen."""

_RANDOM = (
    inspect.BoolType,
    inspect.BytesType,
    inspect.DateType,
    inspect.EnumType,
    inspect.FloatType,
    inspect.LiteralType,
    inspect.NoneType,
    inspect.StrType,
)
"""Types of which many values of one hash cannot be chosen: few values, or random hashes."""
_TYPES: Final[dict[type[inspect.Type], Any]] = {
    inspect.IntType: int,
    inspect.DecimalType: Decimal,
    inspect.UUIDType: UUID,
    inspect.DateTimeType: datetime,
    inspect.TimeType: time,
    inspect.TimeDeltaType: timedelta,
    inspect.FloatType: float,
    inspect.StrType: str,
    inspect.BytesType: bytes,
    inspect.BoolType: bool,
    inspect.NoneType: None,
    inspect.AnyType: Any,
}


class HashedKeys(NamedTuple):
    """The types of keys, of sets and of dicts, whose hashes can be chosen."""

    of_sets: tuple[Any, ...]
    of_dicts: tuple[Any, ...]

    def check(self, found: Any) -> None:
        """Raise msgspec.ValidationError where a list or map of *found* has more than `LIMIT_EQUAL` different
        keys of one hash. *found* is a value that has not been made to the declared type.
        """
        for each in reversed(list(_containers(found))):  # inner containers first, since they are hashed too
            if len(each) > LIMIT_EQUAL:
                if isinstance(each, Pairs):
                    keys, kinds = [key for key, _ in each], self.of_dicts
                else:
                    keys, kinds = list(each), self.of_dicts if isinstance(each, dict) else self.of_sets
                for kind in kinds:
                    _check_keys(keys, kind)


def keys_of(of: Any, *, names_are_text: bool = True) -> HashedKeys | None:
    """Return the keys in values of type *of* whose hashes can be chosen; None where there are none. A format
    whose *names_are_text* has no other keys in maps of any type.

    >>> keys_of(dict[str, set[int]]), keys_of(dict[str, list[int]])
    (HashedKeys(of_sets=(<class 'int'>,), of_dicts=()), None)
    """
    sets, dicts = dict[str, Any](), dict[str, Any]()
    for info in _parts(inspect.type_info(of)):
        match info:
            case inspect.SetType() | inspect.FrozenSetType() if not _is_random(info.item_type):
                sets[repr(info.item_type)] = _type_of(info.item_type)
            case inspect.AnyType() if not names_are_text:
                dicts["Any"] = Any
            case inspect.DictType(key_type=inspect.AnyType()):
                pass  # as it comes among the parts
            case inspect.DictType() if not _is_random(info.key_type):
                dicts[repr(info.key_type)] = _type_of(info.key_type)
    return HashedKeys(tuple(sets.values()), tuple(dicts.values())) if sets or dicts else None


def guarded(decode: Callable[[bytes], Any], of: Any, read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Return *decode* for values of type *of*, which first looks at large ones as *read* returns
    them; it raises msgspec.ValidationError too.
    """
    keys = keys_of(of, names_are_text=read is read_json)
    if keys is None:
        return decode
    check = keys.check

    def decode_guarded(data: bytes) -> Any:
        if data is not None and len(data) > LIMIT_BYTES:
            check(read(data))
        return decode(data)

    return decode_guarded


read_json: Final = msgspec.json.Decoder(float_hook=Decimal).decode
"""Reads JSON with its decimals as they are; names are text, so nothing has a hash that can be chosen."""


def _check_keys(keys: Sequence[Any], kind: Any) -> None:
    hashes = []
    for key in keys:
        try:
            hashes.append(_hash(msgspec.convert(key, kind, strict=False)))
        except (msgspec.ValidationError, TypeError, ValueError):
            break  # so does the decoder, which makes no more of it than this
    ordered = sorted(hashes)
    if not any(map(eq, ordered, ordered[LIMIT_EQUAL:])):
        return
    often = {each for each, count in Counter(map(str, hashes)).items() if count > LIMIT_EQUAL}
    different: dict[str, set[str]] = {each: set() for each in often}
    for key, each in zip(keys, map(str, hashes), strict=False):
        if each in often:
            different[each].add(repr(key))
            if len(different[each]) > LIMIT_EQUAL:
                raise msgspec.ValidationError(
                    f"more than {LIMIT_EQUAL} of {len(keys)} keys have one hash, and were chosen so: each"
                    " would be compared with all others"
                )


def _hash(key: Any) -> int:
    """Return the hash of a key, in which arrays are tuples, as they are in one of any type."""
    try:
        return hash(key)
    except TypeError:
        return hash(_frozen(key))


def _frozen(key: Any) -> Any:
    return tuple(map(_frozen, key)) if isinstance(key, list | tuple) else key


def _containers(found: Any) -> Iterator[Any]:
    pending = [found]
    while pending:
        each = pending.pop()
        if isinstance(each, Pairs):
            parts: Iterable[Any] = (part for pair in each for part in pair)
        elif isinstance(each, dict):
            parts = each.values()
        elif isinstance(each, list | tuple):
            parts = each
        else:
            continue
        yield each
        pending += [part for part in parts if isinstance(part, list | dict | tuple)]


def _parts(info: inspect.Type) -> Iterator[inspect.Type]:
    """Yield a type and all within it, each class once."""
    pending, seen = [info], set[Any]()
    while pending:
        each = pending.pop()
        cls = getattr(each, "cls", None)
        if cls in seen:
            continue
        if cls is not None:
            seen.add(cls)
        yield each
        pending += _within(each)


def _within(info: inspect.Type) -> list[inspect.Type]:
    found = [
        getattr(info, name) for name in ("type", "item_type", "key_type", "value_type") if hasattr(info, name)
    ]
    found += getattr(info, "types", ())
    found += getattr(info, "item_types", ())
    found += [each.type for each in getattr(info, "fields", ())]
    return [each for each in found if isinstance(each, inspect.Type)]


def _is_random(info: inspect.Type) -> bool:
    return all(isinstance(each, (*_RANDOM, inspect.UnionType, inspect.Metadata)) for each in _parts(info))


def _type_of(info: inspect.Type) -> Any:
    """Return the type that *info* describes, as far as its hash goes."""
    match info:
        case inspect.Metadata():
            return _type_of(info.type)
        case inspect.UnionType():
            return Union[tuple(map(_type_of, info.types))]  # noqa: UP007  a tuple of types that is made here
        case inspect.TupleType():
            return tuple[tuple(map(_type_of, info.item_types))]  # type: ignore[misc]
        case inspect.VarTupleType() | inspect.ListType():
            return tuple[_type_of(info.item_type), ...]  # type: ignore[misc]
        case inspect.FrozenSetType() | inspect.SetType():
            return frozenset[_type_of(info.item_type)]  # type: ignore[misc]
        case inspect.LiteralType():
            return Literal[tuple(info.values)]
    return _TYPES.get(type(info)) or getattr(info, "cls", Any)
