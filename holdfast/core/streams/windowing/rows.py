"""The rows of a table of windows, and their keys.

    ada@0001700000000000               a window of key "ada" by its start, 16 digits of ms: in order of time
    00 stream/3                        stream time of partition 3, and how many of its records were late
    00 due/0001700003600000/c/ada@...  an action on a window, due at that stream time, in order of time
    00 open/ada                        where the open sessions of "ada" begin
    00 idle/3                          with `idle=`: when stream time of partition 3 moved, and what tick was
    asked for
    00 origin/3/0/7                    for steps: the watermark of origin 7, as partition 3 knows it
    00 held/ada@0001700000000000/0000008/0000000000000000012
                                       with `ordered`: a record of "ada" by event time, origin + 1, offset

00 is the character U+0000; keys of users do not begin with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, ClassVar, Generic, TypeVar, get_args, get_origin

import msgspec

from holdfast.core.engine.state.rows import NEVER
from holdfast.errors import FoldError

A = TypeVar("A")

RESERVED = "\x00"
STREAM, DUE, OPEN, IDLE, ORIGINS, HELD = (
    f"{RESERVED}{each}/" for each in ("stream", "due", "open", "idle", "origin", "held")
)
BEHIND_RESERVED = f"{RESERVED}\U0010ffff"
"""A key above those of all rows that are no windows, and below those of all windows."""
DIGITS = 16
ORIGIN_DIGITS, OFFSET_DIGITS = 7, 19
HELD_TAIL = 1 + DIGITS + 1 + ORIGIN_DIGITS + 1 + OFFSET_DIGITS
"""The length of `@time/origin/offset`, which follows the user's key in the key of a held record."""
LIMIT_TIME_MS = 10**15
"""Event times are below this: the year 33658."""


class WindowRow(msgspec.Struct, Generic[A], frozen=True, array_like=True, tag="w", gc=False):
    """A window of one key: its aggregate, and the time before which it ends (exclusive, ms).

    The rest is for the fold: *told_ms* is the stream time at which its last update was sent, -1 for never;
    *waiting* is true if it has changed since. *first_ms* and *last_ms* are the earliest and latest event
    times in a sliding window.
    """

    value: A
    end_ms: int
    told_ms: int = -1
    waiting: bool = False
    first_ms: int = 0
    last_ms: int = 0


class StreamRow(msgspec.Struct, frozen=True, array_like=True, tag="s", gc=False):
    """Stream time of a partition in ms (-1 before its first record), and its late records.

    *late* were in no open window, *partly_late* in some of their hopping windows only. *failed* results could
    not be sent when their time came. Nothing is due before *next_ms*.
    """

    stream_ms: int = -1
    next_ms: int = NEVER
    late: int = 0
    partly_late: int = 0
    failed: int = 0


class DueRow(msgspec.Struct, frozen=True, array_like=True, tag="d", gc=False):
    """An entry of the index of due times; its key holds everything."""


class OpenRow(msgspec.Struct, frozen=True, array_like=True, tag="o", gc=False):
    """The starts of a key's open sessions, ascending, in ms."""

    starts: tuple[int, ...]


class IdleRow(msgspec.Struct, frozen=True, array_like=True, tag="i", gc=False):
    """For ticks: the append time at which stream time was last moved (or its equivalent, once ticks move it),
    and when the next tick is due.
    """

    moved_ms: int
    tick_ms: int = NEVER


class OriginRow(msgspec.Struct, frozen=True, array_like=True, tag="g", gc=False):
    """The watermark of an origin, in ms, and whether it is at the end of its log and lets go.

    *origins* is the number of origins that it has announced, 0 where there is no other, -1 before it has
    announced any. *late* of its records were late by its own watermark, *late_after_idle* only because others
    advanced while it had let go.
    """

    watermark_ms: int
    has_ended: bool = False
    origins: int = -1
    late: int = 0
    late_after_idle: int = 0


