"""Text that is not UTF-8 and nesting without end, where each was found to end a reader by an error that is
not caught.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast.core import ranges
from holdfast.core.claims import resets
from holdfast.core.engine import query_wire
from holdfast.core.engine.positions import Position, decode_position
from holdfast.core.engine.state.codec import RowCodec, decode_due, text_key
from holdfast.core.kafka.transaction_requests import added
from holdfast.core.outbox import harvest
from holdfast.core.producers import registry
from holdfast.errors import HoldfastError
from holdfast.outbox import commands

DEEP = b'{"x":' + b"[" * 100_000
NO_TEXT = b'{"type":"\xff"}'
ERRORS = (HoldfastError, msgspec.DecodeError)


@pytest.mark.parametrize("data", [DEEP, NO_TEXT], ids=["deep", "no text"])
@pytest.mark.parametrize(
    "decode",
    [
        resets.decode_decision,
        commands.read_command,
        commands.read_answer,
        lambda data: registry.decode(data, 0),
        lambda data: harvest.decode_progress(harvest.rows_key("a"), data),
        query_wire.decode_worker,
        query_wire.decode_keys_json,
    ],
)
def test_a_record_that_msgspec_cannot_name_is_refused_as_any_other(
    decode: Callable[[bytes], Any], data: bytes
) -> None:
    with pytest.raises(ERRORS):
        decode(data)


@pytest.mark.parametrize("data", [b'{"type":"\xff"}', b'{"type":"take","owner":"\xff"}'])
def test_a_wish_that_is_no_text_is_none(data: bytes) -> None:
    assert ranges.decode_wish(data) is None


@pytest.mark.parametrize(
    ("decode", "data"),
    [
        (decode_due, b"1"),
        (text_key, b"\x02\xff"),
        (decode_position, b"\x9d" + b"\x91" * 100_000),
        (RowCodec[Position](Position).decode, b"\x01" + b"\x9d" + b"\x91" * 100_000),
        (added, bytes(4) + b"\x02\x02\xff\x01\0\0"),
        (harvest.unpack_ids, [1]),
    ],
)
def test_bytes_that_no_worker_wrote_raise_our_own_error(decode: Callable[[Any], Any], data: Any) -> None:
    with pytest.raises(HoldfastError):
        decode(data)
