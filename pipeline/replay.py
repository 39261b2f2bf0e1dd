"""Replaying any processor over its source's whole history: the same decode and fold as live, the same
bytes as a result.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.fold.skips import OffsetRanges, kept
from holdfast.core.engine.positions import Position, counted
from holdfast.errors import ConfigError
from holdfast.kafka.reading.skip_log import read_skips
from holdfast.pipeline.bronze.extent import (
    Extent,
    Until,
    check_holes,
    check_whole,
    extent_of_bronze,
    extent_of_topic,
)
from holdfast.pipeline.bronze.files import is_local, is_s3
from holdfast.pipeline.bronze.lake import Landed, bronze_path
from holdfast.pipeline.folds import local
from holdfast.pipeline.folds.bases import behind_bases, first_behind, read_bases
from holdfast.pipeline.folds.folding import RESULT, RESULT_DDL, EmitsWanted, FoldPlan, FoldSummary
from holdfast.pipeline.folds.merged import MergedTopics
from holdfast.pipeline.folds.merged_extent import merged_extent
from holdfast.pipeline.folds.paired import VersionBeside
from holdfast.pipeline.folds.results import Replayed, gather, given
from holdfast.pipeline.folds.same_topics import warn_of_other_topics
from holdfast.pipeline.folds.spilling import STATE_MEMORY_BYTES
from holdfast.pipeline.output import Format, Writer, written_by_spark
from holdfast.pipeline.progress import begin
from holdfast.pipeline.spark.pickling import modules_of
from holdfast.pipeline.spark.session import SparkOptions, cores_of, import_pyspark, open_session
from holdfast.pipeline.spark.shipping import ship
from holdfast.pipeline.topic import TopicLog
from holdfast.schemas import registry

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ReplayEngine = Literal["auto", "local", "spark"]
Source = Literal["topic", "bronze", "history"]
"""The source of records: the topic, its bronze table, or both as one history: the table up to its end, and
the topic from there.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """The subject and the extent of a replay.

    *source* "bronze" and "history" need *lake*. *until* None means all there is. *transitions* returns every
    change of a row (with *of_key*, table and key, of one row; with *of_prefixes* of those rows of the
    processor's own whose keys begin so), *rows* False only digests. *partitions* limits the replay to some.
    *out* is a folder to write the tables to, which must not exist; without it they are in memory.
    *allow_holes* folds a log whose beginning was deleted. *skips* None: the offsets that the application
    skips of the source, by its topic, or for bronze by the note of the last landing. *positions* replace
    *until*. *emits* returns the emits as well. *refused* are records, by topic and
    offset, that are refused unread. With *beside* another version is folded over the same records, and only
    the differences of the two are returned (holdfast/pipeline/folds/paired.py). About *memory_bytes* of a
    partition's state are in memory while it is folded, and all of it in a temporary file where there is more.
    Results go *through* a function where they are made: here, or in Spark's tasks, so that it can be pickled.
    All but summaries go *into* a function here, a part at a time and those of a partition in order, instead
    of being returned.
    """

    engine: ReplayEngine = "auto"
    source: Source = "topic"
    lake: str | None = None
    until: Until | None = None
    rows: bool = True
    transitions: bool = False
    of_key: tuple[str, str] | None = None
    of_prefixes: tuple[str, ...] = ()
    partitions: tuple[int, ...] | None = None
    out: str | None = None
    format: Format = "parquet"
    allow_holes: bool = False
    skips: Mapping[int, OffsetRanges] | None = None
    positions: Mapping[int, Position] | None = None
    emits: EmitsWanted | None = None
    refused: Mapping[int, frozenset[tuple[str, int]]] = field(default_factory=dict)
    through: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]] | None = None
    into: Callable[[pa.RecordBatch], None] | None = None
    beside: VersionBeside | None = None
    memory_bytes: int = STATE_MEMORY_BYTES
    spark: SparkOptions = field(default_factory=SparkOptions)

    def __post_init__(self) -> None:
        if self.source != "topic" and self.lake is None:
            raise ConfigError(f"replay from {self.source} needs the lake: --lake DIR")
        if self.until is not None and self.positions is not None:
            raise ConfigError("until and positions both say where to stop: give one")
        if self.into is not None and self.out is not None:
            raise ConfigError("into and out both say where results go: give one")


SPARK_START_S = 8.0
"""From a cold start to the first record folded, with the class archive in place."""
LOCAL_US: Mapping[Source, float] = {"topic": 2.5, "bronze": 1.3, "history": 1.3}
SPARK_US: Mapping[Source, float] = {"topic": 6.3, "bronze": 1.5, "history": 1.5}
"""Core time for one record, a cheap fold included: measured by bench/spark_replay.py, and for the topic with
Spark's connector.

A task that reads the bronze table's files itself costs little more than this process; through the connector,
records cross the JVM. Of one history most is in the table.
"""
MARGIN = 1.25


