"""The engine of a claim consumer: a `Member` that decides, and the threads and connections that do what it
asks for.

One thread reads the coordination topic and keeps the member's time, another fetches messages
(`ClaimFetcher`). The user's side calls in from wherever it runs. One lock is around the member and all that
it asks for, so frames go out in the order in which they were decided.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Protocol, TypeVar, assert_never

from holdfast.clients.claims.claiming.delivery import ClaimDelivery
from holdfast.clients.claims.claiming.events import ClaimEvents
from holdfast.clients.claims.claiming.fetcher import ClaimFetcher, FetchSettings
from holdfast.clients.claims.claiming.lanes import LaneFetcher
from holdfast.clients.claims.claiming.offset_mirror import OffsetMirror
from holdfast.clients.claims.claiming.offsets import OffsetFetcher
from holdfast.clients.claims.claiming.queue import Lease
from holdfast.clients.claims.claiming.waits import Waits
from holdfast.clients.claims.logs.claim_log import CoordinationLog, LogRecord
from holdfast.clients.claims.logs.reset_settler import ResetSettler
from holdfast.clients.claims.options import EngineSettings
from holdfast.clock import Clock
from holdfast.config import Settings
from holdfast.core.claims.claim_rows import Claim
from holdfast.core.claims.frames import Frame, coordination_partition, decode, encode
from holdfast.core.claims.lanes import ClaimNames
from holdfast.core.kafka.topic_partition import TopicPartition
from holdfast.core.member.actions import (
    Action,
    CommitOffset,
    Deliver,
    DeliveryToken,
    Fail,
    FetchOffsets,
    Identify,
    Notify,
    Send,
    Start,
    Stop,
)
from holdfast.core.member.member import Draws, Member
from holdfast.core.member.settings import Delivery, MemberSettings
from holdfast.errors import BrokerError, ConfigError, FrameError, HoldfastError, TerminatedError, TopicError

logger = logging.getLogger(__name__)
T = TypeVar("T")

OBSERVED_AT_ONCE = 200
"""Frames observed before the lock is let go, so that a taker of messages waits a millisecond
or two.
"""
JOIN_S = 10.0
RESETS_INTERVALS = 0.1
"""The interval at which partitions held by a reset are looked for."""
NOBODYS = -1
"""Send id of frames that the member did not ask for."""


class GroupPart(Protocol):
    """The engine's part for a member of a balanced group.

    The engine calls each method once, at that turn of its life; `leave` perhaps more often.
    """

    def connect(self) -> tuple[str, ...]:
        """Connect, and return the topics to claim. It may wait; it comes before the engine's own
        connections.
        """

    def start(self, engine: ClaimEngine) -> None:
        """Take part in the group, on behalf of *engine*, whose member is there."""

    def leave(self, *, release: bool) -> None:
        """Stop to take part, at once; with *release* say farewell, so that others aim for what will be
        released. The first call counts.
        """

    def ended(self) -> None:
        """Let go of the broker if `start` was never called: the engine's thread ends."""

    def join(self) -> None:
        """Wait until it has let go of the broker."""


