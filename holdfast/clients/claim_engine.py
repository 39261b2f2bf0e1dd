"""The engine of a claim consumer: a `Member` that decides, and the threads and connections that do what it says.

One thread reads the coordination topic and keeps the member's time, another fetches messages (`Feed`). The user's side calls in from
wherever it runs. One lock is around the member and everything it says, so frames go out in the order in which they were decided.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar, assert_never

from holdfast.clients.claim_feed import Feed, FeedSettings
from holdfast.clients.claim_log import CoordinationLog, LogRecord
from holdfast.clients.claim_lookup import Lookups
from holdfast.clients.claim_options import EngineSettings
from holdfast.clients.claim_queue import Fetched, FetchQueue, Handout, Lease
from holdfast.clients.claim_waits import Waits
from holdfast.clients.reset_settler import ResetSettler
from holdfast.clock import Clock
from holdfast.config import Settings
from holdfast.core.frames import Frame, coordination_partition, decode, encode
from holdfast.core.member import Draws, Member
from holdfast.core.member_actions import Action, CommitOffset, Deliver, Event, Fail, Look, Notify, Send, Start, Stop, Token
from holdfast.core.member_settings import Delivery, MemberSettings
from holdfast.errors import BrokerError, FrameError, HoldfastError, TerminatedError

logger = logging.getLogger(__name__)
T = TypeVar("T")

OBSERVED_AT_ONCE = 200
"""Frames observed before the lock is let go, so that whoever takes messages meanwhile waits a millisecond or two."""
JOIN_S = 10.0
RESETS_INTERVALS = 0.1
"""How often to look for what a reset holds."""
LIMIT_EVENTS = 1_000
NOBODYS = -1
"""Send id of frames that the member did not ask for."""


class Engine:
    """One running instance of a claim client. `start` it once, `terminate` it once; it cannot be started again."""

    def __init__(
        self, settings: Settings, member: MemberSettings, options: EngineSettings, feed: FeedSettings, *, clock: Clock, draws: Draws
    ) -> None:
        self._settings, self.member_settings, self._options, self._clock, self._draws = settings, member, options, clock, draws
        self._at_most_once = member.delivery is Delivery.AT_MOST_ONCE
        self.queue = FetchQueue(limit_messages=feed.queue_messages, limit_bytes=feed.queue_bytes)
        self._log = CoordinationLog(
            settings,
            compression=options.compression,
            interop=member.interop,
            send_timeout_s=options.send_timeout_s or member.heartbeat_interval_s,
        )
        self._feed_settings = feed
        self._group_mark = f"/{member.group_id}/".encode()
        self.lock = threading.Lock()
        self.member: Member | None = None
        self._feed: Feed | None = None
        self._lookups: Lookups | None = None
        self._leases: dict[tuple[str, int], Lease] = {}
        self._handouts: dict[Lease, Handout] = {}
        self._to_commit: dict[tuple[str, int], int] = {}
        self._waits = Waits()
        self._told_caught_up: set[int] = set()
        self._health_at_s = self._partitions_at_s = self._clock_at_s = self._resets_at_s = 0.0
        self._settler = ResetSettler(
            settings,
            client=member.client_id,
            interval_s=member.heartbeat_interval_s,
            stale_after_s=member.stale_after_s,
            timeout_s=options.request_timeout_s,
            clock=clock,
            draws=draws,
            topic=options.resets_topic,
        )
        self._quit = self.ending = False
        self.failure: BaseException | None = None
        self.ended = threading.Event()
        self.events: deque[Notify] = deque(maxlen=LIMIT_EVENTS)
        self.on_event: Callable[[Notify], None] | None = None
        self.undecodable = 0
        self._thread = threading.Thread(target=self._run, name="holdfast-claims", daemon=True)
        self._started: Future[None] = Future()

    # -- life, from the user's side

    def start(self) -> Future[None]:
        """Connect and read; the future is done when the member knows all claims there are, or holds why that could not be."""
        self._thread.start()
        return self._started

    def terminate(self, *, release: bool, timeout_s: float | None = None) -> Future[None]:
        """Stop handing out at once, then give claims back (or leave them for a fast reclaim); done when the log has it all."""
        done: Future[None] = Future()
        with self.lock:
            self.ending = True
            member = self.member
            if member is None or self.ended.is_set():
                self._quit = True
                done.set_result(None)
                return done
            self._wait_for(
                lambda: member.terminated, done, timeout_s or self._options.stop_within_s(self.member_settings), "the release of all claims"
            )
            if not member.terminated:
                self._do(member.terminate(release, self._clock.monotonic_s()))
        self.queue.nudge()
        return done

    def close(self) -> None:
        """Stop the threads and let go of the broker, whatever is still under way."""
        self._quit = True
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(JOIN_S)

    def raise_failure(self) -> None:
        """Raise what the engine failed of, if it has."""
        if self.failure is not None:
            raise self.failure

    # -- messages, from the user's side

    def take(self) -> Fetched | None:
        """Return the next batch that may be handed out now, reported as delivered; None when there is none."""
        with self.lock:
            member, now_s = self.member, self._clock.monotonic_s()
            if member is None:
                return None
            while True:
                batch = self.queue.take(lambda lease: self._ready(member, lease, now_s))
                if batch is None:
                    return None
                lease = batch.lease
                if not batch.messages:
                    self._do(member.skipped(lease.topic, lease.partition, batch.end, now_s))
                    continue
                left = self.member_settings.maximum_outstanding - member.outstanding(lease.topic, lease.partition)
                if 0 < left < len(batch.messages):
                    batch, rest = batch.split(left)
                    self.queue.put_back(rest)
                self._do(member.delivered(lease.topic, lease.partition, batch.offsets(), now_s))
                if self._at_most_once:
                    self._propose(member, lease, now_s)
                if lease.open:
                    return batch

    def take_handout(self) -> Handout | None:
        """Return the next batch to be handed out message by message: one that was set aside and may go on, else a new one."""
        for lease, handout in list(self._handouts.items()):
            if not lease.open:
                self.used_up(handout)
            elif self.may_deliver(lease):
                return handout
        batch = self.take()
        if batch is None:
            return None
        handout = self._handouts[batch.lease] = Handout(batch)
        return handout

    def may_deliver(self, lease: Lease) -> bool:
        """Return whether a message of *lease* may be handed out at this very moment. What was frozen meanwhile is told by the clock."""
        return lease.open and self._clock.monotonic_s() < lease.gate.deliver_until_s

    def set_aside(self, handout: Handout) -> None:
        """The rest of *handout* may not be handed out now; if its lease has ended, never."""
        if not handout.batch.lease.open:
            with self.lock:
                self._withdraw(handout)

    def used_up(self, handout: Handout) -> None:
        """All of *handout* has been handed out, or will never be."""
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
        """At most once: have the log commit everything that is queued, unless a batch is on its way or waits to be taken."""
        if lease.open and lease.queue and lease.proposed <= lease.granted and lease.queue[0].end > lease.granted:
            lease.proposed = lease.queue[-1].end
            self._do(member.fetched(lease.topic, lease.partition, lease.proposed, now_s))

    def commit(self, token: Token) -> None:
        """Note that a message is done; raises CommitError and ClaimLostError."""
        with self.lock:
            member = self._live()
            if actions := member.commit(token, self._clock.monotonic_s()):
                self._do(actions)
        self._nudge()

    def commit_many(self, topic: str, partition: int, epoch: int, offsets: range | Sequence[int]) -> None:
        """Note that messages are done, all of them or, when it raises, none."""
        with self.lock:
            member = self._live()
            if actions := member.commit_many(topic, partition, epoch, offsets, self._clock.monotonic_s()):
                self._do(actions)
        self._nudge()

    def flush(self, timeout_s: float | None = None) -> Future[None]:
        """Write what is committed to the log now; done when the log has it."""
        done: Future[None] = Future()
        with self.lock:
            member = self._live()
            self._do(member.flush(self._clock.monotonic_s()))
            self._wait_for(member.flushed, done, timeout_s or self._options.flush_timeout_s, "the flush of committed offsets")
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
            "kafka_commits_failed": 0 if self._feed is None else self._feed.commits_failed,
        }

    def _live(self) -> Member:
        if self.member is None or self.ended.is_set():
            self.raise_failure()
            raise TerminatedError("the claim consumer is not running: use it inside `async with`, and not after terminate()")
        return self.member

    def _wait_for(self, condition: Callable[[], bool], done: Future[None], timeout_s: float, what: str) -> None:
        self._waits.add(condition, done, self._clock.monotonic_s() + timeout_s, what)

    # -- what the member says; under the lock

    def _do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Send():
                    self._log.send(action.send_id, encode(action.frame), action.coordination_partition)
                case Look():
                    if self._lookups is not None:
                        self._lookups.ask(action.topic, action.partition, committed=True)
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
                    self._to_commit[action.topic, action.partition] = action.offset
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
        self._leases[place] = self._feed.start(Lease(action.topic, action.partition, action.offset, action.epoch, gate))

    def _end(self, action: Stop) -> None:
        lease = self._leases.pop((action.topic, action.partition), None)
        if lease is None or self._feed is None:
            return
        self._feed.stop(lease)  # closes it: from here on nothing of it is handed out
        handout = self._handouts.get(lease)
        if handout is not None:
            self._withdraw(handout)

    def _withdraw(self, handout: Handout) -> None:
        """Tell the member where handing out ended.

        The taker moves `at` before it looks whether the lease is open, and a stop closes the lease before it looks at `at`: so a message
        is never withdrawn and handed out. The taker that loses that race calls `set_aside`, and the member hears the exact place then.
        """
        messages, lease = handout.batch.messages, handout.batch.lease
        self.used_up(handout)
        if handout.at < len(messages) and self.member is not None:
            offset = messages[handout.at].offset() or 0
            self._do(self.member.withdrawn(lease.topic, lease.partition, offset, self._clock.monotonic_s()))

    def _notify(self, event: Notify) -> None:
        self.events.append(event)
        level = logging.WARNING if event.event in _ALARMING else logging.INFO
        fields = {"group": self.member_settings.group_id, "client": self.member_settings.client_id}
        if event.event is not Event.TOPICS:
            where = f" {event.topic}/{event.partition}" if event.topic else ""
            why = f" ({event.reason.value})" if event.reason else ""
            text = f": {event.text}" if event.text else ""
            logger.log(level, "claim %s%s%s%s", event.event.value, where, why, text, extra=fields)
        if self.on_event is not None:
            self.on_event(event)

    def _fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error
        for lease in self._leases.values():
            lease.open = False
        self.queue.nudge()

    # -- what the threads bring

    def _arrived(self, batches: list[Fetched]) -> None:
        """At most once: what has arrived is proposed to the log at once."""
        with self.lock:
            if self.member is not None:
                now_s = self._clock.monotonic_s()
                for batch in batches:
                    if batch.messages:
                        self._propose(self.member, batch.lease, now_s)

    def _fetch_failed(self, lease: Lease, reason: str) -> None:
        with self.lock:
            if lease.open and self.member is not None:
                self._do(self.member.fetch_failed(lease.topic, lease.partition, reason, self._clock.monotonic_s()))

    def _feed_broke(self, error: BaseException) -> None:
        with self.lock:
            wrapped = BrokerError(f"fetching messages failed: {error}; look at the broker's log, then start again")
            wrapped.__cause__ = error
            self._fail(error if isinstance(error, HoldfastError) else wrapped)

    # -- the coordinating thread

    def _run(self) -> None:
        try:
            self._open()
            while not self._over():
                self._turn()
        except Exception as error:  # noqa: BLE001  told to whoever uses the engine
            with self.lock:
                self._fail(error)
        finally:
            self._shut()

    def _over(self) -> bool:
        if self._quit:
            return True
        member = self.member
        return member is not None and not self._waits and (member.terminated or self.failure is not None)

    def _open(self) -> None:
        settings, options, wanted = self._settings, self._options, self.member_settings
        self._lookups = Lookups(settings, wanted.group_id, timeout_s=options.request_timeout_s, clock=self._clock)
        counts = self._lookups.counts(wanted.topics)
        self._lookups.check_group()
        self._log.open(wanted.topics, options.request_timeout_s)
        overrides: dict[str, str | int | bool] = {"group.id": wanted.group_id, "isolation.level": "read_committed"}
        self._feed = Feed(
            settings.consumer(**overrides),
            self.queue,
            self._feed_settings,
            partitions=counts,
            failed=self._fetch_failed,
            broken=self._feed_broke,
            arrived=self._arrived if self._at_most_once else None,
            clock=self._clock,
        )
        self._feed.open()
        now_s = self._clock.monotonic_s()
        with self.lock:
            self.member = member = Member(
                wanted, coordination_partitions=self._log.partitions, draws=self._draws, now_s=now_s, unix_s=self._clock.now_ms() / 1000
            )
            for topic, count in counts.items():
                self._do(member.partitions(topic, count, now_s))
            self._wait_for(
                lambda: member.coordination <= self._told_caught_up,
                self._started,
                options.start_timeout_s,
                f"the end of {settings.coordination_topic}",
            )

    def _turn(self) -> None:
        member = self.member
        assert member is not None
        left_s = member.wake_at_s() - self._clock.monotonic_s()
        records = self._log.poll(max(0.0, min(self._options.poll_s, left_s)))
        for start in range(0, len(records), OBSERVED_AT_ONCE):
            self._observe(member, records[start : start + OBSERVED_AT_ONCE])
        with self.lock:
            now_s = self._clock.monotonic_s()
            for moved in self.queue.take_moves():
                self._do(member.skipped(moved.lease.topic, moved.lease.partition, moved.end, now_s))
            self._tell(member, now_s)
            if now_s >= member.wake_at_s():
                self._do(member.clock(self._clock.now_ms() / 1000, now_s))
                self._do(member.tick(now_s))
                self._log.follow_partitions(member.coordination)
            self._ask_broker(member, now_s)
            self._settle_resets(member, now_s)
            if self._to_commit and self._feed is not None:
                self._feed.commit(self._to_commit)
                self._to_commit = {}
            self._waits.look(now_s, self.failure, self._late)
        self._nudge()

    def _observe(self, member: Member, records: Sequence[LogRecord]) -> None:
        with self.lock:
            now_s = self._clock.monotonic_s()
            for record in records:
                # Most frames are of other groups; those that only look like ours are sorted out by the member.
                if record.value is None or (self._group_mark not in record.value):
                    continue
                frame = self._decoded(record)
                if frame is not None and (actions := member.observe(frame, record.partition, record.offset, record.at_ms, now_s)):
                    self._do(actions)

    def _decoded(self, record: LogRecord) -> Frame | None:
        try:
            return decode(record.value)
        except FrameError:
            self.undecodable += 1
            return None

    def _tell(self, member: Member, now_s: float) -> None:
        """Report what has become known since the last turn."""
        for ack in self._log.acks():
            if ack.error is not None:
                logger.warning("a frame was not acknowledged: %s", ack.error)
            self._do(member.sent(ack.send_id, ack.error is None, now_s))
        for partition in self._log.caught_up - self._told_caught_up:
            self._told_caught_up.add(partition)
            self._do(member.caught_up(partition, now_s))
        lookups = self._lookups
        assert lookups is not None
        for found in lookups.answers(now_s):
            self._do(member.watermarks(found.topic, found.partition, found.earliest, found.latest, found.committed, now_s))
        for topic, count in lookups.counted().items():
            self._do(member.partitions(topic, count, now_s))

    def _ask_broker(self, member: Member, now_s: float) -> None:
        lookups, interval_s = self._lookups, self.member_settings.heartbeat_interval_s
        assert lookups is not None
        if now_s >= self._health_at_s:
            self._health_at_s = now_s + self._options.health_lookup_intervals * interval_s
            for topic, partition in self._leases:
                lookups.ask(topic, partition, committed=False)
        if now_s >= self._partitions_at_s:
            self._partitions_at_s = now_s + self._options.partitions_lookup_s * self._draws.uniform(0.5, 1.5)
            lookups.ask_counts(self.member_settings.topics)

    def _settle_resets(self, member: Member, now_s: float) -> None:
        """Free what a reset holds whose administrator died; nothing of it is in the member's hands, so nothing is told to it."""
        if now_s < self._resets_at_s:
            return
        self._resets_at_s = now_s + RESETS_INTERVALS * self.member_settings.heartbeat_interval_s
        for frame in self._settler.look(member.reserved(), now_s):
            self._log.send(NOBODYS, encode(frame), coordination_partition(frame.topic, self._log.partitions))

    def _late(self, what: str) -> BaseException:
        cause = self._log.last_error or "no error was reported"
        return BrokerError(
            f"{what} did not happen in time at {self._settings.bootstrap_servers}: {cause}; check the broker, or wait longer"
        )

    def _shut(self) -> None:
        self._settler.close()
        if self._feed is not None:
            if self._to_commit:
                self._feed.commit(self._to_commit)
            self._feed.close()
        unsent = self._log.close()
        if unsent:
            logger.warning("%d frames were never acknowledged", unsent)
        with self.lock:
            self.ending = True
            self.ended.set()
            self._waits.refuse_all(lambda what: self.failure or TerminatedError(f"the claim consumer ended before {what}"))
        if not self._started.done():
            self._started.set_exception(self.failure or TerminatedError("the claim consumer was closed before it had started"))
        self.queue.close()


_ALARMING = (Event.FENCED, Event.ABANDONED, Event.CLOCK_SKEW, Event.RIVAL)
