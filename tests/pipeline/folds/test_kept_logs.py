"""The topic of a global table is read once for all partitions that one process folds, as far as there is
room.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from itertools import islice

import pytest

from holdfast.core.engine.batches import Batch
from holdfast.pipeline.logs.kept_logs import KeptLogs
from holdfast.pipeline.topic import Span

SIZE, WHOLE = 10, Span(first=0, end=30)


class Log:
    """Thirty records in batches of two, and from where each reader began."""

    def __init__(self, fails_at: int = 99) -> None:
        self.begun: list[int] = []
        self.taken, self._fails_at = 0, fails_at

    def read(self, span: Span) -> Iterator[tuple[Batch, int]]:
        self.begun.append(span.first)
        for first in range(span.first, span.end, 2):
            if first == self._fails_at:
                raise OSError("the reader failed")
            self.taken += 1
            yield Batch(range(first, first + 2), (1, 2), ((b"x", b"y"),)), SIZE


def opened(kept: KeptLogs, log: Log, partition: int = 0, span: Span = WHOLE) -> Iterator[int]:
    """Yield the offsets that one fold gets."""
    for batch in kept.batches("rates", ("value",), partition, span, log.read):
        yield from batch.offsets


def test_records_that_one_fold_has_read_are_not_read_again() -> None:
    kept, log = KeptLogs(), Log()
    assert [*islice(opened(kept, log), 11)] == [*range(11)]
    for _ in range(3):
        assert [*opened(kept, log)] == [*range(30)]
    assert (log.begun, log.taken) == ([0], 15)


def test_folds_may_read_in_turns() -> None:
    kept, log = KeptLogs(), Log()
    folds = [opened(kept, log) for _ in range(3)]
    assert [[next(each) for each in folds] for _ in range(30)] == [[offset] * 3 for offset in range(30)]
    assert log.taken == 15


@pytest.mark.parametrize("room", [0, 1, 5, 14])
def test_each_fold_reads_the_records_that_exceed_the_room(room: int) -> None:
    kept, log = KeptLogs(room * SIZE + 1), Log()
    early = opened(kept, log)
    assert next(early) == 0
    for _ in range(2):
        assert [*opened(kept, log)] == [*range(30)]
    assert [*early] == [*range(1, 30)]
    assert log.begun == [0, *[2 * room] * 3]


def test_other_partitions_and_spans_are_other_logs() -> None:
    kept, log = KeptLogs(), Log()
    shorter = Span(first=4, end=8)
    assert [*opened(kept, log, 1)] == [*range(30)]
    assert [*opened(kept, log, 1, shorter)] == [4, 5, 6, 7]
    assert [*opened(kept, log, 2)] == [*range(30)]
    assert log.begun == [0, 4, 0]


def test_a_reader_that_failed_is_at_no_end() -> None:
    kept, failing, sound = KeptLogs(), Log(fails_at=8), Log()
    with pytest.raises(OSError, match="the reader failed"):
        read_all(opened(kept, failing))
    assert [*opened(kept, sound)] == [*range(30)]
    assert sound.begun == [8]


def read_all(offsets: Iterator[int]) -> None:
    for _ in offsets:
        pass


def test_another_process_reads_for_itself() -> None:
    kept, log = KeptLogs(), Log()
    assert [*opened(kept, log)] == [*range(30)]
    assert [*opened(pickle.loads(pickle.dumps(kept)), log)] == [*range(30)]
    assert log.begun == [0, 0]
