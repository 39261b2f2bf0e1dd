"""Checks of the arguments of the public classes.

Without them, an invalid value would fail deep inside, far from its caller, or in librdkafka, which ends the
process for some. Each check raises ConfigError, which names the argument, the value, and the values that are
allowed.
"""

from __future__ import annotations

import math
from inspect import iscoroutinefunction
from numbers import Integral, Real
from typing import Any, TypeVar, cast

from holdfast.config.argument_types import is_text, type_problem
from holdfast.config.sections.section import is_topic
from holdfast.config.settings import Settings
from holdfast.errors import ConfigError

_Number = TypeVar("_Number", int, float)

LIMIT_NAME_BYTES = 1_000
"""Three names, a topic and numbers fit a frame of the coordination topic."""


def require_type(name: str, given: object, wanted: Any) -> None:
    """Refuse a value that is not of the type *wanted* (`type_problem`)."""
    if (problem := type_problem(name, given, wanted)) is not None:
        raise ConfigError(problem)


def require_name(name: str, given: object) -> None:
    """Refuse an unusable name, such as an empty group: 1 to LIMIT_NAME_BYTES bytes of text, without control
    characters.
    """
    if not is_text(given) or not given.isprintable() or not given.strip():  # type: ignore[attr-defined]
        raise ConfigError(f"{name} is {given!r:.200}: give it a name, text that can be read")
    size = len(str(given).encode())
    if size > LIMIT_NAME_BYTES:
        raise ConfigError(f"{name} is {given!r:.40}... of {size} bytes: {LIMIT_NAME_BYTES} are the most")


def require_topic(name: str, given: object) -> None:
    """Refuse what Kafka does not take for the name of a topic."""
    if not isinstance(given, str) or not is_topic(given):
        raise ConfigError(
            f"{name} is {given!r:.200}, which is not the name of a topic: use 1 to 249 letters, digits, '.',"
            " '_' and '-'"
        )


def require_number(name: str, given: object, low: float, high: float) -> float:
    """Return *given*, which may be a number of NumPy's, as a number of Python's; refuse anything but a number
    from *low* to *high*.
    """
    number: Any = float(given) if isinstance(given, Real) and not isinstance(given, bool | int) else given
    require_type(name, number, float)
    return _within(name, cast(float, number), low, high)


def require_whole(name: str, given: object, low: int, high: int) -> int:
    """Return a whole number of Python's for *given*, as `require_number` does."""
    number: Any = int(given) if isinstance(given, Integral) and not isinstance(given, bool) else given
    require_type(name, number, int)
    return _within(name, cast(int, number), low, high)


def is_seconds(given: object) -> bool:
    """Return whether *given* is a time to wait. The rest of a caller's own deadline may be below 0.

    >>> [is_seconds(each) for each in (2.5, -1, "1", float("nan"), None)]
    [True, True, False, False, False]
    """
    return isinstance(given, Real) and not isinstance(given, bool) and not math.isnan(given)


def require_wait(given: object, *, none: bool = False) -> None:
    """Refuse a *timeout_s* that is no number of seconds; with *none*, None is for the usual one."""
    if not is_seconds(given) and not (none and given is None):
        left_out = ", or leave it out" if none else ""
        raise ConfigError(f"timeout_s is {given!r:.200}: write a number of seconds{left_out}")


def _within(name: str, number: _Number, low: float, high: float) -> _Number:
    if not low <= number <= high:
        raise ConfigError(f"{name} is {number}: use {low:g} to {high:g}")
    return number


def require_encoder(name: str, given: object) -> None:
    """Refuse what cannot be called to encode; None is for no encoder."""
    if given is not None and (not callable(given) or iscoroutinefunction(given)):
        raise ConfigError(f"{name} is {given!r:.200}: write a plain function of (value) that returns bytes")


def require_parts(name: str, given: object, *parts: str, meant: str) -> None:
    """Refuse an object that lacks one of *parts*; a class is none, since its methods have no object."""
    lacks = [part for part in parts if not hasattr(given, part)]
    if isinstance(given, type) or lacks:
        why = f", which has no {lacks[0]}" if lacks else ", a class"
        raise ConfigError(f"{name} is {given!r:.200}{why}: give {meant}, or leave it out")


def require_clock(given: object) -> None:
    """Refuse anything but a `clock.Clock`."""
    require_parts("clock", given, "now_ms", "monotonic_s", meant="a holdfast.clock.Clock")


def require_settings(given: object) -> None:
    """Refuse anything but Settings, such as the address of a broker."""
    if not isinstance(given, Settings):
        raise ConfigError(
            f"settings is {given!r:.200}: give Settings, as Settings(kafka={{'bootstrap.servers':"
            " 'host:port'}) or settings_from_environment()"
        )


def settings_at(kafka: object) -> Settings:
    """Return the settings that *kafka* is, or those of the brokers whose addresses it is."""
    if isinstance(kafka, Settings):
        return kafka
    if not is_text(kafka):
        raise ConfigError(f"kafka is {kafka!r:.200}: write 'host:port,host:port', or give Settings")
    try:
        return Settings(kafka={"bootstrap.servers": kafka})  # type: ignore[dict-item]
    except ConfigError as error:
        raise ConfigError(f"kafka is {kafka!r:.200}: {error}") from error
