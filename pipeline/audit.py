"""The audit of an outbox: the content of its destination topics, or of their bronze tables, against the
published numbers.

The fold is holdfast.core.producers.audit, run over whole partitions by the replay's engines, with the same
result. The leaders' own reports (`<outbox>.progress`) are read first and compared last, so that an outbox may
publish at the same time.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec

from holdfast.clock import system_clock
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.state.codec import ROW, RowCodec, text_key
from holdfast.core.outbox import progress as outbox_books
from holdfast.core.producers import audit as rules_of
from holdfast.core.producers.audit import AuditFinding, AuditRow, Rules, progress_topic
from holdfast.core.producers.audit_verdict import PartitionAudit, conclude
from holdfast.errors import ConfigError, LakeError
from holdfast.pipeline.bronze.commits import history_of, last_landed
from holdfast.pipeline.bronze.lake import bronze_path, open_table
from holdfast.pipeline.folds.results import Replayed
from holdfast.pipeline.replay import ReplayOptions, replay
from holdfast.pipeline.run import EngineChoice, Source
from holdfast.pipeline.spark.session import SparkOptions, open_session
from holdfast.pipeline.topic import TopicLog

SETTLE_POLL_S = 0.1
_UNFIT = re.compile(r"[^A-Za-z0-9_-]")
_OF_KEYS = ("k", "n")

Ends = Mapping[tuple[str, int], Mapping[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """The subject and the extent of an audit.

    *topics* empty means every topic that the outbox's leaders say they published to; then, and for *ends*,
    `rules.outbox` must be named. *ends* compares the last number of each producer with what its leaders say;
    None does for topics, and not for bronze, where it holds only if the progress topic was landed before the
    others. *settle_s* is how long transactions that are open may take to end. *by_key* says that every key
    belongs to its partition by murmur2 among those the topic has now; only for rows whose without that in
    their digest.
    """

    topics: tuple[str, ...] = ()
    rules: Rules = field(default_factory=Rules)
    engine: EngineChoice = "auto"
    source: Source = "topic"
    lake: str | None = None
    ends: bool | None = None
    settle_s: float = 30.0
    by_key: bool = False
    spark: SparkOptions = field(default_factory=SparkOptions)

    def __post_init__(self) -> None:
        if self.rules.outbox is None and (self.ends or not self.topics):
            raise ConfigError(
                "name the outbox, or the topics to audit: what its leaders say of themselves is found by its"
                " name"
            )
        if self.source == "bronze" and self.lake is None:
            raise ConfigError("an audit of bronze needs the lake: --lake DIR")

    @property
    def compares_ends(self) -> bool:
        """Return whether the last numbers are compared."""
        return self.rules.outbox is not None and (self.source == "topic" if self.ends is None else self.ends)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The result of an audit, by topic and partition. *notes* name the unproved parts, and why."""

    engine: str
    source: str
    partitions: tuple[PartitionAudit, ...]
    notes: tuple[str, ...] = ()

    @property
    def is_clean(self) -> bool:
        return all(each.is_clean for each in self.partitions)

    @property
    def findings(self) -> list[tuple[PartitionAudit, AuditFinding]]:
        """Return all findings, each with its partition."""
        return [(each, finding) for each in self.partitions for finding in each.findings]

    @property
    def audited(self) -> int:
        return sum(each.audited for each in self.partitions)

    def document(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        summary = (
            "topic",
            "partition",
            "first_offset",
            "records",
            "audited",
            "producers",
            "repeated",
            "undigested",
            "alike",
            "ends",
            "untold",
        )
        return {
            "engine": self.engine,
            "source": self.source,
            "clean": self.is_clean,
            "audited": self.audited,
            "notes": list(self.notes),
            "partitions": [
                {
                    **{name: getattr(each, name) for name in summary},
                    "findings": len(each.findings) + each.untold,
                }
                for each in self.partitions
            ],
            "findings": [finding_document(each, finding) for each, finding in self.findings],
        }


def finding_document(where: PartitionAudit, finding: AuditFinding) -> dict[str, Any]:
    """Return a finding with its position as JSON values."""
    return {
        "kind": str(finding.kind),
        "topic": where.topic,
        "partition": where.partition,
        "offset": finding.offset,
        "after": None if finding.after < 0 else finding.after,
        "producer": finding.producer or None,
        "epoch": None if finding.epoch < 0 else finding.epoch,
        "first": None if finding.first < 0 else finding.first,
        "last": None if finding.last < 0 else finding.last,
        "records": finding.records,
        "key": finding.key,
        "reason": finding.reason,
    }


def audit(settings: Settings, options: AuditOptions) -> AuditReport:
    """Audit the published records and return the findings; both engines find the same.

    Raises LakeError, TopicError, BrokerError and SparkError for what they say, ConfigError when no topic is
    known.
    """
    with contextlib.ExitStack() as stack:
        if options.engine == "spark":
            stack.enter_context(open_session(options.spark))  # one for all topics
        return _audit(settings, options)


def _audit(settings: Settings, options: AuditOptions) -> AuditReport:
    asks_leaders = options.compares_ends or not options.topics
    told = _told(settings, options) if asks_leaders else {}
    topics = options.topics or tuple(sorted({topic for topic, _ in told}))
    if not topics:
        raise ConfigError(
            f"outbox {options.rules.outbox} has published nothing yet: there is no topic to audit"
        )
    ends = told if options.compares_ends else None
    partitions: list[PartitionAudit] = []
    notes: list[str] = _began_again(settings, options) if asks_leaders else []
    engines: set[str] = set()
    for topic in topics:
        unsettled = (
            _unsettled(settings, topic, options.settle_s)
            if ends is not None and options.source == "topic"
            else set()
        )
        notes += [
            f"{topic} partition {each}: a transaction is open, so its last records are not compared with what"
            " the leaders say"
            for each in sorted(unsettled)
        ]
        rules = options.rules
        if options.by_key:
            rules = msgspec.structs.replace(rules, partitions=len(_firsts(settings, topic, options)))
        replayed = replay(auditor(topic, rules), settings, _replaying(options))
        engines.add(replayed.engine)
        firsts = _firsts(settings, topic, options)
        for summary in replayed.partitions:
            place = (topic, summary.partition)
            expected = None if ends is None or summary.partition in unsettled else ends.get(place, {})
            first = firsts.get(summary.partition, 0)
            if first:
                notes.append(
                    f"{topic} partition {summary.partition} begins at offset {first}: what was deleted before"
                    " it is not proved"
                )
            concluded = _concluded(replayed, place, rules, first, summary.records, expected)
            partitions.append(concluded)
            if concluded.alike:
                notes.append(
                    f"{topic} partition {summary.partition}: {concluded.alike} record(s) are like the one"
                    " before them of their key, under another number: the service wrote the row again, or it"
                    " was published again, as where a database does not delete it (`holdfast outbox check`);"
                    " --number HEADER tells which"
                )
    return AuditReport(
        engine="+".join(sorted(engines)),
        source=options.source,
        partitions=tuple(partitions),
        notes=tuple(notes),
    )


def auditor(topic: str, rules: Rules) -> Processor[rules_of.AuditedRecord, AuditRow]:
    """Return the audit of one topic as a processor; it emits nothing."""
    return Processor(
        name=f"audit-{_UNFIT.sub('-', topic)[:90]}",
        source=topic,
        decode=partial(rules_of.decode, rules=rules),
        fold=partial(rules_of.fold, rules=rules),
        row=AuditRow,
        inputs=rules_of.INPUTS,
    )


def _replaying(options: AuditOptions) -> ReplayOptions:
    return ReplayOptions(
        engine=options.engine, source=options.source, lake=options.lake, allow_holes=True, spark=options.spark
    )


def _concluded(
    replayed: Replayed,
    place: tuple[str, int],
    rules: Rules,
    first_offset: int,
    records: int,
    expected: Mapping[str, int] | None,
) -> PartitionAudit:
    topic, partition = place
    rows = _rows(replayed, partition, AuditRow, _OF_KEYS)
    refused = replayed.refused(partition)
    return conclude(
        topic,
        partition,
        rows,
        refused,
        rules=rules,
        first_offset=first_offset,
        records=records,
        expected=expected,
    )


def _rows(replayed: Replayed, partition: int, row: Any, but: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return a partition's rows by key, without those whose key has an excluded prefix."""
    decode = RowCodec[Any](row).decode
    found = ((text_key(key), value) for key, value in replayed.state(partition) if key[:1] == ROW)
    return {key: decode(value) for key, value in found if not key.startswith(but)}


# -- what the leaders say


def _told(settings: Settings, options: AuditOptions) -> Ends:
    """Return the last number of each producer, by topic and partition, as its leaders report it."""
    topic = progress_topic(str(options.rules.outbox))
    progress = Processor(
        name="audit-progress",
        source=topic,
        decode=outbox_books.decode,
        fold=outbox_books.fold,
        row=outbox_books.Reached,
        inputs=("key", "value", "offset"),
    )
    replayed = replay(progress, settings, replace(_replaying(options), engine="local"))
    reached: dict[tuple[str, int], dict[str, outbox_books.Reached]] = {}
    for summary in replayed.partitions:
        for key, row in _rows(replayed, summary.partition, outbox_books.Reached).items():
            name, partition, producer = key.split("/", 2)
            at = reached.setdefault((name, int(partition)), {})
            if options.rules.covers(producer) and (producer not in at or at[producer].epoch < row.epoch):
                at[producer] = row
    return {
        place: {producer: row.last_sequence for producer, row in at.items()}
        for place, at in reached.items()
        if at
    }


def _began_again(settings: Settings, options: AuditOptions) -> list[str]:
    """Return the leaders' reports of numbers of rows that began again."""
    numbers = Processor(
        name="audit-numbers",
        source=progress_topic(str(options.rules.outbox)),
        decode=outbox_books.decode_numbers,
        fold=outbox_books.fold_numbers,
        row=outbox_books.NumbersAgain,
        inputs=("key", "value", "headers"),
    )
    replayed = replay(numbers, settings, replace(_replaying(options), engine="local"))
    out = []
    for summary in replayed.partitions:
        for producer, row in _rows(replayed, summary.partition, outbox_books.NumbersAgain).items():
            if options.rules.covers(producer) and row.at_ms:
                at = datetime.fromtimestamp(row.at_ms / 1000, UTC).isoformat(timespec="seconds")
                out.append(
                    f"{producer}: the numbers of the rows began again, found at {at} after row"
                    f" {row.after} was published: the tables were restored, emptied with their numbers, or"
                    " are those of another database. What was committed before and is not in the topics is"
                    " not proved"
                )
    return out


def _unsettled(settings: Settings, topic: str, settle_s: float) -> set[int]:
    """Wait until readers of committed records may read all present records of *topic*; return the partitions
    where they may not in time.

    A transaction ends in one partition after the other: what the leaders say may be readable before the
    records it speaks of.
    """
    until_s = system_clock.monotonic_s() + settle_s
    with TopicLog(settings, topic) as log:
        partitions = log.partitions()
        written = log.written(partitions)
        while True:
            readable = log.ends(partitions)
            behind = {partition for partition in partitions if readable[partition] < written[partition]}
            if not behind or system_clock.monotonic_s() >= until_s:
                return behind
            time.sleep(SETTLE_POLL_S)


# -- where logs begin


def _firsts(settings: Settings, topic: str, options: AuditOptions) -> dict[int, int]:
    """Return the first offset of each partition's log.

    The call comes after the reading: records deleted in between are then known to be missing.
    """
    if options.source == "topic":
        with TopicLog(settings, topic) as log:
            return log.firsts(log.partitions())
    path = bronze_path(str(options.lake), topic)
    landed = last_landed(path, history_of(open_table(path)))
    if landed is None:
        raise LakeError(f"{path}: nothing was landed yet (`holdfast pipeline land`)")
    return dict(landed.begins)
