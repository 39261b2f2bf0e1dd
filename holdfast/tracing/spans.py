"""Spans of OpenTelemetry for what holdfast does with records and queries that carry a W3C trace context.

holdfast begins no trace. It continues those that services begin: a record without a trace context, or with
one that is not sampled, makes no span. Spans are of batches, not of records. So a process that has not
imported OpenTelemetry has no trace to continue, and neither imports it here nor pays for it. Workers and
harvesters, whose code no other program sets up, do so by `exporting`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from holdfast.core.engine.trace_context import ROOM_BYTES, TRACE_LIMITS, TRACEPARENT, is_readable, is_sampled

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, Tracer

Kind = Literal["CLIENT", "CONSUMER", "PRODUCER", "SERVER"]
Attributes = Mapping[str, str | int]
Carrier = Iterable[tuple[str, str | bytes | None]]
"""Headers of a record or request, which may have a trace context among them."""

LIMIT_LINKS: Final = 128
"""The most traces that a span links to: the limit of OpenTelemetry's SDK too."""
LIMIT_TOLD: Final = 1_000
"""Characters of why a span failed: it may quote a record."""
_NOTHING: Final[AbstractContextManager[None]] = nullcontext()


def is_on() -> bool:
    """Return whether this process uses OpenTelemetry."""
    return "opentelemetry.trace" in sys.modules


def outgoing() -> dict[str, str]:
    """Return the headers by which a message sent now continues the current trace; empty if there is none.

    >>> outgoing()
    {}
    """
    if not is_on():
        return {}
    from opentelemetry.baggage.propagation import W3CBaggagePropagator
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    if carrier:
        W3CBaggagePropagator().inject(carrier)
    return carrier


def record_headers(
    headers: Iterable[tuple[str, Any]], taken_bytes: int, room_bytes: int = ROOM_BYTES
) -> tuple[tuple[str, bytes], ...]:
    """Return the headers that `outgoing` adds to the *headers* of a record; none if they have a traceparent,
    or if it and the *taken_bytes* of the record need more than *room_bytes*: no record is refused for its
    trace.
    """
    if not (found := outgoing()) or any(name == TRACEPARENT for name, _ in headers):
        return ()
    added = tuple((name, value.encode()) for name, value in found.items())
    needed = taken_bytes + sum(len(name) + len(value) for name, value in added)
    return added if needed <= room_bytes else ()


def sending(name: str, kind: Kind, attributes: Attributes | None = None) -> AbstractContextManager[Any]:
    """Return a span within the current trace, to send in; nothing outside of a trace."""
    if not is_on():
        return _NOTHING
    from opentelemetry import trace

    if not trace.get_current_span().get_span_context().is_valid:
        return _NOTHING
    return _tracer().start_as_current_span(name, kind=trace.SpanKind[kind], attributes=dict(attributes or {}))


def handling(
    name: str, kind: Kind, carriers: Iterable[Carrier], attributes: Attributes | None = None
) -> AbstractContextManager[Any]:
    """Return a span for the handling of all that *carriers* came with, current within; a null context if no
    trace is sampled.

    It is a part of the trace that they all belong to, or else a trace of its own with links to theirs.
    """
    if not is_on() or not (met := MetTraces().take(carriers)):
        return _NOTHING
    return _within(met, name, kind, attributes or {})


@contextmanager
def _within(met: MetTraces, name: str, kind: Kind, attributes: Attributes) -> Iterator[Span]:
    from opentelemetry import context, trace

    begins, links = met.whence()
    span = _tracer().start_span(
        name, begins, kind=trace.SpanKind[kind], attributes=dict(attributes), links=links
    )
    token = context.attach(begins)  # with what it has besides the span: the baggage
    try:
        with trace.use_span(span, end_on_exit=True):
            yield span
    finally:
        context.detach(token)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A span that is reported when it is over: *began_ms* and *ended_ms* are times of the wall clock;
    *failed* says why it counts as an error.
    """

    name: str
    kind: Kind
    began_ms: int
    ended_ms: int
    attributes: Attributes
    failed: str = ""


def tell(told: Told, met: MetTraces) -> None:
    """Make the span *told* of what came with *met*, see `handling`."""
    if not met:
        return
    from opentelemetry import trace

    context, links = met.whence()
    span = _tracer().start_span(
        told.name,
        context,
        kind=trace.SpanKind[told.kind],
        attributes=dict(told.attributes),
        links=links,
        start_time=told.began_ms * 1_000_000,
    )
    if told.failed:
        span.set_status(trace.StatusCode.ERROR, told.failed[:LIMIT_TOLD])
    span.end(max(told.began_ms, told.ended_ms) * 1_000_000)


class MetTraces:
    """The sampled traces that were met in headers, each span once, `LIMIT_LINKS` of them at most."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[str, dict[str, str]] = {}

    def take(self, carriers: Iterable[Carrier]) -> MetTraces:
        """Look through *carriers*, and return this."""
        for carrier in carriers:
            if len(self._found) >= LIMIT_LINKS:
                break
            self.meet(carrier)
        return self

    def meet(self, carrier: Carrier) -> None:
        """Note the trace context in *carrier*, of each name the first as in `trace_of`, if it is sampled.
        A field that does not follow W3C's format is left out.
        """
        fields: dict[str, bytes] = {}
        for name, value in carrier:
            if (lower := name.lower()) in TRACE_LIMITS and value is not None:
                fields.setdefault(lower, _bytes(value))
        if len(self._found) < LIMIT_LINKS and is_sampled(parent := fields.get(TRACEPARENT, b"")):
            read = {each: value.decode() for each, value in fields.items() if is_readable(each, value)}
            self._found.setdefault(parent.decode(), read)

    def __bool__(self) -> bool:
        return bool(self._found)

    def whence(self) -> tuple[Context, list[Link]]:
        """Return the context that a span begins in, and its links."""
        from opentelemetry import trace
        from opentelemetry.baggage.propagation import W3CBaggagePropagator
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        read, nowhere = TraceContextTextMapPropagator(), trace.set_span_in_context(trace.INVALID_SPAN)
        contexts = [read.extract(fields, nowhere) for fields in self._found.values()]
        links = [trace.Link(trace.get_current_span(each).get_span_context()) for each in contexts]
        if len(contexts) > 1:
            return nowhere, links
        return W3CBaggagePropagator().extract(next(iter(self._found.values())), contexts[0]), links


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode(errors="replace")


def _tracer() -> Tracer:
    from opentelemetry import trace

    return trace.get_tracer("holdfast")
