"""Kafka Streams, exactly once, with processes that are killed in the middle of their transactions."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer

from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.jars import find_java, resolve
from tests.support.patience import SCENARIO_S
from tests.support.places import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.process]

PROGRAM = Path(__file__).parent / "StreamsCounts.java"
LOCK = ROOT / "bench/rivals/streams.lock"
RECORDS, PARTITIONS = 20_000, 4
KILLED_AFTER = (3, 5)
"""Thousands of records that a process sees, of which the last are in a transaction that is open."""


def loaded(bootstrap: str) -> Counter[str]:
    """Write the words, and return the count of each."""
    counts: Counter[str] = Counter()
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    for number in range(RECORDS):
        word = f"word-{number * number % 997}"
        counts[word] += 1
        producer.produce("words", str(number), word)
    assert producer.flush(SCENARIO_S) == 0
    return counts


def ran(bootstrap: str, folder: Path, kill_after: int | None) -> dict[str, int]:
    """Run the program to its end, or kill it after thousands of records; return the counts that it
    printed.
    """
    class_path = os.pathsep.join(map(str, resolve(LOCK)))
    program = [str(PROGRAM), bootstrap, str(folder), str(RECORDS)]
    command = [str(find_java()), "-XX:TieredStopAtLevel=1", "-cp", class_path, *program]
    found: dict[str, int] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            word, count = line.split()
            if word != "seen":
                found[word] = int(count)
            elif kill_after is not None and int(count) >= kill_after * 1000:
                process.kill()
                break
    assert process.returncode == (0 if kill_after is None else -signal.SIGKILL)
    return found


def written(bootstrap: str) -> Counter[tuple[str, int]]:
    """Return the program's output in committed transactions."""
    reader = {"bootstrap.servers": bootstrap, "group.id": "reader", "auto.offset.reset": "earliest"}
    consumer = Consumer({**reader, "isolation.level": "read_committed", "enable.partition.eof": True})
    consumer.subscribe(["counts"])
    found: Counter[tuple[str, int]] = Counter()
    ended: set[int | None] = set()
    while len(ended) < PARTITIONS:
        message = consumer.poll(SCENARIO_S)
        assert message is not None
        if (error := message.error()) is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            ended.add(message.partition())
            continue
        key, value = message.key(), message.value()
        assert key is not None
        assert value is not None
        found[key.decode(), int.from_bytes(value, "big")] += 1
    consumer.close()
    return found


def test_streams_counts_each_record_once_though_it_is_killed(tmp_path: Path) -> None:
    """Its group waits for the whole session of the killed process, of 45 seconds, as on Apache Kafka."""
    with EmbeddedKafka() as kafka:
        for topic in ("words", "counts"):
            kafka.create_topic(topic, partitions=PARTITIONS)
        expected = loaded(kafka.bootstrap)
        for kill_after in KILLED_AFTER:
            ran(kafka.bootstrap, tmp_path, kill_after)
        assert ran(kafka.bootstrap, tmp_path, None) == expected
        assert written(kafka.bootstrap) == Counter(
            (word, number) for word, count in expected.items() for number in range(1, count + 1)
        )
