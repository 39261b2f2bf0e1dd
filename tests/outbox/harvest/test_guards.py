"""A leader that slept through its succession: what it still wants to write down is refused, on each
database.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast.dev.fixtures import FreshTopic, SessionBroker
from holdfast.errors import FencedError, OutboxDatabaseError
from holdfast.outbox.harvest.table.row_types import ShardEpoch
from holdfast.outbox.harvest.table.rows import OutboxRows
from holdfast.outbox.schema.database import Database
from holdfast.outbox.settings import HarvestSettings
from tests.outbox.databases import FreshOutbox, url_of
from tests.outbox.harvesting import PARTITIONS, Alone, Rig
from tests.support.harness import wait_for
from tests.support.limits import at_most
from tests.support.patience import DEADLINE_S


def written(outbox: FreshOutbox) -> FreshOutbox:
    """Return *outbox* with one row."""
    with outbox.engine().begin() as connection:
        outbox.writer().write(connection, "orders", "key", "1")
    return outbox


def test_an_older_epoch_neither_sets_a_row_aside_nor_holds_it(outbox: FreshOutbox) -> None:
    with written(outbox).rows() as zombie, outbox.rows() as successor:
        old = ShardEpoch(shard=0, epoch=zombie.epoch(0, "zombie"))
        (row,) = zombie.take(1)
        assert zombie.attempt_failed(row, "no such topic", 0, held=old) == 1
        new = ShardEpoch(shard=0, epoch=successor.epoch(0, "successor"))
        (row,) = successor.take(1)
        with pytest.raises(FencedError, match="epoch 2 was taken after 1"):
            zombie.set_aside(row, "late", held=old)
        with pytest.raises(FencedError, match="epoch 2 was taken after 1"):
            zombie.attempt_failed(row, "late", 2**50, held=old)
        assert successor.take(1) == [row], "neither held nor gone"
        assert successor.quarantined(1) == []
        assert successor.attempt_failed(row, "again", 0, held=new) == 2
        assert successor.set_aside(row, "enough", held=new)


@pytest.mark.variants("mariadb")
@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_a_leader_frozen_in_a_transaction_does_not_keep_its_successor_waiting(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Its lock on the lease goes with the transaction, which the server ends; SQLite's lock is the
    process's own and stays.
    """
    outbox = written(FreshOutbox.make(url_of(kind, request, tmp_path)))
    with (
        outbox.rows(database=Database(outbox.url, idle_transaction_s=3.0)) as frozen,
        outbox.rows() as successor,
    ):
        old = ShardEpoch(shard=0, epoch=frozen.epoch(0, "frozen"))
        (row,) = frozen.take(1)
        with pytest.raises(OutboxDatabaseError), frozen.database.transaction():  # noqa: PT012  the end of the block is what fails
            frozen.check(old)
            with at_most(10.0, "the successor's epoch"):
                assert successor.epoch(0, "successor") == 2
        with pytest.raises(FencedError):
            frozen.set_aside(row, "late", held=old)


class LateRows(OutboxRows):
    """Rows of a leader that falls asleep on its way to set one aside."""

    asleep, awake, done = threading.Event(), threading.Event(), threading.Event()
    guarded = True

    def set_aside(self, row: Any, reason: str, *, held: ShardEpoch | None = None) -> bool:
        self.asleep.set()
        assert self.awake.wait(DEADLINE_S)
        try:
            return super().set_aside(row, reason, held=held if self.guarded else None)
        finally:
            self.done.set()


class SlowRows(OutboxRows):
    """Rows of its successor: what it has published stays in the table until the sleeper has had its turn."""

    def delete(self, ids: Any) -> int:
        if ids:
            LateRows.awake.set()
            assert LateRows.done.wait(DEADLINE_S)
        return super().delete(ids)


@pytest.mark.variants("sqlite-False", "postgres-True", "mysql-False", "mariadb-True")
@pytest.mark.parametrize("guarded", [True, False])
def test_a_row_in_flight_at_the_successor_is_not_set_aside_by_the_sleeper(
    broker: SessionBroker,
    fresh_topic: FreshTopic,
    outbox: FreshOutbox,
    monkeypatch: pytest.MonkeyPatch,
    guarded: bool,
) -> None:
    """H3: published and set aside at once, a person would put it back and publish it twice.

    Without the guard, that is what happens.
    """
    for name in ("asleep", "awake", "done"):
        monkeypatch.setattr(LateRows, name, threading.Event())
    monkeypatch.setattr(LateRows, "guarded", guarded)
    rig = Rig(broker, outbox, fresh_topic("events", partitions=PARTITIONS))
    later = f"{rig.topic}-later"
    rig.write([rig.record(0, topic=later)])

    def late(settings: HarvestSettings) -> OutboxRows:
        return LateRows(settings.database, table=settings.table, layout=settings.layout)

    def slow(settings: HarvestSettings) -> OutboxRows:
        return SlowRows(settings.database, table=settings.table, layout=settings.layout)

    with Alone(rig.settings(attempts=1), make_rows=late) as sleeper:
        wait_for("the sleeper", LateRows.asleep.is_set, DEADLINE_S)
        rig.broker.create_topic(later, partitions=PARTITIONS, exact=True)
        sleeper.signals.stop()  # it knows nothing of it until it has tried
        with Alone(rig.settings(attempts=1), make_rows=slow):
            wait_for("the sleeper's turn", LateRows.done.is_set, DEADLINE_S)
            rig.wait_empty()
    assert len(rig.read(topic=later)) == 1
    with outbox.rows() as rows:
        assert len(rows.quarantined(10)) == (0 if guarded else 1)
    assert sleeper.stats.fenced == guarded
    rig.broker.delete_topics([later])
