"""The broker's own two logs: every version of their records, and the state kept of them."""

from __future__ import annotations

import struct

import pytest

from holdfast.core.broker_logs.folds import (
    ClassicGroupMember,
    Committed,
    Generation,
    GroupNote,
    OffsetNote,
    OtherNote,
    TransactionNote,
    TransactionRow,
    committed_log,
    decode_group,
    decode_transaction,
    group_key,
    offset_key,
    transactions_log,
)
from holdfast.core.broker_logs.lost_ends import Decided, decision_key, ends_log
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.fold.folding import Batch, Folder
from holdfast.core.engine.state.codec import ROW, RowCodec
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.core.kafka.transaction_state import Transaction, TransactionState
from holdfast.errors import WireError


def text(value: str | None) -> bytes:
    return struct.pack(">h", -1) if value is None else struct.pack(">h", len(value)) + value.encode()


def compact(value: str | None) -> bytes:
    return b"\0" if value is None else bytes([len(value) + 1]) + value.encode()


ID = struct.pack(">h", 0) + text("orders-1")


def transaction(status: int, *, version: int, epoch: int = 3, tags: bytes = b"\0") -> bytes:
    """Return a value of `__transaction_state`: pid 1005, 60 s, two partitions of t and one of u."""
    head = struct.pack(">hqhib", version, 1005, epoch, 60_000, status)
    times = struct.pack(">qq", 2_000, 1_000)
    if version == 0:
        return (
            head
            + struct.pack(">i", 2)
            + text("t")
            + struct.pack(">iii", 2, 0, 7)
            + text("u")
            + struct.pack(">ii", 1, 4)
            + times
        )
    topics = (
        b"\x03"
        + compact("t")
        + b"\x03"
        + struct.pack(">ii", 0, 7)
        + b"\0"
        + compact("u")
        + b"\x02"
        + struct.pack(">i", 4)
        + b"\0"
    )
    return head + topics + times + tags


@pytest.mark.parametrize("version", [0, 1])
def test_a_transaction_is_read_in_each_version(version: int) -> None:
    found = decode_transaction(ID, transaction(1, version=version))
    expected = Transaction(
        producer_id=1005,
        timeout_ms=60_000,
        updated_ms=2_000,
        epoch=3,
        state=TransactionState.ONGOING,
        partitions=(("t", 0), ("t", 7), ("u", 4)),
        started_ms=1_000,
    )
    assert found == TransactionNote(transactional_id="orders-1", noted=expected)


def test_tagged_fields_are_read_and_unknown_ones_passed_over() -> None:
    tags = (
        b"\x04"
        + b"\x00\x08"
        + struct.pack(">q", 7)
        + b"\x01\x08"
        + struct.pack(">q", 9)
        + b"\x02\x02"
        + struct.pack(">h", 2)
        + b"\x09\x01x"
    )
    noted = decode_transaction(ID, transaction(0, version=1, tags=tags)).noted
    assert noted is not None
    assert (noted.previous_producer_id, noted.next_producer_id, noted.client_version) == (7, 9, 2)


def test_no_partitions_are_none_in_each_version() -> None:
    for version, none in ((0, struct.pack(">i", -1)), (1, b"\0")):
        value = (
            struct.pack(">hqhib", version, 1, 0, 1, 0)
            + none
            + struct.pack(">qq", 0, -1)
            + (b"\0" if version else b"")
        )
        noted = decode_transaction(ID, value).noted
        assert noted is not None
        assert noted.partitions == ()


def test_bytes_that_are_cut_anywhere_are_an_error_and_never_a_guess() -> None:
    member = (
        text("m1")
        + text("i1")
        + text("c")
        + text("/10.0.0.1")
        + struct.pack(">ii", 300_000, 45_000)
        + struct.pack(">i", 0) * 2
    )
    group = (
        struct.pack(">h", 3)
        + text("consumer")
        + struct.pack(">i", 4)
        + text("range")
        + text("m1")
        + struct.pack(">qi", 5, 1)
        + member
    )
    for key, value in (
        (ID, transaction(1, version=0)),
        (ID, transaction(1, version=1)),
        (struct.pack(">h", 2) + text("g"), group),
        (
            struct.pack(">h", 1) + text("g") + text("t") + struct.pack(">i", 3),
            struct.pack(">hqi", 3, 42, 5) + text("") + struct.pack(">q", 9),
        ),
    ):
        decode = decode_transaction if key is ID else decode_group
        decode(key, value)
        for size in range(len(value)):
            with pytest.raises(WireError):
                decode(key, value[:size])
        for size in range(len(key)):
            with pytest.raises(WireError):
                decode(key[:size], value)
        with pytest.raises(WireError):
            decode(key, value + b"x")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (None, b"", "no key"),
        (struct.pack(">h", 1) + text("a"), None, "version 1"),
        (ID, struct.pack(">h", 2), "version 2, known are 0 to 1"),
        (ID, transaction(9, version=0), "status 9"),
    ],
)
def test_an_unknown_record_is_reported(key: bytes | None, value: bytes | None, said: str) -> None:
    with pytest.raises(WireError, match=said):
        decode_transaction(key, value)


def committed_value(version: int) -> bytes:
    head = struct.pack(">hq", version, 42)
    if version >= 4:
        return head + struct.pack(">i", 5) + compact("note") + struct.pack(">q", 9_000) + b"\0"
    epoch = struct.pack(">i", 5) if version == 3 else b""
    return (
        head
        + epoch
        + text("note")
        + struct.pack(">q", 9_000)
        + (struct.pack(">q", 10_000) if version == 1 else b"")
    )


