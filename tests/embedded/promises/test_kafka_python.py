"""kafka-python, against the embedded broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kafka import KafkaAdminClient, TopicPartition, TopicPartitionReplica
from kafka.errors import IncompatibleBrokerVersion

from tests.embedded.clients import test_kafka_python
from tests.embedded.promises.bodies import bodies_of

pytestmark = pytest.mark.long

globals().update(bodies_of(test_kafka_python))

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
def test_what_it_has_no_part_for_is_refused_by_name(admin: KafkaAdminClient, topic: str, name: str) -> None:
    """Kafka answers these; docs/embedded.md says why they are not offered here."""
    with pytest.raises(IncompatibleBrokerVersion, match=name):
        REFUSED[name](admin, topic)
    assert topic in admin.list_topics(), "the connection goes on"
