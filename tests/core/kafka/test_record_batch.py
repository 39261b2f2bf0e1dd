"""Record batches against captured bytes, against aiokafka's own builder, and against bytes that no client
should send.
"""

from __future__ import annotations

import contextlib
import json
import tracemalloc
import zlib
from typing import Any

import cramjam
import google_crc32c
import msgspec
import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.kafka.compression import Compression, compress, decompress
from holdfast.core.kafka.record_batch import (
    CONTROL_BIT,
    CRC_FROM,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    ControlRecord,
    ControlType,
    Record,
    RecordBatch,
    batches,
    control_of,
    decode_batch,
    decode_header,
    encode_batch,
)
from holdfast.core.kafka.wire import WireReader, WireReason
from holdfast.errors import WireError
from holdfast.models.requests import (
    InitProducerIdRequest,
    ProduceRequest,
    decode_init_producer_id_response,
    decode_produce_response,
    decode_request,
    encode_request,
    encode_response,
)
from tests.support.limits import at_most
from tests.support.marker_batches import marker_batch
from tests.support.places import TESTDATA

DUMPS: dict[str, Any] = json.loads((TESTDATA / "s2_dumps.json").read_text())
FRAMES = {each["name"]: (bytes.fromhex(each["hex"]), each["fields"]) for each in DUMPS["dumps"]}
BATCH = bytes.fromhex(DUMPS["batch_hex"])
MIB = 1 << 20


# -- the four dumps


def test_the_requests_of_the_dumps_are_read_and_written_byte_for_byte() -> None:
    """I1."""
    raw, fields = FRAMES["init_producer_id_request_v0"]
    asked = decode_request(raw)
    assert isinstance(asked, InitProducerIdRequest)
    assert msgspec.structs.asdict(asked).items() <= fields.items()
    assert encode_request(asked) == raw
    raw, fields = FRAMES["produce_request_v5"]
    produced = decode_request(raw)
    assert isinstance(produced, ProduceRequest)
    assert (produced.client_id, produced.transactional_id, produced.acks, produced.timeout_ms) == (
        "x",
        None,
        -1,
        30_000,
    )
    assert encode_request(produced) == raw
    ((topic,), told) = produced.topics, fields["topics"][0]
    (partition,) = topic.partitions
    assert (topic.topic, partition.partition, partition.batches) == (told["topic"], 0, (decode_batch(BATCH),))


def test_the_responses_of_the_dumps_are_read_and_written_byte_for_byte() -> None:
    """I1."""
    raw, fields = FRAMES["init_producer_id_response_v0"]
    given_id = decode_init_producer_id_response(raw)
    assert msgspec.structs.asdict(given_id).items() <= fields.items()
    assert encode_response(given_id) == raw
    raw, fields = FRAMES["produce_response_v5"]
    placed = decode_produce_response(raw)
    assert encode_response(placed) == raw
    assert msgspec.json.decode(msgspec.json.encode(placed.responses)) == fields["responses"]
    assert placed.throttle_time_ms == fields["throttle_time_ms"]


def test_the_batch_of_the_dumps_has_its_fields_and_its_checksum() -> None:
    """I1."""
    told = FRAMES["produce_request_v5"][1]["topics"][0]["partitions"][0]["batch"]
    header, batch = decode_header(BATCH), decode_batch(BATCH)
    for name, value in msgspec.structs.asdict(header).items():
        if name in told:
            assert value == told[name], name
    assert (header.crc32c, header.batch_length, header.size_bytes, header.records_count) == (
        0xA7C8475D,
        57,
        69,
        1,
    )
    assert batch.records == (Record(0, None, b"1"),)
    assert (batch.last_offset, batch.last_sequence, batch.timestamp_ms(batch.records[0])) == (
        0,
        0,
        1_520_810_318_475,
    )
    assert encode_batch(batch) == BATCH


