"""The handover between versions of a processor with `on=`, at a position that all of them come through.

At its last position, the version before had folded its last records in canonical order, as far as it had
fetched them. The next one would fold them in the canonical order of *all* records, and tick by its own clock
on the way: at that position it would be in no state that the version before was in. So the next one records a
barrier there before it folds anything. Then the same records come before that position for every version and
every replay.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.engine.choices import Choice
from holdfast.core.engine.positions import Position
from holdfast.core.engine.state.codec import NOTHING_APPLIED
from holdfast.core.engine.state.handover import HANDOVER_FORMAT, Handover
from holdfast.errors import ChoicesError


def barrier_at(
    stood: Handover, position: Position, recorded: Sequence[Choice], by_event: int
) -> tuple[Handover, Choice | None]:
    """Return the position up to which the next version is silent when the one before *stood* there, and the
    barrier that it has to record, None where every version comes through that position anyway.

    *position* is where the next version is, and *recorded* are all choices from there on. *by_event* are the
    sources by whose event times the one before ordered its records since the last choice. Raises ChoicesError
    where some are missing.
    """
    if not position.reached_ms:
        return stood, None  # the log has the order
    ends = position.choices + len(recorded)
    if stood.choices > ends:
        raise ChoicesError(
            f"the version before has obeyed {stood.choices} choices, and the topic ends with {ends}: it was"
            " deleted and made again. Nobody can fold the sources again without them; give the processor"
            " another name"
        )
    if (
        stood.choices < ends
    ):  # another version has gone on from there: through it, where that has handed over too
        at = stood.choices - position.choices
        is_there = at >= 0 and _is_barrier(recorded[at], stood)
        return (_behind(stood) if is_there else stood), None
    last = recorded[-1].applied if recorded else position.applied
    if stood.applied == last or set(stood.applied) == {NOTHING_APPLIED}:
        return stood, None
    return _behind(stood), Choice(ends, position.sources, stood.applied, by_event=by_event)


def _behind(stood: Handover) -> Handover:
    return Handover(HANDOVER_FORMAT, stood.applied, stood.choices + 1)


def _is_barrier(choice: Choice, stood: Handover) -> bool:
    return choice.is_barrier and choice.applied == stood.applied
