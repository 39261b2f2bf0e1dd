"""Lanes: one partition worked on by several members at once, each key by one of them, in order
(PROTOCOL.md#lanes).

A lane is claimed under a topic name of its own, so every reader of the log that knows claims knows lanes.

    orders/0  --lane 0-->  orders~lane-0-of-8/0
              --lane 1-->  orders~lane-1-of-8/0   ...
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple

from holdfast.core.engine.declared.partitioners import murmur2
from holdfast.errors import ConfigError

LANE_MARK = "~lane-"
"""No topic of Kafka's can have `~` in its name, so the name of a lane is never that of a topic."""
LIMIT_LANES = 256
LIMIT_KEYS = 65_536
"""Keys whose lane is remembered; to work one out again costs a few microseconds."""

_NAME = re.compile(r"(?P<topic>.+)~lane-(?P<lane>0|[1-9]\d{0,2})-of-(?P<lanes>[1-9]\d{0,2})")


class Lane(NamedTuple):
    """One lane of all partitions of a topic."""

    topic: str
    lane: int
    lanes: int


def check_lanes(lanes: int) -> None:
    """Raise ConfigError unless a partition can be split into so many lanes."""
    if not 2 <= lanes <= LIMIT_LANES:
        raise ConfigError(f"lanes is {lanes}: use 2 to {LIMIT_LANES}, or 0 for whole partitions")


def lane_topic(topic: str, lane: int, lanes: int) -> str:
    """Return the name under which a lane of *topic* is claimed.

    >>> lane_topic("orders", 3, 8)
    'orders~lane-3-of-8'
    """
    check_lanes(lanes)
    if not 0 <= lane < lanes:
        raise ConfigError(f"lane {lane} of {lanes}: lanes count from 0 to {lanes - 1}")
    return f"{topic}{LANE_MARK}{lane}-of-{lanes}"


def lane_topics(topic: str, lanes: int) -> tuple[str, ...]:
    """Return the names of all lanes of *topic*, by lane."""
    return tuple(lane_topic(topic, lane, lanes) for lane in range(lanes))


@lru_cache(maxsize=4_096)
def lane_named(name: str) -> Lane | None:
    """Return which lane is claimed under *name*; None for the name of a whole topic.

    >>> lane_named("orders~lane-3-of-8")
    Lane(topic='orders', lane=3, lanes=8)
    >>> lane_named("orders"), lane_named("orders~lane-8-of-8"), lane_named("orders~lane-03-of-8")
    (None, None, None)
    """
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    lane, lanes = int(found["lane"]), int(found["lanes"])
    return Lane(found["topic"], lane, lanes) if lane < lanes and 2 <= lanes <= LIMIT_LANES else None


def lane_of_key(key: bytes, lanes: int) -> int:
    """Return the lane of *key*: the high bits of the hash whose low bits chose the partition.

    With the low bits, the keys of a partition would share a few of its lanes: with 4 partitions, hash mod 8
    has two values.

    >>> [lane_of_key(key, 8) for key in (b"key-0", b"key-1", b"key-2")]
    [0, 0, 3]
    """
    return (murmur2(key) & 0x7FFFFFFF) * lanes >> 31


def lane_of(key: bytes | None, offset: int, lanes: int) -> int:
    """Return the lane of a message: by its key, or in turn by its offset without one."""
    return offset % lanes if key is None else lane_of_key(key, lanes)


def lane_finder(lanes: int) -> Callable[[bytes | None, int], int]:
    """Return `lane_of` for so many lanes, which remembers the keys it has seen lately.

    >>> lane_finder(8)(b"key-0", 17), lane_finder(8)(None, 17)
    (0, 1)
    """
    known = lru_cache(maxsize=LIMIT_KEYS)(lambda key: lane_of_key(key, lanes))
    return lambda key, offset: offset % lanes if key is None else known(key)


def lowest(offsets: Iterable[int | None]) -> int | None:
    """Return the position of a partition whose lanes are at *offsets*: the lowest; None unless all are known.

    >>> lowest([30, 10, 20]), lowest([30, None, 20]), lowest([])
    (10, None, None)
    """
    known = list(offsets)
    found = [each for each in known if each is not None]
    return min(found) if found and len(found) == len(known) else None


class ClaimNames:
    """Under which names the partitions of Kafka's topics are claimed: with 0 lanes their own, else one for
    each lane.

    >>> names = ClaimNames(2)
    >>> names.all(["orders"]), names.source("orders~lane-1-of-2"), names.lane("orders~lane-1-of-2")
    (('orders~lane-0-of-2', 'orders~lane-1-of-2'), 'orders', 1)
    """

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self._names: dict[str, tuple[str, ...]] = {}

    def claimed_as(self, topic: str) -> tuple[str, ...]:
        """Return the names under which *topic* is claimed, by lane."""
        names = self._names.get(topic)
        if names is None:
            names = self._names[topic] = lane_topics(topic, self.lanes) if self.lanes else (topic,)
        return names

    def all(self, topics: Iterable[str]) -> tuple[str, ...]:
        """Return the names under which *topics* are claimed."""
        return tuple(name for topic in topics for name in self.claimed_as(topic))

    def source(self, name: str) -> str:
        """Return the topic whose messages are claimed under *name*."""
        found = lane_named(name) if self.lanes else None
        return name if found is None else found.topic

    def sources(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the topics whose messages are claimed under *names*, each once."""
        return tuple(dict.fromkeys(map(self.source, names)))

    def lane(self, name: str) -> int | None:
        """Return which lane is claimed under *name*; None without lanes."""
        found = lane_named(name) if self.lanes else None
        return None if found is None else found.lane


def is_full(was_full: bool, level: float) -> bool:
    """Return whether a lane takes nothing now whose share of the queue is used up to *level*; once full, not
    before half of it is gone.

    >>> is_full(False, 0.9), is_full(False, 1.0), is_full(True, 0.9), is_full(True, 0.5)
    (False, True, True, False)
    """
    return level > 0.5 if was_full else level >= 1.0


class ReadingStep(NamedTuple):
    """An instruction for reading a partition: *seek* to an offset, or stop reading (*idle*); neither:
    continue.
    """

    seek: int | None = None
    idle: bool = False


GO_ON = ReadingStep()
NEAR = 2_000
"""Unwanted messages are read through, rather than jumped over, when there are at most so many."""


def steer(position: int | None, wanted: Iterable[int]) -> ReadingStep:
    """Return how to read on at *position* (None: nothing is being read) for lanes that want their messages
    from *wanted* on.

    One pass serves all lanes: it begins at the position of the slowest, and the others skip the messages that
    they have had.

    >>> steer(None, [70, 50]), steer(50, [70, 50]), steer(60, [70, 50]), steer(60, [9_000])
    (ReadingStep(seek=50, idle=False), ReadingStep(seek=None, idle=False), ReadingStep(seek=50, idle=False), ReadingStep(seek=9000, idle=False))
    >>> steer(60, []), steer(None, [])
    (ReadingStep(seek=None, idle=True), ReadingStep(seek=None, idle=False))
    """  # noqa: E501
    first = min(wanted, default=None)
    if first is None:
        return GO_ON if position is None else ReadingStep(idle=True)
    if position is None or first < position or first > position + NEAR:
        return ReadingStep(seek=first)
    return GO_ON
