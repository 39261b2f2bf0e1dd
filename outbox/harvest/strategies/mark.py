"""Strategy `mark`: goharvest's mark, publish, purge or reset; at least once, and the order of goharvest.

    mark the lowest rows -> publish them -> delete those that were delivered, take the mark off those that
    were not

It publishes exactly what goharvest would (no headers of ours), to the table that goharvest has, and with
`interop` in the election that goharvest's processes hold, so that they can be replaced one by one. What it
does better is listed in docs/PROTOCOL.md.

Order: rows of one key may be in flight together. The producer is idempotent and *gapless*: once a record is
lost, nothing after it is appended, so a reader sees R0, R1, R1, R2 at worst, never R0, R2, R1. After a loss,
the rest of the batch is published in ever smaller parts, until a row that is to blame is alone.

The rows of the next batch are marked, and those of the last one deleted, while this one is on its way. When
anything in it fails, rows marked ahead are given back: rows of a key that has to wait may be among them.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message

from holdfast.clock import Clock, system_clock
from holdfast.core.outbox.harvest import BatchSize
from holdfast.errors import BrokerError
from holdfast.kafka.clients import forget_frames, make_writer
from holdfast.kafka.codes import refuses_record
from holdfast.outbox.harvest.publishing.destinations import Destinations
from holdfast.outbox.harvest.publishing.limits import Rounds, TopicLimits
from holdfast.outbox.harvest.publishing.plan import Part, Plan
from holdfast.outbox.harvest.publishing.publisher import LIMIT_MESSAGE_BYTES, SLICE_S, PublishStopped
from holdfast.outbox.harvest.publishing.refusals import Refusals
from holdfast.outbox.harvest.publishing.traced_rows import tell_published
from holdfast.outbox.harvest.shard.shard import Term
from holdfast.outbox.harvest.shard.worker_thread import Pending
from holdfast.outbox.harvest.strategies.leading import lead_on
from holdfast.outbox.harvest.table.marks import MarkedRows
from holdfast.outbox.harvest.table.published import RowsDone, delete_again
from holdfast.outbox.harvest.table.row_types import ShardEpoch
from holdfast.outbox.schema.layouts import OutboxRow, marks_of

logger = logging.getLogger(__name__)

FIRST_ROWS = 64
LAST_ANSWERS_S = 1.0
"""The time for which a producer that a fatal error ended waits for outstanding answers: a broker that answers
at all does so sooner. Records that a silent one appends later repeat rows.
"""


class MarkTerm:
    """One term of one leader.

    `run` returns when it is over; rows it leaves marked are marked again by the next leader.
    """

    def __init__(self, term: Term, clock: Clock = system_clock) -> None:
        self._term, self._clock = term, clock
        self._settings, self._shard_rows, self._signals, self._stats = (
            term.settings,
            term.shard_rows,
            term.signals,
            term.stats,
        )
        self._make_producer: Callable[[dict[str, Any]], Any] = term.clients.get("make_producer", make_writer)
        most = min(term.settings.batch_rows, term.settings.in_flight_rows)
        self._size = BatchSize(least=min(FIRST_ROWS, most), most=most, limit_bytes=term.settings.batch_bytes)
        self._marks = MarkedRows(term.shard_rows.rows)
        self._limits = TopicLimits(term.settings.kafka.client(), term.settings.producer(), clock)
        self._refusals = Refusals(term, self._limits, clock)
        self._producer: Any = None
        self._destinations = Destinations(None, uses_buckets=False, clock=clock)
        self._leader_id = ""
        self._held = ShardEpoch(shard=term.shard, epoch=0)
        self._delivered: set[int] = set()
        """Rows that are on Kafka and still in the table."""
        self._whole: dict[int, OutboxRow] = {}
        """By number, the rows that are on their way or not yet deleted."""
        self._published_rows = RowsDone(term.shard_rows.rows)
        self._lost: set[int] = set()
        """Rows that bear the mark and are not on their way."""
        self._ahead: Pending[list[OutboxRow]] | None = None
        self._purging: tuple[Pending[int], list[int]] | None = None

    def run(self) -> None:
        """Lead until `stop`; errors cost a pause and a new leader id, never the term."""
        try:
            lead_on(self._term, self._lead_once, self._settings.name)
        finally:
            self._drop_producer()
            self._limits.close()

    def _lead_once(self) -> None:
        self._begin()
        self._lead()

    def _begin(self) -> None:
        # Whether the last mark happened may be unknown. Marking under the same id would skip its rows; a new
        # one takes them.
        self._leader_id = str(uuid.uuid4())
        self._ahead = self._purging = None
        self._held = self._refusals.lead()
        self._stats.epoch = self._held.epoch
        # Published under another id of this process: this leader deletes them, whichever mark they bear by
        # now.
        if self._delivered:
            rows = [self._whole[each] for each in sorted(self._delivered)]
            if self._shard_rows.call(self._shard_rows.rows.delete, rows) < len(rows):
                self._shard_rows.call(self._shard_rows.rows.require_gone, rows)
            self._purged(self._delivered)
        self._lost.clear()
        self._whole.clear()
        if self._producer is None:
            self._open_producer()

    def _lead(self) -> None:
        while not self._signals.stopping():
            if self._signals.rests():
                self._signals.sleep(self._settings.idle_poll_s)
                continue
            if self._signals.flush.is_set():
                self._signals.flush.clear()
                self._refusals.retry_now()
            rows, full = self._next()
            self._shard_rows.look(rows)
            if not rows:
                self._settle()
                self._stats.trouble.ends()
                self._shard_rows.wait()
                continue
            self._shard_rows.busy()
            try:
                self._harvest(rows, full)
                self._refusals.settle()
                self._stats.trouble.ends()
            finally:
                self._stats.in_flight = 0
        if not self._signals.abandoned():
            self._give_back()
            self._settle()

    def _next(self) -> tuple[list[OutboxRow], bool]:
        """Return the rows to publish now, in order, and whether there are probably more."""
        ahead, self._ahead = self._ahead, None
        rows = ahead.result() if ahead is not None else []
        if not rows and not (
            self._shard_rows.quiet and self._shard_rows.call(self._shard_rows.rows.count, limit=1) == 0
        ):  # one statement, not four
            rows = self._mark().result()
        if returned := self._published_rows.returned(rows):
            ids = {row.id for row in returned}
            delete_again(self._published_rows, self._shard_rows.call, returned, self._settings.name)
            rows = [row for row in rows if row.id not in ids]
        full = len(rows) >= self._size.rows
        self._size.taken(len(rows), sum(len(row.value or b"") + 100 for row in rows))
        return rows, full

    def _mark(self) -> Pending[list[OutboxRow]]:
        marking: Pending[list[OutboxRow]] = self._shard_rows.submit(
            self._marks.mark,
            self._size.rows,
            self._leader_id,
            held=self._held,
            without_topics=self._refusals.held_topics(),
        )
        return marking

    def _harvest(self, rows: Sequence[OutboxRow], full: bool) -> None:
        """Publish *rows*, delete the delivered ones and give back the rest."""
        self._lost = {row.id for row in rows}
        self._whole |= {row.id: row for row in rows}
        try:
            plan = self._refusals.plan(rows, self._destinations)
            if full and plan.is_plain:
                self._ahead = self._mark()
            plan = Plan(tuple(some for part in plan.parts for some in self._few_of_a_key(part)))
            while plan.parts:
                plan = self._publish(plan)
        except BaseException:
            if not self._signals.abandoned():
                self._give_back()
                self._settle()
            raise
        if self._lost or not full or self._are_suspect():
            self._settle()
        else:
            self._settle_purge()
            ids = sorted(self._delivered)
            self._purging = (self._shard_rows.submit(self._marks.purge, ids, self._leader_id), ids)

    def _give_back(self) -> None:
        """Count the rows marked ahead among the lost ones."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            self._lost.update(row.id for row in ahead.result())

    def _settle_purge(self) -> None:
        """Wait until the rows of the last batch are deleted."""
        if self._purging is not None:
            purging, ids = self._purging
            self._purging = None
            purging.result()
            self._purged(ids)

    def _settle(self) -> None:
        """Delete the delivered rows, take the mark off the others."""
        self._settle_purge()
        delivered, lost = sorted(self._delivered), sorted(self._lost)
        if delivered:
            self._purge(delivered)
            self._purged(delivered)
        if lost:
            self._stats.resets += len(lost)
            self._shard_rows.call(self._marks.reset, lost, self._leader_id)
            self._lost.clear()

    def _are_suspect(self) -> bool:
        """Return whether rows like those that are delivered were published before."""
        rows = [self._whole[each] for each in self._delivered]
        return self._published_rows.are_suspect(marks_of(rows))

    def _purge(self, ids: Sequence[int]) -> None:
        """Delete rows that were delivered."""
        purge = partial(self._marks.purge, ids, self._leader_id)
        if self._are_suspect():
            purge = partial(self._published_rows.delete_suspects, [self._whole[each] for each in ids], purge)
        self._shard_rows.call(purge)

    def _purged(self, ids: Iterable[int]) -> None:
        """Rows are deleted: one that comes back is not published again."""
        gone = {each: self._whole.pop(each) for each in list(ids) if each in self._whole}
        self._delivered.difference_update(gone)
        self._published_rows.note(marks_of(list(gone.values())))

    def _few_of_a_key(self, part: Part) -> Iterator[Part]:
        """Yield *part* so cut that no key has more than `key_in_flight` rows in one."""
        limit = self._settings.key_in_flight
        if limit >= len(part.rows):
            yield part
            return
        begin, counts = 0, Counter[tuple[str, bytes | None]]()
        for index, row in enumerate(part.rows):
            place = (row.topic, row.key)
            if counts[place] == limit:
                yield part._replace(rows=part.rows[begin:index])
                begin = index
                counts.clear()
            counts[place] += 1
        yield part._replace(rows=part.rows[begin:])

    def _publish(self, plan: Plan) -> Plan:
        """Publish the first part of *plan*, and return the rest of it."""
        if flaws := plan.flaws:
            return self._refusals.failed(plan, flaws)
        if self._signals.stopping():
            raise PublishStopped
        rows, began_ms = plan.parts[0].rows, self._clock.now_ms()
        failed = self._send(rows)
        left = [row for row in rows if row.id in self._lost]
        delivered = [row for row in rows if row.id not in self._lost] if left else rows
        tell_published(self._settings.name, delivered, began_ms, self._clock.now_ms())
        self._count(rows, left)
        plan = plan.first(left)
        return self._lost_some(plan, len(rows), failed) if left else plan

    def _count(self, rows: Sequence[OutboxRow], left: Sequence[OutboxRow]) -> None:
        self._stats.published += len(rows) - len(left)
        self._stats.batches += 1
        if len(left) < len(rows):
            self._stats.latency.observe_since(rows[0].created_ms, self._clock.now_ms())

    def _lost_some(self, plan: Plan, sent: int, failed: dict[int, KafkaError]) -> Plan:
        """Return the rest of *plan*, whose first part are the rows that were not delivered of *sent*.

        Raises BrokerError when Kafka refused none of them.
        """
        self._stats.aborted += 1
        self._give_back()
        self._drop_producer()
        self._open_producer()
        refused = {row_id: error for row_id, error in failed.items() if refuses_record(error.code())}
        if not refused:
            if self._signals.stopping():
                raise PublishStopped
            why = next(iter(failed.values()), None)
            raise BrokerError(
                f"{len(plan.parts[0].rows)} of {sent} rows were not delivered: "
                f"{why.str() if why else 'no answer in time'}"
            )
        self._stats.refused += 1
        return self._refusals.rows_refused(plan, refused)

    def _send(self, rows: Sequence[OutboxRow]) -> dict[int, KafkaError]:
        """Hand *rows* to Kafka and wait for the answers; moves ids from lost to delivered, and returns the
        errors of the others.
        """
        failed: dict[int, KafkaError] = {}
        producer, sent = self._producer, list[int]()

        def note_failure(row_id: int, error: KafkaError | None, _: Message) -> None:
            # The client may call while an exception of its own is pending, the fatal error: then whatever is
            # called here raises it. So nothing is; a failure that is not noted would count as a delivery.
            if error is not None and row_id not in failed:  # the client reports failures only
                failed[row_id] = error

        self._stats.in_flight = len(rows)
        produce = producer.produce
        cut = self._limits.cut({row.topic for row in rows})
        rounds = Rounds(cut, 0) if cut else None
        for row, (topic, partition) in zip(rows, self._destinations.of(rows), strict=True):
            if rounds is not None and rounds.ends_before(row, (topic, partition)):
                self._await(sent, failed)
                if failed or sent[-1] in self._lost or self._signals.stopping():
                    return failed
                sent.clear()
            try:
                produce(
                    topic,
                    row.value,
                    row.key,
                    partition,
                    on_delivery=partial(note_failure, row.id),
                    headers=row.headers,
                )
                sent.append(row.id)
            except BufferError as error:
                failed[row.id] = KafkaError(KafkaError._QUEUE_FULL, str(error))
                break  # nothing of its key may overtake it
            except (KafkaException, TypeError, ValueError) as error:
                failed[row.id] = (
                    error.args[0]
                    if isinstance(error, KafkaException)
                    else KafkaError(KafkaError._INVALID_ARG, str(error))
                )
                break
        self._await(sent, failed)
        return failed

    def _await(self, sent: Sequence[int], failed: dict[int, KafkaError]) -> None:
        """Wait for the answers to the rows *sent*, and move those that did not fail from lost to
        delivered.

        A producer that a fatal error ended sends nothing more: queued records fail at once, records on their
        way within LAST_ANSWERS_S.
        """
        until_s = self._clock.monotonic_s() + self._settings.heartbeat_timeout_s + SLICE_S
        ended_s: float | None = None
        while self._clock.monotonic_s() < until_s and not self._signals.abandoned():
            try:
                if not self._producer.flush(SLICE_S):
                    delivered = set(sent) - failed.keys()
                    self._delivered |= delivered
                    self._lost -= delivered
                    return
            except (KafkaException, SystemError) as error:
                # The client raises what ended its producer while it is calling back (which makes it a
                # SystemError, now and then); the answers for the other rows come with the next flush.
                logger.info("outbox %(outbox)s: %(error)s", {"outbox": self._settings.name, "error": error})
                forget_frames(error)
                ended_s = self._clock.monotonic_s() if ended_s is None else ended_s
            if ended_s is not None:
                is_over = self._clock.monotonic_s() - ended_s >= LAST_ANSWERS_S
                self._producer.purge(in_flight=is_over)

    # -- the producer

    def _open_producer(self) -> None:
        settings = self._settings
        self._producer = self._make_producer(
            {
                **settings.producer(),
                "enable.idempotence": True,
                "enable.gapless.guarantee": True,
                # Over before a successor begins: a session is three timeouts.
                "delivery.timeout.ms": int(settings.heartbeat_timeout_s * 1000),
                "linger.ms": 50,  # a flush sends at once; until then, gather few large requests
                "delivery.report.only.error": True,
                "queue.buffering.max.messages": 1_000_000,
                "queue.buffering.max.kbytes": 1 << 20,
                "batch.num.messages": 10_000,
                "message.max.bytes": LIMIT_MESSAGE_BYTES,
            }
        )
        self._destinations.ask(self._producer)

    def _drop_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
