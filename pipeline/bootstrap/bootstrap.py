"""Builds a table version from history, so that workers continue with the next record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from holdfast.clients.groups.broker import BrokerGroups
from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.earlier_positions import earlier_positions
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.fold.skips import Skips
from holdfast.core.engine.positions import Position, counted
from holdfast.core.engine.state.codec import NOTHING_APPLIED
from holdfast.core.engine.upgrades import versions_on
from holdfast.errors import ConfigError, TopicError
from holdfast.kafka.reading.skip_log import read_skips
from holdfast.pipeline.bootstrap.migration import TableMigration
from holdfast.pipeline.bootstrap.sink import (
    OUTCOME,
    BootstrapOutcome,
    BootstrapStep,
    ChangelogSink,
    emits_to_others,
)
from holdfast.pipeline.bronze.extent import Until
from holdfast.pipeline.folds.plan import all_emits
from holdfast.pipeline.folds.result_rows import FoldSummary
from holdfast.pipeline.folds.same_topics import require_same_topics
from holdfast.pipeline.replay import ReplayOptions, replay
from holdfast.pipeline.run import Engine, ThisProcess, spark_tasks
from holdfast.pipeline.topic import TopicLog
from holdfast.pipeline.verify.table import LivePartition, kept_live


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapOptions:
    """The options of a bootstrap. Of *replay*, engine, source, lake, until and spark count.

    *emits* "suppress" sends no emits from before the position to topics outside of the application; "send"
    sends all of them, in the transaction of the state. Internal topics get everything in any case.
    """

    replay: ReplayOptions = field(default_factory=ReplayOptions)
    emits: Literal["suppress", "send"] = "suppress"
    migrate: bool = False
    """Begin with the rows of an earlier version, as `migrate=` declares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrappedPartition:
    """The outcome of a partition. *applied* is the position of its state (of several sources, how many of
    their offsets are in it, less one), -1 for none. A kept partition has nothing but its outcome.
    """

    partition: int
    outcome: BootstrapOutcome
    applied: int = NOTHING_APPLIED
    records: int = 0
    refused: int = 0
    rows: int = 0
    timers: int = 0
    emits: int = 0
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrapped:
    """The outcome of a bootstrap, by partition."""

    processor: str
    version: int
    engine: str
    partitions: tuple[BootstrappedPartition, ...]

    def document(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


def bootstrap(
    processor: Processor[Any, Any],
    settings: Settings,
    options: BootstrapOptions | None = None,
    *,
    told: Callable[[int, BootstrapStep], None] | None = None,
) -> Bootstrapped:
    """Fold the history of *processor* and write each partition's state to its changelog: in one transaction,
    after a fence.

    A partition that has a state is left alone, so that a bootstrap that was killed is finished by another
    one. Producers of the sources may continue. *told* is called with each step on the local engine. Raises
    ConfigError and GroupError where it must not be done, LostRecordsError where history has holes, and
    whatever `replay` raises.
    """
    options = options or BootstrapOptions()
    _check_options(options)
    require_alone(processor, settings, sends=options.emits == "send")
    # Of a table that is there, only what has begun is asked for.
    with kept_live(processor, settings, options.replay.memory_bytes) as live:
        _require_same_partitions(processor, settings, live)
        if options.replay.source == "bronze" and not options.migrate:
            require_same_topics(processor, settings, str(options.replay.lake))
        kept = [_kept(each) for each in live if each.has_begun]
        wanted = sorted({each.partition for each in live} - {each.partition for each in kept})
    if not wanted:
        return _report(processor, "", kept)
    make = _migrated if options.migrate else _folded
    engine, done = make(processor, settings, options, wanted, told)
    return _report(processor, engine, [*kept, *done])


_Done = tuple[str, list[BootstrappedPartition]]
"""The engine, and the outcome of each partition."""
_Told = Callable[[int, BootstrapStep], None] | None


def _migrated(
    processor: Processor[Any, Any],
    settings: Settings,
    options: BootstrapOptions,
    wanted: Sequence[int],
    told: _Told,
) -> _Done:
    """Begin the *wanted* partitions with the rows of an earlier version."""
    migration = TableMigration(processor, settings, *(() if told is None else (told,)))
    with ExitStack() as opened:
        engine: Engine = ThisProcess()
        if options.replay.engine == "spark":
            table = f"table {processor.table}"
            tasks = spark_tasks(options.replay.spark, f"migration of {table}", table, [processor])
            engine = opened.enter_context(tasks)
        return engine.name, [
            BootstrappedPartition(**{**each._asdict(), "outcome": BootstrapOutcome(each.outcome)})
            for each in migration.run(engine, wanted)
        ]


def _folded(
    processor: Processor[Any, Any],
    settings: Settings,
    options: BootstrapOptions,
    wanted: Sequence[int],
    told: _Told,
) -> _Done:
    """Fold the history of the *wanted* partitions."""
    suppressed = options.emits == "suppress"
    asked = options.replay
    if suppressed and emits_to_others(processor) and asked.until is None:
        asked = _upto_earlier(processor, settings, asked, wanted)
    sink = ChangelogSink(
        processor=processor,
        settings=settings,
        heads=_heads(processor, settings),
        allowed=_allowed(read_skips(settings)),
        suppressed=suppressed,
        **({} if told is None else {"told": told}),
    )
    told_emits = all_emits(processor, wanted, internal_alone=suppressed)
    asked = replace(asked, partitions=tuple(wanted), rows=True, emits=told_emits, through=sink)
    replayed = replay(processor, settings, asked)
    assert replayed.results is not None, "nothing is written to a folder"
    outcomes = {
        row["partition"]: (BootstrapOutcome(row["name"]), row["offset"])
        for row in replayed.results.to_pylist()
        if row["kind"] == OUTCOME
    }
    return replayed.engine, [
        _done(each, *outcomes.get(each.partition, (BootstrapOutcome.EMPTY, 0)))
        for each in replayed.partitions
    ]


def require_alone(processor: Processor[Any, Any], settings: Settings, *, sends: bool) -> None:
    """Raise GroupError while workers run whose partitions the fence would take, or who would emit what this
    *sends*: those of a version that shares its writers with another one, or is the first.
    """
    if not processor.builds_beside or (sends and processor.hands_over):
        BrokerGroups(settings, timeout_s=settings.request_timeout_s).require_stopped(settings.app)


def _check_options(options: BootstrapOptions) -> None:
    if options.replay.allow_holes:
        raise ConfigError(
            "a bootstrap needs a whole history: of one with holes workers build the table themselves, and"
            " note what is missing"
        )
    if options.replay.out is not None or options.replay.transitions:
        raise ConfigError("a bootstrap writes to the changelog alone: use `holdfast replay` for tables")


def _require_same_partitions(
    processor: Processor[Any, Any], settings: Settings, found: Sequence[LivePartition]
) -> None:
    """Raise TopicError where the changelog does not have the partitions of the sources."""
    for topic in processor.topics:
        with TopicLog(settings, topic) as log:
            if len(found) != len(partitions := log.partitions()):
                raise TopicError(
                    f"{processor.changelog(settings.app)} has {len(found)} partitions, the source {topic} has"
                    f" {len(partitions)}: they must be equal; check with `holdfast topics check`"
                )


def _heads(processor: Processor[Any, Any], settings: Settings) -> dict[str, dict[int, int]]:
    found = {}
    for topic in processor.topics:
        with TopicLog(settings, topic) as log:
            found[topic] = log.firsts(log.partitions())
    return found


def _allowed(skips: Skips) -> frozenset[tuple[str, int, int]]:
    return frozenset((each.topic, each.partition, each.first) for each in skips.all() if each.allowed)


# -- how far


def _upto_earlier(
    processor: Processor[Any, Any], settings: Settings, asked: ReplayOptions, partitions: Iterable[int]
) -> ReplayOptions:
    """Return the options of a replay up to where emits were sent before: later ones are for the workers to
    send.

    Those are the positions of earlier versions. Without any it is this version that has lost its changelog,
    and the group's offsets show how far it had come.
    """
    _require_comparable(processor, settings)
    found = earlier_positions(settings, [(processor, each) for each in partitions])
    stood = {at: position for (_, at), position in found.items()}
    known: dict[int, Position] = {at: each for at, each in stood.items() if each is not None}
    if not known:
        return replace(asked, until=_upto_committed(processor, settings, stood))
    if processor.choices_topics(settings.app):  # of which a position says how many were obeyed
        return replace(asked, positions=known)
    upto = {at: counted(each.applied) for at, each in known.items()}
    return replace(asked, until=Until(offsets=upto, at_most=True))


def _require_comparable(processor: Processor[Any, Any], settings: Settings) -> None:
    """Raise ConfigError if an earlier version read another internal topic: its offsets would be taken for
    those of this one.
    """
    counts = Admin(settings).partition_counts()
    versions = versions_on(
        settings.app, processor.name, counts, counts.get(processor.changelog(settings.app), 0)
    )
    if processor.internal and any(version < processor.version for version in versions):
        raise ConfigError(
            f"processor {processor.name} emits to {', '.join(map(str, processor.emits))} and reads"
            f" {processor.internal[0]}, an internal topic: its earlier version stood in another topic, so"
            " nothing tells up to where that is done in this one. Say where to stop (--until), or have all"
            " of it sent (--emits send)"
        )


def _upto_committed(processor: Processor[Any, Any], settings: Settings, partitions: Iterable[int]) -> Until:
    groups = BrokerGroups(settings, timeout_s=settings.request_timeout_s)
    committed = groups.committed(settings.app)
    if processor.named_sources or not any(topic in processor.topics for topic, _ in committed):
        raise ConfigError(
            f"processor {processor.name} emits to {', '.join(map(str, processor.emits))}, and nothing tells"
            " up to where that is done: there is no changelog of an earlier version, and group"
            f" {settings.app} has no offsets of its source. Say where to stop (--until), or have all of it"
            " sent (--emits send)"
        )
    topic = processor.topics[0]
    return Until(offsets={at: committed.get((topic, at), 0) - 1 for at in partitions}, at_most=True)


# -- outcomes


def _kept(live: LivePartition) -> BootstrappedPartition:
    return BootstrappedPartition(
        partition=live.partition, outcome=BootstrapOutcome.KEPT, applied=live.applied
    )


def _done(summary: FoldSummary, outcome: BootstrapOutcome, emits: int) -> BootstrappedPartition:
    return BootstrappedPartition(
        partition=summary.partition,
        outcome=outcome,
        applied=summary.applied,
        records=summary.records,
        refused=summary.refused,
        rows=summary.rows,
        timers=summary.timers,
        emits=emits,
        digest=summary.digest,
    )


def _report(
    processor: Processor[Any, Any], engine: str, partitions: list[BootstrappedPartition]
) -> Bootstrapped:
    in_order = tuple(sorted(partitions, key=lambda each: each.partition))
    return Bootstrapped(
        processor=processor.name, version=processor.version, engine=engine, partitions=in_order
    )
