"""Intakes choose the events of a runner's next transaction, and ack, keep or drop them afterwards: in the
order of a log here, merged in `agents/partitions/batches/merging_intake.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
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
"""A transaction that takes this long to fold is one of a backlog, and also takes the records that arrived
since.

Readers soon see the changes of a shorter one.
"""


class Intake(Protocol):
    """The events of one partition, from when they are fetched until they are acked.

    `next_batch` chooses the events of the next transaction, `records` yields their records to a folder. Then
    follows `ack` when the transaction is durable (or there was nothing to fold), `retry` when it was rolled
    back, or `abandon`.
    """

    epoch: int
    """The epoch of the drawn events."""

    def enqueue(self, event: FoldEvent) -> None:
        """Enqueue one fetched event."""

    @property
    def ready(self) -> bool:
        """Return whether there may be something to fold."""
        ...

    @property
    def held(self) -> Collection[Place]:
        """Return the source partitions of which nothing more is to be fetched for the time being."""
        ...

    def next_batch(self) -> bool:
        """Choose the events of the next transaction; return False when there are none."""
        ...

    def records(self) -> Iterator[Any]:
        """Yield records to the folder; more than were drawn when that takes long."""
        ...

    def refused(self, refused: Refused) -> tuple[str, FetchedRecord]:
        """Return the topic and the content of a record of this transaction that was refused."""
        ...

    def ack(self) -> None:
        """Ack the events that the state now contains; the rest is for the next transaction."""

    def retry(self) -> None:
        """Keep the drawn events for the next transaction, and stop counting these and the later ones as in
        hand: they wait, and other records are fetched in the meantime.
        """

    def abandon(self) -> None:
        """Drop the drawn events: this worker no longer owns them, or they are read again."""

    def clear(self) -> None:
        """Drop all events."""

    def revoked(self) -> None:
        """Drop the events that are not being folded, at once: those fetched before a revocation are void."""

    def asks(self) -> tuple[int, list[Place]]:
        """Return the partitions whose ends are wanted, and the round, to which alone the answer belongs."""
        return 0, []

    def answer(self, asked: int, ends: Mapping[Place, int], wait_s: float) -> None:
        """Take the *ends* that logs had after round *asked* had begun, as far as they are known."""
        return

    def look(self) -> None:
        """Check whether there is something to fold without new events."""
        return


class LogIntake(Intake):
    """Events of one source, which are folded in the order of its log. A transaction holds *transaction_bytes*
    of them.
    """

    def __init__(
        self, host: IntakeHost, part: Partition, transaction_bytes: int, *, clock: Clock = system_clock
    ) -> None:
        self._host, self._part, self._clock = host, part, clock
        self._transaction_bytes, self._inputs = transaction_bytes, part.processor.folds[0].inputs
        self._pending: deque[FoldEvent] = deque()
        self._drawn: list[FoldEvent] = []
        self._waits, self._parked = False, set[int]()
        # The transaction's own folder: the partition has none any more once it is lost, or its store rots.
        self._folder: Folder[Any] | None = None
        self.epoch = -1

    def enqueue(self, event: FoldEvent) -> None:
        self._pending.append(event)
        if self._waits:
            self._park(event)

    def _park(self, event: FoldEvent) -> None:
        if id(event) not in self._parked:
            self._parked.add(id(event))
            self._host.park(event)

    def _is_counted(self, event: FoldEvent) -> bool:
        """Return whether *event*, which is done, was counted until now."""
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

    def next_batch(self) -> bool:
        self._drawn = self._gather()
        if not self._drawn:
            return False
        first = self._drawn[0].value
        part, folder = self._part, self._part.owner.folder
        self._folder, (applied,) = folder, folder.marker.applied
        assert first.first <= applied + 1, (
            f"{part.changelog} partition {part.partition}: state at {applied}, records begin at {first.first}"
        )
        self.epoch = first.epoch
        return True

    def _gather(self, size: int = 0) -> list[FoldEvent]:
        """Return the pending events that fit a transaction that has *size* bytes; the first always fits an
        empty one.
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

    def records(self) -> Iterator[Batch]:
        """Yield the drawn records, and draw events that arrive in the meantime when that takes long."""
        began_s, events = self._clock.monotonic_s(), self._drawn
        for event in events:
            fetched = event.value
            yield fetched.records.batch(fetched.partition, self._inputs)
            if event is events[-1] and self._clock.monotonic_s() - began_s > BACKLOG_S:
                events += self._gather(sum(each.value.size_bytes for each in events))

    def refused(self, refused: Refused) -> tuple[str, FetchedRecord]:
        fetches = (event.value for event in self._drawn)
        record = next(fetch.records.at(refused.offset) for fetch in fetches if refused.offset <= fetch.last)
        return self._part.processor.topics[0], record

    def ack(self) -> None:
        assert self._folder is not None, "draw first"
        (applied,) = self._folder.marker.applied
        for event in reversed(self._drawn):
            if event.value.last > applied:
                self._pending.appendleft(event)  # the rest of it is the next transaction's
        for event in self._drawn:
            if event.value.last <= applied:
                self._host.done(event, counted=self._is_counted(event))
        self._drawn, self._waits = [], False

    def retry(self) -> None:
        self._pending.extendleft(reversed(self._drawn))
        self._drawn, self._waits = [], True
        for event in self._pending:
            self._park(event)

    def abandon(self) -> None:
        drawn, self._drawn = self._drawn, []
        for event in drawn:
            self._void(event)

    def clear(self) -> None:
        while self._pending:
            self._void(self._pending.popleft())

    def revoked(self) -> None:
        """Leave the events in the queue: the runner finds out about each of them."""
