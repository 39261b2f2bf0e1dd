"""Frames of the coordination topic: upstream's golden values, the Go decoder's errors, and what a hostile
producer may send.
"""

from __future__ import annotations

import json
import pickle
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.claims import frames
from holdfast.core.claims.frames import (
    LIMIT_FRAME_BYTES,
    ClaimingMessages,
    ClaimingPartition,
    Frame,
    FrameReason,
    Heartbeat,
    ReleaseGroup,
    ReleasingPartition,
    check_id,
    coordination_partition,
    decode,
    encode,
)
from holdfast.errors import DecodeError, FrameError
from tests.support.places import TESTDATA
from tests.support.scale import scaled

VECTORS: dict[str, Any] = json.loads((TESTDATA / "marshal_frames.json").read_text())
PARTITIONS: dict[str, Any] = json.loads((TESTDATA / "coordination_partition.json").read_text())
LIVE = b"Heartbeat/1/1476147600/3c5a0f1e/worker-7/foo.bar_consumer/orders/3/1024"


@pytest.mark.parametrize("vector", VECTORS["valid"], ids=lambda vector: vector["text"])
def test_m2_a_valid_frame_decodes_to_its_fields_and_encodes_back_to_the_same_bytes(
    vector: dict[str, Any],
) -> None:
    frame = decode(vector["text"].encode())
    assert type(frame).__name__ == vector["type"]
    told = msgspec.structs.asdict(frame) | (
        {"topic": "", "partition": 0} if isinstance(frame, ReleaseGroup) else {}
    )
    assert told == {name: value for name, value in vector.items() if name not in ("text", "type", "origin")}
    assert encode(frame) == vector["text"].encode()


def test_what_the_go_decoder_accepts_is_accepted_though_never_written() -> None:
    plus, empty, version = (decode(vector["text"].encode()) for vector in VECTORS["accepted_not_emitted"])
    assert plus == Heartbeat(5, "i", "c", "g", "t", 3, 5)
    assert encode(plus) == b"Heartbeat/1/5/i/c/g/t/3/5"
    assert empty == Heartbeat(5, "", "", "", "", 0, 5)
    with pytest.raises(FrameError, match="instance_id is empty"):
        encode(empty)
    assert version.version == 99
    assert Heartbeat(5, "i", "c", "g", "t", 3, 5).version == 1, "what holdfast makes itself is of version 1"


@pytest.mark.parametrize("vector", VECTORS["invalid"], ids=lambda vector: vector["text"])
def test_m2_an_invalid_frame_raises_the_go_decoders_class_of_error(vector: dict[str, Any]) -> None:
    with pytest.raises(FrameError) as caught:
        decode(vector["text"].encode())
    assert caught.value.reason == vector["go_error"]
    assert isinstance(caught.value, DecodeError)


def test_m1_the_coordinating_partition_of_every_vector_matches() -> None:
    for vector in PARTITIONS["vectors"]:
        assert [coordination_partition(vector["topic"], n) for n in PARTITIONS["n"]] == vector[
            "partitions"
        ], vector["topic"]
    assert [coordination_partition(topic, 4) for topic in ("test1", "test2", "test3", "unknown")] == [
        2,
        1,
        2,
        1,
    ]


def refused(value: bytes | None) -> FrameReason:
    with pytest.raises(FrameError) as caught:
        decode(value)
    assert len(str(caught.value)) < 1000, "an error message must not carry the whole value"
    return FrameReason(caught.value.reason)


