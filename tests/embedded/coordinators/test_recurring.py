"""The broker's recurring work continues after an unexpected failure, and the failure is logged."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from holdfast.clock import ManualClock
from holdfast.core.kafka.transaction_state import (
    AddPartitions,
    EndTransaction,
    InitProducerId,
    Transaction,
    TransactionState,
)
from holdfast.embedded.cluster import EmbeddedCluster
from holdfast.embedded.groups.coordinator import EmbeddedGroups
from holdfast.embedded.recurring import Recurring
from holdfast.embedded.settings import EmbeddedSettings
from holdfast.embedded.transactions.coordinator import EmbeddedTransactions
from holdfast.errors import BrokerFolderError
from holdfast.models.consumer_group import SESSION_MS
from tests.embedded.coordinators.test_modern_records import Bench
from tests.support.patience import DEADLINE_S

JOIN: dict[str, Any] = {
    "rebalance_timeout_ms": 5_000,
    "topic_partitions": [],
    "subscribed_topic_names": ["orders"],
}


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]


@pytest.mark.parametrize(
    ("failure", "lines"),
    [
        (IndexError("a fault of its own"), ["the round failed: it is tried again in 0.001 s"]),
        (BrokerFolderError("the folder is gone"), []),  # the disk reports it
    ],
)
def test_a_round_that_fails_is_logged_and_the_next_one_comes(
    caplog: pytest.LogCaptureFixture, failure: Exception, lines: list[str]
) -> None:
    seen: list[int] = []

    async def run() -> None:
        again = asyncio.Event()

        def once() -> None:
            seen.append(len(seen))
            if len(seen) == 1:
                raise failure
            again.set()

        recurring = Recurring("the round", 0.001, once)
        recurring.start()
        try:
            await again.wait()
        finally:
            recurring.close()

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))
    assert told(caplog) == lines


@pytest.mark.parametrize("part", [EmbeddedGroups, EmbeddedTransactions])
def test_the_sweep_of_each_coordinator_comes_again_after_one_that_failed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, part: type
) -> None:
    monkeypatch.setattr("holdfast.embedded.groups.coordinator.SWEEP_S", 0.001)
    seen: list[int] = []

    async def run() -> None:
        again = asyncio.Event()

        def once(_: object) -> None:
            seen.append(len(seen))
            if len(seen) == 1:
                raise IndexError("a fault of its own")
            again.set()

        monkeypatch.setattr(part, "sweep" if part is EmbeddedGroups else "abort_timed_out", once)
        cluster = EmbeddedCluster(EmbeddedSettings(transaction_sweep_ms=1), seed=1)
        cluster.start()
        try:
            await again.wait()
        finally:
            cluster.close()

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))
    assert len(told(caplog)) == 1


def test_a_group_whose_sweep_fails_keeps_no_other_from_its_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    bench.topic("orders", 4)
    bench.beat("a", 0, **JOIN)
    bench.beat("b", 0, group_id="others", **JOIN)
    groups = bench.cluster.groups
    bench.clock.advance_ms(SESSION_MS)
    changed = groups.modern_changed

    def fails(group: Any, before: Any) -> None:
        if group.group_id == "readers":
            raise IndexError("a fault of its own")
        changed(group, before)

    monkeypatch.setattr(groups, "modern_changed", fails)
    groups.sweep()
    other = groups.get("others")
    assert other is not None
    assert other.is_empty
    assert told(caplog) == ["the sweep of group readers failed: it is tried again in 1 s"]


class Transactions:
    """The transactions of a cluster without sockets, each in partition 0 of `orders`."""

    def __init__(self) -> None:
        self.clock = ManualClock(now_ms=1_000_000)
        self.cluster = EmbeddedCluster(EmbeddedSettings(), seed=1, clock=self.clock)
        self.cluster.topics.make("orders", num_partitions=1)
        self.here = self.cluster.transactions

    def open(self, name: str) -> tuple[int, int]:
        told = self.here.do(InitProducerId(transactional_id=name, timeout_ms=1_000))
        self.here.do(
            AddPartitions(
                transactional_id=name,
                producer_id=told.producer_id,
                epoch=told.epoch,
                partitions=(("orders", 0),),
            )
        )
        return told.producer_id, told.epoch

    def state(self, name: str) -> TransactionState:
        known = self.here.get(name)
        assert known is not None
        return known.state

    def fail_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make the next write of a marker fail with an unexpected error."""
        mark, failed = self.here.mark, list[Transaction]()

        def fails(place: Any, decided: Transaction, *, commit: bool) -> None:
            if not failed:
                failed.append(decided)
                raise IndexError("a fault of its own")
            mark(place, decided, commit=commit)

        monkeypatch.setattr(self.here, "mark", fails)


def test_a_transaction_whose_abort_fails_keeps_no_other_open_and_is_aborted_the_next_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Transactions()
    bench.open("first")
    bench.open("second")
    bench.clock.advance_ms(1_001)
    bench.fail_once(monkeypatch)
    bench.here.abort_timed_out()
    assert [bench.state(each) for each in ("first", "second")] == [
        TransactionState.PREPARE_ABORT,
        TransactionState.COMPLETE_ABORT,
    ]
    assert told(caplog) == ["the end of transaction first failed: it is tried again in 1 s"]
    bench.here.abort_timed_out()
    assert bench.state("first") is TransactionState.COMPLETE_ABORT


def test_a_commit_whose_markers_failed_is_completed_by_the_next_sweep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Transactions()
    producer_id, epoch = bench.open("first")
    bench.fail_once(monkeypatch)
    with pytest.raises(IndexError):
        bench.here.do(
            EndTransaction(transactional_id="first", producer_id=producer_id, epoch=epoch, commit=True)
        )
    assert bench.state("first") is TransactionState.PREPARE_COMMIT
    bench.here.abort_timed_out()
    assert bench.state("first") is TransactionState.COMPLETE_COMMIT