@pytest.mark.parametrize("place", range(CRC_FROM, len(BATCH)))
def test_any_flipped_byte_of_a_batch_fails_its_checksum(place: int) -> None:
    """I1."""
    for bit in range(8):
        spoiled = bytearray(BATCH)
        spoiled[place] ^= 1 << bit
        with pytest.raises(WireError) as caught:
            decode_batch(bytes(spoiled))
        # a header that contradicts itself is reported before the checksum
        assert caught.value.reason in (WireReason.CHECKSUM, WireReason.LENGTH, WireReason.COMPRESSION)


def test_a_checksum_that_covers_nothing_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """I1: the check above can fail."""
    monkeypatch.setattr(google_crc32c, "value", lambda data: 0xA7C8475D)
    with pytest.raises(pytest.fail.Exception):
        test_any_flipped_byte_of_a_batch_fails_its_checksum(len(BATCH) - 2)


def test_a_frame_of_another_api_version_is_refused_with_its_position() -> None:
    raw = bytearray(FRAMES["produce_request_v5"][0])
    raw[7] = 9
    with pytest.raises(WireError, match=r"at byte 4: api 0 version 9") as caught:
        decode_request(bytes(raw))
    assert caught.value.reason == WireReason.API


@pytest.mark.parametrize("name", sorted(FRAMES))
def test_a_frame_cut_anywhere_is_truncated_and_says_where(name: str) -> None:
    raw = FRAMES[name][0]
    read = {
        "init_producer_id_request_v0": decode_request,
        "produce_request_v5": decode_request,
        "init_producer_id_response_v0": decode_init_producer_id_response,
        "produce_response_v5": decode_produce_response,
    }[name]
    for size in range(len(raw)):
        with pytest.raises(WireError) as caught:
            read(raw[:size])
        assert 0 <= caught.value.offset <= size
        cut = (
            (size - 4).to_bytes(4, "big") + raw[4:size] if size >= 4 else raw[:size]
        )  # whole by its own word, cut within
        with pytest.raises(WireError) as caught:
            read(cut)
        assert 0 <= caught.value.offset <= size
    with pytest.raises(WireError) as caught:
        read((len(raw) - 3).to_bytes(4, "big") + raw[4:] + b"\0")
    assert caught.value.reason == WireReason.TRAILING


# -- any batch

headers = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=12)), max_size=3).map(tuple)
one_record = st.tuples(
    st.none() | st.binary(max_size=40),
    st.none() | st.binary(max_size=200),
    headers,
    st.integers(-(1 << 40), 1 << 40),
)


@st.composite
def any_batch(draw: st.DrawFn) -> RecordBatch:
    records, delta = [], -1
    for key, value, head, ms in draw(st.lists(one_record, max_size=8)):
        delta += draw(st.sampled_from([1, 1, 1, 2, 300]))
        records.append(Record(delta, key, value, head, ms))
    return RecordBatch(
        base_offset=draw(st.integers(0, 1 << 60)),
        partition_leader_epoch=draw(st.integers(-1, 1 << 30)),
        attributes=draw(st.sampled_from(Compression)) | draw(st.sampled_from([0, 8, 16, 24, 48, 64])),
        last_offset_delta=max(0, delta) + draw(st.sampled_from([0, 0, 5])),
        base_timestamp_ms=draw(st.integers(-1, 1 << 41)),
        max_timestamp_ms=draw(st.integers(-1, 1 << 41)),
        producer_id=draw(st.integers(-1, 1 << 50)),
        producer_epoch=draw(st.integers(-1, (1 << 15) - 1)),
        base_sequence=draw(st.integers(-1, (1 << 31) - 1)),
        records=tuple(records),
    )


@given(any_batch())
def test_every_batch_is_read_as_it_was_written_under_every_compression(batch: RecordBatch) -> None:
    raw = encode_batch(batch)
    assert decode_batch(raw) == batch
    assert decode_header(raw).size_bytes == len(raw)
    if batch.compression is Compression.NONE:
        assert encode_batch(decode_batch(raw)) == raw


