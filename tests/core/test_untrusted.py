"""Text that is not UTF-8 and nesting without end, where each was found to end a reader by an error that is
not caught.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest

from holdfast import Json, Processor, Rows
from holdfast.core import ranges
from holdfast.core.claims import resets
from holdfast.core.engine import query_wire
from holdfast.core.engine.declared.serdes import decode_all
from holdfast.core.engine.positions import Position, decode_position
from holdfast.core.engine.state.codec import RowCodec, decode_due, text_key
from holdfast.core.kafka.transaction_requests import added
from holdfast.core.outbox import harvest
from holdfast.core.producers import registry
from holdfast.core.untrusted.nesting import LIMIT_DEPTH
from holdfast.errors import DecodeError, FoldError, HoldfastError
from holdfast.outbox import commands
from holdfast.schemas.json_schema import JsonSchema
from holdfast.schemas.registry import SchemaRegistry
from holdfast.testing import Topology

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


def at_depth(frames: int, call: Callable[[], Any]) -> Any:
    """Return the result of *call* where the stack has so many frames more."""
    return call() if frames == 0 else at_depth(frames - 1, call)


class Branch(msgspec.Struct, frozen=True, array_like=True):
    twigs: tuple[Branch, ...] = ()


class Count(msgspec.Struct):
    of: int = 0


@pytest.mark.parametrize("way", ["one", "all"])
@pytest.mark.parametrize("of", [Any, list, Branch, Count], ids=str)
def test_what_json_is_refused_does_not_depend_on_its_callers(of: Any, way: str) -> None:
    """A worker reads in a deeper stack than a replay does: each must refuse the same records."""
    serde: Json[Any] = Json(of)
    before, after = (b'{"more":', b"}") if of is Count else (b"", b"")
    decode = serde.decode if way == "one" else lambda value: next(iter(decode_all(serde, [value])))
    for nested in (LIMIT_DEPTH - 1, LIMIT_DEPTH + 1, 850, 960):
        value = before + b"[" * nested + b"]" * nested + after
        found = {at_depth(frames, lambda value=value: is_read(decode, value)) for frames in (0, 100, 300)}  # type: ignore[misc]
        assert found == {nested < LIMIT_DEPTH}, nested


def test_what_a_json_schema_is_refused_does_not_depend_on_its_callers() -> None:
    serde = JsonSchema(Any, "{}", validate=False)
    decode = serde.reader(serde.schema, cast("SchemaRegistry", None))
    for nested in (LIMIT_DEPTH, LIMIT_DEPTH + 1, 850):
        value = b"[" * nested + b"]" * nested
        found = {at_depth(frames, lambda value=value: is_read(decode, value)) for frames in (0, 100, 300)}  # type: ignore[misc]
        assert found == {nested <= LIMIT_DEPTH}, nested


def test_what_nests_too_deep_to_be_read_by_all_is_not_written() -> None:
    deep: Any = []
    for _ in range(LIMIT_DEPTH):
        deep = [deep]
    for serde in (Json(Any), Json(list)):
        with pytest.raises(FoldError, match="nests more than 500 deep"):
            serde.encode(deep)
        assert serde.decode(serde.encode(deep[0])) == deep[0]
    with pytest.raises(FoldError, match="nests more than 500 deep"):
        JsonSchema(Any, "{}", validate=False).payload(deep)


def is_read(decode: Callable[[bytes], Any], value: bytes) -> bool:
    try:
        decode(value)
    except (DecodeError, msgspec.DecodeError):
        return False
    return True


def test_a_row_that_nests_deeper_than_others_could_read_is_refused_and_the_table_continues() -> None:
    """Stored, it would end each worker, as it reads the row again in a stack of a few frames more."""

    def grow(rows: Rows[Branch], event: bytes, at_ms: int) -> None:
        rows["oak"] = Branch((rows.get("oak") or Branch(),)[: len(event)])

    trees = Processor(name="trees", source="rain", decode=bytes, fold=grow, row=Branch)
    with Topology([trees], partitions=1) as topology:
        for _ in range(LIMIT_DEPTH):
            topology.pipe("rain", b"drop")
        assert {str(each.reason)[:50] for each in topology.refused} == {
            "row nests more than 500 deep, and not every reader"
        }
        topology.pipe("rain", b"")
        assert topology.table(trees) == {"oak": Branch()}


def test_rows_of_types_without_end_are_read_by_every_caller() -> None:
    codec = RowCodec[Branch](Branch)
    deepest = Branch()
    for _ in range(LIMIT_DEPTH // 2 - 1):
        deepest = Branch((deepest,))
    stored = codec.encode(deepest)
    assert at_depth(300, lambda: codec.decode(stored)) == deepest
    for levels in (1, 200, 450):
        deeper = deepest
        for _ in range(levels):
            deeper = Branch((deeper,))
        for refuse in (codec.encode, codec.canonical, lambda row: codec.size([row])):
            with pytest.raises(FoldError, match="nests more than 500 deep"):
                refuse(deeper)
