"""The limits of topics, and rows beyond them: other keys lose nothing by those, and no topic is slow because
its limit is low.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from holdfast.dev.databases.servers import Postgres
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from holdfast.outbox.harvest.publishing import limits, publisher
from holdfast.outbox.schema.layouts import OutboxRow
from tests.outbox.databases import FreshOutbox
from tests.outbox.electors import TIMEOUT_S
from tests.outbox.harvesting import PARTITIONS, Alone, Rig
from tests.support.harness import wait_for
from tests.support.patience import DEADLINE_S

LAYOUT = {"fenced": "holdfast", "mark": "goharvest"}
SMALL_BYTES = 5_000


class Counted(Producer):
    """A producer that counts transactions that came to nothing, and producers.

    It sends when it is flushed, or has a whole batch: how large batches are says nothing of how quick the
    machine is.
    """

    made = aborts = 0

    def __init__(self, config: dict[str, Any]) -> None:
        Counted.made += 1
        super().__init__({**config, "linger.ms": config.get("delivery.timeout.ms", 20_000) // 2})

    def abort_transaction(self, *args: Any) -> None:
        super().abort_transaction(*args)
        Counted.aborts += 1


@pytest.fixture(autouse=True)
def counts() -> None:
    Counted.made = Counted.aborts = 0


CLIENTS = {"make_producer": Counted}


@pytest.fixture(params=["fenced", "mark"])
def strategy(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def rig(broker: SessionBroker, fresh_topic: FreshTopic, postgres: Postgres, strategy: str) -> Rig:
    """Give an outbox on Postgres whose values may have any size."""
    outbox = FreshOutbox.make(postgres.url, LAYOUT[strategy])
    if strategy == "mark":
        with closing(postgres.connect()) as connection:
            for table in (outbox.table, f"{outbox.table}_quarantine"):
                connection.execute(f"ALTER TABLE {table} ALTER COLUMN kafka_value TYPE text")
            connection.commit()
    return Rig(broker, outbox, fresh_topic("events", partitions=PARTITIONS))


def enlarge(rig: Rig, postgres: Postgres, number: int, size: int) -> None:
    """Make one of the rows that wait as large as none may be."""
    value, order = ("kafka_value", "id") if rig.outbox.layout.name == "goharvest" else ("value", "id")
    more = (
        "value || convert_to(repeat(' ', %s), 'UTF8')"
        if value == "value"
        else "kafka_value || repeat(' ', %s)"
    )
    with closing(postgres.connect()) as connection:
        connection.execute(
            f"UPDATE {rig.outbox.table} SET {value} = {more} WHERE {order} = (SELECT min({order}) + {number}"
            f" FROM {rig.outbox.table})",
            (size,),
        )
        connection.commit()


def set_limit(broker: SessionBroker, topic: str, size: int) -> None:
    entry = ConfigEntry(limits.CONFIG, str(size), incremental_operation=AlterConfigOpType.SET)
    changed = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient(broker.client_config())
    (done,) = admin.incremental_alter_configs([changed]).values()
    done.result(DEADLINE_S)


@pytest.mark.variants("fenced-wait", "mark-pass")
@pytest.mark.parametrize("poison", ["pass", "wait"])
def test_a_row_that_its_topic_cannot_take_costs_the_others_no_transaction(
    rig: Rig, postgres: Postgres, strategy: str, poison: str
) -> None:
    """Of 100 keys, one has to wait or is passed; no row that Kafka refuses is sent at all."""
    rig.fill(1_000, keys=100)
    enlarge(rig, postgres, 305, 2_000_000)
    with Alone(
        rig.settings(strategy=strategy, poison=poison, attempts=3, retry_s=0.2, retry_limit_s=0.4), CLIENTS
    ) as leader:
        if poison == "pass":
            rig.wait_empty()
        else:
            wait_for("the other keys", lambda: rig.left() == 7, DEADLINE_S)
            wait_for("more attempts", lambda: leader.stats.refused >= 3, DEADLINE_S)
            assert rig.left() == 7, "the row and the six behind it on its key"
        assert (Counted.aborts, Counted.made, leader.stats.aborted, leader.stats.restarts) == (0, 1, 0, 0)
    numbers = [record.number for record in rig.read()]
    behind = [] if poison == "pass" else range(405, 1_000, 100)
    assert sorted(numbers) == sorted(set(range(1_000)) - {305} - set(behind))
    with rig.outbox.rows() as rows:
        if poison == "pass":
            (aside,) = rows.quarantined(10)
            assert aside.row.attempts == 3
            assert aside.reason.startswith("MSG_SIZE_TOO_LARGE: the record is too large: it has 2000")
            assert f"topic {rig.topic} takes 1048588 (max.message.bytes)" in aside.reason


def test_a_topic_that_takes_little_refuses_nothing(rig: Rig, fresh_topic: FreshTopic, strategy: str) -> None:
    """Batches are cut to what it takes, while another topic's are not."""
    large = rig.topic
    rig.topic = fresh_topic("small", partitions=PARTITIONS, config={limits.CONFIG: str(SMALL_BYTES)})
    rig.fill(2_000, size=150)
    rig.write([rig.record(number, topic=large) for number in range(100)])
    with Alone(rig.settings(strategy=strategy), CLIENTS) as leader:
        rig.wait_empty()
        assert (Counted.aborts, Counted.made, leader.stats.refused, leader.stats.restarts) == (0, 1, 0, 0)
    assert [record.number for record in rig.read() if record.key == b"key-3"] == list(range(3, 2_000, 10))
    assert len(rig.read()) == 2_000
    assert len(rig.read(topic=large)) == 100


