"""A leader's state after a start is that from before, though most batches of a log are passed over."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from holdfast.core.kafka.producer_state import LOG_KEY, LeaderRow, LogEntry, Origin
from holdfast.core.kafka.record_batch import TRANSACTIONAL_BIT, decode_header
from holdfast.embedded.logs.kept_rows import KeptRows
from holdfast.embedded.logs.log_files import LoadedBatch
from holdfast.embedded.logs.partition_log import PartitionLog
from holdfast.embedded.logs.replaying import LogReplay
from tests.embedded.transcripts.asking import batch

COMMON: dict[str, Any] = {"leader_epoch": 0, "now_ms": 1_000}


class Writers:
    """Producers of all kinds, who write to one log as chance has it."""

    def __init__(self, seed: int) -> None:
        self._chance, self.log = Random(seed), PartitionLog()
        self._next: dict[int, list[int]] = {}
        """By producer: epoch, and next sequence."""
        self._open: set[int] = set()

    def write(self) -> None:
        producer = self._chance.choice([-1, 1, 2, 3, 4, 5])
        if producer == -1:
            self._append(batch(b"plain"))
        elif producer < 3:
            self._write_as(producer, transactional=False)
        elif producer in self._open and self._chance.random() < 0.4:
            self._end(producer)
        elif producer in self._open or self._chance.random() < 0.7:
            self._write_as(producer, transactional=True)
        else:
            self._write_as(producer, transactional=False)

    def _write_as(self, producer: int, *, transactional: bool) -> None:
        told = self._next.setdefault(producer, [0, 0])
        if producer not in self._open and self._chance.random() < 0.1:
            told[:] = [told[0] + 1, 0]
        values = [b"v"] * self._chance.randint(1, 3)
        named = {"producer_id": producer, "producer_epoch": told[0], "base_sequence": told[1]}
        told[1] += len(values)
        if transactional:
            self._open.add(producer)
        self._append(batch(*values, attributes=TRANSACTIONAL_BIT if transactional else 0, **named))

    def _append(self, data: bytes) -> None:
        header = decode_header(data)
        verdict = self.log.append(data, header, is_append_time=False, origin=Origin.REPLICATION, **COMMON)
        assert verdict.error == 0

    def _end(self, producer: int) -> None:
        self._open.discard(producer)
        commit = self._chance.random() < 0.5
        self.log.end(producer, self._next[producer][0], commit=commit, coordinator_epoch=0, **COMMON)


def known(rows: KeptRows[LeaderRow]) -> dict[str, LeaderRow]:
    """Return all rows, except for the end of the log, which the files define."""
    found = dict(rows.scan())
    log = found.pop(LOG_KEY, LogEntry())
    assert isinstance(log, LogEntry)
    return {**found, LOG_KEY: LogEntry(ongoing=log.ongoing)}


@pytest.mark.parametrize("seed", range(20))
def test_a_replay_knows_what_the_leader_knew(seed: int) -> None:
    writers = Writers(seed)
    for _ in range([3, 30, 300][seed % 3]):
        writers.write()
    rows: KeptRows[LeaderRow] = KeptRows(LeaderRow)
    replay = LogReplay(rows)
    for each in writers.log:
        replay.take(LoadedBatch(decode_header(each.data), each))
    replay.finish()
    assert known(rows) == known(writers.log.rows)
