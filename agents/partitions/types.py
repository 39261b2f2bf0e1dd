"""Values that the parts of a worker pass to each other about partitions, and the protocols of their calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from holdfast.agents.metrics import Metrics
from holdfast.agents.partitions.membership import NO_TERM
from holdfast.core.kafka.topic_partition import Place
from holdfast.errors import FencedError
from holdfast.kafka.fetching.source_fetcher import Fetched
from holdfast.tables.partition import Partition

Held = tuple[str, int]
"""A processor's name and the number of a partition."""
NOT_IN_GROUP = -1
RunInThread: TypeAlias = Callable[..., asyncio.Future[Any]]
"""Runs a blocking call with its arguments on a thread, off the event loop."""


@dataclass(frozen=True, slots=True)
class AssignmentPlan:
    """One assignment of the group: the partitions that this worker is to own and to keep as standbys.

    *epoch* is the gate's at the time; a revocation since then makes the plan void. *term* is the
    membership's.
    """

    epoch: int
    generation: int
    active: frozenset[Held]
    standby: frozenset[Held]
    term: int = NO_TERM


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldLimits:
    """Bounds of one transaction of a partition, and the handling of records that it refuses.

    *quarantine_limit* is how many records in a row may be refused before the partition stalls; 0 for no
    limit. *later_timeout_s* is the longest wait for data that a fold needs.
    """

    transaction_bytes: int
    commit_timeout_s: float
    later_timeout_s: float
    quarantine_topic: str
    quarantine_limit: int


class FoldEvent(Protocol):
    """One fetch of one partition, as the transport gives it to a runner.

    It ends in exactly one way: acked when its records are durable, or discarded by its *message*.
    """

    @property
    def value(self) -> Fetched: ...

    @property
    def message(self) -> object:
        """Return the value that `GroupClient.discard` takes."""
        ...

    def ack(self) -> bool:
        """Count the records as folded; returns whether no other processor still has them in hand."""
        ...


class GroupClient(Protocol):
    """The manager's calls to the framework, which is the member of the group."""

    async def leave(self, error: BaseException) -> None:
        """End the worker, and report *error*."""
        ...

    async def rejoin(self) -> None:
        """Ask the group for a new generation."""
        ...

    def discard(self, message: object) -> None:
        """Forget a message that will not be acknowledged."""
        ...

    async def committed_notes(self, places: Collection[Place]) -> Mapping[Place, str]:
        """Return the metadata that the group has committed with the offsets of *places*."""
        ...

    def awaited(self) -> Sequence[str]:
        """Return the topics that this worker reads and that did not exist at the last assignment."""
        ...

    def who_folds(self, changelog: str, partition: int) -> str | None:
        """Return the URL of the worker to which the group assigned a partition of the table with that
        changelog, in whatever version.
        """
        ...

    def who_owns(self, table: str, partition: int) -> str | None:
        """Return the URL of the worker to which the group assigned the partition, None when it is unknown."""
        ...


class Supervisor(Protocol):
    """Ends the worker, and keeps its background tasks."""

    def crash(self, error: BaseException) -> None:
        """End the worker."""
        ...

    def watch(self, work: Coroutine[Any, Any, None]) -> None:
        """Run *work* in the background, until the manager closes."""
        ...


class HoldingFeed(Protocol):
    """The feed, as runners see it."""

    def hold(self, place: Place, held: bool) -> None:
        """Fetch no more of a source partition while it is *held*."""
        ...


class PassingFeed(HoldingFeed, Protocol):
    """The feed, as an intake of several sources sees it."""

    def passed(self, place: Place, following: int) -> int:
        """Return the next offset to read, past markers too, once all records before *following* are done."""
        ...


class IntakeHost(Protocol):
    """The calls of every intake to its host: about the ownership of an event, and its end."""

    def owns(self, part: Partition, epoch: int) -> bool:
        """Return whether an event that was fetched in *epoch* may still be folded into *part*."""
        ...

    def void(self, event: FoldEvent, *, counted: bool = True) -> None:
        """Drop an event that this worker no longer owns; not *counted*, one that was parked."""
        ...

    def done(self, event: FoldEvent, *, counted: bool = True) -> None:
        """Acknowledge an event whose records are durable; not *counted*, one that was parked."""
        ...

    def park(self, event: FoldEvent) -> None:
        """Stop counting an event as in hand: it waits for another source, or for data that its fold needs."""
        ...


class MergingIntakeHost(IntakeHost, Protocol):
    """The further calls of an intake of several sources: the epoch, and the flow of its sources."""

    @property
    def open(self) -> bool: ...

    @property
    def epoch(self) -> int: ...

    @property
    def feed(self) -> PassingFeed: ...

    @property
    def share_bytes(self) -> int:
        """Return how many bytes of each source may wait for another source of its table."""
        ...

    def ask_ends(self) -> None:
        """Have the ends of sources looked up: an intake waits for them."""
        ...


class RunnerHost(Protocol):
    """The calls of a runner to the manager that made it."""

    @property
    def metrics(self) -> Metrics: ...

    @property
    def feed(self) -> HoldingFeed: ...

    @property
    def stalled(self) -> dict[Held, str]:
        """Return why partitions are stalled, by partition: runners write it."""
        ...

    @property
    def long_folds(self) -> asyncio.Lock:
        """Return the lock of the partition that has a long turn."""
        ...

    def partitions(self, table: str) -> int:
        """Return how many partitions a table has."""
        ...

    def owns(self, part: Partition, epoch: int) -> bool:
        """Return whether an event that was fetched in *epoch* may still be folded into *part*."""
        ...

    def void(self, event: FoldEvent, *, counted: bool = True) -> None:
        """Drop an event that this worker no longer owns."""
        ...

    def progressed(self) -> None:
        """Report progress: the worker is not stuck."""
        ...

    async def may_refuse(self, topic: str, partition: int, offset: int) -> bool:
        """Return whether an operator allows refusing a record that would otherwise stall the partition."""
        ...

    def lost(self, part: Partition, epoch: int, error: FencedError) -> None:
        """Stop answering for *part*, whose write the broker refused."""
        ...

    def crash(self, error: BaseException) -> None:
        """End the worker."""
        ...

    def thread(self, call: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Run a blocking call on a thread."""
        ...