@given(any_batch(), st.integers(0, 1 << 30), st.binary(min_size=1, max_size=9))
def test_spoiled_bytes_give_a_typed_error_or_a_batch_and_nothing_else(
    batch: RecordBatch, place: int, spoil: bytes
) -> None:
    """The checksum is made to fit again, so that the bytes after it are met too."""
    raw = bytearray(encode_batch(batch))
    at = place % len(raw)
    raw[at : at + len(spoil)] = spoil[: len(raw) - at]
    raw[17:21] = google_crc32c.value(bytes(raw[CRC_FROM:])).to_bytes(4, "big")
    with contextlib.suppress(WireError):
        decode_batch(bytes(raw))


KAFKA_NAMES = {
    Compression.NONE: 0,
    Compression.GZIP: 1,
    Compression.SNAPPY: 2,
    Compression.LZ4: 3,
    Compression.ZSTD: 4,
}


@pytest.mark.parametrize("kind", Compression)
@pytest.mark.parametrize("transactional", [False, True])
def test_a_batch_that_aiokafka_wrote_is_read_and_written_the_same(
    kind: Compression, transactional: bool
) -> None:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=KAFKA_NAMES[kind],
        is_transactional=int(transactional),
        producer_id=77,
        producer_epoch=3,
        base_sequence=1_000,
        batch_size=MIB,
    )
    for at in range(40):
        value = None if at == 7 else b"value %d " % at * at
        assert (
            builder.append(
                at,
                1_700_000_000_000 + at * 250,
                b"key" if at % 2 else None,
                value,
                [("h", b"x"), ("h", None)],
            )
            is not None
        )
    raw = bytes(builder.build())
    batch = decode_batch(raw)
    assert (batch.compression, batch.is_transactional, batch.is_control) == (kind, transactional, False)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.last_sequence) == (
        77,
        3,
        1_000,
        1_039,
    )
    read = [
        (each.offset, each.timestamp, each.key, each.value, tuple(each.headers))
        for each in DefaultRecordBatch(bytearray(raw))
    ]
    ours = [
        (each.offset_delta, batch.timestamp_ms(each), each.key, each.value, each.headers)
        for each in batch.records
    ]
    assert ours == read
    written = encode_batch(batch)
    if kind is Compression.NONE:
        assert written == raw
    theirs = DefaultRecordBatch(bytearray(written))
    assert theirs.validate_crc()
    assert [
        (each.offset, each.timestamp, each.key, each.value, tuple(each.headers)) for each in theirs
    ] == read


def test_the_time_of_every_record_is_the_brokers_when_the_attributes_say_so() -> None:
    batch = RecordBatch(base_timestamp_ms=100, max_timestamp_ms=900, records=(Record(timestamp_delta=5),))
    assert batch.timestamp_ms(batch.records[0]) == 105
    logged = msgspec.structs.replace(batch, attributes=LOG_APPEND_TIME_BIT)
    assert logged.timestamp_ms(logged.records[0]) == 900


def test_a_batch_over_the_end_of_the_sequences_ends_below_where_it_begins() -> None:
    batch = RecordBatch(
        base_sequence=(1 << 31) - 2, last_offset_delta=3, records=tuple(Record(at) for at in range(4))
    )
    assert decode_batch(encode_batch(batch)).last_sequence == 1
    assert RecordBatch(last_offset_delta=3).last_sequence == -1


# -- several batches


def test_batches_are_read_one_after_the_other_and_a_cut_last_one_is_left_out() -> None:
    many = [RecordBatch(base_offset=at, records=(Record(value=b"%d" % at),)) for at in range(5)]
    raw = b"".join(map(encode_batch, many))
    assert [batch for _, _, batch in batches(raw)] == many
    places = [place for place, _, _ in batches(raw)]
    for size in range(places[4] + 1, len(raw)):
        assert [batch for _, _, batch in batches(raw[:size])] == many[:4]
    assert list(batches(b"")) == []


