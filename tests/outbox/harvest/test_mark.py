"""Strategy mark: goharvest's way on goharvest's table, with its defects cured.

At least once, a key's order never goes back.
"""

from __future__ import annotations

import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from holdfast.dev.databases.servers import Postgres
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from holdfast.errors import ConfigError, FencedError, OutboxDatabaseError
from holdfast.outbox.harvest.shard import shard
from holdfast.outbox.harvest.table.marks import MarkedRows
from holdfast.outbox.harvest.table.row_types import ShardEpoch
from holdfast.outbox.harvest.table.rows import OutboxRows
from holdfast.outbox.settings import HarvestSettings
from tests.outbox.databases import DATABASES, FreshOutbox, url_of
from tests.outbox.electors import CALM_S
from tests.outbox.harvesting import PARTITIONS, Alone, Record, Rig, ends, harvest_process
from tests.support.harness import wait_for
from tests.support.limits import at_most
from tests.support.patience import DEADLINE_S

MARK: dict[str, Any] = {"strategy": "mark"}


@pytest.fixture
def rig(broker: SessionBroker, fresh_topic: FreshTopic, run_database: str) -> Rig:
    """Give an outbox in goharvest's layout on the run's database."""
    outbox = FreshOutbox.make(run_database, "goharvest")
    return Rig(broker, outbox, fresh_topic("events", partitions=PARTITIONS))


@pytest.fixture(params=DATABASES)
def fresh(request: pytest.FixtureRequest, tmp_path: Any) -> FreshOutbox:
    """Give an outbox in goharvest's layout, ten rows of it written, on each database in turn."""
    outbox = FreshOutbox.make(url_of(request.param, request, tmp_path), "goharvest")
    with outbox.engine().begin() as connection:
        for number in range(10):
            outbox.writer().write(
                connection, "t", f"key-{number % 3}", f"{number}", headers=[("n", f"{number}")]
            )
    return outbox


@pytest.fixture
def marked(fresh: FreshOutbox) -> Iterator[OutboxRows]:
    """Give its rows, as a harvester has them."""
    with fresh.rows() as rows:
        yield rows


def astray(records: list[Record], rows: int) -> list[str]:
    """Return the anomalies that a reader of at-least-once records may not see: a row lost, or a key's numbers
    first seen out of order.
    """
    out = []
    lost = set(range(rows)) - {record.number for record in records}
    if lost:
        out.append(f"lost {sorted(lost)[:10]}")
    highest: dict[bytes | None, int] = {}
    for record in records:
        if record.number < highest.get(record.key, -1):
            out.append(f"key {record.key!r}: {record.number} after {highest[record.key]}")
        highest[record.key] = max(record.number, highest.get(record.key, -1))
    return out


def newly(records: list[Record]) -> list[Record]:
    """Return the records without repetitions: the first of each number."""
    seen: set[int] = set()
    return [record for record in records if not (record.number in seen or seen.add(record.number))]  # type: ignore[func-returns-value]


# -- marks


def test_marks_purges_and_resets_touch_only_their_own(marked: OutboxRows) -> None:
    """H3: a late reset or purge of a fenced leader changes nothing."""
    marks, old, new = MarkedRows(marked), str(uuid.uuid4()), str(uuid.uuid4())
    epoch = marked.epoch(0, "old")
    first = marks.mark(4, old, held=ShardEpoch(shard=0, epoch=epoch))
    assert [row.value for row in first] == [b"0", b"1", b"2", b"3"]
    assert [row.value for row in marks.mark(3, old, held=ShardEpoch(shard=0, epoch=epoch))] == [
        b"4",
        b"5",
        b"6",
    ], "its own are not taken again"
    taken = marks.mark(5, new, held=ShardEpoch(shard=0, epoch=epoch))
    assert [row.value for row in taken] == [
        b"0",
        b"1",
        b"2",
        b"3",
        b"4",
    ], "the marks of another leader are salvaged, lowest first"
    ids = [row.id for row in first]
    assert marks.purge(ids, old) == 0
    assert marks.reset(ids, old) == 0
    assert marks.purge(ids[:2], new) == 2
    assert marks.reset(ids[2:], new) == 2
    assert [row.value for row in marks.mark(2, new, held=ShardEpoch(shard=0, epoch=epoch))] == [b"2", b"3"]


