"""Topics of an application on a real broker: created once, visible with leaders, checked as they are."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the package does not declare what it re-exports
    AdminClient,
    ListOffsetsResultInfo,
)

from holdfast.clients.claims.logs.reset_log import ResetLog
from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.application import check_topics, create_topics, require_topics
from holdfast.clients.topics.specs import topic_names
from holdfast.clients.topics.types import AlterConfig, CreateTopic, Severity, TopicRole, TopicSpec
from holdfast.clock import ManualClock
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.state.rows import Rows
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from holdfast.errors import BrokerError, ConfigError, TopicError
from holdfast.kafka.codes import refuses_connection
from tests.support.harness import wait_for
from tests.support.own_topics import ending
from tests.support.patience import DEADLINE_S


class Total(msgspec.Struct, frozen=True):
    cents: int = 0


def fold(rows: Rows[Total], event: bytes, at_ms: int) -> None:
    rows["all"] = Total(len(event))


@pytest.fixture
def settings(broker: SessionBroker) -> Settings:
    """Give the settings of an application of its own on the session's broker."""
    return Settings(app=f"shop-{ending()}", kafka=broker.config)


@pytest.fixture
def orders(settings: Settings, broker: SessionBroker) -> Iterator[Processor[Any, Any]]:
    """Give a processor whose topics do not exist; they are deleted at the end."""
    processor: Processor[Any, Any] = Processor(
        name="totals",
        source=f"{settings.app}-orders",
        decode=bytes,
        fold=fold,
        row=Total,
        emits=(f"{settings.app}-big",),
    )
    yield processor
    broker.delete_topics([*Admin(settings).cluster(topic_names(settings, [processor])).topics])


def make(settings: Settings, name: str, partitions: int, **config: str) -> None:
    """Create a topic as a user without holdfast would, and wait until it can be used."""
    own = {key.replace("_", "."): value for key, value in config.items()}
    spec = TopicSpec(
        name=name, partitions=partitions, config=own, replication_factor=1, role=TopicRole.SOURCE
    )
    Admin(settings).apply([CreateTopic(spec=spec, partitions=partitions)])


def test_an_application_is_created_from_nothing_and_then_nothing_is_wrong(
    settings: Settings, orders: Processor[Any, Any]
) -> None:
    done = create_topics(settings, [orders], partitions=3)
    assert [action.spec.name for action in done if isinstance(action, CreateTopic)] == [
        orders.source,
        orders.changelog(settings.app),
        orders.emits[0],
        settings.quarantine_topic,
        settings.workers_topic,
        settings.skips_topic,
    ]
    assert check_topics(settings, [orders]) == []
    assert require_topics(settings, [orders]) == []
    assert create_topics(settings, [orders], partitions=7) == [], "a second time there is nothing to do"


def test_created_topics_are_as_they_were_specified(settings: Settings, orders: Processor[Any, Any]) -> None:
    create_topics(settings, [orders], partitions=3)
    names = [orders.source, orders.changelog(settings.app), settings.workers_topic]
    source, changelog, workers = (Admin(settings).cluster(names).topics[name] for name in names)
    assert (len(source.partitions), len(changelog.partitions), len(workers.partitions)) == (3, 3, 1)
    assert source.config["message.timestamp.type"] == "LogAppendTime"
    assert changelog.overrides["cleanup.policy"] == "compact"
    assert changelog.overrides["segment.ms"] == "3600000"
    assert all(
        partition.leader == 1 for state in (source, changelog, workers) for partition in state.partitions
    )


