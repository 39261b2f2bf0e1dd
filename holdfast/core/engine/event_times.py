"""Limits of how far an event's own time may be ahead of its record's append time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.errors import FutureTimeError

DEFAULT_AHEAD_MS = 86_400_000
NO_LIMIT_MS = 1 << 62
FIRST_APPEND_MS = 10**12
"""No broker has appended a record before (2001): an earlier append time is that of a test, or of none."""
_unbounded = False


class TimeWithin:
    """A function that reads an event's time, with its own limit of how far that may be ahead."""

    __slots__ = ("ahead_ms", "holds", "read")

    def __init__(self, read: Callable[[Any], int], ahead_ms: int, *, holds: bool = False) -> None:
        self.read, self.ahead_ms, self.holds = read, ahead_ms, holds

    def __call__(self, event: Any) -> int:
        return self.read(event)


def unlimited(read: Callable[[Any], int] | None) -> Callable[[Any], int] | None:
    """Return *read* without a limit: for records that were held against it before."""
    return None if read is None else TimeWithin(getattr(read, "read", read), NO_LIMIT_MS)


def limit_of(read: Callable[[Any], int] | None) -> tuple[int, bool]:
    """Return the most ms that times may be ahead, and True if later ones are held, False if refused."""
    return (read.ahead_ms, read.holds) if isinstance(read, TimeWithin) else (DEFAULT_AHEAD_MS, False)


def is_ahead(at_ms: int, append_ms: int, limit_ms: int) -> bool:
    """Return whether an event time is further ahead of its append time than *limit_ms*; False where the
    record has no append time of a broker's.
    """
    return at_ms - append_ms > limit_ms and append_ms >= FIRST_APPEND_MS and not _unbounded


def check_ahead(topic: str, at_ms: int, append_ms: int, limit_ms: int, *, holds: bool) -> bool:
    """Return whether an event time moves the watermark; FutureTimeError where its record is refused."""
    if not is_ahead(at_ms, append_ms, limit_ms):
        return True
    if holds:
        return False
    raise FutureTimeError(
        f"event time {_spoken(at_ms)} is {timedelta(milliseconds=min(at_ms - append_ms, 10**14))} ahead of"
        f" its append time {_spoken(append_ms)}{f' in {topic}' if topic else ''}, and"
        f" {timedelta(milliseconds=limit_ms)} are allowed: mend the clock of its producer, or set Source(...,"
        ' ahead=...); with ahead_policy="hold" such a record is folded and moves no watermark'
    )


@contextmanager
def no_limits() -> Iterator[None]:
    """Take every event time while this lasts: for tests that set no append times."""
    global _unbounded
    before, _unbounded = _unbounded, True
    try:
        yield
    finally:
        _unbounded = before


def _spoken(at_ms: int) -> str:
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"
