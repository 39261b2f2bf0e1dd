"""The four kinds of windows, as they are declared.

A window holds the records of one key whose event times are in [start, end): *end is exclusive* in every kind.
Stream time is the highest event time seen in a partition; downstream of a step, see `Windowed`. A window is
closed when stream time >= end + grace; then it takes no more records.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.core.engine.declared.durations import Duration, duration_ms
from holdfast.errors import ConfigError

LIMIT_WINDOWS = 1_000
"""The most hopping windows that a record may be in: each is a row that it changes."""


@dataclass(frozen=True, slots=True, init=False)
class Tumbling:
    """Windows of one size, side by side: [0, size), [size, 2 * size), ... in ms since 1970.

    A record is late when its window is closed.

    >>> Tumbling("1h", grace="10m")
    Tumbling(size_ms=3600000, grace_ms=600000)
    """

    size_ms: int
    grace_ms: int

    def __init__(self, size: Duration, *, grace: Duration = 0) -> None:
        object.__setattr__(self, "size_ms", duration_ms(size, "size of tumbling windows"))
        object.__setattr__(self, "grace_ms", duration_ms(grace, "grace of tumbling windows", least_ms=0))


@dataclass(frozen=True, slots=True, init=False)
class Hopping:
    """Windows of one size, one beginning at each multiple of *every*: a record is in about size / every of
    them.

    A record goes into those of its windows that are open. It is late when all are closed; when some are, it
    is counted as partly late. Windows do not begin before time 0.

    >>> Hopping("1h", every="10m")
    Hopping(size_ms=3600000, every_ms=600000, grace_ms=0)
    """

    size_ms: int
    every_ms: int
    grace_ms: int

    def __init__(self, size: Duration, *, every: Duration, grace: Duration = 0) -> None:
        size_ms = duration_ms(size, "size of hopping windows")
        every_ms = duration_ms(every, "every of hopping windows")
        if every_ms > size_ms:
            raise ConfigError(
                f"hopping windows of {size!r} every {every!r} leave times between them: every must not be"
                " longer than the size"
            )
        if size_ms > LIMIT_WINDOWS * every_ms:
            raise ConfigError(
                f"hopping windows of {size!r} every {every!r}: a record would be in more than {LIMIT_WINDOWS}"
                " windows; hop further, or take Sliding"
            )
        object.__setattr__(self, "size_ms", size_ms)
        object.__setattr__(self, "every_ms", every_ms)
        object.__setattr__(self, "grace_ms", duration_ms(grace, "grace of hopping windows", least_ms=0))


@dataclass(frozen=True, slots=True, init=False)
class Sliding:
    """Windows of records that are at most *difference* apart, one for each different set of them, as in Kafka
    Streams.

    For a record of time t there are two windows of its key: the one that ends with it, [t - difference, t],
    and the one that begins after it, [t + 1, t + 1 + difference], if any record is in it. Both times are
    inclusive, so `end_ms` is start + difference + 1.

    A record is late when the window that ends with it is closed: when stream time > t + grace. It is then in
    no window at all; Kafka Streams puts it into later windows that are still open. So each window holds
    exactly the records that were not late. The start of a window may be negative when times are below
    *difference*.

    A record changes each window it is in, and looks at all windows of its key within 2 * difference before
    it. So the cost of a record grows with the number of records of its key within *difference*.
    """

    difference_ms: int
    grace_ms: int

    def __init__(self, difference: Duration, *, grace: Duration = 0) -> None:
        object.__setattr__(self, "difference_ms", duration_ms(difference, "difference of sliding windows"))
        object.__setattr__(self, "grace_ms", duration_ms(grace, "grace of sliding windows", least_ms=0))


@dataclass(frozen=True, slots=True, init=False)
class Session:
    """Windows of records of which each is at most *gap* after another; a pause of more than *gap* ends one.

    A session begins with its first record's time. Its `end_ms` is the last one's + gap + 1: the first time at
    which a record no longer belongs to it. A record that is within *gap* of two open sessions merges them.

    A record is late when a session of its own would be closed: when stream time > t + gap + grace. Closed
    sessions are not merged again. (Kafka Streams still takes a late record that is within *gap* of an open
    session, and merges a closed one that it still holds.)
    """

    gap_ms: int
    grace_ms: int

    def __init__(self, gap: Duration, *, grace: Duration = 0) -> None:
        object.__setattr__(self, "gap_ms", duration_ms(gap, "gap of sessions"))
        object.__setattr__(self, "grace_ms", duration_ms(grace, "grace of sessions", least_ms=0))


Window = Tumbling | Hopping | Sliding | Session
