"""A broker with fsync whose power goes at any of its operations: acknowledged state exists when it starts
again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.kafka.topic_partition import Place
from holdfast.embedded.cluster import EmbeddedCluster
from holdfast.embedded.groups.group import CommittedOffset
from tests.embedded.storage.folders import (
    CutDisk,
    PowerCut,
    TransactionalWriter,
    cluster_in,
    committed,
    leave,
    make_topic,
    partition,
    write,
)
from tests.support.scale import scaled

CUTS = 200
FIRST, SECOND = ("orders", 0), ("orders", 1)
COMPACTED = ("table", 0)
HOUR_MS = 3_600_000


@dataclass
class Told:
    """State that answers to clients promise."""

    values: dict[Place, list[bytes]] = field(default_factory=lambda: {FIRST: [], SECOND: []})
    """Values that must exist, in this order."""
    never: set[bytes] = field(default_factory=set)
    """Aborted values."""
    pair: tuple[bytes, bytes] | None = None
    """Values of a commit without an answer, one for each of the two partitions."""
    table: dict[bytes, bytes] = field(default_factory=dict)
    open_table: set[bytes] = field(default_factory=set)
    """Keys whose last write has no answer."""
    start: int = 0
    offset: int = -1
    highest_id: int = -1


class Client:
    """Does random operations of clients, and records the answers."""

    def __init__(self, cluster: EmbeddedCluster, chance: Random, told: Told) -> None:
        self._cluster, self._chance, self._told = cluster, chance, told
        self._writer = TransactionalWriter(cluster, "writer")
        self._begun = False

    def _answered(self) -> None:
        self._cluster.storage.settle()

    def step(self, number: int) -> None:
        self._chance.choice(
            [self._plain, self._pair, self._pair, self._row, self._offset, self._upkeep, self._trim]
        )(b"%d" % number)

    def _plain(self, value: bytes) -> None:
        place = self._chance.choice([FIRST, SECOND])
        write(self._cluster, place, value + b"p")
        self._answered()
        self._told.values[place].append(value + b"p")

    def _pair(self, value: bytes) -> None:
        if not self._begun or self._chance.random() < 0.1:
            producer_id, _ = self._writer.begin()
            self._answered()
            assert producer_id == self._told.highest_id or producer_id > self._told.highest_id
            self._told.highest_id, self._begun = producer_id, True
        pair, commit = (value + b"a", value + b"b"), self._chance.random() < 0.6
        for place, each in zip((FIRST, SECOND), pair, strict=True):
            self._writer.write(place, each)
            self._answered()
        if commit:
            self._told.pair = pair
        else:
            self._told.never.update(pair)
        self._writer.end(commit=commit)
        self._answered()
        if commit:
            self._told.pair = None
            for place, each in zip((FIRST, SECOND), pair, strict=True):
                self._told.values[place].append(each)

    def _row(self, value: bytes) -> None:
        key = self._chance.choice([b"a", b"b", b"c"])
        self._told.open_table.add(key)
        write(self._cluster, COMPACTED, key + value, key=key)
        self._answered()
        self._told.open_table.discard(key)
        self._told.table[key] = value

    def _offset(self, _: bytes) -> None:
        group = self._cluster.groups.opened("group")
        self._cluster.groups.commit(group, {FIRST: CommittedOffset(self._told.offset + 1, -1, "", 0)})
        self._answered()
        self._told.offset += 1

    def _upkeep(self, _: bytes) -> None:
        self._cluster.faults.clock_ms += HOUR_MS  # every segment is old, and the next batch begins another
        self._cluster.upkeep.look()

    def _trim(self, _: bytes) -> None:
        if self._chance.random() < 0.3:
            log = partition(self._cluster, FIRST).log
            log.delete_before(self._chance.randint(log.start_offset, log.last_stable_offset))
            self._answered()
            self._told.start = log.start_offset


def played(folder: Path, chance: Random, cut_at: int, told: Told) -> None:
    """Have a client work on a broker until its power is cut."""
    disk = CutDisk(at=cut_at, chance=chance)
    try:
        with cluster_in(folder, fsync=True, disk=disk) as cluster:
            hours = str(HOUR_MS // 2)
            if cluster.topics.get("orders") is None:
                make_topic(cluster, "orders", 2, segment_ms=hours)
            if cluster.topics.get("table") is None:
                told_of_table = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0"}
                make_topic(cluster, "table", 1, segment_ms=hours, **told_of_table)
            client = Client(cluster, chance, told)
            for number in range(1_000_000):
                client.step(number + len(told.never) * 1000 + sum(map(len, told.values.values())) * 1000)
    except PowerCut:
        disk.cut()


def check(cluster: EmbeddedCluster, told: Told) -> None:
    """Compare the broker's state with the answers to clients."""
    if cluster.topics.get("table") is None:
        assert told == Told()
        return
    writer = TransactionalWriter(cluster, "writer")
    producer_id, _ = writer.begin()  # open transactions are aborted, decided ones complete
    assert producer_id >= told.highest_id
    found = {place: committed(cluster, place) for place in (FIRST, SECOND)}
    log = partition(cluster, FIRST).log
    assert log.start_offset >= told.start
    assert log.last_stable_offset == log.end_offset
    if told.pair is not None:
        both = [pair in found[place] for place, pair in zip((FIRST, SECOND), told.pair, strict=True)]
        assert len(set(both)) == 1, f"half of a transaction: {both}"
        if both[0]:
            for place, value in zip((FIRST, SECOND), told.pair, strict=True):
                told.values[place].append(value)
        else:
            told.never.update(told.pair)
        told.pair = None
    for place, values in told.values.items():
        kept = [each for each in found[place] if each in set(values)]
        assert kept == values[len(values) - len(kept) :], "what is missing was trimmed"
        assert len(kept) == len(values) or (place == FIRST and log.start_offset > 0)
        assert not told.never & set(found[place])
    rows = {each[:1]: each[1:] for each in committed(cluster, COMPACTED)}
    for key, value in told.table.items():
        assert key in told.open_table or rows[key] == value
    told.open_table.clear()
    told.table = rows
    group = cluster.groups.get("group")
    assert told.offset < 0 or (group is not None and group.offsets[FIRST].offset >= told.offset)
    told.highest_id = producer_id


