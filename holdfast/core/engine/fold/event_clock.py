"""Event time of a partition downstream of steps: the least watermark of the origins that are not at their
end.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.emits import Headers
from holdfast.core.engine.origins import NAMELESS, UNHEARD, OriginWatermarks, mark_of, told_of
from holdfast.core.untrusted import UNFIT
from holdfast.errors import ChangelogError

_Sources = tuple[tuple[int | None, tuple[int, ...], tuple[tuple[int, int], ...]], ...]
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Sources).decode


class EventClock:
    """The progress of the sources of one partition of a processor with event timers.

    Sources downstream of steps (*behind*) hold event time back, by the least watermark of their origins, and
    others do not: an origin without a record yet holds all back, and one that has reported its end none.
    Before the first header of an origin is read, the clock is not *named*: the highest event time counts, as
    it does where no source is downstream of a step. The state covers the records up to the position; *stored*
    is that of an earlier owner.
    """

    __slots__ = ("_before", "_behind", "_of", "is_named")

    def __init__(self, behind: tuple[bool, ...], stored: bytes | None = None) -> None:
        self._behind, self._before = behind, stored
        self._restore(stored)

    def _restore(self, stored: bytes | None) -> None:
        self._of = [OriginWatermarks() for _ in self._behind]
        self.is_named = stored is not None
        if stored is None:
            return
        try:
            sources = _decode(stored)
        except UNFIT as error:
            raise ChangelogError(
                f"the watermarks in a position marker are malformed ({error}): no worker wrote them"
            ) from error
        for of, (origins, ended, marks) in zip(self._of, sources, strict=False):
            for origin, watermark_ms in marks:
                has_ended, told = origin in ended, -1 if origins is None else origins
                of.restore(origin, watermark_ms, has_ended=has_ended, origins=told)

    def encode(self) -> bytes | None:
        """Return the state as a marker holds it; None for a clock that has read no header of an origin."""
        if not self.is_named:
            return None
        return _encode([(each.origins, sorted(each.ended), sorted(each.marks.items())) for each in self._of])

    def commit(self) -> None:
        """Take the transaction as durable."""
        self._before = self.encode()

    def rollback(self) -> None:
        """Forget the transaction."""
        self._restore(self._before)

    def hear_mark(self, source: int, headers: Headers) -> int:
        """Take in a mark of a source; return event time."""
        self.is_named = True
        self._of[source].mark(mark_of(headers))
        return self.now_ms

    def hear(self, source: int, headers: Headers, own_ms: int) -> int:
        """Take in a record of a source, whose own event time is *own_ms*; return event time."""
        told = told_of(headers) if headers else None
        if told is not None:
            self.is_named = True
            self._of[source].hear(told.origin, told.after_ms)
        elif not self.is_named:
            return own_ms
        elif own_ms > self._of[source].of(NAMELESS):
            self._of[source].hear(NAMELESS, own_ms)
        return self.now_ms

    @property
    def now_ms(self) -> int:
        """Return event time: of sources that have all come to their ends, the highest of all."""
        behind = [of for of, is_behind in zip(self._of, self._behind, strict=True) if is_behind]
        held = [of.least_ms for of in behind if not of.has_ended]
        return min(held) if held else max((of.least_ms for of in self._of), default=UNHEARD)


def event_clock_of(processor: Processor[Any, Any], stored: bytes | None) -> EventClock | None:
    """Return the clock of a processor with event timers; None where no source is downstream of a step that
    knows event time.
    """
    if not processor.has_event_time:
        return None
    behind = tuple(each.meets_marks and each.source.reads_time is not None for each in processor.folds)
    return EventClock(behind, stored) if True in behind else None
