"""The lag of a consumer group in one partition."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.core.broker_logs.lag import LagStanding
from holdfast.core.kafka.topic_partition import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """A group's position, lag and state in one partition."""

    group: str
    place: Place
    standing: LagStanding
    committed: int
    end: int
    commits: int
    """The number of commits that the rules have examined."""
    committed_at_ms: int

    @property
    def lag(self) -> int:
        """Return how many offsets lie between the committed offset and the last stable offset."""
        return max(0, self.end - self.committed)


def of_groups(found: Iterable[PartitionLag]) -> list[tuple[str, list[PartitionLag]]]:
    """Return the partitions of each group, in the order of their names."""
    out: dict[str, list[PartitionLag]] = {}
    for each in found:
        out.setdefault(each.group, []).append(each)
    return sorted(out.items())
