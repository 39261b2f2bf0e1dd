"""Holds one partition of one table on this worker, in the role that the group gave it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Protocol

from holdfast.clock import system_clock
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.state.source_ids import SOURCE_IDS, decode_source_ids
from holdfast.core.kafka.topic_partition import Place
from holdfast.tables.held_origins import HeldOrigin
from holdfast.tables.owner import PartitionOwner
from holdfast.tables.replay import ChangelogReplay
from holdfast.tables.state import UNKNOWN, CommittedState, Environment
from holdfast.tables.waiters import Reaching, Waiters

END_GOOD_MS = 5_000
"""The ms for which a standby may report its lag from an end that it has read: the end moves."""


class PartitionRole(StrEnum):
    """This worker's role for a partition."""

    ACTIVE = "active"
    STANDBY = "standby"
    EARLIER = "earlier"
    """It keeps readable what an earlier version left."""


class PositionListener(Protocol):
    """Notifies the event loop, from any thread, that a partition's position moved."""

    def __call__(self, part: Partition) -> None: ...


class Partition(CommittedState):
    """One source partition of one processor, as this worker holds it.

    `serving` is whether reads may be answered; an owner's only while *still_ours* says so, since another
    worker may take over unseen while the process is frozen. An *earlier* one belongs to a version that is no
    longer folded: it is restored and read, and answers as an owner does.
    """

    def __init__(
        self,
        processor: Processor[Any, Any],
        partition: int,
        environment: Environment,
        notify: PositionListener,
        still_ours: Callable[[], bool],
        *,
        earlier: bool = False,
    ) -> None:
        super().__init__(processor, partition, environment, earlier=earlier)
        self.store.on_rotten = lambda cause: self.on_rotten(self, cause)
        self.on_rotten: Callable[[Partition, str], None] = lambda part, cause: None
        """Called from any thread when the store is found not to be believed; nothing is answered from it any
        more.
        """
        self.owner, self.waiters = PartitionOwner(self), Waiters(self)
        self.replay = ChangelogReplay(self, lambda: notify(self))
        self._still_ours = still_ours
        self.role = PartitionRole.EARLIER if earlier else PartitionRole.STANDBY
        self._serving = False
        self.stalled: str | None = None
        """Why its owner does not fold it further, None while it does; kept by its runner."""
        self._source_ends, self._end_asked_ms = (UNKNOWN,) * len(processor.topics), UNKNOWN
        self.current_ms = UNKNOWN
        """For a standby: when its changelog's end was asked for which it has since reached."""

    @property
    def source_end(self) -> int:
        """Return the end of the source partition as last received in this role; of several sources, the sum.

        UNKNOWN before that, and on a standby that has not asked for END_GOOD_MS: its broker does not answer,
        or the process was frozen.
        """
        ends = self.source_ends.values()
        return UNKNOWN if UNKNOWN in ends else sum(ends)

    @property
    def source_ends(self) -> dict[str, int]:
        """Return the end of each source partition as last received in this role; UNKNOWN as for
        `source_end`.
        """
        ends = self._source_ends
        if self.role is PartitionRole.STANDBY and system_clock.now_ms() - self._end_asked_ms > END_GOOD_MS:
            ends = (UNKNOWN,) * len(ends)
        return dict(zip(self.processor.topics, ends, strict=True))

    def note_source_ends(self, ends: Mapping[Place, int], asked_ms: int) -> None:
        """Note where source partitions ended when that was asked for."""
        self._source_ends = tuple(ends.get(place, UNKNOWN) for place in self.places)
        self._end_asked_ms = asked_ms

    @property
    def active(self) -> bool:
        return self.role is PartitionRole.ACTIVE

    @property
    def serving(self) -> bool:
        return (
            self._serving
            and self.store.readable
            and self.store.rotten is None
            and (self.role is PartitionRole.STANDBY or self._still_ours())
        )

    @serving.setter
    def serving(self, serving: bool) -> None:
        self._serving = serving

    @property
    def held_back(self) -> list[HeldOrigin]:
        return self.owner.held_back

    @property
    def late(self) -> tuple[int, int] | None:
        return self.owner.late

    @property
    def topic_ids(self) -> dict[str, str]:
        """Return Kafka's ids of the sources that its offsets belong to, by topic, where they are known."""
        noted = self.owner.sources if self.active else decode_source_ids(self.store.get(SOURCE_IDS))
        if noted is None or noted.cluster_id != self.environment.cluster_id:
            return {}
        return noted.known(self.processor.topics)

    @property
    def changelog_end(self) -> int:
        """Return the end offset of the changelog when it was last read here; UNKNOWN before that."""
        return self.replay.changelog_end

    async def reached(self, wanted: Reaching, timeout_s: float) -> bool:
        return await self.waiters.reached(wanted, timeout_s)

    # -- changes of role

    def activate(self) -> None:
        """Start folding from the restored position; ConfigError if the row type cannot read the stored rows
        or a migration is due, TopicError if a source is not the log that was folded.
        """
        self.owner.activate()
        self.role = PartitionRole.ACTIVE

    def stand_by(self) -> None:
        """Stop folding; the committed state stays. The writer is closed before."""
        self.owner.release()
        self.role, self.stalled = PartitionRole.STANDBY, None
        self.note_source_ends({}, UNKNOWN)

    def lose(self) -> None:
        """Stop answering and writing: a newer owner exists."""
        self.serving = False
        self.owner.lose()

    def rebuild(self, cause: str) -> None:
        """Set the store aside and begin an empty one, which knows of no time at which it was current."""
        served, self._serving = self._serving, False
        self.replay.forget_torn()
        self.store.rebuild(cause)
        self._serving, self.current_ms = served, UNKNOWN

    def mend(self) -> None:
        """Set a rotten store aside and begin an empty one. Call it only while the partition is not folded."""
        if (cause := self.store.rotten) is not None:
            self.rebuild(cause)

    def touch(self, now_ms: int) -> None:
        """Note in the store when it was last abreast of its changelog, if that is known: a restore cut short
        has not been.
        """
        if self.owner.is_folding:
            if self._still_ours():
                self.store.touch(now_ms)
        elif self.current_ms != UNKNOWN:
            self.store.touch(self.current_ms)

    def close(self) -> None:
        self.lose()
        self.waiters.release()
        self.store.close()
