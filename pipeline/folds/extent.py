"""The part of the logs that a replay reads: of each source, of the choices that record the order in which
several were folded, and of the topics of globals.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from holdfast.core.engine.fold.skips import OffsetRanges, kept
from holdfast.core.engine.positions import Position
from holdfast.errors import PipelineError, TopicError
from holdfast.pipeline.bronze.extent import Until
from holdfast.pipeline.folds.bases import first_behind, span_behind
from holdfast.pipeline.folds.plan import FoldPlan
from holdfast.pipeline.folds.positions import offsets_by_source
from holdfast.pipeline.folds.result_rows import FoldSummary
from holdfast.pipeline.stopping import ReplayEnd, stops
from holdfast.pipeline.topic import Span

Spans = Mapping[int, Span]


class ReadLimit(NamedTuple):
    """The end of a replay: the *partitions* to read (None: all), and *positions* to come to, or *until*."""

    partitions: Collection[int] | None = None
    positions: Mapping[int, Position] = MappingProxyType({})
    until: Until | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayExtent:
    """The extent to read: *spans* of each source, and of the *choices* where there are any, by partition.

    *upto* are positions to end at, if given: no choice from theirs on is obeyed. *stops* are points in the
    order in which it was folded to end at. *globals* are the topics of globals, of which choices say how much
    is read. *holes* are the missing parts, in words.
    """

    spans: Mapping[str, Spans]
    choices: Spans = field(default_factory=dict)
    upto: Mapping[int, Position] = field(default_factory=dict)
    stops: Mapping[int, ReplayEnd] = field(default_factory=dict)
    holes: tuple[str, ...] = ()
    globals: Mapping[str, Spans] = field(default_factory=dict)

    @property
    def partitions(self) -> list[int]:
        return sorted(next(iter(self.spans.values())))

    @property
    def offsets(self) -> int:
        """Return the most offsets of the sources that are to fold."""
        return sum(span.end - span.first for spans in self.spans.values() for span in spans.values())

    def is_open(self, partition: int) -> bool:
        """Return whether a partition ends where its sources do, though choices may know of later records."""
        return partition not in self.upto

    def skipped(
        self, skips: Mapping[str, Mapping[int, OffsetRanges]], summaries: Iterable[FoldSummary]
    ) -> int:
        """Return the number of folded offsets that are skipped."""
        topics = tuple(self.spans)
        return sum(
            end - span.first - sum(b - a for a, b in kept(skips[topic].get(at, ()), span.first, end))
            for each in summaries
            for at in (each.partition,)
            for topic, applied in offsets_by_source(topics, each).items()
            for span in (self.spans[topic][at],)
            for end in (self._reached(at, span, applied),)
        )

    def _reached(self, partition: int, span: Span, applied: int) -> int:
        return max(span.first, applied + 1) if partition in self.stops else span.end


def extent_of(
    plan: FoldPlan,
    spans: Mapping[str, Spans],
    choices: Mapping[str, Spans],
    limit: ReadLimit,
    where: str = "",
) -> ReplayExtent:
    """Return the part to read of *spans*, what there is of each source: from the first states on, up to
    *limit*. *choices* are those of the topic of choices, if there is one. *where* follows the topics' names
    in errors.

    TopicError where the sources have other partitions than the choices, PipelineError for a position or a
    partition that is not there.
    """
    processor = plan.processor
    for topic, chosen in choices.items():
        check_partitions(chosen, spans, topic)
    there = next(iter(choices.values()), None) or next(iter(spans.values()))
    partitions = set(there) if limit.partitions is None else set(limit.partitions)
    if unknown := sorted(partitions - set(there)):
        raise PipelineError(
            f"processor {processor.name} has no partition {unknown[0]}; its sources have {len(there)}"
        )
    ends = _replay_ends(plan, limit.until, spans)
    if not choices:  # then an offset is where the log is cut, and what comes after it need not be readable
        spans, ends = _cut(spans, ends)
    return ReplayExtent(
        spans={
            topic: {
                partition: _source_span(plan, number, partition, span, limit.positions, f"{topic}{where}")
                for partition, span in found.items()
                if partition in partitions
            }
            for number, (topic, found) in enumerate(spans.items())
        },
        choices={at: span for chosen in choices.values() for at, span in chosen.items() if at in partitions},
        upto=limit.positions,
        stops=ends,
    )


def _cut(
    spans: Mapping[str, Spans], ends: Mapping[int, ReplayEnd]
) -> tuple[Mapping[str, Spans], dict[int, ReplayEnd]]:
    """Return the spans of one source up to the offsets in *ends*, and the ends by time, which remain."""
    [(topic, found)] = spans.items()
    lasts = {at: last for at, each in ends.items() for last in each.last if last is not None}
    cut = {
        at: Span(first=min(span.first, end), end=end)
        for at, span in found.items()
        for end in (min(span.end, lasts.get(at, span.end) + 1),)
    }
    return {topic: cut}, {at: each for at, each in ends.items() if at not in lasts}


def _source_span(
    plan: FoldPlan, number: int, partition: int, span: Span, upto: Mapping[int, Position], topic: str
) -> Span:
    """Return the part of *span* of source *number* to read: from after the partition's first state, up to the
    position in *upto*.
    """
    firsts = first_behind(plan.bases, number)
    if partition in upto:
        end = upto[partition].applied[number] + 1
        if end > span.end:
            raise PipelineError(
                f"{topic} partition {partition} ends at offset {span.end}, so it cannot be replayed up to and"
                f" with {end - 1}"
            )
        span = Span(first=min(span.first, end), end=end)
    return span_behind(span, partition, firsts.get(partition, 0), topic)


def _replay_ends(plan: FoldPlan, until: Until | None, spans: Mapping[str, Spans]) -> dict[int, ReplayEnd]:
    """Return the end of each partition by *until*; PipelineError where that lies before its base."""
    processor = plan.processor
    found = stops(until, processor.topics, spans, processor.name)
    for partition, base in plan.bases.items():
        end = found.get(partition)
        if end is not None and not end.is_behind(base.position):
            raise PipelineError(
                f"partition {partition} of the table began with {base.base.told()}, so it cannot be replayed"
                " up to a place before that"
            )
    return found


def check_partitions(
    choices: Mapping[int, object], spans: Mapping[str, Mapping[int, object]], name: str
) -> None:
    """Raise TopicError unless each source has the partitions that the *choices* called *name* have."""
    for topic, found in spans.items():
        if set(found) != set(choices):
            raise TopicError(
                f"{name} has {len(choices)} partitions, the source {topic} has {len(found)}: "
                "they must be equal; check with `holdfast topics check`"
            )
