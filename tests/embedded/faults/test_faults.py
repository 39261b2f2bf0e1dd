"""Faults on request, and the clients' reactions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from holdfast.cli.__main__ import main
from holdfast.core.kafka.record_batch import TRANSACTIONAL_BIT
from holdfast.embedded.faults import Fault, FaultKind, RequestedFaults
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.errors import DevBrokerError
from tests.embedded.clients.raw_client import RawClient
from tests.embedded.transcripts.asking import batch
from tests.support.patience import DEADLINE_S


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(seed=1) as running:
        yield running


def end_of(kafka: EmbeddedKafka, topic: str) -> int:
    partition = kafka.cluster.topics.partition(topic, 0)
    assert partition is not None
    return partition.log.end_offset


def fetched(kafka: EmbeddedKafka, topic: str, **more: Any) -> dict[str, Any]:
    want = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    with RawClient(kafka.bootstrap) as client:
        told = {"max_wait_ms": 0, "max_bytes": 1 << 20, **more}
        answer = client.ask("Fetch", 12, topics=[{"topic": topic, "partitions": [want]}], **told)
    found: dict[str, Any] = answer["responses"][0]["partitions"][0]
    return found


# -- answers


def test_a_request_whose_answer_is_cut_is_carried_out(kafka: EmbeddedKafka) -> None:
    topic = kafka.create_topic("orders")
    kafka.fault("cut", "Produce")
    data = [{"name": topic, "partition_data": [{"index": 0, "records": batch(b"a")}]}]
    with RawClient(kafka.bootstrap) as client, pytest.raises(ConnectionError):
        client.ask("Produce", 11, acks=-1, timeout_ms=1000, topic_data=data)
    assert end_of(kafka, topic) == 1
    assert kafka.faults.hits == [(FaultKind.CUT, "Produce")]


def test_an_idempotent_producer_is_not_fooled_by_answers_that_are_cut(kafka: EmbeddedKafka) -> None:
    topic = kafka.create_topic("orders")
    kafka.fault("cut", "Produce", times=5)
    told = {"enable.idempotence": True, "linger.ms": 0, "reconnect.backoff.ms": 1, "retry.backoff.ms": 1}
    producer = Producer(kafka.client_config(**told))
    for number in range(20):
        producer.produce(topic, b"%d" % number)
        producer.flush(DEADLINE_S)
    assert end_of(kafka, topic) == 20
    assert len(kafka.faults.hits) == 5


def test_a_commit_whose_outcome_is_unknown_is_asked_for_again(kafka: EmbeddedKafka) -> None:
    topic = kafka.create_topic("orders")
    told = {"transactional.id": "writer", "reconnect.backoff.ms": 1, "retry.backoff.ms": 1}
    producer = Producer(kafka.client_config(**told))
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    producer.produce(topic, b"a")
    kafka.fault("cut", "EndTxn")
    producer.commit_transaction(DEADLINE_S)
    assert kafka.faults.hits == [(FaultKind.CUT, "EndTxn")]
    assert end_of(kafka, topic) == 2, "a record and its marker"


def test_an_answer_that_is_dropped_never_comes_and_a_later_one_does(kafka: EmbeddedKafka) -> None:
    kafka.fault("drop", "DescribeCluster")
    with RawClient(kafka.bootstrap) as client:
        client.send("DescribeCluster", 0)
        assert client.ask("ApiVersions", 0)["error_code"] == 0
        assert client.ask("DescribeCluster", 0)["error_code"] == 0


def test_a_late_answer_holds_up_those_after_it(kafka: EmbeddedKafka) -> None:
    kafka.fault("delay", "DescribeCluster", delay_ms=50)
    with RawClient(kafka.bootstrap) as client:
        began_s = time.monotonic()
        client.send("DescribeCluster", 0)
        client.send("ApiVersions", 0)
        assert client.receive("DescribeCluster", 0)["error_code"] == 0
        assert client.receive("ApiVersions", 0)["error_code"] == 0
        assert time.monotonic() - began_s >= 0.05


def test_answers_are_repeated_and_reordered(kafka: EmbeddedKafka) -> None:
    kafka.fault("repeat", "ApiVersions")
    kafka.fault("reorder", "DescribeCluster")
    with RawClient(kafka.bootstrap) as client:
        client.send("ApiVersions", 0)
        assert client.receive_frame() == client.receive_frame()
        client.send("DescribeCluster", 0)
        client.send("ApiVersions", 0)
        numbers = [int.from_bytes(client.receive_frame()[:4], "big") for _ in range(2)]
        assert numbers == [3, 2]
    with RawClient(kafka.bootstrap) as alone:
        kafka.fault("reorder", "DescribeCluster", delay_ms=10)
        assert alone.ask("DescribeCluster", 0)["error_code"] == 0, "nothing came behind it"


def test_faults_follow_from_the_seed() -> None:
    def hits(seed: int) -> list[bool]:
        faults = RequestedFaults(seed)
        faults.add(Fault(kind=FaultKind.DROP, api="Fetch", client="a", skip=2, times=100, share=0.5))
        assert faults.next("Produce", "a") is faults.next("Fetch", "b") is None
        return [faults.next("Fetch", "abc") is not None for _ in range(40)]

    assert hits(1) == hits(1) != hits(2)
    assert hits(1)[:2] == [False, False]
    assert 5 < sum(hits(1)) < 35


def test_an_impossible_fault_is_an_error(kafka: EmbeddedKafka) -> None:
    with pytest.raises(DevBrokerError, match=r"EndTx is no api of the embedded Kafka; it has .*EndTxn"):
        kafka.fault("drop", "EndTx")
    with pytest.raises(
        DevBrokerError, match="'lose' is no fault; there are drop, cut, delay, repeat, reorder"
    ):
        kafka.fault("lose")
    with pytest.raises(DevBrokerError, match="there is no record 5 in orders/0"):
        kafka.corrupt("orders", 0, 5)
    with pytest.raises(DevBrokerError, match="there is no member a in group g"):
        kafka.forget_member("g", "a")
    kafka.create_topic("orders")
    with pytest.raises(DevBrokerError, match="take three nodes"):
        kafka.move_leader("orders", 0)


# -- of the broker


def committed_without_markers(kafka: EmbeddedKafka) -> str:
    """Return the topic of a transaction that is committed, and whose markers were lost."""
    topic = kafka.create_topic("orders")
    producer = Producer(kafka.client_config(**{"transactional.id": "writer"}))
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    producer.produce(topic, b"a")
    kafka.lose_markers()
    producer.commit_transaction(DEADLINE_S)
    return topic


def test_a_marker_that_is_lost_leaves_the_transaction_open(kafka: EmbeddedKafka) -> None:
    topic = committed_without_markers(kafka)
    found = fetched(kafka, topic, isolation_level=1)
    assert (found["high_watermark"], found["last_stable_offset"]) == (1, 0)
    known = kafka.cluster.transactions.get("writer")
    assert known is not None
    assert known.state.name == "COMPLETE_COMMIT"


def test_a_transaction_left_open_by_a_lost_marker_is_ended(
    kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = committed_without_markers(kafka)
    words = ["--bootstrap", kafka.bootstrap, "producers", "hanging", "--topic", topic, "--end"]
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code in (0, None), capsys.readouterr()
    found = fetched(kafka, topic, isolation_level=1)
    assert (found["high_watermark"], found["last_stable_offset"]) == (2, 2)
    assert found["aborted_transactions"] == [], "its coordinator had committed it"


def test_a_full_disk_refuses_writes_until_there_is_room(kafka: EmbeddedKafka) -> None:
    topic = kafka.create_topic("orders")
    kafka.fill_disk()
    producer = Producer(kafka.client_config(**{"retry.backoff.ms": 1, "linger.ms": 0}))
    producer.produce(topic, b"a")
    assert producer.flush(0.2) == 1
    assert end_of(kafka, topic) == 0
    kafka.fill_disk(False)
    assert producer.flush(DEADLINE_S) == 0
    assert end_of(kafka, topic) == 1


def test_a_clock_that_goes_back_stamps_earlier_records_behind_later_ones(kafka: EmbeddedKafka) -> None:
    topic = kafka.create_topic("orders", config={"message.timestamp.type": "LogAppendTime"})
    data = [{"name": topic, "partition_data": [{"index": 0, "records": batch(b"a")}]}]
    with RawClient(kafka.bootstrap) as client:
        stamps, began_s = [], time.monotonic()
        for shift_ms in (0, -60_000):
            kafka.shift_clock(shift_ms)
            answer = client.ask("Produce", 11, acks=-1, timeout_ms=1000, topic_data=data)
            stamps.append(answer["responses"][0]["partition_responses"][0]["log_append_time_ms"])
        took_ms = (time.monotonic() - began_s) * 1000
    assert 0 <= stamps[1] - stamps[0] + 60_000 <= took_ms + 1


@pytest.mark.parametrize("shift_ms", [-3_600_000, 3_600_000])
def test_sessions_of_groups_do_not_follow_a_clock_that_jumps(kafka: EmbeddedKafka, shift_ms: int) -> None:
    """Kafka counts them by a clock that does not: who says something in time stays, who does not is gone in
    time.
    """
    told = {
        "group_id": "g",
        "session_timeout_ms": 600_000,
        "rebalance_timeout_ms": 600_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }
    modern = {"group_id": "m", "member_id": "a", "rebalance_timeout_ms": 6_000, "topic_partitions": []}
    with RawClient(kafka.bootstrap) as client:
        joined = client.ask("JoinGroup", 3, **told)
        alive = client.ask("ConsumerGroupHeartbeat", 1, **modern, subscribed_topic_names=["orders"])
        kafka.shift_clock(shift_ms)
        beat = {"group_id": "g", "member_id": joined["member_id"], "generation_id": joined["generation_id"]}
        synced = client.ask("SyncGroup", 3, **beat, assignments=[])
        assert synced["error_code"] == 0
        assert client.ask("Heartbeat", 4, **beat)["error_code"] == 0
        told_on = {"group_id": "m", "member_id": "a", "member_epoch": alive["member_epoch"]}
        assert client.ask("ConsumerGroupHeartbeat", 1, **told_on)["error_code"] == 0
        group = kafka.cluster.groups.get("g")
        assert group is not None
        (member,) = group.classic.members
        assert 0 < member.session_ends_ms - kafka.cluster.steady_ms() <= 600_000


def test_a_batch_that_is_damaged_is_sent_as_it_is(kafka: EmbeddedKafka) -> None:
    topic = kafka.create_topic("orders")
    data = [{"name": topic, "partition_data": [{"index": 0, "records": batch(b"a")}]}]
    with RawClient(kafka.bootstrap) as client:
        client.ask("Produce", 11, acks=-1, timeout_ms=1000, topic_data=data)
    whole = bytes(fetched(kafka, topic)["records"])
    kafka.corrupt(topic, 0, 0)
    damaged = bytes(fetched(kafka, topic)["records"])
    assert (damaged[:-1], damaged[-1] ^ 1) == (whole[:-1], whole[-1])


def test_a_forgotten_member_is_unknown_to_the_coordinator(kafka: EmbeddedKafka) -> None:
    told = {
        "group_id": "g",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }
    with RawClient(kafka.bootstrap) as client:
        joined = client.ask("JoinGroup", 3, **told)
        kafka.forget_member("g", joined["member_id"])
        beat = {"group_id": "g", "member_id": joined["member_id"], "generation_id": joined["generation_id"]}
        assert client.ask("Heartbeat", 4, **beat)["error_code"] == 25


@pytest.mark.long
def test_a_coordinator_that_moves_is_found_again() -> None:
    with EmbeddedKafka(nodes=3, seed=1) as kafka:
        topic = kafka.create_topic("orders")
        told = {"transactional.id": "writer", "reconnect.backoff.ms": 1, "retry.backoff.ms": 1}
        producer = Producer(kafka.client_config(**told))
        producer.init_transactions(DEADLINE_S)
        for number in range(4):
            producer.begin_transaction()
            producer.produce(topic, b"%d" % number)
            producer.flush(DEADLINE_S)
            for partition in range(8):
                kafka.move_leader("__transaction_state", partition)
            producer.commit_transaction(DEADLINE_S)
            kafka.move_leader(topic, 0)
        assert end_of(kafka, topic) == 8


def test_a_zombie_of_the_bare_protocol_stays_out(kafka: EmbeddedKafka) -> None:
    """The main use of a fault: a write that was under way when its producer was fenced arrives late."""
    topic = kafka.create_topic("orders")
    with RawClient(kafka.bootstrap) as client:
        told = {"transactional_id": "writer", "transaction_timeout_ms": 60_000}
        old = client.ask("InitProducerId", 5, **told)
        client.ask("InitProducerId", 5, **told)
        late = batch(
            b"late",
            attributes=TRANSACTIONAL_BIT,
            producer_id=old["producer_id"],
            producer_epoch=old["producer_epoch"],
            base_sequence=0,
        )
        data = [{"name": topic, "partition_data": [{"index": 0, "records": late}]}]
        answer = client.ask(
            "Produce", 12, transactional_id="writer", acks=-1, timeout_ms=1000, topic_data=data
        )
    assert answer["responses"][0]["partition_responses"][0]["error_code"] == 47
    assert end_of(kafka, topic) == 0


@pytest.mark.parametrize(
    "wrong", [{"share": 2}, {"share": -0.1}, {"delay_ms": -5}, {"skip": -1}, {"times": 0}]
)
def test_a_fault_that_could_never_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(DevBrokerError, match="share is a probability from 0 to 1"):
        EmbeddedKafka().fault("drop", **wrong)


def test_a_broker_that_runs_is_not_started_again() -> None:
    with EmbeddedKafka() as kafka, pytest.raises(DevBrokerError, match="runs already"):
        kafka.start()


@pytest.mark.parametrize("nodes", ["3", 2, 0, None])
def test_one_or_three_brokers_are_a_cluster(nodes: Any) -> None:
    with pytest.raises(DevBrokerError, match="choose 1, or 3"):
        EmbeddedKafka(nodes=nodes)
