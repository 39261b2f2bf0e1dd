"""What serdes with schemas ask of the types of their values."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import msgspec

from holdfast.errors import ConfigError


def without_none(of: Any) -> tuple[Any, bool]:
    """Return the type of values that are written, and whether None, a tombstone, is among the others.

    >>> without_none(int | None), without_none(int)
    ((<class 'int'>, True), (<class 'int'>, False))
    """
    if get_origin(of) not in (Union, UnionType) or NoneType not in get_args(of):
        return of, False
    return Union[tuple(each for each in get_args(of) if each is not NoneType)], True  # noqa: UP007  made at run time


def alternatives(of: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the one type."""
    return get_args(of) if get_origin(of) in (Union, UnionType) else (of,)


def is_record(of: Any) -> bool:
    """Tell whether *of* is a class with named fields."""
    return isinstance(
        msgspec.inspect.type_info(of), msgspec.inspect.StructType | msgspec.inspect.DataclassType
    )


def missing(name: str, error: ImportError) -> ConfigError:
    """Return the error of a package that is not there."""
    return ConfigError(f"{error.name or error} is not installed: pip install 'holdfast[{name}]'")
