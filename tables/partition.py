"""One partition of one table on this worker: its store, its folder, its writer, and the readers waiting
for a position.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from confluent_kafka import Message
from msgspec.structs import replace as replace_fields
from rocksdict import WriteOptions

from holdfast.clock import system_clock
from holdfast.core.engine.commit_notes import TableSent, shortened
from holdfast.core.engine.declared.processor import Emit, Processor
from holdfast.core.engine.fold.folding import Changes, Folder
from holdfast.core.engine.fold.stepping import StepReached
from holdfast.core.engine.merge.choices import (
    Choice,
    VectorMarker,
    decode_choice,
    encode_choice,
    event_ms_of,
    globals_of,
)
from holdfast.core.engine.merge.global_copies import WorkerGlobals
from holdfast.core.engine.merge.handing_over import barrier_at
from holdfast.core.engine.merge.merging_folder import MergedChanges, MergingFolder
from holdfast.core.engine.merge.positions import (
    Position,
    choices_of,
    counted,
    earlier_format,
    offsets_of,
    position_format,
)
from holdfast.core.engine.state.base import BASE
from holdfast.core.engine.state.codec import APPLIED, NOTHING_APPLIED, key_in_table
from holdfast.core.engine.state.evolution import ROW_TYPES, decode_row_types, encode_row_types, evolved
from holdfast.core.engine.state.handover import HANDOVER, HANDOVER_FORMAT, Handover, encode_handover
from holdfast.core.engine.state.lost_heads import LOST_HEADS, LostHeads, encode_lost_heads
from holdfast.core.engine.state.passing_refusals import REFUSALS, refusal_note
from holdfast.core.engine.state.recovery import RECOVERY, Recovery, encode_recovery
from holdfast.core.engine.state.source_ids import SOURCE_IDS, SourceIds, decode_source_ids, encode_source_ids
from holdfast.core.kafka.topic_partition import Place
from holdfast.core.streams.windowing.origins import RowsOfOrigins
from holdfast.errors import ChangelogError, ChoicesError, ConfigError, OutOfRangeError, TopicError
from holdfast.kafka.transactions.transactional_producer import ProducerFactory
from holdfast.tables.changelog import ChangelogPart, ChangelogWriter
from holdfast.tables.marks import StepMarks
from holdfast.tables.pins import PinnedState
from holdfast.tables.rocks import Budget
from holdfast.tables.store import WRITE_ROWS, PartitionStore, StoreStamp

logger = logging.getLogger(__name__)

UNKNOWN = -1
AnyFolder: TypeAlias = Folder[Any] | MergingFolder[Any]
AnyChanges: TypeAlias = Changes | MergedChanges
Reaching: TypeAlias = int | Mapping[str, int]
"""A source offset, or one for each of some sources."""
END_GOOD_MS = 5_000
"""How long a standby may say how many records it is behind an end it asked for: the end moves on."""
HELD_ROWS = 4_000
"""More rows than these of a transaction whose end has not come are not held in memory: they wait in the
store, unseen.
"""


class PartitionRole(StrEnum):
    """What this worker is for a partition."""

    ACTIVE = "active"
    STANDBY = "standby"
    EARLIER = "earlier"
    """It keeps readable what an earlier version left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What every partition of a worker shares."""

    app: str
    data_dir: Path
    producer: ProducerFactory
    budget: Budget
    cluster_id: str
    changelog_ids: Mapping[str, str]
    cache_rows: int
    tombstones_kept_ms: int
    landed: frozenset[str] = frozenset()
    """Topics that keep only what is not landed yet: the head of one is in a lake."""


class PositionListener(Protocol):
    """Tells the event loop, from any thread, that a partition's position moved."""

    def __call__(self, part: Partition) -> None: ...


