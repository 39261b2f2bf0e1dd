"""Handles rows that Kafka refuses: they are held with their key for a while, and set aside when they have
failed often enough.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
from confluent_kafka import KafkaError

from holdfast.clock import Backoff, Clock, system_clock
from holdfast.core.outbox.harvest import Destination, producer_name
from holdfast.kafka.codes import REFUSED_TOPIC, TOO_LARGE
from holdfast.outbox.harvest.publishing.destinations import Destinations
from holdfast.outbox.harvest.publishing.limits import TopicLimits
from holdfast.outbox.harvest.publishing.plan import Plan, plan_for
from holdfast.outbox.harvest.publishing.publisher import RowsRefused
from holdfast.outbox.harvest.shard.shard import Term
from holdfast.outbox.harvest.shard.worker_thread import Pending
from holdfast.outbox.harvest.table.row_types import ShardEpoch
from holdfast.outbox.schema.layouts import OutboxRow
from holdfast.outbox.settings import Poison

logger = logging.getLogger(__name__)

LEAST_HOLD_S = 0.1
LIMIT_HOLDS = 100
"""Topics that may be left out of a take; rows of further ones are held one by one."""
LIMIT_NOTING = 16
WARN_EVERY_S = 60.0
"""Rows that are set aside are logged this often at WARNING, each of them at INFO."""
HOLD_SHARE = 9.0
"""For how many times its handling time a refused topic is left alone: others keep nine tenths of their
rate.
"""


@dataclass(slots=True)
class Hold:
    """A topic that nothing can be written to: how often it was found so, and when to look again."""

    attempts: int
    until_s: float


class Refusals:
    """The refused rows and topics of one term, and the plan for the remaining rows.

    A strategy asks for a plan once per take, and again after each refusal. Rows that failed are remembered by
    the database, topics only here.
    """

    def __init__(self, term: Term, limits: TopicLimits, clock: Clock = system_clock) -> None:
        self._settings, self._shard_rows, self._signals, self._stats = (
            term.settings,
            term.shard_rows,
            term.signals,
            term.stats,
        )
        self._limits, self._clock = limits, clock
        self._backoff = Backoff(term.settings.retry_s, term.settings.retry_limit_s)
        self._producer = producer_name(term.settings.name, term.shard)
        self._holds: dict[str, Hold] = {}
        self._shard = term.shard
        self._held = ShardEpoch(shard=term.shard, epoch=0)
        self._noting: list[Pending[int]] = []
        self._logged: set[str] = set()
        """Topics whose refusal was logged and whose recovery was not yet."""
        self._warned_s, self._unwarned = -WARN_EVERY_S, 0

    def lead(self) -> ShardEpoch:
        """Take the shard's next epoch in the database; earlier leaders can set nothing aside any more."""
        self._noting.clear()
        epoch = self._shard_rows.call(self._shard_rows.rows.epoch, self._shard, self._settings.instance)
        self._held = ShardEpoch(shard=self._shard, epoch=epoch)
        return self._held

    def held_topics(self) -> list[str]:
        """Return the topics whose rows need not be taken now."""
        now_s = self._clock.monotonic_s()
        return [topic for topic, hold in self._holds.items() if now_s < hold.until_s]

    def retry_now(self) -> None:
        """Try everything again now."""
        self._holds.clear()
        self._shard_rows.call(self._shard_rows.rows.retry_now)

    # -- plans

    def plan(self, rows: Sequence[OutboxRow], destinations: Destinations) -> Plan:
        """Return the plan for publishing *rows*, a take in order. A row that Kafka is known to refuse is held
        and not in the plan, nor are the rows after it on its key.
        """
        refused = self._hold_refused_topics(rows, destinations)
        fit = [row for row in rows if row.topic not in refused] if refused else rows
        self._limits.look(_topics_of(fit))
        plan = self.failed(plan_for(fit, destinations), {})
        return replace(plan, is_plain=False) if refused else plan

    def failed(self, plan: Plan, why: Mapping[int, str]) -> Plan:
        """Note that rows failed, each for its reason, and return the plan without them, without rows that
        their topics cannot take, and without the rows that wait for any of these.

        *why* goes by row id. A row that waits for one of its key has not been tried, so it has not failed.
        """
        waiting: set[tuple[str, bytes | None]] = set()

        def is_left(row: OutboxRow) -> bool:
            if waiting and (row.topic, row.key) in waiting:
                return False
            reason = why.get(row.id)
            if reason is None and row.flaw is None:
                reason = self._limits.too_large(row)
                self._stats.refused += reason is not None
            if reason is None:
                return True
            if self._note_failed(row, reason) and row.key is not None:
                waiting.add((row.topic, row.key))
            return False

        return plan.kept(is_left)

    def transaction_refused(self, plan: Plan, refused: RowsRefused, destinations: Destinations) -> Plan:
        """Return the rest of *plan*, whose first part came to nothing since Kafka refused some of it.

        A refused record takes its whole batch with it. So where several were in one, either the batch was too
        large, and will be cut smaller; or they are halved until one is alone.
        """
        rows = plan.parts[0].rows
        if refused.why.code() in REFUSED_TOPIC:
            for topic in {topic for topic, _ in refused.destinations}:
                destinations.forget(topic)
            if topics := self._hold_refused_topics(plan.rows, destinations):
                return plan.kept(lambda row: row.topic not in topics)
        blamed = [rows[index] for index in refused.indexes] or (rows if len(rows) == 1 else [])
        left = self._without_blamed(plan, {row.id: refused.why for row in blamed})
        if left is None:
            left = plan.first(*_halves(rows, destinations.of(rows), refused.destinations))
        return left

    def rows_refused(self, plan: Plan, why: Mapping[int, KafkaError]) -> Plan:
        """Return the rest of *plan*, of whose first part nothing was delivered since Kafka refused the rows
        of *why*, by id.
        """
        if (left := self._without_blamed(plan, why)) is not None:
            return left
        rows = plan.parts[0].rows
        begin = next(index for index, row in enumerate(rows) if row.id in why)
        middle = (begin + len(rows)) // 2
        return plan.first(rows[:begin], rows[begin:middle], rows[middle:])

    def _without_blamed(self, plan: Plan, why: Mapping[int, KafkaError]) -> Plan | None:
        """Return the plan without the rows of its first part that are to blame; None if there are several and
        it is unknown which one is.
        """
        blamed = [row for row in plan.parts[0].rows if row.id in why]
        if blamed and all(why[row.id].code() in TOO_LARGE for row in blamed):
            blamed = self._limits.refused(blamed)
        elif len(blamed) != 1:
            return None
        return self.failed(plan, {row.id: f"{why[row.id].name()}: {why[row.id].str()}" for row in blamed})

    # -- rows

    def _note_failed(self, row: OutboxRow, reason: str) -> bool:
        """Hold *row* for a while, and return True: the rows after it on its key wait. Or set it aside when it
        has failed often enough, and return False.

        Later queries of the database know that the row is held; `settle` returns once that was noted.
        """
        settings, rows = self._settings, self._shard_rows.rows
        self._stats.last_error = f"row {row.id} for {row.topic}: {reason}"
        attempts = row.attempts + 1
        retry_at_ms = self._clock.now_ms() + int(self._backoff.wait_s(row.attempts) * 1000)
        self._noting.append(
            self._shard_rows.submit(rows.attempt_failed, row, reason, retry_at_ms, held=self._held)
        )
        gives_up = (attempts >= settings.attempts or row.flaw is not None) and settings.poison is Poison.PASS
        if gives_up:
            self._quarantine(msgspec.structs.replace(row, attempts=attempts), reason)
        if len(self._noting) >= LIMIT_NOTING:
            self.settle()
        return not gives_up

    def settle(self) -> None:
        """Return when all failures are noted in the database; raises FencedError when they are a
        successor's business.
        """
        noting, self._noting = self._noting, []
        for each in noting:
            each.result()

    def _quarantine(self, row: OutboxRow, reason: str) -> None:
        self.settle()
        self._shard_rows.call(self._shard_rows.rows.set_aside, row, reason, held=self._held)
        self._stats.quarantined += 1
        now_s = self._clock.monotonic_s()
        is_warning = now_s - self._warned_s >= WARN_EVERY_S
        others = " (and %(untold)d rows before it)" if is_warning and self._unwarned else ""
        logger.log(
            logging.WARNING if is_warning else logging.INFO,
            "outbox %(outbox)s: row %(row)d for %(topic)s set aside after %(attempts)d attempts: %(reason)s"
            + others,
            {
                "outbox": self._producer,
                "row": row.id,
                "topic": row.topic,
                "attempts": row.attempts,
                "reason": reason,
                "untold": self._unwarned,
            },
        )
        self._warned_s, self._unwarned = (now_s, 0) if is_warning else (self._warned_s, self._unwarned + 1)

    # -- topics

    def _hold_refused_topics(self, rows: Sequence[OutboxRow], destinations: Destinations) -> set[str]:
        """Return those topics of *rows* that nothing can be written to now. Their rows are held, and set
        aside in the end.
        """
        refused: dict[str, KafkaError] = {}
        for topic in _topics_of(rows):
            why = destinations.refusal(topic)
            if why is None:
                self._holds.pop(topic, None)
                if topic in self._logged:
                    self._logged.discard(topic)
                    logger.warning(
                        "outbox %(outbox)s: topic %(topic)s can be written to again",
                        {"outbox": self._producer, "topic": topic},
                    )
            else:
                refused[topic] = why
        self._stats.holds = set(self._holds)
        for topic, why in refused.items():
            self._hold(topic, why, [row for row in rows if row.topic == topic])
        return set(refused)

    def _hold(self, topic: str, why: KafkaError, rows: Sequence[OutboxRow]) -> None:
        settings, began_s = self._settings, self._clock.monotonic_s()
        reason = f"{why.name()}: {why.str()}"
        self._stats.refused += 1
        self._stats.last_error = f"topic {topic}: {reason}"
        hold = self._holds.get(topic)
        if hold is None and len(self._holds) >= LIMIT_HOLDS:
            for row in rows:
                self._note_failed(row, reason)
            return
        if hold is None:
            hold = self._holds[topic] = Hold(0, 0.0)
            if topic not in self._logged:
                self._logged.add(topic)
                logger.warning(
                    "outbox %(outbox)s: rows for topic %(topic)s are held back: %(reason)s",
                    {"outbox": self._producer, "topic": topic, "reason": reason},
                )
        wait_s = self._backoff.wait_s(hold.attempts)
        hold.attempts += 1
        if hold.attempts >= settings.attempts and settings.poison is Poison.PASS:
            for row in rows:
                if self._signals.stopping():
                    break
                self._quarantine(msgspec.structs.replace(row, attempts=hold.attempts), reason)
            wait_s = max(LEAST_HOLD_S, (self._clock.monotonic_s() - began_s) * HOLD_SHARE)
        hold.until_s = self._clock.monotonic_s() + wait_s
        self._stats.holds = set(self._holds)


def _topics_of(rows: Sequence[OutboxRow]) -> set[str]:
    """Return the topics of those rows that can be published; that of a row with a flaw may be none."""
    return {row.topic for row in rows if row.flaw is None}


def _halves(
    rows: Sequence[OutboxRow], at: Sequence[Destination], refused: frozenset[Destination]
) -> tuple[Sequence[OutboxRow], Sequence[OutboxRow]]:
    """Return *rows*, which go to *at*, in two parts: those with a key for a *refused* destination apart,
    after the others, or simply the halves where that divides nothing.

    No key is in both parts of the first kind, since a key has one destination: no order is broken.
    """
    suspects = {
        row.id
        for row, destination in zip(rows, at, strict=True)
        if destination in refused and row.key is not None
    }
    if not suspects or len(suspects) == len(rows):
        middle = len(rows) // 2
        return rows[:middle], rows[middle:]
    return [row for row in rows if row.id not in suspects], [row for row in rows if row.id in suspects]
