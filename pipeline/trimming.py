"""Deletes from source topics the records that a lake holds, and never more than all downstream readers have
taken in.

The deleted part of a partition is before the offset that the lake has landed to, before the position of each
version of each table that folds the topic, and before the committed offsets of named consumer groups. Where
anything may be deleted, the rows of the lake are compared with the records first. A run that is cut between
two partitions begins again: nothing is noted, and everything is judged again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.clients.groups.broker import BrokerGroups
from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.application import require_topics
from holdfast.clients.topics.chain_state import last_positions
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.retention import landed_topics
from holdfast.core.engine.declared.streams import Internal
from holdfast.core.engine.positions import earlier_format, position_format
from holdfast.core.engine.upgrades import in_version, versions_on
from holdfast.core.kafka.topic_partition import Place
from holdfast.errors import ChangelogError, ConfigError, LakeError, PipelineError
from holdfast.pipeline.bronze.commits import history_of, last_landing
from holdfast.pipeline.bronze.lake import Landed, bronze_path, open_table
from holdfast.pipeline.checks.check import check_table

Needs = Mapping[str, int]
"""The next offset of a partition that a reader needs, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTrim:
    """The part of a partition that may be deleted: the offsets from *first* to *before*, which stays.
    *held_by* is the reader that needs that next; "" without one.
    """

    topic: str
    partition: int
    first: int
    before: int
    held_by: str

    @property
    def offsets(self) -> int:
        """Return the number of offsets that are deleted."""
        return self.before - self.first


class LandedTrim:
    """The trimming of some source *topics* of an application, once *lake* holds their records; None means all
    that its processors fold.

    *groups* are consumer groups besides the tables: records that they have not committed stay. *agents_read*
    are topics that ordinary agents of the application read. Topics that are declared with retention "landed"
    may be named though no processor folds them. Raises ConfigError for a topic that must not be trimmed.
    """

    def __init__(
        self,
        settings: Settings,
        processors: Sequence[Processor[Any, Any]],
        lake: str,
        *,
        topics: Sequence[str] | None = None,
        groups: Iterable[str] = (),
        agents_read: Collection[str] = (),
    ) -> None:
        self._settings, self._processors, self._lake = settings, processors, lake
        self._agents_read, self._admin = agents_read, Admin(settings)
        self._groups = [*groups]
        folded = sources_of(processors)
        self.topics = sorted(folded) if topics is None else list(topics)
        known = folded | landed_topics(processors)
        for topic in self.topics:
            _require_trimmable(topic, known, processors)

    def plan(self) -> list[PartitionTrim]:
        """Return the offsets that may be deleted, by topic and partition. Where there are any, compare every
        landed record that the topic still holds with the lake's row.

        Raises LakeError where these differ, or where the table is of another topic; TopicError while the
        application's topics are wrong, as in the middle of a reset; ChangelogError for a position of an
        earlier version without a position in the topic.
        """
        require_topics(self._settings, self._processors, admin=self._admin)
        return [each for topic in self.topics for each in self._plan_topic(topic)]

    def trim(self, plan: Iterable[PartitionTrim]) -> None:
        """Delete what *plan* says."""
        before = {(each.topic, each.partition): each.before for each in plan if each.offsets}
        if before:
            self._admin.delete_before(before)

    def _plan_topic(self, topic: str) -> Iterator[PartitionTrim]:
        # The lake first: records folded or committed later only lie further on.
        landed = _landed(topic, self._lake)
        count = self._admin.partition_counts()[topic]
        places = [(topic, partition) for partition in range(count)]
        bounds = self._admin.offsets(places)
        needs = self._needs(topic, count)
        found = [
            _trim_of(
                place, *bounds[place], {**_lakes_need(landed, place[1], bounds[place][0]), **needs[place]}
            )
            for place in places
        ]
        if any(each.offsets for each in found):
            _require_equal(self._settings, topic, self._lake)
        yield from found

    def _needs(self, topic: str, count: int) -> dict[Place, dict[str, int]]:
        """Return the next offset that each table and group needs of the partitions of *topic*."""
        out: dict[Place, dict[str, int]] = {(topic, partition): {} for partition in range(count)}
        for processor in self._processors:
            if topic not in processor.topics:
                continue
            for (changelog, partition), offset in self._positions(processor, topic, count).items():
                out[topic, partition][changelog] = offset + 1
        own = (self._settings.app,) if topic in self._agents_read else ()
        asked = BrokerGroups(self._settings, timeout_s=self._settings.request_timeout_s)
        for group in (*own, *self._groups):
            committed = asked.committed(group)
            for place, needs in out.items():
                needs[f"group {group}"] = committed.get(place, 0)
        return out

    def _positions(self, processor: Processor[Any, Any], topic: str, count: int) -> dict[Place, int]:
        """Return the last offset of *topic* in the state of each partition of a table, in every version that
        has a changelog.
        """
        app, counts = self._settings.app, self._admin.partition_counts()
        versions = {processor.version, *versions_on(app, processor.name, counts, count)}
        found: dict[Place, int] = {}
        for version in versions:
            each = processor if version == processor.version else in_version(processor, version)
            changelog = each.changelog(app)
            for place, value in last_positions(
                self._settings, [(changelog, at) for at in range(count)]
            ).items():
                found[place] = _offset_in(each, processor.version, topic, changelog, value)
        return found


