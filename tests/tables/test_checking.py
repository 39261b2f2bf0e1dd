"""The walk of a store along its changelog: every difference is found, and changes since the state was pinned
are none.
"""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import rocksdict as R
from confluent_kafka import KafkaError, TopicPartition

from holdfast.core.engine.positions import Position
from holdfast.core.engine.state.codec import APPLIED, row_key, wake_key
from holdfast.errors import BrokerError
from holdfast.tables import checking
from holdfast.tables.checking import _LATER, RECORDS_PER_S, CheckStopped, _compare, _Piece
from holdfast.tables.rocks import Budget
from holdfast.tables.store import PartitionStore, StoreStamp

BUDGET = Budget.of(4 << 20, 4 << 20)
STAMP = StoreStamp(app="a", processor="p", version=1, partition=0, cluster_id="c", changelog_id="l")
Rows = dict[bytes, bytes]
KEYS = [row_key(f"k{number:04d}") for number in range(1_500)]
RIGHT: Rows = {**{key: b"v" + key for key in KEYS}, wake_key("k0001"): b"12345678"}


def compared(
    folder: Path, store_rows: Rows, changelog_rows: Rows, later: frozenset[bytes] = frozenset()
) -> str | None:
    """Compare a store with what its changelog holds before the store's offset; *later* changed after it."""
    store = PartitionStore(folder / "store", STAMP, BUDGET)
    store.write(store_rows.items(), Position((9,), 90, 1), 10)
    scratch = R.Rdict(str(folder / "scratch"), BUDGET.options())
    try:
        for key, value in changelog_rows.items():
            scratch[key] = value
        for key in later:
            scratch[_LATER + key] = b""
        state = store.pin()
        store.write([(KEYS[5], b"of a later transaction"), (KEYS[6], None)], Position((10,), 100, 1), 20)
        return _compare(state, scratch, threading.Event())
    finally:
        scratch.close()
        store.close()


def test_a_store_that_is_its_changelog_is_sound(tmp_path: Path) -> None:
    assert compared(tmp_path, RIGHT, RIGHT) is None


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ({**RIGHT, KEYS[700]: b"other"}, "row 'k0700' is not that of its changelog"),
        ({key: value for key, value in RIGHT.items() if key != KEYS[0]}, "row 'k0000' is missing"),
        ({key: value for key, value in RIGHT.items() if key != KEYS[-1]}, "row 'k1499' is missing"),
        ({**RIGHT, row_key("z"): b"v"}, "row 'z' is not in its changelog"),
        ({**RIGHT, wake_key("k0001"): b"87654321"}, "timer 'k0001' is not that of its changelog"),
        ({}, "timer 'k0001' is missing"),
        ({**RIGHT, KEYS[3]: b"one", KEYS[700]: b"two"}, "row 'k0003' is not that of its changelog"),
    ],
)
def test_the_first_difference_is_named(tmp_path: Path, store: Rows, said: str) -> None:
    assert compared(tmp_path, store, RIGHT) == said


def test_rows_that_changed_since_are_left_out_whatever_a_compaction_made_of_them(tmp_path: Path) -> None:
    compacted = {key: value for key, value in RIGHT.items() if key not in (KEYS[5], KEYS[6], KEYS[-1])}
    assert compared(tmp_path, RIGHT, compacted, frozenset({KEYS[5], KEYS[6], KEYS[-1]})) is None


def test_a_row_that_did_not_change_since_is_found_among_those_that_did(tmp_path: Path) -> None:
    compacted = {key: value for key, value in RIGHT.items() if key != KEYS[5]}
    assert (
        compared(tmp_path, {**RIGHT, KEYS[900]: b"other"}, compacted, frozenset({KEYS[5]}))
        == "row 'k0900' is not that of its changelog"
    )


