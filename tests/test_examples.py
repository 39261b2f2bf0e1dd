"""The programs in examples/ that are services: each started as its users start it, against the session's
broker.
"""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from holdfast.dev.fixtures import SessionBroker
from holdfast.outbox.harvest.table.rows import OutboxRows
from tests.support.harness import wait_for
from tests.support.own_topics import ending
from tests.support.patience import DEADLINE_S
from tests.support.places import example_file

STAMPED = {"message.timestamp.type": "LogAppendTime"}


@contextmanager
def example(folder: Path, name: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run one of the examples in *folder*, its settings there; what it prints is in `<first
    argument>.log`.
    """
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("HOLDFAST_", "KAFKA_", "PYTHON"))
    }
    with (folder / f"{arguments[0]}.log").open("ab") as log:
        command = [sys.executable, "-P", str(example_file(name)), *arguments]
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait(DEADLINE_S)


def settings(folder: Path, broker: SessionBroker, topic: str) -> None:
    """Write the settings of an application of its own."""
    kafka = "".join(f'"{name}" = "{value}"\n' for name, value in broker.config.items())
    (folder / "holdfast.toml").write_text(
        f'[holdfast]\napp = "shop"\ncoordination_topic = "{topic}"\nclaim_interval_s = 2\n[kafka]\n{kafka}'
    )


def make(broker: SessionBroker, *topics: NewTopic) -> None:
    """Make topics of fixed names unless an earlier test has made them."""
    client = AdminClient({name: str(value) for name, value in broker.config.items()})
    there = client.list_topics(timeout=DEADLINE_S).topics
    if missing := [topic for topic in topics if topic.topic not in there]:
        for made in client.create_topics(missing).values():
            made.result(DEADLINE_S)


def billed(folder: Path, *clients: str) -> dict[str, set[str]]:
    """Return the orders that each client says it has billed, by partition and offset."""
    found = {}
    for client in clients:
        told = (folder / f"{client}.log").read_text()
        found[client] = {
            f"{each[1]}/{each[2]}"
            for each in re.finditer(r"bills order \d+ of partition (\d+) at offset (\d+)", told)
        }
    return found


def test_both_services_that_claim_share_a_topic_and_give_it_back_when_asked_to_end(
    tmp_path: Path, broker: SessionBroker
) -> None:
    coordination = f"examples-{ending()}"
    make(
        broker,
        NewTopic("orders", 4, 1),
        NewTopic("holdfast.groups", 2, 1, config=STAMPED),
        NewTopic(coordination, 1, 1, config=STAMPED),
    )
    settings(tmp_path, broker, coordination)
    producer, written = Producer({name: str(value) for name, value in broker.config.items()}), 0

    def write(count: int) -> None:
        nonlocal written
        for number in range(written, written + count):
            producer.produce("orders", f"order {number}", partition=number % 4)
        assert producer.flush(DEADLINE_S) == 0
        written += count

    def both_work() -> bool:
        write(4)
        mine = billed(tmp_path, "anna", "ben")
        return all({place.partition("/")[0] for place in mine[client]} for client in mine)

    with (
        example(tmp_path, "billing.py", "anna") as anna,
        example(tmp_path, "billing_blocking.py", "ben") as ben,
    ):

        def told() -> str:
            return "".join((tmp_path / f"{client}.log").read_text()[-2_000:] for client in ("anna", "ben"))

        wait_for("both to work", both_work, DEADLINE_S, told)
        wait_for(
            "all orders",
            lambda: len(set().union(*billed(tmp_path, "anna", "ben").values())) >= written,
            DEADLINE_S,
            told,
        )
        for process in (anna, ben):
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_S) == 0, told()
        for client in ("anna", "ben"):
            assert (tmp_path / f"{client}.log").read_text().endswith("all claims are given back\n")


@pytest.mark.process
def test_the_service_with_an_outbox_writes_an_order_and_its_message_or_neither(tmp_path: Path) -> None:
    for arguments, code in ((("ada", "500", "3"), 0), (("bob", "-1"), 1)):
        with example(tmp_path, "ordering.py", *arguments) as process:
            assert process.wait(DEADLINE_S) == code, (tmp_path / f"{arguments[0]}.log").read_text()
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        assert connection.execute("SELECT id, customer, cents FROM orders").fetchall() == [
            (1, "ada", 500),
            (2, "ada", 500),
            (3, "ada", 500),
        ]
    with OutboxRows(f"sqlite:///{tmp_path / 'shop.db'}") as rows:
        found = rows.take(10)
    assert [(row.topic, row.key) for row in found] == [("orders", b"ada")] * 3
    assert [row.value for row in found] == [
        b'{"order":%d,"customer":"ada","cents":500}' % number for number in (1, 2, 3)
    ]
    assert "nobody is paid for an order" in (tmp_path / "bob.log").read_text()