class HeldRecord(msgspec.Struct, frozen=True, array_like=True, tag="h", gc=False):
    """A record that is kept until its windows close: the columns that its decoder takes.

    It is in no window that ends at *missed_ms* or before.
    """

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int = -1
    partition: int = -1
    missed_ms: int = -LIMIT_TIME_MS


class HeldWindow(msgspec.Struct, frozen=True, array_like=True, tag="p", gc=False):
    """A window of which the records are kept, and folded when it closes; see `WindowRow`."""

    end_ms: int
    first_ms: int = 0
    last_ms: int = 0

    value: ClassVar[None] = None
    waiting: ClassVar[bool] = False


class WindowResult(msgspec.Struct, Generic[A], frozen=True):
    """A window as it is sent and read: its key, start (inclusive), end (exclusive), both in ms, and its
    aggregate.
    """

    key: str
    start_ms: int
    end_ms: int
    value: A


def window_key(key: str, start_ms: int) -> str:
    """Return the row key of the window of *key* that starts at *start_ms*.

    >>> window_key("ada", 1_700_000_000_000)
    'ada@0001700000000000'
    """
    return f"{key}@{start_ms:016d}"


def parse_window_key(window: str) -> tuple[str, int] | None:
    """Return (key, start in ms) of a row key that `window_key` made; None for any other.

    >>> parse_window_key("ada@0001700000000000"), parse_window_key("ada")
    (('ada', 1700000000000), None)
    """
    at = len(window) - DIGITS - 1
    digits = window[at + 1 :]
    if at < 0 or window[at] != "@" or window[0] == RESERVED or not digits.removeprefix("-").isdecimal():
        return None
    return window[:at], int(digits)


@lru_cache(maxsize=4_096)
def stream_key(partition: int) -> str:
    """Return the key of the row with *partition*'s stream time and its count of late records: a
    `StreamRow`.
    """
    return f"{STREAM}{partition}"


def windows_prefix(key: str, since_ms: int | None = None, until_ms: int | None = None) -> str:
    """Return the longest prefix of the row keys of all windows of *key* that start in [since_ms, until_ms).

    >>> windows_prefix("ada", 1_700_000_000_000, 1_700_000_000_100)
    'ada@00017000000000'
    """
    if since_ms is None or until_ms is None or not 0 <= since_ms < until_ms:
        return f"{key}@"
    first, last = window_key(key, since_ms), window_key(key, until_ms - 1)
    same = next(
        (at for at, pair in enumerate(zip(first, last, strict=True)) if pair[0] != pair[1]), len(first)
    )
    return first[:same]


def windows_of(
    rows: Iterable[tuple[str, Any]],
    key: str | None = None,
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
) -> Iterator[WindowResult[Any]]:
    """Yield the windows among (row key, row) pairs, as a scan or `Topology.table(...).items()` gives them.

    Only those of *key*, if given, and only those that start at or after *since_ms* and before *until_ms*.

    >>> [*windows_of([("ada@0000000000003600", WindowRow(2, 7_200)), ("\\x00stream/0", StreamRow(3_600))])]
    [WindowResult(key='ada', start_ms=3600, end_ms=7200, value=2)]
    """
    for name, row in rows:
        if isinstance(row, WindowRow) and starts_within(name, key, since_ms, until_ms):
            found = parse_window_key(name)
            assert found is not None, "it is the key of a window"
            yield WindowResult(found[0], found[1], row.end_ms, row.value)


def holds_windows(row: Any) -> bool:
    """Return whether rows of type *row* are windows, or windows among others.

    >>> holds_windows(row_type(int)), holds_windows(WindowRow[int]), holds_windows(int | str)
    (True, True, False)
    """
    kinds = get_args(row) if get_origin(row) is not WindowRow else ()
    return any((get_origin(kind) or kind) is WindowRow for kind in (row, *kinds))


