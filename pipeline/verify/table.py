"""Verifying a live table: its source replayed to exactly the position its changelog has reached, and
compared by hash.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.positions import Position, counted, position_format
from holdfast.core.engine.state.base import BASE, TableBase, decode_base
from holdfast.core.engine.state.codec import (
    APPLIED,
    META,
    NOTHING_APPLIED,
    ROW_KINDS,
    RowCodec,
    combine_digests,
    decode_due,
    digest,
    place_of_row,
)
from holdfast.core.engine.state.evolution import ROW_TYPES, RowTypes, decode_row_types, evolved, most_types
from holdfast.core.engine.state.handover import HANDOVER, Handover, decode_handover
from holdfast.core.engine.state.lost_heads import LOST_HEADS, LostHeads, decode_lost_heads, told_lost
from holdfast.core.engine.state.passing_refusals import refusals_in
from holdfast.errors import ChangelogError, ConfigError, ImpureFoldError, TopicError
from holdfast.kafka.fetching.records import Records
from holdfast.kafka.reading.skip_log import read_skips
from holdfast.pipeline.folds.bases import check_bases
from holdfast.pipeline.folds.result_rows import TRANSITION, FoldSummary, other_event_time, readable
from holdfast.pipeline.folds.results import Replayed, told_bases
from holdfast.pipeline.folds.same_topics import require_same_topics
from holdfast.pipeline.folds.spilling import SpillingStore
from holdfast.pipeline.replay import ReplayOptions, replay
from holdfast.pipeline.topic import TopicLog, TopicReader
from holdfast.pipeline.verify.differing import first_apart
from holdfast.pipeline.verify.live_rows import LiveRows


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePartition:
    """A changelog's content for one partition: rows and timers as stored, at the position of its last marker.
    *lost* names the sources that had lost their heads when it began, *handover* the point up to which it is
    silent.
    """

    partition: int
    marker: Position
    stored: LiveRows
    lost: LostHeads = field(default_factory=dict)
    handover: Handover | None = None
    row_types: int = 1
    """As how many types its rows were written, at the most, and are declared."""
    refused: frozenset[tuple[str, int]] = frozenset()
    """Topic and offset of records that were refused for what may be otherwise now."""
    base: TableBase | None = None
    """The first state of a partition that did not begin empty."""

    @property
    def has_begun(self) -> bool:
        """Return whether anything was written to it: a state, a base that is empty, or that a worker has
        begun it.
        """
        has_state = bool(self.stored) or self.applied != NOTHING_APPLIED
        return has_state or self.base is not None or self.handover is not None

    @property
    def applied(self) -> int:
        """Return the last offset applied; of several sources, how many offsets of all, less one."""
        return counted(self.marker.applied)

    @property
    def digest(self) -> str:
        return digest(self.stored.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first key of a partition at which live and replayed state differ.

    Values are JSON for rows, a due time for timers, None where the key is missing. *changed_at* is the source
    offset of the last transition of the row in the replay, None when the replay never touched it (or it is a
    timer).
    """

    partition: int
    kind: str
    key: str
    live: str | None
    replayed: str | None
    changed_at: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionVerdict:
    """The verdict on one partition. *cause* describes the difference."""

    partition: int
    applied: int
    live_digest: str
    replayed_digest: str
    cause: str | None = None
    difference: Difference | None = None
    lost: LostHeads = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        return self.cause is None

    def explain(self) -> str:
        """Return the difference, in words."""
        found = self.difference
        if found is None:
            return self.cause or "equal"
        where = f", last changed at source offset {found.changed_at}" if found.changed_at is not None else ""
        return f"{self.cause}: live {found.live or 'none'}, replayed {found.replayed or 'none'}{where}"

    def document(self) -> dict[str, Any]:
        """Return the verdict as JSON values."""
        return {
            "partition": self.partition,
            "applied": self.applied,
            "equal": self.equal,
            "live_digest": self.live_digest,
            "replayed_digest": self.replayed_digest,
            "lost": dict(self.lost),
            "cause": self.cause,
            "difference": None if self.difference is None else asdict(self.difference),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVerdict:
    """The verdict on a live table against its source. *holes* are the parts missing from the replayed log, in
    words.
    """

    processor: str
    version: int
    engine: str
    records: int
    partitions: tuple[PartitionVerdict, ...] = field(default_factory=tuple)
    skipped: int = 0
    holes: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()
    """The first states of partitions that did not begin empty: equal states are functions of those too."""

    @property
    def equal(self) -> bool:
        return all(each.equal for each in self.partitions)

    @property
    def partial(self) -> tuple[str, ...]:
        """Return, in words, the records that neither state can account for: if there are any, equal states
        prove nothing about them.
        """
        return missing(self.partitions, self.holes)

    @property
    def live_digest(self) -> str:
        return combine_digests((each.partition, each.live_digest) for each in self.partitions)

    @property
    def replayed_digest(self) -> str:
        return combine_digests((each.partition, each.replayed_digest) for each in self.partitions)

    def document(self) -> dict[str, Any]:
        """Return the verdict as JSON values."""
        return {
            "processor": self.processor,
            "version": self.version,
            "engine": self.engine,
            "records": self.records,
            "skipped": self.skipped,
            "equal": self.equal,
            "partial": list(self.partial),
            "bases": list(self.bases),
            "live_digest": self.live_digest,
            "replayed_digest": self.replayed_digest,
            "partitions": [each.document() for each in self.partitions],
        }


def verify(
    processor: Processor[Any, Any], settings: Settings, options: ReplayOptions | None = None
) -> TableVerdict:
    """Compare the live table of *processor* with a replay of its source up to the position each live
    partition has reached.

    Workers may run at the same time: the changelog is read up to where it ends now. Of *options*, engine,
    source, lake and spark count. A source whose beginning was deleted is replayed from the rest, as a worker
    that started then would have: the verdict is `partial` then, as it is for a table that began so.
    """
    options = options or ReplayOptions()
    with kept_live(processor, settings, options.memory_bytes) as live:
        return _compared(processor, settings, options, live)


def _compared(
    processor: Processor[Any, Any], settings: Settings, options: ReplayOptions, live: Sequence[LivePartition]
) -> TableVerdict:
    _require_bases(processor, options, live)
    if options.source == "bronze":
        require_same_topics(processor, settings, str(options.lake))
    asked = replace(
        # After the state: a skip is written before the records after it are folded.
        upto(processor, settings, options, {each.partition: each.marker for each in live}),
        rows=False,
        transitions=False,
        of_key=None,
        partitions=None,
        out=None,
        # Records lost by a trimmed internal topic would count as a difference, and are none.
        allow_holes=not processor.internal,
        refused=refused_by(live),
    )
    replayed = replay(processor, settings, asked)
    check_bases(processor, settings, replayed.bases, {each.partition: each.base for each in live})
    by_partition = {each.partition: each for each in replayed.partitions}
    if set(by_partition) != {each.partition for each in live}:
        raise TopicError(
            f"{processor.changelog(settings.app)} has {len(live)} partitions, the source"
            f" {processor.topics[0]} has {len(by_partition)}: they must be equal; check with `holdfast topics"
            " check`"
        )
    verdicts = tuple(_judge(processor, settings, asked, each, by_partition[each.partition]) for each in live)
    return TableVerdict(
        processor=processor.name,
        version=processor.version,
        engine=replayed.engine,
        records=replayed.records,
        partitions=verdicts,
        skipped=replayed.skipped,
        holes=replayed.holes,
        bases=told_bases(replayed.bases),
    )


def _require_bases(
    processor: Processor[Any, Any], options: ReplayOptions, live: Iterable[LivePartition]
) -> None:
    """Raise ConfigError for a table with a base that its declaration does not mention, and a replay that asks
    no broker.
    """
    if options.source != "bronze" or processor.migrate:
        return
    if base := next((each.base for each in live if each.base), None):
        raise ConfigError(
            f"table {processor.table} began with {base.told()}, and --from bronze reads the lake alone: leave"
            " out --from, which reads the base and the topic too"
        )


class _Began(Protocol):
    """A verdict on one partition that knows how it began."""

    @property
    def partition(self) -> int: ...

    @property
    def lost(self) -> LostHeads: ...


def missing(partitions: Iterable[_Began], holes: Sequence[str]) -> tuple[str, ...]:
    """Return, in words, what live partitions and a replayed log lack."""
    began = (
        f"partition {each.partition} began behind a hole: {told_lost(each.lost)}"
        for each in partitions
        if each.lost
    )
    return (*began, *holes)


def refused_by(live: Iterable[LivePartition]) -> Mapping[int, frozenset[tuple[str, int]]]:
    """Return the records that a replay has to refuse because live partitions did."""
    return {each.partition: each.refused for each in live if each.refused}


def upto(
    processor: Processor[Any, Any],
    settings: Settings,
    options: ReplayOptions,
    positions: Mapping[int, Position],
) -> ReplayOptions:
    """Return the options of a replay up to *positions*, without what the application skips by now."""
    return replace(options, skips=read_skips(settings), positions=positions)


# -- the live side


def read_live(
    processor: Processor[Any, Any],
    settings: Settings,
    upto: Mapping[int, int] | None = None,
    *,
    partitions: Iterable[int] | None = None,
    into: SpillingStore | None = None,
    rows: bool = True,
) -> list[LivePartition]:
    """Return the state that the changelog holds now, by partition: committed records only, the last of each
    key. *partitions* None means all of them.

    With *upto* only records before these offsets count, each of which follows a marker. Of a row that changed
    after that, a compacted log may not hold any more what it was: who compares such a state and finds it
    different looks again later. The rows lie *into* a store of the caller's, else all in memory; *rows* False
    leaves them out, and returns only the rest.
    """
    store = SpillingStore(sys.maxsize) if into is None else into
    changelog = processor.changelog(settings.app)
    with TopicLog(settings, changelog) as log:
        spans = log.spans()
    with TopicReader(settings, changelog) as reader:
        return [
            _live_partition(
                processor,
                changelog,
                LiveRows(store, partition),
                partition,
                reader.records(partition, span),
                (upto or {}).get(partition),
                keeps_rows=rows,
            )
            for partition, span in sorted(spans.items())
            if (upto is None or partition in upto) and (partitions is None or partition in partitions)
        ]


@contextmanager
def kept_live(
    processor: Processor[Any, Any],
    settings: Settings,
    memory_bytes: int,
    upto: Mapping[int, int] | None = None,
) -> Iterator[list[LivePartition]]:
    """Give what `read_live` returns. About *memory_bytes* of all rows are in memory; where there are more,
    all of them are in a temporary file.
    """
    with closing(SpillingStore(memory_bytes)) as store:
        yield read_live(processor, settings, upto, into=store)


def _live_partition(
    processor: Processor[Any, Any],
    changelog: str,
    stored: LiveRows,
    partition: int,
    read: Iterator[tuple[Records, int]],
    upto: int | None,
    *,
    keeps_rows: bool,
) -> LivePartition:
    positions = position_format(processor)
    marker, notes = positions.start, dict[bytes, bytes | None]()
    open_records, objection = 0, None
    for records, _ in read:
        changes = dict[bytes, bytes | None]()
        for offset, key, value in zip(records.offsets, records.keys, records.values, strict=True):
            if upto is not None and offset >= upto:
                break
            if key is None:
                raise ChangelogError(
                    f"{changelog} partition {partition} offset {offset}: a record without a key is not"
                    " holdfast's"
                )
            if key == APPLIED:
                try:
                    marker, open_records, objection = positions.decode(value or b""), 0, None
                except ChangelogError as error:  # of a stray, if a position follows
                    objection, open_records = error, open_records + 1
            else:
                open_records += 1
                if key[:1] == META:
                    notes[key] = value
                else:
                    changes[key] = value
        if keeps_rows:
            stored.apply(changes)
    where = f"{changelog} partition {partition}"
    if objection is not None and upto is None:
        raise objection
    if open_records and upto is None:
        raise ChangelogError(
            f"{where} ends with {open_records} records that no marker closes: it was written by something"
            f" else; `holdfast tables repair {processor.name}` shows what, and the ways on"
        )
    if marker.version != processor.version and upto is None:
        raise ChangelogError(
            f"{where} holds version {marker.version} of {processor.name}, the code is version"
            f" {processor.version}"
        )
    types = notes.get(ROW_TYPES)
    return LivePartition(
        partition=partition,
        marker=marker,
        stored=stored,
        lost=decode_lost_heads(notes.get(LOST_HEADS)),
        handover=decode_handover(notes.get(HANDOVER)),
        row_types=1 if types is None else most_types(_with_own(decode_row_types(types), processor)),
        refused=refusals_in(key for key, value in notes.items() if value is not None),
        base=decode_base(notes.get(BASE)),
    )


def _with_own(noted: RowTypes | None, processor: Processor[Any, Any]) -> RowTypes | None:
    """Return the types of rows, with that of the declaration: a worker may not have noted it yet."""
    try:
        return evolved(noted, processor)
    except ConfigError:  # which a worker says; here the row that cannot be read does
        return noted


# -- the comparison


def _judge(
    processor: Processor[Any, Any],
    settings: Settings,
    options: ReplayOptions,
    live: LivePartition,
    replayed: FoldSummary,
) -> PartitionVerdict:
    verdict = PartitionVerdict(
        partition=live.partition,
        applied=live.applied,
        live_digest=live.digest,
        replayed_digest=replayed.digest,
        lost=live.lost,
    )
    if (apart := _apart(live, replayed)) is not None:
        return replace(verdict, cause=apart)
    if verdict.live_digest != verdict.replayed_digest:
        difference = first_difference(processor, settings, options, live)
        cause = f"{difference.kind} {difference.key!r} differs"
        if live.row_types > 1:
            cause += (
                f"; its rows were written as {live.row_types} types, and keep their bytes until it is"
                f" rebuilt: `holdfast tables repair {processor.name} --rebuild`, or a higher version"
            )
        return replace(verdict, cause=cause, difference=difference)
    if replayed.stream_ms != live.marker.stream_ms:
        return replace(
            verdict, cause=f"live stream time is {live.marker.stream_ms}, replayed {replayed.stream_ms}"
        )
    if (other := other_event_time(live.marker, replayed)) is not None:
        return replace(verdict, cause=f"live event time is {other}")
    return verdict


def _apart(live: LivePartition, replayed: FoldSummary) -> str | None:
    """Return why a replay did not come to the position of the live state, None when it did."""
    if live.marker.reached_ms:
        sources = replayed.sources or {}
        here = (list(live.marker.applied), live.marker.choices)
        there = ([*sources.values()], replayed.choices)
        if here == there or (not sources and live.applied == NOTHING_APPLIED):
            return None
        return (
            f"live is at offsets {here[0]} of {', '.join(sources)} with {here[1]} choices behind it, but the"
            f" replay up to there came to {there[0]} with {there[1]}"
        )
    if replayed.applied == live.applied:
        return None
    return f"live is at offset {live.applied}, but the last source record up to there is {replayed.applied}"


def first_difference(
    processor: Processor[Any, Any], settings: Settings, options: ReplayOptions, live: LivePartition
) -> Difference:
    """Return the first key, in key order, at which the live partition is not what a replay gives.

    Raises ImpureFoldError when a replay did differ, and another one does not.
    """
    found = first_apart(processor, settings, options, live.partition, live.stored)
    if found is None:
        raise ImpureFoldError(
            f"{processor.name} v{processor.version} partition {live.partition}: one replay gave other rows"
            " than the live table has, and the next gave the same: the fold uses more than its arguments (a"
            " clock, chance, the order of a set); a test with holdfast.testing names the record"
        )
    stored, ours, theirs = found
    is_row, (table, name) = stored[:1] in ROW_KINDS, place_of_row(stored)
    alone = replace(options, partitions=(live.partition,), rows=True)
    changed_at = last_changed(processor, settings, alone, (table, name)) if is_row else None
    return Difference(
        partition=live.partition,
        kind=kind_of(stored),
        key=name,
        live=shown(processor, stored, ours),
        replayed=shown(processor, stored, theirs),
        changed_at=changed_at,
    )


def kind_of(stored: bytes) -> str:
    """Return people's name for the entry under a key."""
    if stored[:1] not in ROW_KINDS:
        return "timer"
    table, _ = place_of_row(stored)
    return f"row of {table}" if table else "row"


def last_changed(
    processor: Processor[Any, Any], settings: Settings, options: ReplayOptions, row: tuple[str, str]
) -> int | None:
    """Return the source offset of the last transition of *row*, a table and a key, in the replay that
    *options* describe, None when it has none.
    """
    return _last_transition(
        replay(processor, settings, replace(options, rows=False, transitions=True, of_key=row))
    )


def _last_transition(traced: Replayed) -> int | None:
    assert traced.results is not None
    offsets = [
        row["offset"]
        for row in traced.results.select(["kind", "offset"]).to_pylist()
        if row["kind"] == TRANSITION
    ]
    return offsets[-1] if offsets else None


def shown(processor: Processor[Any, Any], stored: bytes, value: bytes | None) -> str | None:
    if value is None:
        return None
    if stored[:1] not in ROW_KINDS:
        return str(decode_due(value))
    table, _ = place_of_row(stored)
    if table and table not in processor.tables:
        return f"of a table that is not declared: {value.hex()}"
    try:
        return readable(RowCodec[Any](processor.row_of(table)).decode(value))
    except ChangelogError as error:
        return f"unreadable ({error}): {value.hex()}"
