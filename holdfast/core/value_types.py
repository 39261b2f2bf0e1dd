"""Checks the types of a topic's values, and reads and writes those that are pydantic models.

pydantic is not imported: a class is a model by the methods that it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, is_typeddict

import msgspec
from msgspec import inspect

MOST_CAUSES = 5
"""The most faults of one value that a reason names."""

_encode = msgspec.json.Encoder(order="deterministic").encode


def without_none(of: Any) -> tuple[Any, bool]:
    """Return the type of values that are written, and whether None, a tombstone, is among the others.

    >>> without_none(int | None), without_none(int)
    ((<class 'int'>, True), (<class 'int'>, False))
    """
    if get_origin(of) not in (Union, UnionType) or NoneType not in get_args(of):
        return of, False
    return Union[tuple(each for each in get_args(of) if each is not NoneType)], True  # noqa: UP007  made at run time


def takes_none(of: Any) -> bool:
    """Return whether None is a value of type *of*.

    >>> takes_none(int | None), takes_none(int)
    (True, False)
    """
    try:
        msgspec.convert(None, of)
    except (msgspec.ValidationError, TypeError):
        return False
    return True


def is_model(of: Any) -> bool:
    """Return whether *of* is a class of pydantic's models.

    >>> is_model(int)
    False
    """
    return isinstance(of, type) and hasattr(of, "__pydantic_validator__") and hasattr(of, "model_dump")


def unfit_type(of: Any) -> str | None:
    """Return why msgspec cannot read values of type *of* exactly, and a cure; None where it can.

    >>> unfit_type(list[int]) is None
    True
    >>> unfit_type(complex)
    'complex has no form that can be read back: use a msgspec.Struct, a dataclass or a TypedDict'
    """
    for each in _parts(inspect.type_info(of), set()):
        if not isinstance(each, inspect.CustomType) or each.cls is object:
            continue
        if is_model(each.cls):
            return (
                f"{each.cls.__name__} is a pydantic model inside another type, where its numbers would be"
                " rounded before it reads them: make the outer type a model too, such as"
                f" pydantic.RootModel[list[{each.cls.__name__}]]"
            )
        name = getattr(each.cls, "__name__", str(each.cls))
        return f"{name} has no form that can be read back: use a msgspec.Struct, a dataclass or a TypedDict"
    return None


def has_open_keys(of: Any) -> bool:
    """Return whether values of type *of* may hold keys that a reader drops, as those of a TypedDict may."""
    return any(isinstance(each, inspect.TypedDictType) for each in _parts(inspect.type_info(of), set()))


def class_of(of: Any) -> type | None:
    """Return the class that every value of type *of* is an instance of; None where there is no such class."""
    kind = get_origin(of) or of
    if is_typeddict(kind):
        return dict
    return kind if isinstance(kind, type) else None


def may_nest(of: Any) -> bool:
    """Return whether values of type *of*, as they are read, may nest without end: in a value of any type, a
    class that holds itself, or a field that a class does not declare and a reader skips.

    >>> may_nest(dict[str, list[int]]), may_nest(list[Any])
    (False, True)
    """
    classes = inspect.StructType | inspect.DataclassType | inspect.TypedDictType | inspect.NamedTupleType
    return any(isinstance(each, classes | inspect.AnyType) for each in _parts(inspect.type_info(of), set()))


def _parts(found: Any, seen: set[Any]) -> Iterator[inspect.Type]:
    """Yield the types that *found* is made of, classes once."""
    if isinstance(found, tuple):
        for each in found:
            yield from _parts(each, seen)
    elif isinstance(found, inspect.Field):
        yield from _parts(found.type, seen)
    elif isinstance(found, inspect.Type):
        if (cls := getattr(found, "cls", None)) is not None:
            if cls in seen:
                return
            seen.add(cls)
        yield found
        for name in found.__struct_fields__:
            yield from _parts(getattr(found, name), seen)


def model_reader(model: Any) -> Callable[[bytes], Any]:
    """Return a function that reads JSON into *model*, and raises msgspec.ValidationError for what the model
    refuses.
    """

    def read(value: bytes) -> Any:
        if value is None:
            raise TypeError("there is no value")
        try:
            return model.model_validate_json(value)
        except ValueError as error:
            raise msgspec.ValidationError(_causes(error)) from error

    return read


def model_writer(model: Any) -> Callable[[Any], bytes]:
    """Return a function that writes a *model* as JSON, with the same bytes for equal values.

    It raises ValueError for a value that the model would not read back.
    """
    read = model_reader(model)

    def write(value: Any) -> bytes:
        encoded = _dumped(value)
        if _dumped(read(encoded)) != encoded:
            raise ValueError("it is read back as another value")
        return encoded

    return write


def _dumped(value: Any) -> bytes:
    return _encode(value.model_dump(mode="json", by_alias=True))


def packed_reader(read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Return a function that reads from MessagePack what *read* reads from JSON."""

    def unpack(value: bytes) -> Any:
        found = msgspec.msgpack.decode(value)
        try:
            return read(msgspec.json.encode(found))
        except TypeError as error:  # of an extension type
            raise msgspec.ValidationError(str(error)) from error

    return unpack


def packed_writer(write: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """Return a function that writes as MessagePack what *write* writes as JSON."""
    return lambda value: msgspec.msgpack.encode(msgspec.json.decode(write(value)))


def _causes(error: Any) -> str:
    """Return the first faults of a pydantic error, each with its path; another error as it is."""
    if not hasattr(error, "error_count"):
        return str(error)
    found = error.errors(include_url=False, include_context=False, include_input=False)
    told = [f"{'.'.join(map(str, each['loc'])) or '$'}: {each['msg']}" for each in found[:MOST_CAUSES]]
    more = f"; and {len(found) - MOST_CAUSES} more" if len(found) > MOST_CAUSES else ""
    return "; ".join(told) + more