HOSTILE: list[tuple[bytes | None, FrameReason]] = [
    (None, FrameReason.NULL),
    (b"/" * 7, FrameReason.NUMBER),
    (b"Heartbeat/1/5/i/c/g/t/-1/5", FrameReason.PARTITION),
    (b"Heartbeat/1/5/i/c/g/t/2147483648/5", FrameReason.PARTITION),
    (b"ClaimingPartition/1/5/i/c/g/t/4000000000", FrameReason.PARTITION),
    (b"Heartbeat/1/5/i/c/g/t/9223372036854775808/5", FrameReason.NUMBER),
    (b"Heartbeat/1/5/i/c/g/t/3/9223372036854775808", FrameReason.NUMBER),
    (b"Heartbeat/1/5/i/c/g/t/3/-9223372036854775809", FrameReason.NUMBER),
    (b"Heartbeat/1/9223372036854775808/i/c/g/t/3/5", FrameReason.NUMBER),
    (b"Heartbeat/9223372036854775808/5/i/c/g/t/3/5", FrameReason.NUMBER),
    (b"Heartbeat/1/5/i/c/g/t/3/" + b"9" * 4000, FrameReason.NUMBER),
    (b"Heartbeat/1/" + b"9" * 4000 + b"/i/c/g/t/3/5", FrameReason.NUMBER),
    (b"Heartbeat/1/5/i/c/g/t/3/1_000", FrameReason.NUMBER),
    (b"Heartbeat/1/5/i/c/g/t/3/ 5", FrameReason.NUMBER),
    (b"Heartbeat/1/5/i/c/g/t/3/5\n", FrameReason.NUMBER),
    (b"Heartbeat/1/5/i/c/g/t/3/", FrameReason.NUMBER),
    (b"Heartbeat/1/5/i/c/g/t/3/0x10", FrameReason.NUMBER),
    (b"Heartbeat/1/5/i/c/g/t/3/+-5", FrameReason.NUMBER),
    ("Heartbeat/1/5/i/c/g/t/3/\u0665".encode(), FrameReason.NUMBER),
    ("Heartbeat/1/\u0665/i/c/g/t/3/5".encode(), FrameReason.NUMBER),
    ("Heartbeat/1/5/i/c/g/t/\u00b2/5".encode(), FrameReason.NUMBER),
    (b"Heartbeat/1/5/i/c/with/slash/t/3/5", FrameReason.NUMBER),
    (b"Heartbeat/1/5/i/c/g/t/3/5/6", FrameReason.HB_LENGTH),
    (b"ReleasingPartition/1/5/i/c/g/t/3/5/" + b"/" * 3000, FrameReason.RP_LENGTH),
    (b"Heartbeat/1/5/\xff\xfe/c/g/t/3/5", FrameReason.UTF8),
    (b"Heartbeat/1/5/i/c/g/\xc0\xaf/3/5", FrameReason.UTF8),
    (b"Heartbeat/1/5/i/c/g/\xed\xa0\x80/3/5", FrameReason.UTF8),
    (b"\xff/1/5/i/c/g/t/3/5", FrameReason.TYPE),
    (b"heartbeat/1/5/i/c/g/t/3/5", FrameReason.TYPE),
    (b"ReleaseGroup/1/5/i/c/g/t/0/12", FrameReason.RG_TARGET),
    (b"ReleaseGroup/1/5/i/c/g//1/12", FrameReason.RG_TARGET),
    (b"ReleaseGroup/1/5/i/c/g//0", FrameReason.RG_LENGTH),
    (b"\x00" * 100, FrameReason.LENGTH),
    (b"Heartbeat/1/5/i/" + b"c" * 4096 + b"/g/t/3/5", FrameReason.SIZE),
]


@pytest.mark.parametrize(
    ("value", "reason"), HOSTILE, ids=lambda each: repr(each[:40]) if isinstance(each, bytes) else str(each)
)
def test_a_hostile_frame_is_refused_with_its_reason(value: bytes | None, reason: FrameReason) -> None:
    assert refused(value) == reason


def test_errors_are_found_in_the_order_of_the_go_decoder() -> None:
    steps = [
        (b"x/y/z/i/c/g/t", FrameReason.LENGTH),
        (b"Foo/x/z/i/c/g/t/-1/5/6", FrameReason.NUMBER),
        (b"Foo/1/5/i/c/g/t/-1/5/6", FrameReason.TYPE),
        (b"Heartbeat/1/5/\xff/c/g/t/-1/x/6", FrameReason.HB_LENGTH),
        (b"Heartbeat/1/5/\xff/c/g/t/-1/x", FrameReason.NUMBER),
        (b"Heartbeat/1/5/\xff/c/g/t/-1/5", FrameReason.PARTITION),
        (b"Heartbeat/1/5/\xff/c/g/t/1/5", FrameReason.UTF8),
    ]
    assert [refused(value) for value, _ in steps] == [reason for _, reason in steps]


