"""The group as the partition manager needs it: Faust's app, consumer and assignor as four verbs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, cast

import faust

from holdfast.agents.faust.process.watch import STUCK_EXIT_CODE, exit_within
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.kafka.topic_partition import Place
from holdfast.errors import BrokerError
from holdfast.tables import lived


class FaustGroup:
    """The group's member, as `PartitionManager` uses it.

    *app* is the application, whose consumer and assignor exist later.
    """

    def __init__(
        self, app: faust.App, settings: Settings, processors: Mapping[str, Processor[Any, Any]]
    ) -> None:
        self._app, self._settings, self._processors = app, settings, processors

    async def leave(self, error: BaseException) -> None:
        """End the worker, by force when it does not end in time."""
        exit_within(self._settings.commit_timeout_s, STUCK_EXIT_CODE)
        await self._app.crash(error)

    async def rejoin(self) -> None:
        """Ask the group for a new generation."""
        await cast(Any, self._app.consumer).rejoin()

    def discard(self, message: Any) -> None:
        """Forget a message that will never be acknowledged."""
        cast(Any, self._app.consumer).discard(message)

    async def committed_notes(self, places: Collection[Place]) -> Mapping[Place, str]:
        """Return the metadata that the group has committed with the offsets of *places*; BrokerError without
        an answer within a request's time.
        """
        timeout_s = self._settings.request_timeout_s
        try:
            found: Mapping[Place, str] = await lived.wait_for(
                cast(Any, self._app.consumer).committed_notes(places), timeout_s
            )
        except TimeoutError as error:
            raise BrokerError(
                f"what group {self._settings.app} has committed: no answer within {timeout_s:g} s; check the"
                " broker"
            ) from error
        return found

    def awaited(self) -> list[str]:
        """Return the topics that this worker reads and that were not there when the group shared out
        partitions.
        """
        return sorted(cast(Any, self._app.topics).wanted - {*self._assignor.shared_topics})

    def who_owns(self, table: str, partition: int) -> str | None:
        """Return the URL of the worker that the group gave the partition; None too where a large group was
        did not send all owners.
        """
        return self._given(self._processors[table].changelog(self._settings.app), partition)

    def who_folds(self, changelog: str, partition: int) -> str | None:
        """Return the URL of the worker that the group gave a partition that this worker has, of the table
        with that changelog, in whatever version; None where versions have one owner together, whose version
        is folded alone.
        """
        return self._given(changelog, partition) if self._assignor.by_writer else None

    @property
    def _assignor(self) -> Any:
        return self._app.assignor

    def _given(self, changelog: str, partition: int) -> str | None:
        for url, topics in self._assignor.tables_metadata().items():
            if partition in topics.get(changelog, ()):
                return str(url)
        return None
