"""The input of a folder: records in the order in which they are folded, or one choice."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.choices import Choice
from holdfast.core.engine.state.handover import Handover


@dataclass(slots=True)
class Portion:
    """Consecutive records of one source; *reached_ms* is of each the highest append time up to it, and
    *ordered_ms* the highest of the times that it was ordered by, where these are others. Both are empty where
    the log has the order. *events* are the records' events, for the first fold of them alone, which may
    change them.
    """

    batch: Batch
    reached_ms: Sequence[int]
    ordered_ms: Sequence[int] | None = None
    events: Sequence[Any] | None = None

    def slice(self, start: int, stop: int) -> Portion:
        ordered_ms = None if self.ordered_ms is None else self.ordered_ms[start:stop]
        events = None if self.events is None else self.events[start:stop]
        return Portion(self.batch.slice(start, stop), self.reached_ms[start:stop], ordered_ms, events)


@dataclass(slots=True)
class Stretch:
    """Records of several sources in the order in which they are folded, or one choice.

    *order* has the source of each record, and *reached_ms* the highest append time so far, which ascends.
    It is empty where the log has the order.
    They were ordered by the event times of the sources in *by_event*; where that is 0, by append time, and
    then *reached_ms* are those of the portions. With a *choice* there are no records; it is *decided* if it
    is a new one, to be recorded with the records folded.
    """

    portions: tuple[Portion | None, ...]
    order: bytes = b""
    reached_ms: Sequence[int] = ()
    choice: Choice | None = None
    decided: bool = False
    by_event: int = 0
    _counted: dict[int, list[int]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def records(self) -> int:
        return len(self.order)

    @property
    def only(self) -> tuple[int, Portion] | None:
        """Return the source of all its records and these; None where several sources have some."""
        found = None
        for source, each in enumerate(self.portions):
            if each is not None:
                if found is not None:
                    return None
                found = source, each
        return found

    def slice(self, start: int, stop: int) -> Stretch:
        """Return records *start* to *stop*, not included."""
        order, reached_ms = self.order[start:stop], self.reached_ms[start:stop]
        if (only := self.only) is not None:
            cut = only[1].slice(start, stop)
            return Stretch(
                tuple([each and cut for each in self.portions]), order, reached_ms, by_event=self.by_event
            )
        # How many of each source lie before: known where a slice ended, since a folder takes one after
        # another.
        firsts = self._counted.pop(start, None)
        if firsts is None:
            firsts = [self.order.count(source, 0, start) for source in range(len(self.portions))]
        lasts = [first + order.count(source) for source, first in enumerate(firsts)]
        self._counted[stop] = lasts
        portions = [
            portion.slice(first, last) if portion and last > first else None
            for portion, first, last in zip(self.portions, firsts, lasts, strict=True)
        ]
        return Stretch(tuple(portions), order, reached_ms, by_event=self.by_event)


def stretch_of(batch: Batch) -> Stretch:
    """Return the records of one source in the order of their log, which needs no merger. ValueError where the
    columns are not of one length.
    """
    if {len(batch.times_ms), *map(len, batch.columns)} != {len(batch.offsets)}:
        raise ValueError(f"a batch of {len(batch.offsets)} records has columns of other lengths")
    return Stretch((Portion(batch, ()),), bytes(len(batch.offsets)))


def beginning_upto(stretch: Stretch, place: Handover) -> tuple[bool, Stretch]:
    """Return whether the first record of *stretch* lies up to *place*, and the part of the stretch of which
    that is equally true.
    """
    if stretch.choice is not None:
        return stretch.choice.number < place.choices, stretch
    left = [
        0 if portion is None else bisect_right(portion.batch.offsets, upto)
        for portion, upto in zip(stretch.portions, place.applied, strict=True)
    ]
    if sum(left) in (0, stretch.records):
        return sum(left) > 0, stretch
    silent = left[stretch.order[0]] > 0
    for number, source in enumerate(stretch.order):
        if (left[source] > 0) is not silent:
            return silent, stretch.slice(0, number)
        left[source] -= 1
    return silent, stretch
