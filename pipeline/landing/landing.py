"""Landing: a topic's committed records into a Delta table, one row each, exactly once, whatever is killed.

One round reads the table's vector of end offsets, the topic's ends, and writes what lies between as one Delta
commit that carries the new vector. The table is the only checkpoint, so no second one
can be lost or fall out of step.

Two landings of one table cannot both extend the same vector. Each commit names its predecessor as Delta's
transaction id (`txnAppId`), and Delta lets one commit of an id through: of two landings that start from the
same vector, the second is skipped or refused, sees a stranger's commit where its own should be, and stops
with LakeError. A check before the write alone could not do that: both landings would pass it. Both engines
write the same table, and the same chain of commits.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Mapping, Sequence

from holdfast.clock import system_clock
from holdfast.config import Settings
from holdfast.core.engine.fold.skips import OffsetRanges, gaps
from holdfast.errors import HoldfastError, LakeError, LinkTakenError, LostRecordsError
from holdfast.kafka.reading.skip_log import read_skips
from holdfast.pipeline.bronze.commits import (
    HISTORY_LIMIT,
    LastLanding,
    TableCommit,
    check_rows,
    landed_in,
    last_landing,
    sound_chain,
)
from holdfast.pipeline.bronze.digests import joined, told
from holdfast.pipeline.bronze.lake import (
    FIRST_LINK,
    SCHEMA_VERSION,
    Cut,
    Expired,
    Landed,
    check_identity,
    share,
)
from holdfast.pipeline.bronze.landed_notes import LandedNotes
from holdfast.pipeline.landing.local_table import LandedRows, LocalTable
from holdfast.pipeline.landing.options import LandOptions, LandReport
from holdfast.pipeline.topic import Span, TopicLog

logger = logging.getLogger(__name__)

POLL_S = 0.2
ATTEMPTS = 5
"""Expiries may come before a commit so often."""

Ranges = dict[int, list[tuple[int, int]]]


class Landing:
    """One landing of one table: remembers the last link of its chain of commits."""

    def __init__(
        self,
        table: LocalTable,
        settings: Settings,
        log: TopicLog,
        options: LandOptions,
        notes: LandedNotes | None = None,
    ) -> None:
        self._table, self._settings, self._log, self._options = table, settings, log, options
        self._notes = notes
        self.path = table.path
        self._topic_id = log.identity()
        self.report = LandReport(topic=log.topic, path=table.path)
        self._vector: dict[int, int] = {}
        self._begins: dict[int, int] = {}
        self._rows: dict[int, int] | None = {}
        self._lost: Ranges = {}
        self._removed: dict[int, int] = {}
        self._expired: dict[int, Expired] = {}
        self._digests = dict[int, str]()
        self._digested_from = dict[int, int]()
        self._skips = dict[int, OffsetRanges]()
        self._noted = dict[str, Ranges]()
        self._left_out: Ranges = {}
        self._cut: Cut | None = None
        self._link = FIRST_LINK
        self._rebuilt = False
        self._offset_bytes = 0.0
        self._open()

    # -- the table

    def _open(self) -> None:
        if self._options.rebuild:
            self._rebuild()
        else:
            history = self._table.history(HISTORY_LIMIT)
            last = last_landing(self.path, history)
            if last is not None:
                check_identity(self.path, last.landed, self._log.topic, self._topic_id)
                self._go_on_from(last, history[0].version)
                self._compare_notes(last.landed)
        self.report.vector = dict(self._vector)

    def _compare_notes(self, landed: Landed) -> None:
        """Warn if landings had come further than the table shows, and otherwise note again how far they are:
        Kafka forgets the note with time.
        """
        if self._notes is None:
            return
        try:
            ahead = [*self._notes.ahead(self.path, self._table.identity(), landed)]
        except HoldfastError as error:
            logger.warning(
                "how far %(path)s had come by Kafka's note is not known: %(cause)s",
                {"path": self.path, "cause": str(error)},
            )
            return
        for fault in ahead:
            logger.warning("%(fault)s", {"fault": fault.told})
        if not ahead:
            self._notes.note(self.path, self._table.identity(), landed)

    def _go_on_from(self, last: LastLanding, version: int) -> None:
        counted = self._table.counted(version)
        check_rows(self.path, last, counted)
        self._take(last.landed)
        self._rows = _all_told(counted)

    def _pass_upkeep(self) -> bool:
        """Continue from the present table, if no landing followed the commit that this one continued from,
        but only expiries or changes of the table's properties; return whether that was so.
        """
        history = self._table.history(HISTORY_LIMIT)
        chain = sound_chain(self.path, history)
        links = [each.landed.batch for each in chain]
        if self._link not in links or not all(
            each.landed.expires for each in chain[: links.index(self._link)]
        ):
            return False
        self._go_on_from(chain[0], history[0].version)
        return True

    def _take(self, landed: Landed) -> None:
        self._vector, self._begins = dict(landed.end), dict(landed.begins)
        self._take_notes(landed)
        self._link, self._rebuilt = landed.batch, False
        self._take_digests(landed)

    def _take_digests(self, landed: Landed) -> None:
        """Continue the digests of a landing; begin them where it ends, if it has none."""
        if landed.digests is None or landed.added_digests is None:
            self._digests, self._digested_from = {}, dict(landed.end)
            return
        self._digests, self._digested_from = (
            joined(landed.digests, landed.added_digests),
            dict(landed.digested_from),
        )

    def _take_notes(self, landed: Landed) -> None:
        self._lost, self._removed = dict(landed.lost), dict(landed.removed)
        self._expired = dict(landed.expired)
        self._noted, self._left_out, self._cut = dict(landed.skipped), dict(landed.left_out), landed.cut

    def _rebuild(self) -> None:
        """Read the vector from the rows, and accepted losses and notes from the newest landing that there
        was.

        Refuses rows that are doubled, since a further landing would not mend them.
        """
        history = self._table.history(HISTORY_LIMIT)
        rows, found = dict[int, int](), dict[int, int]()
        for each in self._table.contents():
            if each.topic != self._log.topic:
                raise LakeError(
                    f"{self.path} holds rows of topic {each.topic}, not only of {self._log.topic}; remove"
                    " them first"
                )
            if each.rows != each.offsets:
                raise LakeError(
                    f"{self.path}: {each.rows - each.offsets} rows of partition {each.partition} are doubled;"
                    " put the table back to the version before they came (Delta's history shows it, RESTORE"
                    " does it), then rebuild"
                )
            self._vector[each.partition], self._begins[each.partition] = each.last + 1, each.first
            rows[each.partition], found[each.partition] = each.rows, each.digest
        self._rows = rows
        self._keep_notes(history, rows)
        self._digests, self._digested_from = told(found), {}
        self._link, self._rebuilt = f"version-{history[0].version}", True

    def _keep_notes(self, history: Sequence[TableCommit], rows: Mapping[int, int]) -> None:
        """Keep the notes from before a rebuild: losses, skips, the partitions' first offsets; and count the
        rows missing since.
        """
        found = ((commit, _readable(commit)) for commit in history)
        commit, landed = next(((one, told) for one, told in found if told is not None), (None, None))
        if commit is None or landed is None:
            return
        check_identity(self.path, landed, self._log.topic, self._topic_id)
        self._take_notes(landed)
        for partition, begin in landed.begins.items():
            self._begins[partition] = begin
            reached = max(self._vector.get(partition, begin), begin)
            ranges = sorted([*landed.lost.get(partition, []), *landed.left_out.get(partition, [])])
            self._vector[partition] = next((b for a, b in ranges if a <= reached < b), reached)
        try:
            before = self._table.below(commit.version, self._vector)
        except LakeError:  # what it had was vacuumed
            return
        for partition, count in before.items():
            if (missing := count - rows.get(partition, 0)) > 0:
                self._removed[partition] = self._removed.get(partition, 0) + missing

    # -- one round

    def ends(self) -> dict[int, int]:
        """Return how far the topic can be landed now, by partition."""
        self.report.ends = self._log.ends(self._log.partitions())
        return dict(self.report.ends)

    def wait_for_more(self, stop: threading.Event, started_s: float) -> dict[int, int]:
        """Return the topic's ends once they are past the vector, and the time between two commits is over or
        enough bytes wait; or on a stop.
        """
        while not stop.is_set():
            left_s = self._options.every_s - (system_clock.monotonic_s() - started_s)
            if left_s > 0 and not self._may_be_full():
                stop.wait(left_s)
                continue
            ends = self.ends()
            if self.is_behind(ends) and (left_s <= 0 or self._is_full()):
                return ends
            stop.wait(POLL_S)
        return dict(self._vector)

    def _may_be_full(self) -> bool:
        return self._options.every_bytes is not None and self._offset_bytes > 0

    def _is_full(self) -> bool:
        return sum(self.report.lag.values()) * self._offset_bytes >= (self._options.every_bytes or 0)

    def is_behind(self, ends: Mapping[int, int]) -> bool:
        """Return whether there is more up to *ends* than the table holds."""
        return any(end > self._vector.get(partition, 0) for partition, end in ends.items())

    def step(self, ends: dict[int, int], cut: Cut | None = None) -> Landed | None:
        """Write one commit on the way to *ends*, the last of them with *cut*; None when the table has reached
        them.
        """
        for _ in range(ATTEMPTS - 1):
            try:
                return self._step(ends, cut)
            except LinkTakenError:
                if not self._pass_upkeep():
                    raise
        return self._step(ends, cut)

    def _step(self, ends: dict[int, int], cut: Cut | None) -> Landed | None:
        self._skips = read_skips(self._settings).of_topic(self._log.topic)
        start, lost = self._start(ends)
        target = share(start, ends, self._options.max_records)
        own = {partition: list(ranges) for partition, ranges in self._skips.items()}
        is_there = all(target[partition] <= self._vector.get(partition, 0) for partition in target)
        told = cut if cut is not None and target == ends else self._cut
        if (
            is_there
            and not self._rebuilt
            and own == self._noted.get(self._settings.app, {})
            and told == self._cut
        ):
            return None
        landed = self._commit(start, target, own, lost, told)
        spans = {partition: Span(first=start[partition], end=target[partition]) for partition in start}
        written = self._table.write(landed, self._link, spans, self._skips)
        self._note(written, start, target, lost)
        return written.landed

    def _commit(
        self,
        start: dict[int, int],
        target: dict[int, int],
        own: Ranges,
        lost: Ranges,
        cut: Cut | None,
    ) -> Landed:
        return Landed(
            topic=self._log.topic,
            topic_id=self._topic_id,
            batch=uuid.uuid4().hex,
            start=dict(self._vector),
            end=self._vector | target,
            begins={partition: self._begins.get(partition, start[partition]) for partition in target},
            lost={
                partition: [*self._lost.get(partition, []), *lost.get(partition, [])]
                for partition in {*self._lost, *lost}
            },
            rebuilt=self._rebuilt,
            skipped={**self._noted, self._settings.app: own} if own else self._noted,
            left_out={
                partition: [
                    *self._left_out.get(partition, []),
                    *gaps(self._skips.get(partition, ()), start[partition], target[partition]),
                ]
                for partition in target
            },
            cut=cut,
            rows=self._rows,
            removed=self._removed,
            columns=SCHEMA_VERSION,
            digests=self._digests,
            digested_from=self._digested_from,
            expired=self._expired,
        )

    def _note(self, written: LandedRows, start: dict[int, int], target: dict[int, int], lost: Ranges) -> None:
        offsets, report = sum(target[partition] - start[partition] for partition in target), self.report
        if offsets:
            self._offset_bytes = written.stored_bytes / offsets
        if self._rows is not None:
            for partition, rows in written.added.items():
                self._rows[partition] = self._rows.get(partition, 0) + rows
        report.commits += 1
        report.offsets += offsets
        report.rows += sum(written.added.values())
        report.vector = dict(written.landed.end)
        report.committed_ms = system_clock.now_ms()
        for partition, ranges in lost.items():
            report.lost.setdefault(partition, []).extend(ranges)
        self._take(written.landed)
        if self._notes is not None:
            self._notes.note(self.path, self._table.identity(), written.landed)

    def _start(self, ends: dict[int, int]) -> tuple[dict[int, int], Ranges]:
        """Return the offset from which each partition continues, and the ranges lost before that."""
        firsts = self._log.firsts(sorted(ends))
        start: dict[int, int] = {}
        lost: Ranges = {}
        for partition, end in ends.items():
            first, reached = firsts[partition], self._vector.get(partition)
            if reached is None:
                # A new partition begins at 0; when the topic itself is new to the lake, it begins with what
                # it still holds.
                reached = first if not self._vector else 0
            if reached > end:
                raise LakeError(
                    f"{self.path} holds partition {partition} up to offset {reached}, but topic"
                    f" {self._log.topic} ends at {end}: it lost records that were landed (an unclean"
                    " election?), or is not the topic that was landed"
                )
            if reached < first:
                if not self._options.accept_loss:
                    raise LostRecordsError(
                        f"{self._log.topic} partition {partition}: offsets {reached} to {first - 1} were"
                        " deleted before they were landed (retention). Raise retention.ms, restore them if"
                        " you can, or go on with --accept-loss, which notes the hole"
                    )
                lost[partition] = [(reached, first)]
                reached = first
            start[partition] = reached
        return start, lost


def _readable(commit: TableCommit) -> Landed | None:
    """Return a landing's metadata; None for a commit that has none, or that was changed by hand."""
    try:
        return landed_in(commit)
    except LakeError:
        return None


def _all_told(counted: Mapping[int, int | None]) -> dict[int, int] | None:
    """Return how many rows each partition has, None if one is unknown."""
    rows = {partition: each for partition, each in counted.items() if each is not None}
    return rows if len(rows) == len(counted) else None
