"""The parts that every strategy's leader of a shard has: its rows on a thread of their own, its waits for
more rows, its counts.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.clock import Clock, system_clock
from holdfast.core.outbox.election import Leadership
from holdfast.core.outbox.harvest import buckets_of
from holdfast.errors import OutboxDatabaseError
from holdfast.outbox.harvest.shard.worker_thread import Pending, WorkerThread
from holdfast.outbox.harvest.table.rows import OutboxRows
from holdfast.outbox.schema.layouts import OutboxRow
from holdfast.outbox.schema.wakeup import Wakeup
from holdfast.outbox.settings import HarvestSettings
from holdfast.outbox.troubles import Trouble

LEAST_POLL_S = 0.005
POLL_GROWTH = 1.6
COUNT_EVERY_S = 10.0
LIMIT_PENDING = 100_000
LATENCY_BOUNDS_S = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0)


class Latency:
    """Counts of times by upper bound, and their sum."""

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self.total_s = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(LATENCY_BOUNDS_S, seconds)] += 1
        self.total_s += seconds

    def observe_since(self, created_ms: int | None, now_ms: int) -> None:
        """Count the time from *created_ms* to *now_ms*; nothing where the layout has no time."""
        if created_ms is not None:
            self.observe(max(0, now_ms - created_ms) / 1000)


@dataclass(slots=True)
class ShardStats:
    """The counts of one shard's leaders in this process since it started; counters never go back."""

    shard: int
    leading: bool = False
    epoch: int = 0
    leader_changes: int = 0
    fenced: int = 0
    published: int = 0
    batches: int = 0
    aborted: int = 0
    refused: int = 0
    quarantined: int = 0
    restarts: int = 0
    in_flight: int = 0
    queries: int = 0
    resets: int = 0
    pending: int = 0
    """Rows in the table, counted now and then, up to a hundred thousand."""
    oldest_created_ms: int | None = None
    """When the first of the rows last taken was written; None once no row was left."""
    last_error: str = ""
    stopped: str = ""
    """Why nothing is published until a person resumes it; empty while it is."""
    began_again: int = 0
    """The number of times that rows' numbers were found to begin again."""
    holds: set[str] = field(default_factory=set)
    """Topics that nothing can be written to now."""
    trouble: Trouble = field(default_factory=lambda: Trouble("of this process"))
    latency: Latency = field(default_factory=Latency)
    """From a batch's first row being written to its being published."""


class LeaderSignals:
    """Commands to a leader from other threads: stop when this is finished, or leave everything as it is."""

    def __init__(self, leading: Callable[[], bool], clock: Clock = system_clock) -> None:
        self._leading, self._clock = leading, clock
        self._stop, self._abandon = threading.Event(), threading.Event()
        self.nudged = threading.Event()
        self.paused = threading.Event()
        self.busy = threading.Event()
        """Set while rows may be on their way."""
        self.flush = threading.Event()
        self.resumed = threading.Event()
        """Set when a person has resumed publishing."""

    def stop(self) -> None:
        """Finish the work begun, then end."""
        self._stop.set()
        self.nudged.set()

    def abandon(self) -> None:
        """Wait for nothing any more."""
        self._abandon.set()
        self.stop()

    def stopping(self) -> bool:
        """Return whether nothing new may be begun."""
        return self._stop.is_set() or not self._leading()

    def abandoned(self) -> bool:
        """Return whether waiting for unfinished work is pointless."""
        return self._abandon.is_set() or (not self._leading() and not self._stop.is_set())

    def rests(self) -> bool:
        """Return whether a pause holds.

        Asked before each batch: from an answer of yes on nothing is on its way.
        """
        self.busy.set()  # before looking: either this sees a pause, or the pause sees this
        if not self.paused.is_set():
            return False
        self.busy.clear()
        return True

    def sleep(self, seconds: float) -> None:
        """Wait, but not longer than until something is to be done."""
        self.nudged.wait(seconds)
        if not self._stop.is_set():
            self.nudged.clear()


class ShardRows:
    """A leader's way to its rows: one connection on a thread of its own, and another that hears of new
    rows where that is possible.
    """

    def __init__(
        self,
        settings: HarvestSettings,
        shard: int,
        signals: LeaderSignals,
        stats: ShardStats,
        make_rows: Callable[[HarvestSettings], OutboxRows],
        clock: Clock = system_clock,
    ) -> None:
        self.settings, self.signals, self.stats = settings, signals, stats
        self.rows = make_rows(settings)
        self.buckets = buckets_of(shard, settings.shards) if settings.shards > 1 else None
        self.worker = WorkerThread(f"holdfast-outbox-rows-{shard}", signals.abandoned)
        self.wakeup: Wakeup | None = self.rows.wakeup()
        # Only holdfast's own writers notify of every row they write.
        self._is_notified = self.wakeup is not None and self.rows.layout.name == "holdfast"
        self._poll_s = LEAST_POLL_S
        self._clock, self._count_at_s = clock, clock.monotonic_s() + COUNT_EVERY_S
        self._counting: Pending[int] | None = None

    def submit(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.stats.queries += 1
        return self.worker.submit(call, *args, **kwargs)

    def call(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Do something with the rows and wait for it."""
        return self.submit(call, *args, **kwargs).result()

    def busy(self) -> None:
        """There were rows: look again soon."""
        self._poll_s = LEAST_POLL_S

    def look(self, rows: Sequence[OutboxRow]) -> None:
        """Note what a take showed of the backlog, and have it counted now and then."""
        self.stats.oldest_created_ms = rows[0].created_ms if rows else None
        if not rows:
            self.stats.pending = 0
        now_s = self._clock.monotonic_s()
        if rows and now_s >= self._count_at_s and (self._counting is None or self._counting.done):
            self.stats.pending = max(len(rows), self._counting.result() if self._counting is not None else 0)
            self._counting = self.submit(self.rows.count, limit=LIMIT_PENDING)
            self._count_at_s = now_s + COUNT_EVERY_S

    @property
    def quiet(self) -> bool:
        """Return whether there have been no rows for a while."""
        return self._poll_s >= self.settings.idle_poll_s

    def wait(self) -> None:
        """Return when there may be new rows: after a wake-up, or after a while, which grows up to
        `idle_poll_s` where not every writer wakes it.
        """
        idle_s = self.settings.idle_poll_s
        wait_s, self._poll_s = (
            idle_s if self._is_notified else self._poll_s,
            min(self._poll_s * POLL_GROWTH, idle_s),
        )
        if self.wakeup is None:
            self.signals.sleep(wait_s)
            return
        try:
            self.wakeup.wait(wait_s)
        except OutboxDatabaseError as error:
            self.stats.last_error = str(error)
            self.signals.sleep(wait_s)

    def interrupt(self) -> None:
        """End a wait for new rows; from any thread."""
        if self.wakeup is not None:
            self.wakeup.interrupt()

    def abort(self) -> None:
        """End a wait for the database without an answer; from any thread."""
        self.interrupt()
        self.rows.interrupt()

    def close(self, timeout_s: float) -> None:
        """Close the connections, from the thread that used them; one that hangs is cut first."""
        if not self.worker.close(timeout_s):
            self.rows.interrupt()
            self.worker.close(timeout_s)
        self.rows.close()
        if self.wakeup is not None:
            self.wakeup.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One leadership as a strategy sees it."""

    settings: HarvestSettings
    shard: int
    leadership: Leadership
    signals: LeaderSignals
    stats: ShardStats
    shard_rows: ShardRows
    clients: dict[str, Any]
    """Constructors of Kafka clients, where they are not the usual ones."""
