"""Headers of origins for the emits of folds and timers, as steps give them to the records that they send."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import repeat
from types import GeneratorType
from typing import Any

from holdfast.core.engine.declared.emit_rules import require_emits
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.sources import SKIPPED
from holdfast.core.engine.emits import Emit, Emits, Headers
from holdfast.core.engine.fold.paced import Paced
from holdfast.core.engine.fold.traced import TracedEvent
from holdfast.core.engine.origins import StepClock, early, is_mark, mark_of, record_header, unclaimed
from holdfast.core.engine.state.rows import Rows

_Header = tuple[str, bytes]
_PLAIN = (GeneratorType, list, tuple)
"""Kinds of emits that need no look: an `Emit` alone, which is refused, is none of them."""


class EmitHeaders:
    """Gives the emits of one *partition* of a processor the header of their origin, by *clock*.

    What a fold emits has the watermarks of its record. A timer of the event clock fires before the watermark
    comes to the time at which it was due, so that of its emits lies just before. Other timers' emits have the
    watermark of the partition.
    """

    def __init__(self, processor: Processor[Any, Any], clock: StepClock, partition: int) -> None:
        self._clock, self._partition, self._topics = clock, partition, frozenset(processor.told_topics)
        self._left: list[Iterator[Headers]] = [repeat(()) for _ in processor.topics]
        """The headers of the next records to fold, of each source of a step."""

    def read(self, source: int, headers: Iterable[Headers]) -> None:
        """Take the headers of the next records of a source that a step writes."""
        self._left[source] = iter(headers)

    def of_fold(
        self, source: int, fold: Callable[..., Emits], *, meets_marks: bool, takes_marks: bool = False
    ) -> Callable[..., Emits]:
        """Return *fold* with headers; it is called with marks only if it *takes_marks*."""
        clock, partition = self._clock, self._partition

        def folded(rows: Rows[Any], event: Any, at_ms: int, *asked: Any) -> Emits:
            headers = next(self._left[source]) if meets_marks else ()
            if meets_marks and is_mark(headers):
                clock.mark(source, mark_of(headers))
                return fold(rows, event, at_ms, *asked) if takes_marks else None
            if event is SKIPPED:
                return None
            told = event.event if event.__class__ is TracedEvent else event
            header = clock.header(source, told, headers, partition, at_ms)
            emits = fold(rows, event, at_ms, *asked)
            return None if emits is None else self._sent(emits, header)

        return folded

    def of_timer(
        self, act: Callable[[Rows[Any], str, int], Emits], *, by_event: bool = False
    ) -> Callable[[Rows[Any], str, int], Emits]:
        """Return *act*, which is called when a timer is due, with headers."""

        def acted(rows: Rows[Any], key: str, at_ms: int) -> Emits:
            emits = act(rows, key, at_ms)
            if emits is None:
                return None
            now_ms = self._clock.watermark_ms
            header = record_header(self._partition, at_ms - 1 if by_event else now_ms, now_ms)
            return self._sent(emits, header)

        return acted

    def _sent(self, emits: Any, header: _Header) -> Emits:
        if emits.__class__ is Paced:
            return Paced(map(partial(self._all_sent, header=header), emits.parts))
        known = emits.__class__ in _PLAIN
        return self._all_sent(emits if known else require_emits(emits), header)

    def _all_sent(self, emits: Iterable[Emit], header: _Header) -> list[Emit]:
        """Return *emits* with *header*. The last one alone reports how far the partition has come, since the
        others may be earlier than that.
        """
        made, last = [*emits], True
        if len(made) == 1 and (emit := made[0]).__class__ is Emit and emit.headers == ():
            if emit.topic in self._topics:
                return [Emit(emit.topic, emit.key, emit.value, (header,), emit.partition)]
            return made
        for at in range(len(made) - 1, -1, -1):
            emit = made[at]
            if not isinstance(emit, Emit) or emit.topic not in self._topics:
                continue
            try:
                headers = (*unclaimed(emit.headers), header if last else early(header))
            except (TypeError, ValueError):
                continue  # malformed headers: the emit is refused
            made[at] = Emit(emit.topic, emit.key, emit.value, headers, emit.partition)
            last = False
        return made


def emit_headers_of(
    processor: Processor[Any, Any], clock: StepClock | None, partition: int
) -> EmitHeaders | None:
    """Return the `EmitHeaders` of a partition; None for a step, which sets headers itself, and where emits
    carry none.
    """
    return None if clock is None or processor.stateless else EmitHeaders(processor, clock, partition)
