"""Where earlier versions of a table stood when this one took a partition over: up to there it emits nothing, if it is declared so."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.chain_state import last_positions
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.merge.choices import decode_vector_marker
from holdfast.core.engine.state.codec import NOTHING_APPLIED, decode_marker
from holdfast.core.engine.state.handover import HANDOVER_FORMAT, Handover
from holdfast.errors import ChangelogError, TopicError
from holdfast.tables.partition import Partition


def learn_handovers(settings: Settings, parts: Iterable[Partition]) -> None:
    """Tell each of *parts* that is declared with `emits_from="handover"` where the versions before it stand.

    Call it when the parts are fenced and restored, and their choices read: the fence is that of all versions, so none of them moves any more. Blocks; raises
    TopicError when there is no changelog of an earlier version, ChangelogError for one of other sources, ChoicesError where choices are missing.
    """
    wanted = [part for part in parts if part.processor.hands_over and part.may_learn_handover]
    if not wanted:
        return
    counts = Admin(settings).partition_counts()
    earlier = {part.processor.name: _earlier(settings.app, part.processor, counts) for part in wanted}
    places = [(topic, part.partition) for part in wanted for topic in earlier[part.processor.name]]
    found = last_positions(settings, places)
    for part in wanted:
        stood = [found[topic, part.partition] for topic in earlier[part.processor.name]]
        part.learn_handover(
            furthest(part.processor, [_stood(part.processor, value) for value in stood if value is not None])
        )


def _earlier(app: str, processor: Processor[Any, Any], counts: Mapping[str, int]) -> list[str]:
    """Return the changelogs of all earlier versions: one that was silent itself has not emitted what the one before it had."""
    pattern = re.compile(re.escape(f"{app}-{processor.name}.v") + r"([1-9][0-9]{0,8})-changelog")
    found = [
        topic
        for topic in counts
        if (match := pattern.fullmatch(topic)) is not None and int(match[1]) < processor.version
    ]
    if not found:
        raise TopicError(
            f'processor {processor.name} version {processor.version} is declared with emits_from="handover", and no changelog of an earlier version tells up '
            'to where it emitted: write emits_from="beginning", which emits everything again'
        )
    return found


def _stood(processor: Processor[Any, Any], value: bytes) -> Handover:
    """Return where the position in *value* stands."""
    try:
        if processor.on is None:
            return Handover(HANDOVER_FORMAT, (decode_marker(value).applied,))
        marker = decode_vector_marker(value)
    except ChangelogError as error:
        raise _apart(processor, str(error)) from error
    if marker.sources != processor.signature:
        raise _apart(processor, "its sources, or the globals that it reads, were others")
    return Handover(HANDOVER_FORMAT, marker.applied, marker.choices)


def _apart(processor: Processor[Any, Any], why: str) -> ChangelogError:
    return ChangelogError(
        f"processor {processor.name}: where an earlier version stood says nothing of this one ({why}): write "
        'emits_from="beginning", or give the processor another name'
    )


def furthest(processor: Processor[Any, Any], stood: Iterable[Handover]) -> Handover:
    """Return the position that lies behind the others.

    With `on=`, two versions of which neither handed over to the other may stand where neither has all that the other has: then it is that of the one that
    has obeyed more choices or, of equally many, folded more.
    """
    start = Handover(HANDOVER_FORMAT, (NOTHING_APPLIED,) * len(processor.topics))
    return max((start, *stood), key=lambda each: (each.choices, sum(each.applied)))
