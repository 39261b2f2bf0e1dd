"""Reapers that still run at the same time as a `fenced` harvester: it sees their marks, publishes nothing and
says why, and resumes when they are gone.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager

import pytest

from holdfast.dev.databases.servers import Postgres
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from holdfast.outbox.harvest.table import foreign
from holdfast.outbox.harvest.table.foreign import ForeignMarks
from tests.outbox.databases import FreshOutbox
from tests.outbox.harvesting import PARTITIONS, Alone, Rig
from tests.support.harness import wait_for
from tests.support.patience import DEADLINE_S

MARK = (
    "UPDATE {table} SET leader_id = %s WHERE id IN (SELECT id FROM {table} WHERE leader_id IS NULL OR"
    " leader_id <> %s ORDER BY id LIMIT {rows}) RETURNING id"
)


@pytest.fixture
def rig(broker: SessionBroker, fresh_topic: FreshTopic, postgres: Postgres) -> Rig:
    return Rig(
        broker, FreshOutbox.make(postgres.url, "goharvest"), fresh_topic("events", partitions=PARTITIONS)
    )


class Reaper(threading.Thread):
    """Marks the lowest rows as goharvest does, holds them for a while as if they were on their way, and
    purges them.
    """

    def __init__(self, postgres: Postgres, table: str, rows: int = 5) -> None:
        super().__init__(daemon=True)
        self._postgres, self._table, self._rows = postgres, table, rows
        self.me, self.purged, self.ended = str(uuid.uuid4()), list[int](), threading.Event()

    def run(self) -> None:
        with closing(self._postgres.connect()) as connection:
            connection.autocommit = True
            while not self.ended.is_set():
                found = connection.execute(
                    MARK.format(table=self._table, rows=self._rows), (self.me, self.me)
                ).fetchall()
                self.ended.wait(0.1)
                for (id_,) in found:
                    if connection.execute(f"DELETE FROM {self._table} WHERE id = %s", (id_,)).rowcount:
                        self.purged.append(id_)


@contextmanager
def reaping(postgres: Postgres, table: str) -> Iterator[Reaper]:
    reaper = Reaper(postgres, table)
    reaper.start()
    try:
        yield reaper
    finally:
        reaper.ended.set()
        reaper.join(DEADLINE_S)


def test_nothing_is_published_while_a_reaper_works_on_the_table(
    rig: Rig, postgres: Postgres, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """2,000 rows of which some are the reaper's and the others ours, no row both; it says so once and resumes
    by itself.
    """
    monkeypatch.setattr(foreign, "QUIET_S", DEADLINE_S)  # a machine may stop the reaper for half a minute
    rig.fill(2_000)
    with reaping(postgres, rig.outbox.table) as reaper:
        wait_for("the reaper's first rows", lambda: reaper.purged, DEADLINE_S)
        with Alone(rig.settings()) as leader:
            wait_for(
                "the reason", lambda: "rows bear marks in leader_id" in leader.stats.last_error, DEADLINE_S
            )
            assert leader.published == 0
            before = len(reaper.purged)
            wait_for("the reaper's work", lambda: len(reaper.purged) > before + 60, DEADLINE_S)
            reaper.ended.set()
            reaper.join(DEADLINE_S)
            with closing(postgres.connect()) as connection:  # the marks that a killed reaper leaves
                connection.execute(MARK.format(table=rig.outbox.table, rows=70), (reaper.me, reaper.me))
                connection.commit()
            leader.term._foreign._quiet_s = 1.0  # type: ignore[attr-defined]
            rig.wait_empty()
    numbers = {record.number for record in rig.read()}
    assert len(rig.read()) == len(numbers) == 2_000 - len(reaper.purged), (
        "no row is both the reaper's and ours"
    )
    told = [
        record.message
        for record in caplog.records
        if record.levelname == "WARNING" and "troubles" in record.name
    ]
    assert sum("reaper" in each for each in told) == 1
    assert sum("the trouble is over" in each for each in told) == 1


def test_a_reaper_that_marks_a_row_just_taken_is_noticed_when_it_is_deleted(
    rig: Rig, postgres: Postgres
) -> None:
    with Alone(rig.settings(batch_rows=10)) as leader:
        rows, taken = leader.shard_rows.rows, list[int]()
        delete = rows.marks

        def marked(ids: Collection[int] | None = None) -> list[tuple[int, str]]:
            if ids is not None and not taken:
                taken.extend(ids)
                rows.database.count(
                    f"UPDATE {rig.outbox.table} SET leader_id = '{uuid.uuid4()}' WHERE id = {taken[0]}"
                )
            return delete(ids)

        rows.marks = marked  # type: ignore[method-assign]
        rig.fill(30)
        wait_for("the reason", lambda: "rows bear marks" in leader.stats.last_error, DEADLINE_S)
        assert leader.published < 30


def test_marks_that_no_longer_change_have_no_owner() -> None:
    now_s = [100.0]

    class Clock:
        def monotonic_s(self) -> float:
            return now_s[0]

        def now_ms(self) -> int:
            return 0

    marks = ForeignMarks(Clock(), 10.0)
    assert marks.refusal is None
    marks.moved()
    now_s[0] += 9.9
    assert marks.refusal is not None
    now_s[0] += 0.2
    assert (marks.refusal, marks.waits) == (None, True)
    marks.settled([(1, "a"), (2, "a")])
    assert (marks.waits, marks.others([(2, "a")]), marks.others([(2, "b")]), marks.others([(3, "a")])) == (
        False,
        False,
        True,
        True,
    )
