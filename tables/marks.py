"""Marks: the watermark that a transaction reports to partitions of a processor's topics without a record of
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.clock import Clock, system_clock
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.origins import ALONE, ORIGIN, UNHEARD, Mark, StepReached, mark_headers, told_of

MARK_EVERY_S, MARKS_PER_S = 0.1, 64
"""The least interval at which a partition is sent a mark that the watermark has moved, and roughly the marks
per second: with more partitions each is sent marks less often. That an origin lets go, or resumes, is written
at once.
"""
REPEAT_EVERY_S = 10.0
"""After so long a mark is repeated, though records carry all of it but the number of origins: the head of its
log may be trimmed.
"""


class _Said(NamedTuple):
    """The last watermark sent to a partition, and when by a mark."""

    watermark_ms: int
    has_ended: bool
    marked_s: float


class StepMarks:
    """The watermarks sent to the partitions of a step's topics for one origin: *partition* of the step.

    A new owner has sent nothing, so its first transaction, or the first time that it is idle, sends all.
    """

    def __init__(
        self, processor: Processor[Any, Any], partition: int, *, clock: Clock = system_clock
    ) -> None:
        self.topics = processor.told_topics
        self.sources = processor.topics
        self._partition, self.in_place, self._clock = partition, processor.in_place, clock
        self._said: dict[tuple[str, int], _Said] = {}
        self._next: dict[tuple[str, int], _Said] = {}
        self._reached = StepReached(UNHEARD, False)
        self.at_end: frozenset[int] = frozenset()
        """The numbers of the sources that are at the ends of their logs and let go."""

    def begin(self, reached: StepReached) -> None:
        """Make the next transaction write *reached*, which may be repeated until `committed`."""
        self._reached, self._next = reached, {}

    def has_told(self, reached: StepReached) -> bool:
        """Return whether all partitions know of *reached*, as far as any is known."""
        said = self._said.values()
        return bool(said) and all((each.watermark_ms, each.has_ended) == reached for each in said)

    def add(self, topic: str, records: Sequence[list[Any]], origins: int) -> None:
        """Append the mark that is due to the *records* of each partition of a topic; *origins* is the number
        of the source's partitions.
        """
        now_s, reached = self._clock.monotonic_s(), self._reached
        every_s = max(MARK_EVERY_S, len(records) / MARKS_PER_S)
        count = ALONE if self.in_place else max(origins, self._partition + 1)
        for target in (self._partition,) if self.in_place else range(len(records)):
            place, sent = (topic, target), records[target]
            said = self._said.get(place)
            known_ms, has_ended = (UNHEARD, False) if said is None else said[:2]
            carried = sent[-1][2] if sent else ()
            headers = ((ORIGIN, carried),) if isinstance(carried, bytes) else tuple(carried)
            if (told := told_of(headers)) is not None:
                known_ms, has_ended = max(known_ms, told.after_ms), False
            if (
                said is None
                or has_ended != reached.has_ended
                or now_s - said.marked_s >= REPEAT_EVERY_S
                or (reached.watermark_ms > known_ms and now_s - said.marked_s >= every_s)
            ):
                sent.append((None, None, list(mark_headers(Mark(self._partition, *reached, count)))))
                self._next[place] = _Said(*reached, now_s)
            else:
                self._next[place] = _Said(known_ms, has_ended, said.marked_s)

    def committed(self) -> None:
        """Take the marks sent as durable."""
        self._said.update(self._next)
        self._next = {}
