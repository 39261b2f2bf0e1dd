"""Strategy fenced on the real broker and databases: every row once, its key's in order, whatever dies,
sleeps or is refused.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.types import AlterConfig
from holdfast.core.outbox.pacing import LEAST_S
from holdfast.dev.databases.servers import Postgres
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from holdfast.outbox.commands import Verb
from holdfast.outbox.settings import Poison
from holdfast.outbox.topics import PROGRESS_CONFIG
from tests.outbox.databases import FreshOutbox, killed
from tests.outbox.electors import CALM_S
from tests.outbox.harvesting import (
    PARTITIONS,
    Alone,
    FaultyProducer,
    Rig,
    SlowProducer,
    ends,
    flaws,
    harvest_process,
    unordered,
)
from tests.support import own_broker
from tests.support.harness import wait_for
from tests.support.limits import at_most
from tests.support.patience import DEADLINE_S
from tests.support.strangers import open_transaction

holdfast_broker, broker = own_broker.holdfast_broker, own_broker.broker


@pytest.fixture
def rig(broker: SessionBroker, fresh_topic: FreshTopic, run_outbox: FreshOutbox) -> Rig:
    """Give an outbox on the run's database."""
    return Rig(broker, run_outbox, fresh_topic("events", partitions=PARTITIONS))


@pytest.mark.variants("mysql", "mariadb")
def test_rows_are_published_once_in_order_with_contiguous_sequences(
    broker: SessionBroker, fresh_topic: FreshTopic, outbox: FreshOutbox
) -> None:
    """O2 and the whole way, on each database: elected, harvested, stopped; again under the next leader; the
    sequences continue.
    """
    rig = Rig(broker, outbox, fresh_topic("events", partitions=PARTITIONS))
    for turn in range(2):
        rig.fill(300)
        harvester = rig.harvester(heartbeat_timeout_s=CALM_S).start()
        try:
            rig.fill(100)
            rig.wait_empty(harvester)
        finally:
            with at_most(5.0, "the stop"):
                harvester.stop()
        assert harvester.stats[0].epoch == turn + 1
    records = rig.prove()
    assert {record.header("n") for record in records} == {b"%d" % number for number in range(800)}
    assert {record.header("holdfast-epoch") for record in records} == {b"1", b"2"}


STEPS: list[dict[str, Any]] = [
    {"place": "epoch"},
    {"place": "before fence"},
    {"place": "after fence"},
    {"place": "take"},
    {"place": "produce", "at": 30},
    {"place": "flushed"},
    {"place": "before commit", "at": 2},
    {"place": "after commit"},
    {"place": "after commit", "at": 3},
    {"place": "before delete"},
    {"place": "after delete"},
]


@pytest.mark.promise
def test_a_kill_at_any_step_costs_nothing(rig: Rig) -> None:
    """O7:

    SIGKILL at every step of a term, one after the other on one outbox; each next leader repairs what it
    finds.
    """
    rig.fill(400 * len(STEPS), keys=7)
    with harvest_process(rig, traps=STEPS, batch_rows=100) as process:
        assert ends(process) == [-signal.SIGKILL] * len(STEPS), STEPS
    assert rig.left() >= 400, "none of them had nothing to do"
    with Alone(rig.settings()) as last:
        rig.wait_empty()
    records = rig.prove()
    assert last.stats.restarts == 0
    assert len(rig.read("read_uncommitted")) > len(records), (
        "what was aborted lies in the log, and nobody sees it"
    )


def test_a_leader_frozen_in_its_transaction_beyond_its_session_publishes_nothing_more(rig: Rig) -> None:
    """H5, N1:

    SIGSTOP with a transaction flushed and uncommitted, SIGCONT after the successor has published everything.
    """
    rig.fill(300)
    with harvest_process(rig, election=True, trap={"place": "flushed", "signal": "SIGSTOP"}) as zombie:
        try:
            assert zombie.stdout is not None
            assert zombie.stdout.readline() == "ready\n"
            wait_for("the zombie's records in the log", lambda: rig.read("read_uncommitted"), DEADLINE_S)
            with rig.harvester() as successor:
                with at_most(6 + 5, "a session of 6 s, and the fence"):
                    rig.wait_empty(successor)
                zombie.send_signal(signal.SIGCONT)
                rig.fill(300)
                rig.wait_empty(successor)
                time.sleep(
                    2.5
                )  # a leader that did not know would commit, or try again, within its own timeout
                wait_for("it leads", lambda: successor.leads(0), DEADLINE_S)
        finally:
            zombie.send_signal(signal.SIGCONT)
            zombie.kill()
    rig.prove()


