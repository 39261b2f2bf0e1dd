"""A topic in memory that the local engine lands as it would a real one: chains of commits in milliseconds,
without a broker.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import pytest

from holdfast.config import Settings
from holdfast.core.kafka.topic_partition import Place
from holdfast.kafka.fetching.records import BatchOrigin, Records
from holdfast.pipeline.bronze.lake import bronze_path
from holdfast.pipeline.landing import landing, local_table
from holdfast.pipeline.landing.landing import Landing
from holdfast.pipeline.landing.local_table import LocalTable
from holdfast.pipeline.landing.options import LandOptions
from holdfast.pipeline.topic import Span
from tests.pipeline.accounts import Record


class TopicInMemory:
    """A topic that records are appended to; offsets may have gaps, as transactions leave them."""

    def __init__(self, name: str = "t", partitions: int = 2, identity: str = "id") -> None:
        self.topic, self._identity = name, identity
        self.logs: dict[int, list[Record]] = {p: [] for p in range(partitions)}
        self.end = dict.fromkeys(range(partitions), 0)

    def append(self, partition: int, values: Sequence[bytes | None], gap: int = 0) -> None:
        """Append records, then *gap* offsets that have none."""
        for value in values:
            at = self.end[partition]
            headers = (("h", b"%d" % at), ("n", None)) if at % 5 == 0 else ()
            self.logs[partition].append(
                Record(at, 1_000 + at, b"k%d" % at if at % 3 else None, value, headers)
            )
            self.end[partition] = at + 1
        self.end[partition] += gap

    def add_partition(self) -> None:
        self.logs[len(self.logs)], self.end[len(self.end)] = [], 0

    # -- as a landing sees it

    def identity(self) -> str:
        return self._identity

    def partitions(self) -> list[int]:
        return sorted(self.logs)

    def ends(self, partitions: Sequence[int]) -> dict[int, int]:
        return {p: self.end[p] for p in partitions}

    def firsts(self, partitions: Sequence[int]) -> dict[int, int]:
        return dict.fromkeys(partitions, 0)

    def spans(self) -> dict[int, Span]:
        return {p: Span(first=0, end=end) for p, end in self.end.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def records(self, partition: int, span: Span) -> Iterator[tuple[Records, int]]:
        found = [each for each in self.logs[partition] if span.first <= each.offset < span.end]
        for start in range(0, len(found), 700):
            some, out = found[start : start + 700], Records()
            out.append(
                [each.offset for each in some],
                [each.at_ms for each in some],
                [each.value for each in some],
                [each.key for each in some],
                [each.headers for each in some],
                BatchOrigin(broker_time=False, leader_epoch=0),
            )
            yield out, 1


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> TopicInMemory:
    """Give a topic that `landing_of` lands."""
    made = TopicInMemory()
    landed_from(monkeypatch, made)
    return made


def landed_from(monkeypatch: pytest.MonkeyPatch, made: TopicInMemory) -> None:
    """Have landings read *made*, whatever topic they land."""
    monkeypatch.setattr(local_table, "TopicReader", lambda settings, name, skips: made)
    monkeypatch.setattr(landing, "read_skips", lambda settings: _NoSkips())


class _NoSkips:
    def of_topic(self, topic: str) -> dict[Place, Any]:
        return {}


def landing_of(topic: TopicInMemory, lake: Path) -> Landing:
    table = LocalTable(Settings(), bronze_path(str(lake), topic.topic))
    return Landing(table, Settings(), topic, LandOptions())  # type: ignore[arg-type]


def land(topic: TopicInMemory, lake: Path) -> str:
    """Land the topic's records, and return the table's path."""
    made = landing_of(topic, lake)
    made.step(made.ends())
    return made.path


def some_commits(topic: TopicInMemory, lake: Path, commits: int, seed: int = 1) -> str:
    """Land random lots, some of them empty, with gaps between them; sometimes with a new landing."""
    chance, made = random.Random(seed), landing_of(topic, lake)
    for _ in range(commits):
        for partition in topic.partitions():
            values = [b"v%d" % chance.randrange(9) for _ in range(chance.randrange(1, 9))]
            topic.append(partition, values, gap=chance.choice([0, 0, 1, 3]))
        if chance.random() < 0.1:
            made = landing_of(topic, lake)
        made.step(made.ends())
    return made.path
