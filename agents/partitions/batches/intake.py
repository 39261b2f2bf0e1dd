"""What a runner's next transaction is made of, and what becomes of the events that brought it: of one source
here, of several in `agents/partitions/batches/merging_intake.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from typing import Any, Protocol

from holdfast.agents.partitions.types import FoldEvent, IntakeHost
from holdfast.clock import Clock, system_clock
from holdfast.core.engine.batches import Batch
from holdfast.core.engine.fold.folding import Folder
from holdfast.core.engine.fold.stepping import Refused
from holdfast.core.kafka.topic_partition import Place
from holdfast.kafka.fetching.records import FetchedRecord
from holdfast.tables.partition import Partition

BACKLOG_S = 0.1
"""A transaction that takes so long to fold is one of a backlog, and takes in what has arrived since.

Of a shorter one readers soon see the changes.
"""


class Intake(Protocol):
    """The events of one partition between being handed over and being acked.

    `draw` chooses what the next transaction may hold, `given` is what a folder makes it of. Then follows
    `settle` when that is durable (or there was nothing to fold), `again` when it was rolled back, or
    `let_go`.
    """

    epoch: int
    """That of what was drawn."""

    def hand(self, event: FoldEvent) -> None:
        """Take over one fetched event."""

    @property
    def ready(self) -> bool:
        """Return whether there may be something to fold."""
        ...

    @property
    def held(self) -> Collection[Place]:
        """Return the source partitions of which it wants no more for the time being."""
        ...

    def draw(self) -> bool:
        """Choose what the next transaction is made of; False when there is nothing."""
        ...

    def given(self) -> Iterator[Any]:
        """Yield what the folder takes; more than was drawn when that takes long."""
        ...

    def refused(self, refused: Refused) -> tuple[str, FetchedRecord]:
        """Return the topic and the content of a record of this transaction that was refused."""
        ...

    def settle(self) -> None:
        """Ack what the state now holds; the rest is for the next transaction."""

    def again(self) -> None:
        """Keep what was drawn for the next transaction, and count nothing of it, nor of what follows, to what
        is in hand: it waits, and others are fetched meanwhile.
        """

    def let_go(self) -> None:
        """Drop what was drawn: it is not this worker's any more, or is read again."""

    def void(self) -> None:
        """Drop everything."""

    def revoked(self) -> None:
        """Drop what nobody folds, at once: what was fetched before a revocation is void."""


class SingleIntake:
    """Events of one source, which are folded in their order. A transaction holds *transaction_bytes* of
    them.
    """

    def __init__(
        self, host: IntakeHost, part: Partition, transaction_bytes: int, *, clock: Clock = system_clock
    ) -> None:
        self._host, self._part, self._clock = host, part, clock
        self._transaction_bytes = transaction_bytes
        self._pending: deque[FoldEvent] = deque()
        self._drawn: list[FoldEvent] = []
        self._waits, self._parked = False, set[int]()
        # That of the transaction: the partition has none any more when it is lost, or its store rots,
        # meanwhile.
        self._folder: Folder[Any] | None = None
        self.epoch = -1

    def hand(self, event: FoldEvent) -> None:
        self._pending.append(event)
        if self._waits:
            self._park(event)

    def _park(self, event: FoldEvent) -> None:
        if id(event) not in self._parked:
            self._parked.add(id(event))
            self._host.park(event)

    def _is_counted(self, event: FoldEvent) -> bool:
        """Return whether *event*, with which this is done, was counted until now."""
        if id(event) not in self._parked:
            return True
        self._parked.remove(id(event))
        return False

    def _void(self, event: FoldEvent) -> None:
        self._host.void(event, counted=self._is_counted(event))

    @property
    def ready(self) -> bool:
        return bool(self._pending)

    @property
    def held(self) -> Collection[Place]:
        return ()

    def draw(self) -> bool:
        self._drawn = self._gather()
        if not self._drawn:
            return False
        first = self._drawn[0].value
        part, folder = self._part, self._part.owner.folder
        assert isinstance(folder, Folder), "of one source"
        self._folder, applied = folder, folder.applied
        assert first.first <= applied + 1, (
            f"{part.changelog} partition {part.partition}: state at {applied}, records begin at {first.first}"
        )
        self.epoch = first.epoch
        return True

    def _gather(self, size: int = 0) -> list[FoldEvent]:
        """Return what is pending and fits a transaction that has *size* bytes; into an empty one fits
        whatever is the first.
        """
        events: list[FoldEvent] = []
        limit = self._transaction_bytes
        while self._pending and (not size or size + self._pending[0].value.size_bytes <= limit):
            event = self._pending.popleft()
            if self._host.owns(self._part, event.value.epoch):
                events.append(event)
                size += event.value.size_bytes
            else:
                self._void(event)
        return events

    def given(self) -> Iterator[Batch]:
        """Yield what was drawn, and draw what has arrived meanwhile when that takes long."""
        began_s, events = self._clock.monotonic_s(), self._drawn
        for event in events:
            fetched = event.value
            yield fetched.records.batch(fetched.partition, self._part.processor.columns)
            if event is events[-1] and self._clock.monotonic_s() - began_s > BACKLOG_S:
                events += self._gather(sum(each.value.size_bytes for each in events))

    def refused(self, refused: Refused) -> tuple[str, FetchedRecord]:
        fetches = (event.value for event in self._drawn)
        record = next(fetch.records.at(refused.offset) for fetch in fetches if refused.offset <= fetch.last)
        return self._part.processor.topics[0], record

    def settle(self) -> None:
        assert self._folder is not None, "draw first"
        applied = self._folder.applied
        for event in reversed(self._drawn):
            if event.value.last > applied:
                self._pending.appendleft(event)  # the rest of it is the next transaction's
        for event in self._drawn:
            if event.value.last <= applied:
                self._host.done(event, counted=self._is_counted(event))
        self._drawn, self._waits = [], False

    def again(self) -> None:
        self._pending.extendleft(reversed(self._drawn))
        self._drawn, self._waits = [], True
        for event in self._pending:
            self._park(event)

    def let_go(self) -> None:
        drawn, self._drawn = self._drawn, []
        for event in drawn:
            self._void(event)

    def void(self) -> None:
        while self._pending:
            self._void(self._pending.popleft())

    def revoked(self) -> None:
        """Leave them where they are: the runner finds out one by one."""
