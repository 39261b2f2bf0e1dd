"""Messages taken apart into columns: offsets with and without gaps, every input of a processor, and a
record found again.
"""

from __future__ import annotations

import pytest
from confluent_kafka import Message

from holdfast.core.engine.declared.processor import INPUTS, Headers
from holdfast.kafka.fetching.records import FetchedRecord, Records
from tests.support.columns import take


def message(offset: int, headers: Headers = (), key: bytes | None = None) -> Message:
    return Message(
        topic="s",
        partition=3,
        offset=offset,
        value=b"v%d" % offset,
        key=key,
        headers=list(headers) or None,
        timestamp=(2, 1_000 + offset),
    )


@pytest.mark.parametrize(
    "handfuls",
    [
        [[4, 5, 6]],
        [[4, 5], [6], [7, 8]],
        [[4, 5], [7, 8], [9]],
        [[4, 6], [7], [8]],
        [[4], [6], [7], [9, 12]],
        [[0], [1, 2]],
    ],
)
def test_offsets_are_those_of_the_messages_whatever_is_missing(handfuls: list[list[int]]) -> None:
    records, offsets = Records(), [offset for handful in handfuls for offset in handful]
    for handful in handfuls:
        take(records, [message(offset) for offset in handful])
    batch = records.batch(3, INPUTS)
    assert list(batch.offsets) == offsets
    assert batch.times_ms == [1_000 + offset for offset in offsets]
    values, keys, headers, offsets_column, partitions = batch.columns
    assert values == [b"v%d" % offset for offset in offsets]
    assert list(offsets_column) == offsets
    assert (partitions, keys, headers) == ([3] * len(offsets), [None] * len(offsets), [()] * len(offsets))
    for column in (batch.offsets, batch.times_ms, *batch.columns):
        assert len(column) == len(records) == len(offsets)
    last = batch.after(offsets[-2])
    assert (list(last.offsets), list(last.columns[0])) == ([offsets[-1]], [b"v%d" % offsets[-1]])


def test_offsets_without_gaps_are_kept_as_a_range() -> None:
    records = Records()
    for first in range(0, 30, 3):
        take(records, [message(offset) for offset in range(first, first + 3)])
    assert records.offsets == range(30)


def test_headers_and_keys_stay_with_their_records() -> None:
    records = Records()
    take(records, [message(4), message(5)])
    take(records, [message(7, headers=(("a", b"1"), ("b", None)), key=b"k"), message(8)])
    assert records.batch(3, ("headers", "key")).columns == (
        [(), (), (("a", b"1"), ("b", None)), ()],
        [None, None, b"k", None],
    )
    assert records.at(7) == FetchedRecord(b"v7", b"k", (("a", b"1"), ("b", None)), 1_007)
    assert records.at(8) == FetchedRecord(b"v8", None, (), 1_008)