def test_a_transaction_of_many_rounds_is_cut_short(rig: Rig, fresh_topic: FreshTopic, strategy: str) -> None:
    """One key, and a topic that takes two of its rows at a time: one transaction of all would outlast its
    timeout.
    """
    rig.topic = fresh_topic("small", partitions=PARTITIONS, config={limits.CONFIG: "1000"})
    rig.fill(400, keys=1, size=200)
    with Alone(rig.settings(strategy=strategy), CLIENTS) as leader:
        rig.wait_empty()
        assert (Counted.aborts, leader.stats.refused, leader.stats.restarts) == (0, 0, 0)
    assert [record.number for record in rig.read()] == list(range(400))
    assert strategy == "mark" or leader.stats.batches > 400 / 2 / publisher.LIMIT_ROUNDS


def test_a_limit_that_is_raised_lets_a_waiting_row_through(
    rig: Rig, fresh_topic: FreshTopic, strategy: str
) -> None:
    rig.topic = fresh_topic("small", partitions=PARTITIONS, config={limits.CONFIG: str(SMALL_BYTES)})
    rig.fill(20)
    rig.write([rig.record(20, size=9_000)])
    rig.filled += 1
    rig.fill(20)
    with Alone(rig.settings(strategy=strategy, poison="wait", retry_limit_s=0.2), CLIENTS) as leader:
        wait_for("the refusal", lambda: leader.stats.refused, DEADLINE_S)
        set_limit(rig.broker, rig.topic, 20_000)
        rig.wait_empty()
    assert Counted.aborts == 0
    assert [record.number for record in rig.read() if record.key == b"key-0"] == [0, 10, 20, 30, 40][:5]


def test_a_limit_that_is_lowered_is_asked_for_again_after_one_refusal(rig: Rig, strategy: str) -> None:
    rig.fill(200)
    with Alone(rig.settings(strategy=strategy), CLIENTS) as leader:
        rig.wait_empty()
        set_limit(rig.broker, rig.topic, SMALL_BYTES)
        rig.fill(1_000, size=150)
        rig.wait_empty()
        assert leader.stats.refused == 1, leader.stats
    assert {record.number for record in rig.read()} == set(range(1_200))


class Silent(AdminClient):
    """The admin client of a principal without the right DescribeConfigs: the broker says no."""

    def describe_configs(self, resources: Any, **more: Any) -> Any:  # type: ignore[override]
        asked = super().describe_configs(resources, **more)

        class No:
            def __init__(self, future: Any) -> None:
                self._future = future

            def done(self) -> bool:
                return bool(self._future.done())

            def result(self, timeout: float | None = None) -> Mapping[str, Any]:
                self._future.result(timeout)
                raise KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))

        return {resource: No(future) for resource, future in asked.items()}


def test_without_the_right_to_ask_refusals_show_the_limit(
    rig: Rig, fresh_topic: FreshTopic, postgres: Postgres, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few refusals, and never again for rows that fit; a row that does not is found in one."""
    monkeypatch.setattr(limits, "make_admin", Silent)
    rig.topic = fresh_topic("small", partitions=PARTITIONS, config={limits.CONFIG: "100000"})
    rig.fill(4_000, size=500)
    with Alone(rig.settings(strategy=strategy, attempts=1), CLIENTS) as leader:
        rig.wait_empty()
        learned = leader.stats.refused
        assert 1 <= learned <= 3, leader.stats
        rig.fill(4_000, size=500)
        rig.wait_empty()
        assert leader.stats.refused == learned
        leader.signals.paused.set()
        wait_for("a pause", lambda: not leader.signals.busy.is_set(), DEADLINE_S)
        rig.fill(500, size=100)
        enlarge(rig, postgres, 1, 200_000)
        enlarge(rig, postgres, 2, 200_000)
        leader.signals.paused.clear()
        rig.wait_empty()
        assert leader.stats.refused <= learned + 2
        assert leader.stats.quarantined == 2
    seen = {record.number for record in rig.read()}
    assert seen == set(range(8_500)) - {8_001, 8_002}


def test_many_rows_that_are_too_large_are_found_without_a_word_of_the_topic(
    rig: Rig, strategy: str, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several in one batch of rows, each in a batch of its own on the wire."""
    monkeypatch.setattr(limits, "make_admin", Silent)
    rig.fill(60, keys=60)
    for number in range(0, 60, 5):
        enlarge(rig, postgres, number, 1_200_000)
    # A producer of `mark` that ends by a refusal leaves rows unanswered until its heartbeat is over.
    settings = rig.settings(
        strategy=strategy, attempts=1, batch_bytes=64 << 20, heartbeat_timeout_s=3 * TIMEOUT_S
    )
    with Alone(settings, CLIENTS) as leader:
        rig.wait_empty()
    assert leader.stats.quarantined == 12
    assert {record.number for record in rig.read()} == {number for number in range(60) if number % 5}


def row(value: bytes, **more: Any) -> OutboxRow:
    given: dict[str, Any] = {"key": b"k", "headers": [], "attempts": 0, **more}
    return OutboxRow(1, "t", given["key"], value, given["headers"], None, None, 0, given["attempts"], None)


def test_a_round_ends_before_what_would_not_fit_its_partitions_batch() -> None:
    rounds = limits.Rounds({"t": 1_000}, 0)
    assert [rounds.ends_before(row(b"x" * 300), ("t", 0)) for _ in range(6)] == [
        False,
        False,
        True,
        False,
        True,
        False,
    ]
    assert not rounds.ends_before(row(b"x" * 300), ("t", 1)), "partitions have batches of their own"
    assert not rounds.ends_before(row(b"x" * 9_000), ("other", 0))
    assert rounds.ends_before(row(b"x" * 9_000), ("t", 1)), "what is larger by itself is alone"
    assert rounds.ends_before(row(b"x"), ("t", 1))
