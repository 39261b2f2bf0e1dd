"""Reading fetched bytes: the same columns whatever the cut, records hidden by transactions stay hidden, and
hostile bytes cost no more than a limit.
"""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Sequence

import google_crc32c
import pytest

from holdfast.core.engine.fold.skips import OffsetRanges, Skip, behind, decode_skip, encode_skip, merged
from holdfast.core.kafka.compression import Compression, compress
from holdfast.core.kafka.record_batch import (
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    TRANSACTIONAL_BIT,
    ControlType,
    Record,
    RecordBatch,
    encode_batch,
    encode_records,
)
from holdfast.errors import WireError
from holdfast.kafka.fetching.batch_reader import (
    INLINE_BYTES,
    INLINE_PARTS,
    LIMIT_HEADERS,
    PIECE_BYTES,
    PIECE_RECORDS,
    BatchReader,
    pieces,
)
from holdfast.kafka.fetching.records import Records
from tests.support.marker_batches import marker_batch

MIB = 1 << 20
BOMB_BYTES = 100 * MIB
CODECS = [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD]
Row = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def read(
    data: bytes,
    position: int = 0,
    aborted: Sequence[tuple[int, int]] = (),
    *,
    limit: int = 1_000,
    limit_bytes: int = 64 * MIB,
    skips: OffsetRanges = (),
) -> tuple[list[Row], BatchReader]:
    """Return all rows that a consumer sees of *data*, and the reader at its end."""
    reader, records = (
        BatchReader(memoryview(data), aborted, position, limit_bytes=limit_bytes, skips=skips),
        Records(),
    )
    while not reader.done:
        before = len(records)
        reader.take(records, limit)
        assert len(records) - before <= limit
        if reader.packed is not None:
            reader.unpacked(reader.unpack())
    return list(
        zip(records.offsets, records.times_ms, records.keys, records.values, records.headers, strict=True)
    ), reader


def rows_of(batch: RecordBatch) -> list[Row]:
    return [
        (batch.base_offset + each.offset_delta, batch.timestamp_ms(each), each.key, each.value, each.headers)
        for each in batch.records
    ]


def batch_of(
    count: int,
    *,
    base: int = 0,
    attributes: int = 0,
    value: bytes | None = b"v",
    producer: int = -1,
    last: int = 0,
) -> RecordBatch:
    return RecordBatch(
        base_offset=base,
        attributes=attributes,
        last_offset_delta=last or max(0, count - 1),
        base_timestamp_ms=1_000,
        max_timestamp_ms=2_000,
        producer_id=producer,
        records=tuple(Record(offset_delta=each, value=value) for each in range(count)),
    )