def test_an_older_format_is_named_with_its_position() -> None:
    with pytest.raises(WireError, match="at byte 16: format 1 of a message set") as caught:
        decode_batch(bytes(16) + b"\x01" + bytes(60))
    assert (caught.value.reason, caught.value.offset) == (WireReason.MAGIC, 16)


# -- control records


@pytest.mark.parametrize("kind", [ControlType.ABORT, ControlType.COMMIT])
def test_markers_end_transactions_for_better_or_worse(kind: ControlType) -> None:
    batch = marker_batch(
        kind, producer_id=1005, producer_epoch=4, coordinator_epoch=12, base_offset=109, timestamp_ms=5
    )
    raw = encode_batch(batch)
    read = decode_batch(raw)
    assert (read.is_control, read.is_transactional, read.base_sequence, read.producer_epoch) == (
        True,
        True,
        -1,
        4,
    )
    assert control_of(read, read.records[0]) == ControlRecord(kind, 12)
    (theirs,) = DefaultRecordBatch(bytearray(raw))
    assert (theirs.key, theirs.value) == (read.records[0].key, read.records[0].value)


def test_control_records_of_other_kinds_are_named_and_broken_ones_refused() -> None:
    def control(key: bytes, value: bytes) -> ControlRecord:
        batch = RecordBatch(attributes=CONTROL_BIT, records=(Record(key=key, value=value),))
        return control_of(batch, batch.records[0])

    assert control(b"\0\0\0\2", b"anything") == ControlRecord(ControlType.LEADER_CHANGE)
    assert control(b"\0\0\0\x63", b"") == ControlRecord(ControlType.UNKNOWN)
    for key, value in ((b"\0\0\0", b""), (b"\0\0\0\1", b"\0\0\0")):
        with pytest.raises(WireError) as caught:
            control(key, value)
        assert caught.value.reason == WireReason.TRUNCATED
    with pytest.raises(WireError, match="no control batch"):
        control_of(RecordBatch(records=(Record(),)), Record())


# -- what must not be believed


def spoiled(place: int, raw: bytes, batch: bytes = BATCH) -> bytes:
    """Return *batch* with *raw* at *place* and a checksum that fits."""
    out = bytearray(batch)
    out[place : place + len(raw)] = raw
    out[17:21] = google_crc32c.value(bytes(out[CRC_FROM:])).to_bytes(4, "big")
    return bytes(out)


HUGE_INT32 = b"\x7f\xff\xff\xff"
HUGE_VARINT = b"\xfe\xff\xff\xff\x0f"  # 2147483647
RECORD = HEADER_BYTES
LONG = encode_batch(
    RecordBatch(records=(Record(key=b"k" * 9, value=b"v" * 9, headers=(("h" * 9, b"w" * 9),)),))
)


