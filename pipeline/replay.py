"""Replaying any processor over its sources' whole history: the same decode and fold as live, the same bytes
as a result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.fold.skips import Skips
from holdfast.core.engine.positions import Position
from holdfast.errors import ConfigError
from holdfast.pipeline.bronze.extent import Until, check_holes
from holdfast.pipeline.folds.bases import read_bases
from holdfast.pipeline.folds.extent import ReadLimit
from holdfast.pipeline.folds.plan import EmitsWanted, FoldPlan, OtherVersion
from holdfast.pipeline.folds.replay_logs import ReplayLogs, open_logs
from holdfast.pipeline.folds.result_rows import RESULT, FoldSummary
from holdfast.pipeline.folds.results import Replayed, gather, given
from holdfast.pipeline.folds.same_topics import warn_of_other_topics
from holdfast.pipeline.folds.spilling import STATE_MEMORY_BYTES
from holdfast.pipeline.output import Format, Writer, written_by_spark
from holdfast.pipeline.run import Engine, EngineChoice, Source, SparkTasks, open_engine
from holdfast.pipeline.spark.errors import explained
from holdfast.pipeline.spark.session import SparkOptions
from holdfast.schemas import registry

Through = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """The subject and the extent of a replay.

    *source* "bronze" and "history" need *lake*. *until* None means all there is. *transitions* returns every
    change of a row (with *of_key*, table and key, of one row; with *of_prefixes* of those rows of the
    processor's own whose keys begin so), *rows* False only digests. *partitions* limits the replay to some.
    *out* is a folder to write the tables to, which must not exist; without it they are in memory.
    *allow_holes* folds a log whose beginning was deleted. *skips* None: those of the application, for bronze
    as the last landing noted them. *positions* replace *until* with the positions to come to. *emits* returns
    the emits as well. *refused* are records, by topic and offset, that are refused unread. With *other*
    another version is folded over the same records, and only the differences of the two are returned
    (holdfast/pipeline/folds/version_diff.py). About *memory_bytes* of a partition's state are in memory while
    it is folded, and all of it in a temporary file where there is more. The results of a partition go
    *through* a function where they are made: here, or in Spark's tasks, so that it can be pickled. All but
    summaries go *into* a function here, a part at a time and those of a partition in order, instead of being
    returned.
    """

    engine: EngineChoice = "auto"
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
    skips: Skips | None = None
    positions: Mapping[int, Position] | None = None
    emits: EmitsWanted | None = None
    refused: Mapping[int, frozenset[tuple[str, int]]] = field(default_factory=dict)
    through: Through | None = None
    into: Callable[[pa.RecordBatch], None] | None = None
    other: OtherVersion | None = None
    memory_bytes: int = STATE_MEMORY_BYTES
    spark: SparkOptions = field(default_factory=SparkOptions)

    def __post_init__(self) -> None:
        if self.source != "topic" and self.lake is None:
            raise ConfigError(f"replay from {self.source} needs the lake: --lake DIR")
        if self.until is not None and self.positions is not None:
            raise ConfigError("until and positions both say where to stop: give one")
        if self.into is not None and self.out is not None:
            raise ConfigError("into and out both say where results go: give one")


def replay(
    processor: Processor[Any, Any], settings: Settings, options: ReplayOptions | None = None
) -> Replayed:
    """Fold *processor* over its sources from the beginning, several in the order of the recorded choices, and
    return what comes of it; both engines give the same bytes.

    Raises LostRecordsError for a log with holes, PipelineError when *until* asks for more than there is,
    LakeError, TopicError, BrokerError and SparkError for what they say.
    """
    registry.use(settings)
    options = options or ReplayOptions()
    plan = _plan(processor, settings, options)
    if options.source == "bronze":
        warn_of_other_topics(processor, settings, str(options.lake))
    limit = ReadLimit(options.partitions, options.positions or {}, options.until)
    with ExitStack() as opened:
        logs = open_logs(plan, settings, options.source, options.lake, limit, options.skips)
        opened.enter_context(closing(logs))
        extent = logs.extent
        check_holes(extent.holes, allow_holes=options.allow_holes)
        engine = opened.enter_context(
            open_engine(
                options.engine,
                options.spark,
                options.source,
                task=f"replay of {processor.name}",
                what=logs.uri,
                offsets=extent.offsets,
                tasks=len(extent.partitions),
                processors=plan.processors,
            )
        )
        summaries, results = _results(engine, plan, logs, options)
    return Replayed(
        processor=processor.name,
        version=processor.version,
        engine=engine.name,
        partitions=summaries,
        results=results,
        skipped=extent.skipped(logs.skips, summaries),
        holes=extent.holes,
        bases={at: each.base for at, each in plan.bases.items()},
    )


def _plan(processor: Processor[Any, Any], settings: Settings, options: ReplayOptions) -> FoldPlan:
    has_bases = options.other is None and (processor.migrate or options.source != "bronze")
    return FoldPlan(
        processor=processor,
        rows=options.rows,
        transitions=options.transitions,
        of_key=options.of_key,
        of_prefixes=options.of_prefixes,
        emits=options.emits,
        refused=options.refused,
        later_timeout_s=settings.later_timeout_s,
        bases=read_bases(processor, settings) if has_bases else {},
        other=options.other,
        memory_bytes=options.memory_bytes,
    )


@dataclass(frozen=True, slots=True)
class _Replay:
    """The replay of a partition: the work of an engine."""

    plan: FoldPlan
    logs: ReplayLogs
    through: Through | None

    def __call__(self, partition: int) -> Iterator[pa.RecordBatch]:
        results = self.logs.fold(self.plan, partition)
        return results if self.through is None else self.through(results)


def _results(
    engine: Engine, plan: FoldPlan, logs: ReplayLogs, options: ReplayOptions
) -> tuple[tuple[FoldSummary, ...], pa.Table | None]:
    """Return the summaries, and all other results unless they go elsewhere."""
    partitions, work = logs.extent.partitions, _Replay(plan, logs, options.through)
    if options.out is None:
        run = engine.run
        if isinstance(engine, SparkTasks) and options.into is not None:
            run = engine.run_in_parts
        batches = run(partitions, work, RESULT)
        return gather(batches if options.into is None else given(options.into, batches), partitions)
    if isinstance(engine, SparkTasks):
        with explained(logs.uri):
            results = engine.frame(partitions, work, RESULT)
            return written_by_spark(results, options.out, options.format, plan, partitions), None
    with Writer(options.out, options.format, plan) as writer:
        return writer.write(engine.run(partitions, work, RESULT), partitions), None
