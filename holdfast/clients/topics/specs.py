"""The topics that an application needs, and the configuration of each. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from holdfast.clients.topics.types import ClusterTopics, Processors, TopicRole, TopicSpec
from holdfast.config import Settings
from holdfast.core.claims.resets import RESETS_TOPIC
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.retention import configured_ms, retentions
from holdfast.core.engine.declared.streams import Internal
from holdfast.core.engine.fold.folding import LIMIT_BYTES
from holdfast.core.engine.state.rows import LIMIT_KEY_BYTES

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
DEFAULT_MESSAGE_BYTES = 1_048_588
"""Kafka's own limit of a record batch (`max.message.bytes`)."""
BATCH_BYTES = 1024
"""The size of a record batch of one record besides its key, value and headers, and to spare."""
EMIT_BYTES = LIMIT_BYTES + BATCH_BYTES
ROW_BYTES = LIMIT_BYTES + LIMIT_KEY_BYTES + BATCH_BYTES
"""The least limit of a topic by which no emit, and no row, that the fold's own limit allows is refused."""


UNPACKED = {"compression.type": "uncompressed"}
"""For every topic that is holdfast's own. A broker unpacks compressed batches and refuses those that are then
larger than max.message.bytes: so a client cannot put a batch there that its readers cannot unpack.
"""
_LOG = {"cleanup.policy": "delete", "message.timestamp.type": "LogAppendTime"}
# Rebuilt from a log that has lost its beginning, a registry would give out epochs that others have had, and
# ranges begin again.
_FOREVER = _LOG | {"retention.ms": "-1"}
_CHANGELOG = UNPACKED | {
    "cleanup.policy": "compact",
    "message.timestamp.type": "LogAppendTime",
    "min.cleanable.dirty.ratio": "0.1",
    "segment.ms": str(HOUR_MS),
    "delete.retention.ms": str(DAY_MS),
}
_LATEST = _CHANGELOG
"""For topics of which only the last record of each key counts: the workers' claims, and the skips."""
_CHOICES = _FOREVER | UNPACKED
"""Choices are a part of the sources' history: without one of them the sources cannot be folded again."""
_BASE = _FOREVER | UNPACKED
_ROOM = {"max.message.bytes": str(DEFAULT_MESSAGE_BYTES)}  # whatever the brokers' own limit is
_QUARANTINE = (
    _LOG | UNPACKED | {"max.message.bytes": str(4 * DEFAULT_MESSAGE_BYTES), "retention.ms": str(90 * DAY_MS)}
)


def topic_names(settings: Settings, processors: Processors) -> list[str]:
    """Return the names of every topic the application touches, sorted."""
    names = {settings.quarantine_topic, settings.workers_topic, settings.skips_topic}
    for processor in processors:
        names |= {*processor.topics, processor.changelog(settings.app), *map(str, processor.emits)}
        if processor.migrate:
            names.add(processor.base(settings.app))
        names |= {*processor.choices_topics(settings.app)}
        names |= {each.topic for each in processor.reads}
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
    """Return the specs of those of `beside_names` in *cluster*; they are not created here."""
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
    settings: Settings,
    processors: Processors,
    cluster: ClusterTopics,
    *,
    partitions: int | None = None,
    claims: bool = False,
) -> list[TopicSpec]:
    """Return every topic the application needs, each once, sources first; with *claims* also the
    coordination topic, for its services that claim partitions.

    Sources that exist keep their partition count; *partitions* is for those (and for emit topics) that must
    be created.
    """
    plan = _Plan(settings, processors, cluster, partitions)
    plan.add_sources()
    plan.add_globals()
    plan.add_tables()
    plan.add_emits()
    plan.add_own()
    if claims:
        plan.add_claims()
    plan.keep_as_declared()
    return list(plan.specs.values())


