"""What stands between a `Member` and the world: its actions carried out, its inputs from the user's side, and
the gate of every message.

One lock is around the member and everything it says, so frames go out in the order in which they were
decided.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar, assert_never

from holdfast.clients.claims.fetcher import ClaimFetcher, FetchSettings
from holdfast.clients.claims.log import CoordinationLog
from holdfast.clients.claims.offsets import OffsetFetcher
from holdfast.clients.claims.options import EngineSettings
from holdfast.clients.claims.queue import FetchedMessages, FetchQueue, Handout, Lease
from holdfast.clients.claims.waits import Waits
from holdfast.clock import Clock
from holdfast.config import Settings
from holdfast.core.claims.frames import encode
from holdfast.core.claims.lanes import ClaimNames, lowest
from holdfast.core.member.actions import (
    Action,
    CommitOffset,
    Deliver,
    DeliveryToken,
    Event,
    Fail,
    FetchOffsets,
    Notify,
    Send,
    Start,
    Stop,
)
from holdfast.core.member.member import Draws, Member
from holdfast.core.member.settings import Delivery, MemberSettings
from holdfast.errors import TerminatedError

logger = logging.getLogger(__name__)
T = TypeVar("T")

LIMIT_EVENTS = 1_000


class Dispatcher:
    """The part of an engine that has no thread of its own: called by whoever takes messages, and by the
    engine's threads.
    """

    def __init__(
        self,
        settings: Settings,
        member: MemberSettings,
        options: EngineSettings,
        feed: FetchSettings,
        *,
        clock: Clock,
        draws: Draws,
    ) -> None:
        self._settings, self.member_settings, self._options, self._clock, self._draws = (
            settings,
            member,
            options,
            clock,
            draws,
        )
        self._at_most_once = member.delivery is Delivery.AT_MOST_ONCE
        self._names = ClaimNames(options.lanes)
        self.queue = FetchQueue(limit_messages=feed.queue_messages, limit_bytes=feed.queue_bytes)
        self._log = CoordinationLog(
            settings,
            compression=options.compression,
            interop=member.interop,
            send_timeout_s=options.send_timeout_s or member.heartbeat_interval_s,
            follow_wait_ms=options.follow_wait_ms,
        )
        self.lock = threading.Lock()
        self.member: Member | None = None
        self._feed: ClaimFetcher | None = None
        self._lookups: OffsetFetcher | None = None
        self._leases: dict[tuple[str, int], Lease] = {}
        self._handouts: dict[Lease, Handout] = {}
        self._handed_out: deque[Handout] = deque()
        """At most once: what the member has not been told of yet."""
        self._to_commit: dict[tuple[str, int], int] = {}
        self._lanes_booked: dict[tuple[str, int], int] = {}
        self._waits = Waits()
        self._quit = self.ending = False
        self.failure: BaseException | None = None
        self.told = False
        """Whether somebody was told of the failure; if not, leaving the block tells."""
        self.ended = threading.Event()
        self.events: deque[Notify] = deque(maxlen=LIMIT_EVENTS)
        self._listeners: list[Callable[[Notify | None], None]] = []
        self.undecodable = self.undelivered = 0

    @property
    def over(self) -> bool:
        """Return whether no message will ever come again.

        At most once, what is committed is handed out also at the end.
        """
        return self.ended.is_set() or (self.ending and not self._leases)

    def raise_failure(self) -> None:
        """Raise what the engine failed of, if it has."""
        if self.failure is not None:
            self.told = True
            raise self.failure

    # -- messages, from the user's side

    def _take(self) -> Handout | None:
        """Return the next batch that may be handed out now, reported as delivered but at most once; None when
        there is none.

        At most once a batch is reported when all of it has been handed out (`used_up`): a claim that is being
        given back waits for that.
        """
        with self.lock:
            member, now_s = self.member, self._clock.monotonic_s()
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
                left = self.member_settings.maximum_outstanding - member.outstanding(
                    lease.topic, lease.partition
                )
                if 0 < left < len(batch.messages):
                    batch, rest = batch.split(left)
                    self.queue.put_back(rest)
                if self._at_most_once:
                    self._propose(member, lease, now_s)
                else:
                    self._delivered(member, batch, now_s)
                handout = self._handouts[lease] = Handout(batch)
                return handout

    def _delivered(self, member: Member, batch: FetchedMessages, now_s: float) -> None:
        lease = batch.lease
        self._do(member.messages.delivered(lease.topic, lease.partition, batch.offsets(), now_s))
        if lease.lane is not None:
            self._do(member.messages.skipped(lease.topic, lease.partition, batch.end, now_s))

    def _report(self, member: Member, now_s: float) -> None:
        """At most once: tell what was handed out since the last time."""
        while self._handed_out:
            batch = self._handed_out.popleft().batch
            if batch.lease.open:
                self._delivered(member, batch, now_s)

    def turn_over(self, member: Member, now_s: float) -> None:
        """Tell the member, under the lock, what it has not been told of what was handed out and of where
        there is nothing to hand out.
        """
        self._report(member, now_s)
        for moved in self.queue.take_moves(but=self._handouts if self._at_most_once else ()):
            self._do(member.messages.skipped(moved.lease.topic, moved.lease.partition, moved.end, now_s))

    def take_handout(self) -> Handout | None:
        """Return the next batch to be handed out message by message: one that was set aside and may go on,
        else a new one.
        """
        for lease, handout in list(self._handouts.items()):
            if not lease.open:
                self.used_up(handout)
            elif self.may_deliver(lease):
                return handout
        return self._take()

    def may_deliver(self, lease: Lease) -> bool:
        """Return whether a message of *lease* may be handed out at this very moment.

        What was frozen meanwhile is told by the clock.
        """
        return lease.open and self._clock.monotonic_s() < lease.gate.deliver_until_s

    def set_aside(self, handout: Handout) -> None:
        """The rest of *handout* may not be handed out now; if its lease has ended, never."""
        if not handout.batch.lease.open:
            with self.lock:
                self._withdraw(handout)

    def used_up(self, handout: Handout) -> None:
        """All of *handout* has been handed out, or will never be.

        Takes no lock: it comes between the gate and the hand-out.
        """
        if self._at_most_once:
            self._handed_out.append(
                handout
            )  # first, so that it is never in neither place; the engine's next turn tells
        self._handouts.pop(handout.batch.lease, None)

    def _ready(self, member: Member, lease: Lease, now_s: float) -> bool:
        if lease in self._handouts:
            return False
        if not lease.queue[0].messages:
            return True
        if self._at_most_once and lease.queue[0].end > lease.granted:
            return False
        return member.may_deliver(lease.topic, lease.partition, now_s)

    def _propose(self, member: Member, lease: Lease, now_s: float) -> None:
        """At most once: have the log commit everything that is queued, unless a batch is on its way or
        waits to be taken.
        """
        if (
            lease.open
            and lease.queue
            and lease.proposed <= lease.granted
            and lease.queue[0].end > lease.granted
        ):
            lease.proposed = lease.queue[-1].end
            self._do(member.messages.fetched(lease.topic, lease.partition, lease.proposed, now_s))

    def commit(self, token: DeliveryToken) -> None:
        """Note that a message is done; raises CommitError and ClaimLostError."""
        with self.lock:
            member = self._live()
            if actions := member.messages.commit(token, self._clock.monotonic_s()):
                self._do(actions)
        self._nudge()

    def commit_many(self, topic: str, partition: int, epoch: int, offsets: range | Sequence[int]) -> None:
        """Note that messages are done, all of them or, when it raises, none."""
        with self.lock:
            member = self._live()
            if actions := member.messages.commit_many(
                topic, partition, epoch, offsets, self._clock.monotonic_s()
            ):
                self._do(actions)
        self._nudge()

    def flush(self, timeout_s: float | None = None) -> Future[None]:
        """Write what is committed to the log now; done when the log has it."""
        done: Future[None] = Future()
        with self.lock:
            member = self._live()
            self._do(member.messages.flush(self._clock.monotonic_s()))
            self._wait_for(
                member.messages.flushed,
                done,
                timeout_s or self._options.flush_timeout_s,
                "the flush of committed offsets",
            )
        return done

    def ask(self, question: Callable[[Member], T]) -> T:
        """Return what *question* reads from the member, undisturbed."""
        with self.lock:
            return question(self._live())

    def call(self, step: Callable[[Member, float], list[Action]]) -> None:
        """Give the member an input of any other kind, `aim` for example, and do what it says."""
        with self.lock:
            self._do(step(self._live(), self._clock.monotonic_s()))

    def _nudge(self) -> None:
        """Have a sleeping taker look again, if there is something that it could not take before."""
        if self.queue.waiting and (self.queue.messages or self._handouts):
            self.queue.nudge()

    @contextmanager
    def listening(self, tell: Callable[[Notify | None], None]) -> Iterator[None]:
        """Have *tell* called with every event, and with None at the end, until the block is left.

        It must not wait, nor call back in.
        """
        with self.lock:
            self._listeners.append(tell)
        try:
            yield
        finally:
            with self.lock:
                self._listeners.remove(tell)

    def seen_events(self) -> tuple[Notify, ...]:
        """Return what happened lately."""
        with self.lock:
            return tuple(self.events)

    def counters(self) -> dict[str, int]:
        """Return what is queued now and what went wrong so far."""
        return {
            "queued_messages": self.queue.messages,
            "queued_bytes": self.queue.size_bytes,
            "undecodable_frames": self.undecodable,
            "undelivered_messages": self.undelivered,
            "kafka_commits_failed": 0 if self._feed is None else self._feed.commits_failed,
            "skipped_batches": self._log.skipped,
            "unreadable_partitions": 0 if self._feed is None else len(self._feed.unreadable),
        }

    def _live(self) -> Member:
        if self.member is None or self.ended.is_set():
            self.raise_failure()
            raise TerminatedError(
                "the claim consumer is not running: use it inside `async with`, and not after terminate()"
            )
        return self.member

    def _wait_for(
        self, condition: Callable[[], bool], done: Future[None], timeout_s: float, what: str
    ) -> None:
        self._waits.add(condition, done, self._clock.monotonic_s() + timeout_s, what)

    # -- what the member says; under the lock

    def _do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Send():
                    self._log.send(action.send_id, encode(action.frame), action.coordination_partition)
                case FetchOffsets():
                    if self._lookups is not None:
                        self._lookups.ask(self._names.source(action.topic), action.partition, committed=True)
                case Start():
                    self._begin(action)
                case Stop():
                    self._end(action)
                case Deliver():
                    lease = self._leases.get((action.topic, action.partition))
                    if lease is not None:
                        lease.granted = action.offset_end
                        self.queue.nudge()
                case CommitOffset():
                    self._note_commit(action)
                case Notify():
                    self._notify(action)
                case Fail():
                    self._fail(action.error)
                case _:
                    assert_never(action)

    def _begin(self, action: Start) -> None:
        assert self._feed is not None
        place = (action.topic, action.partition)
        assert place not in self._leases, f"{place} started twice"
        assert self.member is not None
        gate = self.member.gate(*place)
        assert gate is not None
        source, lane = self._names.source(action.topic), self._names.lane(action.topic)
        lease = Lease(
            action.topic, action.partition, action.offset, action.epoch, gate, source=source, lane=lane
        )
        self._leases[place] = self._feed.start(lease)

    def _note_commit(self, action: CommitOffset) -> None:
        """Have Kafka's own book follow: to where a partition stands, which with lanes is where the last of
        them stands.
        """
        source, partition = self._names.source(action.topic), action.partition
        if source == action.topic:
            self._to_commit[source, partition] = action.offset
        else:
            self._note_lanes(source, partition, {action.topic: action.offset})

    def _note_lanes(self, source: str, partition: int, told: Mapping[str, int]) -> None:
        """Have Kafka's own book follow the lanes of a partition.

        Said again from time to time: what others commit is seen only later.
        """
        member = self.member
        if member is None:
            return
        lanes = self._names.claimed_as(source)
        found = lowest(
            told[each] if each in told else member.committed_offset(each, partition) for each in lanes
        )
        if (
            found is not None and self._lanes_booked.get((source, partition)) != found
        ):  # None: some lane was never worked on
            self._to_commit[source, partition] = self._lanes_booked[source, partition] = found

    def _end(self, action: Stop) -> None:
        lease = self._leases.pop((action.topic, action.partition), None)
        if lease is None or self._feed is None:
            return
        left = self.queue.left(lease) if self._at_most_once else []
        self._feed.stop(lease)  # closes it: from here on nothing of it is handed out
        handout = self._handouts.get(lease)
        if handout is not None:
            at, batch = handout.at, handout.batch  # the taker goes on meanwhile
            if self._at_most_once and at < len(batch.messages):
                left = [batch if at == 0 else batch.split(at)[1], *left]
            self._withdraw(handout)
        if left:
            self._note_undelivered(action, left)
        if self.ending:
            self.queue.nudge()  # that may have been the last

    def _note_undelivered(self, stop: Stop, left: Sequence[FetchedMessages]) -> None:
        """At most once: what the log has committed and nobody took in time is lost, and said to be."""
        count = sum(len(batch.messages) for batch in left)
        self.undelivered += count
        text = f"{count} messages, offsets {left[0].first} to {left[-1].end - 1}, were committed and not taken before the claim was given up"
        self._notify(Notify(Event.UNDELIVERED, stop.topic, stop.partition, text=text))

    def _withdraw(self, handout: Handout) -> None:
        """Tell the member where handing out ended.

        The taker moves `at` before it looks whether the lease is open, and a stop closes the lease before it
        looks at `at`: so a message is never withdrawn and handed out. The taker that loses that race calls
        `set_aside`, and the member hears the exact place then.
        """
        messages, lease = handout.batch.messages, handout.batch.lease
        self.used_up(handout)
        if handout.at < len(messages) and self.member is not None:
            offset = messages[handout.at].offset() or 0
            self._do(
                self.member.messages.withdrawn(
                    lease.topic, lease.partition, offset, self._clock.monotonic_s()
                )
            )

    def _notify(self, event: Notify) -> None:
        self.events.append(event)
        level = logging.WARNING if event.event in _ALARMING else logging.INFO
        if event.event is not Event.TOPICS:
            where = " %(topic)s/%(partition)s" if event.topic else ""
            why = " (%(reason)s)" if event.reason else ""
            text = ": %(detail)s" if event.text else ""
            fields = {
                "group": self.member_settings.group_id,
                "client": self.member_settings.client_id,
                "event": event.event.value,
                "topic": event.topic,
                "partition": event.partition,
                "reason": event.reason.value if event.reason else None,
                "detail": event.text,
            }
            logger.log(level, "claim %(event)s" + where + why + text, fields)
        for tell in self._listeners:
            tell(event)

    def _fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error
        for lease in self._leases.values():
            lease.open = False
        self.queue.nudge()


_ALARMING = (
    Event.FENCED,
    Event.ABANDONED,
    Event.UNDELIVERED,
    Event.HANDLER_SLOW,
    Event.CLOCK_SKEW,
    Event.RIVAL,
)
