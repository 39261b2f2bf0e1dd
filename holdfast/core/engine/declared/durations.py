"""Durations as people write them."""

from __future__ import annotations

import re
import warnings
from datetime import timedelta
from typing import TypeAlias

from holdfast.errors import ConfigError

_TEXT = re.compile(r"([0-9]{1,12})(ms|s|m|h|d)")
Duration: TypeAlias = str | int | timedelta
"""A duration as `duration_ms` reads it."""
_SECOND_MS = 1_000
_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
LIMIT_MS = 10**14
"""No duration is longer: about 3,000 years."""


class ShortDurationWarning(UserWarning):
    """A duration is a number below 1000: so many ms, where most often seconds were meant."""


def duration_ms(duration: Duration, what: str, *, least_ms: int = 1) -> int:
    """Return *duration* in ms: a whole number of ms, text such as "250ms", "10s", "5m", "1h", "1d", or a
    timedelta.

    ConfigError, which names *what*, for anything else and for less than *least_ms*. A number below a second
    is given a warning: most often seconds or minutes were meant.

    >>> [duration_ms(each, "size") for each in ("250ms", "10s", "5m", "1h", "1d", 7)]
    [250, 10000, 300000, 3600000, 86400000, 7]
    >>> duration_ms("1 hour", "size")
    Traceback (most recent call last):
    ...
    holdfast.errors.ConfigError: size '1 hour': write a duration as "250ms", "10s", "5m", "1h" or "1d", or as whole ms
    """  # noqa: E501
    match = _TEXT.fullmatch(duration) if isinstance(duration, str) else None
    if match is not None:
        found = int(match[1]) * _MS[match[2]]
    elif type(duration) is int:
        found = duration
        if 0 < found < _SECOND_MS:
            warnings.warn(
                f'{what} {found}: a number is in ms, so this is {found} ms; write "{found}s" or "{found}m"'
                f' for seconds or minutes, or "{found}ms"',
                ShortDurationWarning,
                stacklevel=3,
            )
    elif isinstance(duration, timedelta) and not duration % timedelta(milliseconds=1):
        found = duration // timedelta(milliseconds=1)
    else:
        raise ConfigError(
            f'{what} {duration!r:.100}: write a duration as "250ms", "10s", "5m", "1h" or "1d", or as'
            " whole ms"
        )
    if not least_ms <= found <= LIMIT_MS:
        raise ConfigError(f"{what} {duration!r:.100}: it must be from {least_ms} to {LIMIT_MS} ms")
    return found
