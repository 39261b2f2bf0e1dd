"""The group as the partition manager needs it: Faust's app, consumer and assignor behind four verbs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import faust

from holdfast.agents.faust.process.watch import STUCK_EXIT_CODE, exit_within
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor


class FaustGroup:
    """What `PartitionManager` asks of the group's member.

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
        """Forget a message that nobody will acknowledge."""
        cast(Any, self._app.consumer).discard(message)

    def awaited(self) -> list[str]:
        """Return the topics that this worker reads and that were not there when the group shared out
        partitions.
        """
        return sorted(cast(Any, self._app.topics).wanted - {*self._assignor.shared_topics})

    def who_owns(self, table: str, partition: int) -> str | None:
        """Return the URL of the worker that the group gave the partition; None too where a large group was
        not told of all.
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
