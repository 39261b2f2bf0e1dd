"""Rows in memory and shorthand for the tests of producers:

`Log` is one partition with its leader, `Desk` one coordinator.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from holdfast.core.engine.state.codec import RowCodec
from holdfast.core.engine.state.rows import Rows
from holdfast.core.kafka.producer_state import (
    CACHED_BATCHES,
    Append,
    AppendVerdict,
    CachedBatch,
    EndMarker,
    HighWatermark,
    LeaderEvent,
    LeaderRow,
    LogEntry,
    ProducerEntry,
    Verification,
    producer_key,
    verification_key,
)
from holdfast.core.kafka.sequences import MAX_SEQUENCE, advance
from holdfast.core.kafka.transaction_state import (
    CoordinatorCommand,
    CoordinatorReply,
    CoordinatorRow,
    Transaction,
)
from holdfast.models import partition_leader, transaction_coordinator

PID = 1005


class NoStore:
    """A store that is empty: everything lies in the overlay."""

    def get(self, key: bytes) -> bytes | None:
        return None

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        return iter(())


def empty_rows(row: Any) -> Rows[Any]:
    return Rows(NoStore(), RowCodec(row), 1_000)


class Log:
    """One partition; *rules* may be a copy of the module with a fault in it."""

    def __init__(self, rules: ModuleType = partition_leader) -> None:
        self.rows: Rows[LeaderRow] = empty_rows(LeaderRow)
        self._rules = rules

    def apply(self, event: LeaderEvent) -> AppendVerdict | None:
        verdict: AppendVerdict | None = self._rules.lead(self.rows, event)
        return verdict

    def append(
        self,
        first: int,
        last: int | None = None,
        *,
        epoch: int = 0,
        pid: int = PID,
        at_ms: int = 0,
        **more: Any,
    ) -> AppendVerdict:
        """Append a batch at the end of the log."""
        last = first if last is None else last
        base = self.log.end_offset
        end = base + (last - first & MAX_SEQUENCE)
        event = Append(
            producer_id=pid,
            epoch=epoch,
            first_sequence=first,
            last_sequence=last,
            base_offset=base,
            last_offset=end,
            timestamp_ms=at_ms,
            **more,
        )
        verdict = self.apply(event)
        assert verdict is not None
        return verdict

    def marker(
        self,
        *,
        commit: bool = True,
        epoch: int = 0,
        coordinator: int = 0,
        pid: int = PID,
        at_ms: int = 0,
        **more: Any,
    ) -> AppendVerdict:
        offset = self.log.end_offset
        event = EndMarker(
            producer_id=pid,
            epoch=epoch,
            commit=commit,
            coordinator_epoch=coordinator,
            offset=offset,
            timestamp_ms=at_ms,
            **more,
        )
        verdict = self.apply(event)
        assert verdict is not None
        return verdict

    def replicate(self, offset: int) -> None:
        self.apply(HighWatermark(offset=offset))

    @property
    def log(self) -> LogEntry:
        found: LogEntry = self._rules.log_of(self.rows)
        return found

    def entry(self, pid: int = PID) -> ProducerEntry | None:
        found: ProducerEntry | None = self._rules.producer_of(self.rows, pid)
        return found

    def state(self) -> dict[str, LeaderRow]:
        return dict(self.rows.scan())


class Desk:
    """One coordinator; *rules* may be a copy of the module with a fault in it.

    Time does not pass at *at_ms* until it is moved.
    """

    def __init__(self, rules: ModuleType = transaction_coordinator) -> None:
        self.rows: Rows[CoordinatorRow] = empty_rows(CoordinatorRow)
        self.at_ms = 1_000
        self._rules = rules

    def do(self, command: CoordinatorCommand) -> CoordinatorReply:
        before = dict(self.rows.scan())
        answer: CoordinatorReply = self._rules.coordinate(self.rows, command, self.at_ms)
        if answer.error and not answer.touched:
            assert dict(self.rows.scan()) == before, "what is refused changes nothing"
        return answer

    def row(self, transactional_id: str = "pay") -> Transaction:
        found = self._rules.transaction_of(self.rows, transactional_id)
        assert isinstance(found, Transaction)
        return found


# -- the language of the page


def known(text: str) -> Log:
    """Return the partition that *text* describes:

    `epoch 3 open by coordinator 5: 0-2 3-5` or `nothing, verified from 0`.
    """
    log = Log()
    if found := re.fullmatch(r"nothing(?:, verified from (\d+))?", text):
        if found[1]:
            log.rows[verification_key(PID)] = Verification(3, int(found[1]), 0)
        return log
    found = re.fullmatch(r"epoch (\d+)( open)?(?: by coordinator (\d+))?:((?: \d+-\d+)*)", text)
    assert found is not None, text
    batches, offset = [], 0
    for first, last in (map(int, each.split("-")) for each in found[4].split()):
        size = (last - first & MAX_SEQUENCE) + 1
        batches.append(CachedBatch(first, last, offset, offset + size - 1, 7))
        offset += size
    first_offset = 0 if found[2] else None
    log.rows[producer_key(PID)] = ProducerEntry(
        int(found[1]), int(found[3] or 0), 7, first_offset, tuple(batches[-CACHED_BATCHES:])
    )
    log.rows["log"] = LogEntry(end_offset=offset)
    return log


def arriving(text: str, offset: int) -> Append | EndMarker:
    """Return the event that *text* describes:

    `epoch 3: 3-3 transactional verified` or `marker of epoch 2 by coordinator 0`.
    """
    if found := re.fullmatch(r"marker of epoch (\d+) by coordinator (\d+)", text):
        return EndMarker(
            producer_id=PID, epoch=int(found[1]), commit=True, coordinator_epoch=int(found[2]), offset=offset
        )
    found = re.fullmatch(r"epoch (\d+): (\d+)-(\d+)( transactional)?( verified)?", text)
    assert found is not None, text
    epoch, first, last = map(int, found.groups()[:3])
    return Append(
        producer_id=PID,
        epoch=epoch,
        first_sequence=first,
        last_sequence=last,
        base_offset=offset,
        last_offset=offset + (last - first & MAX_SEQUENCE),
        transactional=bool(found[4]),
        verified=bool(found[5]),
    )


def sequences(first: int, count: int) -> tuple[int, int]:
    """Return the first and last sequence of a batch of *count* records."""
    return first, advance(first, count - 1)
