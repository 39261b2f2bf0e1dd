"""Fences, folds and writes one partition for its owner."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from msgspec.structs import replace as replace_fields

from holdfast.core.engine.choices import Choice, decode_choice, encode_choice
from holdfast.core.engine.commit_notes import TableSent, shortened
from holdfast.core.engine.declared.processor import Emit
from holdfast.core.engine.fold.folding import Changes, Folder
from holdfast.core.engine.fold.ordering import MergeOrder
from holdfast.core.engine.fold.stepping import WATERMARKS
from holdfast.core.engine.merge.global_copies import WorkerGlobals
from holdfast.core.engine.merge.handing_over import barrier_at
from holdfast.core.engine.origins import StepReached
from holdfast.core.engine.positions import counted, encode_position
from holdfast.core.engine.state.codec import APPLIED, NOTHING_APPLIED
from holdfast.core.engine.state.evolution import ROW_TYPES, decode_row_types, encode_row_types, evolved
from holdfast.core.engine.state.handover import HANDOVER, HANDOVER_FORMAT, Handover, encode_handover
from holdfast.core.engine.state.lost_heads import LOST_HEADS, LostHeads, encode_lost_heads
from holdfast.core.engine.state.passing_refusals import REFUSALS, refusal_note
from holdfast.core.engine.state.recovery import RECOVERY, Recovery, encode_recovery
from holdfast.core.engine.state.source_ids import SOURCE_IDS, SourceIds, decode_source_ids, encode_source_ids
from holdfast.core.streams.windowing.origins import origins_of
from holdfast.core.streams.windowing.rows import stream_key
from holdfast.errors import ChangelogError, ChoicesError, ConfigError, OutOfRangeError, TopicError
from holdfast.tables.changelog import ChangelogPart, ChangelogWriter
from holdfast.tables.held_origins import HeldOrigin, HeldOrigins
from holdfast.tables.marks import StepMarks
from holdfast.tables.state import CommittedState
from holdfast.tables.store import WRITE_ROWS

logger = logging.getLogger(__name__)


class PartitionOwner:
    """Fences older owners of a partition, folds it, and writes its transactions.

    Blocking methods (`activate`, `keep`) run in threads, one at a time for each partition.
    """

    def __init__(self, state: CommittedState) -> None:
        self._state = state
        self._writer: ChangelogWriter | None = None
        self._lost = False
        self._folder: Folder[Any] | None = None
        self._held_origins = HeldOrigins()
        self.sources: SourceIds | None = None
        """The ids that the sources have now, where they are known; set before `activate`."""
        self.out: Mapping[str, str] = {}
        """The ids that the topics of results and of refused records have now, by name."""
        self._due: dict[bytes, bytes] = {}
        """Notes, by key, that the next transaction has to write."""
        self.recorded: list[bytes] = []
        """Choices of several sources that are written and not yet obeyed: from `marker.choices` on."""
        self._handover: Handover | None = None
        self._recovered: Recovery | None = None
        """The note of a recovery, moved past its barrier."""
        self._barrier: Choice | None = None
        """The choice of a handover, which the next transaction has to record."""
        self.views: WorkerGlobals | None = None
        """The global tables that its folds read, if any; set before `activate`."""
        self.marks: StepMarks | None = None
        """Of a processor that reports origins: its watermark as the partitions of its topics know it."""
        self._reached: tuple[tuple[Mapping[str, int], frozenset[int]], StepReached | None] | None = None
        """The progress last computed for `reached_with`, and the offsets and sources that it belongs to."""

    @property
    def fenced_in(self) -> bool:
        """Return whether this worker holds the newest epoch, as far as it knows."""
        return self._writer is not None and not self._lost

    async def fence(self, timeout_s: float, *, by_common_id: bool = False) -> None:
        """Become the only owner whose writes the broker accepts; with *by_common_id* also shut out a worker
        of an older release, which writes every version by one id. It must not be in use by an earlier
        version.

        Call it before the restore, else an old owner could still write, or a bootstrap's transaction be open.
        """
        common_id = (
            self._state.processor.common_id(self._state.environment.app, self._state.partition)
            if by_common_id
            else None
        )
        older = [] if common_id is None else [self._writer_by(common_id)]
        if self._state.processor.hands_over and not self._state.has_begun:
            older.append(self.builder())
        for each in older:
            try:
                await each.fence(timeout_s)
            finally:
                await each.close()
        writer = self._writer_by(
            self._state.processor.transactional_id(self._state.environment.app, self._state.partition)
        )
        self._writer, self._lost = writer, True
        await writer.fence(timeout_s)
        self._lost = False

    def builder(self) -> ChangelogWriter:
        """Return the writer that a bootstrap has; fencing it shuts the previous owner out."""
        return self._writer_by(
            self._state.processor.builder_id(self._state.environment.app, self._state.partition)
        )

    async def begin(self, builder: ChangelogWriter, timeout_s: float) -> None:
        """Write that a worker has begun it, which a bootstrap will find; follow with a restore. *builder* is
        fenced, and the changelog was empty after that.
        """
        marker = self._state.store.marker
        note = encode_handover(Handover(HANDOVER_FORMAT, marker.applied, marker.choices))
        last = ChangelogPart([(HANDOVER, note), (APPLIED, encode_position(marker))], [])
        await builder.write_parts(lambda: (last,), timeout_s)

    @property
    def is_to_begin(self) -> bool:
        """Return whether a worker has to begin it before it folds, since a bootstrap may still write its
        first state while workers of earlier versions run.
        """
        return (
            self._state.processor.hands_over
            and not self._state.processor.migrate
            and not self._state.has_begun
        )

    def _writer_by(self, transactional_id: str) -> ChangelogWriter:
        producer = self._state.environment.producer(transactional_id)
        return ChangelogWriter(producer, changelog=self._state.changelog, partition=self._state.partition)

    def _check_migrated(self) -> None:
        """Raise ConfigError for an empty table that is declared to begin with an earlier version's rows."""
        processor = self._state.processor
        if not processor.migrate or self._state.has_begun:
            return
        raise ConfigError(
            f"table {self._state} is empty, and migrate= says that it begins"
            f" with rows of an earlier version: run `holdfast bootstrap {processor.name} --version"
            f" {processor.version} --from version` first, or leave out migrate="
        )

    def activate(self) -> None:
        """Start folding from the restored position; ConfigError if the row type cannot read the stored rows
        or a migration is due, TopicError where a source is not the log that was folded.
        """
        self._due = {}
        self._compare_sources()
        self._compare_types()
        self._check_migrated()
        marker, cache_rows = self._state.store.marker, self._state.environment.cache_rows
        if self._state.processor.told_topics:
            self.marks = StepMarks(self._state.processor, self._state.partition)
        handover = (
            (self._handover or self._state.store.handover) if self._state.processor.hands_over else None
        )
        recovery = self._recovered or self._state.store.recovery
        self._folder = Folder(
            self._state.processor,
            self._state.store,
            marker=marker,
            cache_rows=cache_rows,
            views=self.views,
            handover=handover,
            recovery=recovery,
            partition=self._state.partition,
        )

    def _compare_sources(self) -> None:
        """Make the next transaction note the ids of the sources, unless the same are noted already."""
        now, noted = self.sources, decode_source_ids(self._state.store.get(SOURCE_IDS))
        if now is None or now == noted:
            return
        folded = [topic for topic, offset in self._state.offsets.items() if offset != NOTHING_APPLIED]
        if noted is not None and (other := noted.other_logs(now, self._obeyed())):
            raise ChoicesError(
                f"topic {other[0]} was deleted and made again (its id was {noted.topics[other[0]]}, is"
                f" {now.topics[other[0]]}), and {self._state} was folded"
                " by what the old one held: run `holdfast reset`, or give the processor another name"
            )
        if noted is not None and (other := noted.other_logs(now, folded)):
            topic, processor = other[0], self._state.processor
            raise TopicError(
                f"topic {topic} was deleted and made again (its id was {noted.topics[topic]}, is"
                f" {now.topics[topic]}), and {self._state} has folded the old one up to"
                f" offset {self._state.offsets[topic]}: write version={processor.version + 1}, which"
                " builds the table from the new log, or run `holdfast reset`"
            )
        self._due[SOURCE_IDS] = encode_source_ids(now)

    def _obeyed(self) -> list[str]:
        """Return the topics besides the sources that its state is a function of: that of its choices, once it
        has obeyed one, and those of globals that it has looked into.
        """
        position = self._state.store.marker
        if not position.choices:
            return []
        seen = [
            table.topic
            for table, vector in zip(self._state.processor.reads, position.globals, strict=False)
            if any(offset != NOTHING_APPLIED for offset in vector)
        ]
        return [*self._state.choices_topics, *seen]

    def _compare_types(self) -> None:
        """Make the next transaction note the types of rows, unless the same are noted already."""
        if self._state.processor.stateless:
            return
        is_empty = counted(self._state.store.marker.applied) == NOTHING_APPLIED
        noted = None if is_empty else decode_row_types(self._state.store.get(ROW_TYPES))
        types = evolved(noted, self._state.processor)
        if types == noted:
            return
        self._due[ROW_TYPES] = encode_row_types(types)
        if noted is not None:
            logger.warning(
                "%(table)s partition %(partition)d: the row type has changed; rows that were written before"
                " keep their bytes, so `verify` reports a difference until the table is rebuilt",
                {"table": self._state.processor.table, "partition": self._state.partition},
            )

    @property
    def folder(self) -> Folder[Any]:
        assert self._folder is not None, "activate first"
        return self._folder

    @property
    def late(self) -> tuple[int, int] | None:
        """Return the numbers of records that windows or a join have found late: by their own origin, and only
        because others continued while it held nothing back; None for other tables.
        """
        folder, state = self._folder, self._state
        if folder is None or not state.processor.passing:
            return None
        row = folder.rows.get(stream_key(state.partition))
        if row is None:
            return 0, 0
        after_idle: int | None = getattr(row, "late_after_idle", None)
        if after_idle is None:
            after_idle = origins_of(folder.rows, state.partition).late_after_idle
        return row.late - after_idle, after_idle

    @property
    def held_back(self) -> list[HeldOrigin]:
        """Return the origins that its windows or join wait for: as of the transaction that is folded."""
        state, folder = self._state, self._folder
        held = [] if folder is None else state.processor.held_back(folder.rows, state.partition)
        return self._held_origins.look(held, state.processor.topics)

    def look_at_origins(self) -> None:
        """Note which origins its windows or join wait for, unless that was noted a moment ago."""
        if self._held_origins.is_due:
            self.held_back  # noqa: B018

    async def commit(self, changes: Changes, extra: Sequence[Emit], timeout_s: float) -> int:
        """Make one transaction durable in Kafka, and return the changelog's next offset: `keep` is to follow.

        Choices are written in it, so that they are known exactly when the records folded after them are.

        Raises FencedError, BrokerError, ChangelogError.
        """
        assert self._writer is not None, "fence first"
        if changes.choices or self._barrier is not None:
            extra = [*extra, *self._choices(changes)]
        marks = self._marks_of(changes)
        changelog_next = await self._writer.write(changes, extra, timeout_s, marks)
        if marks is not None:
            marks.committed()
        if changelog_next < self._state.changelog_next:
            # Offsets only grow, so this is another topic of the same name. It has this transaction and not
            # the state before it, which no reader could detect: take back the marker that says otherwise.
            await self._writer.disown(timeout_s)
            raise ChangelogError(self._state.made_again())
        self._barrier = None
        return changelog_next

    def _marks_of(self, changes: Changes) -> StepMarks | None:
        marks, folder = self.marks, self._folder
        if marks is None or changes.reached is None or folder is None:
            return None
        marks.at_end = frozenset()
        marks.begin(changes.reached)
        return marks

    async def mark_idle(self, at_end: frozenset[int], timeout_s: float) -> None:
        """Write to all partitions of its topics how far it has come where the sources *at_end* stay at the
        ends of their logs: with all of them, that it holds no stream time back.

        Raises FencedError, BrokerError, UndeliverableError. Not while a transaction is under way.
        """
        assert self._writer is not None, "fence first"
        marks, reached = self.marks, self.reached_with(at_end)
        assert marks is not None, "of a processor that tells origins"
        marks.at_end = at_end
        if reached is not None and not marks.has_told(reached):
            marks.begin(reached)
            await self._writer.write_parts(lambda: (ChangelogPart((), (), marks),), timeout_s)
            marks.committed()

    def reached_with(self, at_end: frozenset[int]) -> StepReached | None:
        """Return the progress of the partition if the sources *at_end* hold nothing back; None for a step
        without event time.
        """
        clock = self.folder.clock
        if clock is not None:
            return clock.reached_with(at_end) if clock.speaks else None
        key = self._state.offsets, at_end
        if self._reached is None or self._reached[0] != key:
            state = self._state
            self._reached = key, state.processor.reached_in(self.folder.rows, state.partition, at_end)
        return self._reached[1]

    def _choices(self, changes: Changes) -> Iterator[Emit]:
        (topic,) = self._state.choices_topics
        for choice in (*([] if self._barrier is None else [self._barrier]), *changes.choices):
            yield Emit(topic, value=encode_choice(choice), partition=self._state.partition)

    def keep(self, changes: Changes, changelog_next: int) -> None:
        """Apply here what Kafka has committed. Blocks; raises StoreError."""
        self._state.store.write(changes.puts, changes.marker, changelog_next)
        if changes.puts and changes.puts[-1][0] in self._due:
            self._due = {}

    def noted(self, changes: Changes) -> Changes:
        """Return *changes* with the notes that are due, before `commit` and `keep`: of the heads that were
        lost, where they bring the first record of such a source, of the handover, where it was just learned,
        of records that are refused for now, and of source ids and row types that are new here.

        Raises OutOfRangeError when records between the state and these were deleted.
        """
        self._require_no_hole()
        notes = [*self._note_of_heads(changes), *self._note_of_handover(), *self._notes_of_refusals(changes)]
        notes += self._due.items()  # the last: see `keep`
        return replace(changes, puts=[*changes.puts, *notes]) if notes else changes

    def _notes_of_refusals(self, changes: Changes) -> Iterator[tuple[bytes, bytes]]:
        own = self._state.processor.topics[0]
        return (refusal_note(each.topic or own, each.offset) for each in changes.refused if each.passing)

    def _note_of_handover(self) -> Iterator[tuple[bytes, bytes]]:
        if self._handover is not None and self._handover != self._state.store.handover:
            yield HANDOVER, encode_handover(self._handover)

    @property
    def may_learn_handover(self) -> bool:
        """Return whether up to where this version is silent is not fixed yet: it is, once it has come past
        that.
        """
        found, marker = self._state.store.handover, self._state.store.marker
        return found is None or found.covers(marker.applied, marker.choices)

    def learn_handover(self, stood: Handover, by_event: int = 0) -> None:
        """Take in the position of the versions before, before `activate` and after the reading of choices:
        its next transaction records the position up to which this one is silent. *by_event* are the sources
        by whose event times they merged since the last choice. Raises ChoicesError where choices are missing.
        """
        position = self._state.store.marker
        recorded = [*map(decode_choice, self.recorded)]
        stood, self._barrier = barrier_at(stood, position, recorded, by_event)
        found = self._state.store.handover
        if found is not None and found.covers(stood.applied, stood.choices):
            self._barrier = None
            return
        self._handover = stood
        if self._barrier is not None:
            self.recorded.append(encode_choice(self._barrier))

    def lost_before(self) -> tuple[int, ...] | None:
        """Return the last offsets of a state that this worker had, whose changelog was another topic; None
        without one, or where its sources were other logs.
        """
        if (before := self._state.store.before) is None:
            return None
        folded, now = decode_source_ids(before.sources), self.sources
        found = self._state.positions.decode(before.marker).applied
        if counted(found) == NOTHING_APPLIED:
            return None
        if now is not None and folded is not None and folded.other_logs(now, self._state.processor.topics):
            return None
        return found

    def sent(self, topic: str) -> TableSent:
        """Return up to where it has folded a source and sent its results, in this state or one before."""
        at, marker, recovery = (
            self._state.processor.topics.index(topic),
            self._state.store.marker,
            self._state.store.recovery,
        )
        applied, choices = marker.applied[at], marker.choices
        if recovery is not None:
            applied, choices = max(applied, recovery.applied[at]), max(choices, recovery.choices)
        return TableSent(applied, choices, shortened(self._state.changelog_id))

    async def begin_again(
        self,
        recovery: Recovery,
        timeout_s: float,
        *,
        emptied: bool,
        notes: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        """Write up to where its results were sent before; *emptied*, with the position of the beginning, and
        a tombstone for all that its changelog still holds. Follow with a restore. It is fenced and restored.
        """
        assert self._writer is not None, "fence first"
        marker = encode_position(self._state.positions.start if emptied else self._state.store.marker)
        last = ChangelogPart([*notes, (RECOVERY, encode_recovery(recovery)), (APPLIED, marker)], [])

        def parts() -> Iterator[ChangelogPart]:
            keys = self._left() if emptied else iter(())
            while some := [(key, None) for key in islice(keys, WRITE_ROWS)]:
                yield ChangelogPart(some, [])
            yield last

        await self._writer.write_parts(parts, timeout_s)

    def _left(self) -> Iterator[bytes]:
        """Yield every key that the changelog holds, but for the position."""
        store = self._state.store
        yield from (
            key
            for key in (HANDOVER, LOST_HEADS, ROW_TYPES, SOURCE_IDS, WATERMARKS)
            if store.get(key) is not None
        )
        yield from (key for key, _ in store.scan(REFUSALS))
        yield from (key for key, _ in store.everything())

    def learn_recovery(self) -> None:
        """Have the choice recorded at which its results were sent before, with several sources, until it has
        come past that; before `activate` and after the reading of choices.
        """
        recovery, position = self._state.store.recovery, self._state.store.marker
        if recovery is None:
            return
        if not recovery.covers(position.applied, position.choices) or set(recovery.applied) == {
            NOTHING_APPLIED
        }:
            return
        stood = Handover(HANDOVER_FORMAT, recovery.applied, recovery.choices)
        if self._barrier is not None:
            return  # that of the handover, whose position all versions come through, comes first
        recorded = [*map(decode_choice, self.recorded)]
        moved, barrier = barrier_at(stood, position, recorded, MergeOrder(self._state.processor).by_event)
        self._recovered = replace_fields(recovery, applied=moved.applied, choices=moved.choices)
        if barrier is not None:
            self._barrier = barrier
            self.recorded.append(encode_choice(barrier))

    def _note_of_heads(self, changes: Changes) -> Iterator[tuple[bytes, bytes]]:
        before, now = self._state.store.marker.applied, changes.marker.applied
        if NOTHING_APPLIED not in before or before == now:
            return
        begun = [
            topic
            for topic, was, offset in zip(self._state.processor.topics, before, now, strict=True)
            if was != offset
        ]
        lost = {topic: head for topic, head in self._state.heads_before(before).items() if topic in begun}
        if in_lake := self._state.environment.landed.intersection(lost):
            raise OutOfRangeError(self._begun_without(min(in_lake), lost))
        if lost:
            yield LOST_HEADS, encode_lost_heads({**self._state.store.lost_heads, **lost})

    def _begun_without(self, topic: str, lost: LostHeads) -> str:
        name, version = self._state.processor.name, self._state.processor.version
        return (
            f"{topic} partition {self._state.partition} begins at offset {lost[topic]}, for it is declared"
            f" with retention landed, and {self._state.processor.table} has nothing of what is in the"
            f" lake: run `holdfast bootstrap {name} --version {version} --lake DIR` first. If no lake has it,"
            ' declare retention="forever" until this table has begun; it is partial then'
        )

    def _require_no_hole(self) -> None:
        """Raise OutOfRangeError when a source was read from its beginning, for another table, and that lies
        after the next record of this one.
        """
        for place, offset in zip(self._state.places, self._state.store.marker.applied, strict=True):
            head = self._state.head_of(place)
            if NOTHING_APPLIED < offset < head - 1:
                raise OutOfRangeError(
                    f"{place[0]} partition {place[1]} begins at offset {head}, and"
                    f" {self._state.processor.table} has folded it up to {offset}:"
                    " records in between were deleted and are lost to it. Raise its version, or delete its"
                    " changelog and stores, to fold what is left"
                )

    async def close_writer(self) -> None:
        """Close the connections that transactions use; call it before the partition is given up."""
        writer, self._writer = self._writer, None
        if writer is not None:
            await writer.close()

    def release(self) -> None:
        """Stop folding and forget the fold's state, not the committed one. The writer is closed before."""
        assert self._writer is None, "close the writer first"
        self._folder, self.recorded, self.marks = None, [], None
        self._handover = self._recovered = self._barrier = None  # another owner may come past them

    def lose(self) -> None:
        """Stop folding and writing: a newer owner exists."""
        self._folder, self._lost, self.marks = None, True, None

    @property
    def is_folding(self) -> bool:
        return self._folder is not None
