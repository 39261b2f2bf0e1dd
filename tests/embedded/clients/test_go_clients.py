"""Programs of our own with clients in Go that have no suite which runs against one broker."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer

from holdfast.embedded.kafka import EmbeddedKafka
from tests.embedded.clients.go_suites import FRANZ_GO, KADM, SARAMA, program_of
from tests.support.patience import SCENARIO_S

HERE = Path(__file__).parent
STRATEGIES = ("range", "roundrobin", "sticky")
ADMINISTERED = """created bad name -1 INVALID_TOPIC_EXCEPTION: The request attempted to perform an operation on an invalid topic.
created other 3 <nil>
created orders 3 <nil>
again TOPIC_ALREADY_EXISTS: Topic with this name already exists.
grown <nil>
listed [orders other] 4
altered <nil>
config delete DYNAMIC_TOPIC_CONFIG
brokers [1] true
directories 1
versions 1
elected 2
moving 0
transaction Ongoing orders <nil>
producers 1 9 0
transactions [writer]
offsets 0 44 44 0
deleted 5
committed 4 16
group Stable consumer cooperative-sticky 1 4
deleted [{absent GROUP_ID_NOT_FOUND: The group id does not exist. } {readers NON_EMPTY_GROUP: The group is not empty. }]
empty Empty [readers]
offset deleted <nil> 3
group deleted <nil> 0
rules GROUP theirs PREFIXED DESCRIBE User:alice, GROUP theirs PREFIXED READ User:alice, \
TOPIC theirs PREFIXED DESCRIBE User:alice, TOPIC theirs PREFIXED READ User:alice
removed 6
password carol <nil>
passwords [SCRAM-SHA-256=iterations=4096]
deleted absent UNKNOWN_TOPIC_OR_PARTITION: This server does not host this topic-partition.
deleted orders <nil>
"""  # noqa: E501


def said(program: Path, bootstrap: str) -> str:
    """Return the output of a program that has run to its end."""
    ran = subprocess.run(
        [str(program), bootstrap], capture_output=True, text=True, timeout=SCENARIO_S, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def committed(bootstrap: str, topic: str, partitions: int) -> Iterator[bytes | None]:
    """Yield the values of a topic that were committed."""
    reader = {"bootstrap.servers": bootstrap, "group.id": f"reader-{topic}", "auto.offset.reset": "earliest"}
    consumer = Consumer({**reader, "isolation.level": "read_committed", "enable.partition.eof": True})
    consumer.subscribe([topic])
    ended = 0
    while ended < partitions:
        message = consumer.poll(SCENARIO_S)
        assert message is not None
        if (error := message.error()) is None:
            yield message.value()
        else:
            assert error.code() == KafkaError._PARTITION_EOF, error
            ended += 1
    consumer.close()


def test_only_committed_records_count() -> None:
    """`committed`, by which the programs are judged, leaves out an aborted transaction."""
    with EmbeddedKafka() as kafka:
        kafka.create_topic("to-checked", partitions=1)
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "checked"})
        producer.init_transactions(SCENARIO_S)
        for value, end in ((b"kept", producer.commit_transaction), (b"dropped", producer.abort_transaction)):
            producer.begin_transaction()
            producer.produce("to-checked", value, partition=0)
            producer.flush(SCENARIO_S)
            end(SCENARIO_S)
        assert [*committed(kafka.bootstrap, "to-checked", 1)] == [b"kept"]


@pytest.mark.variant
@pytest.mark.process
def test_sarama_copies_exactly_once_in_groups_of_two(tmp_path: Path) -> None:
    with EmbeddedKafka() as kafka:
        program = program_of(HERE / "SaramaClient.go", (SARAMA,), tmp_path)
        assert said(program, kafka.bootstrap) == "".join(f"{each} [2 2] 200\n" for each in STRATEGIES)
        for each in STRATEGIES:
            found = sorted(value or b"" for value in committed(kafka.bootstrap, f"to-{each}", 4))
            assert found == sorted(b"%d" % number for number in range(200))


@pytest.mark.variant
@pytest.mark.process
def test_kadm_administers_a_broker(tmp_path: Path) -> None:
    with EmbeddedKafka(acls=(), allow_if_no_acl=True) as kafka:
        program = program_of(HERE / "KadmClient.go", (FRANZ_GO, KADM), tmp_path)
        assert said(program, kafka.bootstrap) == ADMINISTERED