def sources_of(processors: Iterable[Processor[Any, Any]]) -> set[str]:
    """Return the folded topics that are written outside of the application."""
    internal = {
        str(topic)
        for each in processors
        for topic in (*each.internal, *each.emits)
        if isinstance(topic, Internal)
    }
    return {topic for each in processors for topic in each.topics} - internal


def _require_trimmable(
    topic: str, folded: Collection[str], processors: Iterable[Processor[Any, Any]]
) -> None:
    if topic not in folded:
        raise ConfigError(
            f"topic {topic} is no source of this application: it folds {', '.join(sorted(folded)) or 'none'};"
            " internal topics are trimmed by workers"
        )
    for each in processors:
        if topic in each.kept_whole:
            raise ConfigError(
                f"topic {topic} is read whole, as a global table, by processor {each.name}: none of its"
                " records may go; name the others with --topics"
            )


def _require_equal(settings: Settings, topic: str, lake: str) -> None:
    """Raise LakeError where the lake does not hold what the topic does."""
    verdict = check_table(settings, topic, lake, against_topic=True)
    if verdict.faults:
        raise LakeError(
            f"nothing of {topic} is deleted, for the lake does not hold what the topic does:"
            f" {verdict.faults[0].told}; `holdfast pipeline check --against-topic` tells all"
            f" {len(verdict.faults)}"
        )


def _landed(topic: str, lake: str) -> Landed:
    """Return the landed metadata of *topic* in the lake."""
    path = bronze_path(lake, topic)
    table = open_table(path)
    newest = last_landing(path, history_of(table, int(table.version()) + 1))
    if newest is None:
        raise LakeError(f"{path}: nothing was landed yet (`holdfast pipeline land`)")
    return newest.landed


def _lakes_need(landed: Landed, partition: int, first: int) -> Needs:
    """Return up to where the lake has every record from *first* on."""
    if landed.begins.get(partition, 0) > first:
        return {"lake, which begins later": first}
    needs = {"lake": landed.end.get(partition, 0)}
    behind = [low for low, high in landed.left_out.get(partition, ()) if high >= first]
    if behind:
        needs["lake, which lacks a batch that is skipped"] = max(first, min(behind))
    return needs


def _trim_of(place: Place, first: int, end: int, needs: Needs) -> PartitionTrim:
    held_by, needed = min(needs.items(), key=lambda each: (each[1], each[0]))
    if needed > end:
        raise PipelineError(
            f"{held_by} has taken in topic {place[0]} partition {place[1]} up to offset {needed - 1}, and it"
            f" ends at {end}: it was deleted and made anew, so nothing of it is deleted"
        )
    before = max(first, needed)
    return PartitionTrim(
        topic=place[0],
        partition=place[1],
        first=first,
        before=before,
        held_by=held_by if before < end else "",
    )


def _offset_in(
    processor: Processor[Any, Any], own: int, topic: str, changelog: str, value: bytes | None
) -> int:
    """Return the last offset of *topic* that the position in *value* has folded, -1 for none."""
    form = position_format(processor) if processor.version == own else earlier_format(processor)
    if value is None:
        return form.start.applied[processor.topics.index(topic)]
    position = form.decode(value)
    if position.reached_ms and position.sources != processor.signature:
        raise ChangelogError(
            f"{changelog} tells where version {processor.version} of {processor.name} stood in other sources"
            f" than those that are declared now, so nothing of {topic} is deleted: delete that topic when"
            " nobody asks for the version any more"
        )
    return position.applied[processor.topics.index(topic)]
