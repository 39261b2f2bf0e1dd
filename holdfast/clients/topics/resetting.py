"""The topics of an application that a reset deletes, and those that it leaves. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from holdfast.clients.topics.types import Processors, Severity, TopicFinding, TopicRole
from holdfast.config import Settings
from holdfast.core.engine.declared.streams import Internal


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetTopics:
    """The topics of an application by what a reset does to them.

    *deleted* are holdfast's own that exist, in all versions, with their roles; *outputs* are the other topics
    that folds emit to, *folded_outputs* those of them that the application folds itself, *global_outputs*
    into a global table; *left* are the topics that no reset touches.
    """

    deleted: tuple[tuple[str, TopicRole], ...]
    outputs: tuple[str, ...]
    folded_outputs: tuple[str, ...]
    global_outputs: tuple[str, ...]
    left: tuple[tuple[str, TopicRole], ...]

    @property
    def bases(self) -> tuple[str, ...]:
        """Those of *deleted* that hold rows which tables began with."""
        return tuple(topic for topic, role in self.deleted if role is TopicRole.BASE)


def reset_topics(settings: Settings, processors: Processors, existing: Iterable[str]) -> ResetTopics:
    """Return a reset's effect on the topics of an application, of which *existing* are on the cluster."""
    there = sorted(existing)
    patterns = [*_patterns(settings, processors)]
    deleted = tuple(
        (topic, role) for topic in there for pattern, role in patterns if pattern.fullmatch(topic)
    )
    folded = {str(topic) for each in processors for topic in each.topics}
    emitted = {str(topic) for each in processors for topic in each.emits if not isinstance(topic, Internal)}
    outputs = sorted(emitted.intersection(there))
    read = {each.topic for processor in processors for each in processor.reads}
    left: list[tuple[str, TopicRole]] = [
        (topic, TopicRole.GLOBAL if topic in read else TopicRole.SOURCE)
        for topic in sorted((folded | read).intersection(there) - emitted - {topic for topic, _ in deleted})
    ]
    kept = ((settings.quarantine_topic, TopicRole.QUARANTINE), (settings.skips_topic, TopicRole.SKIPS))
    left += [(topic, role) for topic, role in kept if topic in there]
    return ResetTopics(
        deleted=deleted,
        outputs=tuple(outputs),
        folded_outputs=tuple(topic for topic in outputs if topic in folded),
        global_outputs=tuple(topic for topic in outputs if topic in read),
        left=tuple(left),
    )


def _patterns(settings: Settings, processors: Processors) -> Iterator[tuple[re.Pattern[str], TopicRole]]:
    """Yield what the names of holdfast's own topics look like: of every version, for those of earlier ones
    hold state too.
    """
    for each in processors:
        name = re.escape(f"{settings.app}-{each.name}")
        yield re.compile(rf"{name}\.v[0-9]+-changelog"), TopicRole.CHANGELOG
        yield re.compile(rf"{name}\.v[0-9]+-base"), TopicRole.BASE
        yield re.compile(rf"{name}-choices(\.v[0-9]+)*"), TopicRole.CHOICES
    bases = {
        topic.base
        for each in processors
        for topic in (*each.topics, *each.emits)
        if isinstance(topic, Internal)
    }
    for base in sorted(bases):
        yield re.compile(rf"{re.escape(base)}\.v[0-9]+"), TopicRole.BETWEEN
    yield re.compile(re.escape(settings.workers_topic)), TopicRole.WORKERS


def under_way(settings: Settings) -> TopicFinding:
    """Return the fault while the topic of a reset exists: it was begun, and has not come to its end."""
    return TopicFinding(
        severity=Severity.ERROR,
        topic=settings.reset_topic,
        message=(
            f"says that a reset of {settings.app} was begun and has not ended: some of its state may be gone"
            " and some not"
        ),
        remedy="run `holdfast reset --execute` again, which ends it",
    )
