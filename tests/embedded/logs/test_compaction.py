"""The result of compacting a log: records, offsets, tombstones, markers, and answers to readers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place

from holdfast.core.broker_logs.folds import Committed, OffsetNote, decode_group
from holdfast.core.kafka.compression import Compression
from holdfast.core.kafka.producer_state import AppendOutcome
from holdfast.core.kafka.record_batch import (
    TRANSACTIONAL_BIT,
    Record,
    RecordBatch,
    decode_batch,
    decode_header,
    encode_batch,
)
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.embedded.logs.compaction import CompactionRules
from holdfast.embedded.logs.partition_log import PartitionLog
from tests.support.patience import DEADLINE_S

DAY_MS = 86_400_000
ALWAYS = CompactionRules(now_ms=1000, min_lag_ms=0, max_lag_ms=1 << 62, dirty_ratio=0.0, tombstones_ms=DAY_MS)
LATER = ALWAYS._replace(now_ms=1000 + DAY_MS)


def write(log: PartitionLog, *pairs: tuple[bytes, bytes | None], at_ms: int = 500, **fields: int) -> None:
    records = tuple(
        Record(offset_delta=number, key=key, value=value, timestamp_delta=number)
        for number, (key, value) in enumerate(pairs)
    )
    last = len(pairs) - 1
    data = encode_batch(
        RecordBatch(
            records=records,
            last_offset_delta=last,
            base_timestamp_ms=at_ms,
            max_timestamp_ms=at_ms + last,
            **fields,
        )
    )
    verdict = log.append(
        data, decode_header(data), leader_epoch=0, now_ms=1000, is_append_time=False, verified=True
    )
    assert verdict.outcome is AppendOutcome.ACCEPTED
    log.replicated(log.end_offset)


def write_in_transaction(
    log: PartitionLog, *pairs: tuple[bytes, bytes | None], sequence: int, producer: int = 7
) -> None:
    told = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence}
    log.begin_verification(producer, 0, sequence, 1000)
    write(log, *pairs, attributes=TRANSACTIONAL_BIT, **told)


def end(log: PartitionLog, *, commit: bool, producer: int = 7) -> None:
    told = {"coordinator_epoch": 0, "leader_epoch": 0, "now_ms": 1000}
    assert log.end(producer, 0, commit=commit, **told).outcome is AppendOutcome.ACCEPTED
    log.replicated(log.end_offset)


def batches(log: PartitionLog) -> Iterator[RecordBatch]:
    return (decode_batch(each.data) for each in log)


def left(log: PartitionLog) -> list[tuple[int, bytes | None, bytes | None]]:
    """The records that a reader finds, without markers."""
    return [
        (batch.base_offset + each.offset_delta, each.key, each.value)
        for batch in batches(log)
        if not batch.is_control
        for each in batch.records
    ]


def control_offsets(log: PartitionLog) -> list[int]:
    return [each.base_offset for each in batches(log) if each.is_control]


def test_the_last_record_of_each_key_stays_with_its_offset_and_time() -> None:
    log = PartitionLog()
    write(log, (b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
    write(log, (b"a", b"2"))
    write(log, (b"a", b"3"), (b"d", b"1"))
    write(log, (b"end", b""))
    assert log.compact(ALWAYS)
    assert left(log) == [(1, b"b", b"1"), (2, b"c", b"1"), (4, b"a", b"3"), (5, b"d", b"1"), (6, b"end", b"")]
    first = next(batches(log))
    assert (first.base_offset, first.last_offset_delta) == (0, 2)
    assert [first.timestamp_ms(each) for each in first.records] == [501, 502]
    assert (log.start_offset, log.end_offset, log.high_watermark) == (0, 7, 7)
    assert [
        decode_batch(each).base_offset
        for each in log.read(3, 7, 1 << 20, committed=False, one_at_least=True).batches
    ] == [4, 6]
    assert log.size_bytes == sum(len(each.data) for each in log)


def test_compacted_records_stay_the_same_in_the_next_compaction() -> None:
    log = PartitionLog()
    for value in (b"1", b"2", b"3"):
        write(log, (b"a", value), (b"b", None), (b"c%b" % value, b""))
    write(log, (b"end", b""))
    assert log.compact(ALWAYS)
    before = list(log)[:-1]
    write(log, (b"end", b""))
    assert log.compact(ALWAYS._replace(now_ms=2000))
    assert list(log)[: len(before)] == before


def test_the_newest_batch_is_not_compacted_and_does_not_count() -> None:
    log = PartitionLog()
    write(log, (b"a", b"1"))
    assert not log.compact(ALWAYS)
    write(log, (b"a", b"2"))
    assert log.compact(ALWAYS)
    assert left(log) == [(0, b"a", b"1"), (1, b"a", b"2")]


def long_log() -> PartitionLog:
    """Return one of 400 records of three keys, each in a batch of its own."""
    log = PartitionLog()
    for number in range(400):
        write(log, (b"%d" % (number % 3), b"%d" % number))
    return log


@pytest.mark.long
def test_others_have_their_turn_with_a_long_log() -> None:
    """Their writes stay, and their reads during the compaction return the records from before it."""
    log = long_log()
    read = []
    for turn, _ in enumerate(log.compaction(ALWAYS)):
        read.append(left(log)[:400])
        write(log, (b"0", b"turn %d" % turn))
    assert len(read) == 24, "twice 399 batches, 32 in a turn"
    assert all(each == left(long_log()) for each in read)
    assert left(log) == [
        (396, b"0", b"396"),
        (397, b"1", b"397"),
        (398, b"2", b"398"),
        (399, b"0", b"399"),
        *((400 + turn, b"0", b"turn %d" % turn) for turn in range(24)),
    ]
    assert log.compacted_to == 399
    assert log.compact(ALWAYS)
    assert [value for _, _, value in left(log)] == [b"397", b"398", b"turn 22", b"turn 23"]


def test_large_batches_end_a_turn_sooner() -> None:
    log = PartitionLog()
    for number in range(5):
        write(log, (b"a", b"%d" % number * 70_000))
    assert sum(1 for _ in log.compaction(ALWAYS)) == 8


def test_a_log_whose_records_were_deleted_between_two_turns_stays_as_it_is() -> None:
    log = long_log()
    compaction = log.compaction(ALWAYS)
    next(compaction)
    log.delete_before(398)
    assert [*compaction] == [], "it ends, rather than read what has gone"
    assert left(log) == [(398, b"2", b"398"), (399, b"0", b"399")]
    assert log.compacted_to == 0
    assert log.size_bytes == sum(len(each.data) for each in log)


def test_a_transaction_that_is_aborted_between_two_turns_stays_aborted() -> None:
    log = long_log()
    write_in_transaction(log, (b"a", b"no"), sequence=0)
    end(log, commit=False)
    for number in range(10):
        write(log, (b"%d" % number, b"later"))
    compaction = log.compaction(ALWAYS)
    next(compaction)
    first = log.end_offset
    write_in_transaction(log, (b"b", b"no"), sequence=0, producer=8)
    end(log, commit=False, producer=8)
    assert [*compaction]
    answer = log.read(0, log.end_offset, 1 << 20, committed=True, one_at_least=True)
    assert [(each.producer_id, each.first_offset) for each in answer.aborted] == [(7, 400), (8, first)]


def test_records_younger_than_the_least_lag_stay() -> None:
    log = PartitionLog()
    for at_ms in (100, 200, 950, 960, 970):
        write(log, (b"a", b"%d" % at_ms), at_ms=at_ms)
    assert log.compact(ALWAYS._replace(min_lag_ms=100))
    assert [each[0] for each in left(log)] == [1, 2, 3, 4]


def test_it_waits_until_enough_is_new_or_the_oldest_waited_for_long() -> None:
    log = PartitionLog()
    for key in range(10):
        write(log, (b"%d" % key, b""))
    half = ALWAYS._replace(dirty_ratio=0.5)
    assert log.compact(half)
    write(log, (b"0", b"again"), at_ms=900)
    assert not log.compact(half)
    assert not log.compact(half._replace(max_lag_ms=600))
    assert log.compact(half._replace(max_lag_ms=400))


def test_a_tombstone_stays_for_its_time_and_then_goes() -> None:
    log = PartitionLog()
    write(log, (b"a", b"1"), (b"b", b"1"))
    write(log, (b"a", None), (b"c", b"1"))
    write(log, (b"end", b""))
    assert log.compact(ALWAYS)
    assert left(log)[:3] == [(1, b"b", b"1"), (2, b"a", None), (3, b"c", b"1")]
    marked = list(batches(log))[1]
    assert (marked.attributes & 0x40, marked.base_timestamp_ms) == (0x40, 1000 + DAY_MS)
    assert [marked.timestamp_ms(each) for each in marked.records] == [500, 501]
    write(log, (b"end", b""))
    assert log.compact(LATER._replace(now_ms=LATER.now_ms - 1))
    assert (2, b"a", None) in left(log)
    write(log, (b"end", b""))
    assert log.compact(LATER)
    assert left(log)[:2] == [(1, b"b", b"1"), (3, b"c", b"1")]


def test_compaction_ends_before_an_open_transaction() -> None:
    log = PartitionLog()
    write(log, (b"a", b"1"))
    write(log, (b"a", b"2"))
    write_in_transaction(log, (b"b", b"1"), sequence=0)
    write(log, (b"a", b"3"))
    write(log, (b"a", b"4"))
    assert log.compact(ALWAYS)
    assert [each[0] for each in left(log)] == [1, 2, 3, 4]


def test_aborted_records_go_and_count_for_nothing() -> None:
    log = PartitionLog()
    write(log, (b"a", b"1"))
    write_in_transaction(log, (b"a", b"aborted"), sequence=0)
    end(log, commit=False)
    write_in_transaction(log, (b"b", b"1"), sequence=1)
    end(log, commit=True)
    write(log, (b"end", b""))
    assert log.compact(ALWAYS)
    assert left(log) == [(0, b"a", b"1"), (3, b"b", b"1"), (5, b"end", b"")]
    assert control_offsets(log) == [2, 4]
    assert log.read(0, 6, 1 << 20, committed=True, one_at_least=True).aborted  # its marker had records yet


def test_markers_go_after_the_last_record_of_their_transaction() -> None:
    log = PartitionLog()
    write_in_transaction(log, (b"a", b"aborted"), sequence=0)
    end(log, commit=False)
    write_in_transaction(log, (b"a", b"1"), sequence=1)
    end(log, commit=True)
    write_in_transaction(log, (b"a", b"2"), sequence=2)
    end(log, commit=True)
    write(log, (b"end", b""))
    for rules, markers in ((ALWAYS, [1, 3, 5]), (ALWAYS, [1, 3, 5]), (LATER, [5])):
        assert log.compact(rules)
        write(log, (b"end", b""))
        assert control_offsets(log) == markers
    assert left(log)[0] == (4, b"a", b"2")
    assert log.read(0, log.end_offset, 1 << 20, committed=True, one_at_least=True).aborted == []


def test_a_producers_last_batch_stays_empty_with_its_sequences() -> None:
    log = PartitionLog()
    write(log, (b"a", b"1"), (b"a", b"2"), producer_id=9, producer_epoch=3, base_sequence=40)
    write(log, (b"a", b"3"))
    write(log, (b"end", b""))
    assert log.compact(ALWAYS)
    first = next(batches(log))
    assert (first.records, first.base_offset, first.last_offset, first.last_sequence) == ((), 0, 1, 41)
    found = log.latest_time()
    assert found is not None
    assert found.offset == 2
    write(log, (b"end", b""), producer_id=9, producer_epoch=3, base_sequence=42)
    assert log.compact(ALWAYS)
    assert next(batches(log)).base_offset == 2


def test_the_last_batch_stays_when_nothing_is_left_of_it() -> None:
    log = PartitionLog()
    write(log, (b"a", b"1"))
    write(log, (b"b", None))
    write(log, (b"end", b""))
    assert log.compact(ALWAYS)
    log.compacted_to = 0  # as if the batches after it were young
    assert log.compact(LATER)
    assert [(each.base_offset, len(each.records)) for each in batches(log)] == [(0, 1), (1, 0), (2, 1)]


def test_emptied_batches_are_not_deleted_for_their_age() -> None:
    log = PartitionLog()
    write(log, (b"a", b"1"))
    write(log, (b"b", b"1"), producer_id=9, producer_epoch=3, base_sequence=40)
    for value in (b"2", b"3"):
        write(log, (b"a", value), (b"b", value))
    assert log.compact(ALWAYS)
    assert [(each.base_offset, len(each.records)) for each in batches(log)] == [(1, 0), (2, 2), (4, 2)]
    assert log.kept_from(since_ms=500, size=None) == 0, "the empty batches have no age of their own"
    assert log.kept_from(since_ms=502, size=None) == 6, "and go with those after them"


@pytest.mark.parametrize("codec", list(Compression))
def test_a_batch_stays_compressed(codec: Compression) -> None:
    log = PartitionLog()
    write(log, (b"a", b"1"), (b"b", b"1"), attributes=codec)
    write(log, (b"a", b"2"))
    write(log, (b"end", b""))
    assert log.compact(ALWAYS)
    assert next(batches(log)).compression is codec
    assert left(log)[0] == (1, b"b", b"1")


def test_a_damaged_batch_keeps_its_partition_from_being_compacted(caplog: pytest.LogCaptureFixture) -> None:
    with EmbeddedKafka() as kafka:
        topic = kafka.create_topic("rows", partitions=1, config={"cleanup.policy": "compact"})
        producer = Producer(kafka.client_config())
        for value in ("1", "2", "3"):
            producer.produce(topic, value, "a")
            producer.flush(DEADLINE_S)
        kafka.corrupt(topic, 0, 1)
        kafka.run_upkeep()
        partition = kafka.cluster.topics.partition(topic, 0)
        assert partition is not None
        assert len(list(partition.log)) == 3
    assert "rows-0 is not compacted" in caplog.text


@pytest.mark.long
def test_a_consumer_reads_a_compacted_topic_and_the_coordinators_own() -> None:
    with EmbeddedKafka(offsets_partitions=1) as kafka:
        topic = kafka.create_topic("rows", partitions=1, config={"cleanup.policy": "compact,delete"})
        producer = Producer(kafka.client_config())
        consumer = Consumer(
            kafka.client_config(
                **{"group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False}
            )
        )
        for number in range(20):
            producer.produce(topic, str(number), str(number % 3))
            producer.flush(DEADLINE_S)
            consumer.commit(offsets=[Place(topic, 0, number)], asynchronous=False)
        kafka.run_upkeep()
        consumer.assign([Place(topic, 0, 0)])
        read = [consumer.poll(DEADLINE_S) for _ in range(4)]
        consumer.close()
        partition = kafka.cluster.topics.partition("__consumer_offsets", 0)
        assert partition is not None
        noted = [
            decode_group(each.key, each.value) for batch in batches(partition.log) for each in batch.records
        ]
    assert [(each.offset(), each.value()) for each in read if each is not None] == [
        (16, b"16"),
        (17, b"17"),
        (18, b"18"),
        (19, b"19"),
    ]
    commits = [each.noted for each in noted if isinstance(each, OffsetNote)]
    assert [each.offset for each in commits if isinstance(each, Committed)] == [18, 19]
