"""Kafka's own command line programs, all in one JVM, and their output for a broker. To record their output
for Apache Kafka again:

    python -P -m tests.embedded.clients.kafka_tools 127.0.0.1:9092
"""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from holdfast.jars import find_java, kafka_jars, resolve
from tests.support.patience import DEADLINE_S
from tests.support.places import TESTDATA

PROGRAM = Path(__file__).parent / "KafkaTools.java"
RECORDED = TESTDATA / "kafka_tools_transcript.txt.gz"
TOOLS = "org.apache.kafka.tools."
_GROUPS, _TOPICS = f"{TOOLS}consumer.group.ConsumerGroupCommand", f"{TOOLS}TopicCommand"
_CONFIGS, _TRANSACTIONS = "kafka.admin.ConfigCommand", f"{TOOLS}TransactionsCommand"
COUNT = 200
BROKER, ENDPOINT = "--bootstrap-server", "{endpoint}"


def commands(topic: str, group: str) -> Iterator[list[str]]:
    """Yield the command lines, each without the address of the broker."""
    other, of_topic = f"{topic}-other", ["--topic", topic]
    yield [_TOPICS, "--create", *of_topic, "--partitions", "3", "--config", "retention.ms=100000"]
    yield [_TOPICS, "--create", *of_topic]
    yield [_TOPICS, "--create", "--if-not-exists", *of_topic]
    yield [_TOPICS, "--create", "--topic", other, "--partitions", "1", "--replication-factor", "9"]
    yield [_TOPICS, "--create", "--topic", other, "--partitions", "1"]
    yield [_TOPICS, "--list", "--topic", f"{topic}.*"]
    yield [_TOPICS, "--describe", *of_topic]
    yield [_TOPICS, "--alter", *of_topic, "--partitions", "4"]
    yield [_TOPICS, "--alter", *of_topic, "--partitions", "2"]
    yield [_TOPICS, "--describe", "--topic", f"{topic}-nowhere"]
    of_entity = ["--entity-type", "topics", "--entity-name", topic]
    changes = "cleanup.policy=[compact,delete],max.message.bytes=5000"
    yield [_CONFIGS, "--alter", *of_entity, "--add-config", changes]
    yield [_CONFIGS, "--describe", *of_entity]
    yield [_CONFIGS, "--alter", *of_entity, "--delete-config", "cleanup.policy"]
    yield [_CONFIGS, "--alter", *of_entity, "--add-config", "retention.ms=soon"]
    yield [_CONFIGS, "--describe", "--entity-type", "topics", "--entity-name", topic]
    produces = [f"{TOOLS}VerifiableProducer", *of_topic]
    yield [*produces, *["--max-messages", "20", "--repeating-keys", "5"]]
    yield [*produces, *["--max-messages", "5", "--repeating-keys", "3", "--value-prefix", "7", "--acks", "1"]]
    for protocol in ("classic", "consumer"):
        reads = f"--group-id {group}-{protocol} --group-protocol {protocol} --reset-policy earliest"
        yield [f"{TOOLS}VerifiableConsumer", *of_topic, *reads.split(), "--max-messages", "25"]
    load = f"--topic {other} --num-records {COUNT} --record-size 100 --throughput -1"
    performs = [f"{TOOLS}ProducerPerformance", *load.split()]
    yield [*performs, "--command-property", "acks=all"]
    yield [*performs, "--transactional-id", f"{group}-performer", "--transaction-duration-ms", "5"]
    reads = f"--topic {other} --num-records {2 * COUNT} --group {group}-performer --hide-header"
    yield [f"{TOOLS}ConsumerPerformance", *reads.split()]
    for name in (f"{group}-classic", f"{group}-consumer"):
        yield [_GROUPS, "--describe", "--group", name]
        yield [_GROUPS, "--describe", "--group", name, "--state"]
        yield [_GROUPS, "--describe", "--group", name, "--members"]
        yield [_GROUPS, "--reset-offsets", "--group", name, *of_topic, "--to-offset", "1", "--dry-run"]
        yield [_GROUPS, "--reset-offsets", "--group", name, *of_topic, "--to-earliest", "--execute"]
        yield [_GROUPS, "--reset-offsets", "--group", name, *of_topic, "--to-latest", "--execute"]
        yield [_GROUPS, "--delete-offsets", "--group", name, "--topic", f"{topic}:1"]
        yield [_GROUPS, "--delete", "--group", name]
        yield [_GROUPS, "--describe", "--group", name]
    yield [_TRANSACTIONS, BROKER, ENDPOINT, "describe", "--transactional-id", f"{group}-performer"]
    yield [_TRANSACTIONS, BROKER, ENDPOINT, "describe-producers", "--topic", other, "--partition", "0"]
    yield [_TRANSACTIONS, BROKER, ENDPOINT, "describe", "--transactional-id", f"{group}-nobody"]
    yield [_TRANSACTIONS, BROKER, ENDPOINT, "find-hanging", *of_topic, "--partition", "0"]
    yield from _ends(f"{topic}-open", group)
    yield [f"{TOOLS}GetOffsetShell", *of_topic]
    yield [f"{TOOLS}GetOffsetShell", *of_topic, "--time", "earliest"]
    yield [f"{TOOLS}ClusterTool", "list-endpoints"]
    yield [_TOPICS, "--delete", *of_topic]
    yield [_TOPICS, "--delete", "--topic", f"{topic}-nowhere"]
    yield [_TOPICS, "--delete", "--topic", other]
    yield [_TOPICS, "--delete", "--topic", f"{topic}-open"]


