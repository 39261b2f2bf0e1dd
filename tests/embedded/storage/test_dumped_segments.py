"""Kafka's own tool reads the files of an embedded broker: segments, indexes, snapshots, and the coordinators'
records.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place

from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.jars import find_java, kafka_jars, resolve
from tests.support.parts import QUICK_JAVA
from tests.support.patience import DEADLINE_S, SCENARIO_S
from tests.support.places import TESTDATA

pytestmark = pytest.mark.process

TOOL = "org.apache.kafka.tools.DumpLogSegments"
_DUMPER = """
public class Dump {
    public static void main(String[] args) throws Exception {
        var tool = Class.forName("%s").getMethod("main", String[].class);
        for (String each : args) {
            System.out.println("== " + each);
            System.err.println("== " + each);
            tool.invoke(null, (Object) each.split(" "));
        }
    }
}
"""


def written(folder: Path) -> None:
    """Have clients write to a broker in *folder*: segments that roll, transactions, a group."""
    with EmbeddedKafka(folder=folder, offsets_partitions=1, transaction_partitions=1) as kafka:
        kafka.create_topic("orders", config={"segment.bytes": str(1 << 20)})
        writer = Producer(kafka.client_config(**{"transactional.id": "writer", "linger.ms": 0}))
        writer.init_transactions(DEADLINE_S)
        consumer = Consumer(kafka.client_config(**{"group.id": "readers", "auto.offset.reset": "earliest"}))
        consumer.subscribe(["orders"])
        while not consumer.assignment():
            consumer.poll(0.05)
        for number in range(8):
            writer.begin_transaction()
            for part in range(40):
                writer.produce("orders", os.urandom(8_000), b"%d" % part)
                writer.flush(DEADLINE_S)
            group = consumer.consumer_group_metadata()
            writer.send_offsets_to_transaction([Place("orders", 0, number)], group, DEADLINE_S)
            (writer.abort_transaction if number % 3 == 1 else writer.commit_transaction)(DEADLINE_S)
        consumer.close()


def commands(folder: Path) -> list[str]:
    """Return the tool's arguments for each file of *folder*."""
    found = []
    for each in sorted(folder.glob("*/0*.*")):
        how = ""
        if each.suffix == ".log":
            how = " --deep-iteration"
            if each.parent.name.startswith("__"):
                of = "offsets" if "offsets" in each.parent.name else "transaction-log"
                how = f" --{of}-decoder"
        found.append(f"--files {each}{how}")
    return found


def test_kafkas_own_tool_reads_every_file(tmp_path: Path) -> None:
    folder = tmp_path / "broker"
    written(folder)
    program = tmp_path / "Dump.java"
    program.write_text(_DUMPER % TOOL)
    asked = commands(folder)
    suffixes = {Path(each.split()[1]).suffix for each in asked}
    assert suffixes == {".log", ".index", ".timeindex", ".txnindex", ".snapshot"}
    ran = subprocess.run(
        [
            str(find_java()),
            "-cp",
            os.pathsep.join(map(str, [*kafka_jars(), *resolve(TESTDATA / "kafka_tools.lock")])),
            str(program),
            *asked,
        ],
        capture_output=True,
        text=True,
        timeout=SCENARIO_S,
        check=False,
        env={**os.environ, **QUICK_JAVA},
    )
    assert ran.returncode == 0, ran.stderr
    complaints = [
        each for each in ran.stderr.splitlines() if not each.startswith(("== ", "Picked up", "SLF4J"))
    ]
    # The tool takes -1 for the offset before a segment, so it complains of each that does not begin at 0.
    later = [each for each in sorted(folder.glob("orders-0/*.log")) if int(each.stem)]
    of_itself = [
        line
        for each in later
        for line in (f"Non-consecutive offsets in {each}", f"  -1 is followed by {int(each.stem)}")
    ]
    assert sorted(complaints) == sorted(of_itself)
    by_file = {
        Path(part.split()[1]).relative_to(folder).as_posix(): part for part in ran.stdout.split("== ")[1:]
    }
    dumped = "".join(text for name, text in by_file.items() if name.startswith("orders-0") and ".log" in name)
    batches = re.findall(r"baseOffset: \d+ .* isvalid: (\w+)", dumped)
    assert len(batches) > 300
    assert set(batches) == {"true"}
    offsets = [int(each) for each in re.findall(r"^\| offset: (\d+) ", dumped, re.MULTILINE)]
    assert offsets == list(range(328))
    aborted = "".join(text for name, text in by_file.items() if name.endswith(".txnindex"))
    assert len(re.findall("producerId: 0 firstOffset", aborted)) == 2 * 3, (
        "of orders, and of the group's offsets"
    )
    entries = [
        text for name, text in by_file.items() if name.startswith("orders-0") and name.endswith(".index")
    ]
    assert len(entries) >= 3
    assert all("offset: " in each for each in entries[:-1])
    snapshots = [
        text for name, text in by_file.items() if name.startswith("orders-0") and ".snapshot" in name
    ]
    assert all("producerId: 0 producerEpoch: 0" in each for each in snapshots)
    assert '"group":"readers"' in by_file[f"__consumer_offsets-0/{0:020d}.log"].replace(" ", "")
    assert "writer" in by_file[f"__transaction_state-0/{0:020d}.log"]