class _Plan:
    """The topics of an application, as they are found one after another: each step builds on those before
    it.
    """

    def __init__(
        self, settings: Settings, processors: Processors, cluster: ClusterTopics, partitions: int | None
    ) -> None:
        self._settings, self._processors = settings, processors
        self._cluster, self._partitions = cluster, partitions
        self._between = _between(settings, processors, cluster, partitions)
        self.specs: dict[str, TopicSpec] = {}

    def add_sources(self) -> None:
        between = self._between
        for processor in self._processors:
            counts = [
                (
                    between[name].partitions
                    if name in between
                    else self._cluster.partitions(name) or self._planned(name)
                )
                for name in processor.topics
            ]
            # Sources of one table that are made now get as many partitions as those that exist.
            known = next((count for count in counts if count), self._partitions)
            for name, count in zip(processor.topics, counts, strict=True):
                others = dict.fromkeys((each for each in processor.topics if each != name), processor.name)
                beside = {**(self.specs[name].beside if name in self.specs else {}), **others}
                found = between.get(name) or _source(self._settings, name, count or known)
                self.specs[name] = replace(found, beside=beside)

    def add_globals(self) -> None:
        specs, settings = self.specs, self._settings
        for name in sorted({each.topic for processor in self._processors for each in processor.reads}):
            if name in specs:  # folded as a source as well: it is kept all the same
                specs[name] = replace(specs[name], config={**specs[name].config, "retention.ms": "-1"})
            else:
                specs[name] = _spec(settings, name, TopicRole.GLOBAL, self._count(name), _FOREVER | _ROOM)
        if settings.ranges:
            # No table is folded from it here: its readers are the range consumers, each for itself.
            name = settings.ranges_topic
            specs.setdefault(name, _source(settings, name, self._count(name)))

    def add_tables(self) -> None:
        """Add what each table's state is kept in: its changelog, and what it began with and chose."""
        settings = self._settings
        for processor in self._processors:
            first = processor.topics[0]
            count = self.specs[first].partitions
            changelog = processor.changelog(settings.app)
            self.specs[changelog] = _spec(
                settings,
                changelog,
                TopicRole.CHANGELOG,
                count,
                _CHANGELOG | _ROOM,
                takes_bytes=ROW_BYTES,
                source=first,
            )
            if processor.migrate:
                base = base_spec(settings, processor, count)
                self.specs[base.name] = base
            for choices in processor.choices_topics(settings.app):
                self.specs[choices] = _spec(
                    settings, choices, TopicRole.CHOICES, count, _CHOICES, source=first
                )

    def add_emits(self) -> None:
        for processor in self._processors:
            for name in map(str, processor.emits):
                self.specs[name] = replace(self._emit(processor, name), takes_bytes=EMIT_BYTES)

    def _emit(self, processor: Processor[Any, Any], name: str) -> TopicSpec:
        """Return how a topic that *processor* emits to must be, which may be in the plan already as something
        else.
        """
        known, first = self.specs.get(name), processor.topics[0]
        wide = self.specs[first].partitions
        if name in self._between:
            return known or self._between[name]
        if known is not None and known.role is TopicRole.GLOBAL:
            return replace(known, partitions=wide) if processor.in_place else known
        if processor.in_place:
            return _spec(self._settings, name, TopicRole.EMIT, wide, _LOG | _ROOM, source=first)
        count = self._cluster.partitions(name) or self._partitions or wide
        return known or _spec(self._settings, name, TopicRole.EMIT, count, _LOG | _ROOM)

    def add_own(self) -> None:
        """Add the topics of the application's workers that belong to no table."""
        settings = self._settings
        folded = (TopicRole.SOURCE, TopicRole.COORDINATION, TopicRole.BETWEEN)
        widest = max((each.partitions or 0 for each in self.specs.values() if each.role in folded), default=0)
        quarantine, workers, skips = (
            settings.quarantine_topic,
            settings.workers_topic,
            settings.skips_topic,
        )
        # An application of agents alone has no source of holdfast's.
        alone = None if self._processors else self._partitions or 1
        count = self._cluster.partitions(quarantine) or widest or alone
        self.specs[quarantine] = _spec(settings, quarantine, TopicRole.QUARANTINE, count, _QUARANTINE)
        self.specs[workers] = _spec(settings, workers, TopicRole.WORKERS, 1, _LATEST)
        self.specs[skips] = _spec(settings, skips, TopicRole.SKIPS, 1, _LATEST)

    def add_claims(self) -> None:
        """Add the topic by which members of claim groups speak."""
        name = self._settings.coordination_topic
        self.specs.setdefault(name, _source(self._settings, name, self._count(name)))

    def keep_as_declared(self) -> None:
        """Set the sources' retention to the declared one, or to all."""
        settings, declared = self._settings, retentions(self._processors)
        for name, kept_ms in declared.items():
            self.specs[name] = _kept(self.specs[name], kept_ms)
        own = {settings.coordination_topic, settings.groups_topic, settings.ranges_topic}
        sources = {str(topic) for processor in self._processors for topic in processor.topics}
        for name in sources - declared.keys() - own:
            self.specs[name] = _whole(self.specs[name])

    def _count(self, name: str) -> int | None:
        return self._cluster.partitions(name) or self._partitions

    def _planned(self, name: str) -> int | None:
        found = self.specs.get(name)
        return None if found is None else found.partitions


