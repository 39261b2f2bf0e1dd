"""The owners of a group's partitions over time, as far as the console has seen them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.clients.groups.records import GroupKind
from holdfast.core.kafka.topic_partition import Place

KEPT_CHANGES = 500
LIMIT_GROUPS = 1_000

GroupId = tuple[GroupKind, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerChange:
    """A partition that went from one member to another; None is unowned. *at_ms* is when it was seen, up to
    two looks after it happened.
    """

    at_ms: int
    topic: str
    partition: int
    before: str | None
    after: str | None


class OwnershipHistory:
    """Learns from one survey of the groups after another; keeps the last KEPT_CHANGES of each of the first
    LIMIT_GROUPS groups.

    >>> history, group = OwnershipHistory(), (GroupKind.CLAIM, "billing")
    >>> history.learn({group: {("orders", 0): "anna"}}, at_ms=1)
    >>> history.learn({group: {("orders", 0): "ben"}}, at_ms=2)
    >>> [(each.before, each.after) for each in history.changes(group)], history.since_ms(group)
    ([('anna', 'ben')], 1)
    """

    def __init__(self) -> None:
        self._owners: dict[GroupId, Mapping[Place, str]] = {}
        self._since_ms: dict[GroupId, int] = {}
        self._changes: dict[GroupId, deque[OwnerChange]] = {}

    def learn(self, owners: Mapping[GroupId, Mapping[Place, str]], *, at_ms: int) -> None:
        """Take in who holds what now. What a group had when it was first seen is no change; one that is gone
        is forgotten.
        """
        for gone in self._owners.keys() - owners.keys():
            del self._owners[gone], self._since_ms[gone], self._changes[gone]
        for group, held in owners.items():
            before = self._owners.get(group)
            if before is None and len(self._owners) >= LIMIT_GROUPS:
                continue
            self._owners[group] = held
            if before is None:
                self._since_ms[group], self._changes[group] = at_ms, deque(maxlen=KEPT_CHANGES)
            elif before != held:
                self._changes[group].extend(_changes(before, held, at_ms))

    def changes(self, group: GroupId) -> list[OwnerChange]:
        """Return the remembered changes of a group, the newest first."""
        return [*reversed(self._changes.get(group, ()))]

    def since_ms(self, group: GroupId) -> int | None:
        """Return since when a group is looked at, None for one that is not."""
        return self._since_ms.get(group)


def _changes(before: Mapping[Place, str], after: Mapping[Place, str], at_ms: int) -> list[OwnerChange]:
    return [
        OwnerChange(
            at_ms=at_ms,
            topic=place[0],
            partition=place[1],
            before=before.get(place),
            after=after.get(place),
        )
        for place in sorted(before.keys() | after.keys())
        if before.get(place) != after.get(place)
    ]