def choose_engine(source: Source, offsets: int, partitions: int, cores: int) -> Literal["local", "spark"]:
    """Return the engine that is done first, by clear odds: Spark when there is enough to share out among
    enough cores.

    Spark's tasks are one per partition, so it wins by the cores and partitions it can use at once, and loses
    its start. On two cores that is from some 25 million records in bronze on, and never from the topic.

    >>> [choose_engine("bronze", millions * 10**6, 16, 2) for millions in (1, 20, 40)]
    ['local', 'local', 'spark']
    >>> [choose_engine("topic", 100 * 10**6, 16, cores) for cores in (2, 4, 8)]
    ['local', 'spark', 'spark']
    >>> choose_engine("bronze", 10**9, 1, 64)
    'local'
    """
    useful = max(1, min(partitions, cores))
    local_s = offsets * LOCAL_US[source] / 1e6
    spark_s = SPARK_START_S + offsets * SPARK_US[source] / 1e6 / useful
    return "spark" if spark_s * MARGIN < local_s else "local"


def replay(
    processor: Processor[Any, Any], settings: Settings, options: ReplayOptions | None = None
) -> Replayed:
    """Fold *processor* over its source from the beginning and return what comes of it; both engines give the
    same bytes.

    Raises LostRecordsError for a log with holes, PipelineError when *until* asks for more than there is,
    LakeError, TopicError, BrokerError and SparkError for what they say.
    """
    registry.use(settings)
    options = options or ReplayOptions()
    plan = FoldPlan(
        processor=processor,
        rows=options.rows,
        transitions=options.transitions,
        of_key=options.of_key,
        of_prefixes=options.of_prefixes,
        emits=options.emits,
        refused=options.refused,
        later_timeout_s=settings.later_timeout_s,
        beside=options.beside,
        memory_bytes=options.memory_bytes,
    )
    if options.beside is None and (processor.migrate or options.source != "bronze"):
        plan = replace(plan, bases=read_bases(processor, settings))
    if options.source == "bronze":
        warn_of_other_topics(processor, settings, str(options.lake))
    if processor.on is not None:
        return _from_several(plan, settings, options)
    if options.positions is not None:
        offsets = {at: counted(each.applied) for at, each in options.positions.items()}
        options = replace(options, positions=None, until=Until(offsets=offsets))
    if options.until is not None and options.until.sources:
        raise ConfigError(
            f"processor {processor.name} folds one source: --until takes PARTITION:OFFSET of it"
        )
    if options.source != "bronze" and options.skips is None:
        options = replace(options, skips=read_skips(settings).of_topic(processor.topics[0]))
    if options.skips is not None:
        plan = replace(plan, skips=options.skips)
    match options.source:
        case "topic":
            return _from_topic(plan, settings, options)
        case "history":
            return _from_history(plan, settings, options)
        case _:
            return _from_bronze(plan, settings.app, options)


def _from_several(plan: FoldPlan, settings: Settings, options: ReplayOptions) -> Replayed:
    """Fold several sources in the order of the recorded choices, on Spark where that is asked for."""
    processor = plan.processor
    if options.source != "topic":
        return _from_several_tables(plan, settings, options)
    skips = read_skips(settings)
    by_topic = {
        topic: skips.of_topic(topic)
        for topic in (*processor.topics, *(each.topic for each in processor.reads))
    }
    extent = merged_extent(settings, plan, options.positions or {}, options.partitions, options.until)
    check_holes(extent.holes, allow_holes=options.allow_holes)
    topics = MergedTopics(settings=settings, plan=plan, extent=extent, skips=by_topic)
    partitions, skipped = extent.partitions, partial(extent.skipped, by_topic)
    if options.engine != "spark":
        begin(f"replay of {processor.name}", extent.offsets)
        return _told(plan, options, "local", topics.fold(partitions), partitions, skipped, extent.holes)
    what = f"topics {', '.join(processor.topics)}"
    return _on_spark(plan, options, what, topics.fold_named, partitions, skipped, extent.holes)


def _from_several_tables(plan: FoldPlan, settings: Settings, options: ReplayOptions) -> Replayed:
    from holdfast.pipeline.folds.merged_bronze import open_joined, open_several

    lake, wanted = str(options.lake), (options.positions or {}, options.partitions, options.until)
    if options.source == "history":
        files = open_joined(plan, settings, lake, *wanted)
    else:
        files = open_several(plan, settings.app, lake, *wanted)
    extent = files.extent
    check_holes(extent.holes, allow_holes=options.allow_holes)
    partitions, skipped = extent.partitions, partial(extent.skipped, files.skips)
    if options.engine != "spark":
        begin(f"replay of {plan.processor.name}", extent.offsets)
        batches = (batch for partition in partitions for batch in files.fold(partition))
        return _told(plan, options, "local", batches, partitions, skipped, extent.holes)
    return _on_spark(plan, options, files.choices.uri, files.fold_named, partitions, skipped, extent.holes)