def test_a_fenced_leader_that_is_still_elected_takes_its_shard_back(rig: Rig) -> None:
    """A stranger with the same transactional id, as a leader that was late to fence: the broker refuses
    the one, which begins again.
    """
    rig.fill(50)
    with Alone(rig.settings()) as first:
        rig.wait_empty()
        with Alone(rig.settings()) as second:
            wait_for("the second's fence", lambda: second.stats.epoch, DEADLINE_S)
        rig.fill(50)
        rig.wait_empty()
        assert first.stats.fenced == 1
    rig.prove()


class FatalProducer(Producer):
    """A client that met its fence while records were handed over: `produce` says that it must stop, and only
    the end of the transaction says why.
    """

    armed = False

    def produce(self, *args: Any, **more: Any) -> None:
        if self.armed:
            raise KafkaException(KafkaError(KafkaError._FATAL, "Unable to produce message", fatal=True))
        super().produce(*args, **more)

    def abort_transaction(self, *args: Any) -> None:
        if self.armed:
            FatalProducer.armed = False
            raise KafkaException(KafkaError(KafkaError._FENCED, "fenced by a newer instance", fatal=True))
        super().abort_transaction(*args)


def test_a_fence_met_while_records_are_handed_over_is_a_fence(rig: Rig) -> None:
    rig.fill(50)
    with Alone(rig.settings(), {"make_producer": FatalProducer}) as leader:
        rig.wait_empty()
        FatalProducer.armed = True
        rig.fill(50)
        rig.wait_empty()
        assert leader.stats.fenced == 1, leader.stats.last_error
    rig.prove()


def test_nothing_is_published_before_all_that_was_is_known(rig: Rig) -> None:
    """A transaction that stays open on the progress topic hides the records after it; rows published there
    would be published again.
    """
    progress = rig.settings().progress_topic
    rig.fill(50)
    with Alone(rig.settings()):
        rig.wait_empty()
    rig.fill(50)
    with (
        open_transaction(rig.broker.config, progress, partitions=1),
        Alone(rig.settings(commit_timeout_s=2)) as leader,
    ):
        # A slow broker may fail to fence within those 2 s at first.
        reason = re.compile(rf"progress topic {progress} partition 0: from .* on a transaction is open")
        wait_for(
            "the reason",
            lambda: reason.search(leader.stats.last_error),
            DEADLINE_S,
            lambda: str(leader.stats),
        )
        wait_for("another attempt", lambda: leader.stats.restarts > 1, DEADLINE_S, lambda: str(leader.stats))
        assert len(rig.read()) == 50
    with Alone(rig.settings()):
        rig.wait_empty()
    rig.prove()


@pytest.mark.variant
def test_two_percent_of_failures_cost_neither_order_nor_a_row(rig: Rig) -> None:
    """O1: refusals to queue, transactions that come to nothing, commits whose answer is lost."""
    FaultyProducer.faults = 0
    rig.fill(2_000, keys=10)
    with Alone(rig.settings(batch_rows=50), {"make_producer": FaultyProducer}) as leader:
        rig.wait_empty()
    assert FaultyProducer.faults > 5
    assert leader.stats.aborted > 0
    rig.prove()


def test_a_queue_that_is_full_at_the_progress_record_is_waited_for(rig: Rig) -> None:
    """H8: the last record of a transaction is no safer than the first."""
    full: list[str] = []

    class Full(Producer):
        def produce(self, topic: str, *args: Any, **kwargs: Any) -> None:
            if topic == rig.settings().progress_topic and len(full) < 4:
                full.append(topic)
                raise BufferError("Local: Queue full")
            super().produce(topic, *args, **kwargs)

        def poll(self, timeout: float = -1) -> int:
            return super().poll(0)

    rig.fill(30)
    with Alone(rig.settings(), {"make_producer": Full}) as leader:
        rig.wait_empty()
    assert len(full) == 4
    assert leader.stats.restarts == 0
    rig.prove()


def test_the_broker_is_let_finish_a_transaction_before_the_next_begins(rig: Rig) -> None:
    """A transaction that begins before the last one's markers are written is sent back, and comes again 20 ms
    later.
    """
    rests_s: list[float] = []

    class Watched(Producer):
        committed_s = 0.0

        def begin_transaction(self) -> None:
            rests_s.append(time.monotonic() - self.committed_s)
            super().begin_transaction()

        def commit_transaction(self, timeout: float = -1) -> None:
            super().commit_transaction(timeout)
            self.committed_s = time.monotonic()

    rig.fill(60)
    with Alone(rig.settings(batch_rows=2), {"make_producer": Watched}):
        rig.wait_empty()
    assert len(rests_s) >= 30
    assert min(rests_s) >= LEAST_S
    rig.prove()


