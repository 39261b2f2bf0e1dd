"""A partition's log in memory: storing, reading and deleting records."""

from __future__ import annotations

import msgspec

from holdfast.core.kafka.producer_state import AppendOutcome
from holdfast.core.kafka.record_batch import (
    TRANSACTIONAL_BIT,
    RecordBatch,
    decode_batch,
    decode_header,
    encode_batch,
)
from holdfast.embedded.logs.partition_log import PartitionLog
from tests.embedded.transcripts.asking import batch

NOW_MS = 1_700_000_000_000


def appended(
    log: PartitionLog, data: bytes, *, is_append_time: bool = False, epoch: int = 0
) -> AppendOutcome:
    verdict = log.append(
        data,
        decode_header(data),
        leader_epoch=epoch,
        now_ms=NOW_MS,
        is_append_time=is_append_time,
        verified=True,
    )
    log.replicated(log.end_offset)
    return verdict.outcome


def read(log: PartitionLog, offset: int, **more: bool) -> list[RecordBatch]:
    found = log.read(offset, log.high_watermark, 1 << 20, committed=False, one_at_least=True, **more)
    return [decode_batch(each) for each in found.batches]


def test_a_batch_gets_offset_and_epoch_and_keeps_its_bytes() -> None:
    log = PartitionLog()
    appended(log, batch(b"a", b"b"))
    data = batch(b"c", base_offset=99, partition_leader_epoch=7)
    appended(log, data, epoch=3)
    stored = list(log)[1]
    assert (stored.first_offset, stored.last_offset, stored.leader_epoch) == (2, 2, 3)
    assert stored.data[16:] == data[16:]
    assert decode_batch(stored.data).base_offset == 2


def test_append_time_is_put_in_and_the_checksum_holds() -> None:
    log = PartitionLog()
    appended(log, batch(b"a", at_ms=5), is_append_time=True)
    (found,) = read(log, 0)
    assert found.is_log_append_time
    assert found.timestamp_ms(found.records[0]) == NOW_MS
    assert found.base_timestamp_ms == 5


def test_append_time_of_a_client_is_not_believed() -> None:
    log = PartitionLog()
    told = decode_batch(batch(b"a", at_ms=5))
    appended(log, encode_batch(msgspec.structs.replace(told, attributes=8)))
    (found,) = read(log, 0)
    assert not found.is_log_append_time


def test_reading_begins_with_the_batch_that_holds_the_offset() -> None:
    log = PartitionLog()
    for _ in range(3):
        appended(log, batch(b"a", b"b"))
    assert [each.base_offset for each in read(log, 3)] == [2, 4]
    assert read(log, 6) == []
    limited = log.read(0, 6, 1, committed=False, one_at_least=True)
    assert len(limited.batches) == 1, "one batch, whatever its size"
    assert log.read(0, 6, 1, committed=False, one_at_least=False).batches == []


def test_an_aborted_transaction_is_listed_in_reads_of_its_records() -> None:
    log = PartitionLog()
    told = {"producer_id": 5, "producer_epoch": 0, "attributes": TRANSACTIONAL_BIT}
    appended(log, batch(b"plain"))
    log.begin_verification(5, 0, 0, NOW_MS)
    assert appended(log, batch(b"a", base_sequence=0, **told)) is AppendOutcome.ACCEPTED
    assert log.last_stable_offset == 1
    assert log.kept_from(since_ms=1 << 60, size=0) == 1, "an open transaction is kept"
    log.end(5, 0, commit=False, coordinator_epoch=0, leader_epoch=0, now_ms=NOW_MS)
    log.replicated(log.end_offset)
    assert (log.last_stable_offset, log.end_offset) == (3, 3)

    def aborted(offset: int) -> list[int]:
        found = log.read(offset, log.high_watermark, 1 << 20, committed=True, one_at_least=True)
        return [each.first_offset for each in found.aborted]

    assert aborted(0) == aborted(2) == [1]
    appended(log, batch(b"later"))
    assert aborted(3) == []


def test_deleting_keeps_the_batch_that_reaches_beyond() -> None:
    log = PartitionLog()
    for _ in range(3):
        appended(log, batch(b"a", b"b"))
    size = log.size_bytes
    log.delete_before(3)
    assert (log.start_offset, log.end_offset) == (3, 6)
    assert [each.first_offset for each in log] == [2, 4]
    assert log.size_bytes == size * 2 // 3
    log.delete_before(6)
    assert list(log) == []
    assert log.end_offset == 6


def test_epochs_end_where_the_next_begins() -> None:
    log = PartitionLog()
    log.lead(0)
    appended(log, batch(b"a", b"b"))
    log.lead(2)
    appended(log, batch(b"c"), epoch=2)
    assert [log.epoch_end(each) for each in (-1, 0, 1, 2, 3)] == [(-1, -1), (0, 2), (0, 2), (2, 3), (-1, -1)]
    assert [log.epoch_at(each) for each in (0, 1, 2)] == [0, 0, 2]
    log.lead(3)
    log.lead(4)
    assert log.epochs[-1] == (4, 3), "an epoch in which nothing was written leaves no trace"


def test_times_are_found_though_they_go_back() -> None:
    log = PartitionLog()
    for at_ms in (1000, 3000, 2000, 3000):
        appended(log, batch(b"a", at_ms=at_ms))
    assert [found and found.offset for found in map(log.first_since, (0, 1000, 1001, 3001))] == [
        0,
        0,
        1,
        None,
    ]
    latest = log.latest_time()
    assert latest is not None
    assert (latest.offset, latest.timestamp_ms) == (1, 3000)


def test_a_waiting_reader_is_woken_once_it_may_read() -> None:
    log = PartitionLog()
    told: list[int] = []

    def wake() -> None:
        told.append(log.high_watermark)

    log.wait(wake)
    appended(log, batch(b"a"))
    log.leave(wake)
    appended(log, batch(b"b"))
    assert told == [1]
