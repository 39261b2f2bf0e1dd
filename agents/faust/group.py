"""The group as the partition manager needs it: Faust's app, consumer and assignor behind four verbs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import faust

from holdfast.agents.faust.watch import STUCK_EXIT_CODE, exit_within
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

    def who_owns(self, table: str, partition: int) -> str | None:
        """Return the URL of the worker that the group gave the partition."""
        topic = self._processors[table].changelog(self._settings.app)
        for url, topics in self._app.assignor.tables_metadata().items():
            if partition in topics.get(topic, ()):
                return str(url)
        return None
