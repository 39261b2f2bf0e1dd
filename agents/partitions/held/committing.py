"""Notes that are committed with the offsets of a worker's sources: the position up to which each table has
folded and sent, so that a table that has to be folded a second time sends nothing twice.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from holdfast.agents.partitions.held.holdings import Holdings
from holdfast.agents.partitions.types import GroupClient
from holdfast.core.engine.commit_notes import (
    CommitNote,
    decode_commit_note,
    encode_commit_note,
    shortened,
)
from holdfast.core.kafka.topic_partition import Place

logger = logging.getLogger(__name__)


class CommitNotes:
    """The notes of this worker's partitions, and those that the group had committed. Lives on the event
    loop.
    """

    def __init__(self, group: GroupClient, holdings: Holdings) -> None:
        self._group, self._holdings = group, holdings
        self._found: dict[Place, CommitNote] = {}
        self._told = False

    async def read(self, places: Collection[Place]) -> Mapping[Place, CommitNote]:
        """Return the notes that the group has committed for *places*; other metadata is left out."""
        if not places:
            return {}
        texts = await self._group.committed_notes(places)
        found = {place: note for place, text in texts.items() if (note := decode_commit_note(text))}
        for place in places:
            self._found.pop(place, None)
        self._found |= found
        return found

    def of(self, place: Place) -> str:
        """Return the note to commit with the offset of *place*; empty where no table folds it.

        Tables that other workers fold from it, in other versions, keep their notes.
        """
        owned = [each.part for each in self._holdings.owners(place) if each.part.owner.sources is not None]
        if not owned:
            return ""
        topic = place[0]
        sources = owned[0].owner.sources
        assert sources is not None
        topic_id = sources.topics[topic]
        before = self._found.get(place)
        kept = {} if before is None or before.topic != topic_id else before.tables
        own = {part.processor.table: part.owner.sent(topic) for part in owned}
        out = {name: shortened(found) for part in owned for name, found in part.owner.out.items()}
        for tables in ({**kept, **own}, own):
            note = CommitNote(topic=topic_id, tables=tables, out=out)
            if (text := encode_commit_note(note)) is not None:
                return text
        if not self._told:
            self._told = True
            logger.warning(
                "%(topic)s: too many tables and topics to note with its committed offset; if a changelog"
                " loses its records, results are sent a second time",
                {"topic": topic},
            )
        return ""
