"""Takes an application back to its beginning, step by step. Each step can be done again, so a reset that was
cut is ended by another.

From the first step to the last a topic of its own exists, {app}-reset, with which no worker starts and no
topic is created: else a part of a chain could begin again after another that has not.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from holdfast.clients.groups.broker import BrokerGroups
from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.application import plan_topics
from holdfast.clients.topics.checks import check_processors
from holdfast.clients.topics.committed import CommittedOffsets
from holdfast.clients.topics.resetting import ResetTopics, reset_topics
from holdfast.clients.topics.types import CreateTopic, Processors, TopicRole, TopicSpec
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.fold.folding import Changes
from holdfast.core.engine.positions import stored_format
from holdfast.errors import ConfigError, GroupError, StoreError, TopicError
from holdfast.kafka.requests.connections import connector
from holdfast.kafka.transactions.transactional_client import producers

FENCE_S, TRANSACTION_S = 60.0, 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationResetStep:
    """One step of a reset: the action on *name*, and its details."""

    action: str
    kind: str
    name: str
    do: Callable[[], None]


class ApplicationReset:
    """A reset of the application of *processors*, to the first records that are not older than *to_ms* (None:
    to the beginning). *empty_outputs* deletes what its folds have emitted.

    With *has_agents* the group's offsets stay: Faust's tables and repartition topics do too, so agents that
    began again would count all records a second time.
    """

    def __init__(
        self,
        settings: Settings,
        processors: Processors,
        *,
        empty_outputs: bool,
        has_agents: bool = False,
        to_ms: int | None = None,
    ) -> None:
        self._settings, self._processors, self._empty = settings, processors, empty_outputs
        self._has_agents, self._to_ms = has_agents, to_ms
        self._admin = Admin(settings)
        self._groups = BrokerGroups(settings, timeout_s=settings.request_timeout_s)
        self._counts = self._admin.partition_counts()
        self.topics: ResetTopics = reset_topics(settings, processors, self._counts)

    def check(self) -> None:
        """Raise TopicError for an obstacle to a reset of this application: a source that is missing, or
        declarations for which the topics cannot be created again; ModuleNotFoundError without the extra
        `lake` where first states are to be written.
        """
        if self._to_ms is not None or (self._empty and self.topics.folded_outputs):
            import holdfast.pipeline.bootstrap.beginnings  # noqa: F401  later it would be missed in the midst of a reset
        wrong = [str(finding) for finding in check_processors(self._settings, self._processors)]
        internal = {str(topic) for each in self._processors for topic in each.internal}
        for topic in sorted({str(topic) for each in self._processors for topic in each.topics} - internal):
            if topic not in self._counts and topic not in {
                str(emit) for each in self._processors for emit in each.emits
            }:
                wrong.append(
                    f"source {topic} does not exist: nothing tells how many partitions its tables have;"
                    " create it first"
                )
        wrong += [
            f"topic {topic} is that of a global table and emitted to by this application: a reset cannot make"
            " it anew, and the table would hold what is emitted twice"
            for topic in self.topics.global_outputs
        ]
        if wrong:
            raise TopicError("; ".join(wrong))
        later = [
            f"{each.name}: {why}" for each in self._processors if (why := _why_not_anew(each)) is not None
        ]
        if later:
            raise ConfigError(
                "a reset takes away all earlier versions, and a version that goes on from one could not"
                f" begin: {'; '.join(later)}"
            )

    def require_stopped(self) -> None:
        """Raise GroupError while a worker of the application runs."""
        self._groups.require_stopped(self._settings.app)

    def steps(self) -> Iterator[ApplicationResetStep]:
        """Yield the steps in order; between two of them a reset may be cut."""
        settings, app = self._settings, self._settings.app
        yield ApplicationResetStep(action="begin", kind="topic", name=settings.reset_topic, do=self._begin)
        for each in self._processors:
            name = f"{each.writer(app)}.*"
            yield ApplicationResetStep(
                action="fence", kind="transactional ids", name=name, do=self._fencing(each.name)
            )
        for topic, role in self.topics.deleted:
            yield ApplicationResetStep(action="delete", kind=str(role), name=topic, do=self._deleting(topic))
        if not self._has_agents:
            yield ApplicationResetStep(action="delete", kind="group", name=app, do=self._delete_group)
        for folder in self._stores():
            yield ApplicationResetStep(action="delete", kind="store", name=str(folder), do=_removing(folder))
        for topic in self.topics.outputs if self._empty else ():
            yield ApplicationResetStep(action="empty", kind="output", name=topic, do=self._emptying(topic))
        yield ApplicationResetStep(
            action="create", kind="topics", name="that the application needs", do=self._create
        )
        for processor, firsts in self._places():
            places = ", ".join(
                f"{topic}/{at} from offset {first}"
                for at, of in firsts.items()
                for topic, first in of.items()
                if first
            )
            yield ApplicationResetStep(
                action="place",
                kind="table",
                name=f"{processor.table}: {places}",
                do=self._placing(processor, firsts),
            )
        yield ApplicationResetStep(action="end", kind="topic", name=settings.reset_topic, do=self._end)

    def _begin(self) -> None:
        settings = self._settings
        spec = TopicSpec(
            name=settings.reset_topic,
            partitions=1,
            config={},
            replication_factor=settings.replication_factor,
            role=TopicRole.BESIDE,
        )
        self._admin.apply([CreateTopic(spec=spec, partitions=1)])
        try:
            self.require_stopped()  # one may have started before it could see that
        except GroupError:
            if settings.reset_topic not in self._counts:  # else it shows a reset that was cut
                self._admin.delete([settings.reset_topic])
            raise

    def _fencing(self, name: str) -> Callable[[], None]:
        (processor,) = [each for each in self._processors if each.name == name]
        count = max((self._counts.get(str(topic), 0) for topic in processor.topics), default=0)
        app, numbers = self._settings.app, range(count)
        ids = {processor.transactional_id(app, at) for at in numbers}
        if processor.version > 1:  # a bootstrap is in no group
            ids |= {processor.builder_id(app, at) for at in numbers}

        def do() -> None:
            asyncio.run(self._fence(sorted(ids)))

        return do

    async def _fence(self, ids: list[str]) -> None:
        """Raise the epoch of each id: a worker that is frozen, and in no group any more, writes nothing when
        it thaws; nor does a bootstrap.
        """
        settings = self._settings
        make = producers(
            connector(settings, timeout_s=settings.request_timeout_s), transaction_timeout_s=TRANSACTION_S
        )
        async with asyncio.timeout(FENCE_S):
            for each in ids:
                producer = make(each)
                try:
                    await producer.fence()
                finally:
                    await producer.close()

    def _deleting(self, topic: str) -> Callable[[], None]:
        def do() -> None:
            self.require_stopped()
            self._admin.delete([topic])

        return do

    def _delete_group(self) -> None:
        self.require_stopped()
        self._groups.delete(self._settings.app)

    def _stores(self) -> list[Path]:
        """Return the folders of this machine's stores, those set aside and those of earlier versions too."""
        folder = self._settings.data_dir
        found = {
            path for each in self._processors for path in folder.glob(f"{each.name}.v[0-9]*") if path.is_dir()
        }
        return sorted(found)

    def _emptying(self, topic: str) -> Callable[[], None]:
        def do() -> None:
            places = [(topic, partition) for partition in range(self._counts[topic])]
            self._admin.delete_before({place: end for place, (_, end) in self._admin.offsets(places).items()})

        return do

    def _create(self) -> None:
        settings, processors, admin = self._settings, self._processors, self._admin
        admin.apply(plan_topics(settings, processors, partitions=None, alter=False, admin=admin))
        asyncio.run(self._begin_tables())
        if self._has_agents:
            self._forget_sent()

    async def _begin_tables(self) -> None:
        """Write the position of its beginning to each changelog: stores on other machines, and the group, may
        know of a table that had sent results, and a changelog without any position would be one that has
        lost its records.
        """
        from holdfast.pipeline.bootstrap.fencing import fenced_writer

        for processor in self._processors:
            start, counts = stored_format(processor).start, self._admin.partition_counts()
            changes = Changes(marker=start, records=0)
            for partition in range(counts.get(processor.changelog(self._settings.app), 0)):
                async with fenced_writer(processor, self._settings, partition) as writer:
                    await writer.write(changes, [], FENCE_S)

    def _forget_sent(self) -> None:
        """Commit the offsets of the sources that are folded again without their notes, which say up to where
        the tables had sent results.
        """
        group = CommittedOffsets(
            self._settings, self._settings.app, timeout_s=self._settings.request_timeout_s
        )
        topics = {topic for each in self._processors for topic in each.topics}
        places = [(topic, at) for topic in sorted(topics) for at in range(self._counts.get(topic, 0))]
        group.commit(group.committed(places))

    def _places(self) -> Iterator[tuple[Processor[Any, Any], dict[int, dict[str, int]]]]:
        """Yield, by processor, the first offset of each source of the partitions that a table does not begin
        with.
        """
        for processor in self._processors:
            firsts: dict[int, dict[str, int]] = {}
            for topic in processor.topics:
                for at, first in self._firsts(processor, topic).items():
                    firsts.setdefault(at, {})[topic] = first
            if later := {at: of for at, of in firsts.items() if any(of.values())}:
                yield processor, later

    def _firsts(self, processor: Processor[Any, Any], topic: str) -> dict[int, int]:
        """Return from which offset each partition of a source is to be folded. The application's own output
        is folded from its beginning: after the deleted part, which is no loss, since all of it is emitted
        again.
        """
        places = [(topic, at) for at in range(self._counts.get(topic, 0))]
        if topic in self.topics.outputs and self._empty:
            return {place[1]: end for place, (_, end) in self._admin.offsets(places).items()}
        if self._to_ms is None or topic in self.topics.outputs or topic in map(str, processor.internal):
            return {at: 0 for _, at in places}
        ends, found = self._admin.stable_offsets(places), self._admin.offsets_at(places, self._to_ms)
        return {place[1]: ends[place] if (first := found[place]) is None else first for place in places}

    def _placing(
        self, processor: Processor[Any, Any], firsts: dict[int, dict[str, int]]
    ) -> Callable[[], None]:
        start = stored_format(processor).start

        def do() -> None:
            from holdfast.pipeline.bootstrap.beginnings import beginning, write_beginning

            for at, of in firsts.items():
                lasts = tuple(of.get(topic, 0) - 1 for topic in processor.topics)
                position = msgspec.structs.replace(start, applied=lasts)
                found = beginning(processor, position, [], f"no table, {self._told_place}")
                asyncio.run(write_beginning(processor, self._settings, at, found))

        return do

    @property
    def _told_place(self) -> str:
        if self._to_ms is None:
            return f"for a reset has emptied {', '.join(self.topics.folded_outputs)}"
        return f"at the place of {datetime.fromtimestamp(self._to_ms / 1000, UTC).isoformat()}"

    def _end(self) -> None:
        self.require_stopped()
        self._admin.delete([self._settings.reset_topic])


def _why_not_anew(processor: Processor[Any, Any]) -> str | None:
    """Return the obstacle to a processor's beginning without any state of its earlier versions, as a remedy;
    None if there is none.
    """
    if processor.migrate:
        return "leave out migrate="
    if processor.hands_over:
        return 'write emits_from="beginning"'
    return None


def _removing(folder: Path) -> Callable[[], None]:
    def do() -> None:
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise StoreError(
                f"cannot delete the stores in {folder}: {error}; cure that and run the reset again"
            ) from error

    return do
