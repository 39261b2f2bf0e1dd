"""A harvester: takes part in the election of an outbox's shards and leads those it is given, by the strategy
of its settings.

    with Harvester(HarvestSettings(database=url, kafka=settings, name="orders")) as harvester:
        harvester.wait()

The same object runs inside Faust workers (holdfast.agents.services.harvester) and alone (`holdfast outbox
harvest`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from holdfast.clock import Clock, system_clock
from holdfast.core.outbox.election import FenceReason, Leadership
from holdfast.errors import HoldfastError, OutboxDroppedError
from holdfast.outbox.command_log import CommandLog
from holdfast.outbox.commands import LIMIT_TEXT, Command, CommandReply, Verb
from holdfast.outbox.election import Election
from holdfast.outbox.harvest.shard.shard import LeaderSignals, ShardRows, ShardStats, Term
from holdfast.outbox.harvest.strategies.fenced import FencedTerm
from holdfast.outbox.harvest.strategies.mark import MarkTerm
from holdfast.outbox.harvest.table.readable import refuse_unreadable, warn_of_lost_progress
from holdfast.outbox.harvest.table.rows import OutboxRows
from holdfast.outbox.settings import HarvestSettings, Strategy
from holdfast.outbox.topics import ensure_topics

logger = logging.getLogger(__name__)

STOP_S = 10.0
CLOSE_S = 0.5
"""Kept back of a deadline for cutting what hangs."""

__all__ = ["HarvestSettings", "Harvester", "ShardStats", "Strategy"]


class _Runs(Protocol):
    def run(self) -> None: ...


STRATEGIES: dict[Strategy, Callable[[Term], _Runs]] = {Strategy.FENCED: FencedTerm, Strategy.MARK: MarkTerm}


def open_rows(settings: HarvestSettings) -> OutboxRows:
    """Return the rows of the outbox over a connection of their own, which is opened when it is needed."""
    return OutboxRows(settings.database, table=settings.table, layout=settings.layout)


@dataclass(slots=True)
class _Leader:
    """A term under way in this process."""

    leadership: Leadership
    signals: LeaderSignals
    thread: threading.Thread = field(default_factory=threading.Thread)
    shard_rows: ShardRows | None = None

    def interrupt(self) -> None:
        if self.shard_rows is not None:
            self.shard_rows.interrupt()

    def abort(self) -> None:
        """Leave everything as it is; the successor's fence and repair deal with it."""
        self.signals.abandon()
        if self.shard_rows is not None:
            self.shard_rows.abort()


