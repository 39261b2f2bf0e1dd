"""The logs that a replay reads: of each source, of the choices that record their order, and of the topics of
globals, from the topics, the lake, or both as one history.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa

from holdfast.config import Settings
from holdfast.core.engine.batches import Batch
from holdfast.core.engine.choices import Choice, decode_choice
from holdfast.core.engine.declared.global_tables import Global
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.sources import Input
from holdfast.core.engine.fold.skips import OffsetRanges, Skips
from holdfast.core.engine.merge.global_copies import GlobalLog, folded_by
from holdfast.core.engine.positions import Position
from holdfast.errors import LakeError, LostRecordsError, PipelineError
from holdfast.kafka.reading.skip_log import read_skips
from holdfast.pipeline.bronze.extent import Extent, extent_of_bronze, landed_of
from holdfast.pipeline.bronze.lake import Cut, Landed, bronze_path
from holdfast.pipeline.folds.bases import first_behind
from holdfast.pipeline.folds.extent import ReadLimit, ReplayExtent, extent_of
from holdfast.pipeline.folds.folding import fold_partition
from holdfast.pipeline.folds.partition_fold import FoldedState
from holdfast.pipeline.folds.plan import FoldPlan
from holdfast.pipeline.folds.result_rows import Results
from holdfast.pipeline.logs.joined import open_joined
from holdfast.pipeline.logs.kept_logs import KeptLogs
from holdfast.pipeline.logs.lake_log import LakeLog, open_bronze
from holdfast.pipeline.logs.record_log import OpenLog, RecordLog, left_of, open_topic
from holdfast.pipeline.run import Source
from holdfast.pipeline.topic import Span, settle

PULLED = 4
"""So many choices are remembered that were read last: a replay reads at most one ahead of what it folds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayLogs:
    """The log of each source, of the choices if their order is recorded, and of the globals' topics; and the
    extent to fold. It can be pickled. Close it when done.

    *numbers* are how many choices of each partition there were, where that is known, and *ids* Kafka's ids of
    the topics. *skips* are the omitted offsets, by topic.
    """

    sources: Mapping[str, RecordLog]
    choices: RecordLog | None
    tables: Mapping[str, RecordLog]
    extent: ReplayExtent
    skips: Mapping[str, Mapping[int, OffsetRanges]]
    ids: Mapping[str, str]
    numbers: Mapping[int, int] = field(default_factory=dict)
    kept: KeptLogs = field(default_factory=KeptLogs, repr=False, compare=False)
    """The logs of the topics of globals, as read so far."""

    @property
    def uri(self) -> str:
        """Return where the records are, for people."""
        logs = self.sources.values() if self.choices is None else (self.choices,)
        return ", ".join(each.uri for each in logs)

    def close(self) -> None:
        for each in (*self.sources.values(), *self.tables.values()):
            each.close()
        if self.choices is not None:
            self.choices.close()

    def fold(
        self,
        plan: FoldPlan,
        partition: int,
        state: FoldedState | None = None,
        results: Results | None = None,
        recorded: RecordedChoices | None = None,
        limit: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Fold one partition and yield its results; continue from *state*, if that is given with the choices
        *recorded* after it, for at most *limit* records.
        """
        extent = self.extent
        spans = {topic: found[partition] for topic, found in extent.spans.items()}
        if state is not None:
            spans = {
                topic: Span(first=min(max(span.first, applied + 1), span.end), end=span.end)
                for (topic, span), applied in zip(spans.items(), state.position.applied, strict=True)
            }
        read = zip(spans.items(), plan.source_inputs, strict=True)
        return fold_partition(
            plan,
            partition,
            [
                self._read(self.sources[topic], topic, inputs, partition, span)
                for (topic, span), inputs in read
            ],
            recorded or RecordedChoices(self, partition, first_choice(plan, partition)),
            [span.end for span in spans.values()],
            extent.stops.get(partition),
            open_end=extent.is_open(partition),
            upto=extent.upto.get(partition),
            open_global=self._open_global,
            state=state,
            results=results,
            limit=limit,
        )

    def _read(
        self, log: RecordLog, topic: str, inputs: Sequence[Input], partition: int, span: Span
    ) -> Iterator[tuple[Batch, int]]:
        return left_of(log.batches(inputs, partition, span), self.skips[topic].get(partition, ()))

    def _open_global(self, table: Global[Any]) -> dict[int, GlobalLog]:
        topic, inputs = table.topic, folded_by(table).folds[0].inputs
        logs: dict[int, GlobalLog] = {}
        for partition, span in self.extent.globals[topic].items():
            read = partial(self._read, self.tables[topic], topic, inputs, partition)
            found = self.kept.batches(topic, inputs, partition, span, read)
            logs[partition] = GlobalLog(found, span.end)
        return logs


class RecordedChoices:
    """The choices of a partition from the number *first* on, which are at the offset *start* or after it;
    LakeError when the table ends before the last that was landed.
    """

    def __init__(self, logs: ReplayLogs, partition: int, first: int, start: int = 0) -> None:
        self._logs, self._partition, self._first, self._start = logs, partition, first, start
        self._read = deque[tuple[int, int]](maxlen=PULLED)
        self._offset = start

    def __iter__(self) -> Iterator[Choice]:
        logs, partition, number = self._logs, self._partition, self._first
        if logs.choices is None:
            return
        where, upto = f"{logs.choices.uri} partition {partition}", logs.extent.upto.get(partition)
        for choice in choices_upto(self._values(logs.choices), upto, where, number):
            number = choice.number + 1
            self._read.append((number, self._offset + 1))
            yield choice
        wanted = logs.numbers.get(partition, 0) if upto is None else 0
        if number < wanted:
            raise LakeError(
                f"{where} ends before choice {number}, though {wanted} were landed: without them the order of"
                " the sources is not known. Restore the table, or land the processor in another lake"
            )

    def _values(self, log: RecordLog) -> Iterator[bytes | None]:
        span = self._logs.extent.choices[self._partition]
        rest = Span(first=min(max(span.first, self._start), span.end), end=span.end)
        for batch, _ in log.batches(("value",), self._partition, rest):
            for self._offset, value in zip(batch.offsets, batch.columns[0], strict=True):
                yield value

    def behind(self, number: int) -> int:
        """Return an offset at or after which all choices from *number* on are, once those before it were
        read.
        """
        return next((offset for each, offset in self._read if each == number), self._start)


def first_choice(plan: FoldPlan, partition: int) -> int:
    """Return the number of the first choice that is not in what a partition began with."""
    base = plan.bases.get(partition)
    return 0 if base is None else base.position.choices


def choices_upto(
    values: Iterable[bytes | None], upto: Position | None, where: str, first: int = 0
) -> Iterator[Choice]:
    """Yield the choices in *values* from the *first* on, as far as the position *upto* knows of them; raises
    PipelineError when one of these is missing.
    """
    number = first
    for value in values:
        if upto is not None and number >= upto.choices:
            return
        choice = decode_choice(value)
        if choice.number < first:
            continue
        number = choice.number + 1
        yield choice
    if upto is not None and number < upto.choices:
        raise PipelineError(f"{where} ends before choice {upto.choices - 1}, which its table has obeyed")


# -- what there is


def open_logs(
    plan: FoldPlan,
    settings: Settings,
    source: Source,
    lake: str | None,
    limit: ReadLimit,
    skips: Skips | None = None,
) -> ReplayLogs:
    """Return the logs of *source* as far as *limit*, else all there is. *skips* are the application's; None:
    as the cluster has them, or for the lake alone as the last landings noted them.

    LostRecordsError when choices were deleted, since nothing else records the order; LakeError for tables
    that differ from the landed data; whatever `open_joined` raises.
    """
    processor = plan.processor
    if source == "bronze":
        return LandedTables.open(processor, settings.app, str(lake)).logs(plan, limit, skips)
    skips = read_skips(settings) if skips is None else skips
    opened = partial(_open, settings, None if source == "topic" else lake, skips, limit)
    # Sources come first: whatever was folded of them by then is in the order of the choices. These may know
    # of later records, where the replay ends. What they name of globals was there before.
    sources = {
        topic: opened(topic, first_behind(plan.bases, number))
        for number, topic in enumerate(processor.topics)
    }
    choices = {}
    for topic in processor.choices_topics(settings.app):
        settle(settings, topic, settings.request_timeout_s)
        choices[topic] = opened(topic, {})
    tables = {topic: opened(topic, {}) for topic in _global_topics(processor)}
    return _logs(plan, sources, choices, tables, limit)


def _open(
    settings: Settings,
    lake: str | None,
    skips: Skips,
    limit: ReadLimit,
    topic: str,
    begin: Mapping[int, int],
) -> OpenLog:
    if lake is None:
        return open_topic(settings, topic, skips.of_topic(topic), begin, limit.partitions)
    return open_joined(settings, topic, lake, skips.of_topic(topic), begin)


def _global_topics(processor: Processor[Any, Any]) -> list[str]:
    return list(dict.fromkeys(each.topic for each in processor.reads))


def _logs(
    plan: FoldPlan,
    sources: Mapping[str, OpenLog],
    choices: Mapping[str, OpenLog],
    tables: Mapping[str, OpenLog],
    limit: ReadLimit,
    where: str = "",
) -> ReplayLogs:
    """Return the part of *sources* to fold; *choices* has one log, or none."""
    if holes := [hole for each in choices.values() for hole in each.holes]:
        raise LostRecordsError(
            f"{'; '.join(holes)}: in which order the sources were folded is not known any more"
        )
    extent = extent_of(
        plan,
        {topic: each.spans for topic, each in sources.items()},
        {topic: each.spans for topic, each in choices.items()},
        limit,
        where,
    )
    folded = {**tables, **sources}
    return ReplayLogs(
        sources={topic: each.log for topic, each in sources.items()},
        choices=next((each.log for each in choices.values()), None),
        tables={topic: each.log for topic, each in tables.items()},
        extent=replace(
            extent,
            holes=(
                *(hole for each in sources.values() for hole in each.holes),
                *(f"{hole}, which the global folds" for each in tables.values() for hole in each.holes),
            ),
            globals={topic: each.spans for topic, each in tables.items()},
        ),
        skips={topic: each.skips for topic, each in folded.items()},
        ids={topic: each.topic_id for topic, each in {**folded, **choices}.items()},
    )


class LandedTable(NamedTuple):
    """The files of one version of a bronze table, and what its last landing said of itself."""

    path: str
    files: LakeLog
    landed: Landed

    @classmethod
    def open(cls, path: str) -> LandedTable:
        """Open the table at *path*; LakeError where nothing was landed in it yet."""
        files, landed = open_bronze(path)
        return cls(path, files, landed_of(landed, path))

    def extent(self, app: str, begin: Mapping[int, int] = MappingProxyType({})) -> Extent:
        return extent_of_bronze(self.landed, self.path, app, begin=begin)

    def log(self, app: str, begin: Mapping[int, int] = MappingProxyType({})) -> OpenLog:
        extent, landed = self.extent(app, begin), self.landed
        return OpenLog(self.files, extent.spans, landed.skips(app), extent.holes, landed.topic_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class LandedTables:
    """The tables of the choices, sources and globals of a processor, each opened once: to open one costs its
    log and its history.

    The choices are opened first, so that the sources reach at least as far as their *cut* says.
    """

    app: str
    choices: Mapping[str, LandedTable]
    cut: Cut | None
    sources: Mapping[str, LandedTable]
    tables: Mapping[str, LandedTable]

    @classmethod
    def open(cls, processor: Processor[Any, Any], app: str, lake: str) -> LandedTables:
        """Open the present tables of *lake*; LakeError if they differ from the landed data."""
        choices = {
            topic: LandedTable.open(bronze_path(lake, topic)) for topic in processor.choices_topics(app)
        }
        cuts = [cut_of(each.landed, each.path, processor.name) for each in choices.values()]
        return cls(
            app=app,
            choices=choices,
            cut=next(iter(cuts), None),
            sources={topic: LandedTable.open(bronze_path(lake, topic)) for topic in processor.topics},
            tables={topic: LandedTable.open(bronze_path(lake, topic)) for topic in _global_topics(processor)},
        )

    def logs(
        self,
        plan: FoldPlan,
        limit: ReadLimit,
        skips: Skips | None = None,
        begin: Mapping[int, Position] | None = None,
    ) -> ReplayLogs:
        """Return the part of the tables to fold: up to *limit*, else as far as the sources had been landed
        when the choices were. Records before the positions in *begin*, by partition, are not needed, by
        default those before the first states. *skips* replace those that the last landings noted.
        """
        begin = {at: each.position for at, each in plan.bases.items()} if begin is None else begin
        sources = {
            topic: self._source(topic, {at: each.applied[number] + 1 for at, each in begin.items()})
            for number, topic in enumerate(self.sources)
        }
        if skips is not None:
            sources = {topic: each._replace(skips=skips.of_topic(topic)) for topic, each in sources.items()}
        choices = {topic: table.log(self.app) for topic, table in self.choices.items()}
        tables = {topic: table.log(self.app) for topic, table in self.tables.items()}
        found = _logs(plan, sources, choices, tables, limit, " in the lake")
        return found if self.cut is None else replace(found, numbers=self.cut.numbers)

    def _source(self, topic: str, begin: Mapping[int, int]) -> OpenLog:
        """Return the part to read of the table of a source: up to the cut, if there is one."""
        table, cut = self.sources[topic], self.cut
        found = table.log(self.app, begin)
        if cut is None:
            return found
        if (ends := cut.sources.get(topic)) is None:
            raise LakeError(
                f"the choices were landed with the sources {', '.join(cut.sources)}, not with {topic}: give a"
                " processor of other sources another name"
            )
        spans: dict[int, Span] = {}
        for partition, end in ends.items():
            reached = found.spans.get(partition)
            if reached is None or reached.end < end:
                raise LakeError(
                    f"{table.path} partition {partition} ends at offset"
                    f" {0 if reached is None else reached.end}, but was landed up to {end} when the choices"
                    " were: it was put back to an older state; land the processor again"
                )
            spans[partition] = Span(first=min(reached.first, end), end=end)
        return found._replace(spans=spans)


def cut_of(landed: Landed, path: str, name: str) -> Cut:
    """Return the offsets of the sources of processor *name* when its choices were landed."""
    if landed.cut is None:
        raise LakeError(
            f"{path} has no position up to which the sources were landed: land them with the choices "
            f"(`holdfast pipeline land --processor {name}`)"
        )
    return landed.cut
