"""A claim consumer in a balanced group: the engine, and a second thread that reads and writes the group's
announcements on `holdfast.groups`.

The group says what this member should hold; the claims say what it holds. Nothing in here gives or takes a
partition: it aims the member, and announces the owned partitions to the group.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from holdfast.clients.claims.claiming.engine import ClaimEngine
from holdfast.clients.claims.claiming.fetcher import FetchSettings
from holdfast.clients.claims.logs.balanced_log import GroupLog
from holdfast.clients.claims.options import EngineSettings, GroupSettings
from holdfast.clock import Clock
from holdfast.config import Settings
from holdfast.core.claims.lanes import ClaimNames
from holdfast.core.groups.balancer import Balancer, BalancerSettings
from holdfast.core.groups.membership import Group
from holdfast.core.member.member import Draws
from holdfast.core.member.settings import MemberSettings
from holdfast.errors import BrokerError, ConfigError, TopicError

logger = logging.getLogger(__name__)

PATTERN_MARK = "^"
LOOK_S = 0.1
"""The interval at which the owned partitions are compared with the announced ones."""
COUNTS_INTERVALS = 0.25
COUNTS_LIMIT_S = 15.0
COUNTED_A_SECOND = 200.0
"""Partitions a member has counted in a second at most: a thousand take some milliseconds, of the broker
too, and there may be many members.
"""
COUNT_WITHIN_S = 3.0
"""The limit for one count; less than `close` waits for it."""
JOIN_S = 10.0


class GroupParticipant:
    """The `GroupPart` of an engine: a thread that reads and writes announcements, and aims the engine's
    member for its part of the group's target.
    """

    def __init__(
        self,
        settings: Settings,
        member: MemberSettings,
        options: EngineSettings,
        groups: GroupSettings,
        *,
        clock: Clock,
        draws: Draws,
    ) -> None:
        self._pattern = pattern_of(member.topics)
        self.balancer = Balancer(
            BalancerSettings(
                group_id=member.group_id,
                client_id=member.client_id,
                member_id=f"{member.client_id}-{member.instance_id}",
                static_id=groups.static_id,
                topics=() if self._pattern is not None else member.topics,
                pattern=self._pattern,
                assignors=(
                    (groups.assignors,) if isinstance(groups.assignors, str) else tuple(groups.assignors)
                ),
                session_s=groups.session_s or float(member.stale_after_s),
            ),
            draws=draws,
        )
        self._options, self._clock, self._interval_s = options, clock, member.heartbeat_interval_s
        self._names = ClaimNames(options.lanes)
        self._announcements = GroupLog(
            settings,
            groups.groups_topic,
            member.group_id,
            timeout_s=options.request_timeout_s,
            unsent_s=self.balancer.settings.session_s,
            follow_wait_ms=options.follow_wait_ms,
            clock=clock,
        )
        self._counts: Mapping[str, int] = {}
        self._counter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="holdfast-group-counts")
        self._counting: Future[dict[str, int]] | None = None
        self._aimed: frozenset[tuple[str, int]] | None = None
        self._topics = member.topics
        self._look_at_s = self._count_at_s = 0.0
        self._leaving = threading.Event()
        self._release = True
        self._thread: threading.Thread | None = None

    @property
    def group(self) -> Group | None:
        """Return the group as this member has read it."""
        return self.balancer.group

    # -- the turns of the engine's life

    def connect(self) -> tuple[str, ...]:
        """Connect to the group's log, and return the topics to claim: those that the pattern matches, where
        there is one.
        """
        self._announcements.open(self._clock.now_ms() - int(self.balancer.settings.lookback_s * 1_000))
        self._counts = self._count(self._options.request_timeout_s)
        if self._pattern is not None:
            if not self._counts:
                raise TopicError(
                    f"no topic matches {self._pattern}: create one before the first consumer starts"
                )
            self._topics = tuple(sorted(self._counts))
        return self._topics

    def start(self, engine: ClaimEngine) -> None:
        """Take part in the group, from a thread of its own."""
        self._thread = threading.Thread(target=self._run, args=(engine,), name="holdfast-group", daemon=True)
        self._thread.start()

    def leave(self, *, release: bool) -> None:
        """End the thread; with *release* it announces its leave, so that others aim for the partitions that
        are about to be released.
        """
        if not self._leaving.is_set():
            self._release = release
            self._leaving.set()

    def ended(self) -> None:
        """Let go of the broker, if the engine failed before there was a thread to do it."""
        if self._thread is None:
            self._close(0)

    def join(self) -> None:
        """Wait for the thread, at most JOIN_S."""
        thread = self._thread
        if thread is not None and thread.is_alive() and threading.current_thread() is not thread:
            thread.join(JOIN_S)

    # -- the thread

    def _run(self, engine: ClaimEngine) -> None:
        try:
            while engine.running and not self._leaving.is_set():
                self._turn(engine)
            if self._release:
                for value in self.balancer.leave(self._clock.monotonic_s()):
                    self._announcements.send(value)
        except Exception as error:  # noqa: BLE001  raised to the user of the engine
            engine.fail(error)
        finally:
            self._close(JOIN_S / 2)

    def _close(self, timeout_s: float) -> None:
        self._counter.shutdown(wait=True, cancel_futures=True)
        self._announcements.close(timeout_s)

    def _turn(self, engine: ClaimEngine) -> None:
        balancer, clock = self.balancer, self._clock
        received = self._announcements.poll(
            max(0.0, min(self._options.poll_s, balancer.wake_at_s() - clock.monotonic_s()))
        )
        now_s = clock.monotonic_s()
        out: list[bytes] = []
        for each in received:
            out += balancer.observe(each.offset, each.value, each.at_ms, now_s)
        out += self._recount(now_s)
        if self._announcements.caught_up:
            out += balancer.caught_up(now_s)
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + LOOK_S
            out += balancer.owned(engine.held(), now_s)
        out += balancer.tick(now_s)
        for value in out:
            self._announcements.send(value)
        if balancer.failure is not None:
            raise balancer.failure
        self._aim(engine, now_s)

    def _count(self, timeout_s: float) -> dict[str, int]:
        """Return the partition counts of the claimed names; a lane has as many as its topic."""
        found = self._announcements.counts(
            self._names.sources(self.balancer.settings.topics), self._pattern, timeout_s
        )
        return {name: count for topic, count in found.items() for name in self._names.claimed_as(topic)}

    def _recount(self, now_s: float) -> list[bytes]:
        """Count partitions now and then, in another thread: a broker may take seconds to answer, and this
        member must continue to announce itself.
        """
        if self._counting is not None and self._counting.done():
            try:
                self._counts = self._counting.result()
            except BrokerError as error:
                logger.warning("%(problem)s", {"problem": error})  # asked again later
            self._counting = None
        if self._counting is None and now_s >= self._count_at_s:
            often_s = max(COUNTS_INTERVALS * self._interval_s, sum(self._counts.values()) / COUNTED_A_SECOND)
            self._count_at_s = now_s + min(COUNTS_LIMIT_S, often_s)
            self._counting = self._counter.submit(
                self._count, min(COUNT_WITHIN_S, self._options.request_timeout_s)
            )
        return self.balancer.counts(self._counts, now_s)

    def _aim(self, engine: ClaimEngine, now_s: float) -> None:
        """Aim the member again if its part of the target has changed."""
        aim = frozenset((topic, partition) for topic, partition in self.balancer.aim(now_s))
        topics = self.balancer.topics() or self._topics
        if (aim != self._aimed or topics != self._topics) and engine.aim(aim, topics):
            self._aimed, self._topics = aim, topics


def pattern_of(topics: tuple[str, ...]) -> str | None:
    """Return the pattern that means *topics*, None when they are names; ConfigError for a pattern among
    others, or one that is not a regular expression.

    >>> pattern_of(("^orders-.*",)), pattern_of(("orders", "invoices"))
    ('^orders-.*', None)
    """
    marked = [topic for topic in topics if topic.startswith(PATTERN_MARK)]
    if not marked:
        return None
    if len(topics) > 1:
        raise ConfigError(f"topics {', '.join(topics)}: a pattern ({marked[0]}) stands alone")
    try:
        re.compile(marked[0])
    except re.error as error:
        raise ConfigError(f"topics {marked[0]!r}: not a regular expression: {error}") from None
    return marked[0]


def engine_of(
    settings: Settings,
    member: MemberSettings,
    options: EngineSettings,
    feed: FetchSettings,
    groups: GroupSettings,
    *,
    clock: Clock,
    draws: Draws,
) -> ClaimEngine:
    """Return the engine for these settings; ConfigError for what only a balanced group has, or cannot
    have.
    """
    if member.balanced:
        if member.interop:
            raise ConfigError(
                "balanced=True and interop=True: members of the Go library take no part in a balanced group;"
                " choose one"
            )
        group = GroupParticipant(settings, member, options, groups, clock=clock, draws=draws)
        return ClaimEngine(settings, member, options, feed, clock=clock, draws=draws, group=group)
    if groups != GroupSettings():
        raise ConfigError(
            "static_id, assignors, session_s and groups_topic are of balanced groups: set balanced=True too"
        )
    return ClaimEngine(settings, member, options, feed, clock=clock, draws=draws)