def test_a_created_topic_can_be_written_to_at_once(settings: Settings, orders: Processor[Any, Any]) -> None:
    create_topics(settings, [orders], partitions=2)
    # No retry for an unknown topic: if `create_topics` came back too early, this fails.
    producer = Producer({**settings.producer(), "topic.metadata.propagation.max.ms": 0})
    failed: list[object] = []
    for partition in (0, 1):
        producer.produce(
            orders.source,
            b"x",
            partition=partition,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert producer.flush(DEADLINE_S) == 0
    assert failed == []
    offsets = Admin(settings).offsets([(orders.source, 0), (orders.source, 1)])
    assert offsets == {(orders.source, 0): (0, 1), (orders.source, 1): (0, 1)}
    assert Admin(settings).offsets([]) == {}


def test_an_existing_source_decides_the_partitions_of_its_changelog(
    settings: Settings, orders: Processor[Any, Any]
) -> None:
    make(settings, orders.source, 5)
    create_topics(settings, [orders], partitions=2)
    cluster = Admin(settings).cluster([orders.source, orders.changelog(settings.app)])
    assert [len(state.partitions) for state in cluster.topics.values()] == [5, 5]


def test_a_missing_source_without_a_count_creates_nothing(
    settings: Settings, orders: Processor[Any, Any]
) -> None:
    with pytest.raises(TopicError, match="--partitions N"):
        create_topics(settings, [orders])
    assert Admin(settings).cluster([settings.workers_topic, orders.source]).topics == {}


def test_faults_on_the_cluster_are_found_and_refused(settings: Settings, orders: Processor[Any, Any]) -> None:
    make(settings, orders.source, 4, message_timestamp_type="CreateTime")
    make(settings, orders.changelog(settings.app), 3, cleanup_policy="delete")
    create_topics(settings, [orders])
    found = check_topics(settings, [orders])
    assert [(finding.severity, finding.topic) for finding in found] == [
        (Severity.ERROR, orders.changelog(settings.app)),
        (Severity.ERROR, orders.changelog(settings.app)),
        (Severity.WARNING, orders.source),
        (Severity.WARNING, orders.source),
        (Severity.WARNING, orders.changelog(settings.app)),
    ]
    assert "cannot unpack" in found[-1].message
    with pytest.raises(TopicError, match="has 3 partitions but its source") as refused:
        require_topics(settings, [orders])
    assert "cleanup.policy is delete" in str(refused.value)


def test_alter_sets_existing_topics_right(settings: Settings, orders: Processor[Any, Any]) -> None:
    make(settings, orders.source, 2, message_timestamp_type="CreateTime")
    make(
        settings,
        orders.changelog(settings.app),
        2,
        cleanup_policy="delete",
        message_timestamp_type="LogAppendTime",
        retention_ms="1000",
    )
    done = create_topics(settings, [orders], alter=True)
    assert [action for action in done if isinstance(action, AlterConfig)] == [
        AlterConfig(topic=orders.source, config={"message.timestamp.type": "LogAppendTime"}),
        AlterConfig(
            topic=orders.changelog(settings.app),
            config={"cleanup.policy": "compact", "compression.type": "uncompressed"},
        ),
    ]
    (left,) = check_topics(settings, [orders])
    assert (left.topic, left.message[:15]) == (orders.source, "retention.ms is"), "its owner may want that"
    kept = (
        Admin(settings)
        .cluster([orders.changelog(settings.app)])
        .topics[orders.changelog(settings.app)]
        .overrides
    )
    assert kept["retention.ms"] == "1000", "keys that were not asked for stay as they were"


def test_alter_reaches_what_clients_and_outboxes_speak_by(
    settings: Settings, orders: Processor[Any, Any]
) -> None:
    own = replace(
        settings,
        coordination_topic=f"{settings.app}-claims",
        groups_topic=f"{settings.app}-groups",
        ranges_topic=f"{settings.app}-ranges",
        producers_topic=f"{settings.app}-producers",
    )
    there = [f"{settings.app}-outbox.{end}" for end in ("answers", "commands", "neli", "progress")]
    there = sorted(
        [*there, own.coordination_topic, own.groups_topic, own.ranges_topic, f"{own.producers_topic}.answers"]
    )
    for name in there:
        make(own, name, 1)
    create_topics(own, [orders], partitions=1)

    def warned() -> list[str]:
        return [
            each.topic
            for each in check_topics(own, [orders], beside=True)
            if each.topic.startswith(settings.app)
        ]

    assert warned() == there
    done = [
        each
        for each in create_topics(own, [orders], alter=True)
        if isinstance(each, AlterConfig) and each.topic in there
    ]
    assert done == [AlterConfig(topic=name, config={"compression.type": "uncompressed"}) for name in there]
    assert warned() == []


@pytest.mark.variants("zstd")
@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_a_broker_keeps_bombs_out_of_holdfasts_own_topics(
    broker: SessionBroker, settings: Settings, orders: Processor[Any, Any], codec: str
) -> None:
    make(settings, settings.quarantine_topic, 1)  # of an older version
    create_topics(settings, [orders], partitions=1, alter=True)
    ResetLog(settings, topic=f"{settings.app}-resets").ensure()
    own = [
        orders.changelog(settings.app),
        settings.quarantine_topic,
        settings.workers_topic,
        settings.skips_topic,
    ]
    own.append(f"{settings.app}-resets")
    refused: dict[str, KafkaError | None] = {}
    producer = Producer(
        broker.client_config(**{"compression.type": codec, "message.max.bytes": 100_000_000, "retries": 0})
    )
    for topic in (*own, orders.source):
        producer.produce(
            topic,
            bytes(20_000_000),
            key=b"k",
            on_delivery=lambda error, it: refused.update({it.topic() or "": error}),
        )
    assert producer.flush(DEADLINE_S) == 0
    assert refused.pop(orders.source) is None, "a source is its users', and it fits: some KB"
    assert {topic: error and error.code() for topic, error in refused.items()} == dict.fromkeys(
        own, KafkaError.MSG_SIZE_TOO_LARGE
    )


def test_several_workers_may_create_at_the_same_time(settings: Settings, orders: Processor[Any, Any]) -> None:
    start = threading.Barrier(4, timeout=DEADLINE_S)

    def work() -> None:
        start.wait()
        create_topics(settings, [orders], partitions=3)

    with ThreadPoolExecutor(4) as workers:
        for done in [workers.submit(work) for _ in range(4)]:
            done.result(DEADLINE_S)
    assert check_topics(settings, [orders]) == []


def test_losing_the_race_against_another_partition_count_is_reported(
    settings: Settings, orders: Processor[Any, Any]
) -> None:
    make(settings, orders.source, 2)
    with pytest.raises(TopicError, match="created by someone else with 2 partitions instead of 3"):
        make(settings, orders.source, 3)


def test_more_replicas_than_brokers_are_refused_with_what_to_do(
    settings: Settings, orders: Processor[Any, Any]
) -> None:
    with pytest.raises(
        TopicError, match=r"creation of topic .*only 1 broker.*lower replication_factor or add brokers"
    ):
        create_topics(replace(settings, replication_factor=3), [orders], partitions=1)


def test_a_configuration_that_the_broker_refuses_is_a_topic_error(
    settings: Settings, orders: Processor[Any, Any]
) -> None:
    with pytest.raises(TopicError, match=rf"creation of topic {orders.source}: .*cleanup\.policy"):
        make(settings, orders.source, 1, cleanup_policy="shred")
    with pytest.raises(TopicError, match="configuration of no-such-topic"):
        Admin(settings).apply([AlterConfig(topic="no-such-topic", config={"cleanup.policy": "compact"})])


def test_all_topics_are_listed_unless_some_are_named(settings: Settings, orders: Processor[Any, Any]) -> None:
    make(settings, orders.source, 1)
    cluster = Admin(settings).cluster()
    assert orders.source in cluster.topics
    assert cluster.partitions(orders.source) == 1
    assert cluster.partitions("no-such-topic") is None


@pytest.mark.long
def test_a_broker_that_is_not_there_is_given_up_after_the_deadline() -> None:
    nowhere = Settings(kafka={"bootstrap.servers": "127.0.0.1:1"})
    with pytest.raises(
        BrokerError, match=r"no Kafka broker at 127\.0\.0\.1:1 answered within 0\.5 s: .*Connection refused"
    ):
        Admin(nowhere, timeout_s=0.5).cluster()
    with pytest.raises(BrokerError, match="Connection refused"):
        Admin(nowhere, timeout_s=0.5).offsets([("t", 0)])


@pytest.mark.parametrize("waits", [1, 2])
def test_a_deadline_of_whole_first_waits_is_kept(waits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.clients.topics.admin.FIRST_WAIT_S", 0.25)
    nowhere = Settings(kafka={"bootstrap.servers": "127.0.0.1:1"})
    with pytest.raises(BrokerError, match="no Kafka broker at"):
        Admin(nowhere, timeout_s=0.25 * waits).cluster()


@pytest.mark.parametrize(
    ("error", "refuses"),
    [
        (KafkaError(KafkaError._AUTHENTICATION, "SASL authentication error: Authentication failed"), True),
        (
            KafkaError(
                KafkaError._SSL,
                "SSL handshake failed: error:0A000086:SSL routines::certificate verify failed",
            ),
            True,
        ),
        (KafkaError(KafkaError._TRANSPORT, "error:0A000086:SSL routines::certificate verify failed"), True),
        (KafkaError(KafkaError._TRANSPORT, "Disconnected: connection closed by peer"), False),
    ],
)
def test_an_error_that_no_second_attempt_mends_is_distinguished_from_trouble_on_the_way(
    error: KafkaError, refuses: bool
) -> None:
    """The third comes of a broker that answers before the client first looks: 63 of 150 connections on two
    busy cores.
    """
    assert refuses_connection(error) == refuses


def test_a_property_that_librdkafka_refuses_is_a_configuration_error(settings: Settings) -> None:
    with pytest.raises(ConfigError, match="refused by librdkafka"):
        Admin(Settings(kafka={"debug": "everything"}))


def test_a_topic_deleted_while_it_is_looked_at_is_left_out(
    settings: Settings, orders: Processor[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    make(settings, orders.source, 1)
    admin = Admin(settings)
    metadata = admin._metadata(DEADLINE_S)
    client = AdminClient({**settings.client()})
    client.delete_topics([orders.source])[orders.source].result(DEADLINE_S)
    # The controller has deleted it. The broker that is asked for its settings may hear so a moment later.
    wait_for(
        "the topic to be gone",
        lambda: orders.source not in client.list_topics(timeout=DEADLINE_S).topics,
        DEADLINE_S,
    )
    monkeypatch.setattr(admin, "_metadata", lambda timeout_s: metadata)
    assert orders.source not in admin.cluster([orders.source]).topics


def test_the_wait_for_a_topic_ends_at_its_deadline(
    settings: Settings, orders: Processor[Any, Any], broker: SessionBroker
) -> None:
    admin = Admin(settings, timeout_s=1)

    def pending(metadata: Any, wait_s: float) -> list[str]:
        return admin._unready({orders.source: 1}, metadata, wait_s)

    with pytest.raises(BrokerError, match="accepted but are not ready within 1 s"):
        admin._await("topics", pending)
    broker.create_topic(orders.source, exact=True)
    admin._await("topics", pending)


def test_a_topic_that_one_broker_does_not_know_yet_is_not_ready(
    settings: Settings, orders: Processor[Any, Any], broker: SessionBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic(orders.source, exact=True)
    admin = Admin(settings)
    metadata = admin._metadata(DEADLINE_S)
    assert admin._unready({orders.source: 1}, metadata, DEADLINE_S) == []
    (answering,) = metadata.brokers
    metadata.brokers[answering + 1] = metadata.brokers[answering]
    known = admin._configs([orders.source], answering, DEADLINE_S)
    monkeypatch.setattr(admin, "_configs", lambda names, broker, wait_s: known if broker == answering else {})
    assert admin._unready({orders.source: 1}, metadata, DEADLINE_S) == [orders.source]


def test_a_leader_that_does_not_know_its_offsets_yet_is_asked_again(
    settings: Settings, fresh_topic: FreshTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has just taken over says -1, which is no offset to decide by."""
    topic, list_offsets = fresh_topic("orders"), Admin._list_offsets
    unknown = {(topic, 0): ListOffsetsResultInfo(-1, -1, -1)}
    asked: list[tuple[Any, ...]] = []

    def early(self: Admin, *arguments: Any) -> dict[tuple[str, int], ListOffsetsResultInfo]:
        asked.append(arguments)
        return unknown if len(asked) < 3 else list_offsets(self, *arguments)

    monkeypatch.setattr(Admin, "_list_offsets", early)
    assert Admin(settings).offsets([(topic, 0)]) == {(topic, 0): (0, 0)}
    clock, asked_at = ManualClock(), list[float]()

    def never(self: Admin, *_: Any) -> dict[tuple[str, int], ListOffsetsResultInfo]:
        asked_at.append(clock.monotonic_s())
        clock.advance_ms(round(0.6 * DEADLINE_S * 1000))
        return unknown

    monkeypatch.setattr(Admin, "_list_offsets", never)
    with pytest.raises(BrokerError, match="its leader does not know them yet"):
        Admin(settings, timeout_s=DEADLINE_S, clock=clock).offsets([(topic, 0)])
    assert len(asked_at) == 2
