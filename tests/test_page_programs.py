"""The programs of README.md and docs/producers.md that need a broker: each is saved and started as its reader
would start it, in the environment that the page's install lines make, against the session's broker. Only the
names of topics differ.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from holdfast.core.producers.stamps import Stamp, read_stamp
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from tests.support.harness import TIMES, UNDISTURBED, Worker, wait_for
from tests.support.installations import Installation, Installations
from tests.support.own_topics import ending
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT
from tests.test_docs import PAGES, blocks, named, values

STAMPED = {"message.timestamp.type": "LogAppendTime"}
README = ROOT / "README.md"
UPGRADING = ROOT / "docs" / "upgrading.md"
PRODUCERS = ROOT / "docs" / "producers.md"


def program(page: Path, name: str) -> str:
    """Return the text of the program *name* of *page*."""
    (text,) = (block.text for block in blocks(page.read_text()) if name in values(block, "program"))
    return text


def exchanged(text: str, names: Mapping[str, str]) -> str:
    """Return a program with some of its strings replaced."""
    for name, other in names.items():
        assert f'"{name}"' in text
        text = text.replace(f'"{name}"', f'"{other}"')
    return text


def settings_of(
    broker: SessionBroker, installed: Installation | None = None, **settings: str
) -> dict[str, str]:
    """Return the variables that give a program its broker and *settings*, and nothing of this process.

    Commands are those of the environment *installed*, or else of this one.
    """
    kafka = {f"KAFKA__{name.upper().replace('.', '_')}": str(value) for name, value in broker.config.items()}
    own = {f"HOLDFAST_{name.upper()}": value for name, value in {**kafka, **settings}.items()}
    path = installed.path() if installed else f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, **own}


def run(folder: Path, environment: Mapping[str, str], *command: str) -> str:
    """Return the output of a command; fails with its errors."""
    ran = subprocess.run(
        command,
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert ran.returncode == 0, f"{' '.join(command)}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


@contextmanager
def started(
    folder: Path, environment: Mapping[str, str], installed: Installation, name: str, text: str
) -> Iterator[Path]:
    """Run the program *text* until the context ends, and give the log of what it prints."""
    (folder / f"{name}.py").write_text(text)
    log = folder / f"{name}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(installed.python), f"{name}.py"],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        yield log
    finally:
        process.kill()
        process.wait(DEADLINE_S)


@contextmanager
def worker(folder: Path, environment: Mapping[str, str], *command: str) -> Iterator[Worker]:
    """Run a worker in *folder* and give it when it is ready."""
    times = {f"HOLDFAST_{name.upper()}": str(value) for name, value in {**TIMES, **UNDISTURBED}.items()}
    made = Worker("worker", folder, {**environment, **times}, command, cwd=folder)
    try:
        yield made.start().wait_ready()
    finally:
        made.close()


def stamp_of(message: Message) -> Stamp | None:
    headers = message.headers() or []
    assert isinstance(headers, list)
    return read_stamp(tuple((name, value) for name, value in headers if not isinstance(value, str)))


def test_these_are_all_programs_of_all_pages() -> None:
    found = {
        (named(page), name)
        for page in PAGES
        for block in blocks(page.read_text())
        for name in values(block, "program")
    }
    assert found == {
        ("README.md", "ask.py"),
        ("README.md", "billing.py"),
        ("README.md", "order.py"),
        ("README.md", "thumbnails.py"),
        ("docs/producers.md", "invoices.py"),
        ("docs/upgrading.md", "ask_tallies.py"),
        ("docs/upgrading.md", "tallies.py"),
    }


def test_the_readmes_shop_answers_from_any_other_process(
    tmp_path: Path, broker: SessionBroker, fresh_topic: FreshTopic, installations: Installations
) -> None:
    installed = installations.of_page(README)
    orders, big = fresh_topic("orders", partitions=4, config=STAMPED), fresh_topic("big-customers")
    shop = next(block.text for block in blocks(README.read_text()) if "runnable" in block.words)
    (tmp_path / "shop.py").write_text(exchanged(shop, {"orders": orders, "big-customers": big}))
    (tmp_path / "ask.py").write_text(program(README, "ask.py"))
    environment = settings_of(broker, installed, app=f"shop-{ending()}")
    run(tmp_path, environment, "holdfast", "-A", "shop", "topics", "create", "--partitions", "4")
    (tmp_path / "order.py").write_text(exchanged(program(README, "order.py"), {"orders": orders}))
    run(tmp_path, environment, str(installed.python), "order.py")
    faust = str(installed.programs / "faust")
    with worker(tmp_path, environment, faust, "-A", "shop", "worker", "-l", "info") as live:
        told = [""]

        def answer() -> str:
            try:
                told[0] = run(tmp_path, environment, str(installed.python), "ask.py")
            except (
                AssertionError
            ) as error:  # its questions wait 5 s for an answer, which a busy machine may need
                told[0] = str(error)
            return told[0] if told[0].startswith("Total(") else ""

        printed = wait_for("the order in the table", answer, DEADLINE_S, lambda: f"{told[0]}\n{live.tail()}")
    assert printed == "Total(count=1, cents=1999) as of partition 1 offset 0\n"


@pytest.mark.variant
def test_the_upgrading_page_s_table_is_served_in_both_versions_and_switched_back(
    tmp_path: Path, broker: SessionBroker, fresh_topic: FreshTopic, installations: Installations
) -> None:
    installed = installations.of_page(UPGRADING)
    orders = fresh_topic("orders", partitions=2, config=STAMPED)
    text = exchanged(program(UPGRADING, "tallies.py"), {"orders": orders})
    (tmp_path / "tallies.py").write_text(text)
    (tmp_path / "before.py").write_text(text.replace("processors=[tallies]", "processors=[counts]"))
    (tmp_path / "ask_tallies.py").write_text(program(UPGRADING, "ask_tallies.py"))
    environment = settings_of(broker, installed, app=f"tallies-{ending()}")
    for module in ("before", "tallies"):
        run(tmp_path, environment, "holdfast", "-A", module, "topics", "create", "--partitions", "2")
    producer = Producer(broker.client_config(partitioner="murmur2_random"))
    for _ in range(3):
        producer.produce(orders, b'{"customer": "ada", "cents": 5}', "ada")
    assert producer.flush(DEADLINE_S) == 0

    def switch(*arguments: str) -> str:
        words = ("-A", "tallies", "tables", "switch", "tallies", "--timeout", str(DEADLINE_S), *arguments)
        return run(tmp_path, environment, "holdfast", *words)

    def answer(wanted: str, live: Worker) -> None:
        told = [""]

        def asked() -> bool:
            try:
                told[0] = run(tmp_path, environment, str(installed.python), "ask_tallies.py")
            except AssertionError as error:
                if not re.search("cannot read the workers topic|did not answer", str(error)):
                    raise  # refused by a worker: the table is not served
                told[0] = str(error)  # a broker under load has let the deadline pass
            return told[0] == f"{wanted} as of offset 2\n"

        wait_for(wanted, asked, DEADLINE_S, lambda: f"{told[0]}\n{live.tail()}")

    faust = str(installed.programs / "faust")
    with worker(tmp_path, environment, faust, "-A", "before", "worker", "-l", "info") as old:
        answer("version 1, active: Count(count=3)", old)
        old.stop()
    with worker(tmp_path, environment, faust, "-A", "tallies", "worker", "-l", "info") as new:
        answer("version 2, active: Tally(count=3, cents=15)", new)
        switch("--back")
        answer("version 1, earlier: Count(count=3)", new)
        switch("--to", "2")
        answer("version 2, active: Tally(count=3, cents=15)", new)
        assert re.search(r"^tallies +2 +true +true", switch(), re.MULTILINE)


def test_the_readmes_service_handles_what_it_claims(
    tmp_path: Path, broker: SessionBroker, fresh_topic: FreshTopic, installations: Installations
) -> None:
    installed = installations.of_page(README)
    orders = fresh_topic("orders", partitions=2)
    environment = settings_of(broker, installed, coordination_topic=fresh_topic("claims", config=STAMPED))
    producer = Producer(broker.client_config())
    # A member that stalls for longer than its claims last has an order again, and rightly.
    interval, longer = "heartbeat_interval_s=3", "heartbeat_interval_s=60"
    text = exchanged(program(README, "billing.py"), {"orders": orders})
    assert interval in text
    text = text.replace(interval, longer)
    written = 0
    with started(tmp_path, environment, installed, "billing", text) as log:

        def billed() -> list[str]:
            return sorted(re.findall(r"^billed order (\d/\d+)$", log.read_text(), re.MULTILINE))

        def both_partitions() -> bool:
            nonlocal written
            for partition in range(2):
                producer.produce(orders, f"order {partition}/{written:05}", partition=partition)
            written += 1
            assert producer.flush(DEADLINE_S) == 0
            return {each[0] for each in billed()} == {"0", "1"}

        # A new member reads from where the log ends, so orders come for as long as it has not begun.
        wait_for("both partitions to be claimed", both_partitions, DEADLINE_S, log.read_text)
        last = [f"{partition}/{written - 1:05}" for partition in range(2)]
        wait_for("the last orders", lambda: set(last) <= set(billed()), DEADLINE_S, log.read_text)
        assert len(billed()) == len(set(billed()))


def test_the_readmes_members_by_ranges_share_one_partition_and_get_each_message_once(
    tmp_path: Path, broker: SessionBroker, fresh_topic: FreshTopic, installations: Installations
) -> None:
    installed = installations.of_page(README)
    pictures = fresh_topic("pictures")
    dead = broker.create_topic(f"{pictures}.dead-letters", exact=True)
    environment = settings_of(
        broker, installed, ranges_topic=fresh_topic("ranges", partitions=2, config=STAMPED)
    )
    producer, written = Producer(broker.client_config()), 0
    text = exchanged(program(README, "thumbnails.py"), {"pictures": pictures})
    # Another member is given the block if the first stalls for longer than its lease, and rightly.
    client = 'client="thumbnails-1"'
    assert client in text
    text = text.replace(client, f"{client}, lease_s=120, request_timeout_s=60")
    with ExitStack() as members:
        logs = [
            members.enter_context(
                started(tmp_path, environment, installed, client, exchanged(text, {"thumbnails-1": client}))
            )
            for client in ("thumbnails-1", "thumbnails-2")
        ]

        def made() -> list[list[int]]:
            lines = [re.findall(r"^a thumbnail of (\d+)$", log.read_text(), re.MULTILINE) for log in logs]
            return [[int(each) for each in found] for found in lines]

        def told() -> str:
            return "\n".join(log.read_text()[-2_000:] for log in logs)

        def both() -> bool:
            nonlocal written
            for _ in range(10):
                producer.produce(pictures, b"%d" % written)
                written += 1
            assert producer.flush(DEADLINE_S) == 0
            return all(made())

        wait_for("both members to work", both, DEADLINE_S, told)
        wait_for("all pictures", lambda: sum(map(len, made())) >= written, DEADLINE_S, told)
        assert sorted(each for found in made() for each in found) == list(range(written))
    broker.delete_topics([dead])


@pytest.mark.variant
def test_the_producers_page_sends_stamped_records(
    tmp_path: Path, broker: SessionBroker, fresh_topic: FreshTopic, installations: Installations
) -> None:
    installed = installations.of_page(PRODUCERS)
    invoices, name = fresh_topic("invoices"), ending()
    environment = settings_of(
        broker,
        installed,
        app=f"names-{name}",
        registry="true",
        producers_topic=f"names-{name}",
        coordination_topic=fresh_topic("claims", config=STAMPED),
    )
    text = exchanged(program(PRODUCERS, "invoices.py"), {"invoices": invoices})
    (tmp_path / "invoices.py").write_text(text)
    run(tmp_path, environment, "holdfast", "topics", "create", "--partitions", "1")
    with worker(
        tmp_path, environment, str(installed.python), "-P", "-m", "holdfast.agents", "worker", "-l", "info"
    ):
        for _ in range(2):
            run(tmp_path, environment, str(installed.python), "invoices.py")
    consumer = Consumer(broker.client_config(**{"group.id": name, "enable.auto.commit": False}))
    try:
        consumer.assign([TopicPartition(invoices, 0, 0)])
        found = [message for message in consumer.consume(2, DEADLINE_S) if message.error() is None]
    finally:
        consumer.close()
    assert [(each.key(), msgspec.json.decode(each.value() or b"")) for each in found] == [
        (b"customer-7", {"cents": 1250})
    ] * 2
    stamps = [stamp_of(each) for each in found]
    assert [(each.producer, each.sequence) for each in stamps if isinstance(each, Stamp)] == [
        ("billing", 0)
    ] * 2
    assert [each.epoch for each in stamps if isinstance(each, Stamp)] == [0, 1]
