"""Habits of a simulated user, and the state of its work under one claim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from holdfast.core.kafka.topic_partition import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """Habits of a user: how often, how much at once, and in which order messages are done."""

    pace_s: float
    batch: int
    disorder: float = 0.2
    slowness: float = 0.3
    idleness: float = 0.0
    flushes: float = 0.0


class Job:
    """State of a process's work under one claim. *queue* was reported as delivered and is not handed out yet;
    *open_offsets* are handed out and not done; all below *prefix* is done. At most once, offsets below
    *granted* may be handed out, and those below *asked* were announced; *worked_s* is the time since which
    the first open offset has been the first. *begun_mark* is the topic's mark when the work began, *fetched*
    the topic's mark for each message.
    """

    __slots__ = (
        "asked",
        "begun_mark",
        "epoch",
        "fetched",
        "granted",
        "open_offsets",
        "place",
        "position",
        "prefix",
        "queue",
        "stopped",
        "worked_s",
    )

    def __init__(self, place: TopicPartition, offset: int, epoch: int, mark: int) -> None:
        self.place, self.epoch, self.begun_mark = place, epoch, mark
        self.fetched: dict[int, int] = {}
        self.position = self.prefix = self.granted = self.asked = offset
        self.queue: list[int] = []
        self.open_offsets: list[int] = []
        self.stopped = False
        self.worked_s = -inf

    def note_fetched(self, offsets: Sequence[int], mark: int) -> None:
        """Note of which topic messages are that the broker has answered."""
        self.fetched.update(dict.fromkeys(offsets, mark))

    def of_topic(self, offsets: Sequence[int], mark: int) -> list[int]:
        """Return those of *offsets* that were fetched from the topic with this mark."""
        return [offset for offset in offsets if self.fetched.get(offset) == mark]
