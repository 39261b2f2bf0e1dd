"""Retention of a topic's records, declared once and carried by the topic's name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol, Self

from holdfast.core.engine.declared.durations import duration_ms
from holdfast.core.engine.declared.serdes import Serde
from holdfast.errors import ConfigError

FOREVER_MS = -1
"""Kafka's `retention.ms` of a topic whose records are never deleted."""
LANDED_MS = -2
"""The retention of a topic whose records are kept until a lake and all tables have them. Kafka never deletes
them by itself.
"""
_NAMED = {"forever": FOREVER_MS, "landed": LANDED_MS}
_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms"))


class DeclaredTopic(str):
    """The name of a topic with what a `Source` says of it: its serdes, and how long its records are kept
    (None if undeclared, FOREVER_MS for ever, LANDED_MS until they are landed).

    The name carries these, since some declarations keep only the name of a source.
    """

    serde: Serde[Any]
    key: Serde[Any]
    retention_ms: int | None
    watermarks: bool
    """True if its records carry their origins, with marks between them."""
    idle_ms: int | None
    """The ms that one of its partitions stays at the end of its log before it stops holding event time back;
    None if the source does not set it.
    """

    def __new__(
        cls,
        topic: str,
        serde: Serde[Any],
        key: Serde[Any],
        retention_ms: int | None,
        watermarks: bool = False,
        idle_ms: int | None = None,
    ) -> Self:
        made = super().__new__(cls, topic)
        made.serde, made.key, made.retention_ms = serde, key, retention_ms
        made.watermarks, made.idle_ms = watermarks, idle_ms
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        told = self.watermarks, self.idle_ms
        return DeclaredTopic, (str(self), self.serde, self.key, self.retention_ms, *told)


def retention_ms(retention: str | int | None, whose: str) -> int | None:
    """Return *retention* in ms: a duration such as "7d", whole ms, "forever" (FOREVER_MS), "landed"
    (LANDED_MS), or None for undeclared.

    ConfigError, which names *whose*, for anything else.

    >>> [retention_ms(each, "source 'orders'") for each in ("7d", "forever", "landed", 5_000, None)]
    [604800000, -1, -2, 5000, None]
    """
    if retention is None or (isinstance(retention, str) and retention in _NAMED):
        return None if retention is None else _NAMED[retention]
    try:
        return duration_ms(retention, f"retention of {whose}")
    except ConfigError as error:
        raise ConfigError(
            f'{error}; "forever" keeps all records, and "landed" those that no lake has yet'
        ) from error


def declared_ms(topic: str) -> int | None:
    """Return how long the records of *topic* are declared to be kept, in ms; None for a plain name."""
    found: int | None = getattr(topic, "retention_ms", None)
    return found


def kept_ms(topic: str, retention: str | int | None, whose: str) -> int | None:
    """Return the retention in ms of *topic* by *retention* or its name; ConfigError when these differ."""
    declared, before = retention_ms(retention, whose), declared_ms(topic)
    if declared is None or declared == before:
        return before
    if before is not None:
        raise ConfigError(
            f"{whose}: its stream is declared with retention {spoken(before)}, and here with"
            f" {spoken(declared)}: declare one of the two"
        )
    return declared


def spoken(ms: int) -> str:
    """Return a retention as it is declared.

    >>> [spoken(each) for each in (FOREVER_MS, LANDED_MS, 604_800_000, 90_000, 1_500, 1)]
    ['forever', 'landed', '7d', '90s', '1500ms', '1ms']
    """
    for name, named_ms in _NAMED.items():
        if ms == named_ms:
            return name
    return next(f"{ms // unit}{name}" for unit, name in _UNITS if ms % unit == 0)


def configured_ms(ms: int) -> int:
    """Return Kafka's `retention.ms` of a topic for which *ms* is declared.

    >>> configured_ms(5), configured_ms(FOREVER_MS), configured_ms(LANDED_MS)
    (5, -1, -1)
    """
    return FOREVER_MS if ms == LANDED_MS else ms


def is_shorter(one_ms: int, other_ms: int) -> bool:
    """Return whether records that Kafka keeps for *one_ms* are gone before those kept for *other_ms*.

    >>> is_shorter(5, FOREVER_MS), is_shorter(FOREVER_MS, 5), is_shorter(5, 6), is_shorter(6, 6)
    (True, False, True, False)
    """
    return one_ms != FOREVER_MS and (other_ms == FOREVER_MS or one_ms < other_ms)


class _Declared(Protocol):
    """The part of a processor that names topics."""

    @property
    def name(self) -> str: ...

    @property
    def declared_topics(self) -> tuple[str, ...]: ...

    @property
    def kept_whole(self) -> tuple[str, ...]: ...


def retentions(processors: Iterable[_Declared]) -> dict[str, int]:
    """Return the retention in ms of each topic for which *processors* declare one.

    ConfigError when two declarations of one topic differ, or when the topic of a global table has a limit.
    """
    processors = list(processors)
    found: dict[str, tuple[int, str]] = {}
    for topic, ms, name in _declarations(processors):
        known_ms, by = found.setdefault(topic, (ms, name))
        if known_ms != ms:
            where = f"processor {name}" if by == name else f"processors {by} and {name}"
            raise ConfigError(
                f"topic {topic} is declared with retention {spoken(known_ms)} and {spoken(ms)}, by {where}: a"
                " topic has one retention; declare the same at each, or at one place alone"
            )
    for processor in processors:
        for topic in processor.kept_whole:
            ms, by = found.get(topic, (FOREVER_MS, ""))
            if ms != FOREVER_MS:
                raise ConfigError(
                    f"topic {topic} is declared with retention {spoken(ms)} by processor {by}, but processor"
                    f" {processor.name} reads a global table of it, which needs all records: write"
                    ' retention="forever", or leave it out'
                )
    return {topic: ms for topic, (ms, _) in found.items()}


def landed_topics(processors: Iterable[_Declared]) -> frozenset[str]:
    """Return the topics whose records are declared to be kept until they are landed."""
    return frozenset(topic for topic, ms in retentions(processors).items() if ms == LANDED_MS)


def _declarations(processors: Iterable[_Declared]) -> Iterator[tuple[str, int, str]]:
    for processor in processors:
        for topic in processor.declared_topics:
            if (ms := declared_ms(topic)) is not None:
                yield str(topic), ms, processor.name
