"""The part of the topics of several sources that a replay reads: of each source, and of the choices that
record the order in which they were folded.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.clock import system_clock
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.fold.skips import OffsetRanges, kept
from holdfast.core.engine.positions import Position
from holdfast.errors import BrokerError, LostRecordsError, PipelineError, TopicError
from holdfast.pipeline.bronze.extent import Until
from holdfast.pipeline.folds.bases import first_behind, span_behind
from holdfast.pipeline.folds.folding import FoldPlan, FoldSummary
from holdfast.pipeline.stopping import ReplayEnd, stops
from holdfast.pipeline.topic import RETRY_S, Span, TopicLog


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedExtent:
    """The extent to read: of each source and of the choices, by partition. *upto* are positions to end at, if
    given: no choice from theirs on is obeyed. *stops* are points in the order in which it was folded to end
    at. *globals* are the topics of globals, of which choices say how much is read.
    """

    spans: Mapping[str, Mapping[int, Span]]
    choices: Mapping[int, Span]
    upto: Mapping[int, Position] = field(default_factory=dict)
    stops: Mapping[int, ReplayEnd] = field(default_factory=dict)
    holes: tuple[str, ...] = ()
    globals: Mapping[str, Mapping[int, Span]] = field(default_factory=dict)

    @property
    def partitions(self) -> list[int]:
        return sorted(self.choices)

    @property
    def offsets(self) -> int:
        """Return the most offsets of the sources that are to fold."""
        return sum(
            span.end - span.first
            for spans in self.spans.values()
            for at, span in spans.items()
            if at in self.choices
        )

    def is_open(self, partition: int) -> bool:
        """Return whether a partition ends where its sources do, though choices may know of later records."""
        return partition not in self.upto

    def skipped(
        self, skips: Mapping[str, Mapping[int, OffsetRanges]], summaries: Iterable[FoldSummary]
    ) -> int:
        """Return the number of folded offsets that are skipped."""
        return sum(
            end
            - span.first
            - sum(b - a for a, b in kept(skips[topic].get(each.partition, ()), span.first, end))
            for each in summaries
            for topic, applied in (each.sources or {}).items()
            for span in (self.spans[topic][each.partition],)
            for end in (self._reached(each.partition, span, applied),)
        )

    def _reached(self, partition: int, span: Span, applied: int) -> int:
        return max(span.first, applied + 1) if partition in self.stops else span.end


def merged_extent(
    settings: Settings,
    plan: FoldPlan,
    upto: Mapping[int, Position],
    wanted: Iterable[int] | None,
    until: Until | None = None,
) -> MergedExtent:
    """Return the part of the topics to read: up to the positions in *upto*, or *until*, else all there is.

    Sources come first: whatever was folded of them by then is in the order of the choices. These may know of
    later records, where the replay ends. Raises LostRecordsError when choices were deleted, since nothing
    else records the order.
    """
    processor = plan.processor
    spans: dict[str, dict[int, Span]] = {}
    for topic in processor.topics:
        with TopicLog(settings, topic) as log:
            spans[topic] = log.spans()
    settle_choices(settings, processor)
    with TopicLog(settings, processor.choices(settings.app)) as log:
        choices = log.spans()
    check_partitions(choices, spans, processor.choices(settings.app))
    partitions = set(choices) if wanted is None else set(wanted)
    if unknown := sorted(partitions - set(choices)):
        raise PipelineError(
            f"processor {processor.name} has no partition {unknown[0]}; its sources have {len(choices)}"
        )
    _require_choices(choices, partitions, processor.choices(settings.app))
    tables: dict[str, dict[int, Span]] = {}
    for topic in dict.fromkeys(each.topic for each in processor.reads):
        with TopicLog(settings, topic) as log:
            tables[topic] = log.spans()  # after the choices: these name nothing later
    return MergedExtent(
        globals=tables,
        spans={
            topic: {
                partition: source_span(plan, number, partition, span, upto)
                for partition, span in found.items()
                if partition in partitions
            }
            for number, (topic, found) in enumerate(spans.items())
        },
        choices={partition: span for partition, span in choices.items() if partition in partitions},
        upto=upto,
        stops=replay_ends(plan, until, spans),
        holes=(*_holes_of_sources(plan, spans, partitions), *_holes_of_globals(tables)),
    )


def _require_choices(choices: Mapping[int, Span], partitions: Iterable[int], topic: str) -> None:
    for partition in sorted(partitions):
        if choices[partition].first > 0:
            raise LostRecordsError(
                f"choices in {topic} partition {partition} were deleted before offset"
                f" {choices[partition].first}: in which order the sources were folded is not known any more"
            )


def _holes_of_sources(
    plan: FoldPlan, spans: Mapping[str, Mapping[int, Span]], partitions: Container[int]
) -> Iterator[str]:
    for number, (topic, found) in enumerate(spans.items()):
        begins = first_behind(plan.bases, number)
        for partition, span in found.items():
            if partition in partitions and span.first > begins.get(partition, 0):
                yield (
                    f"topic {topic} partition {partition} begins at offset {span.first}: earlier records were"
                    " deleted"
                )


def _holes_of_globals(tables: Mapping[str, Mapping[int, Span]]) -> Iterator[str]:
    for topic, found in tables.items():
        for partition, span in found.items():
            if span.first > 0:
                yield (
                    f"topic {topic} partition {partition} begins at offset {span.first}: earlier records were"
                    " deleted, which the global folds"
                )


def source_span(
    plan: FoldPlan, number: int, partition: int, span: Span, upto: Mapping[int, Position], where: str = ""
) -> Span:
    """Return the part of *span* of source *number* to read: from after the partition's first state, up to the
    position in *upto*.
    """
    topic, firsts = f"{plan.processor.topics[number]}{where}", first_behind(plan.bases, number)
    wanted = upto_position(topic, partition, span, number, upto)
    return span_behind(wanted, partition, firsts.get(partition, 0), topic)


def replay_ends(
    plan: FoldPlan, until: Until | None, spans: Mapping[str, Mapping[int, Span]]
) -> dict[int, ReplayEnd]:
    """Return the end of each partition by *until*; PipelineError where that lies before its base."""
    processor = plan.processor
    found = stops(until, processor.topics, spans, processor.name)
    for partition, base in plan.bases.items():
        end = found.get(partition)
        assert base.position.reached_ms, "of several sources"
        if end is not None and not end.is_behind(base.position):
            raise PipelineError(
                f"partition {partition} of the table began with {base.base.told()}, so it cannot be replayed"
                " up to a place before that"
            )
    return found


def settle_choices(settings: Settings, processor: Processor[Any, Any]) -> None:
    """Wait until all choices that are written now are committed or aborted; BrokerError where that takes too
    long.
    """
    settle(settings, processor.choices(settings.app), settings.request_timeout_s)


def settle(settings: Settings, topic: str, timeout_s: float) -> None:
    """Wait until all that is written in *topic* now is committed or aborted; BrokerError where that takes
    longer than *timeout_s*.
    """
    with TopicLog(settings, topic) as log:
        if not settled(log, timeout_s):
            raise BrokerError(
                f"topic {topic}: a transaction is open for more than {timeout_s:g} s, and what is behind it"
                " cannot be read. Wait until its producer or the broker has ended it, or look for one that"
                " hangs (`holdfast producers hanging`)"
            )


def upto_position(topic: str, partition: int, span: Span, number: int, upto: Mapping[int, Position]) -> Span:
    """Return *span* of source *number* up to the position in *upto*, where there is one."""
    if partition not in upto:
        return span
    end = upto[partition].applied[number] + 1
    if end > span.end:
        raise PipelineError(
            f"{topic} partition {partition} ends at offset {span.end}, so it cannot be replayed up to and"
            f" with {end - 1}"
        )
    return Span(first=min(span.first, end), end=end)


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


def settled(log: TopicLog, timeout_s: float) -> bool:
    """Wait until all that is written now is committed or aborted, and return whether it is: the markers that
    end one transaction are written to each of its partitions in its own time.
    """
    partitions = log.partitions()
    written, until_s = log.written(partitions), system_clock.monotonic_s() + timeout_s
    while any(end < written[partition] for partition, end in log.ends(partitions).items()):
        if system_clock.monotonic_s() > until_s:
            return False
        time.sleep(RETRY_S)
    return True