def random_log(seed: int) -> tuple[bytes, list[tuple[int, int]], list[Row], int]:
    """Return a log's bytes, its aborted transactions, what a consumer sees of it, and its end; a marker
    ends each transaction.
    """
    rng = random.Random(seed)
    out, aborted, rows, base = bytearray(), list[tuple[int, int]](), list[Row](), rng.randrange(100)
    begun: dict[int, tuple[int, list[Row]]] = {}

    def some() -> bytes | None:
        return rng.choice([None, b"", rng.randbytes(rng.randrange(30)), bytes(rng.randrange(2_000))])

    for _ in range(rng.randrange(1, 25)):
        producer = rng.choice([-1, -1, 5, 6, 7])
        if producer in begun and rng.random() < 0.5:
            first, hidden = begun.pop(producer)
            commit = rng.random() < 0.5
            kind = ControlType.COMMIT if commit else ControlType.ABORT
            marker = marker_batch(
                kind,
                producer_id=producer,
                producer_epoch=0,
                coordinator_epoch=1,
                base_offset=base,
                timestamp_ms=9,
            )
            out += encode_batch(marker)
            base += 1
            if commit:
                rows += hidden
            else:
                aborted.append((producer, first))
            continue
        last = rng.randrange(40)
        kept = sorted(
            rng.sample(range(last + 1), rng.randrange(last + 2))
        )  # compaction leaves gaps, or nothing
        batch = RecordBatch(
            base_offset=base,
            attributes=rng.choice(list(Compression))
            | rng.choice([0, LOG_APPEND_TIME_BIT])
            | (TRANSACTIONAL_BIT if producer >= 0 else 0),
            last_offset_delta=last,
            base_timestamp_ms=rng.choice([-1, 1_700_000_000_000]),
            max_timestamp_ms=1_700_000_000_500,
            producer_id=producer,
            producer_epoch=0,
            records=tuple(
                Record(
                    offset_delta=delta,
                    key=some(),
                    value=some(),
                    headers=tuple((f"h{number}é", some()) for number in range(rng.choice([0, 0, 0, 1, 3]))),
                    timestamp_delta=rng.choice([0, 0, rng.randrange(500)]),
                )
                for delta in kept
            ),
        )
        out += encode_batch(batch)
        base += last + 1 + rng.choice([0, 0, 3])
        if producer < 0:
            rows += rows_of(batch)
        else:
            begun.setdefault(producer, (batch.base_offset, []))[1].extend(rows_of(batch))
    for producer in sorted(
        begun
    ):  # read_committed ends at the last stable offset: nothing stays open before it
        first, hidden = begun.pop(producer)
        out += encode_batch(
            marker_batch(
                ControlType.COMMIT,
                producer_id=producer,
                producer_epoch=0,
                coordinator_epoch=1,
                base_offset=base,
                timestamp_ms=9,
            )
        )
        base += 1
        rows += hidden
    return bytes(out), aborted, sorted(rows, key=lambda row: row[0]), base


@pytest.mark.parametrize("seed", range(60))
def test_whatever_the_cut_the_columns_are_those_that_were_written(seed: int) -> None:
    data, aborted, rows, end = random_log(seed)
    rng = random.Random(seed)
    for limit in (1, 7, 1_000):
        found, reader = read(data, 0, aborted, limit=limit)
        assert found == rows
        assert reader.position <= end
    for position in {rng.randrange(end + 1) for _ in range(5)}:
        assert read(data, position, aborted)[0] == [row for row in rows if row[0] >= position]


@pytest.mark.parametrize("seed", range(20))
def test_an_aborted_transaction_is_seen_only_by_a_reader_that_does_not_know_of_it(seed: int) -> None:
    data, aborted, rows, _ = random_log(1_000 + seed)
    if aborted:
        assert read(data, 0, [])[0] != rows or all(not row for row in rows)
    assert read(data, 0, aborted)[0] == rows


@pytest.mark.long
@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_that_unpacks_to_more_than_the_limit_is_unreadable_and_costs_no_more_than_the_limit(
    codec: Compression,
) -> None:
    good = encode_batch(batch_of(3))
    bomb = encode_batch(batch_of(1, base=3, attributes=codec, value=bytes(BOMB_BYTES)))
    reader, records = BatchReader(memoryview(good + bomb), (), 0, limit_bytes=8 * MIB), Records()
    reader.take(records, 100)
    tracemalloc.start()
    try:
        reader.take(records, 100)
        with pytest.raises(WireError, match="unpack to more than") as refused:
            reader.unpack()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * 8 * MIB + 3 * len(bomb)
    assert list(records.offsets) == [0, 1, 2]
    found = reader.unreadable("events", 4, refused.value)
    assert (found.topic, found.partition, found.first, found.last, found.records_count) == (
        "events",
        4,
        3,
        3,
        1,
    )
    assert (found.codec, found.size_bytes, found.at_ms, found.error) == (
        codec.name.lower(),
        len(bomb),
        2_000,
        "TooLargeError",
    )


def test_a_position_within_an_unreadable_batch_is_where_it_begins() -> None:
    bomb = encode_batch(batch_of(9, base=10, attributes=Compression.ZSTD, value=bytes(MIB)))
    reader = BatchReader(memoryview(bomb), (), 14, limit_bytes=2 * MIB)
    reader.take(Records(), 100)
    with pytest.raises(WireError) as refused:
        reader.unpack()
    found = reader.unreadable("events", 0, refused.value)
    assert (found.first, found.last) == (14, 18)


