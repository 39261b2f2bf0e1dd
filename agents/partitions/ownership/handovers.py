"""Handovers from earlier versions of a table: their positions when this one took a partition over, up to
which it emits nothing, if it is declared so.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.clients.topics.earlier_positions import earlier_positions
from holdfast.config import Settings
from holdfast.core.engine.state.handover import HANDOVER_FORMAT, Handover
from holdfast.errors import TopicError
from holdfast.tables.partition import Partition


def learn_handovers(settings: Settings, parts: Iterable[Partition]) -> None:
    """Give each of *parts* that is declared with `emits_from="handover"` the position of the versions before
    it.

    Call it when the parts are fenced and restored, and their choices read: the fence is that of all versions,
    so none of them moves any more. Blocks; raises TopicError when there is no changelog of an earlier
    version, ChangelogError for one of other sources, ChoicesError where choices are missing.
    """
    wanted = [part for part in parts if part.processor.hands_over and part.owner.may_learn_handover]
    if not wanted:
        return
    found = earlier_positions(settings, [(part.processor, part.partition) for part in wanted])
    for part in wanted:
        stood = found[part.processor.name, part.partition]
        if stood is None:
            raise TopicError(
                f"processor {part.processor.name} version {part.processor.version} is declared with"
                ' emits_from="handover", and no changelog of an earlier version tells up to where it'
                ' emitted: write emits_from="beginning", which emits everything again'
            )
        part.owner.learn_handover(Handover(HANDOVER_FORMAT, stood.applied, stood.choices), stood.by_event)