def _ends(topic: str, group: str) -> Iterator[list[str]]:
    """Yield the commands that end the two transactions of `held_open` in *topic*: one by its start, one by
    its id.
    """
    transactions, place = [_TRANSACTIONS, BROKER, ENDPOINT], ["--topic", topic, "--partition", "0"]
    yield [*transactions, "list", "--transactional-id-pattern", f"{group}-open.*"]
    yield [*transactions, "describe-producers", *place]
    yield [*transactions, "abort", *place, "--start-offset", "7"]
    yield [*transactions, "abort", *place, "--start-offset", "0"]
    yield [*transactions, "describe-producers", *place]
    yield [*transactions, "forceTerminateTransaction", "--transactionalId", f"{group}-open-2"]
    yield [*transactions, "describe-producers", *place]
    yield [*transactions, "list", "--transactional-id-pattern", f"{group}-open.*"]
    yield [f"{TOOLS}GetOffsetShell", "--topic", topic]


def held_open(endpoint: str, topic: str, group: str) -> list[Producer]:
    """Return producers that each have a transaction open, which began at offset 0 and 1 of a new topic."""
    admin = AdminClient({"bootstrap.servers": endpoint, "log_level": 0})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(DEADLINE_S)
    found = []
    for number in (1, 2):
        told = {"transactional.id": f"{group}-open-{number}", "transaction.timeout.ms": 600_000}
        producer = Producer({"bootstrap.servers": endpoint, "log_level": 0, **told})
        producer.init_transactions(DEADLINE_S)
        producer.begin_transaction()
        producer.produce(topic, b"a", partition=0)
        assert producer.flush(DEADLINE_S) == 0
        found.append(producer)
    return found