class Harvester:
    """One process that harvests one outbox. Start it once; it can be stopped from any thread."""

    def __init__(
        self,
        settings: HarvestSettings,
        *,
        clock: Clock = system_clock,
        make_rows: Callable[[HarvestSettings], OutboxRows] = open_rows,
        clients: dict[str, Any] | None = None,
        hear: Callable[[Command], None] | None = None,
    ) -> None:
        """*hear* is called with each command instead of `obey`, and calls `obey` itself."""
        self.settings, self._clock = settings, clock
        self._make_rows, self._clients = make_rows, clients or {}
        self.election = Election(settings.election(), self, kafka=settings.kafka, clock=clock)
        self.stats = [ShardStats(shard) for shard in range(settings.shards)]
        self._leaders: dict[int, _Leader] = {}
        self._lock = threading.Lock()
        self._paused, self._caught_up = False, False
        self._commands = CommandLog(settings, self, hear or self.obey, clock)
        self._over = threading.Event()
        self.error: HoldfastError | None = None

    # -- life

    def start(self) -> Self:
        """Create missing topics and join the election.

        Raises OutboxError when the outbox cannot be read, TopicError, BrokerError or ConfigError. The
        election is not joined then, nor if the harvester was stopped by then.
        """
        with self._make_rows(self.settings) as rows:
            refuse_unreadable(rows, self.settings.name)
            if self.settings.progress_topic in ensure_topics(self.settings):
                warn_of_lost_progress(rows, self.settings)
        if self._over.is_set():
            return self
        self._commands.open()
        self.election.start()
        return self

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the harvester has ended, return whether it has; raises the error that ended it."""
        over = self._over.wait(timeout_s)
        if self.error is not None:
            raise self.error
        return over

    def stop(self, timeout_s: float = STOP_S) -> None:
        """Finish the work begun, give the shards back and leave; returns within *timeout_s*, also without a
        broker or database.
        """
        deadline_s = self._clock.monotonic_s() + timeout_s
        for leader in self._running():
            leader.signals.stop()
            leader.interrupt()
        self.election.stop(deadline_s)
        for leader in self._running():
            leader.abort()
        self._commands.close(max(0.0, deadline_s - self._clock.monotonic_s()))
        self._over.set()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- commands

    def pause(self) -> None:
        """Publish nothing more until `resume`; leadership is kept."""
        self._set_paused(True)

    def resume(self) -> None:
        """Resume publishing, also of shards that are stopped; earlier commands, read at the start, resume
        none of these.
        """
        self._set_paused(False)
        if self._caught_up:
            for leader in self._running():
                leader.signals.resumed.set()
                leader.signals.nudged.set()

    def flush(self) -> None:
        """Retry now the rows that are held back for a while."""
        for leader in self._running():
            leader.signals.flush.set()
            leader.signals.nudged.set()

    def obey(self, command: Command) -> None:
        """Carry out a command."""
        match command.verb:
            case Verb.PAUSE:
                self.pause()
            case Verb.RESUME:
                self.resume()
            case Verb.FLUSH:
                self.flush()

    def caught_up(self) -> None:
        """Begin to publish: until now a pause might have been in force that had not been read yet."""
        self._caught_up = True
        self._set_paused(self._paused)

    def _set_paused(self, paused: bool) -> None:
        with self._lock:
            self._paused = paused
            for leader in self._leaders.values():
                self._tell(leader.signals)

    def _tell(self, signals: LeaderSignals) -> None:
        if self._paused or not self._caught_up:
            signals.paused.set()
        else:
            signals.paused.clear()
            signals.nudged.set()

    def is_settled(self, shard: int, verb: Verb) -> bool:
        """Return whether the term has begun (or says why it cannot) and, for a pause, whether nothing is
        on its way any more.
        """
        stats = self.stats[shard]
        with self._lock:
            leader = self._leaders.get(shard)
        if leader is None or not (stats.epoch or stats.last_error):
            return False
        return verb is not Verb.PAUSE or not leader.signals.busy.is_set()

    def answer(self, command: Command, shard: int) -> CommandReply:
        """Return the answer of *shard*, which is led here."""
        stats = self.stats[shard]
        return CommandReply(
            id=command.id,
            verb=command.verb,
            shard=shard,
            leader=self.settings.instance,
            epoch=stats.epoch,
            paused=self._paused,
            published=stats.published,
            quarantined=stats.quarantined,
            in_flight=stats.in_flight,
            waiting_topics=sorted(stats.holds),
            last_error=stats.last_error[:LIMIT_TEXT],
            stopped=bool(stats.stopped),
        )

    @property
    def paused(self) -> bool:
        return self._paused

    @property
    def stopping(self) -> bool:
        """Return whether it no longer obeys commands."""
        return self._over.is_set() or self._commands.ended

    def leads(self, shard: int) -> bool:
        """Return whether this process leads *shard* right now."""
        return self.election.leadership(shard) is not None

    def _running(self) -> list[_Leader]:
        with self._lock:
            return list(self._leaders.values())

    # -- what the election says

    def acquired(self, leadership: Leadership) -> None:
        """Lead a shard from now on."""
        role = leadership.role
        signals = LeaderSignals(lambda: self.election.leadership(role) == leadership, self._clock)
        with self._lock:
            self._tell(signals)
            before = self._leaders.get(role)
            leader = self._leaders[role] = _Leader(leadership, signals)
            leader.thread = threading.Thread(
                target=self._lead, args=(leader, before), name=f"holdfast-outbox-{role}", daemon=True
            )
        leader.thread.start()

    def revoked(self, leaderships: Sequence[Leadership], deadline_s: float) -> None:
        """Finish and give shards back by *deadline_s*."""
        mine = [leader for leader in self._running() if leader.leadership in leaderships]
        for leader in mine:
            leader.signals.stop()
            leader.interrupt()
        for leader in mine:
            leader.thread.join(max(0.0, deadline_s - CLOSE_S - self._clock.monotonic_s()))
        late = [leader for leader in mine if leader.thread.is_alive()]
        for leader in late:
            logger.warning(
                "outbox %(outbox)s: shard %(shard)d is left unfinished; its next leader repairs it",
                {"outbox": self.settings.name, "shard": leader.leadership.role},
            )
            leader.abort()
        for leader in late:
            leader.thread.join(max(0.0, deadline_s - self._clock.monotonic_s()))

    def fenced(self, leadership: Leadership, reason: FenceReason) -> None:
        """Stop at once."""
        self.stats[leadership.role].fenced += 1
        for leader in self._running():
            if leader.leadership == leadership:
                leader.abort()

    def failed(self, error: HoldfastError) -> None:
        """The election is over, or commands can no longer be read."""
        self.error = error
        for leader in self._running():
            leader.abort()
        self._over.set()

    # -- a term

    def _lead(self, leader: _Leader, before: _Leader | None) -> None:
        if before is not None:
            before.thread.join()  # it will stop; two of one process must not work on one shard
        role = leader.leadership.role
        stats = self.stats[role]
        stats.epoch = 0  # of a term before
        stats.leading = True
        stats.leader_changes += 1
        try:
            self._run_term(leader, stats)
        except Exception as error:
            logger.error(
                "outbox %(outbox)s: shard %(shard)d cannot be led: %(error)s",
                {"outbox": self.settings.name, "shard": role, "error": error},
                exc_info=not isinstance(error, OutboxDroppedError),
            )
            self.error = (
                error
                if isinstance(error, HoldfastError)
                else HoldfastError(f"shard {role} of {self.settings.name}: {error!r}")
            )
            stats.last_error = str(self.error)
            self._over.set()  # a bug: the run must end with an error, not publish nothing in silence
        finally:
            stats.leading, stats.stopped = False, ""
            if leader.shard_rows is not None:
                leader.shard_rows.close(CLOSE_S)
            with self._lock:
                if self._leaders.get(role) is leader:
                    del self._leaders[role]

    def _run_term(self, leader: _Leader, stats: ShardStats) -> None:
        role, signals = leader.leadership.role, leader.signals
        leader.shard_rows = ShardRows(self.settings, role, signals, stats, self._make_rows)
        term = Term(
            settings=self.settings,
            shard=role,
            leadership=leader.leadership,
            signals=signals,
            stats=stats,
            shard_rows=leader.shard_rows,
            clients=self._clients,
        )
        STRATEGIES[self.settings.strategy](term).run()
