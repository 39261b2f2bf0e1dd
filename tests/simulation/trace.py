"""The last events of a partition, and the error that shows them."""

from __future__ import annotations

from collections import deque
from hashlib import blake2b
from typing import Any

from holdfast.core.kafka.topic_partition import TopicPartition
from tests.simulation.timeline import Timeline

LIMIT_LINES = 40
WHOLE = TopicPartition("", -1)
"""Stands for what concerns all partitions: faults, starts and ends of processes."""


class Violation(AssertionError):
    """An invariant does not hold.

    *name* is the checker's; the text says where to look and how to see it again.
    """

    def __init__(
        self,
        name: str,
        text: str,
        *,
        seed: int,
        step: int,
        at_s: float,
        place: TopicPartition,
        lines: list[str],
    ) -> None:
        where = f" on {place.topic}/{place.partition}" if place.topic else ""
        story = "\n".join(f"  {line}" for line in lines)
        super().__init__(
            f"{name}{where}: {text}\nseed {seed}, step {step}, at {at_s:.3f} s; again: make sim SEED={seed}"
            f" SCHEDULES=1\n{story}"
        )
        self.name, self.text, self.seed, self.step, self.at_s, self.place = (
            name,
            text,
            seed,
            step,
            at_s,
            place,
        )


class Trace:
    """The last events of each partition, and a digest of all of them. Texts are put together only when they
    are read.
    """

    def __init__(self, timeline: Timeline, seed: int) -> None:
        self._timeline, self._seed = timeline, seed
        self._events: dict[TopicPartition, deque[tuple[float, int, str, tuple[Any, ...]]]] = {}
        self._hash = blake2b(digest_size=16)

    def note(self, place: TopicPartition, who: str, what: str, *args: Any) -> None:
        """Remember that *who* did *what*."""
        events = self._events.get(place)
        if events is None:
            events = self._events[place] = deque(maxlen=LIMIT_LINES)
        timeline = self._timeline
        events.append((timeline.now_s, timeline.step, who, (what, *args)))
        self.count_in(place, who, what, *args)

    def count_in(self, *event: object) -> None:
        """Have the digest cover *event*, and when it was, without remembering it."""
        self._hash.update(repr((self._timeline.now_s, self._timeline.step, event)).encode())

    @property
    def digest(self) -> str:
        """Return a digest that changes with the kind, order or time of any event."""
        return self._hash.hexdigest()

    def lines(self, place: TopicPartition) -> list[str]:
        """Return the remembered events of *place* and of the whole, in order."""
        events = list(self._events.get(place, ()))
        if place != WHOLE:
            events += self._events.get(WHOLE, ())
        return [
            f"{at_s:10.3f} s  step {step:6d}  {who:14s} {' '.join(map(str, what))}"
            for at_s, step, who, what in sorted(events, key=lambda event: (event[1], event[0]))
        ]

    def fail(self, name: str, place: TopicPartition, text: str) -> Violation:
        """Return the error to raise."""
        return Violation(
            name,
            text,
            seed=self._seed,
            step=self._timeline.step,
            at_s=self._timeline.now_s,
            place=place,
            lines=self.lines(place),
        )
