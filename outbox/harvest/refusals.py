"""What becomes of rows that Kafka refuses: held with their key for a while, set aside when they have
failed often enough.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
from confluent_kafka import KafkaError

from holdfast.clock import Clock, system_clock
from holdfast.core.outbox.harvest import producer_name
from holdfast.outbox.harvest.destinations import Destinations
from holdfast.outbox.harvest.limits import TopicLimits
from holdfast.outbox.harvest.row_types import ShardEpoch
from holdfast.outbox.harvest.shard import Term
from holdfast.outbox.harvest.worker_thread import Pending
from holdfast.outbox.schema.layouts import OutboxRow
from holdfast.outbox.settings import Poison

logger = logging.getLogger(__name__)

BACKOFF_S = 0.1
LIMIT_HOLDS = 100
"""Topics that may be left out of a take; rows of further ones are held one by one."""
LIMIT_NOTING = 16
TELL_S = 60.0
"""Rows that are set aside are logged this often at WARNING, each of them at INFO."""
HOLD_SHARE = 9.0
"""How much longer a topic that is refused is left alone than it took to deal with it: others keep nine
tenths of their rate.
"""


@dataclass(slots=True)
class Hold:
    """A topic that nothing can be written to: how often it was found so, and when to look again."""

    attempts: int
    until_s: float


class Sorted(NamedTuple):
    """Rows to publish. *whole* tells that no topic among them was refused, so the next rows may be taken ahead."""

    rows: list[OutboxRow]
    whole: bool


class Refusals:
    """The refused rows and topics of one term.

    Rows that failed are remembered by the database, topics only here.
    """

    def __init__(self, term: Term, limits: TopicLimits, clock: Clock = system_clock) -> None:
        self._settings, self._desk, self._signals, self._stats = (
            term.settings,
            term.desk,
            term.signals,
            term.stats,
        )
        self._limits, self._clock = limits, clock
        self._producer = producer_name(term.settings.name, term.shard)
        self._holds: dict[str, Hold] = {}
        self._shard = term.shard
        self._held = ShardEpoch(shard=term.shard, epoch=0)
        self.blocked: dict[tuple[str, bytes | None], int] = {}
        """Topic and key of rows that failed in the batch at hand, and the first such row."""
        self._noting: list[Pending[int]] = []
        self._told: set[str] = set()
        """Topics whose refusal was logged and whose recovery was not yet."""
        self._told_s, self._untold = -TELL_S, 0

    def lead(self) -> ShardEpoch:
        """Take the shard's next epoch in the database; whoever led before can set nothing aside any more."""
        self.blocked.clear()
        self._noting.clear()
        epoch = self._desk.call(self._desk.rows.epoch, self._shard, self._settings.instance)
        self._held = ShardEpoch(shard=self._shard, epoch=epoch)
        return self._held

    def held_topics(self) -> list[str]:
        """Return the topics whose rows need not be taken now."""
        now_s = self._clock.monotonic_s()
        return [topic for topic, hold in self._holds.items() if now_s < hold.until_s]

    def retry_now(self) -> None:
        """Try everything again now."""
        self._holds.clear()
        self._desk.call(self._desk.rows.retry_now)

    def is_blocked(self, row: OutboxRow) -> bool:
        """Return whether a row of its key has failed before it in this batch."""
        return row.key is not None and row.id > self.blocked.get((row.topic, row.key), row.id)

    def unblocked(self, rows: Sequence[OutboxRow]) -> Sequence[OutboxRow]:
        """Return *rows* but those whose key is blocked."""
        return [row for row in rows if not self.is_blocked(row)] if self.blocked else rows

    def failed(self, row: OutboxRow, reason: str) -> None:
        """Hold *row* and its key for a while, or set it aside when it has failed often enough.

        Whatever is asked of the database after this knows that the row is held; `settle` tells whether that
        was noted.
        """
        settings, rows = self._settings, self._desk.rows
        self._stats.last_error = f"row {row.id} for {row.topic}: {reason}"
        wait_s, attempts = (
            min(settings.retry_s * 2 ** min(row.attempts, 30), settings.retry_limit_s),
            row.attempts + 1,
        )
        retry_at_ms = self._clock.now_ms() + int(wait_s * 1000)
        self._noting.append(self._desk.submit(rows.attempt_failed, row, reason, retry_at_ms, held=self._held))
        gives_up = attempts >= settings.attempts or row.flaw is not None
        if gives_up and settings.poison is Poison.PASS:
            self._quarantine(msgspec.structs.replace(row, attempts=attempts), reason)
        elif row.key is not None:
            self.blocked.setdefault((row.topic, row.key), row.id)
        if len(self._noting) >= LIMIT_NOTING:
            self.settle()

    def settle(self) -> None:
        """Return when all failures are noted in the database; raises FencedError when they are a
        successor's business.
        """
        noting, self._noting = self._noting, []
        for each in noting:
            each.result()

    def ended(self) -> None:
        """The batch at hand is over."""
        self.blocked.clear()
        self.settle()

    def sort_out(self, rows: Sequence[OutboxRow], destinations: Destinations) -> Sorted:
        """Hold what is known to be refused before it is tried, and return what to publish."""
        fit = self.without_refused_topics(rows, destinations)
        self._limits.look({row.topic for row in fit})
        return Sorted(self._without_too_large(fit), len(fit) == len(rows))

    def blame(
        self, rows: Sequence[OutboxRow], blamed: Sequence[OutboxRow], why: Callable[[OutboxRow], str]
    ) -> list[OutboxRow]:
        """Note that the rows *blamed* failed, each for its reason, and return which of *rows* to publish now."""
        for row in blamed:
            self.failed_unless_blocked(row, why(row))
        ids = {row.id for row in blamed}
        return self._without_too_large([row for row in rows if row.id not in ids])

    def failed_unless_blocked(self, row: OutboxRow, reason: str) -> None:
        """Note that *row* failed; one that waits for a row of its key has not been tried."""
        if not self.is_blocked(row):
            self.failed(row, reason)

    def _without_too_large(self, rows: Sequence[OutboxRow]) -> list[OutboxRow]:
        """Return *rows* but those that their topics cannot take, which fail without being tried, and those
        that wait for such a one.
        """
        out = []
        for row in rows:
            reason = self._limits.too_large(row) if row.flaw is None else None
            if self.is_blocked(row):
                continue
            if reason is None:
                out.append(row)
            else:
                self._stats.refused += 1
                self.failed(row, reason)
        return out

    def _quarantine(self, row: OutboxRow, reason: str) -> None:
        self.settle()
        self._desk.call(self._desk.rows.set_aside, row, reason, held=self._held)
        self._stats.quarantined += 1
        now_s = self._clock.monotonic_s()
        is_told = now_s - self._told_s >= TELL_S
        others = " (and %(untold)d rows before it)" if is_told and self._untold else ""
        logger.log(
            logging.WARNING if is_told else logging.INFO,
            "outbox %(outbox)s: row %(row)d for %(topic)s set aside after %(attempts)d attempts: %(reason)s"
            + others,
            {
                "outbox": self._producer,
                "row": row.id,
                "topic": row.topic,
                "attempts": row.attempts,
                "reason": reason,
                "untold": self._untold,
            },
        )
        self._told_s, self._untold = (now_s, 0) if is_told else (self._told_s, self._untold + 1)

    def without_refused_topics(
        self, rows: Sequence[OutboxRow], destinations: Destinations
    ) -> list[OutboxRow]:
        """Return *rows* but those of topics that nothing can be written to; these are held, and set aside
        in the end.
        """
        refused: dict[str, KafkaError] = {}
        for topic in {row.topic for row in rows}:
            why = destinations.refusal(topic)
            if why is None:
                self._holds.pop(topic, None)
                if topic in self._told:
                    self._told.discard(topic)
                    logger.warning(
                        "outbox %(outbox)s: topic %(topic)s can be written to again",
                        {"outbox": self._producer, "topic": topic},
                    )
            else:
                refused[topic] = why
        self._stats.holds = set(self._holds)
        if not refused:
            return list(rows)
        for topic, why in refused.items():
            self._hold(topic, why, [row for row in rows if row.topic == topic])
        return [row for row in rows if row.topic not in refused]

    def _hold(self, topic: str, why: KafkaError, rows: Sequence[OutboxRow]) -> None:
        settings, began_s = self._settings, self._clock.monotonic_s()
        reason = f"{why.name()}: {why.str()}"
        self._stats.refused += 1
        self._stats.last_error = f"topic {topic}: {reason}"
        hold = self._holds.get(topic)
        if hold is None and len(self._holds) >= LIMIT_HOLDS:
            for row in rows:
                self.failed(row, reason)
            return
        if hold is None:
            hold = self._holds[topic] = Hold(0, 0.0)
            if topic not in self._told:
                self._told.add(topic)
                logger.warning(
                    "outbox %(outbox)s: rows for topic %(topic)s are held back: %(reason)s",
                    {"outbox": self._producer, "topic": topic, "reason": reason},
                )
        hold.attempts += 1
        wait_s = min(settings.retry_s * 2 ** min(hold.attempts - 1, 30), settings.retry_limit_s)
        if hold.attempts >= settings.attempts and settings.poison is Poison.PASS:
            for row in rows:
                if self._signals.stopping():
                    break
                self._quarantine(msgspec.structs.replace(row, attempts=hold.attempts), reason)
            wait_s = max(BACKOFF_S, (self._clock.monotonic_s() - began_s) * HOLD_SHARE)
        hold.until_s = self._clock.monotonic_s() + wait_s
        self._stats.holds = set(self._holds)
