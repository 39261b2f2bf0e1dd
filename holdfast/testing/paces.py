"""The records of a test, folded again at other paces: final results must be the same at each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from random import Random
from typing import Any, TypeAlias

from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.origins import is_mark
from holdfast.testing.logs import TopicRecord

Pace: TypeAlias = Sequence[Sequence[TopicRecord]]
"""Stretches of records, between which the test has looked at results."""
Results: TypeAlias = Mapping[str, Counter[tuple[bytes | None, bytes | None]]]
AS_PIPED = "as it was piped"
FEW_RECORDS, MOST_RECORDS = 500, 2_000
"""Of more records than the first one other pace is tried, and of more than the second none."""


def final_topics(processors: Mapping[str, Processor[Any, Any]]) -> tuple[str, ...]:
    """Return the topics whose records are the same at any pace: of windows and joins in event time that read
    sources, or steps that pass on their origins.
    """
    writers = {str(topic): each for each in processors.values() for topic in each.emits}

    def follows(topic: str) -> bool:
        writer = writers.get(topic)
        if writer is None:
            return True
        known = topic in writer.told_topics and (writer.stateless or topic in writer.final_emits)
        return known and all(map(follows, writer.topics))

    found = [
        str(topic)
        for each in processors.values()
        if all(map(follows, each.topics))
        for topic in each.final_emits
    ]
    return tuple(dict.fromkeys(found))


def other_paces(piped: Pace) -> Iterator[tuple[str, Pace]]:
    """Yield the names of other paces with *piped* in their order; the records of one source partition keep
    theirs, and none leaves its stretch.
    """
    logs = [_logs(stretch) for stretch in piped]
    count = sum(map(len, piped))
    if max((len(each) for each in logs), default=0) < 2 or count > MOST_RECORDS:
        return
    yield "each source partition as a whole", [[*chain.from_iterable(of)] for of in logs]
    if count > FEW_RECORDS:
        return
    in_turn = [[each for row in zip_longest(*of) for each in row if each is not None] for of in logs]
    yield "a record of each source partition in turn", in_turn
    yield "at random, by seed 1", [_shuffled(of, Random(1)) for of in logs]


def _logs(records: Sequence[TopicRecord]) -> list[list[TopicRecord]]:
    logs: dict[tuple[str, int], list[TopicRecord]] = {}
    for each in records:
        logs.setdefault((each.topic, each.partition), []).append(each)
    return [*logs.values()]


def _shuffled(logs: Sequence[Sequence[TopicRecord]], rng: Random) -> list[TopicRecord]:
    turns = [number for number, log in enumerate(logs) for _ in log]
    rng.shuffle(turns)
    left = [iter(log) for log in logs]
    return [next(left[number]) for number in turns]


def results_in(records: Iterable[TopicRecord]) -> Counter[tuple[bytes | None, bytes | None]]:
    """Return how often each key and value was sent; marks, which depend on pace, are no results."""
    return Counter((each.key, each.value) for each in records if not is_mark(each.headers))


def told_difference(one: Results, other: Results) -> str | None:
    """Return the first result that only one of two paces has, None where both have the same."""
    for topic, results in one.items():
        apart = (results - other[topic]) + (other[topic] - results)
        if apart:
            key, value = min(apart, key=repr)
            counts = results[key, value], other[topic][key, value]
            return f"{topic} has {counts[0]} and {counts[1]} times the result {key!r:.200}: {value!r:.200}"
    return None