def told(endpoint: str) -> list[str]:
    """Return the programs' output for the broker at *endpoint*, with times, rates and names masked."""
    ending = uuid.uuid4().hex[:8]
    opened = held_open(endpoint, f"tools-{ending}-open", f"readers-{ending}")
    asked = (
        each if ENDPOINT in each else [*each, BROKER, ENDPOINT]
        for each in commands(f"tools-{ending}", f"readers-{ending}")
    )
    lines = "".join("\t".join(each).replace(ENDPOINT, endpoint) + "\n" for each in asked)
    jars = [*kafka_jars(), *resolve(TESTDATA / "kafka_tools.lock")]
    command = [
        str(find_java()),
        "-XX:TieredStopAtLevel=1",
        "--add-opens=java.base/java.lang=ALL-UNNAMED",
        "-Dlog4j2.level=ERROR",
        "-cp",
        os.pathsep.join(map(str, jars)),
        str(PROGRAM),
    ]
    ran = subprocess.run(
        command, input=lines, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert ran.returncode == 0, ran.stderr + ran.stdout
    del opened
    lines_of = (each for each in ran.stdout.splitlines() if not each.startswith("\tat "))
    return [masked(line, endpoint, ending) for line in _in_order(lines_of)]


def _in_order(lines: Iterable[str]) -> Iterator[str]:
    """Yield *lines*. Rows of a table are sorted, because some come in the order of a hash; a consumer's
    counts of single fetches are added up.
    """
    rows: list[str] = []
    for line in lines:
        if re.match(r"(readers|tools)\S* |readers-\S+-open-\d\s|\{|\d+\s+\d+\s", line):
            rows.append(line)
            continue
        yield from _settled(rows)
        rows = []
        yield line
    yield from _settled(rows)


def _settled(rows: list[str]) -> list[str]:
    read = Counter[str]()
    committed: dict[str, int] = {}
    left = []
    for row in rows:
        told = json.loads(row) if row.startswith("{") else {}
        for each in ("timestamp", "avg_throughput"):
            told.pop(each, None)
        if told.get("name") == "records_consumed":
            read.update({str(each["partition"]): each["count"] for each in told["partitions"]})
        elif told.get("name") == "offsets_committed":
            committed |= {str(each["partition"]): each["offset"] for each in told["offsets"]}
        elif told.get("partitions") != []:
            left.append(json.dumps(told, sort_keys=True) if told else row)
    totals = (("read", dict(read)), ("committed", committed))
    return sorted(left, key=_in_numbers) + [
        f"{what} {dict(sorted(each.items()))}" for what, each in totals if each
    ]


def _in_numbers(row: str) -> str:
    """Return the sort key of a row that begins with a number, which is masked later: by that number."""
    return re.sub(r"^\d+", lambda found: found[0].zfill(20), row)


_MASKS = (
    (re.compile(r"\b\d{13}\b"), "<time>"),
    (re.compile(r"TopicId: \S+"), "TopicId: <id>"),
    (re.compile(r"^(\d+) records sent.*"), r"\1 records sent"),
    (re.compile(r"^20\d\d-.*?, .*?, .*?, .*?, (\d+), .*"), r"\1 records read"),
    (re.compile(r"(?<=\bproducerId=)\d+"), "<id>"),
    (re.compile(r"\s+"), " "),
    (re.compile(r"^(readers-open-\d \d+) \d+ "), r"\1 <id> "),
    (re.compile(r"(readers-performer) \d+ \d+ (\w+ \d+) <time> \d+"), r"\1 <id> <epoch> \2 <time> <ms>"),
    (re.compile(r"^\d+ \d+ (-?\d+) -?\d+ <time> (\w+)"), r"<id> <epoch> \1 <sequence> <time> \2"),
)


def masked(line: str, endpoint: str, ending: str) -> str:
    """Return *line* without the parts that differ from run to run."""
    line = (
        line.replace(f"-{ending}", "")
        .replace(endpoint, "<broker>")
        .replace(endpoint.rpartition(":")[2], "<port>")
    )
    for pattern, text in _MASKS:
        line = pattern.sub(text, line)
    return line


def recorded() -> list[str]:
    """Return the recorded output for Apache Kafka."""
    return gzip.decompress(RECORDED.read_bytes()).decode().splitlines()


if __name__ == "__main__":
    RECORDED.write_bytes(gzip.compress("".join(line + "\n" for line in told(sys.argv[1])).encode(), mtime=0))
