"""Topics of agents, which say where a record lies that cannot be decoded."""

from __future__ import annotations

import logging
from typing import Any

import faust

logger = logging.getLogger(__name__)


class PlacedTopic(faust.Topic):
    """A topic as Faust's. A record that it cannot decode ends the worker, as whatever an agent raises, and
    comes again: so it is named.
    """

    async def on_decode_error(self, exc: Exception, message: Any) -> None:
        await super().on_decode_error(exc, message)
        logger.error(
            "record %(topic)s/%(partition)d/%(offset)d cannot be decoded for an agent: %(error)s. It comes"
            " again until the agent's topic takes it (value_type, value_serializer), or"
            ' agent_supervisor="mode.OneForOneSupervisor" passes it',
            {"topic": message.topic, "partition": message.partition, "offset": message.offset, "error": exc},
        )
