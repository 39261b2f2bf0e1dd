"""How a user works, and what it does under one claim."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from holdfast.core.kafka.topic_partition import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How a user works: how often, how much at once, and in which order messages are done."""

    pace_s: float
    batch: int
    disorder: float = 0.2
    slowness: float = 0.3
    idleness: float = 0.0
    flushes: float = 0.0


class Job:
    """What a process does under one claim. *queue* was reported as delivered and is not handed out yet;
    *open_offsets* are handed out and not done; all below *prefix* is done. At most once, what lies below
    *granted* may be handed out, and *asked* was announced; *drains_until_s* is until when a release waits for
    it, *worked_s* since when the first open offset is the first.
    """

    __slots__ = (
        "asked",
        "drains_until_s",
        "epoch",
        "granted",
        "open_offsets",
        "place",
        "position",
        "prefix",
        "queue",
        "stopped",
        "worked_s",
    )

    def __init__(self, place: TopicPartition, offset: int, epoch: int) -> None:
        self.place, self.epoch = place, epoch
        self.position = self.prefix = self.granted = self.asked = offset
        self.queue: list[int] = []
        self.open_offsets: list[int] = []
        self.stopped = False
        self.drains_until_s = self.worked_s = -inf