def _on_spark(
    plan: FoldPlan,
    options: ReplayOptions,
    what: str,
    fold: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    partitions: Sequence[int],
    skipped: Callable[[Sequence[FoldSummary]], int],
    holes: tuple[str, ...],
) -> Replayed:
    """Fold each partition in a task that reads its log itself."""
    from holdfast.pipeline.folds import on_spark

    with _session(plan, options) as session:
        return on_spark.run(
            session,
            plan,
            what,
            lambda sort: on_spark.fold_each(session, partitions, fold),
            lambda results: _take(plan, options, partitions, results, skipped, holes),
        )


@contextmanager
def _session(plan: FoldPlan, options: ReplayOptions) -> Iterator[SparkSession]:
    """Give a Spark session; SparkError, before a JVM starts, when a processor cannot be sent to its
    workers.
    """
    import_pyspark()
    folded = [plan.processor, *([] if options.beside is None else [options.beside.other])]
    for each in folded:
        modules_of(each)
    begin(f"replay of {plan.processor.name} on Spark", None)
    with open_session(options.spark) as session:
        for each in folded[1:]:
            ship(session, each)
        yield session


def _from_topic(plan: FoldPlan, settings: Settings, options: ReplayOptions) -> Replayed:
    with TopicLog(settings, plan.processor.topics[0]) as log:
        extent = _wanted(
            behind_bases(extent_of_topic(log, options.until, first_behind(plan.bases)), plan.bases), options
        )
    if _engine(options, extent) == "local":
        return _finish(plan, options, extent, "local", local.fold_topic(settings, plan, extent))
    from holdfast.pipeline.folds import on_spark

    with _session(plan, options) as session:

        def make(sort: bool) -> DataFrame:
            if plan.bases:  # a partition has a state without any records
                return on_spark.fold_each(
                    session, extent.spans, partial(local.fold_topic_named, settings, plan, extent)
                )
            records, whole = on_spark.topic_records(session, settings, plan, extent)
            return on_spark.fold_records(records, plan, sort=sort or not whole, partitions=len(extent.spans))

        return on_spark.run(
            session,
            plan,
            f"topic {plan.processor.topics[0]}",
            make,
            lambda results: _take(
                plan, options, extent.spans, results, lambda _: _skipped(plan, extent), extent.holes
            ),
        )


def _from_bronze(plan: FoldPlan, app: str, options: ReplayOptions) -> Replayed:
    path = bronze_path(str(options.lake), plan.processor.topics[0])
    if options.engine == "spark" and not _tasks_read(path):
        return _from_far_bronze(plan, app, options, path)
    files, landed = local.open_bronze(path)
    later = (
        {} if options.until is None or options.until.at_ms is None else files.first_after(options.until.at_ms)
    )
    extent, plan = (
        _wanted(behind_bases(extent_of_bronze(landed, options.until, path, later, app), plan.bases), options),
        _noted(plan, app, options, landed),
    )
    if _engine(options, extent) == "local":
        return _finish(plan, options, extent, "local", local.fold_bronze(plan, files, extent))
    from holdfast.pipeline.folds import on_spark

    with _session(plan, options) as session:
        # The files are put in order before they are read, so there is nothing to sort on a second attempt.
        return on_spark.run(
            session,
            plan,
            path,
            lambda sort: on_spark.fold_files(session, plan, files, extent),
            lambda results: _take(
                plan, options, extent.spans, results, lambda _: _skipped(plan, extent), extent.holes
            ),
        )


def _from_history(plan: FoldPlan, settings: Settings, options: ReplayOptions) -> Replayed:
    from holdfast.pipeline.folds.joined import join

    topic, lake = plan.processor.topics[0], str(options.lake)
    joined = join(settings, topic, lake, plan.skips, first_behind(plan.bases))
    log, extent = joined.log, _wanted(behind_bases(joined.upto(options.until), plan.bases), options)
    if _engine(options, extent) == "local":
        return _finish(plan, options, extent, "local", log.fold(plan, extent.spans))
    from holdfast.pipeline.folds import on_spark

    with _session(plan, options) as session:

        def make(sort: bool) -> DataFrame:
            if _tasks_read(log.files.uri):
                return on_spark.fold_each(session, extent.spans, partial(log.fold_named, plan, extent.spans))
            records = on_spark.joined_records(session, settings, plan, log, extent)
            return on_spark.fold_records(records, plan, sort=True, partitions=len(extent.spans))

        return on_spark.run(
            session,
            plan,
            log.uri,
            make,
            lambda results: _take(
                plan, options, extent.spans, results, lambda _: _skipped(plan, extent), extent.holes
            ),
        )


