"""Processors whose emits carry the trace context of the record that they come of.

The emits carry the record's own headers, unchanged. So an emit stays a function of the log: a replay emits
the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from holdfast.core.engine.declared.emit_rules import require_emits
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.sources import FoldColumns, FoldWith
from holdfast.core.engine.emits import Emit, Emits, Headers
from holdfast.core.engine.fold.paced import Paced
from holdfast.core.engine.trace_context import ROOM_BYTES, TRACEPARENT, trace_of
from holdfast.errors import ConfigError

P = TypeVar("P", bound=Processor[Any, Any])


def traced(processor: P) -> P:
    """Return *processor* with its emits carrying the trace of the record that they come of: `totals =
    traced(Processor(...))`.

    The headers `traceparent`, `tracestate` and `baggage` of a record are copied to the emits of its fold,
    unless the fold gives a `traceparent` itself. What timers emit comes of no record, and carries none. Steps
    such as `Map` copy all headers unchanged.

    Rows, keys and values are the same as without it. A processor that is traced from a version on has emitted
    records without these headers before, which `verify --emits` reports as differences: raise its version, or
    compare from then on.
    """
    if not isinstance(processor, Processor):
        raise ConfigError(f"traced({processor!r:.200}): give it a Processor, one at a time")
    if not processor.emits or processor.stateless or _is_traced(processor):
        return processor
    return processor.refolded(_of_source)


def _is_traced(processor: Processor[Any, Any]) -> bool:
    return any(isinstance(each.fold, _TracedFold | _TracedFoldWith) for each in processor.folds)


def _of_source(fold: Callable[..., Emits] | FoldWith | FoldColumns) -> FoldWith | FoldColumns:
    if isinstance(fold, FoldColumns):
        added = "headers" not in fold.inputs
        inputs = (*fold.inputs, "headers") if added else fold.inputs
        decode = _TracedDecoder(fold.decode, inputs.index("headers"), added)
        return replace(fold, fold=_TracedFold(fold.fold), decode=decode, inputs=inputs)
    call, asked = (fold.fold, tuple(fold.inputs)) if isinstance(fold, FoldWith) else (fold, ())
    added = "headers" not in asked
    told = (*asked, "headers") if added else asked
    marks = isinstance(fold, FoldWith) and fold.marks
    return FoldWith(_TracedFoldWith(call, told.index("headers"), added), told, marks)


class TracedEvent:
    """An event with the trace of its record, between a traced decoder and fold."""

    __slots__ = ("event", "headers")

    def __init__(self, event: Any, headers: Headers) -> None:
        self.event, self.headers = event, headers


@dataclass(frozen=True, slots=True)
class _TracedDecoder:
    """Decodes as *decode* does; column *at* are the headers, which *decode* is given too unless they were
    *added*.
    """

    decode: Callable[..., Any]
    at: int
    added: bool

    @property
    def time(self) -> Callable[[Any], int] | None:
        """Return the function that reads an event's time, where *decode* has one."""
        found: Callable[[Any], int] | None = getattr(self.decode, "time", None)
        return found

    def __call__(self, *columns: Any) -> Any:
        event = self.decode(*(columns[:-1] if self.added else columns))
        headers = columns[self.at]
        return TracedEvent(event, trace) if headers and (trace := trace_of(headers)) else event


@dataclass(frozen=True, slots=True)
class _TracedFold:
    fold: Callable[..., Emits]

    def __call__(self, rows: Any, event: Any, at_ms: int) -> Emits:
        if event.__class__ is not TracedEvent:
            return self.fold(rows, event, at_ms)
        return _carrying(self.fold(rows, event.event, at_ms), event.headers)


@dataclass(frozen=True, slots=True)
class _TracedFoldWith:
    """Folds as *fold* does; of the inputs after the time, *at* are the headers, see `_TracedDecoder`."""

    fold: Callable[..., Emits]
    at: int
    added: bool

    def __call__(self, rows: Any, event: Any, at_ms: int, *told: Any) -> Emits:
        emits = self.fold(rows, event, at_ms, *(told[:-1] if self.added else told))
        headers = told[self.at]
        return (
            _carrying(emits, trace)
            if emits is not None and headers and (trace := trace_of(headers))
            else emits
        )


def _carrying(emits: Emits, trace: Headers) -> Emits:
    if emits is None:
        return None
    if isinstance(emits, Paced):
        return Paced(_carrying_parts(emits.parts, trace))
    return (_with_trace(emit, trace) for emit in require_emits(emits))


def _carrying_parts(parts: Iterator[list[Emit]], trace: Headers) -> Iterator[list[Emit]]:
    for part in parts:
        yield [_with_trace(emit, trace) for emit in part]


def _with_trace(emit: Emit, trace: Headers) -> Emit:
    """Return *emit* with *trace*; as it is where it has one, has no room for it, or is malformed, which is
    refused elsewhere.
    """
    try:
        if any(name == TRACEPARENT for name, _ in emit.headers) or _size(emit) > ROOM_BYTES:
            return emit
        return Emit(emit.topic, emit.key, emit.value, (*emit.headers, *trace), emit.partition)
    except (AttributeError, TypeError, ValueError):
        return emit


def _size(emit: Emit) -> int:
    """Return at least what *emit* takes: a character has four bytes at most."""
    headers = sum(4 * len(name) + len(content or b"") for name, content in emit.headers)
    return 4 * len(emit.key or "") + len(emit.value or b"") + headers
