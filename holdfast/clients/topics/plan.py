"""What the topics of an application must look like, what would have to change, and what is wrong with those
that exist. Pure.

`holdfast.clients.topics.admin` looks at the cluster and carries out what is decided here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from holdfast.config import Settings
from holdfast.core.claims.resets import RESETS_TOPIC
from holdfast.core.engine.folding import LIMIT_BYTES
from holdfast.core.engine.processor import Processor
from holdfast.core.engine.rows import LIMIT_KEY_BYTES
from holdfast.errors import TopicError

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
DEFAULT_MESSAGE_BYTES = 1_048_588
"""Kafka's own limit of a record batch (`max.message.bytes`)."""
BATCH_BYTES = 1024
"""What a record batch of one record takes besides its key, value and headers, and to spare."""
EMIT_BYTES = LIMIT_BYTES + BATCH_BYTES
ROW_BYTES = LIMIT_BYTES + LIMIT_KEY_BYTES + BATCH_BYTES
"""What a topic must take so that no emit, and no row, that the fold's own limit allows is refused there."""


class TopicRole(StrEnum):
    """What a topic is to the application."""

    SOURCE = "source"
    COORDINATION = "coordination"
    CHANGELOG = "changelog"
    CHOICES = "choices"
    EMIT = "emit"
    QUARANTINE = "quarantine"
    WORKERS = "workers"
    SKIPS = "skips"
    BESIDE = "beside"
    """Holdfast's own, made and read by others than the application's workers."""


