"""How far a consumer group is in one partition."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.core.broker_logs.lag import LagStanding
from holdfast.core.kafka.topic_partition import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """How far a group is in one partition, and how it stands there."""

    group: str
    place: Place
    standing: LagStanding
    committed: int
    end: int
    commits: int
    """How many commits the rules have looked at."""
    committed_at_ms: int

    @property
    def lag(self) -> int:
        """Return how many offsets lie between what is committed and the end of what is stable."""
        return max(0, self.end - self.committed)


def of_groups(found: Iterable[PartitionLag]) -> list[tuple[str, list[PartitionLag]]]:
    """Return the partitions of each group, in the order of their names."""
    out: dict[str, list[PartitionLag]] = {}
    for each in found:
        out.setdefault(each.group, []).append(each)
    return sorted(out.items())
