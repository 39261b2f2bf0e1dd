"""The intake of a partition of several sources: it merges their events, and waits for those that may come
first.

Records are folded as far as all sources reach. A source without events in hand holds the others back, until
it sends more or is known to have been read to its end. Its end is asked for (`SourceEnds`) *after* the
records that wait for it were taken: so an earlier record can follow those folded on the answer only where
clocks of brokers differ, or within one ms. A wrong guess costs a barrier, never a difference.

A tick comes after all records that were appended before it: else the timers of a worker that was away would
fire before it has read the records of that time. While records come, a tick goes no further than their append
times; when none come any more, no further than the ends of all sources allow, asked for once a timer is due.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from holdfast.agents.globals.intake import GlobalIntake
from holdfast.agents.partitions.batches.intake import BACKLOG_S, Intake
from holdfast.agents.partitions.types import FoldEvent, MergingIntakeHost
from holdfast.clock import Clock, system_clock
from holdfast.core.engine.batches import Batch
from holdfast.core.engine.choices import decode_choice
from holdfast.core.engine.fold.folding import Folder
from holdfast.core.engine.fold.stepping import Refused
from holdfast.core.engine.fold.stretches import Stretch
from holdfast.core.engine.merge.merging import Merger
from holdfast.core.engine.positions import Position
from holdfast.core.kafka.topic_partition import Place
from holdfast.kafka.fetching.records import FetchedRecord
from holdfast.tables.partition import Partition

NO_EPOCH = -1
_NOTHING = Batch((), (), ())


class _SourceQueue:
    """Events of one source: *arrived* are not yet merged, *merged* are and wait to be folded."""

    __slots__ = ("arrived", "following", "held", "merged", "merged_bytes", "place", "silent")

    def __init__(self, place: Place) -> None:
        self.place = place
        self.arrived: deque[FoldEvent] = deque()
        self.merged: deque[FoldEvent] = deque()
        self.merged_bytes = 0
        self.following = 0
        """The offset after the last record that was merged."""
        self.held = False
        """True while nothing more of it is fetched."""
        self.silent = False
        """True if nothing was received of it, records or an end, for as long as the others wait."""


class MergingIntake(Intake):
    """Events of several sources, which are folded in the order of a `Merger`.

    It *asks* for the ends of the sources that hold back the events in hand. While it does, it takes more
    events of these sources alone. *seen* chooses the globals that its transactions see, where the processor
    reads any.
    """

    def __init__(
        self,
        host: MergingIntakeHost,
        part: Partition,
        seen: GlobalIntake | None = None,
        *,
        clock: Clock = system_clock,
    ) -> None:
        self._host, self._part, self._clock = host, part, clock
        self._inputs = [fold.inputs for fold in part.processor.folds]
        self._queues = [_SourceQueue(place) for place in part.places]
        self._numbers = {topic: number for number, topic in enumerate(part.processor.topics)}
        self._merger: Merger | None = None
        self._folder: Folder[Any] | None = None
        self.epoch, self._epoch = NO_EPOCH, NO_EPOCH
        self._drawn, self._news = False, False
        self._asked: frozenset[int] = frozenset()
        self._since_s, self._round = 0.0, 0
        self._ends: list[int | None] | None = None
        self._clock_ms: int | None = None
        self._clock_ends: list[int] | None = None
        self._settled_at: Position | None = None
        self._passed: list[int] = []
        self._globals = seen

    # -- events

    def enqueue(self, event: FoldEvent) -> None:
        number = self._numbers[event.value.topic]
        queue = self._queues[number]
        queue.arrived.append(event)
        queue.silent = False
        if not self._asked or number in self._asked:
            self._news = True

    @property
    def ready(self) -> bool:
        return self._news

    def next_batch(self) -> bool:
        self._news = False
        host, part = self._host, self._part
        if not host.open or not host.owns(part, host.epoch):
            self._drop_stale()
            return False
        if self._merger is None or self._epoch != host.epoch:
            self._begin()
        if self._globals is not None and not self._globals.begin(self._merging, part.owner.folder.marker):
            return False
        self.epoch, self._drawn, self._folder = self._epoch, True, part.owner.folder
        self._take_in()
        if self._merging.next_choice is None:
            self._tick_if_due()
        return True

    def _tick_if_due(self) -> None:
        """Have the merger tick if a timer is due and all records appended before it are folded; ask for the
        ends of sources where that is unknown, and where ticks report that a source is at its end.
        """
        folder, now_ms = self._folding, self._clock.now_ms()
        due_ms = folder.next_tick_ms
        if due_ms > now_ms:
            self._clock_ms = self._clock_ends = None
            return
        ticked_ms, reached_ms = folder.marker.tick_ms, min(now_ms, folder.stream_ms)
        if self._clock_ms is not None and self._clock_ms <= ticked_ms:
            self._clock_ms = self._clock_ends = None
        # Append times bound the folded records only where records are merged by them.
        by_append = not self._part.processor.ticks_at_ends and not folder.order.by_event
        if by_append and due_ms <= reached_ms and ticked_ms < reached_ms:
            self._merging.tick(reached_ms)
        elif self._clock_ms is None:
            self._clock_ms, self._round = now_ms, self._round + 1
            self._host.ask_ends()
        elif self._clock_ends is None:
            self._host.ask_ends()
        elif all(map(self._is_folded, self._queues, self._merging.pending, self._clock_ends)):
            self._merging.tick(self._clock_ms)

    def _is_folded(self, queue: _SourceQueue, pending: int, end: int) -> bool:
        """Return whether all records before *end* of a source are folded, of which *pending* are in hand."""
        passed = self._host.feed.passed(queue.place, queue.following)
        return self._folding.marker.applied[self._queues.index(queue)] + 1 >= end or (
            not pending and not queue.arrived and passed >= end
        )

    @property
    def _folding(self) -> Folder[Any]:
        """Return the transaction's folder: the partition has none any more once it is lost, or its store
        rots.
        """
        assert self._folder is not None, "next_batch first"
        return self._folder

    @property
    def _merging(self) -> Merger:
        assert self._merger is not None, "next_batch first"
        return self._merger

    def _begin(self) -> None:
        """Merge the events of this epoch, from the state's position on."""
        self._drop_stale()
        self._epoch = self._host.epoch
        owner = self._part.owner
        marker = owner.folder.marker
        self._merger = Merger(marker, map(decode_choice, owner.recorded), owner.folder.order)
        for queue, applied in zip(self._queues, marker.applied, strict=True):
            queue.following, queue.silent = applied + 1, False

    def _drop_stale(self) -> None:
        """Drop the events that were fetched in another epoch than the host's, or that this worker no longer
        owns.
        """
        self.abandon()
        for queue in self._queues:
            arrived, queue.arrived = queue.arrived, deque()
            for event in arrived:
                if self._host.owns(self._part, event.value.epoch):
                    queue.arrived.append(event)
                else:
                    self._host.void(event)

    def _take_in(self) -> None:
        """Offer the merger the events that have arrived: of the sources that are waited for, if any are."""
        for number, queue in enumerate(self._queues):
            if self._asked and number not in self._asked:
                continue
            while queue.arrived:
                event = queue.arrived.popleft()
                if self._host.owns(self._part, event.value.epoch):
                    self._offer(number, queue, event)
                else:
                    self._host.void(event)
            passed = self._host.feed.passed(queue.place, queue.following)
            self._merging.offer(number, _NOTHING, passed)

    def _offer(self, number: int, queue: _SourceQueue, event: FoldEvent) -> None:
        fetched = event.value
        assert fetched.first <= queue.following, (
            f"{queue.place}: merged up to {queue.following}, records begin at {fetched.first}"
        )
        self._merging.offer(number, fetched.records.batch(fetched.partition, self._inputs[number]))
        queue.following = max(queue.following, fetched.last + 1)
        # An event that waits for another source is no sign that this worker is stuck, and must not keep the
        # feed from fetching the records that it waits for: it is counted here, where each source has its
        # share.
        self._host.park(event)
        queue.merged.append(event)
        queue.merged_bytes += fetched.size_bytes

    # -- one transaction

    def records(self) -> Iterator[Stretch]:
        """Yield stretches as long as the next one is known; take the events that arrive in the meantime when
        that takes long.
        """
        began_s, merger = self._clock.monotonic_s(), self._merging
        while True:
            stretch = merger.take(self._ends)
            if stretch is None and self._clock.monotonic_s() - began_s > BACKLOG_S and self._more():
                self._take_in()
                stretch = merger.take(self._ends)
            if stretch is None or (self._globals is not None and not self._globals.admits(stretch)):
                return
            yield stretch

    def _more(self) -> bool:
        return any(
            queue.arrived and queue.arrived[0].value.epoch == self._host.epoch for queue in self._queues
        )

    def refused(self, refused: Refused) -> tuple[str, FetchedRecord]:
        if not refused.topic:  # no record caused it: the choice has its coordinates
            (topic,) = self._part.choices_topics
            changes = self._folding.changes
            assert changes is not None
            return topic, FetchedRecord(None, None, (), changes.marker.tick_ms)
        queue = self._queues[self._numbers[refused.topic]]
        fetches = (event.value for event in queue.merged)
        return refused.topic, next(
            fetch.records.at(refused.offset) for fetch in fetches if refused.offset <= fetch.last
        )

    def ack(self) -> None:
        folder, merger = self._folding, self._merging
        merger.settle(folder.marker)
        if self._globals is not None:
            self._globals.settle()
        for queue, applied in zip(self._queues, folder.marker.applied, strict=True):
            while queue.merged and queue.merged[0].value.last <= applied:
                event = queue.merged.popleft()
                queue.merged_bytes -= event.value.size_bytes
                self._host.done(event, counted=False)
        if self._part.owner.recorded and merger.next_choice is None:
            self._part.owner.recorded = []  # all are obeyed; what comes next is decided here
        moved, self._settled_at, self._drawn = folder.marker != self._settled_at, folder.marker, False
        if self._epoch != self._host.epoch:
            self._drop_stale()
            return
        self._wait(moved)
        self._throttle()

    @property
    def held(self) -> Collection[Place]:
        return [queue.place for queue in self._queues if queue.held]

    def retry(self) -> None:
        self._merging.settle(self._folding.marker)
        if self._globals is not None:
            self._globals.settle()
        self._drawn = False
        if self._epoch != self._host.epoch:
            self._drop_stale()
        else:
            self._wait(moved=True)

    def abandon(self) -> None:
        self._drawn = False
        if self._globals is not None:
            self._globals.reset()
        for queue in self._queues:
            for event in queue.merged:
                self._host.void(event, counted=False)
            queue.merged.clear()
            queue.merged_bytes = 0
            if queue.held:
                queue.held = False
                self._host.feed.hold(queue.place, False)
        self._merger, self._epoch = None, NO_EPOCH
        self._ends, self._asked, self._since_s = None, frozenset(), 0.0
        self._clock_ms = self._clock_ends = None

    def clear(self) -> None:
        self.abandon()
        for queue in self._queues:
            for event in queue.arrived:
                self._host.void(event)
            queue.arrived.clear()
        self._news = False

    def revoked(self) -> None:
        if not self._drawn:
            self._drop_stale()

    # -- waiting

    def _wait(self, moved: bool) -> None:
        """Decide which sources to wait for; after something was folded, wait for the next turn only."""
        merger = self._merging
        self._ends = None
        if moved:
            self._news, self._asked, self._since_s = True, frozenset(), 0.0
            return
        pending = merger.pending
        asked = frozenset(number for number, count in enumerate(pending) if not count)
        if not any(pending) or merger.next_choice is not None or not asked:
            self._asked = frozenset()
        elif self._asked != asked or not self._since_s:
            self._asked, self._since_s, self._round = asked, self._clock.monotonic_s(), self._round + 1
        if self._asked:
            self._host.ask_ends()
        else:
            self._since_s = 0.0
        if any(queue.arrived for number, queue in enumerate(self._queues) if self._is_wanted(number)):
            self._news = True

    def _is_wanted(self, number: int) -> bool:
        return not self._asked or number in self._asked

    def asks(self) -> tuple[int, list[Place]]:
        """Return the partitions whose ends are wanted, and the round, to which alone the answer belongs."""
        if self._clock_ms is not None and self._clock_ends is None:
            return self._round, [queue.place for queue in self._queues]
        waited = self._asked if self._ends is None else ()
        return self._round, [self._queues[number].place for number in waited]

    def answer(self, asked: int, ends: Mapping[Place, int], wait_s: float) -> None:
        """Take the *ends* that logs had after round *asked* had begun, as far as they are known.

        A source whose end is unknown is waited for until *wait_s* have passed, and then not again before it
        sends something.
        """
        if asked != self._round:
            return
        if self._clock_ms is not None and self._clock_ends is None:
            self._answer_clock(ends, wait_s)
        if not self._asked or self._ends is not None:
            return
        found: list[int | None] = [None] * len(self._queues)
        late = self._clock.monotonic_s() - self._since_s > wait_s
        for number in self._asked:
            queue = self._queues[number]
            end = ends.get(queue.place)
            if end is not None:
                queue.silent = False
            elif late or queue.silent:
                queue.silent, end = True, 0
            found[number] = end
        self._ends, self._news = found, True

    def _answer_clock(self, ends: Mapping[Place, int], wait_s: float) -> None:
        """Take the ends that were asked for because a timer is due; an unknown one is not waited for longer
        than records are.
        """
        assert self._clock_ms is not None
        late = self._clock.now_ms() - self._clock_ms > wait_s * 1000
        if late or all(queue.place in ends for queue in self._queues):
            self._clock_ends = [ends.get(queue.place, 0) for queue in self._queues]
            self._news = True

    def look(self) -> None:
        """Check whether a tick is due, or a log was read on without records."""
        host, merger = self._host, self._merger
        if self._globals is not None and self._globals.waiting:
            self._news = self._news or self._globals.look()
        elif merger is None or self._epoch != host.epoch:
            self._news = True  # taken up again: there may be timers
        elif merger.next_choice is None and self._part.owner.folder.next_tick_ms <= self._clock.now_ms():
            self._news = True
        elif any(merger.pending) or merger.next_choice is not None:
            passed = [host.feed.passed(queue.place, queue.following) for queue in self._queues]
            self._news = self._news or passed != self._passed
            self._passed = passed

    def _throttle(self) -> None:
        """Fetch no more of a source that has its share in hand, unless it is the one that is waited for."""
        share, waited = self._host.share_bytes, self._merging.waits_for()
        for number, queue in enumerate(self._queues):
            held = queue.merged_bytes > share and number != waited and number not in self._asked
            if held != queue.held:
                queue.held = held
                self._host.feed.hold(queue.place, held)