def why_no_range(since_ms: object, until_ms: object) -> str | None:
    """Return why no window can start at or after *since_ms* and before *until_ms*; None for a range, open
    where it has None.

    >>> why_no_range(5, None), why_no_range(5, 5)
    (None, 'since_ms is 5 and until_ms is 5, so no window can start between them; until_ms is exclusive and must be above since_ms')
    """  # noqa: E501
    for name, bound in (("since_ms", since_ms), ("until_ms", until_ms)):
        if bound is not None and (type(bound) is not int or not -LIMIT_TIME_MS < bound <= LIMIT_TIME_MS):
            return f"{name} is {bound!r:.100}; write a whole number of ms since 1970, {LIMIT_TIME_MS} at most"
    if isinstance(since_ms, int) and isinstance(until_ms, int) and until_ms <= since_ms:
        return (
            f"since_ms is {since_ms} and until_ms is {until_ms}, so no window can start between them; "
            "until_ms is exclusive and must be above since_ms"
        )
    return None


def starts_within(name: str, key: str | None, since_ms: int | None, until_ms: int | None) -> bool:
    """Return whether a row key is that of a window of *key*, if given, that starts at or after *since_ms* and
    before *until_ms*.

    >>> [starts_within("ada@0000000000003600", key, 3_600, until_ms) for key, until_ms in ((None, None), ("ada", 3_600), ("eve", None))]
    [True, False, False]
    """  # noqa: E501
    found = parse_window_key(name)
    if found is None or (key is not None and found[0] != key):
        return False
    return (since_ms is None or found[1] >= since_ms) and (until_ms is None or found[1] < until_ms)


@lru_cache(maxsize=4_096)
def idle_key(partition: int) -> str:
    """Return the key of the row, and of the tick timer, with which *partition* waits to be idle: an
    `IdleRow`.
    """
    return f"{IDLE}{partition}"


@lru_cache(maxsize=65_536)
def origin_key(partition: int, source: int, origin: int) -> str:
    """Return the key of the row of an origin: an `OriginRow`. Of several sources, *source* is its number."""
    return f"{ORIGINS}{partition}/{source}/{origin}"


def row_type(aggregate: Any, *, idle: bool = False, origins: bool = False, ordered: bool = False) -> Any:
    """Return the type of the rows of a table of windows whose aggregates are of type *aggregate*."""
    rows = WindowRow[aggregate] | StreamRow | DueRow | OpenRow
    if ordered:
        rows |= HeldRecord | HeldWindow
    if origins:
        rows |= OriginRow
    return rows | IdleRow if idle else rows


def routed(route: Callable[[str, int], int | None] | None) -> Callable[[str, int], int | None]:
    """Return the route of a table of windows, given that of the keys."""

    def of(name: str, partitions: int) -> int | None:
        if name.startswith((STREAM, IDLE, ORIGINS)):
            number = name.removeprefix(STREAM).removeprefix(IDLE).removeprefix(ORIGINS).partition("/")[0]
            return int(number) if number.isdecimal() and int(number) < partitions else None
        if route is None:
            return None
        if name.startswith(OPEN):
            return route(name.removeprefix(OPEN), partitions)
        what = name[len(DUE) + DIGITS + 3 :] if name.startswith(DUE) else name
        if what.startswith(HELD):
            return route(what[len(HELD) : -HELD_TAIL], partitions)
        found = parse_window_key(what)
        return None if found is None else route(found[0], partitions)

    return of


def checked_key(key: object) -> str:
    """Return *key*; FoldError unless it may be a key of a table of windows."""
    if type(key) is not str or key[:1] == RESERVED:
        raise FoldError(f"key {key!r:.200}: it must be text that does not begin with U+0000")
    return key


def checked_time(time_ms: object) -> int:
    """Return *time_ms*; FoldError unless it may be an event time."""
    if type(time_ms) is not int or not 0 <= time_ms < LIMIT_TIME_MS:
        raise FoldError(f"event time {time_ms!r:.200}: it must be whole ms since 1970, below {LIMIT_TIME_MS}")
    return time_ms
