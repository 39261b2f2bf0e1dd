"""The skips of an application as a reader finds them: whole, committed, and no topic means none."""

from __future__ import annotations

import threading
import time
import uuid

import pytest
from confluent_kafka import Producer

from holdfast.config import Settings
from holdfast.core.engine.fold.skips import Skip, encode_skip
from holdfast.dev.fixtures import SessionBroker
from holdfast.errors import BrokerError
from holdfast.kafka.reading.skip_log import read_skips
from tests.support.harness import wait_for
from tests.support.own_topics import ending
from tests.support.patience import DEADLINE_S


def skip(first: int, *, made: bool = True) -> Skip:
    return Skip(topic="orders", partition=0, first=first, last=first + 4, made=made)


@pytest.fixture
def settings(broker: SessionBroker) -> Settings:
    return Settings(
        app=f"skips-{ending()}", kafka={name: str(value) for name, value in broker.config.items()}
    )


@pytest.fixture
def topic(broker: SessionBroker, settings: Settings) -> str:
    return broker.create_topic(settings.skips_topic, config={"cleanup.policy": "compact"}, exact=True)


def write(producer: Producer, topic: str, *skips: Skip) -> None:
    for each in skips:
        producer.produce(topic, encode_skip(each), each.key, partition=0)
    assert producer.flush(DEADLINE_S) == 0


def transactional(broker: SessionBroker) -> Producer:
    open_ms = 900_000  # the longest that brokers allow
    told = {"transactional.id": uuid.uuid4().hex, "transaction.timeout.ms": open_ms}
    producer = Producer(broker.client_config(**told))
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    return producer


def test_without_its_topic_nothing_is_skipped(settings: Settings) -> None:
    assert len(read_skips(settings)) == 0


def test_an_empty_topic_is_read_at_once(settings: Settings, topic: str) -> None:
    assert len(read_skips(settings)) == 0


def test_committed_skips_are_read_and_foreign_records_are_ignored(
    broker: SessionBroker, settings: Settings, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    aborted, committed, plain = transactional(broker), transactional(broker), Producer(broker.client_config())
    write(aborted, topic, skip(100))
    aborted.abort_transaction(DEADLINE_S)
    plain.produce(topic, b"{", b"orders/0/9", partition=0)
    plain.produce(topic, encode_skip(skip(200)), b"another key", partition=0)
    plain.produce(topic, None, skip(10).key, partition=0)
    write(committed, topic, skip(10), skip(15))
    committed.commit_transaction(DEADLINE_S)
    write(plain, topic, skip(300, made=False), skip(10, made=False))
    found = read_skips(settings)
    assert found.of_topic("orders") == {0: ((10, 19),)}
    assert found.asked("orders", 0, 302, 302) == skip(300, made=False)
    assert len([record for record in caplog.records if "is ignored" in record.getMessage()]) == 2


def test_a_skip_after_an_open_transaction_is_waited_for(
    broker: SessionBroker, settings: Settings, topic: str
) -> None:
    hanging = transactional(broker)
    write(hanging, topic, skip(100))
    write(Producer(broker.client_config()), topic, skip(10))

    def is_held_up() -> bool:
        """Return whether the reason is that; a slow broker may not even return its topics in so short a
        time.
        """
        with pytest.raises(BrokerError) as refused:
            read_skips(settings, timeout_s=1)
        return "not read to its end within 1 s" in str(refused.value)

    wait_for("the reason", is_held_up, DEADLINE_S)
    ending = threading.Timer(1.0, hanging.abort_transaction)
    began_s = time.monotonic()
    ending.start()
    assert read_skips(settings, timeout_s=DEADLINE_S).of_topic("orders") == {0: ((10, 14),)}
    assert time.monotonic() - began_s > 0.5
    ending.join()
