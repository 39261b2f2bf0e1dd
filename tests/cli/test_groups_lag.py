"""`holdfast groups lag` on a cluster whose topics come and go."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, TopicPartition

from holdfast.cli.groups import lag
from holdfast.clients.topics.admin import Admin
from holdfast.config import Settings
from holdfast.core.broker_logs.lag import LagStanding
from holdfast.embedded.kafka import EmbeddedKafka


def test_a_topic_that_is_deleted_meanwhile_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedKafka() as kafka:
        for topic in ("kept", "gone"):
            kafka.create_topic(topic)
            consumer = Consumer(kafka.client_config(**{"group.id": "billing"}))
            consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
            consumer.close()
        settings = Settings(
            kafka={"bootstrap.servers": kafka.bootstrap}, session_timeout_s=3, request_timeout_s=3
        )
        assert [each.place for each in lag.lags(settings)] == [("gone", 0), ("kept", 0)]
        counts = Admin(settings).partition_counts()
        Admin(settings).delete(["gone"])
        monkeypatch.setattr(Admin, "partition_counts", lambda admin: counts)  # what it was a moment before
        assert [each.place for each in lag.lags(settings)] == [("kept", 0)]


def told(group: str, partition: int, standing: LagStanding, behind: int) -> lag.PartitionLag:
    return lag.PartitionLag(
        group=group,
        place=("t", partition),
        standing=standing,
        committed=0,
        end=behind,
        commits=1,
        committed_at_ms=0,
    )


def test_groups_that_need_somebody_come_first() -> None:
    found = [
        told("a", 0, LagStanding.OK, 0),
        told("b", 0, LagStanding.WARN, 2),
        told("c", 0, LagStanding.OK, 1),
        told("c", 1, LagStanding.STALL, 7),
    ]
    assert [tuple(line.values()) for line in lag.by_group(found)] == [
        ("c", "ERR", 2, 8, "t-1"),
        ("b", "WARN", 1, 2, "t-0"),
        ("a", "OK", 1, 0, None),
    ]