@pytest.mark.parametrize(
    ("what", "raw", "reason"),
    [
        ("batch length", spoiled(8, HUGE_INT32), WireReason.TRUNCATED),
        ("negative batch length", spoiled(8, b"\xff\xff\xff\xff"), WireReason.LENGTH),
        ("records count", spoiled(57, HUGE_INT32), WireReason.LENGTH),
        ("records count and offsets", spoiled(57, HUGE_INT32, spoiled(23, HUGE_INT32)), WireReason.LENGTH),
        ("negative count", spoiled(57, b"\xff\xff\xff\xff"), WireReason.LENGTH),
        ("record length", spoiled(RECORD, HUGE_VARINT, LONG), WireReason.LENGTH),
        ("negative record length", spoiled(RECORD, b"\x01", LONG), WireReason.LENGTH),
        ("key length", spoiled(RECORD + 4, HUGE_VARINT, LONG), WireReason.TRUNCATED),
        ("value length", spoiled(RECORD + 14, HUGE_VARINT, LONG), WireReason.TRUNCATED),
        ("count of headers", spoiled(RECORD + 24, HUGE_VARINT, LONG), WireReason.LENGTH),
        ("length of a header's name", spoiled(RECORD + 25, HUGE_VARINT, LONG), WireReason.TRUNCATED),
        ("a varint without end", spoiled(RECORD + 2, b"\xff" * 11, LONG), WireReason.VARINT),
        ("a varint too large", spoiled(RECORD + 3, b"\xff" * 4 + b"\x1f", LONG), WireReason.VARINT),
        ("offset beyond the last", spoiled(RECORD + 3, b"\x02", LONG), WireReason.ORDER),
        ("negative offset", spoiled(RECORD + 3, b"\x01", LONG), WireReason.ORDER),
        ("null name of a header", spoiled(RECORD + 25, b"\x01", LONG), WireReason.LENGTH),
        ("no compression", spoiled(22, b"\x07"), WireReason.COMPRESSION),
        ("not compressed at all", spoiled(22, b"\x04"), WireReason.COMPRESSION),
        ("bytes after the last record", spoiled(57, bytes(4)), WireReason.TRAILING),
    ],
)
def test_a_hostile_length_is_refused_without_memory_for_it(what: str, raw: bytes, reason: WireReason) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(WireError) as caught:
            decode_batch(raw)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (caught.value.reason, 0 <= caught.value.offset <= len(raw)) == (reason, True), what
    assert peak < MIB, f"{what} made {peak} bytes"


@pytest.mark.parametrize("count", [HUGE_INT32, b"\xff\xff\xff\xff", b"\x80\x00\x00\x00"])
def test_a_hostile_count_of_topics_is_refused(count: bytes) -> None:
    raw = bytearray(FRAMES["produce_request_v5"][0])
    raw[23:27] = count
    with pytest.raises(WireError, match="topics") as caught:
        decode_request(bytes(raw))
    assert (caught.value.reason, caught.value.offset) == (WireReason.LENGTH, 23)


# -- compression


BOMB = bytes(32 * MIB)


@pytest.mark.long
@pytest.mark.parametrize("kind", [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD])
def test_what_unpacks_to_more_than_the_limit_is_an_error_and_not_a_full_memory(kind: Compression) -> None:
    packed = compress(kind, BOMB)
    assert len(decompress(kind, packed, limit_bytes=len(BOMB))) == len(BOMB)
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match="more than") as caught:
            decompress(kind, packed, limit_bytes=4 * MIB, base=61)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.reason == WireReason.SIZE
    assert peak < 16 * MIB


def test_a_block_that_promises_gigabytes_costs_nothing() -> None:
    promise = b"\xff\xff\xff\xff\x0f" + b"\0" * 20
    tracemalloc.start()
    try:
        for packed in (
            promise,
            bytes(cramjam.snappy.compress_raw(b""))[:0]
            + b"\x82SNAPPY\0"
            + bytes([0, 0, 0, 1] * 2)
            + HUGE_INT32,
        ):
            with pytest.raises(WireError):
                decompress(Compression.SNAPPY, packed, limit_bytes=1 << 40)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MIB


@given(st.binary(max_size=5_000), st.sampled_from(Compression))
def test_packed_bytes_are_unpacked(data: bytes, kind: Compression) -> None:
    assert decompress(kind, compress(kind, data), limit_bytes=5_000) == data


def test_snappy_is_read_with_and_without_xerials_frames_and_gzip_in_several_members() -> None:
    data = b"abc" * 40_000
    assert decompress(Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(data))) == data
    assert compress(Compression.SNAPPY, data).startswith(b"\x82SNAPPY\0")
    assert decompress(Compression.GZIP, compress(Compression.GZIP, data) * 2) == data * 2


