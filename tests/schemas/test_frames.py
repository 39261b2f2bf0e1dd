"""The wire format, as Confluent's own serializers write it."""

from __future__ import annotations

import pytest
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import DecodeError
from holdfast.schemas.frames import LIMIT_PATH, header, path_bytes, split, split_path

paths = st.lists(st.integers(0, 1 << 20), min_size=1, max_size=LIMIT_PATH).map(tuple)


@given(st.integers(0, 2**32 - 1), st.binary())
def test_a_framed_payload_is_split(schema_id: int, payload: bytes) -> None:
    assert split(header(schema_id) + payload) == (schema_id, payload)


@given(paths, st.binary())
def test_paths_are_those_of_confluent_and_come_back(path: tuple[int, ...], payload: bytes) -> None:
    theirs = bytearray()

    class Into:
        def write(self, data: bytes) -> None:
            theirs.extend(data)

    ProtobufSerializer._encode_varints(Into(), list(path), zigzag=True)
    assert path_bytes(path) == bytes(theirs)
    assert split_path(path_bytes(path) + payload) == (path, payload)


@pytest.mark.parametrize("value", [b"", b"\0\0\0\1", b"\1\0\0\0\1abc", b'{"a": 1}'])
def test_an_unframed_payload_is_refused(value: bytes) -> None:
    with pytest.raises(DecodeError):
        split(value)


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"", "cut short"),
        (b"\x04\x02", "cut short"),
        (b"\x01", "negative"),
        (b"\xff" * 9, "without an end"),
        (b"\x7e", "deep"),
    ],
)
def test_an_invalid_path_is_refused(payload: bytes, why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        split_path(payload)