def test_of_two_believers_the_older_is_refused_when_it_marks(marked: OutboxRows) -> None:
    """H4: two leaders do not steal each other's rows in turn."""
    marks = MarkedRows(marked)
    old = marked.epoch(0, "old")
    new = marked.epoch(0, "new")
    with pytest.raises(FencedError, match=f"epoch {new} was taken after {old}"):
        marks.mark(4, str(uuid.uuid4()), held=ShardEpoch(shard=0, epoch=old))
    assert len(marks.mark(4, str(uuid.uuid4()), held=ShardEpoch(shard=0, epoch=new))) == 4


def after_a_mark(marked: OutboxRows, do: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have *do* done once, between the next transaction of *marked* and whatever it asks afterwards."""
    transaction, left = marked.database.transaction, [do]

    @contextmanager
    def watched() -> Iterator[None]:
        with transaction():
            yield
        if left:
            left.pop()()

    monkeypatch.setattr(marked.database, "transaction", watched)


def test_a_row_that_is_written_during_an_empty_mark_is_returned_when_it_is_marked(
    marked: OutboxRows, fresh: FreshOutbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader skips rows of its own: one that it marked unseen would wait for the next leader, and later
    ones of its key overtake it.
    """

    def write(value: str) -> None:
        with fresh.engine().begin() as connection:
            fresh.writer().write(connection, "t", "key", value)

    marks, me = MarkedRows(marked), str(uuid.uuid4())
    held = ShardEpoch(shard=0, epoch=marked.epoch(0, "me"))
    marks.purge([row.id for row in marks.mark(10, me, held=held)], me)
    after_a_mark(marked, partial(write, "first"), monkeypatch)
    found = marks.mark(10, me, held=held)
    assert len(found) == len(marked.marks()), "what bears the mark was returned"
    write("second")
    found += marks.mark(10, me, held=held)
    assert [row.value for row in found] == [b"first", b"second"]


def test_a_leader_that_is_succeeded_while_it_marks_none_marks_none_afterwards(
    marked: OutboxRows, fresh: FreshOutbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks, old = MarkedRows(marked), str(uuid.uuid4())
    held = ShardEpoch(shard=0, epoch=marked.epoch(0, "old"))
    marks.purge([row.id for row in marks.mark(10, old, held=held)], old)

    def succeed() -> None:
        with fresh.rows() as others, fresh.engine().begin() as connection:
            others.epoch(0, "new")
            fresh.writer().write(connection, "t", "key", "first")

    after_a_mark(marked, succeed, monkeypatch)
    with suppress(FencedError):
        assert marks.mark(10, old, held=held) == []
    assert marked.marks() == [], "rows are the successor's"


@pytest.mark.parametrize("fresh", ["postgres"], indirect=True)
def test_a_row_that_its_marker_deletes_while_it_is_marked_is_not_returned(
    marked: OutboxRows, fresh: FreshOutbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last leader's purge may come between the choice of rows and their marks."""
    marks, old, new = MarkedRows(marked), str(uuid.uuid4()), str(uuid.uuid4())
    held = ShardEpoch(shard=0, epoch=marked.epoch(0, "me"))
    published = [row.id for row in marks.mark(4, old, held=held)][1:3]
    count = marked.database.count

    def late(sql: str, *more: Any) -> int:
        monkeypatch.undo()
        with fresh.rows() as others:
            assert MarkedRows(others).purge(published, old) == 2
        return count(sql, *more)

    monkeypatch.setattr(marked.database, "count", late)
    assert [row.value for row in marks.mark(6, new, held=held)] == [b"0", b"3", b"4", b"5"]
    assert [row.value for row in marks.mark(6, new, held=held)] == [b"6", b"7", b"8", b"9"]


def test_it_needs_goharvests_table_and_one_shard() -> None:
    with pytest.raises(ConfigError, match="leader_id of layout goharvest"):
        HarvestSettings(database="sqlite://", strategy="mark")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no column that spreads"):
        HarvestSettings(database="sqlite://", strategy="mark", layout="goharvest", shards=2)  # type: ignore[arg-type]


# -- harvesting


def test_rows_are_published_as_goharvest_would(rig: Rig) -> None:
    """O2 and the whole way, elected among goNELIs."""
    rig.fill(500)
    with rig.harvester(**MARK, interop=True, heartbeat_timeout_s=CALM_S) as harvester:
        rig.fill(500)
        rig.wait_empty(harvester)
    records = rig.read()
    assert len(records) == 1000
    assert not astray(records, 1000)
    assert all(record.headers == [("n", b"%d" % record.number)] for record in records)


@pytest.mark.database
def test_writers_that_notify_are_followed_though_others_do_not(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goharvest's own stashers do not notify, so its layout is polled; ours do."""
    monkeypatch.setattr(shard, "LEAST_POLL_S", 60.0)
    with Alone(rig.settings(**MARK, idle_poll_s=60.0)) as leader:
        wait_for("a look at the table since it listens", lambda: leader.stats.queries >= 3, DEADLINE_S)
        for _ in range(2):
            rig.fill(5)
            rig.wait_empty()
    assert not astray(rig.read(), 10)


def test_an_empty_table_that_stays_empty_is_only_looked_at(rig: Rig) -> None:
    with Alone(rig.settings(**MARK, idle_poll_s=0.01)) as leader:
        marks, marked = leader.term._marks, []  # type: ignore[attr-defined]
        mark = marks.mark

        def marking(*args: Any, **kwargs: Any) -> Any:
            marked.append(leader.stats.queries)
            return mark(*args, **kwargs)

        marks.mark = marking
        wait_for("a quiet leader", lambda: leader.shard_rows.quiet, DEADLINE_S)
        before, looks = len(marked), leader.stats.queries
        wait_for("looks at the table", lambda: leader.stats.queries >= looks + 20, DEADLINE_S)
        assert len(marked) <= before + 1, "one may have been on its way"
        rig.fill(5)
        rig.wait_empty()
    assert not astray(rig.read(), 5)


@pytest.mark.parametrize("key_in_flight", [1, pytest.param(7, marks=pytest.mark.slow), 1000])
def test_one_key_keeps_its_order_however_many_of_it_are_in_flight(rig: Rig, key_in_flight: int) -> None:
    """O2, H16."""
    rig.fill(60, keys=1)
    with Alone(rig.settings(**MARK, key_in_flight=key_in_flight)) as leader:
        rig.wait_empty()
    assert [record.number for record in rig.read()] == list(range(60))
    assert leader.stats.batches >= 60 // key_in_flight


class Failing(Producer):
    """A producer that loses its queue now and then, and the records on their way with it."""

    turns = 0

    def flush(self, *args: Any) -> int:
        Failing.turns += 1
        if Failing.turns % 5 == 0:
            self.purge()
        return super().flush(*args)

    def produce(self, *args: Any, **kwargs: Any) -> None:
        if Failing.turns % 7 == 3 and args[2] == b"key-4":
            Failing.turns += 1
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        super().produce(*args, **kwargs)


def test_failed_deliveries_cost_repetitions_at_most(rig: Rig) -> None:
    """O1, H11: a lost row is reset and marked again; no other overtakes it."""
    rig.fill(1_000, keys=10)
    with Alone(rig.settings(**MARK, batch_rows=50), {"make_producer": Failing}) as leader:
        rig.wait_empty()
    assert leader.stats.resets > 0
    assert not astray(newly(rig.read()), 1_000)


def test_a_mark_whose_answer_is_lost_is_made_again_under_another_id(rig: Rig) -> None:
    """O4."""

    rig.fill(100)
    with Alone(rig.settings(**MARK, batch_rows=30)) as leader:
        marks = leader.term._marks  # type: ignore[attr-defined]
        lost: list[list[int]] = []
        mark = marks.mark

        def unsure(*args: Any, **kwargs: Any) -> Any:
            found = mark(*args, **kwargs)
            if len(lost) < 2 and found:
                lost.append([row.id for row in found])
                raise OutboxDatabaseError("the answer was lost", is_lost=True)
            return found

        marks.mark = unsure
        rig.fill(100)
        rig.wait_empty()
    assert lost
    records = rig.read()
    assert len(records) == 200
    assert not astray(records, 200)


class Counting(Producer):
    """A producer that counts what it was handed and has not been answered for."""

    now = most = 0

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__({**config, "delivery.report.only.error": False})

    def produce(self, *args: Any, **kwargs: Any) -> None:
        answer = kwargs["on_delivery"]

        def heard(error: Any, message: Any) -> None:
            Counting.now -= 1
            if error is not None:
                answer(error, message)

        super().produce(*args, **{**kwargs, "on_delivery": heard})
        Counting.now += 1
        Counting.most = max(Counting.most, Counting.now)


def test_no_more_rows_are_in_flight_than_allowed(rig: Rig) -> None:
    """O7, H8: nor is the limit only approached by one."""
    Counting.now = Counting.most = 0
    rig.fill(500)
    with Alone(rig.settings(strategy="mark", in_flight_rows=40), clients={"make_producer": Counting}):
        rig.wait_empty()
    assert Counting.now == 0
    assert Counting.most == 40


def test_a_kill_costs_repetitions_at_most(rig: Rig) -> None:
    """O7: SIGKILL while records are in flight and before they are deleted."""
    rig.fill(2_000, keys=50)
    traps = [{"place": "produce", "at": at} for at in (30, 700)]
    with harvest_process(rig, traps=traps, batch_rows=200, **MARK) as process:
        assert ends(process) == [-signal.SIGKILL] * 2
    with Alone(rig.settings(**MARK)):
        rig.wait_empty()
    records = rig.read()
    assert not astray(newly(records), 2_000)
    assert len(records) < 2_000 + 2 * 200


def test_a_record_that_is_too_large_is_set_aside_and_the_others_flow(
    rig: Rig, fresh_topic: FreshTopic
) -> None:
    """H6, H7."""
    rig.topic = fresh_topic("small", partitions=PARTITIONS, config={"max.message.bytes": "5000"})
    rig.fill(100, size=10)
    rig.write([rig.record(100, size=9_000)])
    rig.filled += 1
    rig.fill(100, size=10)
    with Alone(rig.settings(**MARK, attempts=2)) as leader:
        rig.wait_empty()
    assert leader.stats.quarantined == 1
    records = newly(rig.read())
    assert {record.number for record in records} == set(range(201)) - {100}
    with rig.outbox.rows() as rows:
        (aside,) = rows.quarantined(10)
    assert "MSG_SIZE_TOO_LARGE" in aside.reason


def test_rows_for_a_missing_topic_and_flawed_ones_are_set_aside(rig: Rig, postgres: Postgres) -> None:
    """H6, O3."""
    rig.write([rig.record(0, topic=f"{rig.topic}-absent")])
    rig.filled = 1
    rig.fill(20)
    with closing(postgres.connect()) as connection:
        connection.execute(
            f"UPDATE {rig.outbox.table} SET kafka_header_values = ARRAY['a', 'b'] WHERE id = (SELECT max(id)"
            f" FROM {rig.outbox.table})"
        )
        connection.commit()
    with Alone(rig.settings(**MARK, attempts=2)) as leader:
        rig.wait_empty()
    assert leader.stats.quarantined == 2
    assert {record.number for record in rig.read()} == set(range(1, 20))


@pytest.mark.slow
def test_a_stop_keeps_its_deadline_though_nothing_answers(rig: Rig, postgres: Postgres) -> None:
    """O7, H9, H10: the database frozen between delivery and purge."""
    rig.fill(300)
    harvester = rig.harvester(**MARK, batch_rows=20).start()
    thaw: Callable[[], None] = postgres.thaw
    try:
        wait_for("some rows", lambda: harvester.stats[0].published, DEADLINE_S)
        postgres.freeze()
        time.sleep(0.3)
        with at_most(5.0, "a stop within 4 s"):
            harvester.stop(4.0)
    finally:
        thaw()
    with Alone(rig.settings(**MARK)):
        rig.wait_empty()
    assert not astray(newly(rig.read()), 300)
