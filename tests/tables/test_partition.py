"""A partition that reads its changelog: transactions of any size in fetches of any size, cut by restarts,
shown whole or not at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from holdfast.clock import ManualClock
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.positions import Position, encode_position
from holdfast.core.engine.state.codec import APPLIED, row_key
from holdfast.errors import ChangelogError
from holdfast.tables import partition as module
from holdfast.tables import replay, store
from holdfast.tables.partition import Partition
from holdfast.tables.rocks import LOGGED, UNLOGGED, Budget
from holdfast.tables.state import UNKNOWN, Environment

BUDGET = Budget.of(8 << 20, 8 << 20)
KEYS = [f"k{number}" for number in range(8)]

PROCESSOR: Processor[Any, int] = Processor(
    name="p", source="in", decode=bytes, fold=lambda rows, event, now_ms: None, row=int
)

Changes = dict[str, int | None]
State = dict[bytes, bytes]


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "WRITE_ROWS", 2)
    monkeypatch.setattr(replay, "BUFFERED_ROWS", 3)


def nowhere(_: str) -> Any:
    raise AssertionError("nothing here connects")


def opened(
    folder: Path, producer: Callable[[str], Any] = nowhere, processor: Processor[Any, int] = PROCESSOR
) -> Partition:
    environment = Environment(
        app="a",
        data_dir=folder,
        producer=producer,
        budget=BUDGET,
        cluster_id="c",
        changelog_ids={},
        cache_rows=10,
        tombstones_kept_ms=0,
    )
    part = Partition(processor, 0, environment, lambda part: None, lambda: True)
    part.serving = True
    return part


def value_of(change: int | None) -> bytes | None:
    return None if change is None else b"%d" % change


def logged(transactions: list[Changes]) -> tuple[list[Message], dict[int, State]]:
    """Return the records of a changelog, with a control record's gap after each transaction, and the state
    by next offset.
    """
    records: list[Message] = []
    state: State = {}
    states = {0: state}
    offset = 0
    for number, changes in enumerate(transactions):
        rows = [(row_key(key), value_of(change)) for key, change in changes.items()]
        for key, value in [*rows, (APPLIED, encode_position(Position((number,), number, 1)))]:
            records.append(Message(topic="log", partition=0, offset=offset, key=key, value=value))
            offset += 1
        state = {key: value for key, value in {**state, **dict(rows)}.items() if value is not None}
        states[offset] = state
        offset += 1
    return records, states


def shown(part: Partition) -> State:
    """Return the rows a reader finds, the same by every kind of read."""
    everything = dict(part.everything())
    assert {row_key(key): value for key, value in part.scan("", None, 100)} == everything
    assert (
        [everything.get(row_key(key)) for key in KEYS]
        == part.get_many(KEYS)
        == [part.get(key) for key in KEYS]
    )
    return everything


changes_of_keys = st.dictionaries(st.sampled_from(KEYS), st.none() | st.integers(0, 9), max_size=len(KEYS))


@pytest.mark.long
@given(data=st.data(), transactions=st.lists(changes_of_keys, max_size=8), restoring=st.booleans())
def test_readers_see_whole_transactions_only_whatever_the_fetches_and_restarts(
    data: st.DataObject, transactions: list[Changes], restoring: bool
) -> None:
    records, states = logged(transactions)
    options = UNLOGGED if restoring else LOGGED
    with TemporaryDirectory() as folder:
        part, at, restarts = opened(Path(folder)), 0, 0
        while at < len(records):
            taken = data.draw(st.integers(1, len(records) - at))
            part.replay.apply(records[at : at + taken], options)
            at += taken
            assert part.replay.torn() == (records[at - 1].key() != APPLIED)
            assert len(part.replay._buffered) <= (replay.BUFFERED_ROWS if part.replay.torn() else 0)
            assert not part.serving or shown(part) == states[part.changelog_next]
            if restarts < 4 and data.draw(st.booleans()):
                restarts += 1
                if data.draw(st.booleans()):
                    part.close()
                    part = opened(Path(folder))
                part.replay.forget_torn()
                at = next(
                    (n for n, record in enumerate(records) if (record.offset() or 0) >= part.changelog_next),
                    len(records),
                )
                assert not part.serving or shown(part) == states[part.changelog_next]
        assert (part.replay.torn(), part.serving, part.whole) == (False, True, True)
        assert shown(part) == states[part.changelog_next]
        assert part.applied == len(transactions) - 1
        part.close()


def test_rows_of_a_transaction_that_has_not_come_whole_wait_in_the_store(tmp_path: Path) -> None:
    """Memory holds but few of them; readers see the state before, and a store opened again none until it
    is whole.
    """
    records, states = logged([{"k0": 1}, dict.fromkeys(KEYS, 2)])
    part = opened(tmp_path)
    for rows in records[:6], records[6:10]:
        part.replay.apply(rows, UNLOGGED)
        assert (part.replay.torn(), part.serving, part.whole, len(part.replay._buffered)) == (
            True,
            True,
            False,
            0,
        )
        assert shown(part) == states[2]
    part.close()

    again = opened(tmp_path)
    assert (again.changelog_next, again.serving, again.whole) == (2, False, False)
    assert len(shown(again)) == 8, "else nothing was written before the restart, and this test shows nothing"
    again.replay.apply(records[2:10], UNLOGGED)
    assert not again.serving, "the state before was lost with the restart"
    again.replay.apply(records[10:], UNLOGGED)
    assert (again.replay.torn(), again.serving, again.whole) == (False, True, True)
    assert shown(again) == dict.fromkeys(map(row_key, KEYS), b"2")
    again.close()


@pytest.mark.parametrize("rows", [2, 8])
def test_a_partition_rebuilt_amid_a_transaction_knows_nothing_of_it(tmp_path: Path, rows: int) -> None:
    """In memory or in the store: the rebuilt state is that of the changelog as it is then."""
    records, _ = logged([dict.fromkeys(KEYS, 1)])
    part = opened(tmp_path)
    part.replay.apply(records[:rows], LOGGED)
    part.rebuild("told to")
    assert (part.replay.torn(), part.serving, part.whole, shown(part)) == (False, True, True, {})
    records, states = logged([{"k7": 2}])
    part.replay.apply(records, LOGGED)
    assert shown(part) == states[2]
    part.close()


def test_a_store_with_rows_of_several_transactions_is_whole_at_the_last_of_them_also_after_two_restarts(
    tmp_path: Path,
) -> None:
    records, _ = logged([dict.fromkeys(KEYS, 1), dict.fromkeys(KEYS, 2)])
    part = opened(tmp_path)
    part.replay.apply(records[:9], LOGGED)
    part.replay.apply(records[9:15], LOGGED)
    part.store.write_pieces(
        [(row_key("k7"), b"3")], 40
    )  # of a later transaction, as a write of several leaves it when it is cut
    part.close()
    for at, upto in ((9, 15), (9, 18)):
        part = opened(tmp_path)
        part.replay.apply(records[at:upto], LOGGED)
        assert (part.whole, part.serving) == (False, False)
        part.close()
    part = opened(tmp_path)
    assert (part.changelog_next, part.whole, part.serving) == (19, False, False)
    part.rebuild("its changelog has lost the rest")
    assert (part.changelog_next, part.whole, part.serving) == (0, True, True)
    part.close()


def test_a_changelog_that_ends_without_its_marker_s_value_was_made_again(tmp_path: Path) -> None:
    part = opened(tmp_path)
    part.replay.apply([Message(topic="log", partition=0, offset=0, key=APPLIED, value=None)], LOGGED)
    with pytest.raises(ChangelogError, match="deleted and made again"):
        raise part.replay.misplaced or AssertionError("nothing is wrong")
    part.close()


@pytest.mark.parametrize("value", [None, b"", b"stray", bytes(16)])
def test_a_position_that_is_none_closes_nothing_and_one_that_follows_does(
    tmp_path: Path, value: bytes | None
) -> None:
    records, states = logged([{"k0": 1}, {"k1": 2}])
    part = opened(tmp_path)
    stray = Message(topic="log", partition=0, offset=2, key=APPLIED, value=value)
    part.replay.apply([*records[:2], stray], LOGGED)
    assert isinstance(part.replay.misplaced, ChangelogError)
    assert "tables repair" in str(part.replay.objection())
    assert shown(part) == {}
    later = [
        Message(topic="log", partition=0, offset=3 + at, key=each.key(), value=each.value())
        for at, each in enumerate(records[2:])
    ]
    part.replay.apply(later, LOGGED)
    assert not part.replay.torn()
    assert part.replay.objection() is None
    assert shown(part) == {**states[2], row_key("k1"): b"2"}
    part.close()


def test_a_standby_does_not_report_its_lag_from_an_end_it_asked_for_long_ago(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(now_ms=1_000_000)
    monkeypatch.setattr(module, "system_clock", clock)
    part = opened(tmp_path)
    part.note_source_ends({("in", 0): 100}, clock.now_ms())
    clock.advance_ms(module.END_GOOD_MS)
    assert part.source_end == 100
    clock.advance_ms(1)  # as a process that was frozen finds it
    assert part.source_end == UNKNOWN
    part.note_source_ends({("in", 0): 7_000}, clock.now_ms())
    assert part.source_end == 7_000
    part.close()


class Fencing:
    """A producer that notes the calls under its id."""

    def __init__(self, transactional_id: str, done: list[str]) -> None:
        self.transactional_id, self._done = transactional_id, done

    async def fence(self) -> None:
        self._done.append(f"fence {self.transactional_id}")

    async def partitions(self, topic: str, *, more_than: int) -> int:
        return more_than + 1

    async def close(self) -> None:
        self._done.append(f"close {self.transactional_id}")


@pytest.mark.parametrize(
    ("version", "by_common_id", "wanted"),
    [
        (1, True, ["fence a.p.0"]),
        (2, False, ["fence a.p.v2.0"]),
        (2, True, ["fence a.p.0", "close a.p.0", "fence a.p.v2.0"]),
    ],
)
def test_a_later_version_fences_the_id_that_an_older_release_writes_it_by(
    tmp_path: Path, version: int, by_common_id: bool, wanted: list[str]
) -> None:
    done: list[str] = []
    part = opened(tmp_path, lambda each: Fencing(each, done), replace(PROCESSOR, version=version))
    asyncio.run(part.owner.fence(5.0, by_common_id=by_common_id))
    assert done == wanted
    assert part.owner.fenced_in
    part.close()
