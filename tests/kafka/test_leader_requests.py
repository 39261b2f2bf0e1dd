"""Questions to leaders whose timeout is over before they are sent: an error, and the process lives on."""

from __future__ import annotations

import subprocess
import sys

import pytest

from holdfast.dev.fixtures import FreshTopic, SessionBroker
from tests.support.patience import DEADLINE_S

HURRIED = """
import sys
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from holdfast.kafka.leader_requests import delete_records, list_offsets

admin, topic = AdminClient({"bootstrap.servers": sys.argv[1]}), sys.argv[2]
place = TopicPartition(topic, 0, 0)
for _ in range(1_000):
    asked = (
        list_offsets(admin, {place: OffsetSpec.latest()}, timeout_s=0.0005)
        if sys.argv[3] == "list"
        else delete_records(admin, [place], timeout_s=0.0005)
    )
    try:
        asked[place].result(float(sys.argv[4]))
    except KafkaException:
        pass
print("alive")
"""


@pytest.mark.parametrize("question", ["list", "delete"])
def test_a_timeout_that_is_over_at_once_does_not_abort_the_process(
    broker: SessionBroker, fresh_topic: FreshTopic, question: str
) -> None:
    """1,000 in a row: with the timeout given to librdkafka as it is, the process aborted each time."""
    ran = subprocess.run(
        [sys.executable, "-c", HURRIED, broker.bootstrap, fresh_topic("asked"), question, str(DEADLINE_S)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, "alive\n"), ran.stderr[-2_000:]