@pytest.mark.parametrize("version", range(5))
def test_a_committed_offset_is_read_in_each_version(version: int) -> None:
    key = struct.pack(">h", version % 2) + text("g/1") + text("t") + struct.pack(">i", 3)
    expected = Committed(42, 9_000, 5 if version >= 3 else -1, "note")
    assert decode_group(key, committed_value(version)) == OffsetNote(
        group="g/1", topic="t", partition=3, noted=expected
    )
    assert decode_group(key, None) == OffsetNote(group="g/1", topic="t", partition=3, noted=None)


@pytest.mark.parametrize("version", range(5))
def test_a_generation_is_read_in_each_version(version: int) -> None:
    put = compact if version >= 4 else text

    def size(count: int) -> bytes:
        return bytes([count + 1]) if version >= 4 else struct.pack(">i", count)

    end = b"\0" if version >= 4 else b""
    member = put("m1") + (put(None) if version >= 3 else b"") + put("c") + put("/10.0.0.1")
    member += (
        (struct.pack(">i", 300_000) if version >= 1 else b"")
        + struct.pack(">i", 45_000)
        + size(2)
        + b"ab"
        + size(1)
        + b"c"
        + end
    )
    value = struct.pack(">h", version) + put("consumer") + struct.pack(">i", 4) + put(None) + put("m1")
    value += (struct.pack(">q", 5) if version >= 2 else b"") + size(1) + member + end
    expected = Generation(
        4,
        "consumer",
        None,
        "m1",
        (ClassicGroupMember("m1", None, "c", "/10.0.0.1", 45_000),),
        5 if version >= 2 else -1,
    )
    assert decode_group(struct.pack(">h", 2) + text("g"), value) == GroupNote(group="g", noted=expected)


def test_records_of_other_kinds_of_groups_are_distinguished() -> None:
    assert decode_group(struct.pack(">h", 5) + text("g") + text("m"), b"...") == OtherNote(kind=5)


# -- the folds


def folded(processor: Processor, log: list[tuple[bytes, bytes | None]]) -> dict[str, object]:  # type: ignore[type-arg]
    """Return the rows that *log* leaves."""
    store, codec = DictStore(), RowCodec(processor.row)  # type: ignore[var-annotated]
    folder: Folder[object] = Folder(processor, store)
    keys, values = zip(*log, strict=True)
    changes = folder.fold([Batch(range(len(log)), [0] * len(log), (list(keys), list(values)))])
    assert changes is not None
    assert not changes.refused
    store.apply(changes.puts)
    return {key[1:].decode(): codec.decode(value) for key, value in store.everything() if key[:1] == ROW}


def test_transactions_are_counted_by_how_they_ended_and_by_the_fenced_producer() -> None:
    empty, ongoing, committing, aborting, committed, aborted = range(6)
    steps = [
        (empty, 0),
        (ongoing, 0),
        (committing, 0),
        (committed, 0),
        (ongoing, 0),
        (aborting, 1),
        (aborted, 1),
        (ongoing, 1),
    ]
    log: list[tuple[bytes, bytes | None]] = [
        (ID, transaction(status, version=1, epoch=epoch)) for status, epoch in steps
    ]
    row = folded(transactions_log(), log)["t/orders-1"]
    assert isinstance(row, TransactionRow)
    assert (row.noted.state, row.committed, row.aborted, row.fenced, row.jumps) == (
        TransactionState.ONGOING,
        1,
        1,
        1,
        0,
    )
    cut = folded(transactions_log(), [log[1], log[3]])["t/orders-1"]  # as compaction leaves it
    assert isinstance(cut, TransactionRow)
    assert (cut.committed, cut.jumps) == (1, 1)


def test_a_decision_stays_known_for_each_partition() -> None:
    _, ongoing, committing, _, committed, _ = range(6)
    log: list[tuple[bytes, bytes | None]] = [
        (ID, transaction(status, version=1)) for status in (ongoing, committing, committed)
    ]
    rows = folded(ends_log(), [*log, (ID, None)])
    assert rows == {
        decision_key(1005, *place): Decided("orders-1", 3, True, 2_000)
        for place in (("t", 0), ("t", 7), ("u", 4))
    }


def test_a_forgotten_group_is_gone() -> None:
    for last in (None, transaction(6, version=1)):
        assert folded(transactions_log(), [(ID, transaction(0, version=1)), (ID, last)]) == {}
    offset, group = (
        struct.pack(">h", 1) + text("g") + text("t") + struct.pack(">i", 3),
        struct.pack(">h", 2) + text("g"),
    )
    value = (
        struct.pack(">h", 0) + text("consumer") + struct.pack(">i", 4) + text(None) * 2 + struct.pack(">i", 0)
    )
    log: list[tuple[bytes, bytes | None]] = [
        (offset, committed_value(3)),
        (offset, committed_value(4)),
        (group, value),
    ]
    assert folded(committed_log(), log) == {
        offset_key("g", "t", 3): Committed(42, 9_000, 5, "note", 2),
        group_key("g"): Generation(4, "consumer", None, None, ()),
    }
    assert folded(committed_log(), [*log, (offset, None), (group, None), (group, None)]) == {}
