"""The way of fetched messages to the user: the leases of the owned partitions, the queue, the batches that
are handed out message by message, and the gate of every message.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from holdfast.clients.claims.claiming.fetcher import ClaimFetcher, FetchSettings
from holdfast.clients.claims.claiming.queue import FetchedMessages, FetchQueue, Handout, Lease
from holdfast.clock import Clock
from holdfast.core.claims.lanes import ClaimNames
from holdfast.core.member.actions import Action, Deliver, Event, Notify, Start, Stop
from holdfast.core.member.member import Member
from holdfast.core.member.settings import Delivery, MemberSettings


class ClaimDelivery:
    """The delivery of one engine. It has no thread: the taker and the engine's threads call in.

    *lock* is the engine's, and *do* carries out what the member answers, under that lock. `attach` comes
    before everything but `take_handout`, which has nothing to hand out until then.
    """

    def __init__(
        self,
        settings: MemberSettings,
        feed: FetchSettings,
        names: ClaimNames,
        *,
        clock: Clock,
        lock: threading.Lock,
        do: Callable[[Sequence[Action]], None],
    ) -> None:
        self._names, self._clock, self._lock, self._do = names, clock, lock, do
        self._at_most_once = settings.delivery is Delivery.AT_MOST_ONCE
        self._at_most_once_messages = feed.at_most_once_messages
        self.queue = FetchQueue(limit_messages=feed.queue_messages, limit_bytes=feed.queue_bytes)
        self._member: Member | None = None
        self._fetcher: ClaimFetcher | None = None
        self._leases: dict[tuple[str, int], Lease] = {}
        self._handouts: dict[Lease, Handout] = {}
        self._handed_out: deque[Handout] = deque()
        """At most once: what the member does not know of yet."""
        self.undelivered = 0

    def attach(self, member: Member, fetcher: ClaimFetcher) -> None:
        """Deliver what *fetcher* brings of the claims of *member*."""
        self._member, self._fetcher = member, fetcher

    @property
    def has_leases(self) -> bool:
        """Return whether something may be handed out now or later without another `begin`."""
        return bool(self._leases)

    # -- the taker

    def may_deliver(self, lease: Lease) -> bool:
        """Return whether a message of *lease* may be handed out at this very moment.

        The clock shows how long the process was frozen in between.
        """
        return lease.gate.is_open(self._clock.monotonic_s())

    def take_handout(self) -> Handout | None:
        """Return the next batch to be handed out message by message: one that was set aside and may continue,
        else a new one; None when there is none.
        """
        for lease, handout in list(self._handouts.items()):
            if not lease.open:
                self.set_aside(handout)
            elif self.may_deliver(lease):
                return handout
        return self._take()

    def set_aside(self, handout: Handout) -> None:
        """The rest of *handout* may not be handed out now; if its lease has ended, never."""
        if not handout.batch.lease.open:
            with self._lock:
                self._withdraw(handout)

    def used_up(self, handout: Handout) -> None:
        """All of *handout* has been handed out, or will never be.

        Takes no lock: it comes between the gate and the hand-out.
        """
        if self._at_most_once:
            # First, so that it is always in one of the two; the engine's next turn reports it.
            self._handed_out.append(handout)
        self._handouts.pop(handout.batch.lease, None)

    def _take(self) -> Handout | None:
        """Return the next batch that may be handed out now, reported as delivered but at most once; None when
        there is none.

        At most once a batch is reported when all of it has been handed out (`used_up`): a claim that is being
        given back waits for that.
        """
        with self._lock:
            member, now_s = self._member, self._clock.monotonic_s()
            if member is None:
                return None
            self._report(member, now_s)
            while True:
                batch = self.queue.take(lambda lease: self._ready(member, lease, now_s))
                if batch is None:
                    return None
                lease = batch.lease
                if not batch.messages:
                    self._do(member.messages.skipped(lease.topic, lease.partition, batch.end, now_s))
                    continue
                room = member.room(lease.topic, lease.partition)
                if 0 < room < len(batch.messages):
                    batch, rest = batch.split(room)
                    self.queue.put_back(rest)
                if self._at_most_once:
                    self._propose(member, lease, now_s)
                else:
                    self._delivered(member, batch, now_s)
                handout = self._handouts[lease] = Handout(batch)
                return handout

    def _ready(self, member: Member, lease: Lease, now_s: float) -> bool:
        if lease in self._handouts:
            return False
        if not lease.queue[0].messages:
            return True
        if self._at_most_once and lease.queue[0].end > lease.granted:
            return False
        return member.may_deliver(lease.topic, lease.partition, now_s)

    # -- what the member learns; under the lock

    def _delivered(self, member: Member, batch: FetchedMessages, now_s: float) -> None:
        lease = batch.lease
        self._do(member.messages.delivered(lease.topic, lease.partition, batch.offsets(), now_s))
        if lease.lane is not None:
            self._do(member.messages.skipped(lease.topic, lease.partition, batch.end, now_s))

    def _report(self, member: Member, now_s: float) -> None:
        """At most once: report the messages handed out since the last time."""
        while self._handed_out:
            batch = self._handed_out.popleft().batch
            if batch.lease.open:
                self._delivered(member, batch, now_s)

    def turn(self, member: Member, now_s: float) -> None:
        """Report to the member the messages handed out, and partitions without any to hand out."""
        self._report(member, now_s)
        for moved in self.queue.take_moves(but=self._handouts if self._at_most_once else ()):
            self._do(member.messages.skipped(moved.lease.topic, moved.lease.partition, moved.end, now_s))

    def report_waiting(self, member: Member, now_s: float) -> list[Lease]:
        """Report to the member which partitions wait for the taker; return all leases."""
        full = self.queue.full
        leases = list(self._leases.values())
        for lease in leases:
            waits = full or lease in self._handouts or self.queue.queued(lease)[0] > 0
            self._do(member.messages.waiting(lease.topic, lease.partition, waits, now_s))
        return leases

    def arrived(self, batches: Sequence[FetchedMessages]) -> None:
        """At most once: what has arrived is proposed to the log at once. Called by the fetching thread."""
        with self._lock:
            if self._member is not None:
                now_s = self._clock.monotonic_s()
                for batch in batches:
                    if batch.messages:
                        self._propose(self._member, batch.lease, now_s)

    def _propose(self, member: Member, lease: Lease, now_s: float) -> None:
        """At most once: have the log commit queued messages, no more than a kill may cost, unless a batch is
        on its way or waits to be taken.
        """
        if (
            lease.open
            and lease.queue
            and lease.proposed <= lease.granted
            and lease.queue[0].end > lease.granted
        ):
            lease.proposed = self.queue.portion(lease, self._at_most_once_messages)
            self._do(member.messages.fetched(lease.topic, lease.partition, lease.proposed, now_s))

    # -- what the member asks for; under the lock

    def begin(self, start: Start) -> None:
        """Fetch a partition, and hand out its messages."""
        assert self._fetcher is not None
        assert self._member is not None
        place = (start.topic, start.partition)
        assert place not in self._leases, f"{place} started twice"
        gate = self._member.gate(*place)
        assert gate is not None
        source, lane = self._names.source(start.topic), self._names.lane(start.topic)
        lease = Lease(start.topic, start.partition, start.offset, start.epoch, gate, source=source, lane=lane)
        self._leases[place] = self._fetcher.start(lease)

    def grant(self, deliver: Deliver) -> None:
        """At most once: hand out what the log has committed."""
        lease = self._leases.get((deliver.topic, deliver.partition))
        if lease is not None:
            lease.granted = deliver.offset_end
            self.queue.nudge()

    def end(self, stop: Stop) -> None:
        """Hand out nothing more of a partition, and give back what the taker did not get."""
        lease = self._leases.pop((stop.topic, stop.partition), None)
        if lease is None or self._fetcher is None:
            return
        left = self.queue.left(lease) if self._at_most_once else []
        self._fetcher.stop(lease)  # closes it: from here on nothing of it is handed out
        handout = self._handouts.get(lease)
        if handout is not None:
            at, batch = handout.at, handout.batch  # the taker continues at the same time
            if self._at_most_once and at < len(batch.messages):
                left = [batch if at == 0 else batch.split(at)[1], *left]
            self._withdraw(handout)
        if self._at_most_once and self._member is not None:
            first = left[0].first if left else None
            actions = self._member.messages.kept_back(
                stop.topic, stop.partition, first, self._clock.monotonic_s()
            )
            if actions is not None:
                self._do(actions)
            elif left:
                self._note_undelivered(stop, left)
        if not self._leases:
            self.queue.nudge()  # at the end of the engine the taker waits for no more

    def _note_undelivered(self, stop: Stop, left: Sequence[FetchedMessages]) -> None:
        """At most once: what the log has committed and the taker did not get in time is lost; an event says
        so.
        """
        count = sum(len(batch.messages) for batch in left)
        self.undelivered += count
        text = (
            f"{count} messages, offsets {left[0].first} to {left[-1].end - 1}, were committed and not taken"
            " before the claim was given up"
        )
        self._do([Notify(Event.UNDELIVERED, stop.topic, stop.partition, text=text)])

    def _withdraw(self, handout: Handout) -> None:
        """Report to the member where handing out ended.

        The taker moves `at` before it looks whether the gate is open, and the gate is shut before a stop
        looks at `at`: so a message is never withdrawn and handed out. The taker that loses that race calls
        `set_aside`, and the member learns the exact offset then.
        """
        messages, lease = handout.batch.messages, handout.batch.lease
        self.used_up(handout)
        if handout.at < len(messages) and self._member is not None:
            offset = messages[handout.at].offset() or 0
            self._do(
                self._member.messages.withdrawn(
                    lease.topic, lease.partition, offset, self._clock.monotonic_s()
                )
            )

    # -- the engine

    def nudge(self) -> None:
        """Have a sleeping taker look again, if there is something that it could not take before."""
        if self.queue.waiting and (self.queue.messages or self._handouts):
            self.queue.nudge()

    def shut(self) -> None:
        """Hand out nothing more of anything: the engine has failed."""
        for lease in self._leases.values():
            lease.close()
        self.queue.nudge()
