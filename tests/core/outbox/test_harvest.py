"""The books of an outbox's producer: what progress records say, and that no crash between two of them
loses or repeats anything.
"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.engine.declared.partitioners import murmur2
from holdfast.core.kafka.sequences import MAX_SEQUENCE
from holdfast.core.outbox.harvest import (
    LIMIT_ALL_IDS,
    LIMIT_IDS,
    BatchSize,
    Partitioning,
    ProducerProgress,
    RowsProgress,
    buckets_of,
    decode_progress,
    pack_ids,
    rows_key,
    sequences_key,
    unpack_ids,
)
from holdfast.errors import DecodeError


class Topic:
    """A compacted progress topic: the last record of each key."""

    def __init__(self) -> None:
        self.last: dict[bytes, bytes] = {}

    def commit(self, books: ProducerProgress, ids: list[int], at: list[tuple[str, int]]) -> list[bytes]:
        sequences, ahead = books.number(at)
        self.last.update(books.records(ids, ahead))
        books.commit(ids, ahead)
        return sequences

    def restore(self, producer: str) -> ProducerProgress:
        books = ProducerProgress(producer)
        for key, value in self.last.items():
            books.restore(key, value)
        books.begin()
        return books


def test_a_new_leader_knows_the_published_rows_and_continues_their_numbers() -> None:
    topic = Topic()
    first = topic.restore("o-0")
    assert topic.commit(first, [1, 2, 5], [("t", 0), ("t", 1), ("t", 0)]) == [b"0", b"0", b"1"]
    second = topic.restore("o-0")
    assert second.published == {1, 2, 5}
    assert second.epoch == first.epoch + 1
    assert topic.commit(second, [6], [("t", 0)]) == [b"2"]
    assert second.number([("t", 1)])[0] == [b"1"], (
        "partitions that were not written to this time are still known"
    )


def test_a_transaction_that_came_to_nothing_leaves_no_trace() -> None:
    topic = Topic()
    books = topic.restore("o-0")
    books.number([("t", 0)] * 5)
    books.records([1], {("t", 0): 4})
    assert topic.commit(books, [1], [("t", 0)]) == [b"0"]


def test_rows_stay_named_until_they_are_known_to_be_deleted() -> None:
    topic = Topic()
    books = topic.restore("o-0")
    topic.commit(books, [1, 2], [("t", 0)] * 2)
    topic.commit(books, [3], [("t", 0)])
    assert topic.restore("o-0").published == {1, 2, 3}
    books.deleted([1, 2])
    topic.commit(books, [4], [("t", 0)])
    assert topic.restore("o-0").published == {3, 4}


def test_rows_published_by_another_shard_count_and_its_sequences_do_not() -> None:
    """When an outbox is given more shards, a row may have been published by the leader of another one."""
    topic = Topic()
    topic.commit(topic.restore("o-0"), [7], [("t", 0)])
    books = topic.restore("o-1")
    assert books.published == {7}
    assert books.number([("t", 0)])[0] == [b"0"]


def test_sequences_begin_again_after_the_last_one() -> None:
    books = ProducerProgress("o-0")
    books.commit([], {("t", 0): MAX_SEQUENCE})
    assert books.number([("t", 0), ("t", 0)])[0] == [b"0", b"1"]


@given(st.sets(st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 5), max_size=200))
def test_ids_survive_packing(ids: set[int]) -> None:
    """Ids below 0 too: they are set aside now, and earlier releases named them."""
    assert unpack_ids(pack_ids(ids)) == sorted(ids)


def test_a_leader_begins_after_records_that_name_ids_below_0() -> None:
    """One of them kept every later leader from its term, for good."""
    topic = Topic()
    rows = RowsProgress(1, "o-0", 3, [-7, 2, 5, 1])
    topic.last[rows_key("o-0")] = msgspec.json.encode(rows)
    books = topic.restore("o-0")
    assert (books.published, books.epoch) == ({-7, -6, 0}, 4)


@given(st.data())
def test_no_crash_loses_or_repeats_a_row(data: st.DataObject) -> None:
    """A leader may die before its commit, between commit and deletion, or after; every row is published
    exactly once.
    """
    topic, table, published = Topic(), set(range(1, 13)), []
    for _ in range(40):
        books = topic.restore("o-0")
        table -= books.published
        books.deleted(books.published.copy())
        dies = data.draw(st.sampled_from(["no", "before commit", "after commit", "after delete"]))
        while table:
            batch = sorted(table)[: data.draw(st.integers(1, 4))]
            if dies == "before commit":
                break
            topic.commit(books, batch, [("t", 0)] * len(batch))
            published += batch
            if dies == "after commit":
                break
            table -= set(batch)
            books.deleted(batch)
            if dies == "after delete":
                break
    assert len(published) == len(set(published))
    assert set(published) | table == set(range(1, 13))


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        (None, b"{}", "without a key"),
        (b"other/o-0", b"{}", "not known"),
        (b"rows/o-0", b"{}", "rows/o-0"),
        (b"rows/o-0", b"junk", "rows/o-0"),
        (b"rows/o-0", b'{"version":2,"producer":"o-0","epoch":1,"rows":[]}', "has version 2"),
    ],
)
def test_a_record_that_is_no_progress_is_refused(key: bytes | None, value: bytes, why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        decode_progress(key, value)


@pytest.mark.parametrize("packed", [[5, 1, -2, 1], [-7, 7, -1, 1], [-7, 0], [0, 0], [0, 10**9]])
def test_packed_ids_that_cannot_be_are_refused(packed: list[int]) -> None:
    with pytest.raises(DecodeError):
        unpack_ids(packed)


def test_a_record_names_no_more_rows_than_any_harvester_leaves() -> None:
    assert len(unpack_ids([7, LIMIT_IDS])) == LIMIT_IDS
    for packed in ([7, LIMIT_IDS + 1], [0, LIMIT_IDS, 0, 1], [0, 1 << 70]):
        with pytest.raises(DecodeError, match=f"{LIMIT_IDS} rows at most"):
            unpack_ids(packed)


@pytest.mark.long
def test_all_producers_together_name_no_more_rows_than_fit_the_memory() -> None:
    def told(producer: str, rows: list[int]) -> tuple[bytes, bytes]:
        return rows_key(producer), msgspec.json.encode(RowsProgress(1, producer, 1, rows))

    books = ProducerProgress("o-0")
    for number in range(LIMIT_ALL_IDS // LIMIT_IDS + 1):
        books.restore(*told(f"o-{number}", [number * LIMIT_IDS, LIMIT_IDS]))
    with pytest.raises(DecodeError, match="which no harvesters leave"):
        books.begin()
    books, gaps = ProducerProgress("o-0"), [1, 1] * 500_000
    for number in range(LIMIT_ALL_IDS // 500_000):
        books.restore(*told(f"o-{number}", gaps))
    with pytest.raises(DecodeError, match="which no harvesters leave"):
        books.restore(*told("o-x", gaps))
    books = ProducerProgress("o-0")
    for _ in range(LIMIT_ALL_IDS // 500_000 + 1):
        books.restore(*told("o-1", gaps))  # the last record of a producer counts, and no other
    books.begin()
    assert len(books.published) == 500_000


def test_a_tombstone_says_nothing() -> None:
    assert decode_progress(rows_key("o-0"), None) is None
    assert isinstance(decode_progress(*ProducerProgress("o-0").records([1], {})[0]), RowsProgress)
    assert sequences_key("o-0", "t").startswith(b"sequences/")


@given(st.binary(max_size=40), st.sampled_from([1, 2, 4, 8, 16, 64, 256, 3, 12, 100]))
def test_the_bucket_gives_the_partition_where_it_can(key: bytes, count: int) -> None:
    wanted = (murmur2(key) & 0x7FFFFFFF) % count
    assert Partitioning().of_key(key, count) == wanted
    assert Partitioning.of_bucket(murmur2(key) & 255, count) in (wanted, None)
    assert (Partitioning.of_bucket(0, count) is None) == (256 % count != 0)


@pytest.mark.parametrize("shards", [1, 2, 3, 7, 256])
def test_every_bucket_has_one_owner(shards: int) -> None:
    owned = [bucket for shard in range(shards) for bucket in buckets_of(shard, shards)]
    assert owned == list(range(256))


def test_a_batch_grows_under_backlog_shrinks_when_live_and_keeps_to_its_bytes() -> None:
    size = BatchSize(least=64, most=1000, limit_bytes=1 << 20)
    for _ in range(5):
        size.taken(size.rows, size.rows * 100)
    assert size.rows == 1000
    for _ in range(5):
        size.taken(1, 100)
    assert size.rows == 64
    size.taken(64, 64 << 20)
    assert size.rows == 1
