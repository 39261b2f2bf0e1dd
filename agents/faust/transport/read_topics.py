"""The identities of the topics that ordinary agents' committed offsets belong to: one that was deleted and
made again has other records.

The mark of a topic is committed with the offset, as claim consumers do (PROTOCOL.md, Topics that are made
again); where tables fold the topic too, their note names it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.identities import is_of_another, metadata_of
from holdfast.config import Settings
from holdfast.core.claims.frames import topic_mark
from holdfast.core.engine.commit_notes import decode_commit_note
from holdfast.core.kafka.topic_partition import Place
from holdfast.errors import BrokerError

logger = logging.getLogger(__name__)


class ReadTopics:
    """The ids of the topics that agents read, as they were when the worker began to read them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._ids: Mapping[str, str] = {}

    def learn(self, topics: Iterable[str]) -> None:
        """Ask for the ids of *topics*. Blocks; if no broker returns them, offsets count as they are."""
        wanted, self._ids = set(topics), {}
        if not wanted:
            return
        try:
            self._ids = Admin(self._settings).topic_ids(wanted, there_only=True).topics
        except BrokerError as error:
            logger.warning(
                "whether topics of agents were deleted and made again is not known: %(error)s",
                {"error": error},
            )

    def note(self, topic: str) -> str:
        """Return the metadata to commit with an offset of *topic*."""
        return metadata_of(topic_mark(self._ids.get(topic, "")))

    def of_these(self, committed: Mapping[Place, int], notes: Mapping[Place, str]) -> dict[Place, int]:
        """Return *committed* with 0, the beginning, for each offset whose note names another topic."""
        found = dict(committed)
        for place, offset in committed.items():
            if offset and self._is_of_another(place[0], notes.get(place, "")):
                found[place] = 0
                logger.warning(
                    "topic %(topic)s was deleted and made again: agents had read partition %(partition)d of"
                    " the old one up to offset %(offset)d, and begin the new one at its beginning",
                    {"topic": place[0], "partition": place[1], "offset": offset},
                )
        return found

    def _is_of_another(self, topic: str, note: str) -> bool:
        there = self._ids.get(topic, "")
        if (folded := decode_commit_note(note)) is not None:
            return bool(there) and folded.topic != there
        return is_of_another(note, topic_mark(there))