class ClaimEngine:
    """One running instance of a claim client, with a *group* if it is in a balanced group.

    `start` it once, `terminate` it once; it cannot be started again.
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
        group: GroupPart | None = None,
    ) -> None:
        self._settings, self.member_settings, self._options = settings, member, options
        self._feed_settings, self._clock, self._draws = feed, clock, draws
        self.group = group
        self.lock = threading.Lock()
        self.member: Member | None = None
        self._names = ClaimNames(options.lanes)
        self._log = CoordinationLog(
            settings,
            compression=options.compression,
            interop=member.interop,
            send_timeout_s=options.send_timeout_s or member.heartbeat_interval_s,
            follow_wait_ms=options.follow_wait_ms,
        )
        self.delivery = ClaimDelivery(member, feed, self._names, clock=clock, lock=self.lock, do=self._do)
        self.events = ClaimEvents(member, self.lock)
        self._mirror = OffsetMirror(self._names, self._logged)
        self._fetcher: ClaimFetcher | None = None
        self._offsets: OffsetFetcher | None = None
        self._waits = Waits()
        self._quit = self.ending = False
        self.ended = threading.Event()
        self.failure: BaseException | None = None
        self.failure_raised = False
        """True if the failure was raised to the caller; if not, leaving the block raises it."""
        self.undecodable = self._unacknowledged = 0
        self._group_mark = f"/{member.group_id}/".encode()
        self._caught_up: set[int] = set()
        self._health_at_s = self._partitions_at_s = self._resets_at_s = 0.0
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
        self._thread = threading.Thread(target=self._run, name="holdfast-claims", daemon=True)
        self._started: Future[None] = Future()

    # -- life, from the user's side

    def start(self) -> Future[None]:
        """Connect and read; the future is done when the member knows all claims there are, or holds why
        that could not be.
        """
        self._thread.start()
        return self._started

    def require_started(self) -> None:
        """Raise ConfigError where `start` was not called: a wait for messages would never end."""
        if self._thread.ident is None:
            raise ConfigError(
                "the claim consumer is not open: use it in a `with` statement (`async with` on an event loop)"
            )

    def terminate(self, *, release: bool, timeout_s: float | None = None) -> Future[None]:
        """Stop handing out, then give claims back (or leave them for a fast reclaim); done when the log has
        it all.

        At most once with *release*, messages that the log has committed are handed out first, to a taker that
        continues to take, within the drain window.
        """
        if self.group is not None:
            self.group.leave(release=release)
        done: Future[None] = Future()
        with self.lock:
            self.ending = True
            member = self.member
            if member is None or self.ended.is_set():
                self._quit = True
                done.set_result(None)
                return done
            self._wait_for(
                lambda: member.terminated,
                done,
                timeout_s or self._options.stop_within_s(self.member_settings),
                "the release of all claims",
            )
            if not member.terminated:
                self._do(member.terminate(release, self._clock.monotonic_s()))
        self.delivery.queue.nudge()
        return done

    def close(self) -> None:
        """Stop the threads and let go of the broker, whatever is still under way."""
        if self.group is not None:
            self.group.leave(release=True)
        self._quit = True
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(JOIN_S)
        if self.group is not None:
            self.group.join()

    @property
    def over(self) -> bool:
        """Return whether no message will ever come again.

        At most once, committed messages are handed out also at the end.
        """
        return self.ended.is_set() or (self.ending and not self.delivery.has_leases)

    def raise_failure(self) -> None:
        """Raise what the engine failed of, if it has."""
        if self.failure is not None:
            self.failure_raised = True
            raise self.failure

    # -- commits and questions, from the user's side

    def commit(self, token: DeliveryToken) -> None:
        """Note that a message is done; raises CommitError and ClaimLostError."""
        with self.lock:
            member = self._live()
            if actions := member.messages.commit(token, self._clock.monotonic_s()):
                self._do(actions)
        self.delivery.nudge()

    def commit_many(self, topic: str, partition: int, epoch: int, offsets: range | Sequence[int]) -> None:
        """Note that messages are done, all of them or, when it raises, none."""
        with self.lock:
            member = self._live()
            if actions := member.messages.commit_many(
                topic, partition, epoch, offsets, self._clock.monotonic_s()
            ):
                self._do(actions)
        self.delivery.nudge()

    def flush(self, timeout_s: float | None = None) -> Future[None]:
        """Write the committed offsets to the log now; done when the log has them, ClaimLostError if it will
        not.
        """
        done: Future[None] = Future()
        with self.lock:
            member = self._live()
            flushed = member.messages.flushing()
            self._do(member.messages.flush(self._clock.monotonic_s()))
            self._wait_for(
                flushed,
                done,
                timeout_s or self._options.flush_timeout_s,
                "the flush of committed offsets",
            )
        return done

    def ask(self, question: Callable[[Member], T]) -> T:
        """Return the result of *question* about the member, under the engine's lock."""
        with self.lock:
            return question(self._live())

    def counters(self) -> dict[str, int]:
        """Return the queue's size now and the faults so far."""
        queue, fetcher = self.delivery.queue, self._fetcher
        return {
            "queued_messages": queue.messages,
            "queued_bytes": queue.size_bytes,
            "undecodable_frames": self.undecodable,
            "undelivered_messages": self.delivery.undelivered,
            "kafka_commits_failed": 0 if fetcher is None else fetcher.commits_failed,
            "skipped_batches": self._log.skipped,
            "unreadable_partitions": 0 if fetcher is None else len(fetcher.unreadable),
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

    # -- the group's side

    @property
    def running(self) -> bool:
        """Return whether there is, or will be, a member."""
        return not self.ended.is_set() and self.failure is None

    def held(self) -> list[TopicPartition]:
        """Return the claims that are held, none of them at the end."""
        with self.lock:
            return [] if self.member is None or self.ending else list(self.member.claims)

    def aim(self, targets: Collection[tuple[str, int]], topics: tuple[str, ...]) -> bool:
        """Have the member claim *targets* and nothing else, of *topics*; False when it claims nothing any
        more.
        """
        with self.lock:
            member = self.member
            if member is None or self.ending or self.ended.is_set():
                return False
            now_s = self._clock.monotonic_s()
            if topics != self.member_settings.topics:
                self.member_settings = replace(self.member_settings, topics=topics)
                self._do(member.topics(topics, now_s))
                self._partitions_at_s = 0.0
            self._do(member.aim(targets, now_s))
        return True

    def fail(self, error: BaseException) -> None:
        """End the engine: *error* is raised to its user."""
        with self.lock:
            self._fail(error)

    # -- what the fetching thread brings

    def _fetch_failed(self, lease: Lease, reason: str) -> None:
        with self.lock:
            if lease.open and self.member is not None:
                self._do(
                    self.member.fetch_failed(lease.topic, lease.partition, reason, self._clock.monotonic_s())
                )

    def _feed_broke(self, error: BaseException) -> None:
        wrapped = BrokerError(
            f"fetching messages failed: {error}; look at the broker's log, then start again"
        )
        wrapped.__cause__ = error
        self.fail(error if isinstance(error, HoldfastError) else wrapped)

    # -- what the member asks for; under the lock

    def _do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Send():
                    self._log.send(action.send_id, encode(action.frame), action.coordination_partition)
                case FetchOffsets():
                    if self._offsets is not None:
                        self._offsets.ask(self._names.source(action.topic), action.partition, committed=True)
                case Identify():
                    if self._offsets is not None:
                        self._offsets.identify(self._names.source(action.topic))
                case Start():
                    self.delivery.begin(action)
                case Stop():
                    self.delivery.end(action)
                case Deliver():
                    self.delivery.grant(action)
                case CommitOffset():
                    self._mirror.note(action)
                case Notify():
                    self.events.notify(action)
                case Fail():
                    self._fail(action.error)
                case _:
                    assert_never(action)

    def _logged(self, topic: str, partition: int) -> Claim | None:
        return None if self.member is None else self.member.row(topic, partition)

    def _fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error
        self.delivery.shut()

    # -- the coordinating thread

    def _run(self) -> None:
        try:
            if self.group is not None:
                self.member_settings = replace(self.member_settings, topics=self.group.connect())
            self._open()
            if self.group is not None:
                self.group.start(self)
            while not self._over():
                self._turn()
        except Exception as error:  # noqa: BLE001  raised to the user of the engine
            self.fail(error)
        finally:
            self._shut()
            if self.group is not None:
                self.group.ended()

    def _over(self) -> bool:
        if self._quit:
            return True
        member = self.member
        return member is not None and not self._waits and (member.terminated or self.failure is not None)

    def _open(self) -> None:
        settings, options, wanted = self._settings, self._options, self.member_settings
        self._offsets = OffsetFetcher(
            settings, wanted.group_id, timeout_s=options.request_timeout_s, clock=self._clock
        )
        counts = self._offsets.counts(self._names.sources(wanted.topics))
        self._offsets.check_group()
        self._log.open(wanted.topics, options.request_timeout_s)
        overrides: dict[str, str | int | bool] = {
            "group.id": wanted.group_id,
            "isolation.level": "read_committed",
        }
        self._fetcher = (LaneFetcher if options.lanes else ClaimFetcher)(
            settings,
            settings.consumer(**overrides),
            self.delivery.queue,
            self._feed_settings,
            partitions=counts,
            failed=self._fetch_failed,
            broken=self._feed_broke,
            arrived=self.delivery.arrived if wanted.delivery is Delivery.AT_MOST_ONCE else None,
            clock=self._clock,
        )
        self._fetcher.open()
        now_s = self._clock.monotonic_s()
        with self.lock:
            self.member = member = Member(
                wanted,
                coordination_partitions=self._log.partitions,
                draws=self._draws,
                now_s=now_s,
                unix_s=self._clock.now_ms() / 1000,
            )
            self.delivery.attach(member, self._fetcher)
            for topic, count in counts.items():
                for name in self._names.claimed_as(topic):
                    self._do(member.partitions(name, count, now_s))
            self._wait_for(
                lambda: member.coordination <= self._caught_up,
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
            self.delivery.turn(member, now_s)
            self._report(member, now_s)
            if now_s >= member.wake_at_s():
                self._do(member.clock(self._clock.now_ms() / 1000, now_s))
                self._do(member.tick(now_s))
                self._log.follow_partitions(member.coordination)
            self._ask_broker(member, now_s)
            self._settle_resets(member, now_s)
            self._commit_to_kafka()
            self._waits.look(now_s, self.failure, self._late)
        self.delivery.nudge()

    def _commit_to_kafka(self) -> None:
        if self._fetcher is not None and (waiting := self._mirror.take()):
            self._fetcher.commit(waiting)

    def _observe(self, member: Member, records: Sequence[LogRecord]) -> None:
        with self.lock:
            now_s = self._clock.monotonic_s()
            # A clock that was wrong at the last tick, perhaps long ago, must not have a pause look as if it
            # were over.
            self._do(member.clock(self._clock.now_ms() / 1000, now_s))
            for record in records:
                # Most frames are of other groups; those that only look like ours are sorted out by the
                # member.
                if record.value is None or (self._group_mark not in record.value):
                    continue
                frame = self._decoded(record)
                if frame is not None and (
                    actions := member.observe(frame, record.partition, record.offset, record.at_ms, now_s)
                ):
                    self._do(actions)

    def _decoded(self, record: LogRecord) -> Frame | None:
        try:
            return decode(record.value)
        except FrameError:
            self.undecodable += 1
            return None

    def _report(self, member: Member, now_s: float) -> None:
        """Report what has become known since the last turn."""
        for ack in self._log.acks():
            if ack.error is not None:
                # A member of a thousand partitions writes as many frames in an outage, again and again.
                level = logging.DEBUG if self._unacknowledged else logging.WARNING
                logger.log(level, "a frame was not acknowledged: %(error)s", {"error": ack.error})
                self._unacknowledged += 1
            elif self._unacknowledged:
                logger.warning(
                    "frames are acknowledged again, after %(frames)d that were not",
                    {"frames": self._unacknowledged},
                )
                self._unacknowledged = 0
            self._do(member.sent(ack.send_id, ack.error is None, now_s))
        for partition in self._log.caught_up - self._caught_up:
            self._caught_up.add(partition)
            self._do(member.caught_up(partition, now_s))
        offsets = self._offsets
        assert offsets is not None
        for found in offsets.answers():
            for name in self._names.claimed_as(found.topic):
                self._do(
                    member.watermarks(
                        name,
                        found.partition,
                        found.earliest,
                        found.latest,
                        found.committed,
                        now_s,
                        found.topic_mark,
                    )
                )
        for identity in offsets.identities():
            for topic, partition in member.claims:
                if self._names.source(topic) == identity.topic:
                    self._do(member.identity(topic, partition, identity.topic_mark, identity.asked_s, now_s))
        for topic, count in offsets.counted().items():
            if topic != self._settings.coordination_topic:
                for name in self._names.claimed_as(topic):
                    self._do(member.partitions(name, count, now_s))
            elif count != self._log.partitions:
                self._fail(self._moved(count))

    def _moved(self, count: int) -> TopicError:
        return TopicError(
            f"{self._settings.coordination_topic} had {self._log.partitions} partitions and has {count} now:"
            " every claim has moved to another one. This consumer has stopped; start all members again,"
            " together"
        )

    def _ask_broker(self, member: Member, now_s: float) -> None:
        offsets, interval_s = self._offsets, self.member_settings.heartbeat_interval_s
        assert offsets is not None
        if now_s >= self._health_at_s:
            self._health_at_s = now_s + self._options.health_lookup_intervals * interval_s
            for lease in self.delivery.report_waiting(member, now_s):
                offsets.ask(lease.source, lease.partition, committed=False)
                self._mirror.look_again(lease.topic, lease.partition)
        if now_s >= self._partitions_at_s:
            self._partitions_at_s = now_s + self._options.partitions_lookup_s * self._draws.uniform(0.5, 1.5)
            offsets.ask_counts(
                (*self._names.sources(self.member_settings.topics), self._settings.coordination_topic)
            )

    def _settle_resets(self, member: Member, now_s: float) -> None:
        """Free what a reset holds whose administrator died. The member holds nothing of it, and learns of it
        by the log.
        """
        if now_s < self._resets_at_s:
            return
        self._resets_at_s = now_s + RESETS_INTERVALS * self.member_settings.heartbeat_interval_s
        for frame in self._settler.look(member.reserved(), now_s):
            self._log.send(NOBODYS, encode(frame), coordination_partition(frame.topic, self._log.partitions))

    def _late(self, what: str) -> BaseException:
        cause = self._log.last_error or "no error was reported"
        return BrokerError(
            f"{what} did not happen in time at {self._settings.bootstrap_servers}: {cause}; check the broker,"
            " or wait longer"
        )

    def _shut(self) -> None:
        self._settler.close()
        self._commit_to_kafka()
        if self._fetcher is not None:
            self._fetcher.close()
        if self._offsets is not None:
            self._offsets.close()
        unsent = self._log.close()
        if unsent:
            logger.warning("%(frames)d frames were never acknowledged", {"frames": unsent})
        with self.lock:
            self.ending = True
            self.ended.set()
            self.events.end()
            self._waits.refuse_all(
                lambda what: self.failure or TerminatedError(f"the claim consumer ended before {what}")
            )
        if not self._started.done():
            self._started.set_exception(
                self.failure or TerminatedError("the claim consumer was closed before it had started")
            )
        self.delivery.queue.close()
