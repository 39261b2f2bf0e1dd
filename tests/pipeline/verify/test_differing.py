"""The first difference of states, found without having either in memory, compared with that of a look at
both.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

from holdfast.config import Settings
from holdfast.core.engine.positions import position_format
from holdfast.errors import HoldfastError, ImpureFoldError
from holdfast.pipeline.folds.result_rows import REFUSED, RESULT, states
from holdfast.pipeline.folds.results import gather
from holdfast.pipeline.folds.spilling import SpillingStore
from holdfast.pipeline.replay import ReplayOptions
from holdfast.pipeline.verify import differing
from holdfast.pipeline.verify.live_rows import LiveRows, apart
from holdfast.pipeline.verify.store import CHANGELOG, REPLAY, STORE, first_odd, odd
from holdfast.pipeline.verify.table import LivePartition, first_difference
from tests.pipeline.accounts import accounts

State = dict[bytes, bytes]
PROCESSOR = accounts("orders")
KEYS = [b"\x02%d" % number for number in range(40)]


def some_state(chance: random.Random) -> State:
    return {key: b"%d" % chance.randrange(9) for key in KEYS if chance.random() < 0.5}


def changed(chance: random.Random, state: State, times: int) -> State:
    found = dict(state)
    for _ in range(times):
        key = chance.choice(KEYS)
        if chance.random() < 0.5:
            found.pop(key, None)
        else:
            found[key] = b"other"
    return found


class Replays:
    """Replaces `replay`, and records the most rows that one replay returned."""

    def __init__(self, state: State) -> None:
        self._state, self.most_rows, self.count = state, 0, 0

    def __call__(self, processor: Any, settings: Settings, options: ReplayOptions) -> Any:
        assert options.through is not None
        through = pickle.loads(pickle.dumps(options.through))
        batches = list(through(self._told()))
        self.count += 1
        _, results = gather(batches, [0, 7])
        rows = [each for each in results.to_pylist() if each["kind"] == "state"]
        self.most_rows = max(self.most_rows, len(rows))
        assert any(each["kind"] == REFUSED for each in results.to_pylist()), "all else goes through"

        class Told:
            @staticmethod
            def state(partition: int) -> list[tuple[bytes, bytes]]:
                return [(each["key"], each["value"]) for each in rows if each["partition"] == partition]

        return Told()

    def _told(self) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist([{"kind": REFUSED, "partition": 7}], schema=RESULT)
        with closing(SpillingStore()) as store:
            store.apply(self._state.items())
            for batch in states(store, 7):
                yield batch.slice(0, batch.num_rows // 2)
                yield batch.slice(batch.num_rows // 2)


@pytest.mark.parametrize("range_rows", [3, 100])
def test_a_replay_that_does_not_differ_again_is_reported(
    monkeypatch: pytest.MonkeyPatch, range_rows: int
) -> None:
    """It was asked for because the digest of another one differed."""
    monkeypatch.setattr(differing, "RANGE_ROWS", range_rows)
    state = some_state(random.Random(1))
    monkeypatch.setattr(differing, "replay", Replays(state))
    with closing(SpillingStore()) as store:
        live = LiveRows(store, 7)
        live.apply(state)
        partition = LivePartition(partition=7, marker=position_format(PROCESSOR).start, stored=live)
        with pytest.raises(
            ImpureFoldError, match=r"accounts v1 partition 7: .* uses more than its arguments"
        ):
            first_difference(PROCESSOR, Settings(), ReplayOptions(), partition)


def first_of(*them: State) -> bytes | None:
    every = {key for each in them for key in each}
    return min((key for key in every if len({each.get(key) for each in them}) > 1), default=None)


@pytest.mark.long
@pytest.mark.parametrize("limit_bytes", [0, 1 << 20])
def test_it_is_the_first_difference_of_a_look_at_both(
    monkeypatch: pytest.MonkeyPatch, limit_bytes: int
) -> None:
    monkeypatch.setattr(differing, "RANGE_ROWS", 3)
    for seed in range(150):
        chance = random.Random(seed)
        ours = some_state(chance) if seed % 10 else {}
        theirs = changed(chance, ours, chance.randrange(4)) if chance.random() < 0.7 else some_state(chance)
        replays = Replays(theirs)
        monkeypatch.setattr(differing, "replay", replays)
        with closing(SpillingStore(limit_bytes)) as store:
            live, other = LiveRows(store, 7), LiveRows(store, 8)
            live.apply(ours)
            other.apply({b"\x02nobody": b"looks here"})
            assert store.has_spilled is not bool(limit_bytes)
            assert (dict(live), len(live), bool(live), list(live)) == (
                ours,
                len(ours),
                bool(ours),
                sorted(ours),
            )
            found = differing.first_apart(PROCESSOR, Settings(), ReplayOptions(), 7, live)
        key = first_of(ours, theirs)
        assert found == (None if key is None else (key, ours.get(key), theirs.get(key)))
        assert replays.most_rows <= max(differing.RANGE_ROWS + 1, len(ours) // 3 + 1), "never all of them"
        assert replays.count <= 2


def test_rows_that_are_removed_are_gone_in_memory_and_in_the_file() -> None:
    for limit_bytes in (0, 1 << 20):
        with closing(SpillingStore(limit_bytes)) as store:
            rows = LiveRows(store, 0)
            rows.apply({b"\x02a": b"1", b"\x02b": b"2"})
            rows.apply({b"\x02a": None})
            assert rows == {b"\x02b": b"2"}
            assert b"\x02a" not in rows
            assert rows.get(b"\x02a") is None


def test_of_three_states_the_first_key_at_which_any_differs_is_named() -> None:
    for seed in range(300):
        chance = random.Random(seed)
        changelog = some_state(chance)
        served = changed(chance, changelog, chance.randrange(3))
        replayed = changed(chance, changelog, chance.randrange(3))
        pairs = [
            apart(sorted(served.items()), sorted(changelog.items())),
            apart(sorted(changelog.items()), sorted(replayed.items())),
        ]
        key = first_of(served, changelog, replayed)
        if key is None:
            with pytest.raises(HoldfastError, match="the state was not the same any more"):
                first_odd(pairs[0], pairs[1])
            continue
        found = {STORE: served.get(key), CHANGELOG: changelog.get(key), REPLAY: replayed.get(key)}
        assert first_odd(pairs[0], pairs[1]) == (key, found)
        assert odd(found)
