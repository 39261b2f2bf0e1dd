"""Clients as users have them, against the embedded broker: librdkafka's and aiokafka's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from holdfast.embedded.kafka import EmbeddedKafka
from tests.embedded.transcripts.talk import Talk
from tests.support.patience import DEADLINE_S

pytestmark = pytest.mark.long


@pytest.fixture
def topic(embedded: EmbeddedKafka) -> str:
    talk = Talk(embedded.bootstrap)
    name = talk.topic("orders", 3)
    talk.close()
    return name


@pytest.fixture(scope="module")
def quick() -> Iterator[EmbeddedKafka]:
    """Give a broker whose groups learn of changes soon."""
    with EmbeddedKafka(consumer_heartbeat_ms=100) as kafka:
        yield kafka


def filled(kafka: EmbeddedKafka, topic: str, count: int, **settings: Any) -> None:
    producer = Producer(kafka.client_config(**{"linger.ms": 5, **settings}))
    for number in range(count):
        producer.produce(topic, b"%d" % number, key=b"%d" % (number % 7), partition=number % 3)
    assert producer.flush(DEADLINE_S) == 0


def taken(consumer: Consumer, count: int) -> list[int]:
    """Return the values of *count* records, or of those there are within the deadline."""
    until_s, found = time.monotonic() + DEADLINE_S, list[int]()
    while len(found) < count and time.monotonic() < until_s:
        for message in consumer.consume(count, 0.1):
            assert message.error() is None, message.error()
            found.append(int(message.value() or b""))
    return found


@pytest.mark.parametrize(
    ("codec", "idempotent"),
    [("none", True), *((each, False) for each in ("none", "gzip", "snappy", "lz4", "zstd"))],
)
def test_librdkafka_gets_back_what_it_sent(
    embedded: EmbeddedKafka, topic: str, codec: str, idempotent: bool
) -> None:
    filled(embedded, topic, 300, **{"compression.type": codec, "enable.idempotence": idempotent})
    consumer = Consumer(embedded.client_config(**{"group.id": topic, "auto.offset.reset": "earliest"}))
    consumer.assign([Place(topic, number, 0) for number in range(3)])
    assert sorted(taken(consumer, 300)) == list(range(300))
    consumer.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_librdkafkas_groups_share_a_topic_and_resume_where_they_were(
    quick: EmbeddedKafka, protocol: str
) -> None:
    embedded, topic = quick, f"orders-{protocol}"
    talk = Talk(embedded.bootstrap)
    talk.ask("CreateTopics", topics=[{"name": topic, "num_partitions": 3, "replication_factor": 1}])
    talk.close()
    told: dict[str, Any] = {
        "group.id": topic,
        "auto.offset.reset": "earliest",
        "group.protocol": protocol,
    }
    told |= {"heartbeat.interval.ms": 100} if protocol == "classic" else {}
    one, two = (Consumer(embedded.client_config(**told)) for _ in range(2))
    one.subscribe([topic])
    filled(embedded, topic, 30)
    assert len(taken(one, 30)) == 30
    two.subscribe([topic])
    until_s = time.monotonic() + DEADLINE_S
    while len(one.assignment()) == 3 or not two.assignment():
        assert time.monotonic() < until_s
        assert one.poll(0.05) is None
        assert two.poll(0.05) is None
    shared = {(each.topic, each.partition) for each in (*one.assignment(), *two.assignment())}
    assert shared == {(topic, number) for number in range(3)}
    one.close()
    two.close()
    three = Consumer(embedded.client_config(**told))
    three.subscribe([topic])
    filled(embedded, topic, 3)
    assert sorted(taken(three, 3)) == [0, 1, 2]
    three.close()


def test_librdkafkas_transactions_are_all_or_nothing(embedded: EmbeddedKafka, topic: str) -> None:
    producer = Producer(embedded.client_config(**{"transactional.id": topic, "linger.ms": 0}))
    producer.init_transactions(DEADLINE_S)
    for number in range(6):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number, partition=0)
        producer.flush(DEADLINE_S)
        (producer.commit_transaction if number % 2 else producer.abort_transaction)(DEADLINE_S)
    for level, expected in (("read_committed", [1, 3, 5]), ("read_uncommitted", [0, 1, 2, 3, 4, 5])):
        consumer = Consumer(embedded.client_config(**{"group.id": topic, "isolation.level": level}))
        consumer.assign([Place(topic, 0, 0)])
        assert taken(consumer, len(expected)) == expected
        consumer.close()


def test_a_newer_producer_fences_the_older(embedded: EmbeddedKafka, topic: str) -> None:
    old, new = (Producer(embedded.client_config(**{"transactional.id": topic})) for _ in range(2))
    old.init_transactions(DEADLINE_S)
    old.begin_transaction()
    old.produce(topic, b"0", partition=0)
    old.flush(DEADLINE_S)
    new.init_transactions(DEADLINE_S)
    with pytest.raises(KafkaException) as caught:
        old.commit_transaction(DEADLINE_S)
    assert caught.value.args[0].fatal()
    assert embedded.cluster.topics.partition(topic, 0) is not None


def test_offsets_go_with_the_transaction(embedded: EmbeddedKafka, topic: str) -> None:
    filled(embedded, topic, 9)
    consumer = Consumer(
        embedded.client_config(
            **{"group.id": topic, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        )
    )
    consumer.subscribe([topic])
    assert len(taken(consumer, 9)) == 9
    producer = Producer(embedded.client_config(**{"transactional.id": topic}))
    producer.init_transactions(DEADLINE_S)
    for offset, commit in ((1, True), (2, False)):
        producer.begin_transaction()
        producer.produce(topic, b"9", partition=1)
        group = consumer.consumer_group_metadata()
        producer.send_offsets_to_transaction([Place(topic, 0, offset)], group, DEADLINE_S)
        (producer.commit_transaction if commit else producer.abort_transaction)(DEADLINE_S)
    assert consumer.committed([Place(topic, 0)], DEADLINE_S)[0].offset == 1
    consumer.close()


def test_librdkafkas_admin_client(embedded: EmbeddedKafka, topic: str) -> None:
    admin = AdminClient(embedded.client_config())
    made = f"{topic}-made"
    admin.create_topics([NewTopic(made, 2, 1, config={"retention.ms": "1000"})])[made].result(DEADLINE_S)
    admin.create_partitions([NewPartitions(made, 5)])[made].result(DEADLINE_S)
    assert len(admin.list_topics(made, timeout=DEADLINE_S).topics[made].partitions) == 5
    (found,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, made)]).values()
    assert found.result(DEADLINE_S)["retention.ms"].value == "1000"
    assert len(admin.describe_cluster().result(DEADLINE_S).nodes) == 1
    admin.delete_topics([made])[made].result(DEADLINE_S)
    assert made not in admin.list_topics(timeout=DEADLINE_S).topics


def test_aiokafka_gets_back_what_it_sent_and_transacted(embedded: EmbeddedKafka, topic: str) -> None:
    async def run() -> None:
        endpoint = embedded.bootstrap
        producer = AIOKafkaProducer(bootstrap_servers=endpoint, transactional_id=f"{topic}-aio")
        await producer.start()
        async with producer.transaction():
            for number in range(6):
                await producer.send(topic, b"%d" % number, partition=number % 3)
            await producer.send_offsets_to_transaction({TopicPartition(topic, 0): 1}, f"{topic}-aio")
        await producer.stop()
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=endpoint,
            group_id=f"{topic}-readers",
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        await consumer.start()
        found = [int((await asyncio.wait_for(consumer.getone(), DEADLINE_S)).value) for _ in range(6)]
        assert sorted(found) == list(range(6))
        await consumer.stop()
        admin = AIOKafkaAdminClient(bootstrap_servers=endpoint)
        await admin.start()
        committed = await admin.list_consumer_group_offsets(f"{topic}-aio")
        assert committed[TopicPartition(topic, 0)].offset == 1
        await admin.close()

    asyncio.run(run())