@pytest.mark.variant
@pytest.mark.long
@settings(max_examples=scaled(60), deadline=None)
@given(seed=st.integers(0, 1 << 32), cuts=st.lists(st.integers(1, 400), min_size=1, max_size=3))
def test_acknowledged_state_outlives_a_power_cut(seed: int, cuts: list[int]) -> None:
    chance, told = Random(seed), Told()
    with TemporaryDirectory() as name:
        folder = Path(name) / "broker"
        for cut_at in cuts:
            played(folder, chance, cut_at, told)
            with cluster_in(folder) as cluster:
                check(cluster, told)
            if chance.random() < 0.5:
                with cluster_in(folder) as cluster:
                    check(cluster, told)
                    leave(cluster)
                    return


class PairsAlone(Client):
    """Has transactions only, the first without an answer to begin."""

    def step(self, number: int) -> None:
        self._pair(b"%d" % number)


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, *(pytest.param(each, marks=pytest.mark.slow) for each in (1, 2, 3))])
def test_no_cut_within_a_transaction_leaves_a_half(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.embedded.storage.test_power_cuts.Client", PairsAlone)
    for cut_at in range(1, CUTS, max(1, CUTS // scaled(CUTS))):
        with TemporaryDirectory() as name:
            told = Told()
            played(Path(name) / "broker", Random(1_000 * seed + cut_at), cut_at, told)
            with cluster_in(Path(name) / "broker") as cluster:
                check(cluster, told)