def _noted(plan: FoldPlan, app: str, options: ReplayOptions, landed: Landed | None) -> FoldPlan:
    """Return the plan with what the last landing says is skipped, unless the options do."""
    return plan if options.skips is not None or landed is None else replace(plan, skips=landed.skips(app))


def _tasks_read(uri: str) -> bool:
    """Return whether tasks open a table's files themselves, in order: in a third of the processor time that
    Spark's own reading, shuffling and sorting takes, and in memory that does not grow with the partition.
    """
    return is_local(uri) or is_s3(uri)


def _from_far_bronze(plan: FoldPlan, app: str, options: ReplayOptions, path: str) -> Replayed:
    """Replay a table that Spark alone reads."""
    from holdfast.pipeline.folds import on_spark

    if plan.bases:
        raise ConfigError(
            f"table {plan.processor.table} began with rows of an earlier version, and Spark alone reads"
            f" {path}: read the topic, or a lake that this machine reads"
        )
    with _session(plan, options) as session:
        table = on_spark.SparkBronze(session, path)
        extent, noted = (
            _wanted(table.extent(options.until, app), options),
            _noted(plan, app, options, table.landed),
        )
        return on_spark.run(
            session,
            noted,
            path,
            lambda sort: on_spark.fold_records(
                table.records(noted, extent), noted, sort=True, partitions=len(extent.spans)
            ),
            lambda results: _take(
                noted, options, extent.spans, results, lambda _: _skipped(noted, extent), extent.holes
            ),
        )


def _wanted(extent: Extent, options: ReplayOptions) -> Extent:
    check_whole(extent, allow_holes=options.allow_holes)
    return extent.only(options.partitions)


def _engine(options: ReplayOptions, extent: Extent) -> Literal["local", "spark"]:
    if options.engine != "auto":
        return options.engine
    cores = cores_of(options.spark.master) if options.spark.in_one_jvm else os.cpu_count() or 1
    return choose_engine(options.source, extent.offsets, len(extent.spans), cores)


def _finish(
    plan: FoldPlan, options: ReplayOptions, extent: Extent, engine: str, batches: Iterable[pa.RecordBatch]
) -> Replayed:
    begin(f"replay of {plan.processor.name}", extent.offsets)
    return _told(plan, options, engine, batches, extent.spans, lambda _: _skipped(plan, extent), extent.holes)


def _told(
    plan: FoldPlan,
    options: ReplayOptions,
    engine: str,
    batches: Iterable[pa.RecordBatch],
    partitions: Iterable[int],
    skipped: Callable[[Sequence[FoldSummary]], int],
    holes: tuple[str, ...],
) -> Replayed:
    results: pa.Table | None = None
    batches = batches if options.through is None else options.through(batches)
    if options.out is None:
        summaries, results = gather(_given(options, batches), partitions)
    else:
        with Writer(options.out, options.format, plan) as writer:
            summaries = writer.write(batches, partitions)
    processor = plan.processor
    return Replayed(
        processor=processor.name,
        version=processor.version,
        engine=engine,
        partitions=summaries,
        results=results,
        skipped=skipped(summaries),
        holes=holes,
        bases={at: each.base for at, each in plan.bases.items()},
    )


def _given(options: ReplayOptions, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    return batches if options.into is None else given(options.into, batches)


def _skipped(plan: FoldPlan, extent: Extent) -> int:
    """Return the number of offsets of *extent* that are skipped."""
    left = sum(
        end - first
        for p, span in extent.spans.items()
        for first, end in kept(plan.skips.get(p, ()), span.first, span.end)
    )
    return extent.offsets - left


def _take(
    plan: FoldPlan,
    options: ReplayOptions,
    partitions: Collection[int],
    results: DataFrame,
    skipped: Callable[[Sequence[FoldSummary]], int],
    holes: tuple[str, ...],
) -> Replayed:
    """Return the results of a Spark job: through the driver, or written by the executors and only summed up
    here.
    """
    processor, table = plan.processor, None
    if options.through is not None:
        results = results.mapInArrow(options.through, RESULT_DDL)
    if options.into is not None:
        from holdfast.pipeline.folds.on_spark import taken_in_parts

        summaries, table = gather(_given(options, taken_in_parts(results)), partitions)
    elif options.out is None:
        summaries, table = gather(_no_chunks(results.toArrow()), partitions)
    else:
        summaries = written_by_spark(results, options.out, options.format, plan, partitions)
    return Replayed(
        processor=processor.name,
        version=processor.version,
        engine="spark",
        partitions=summaries,
        results=table,
        skipped=skipped(summaries),
        holes=holes,
        bases={at: each.base for at, each in plan.bases.items()},
    )


def _no_chunks(table: pa.Table) -> Iterator[pa.RecordBatch]:
    yield from table.cast(RESULT).to_batches()
