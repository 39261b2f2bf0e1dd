"""kafka-python, a client in Python alone, against the run's broker: the embedded Kafka and Apache Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from kafka import ConsumerGroupMetadata, KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka import OffsetAndMetadata as Committed
from kafka import TopicPartition as Place
from kafka.admin import ConfigResource, MemberToRemove, OffsetSpec
from kafka.errors import (
    NoError,
    OffsetOutOfRangeError,
    ProducerFencedError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)

from holdfast.dev.fixtures import FreshTopic, SessionBroker
from tests.support.patience import DEADLINE_S

pytestmark = pytest.mark.long

# A leader that joins before it knows the topic joins again once it does. If a poll ends between the two
# answers to that second join, kafka-python forgets that it waits for the assignment, and is stalled until
# it is expelled. So a member's first poll lasts until its first record.
IN_ONE_POLL_MS = 20_000


@pytest.fixture
def topic(fresh_topic: FreshTopic) -> str:
    return fresh_topic("orders", partitions=3)


@pytest.fixture
def admin(broker: SessionBroker) -> Iterator[KafkaAdminClient]:
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as client:
        yield client


def sends(broker: SessionBroker, **told: Any) -> closing[Any]:
    return closing(KafkaProducer(bootstrap_servers=broker.bootstrap, **told))


def reads(broker: SessionBroker, *topics: str, **told: Any) -> closing[Any]:
    usual = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "fetch_max_wait_ms": 50}
    # A group that first sees a broker without the topic looks again only when its metadata is old.
    told = {**usual, "metadata_max_age_ms": 500, **told}
    return closing(KafkaConsumer(*topics, bootstrap_servers=broker.bootstrap, **told))


def filled(broker: SessionBroker, topic: str, count: int, **told: Any) -> None:
    """Send *count* numbers to the three partitions of *topic* in turn."""
    with sends(broker, **told) as producer:
        sent = [
            producer.send(topic, b"%d" % number, key=b"k", partition=number % 3) for number in range(count)
        ]
        found = [each.get(DEADLINE_S) for each in sent]
    assert [each.partition for each in found] == [number % 3 for number in range(count)]
    assert [each.offset for each in found] == [number // 3 for number in range(count)]


def taken(consumer: Any, count: int) -> list[int]:
    """Return the values of *count* records, in order of value."""
    return sorted(_read_until(consumer, lambda found: len(found) >= count, IN_ONE_POLL_MS))


def _read_until(consumer: Any, holds: Callable[[list[int]], bool], poll_ms: int = 50) -> list[int]:
    """Return the values of all records until *holds* is true of them."""
    found, until_s = list[int](), time.monotonic() + DEADLINE_S
    while not holds(found):
        assert time.monotonic() < until_s, found
        found += _polled(consumer, poll_ms=poll_ms)
    return found


def _up_to(broker: SessionBroker, place: Place, end: int, isolation: str) -> list[int]:
    """Return the values of all records of *place* below offset *end*, in their order."""
    with reads(broker, isolation_level=isolation) as consumer:
        consumer.assign([place])
        return _read_until(consumer, lambda _: bool(consumer.position(place) == end))


def _polled(*consumers: Any, poll_ms: int = 50) -> list[int]:
    batches = [batch for each in consumers for batch in each.poll(timeout_ms=poll_ms).values()]
    return [int(record.value) for batch in batches for record in batch]


def _until(holds: Callable[[], bool]) -> None:
    until_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < until_s


@pytest.mark.parametrize(
    "told",
    [
        {"enable_idempotence": True},
        {"enable_idempotence": False, "acks": 1},
        {"enable_idempotence": True, "compression_type": "gzip"},
    ],
    ids=["idempotent", "acks of one", "gzip"],
)
def test_it_gets_back_what_it_sent(broker: SessionBroker, topic: str, told: dict[str, Any]) -> None:
    filled(broker, topic, 90, **told)
    places = [Place(topic, number) for number in range(3)]
    with reads(broker) as consumer:
        consumer.assign(places)
        assert taken(consumer, 90) == list(range(90))
        assert consumer.beginning_offsets(places) == dict.fromkeys(places, 0)
        assert consumer.end_offsets(places) == dict.fromkeys(places, 30)
        consumer.seek(places[1], 29)
        assert taken(consumer, 1) == [88]
        found = consumer.offsets_for_times({places[0]: 1, places[1]: 1 << 42})
        assert found[places[0]].offset == 0
        assert found[places[1]] is None


def test_headers_keys_and_times_arrive(broker: SessionBroker, topic: str) -> None:
    with sends(broker) as producer:
        producer.send(
            topic, None, key=b"gone", headers=[("trace", b"7")], partition=0, timestamp_ms=1234
        ).get(DEADLINE_S)
    with reads(broker) as consumer:
        consumer.assign([Place(topic, 0)])
        ((record,),) = consumer.poll(timeout_ms=int(DEADLINE_S * 1000)).values()
    told = (record.key, record.value, list(record.headers), record.timestamp)
    assert told == (b"gone", None, [("trace", b"7")], 1234)


def test_an_offset_that_does_not_exist_is_reported(broker: SessionBroker, topic: str) -> None:
    filled(broker, topic, 3)
    with reads(broker, auto_offset_reset="none") as consumer:
        consumer.assign([Place(topic, 0)])
        consumer.seek(Place(topic, 0), 99)
        with pytest.raises(OffsetOutOfRangeError):
            _until(lambda: bool(consumer.poll(timeout_ms=50)))


def test_a_group_shares_a_topic_and_resumes_where_it_was(
    broker: SessionBroker, topic: str, admin: KafkaAdminClient
) -> None:
    group = f"{topic}-readers"
    told = {"group_id": group, "heartbeat_interval_ms": 100, "session_timeout_ms": 60_000}
    filled(broker, topic, 30)
    with reads(broker, topic, **told) as one:
        assert taken(one, 30) == list(range(30))
        one.commit()
        with reads(broker, topic, **told) as two:
            _until(lambda: not _polled(one, two) and len(one.assignment()) < 3 and bool(two.assignment()))
            shared = [*one.assignment(), *two.assignment()]
            assert sorted(shared) == [Place(topic, number) for number in range(3)]
            described = admin.describe_groups([group])[group]
            assert (described["group_state"], len(described["members"])) == ("Stable", 2)
        _until(lambda: not _polled(one) and len(one.assignment()) == 3)
    assert admin.list_group_offsets(group)[group][Place(topic, 1)].offset == 10
    with sends(broker) as producer:
        producer.send(topic, b"30", partition=2).get(DEADLINE_S)
    with reads(broker, topic, **told) as three:
        assert taken(three, 1) == [30]


def test_offsets_of_a_group_are_changed_and_deleted(
    broker: SessionBroker, topic: str, admin: KafkaAdminClient
) -> None:
    group, place = f"{topic}-readers", Place(topic, 0)
    filled(broker, topic, 9)
    assert admin.alter_group_offsets(group, {place: Committed(2, "by hand", -1)}) == {place: NoError}
    assert admin.list_group_offsets(group)[group][place].metadata == "by hand"
    assert admin.reset_group_offsets(group, {place: OffsetSpec.LATEST})[place]["offset"] == 3
    listed = {each["group_id"]: each["group_state"] for each in admin.list_groups()}
    assert listed[group] == "Empty"
    assert admin.delete_group_offsets(group, [place]) == {place: NoError}
    assert admin.list_group_offsets(group)[group] == {}
    assert admin.delete_groups([group])[group] in ("OK", "GroupIdNotFoundError")  # without offsets it is gone
    assert group not in {each["group_id"] for each in admin.list_groups()}


def test_a_static_member_is_removed(broker: SessionBroker, topic: str, admin: KafkaAdminClient) -> None:
    group = f"{topic}-readers"
    filled(broker, topic, 3)
    with reads(broker, topic, group_id=group, group_instance_id="desk") as consumer:
        assert taken(consumer, 3) == [0, 1, 2]
    assert len(admin.describe_groups([group])[group]["members"]) == 1  # a static member does not leave
    removed = admin.remove_group_members(group, [MemberToRemove(group_instance_id="desk")])
    assert list(removed.values()) == [NoError]
    assert admin.describe_groups([group])[group]["members"] == []


def test_transactions_are_all_or_nothing(broker: SessionBroker, topic: str, admin: KafkaAdminClient) -> None:
    place = Place(topic, 0)
    with sends(broker, transactional_id=topic) as producer:
        producer.init_transactions()
        for number in range(6):
            producer.begin_transaction()
            producer.send(topic, b"%d" % number, partition=0)
            producer.flush(DEADLINE_S)
            described = admin.describe_transactions([topic])[topic]
            assert (described.state, described.topic_partitions) == ("Ongoing", {place})
            (producer.commit_transaction if number % 2 else producer.abort_transaction)()
    assert _up_to(broker, place, 12, "read_committed") == [1, 3, 5]
    assert _up_to(broker, place, 12, "read_uncommitted") == [0, 1, 2, 3, 4, 5]


def test_records_of_an_open_transaction_are_not_read(broker: SessionBroker, topic: str) -> None:
    place = Place(topic, 0)
    with (
        sends(broker, transactional_id=topic) as producer,
        reads(broker, isolation_level="read_committed") as reader,
    ):
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"0", partition=0).get(DEADLINE_S)
        reader.assign([place])
        assert reader.poll(timeout_ms=200) == {}
        assert reader.end_offsets([place]) == {place: 0}
        producer.commit_transaction()
        assert taken(reader, 1) == [0]


def test_offsets_go_with_the_transaction(broker: SessionBroker, topic: str, admin: KafkaAdminClient) -> None:
    group, place = f"{topic}-copier", Place(topic, 0)
    with sends(broker, transactional_id=topic) as producer:
        producer.init_transactions()
        for offset, decide in (
            (1, producer.commit_transaction),
            (2, producer.abort_transaction),
        ):
            producer.begin_transaction()
            producer.send(topic, b"9", partition=1)
            producer.send_offsets_to_transaction({place: Committed(offset, "", -1)}, group_of(group))
            decide()
    assert admin.list_group_offsets(group)[group][place].offset == 1


def group_of(group: str) -> ConsumerGroupMetadata:
    return ConsumerGroupMetadata(group, -1, "", None)


def test_a_newer_producer_fences_the_older(broker: SessionBroker, topic: str) -> None:
    with sends(broker, transactional_id=topic) as old, sends(broker, transactional_id=topic) as new:
        old.init_transactions()
        old.begin_transaction()
        old.send(topic, b"0", partition=0).get(DEADLINE_S)
        new.init_transactions()
        with pytest.raises(ProducerFencedError):
            old.commit_transaction()
    assert _up_to(broker, Place(topic, 0), 2, "read_committed") == []


def test_topics_are_made_described_changed_and_deleted(
    broker: SessionBroker, topic: str, admin: KafkaAdminClient
) -> None:
    made = f"{topic}-made"
    told = {"num_partitions": 2, "replication_factor": 1, "configs": {"retention.ms": "1000"}}
    admin.create_topics({made: told}, wait_for_metadata=True)
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics({made: told})
    assert made in admin.list_topics()
    admin.create_partitions({made: 5})
    _until(lambda: len(admin.describe_topics([made])[0]["partitions"]) == 5)
    resource = ConfigResource("topic", made)

    def changed() -> dict[str, str]:
        found = admin.describe_configs([resource])["topic"][made]
        return {name: each["value"] for name, each in found.items()}

    assert changed() == {"retention.ms": "1000"}
    assert made in admin.list_config_resources(["topic"])["topic"]
    admin.alter_configs([ConfigResource("topic", made, {"cleanup.policy": ("APPEND", "compact")})])
    _until(lambda: changed() == {"retention.ms": "1000", "cleanup.policy": "delete,compact"})
    admin.reset_configs([ConfigResource("topic", made, ["retention.ms"])])
    _until(lambda: changed() == {"cleanup.policy": "delete,compact"})
    admin.delete_topics([made])
    _until(lambda: made not in admin.list_topics())
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.delete_topics([made])


def test_the_admin_client_describes_a_cluster_and_its_partitions(
    broker: SessionBroker, topic: str, admin: KafkaAdminClient
) -> None:
    filled(broker, topic, 9)
    place = Place(topic, 0)
    assert len(admin.describe_cluster()["brokers"]) == 1
    assert admin.list_partition_offsets({place: OffsetSpec.LATEST})[place].offset == 3
    admin.delete_records({place: 2}, timeout_ms=int(DEADLINE_S * 1000))
    assert admin.list_partition_offsets({place: OffsetSpec.EARLIEST})[place].offset == 2
    assert len(admin.describe_topic_partitions([topic])["topics"][0]["partitions"]) == 3
    assert admin.describe_producers([place])[place].active_producers
    assert admin.list_partition_reassignments({topic: [0]}) == {}
    (logs,) = admin.describe_log_dirs({topic: [0]})[0]["log_dirs"]
    assert logs["error_code"] == 0
    assert admin.describe_features()["transaction.version"]["finalized"] == (2, 2)