def _whole(spec: TopicSpec) -> TopicSpec:
    """Return *spec* of a topic that tables are folded from, for which no retention is declared: made here it
    keeps all, for a version that begins later needs all.
    """
    if spec.role not in (TopicRole.SOURCE, TopicRole.EMIT):
        return spec
    return replace(spec, config={"retention.bytes": "-1", **_FOREVER, **spec.config})


def _kept(spec: TopicSpec, kept_ms: int) -> TopicSpec:
    """Return *spec* with a declared retention; a limit of bytes would end it earlier. What holdfast keeps for
    ever stays so.
    """
    wanted_ms = configured_ms(kept_ms)
    if int(spec.config.get("retention.ms", wanted_ms)) != wanted_ms:
        return spec
    config = {**spec.config, "retention.ms": str(wanted_ms), "retention.bytes": "-1"}
    return replace(spec, config=config, kept_ms=kept_ms)


def _between(
    settings: Settings, processors: Processors, cluster: ClusterTopics, partitions: int | None
) -> dict[str, TopicSpec]:
    """Return the specs of internal topics. They are kept until they are trimmed, for without them no table
    downstream of them can be folded again.

    One that exists keeps its partition count. A new one gets as many partitions as its (first) writer's
    source or, if its records are under other keys, as the topics that it is folded together with.
    """
    writers: dict[str, Processor[Any, Any]] = {}
    for each in processors:
        for topic in each.emits:
            if isinstance(topic, Internal):  # of several writers the first counts, as in `JoinForeign`
                writers.setdefault(str(topic), each)

    def folded_with(name: str, seen: frozenset[str]) -> set[str]:
        """Return the topics that a topic is folded together with, itself or as the output of steps that leave
        records in their partition.
        """
        found: set[str] = set()
        for each in processors:
            if name in each.topics:
                found |= {other for other in each.topics if other not in seen}
                for topic in map(str, each.emits if each.in_place else ()):
                    if topic not in seen:
                        found |= folded_with(topic, seen | {topic})
        return found

    def count(name: str, above: frozenset[str] = frozenset()) -> int | None:
        known = cluster.partitions(name)
        if known is not None or name not in writers or name in above:
            return known or partitions
        writer, above = writers[name], above | {name}
        if not writer.in_place:
            beside = folded_with(name, frozenset({name})) - above
            if counts := [found for other in sorted(beside) if (found := count(other, above))]:
                return max(counts)
        return max((found for topic in writer.topics if (found := count(topic, above))), default=None)

    return {
        name: _spec(
            settings,
            name,
            TopicRole.BETWEEN,
            count(name),
            _FOREVER | UNPACKED | _ROOM,
            takes_bytes=EMIT_BYTES,
            source=writer.topics[0],
        )
        for name, writer in writers.items()
    }


def _source(settings: Settings, name: str, partitions: int | None) -> TopicSpec:
    role = TopicRole.COORDINATION if name == settings.coordination_topic else TopicRole.SOURCE
    kept = name == settings.producers_topic or (settings.ranges and name == settings.ranges_topic)
    own = kept or name in (settings.coordination_topic, settings.groups_topic, settings.ranges_topic)
    return _spec(settings, name, role, partitions, (_FOREVER if kept else _LOG) | (UNPACKED if own else {}))


def base_spec(settings: Settings, processor: Processor[Any, Any], partitions: int | None) -> TopicSpec:
    """Return the topic that keeps what the table of *processor* began with."""
    name, source = processor.base(settings.app), processor.topics[0]
    return _spec(
        settings, name, TopicRole.BASE, partitions, _BASE | _ROOM, takes_bytes=ROW_BYTES, source=source
    )


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
