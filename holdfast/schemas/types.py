"""Questions of serdes with schemas about the types of their values."""

from __future__ import annotations

from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgspec

from holdfast.errors import ConfigError


def alternatives(of: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the one type."""
    return get_args(of) if get_origin(of) in (Union, UnionType) else (of,)


def is_record(of: Any) -> bool:
    """Return whether *of* is a class with named fields."""
    return isinstance(
        msgspec.inspect.type_info(of), msgspec.inspect.StructType | msgspec.inspect.DataclassType
    )


def missing(name: str, error: ImportError) -> ConfigError:
    """Return the error of a package that is not there."""
    return ConfigError(f"{error.name or error} is not installed: pip install 'holdfast[{name}]'")
