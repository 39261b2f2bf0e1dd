"""Holding emitted topics against what a replay would emit, and naming the first difference.

Emits of one key keep the order of their source partition; those of different partitions come in any order
between each other. So records are compared key by key, and those of a key that comes from several source
partitions, or that has none, by what they are alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pyarrow as pa

from holdfast.config import Settings
from holdfast.core.engine.declared.partitioners import of_key
from holdfast.core.engine.declared.processor import Emit, Processor
from holdfast.core.engine.declared.streams import Internal
from holdfast.core.engine.origins import is_mark, plain
from holdfast.core.engine.positions import Position, stored_format
from holdfast.core.engine.state.codec import NOTHING_APPLIED
from holdfast.core.engine.state.handover import HANDOVER_FORMAT, Handover
from holdfast.errors import ConfigError, LostRecordsError, TopicError
from holdfast.kafka.fetching.records import Records
from holdfast.pipeline.folds.plan import EmitsWanted
from holdfast.pipeline.folds.results import emits_in
from holdfast.pipeline.folds.same_topics import require_same_topics
from holdfast.pipeline.folds.spilling import SpillingStore
from holdfast.pipeline.replay import ReplayOptions, replay
from holdfast.pipeline.topic import TopicLog, TopicReader, is_compacted, settle
from holdfast.pipeline.verify.emit_groups import EmitsApart, compared, compared_compacted
from holdfast.pipeline.verify.stored_emits import (
    ANYWHERE,
    EmitGroup,
    EmitPlace,
    StoredEmit,
    StoredEmits,
    body_of,
    told_apart,
)
from holdfast.pipeline.verify.table import LivePartition, read_live, refused_by, upto


@dataclass(frozen=True, slots=True, kw_only=True)
class EmitDifference:
    """The first record at which an emitted topic is not what a replay emits. *expected* None: a replay emits
    no such record; *found* None: it is missing, and *offset* with it; *partition* is -1 then if it has no
    key, since it may be in any. *key* is text as far as it is UTF-8.
    """

    topic: str
    partition: int
    offset: int | None
    key: str | None
    expected: str | None
    found: str | None

    def explain(self) -> str:
        """Return it in words."""
        where = (
            f"{self.topic} {'any partition' if self.partition == ANYWHERE else f'partition {self.partition}'}"
        )
        place = where if self.offset is None else f"{where} offset {self.offset}"
        return f"{place}, key {self.key!r}: expected {self.expected or 'none'}, found {self.found or 'none'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmittedTopic:
    """The verdict on one topic. *expected* and *found* are counts; *earlier* ones of those found are from
    before, from earlier versions, and were not compared.
    """

    topic: str
    expected: int
    found: int
    earlier: int = 0
    difference: EmitDifference | None = None

    @property
    def equal(self) -> bool:
        return self.difference is None


@dataclass(frozen=True, slots=True, kw_only=True)
class EmitsVerdict:
    """The verdict on the emits of a live table against those that its source makes. *cut* names topics that
    have lost their heads, and *compacted* those whose records may be gone after later ones: only the rest of
    either was compared.
    """

    processor: str
    version: int
    engine: str
    records: int
    topics: tuple[EmittedTopic, ...] = field(default_factory=tuple)
    cut: tuple[str, ...] = ()
    compacted: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        return all(each.equal for each in self.topics)

    def document(self) -> dict[str, Any]:
        """Return the verdict as JSON values."""
        topics = [{**asdict(each), "equal": each.equal} for each in self.topics]
        told = {"processor": self.processor, "version": self.version, "engine": self.engine}
        left = {"cut": list(self.cut), "compacted": list(self.compacted)}
        return {**told, "records": self.records, "equal": self.equal, **left, "topics": topics}


def verify_emits(
    processor: Processor[Any, Any], settings: Settings, options: ReplayOptions | None = None
) -> EmitsVerdict:
    """Fold the sources of *processor* up to the position of its live table, and compare its emits with the
    records in its topics.

    Workers may run at the same time. Records of other writers of these topics are reported as differences;
    those of earlier versions are not, since they come before. Of *options*, engine, source, lake,
    memory_bytes and spark count: about so much of the compared data is in memory, and all of it in a
    temporary file where there is more. Raises ConfigError for a processor without emits, LostRecordsError for
    a source that has lost what the table was folded from, BrokerError where a transaction stays open.
    """
    if not processor.emits:
        raise ConfigError(
            f"processor {processor.name} emits nothing: --emits is for processors that are declared with"
            " emits="
        )
    options = options or ReplayOptions()
    with closing(SpillingStore(options.memory_bytes)) as store:
        return _compared(processor, settings, options, store)


def _compared(
    processor: Processor[Any, Any], settings: Settings, options: ReplayOptions, store: SpillingStore
) -> EmitsVerdict:
    due = {each.partition: _place(each.marker) for each in read_live(processor, settings, rows=False)}
    names = [str(topic) for topic in processor.emits]
    # A transaction is committed before its markers are written, to each partition in its own time. So the
    # emits of those that the changelog shows may not be readable yet, and the changelog may not show those of
    # which emits were read.
    for name in names:
        settle(settings, name, _settle_s(settings))
    topics = {name: _Topic(settings, name, StoredEmits(store, number)) for number, name in enumerate(names)}
    settle(settings, processor.changelog(settings.app), _settle_s(settings))
    live = {each.partition: each for each in read_live(processor, settings, rows=False)}
    _check_partitions(processor, settings, live, due)
    first = processor.version == 1 and not any(each.base for each in live.values())
    exact = {str(topic) for topic in processor.emits if isinstance(topic, Internal) or first}
    if options.source == "topic":
        _check_heads(processor, settings, live)
    if options.source == "bronze":
        require_same_topics(processor, settings, str(options.lake))

    def expect(results: pa.RecordBatch) -> None:
        by_topic = defaultdict[str, list[tuple[int, bool, Emit]]](list)
        for partition, is_due, emit in emits_in(results):
            if partition in live:
                by_topic[emit.topic].append((partition, is_due, emit))
        for name, emits in by_topic.items():
            topics[name].expect(emits)

    handovers = {at: each.handover for at, each in live.items() if each.handover is not None}
    asked = replace(
        upto(processor, settings, options, {at: each.marker for at, each in live.items()}),
        rows=False,
        transitions=False,
        of_key=None,
        partitions=None,
        out=None,
        allow_holes=any(each.lost for each in live.values()),
        emits=EmitsWanted(handovers=handovers, due=due),
        refused=refused_by(live.values()),
        into=expect,
    )
    replayed = replay(processor, settings, asked)
    return EmitsVerdict(
        processor=processor.name,
        version=processor.version,
        engine=replayed.engine,
        records=replayed.records,
        topics=tuple(each.judge(exact=name in exact) for name, each in topics.items()),
        cut=tuple(name for name, each in topics.items() if each.cut),
        compacted=tuple(name for name, each in topics.items() if each.is_compacted),
    )


def _settle_s(settings: Settings) -> float:
    """Return the seconds to wait for transactions that are open: brokers look every 10 s for those of a
    worker that died.
    """
    return max(settings.request_timeout_s, settings.transaction_timeout_s + 15)


def _check_partitions(
    processor: Processor[Any, Any], settings: Settings, live: Collection[int], due: Collection[int]
) -> None:
    """Raise TopicError unless changelog and sources have the same partitions."""
    changelog = processor.changelog(settings.app)
    if set(live) != set(due):
        raise TopicError(
            f"{changelog} got partitions meanwhile: it had {len(due)}, and has {len(live)}. Run this again"
        )
    for topic in processor.topics:
        with TopicLog(settings, topic) as log:
            found = log.partitions()
        if set(found) != set(live):
            raise TopicError(
                f"{changelog} has {len(live)} partitions, the source {topic} has {len(found)}: they must be"
                " equal; check with `holdfast topics check`"
            )


def _place(position: Position) -> Handover:
    return Handover(HANDOVER_FORMAT, position.applied, position.choices)


def _check_heads(
    processor: Processor[Any, Any], settings: Settings, live: Mapping[int, LivePartition]
) -> None:
    """Raise LostRecordsError if a source has lost folded records."""
    form = stored_format(processor)
    bases = {
        at: form.decode(each.base.position).applied for at, each in live.items() if each.base is not None
    }
    for number, topic in enumerate(processor.topics):
        with TopicLog(settings, topic) as log:
            spans = log.spans()
        for partition, each in sorted(live.items()):
            begins = bases[partition][number] + 1 if partition in bases else each.lost.get(topic, 0)
            if each.applied != NOTHING_APPLIED and spans[partition].first > begins:
                raise LostRecordsError(
                    f"topic {topic} partition {partition} begins at offset {spans[partition].first}, and the"
                    f" table was folded from {begins} on: nothing can tell what it should have emitted"
                )


class _Topic:
    """The records found in an emitted topic, and those expected there, by partition and key."""

    def __init__(self, settings: Settings, name: str, emits: StoredEmits) -> None:
        self._name, self._emits = name, emits
        with TopicLog(settings, name) as log:
            spans = log.spans()
        self._count, self.is_compacted = len(spans), is_compacted(settings, name)
        self.cut = {partition for partition, span in spans.items() if span.first}
        with TopicReader(settings, name) as reader:
            for partition, span in sorted(spans.items()):
                for records, _ in reader.records(partition, span):
                    emits.find(_found(partition, records))

    def expect(self, emits: Iterable[tuple[int, bool, Emit]]) -> None:
        """Note the emits of source partitions, in order; those not due may have come after the topic was
        read.
        """
        first = self._emits.expected
        self._emits.expect(
            (self._place(emit), StoredEmit(source, number, is_due, body_of(emit.value, plain(emit.headers))))
            for number, (source, is_due, emit) in enumerate(emits, first)
        )

    def _place(self, emit: Emit) -> EmitPlace:
        key = emit.key.encode() if isinstance(emit.key, str) else emit.key
        if key is None:
            return EmitPlace(ANYWHERE, None)
        return EmitPlace(of_key(key, self._count) if emit.partition is None else emit.partition, key)

    def judge(self, *, exact: bool) -> EmittedTopic:
        """Return the verdict; unless *exact*, what lies before may be from earlier versions."""
        first, earlier = None, 0
        for group in self._emits.groups():
            apart, older = self._compared(group, exact=exact)
            earlier += older
            for each in apart:
                difference = self._difference(group.place, each)
                if first is None or _order(difference) < _order(first):
                    first = difference
        return EmittedTopic(
            topic=self._name,
            expected=self._emits.expected,
            found=self._emits.found,
            earlier=earlier,
            difference=first,
        )

    def _compared(self, group: EmitGroup, *, exact: bool) -> tuple[list[EmitsApart], int]:
        if self.is_compacted:
            return compared_compacted(group, exact=exact)
        at = group.place.partition
        return compared(group, exact=exact, is_cut=bool(self.cut) if at == ANYWHERE else at in self.cut)

    def _difference(self, place: EmitPlace, apart: EmitsApart) -> EmitDifference:
        found = apart.found
        told = told_apart(*(None if each is None else each.content(place.key) for each in apart))
        return EmitDifference(
            topic=self._name,
            partition=place.partition if found is None else found.part,
            offset=None if found is None else found.number,
            key=None if place.key is None else place.key.decode(errors="backslashreplace"),
            found=told[0],
            expected=told[1],
        )


def _found(partition: int, records: Records) -> Iterator[tuple[EmitPlace, StoredEmit]]:
    columns = (records.offsets, records.keys, records.values, records.headers)
    for offset, key, value, headers in zip(*columns, strict=True):
        if is_mark(headers):
            continue  # workers decide when they write one
        place = EmitPlace(ANYWHERE if key is None else partition, key)
        # A step's marks about origins begin where a worker that writes them took it over.
        yield place, StoredEmit(partition, offset, False, body_of(value, plain(headers)))


def _order(each: EmitDifference) -> tuple[int, bool, int, str]:
    """Return by what the first difference of a topic is found."""
    return each.partition, each.offset is None, each.offset or 0, each.key or ""


__all__ = ["EmitDifference", "EmitsVerdict", "EmittedTopic", "verify_emits"]
