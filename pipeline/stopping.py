"""The end of a replay before its logs end: at a point in the order in which they were
folded, so that the result is a state that the table was in.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.core.engine.fold.stretches import Stretch
from holdfast.core.engine.positions import Position
from holdfast.errors import ConfigError, PipelineError
from holdfast.pipeline.bronze.extent import Until
from holdfast.pipeline.topic import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayEnd:
    """The end of one partition: before the first record after *last*, the last offset of each source (None
    for any), and before the first record or tick later than *at_ms*.

    Records are as late as their source has become with them, so the time never goes back on the way there.
    """

    topics: tuple[str, ...]
    last: tuple[int | None, ...]
    at_ms: int | None = None

    def is_behind(self, position: Position) -> bool:
        """Return whether everything at *position* comes before the end."""
        if self.at_ms is not None and max(position.stream_ms, position.tick_ms) > self.at_ms:
            return False
        return all(
            last is None or done <= last for done, last in zip(position.applied, self.last, strict=True)
        )

    def cut(self, stretches: Iterator[Stretch]) -> Iterator[Stretch]:
        """Yield what of *stretches* comes before; raises PipelineError where a record that *last* names comes
        later.
        """
        for stretch in stretches:
            if stretch.choice is not None:
                if self._is_before(stretch):
                    yield stretch
                    continue
                self._check_rest(stretch, 0, stretches)
                return
            stop = self._stop_in(stretch)
            if stop:
                yield stretch if stop == stretch.records else stretch.slice(0, stop)
            if stop < stretch.records:
                self._check_rest(stretch, stop, stretches)
                return

    def _is_before(self, stretch: Stretch) -> bool:
        choice = stretch.choice
        assert choice is not None
        if self.at_ms is not None and choice.tick_ms is not None and choice.tick_ms > self.at_ms:
            return False
        return all(last is None or done <= last for done, last in zip(choice.applied, self.last, strict=True))

    def _stop_in(self, stretch: Stretch) -> int:
        """Return the number of records of *stretch* before the end."""
        stop = stretch.records
        if self.at_ms is not None:
            stop = _upto_time(stretch, self.at_ms)
        for source, (portion, last) in enumerate(zip(stretch.portions, self.last, strict=True)):
            if portion is None or last is None or portion.batch.offsets[-1] <= last:
                continue
            at = -1
            for _ in range(bisect_right(portion.batch.offsets, last) + 1):
                at = stretch.order.index(source, at + 1)
            stop = min(stop, at)
        return stop

    def _check_rest(self, stretch: Stretch, stop: int, rest: Iterator[Stretch]) -> None:
        """Raise PipelineError if a record after the end is said to be before it."""
        if self.at_ms is not None or sum(last is not None for last in self.last) < 2:
            return
        left: set[int] = {source for source, last in enumerate(self.last) if last is not None}
        after: Stretch | None = stretch.slice(stop, stretch.records)
        while after is not None and left:
            for source in tuple(left):
                portion, last = after.portions[source], self.last[source]
                assert last is not None
                if portion is None:
                    continue
                if portion.batch.offsets[0] <= last:
                    self._refuse(source)
                left.discard(source)
            after = next(rest, None)

    def _refuse(self, source: int) -> None:
        others = ", ".join(
            f"{topic} {last + 1}"
            for number, (topic, last) in enumerate(zip(self.topics, self.last, strict=True))
            if last is not None and number != source
        )
        raise PipelineError(
            f"the table was never there: {self.topics[source]} {self.last[source]} was folded after {others};"
            " name the last offset of one source, and all that was folded before its next record is in the"
            " state"
        )


def _upto_time(stretch: Stretch, at_ms: int) -> int:
    """Return the number of records of *stretch* before the first later than *at_ms*."""
    if stretch.reached_ms:
        return bisect_right(stretch.reached_ms, at_ms)  # in the order of times, between choices
    [portion] = stretch.portions
    assert portion is not None, "a stretch of a log has its records"
    times = enumerate(portion.batch.times_ms)
    return next((number for number, time_ms in times if time_ms > at_ms), stretch.records)


def stops(
    until: Until | None, topics: tuple[str, ...], spans: Mapping[str, Mapping[int, Span]], name: str
) -> dict[int, ReplayEnd]:
    """Return the end of each partition by *until*, where that ends it; ConfigError if *until* names no source
    of processor *name*, PipelineError for offsets that are not there.
    """
    if until is None:
        return {}
    if until.offsets:
        partition, last = next(iter(until.offsets.items()))
        if len(topics) > 1:
            raise ConfigError(
                f"processor {name} folds {len(topics)} sources, so an offset is one of them: write"
                f" {partition}:{topics[0]}:{last}"
            )
        until = replace(
            until, offsets={}, sources={at: {topics[0]: last} for at, last in until.offsets.items()}
        )
    partitions = spans[topics[0]]
    if until.at_ms is not None:
        nowhere: tuple[int | None, ...] = (None,) * len(topics)
        return {each: ReplayEnd(topics=topics, last=nowhere, at_ms=until.at_ms) for each in partitions}
    for partition, named in until.sources.items():
        _check_named(partition, named, topics, spans, name, at_most=until.at_most)
    return {
        partition: ReplayEnd(topics=topics, last=tuple(named.get(topic) for topic in topics))
        for partition, named in until.sources.items()
    }


def _check_named(
    partition: int,
    named: Mapping[str, int],
    topics: Sequence[str],
    spans: Mapping[str, Mapping[int, Span]],
    name: str,
    *,
    at_most: bool,
) -> None:
    for topic, last in named.items():
        if topic not in topics:
            raise ConfigError(f"--until: processor {name} folds {', '.join(topics)}, not {topic}")
        if partition not in spans[topic]:
            raise PipelineError(f"topic {topic} has no partition {partition}; it has {len(spans[topic])}")
        if last >= (end := spans[topic][partition].end) and not at_most:
            raise PipelineError(
                f"topic {topic} partition {partition} ends at offset {end}, so it cannot be replayed up to"
                f" and with {last}"
            )
