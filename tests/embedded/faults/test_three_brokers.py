"""Three brokers in one process, of which one may die."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place

from holdfast.embedded.apis.topics.replicas import PREFERRED, UNCLEAN
from holdfast.embedded.internal_log import OFFSETS, home_of
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.embedded.protocol.codes import KafkaCode
from holdfast.errors import DevBrokerError
from tests.embedded.clients.raw_client import RawClient
from tests.embedded.transcripts.asking import batch
from tests.support.patience import DEADLINE_S

QUICK = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50, "retry.backoff.ms": 10}


@pytest.fixture
def three() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(nodes=3, seed=1) as kafka:
        yield kafka


def leaders(kafka: EmbeddedKafka, topic: str) -> list[tuple[int, int]]:
    """Return leader and epoch of each partition, as another broker reports them."""
    alive = next(each for each in kafka.cluster.alive)
    with RawClient(f"127.0.0.1:{alive.port}") as client:
        (found,) = client.ask("Metadata", 12, topics=[{"name": topic}])["topics"]
    return [(each["leader_id"], each["leader_epoch"]) for each in found["partitions"]]


def test_leaders_are_spread_and_others_take_over(three: EmbeddedKafka) -> None:
    topic = three.create_topic("orders", partitions=3)
    before = leaders(three, topic)
    assert sorted(leader for leader, _ in before) == [1, 2, 3]
    three.kill(1)
    after = leaders(three, topic)
    assert 1 not in {leader for leader, _ in after}
    for (old, _), (_, epoch) in zip(before, after, strict=True):
        assert epoch == (1 if old == 1 else 0), "only who lost its leader has a new epoch"
    three.revive(1)
    assert leaders(three, topic) == after, "nobody gives up what it leads"


@pytest.mark.long
def test_acknowledged_records_survive_a_broker_and_its_clients_continue(three: EmbeddedKafka) -> None:
    topic = three.create_topic("orders", partitions=3)
    told = {**QUICK, "transactional.id": "writer", "acks": "all"}
    producer = Producer(three.client_config(**told))
    producer.init_transactions(DEADLINE_S)
    sent = 0
    for victim in (1, 2, 3):
        for _ in range(3):
            producer.begin_transaction()
            for partition in range(3):
                producer.produce(topic, b"%d" % sent, partition=partition)
                sent += 1
            producer.commit_transaction(DEADLINE_S)
        three.kill(victim)
        producer.begin_transaction()
        producer.produce(topic, b"%d" % sent, partition=0)
        sent += 1
        producer.commit_transaction(DEADLINE_S)
        three.revive(victim)
    consumer = Consumer(
        three.client_config(**QUICK, **{"group.id": "g", "isolation.level": "read_committed"})
    )
    consumer.assign([Place(topic, partition, 0) for partition in range(3)])
    found: list[int] = []
    until_s = time.monotonic() + DEADLINE_S
    while len(found) < sent and time.monotonic() < until_s:
        found += [int(each.value() or b"") for each in consumer.consume(100, 0.1) if each.error() is None]
    consumer.close()
    assert sorted(found) == list(range(sent))


def test_too_few_in_sync_refuse_writes_that_want_all_of_them(three: EmbeddedKafka) -> None:
    topic = three.create_topic("orders", partitions=1)
    for number in (1, 2, 3):
        if number != leaders(three, topic)[0][0]:
            three.kill(number)
    leader = three.cluster.nodes[leaders(three, topic)[0][0]]
    data = [{"name": topic, "partition_data": [{"index": 0, "records": batch(b"a")}]}]
    with RawClient(f"127.0.0.1:{leader.port}") as client:

        def code(acks: int) -> int:
            answer = client.ask("Produce", 11, acks=acks, timeout_ms=1000, topic_data=data)
            found: int = answer["responses"][0]["partition_responses"][0]["error_code"]
            return found

        assert code(-1) == 19
        assert code(1) == 0


def test_another_broker_sends_clients_to_the_leader(three: EmbeddedKafka) -> None:
    topic = three.create_topic("orders", partitions=1)
    leader = leaders(three, topic)[0][0]
    other = next(each for each in three.cluster.nodes.values() if each.node_id != leader)
    want = {"topic": topic, "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}]}
    with RawClient(f"127.0.0.1:{other.port}") as client:
        answer = client.ask("Fetch", 12, topics=[want], max_wait_ms=0)
    told = answer["responses"][0]["partitions"][0]
    assert told["error_code"] == 6
    assert told["current_leader"] == {"leader_id": leader, "leader_epoch": 0}


def test_a_replica_that_was_not_in_sync_last_does_not_lead(three: EmbeddedKafka) -> None:
    """It may lack records that the last leader has acknowledged, so it waits for that one (unclean elections
    are off).
    """
    topic = three.create_topic("orders", partitions=1)
    partition = three.cluster.topics.partition(topic, 0)
    assert partition is not None
    first, second, last = partition.replicas
    for each in (first, second, last):
        three.kill(each)
    three.revive(first)
    assert leaders(three, topic) == [(-1, partition.leader_epoch)]
    assert partition.in_sync == [last]
    three.revive(last)
    assert leaders(three, topic)[0][0] == last
    assert sorted(partition.in_sync) == sorted([first, last]), "who waited follows"
    three.revive(second)
    assert sorted(partition.in_sync) == [1, 2, 3]


def test_leaders_are_elected_when_a_client_asks(three: EmbeddedKafka) -> None:
    topic = three.create_topic("orders", partitions=2)
    one, two = (three.cluster.topics.partition(topic, index) for index in (0, 1))
    assert one is not None
    assert two is not None
    first, second, last = one.replicas

    def elected(kind: int, wanted: list[int] | None) -> dict[int, int]:
        alive = three.cluster.alive[0]
        told = None if wanted is None else [{"topic": topic, "partitions": wanted}]
        with RawClient(f"127.0.0.1:{alive.port}") as client:
            answer = client.ask("ElectLeaders", 2, election_type=kind, topic_partitions=told)
        results = {each["topic"]: each["partition_result"] for each in answer["replica_election_results"]}
        return {each["partition_id"]: each["error_code"] for each in results[topic]}

    three.kill(first)
    assert one.leader == second
    assert elected(PREFERRED, [0]) == {0: KafkaCode.PREFERRED_LEADER_NOT_AVAILABLE}
    three.revive(first)
    assert one.leader == second
    assert elected(PREFERRED, None) == dict.fromkeys([0, 1][: 2 if two.leader != two.replicas[0] else 1], 0)
    assert (one.leader, two.leader) == (first, two.replicas[0])
    assert elected(PREFERRED, None) == {}
    for each in (first, second, last):
        three.kill(each)
    three.revive(second)
    assert elected(PREFERRED, [0]) == {0: KafkaCode.PREFERRED_LEADER_NOT_AVAILABLE}
    assert elected(UNCLEAN, [0]) == {0: KafkaCode.NONE}
    assert (one.leader, one.in_sync) == (second, [second])
    assert elected(UNCLEAN, [0]) == {0: KafkaCode.ELECTION_NOT_NEEDED}


def test_an_unknown_node_is_an_error(three: EmbeddedKafka) -> None:
    with pytest.raises(DevBrokerError, match="there is no node 7; the nodes are 1, 2, 3"):
        three.kill(7)
    with pytest.raises(DevBrokerError, match="does not run in a thread"):
        EmbeddedKafka(nodes=3).kill(1)


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_continues_as_its_coordinator_moves(three: EmbeddedKafka, protocol: str) -> None:
    """Offsets committed with the previous coordinator are valid with the next, and no member has to join
    again.
    """
    topic = three.create_topic("orders", partitions=2)
    home = home_of(three.cluster.topics, OFFSETS, "readers")
    told = {**QUICK, "group.id": "readers", "auto.offset.reset": "earliest", "group.protocol": protocol}
    consumer = Consumer(three.client_config(**told, **{"enable.auto.commit": False}))
    joined: list[int] = []
    consumer.subscribe([topic], on_assign=lambda _, places: joined.append(len(places)))
    producer = Producer(three.client_config(**QUICK))
    for number in (1, 2):
        for partition in (0, 1):
            producer.produce(topic, b"%d" % number, partition=partition)
        assert producer.flush(DEADLINE_S) == 0
        read, until_s = 0, time.monotonic() + DEADLINE_S
        while read < 2 and time.monotonic() < until_s:
            read += len([each for each in consumer.consume(2, 0.1) if each.error() is None])
        assert read == 2
        if number == 1:  # librdkafka takes a second to look for another coordinator
            before = home.leader
            assert three.move_leader(OFFSETS, home.index) != before
        consumer.commit(asynchronous=False)
        places = consumer.committed([Place(topic, each) for each in (0, 1)], DEADLINE_S)
        assert [each.offset for each in places] == [number, number]
    consumer.close()
    assert joined == [2], "one assignment, whoever coordinates"