def test_a_transaction_begins_on_the_progress_topic(rig: Rig) -> None:
    """A lone broker that was away for longer than a transaction may last forgets to end it. The next leader
    looks for it there: where rows came first, it published them again, and its commit ended both.
    """
    began = list[tuple[str, int]]()

    class Watched(Producer):
        def produce(self, topic: str, *args: Any, **more: Any) -> None:
            began.append((topic, len(self)))
            super().produce(topic, *args, **more)

    rig.fill(60)
    with Alone(rig.settings(batch_rows=20), {"make_producer": Watched}):
        rig.wait_empty()
    firsts = [each for at, each in enumerate(began) if at == 0 or began[at - 1][0] != each[0]]
    assert [topic for topic, _ in firsts] == [rig.settings().progress_topic, rig.topic] * (len(firsts) // 2)
    assert len(firsts) >= 6
    assert {waiting for _, waiting in firsts} == {0}, "what went before is with the broker"
    rig.prove()


def test_no_row_is_sent_before_the_progress_has_arrived(rig: Rig) -> None:
    """Nor is a transaction committed whose progress names rows that were not sent."""
    sent = list[list[str]]()

    class Late(Producer):
        def begin_transaction(self) -> None:
            super().begin_transaction()
            sent.append([])

        def produce(self, topic: str, *args: Any, **more: Any) -> None:
            sent[-1].append(topic)
            super().produce(topic, *args, **more)

        def flush(self, timeout: float = -1) -> int:
            if len(sent) == 1:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            return super().flush(timeout)

    rig.fill(20)
    with Alone(rig.settings(), {"make_producer": Late}) as leader:
        rig.wait_empty()
    assert (leader.stats.aborted, leader.stats.restarts) == (1, 0), leader.stats.last_error
    assert rig.topic not in sent[0]
    rig.prove()


@pytest.mark.parametrize("make_producer", [Producer, SlowProducer])
def test_a_progress_topic_that_refuses_is_reported_and_no_row_is_blamed(
    rig: Rig, make_producer: type[Producer]
) -> None:
    """Rows went to the quarantine for what the progress topic did not take."""
    settings = rig.settings(attempts=1)
    topic = settings.progress_topic
    rig.broker.create_topic(topic, config=PROGRESS_CONFIG | {"max.message.bytes": "100"}, exact=True)
    rig.fill(20)
    with Alone(settings, {"make_producer": make_producer}) as leader:
        wait_for(
            "the reason",
            lambda: f"progress topic {topic} refuses what a transaction" in leader.stats.last_error,
            DEADLINE_S,
            lambda: leader.stats.last_error,
        )
        assert rig.left() == 20
        with rig.outbox.rows() as rows:
            assert rows.status().quarantined == 0
        admin = Admin(settings.kafka, timeout_s=DEADLINE_S)
        admin.apply([AlterConfig(topic=topic, config={"max.message.bytes": "1000000"})])
        rig.wait_empty()
    rig.prove()


@pytest.mark.database
def test_rows_that_become_visible_late_are_published_and_keep_their_keys_order(rig: Rig) -> None:
    """H2: a transaction that holds low ids commits while higher ones are in flight; what follows it on its
    key comes after it.
    """
    engine, writer = rig.outbox.engine(), rig.outbox.writer()
    with Alone(rig.settings(batch_rows=64)):
        for _ in range(10):
            with engine.begin() as late:
                writer.write_many(late, [rig.record(rig.filled, keys=10**9)])
                rig.filled += 1
                rig.fill(500, keys=10**9)
            with engine.begin() as after:  # begun after the commit, on the late one's key
                key = b"key-%d" % (rig.filled - 501)
                writer.write_many(after, [rig.record(rig.filled, key=key)])
                rig.filled += 1
        rig.wait_empty()
    rig.prove()


def test_one_hot_key_keeps_its_order(rig: Rig) -> None:
    """O2, H16: one key, batches in flight, no barrier."""
    rig.fill(5_000, keys=1)
    with Alone(rig.settings()) as leader:
        rig.wait_empty()
    rig.prove()
    assert leader.stats.batches < 100


def test_several_shards_publish_at_the_same_time_under_names_of_their_own(rig: Rig) -> None:
    rig.fill(2_000, keys=500)
    with rig.harvester(shards=3) as harvester:
        rig.wait_empty(harvester)
        wait_for("each shard", lambda: all(harvester.leads(shard) for shard in range(3)), DEADLINE_S)
    records = rig.prove()
    assert {record.header("holdfast-producer") for record in records} == {
        f"{rig.name}-{shard}".encode() for shard in range(3)
    }


# -- rows that Kafka refuses


def test_a_record_that_is_too_large_is_set_aside_and_only_its_key_waits(
    rig: Rig, fresh_topic: FreshTopic
) -> None:
    """H6, H7: the topic refuses one record in the middle of many; the leader keeps its epoch."""
    rig.topic = fresh_topic("small", partitions=PARTITIONS, config={"max.message.bytes": "20000"})
    rig.fill(200, size=10)
    rig.write([rig.record(200, size=50_000)])
    rig.filled += 1
    rig.fill(200, size=10)
    with Alone(rig.settings(attempts=3)) as leader:
        rig.wait_empty()
    rig.prove(missing=[200])
    with rig.outbox.rows() as rows:
        (aside,) = rows.quarantined(10)
    assert aside.row.key == b"key-0"
    assert aside.row.attempts == 3
    assert "MSG_SIZE_TOO_LARGE" in aside.reason
    assert (leader.stats.quarantined, leader.stats.restarts, leader.stats.epoch) == (1, 0, 1)


def test_a_key_waits_for_its_refused_row_and_no_other_key_does(rig: Rig, fresh_topic: FreshTopic) -> None:
    """H1: no queue in which others wait for it."""
    rig.topic = fresh_topic("small", partitions=PARTITIONS, config={"max.message.bytes": "20000"})
    rig.write([rig.record(0, size=50_000)])
    rig.filled = 1
    rig.fill(100, keys=10)
    with Alone(rig.settings(poison=Poison.WAIT, retry_s=0.2)) as leader:
        wait_for("the other keys", lambda: rig.left() == 11, DEADLINE_S)
        wait_for("more attempts", lambda: leader.stats.refused > 2, DEADLINE_S)
        assert rig.left() == 11, "the row and the ten behind it on its key"
    found = rig.read()
    assert not unordered(found)
    assert {record.key for record in found} == {b"key-%d" % number for number in range(1, 10)}


def test_rows_for_a_topic_that_is_not_there_are_set_aside_and_others_flow(rig: Rig) -> None:
    rig.fill(50)
    rig.write([rig.record(number, topic=f"{rig.topic}-absent") for number in range(30)])
    rig.fill(50)
    with Alone(rig.settings(attempts=3)) as leader:
        rig.wait_empty()
    rig.prove()
    assert (leader.stats.quarantined, leader.stats.restarts) == (30, 0)
    with rig.outbox.rows() as rows:
        assert {each.reason.split(":")[0] for each in rows.quarantined(100)} == {"UNKNOWN_TOPIC_OR_PART"}


def test_a_topic_made_in_time_gets_its_rows(rig: Rig) -> None:
    topic = f"{rig.topic}-later"
    rig.write([rig.record(number, topic=topic) for number in range(30)])
    with Alone(rig.settings(attempts=1000, retry_limit_s=0.2)) as leader:
        wait_for("the refusal", lambda: leader.stats.refused, DEADLINE_S)
        rig.broker.create_topic(topic, partitions=PARTITIONS, exact=True)
        rig.wait_empty()
    assert len(rig.read(topic=topic)) == 30
    rig.broker.delete_topics([topic])


def test_a_partition_that_is_not_there_and_an_explicit_one_that_is(rig: Rig) -> None:
    rig.write(
        [
            rig.record(0, partition=PARTITIONS),
            rig.record(1, partition=3),
            rig.record(2, key=None),
            rig.record(3, value=None),
        ]
    )
    with Alone(rig.settings(attempts=1)) as leader:
        rig.wait_empty()
    found = rig.read()
    assert len(found) == 3
    assert [record.partition for record in found if record.header("n") == b"1"] == [3]
    assert [record.value for record in found if record.header("n") == b"3"] == [None]
    assert leader.stats.quarantined == 1


def test_rows_whose_headers_do_not_fit_are_set_aside_with_the_reason(
    broker: SessionBroker, fresh_topic: FreshTopic, postgres: Postgres
) -> None:
    """O3: goharvest's layout."""
    rig = Rig(
        broker, FreshOutbox.make(postgres.url, "goharvest"), fresh_topic("events", partitions=PARTITIONS)
    )
    rig.fill(20)
    with postgres.connect() as connection:
        connection.execute(
            f"UPDATE {rig.outbox.table} SET kafka_header_values = ARRAY['a', 'b'] WHERE id = (SELECT min(id)"
            f" + 5 FROM {rig.outbox.table})"
        )
        connection.commit()
    with Alone(rig.settings()):
        rig.wait_empty()
    rig.prove(missing=[5])
    with rig.outbox.rows() as rows:
        (aside,) = rows.quarantined(10)
    assert aside.reason == "unequal number of header keys (1) and values (2)"


# -- outages


@pytest.mark.parametrize("away_s", [0.0, pytest.param(60.0, marks=pytest.mark.slow)])
def test_a_database_that_is_away_for_a_while_costs_nothing(
    rig: Rig, postgres: Postgres, away_s: float
) -> None:
    """O7: killed and started again while rows flow, at once or after longer than a session, a transaction
    and a commit may last.
    """
    rig.fill(500)
    with Alone(rig.settings(batch_rows=100, transaction_timeout_s=10, commit_timeout_s=10)) as leader:
        wait_for("some rows", lambda: leader.published, DEADLINE_S)
        with killed(postgres):
            time.sleep(away_s)
        rig.fill(500)
        rig.wait_empty()
    rig.prove()


@pytest.mark.variants("broker")
@pytest.mark.parametrize("what", ["database", "broker", pytest.param("both", marks=pytest.mark.slow)])
def test_a_stop_keeps_its_deadline_though_nothing_answers(rig: Rig, postgres: Postgres, what: str) -> None:
    """O7, H10: frozen, the worst that can happen to a client."""
    assert rig.broker.cluster is not None
    rig.fill(300)
    harvester = rig.harvester(batch_rows=20).start()
    thaw: list[Callable[[], None]] = []
    try:
        wait_for("some rows", lambda: harvester.stats[0].published, DEADLINE_S)
        if what != "broker":
            postgres.freeze()
            thaw.append(postgres.thaw)
        if what != "database":
            rig.broker.cluster.pause(1)
            thaw.append(partial(rig.broker.cluster.resume, 1))
        time.sleep(0.5)
        with at_most(5.0, "a stop within 4 s"):
            harvester.stop(4.0)
    finally:
        for each in thaw:
            each()
    with Alone(rig.settings()):
        rig.wait_empty()
    rig.prove()


def has(leader: Alone, published: int) -> bool:
    return leader.published == published


@pytest.mark.database
def test_an_idle_harvester_asks_little_and_hears_at_once(rig: Rig) -> None:
    """H13, O8: fewer than 5 queries a second; a row written then is published without waiting for the next
    of them.
    """
    with Alone(rig.settings(idle_poll_s=60.0)) as leader:
        rig.fill(1)
        rig.wait_empty()
        before, began_s = leader.stats.queries, time.monotonic()
        time.sleep(1.0)
        assert leader.stats.queries - before < 5 * (time.monotonic() - began_s)
        for number in range(3):
            rig.fill(1)
            wait_for("the row", partial(has, leader, 2 + number), DEADLINE_S)


def test_paused_it_leads_on_and_publishes_nothing(rig: Rig) -> None:
    with rig.harvester() as harvester:
        wait_for("a leader", lambda: harvester.stats[0].epoch, DEADLINE_S)
        harvester.pause()
        wait_for("a pause", lambda: harvester.is_settled(0, Verb.PAUSE), DEADLINE_S)
        rig.fill(10)
        time.sleep(0.6)
        assert rig.left() == 10
        wait_for("it leads", lambda: harvester.leads(0), DEADLINE_S)
        harvester.resume()
        rig.wait_empty(harvester)
    rig.prove()


def test_the_proof_itself_finds_planted_faults(rig: Rig) -> None:
    rig.fill(20, keys=1)
    with Alone(rig.settings()):
        rig.wait_empty()
    records = rig.prove()
    wanted = set(range(20))
    assert "duplicates" in flaws([*records, records[3]], wanted)[0]
    assert "lost: [4]" in flaws([each for each in records if each.number != 4], wanted)[0]
    assert "after" in flaws([records[1], records[0], *records[2:]], wanted)[0]
    assert "sequence 2 after 0" in unordered([records[0], *records[2:]])[0]
