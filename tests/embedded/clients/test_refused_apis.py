"""APIs of Kafka that the embedded Kafka refuses by name, as kafka-python meets them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from kafka import KafkaAdminClient, TopicPartition, TopicPartitionReplica
from kafka.errors import IncompatibleBrokerVersion

from holdfast.embedded.kafka import EmbeddedKafka

pytestmark = pytest.mark.long

REFUSED: dict[str, Callable[[KafkaAdminClient, str], Any]] = {
    "DescribeQuorum": lambda admin, _: admin.describe_metadata_quorum(),
    "UpdateFeatures": lambda admin, _: admin.update_features({"group.version": 1}),
    "AlterPartitionReassignments": lambda admin, topic: admin.alter_partition_reassignments(
        {TopicPartition(topic, 0): [1]}
    ),
    "AlterReplicaLogDirs": lambda admin, topic: admin.alter_replica_log_dirs(
        {TopicPartitionReplica(topic, 0, 1): "/other"}
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_api_without_a_subject_here_is_refused_by_name(embedded: EmbeddedKafka, name: str) -> None:
    """Kafka answers these; docs/embedded.md says why they are not offered here."""
    topic = embedded.create_topic(f"orders-{name}")
    with closing(KafkaAdminClient(bootstrap_servers=embedded.bootstrap)) as admin:
        with pytest.raises(IncompatibleBrokerVersion, match=name):
            REFUSED[name](admin, topic)
        assert topic in admin.list_topics(), "the connection goes on"