@pytest.mark.parametrize(
    "fill",
    [b"/", b"9", b"\xff", b"Heartbeat/1/5/i/c/g/t/3/5/"],
    ids=["slashes", "digits", "bad utf-8", "frames"],
)
def test_ten_megabytes_are_refused_without_being_taken_apart(fill: bytes) -> None:
    value = b"Heartbeat/1/5/i/c/g/t/3/" + fill * (10_000_000 // len(fill))
    tracemalloc.start()
    try:
        assert refused(value) == FrameReason.SIZE
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_a_million_different_seconds_do_not_grow_the_memory_of_the_decoder() -> None:
    for time_s in range(1_000_000_000, 1_000_020_000):
        assert decode(b"Heartbeat/1/%d/i/c/g/t/3/5" % time_s).time_s == time_s
    assert len(frames._TIMES) <= frames._LIMIT_TIMES


def test_numbers_are_read_as_go_reads_them() -> None:
    def offset(text: bytes) -> int:
        frame = decode(b"Heartbeat/1/5/i/c/g/t/3/" + text)
        assert isinstance(frame, Heartbeat)
        return frame.current_offset

    spellings = [
        b"+5",
        b"-7",
        b"007",
        b"-0",
        b"0" * 3000 + b"9",
        b"9223372036854775807",
        b"-9223372036854775808",
    ]
    assert [offset(text) for text in spellings] == [5, -7, 7, 0, 9, 2**63 - 1, -(2**63)]
    assert decode(b"ClaimingPartition/1/5/i/c/g/t/2147483647") == ClaimingPartition(
        5, "i", "c", "g", "t", 2**31 - 1
    )
    assert decode(b"Heartbeat/1/0000000005/i/c/g/t/003/5") == Heartbeat(5, "i", "c", "g", "t", 3, 5)
    assert decode(b"Heartbeat/1/-5/i/c/g/t/3/5") == Heartbeat(-5, "i", "c", "g", "t", 3, 5)


def test_a_frame_of_the_largest_size_is_read_and_written_and_one_byte_more_is_not() -> None:
    room = LIMIT_FRAME_BYTES - len(encode(Heartbeat(5, "i", "c", "g", "t", 3, 5))) + 1
    largest = Heartbeat(5, "i", "c" * room, "g", "t", 3, 5)
    assert decode(encode(largest)) == largest
    with pytest.raises(FrameError) as caught:
        encode(Heartbeat(5, "i", "c" * (room + 1), "g", "t", 3, 5))
    assert caught.value.reason == FrameReason.SIZE


@pytest.mark.parametrize("bad", ["", "a/b", "a\nb", "a\x00", "\x7f", "a\x85b", "\ud800"], ids=ascii)
@pytest.mark.parametrize("field", ["instance_id", "client_id", "group_id", "topic"])
def test_encode_refuses_ids_that_some_reader_would_misread(field: str, bad: str) -> None:
    frame = msgspec.structs.replace(ClaimingPartition(5, "i", "c", "g", "t", 3), **{field: bad})
    with pytest.raises(FrameError, match=field) as caught:
        encode(frame)
    assert caught.value.reason == FrameReason.ID
    with pytest.raises(FrameError):
        check_id(field, bad)


@pytest.mark.parametrize(
    "frame",
    [
        Heartbeat(5, "i", "c", "g", "t", -1, 5),
        Heartbeat(5, "i", "c", "g", "t", 2**31, 5),
        Heartbeat(5, "i", "c", "g", "t", 3, -1),
        Heartbeat(5, "i", "c", "g", "t", 3, 2**63),
        Heartbeat(0, "i", "c", "g", "t", 3, 5),
        Heartbeat(2**63, "i", "c", "g", "t", 3, 5),
        Heartbeat(5, "i", "c", "g", "t", 3, 5, -1),
        ReleasingPartition(5, "i", "c", "g", "t", 3, -1),
        ClaimingMessages(5, "i", "c", "g", "t", 3, -1),
        ReleaseGroup(5, "i", "c", "g", -1),
    ],
    ids=str,
)
def test_encode_refuses_numbers_out_of_range(frame: Frame) -> None:
    with pytest.raises(FrameError) as caught:
        encode(frame)
    assert caught.value.reason == FrameReason.RANGE


def test_a_frame_error_keeps_its_reason_through_pickling_as_spark_does_it() -> None:
    with pytest.raises(FrameError) as caught:
        decode(b"Foo/1/5/i/c/g/t/3")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.reason) == (str(caught.value), "Invalid message")


ids = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc"], exclude_characters="/"), min_size=1, max_size=20
)
times = st.integers(1, 2**63 - 1) | st.integers(1_000_000_000, 2_000_000_000)
partitions = st.integers(0, 2**31 - 1) | st.integers(0, 20)
int63 = st.integers(0, 2**63 - 1) | st.integers(0, 1000)
versions = st.just(1) | int63
moved = (Heartbeat, ReleasingPartition, ClaimingMessages)
any_frame = st.one_of(
    *(st.builds(kind, times, ids, ids, ids, ids, partitions, int63, versions) for kind in moved),
    st.builds(ClaimingPartition, times, ids, ids, ids, ids, partitions, versions),
    st.builds(ReleaseGroup, times, ids, ids, ids, int63, versions),
)


@given(any_frame)
def test_whatever_is_encoded_decodes_to_the_same_frame(frame: Frame) -> None:
    assert decode(encode(frame)) == frame


pieces = st.sampled_from(
    [
        b"Heartbeat",
        b"ClaimingPartition",
        b"ReleaseGroup",
        b"1",
        b"+7",
        b"-1",
        b"",
        b"0",
        b"1476147600",
        b"\xff",
        b"t",
    ]
)
near_frames = st.lists(pieces | st.binary(max_size=12), min_size=6, max_size=11).map(b"/".join)


@settings(max_examples=scaled(400))
@given(st.binary(max_size=200) | near_frames)
def test_arbitrary_bytes_decode_to_a_frame_or_a_frame_error_and_nothing_else(value: bytes) -> None:
    try:
        frame = decode(value)
    except FrameError as error:
        FrameReason(error.reason)
        return
    assert isinstance(frame, Frame)
    partition = 0 if isinstance(frame, ReleaseGroup) else frame.partition
    assert 0 <= partition < 2**31


@given(near_frames | any_frame.map(encode))
def test_the_fast_way_and_the_careful_way_agree(value: bytes) -> None:
    def outcome(decoder: Any) -> Any:
        try:
            return decoder(value)
        except FrameError as error:
            return (error.reason, str(error))

    assert outcome(decode) == outcome(frames._decode_carefully)


def test_frames_cross_process_borders_as_a_tagged_union() -> None:
    frame = decode(LIVE)
    packed = msgspec.msgpack.encode(frame)
    assert msgspec.msgpack.Decoder(Frame).decode(packed) == frame
