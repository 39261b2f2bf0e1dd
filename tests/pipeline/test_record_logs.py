"""The records of a topic as a replay reads them: a reader is kept for the next partition, and closed."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.config import Settings
from holdfast.core.engine.batches import Batch
from holdfast.pipeline.logs import record_log
from holdfast.pipeline.logs.record_log import TopicRecords
from holdfast.pipeline.topic import Span

SPAN = Span(first=0, end=4)


class Reader:
    """Reads two batches of any partition, and fails at one that is negative."""

    made: list[Reader]

    def __init__(self, *_: Any) -> None:
        self.closed = False
        Reader.made.append(self)

    def batches(self, partition: int, span: Span, inputs: Any) -> Iterator[tuple[Batch, int]]:
        for first in (0, 2):
            if partition < 0:
                raise ConnectionError
            yield Batch(range(first, first + 2), (1, 1), ()), 1

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> TopicRecords:
    Reader.made = []
    monkeypatch.setattr(record_log, "TopicReader", Reader)
    return TopicRecords(settings=Settings(), topic="t")


def left_open() -> list[bool]:
    return [not each.closed for each in Reader.made]


def test_one_reader_reads_partition_after_partition(log: TopicRecords) -> None:
    for partition in range(3):
        assert len([*log.batches((), partition, SPAN)]) == 2
    assert left_open() == [True]
    log.close()
    assert left_open() == [False]


def test_partitions_that_are_read_in_turns_have_readers_of_their_own(log: TopicRecords) -> None:
    reads: list[Any] = [log.batches((), partition, SPAN) for partition in (0, 1)]
    one, other = reads
    assert next(one)
    assert next(other)
    one.close()
    log.close()
    assert left_open() == [False, False], "also one that is in use: it may be kept until the process ends"
    other.close()
    assert left_open() == [False, False]


def test_a_reader_that_failed_reads_nothing_else(log: TopicRecords) -> None:
    with pytest.raises(ConnectionError):
        next(log.batches((), -1, SPAN))
    assert left_open() == [False]
    assert len([*log.batches((), 0, SPAN)]) == 2
    assert left_open() == [False, True]


def test_another_process_keeps_none(log: TopicRecords) -> None:
    sent = pickle.loads(pickle.dumps(log))
    for partition in range(2):
        assert len([*sent.batches((), partition, SPAN)]) == 2
    assert left_open() == [False, False]