def test_the_bytes_after_a_gzip_member_are_not_copied_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the time would grow with the square of how many there are."""
    copied, members = 0, 2_000

    class Counting:
        def __init__(self, wbits: int) -> None:
            self._one = decompressobj(wbits=wbits)

        def decompress(self, data: bytes, max_length: int) -> bytes:
            nonlocal copied
            found = self._one.decompress(data, max_length)
            copied += len(self._one.unused_data) + len(self._one.unconsumed_tail)
            return found

        def __getattr__(self, name: str) -> Any:
            return getattr(self._one, name)

    decompressobj = zlib.decompressobj
    monkeypatch.setattr(zlib, "decompressobj", Counting)
    for value, limit in ((b"", 0), (b"a", members), (b"abc" * 40, members * 120)):
        one = compress(Compression.GZIP, value)
        copied = 0
        assert decompress(Compression.GZIP, one * members, limit_bytes=limit) == value * members
        assert copied <= members * 3 * len(one)
    with pytest.raises(WireError, match="more than 9 bytes"):
        decompress(Compression.GZIP, compress(Compression.GZIP, b"a") * 10, limit_bytes=9)
    with pytest.raises(WireError, match="incomplete stream"):
        decompress(Compression.GZIP, compress(Compression.GZIP, b"a") * 3 + b"\x1f\x8b\x08")
    with pytest.raises(WireError, match="incorrect header check"):
        decompress(Compression.GZIP, compress(Compression.GZIP, b"a") * 3 + b"\0" * 40)


def _many_parts(kind: Compression, count: int) -> bytes:
    """Return *count* letters, each packed alone."""
    one = compress(kind, b"a")
    if kind is not Compression.SNAPPY:
        return one * count
    header = compress(kind, b"")
    return header + one[len(header) :] * count


MANY_PARTS = 60_000


@pytest.mark.long
@pytest.mark.parametrize("kind", [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD])
def test_a_batch_of_many_parts_is_unpacked_in_linear_time(kind: Compression) -> None:
    with at_most(2.0, "a megabyte of parts of one byte"):  # the square took gzip 2 s and more
        assert decompress(kind, _many_parts(kind, MANY_PARTS)) == b"a" * MANY_PARTS
    if kind in (Compression.GZIP, Compression.SNAPPY):
        with pytest.raises(WireError, match="in more than 1000 parts") as caught:
            decompress(kind, _many_parts(kind, 1_001), limit_parts=1_000)
        assert caught.value.reason == WireReason.SIZE
        assert decompress(kind, _many_parts(kind, 1_000), limit_parts=1_000) == b"a" * 1_000


@pytest.mark.parametrize("kind", [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD])
def test_packed_bytes_that_are_cut_or_foreign_are_an_error(kind: Compression) -> None:
    packed = compress(kind, b"some words " * 100)
    for bad in (packed[:-3], b"nothing of the kind", packed[: len(packed) // 2]):
        with pytest.raises(WireError) as caught:
            decompress(kind, bad, base=61)
        assert caught.value.offset >= 61


# -- what may not be written


@pytest.mark.parametrize(
    "batch",
    [
        RecordBatch(producer_epoch=1 << 15),
        RecordBatch(base_sequence=1 << 31),
        RecordBatch(producer_id=-2),
        RecordBatch(last_offset_delta=-1),
        RecordBatch(records=(Record(0), Record(0)), last_offset_delta=1),
        RecordBatch(records=(Record(1),)),
        RecordBatch(records=(Record(attributes=300),)),
    ],
)
def test_a_batch_that_no_reader_would_read_back_is_not_written(batch: RecordBatch) -> None:
    with pytest.raises(WireError) as caught:
        encode_batch(batch)
    assert caught.value.reason == WireReason.RANGE


def test_every_primitive_says_how_many_bytes_it_needed() -> None:
    for take in ("int8", "int16", "int32", "int64"):
        with pytest.raises(WireError, match=r"at byte 0: price needs \d bytes, 0 are left"):
            getattr(WireReader(b""), take)("price")
    with pytest.raises(WireError, match="is not UTF-8"):
        WireReader(b"\0\2\xff\xff").string("name")
    with pytest.raises(WireError, match="length -1"):
        WireReader(b"\xff\xff").string("name")
    assert WireReader(b"\xff\xff").string("name", nullable=True) is None
