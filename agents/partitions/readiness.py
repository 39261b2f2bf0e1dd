"""Why a worker is not ready: what `/health/ready` says, in one line for a person."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from holdfast.agents.partitions.membership import Membership
from holdfast.agents.partitions.types import Held
from holdfast.core.kafka.topic_partition import Place
from holdfast.core.kafka.unreadable import Unreadable
from holdfast.kafka.fetching.source_fetcher import SourceFetcher

NO_TOPIC = "topic {} does not exist, which this worker reads: make it, and it is taken up within seconds"


class Readiness:
    """Gathers the reasons why a worker is not ready from the parts that know them.

    *refusals* says of a batch that cannot be read why it is not skipped.
    """

    def __init__(self, membership: Membership, feed: SourceFetcher, refusals: Mapping[Place, str]) -> None:
        self._membership, self._feed, self._refusals = membership, feed, refusals
        self.why = "starting: reading the cluster's topics"
        """Why this worker does not fold at all, while it does not."""
        self.stalled: dict[Held, str] = {}
        """Why partitions of this worker are stalled: a person has to act, and no restart would help.
        """

    def unready(
        self,
        *,
        folding: bool,
        lost: Collection[Held],
        standby_failure: Exception | None,
        behind: Sequence[str] = (),
        building: Sequence[str] = (),
        awaited: Sequence[str] = (),
    ) -> str | None:
        """Return why this worker is not ready, None when it is. *behind* are the causes of global tables that
        are not caught up, *building* those of tables whose version here has not caught up with the current
        one, *awaited* topics that are not there.
        """
        if standby_failure is not None:
            return f"standby failed: {standby_failure}"
        if not folding:
            return self.why
        if not self._membership.owns():
            return (
                "the group has not confirmed this worker for a session, or does not know it: another may own"
                " these partitions by now"
            )
        if self._feed.broker_down:
            return "broker unreachable"
        if standing := [
            *behind,
            *building,
            *self.stalled.values(),
            *map(self._unreadable, self._feed.standing.values()),
            *map(NO_TOPIC.format, awaited),
        ]:
            return "; ".join(standing)
        return f"lost to a newer owner: {sorted(lost)}" if lost else None

    def _unreadable(self, found: Unreadable) -> str:
        why = self._refusals.get((found.topic, found.partition))
        return str(found) if why is None else f"{found}; it is not skipped: {why}"