class Severity(StrEnum):
    """An error makes state wrong or a worker stop; a warning makes it worse than it could be."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """How one topic must be.

    *partitions* None: nobody has said, and the topic does not exist that could say.
    """

    name: str
    partitions: int | None
    config: Mapping[str, str]
    replication_factor: int
    role: TopicRole
    takes_bytes: int = 0
    """How large a record batch it must take at least."""
    source: str | None = None
    """The topic whose partitions it follows: of a changelog or of choices, and of a topic that a fold emits to in
    place.
    """
    beside: Mapping[str, str] = field(default_factory=dict)
    """Topics that must have as many partitions, since a processor folds both, and the names of the processors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """One partition as the cluster sees it; *leader* None when it has none."""

    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """One topic as it is."""

    name: str
    partitions: tuple[PartitionState, ...]
    config: Mapping[str, str] = field(default_factory=dict)
    overrides: Mapping[str, str] = field(default_factory=dict)
    """The part of *config* that was set for this topic and is not the cluster's default."""

    @property
    def replication_factor(self) -> int:
        """Return the replicas of the worst partition."""
        return min((len(partition.replicas) for partition in self.partitions), default=0)

    @property
    def internal(self) -> bool:
        """Tell whether Kafka keeps this topic for itself."""
        return self.name in (
            "__consumer_offsets",
            "__transaction_state",
            "__share_group_state",
            "__cluster_metadata",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTopics:
    """The brokers and those topics that were asked for."""

    brokers: tuple[int, ...]
    topics: Mapping[str, TopicState]

    def partitions(self, topic: str) -> int | None:
        """Return the partition count of *topic*, None when it does not exist."""
        found = self.topics.get(topic)
        return len(found.partitions) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopic:
    """Create a topic; its partition count is known."""

    spec: TopicSpec
    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfig:
    """Set these keys of an existing topic's configuration and leave the others."""

    topic: str
    config: Mapping[str, str]


TopicChange = CreateTopic | AlterConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFinding:
    """One thing that is not as it should be, and what to do."""

    severity: Severity
    topic: str
    message: str
    remedy: str


Processors = Sequence[Processor[Any, Any]]


def topic_names(settings: Settings, processors: Processors) -> list[str]:
    """Return the names of every topic the application touches, sorted."""
    names = {settings.quarantine_topic, settings.workers_topic, settings.skips_topic}
    for processor in processors:
        names |= {*processor.topics, processor.changelog(settings.app), *processor.emits}
        if processor.on is not None:
            names.add(processor.choices(settings.app))
    if settings.ranges:
        names.add(settings.ranges_topic)
    return sorted(names)


def beside_names(settings: Settings) -> list[str]:
    """Return the names of holdfast's own topics that the application's workers need not touch: what
    clients, groups and outboxes speak by.
    """
    outbox = settings.outbox_name or f"{settings.app}-outbox"
    names = {
        settings.coordination_topic,
        settings.groups_topic,
        settings.ranges_topic,
        settings.producers_topic,
        RESETS_TOPIC,
    }
    return sorted(
        names
        | {f"{settings.producers_topic}.answers"}
        | {f"{outbox}.{end}" for end in ("commands", "answers", "progress", "neli")}
    )


def specs_beside(settings: Settings, cluster: ClusterTopics) -> list[TopicSpec]:
    """Return how those of `beside_names` in *cluster* must be; nobody makes them here."""
    return [
        TopicSpec(
            name=name,
            partitions=cluster.partitions(name),
            config=UNPACKED,
            replication_factor=1,
            role=TopicRole.BESIDE,
        )
        for name in beside_names(settings)
        if name in cluster.topics
    ]


def specs_for(
    settings: Settings, processors: Processors, cluster: ClusterTopics, *, partitions: int | None = None
) -> list[TopicSpec]:
    """Return every topic the application needs, each once, sources first.

    Sources that exist keep their partition count; *partitions* is for those (and for emit topics) that must
    be created.
    """
    specs: dict[str, TopicSpec] = {}
    for processor in processors:
        counts = [cluster.partitions(name) or _planned(specs, name) for name in processor.topics]
        # Sources of one table that are made now get as many partitions as those that exist.
        known = next((count for count in counts if count), partitions)
        for name, count in zip(processor.topics, counts, strict=True):
            others = dict.fromkeys((each for each in processor.topics if each != name), processor.name)
            beside = {**(specs[name].beside if name in specs else {}), **others}
            specs[name] = replace(_source(settings, name, count or known), beside=beside)
    if settings.ranges:
        # No table is folded from it here: its readers are the range consumers, each for itself.
        name = settings.ranges_topic
        specs.setdefault(name, _source(settings, name, cluster.partitions(name) or partitions))
    for processor in processors:
        first = processor.topics[0]
        count = specs[first].partitions
        changelog = processor.changelog(settings.app)
        specs[changelog] = _spec(
            settings,
            changelog,
            TopicRole.CHANGELOG,
            count,
            _CHANGELOG | _ROOM,
            takes_bytes=ROW_BYTES,
            source=first,
        )
        if processor.on is not None:
            choices = processor.choices(settings.app)
            specs[choices] = _spec(settings, choices, TopicRole.CHOICES, count, _CHOICES, source=first)
    for processor in processors:
        first = processor.topics[0]
        count = partitions or specs[first].partitions
        for name in processor.emits:
            if processor.in_place:
                wide = specs[first].partitions
                specs[name] = _spec(settings, name, TopicRole.EMIT, wide, _LOG | _ROOM, source=first)
            else:
                specs.setdefault(
                    name,
                    _spec(settings, name, TopicRole.EMIT, cluster.partitions(name) or count, _LOG | _ROOM),
                )
            specs[name] = replace(specs[name], takes_bytes=EMIT_BYTES)
    widest = max(
        (
            spec.partitions or 0
            for spec in specs.values()
            if spec.role in (TopicRole.SOURCE, TopicRole.COORDINATION)
        ),
        default=0,
    )
    quarantine, workers = settings.quarantine_topic, settings.workers_topic
    count = cluster.partitions(quarantine) or widest or None
    specs[quarantine] = _spec(settings, quarantine, TopicRole.QUARANTINE, count, _QUARANTINE)
    specs[workers] = _spec(settings, workers, TopicRole.WORKERS, 1, _LATEST)
    specs[settings.skips_topic] = _spec(settings, settings.skips_topic, TopicRole.SKIPS, 1, _LATEST)
    return list(specs.values())


def _planned(specs: Mapping[str, TopicSpec], name: str) -> int | None:
    found = specs.get(name)
    return None if found is None else found.partitions


UNPACKED = {"compression.type": "uncompressed"}
"""Of every topic that is holdfast's own. A broker unpacks what comes compressed and refuses what is then
larger than max.message.bytes: so nobody can put a batch there that its readers cannot unpack."""
_LOG = {"cleanup.policy": "delete", "message.timestamp.type": "LogAppendTime"}
# Built anew from a log that has lost its beginning, a registry would give out epochs that others have had,
# and ranges begin again.
_FOREVER = _LOG | {"retention.ms": "-1"}
_CHANGELOG = UNPACKED | {
    "cleanup.policy": "compact",
    "message.timestamp.type": "LogAppendTime",
    "min.cleanable.dirty.ratio": "0.1",
    "segment.ms": str(HOUR_MS),
    "delete.retention.ms": str(DAY_MS),
}
_LATEST = _CHANGELOG
"""Of what is worth its last record for each key: who serves what, and what is skipped."""
_CHOICES = _FOREVER | UNPACKED
"""Choices are a part of the sources' history: without one of them nobody can fold the sources again."""
_ROOM = {"max.message.bytes": str(DEFAULT_MESSAGE_BYTES)}  # whatever the brokers' own limit is
_QUARANTINE = (
    _LOG | UNPACKED | {"max.message.bytes": str(4 * DEFAULT_MESSAGE_BYTES), "retention.ms": str(90 * DAY_MS)}
)


def _source(settings: Settings, name: str, partitions: int | None) -> TopicSpec:
    role = TopicRole.COORDINATION if name == settings.coordination_topic else TopicRole.SOURCE
    kept = name == settings.producers_topic or (settings.ranges and name == settings.ranges_topic)
    own = kept or name in (settings.coordination_topic, settings.groups_topic, settings.ranges_topic)
    return _spec(settings, name, role, partitions, (_FOREVER if kept else _LOG) | (UNPACKED if own else {}))


def _spec(
    settings: Settings,
    name: str,
    role: TopicRole,
    partitions: int | None,
    config: Mapping[str, str],
    *,
    takes_bytes: int = 0,
    source: str | None = None,
) -> TopicSpec:
    # With three replicas, two must have a record before it counts as written: then losing any one broker
    # loses nothing. With two, asking for both would stop all writing as soon as one is away.
    safe = {"min.insync.replicas": "2"} if settings.replication_factor >= 3 else {}
    return TopicSpec(
        name=name,
        partitions=partitions,
        config={**config, **safe},
        replication_factor=settings.replication_factor,
        role=role,
        takes_bytes=takes_bytes,
        source=source,
    )


_OURS = ("cleanup.policy", "compression.type", "message.timestamp.type", "min.insync.replicas")
ALTERABLE = {
    TopicRole.CHANGELOG: (*_OURS, "max.message.bytes"),
    TopicRole.CHOICES: (*_OURS, "retention.ms"),
    TopicRole.WORKERS: _OURS,
    TopicRole.SKIPS: _OURS,
    TopicRole.QUARANTINE: (
        "compression.type",
        "message.timestamp.type",
        "min.insync.replicas",
        "max.message.bytes",
    ),
    TopicRole.SOURCE: (
        "compression.type",
        "message.timestamp.type",
    ),  # the first only of those that are holdfast's own
    TopicRole.COORDINATION: ("compression.type", "message.timestamp.type"),
    TopicRole.EMIT: (),
    TopicRole.BESIDE: ("compression.type",),
}
"""What `plan(..., alter=True)` sets right on existing topics.

Never what could delete a record that someone else wrote.
"""


def plan(specs: Sequence[TopicSpec], cluster: ClusterTopics, *, alter: bool = False) -> list[TopicChange]:
    """Return what to do so that every topic exists, in order; with *alter* also so that existing ones are
    laid out right.

    Nothing is planned that cannot be taken back: partition counts and replicas of existing topics stay. A
    topic without a partition count is a TopicError.
    """
    actions: list[TopicChange] = []
    for spec in specs:
        state = cluster.topics.get(spec.name)
        if state is None:
            actions.append(CreateTopic(spec=spec, partitions=_count(spec)))
        elif alter and (changes := _changes(spec, state)):
            actions.append(AlterConfig(topic=spec.name, config=changes))
    return actions


def _count(spec: TopicSpec) -> int:
    if spec.partitions is None:
        missing = spec.source or spec.name
        raise TopicError(
            f"topic {missing} does not exist and nothing tells how many partitions it should have: pass --partitions N"
        )
    return spec.partitions


def _changes(spec: TopicSpec, state: TopicState) -> dict[str, str]:
    # Asking for two copies in sync of a topic that has fewer would stop every write to it.
    keys = [
        key
        for key in ALTERABLE[spec.role]
        if key in spec.config and (key != "min.insync.replicas" or state.replication_factor >= 3)
    ]
    return {
        key: spec.config[key]
        for key in keys
        if key in state.config and not _is_as_wanted(key, state.config[key], spec.config[key])
    }


def _is_as_wanted(key: str, found: str, wanted: str) -> bool:
    return int(found) >= int(wanted) if key == "max.message.bytes" else found == wanted


def check(specs: Sequence[TopicSpec], cluster: ClusterTopics) -> list[TopicFinding]:
    """Return what is wrong with the topics of an application, errors first."""
    findings = [finding for spec in specs for finding in _check_one(spec, cluster)]
    return sorted(findings, key=lambda finding: finding.severity is not Severity.ERROR)


def check_processors(settings: Settings, processors: Processors) -> list[TopicFinding]:
    """Return what is wrong with how processors are wired to topics, whatever the cluster looks like."""
    findings = []
    taken = {
        settings.quarantine_topic,
        settings.workers_topic,
        settings.skips_topic,
        *(processor.changelog(settings.app) for processor in processors),
        *(processor.choices(settings.app) for processor in processors if processor.on is not None),
    }
    for processor in processors:
        if settings.coordination_topic in processor.emits:
            message = f"processor {processor.name} emits to it in transactions; clients of the Marshal protocol hang on their markers"
            findings.append(_error(settings.coordination_topic, message, "emit to a topic of its own"))
        for topic in {*processor.topics, *processor.emits} & taken:
            message = f"processor {processor.name} reads or emits to a topic that holdfast keeps for itself"
            findings.append(_error(topic, message, "choose another topic"))
    return findings


def _error(topic: str, message: str, remedy: str) -> TopicFinding:
    return TopicFinding(severity=Severity.ERROR, topic=topic, message=message, remedy=remedy)


def _warning(topic: str, message: str, remedy: str) -> TopicFinding:
    return TopicFinding(severity=Severity.WARNING, topic=topic, message=message, remedy=remedy)


def _check_one(spec: TopicSpec, cluster: ClusterTopics) -> Iterator[TopicFinding]:
    state = cluster.topics.get(spec.name)
    if state is None:
        remedy = f"run `holdfast topics create{'' if spec.partitions else ' --partitions N'}`"
        if spec.role is TopicRole.SKIPS:  # an application made before there was one runs without it
            yield _warning(spec.name, "does not exist: no batch that cannot be read can be skipped", remedy)
            return
        yield _error(spec.name, f"does not exist ({spec.role})", remedy)
        return
    if spec.role is TopicRole.BESIDE:
        yield from _check_compression(spec, state)
        return
    yield from _check_partitions(spec, state, cluster)
    yield from _check_cleanup(spec, state)
    yield from _check_time(spec, state)
    yield from _check_compression(spec, state)
    yield from _check_replicas(spec, state)
    wanted, size = spec.config.get("max.message.bytes"), state.config.get("max.message.bytes")
    if size is not None and int(size) < spec.takes_bytes:
        what = "row" if spec.role is TopicRole.CHANGELOG else "record"
        message = f"max.message.bytes is {size}, and a fold may write a {what} that takes {spec.takes_bytes}: a partition would stand still at it"
        yield _error(spec.name, message, _alter(spec, f"max.message.bytes={DEFAULT_MESSAGE_BYTES}"))
    elif (
        spec.role is TopicRole.QUARANTINE
        and wanted is not None
        and size is not None
        and int(size) < int(wanted)
    ):
        message = f"max.message.bytes is {size}, so the largest records are quarantined without their value"
        yield _warning(spec.name, message, _alter(spec, f"max.message.bytes={wanted}"))


def _check_partitions(spec: TopicSpec, state: TopicState, cluster: ClusterTopics) -> Iterator[TopicFinding]:
    count = len(state.partitions)
    yield from _check_copartitioned(spec, count, cluster)
    if spec.role is TopicRole.CHOICES and spec.partitions is not None and count != spec.partitions:
        message = f"has {count} partitions but its source {spec.source} has {spec.partitions}; the choices of a partition live in the same one here"
        if count < spec.partitions:
            remedy = f"run kafka-topics --alter --topic {spec.name} --partitions {spec.partitions}"
        else:
            remedy = f"give the processor another name, which has choices of its own, and delete {spec.name}"
        yield _error(spec.name, message, remedy)
    if spec.role is TopicRole.CHANGELOG and spec.partitions is not None and count != spec.partitions:
        message = f"has {count} partitions but its source {spec.source} has {spec.partitions}; rows of a source partition live in the same one here"
        remedy = f"give the processor a new version, or delete {spec.name}, run `holdfast topics create` and let the state be rebuilt"
        yield _error(spec.name, message, remedy)
    if (
        spec.role is TopicRole.EMIT
        and spec.source is not None
        and spec.partitions is not None
        and count < spec.partitions
    ):
        message = f"has {count} partitions but {spec.source} has {spec.partitions}, and each record goes on into the partition it came by"
        yield _error(
            spec.name, message, f"run kafka-topics --alter --topic {spec.name} --partitions {spec.partitions}"
        )
    if spec.role in (TopicRole.WORKERS, TopicRole.SKIPS) and count != 1:
        yield _error(
            spec.name,
            f"has {count} partitions instead of 1",
            f"delete {spec.name} and run `holdfast topics create`",
        )
    lost = [partition.partition for partition in state.partitions if partition.leader is None]
    if lost:
        yield _error(
            spec.name, f"partitions {lost} have no leader", "bring back the brokers that hold their replicas"
        )


def _check_copartitioned(spec: TopicSpec, count: int, cluster: ClusterTopics) -> Iterator[TopicFinding]:
    """Yield an error for each topic that the same processor folds and that has more partitions: it is this one
    that partitions can be added to.
    """
    for other, name in spec.beside.items():
        wanted = cluster.partitions(other)
        if wanted is None or wanted <= count:
            continue
        message = (
            f"has {count} partitions but {other} has {wanted}, and processor {name} folds partition n of both into one table; "
            "records of one key must lie in the same partition of each"
        )
        remedy = (
            f"make both of {wanted}: while {spec.name} is empty run kafka-topics --alter --topic {spec.name} --partitions {wanted}, else have its "
            "producers (or a processor with emits) write it to a new topic of as many, and fold that"
        )
        yield _error(spec.name, message, remedy)


def _check_cleanup(spec: TopicSpec, state: TopicState) -> Iterator[TopicFinding]:
    policy = state.config.get("cleanup.policy")
    if policy is None:
        return
    if spec.role in (TopicRole.CHANGELOG, TopicRole.WORKERS, TopicRole.SKIPS) and policy != "compact":
        lost = "rows that do not change would be deleted in time and missing after a restore"
        if spec.role is TopicRole.SKIPS:
            lost = "skips would be deleted in time, and what they leave out would stop its partition, or be read, again"
        yield _error(spec.name, f"cleanup.policy is {policy}: {lost}", _alter(spec, "cleanup.policy=compact"))
    if spec.role is TopicRole.CHOICES and "compact" in policy:
        message = f"cleanup.policy is {policy}: choices would disappear, and without all of them nobody can fold the sources again"
        yield _error(spec.name, message, _alter(spec, "cleanup.policy=delete"))
    if spec.role is TopicRole.COORDINATION and "compact" in policy:
        message = f"cleanup.policy is {policy}: frames without a key are refused there, and claims could not be replayed"
        yield _error(spec.name, message, _alter(spec, "cleanup.policy=delete"))
    if spec.config.get("retention.ms") == "-1" and state.config.get("retention.ms", "-1") != "-1":
        lost = "what is built anew from the rest would forget names, epochs or what is done"
        if spec.role is TopicRole.CHOICES:
            lost = (
                "choices would be deleted in time, and without all of them nobody can fold the sources again"
            )
        message = f"retention.ms is {state.config['retention.ms']}: {lost}"
        yield _warning(spec.name, message, _alter(spec, "retention.ms=-1"))
    if spec.role is TopicRole.SOURCE and "compact" in policy:
        message = f"cleanup.policy is {policy}: records disappear from its history, so a rebuild or a replay may give other rows"
        yield _warning(spec.name, message, _alter(spec, "cleanup.policy=delete"))


def _check_time(spec: TopicSpec, state: TopicState) -> Iterator[TopicFinding]:
    kind = state.config.get("message.timestamp.type")
    if spec.role in (TopicRole.SOURCE, TopicRole.COORDINATION) and kind not in (None, "LogAppendTime"):
        message = f"message.timestamp.type is {kind}: `at_ms` is then the clock of whoever produced the record, which may be wrong or go back"
        yield _warning(spec.name, message, _alter(spec, "message.timestamp.type=LogAppendTime"))


def _check_compression(spec: TopicSpec, state: TopicState) -> Iterator[TopicFinding]:
    wanted, found = spec.config.get("compression.type"), state.config.get("compression.type")
    if wanted is not None and found not in (None, wanted):
        message = f"compression.type is {found}: whoever may write there can put a batch in it that its readers cannot unpack, and hold them up"
        yield _warning(spec.name, message, _alter(spec, f"compression.type={wanted}"))


def _check_replicas(spec: TopicSpec, state: TopicState) -> Iterator[TopicFinding]:
    found = state.replication_factor
    if found < spec.replication_factor:
        message = (
            f"has {found} replica(s) instead of {spec.replication_factor}: losing a broker may lose records"
        )
        yield _warning(
            spec.name, message, "add replicas with kafka-reassign-partitions, or lower replication_factor"
        )
    required = int(state.config.get("min.insync.replicas", 1))
    if required > found:
        message = f"min.insync.replicas is {required} with {found} replica(s): no write can succeed"
        yield _error(spec.name, message, _alter(spec, f"min.insync.replicas={max(1, found - 1)}"))
    elif found >= 3 and required < 2:
        message = f"min.insync.replicas is {required}: a record counts as written with one copy"
        yield _warning(spec.name, message, _alter(spec, "min.insync.replicas=2"))
    behind = [
        partition.partition
        for partition in state.partitions
        if len(partition.in_sync) < len(partition.replicas)
    ]
    if behind:
        yield _warning(
            spec.name,
            f"partitions {behind} have replicas that are not in sync",
            "look at the brokers that hold them",
        )
    if spec.role is not TopicRole.EMIT and state.config.get("unclean.leader.election.enable") == "true":
        message = "unclean.leader.election.enable is true: records that were acknowledged may be lost"
        yield _warning(spec.name, message, _alter(spec, "unclean.leader.election.enable=false"))


def _alter(spec: TopicSpec, assignment: str) -> str:
    remedy = f"kafka-configs --alter --entity-type topics --entity-name {spec.name} --add-config {assignment}"
    key, _, value = assignment.partition("=")
    ours = key in ALTERABLE[spec.role] and spec.config.get(key) == value
    return f"run `holdfast topics create --alter` or {remedy}" if ours else f"run {remedy}"
