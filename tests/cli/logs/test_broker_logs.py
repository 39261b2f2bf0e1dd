"""`holdfast producers transactions`, `holdfast groups committed` and `explain` of the broker's own logs,
against what clients did.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from holdfast.cli.__main__ import main
from holdfast.clock import system_clock
from holdfast.core.groups.java_order import coordinator_partition
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from tests.support.harness import wait_for
from tests.support.own_topics import ending
from tests.support.patience import DEADLINE_S

Run = Callable[..., Any]


@pytest.fixture
def run(broker: SessionBroker, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command and return its JSON."""

    def run(*arguments: str) -> Any:
        patience = ("--set", "request_timeout_s=120")
        with pytest.raises(SystemExit) as left:
            main(["--bootstrap", broker.bootstrap, *patience, *arguments, "-o", "json"])
        out, said = capsys.readouterr()
        assert left.value.code == 0, said
        return json.loads(out)

    return run


def producer(broker: SessionBroker, name: str) -> Producer:
    made = Producer(broker.client_config(**{"transactional.id": name, "transaction.timeout.ms": 60_000}))
    made.init_transactions(DEADLINE_S)
    return made


def test_transactions_of_every_application_are_listed_with_how_they_ended(
    broker: SessionBroker, fresh_topic: FreshTopic, run: Run
) -> None:
    topic, name = fresh_topic("events", partitions=5), f"shop-{ending()}"

    def of_state(state: str) -> Any:
        return [
            each["transactional_id"]
            for each in run("producers", "transactions", "--id", name, "--state", state)
        ]

    first = producer(broker, f"{name}-0")
    for partitions in ((0, 3), (1,)):
        first.begin_transaction()
        for partition in partitions:
            first.produce(topic, b"x", partition=partition)
        first.commit_transaction(DEADLINE_S)
    zombie = producer(broker, f"{name}-1")
    zombie.begin_transaction()
    zombie.produce(topic, b"y", partition=4)
    zombie.flush(DEADLINE_S)
    (open_one,) = run("producers", "transactions", "--id", f"{name}-1")
    assert (open_one["state"], open_one["partitions"], open_one["timeout_ms"]) == (
        "ongoing",
        [f"{topic}-4"],
        60_000,
    )
    assert of_state("ongoing") == [f"{name}-1"]
    second = producer(broker, f"{name}-1")  # fences and aborts it
    with pytest.raises(KafkaException):
        zombie.commit_transaction(DEADLINE_S)
    wait_for(
        "two that ended",
        lambda: of_state("complete-commit") == [f"{name}-0"] and of_state("ongoing") == [],
        DEADLINE_S,
    )
    told = {each["transactional_id"]: each for each in run("producers", "transactions", "--id", name)}
    assert (told[f"{name}-0"]["committed"], told[f"{name}-0"]["aborted"], told[f"{name}-0"]["jumps"]) == (
        2,
        0,
        0,
    )
    assert told[f"{name}-1"]["aborted"] == 1
    assert told[f"{name}-1"]["fenced"] >= 1
    assert told[f"{name}-1"]["producer_id"] == open_one["producer_id"]
    assert told[f"{name}-1"]["epoch"] > open_one["epoch"]
    del first, second, zombie


def test_the_commits_of_a_group_are_listed_and_explained(
    broker: SessionBroker, fresh_topic: FreshTopic, run: Run
) -> None:
    topic, group = fresh_topic("events", partitions=2), f"group/{ending()}"
    consumer = Consumer(broker.client_config(**{"group.id": group, "enable.auto.commit": False}))
    consumer.subscribe([topic])
    wait_for("an assignment", lambda: consumer.poll(0.1) or consumer.assignment(), DEADLINE_S)
    for offset in (3, 5):
        consumer.commit(
            offsets=[TopicPartition(topic, 0, offset, f"note {offset}"), TopicPartition(topic, 1, 1)],
            asynchronous=False,
        )
    found = run("groups", "committed", "--group", group)
    assert [
        (each["topic"], each["partition"], each["offset"], each["commits"], each["metadata"])
        for each in found
    ] == [
        (topic, 0, 5, 2, "note 5"),
        (topic, 1, 1, 2, None),
    ]
    (generation,) = run("groups", "committed", "--group", group, "--generations")
    assert (generation["type"], generation["#members"]) == ("consumer", 1)
    explained = last_of(broker, group, run)
    assert (explained["group"], explained["topic"], explained["partition"]) == (group, topic, 1)
    assert explained["noted"][1] == 1, "the offset"
    consumer.close()


def last_of(broker: SessionBroker, group: str, run: Run) -> Any:
    """Return the answer of `explain` about the last commit of *group*: after it there may be records of
    groups of other tests.
    """
    reader = Consumer(broker.client_config(**{"group.id": "reader", "enable.auto.commit": False}))
    try:
        partitions = len(
            reader.list_topics("__consumer_offsets", timeout=DEADLINE_S)
            .topics["__consumer_offsets"]
            .partitions
        )
        place = coordinator_partition(group, partitions)
        first, end = reader.get_watermark_offsets(
            TopicPartition("__consumer_offsets", place), timeout=DEADLINE_S
        )
    finally:
        reader.close()
    for offset in range(end - 1, first - 1, -1):
        record = run("explain", "__consumer_offsets", str(place), str(offset)).get("record") or {}
        says = record.get("says") or {}  # a marker of a transaction says nothing
        if says.get("group") == group and "topic" in says:
            return says
    raise AssertionError(f"no commit of {group} in partition {place}")


def test_groups_that_keep_up_stopped_and_went_back_are_listed(
    broker: SessionBroker, fresh_topic: FreshTopic, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    name, now_ms = f"shop-{ending()}", system_clock.now_ms()
    old, new = fresh_topic("events", partitions=1), fresh_topic("events", partitions=1)
    filler = Producer(broker.client_config())
    # No record of the new one is two minutes old, however long this takes.
    for topic, at_ms in ((old, now_ms - 3_600_000), (new, now_ms + 1_800_000)):
        for _ in range(10):
            filler.produce(topic, b"x", partition=0, timestamp=at_ms)
    filler.flush(DEADLINE_S)
    history = {"done": (4, 10), "stopped": (3, 4), "back": (8, 2)}
    for group, offsets in history.items():
        consumer = Consumer(broker.client_config(**{"group.id": f"{name}-{group}"}))
        for offset in offsets:
            topic = new if group == "back" else old  # in the old one, all have had time to commit
            consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
        consumer.close()

    def told(group: str, exit_code: int) -> Any:
        with pytest.raises(SystemExit) as left:
            main(
                ["--bootstrap", broker.bootstrap, "groups", "lag", "--group", f"{name}-{group}", "-o", "json"]
            )
        assert left.value.code == exit_code
        (line,) = json.loads(capsys.readouterr().out)
        return line["standing"], line["committed"], line["end"], line["lag"], line["commits"]

    assert told("done", 0) == ("OK", 10, 10, 0, 2)
    assert told("stopped", 1) == ("STOP", 4, 10, 6, 2)
    assert told("back", 1) == ("REWIND", 2, 10, 8, 2)
