"""Creation times of a transaction's rows, as a header of its progress record: an outbox's latency is computed
from them.

    holdfast-created: 1764072000000x3,12,40x2      three rows in one ms, one 12 ms after, two 40 ms after that

Harvesters that do not know the header pass over it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from holdfast.core.engine.declared.processor import Headers
from holdfast.errors import DecodeError

CREATED = "holdfast-created"
LIMIT_TIMES = 2_000
"""The most different times in a header; if there are more, all are rounded down to steps of 10 ms, 100 ms and
so on.
"""
LIMIT_CREATED_BYTES = 200_000
LIMIT_MS = 253_402_300_800_000
"""The year 10000. A number that is not between 1970 and this is no creation time in ms, but one in ns, or
something else. MySQL returns 0 for times that it cannot convert.
"""
_PAIR = re.compile(rb"(-?[0-9]{1,20})(?:x([0-9]{1,9}))?")


def is_created_time(at_ms: int) -> bool:
    """Return whether *at_ms* can be when a row was created: after the beginning of 1970 and before the
    year 10000.

    >>> is_created_time(1764072000000), is_created_time(1764072000000 * 10**6), is_created_time(-1)
    (True, False, False)
    """
    return 0 < at_ms < LIMIT_MS


def created_header(created_ms: Iterable[int | None]) -> tuple[str, bytes] | None:
    """Return the header with the rows' creation times, in ms; None if no row has a time.

    What cannot be one is left out.

    >>> created_header([1012, 1000, None, 1000])
    ('holdfast-created', b'1000x2,12')
    """
    times = Counter(each for each in created_ms if each is not None and 0 < each < LIMIT_MS)
    step = 10
    while len(times) > LIMIT_TIMES:
        rounded = Counter[int]()
        for at_ms, rows in times.items():
            rounded[at_ms - at_ms % step] += rows
        times, step = rounded, step * 10
    told, before = [], 0
    for at_ms in sorted(times):
        told.append(f"{at_ms - before}" if times[at_ms] == 1 else f"{at_ms - before}x{times[at_ms]}")
        before = at_ms
    return (CREATED, ",".join(told).encode()) if told else None


def read_created(headers: Headers) -> list[tuple[int, int]]:
    """Return (ms, how many rows) for each time in a progress record, ascending; empty if it has no such
    header, DecodeError if that is malformed.

    Earlier releases wrote any number in the column, ns too: numbers that cannot be a creation time are passed
    over.

    >>> read_created((("holdfast-created", b"1000x2,12"),))
    [(1000, 2), (1012, 1)]
    """
    told = next((value for name, value in headers if name == CREATED), None)
    if told is None:
        return []
    if len(told) > LIMIT_CREATED_BYTES:
        raise DecodeError(
            f"{CREATED} of {len(told)} bytes: a progress record tells {LIMIT_TIMES} times at most"
        )
    found, at_ms = list[tuple[int, int]](), 0
    for each in told.split(b","):
        pair = _PAIR.fullmatch(each)
        if pair is None:
            raise DecodeError(
                f"{CREATED} {told[:60]!r}: {each[:40]!r} is not a time, or a time and how many rows"
            )
        at_ms += int(pair[1])
        if is_created_time(at_ms):
            found.append((at_ms, int(pair[2] or 1)))
    return found


def rank_of(ordered: Sequence[tuple[int, int]], percent: int) -> int:
    """Return the value that *percent* of the rows reach or stay below, by nearest rank; *ordered* is (value,
    how many rows), ascending.

    >>> rank_of([(1, 1), (5, 2), (9, 1)], 50), rank_of([(1, 1), (5, 2), (9, 1)], 99)
    (5, 9)
    """
    left = -(-sum(count for _, count in ordered) * percent // 100)
    for value, count in ordered:
        left -= count
        if left <= 0:
            return value
    return ordered[-1][0]