class Partition:
    """State of one source partition of one processor.

    Blocking methods (`open` by construction, `fence`, `write`, `apply`, `close`) run in threads, one at a
    time per partition. Reads show committed state only and are safe from any thread. `serving` tells whether
    reads may be answered; an owner's only while *still_ours* says so, since after a pause of the process
    nothing else tells that another has taken over. An *earlier* one is of a version that nobody folds any
    more: it is restored and read, and answers as an owner does.
    """

    def __init__(
        self,
        processor: Processor[Any, Any],
        partition: int,
        environment: Environment,
        notify: PositionListener,
        still_ours: Callable[[], bool],
        *,
        earlier: bool = False,
    ) -> None:
        self.processor, self.partition, self._env, self._notify = processor, partition, environment, notify
        self._still_ours = still_ours
        self.changelog = processor.changelog(environment.app)
        stamp = StoreStamp(
            app=environment.app,
            processor=processor.name,
            version=processor.version,
            partition=partition,
            cluster_id=environment.cluster_id,
            changelog_id=environment.changelog_ids.get(self.changelog, ""),
        )
        self._positions = earlier_format(processor) if earlier else position_format(processor)
        self._store = PartitionStore(
            environment.data_dir / processor.table / str(partition),
            stamp,
            environment.budget,
            self._positions,
        )
        self._store.on_rotten = self._rotten
        self.on_rotten: Callable[[Partition, str], None] = lambda part, cause: None
        """Called from whichever thread finds out that the store is not to be believed; nothing is answered
        from it any more.
        """
        self._writer: ChangelogWriter | None = None
        self.sources: SourceIds | None = None
        """The ids that the sources have now, where they were asked for; set before `activate`."""
        self.out: Mapping[str, str] = {}
        """The ids that the topics have now that results and refused records are sent to, by name."""
        self._due: dict[bytes, bytes] = {}
        """Notes of what is new here, by key, which the next transaction has to write."""
        self._lost = False
        self._folder: AnyFolder | None = None
        self.recorded: list[bytes] = []
        """Choices that are written and not yet obeyed, those of several sources: from `marker.choices` on."""
        self._handover: Handover | None = None
        self._recovered: Recovery | None = None
        """The note of its recovery, moved behind the barrier of that."""
        self._barrier: Choice | None = None
        """The choice of the handover, which the next transaction has to record."""
        self.head_of: Callable[[Place], int] = lambda place: 0
        """Tells where the log of a source began that is read from its beginning and has lost its head; 0 for
        all others.
        """
        self.views: WorkerGlobals | None = None
        """What its folds see of globals, where they read any; set before `activate`."""
        self._held: dict[bytes, bytes | None] = {}
        self._torn = False
        self._objection: ChangelogError | None = None
        self.stalled: str | None = None
        """Why its owner does not fold it further, None while it does; kept by its runner."""
        self.restored_records = 0
        """Changelog records read since the store was opened."""
        self.changelog_end = UNKNOWN
        """Where the changelog ended when it was last read here."""
        self.marks: StepMarks | None = None
        """What its topics' partitions were told of its watermark, of a step that its owner folds."""
        self._waiting: list[tuple[Reaching, asyncio.Future[bool]]] = []
        self.role = PartitionRole.EARLIER if earlier else PartitionRole.STANDBY
        self._serving = False
        self._source_ends, self._end_asked_ms = (UNKNOWN,) * len(processor.topics), UNKNOWN
        self.current_ms = UNKNOWN
        """For a standby: when its changelog's end was asked for which it has since reached."""

    # -- position

    @property
    def position(self) -> Position:
        """Return the committed position."""
        return self._store.marker

    @property
    def applied(self) -> int:
        """Return the last source offset in the committed state; -1 for none. Of several sources: how many of
        their offsets are in it, less one.
        """
        return counted(offsets_of(self._store.marker))

    @property
    def offsets(self) -> dict[str, int]:
        """Return the last offset in the committed state of each source; -1 for none."""
        return dict(zip(self.processor.topics, offsets_of(self._store.marker), strict=True))

    @property
    def partial(self) -> LostHeads:
        """Return what was deleted of the sources before this table began, and is not in its state: of each
        such source the first offset that was there.
        """
        return {**self._store.lost_heads, **self._heads_before(offsets_of(self._store.marker))}

    def _heads_before(self, offsets: Sequence[int]) -> dict[str, int]:
        """Return the lost heads of the sources of which nothing is in a state at *offsets*."""
        if NOTHING_APPLIED not in offsets:
            return {}
        return {
            place[0]: head
            for place, offset in zip(self.places, offsets, strict=True)
            if offset == NOTHING_APPLIED and (head := self.head_of(place))
        }

    @property
    def places(self) -> list[Place]:
        """Return the source partitions that are folded, in the order of their numbers."""
        return [(topic, self.partition) for topic in self.processor.topics]

    @property
    def choices_topic(self) -> str:
        """Return the topic of the choices, which a partition of several sources has."""
        return self.processor.choices(self._env.app)

    @property
    def stream_ms(self) -> int:
        return self._store.marker.stream_ms

    @property
    def changelog_next(self) -> int:
        return self._store.changelog_next

    @property
    def source_end(self) -> int:
        """Return the end of the source partition as last heard in this role; of several sources, the sum.

        UNKNOWN before that, and on a standby that has not asked for END_GOOD_MS: its broker does not answer,
        or the process was frozen.
        """
        ends = self.source_ends.values()
        return UNKNOWN if UNKNOWN in ends else sum(ends)

    @property
    def source_ends(self) -> dict[str, int]:
        """Return the end of each source partition as last heard in this role; UNKNOWN as for `source_end`."""
        ends = self._source_ends
        if self.role is PartitionRole.STANDBY and system_clock.now_ms() - self._end_asked_ms > END_GOOD_MS:
            ends = (UNKNOWN,) * len(ends)
        return dict(zip(self.processor.topics, ends, strict=True))

    def note_source_ends(self, ends: Mapping[Place, int], asked_ms: int) -> None:
        """Note where source partitions ended when that was asked for."""
        self._source_ends = tuple(ends.get(place, UNKNOWN) for place in self.places)
        self._end_asked_ms = asked_ms

    @property
    def active(self) -> bool:
        return self.role is PartitionRole.ACTIVE

    @property
    def serving(self) -> bool:
        return (
            self._serving
            and self._store.readable
            and self._store.rotten is None
            and (self.role is PartitionRole.STANDBY or self._still_ours())
        )

    @serving.setter
    def serving(self, serving: bool) -> None:
        self._serving = serving

    @property
    def held_back(self) -> list[tuple[str, str, float]]:
        """Return of each source of its owner's windows or joins that holds stream time back the topic, the
        origin, and by how many seconds, infinite for one that has said nothing: as of the transaction that is
        folded.
        """
        folder, found = self._folder, list[tuple[str, str, float]]()
        for each in [] if folder is None else [*folder.rows.derived.values()]:
            if isinstance(each, RowsOfOrigins) and (held := each.watermarks.held_back) is not None:
                origin, lag_ms = held
                known = ("unheard", math.inf) if origin is None else (str(origin), lag_ms / 1000)
                found.append((self.processor.topics[each.source], *known))
        return found

    @property
    def touched_ms(self) -> int:
        return self._store.touched_ms

    # -- ownership

    @property
    def fenced_in(self) -> bool:
        """Return whether this worker holds the newest epoch, as far as it knows."""
        return self._writer is not None and not self._lost

    async def fence(self, timeout_s: float, *, by_common_id: bool = False) -> None:
        """Become the only owner whose writes the broker accepts; with *by_common_id* also shut out a worker
        of an older release, which writes every version by one id. It must not be in use by an earlier
        version.

        Must come before the restore, else an old owner could still write, or a bootstrap's transaction be
        open.
        """
        common_id = self.processor.common_id(self._env.app, self.partition) if by_common_id else None
        older = [] if common_id is None else [self._writer_by(common_id)]
        if self.processor.hands_over and not self.has_begun:
            older.append(self.builder())
        for each in older:
            try:
                await each.fence(timeout_s)
            finally:
                await each.close()
        writer = self._writer_by(self.processor.transactional_id(self._env.app, self.partition))
        self._writer, self._lost = writer, True
        await writer.fence(timeout_s)
        self._lost = False

    @property
    def has_begun(self) -> bool:
        """Return whether it has a state, a base that may be empty, or a note of the handover."""
        store = self._store
        return self.applied != NOTHING_APPLIED or store.handover is not None or store.get(BASE) is not None

    @property
    def is_to_begin(self) -> bool:
        """Return whether a worker has to begin it before it folds, since a bootstrap may still write its
        first state beside workers of earlier versions.
        """
        return self.processor.hands_over and not self.processor.migrate and not self.has_begun

    def builder(self) -> ChangelogWriter:
        """Return the writer that a bootstrap has; whoever fences it shuts the other out."""
        return self._writer_by(self.processor.builder_id(self._env.app, self.partition))

    async def begin(self, builder: ChangelogWriter, timeout_s: float) -> None:
        """Write that a worker has begun it, which a bootstrap will find; follow with a restore. *builder* is
        fenced, and nothing was there behind that.
        """
        marker = self._store.marker
        note = encode_handover(Handover(HANDOVER_FORMAT, offsets_of(marker), choices_of(marker)))
        last = ChangelogPart([(HANDOVER, note), (APPLIED, self._positions.encode(marker))], [])
        await builder.write_parts(lambda: (last,), timeout_s)

    def _writer_by(self, transactional_id: str) -> ChangelogWriter:
        producer = self._env.producer(transactional_id)
        return ChangelogWriter(producer, changelog=self.changelog, partition=self.partition)

    def _check_migrated(self) -> None:
        """Raise ConfigError for an empty table that is declared to begin with an earlier version's rows."""
        processor = self.processor
        if not processor.migrate or self.has_begun:
            return
        raise ConfigError(
            f"table {processor.table} partition {self.partition} is empty, and migrate= says that it begins"
            f" with rows of an earlier version: run `holdfast bootstrap {processor.name} --version"
            f" {processor.version} --from version` first, or leave out migrate="
        )

    def activate(self) -> None:
        """Start folding from the restored position; ConfigError where the row type cannot read what is there,
        or a migration is due, TopicError where a source is not the log that was folded.
        """
        self._due = {}
        self._compare_sources()
        self._compare_types()
        self._check_migrated()
        self.role, marker, cache_rows = PartitionRole.ACTIVE, self._store.marker, self._env.cache_rows
        if self.processor.stateless and self.processor.origin_clock() is not None:
            self.marks = StepMarks(self.processor, self.partition)
        handover = (self._handover or self._store.handover) if self.processor.hands_over else None
        recovery = self._recovered or self._store.recovery
        if isinstance(marker, VectorMarker):
            self._folder = MergingFolder(
                self.processor,
                self._store,
                marker=marker,
                cache_rows=cache_rows,
                views=self.views,
                handover=handover,
                recovery=recovery,
            )
            return
        self._folder = Folder(
            self.processor,
            self._store,
            applied=marker.applied,
            stream_ms=marker.stream_ms,
            event_ms=event_ms_of(marker),
            cache_rows=cache_rows,
            handover=handover,
            recovery=recovery,
        )

    def _compare_sources(self) -> None:
        """Have the next transaction note the ids of the sources, where they are not those that are noted."""
        now, noted = self.sources, decode_source_ids(self._store.get(SOURCE_IDS))
        if now is None or now == noted:
            return
        folded = [topic for topic, offset in self.offsets.items() if offset != NOTHING_APPLIED]
        if noted is not None and (other := noted.other_logs(now, self._obeyed())):
            raise ChoicesError(
                f"topic {other[0]} was deleted and made again (its id was {noted.topics[other[0]]}, is"
                f" {now.topics[other[0]]}), and {self.processor.table} partition {self.partition} was folded"
                " by what the old one held: run `holdfast reset`, or give the processor another name"
            )
        if noted is not None and (other := noted.other_logs(now, folded)):
            topic, processor = other[0], self.processor
            raise TopicError(
                f"topic {topic} was deleted and made again (its id was {noted.topics[topic]}, is"
                f" {now.topics[topic]}), and {processor.table} partition {self.partition} has folded the old"
                f" one up to offset {self.offsets[topic]}: write version={processor.version + 1}, which"
                " builds the table from the new log, or run `holdfast reset`"
            )
        self._due[SOURCE_IDS] = encode_source_ids(now)

    def _obeyed(self) -> list[str]:
        """Return the topics besides the sources that its state is a function of: that of its choices, once it
        has obeyed one, and those of globals that it has looked into.
        """
        position = self._store.marker
        if not isinstance(position, VectorMarker) or not position.choices:
            return []
        seen = [
            table.topic
            for table, vector in zip(self.processor.reads, globals_of(position), strict=False)
            if any(offset != NOTHING_APPLIED for offset in vector)
        ]
        return [self.choices_topic, *seen]

    def _compare_types(self) -> None:
        """Have the next transaction note the types of rows, where they are not those that are noted."""
        if self.processor.stateless:
            return
        is_empty = counted(offsets_of(self._store.marker)) == NOTHING_APPLIED
        noted = None if is_empty else decode_row_types(self._store.get(ROW_TYPES))
        types = evolved(noted, self.processor)
        if types == noted:
            return
        self._due[ROW_TYPES] = encode_row_types(types)
        if noted is not None:
            logger.warning(
                "%(table)s partition %(partition)d: the row type has changed; rows that were written before"
                " keep their bytes, so that `verify` tells a difference until the table is rebuilt",
                {"table": self.processor.table, "partition": self.partition},
            )

    def stand_by(self) -> None:
        """Stop folding: drop the fold's state; what is committed stays. The writer is closed before."""
        assert self._writer is None, "close the writer first"
        self.role, self._folder, self.recorded, self.stalled = PartitionRole.STANDBY, None, [], None
        self.marks = None
        self._handover = self._recovered = self._barrier = None  # another may come past it meanwhile
        self.note_source_ends({}, UNKNOWN)

    def lose(self) -> None:
        """Stop answering and writing: a newer owner exists."""
        self.serving = False
        self._folder, self._lost, self.marks = None, True, None

    async def close_writer(self) -> None:
        """Close the connections that transactions go over; call it before the partition is another's or
        nobody's.
        """
        writer, self._writer = self._writer, None
        if writer is not None:
            await writer.close()

    @property
    def folder(self) -> AnyFolder:
        assert self._folder is not None, "activate first"
        return self._folder

    @property
    def merging(self) -> MergingFolder[Any]:
        """Return the folder of a processor of several sources."""
        folder = self.folder
        assert isinstance(folder, MergingFolder), "of several sources"
        return folder

    # -- the path of a batch

    async def commit(self, changes: AnyChanges, extra: Sequence[Emit], timeout_s: float) -> int:
        """Make one transaction durable in Kafka, and return the changelog's next offset: `keep` is to follow.

        Choices are written in it, so that they are known exactly when what was folded behind them is.

        Raises FencedError, BrokerError, ChangelogError.
        """
        assert self._writer is not None, "fence first"
        if isinstance(changes, MergedChanges):
            extra = [*extra, *self._choices(changes)]
        marks = self._marks_of(changes)
        changelog_next = await self._writer.write(changes, extra, timeout_s, marks)
        if marks is not None:
            marks.committed()
        if changelog_next < self.changelog_next:
            # Offsets only grow, so this is another topic of the same name. It has this transaction and not
            # the state before it, which nobody could tell later: take back the marker that says otherwise.
            await self._writer.disown(timeout_s)
            raise ChangelogError(self._made_again())
        self._barrier = None
        return changelog_next

    def _marks_of(self, changes: AnyChanges) -> StepMarks | None:
        marks, folder = self.marks, self._folder
        if marks is None or changes.reached is None or folder is None or folder.clock is None:
            return None
        marks.at_end = frozenset()
        marks.begin(changes.reached)
        return marks

    async def mark_idle(self, at_end: frozenset[int], timeout_s: float) -> None:
        """Tell all partitions of a step's topics how far it has come where the sources *at_end* stay at the
        ends of their logs: with all of them, that it holds no stream time back.

        Raises FencedError, BrokerError, UndeliverableError. Not while a transaction is under way.
        """
        assert self._writer is not None, "fence first"
        marks, reached = self.marks, self.reached_with(at_end)
        assert marks is not None, "of a step"
        marks.at_end = at_end
        if reached is not None and not marks.has_told(reached):
            marks.begin(reached)
            await self._writer.write_parts(lambda: (ChangelogPart((), (), marks),), timeout_s)
            marks.committed()

    def reached_with(self, at_end: frozenset[int]) -> StepReached | None:
        """Return how far a step has come where the sources *at_end* hold nothing back; None of one that knows
        no event time.
        """
        clock = None if self._folder is None else self._folder.clock
        assert clock is not None, "of a step that is folded"
        if not clock.speaks:
            return None
        return StepReached(
            clock.watermark_with(at_end), len(at_end) == len(self.processor.topics) or clock.has_ended
        )

    def _choices(self, changes: MergedChanges) -> Iterator[Emit]:
        topic = self.choices_topic
        for choice in (*([] if self._barrier is None else [self._barrier]), *changes.choices):
            yield Emit(topic, value=encode_choice(choice), partition=self.partition)

    def keep(self, changes: AnyChanges, changelog_next: int) -> None:
        """Apply here what Kafka has committed. Blocks; raises StoreError."""
        self._store.write(changes.puts, changes.marker, changelog_next)
        if changes.puts and changes.puts[-1][0] in self._due:
            self._due = {}

    def noted(self, changes: AnyChanges) -> AnyChanges:
        """Return *changes* with the notes that are due, before `commit` and `keep`: of the heads that were
        lost, where they bring the first record of such a source, of the handover, where it was just learned,
        of records that are refused for now, and of what is new here.

        Raises OutOfRangeError when records between the state and these were deleted.
        """
        self._require_no_hole()
        notes = [*self._note_of_heads(changes), *self._note_of_handover(), *self._notes_of_refusals(changes)]
        notes += self._due.items()  # the last: see `keep`
        return replace(changes, puts=[*changes.puts, *notes]) if notes else changes

    def _notes_of_refusals(self, changes: AnyChanges) -> Iterator[tuple[bytes, bytes]]:
        own = self.processor.topics[0]
        return (refusal_note(each.topic or own, each.offset) for each in changes.refused if each.passing)

    def _note_of_handover(self) -> Iterator[tuple[bytes, bytes]]:
        if self._handover is not None and self._handover != self._store.handover:
            yield HANDOVER, encode_handover(self._handover)

    @property
    def may_learn_handover(self) -> bool:
        """Return whether up to where this version is silent is not fixed yet: it is, once it has come past
        that.
        """
        found, marker = self._store.handover, self._store.marker
        return found is None or found.covers(offsets_of(marker), choices_of(marker))

    def learn_handover(self, stood: Handover) -> None:
        """Take in where the versions before stood, before `activate` and behind the reading of choices: its
        next transaction records up to where this one is silent. Raises ChoicesError where choices are
        missing.
        """
        position = self._store.marker
        if isinstance(position, VectorMarker):
            stood, self._barrier = barrier_at(stood, position, [*map(decode_choice, self.recorded)])
        found = self._store.handover
        if found is not None and found.covers(stood.applied, stood.choices):
            self._barrier = None
            return
        self._handover = stood
        if self._barrier is not None:
            self.recorded.append(encode_choice(self._barrier))

    # -- a changelog that has lost its records

    @property
    def is_blank(self) -> bool:
        """Return whether its changelog holds no position at all, not even that of a beginning."""
        return self._store.get(APPLIED) is None

    @property
    def cut_at(self) -> int:
        """Return the changelog offset before which records of this state are gone; 0 for none."""
        first, recovery = self._store.read_from, self._store.recovery
        return 0 if first <= (0 if recovery is None else recovery.log_start) else first

    @property
    def changelog_id(self) -> str:
        """Return the id that Kafka gave its changelog."""
        return self._env.changelog_ids.get(self.changelog, "")

    @property
    def has_base(self) -> bool:
        """Return whether it began with rows that no source has."""
        return self._store.get(BASE) is not None

    def reads_from(self, offset: int) -> None:
        """Note that its changelog is read from *offset* on, since nothing is left before."""
        self._store.reads_from(offset)

    def lost_before(self) -> tuple[int, ...] | None:
        """Return the last offsets of a state that this worker had, whose changelog was another topic; None
        without one, or where its sources were other logs.
        """
        if (before := self._store.before) is None:
            return None
        folded, now = decode_source_ids(before.sources), self.sources
        found = offsets_of(self._positions.decode(before.marker))
        if counted(found) == NOTHING_APPLIED:
            return None
        if now is not None and folded is not None and folded.other_logs(now, self.processor.topics):
            return None
        return found

    def sent(self, topic: str) -> TableSent:
        """Return up to where it has folded a source and sent its results, in this state or one before."""
        at, marker, recovery = self.processor.topics.index(topic), self._store.marker, self._store.recovery
        applied, choices = offsets_of(marker)[at], choices_of(marker)
        if recovery is not None:
            applied, choices = max(applied, recovery.applied[at]), max(choices, recovery.choices)
        return TableSent(applied, choices, shortened(self.changelog_id))

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
        marker = self._positions.encode(self._positions.start if emptied else self._store.marker)
        last = ChangelogPart([*notes, (RECOVERY, encode_recovery(recovery)), (APPLIED, marker)], [])

        def parts() -> Iterator[ChangelogPart]:
            keys = self._left() if emptied else iter(())
            while some := [(key, None) for key in islice(keys, WRITE_ROWS)]:
                yield ChangelogPart(some, [])
            yield last

        await self._writer.write_parts(parts, timeout_s)

    def _left(self) -> Iterator[bytes]:
        """Yield every key that the changelog holds, but for the position."""
        store = self._store
        yield from (
            key for key in (HANDOVER, LOST_HEADS, ROW_TYPES, SOURCE_IDS) if store.get(key) is not None
        )
        yield from (key for key, _ in store.scan(REFUSALS))
        yield from (key for key, _ in store.everything())

    def learn_recovery(self) -> None:
        """Have the choice recorded at which its results were sent before, of several sources, until it has
        come past that; before `activate` and behind the reading of choices.
        """
        recovery, position = self._store.recovery, self._store.marker
        if recovery is None or not isinstance(position, VectorMarker):
            return
        if not recovery.covers(position.applied, position.choices) or set(recovery.applied) == {
            NOTHING_APPLIED
        }:
            return
        stood = Handover(HANDOVER_FORMAT, recovery.applied, recovery.choices)
        if self._barrier is not None:
            return  # that of the handover, whose place all versions come through, comes first
        moved, barrier = barrier_at(stood, position, [*map(decode_choice, self.recorded)])
        self._recovered = replace_fields(recovery, applied=moved.applied, choices=moved.choices)
        if barrier is not None:
            self._barrier = barrier
            self.recorded.append(encode_choice(barrier))

    def _note_of_heads(self, changes: AnyChanges) -> Iterator[tuple[bytes, bytes]]:
        before, now = offsets_of(self._store.marker), offsets_of(changes.marker)
        if NOTHING_APPLIED not in before or before == now:
            return
        begun = [
            topic
            for topic, was, offset in zip(self.processor.topics, before, now, strict=True)
            if was != offset
        ]
        lost = {topic: head for topic, head in self._heads_before(before).items() if topic in begun}
        if in_lake := self._env.landed.intersection(lost):
            raise OutOfRangeError(self._begun_without(min(in_lake), lost))
        if lost:
            yield LOST_HEADS, encode_lost_heads({**self._store.lost_heads, **lost})

    def _begun_without(self, topic: str, lost: LostHeads) -> str:
        name, version = self.processor.name, self.processor.version
        return (
            f"{topic} partition {self.partition} begins at offset {lost[topic]}, for it is declared with"
            f" retention landed, and {self.processor.table} has nothing of what is in the lake: run `holdfast"
            f" bootstrap {name} --version {version} --lake DIR` first. If no lake has it, declare"
            ' retention="forever" until this table has begun; it is partial then'
        )

    def _require_no_hole(self) -> None:
        """Raise OutOfRangeError when a source was read from its beginning, for another table, and that lies
        behind the next record of this one.
        """
        for place, offset in zip(self.places, offsets_of(self._store.marker), strict=True):
            head = self.head_of(place)
            if NOTHING_APPLIED < offset < head - 1:
                raise OutOfRangeError(
                    f"{place[0]} partition {place[1]} begins at offset {head}, and {self.processor.table} has"
                    f" folded it up to {offset}: records in between were deleted and are lost to it. Raise"
                    " its version, or delete its changelog and stores, to fold what is left"
                )

    def apply(self, messages: list[Message], options: WriteOptions) -> None:
        """Apply changelog records; readers see whole transactions only."""
        self.restored_records += len(messages)
        keys: list[Any] = list(map(Message.key, messages))
        values = list(map(Message.value, messages))
        closed = len(keys) - keys[::-1].index(APPLIED) if APPLIED in keys else 0
        marker = self._position(values[closed - 1], messages[closed - 1]) if closed else None
        if marker is None:
            closed = 0
        else:
            # Only the last of a row's changes counts. Markers of the transactions before are among the keys,
            # and written over by this one's.
            self._held.update(zip(keys[:closed], values, strict=False))
            del self._held[APPLIED]
            changelog_next = (messages[closed - 1].offset() or 0) + 1
            self._store.write(self._held.items(), marker, changelog_next, options=options)
            self._held = {}
            self._notify(self)
        self._torn = closed < len(keys)
        self._held.update(zip(keys[closed:], values[closed:], strict=True))
        self._held.pop(APPLIED, None)
        if len(self._held) > HELD_ROWS:
            self._store.write_pieces(
                list(self._held.items()), (messages[-1].offset() or 0) + 1, options=options
            )
            self._held = {}

    def _position(self, value: bytes | None, message: Message) -> Position | None:
        """Return the position that a transaction ends with; None for one that is no position, which is
        objected to if no good one follows.
        """
        try:
            if value is None:
                raise ChangelogError(self._made_again())
            marker = self._positions.decode(value)
        except ChangelogError as error:
            self._objection = ChangelogError(
                f"{self.changelog} partition {self.partition}, offset {message.offset()}:"
                f" {error}{self._way_out()}"
            )
            return None
        self._objection = None
        return marker

    @property
    def misplaced(self) -> ChangelogError | None:
        """Return what is wrong with the last position that was read, None when it is one."""
        return self._objection

    def objection(self) -> ChangelogError | None:
        """Return what is wrong with the changelog as far as it was read, None when it ends as a worker
        leaves it.
        """
        if self._objection is not None:
            return self._objection
        if not self._torn:
            return None
        return ChangelogError(
            f"changelog {self.changelog} partition {self.partition} ends inside a transaction: records behind"
            f" {self.changelog_next} have no position after them{self._way_out()}"
        )

    def _way_out(self) -> str:
        return f"; `holdfast tables repair {self.processor.name}` shows what no worker wrote, and the ways on"

    def _made_again(self) -> str:
        return (
            f"{self.changelog} was deleted and made again while a worker wrote to it, and holds only a part"
            " of the state: stop all workers of this application, delete it once more, run `holdfast topics"
            f" create` and start them; the state is then rebuilt from {', '.join(self.processor.topics)}"
        )

    @property
    def whole(self) -> bool:
        """Return False while the store holds a part of a transaction that its changelog has still to bring
        whole.
        """
        return self._store.whole

    def torn(self) -> bool:
        """Return whether changelog records have come that no marker has closed."""
        return self._torn

    def forget_torn(self) -> None:
        """Drop records that no marker has closed; they come again when reading resumes at
        `changelog_next`.
        """
        self._held, self._torn, self._objection = {}, False, None

    def rebuild(self, cause: str) -> None:
        """Set the store aside and begin an empty one, which knows of no time at which it was current."""
        served, self._serving = self._serving, False
        self.forget_torn()
        self._store.rebuild(cause)
        self._serving, self.current_ms = served, UNKNOWN

    # -- rot

    @property
    def store_path(self) -> Path:
        return self._store.path

    @property
    def rotten(self) -> str | None:
        """Return why the store is not to be believed, None while it may be."""
        return self._store.rotten

    def condemn(self, cause: str) -> None:
        """Answer nothing from the store any more: it is rebuilt when the partition is next taken up."""
        self._store.condemn(cause)

    def _rotten(self, cause: str) -> None:
        self.on_rotten(self, cause)

    def mend(self) -> None:
        """Set a rotten store aside and begin an empty one. Call it while nobody folds."""
        if (cause := self._store.rotten) is not None:
            self.rebuild(cause)

    def touch(self, now_ms: int) -> None:
        """Note in the store when it was last abreast of its changelog, if that is known: a restore cut
        short has not been.
        """
        if self._folder is not None:
            if self._still_ours():
                self._store.touch(now_ms)
        elif self.current_ms != UNKNOWN:
            self._store.touch(self.current_ms)

    def close(self) -> None:
        self.lose()
        self.release_readers()
        self._store.close()

    # -- reads

    def get(self, key: str, table: str = "") -> bytes | None:
        return self._store.get(key_in_table(table, key))

    def get_many(self, keys: Sequence[str], table: str = "") -> list[bytes | None]:
        return self._store.get_many([key_in_table(table, key) for key in keys])

    def scan(self, prefix: str, after: str | None, limit: int, table: str = "") -> list[tuple[str, bytes]]:
        return self._store.page(prefix, after, limit, table)

    def everything(self) -> Iterable[tuple[bytes, bytes]]:
        return self._store.everything()

    def pin(self) -> PinnedState:
        """Return the committed state of now, to be read from any thread; it ends when the store is closed."""
        return self._store.pin()

    def approximate_rows(self) -> int:
        return self._store.approximate_rows()

    def has_reached(self, wanted: Reaching) -> bool:
        """Return whether the committed state holds an offset, or one of each of some sources."""
        if isinstance(wanted, int):
            return self.applied >= wanted
        offsets = self.offsets
        return all(offsets[topic] >= offset for topic, offset in wanted.items())

    async def reached(self, wanted: Reaching, timeout_s: float) -> bool:
        """Wait until *wanted* is in the committed state; False when time ran out or the partition went away
        first.
        """
        if self.has_reached(wanted):
            return True
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        entry = (wanted, future)
        self._waiting.append(entry)
        try:
            return await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            return False
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)

    def wake_readers(self) -> None:
        """Answer those whose position is reached. On the event loop only."""
        if self._waiting:
            applied = self.applied
            for wanted, future in self._waiting:
                reached = applied >= wanted if isinstance(wanted, int) else self.has_reached(wanted)
                if reached and not future.done():
                    future.set_result(True)
            self._waiting = [entry for entry in self._waiting if not entry[1].done()]

    def release_readers(self) -> None:
        for _, future in self._waiting:
            if not future.done():
                future.get_loop().call_soon_threadsafe(_answer_no, future)
        self._waiting = []


def _answer_no(future: asyncio.Future[bool]) -> None:
    if not future.done():
        future.set_result(False)
