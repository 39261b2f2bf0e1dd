"""What the parts of a worker say to each other about partitions: values, and the little that each may ask
of the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.agents.metrics import Metrics
from holdfast.agents.partitions.global_tables import GlobalCopies
from holdfast.agents.partitions.membership import NO_TERM
from holdfast.errors import FencedError
from holdfast.kafka.feed import Feed
from holdfast.tables.partition import Partition

Held = tuple[str, int]
"""A processor's name and the number of a partition."""
NOT_IN_GROUP = -1


@dataclass(frozen=True, slots=True)
class AssignmentPlan:
    """One assignment of the group: what this worker is to own and to stand by, by processor and partition.

    *epoch* is the manager's at the time; a revocation since then makes the plan void. *term* is the membership's.
    """

    epoch: int
    generation: int
    active: frozenset[Held]
    standby: frozenset[Held]
    term: int = NO_TERM


class GroupClient(Protocol):
    """What the manager asks of the framework that is the group's member."""

    async def leave(self, error: BaseException) -> None:
        """End the worker, and say *error*."""
        ...

    async def rejoin(self) -> None:
        """Ask the group for a new generation."""
        ...

    def discard(self, message: Any) -> None:
        """Forget a message that nobody will acknowledge."""
        ...

    def who_owns(self, table: str, partition: int) -> str | None:
        """Return the URL of the worker that the group gave the partition, None when nobody is known to
        have it.
        """
        ...


class Host(Protocol):
    """What a runner asks of the manager that made it."""

    app: str
    metrics: Metrics
    feed: Feed
    held: dict[Held, str]
    epoch: int
    open: bool
    long_folds: asyncio.Lock
    transaction_bytes: int
    commit_timeout_s: float
    quarantine_topic: str
    quarantine_limit: int
    globals: GlobalCopies

    @property
    def share_bytes(self) -> int:
        """Return how much of each source may wait for another source of its table."""
        ...

    def owns(self, part: Partition, epoch: int) -> bool:
        """Return whether what was fetched in *epoch* may still be folded into *part*."""
        ...

    def void(self, event: Any, *, counted: bool = True) -> None:
        """Drop an event that is not ours any more; not *counted*, one that was parked."""
        ...

    def done(self, event: Any, *, counted: bool = True) -> None:
        """Acknowledge an event whose records are durable; not *counted*, one that was parked."""
        ...

    def ask_ends(self) -> None:
        """Note that an intake waits for ends of sources."""
        ...

    def park(self, event: Any) -> None:
        """Count an event no more to what is in hand: it waits for another source."""
        ...

    def progressed(self) -> None:
        """Note that something moved: the worker is not stuck."""
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
