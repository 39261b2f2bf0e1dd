"""Checks of declarations when they are made: an error here would otherwise be an error of every record."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


def is_topic(topic: object) -> bool:
    """Return whether *topic* is a valid name of a Kafka topic."""
    return isinstance(topic, str) and _TOPIC.fullmatch(topic) is not None and topic not in (".", "..")


def is_serde(serde: object, does: str) -> bool:
    """Return whether *serde* does what it is needed for, "decode" or "encode"; a type such as `Json` itself
    does nothing.
    """
    return not isinstance(serde, type) and callable(getattr(serde, does, None))


def why_uncallable(call: Any, takes: tuple[str, ...]) -> str | None:
    """Return why *call* cannot be called with arguments of these names, and what to write; None when it can,
    or when it has no signature to read.

    >>> why_uncallable(lambda rows, event: None, ("rows", "event", "at_ms"))
    'takes (rows, event), but is called with 3 arguments: (rows, event, at_ms)'
    >>> why_uncallable(None, ("key",))
    'is None, which cannot be called: write a function of (key)'
    >>> why_uncallable(bytes, ("value",)) is None
    True
    """
    listed = f"({', '.join(takes)})"
    if not callable(call):
        return f"is {call!r:.100}, which cannot be called: write a function of {listed}"
    if _is_async(call):
        return (
            f"is an async function: folds are pure and wait for nothing; write a plain function of {listed}"
        )
    try:
        signature = inspect.signature(call, follow_wrapped=False)
    except (TypeError, ValueError):
        return None  # many functions written in C have no signature
    try:
        signature.bind(*takes)
    except TypeError:
        return (
            f"takes {str(signature).partition(' -> ')[0]:.200}, but is called with {_count(len(takes))}:"
            f" {listed}"
        )
    return None


def _count(arguments: int) -> str:
    return f"{arguments} argument{'' if arguments == 1 else 's'}"


def _is_async(call: Callable[..., Any]) -> bool:
    while hasattr(call, "func") and not inspect.isroutine(call):
        call = call.func  # a partial
    return any(
        inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each)
        for each in (
            call,
            None if isinstance(call, type) else inspect.getattr_static(type(call), "__call__", None),
        )
    )
