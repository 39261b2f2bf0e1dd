"""Watches the numbers of a shard's rows: says when they began again, and notes how far they are."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from holdfast.clock import Clock, system_clock
from holdfast.core.outbox.harvest import ProducerProgress
from holdfast.outbox.harvest.shard.shard import Term
from holdfast.outbox.harvest.table.numbering import Noted, new_token
from holdfast.outbox.schema.layouts import OutboxRow

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 10.0


class NumberWatch:
    """The watch of one term; the progress of its producer carries the findings from leader to leader."""

    def __init__(self, term: Term, clock: Clock = system_clock) -> None:
        self._term, self._clock = term, clock
        self._shard_rows, self._rows = term.shard_rows, term.shard_rows.rows
        self._progress = ProducerProgress("")
        self._noted = Noted(outbox="")
        self._look_at_s = 0.0
        self.began_again = False
        """True if this look, or an earlier one of the term, found that they did."""

    def begin(self, progress: ProducerProgress) -> None:
        """Compare what the progress says with what the database does: the token of the outbox, the highest
        number, the next one.
        """
        self._progress, self.began_again = progress, False
        call, shard = self._shard_rows.call, self._term.shard
        self._noted = noted = call(self._rows.noted, shard)
        fields = {
            "outbox": progress.producer,
            "highest": progress.highest,
            "noted": noted.highest,
            "topic": self._term.settings.progress_topic,
        }
        if progress.outbox and progress.outbox != noted.outbox:
            logger.warning(
                "outbox %(outbox)s: %(topic)s was written for another outbox than that of this database: two "
                "databases have the same --name, or the tables were made again or restored. Every row of "
                "this one is published; where two databases are harvested, give each a name of its own",
                fields,
            )
        elif noted.outbox and noted.highest > progress.highest:
            logger.warning(
                "outbox %(outbox)s: the database notes that row %(noted)d was published, and %(topic)s knows "
                "of none above %(highest)d: the topic was made again or restored, or this is another "
                "cluster. Compare what Kafka has with the database (`holdfast audit outbox`)",
                fields,
            )
        progress.outbox = noted.outbox or new_token()
        self._compare()
        self.note()

    def look(self) -> None:
        """Compare the next number now and then, and note how far the rows are."""
        now_s = self._clock.monotonic_s()
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + LOOK_EVERY_S
            self._compare()
            self.note()

    def _compare(self) -> None:
        highest = max(self._progress.highest, self._noted.highest if self._is_noted_here else 0)
        last = self._shard_rows.call(self._rows.numbering.last_if_known) if highest else None
        if last is not None and last < highest:
            self._begins_again(highest, f"the last number given is {last}")

    @property
    def _is_noted_here(self) -> bool:
        return self._noted.outbox == self._progress.outbox

    def found_again(self, rows: Sequence[OutboxRow]) -> None:
        """*rows* have numbers of other rows that were published."""
        if not self._progress.highest and self.began_again:  # which is known
            return
        self._begins_again(
            self._progress.highest,
            f"row {rows[0].id} is another than the one of that number that was published"
            + (f", and so are {len(rows) - 1} others" if len(rows) > 1 else ""),
        )

    def _begins_again(self, highest: int, why: str) -> None:
        self._term.stats.began_again += 1
        said = (
            f"the numbers of the rows began again: row {highest} was published, and {why}. The tables were "
            "restored from a backup, emptied with their numbers, or lost commits in a failover, or another "
            "database stands behind this name. The new rows are published; compare what Kafka has with the "
            "database"
        )
        self._term.stats.last_error = said
        if not self.began_again:
            logger.warning("outbox %(outbox)s: %(said)s", {"outbox": self._progress.producer, "said": said})
        self.began_again = True
        self._progress.highest = max(highest, self._progress.highest)
        self._progress.began_again(self._clock.now_ms())
        self._noted = Noted(outbox="")
        self._shard_rows.call(self._rows.forget_all_attempts)
        self.note()

    def note(self) -> None:
        """Note in the database how far the numbers are, if that is news."""
        progress = self._progress
        noted = Noted(
            outbox=progress.outbox,
            highest=progress.highest,
            again_from=progress.again_from,
            again_ms=progress.again_ms,
        )
        if noted != self._noted:
            self._shard_rows.call(self._rows.note, self._term.shard, noted)
            self._noted = noted
