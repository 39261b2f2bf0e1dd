"""Strategy `fenced`: rows and progress in one Kafka transaction, rows deleted afterwards; exactly once for
readers of committed records.

    fence -> read progress -> delete the published rows -> { take the lowest rows -> publish them with
    progress -> delete them }

At whatever moment a leader dies, the next one repairs it. Before the commit, no reader has seen the records
and the rows are still there. After it, the progress record names the rows, and they are deleted before
anything else is published. A leader that wakes up after its successor has fenced it can publish nothing more,
and the rows it deletes were published: only published rows are ever deleted.

The rows of the next batch are taken while this one is being committed. They lie above it, and are taken only
if nothing became visible below: a row that commits late has a lower id, and rows of its key may come after
it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from confluent_kafka import TopicPartition

from holdfast.clock import Clock, system_clock
from holdfast.core.outbox.harvest import BatchSize, ProducerProgress, producer_name
from holdfast.errors import BrokerError
from holdfast.outbox.harvest.publishing.limits import TopicLimits
from holdfast.outbox.harvest.publishing.publisher import (
    Aborted,
    Publisher,
    PublishStopped,
    RowsRefused,
    read_progress,
)
from holdfast.outbox.harvest.publishing.refusals import Refusals
from holdfast.outbox.harvest.publishing.traced_rows import tell_published
from holdfast.outbox.harvest.shard.shard import Term
from holdfast.outbox.harvest.shard.worker_thread import Pending
from holdfast.outbox.harvest.strategies.leading import BACKOFF, lead_on
from holdfast.outbox.harvest.strategies.numbers import NumberWatch
from holdfast.outbox.harvest.table.foreign import ForeignMarks, delete_watching
from holdfast.outbox.harvest.table.published import RowsDone, delete_again
from holdfast.outbox.schema.layouts import OutboxRow, identity_of, marks_of

logger = logging.getLogger(__name__)

FIRST_ROWS = 64
LIMIT_FOUND = 1_000
"""Rows that are read at once to see whether they are those that were published."""
ABORTS_IN_TURN = 5


class FencedTerm:
    """One term of one leader.

    `run` returns when it is over; whatever happens, the next term repairs the state that it leaves.
    """

    def __init__(self, term: Term, clock: Clock = system_clock) -> None:
        self._term, self._clock = term, clock
        self._settings, self._shard_rows, self._signals, self._stats = (
            term.settings,
            term.shard_rows,
            term.signals,
            term.stats,
        )
        self._progress = ProducerProgress(producer_name(term.settings.name, term.shard))
        self._size = BatchSize(
            least=min(FIRST_ROWS, term.settings.batch_rows),
            most=term.settings.batch_rows,
            limit_bytes=term.settings.batch_bytes,
        )
        self._limits = TopicLimits(term.settings.kafka.client(), term.settings.producer(), clock)
        self._refusals = Refusals(term, self._limits, clock)
        self._foreign = ForeignMarks(clock) if "leader_id" in term.shard_rows.rows.layout.kinds else None
        self._publisher: Publisher | None = None
        self._ahead: Pending[list[OutboxRow]] | None = None
        self._deleting: tuple[Pending[tuple[int, list[tuple[int, str]]]], Sequence[OutboxRow]] | None = None
        self._published_rows = RowsDone(term.shard_rows.rows)
        self._numbers = NumberWatch(term, clock)

    def run(self) -> None:
        """Lead until `stop`; errors cost a pause and a new beginning, never the term."""
        try:
            lead_on(self._term, self._lead_once, self._progress.producer)
        finally:
            self._limits.close()

    def _lead_once(self) -> None:
        try:
            self._begin()
            self._lead()
        finally:
            self._end()

    # -- beginning and end

    def _begin(self) -> None:
        settings, signals = self._settings, self._signals
        self._refusals.lead()  # also: no fence for a database that is away
        self._progress = progress = ProducerProgress(producer_name(settings.name, self._term.shard))
        self._publisher = publisher = Publisher(
            settings.producer(),
            transactional_id=settings.transactional_id(self._term.shard),
            progress=TopicPartition(settings.progress_topic, self._term.shard),
            producer_progress=progress,
            transaction_timeout_s=settings.transaction_timeout_s,
            commit_timeout_s=settings.commit_timeout_s,
            uses_buckets=self._shard_rows.rows.layout.sharded,
            stopping=signals.abandoned,
            limits=self._limits,
            clock=self._clock,
            **self._term.clients,
        )
        publisher.fence(signals.stopping)
        records = read_progress(
            settings.kafka.consumer(),
            settings.progress_topic,
            progress,
            stopping=signals.stopping,
            timeout_s=settings.commit_timeout_s,
        )
        progress.begin()
        found = sorted(progress.published)
        self._numbers.begin(progress)
        self._published_rows.note_contents(progress.marks_published())
        repaired = self._repair(found) if found else 0
        progress.deleted(found)
        self._stats.epoch = progress.epoch
        logger.info(
            "outbox %(outbox)s: epoch %(epoch)d after %(records)d progress records, %(deleted)d "
            "published rows deleted",
            {"outbox": progress.producer, "epoch": progress.epoch, "records": records, "deleted": repaired},
        )

    def _repair(self, named: Sequence[int]) -> int:
        """Delete the rows that were published, of those that the progress names, and return how many.

        A row of such a number that is not the one that was published is another.
        """
        progress, call, rows = self._progress, self._shard_rows.call, self._shard_rows.rows
        may_be_another, deleted = self._numbers.began_again, 0
        others: list[OutboxRow] = []
        for at in range(0, len(named), LIMIT_FOUND):
            published: list[OutboxRow] = []
            for row in call(rows.find, named[at : at + LIMIT_FOUND]):
                is_published = progress.is_published(
                    row.id, identity_of(row), row.created_ms, may_be_another=may_be_another
                )
                (published if is_published else others).append(row)
            if published:
                deleted += (count := call(rows.delete, published))
                if count < len(published):
                    call(rows.require_gone, published)
                self._published_rows.note(marks_of(published))
        if others:
            self._numbers.found_again(others)
        return deleted

    def _end(self) -> None:
        """Release everything. Rows still being deleted were published, so their deletion may continue."""
        self._ahead = self._deleting = None
        self._stats.in_flight = 0
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.close()

    # -- the loop

    def _lead(self) -> None:
        while not self._signals.stopping():
            if self._signals.rests():
                self._signals.sleep(self._settings.idle_poll_s)
                continue
            if self._signals.flush.is_set():
                self._retry_now()
            rows, full = self._next()
            self._shard_rows.look(rows)
            if rows and self._is_watched(rows):
                self._settle()
                self._signals.sleep(self._settings.idle_poll_s)
                continue
            if rows:
                self._shard_rows.busy()
                self._harvest(rows, full)
                self._stats.trouble.ends()
            else:
                self._settle()
                self._stats.trouble.ends()
                self._numbers.look()
                self._shard_rows.wait()
        self._settle()
        if not self._signals.abandoned():
            self._numbers.note()

    def _is_watched(self, rows: Sequence[OutboxRow]) -> bool:
        """Return whether another program is at work on the table, so that *rows* must be left to it for
        now.
        """
        foreign = self._foreign
        if foreign is None:
            return False
        foreign.look(rows)
        if why := foreign.refusal:
            self._ahead = None
            self._stats.last_error = why
            self._stats.trouble.strikes("foreign marks", why)
            return True
        if foreign.waits:
            foreign.settled(self._shard_rows.call(self._shard_rows.rows.marks))
        return False

    def _retry_now(self) -> None:
        """Retry the held rows now."""
        self._signals.flush.clear()
        self._ahead = None
        self._refusals.retry_now()

    def _next(self) -> tuple[list[OutboxRow], bool]:
        """Return the rows to publish now, in order, and whether there are probably more."""
        ahead, self._ahead = self._ahead, None
        rows = ahead.result() if ahead is not None else []
        if not rows:
            rows = self._take(None, None).result()
        if others := self._published_rows.others(rows):
            self._numbers.found_again(others)
        if returned := self._published_rows.returned(rows):
            self._ahead, ids = None, {row.id for row in returned}
            delete_again(self._published_rows, self._shard_rows.call, returned, self._progress.producer)
            return [row for row in rows if row.id not in ids], False
        size_bytes = sum(len(row.value or b"") + 100 for row in rows)
        full = len(rows) >= self._size.rows
        self._size.taken(len(rows), size_bytes)
        return rows, full

    def _take(self, after_id: int | None, expecting: int | None) -> Pending[list[OutboxRow]]:
        found: Pending[list[OutboxRow]] = self._shard_rows.submit(
            self._shard_rows.rows.take,
            self._size.rows,
            buckets=self._shard_rows.buckets,
            without_topics=self._refusals.held_topics(),
            after_id=after_id,
            expecting=expecting,
        )
        return found

    def _harvest(self, rows: Sequence[OutboxRow], full: bool) -> None:
        """Publish what can be published of *rows*, and have it deleted; what Kafka refuses is found and
        held.
        """
        last_id, destinations = rows[-1].id, self._require_publisher().destinations
        plan = self._refusals.plan(rows, destinations)
        expecting = len(plan.rows)  # a row that has just failed is not taken, nor what waits for it

        def take_ahead() -> None:
            self._ahead = self._take(last_id, expecting)

        meanwhile = take_ahead if full and plan.is_plain else None
        while plan.parts:
            if flaws := plan.flaws:
                plan = self._refusals.failed(plan, flaws)
                continue
            some = plan.parts[0].rows
            try:
                plan = plan.first(some[self._commit(some, meanwhile) :])
            except RowsRefused as refused:
                self._ahead = None  # taken before it was known that a key must wait
                self._stats.refused += 1
                self._settle()
                plan = self._refusals.transaction_refused(plan, refused, destinations)
                if self._signals.stopping():
                    # and leave all of the plan: later rows in it may follow a row that is left
                    break
            meanwhile = None
        self._refusals.settle()

    def _commit(self, rows: Sequence[OutboxRow], meanwhile: Callable[[], None] | None) -> int:
        """Publish *rows* in one transaction, again when it comes to nothing for a reason that passes;
        return how many it took.
        """
        publisher = self._require_publisher()
        turn = 0
        while True:
            self._settle_deleted()
            self._stats.in_flight = len(rows)
            try:
                began_ms = self._clock.now_ms()
                count = publisher.publish(rows, meanwhile)
                tell_published(self._settings.name, rows[:count], began_ms, self._clock.now_ms())
                self._published(rows[:count])
                return count
            except Aborted as error:
                self._ahead = None
                self._stats.aborted += 1
                self._stats.last_error = str(error)
                if turn == ABORTS_IN_TURN:
                    raise BrokerError(f"{error}; {turn + 1} times in turn") from error
                self._signals.sleep(BACKOFF.wait_s(turn))
                if self._signals.abandoned():
                    raise PublishStopped from error
            turn += 1

    def _published(self, rows: Sequence[OutboxRow]) -> None:
        stats = self._stats
        stats.published += len(rows)
        stats.batches += 1
        stats.in_flight = 0
        stats.latency.observe_since(rows[0].created_ms, self._clock.now_ms())
        self._settle()
        marks = self._require_publisher().marks
        is_suspect = self._published_rows.are_suspect(marks)
        self._published_rows.note(marks)
        delete = partial(delete_watching, self._shard_rows.rows, rows)
        if is_suspect:
            delete = partial(self._published_rows.delete_suspects, rows, delete)
        self._deleting = (self._shard_rows.submit(delete), rows)
        if is_suspect:  # the next rows may be what it wrote
            self._settle()

    def _settle_deleted(self) -> None:
        """Take note of rows that are gone by now, so that the next progress record need not name them."""
        if self._deleting is not None and self._deleting[0].done:
            self._settle()

    def _settle(self) -> None:
        """Wait until the published rows are deleted."""
        if self._deleting is not None:
            deleting, rows = self._deleting
            self._deleting = None
            deleted, marks = deleting.result()
            if deleted < len(rows):
                others = self._shard_rows.call(self._shard_rows.rows.require_gone, rows)
                if others:
                    self._numbers.found_again(others)
            self._progress.deleted([row.id for row in rows])
            if self._foreign is not None and self._foreign.others(marks):
                self._foreign.moved()

    def _require_publisher(self) -> Publisher:
        assert self._publisher is not None
        return self._publisher
