"""A replay of several sources that ends before its logs do gives a state that the table had, and the one
requested.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

import pytest

from holdfast.core.engine.choices import Choice
from holdfast.core.engine.declared.sources import fingerprint
from holdfast.errors import ConfigError, PipelineError
from holdfast.pipeline.bronze.extent import Until, parse_until
from holdfast.pipeline.folds.folding import fold_partition
from holdfast.pipeline.folds.plan import FoldPlan
from holdfast.pipeline.folds.result_rows import FoldSummary
from holdfast.pipeline.folds.results import gather
from holdfast.pipeline.stopping import ReplayEnd, stops
from holdfast.pipeline.topic import Span
from tests.choices import world
from tests.choices.world import TOPICS, Log, logs_of, processor_of, recorded_of
from tests.pipeline.folds.test_merged import WIDTH, batches, lived
from tests.support.scale import scaled

SEEDS = range(scaled(12))
BY_EVENT = sum(1 << source for source in range(WIDTH) if world.has_time(source))


class Step(NamedTuple):
    """A record of *source* or, with source None, a choice."""

    source: int | None
    offset: int
    at_ms: int


def steps_of(logs: list[Log], recorded: list[Choice]) -> list[Step]:
    """Return the folded steps, in order, by a plain loop, without folder and merger."""
    out, done = list[Step](), [0] * len(logs)
    for choice in (*recorded, None):
        upto = [
            len(log.offsets) if choice is None else log.before(choice.applied[at])
            for at, log in enumerate(logs)
        ]
        by_event = BY_EVENT if choice is None else choice.by_event
        out += [
            Step(source, logs[source].offsets[at], max(logs[source].times_ms[: at + 1], default=-1))
            for source, at in world.in_turn(logs, done, upto, by_event)
        ]
        done = upto
        if choice is not None:
            out.append(Step(None, choice.number, -1 if choice.tick_ms is None else choice.tick_ms))
    return out


def digest_of(logs: list[Log], recorded: list[Choice], prefix: list[Step]) -> str:
    """Return the digest of the state after *prefix*: the logs cut there, and folded whole."""
    counts = [sum(step.source == source for step in prefix) for source in range(len(logs))]
    cut = [
        Log(log.offsets[:n], log.times_ms[:n], log.values[:n]) for log, n in zip(logs, counts, strict=True)
    ]
    choices = sum(step.source is None for step in prefix)
    return world.replay(Random(0), cut, recorded[:choices]).store.digest()


def until(steps: list[Step], past: Callable[[Step], bool]) -> list[Step]:
    """Return the steps before the first that is *past*."""
    at = next((at for at, step in enumerate(steps) if past(step)), len(steps))
    return steps[:at]


def folded(logs: list[Log], recorded: list[Choice], stop: ReplayEnd | None) -> FoldSummary:
    ends = [log.offsets[-1] + 1 if log.offsets else 0 for log in logs]
    found = fold_partition(
        FoldPlan(processor=processor_of(WIDTH)), 0, [batches(log) for log in logs], recorded, ends, stop
    )
    (summary,), _ = gather(found, [0])
    return summary


def stop_at(*last: int | None, at_ms: int | None = None) -> ReplayEnd:
    return ReplayEnd(topics=TOPICS[:WIDTH], last=last or (None,) * WIDTH, at_ms=at_ms)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_time_cuts_the_order_before_the_first_that_is_later(seed: int) -> None:
    live, logs = lived(seed)
    logs, recorded = logs_of(live, logs), recorded_of(live)
    steps = steps_of(logs, recorded)
    for at_ms in {step.at_ms for step in steps} | {-2, 1 << 40}:
        found = folded(logs, recorded, stop_at(at_ms=at_ms))
        wanted = until(steps, lambda step, at_ms=at_ms: step.at_ms > at_ms)  # type: ignore[misc]
        assert found.digest == digest_of(logs, recorded, wanted), at_ms
        assert found.choices == sum(step.source is None for step in wanted)


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("source", range(WIDTH))
def test_an_offset_of_one_source_takes_in_all_up_to_its_next_record(seed: int, source: int) -> None:
    live, logs = lived(seed)
    logs, recorded = logs_of(live, logs), recorded_of(live)
    steps = steps_of(logs, recorded)
    for last in (-1, *logs[source].offsets):
        last_of = [last if at == source else None for at in range(WIDTH)]
        found = folded(logs, recorded, stop_at(*last_of))
        wanted = until(steps, lambda step, last=last: step.source == source and step.offset > last)  # type: ignore[misc]
        assert found.digest == digest_of(logs, recorded, wanted), last


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_offsets_of_two_sources_are_a_position_that_the_table_had(seed: int) -> None:
    live, logs = lived(seed)
    logs, recorded = logs_of(live, logs), recorded_of(live)
    steps, reached = steps_of(logs, recorded), [-1] * WIDTH
    places = {tuple(reached): 0}
    for count, step in enumerate(steps, 1):
        if step.source is not None:
            reached[step.source] = step.offset
        places[tuple(reached)] = count  # the last one: ticks at the position are in it
    for place, count in places.items():
        found = folded(logs, recorded, stop_at(*place))
        assert found.digest == digest_of(logs, recorded, steps[:count])
    for north in logs[0].offsets:
        for east in logs[1].offsets:
            if (north, east) not in places:
                with pytest.raises(PipelineError, match="the table was never there"):
                    folded(logs, recorded, stop_at(north, east))


def test_a_tick_that_is_later_ends_a_replay_though_records_behind_it_are_not() -> None:
    tick = Choice(number=0, sources=fingerprint(TOPICS[:WIDTH]), applied=(0, -1), tick_ms=100)
    north, east = Log([0], [10], [b"\xc1"]), Log([0], [20], [b"\xc1"])
    found = [folded([north, east], [tick], stop_at(at_ms=at_ms)) for at_ms in (50, 100)]
    assert [(each.records, each.choices) for each in found] == [(1, 0), (2, 1)]


SPANS = {topic: {0: Span(first=0, end=8), 1: Span(first=0, end=4)} for topic in ("a", "b")}


def test_the_names_in_until_are_checked_before_any_read() -> None:
    made = stops(parse_until("1:b:3"), ("a", "b"), SPANS, "p")
    assert made == {1: ReplayEnd(topics=("a", "b"), last=(None, 3))}
    assert stops(None, ("a", "b"), SPANS, "p") == {}
    assert sorted(stops(Until(at_ms=5), ("a", "b"), SPANS, "p")) == [0, 1]
    for text, kind, why in (
        ("0:5", ConfigError, "an offset is one of them: write 0:a:5"),
        ("0:c:5", ConfigError, "processor p folds a, b, not c"),
        ("2:a:5", PipelineError, "topic a has no partition 2; it has 2"),
        ("1:a:4", PipelineError, "topic a partition 1 ends at offset 4"),
    ):
        with pytest.raises(kind, match=why):
            stops(parse_until(text), ("a", "b"), SPANS, "p")


@pytest.mark.parametrize("text", ["0:a:1,0:a:2", "0:a:1,0:5", "0:a:-2", "x:a:1", "0:a b:1"])
def test_an_until_that_says_two_things_or_nothing_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="of several sources 0:orders:17"):
        parse_until(text)


@pytest.mark.variant
@pytest.mark.long
def test_a_cut_that_forgot_ticks_would_be_found() -> None:
    """The planted fault: a cut by records alone."""

    class NoTicks(ReplayEnd):
        def _is_before(self, stretch: object) -> bool:
            return True

    wrong, seeds = 0, iter(range(40))
    while wrong <= 3:
        live, logs = lived(next(seeds))
        logs, recorded = logs_of(live, logs), recorded_of(live)
        for at_ms in {step.at_ms for step in steps_of(logs, recorded)}:
            right = folded(logs, recorded, stop_at(at_ms=at_ms))
            planted = NoTicks(topics=TOPICS[:WIDTH], last=(None,) * WIDTH, at_ms=at_ms)
            wrong += folded(logs, recorded, planted) != right
