"""Checks an argument against its type, and words the error for a wrong one."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

_UNWRITABLE = re.compile("[\x00\ud800-\udfff]")
_MEANT: Mapping[Any, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    Mapping: "a dict",
}


def type_problem(place: str, given: object, wanted: Any, *, secret: bool = False) -> str | None:
    """Return why *given* cannot be of the type *wanted*, one of `_MEANT` or a union of these; None when it
    can.

    *place* begins the text, which does not show a *secret* value.

    >>> type_problem("web_port", "7000", int)
    "web_port must be a whole number, not '7000'"
    >>> type_problem("web_url", None, str | None), type_problem("web_bind", "::1", str)
    (None, None)
    """
    options = get_args(wanted) if get_origin(wanted) in (Union, UnionType) else (wanted,)
    kinds = [get_origin(each) or each for each in options]
    if any(_is_of(given, kind) for kind in kinds):
        return None
    if isinstance(given, str) and str in kinds:
        return f"{place} holds what text cannot: {_shown(given, secret)}; leave out NUL and lone surrogates"
    meant = " or ".join(_MEANT.get(kind, "None") for kind in kinds)
    return f"{place} must be {meant}, not {_shown(given, secret)}"


def is_text(given: object) -> bool:
    """Return whether *given* is text that C libraries and UTF-8 can hold."""
    return isinstance(given, str) and _UNWRITABLE.search(given) is None


def _is_of(given: object, kind: Any) -> bool:
    if kind is NoneType:
        return given is None
    if kind is str:
        return is_text(given)
    if kind is Path:
        return _names_path(given)
    if kind is float:
        return isinstance(given, int | float) and not isinstance(given, bool)
    if kind is int:
        return isinstance(given, int) and not isinstance(given, bool)
    return isinstance(given, kind)


def _names_path(given: object) -> bool:
    if isinstance(given, os.PathLike):
        return isinstance(os.fspath(given), str)
    return is_text(given) and bool(given)


def _shown(given: object, secret: bool) -> str:
    return f"the {type(given).__name__} that was given" if secret else f"{given!r:.200}"
