"""A tail of a log that holds no record for readers: markers, and aborted records."""

from __future__ import annotations

import pytest

from holdfast.core.kafka.record_batch import CONTROL_BIT, TRANSACTIONAL_BIT, Record, RecordBatch, encode_batch
from holdfast.core.kafka.tails import only_markers

ONE, OTHER = 7, 8


def data(offset: int, producer: int = -1, records: int = 2) -> bytes:
    """Return a batch of records, of a transaction where it has a producer."""
    attributes = TRANSACTIONAL_BIT if producer >= 0 else 0
    found = tuple(
        Record(offset_delta=each, timestamp_delta=0, key=None, value=b"x") for each in range(records)
    )
    return encode_batch(
        RecordBatch(
            base_offset=offset,
            attributes=attributes,
            last_offset_delta=max(0, records - 1),
            producer_id=producer,
            producer_epoch=0,
            records=found,
        )
    )


def marker(offset: int, producer: int = ONE) -> bytes:
    record = Record(
        offset_delta=0, timestamp_delta=0, key=b"\x00\x00\x00\x01", value=b"\x00\x00\x00\x00\x00\x00"
    )
    attributes = TRANSACTIONAL_BIT | CONTROL_BIT
    return encode_batch(
        RecordBatch(
            base_offset=offset,
            attributes=attributes,
            producer_id=producer,
            producer_epoch=0,
            records=(record,),
        )
    )


@pytest.mark.parametrize(
    ("log", "aborted", "first", "end", "empty"),
    [
        (b"", (), 5, 6, True),  # compaction has taken the records of it
        (marker(5), (), 5, 6, True),
        (data(3, ONE) + marker(5), (), 5, 6, True),
        (data(3, ONE) + marker(5), (), 4, 6, False),
        (data(5), (), 5, 7, False),
        (data(5, ONE) + marker(7), (), 5, 8, False),
        (data(5, ONE) + marker(7), ((ONE, 5),), 5, 8, True),
        (data(5, ONE) + marker(7), ((OTHER, 5),), 5, 8, False),
        (data(5) + marker(7), ((ONE, 5),), 5, 8, False),  # of no transaction
        (
            data(5, ONE) + marker(7) + data(8, ONE) + marker(10),
            ((ONE, 5),),
            5,
            11,
            False,
        ),  # the second was committed
        (data(5, ONE) + data(7, OTHER) + marker(9) + marker(10, OTHER), ((ONE, 5), (OTHER, 7)), 5, 11, True),
        (data(5, ONE, records=0), (), 5, 6, True),
        (marker(5), (), 5, 9, False),  # more than was fetched
        (marker(5) + data(6)[:-1], (), 5, 8, False),
        (marker(5) + data(6)[:40], (), 5, 8, False),
    ],
)
def test_a_tail_is_empty_when_readers_get_nothing_of_it(
    log: bytes, aborted: tuple[tuple[int, int], ...], first: int, end: int, empty: bool
) -> None:
    assert only_markers(log, first, end, aborted) is empty
