"""The engine of a claim consumer: a `Member` that decides, and the threads and connections that do what it
says.

One thread reads the coordination topic and keeps the member's time, another fetches messages
(`ClaimFetcher`). The user's side calls in from wherever it runs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future

from holdfast.clients.claims.delivery import Dispatcher
from holdfast.clients.claims.fetcher import ClaimFetcher, FetchSettings
from holdfast.clients.claims.lanes import LaneFetcher
from holdfast.clients.claims.log import LogRecord
from holdfast.clients.claims.offsets import OffsetFetcher
from holdfast.clients.claims.options import EngineSettings
from holdfast.clients.claims.queue import FetchedMessages, Lease
from holdfast.clients.claims.reset_settler import ResetSettler
from holdfast.clock import Clock
from holdfast.config import Settings
from holdfast.core.claims.frames import Frame, coordination_partition, decode, encode
from holdfast.core.member.member import Draws, Member
from holdfast.core.member.settings import MemberSettings
from holdfast.errors import BrokerError, FrameError, HoldfastError, TerminatedError, TopicError

logger = logging.getLogger(__name__)

OBSERVED_AT_ONCE = 200
"""Frames observed before the lock is let go, so that whoever takes messages meanwhile waits a millisecond
or two.
"""
JOIN_S = 10.0
RESETS_INTERVALS = 0.1
"""How often to look for what a reset holds."""
NOBODYS = -1
"""Send id of frames that the member did not ask for."""


class ClaimEngine(Dispatcher):
    """One running instance of a claim client.

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
    ) -> None:
        super().__init__(settings, member, options, feed, clock=clock, draws=draws)
        self._feed_settings = feed
        self._group_mark = f"/{member.group_id}/".encode()
        self._told_caught_up: set[int] = set()
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

    def terminate(self, *, release: bool, timeout_s: float | None = None) -> Future[None]:
        """Stop handing out, then give claims back (or leave them for a fast reclaim); done when the log has
        it all.

        At most once with *release*, what the log has committed is handed out first, to whoever goes on to
        take, within the drain window.
        """
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
        self.queue.nudge()
        return done

    def close(self) -> None:
        """Stop the threads and let go of the broker, whatever is still under way."""
        self._quit = True
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(JOIN_S)

    # -- what the threads bring

    def _arrived(self, batches: list[FetchedMessages]) -> None:
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
                self._do(
                    self.member.fetch_failed(lease.topic, lease.partition, reason, self._clock.monotonic_s())
                )

    def _feed_broke(self, error: BaseException) -> None:
        with self.lock:
            wrapped = BrokerError(
                f"fetching messages failed: {error}; look at the broker's log, then start again"
            )
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
        self._lookups = OffsetFetcher(
            settings, wanted.group_id, timeout_s=options.request_timeout_s, clock=self._clock
        )
        counts = self._lookups.counts(self._names.sources(wanted.topics))
        self._lookups.check_group()
        self._log.open(wanted.topics, options.request_timeout_s)
        overrides: dict[str, str | int | bool] = {
            "group.id": wanted.group_id,
            "isolation.level": "read_committed",
        }
        self._feed = (LaneFetcher if options.lanes else ClaimFetcher)(
            settings,
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
                wanted,
                coordination_partitions=self._log.partitions,
                draws=self._draws,
                now_s=now_s,
                unix_s=self._clock.now_ms() / 1000,
            )
            for topic, count in counts.items():
                for name in self._names.claimed_as(topic):
                    self._do(member.partitions(name, count, now_s))
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
            self.turn_over(member, now_s)
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

    def _tell(self, member: Member, now_s: float) -> None:
        """Report what has become known since the last turn."""
        for ack in self._log.acks():
            if ack.error is not None:
                logger.warning("a frame was not acknowledged: %(error)s", {"error": ack.error})
            self._do(member.sent(ack.send_id, ack.error is None, now_s))
        for partition in self._log.caught_up - self._told_caught_up:
            self._told_caught_up.add(partition)
            self._do(member.caught_up(partition, now_s))
        lookups = self._lookups
        assert lookups is not None
        for found in lookups.answers():
            for name in self._names.claimed_as(found.topic):
                self._do(
                    member.watermarks(
                        name, found.partition, found.earliest, found.latest, found.committed, now_s
                    )
                )
        for topic, count in lookups.counted().items():
            if topic != self._settings.coordination_topic:
                for name in self._names.claimed_as(topic):
                    self._do(member.partitions(name, count, now_s))
            elif count != self._log.partitions:
                self._fail(self._moved(count))

    def _moved(self, count: int) -> TopicError:
        return TopicError(
            f"{self._settings.coordination_topic} had {self._log.partitions} partitions and has {count} now: every claim has moved to another "
            "one. This consumer has stopped; start all members again, together"
        )

    def _ask_broker(self, member: Member, now_s: float) -> None:
        lookups, interval_s = self._lookups, self.member_settings.heartbeat_interval_s
        assert lookups is not None
        if now_s >= self._health_at_s:
            self._health_at_s = now_s + self._options.health_lookup_intervals * interval_s
            full = self.queue.full
            for (topic, partition), lease in self._leases.items():
                self._do(
                    member.messages.waiting(
                        topic,
                        partition,
                        full or lease in self._handouts or self.queue.queued(lease)[0] > 0,
                        now_s,
                    )
                )
                source = self._names.source(topic)
                lookups.ask(source, partition, committed=False)
                if source != topic:
                    self._note_lanes(source, partition, {})
        if now_s >= self._partitions_at_s:
            self._partitions_at_s = now_s + self._options.partitions_lookup_s * self._draws.uniform(0.5, 1.5)
            lookups.ask_counts(
                (*self._names.sources(self.member_settings.topics), self._settings.coordination_topic)
            )

    def _settle_resets(self, member: Member, now_s: float) -> None:
        """Free what a reset holds whose administrator died; nothing of it is in the member's hands, so
        nothing is told to it.
        """
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
        if self._lookups is not None:
            self._lookups.close()
        unsent = self._log.close()
        if unsent:
            logger.warning("%(frames)d frames were never acknowledged", {"frames": unsent})
        with self.lock:
            self.ending = True
            self.ended.set()
            for tell in self._listeners:
                tell(None)
            self._waits.refuse_all(
                lambda what: self.failure or TerminatedError(f"the claim consumer ended before {what}")
            )
        if not self._started.done():
            self._started.set_exception(
                self.failure or TerminatedError("the claim consumer was closed before it had started")
            )
        self.queue.close()