@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize("at", [17, 22, 45, HEADER_BYTES + 2, -1])
def test_a_changed_byte_is_found(codec: Compression, at: int) -> None:
    data = bytearray(encode_batch(batch_of(5, attributes=codec)))
    data[at] ^= 1
    with pytest.raises(WireError):
        read(bytes(data))


def lying(records: bytes, count: int, last: int) -> bytes:
    """Return a batch, whole and with the right checksum, around records that are what they like."""
    body = struct.pack(">hiqqqhii", 0, last, 0, 0, -1, -1, -1, count) + records
    return struct.pack(">qiibI", 0, 9 + len(body), 0, 2, google_crc32c.value(body)) + body


ONE = bytes([12, 0, 0, 0, 1, 1, 0])


@pytest.mark.parametrize(
    ("records", "count"),
    [
        (ONE, 2),
        (ONE + b"\x00", 1),
        (bytes([12, 0, 0, 8, 1, 1, 0]), 1),  # an offset beyond the batch
        (bytes([12, 0, 0, 2, 1, 1, 0]) + ONE, 2),  # offsets that fall
        (bytes([12, 0, 0, 0, 0x7E, 1, 0]), 1),  # a key longer than the batch
        (bytes([14, 0, 0, 0, 1, 1, 2, 1]), 1),  # a header without a name
        (bytes([18, 0, 0, 0, 1, 1, 2, 2, 0xFF, 1]), 1),  # a name that is no text
        (bytes([22, 0, 0, 0]) + b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", 1),
    ],
)
def test_records_that_lie_in_a_sound_batch_are_unreadable(records: bytes, count: int) -> None:
    with pytest.raises(WireError):
        read(lying(records, count, max(0, count - 1)))


CORRUPT = {
    "a record that lies": (
        b"".join(bytes([12, 0, 0, 2 * at, 1, 1, 0]) for at in range(6)) + bytes([12, 0, 0, 12, 0x7E, 1, 0]),
        7,
        6,
    ),
    "an offset that falls": (
        b"".join(bytes([12, 0, 0, 2 * at, 1, 1, 0]) for at in (0, 1, 2, 3, 4, 5, 2, 3, 7)),
        9,
        6,
    ),
    "bytes behind the last": (
        b"".join(bytes([12, 0, 0, 2 * at, 1, 1, 0]) for at in range(7)) + b"\x00",
        7,
        6,
    ),
}


@pytest.mark.parametrize("what", CORRUPT)
def test_however_many_are_taken_at_once_all_before_the_corrupt_record_are_read_and_no_more(what: str) -> None:
    records, count, good = CORRUPT[what]
    data = lying(records, count, count - 1)
    for limit in range(1, 12):
        reader, found = BatchReader(memoryview(data), (), 0, limit_bytes=MIB), Records()
        refused: WireError | None = None
        while refused is None:
            try:
                reader.take(found, limit)
            except WireError as error:
                refused = error
        assert list(found.offsets) == list(range(good)), limit
        unreadable = reader.unreadable("events", 0, refused)
        assert (unreadable.first, unreadable.last) == (good, count - 1), limit
        skips = ((unreadable.first, unreadable.last),)
        rows, ended = read(data + encode_batch(batch_of(2, base=count)), limit=limit, skips=skips)
        assert [row[0] for row in rows] == [*range(good), count, count + 1], limit
        assert ended.position == count + 2


def test_a_damaged_batch_ends_before_the_next_whatever_its_header_says() -> None:
    first, following = encode_batch(batch_of(5, base=10)), encode_batch(batch_of(5, base=15))
    for last in (0, 3, 9, 1 << 30):
        damaged = bytearray(first)
        struct.pack_into(">i", damaged, 23, last)
        for rest, ends in ((following, 14), (b"", 10)):  # without the next, one offset at a time
            reader = BatchReader(memoryview(bytes(damaged) + rest), (), 10, limit_bytes=MIB)
            with pytest.raises(WireError) as refused:
                reader.take(Records(), 100)
            found = reader.unreadable("events", 0, refused.value)
            assert (found.first, found.last) == (10, ends)


@pytest.mark.parametrize("is_checked", [False, True])
@pytest.mark.parametrize("last", [5, 9, 1 << 30])
def test_a_header_that_claims_offsets_of_the_next_batch_costs_nothing_but_its_own(
    last: int, is_checked: bool
) -> None:
    damaged, following = bytearray(encode_batch(batch_of(5, base=10))), encode_batch(batch_of(5, base=15))
    damaged[61] = 0x7E  # no length of a record
    struct.pack_into(">i", damaged, 23, last)
    if is_checked:
        struct.pack_into(">I", damaged, 17, int(google_crc32c.value(bytes(damaged[21:]))))
    reader = BatchReader(memoryview(bytes(damaged) + following), (), 10, limit_bytes=MIB)
    with pytest.raises(WireError) as refused:
        reader.take(Records(), 100)
    found = reader.unreadable("events", 0, refused.value)
    assert (found.first, found.last) == (10, 14)
    # The next fetch may begin with it again, since its header puts its last offset behind the position.
    for skips in (((10, 14),), ()):
        rows, ended = read(bytes(damaged) + following, 15, skips=skips)
        assert [row[0] for row in rows] == list(range(15, 20))
        assert ended.position == 20
    alone = BatchReader(memoryview(damaged), (), 10, limit_bytes=MIB)
    with pytest.raises(WireError) as refused:
        alone.take(Records(), 100)
    found = alone.unreadable("events", 0, refused.value)
    skip = Skip(topic="events", partition=0, first=found.first, last=found.last, made=True)
    assert decode_skip(skip.key, encode_skip(skip)) == skip, "what is skipped is what readers heed"


@pytest.mark.parametrize("seed", range(40))
def test_skipped_offsets_are_left_out_whether_they_can_be_read_or_not(seed: int) -> None:
    data, aborted, rows, end = random_log(seed)
    rng = random.Random(seed)
    begins = [rng.randrange(end) for _ in range(rng.randrange(1, 6))] if end else []
    skips = merged((first, first + rng.randrange(12)) for first in begins)
    found, reader = read(data, 0, aborted, limit=rng.choice([1, 3, 1_000]), skips=skips)
    assert found == [row for row in rows if behind(skips, row[0]) == row[0]]
    assert reader.position >= read(data, 0, aborted)[1].position


def test_a_batch_that_is_skipped_whole_is_not_even_unpacked() -> None:
    bomb = encode_batch(batch_of(9, base=10, attributes=Compression.ZSTD, value=bytes(MIB)))
    rest = encode_batch(batch_of(1, base=19))
    assert [row[0] for row in read(bomb + rest, 10, limit_bytes=2 * MIB, skips=((10, 18),))[0]] == [19]
    assert [row[0] for row in read(bomb + rest, 14, limit_bytes=2 * MIB, skips=((14, 18),))[0]] == [19]
    with pytest.raises(WireError):
        read(bomb + rest, 13, limit_bytes=2 * MIB, skips=((14, 18),))


def test_a_sound_batch_made_by_hand_is_read() -> None:
    assert [row[0] for row in read(lying(ONE, 1, 0))[0]] == [0]


@pytest.mark.parametrize("magic", [0, 1])
def test_an_old_format_is_reported_by_its_name(magic: int) -> None:
    data = bytearray(encode_batch(batch_of(1)))
    data[16] = magic
    with pytest.raises(WireError, match=f"format {magic}"):
        read(bytes(data))


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
def test_a_large_batch_is_taken_apart_in_pieces_and_nothing_is_lost(codec: Compression) -> None:
    sizes = [
        0,
        5,
        3 * PIECE_BYTES,
        7,
        PIECE_BYTES // 2,
        PIECE_BYTES // 2,
        PIECE_BYTES // 2,
        *([100] * 5_000),
        2 * PIECE_BYTES,
    ]
    records = tuple(Record(offset_delta=at, value=bytes(size)) for at, size in enumerate(sizes))
    data = encode_batch(RecordBatch(attributes=codec, last_offset_delta=len(sizes) - 1, records=records))
    found, reader = read(data)
    assert [len(row[3] or b"") for row in found] == sizes
    assert [row[0] for row in found] == list(range(len(sizes)))
    assert reader.position == len(sizes)
    assert [row[0] for row in read(data, 4_000)[0]] == list(range(4_000, len(sizes)))


@pytest.mark.long
def test_millions_of_tiny_records_in_one_batch_are_made_a_handful_at_a_time() -> None:
    count = 100_000
    log = lying(
        encode_records([Record(offset_delta=each) for each in range(count)], count - 1), count, count - 1
    )
    reader, seen, size = BatchReader(memoryview(log), (), 0, limit_bytes=64 * MIB), 0, 0
    tracemalloc.start()
    try:
        while not reader.done:
            handful = Records()
            size += reader.take(handful, 2_000)
            seen += len(handful)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert seen == count
    assert peak < 3 * len(log)
    assert size >= 24 * count, "records that hold nothing count too, for memory"


def test_headers_count_by_what_they_take_and_not_by_what_they_are_packed_in() -> None:
    many = Record(headers=(("", None),) * 50_000)
    records = Records()
    reader = BatchReader(memoryview(encode_batch(RecordBatch(records=(many,)))), (), 0, limit_bytes=MIB)
    assert reader.take(records, 10) >= 50_000 * 50
    most = Record(value=bytes(PIECE_BYTES), headers=(("", None),) * (LIMIT_HEADERS + 1))
    with pytest.raises(WireError, match="headers"):
        read(encode_batch(RecordBatch(records=(most,))))


def _packed_as(packed: bytes, codec: Compression) -> bytes:
    """Return a batch of one record whose records were packed to *packed* elsewhere."""
    head = bytearray(encode_batch(RecordBatch(attributes=int(codec), records=(Record(),)))[:HEADER_BYTES])
    struct.pack_into(">i", head, 8, HEADER_BYTES - 12 + len(packed))
    data = bytes(head) + packed
    crc = int(google_crc32c.value(data[21:]))
    return data[:17] + struct.pack(">I", crc) + data[21:]


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.SNAPPY])
def test_a_batch_in_many_parts_is_unpacked_elsewhere(codec: Compression) -> None:
    """On the event loop each part would cost a microsecond or two, and there may be a million."""
    value = b"a" * (INLINE_PARTS + 1)
    plain = encode_records([Record(value=value)], 0)
    at, header = plain.index(value), compress(codec, b"") if codec is Compression.SNAPPY else b""
    parts = [plain[:at], *(b"a" for _ in value), plain[at + len(value) :]]
    data = _packed_as(header + b"".join(compress(codec, each)[len(header) :] for each in parts), codec)
    reader, records = BatchReader(memoryview(data), (), 0, limit_bytes=MIB), Records()
    assert reader.take(records, 10) == 0
    assert reader.packed is not None
    reader.unpacked(reader.unpack())
    reader.take(records, 10)
    assert records.values == [value]


def test_a_batch_that_is_large_as_it_is_packed_is_unpacked_elsewhere() -> None:
    """Whatever it unpacks to: frames of zstd may hold nothing."""
    skipped = b"\x50\x2a\x4d\x18" + INLINE_BYTES.to_bytes(4, "little") + bytes(INLINE_BYTES)
    plain = encode_records([Record(value=b"v")], 0)
    reader = BatchReader(
        memoryview(_packed_as(skipped + compress(Compression.ZSTD, plain), Compression.ZSTD)),
        (),
        0,
        limit_bytes=MIB,
    )
    records = Records()
    reader.take(records, 10)
    assert reader.packed is not None
    reader.unpacked(reader.unpack())
    reader.take(records, 10)
    assert records.values == [b"v"]


def test_a_piece_of_a_large_batch_has_not_many_records() -> None:
    count = 2 * PIECE_RECORDS + 1
    records = encode_records([Record(offset_delta=each) for each in range(count)], count - 1)
    found = list(pieces(memoryview(records), count))
    assert [made for made, _ in found] == [PIECE_RECORDS, PIECE_RECORDS, 1]
    assert b"".join(each for _, each in found) == records
