"""The true history of one claim: its owners with their times, the messages handed out and done."""

from __future__ import annotations

from math import inf

from holdfast.core.kafka.topic_partition import TopicPartition


class Ledger:
    """The whole story of one partition (or lane).

    *owner* is the instance that the log names. *handed* are the offsets handed out, *done* those a user was
    done with, *passed* when and by whom, under which epoch, the done prefix went past an offset: from then on
    the next heartbeat reports it. All below *verified* was done when the log said so. *high* is the highest
    offset handed out of each key (lanes of one partition share it). *expected* is where the next owner must
    start after a reset. *made* is the mark of the present topic, *verified_of* the mark of the topic to which
    the log's last offset belongs.
    """

    __slots__ = (
        "done",
        "ended_s",
        "epoch",
        "expected",
        "free_since_s",
        "handed",
        "high",
        "log",
        "made",
        "owner",
        "owner_client",
        "owner_since_s",
        "passed",
        "place",
        "position",
        "reset_by",
        "stalled",
        "verified",
        "verified_of",
    )

    def __init__(self, place: TopicPartition, log: int) -> None:
        self.place, self.log = place, log
        self.owner: str | None = None
        self.owner_client: str | None = None
        self.owner_since_s = -inf
        self.epoch = 0
        self.ended_s: dict[tuple[str, int], float] = {}
        self.handed: set[int] = set()
        self.done: set[int] = set()
        self.passed: dict[int, tuple[float, str, int]] = {}
        self.high: dict[int, int] = {}
        self.verified = 0
        self.made = self.verified_of = 2
        self.expected: int | None = None
        self.reset_by: str | None = None
        self.stalled = self.position = 0
        self.free_since_s: float | None = 0.0

    def rewind(self, offset: int) -> None:
        """The offset was set, by a reset or by the liberties of a Go member: later offsets may be handed out
        again.
        """
        self.handed = {each for each in self.handed if each < offset}
        self.done = {each for each in self.done if each < offset}
        self.passed = {each: by for each, by in self.passed.items() if each < offset}
        self.high.clear()
        self.verified = offset
