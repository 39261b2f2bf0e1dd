"""A claim consumer in a balanced group: the engine, and beside it a thread that takes part in the group's
talk on `holdfast.groups`.

The group says what this member should hold; the claims say what it holds. Nothing in here gives or takes a
partition: it tells the member what to aim for, and the group what is held.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from holdfast.clients.claims.balanced_log import GroupLog
from holdfast.clients.claims.engine import ClaimEngine
from holdfast.clients.claims.fetcher import FetchSettings
from holdfast.clients.claims.options import EngineSettings, GroupSettings
from holdfast.clock import Clock
from holdfast.config import Settings
from holdfast.core.groups.balancer import Balancer, BalancerSettings
from holdfast.core.groups.membership import Group
from holdfast.core.member.member import Draws
from holdfast.core.member.settings import MemberSettings
from holdfast.errors import BrokerError, ConfigError, TopicError

logger = logging.getLogger(__name__)

PATTERN_MARK = "^"
LOOK_S = 0.1
"""How often to see what is held."""
COUNTS_INTERVALS = 0.25
COUNTS_LIMIT_S = 15.0
COUNTED_A_SECOND = 200.0
"""Partitions a member has counted in a second at most: a thousand take some milliseconds, of the broker
too, and there may be many members.
"""
COUNT_WITHIN_S = 3.0
"""How long one count may take; less than `close` waits for it."""
JOIN_S = 10.0


class BalancedEngine(ClaimEngine):
    """An engine whose member aims for its part of a group's target."""

    def __init__(
        self,
        settings: Settings,
        member: MemberSettings,
        options: EngineSettings,
        feed: FetchSettings,
        groups: GroupSettings,
        *,
        clock: Clock,
        draws: Draws,
    ) -> None:
        super().__init__(settings, member, options, feed, clock=clock, draws=draws)
        marked = [topic for topic in member.topics if topic.startswith(PATTERN_MARK)]
        if marked and len(member.topics) > 1:
            raise ConfigError(f"topics {', '.join(member.topics)}: a pattern ({marked[0]}) stands alone")
        self._pattern = marked[0] if marked else None
        if self._pattern is not None:
            try:
                re.compile(self._pattern)
            except re.error as error:
                raise ConfigError(f"topics {self._pattern!r}: not a regular expression: {error}") from None
        self.balancer = Balancer(
            BalancerSettings(
                group_id=member.group_id,
                client_id=member.client_id,
                member_id=f"{member.client_id}-{member.instance_id}",
                static_id=groups.static_id,
                topics=() if self._pattern is not None else member.topics,
                pattern=self._pattern,
                assignors=(groups.assignors,)
                if isinstance(groups.assignors, str)
                else tuple(groups.assignors),
                session_s=groups.session_s or float(member.stale_after_s),
            ),
            draws=draws,
        )
        self._talk = GroupLog(
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
        self._worked_on = member.topics
        self._look_at_s = self._count_at_s = 0.0
        self._leaving = threading.Event()
        self._release = True
        self._talker = threading.Thread(target=self._take_part, name="holdfast-group", daemon=True)

    # -- life

    def _open(self) -> None:
        """Connect to the group's log first: a pattern must be known as topics before claims can be read."""
        self._talk.open(self._clock.now_ms() - int(self.balancer.settings.lookback_s * 1_000))
        self._counts = self._count(self._options.request_timeout_s)
        if self._pattern is not None:
            if not self._counts:
                raise TopicError(
                    f"no topic matches {self._pattern}: create one before the first consumer starts"
                )
            self._worked_on = tuple(sorted(self._counts))
            self.member_settings = replace(self.member_settings, topics=self._worked_on)
        super()._open()
        self._talker.start()

    def terminate(self, *, release: bool, timeout_s: float | None = None) -> Future[None]:
        """Say farewell to the group, so that others aim for what is about to be released, then terminate
        as any engine.
        """
        self._release = release
        self._leaving.set()
        return super().terminate(release=release, timeout_s=timeout_s)

    def close(self) -> None:
        """Stop the threads and let go of the broker."""
        self._leaving.set()
        super().close()
        if self._talker.is_alive() and threading.current_thread() is not self._talker:
            self._talker.join(JOIN_S)

    def _shut(self) -> None:
        super()._shut()
        if self._talker.ident is None:  # it failed before anybody could talk
            self._end_talk(0)

    @property
    def group(self) -> Group | None:
        """Return the group as this member has read it."""
        return self.balancer.group

    # -- the talking thread

    def _take_part(self) -> None:
        try:
            while not (self._leaving.is_set() or self.ended.is_set() or self.failure is not None):
                self._turn_of_talk()
            if self._release:
                for value in self.balancer.leave(self._clock.monotonic_s()):
                    self._talk.send(value)
        except Exception as error:  # noqa: BLE001  told to whoever uses the engine
            with self.lock:
                self._fail(error)
        finally:
            self._end_talk(JOIN_S / 2)

    def _end_talk(self, timeout_s: float) -> None:
        self._counter.shutdown(wait=True, cancel_futures=True)
        self._talk.close(timeout_s)

    def _turn_of_talk(self) -> None:
        balancer, clock = self.balancer, self._clock
        said = self._talk.poll(
            max(0.0, min(self._options.poll_s, balancer.wake_at_s() - clock.monotonic_s()))
        )
        now_s = clock.monotonic_s()
        out: list[bytes] = []
        for each in said:
            out += balancer.observe(each.offset, each.value, each.at_ms, now_s)
        out += self._recount(now_s)
        if self._talk.caught_up:
            out += balancer.caught_up(now_s)
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + LOOK_S
            with self.lock:
                held = [] if self.member is None or self.ending else list(self.member.claims)
            out += balancer.owned(held, now_s)
        out += balancer.tick(now_s)
        for value in out:
            self._talk.send(value)
        if balancer.failure is not None:
            raise balancer.failure
        self._act(now_s)

    def _count(self, timeout_s: float) -> dict[str, int]:
        """Return how many partitions there are of what is claimed; a lane has as many as its topic."""
        found = self._talk.counts(
            self._names.sources(self.balancer.settings.topics), self._pattern, timeout_s
        )
        return {name: count for topic, count in found.items() for name in self._names.claimed_as(topic)}

    def _recount(self, now_s: float) -> list[bytes]:
        """See now and then how many partitions there are, beside the talk: a broker may take seconds to
        tell, and a member must be heard.
        """
        if self._counting is not None and self._counting.done():
            try:
                self._counts = self._counting.result()
            except BrokerError as error:
                logger.warning("%(problem)s", {"problem": error})  # asked again later
            self._counting = None
        if self._counting is None and now_s >= self._count_at_s:
            often_s = max(
                COUNTS_INTERVALS * self.member_settings.heartbeat_interval_s,
                sum(self._counts.values()) / COUNTED_A_SECOND,
            )
            self._count_at_s = now_s + min(COUNTS_LIMIT_S, often_s)
            self._counting = self._counter.submit(
                self._count, min(COUNT_WITHIN_S, self._options.request_timeout_s)
            )
        return self.balancer.counts(self._counts, now_s)

    def _act(self, now_s: float) -> None:
        """Tell the member what to aim for, where that has changed."""
        aim = frozenset((topic, partition) for topic, partition in self.balancer.aim(now_s))
        topics = self.balancer.topics() or self._worked_on
        if aim == self._aimed and topics == self._worked_on:
            return
        with self.lock:
            member = self.member
            if member is None or self.ending or self.ended.is_set():
                return
            now_s = self._clock.monotonic_s()
            if topics != self._worked_on:
                self._worked_on = topics
                self.member_settings = replace(self.member_settings, topics=topics)
                self._do(member.topics(topics, now_s))
                self._partitions_at_s = 0.0
            self._do(member.aim(aim, now_s))
        self._aimed = aim


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
                "balanced=True and interop=True: members of the Go library take no part in a balanced group; choose one"
            )
        return BalancedEngine(settings, member, options, feed, groups, clock=clock, draws=draws)
    if groups != GroupSettings():
        raise ConfigError(
            "static_id, assignors, session_s and groups_topic are of balanced groups: set balanced=True too"
        )
    return ClaimEngine(settings, member, options, feed, clock=clock, draws=draws)
