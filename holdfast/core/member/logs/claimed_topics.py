"""The topics that a member claims partitions of, and their coordination partitions."""

from __future__ import annotations

from holdfast.core.claims.claim_keys import ClaimKey, parse_claim_key
from holdfast.core.claims.claim_rows import Claim
from holdfast.core.claims.frames import coordination_partition
from holdfast.core.claims.staleness import is_reserved
from holdfast.core.kafka.topic_partition import TopicPartition
from holdfast.core.member.logs.log_view import LogView
from holdfast.core.member.settings import MemberSettings


class ClaimedTopics:
    """*numbers* names the coordination partition of each topic, *logs* holds a view of each of those,
    *counts* the number of partitions of each topic. A retired topic is still read, but not claimed any more.
    """

    def __init__(self, settings: MemberSettings, coordination_partitions: int) -> None:
        assert coordination_partitions > 0
        self._settings, self._partitions = settings, coordination_partitions
        self.numbers: dict[str, int] = {}
        self.logs: dict[int, LogView] = {}
        self.counts: dict[str, int] = {}
        self._retired: set[str] = set()
        for topic in settings.topics:
            self.add(topic)

    def __contains__(self, topic: str) -> bool:
        return topic in self.numbers

    def add(self, topic: str) -> None:
        """Claim partitions of *topic*, perhaps once more."""
        self._retired.discard(topic)
        if topic not in self.numbers:
            log = self.numbers[topic] = coordination_partition(topic, self._partitions)
            if log not in self.logs:
                self.logs[log] = LogView(self._settings)

    def retire(self, topic: str) -> None:
        """Claim nothing more of *topic*."""
        self._retired.add(topic)

    def log(self, topic: str) -> LogView:
        """Return the view of the coordination partition of *topic*, which must have been added."""
        return self.logs[self.numbers[topic]]

    def is_live(self, topic: str) -> bool:
        """Return whether all that was there at the start has been read about *topic*."""
        return topic in self.numbers and self.log(topic).live

    def row(self, place: TopicPartition) -> Claim | None:
        """Return the claim's row in the guarded view; None without one, or where no log is read of it."""
        return self.log(place.topic).row(place) if place.topic in self.numbers else None

    def claimable(self, place: TopicPartition) -> bool:
        """Return whether *place* exists, as far as this member is concerned, and its log is known."""
        if place.topic in self._retired or not self.is_live(place.topic):
            return False
        return place.partition < self.counts.get(place.topic, 0)

    def reserved(self) -> dict[ClaimKey, Claim]:
        """Return the group's claims that a reset holds: only their release frees them
        (PROTOCOL.md#pausing-and-resetting-a-group).
        """
        return {
            parse_claim_key(key): row
            for log in self.logs.values()
            if log.live
            for key, row in log.claims()
            if is_reserved(row)
        }