def test_a_walk_that_is_stopped_says_nothing_of_the_store(tmp_path: Path) -> None:
    store = PartitionStore(tmp_path / "store", STAMP, BUDGET)
    store.write(RIGHT.items(), Position((9,), 90, 1), 10)
    scratch = R.Rdict(str(tmp_path / "scratch"), BUDGET.options())
    for key, value in RIGHT.items():
        scratch[key] = value
    stop = threading.Event()
    stop.set()
    with pytest.raises(CheckStopped):
        _compare(store.pin(), scratch, stop)
    scratch.close()
    store.close()


class ChangelogMessage:
    """A message as a consumer gives it; *code* is that of an error."""

    def __init__(
        self, offset: int, key: bytes | None = b"", value: bytes | None = b"", code: int | None = None
    ) -> None:
        self._offset, self._key, self._value = offset, key, value
        self._error = None if code is None else KafkaError(code)

    def error(self) -> KafkaError | None:
        return self._error

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value


class ChangelogConsumer:
    """Gives its messages at once."""

    def __init__(self, *messages: ChangelogMessage) -> None:
        self._messages, self.closed = list(messages), False

    def get_watermark_offsets(self, place: TopicPartition, **_: Any) -> tuple[int, int]:
        return 0, 2

    def assign(self, places: list[TopicPartition]) -> None: ...

    def consume(self, limit: int, timeout_s: float) -> list[ChangelogMessage]:
        came, self._messages = self._messages[:limit], self._messages[limit:]
        return came

    def poll(self, timeout_s: float) -> None: ...

    def close(self) -> None:
        self.closed = True


def read_with(folder: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> Rows:
    """Return the rows that a check has read of a changelog of two records, with an error between them."""
    consumer = ChangelogConsumer(
        ChangelogMessage(0, KEYS[0], b"one"),
        ChangelogMessage(-1, code=code),
        ChangelogMessage(1, KEYS[1], b"two"),
        ChangelogMessage(2, code=KafkaError._PARTITION_EOF),
    )
    monkeypatch.setattr(checking, "changelog_consumer", lambda *_, **__: consumer)
    scratch = R.Rdict(str(folder / "scratch"), BUDGET.options())
    try:
        part: Any = SimpleNamespace(changelog="log", partition=0)
        checking._read(part, 2, scratch, {}, "check", threading.Event(), 5.0)
        return {key: bytes(value) for key in KEYS if (value := scratch.get(key)) is not None}
    finally:
        scratch.close()
        assert consumer.closed


def test_a_check_reads_on_where_its_consumer_may_not_use_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer must name a group; a check never joins it, as a restore does not."""
    found = read_with(tmp_path, monkeypatch, KafkaError.GROUP_AUTHORIZATION_FAILED)
    assert found == {KEYS[0]: b"one", KEYS[1]: b"two"}


def test_a_check_ends_where_it_may_not_read_the_changelog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BrokerError, match="changelog log partition 0: "):
        read_with(tmp_path, monkeypatch, KafkaError.TOPIC_AUTHORIZATION_FAILED)


def test_records_before_the_state_are_applied_and_records_after_it_are_only_noted(tmp_path: Path) -> None:
    scratch = R.Rdict(str(tmp_path / "scratch"), BUDGET.options())
    try:
        scratch[KEYS[1]] = b"deleted since"
        piece = _Piece(upto=10)
        for record in (
            ChangelogMessage(7, KEYS[0], b"one"),
            ChangelogMessage(8, KEYS[1], None),
            ChangelogMessage(9, APPLIED, b"marker"),
            ChangelogMessage(10, KEYS[2], b"later"),
        ):
            piece.take(record, "changelog")  # type: ignore[arg-type]
        scratch.write(piece.batch)
        assert (piece.records, piece.reached) == (4, 10)
        assert sorted(scratch.keys()) == sorted([KEYS[0], _LATER + KEYS[2]])
        assert scratch[KEYS[0]] == b"one"
        assert piece.least_s >= 4 / RECORDS_PER_S
    finally:
        scratch.close()
