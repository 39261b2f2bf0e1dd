"""Harvesters as they run: by `holdfast outbox harvest` and inside workers, and their commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from holdfast.config import Settings
from holdfast.dev import parent_death
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from holdfast.dev.ports import free_ports
from holdfast.errors import ConfigError, TopicError
from holdfast.outbox.commands import CommandReply, Verb, tell
from holdfast.outbox.settings import harvest_settings
from tests.outbox.databases import FreshOutbox
from tests.outbox.electors import CALM_S
from tests.outbox.harvesting import PARTITIONS, Alone, Leaping, Rig
from tests.support.harness import Application, Worker, running, wait_for
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT

SHARDS = 3


@pytest.fixture
def rig(broker: SessionBroker, fresh_topic: FreshTopic, tmp_path: Path) -> Rig:
    """Give an outbox on SQLite."""
    return Rig(
        broker,
        FreshOutbox.make(f"sqlite:///{tmp_path / 'service.db'}"),
        fresh_topic("events", partitions=PARTITIONS),
    )


def command(rig: Rig, *arguments: str) -> list[str]:
    return [
        sys.executable,
        "-P",
        "-m",
        "holdfast.cli",
        "--bootstrap",
        rig.broker.bootstrap,
        "outbox",
        *arguments,
        "--name",
        rig.name,
    ]


def test_the_command_harvests_obeys_is_measured_and_stops(rig: Rig) -> None:
    port = free_ports(1)[0]
    more = ["--database", rig.outbox.url, "--table", rig.outbox.table, "--metrics-port", str(port)]
    more += ["--set", f"outbox_heartbeat_timeout_s={CALM_S:.0f}"]
    bound = [
        sys.executable,
        "-I",
        "-S",
        parent_death.__file__,
        str(os.getpid()),
        *command(rig, "harvest", *more),
    ]
    rig.fill(50)
    process = subprocess.Popen(bound, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        rig.wait_empty()
        paused = subprocess.run(
            command(rig, "pause", "-o", "json", "--timeout", f"{DEADLINE_S:.0f}"),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=True,
        )
        (answer,) = json.loads(paused.stdout)
        assert (answer["shard"], answer["paused"], answer["published"]) == (0, True, 50)
        rig.fill(20)
        (status,) = tell(rig.settings(), Verb.STATUS, DEADLINE_S)
        assert status.paused
        assert rig.left() == 20
        assert not tell(rig.settings(), Verb.RESUME, DEADLINE_S)[0].paused
        rig.wait_empty()
        assert tell(rig.settings(), Verb.FLUSH, DEADLINE_S)[0].published == 70
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE_S) as reply:
            page = reply.read().decode()
        assert f'holdfast_outbox_published_total{{outbox="{rig.name}",shard="0"}} 70.0' in page
        assert f'holdfast_outbox_leader{{outbox="{rig.name}",shard="0"}} 1.0' in page
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, said
        assert "70 row(s) published" in said
    finally:
        process.kill()
        process.wait(DEADLINE_S)
    rig.prove()


@pytest.mark.variant
def test_a_pause_holds_for_the_next_leader_too(rig: Rig) -> None:
    with rig.harvester() as first:
        wait_for("a leader", lambda: first.stats[0].epoch, DEADLINE_S)
        assert tell(rig.settings(), Verb.PAUSE, DEADLINE_S)[0].paused
    rig.fill(10)
    with rig.harvester() as second:
        wait_for("a leader", lambda: second.stats[0].leading, DEADLINE_S)
        wait_for("the pause", lambda: second.paused, DEADLINE_S)
        assert rig.left() == 10
        tell(rig.settings(), Verb.RESUME, DEADLINE_S)
        rig.wait_empty(second)
    rig.prove()


def test_without_harvesters_a_command_is_an_error(rig: Rig) -> None:
    with pytest.raises(TopicError, match="no harvester of"):
        tell(rig.settings(), Verb.STATUS, DEADLINE_S)
    with Alone(rig.settings()):  # which hears no commands
        known = AdminClient(rig.broker.client_config()).list_topics
        answers = rig.settings().answers_topic
        wait_for(f"{answers} to be known", lambda: answers in known(timeout=DEADLINE_S).topics, DEADLINE_S)
        assert tell(rig.settings(), Verb.STATUS, DEADLINE_S, Leaping()) == []


def test_a_flush_tries_held_rows_again(rig: Rig) -> None:
    topic = f"{rig.topic}-later"
    rig.write([rig.record(0, topic=topic)])
    with rig.harvester(retry_s=600.0, retry_limit_s=600.0, heartbeat_timeout_s=CALM_S) as harvester:
        wait_for("the refusal", lambda: harvester.stats[0].refused, DEADLINE_S)
        rig.broker.create_topic(topic, partitions=PARTITIONS, exact=True)
        assert tell(rig.settings(), Verb.STATUS, DEADLINE_S)[0].waiting_topics == [topic]
        tell(rig.settings(), Verb.FLUSH, DEADLINE_S)
        rig.wait_empty(harvester)
    rig.broker.delete_topics([topic])


def serves(worker: Worker) -> bool:
    """Return whether a worker has a partition to fold."""
    return worker.ready and worker.metric("holdfast_applied_offset") != {}


def test_workers_and_a_harvester_alone_obey_the_same_commands_and_take_over_from_each_other(
    rig: Rig, tmp_path: Path
) -> None:
    """Two workers, one of them idle (there is one partition to fold), and a harvester alone lead a shard
    each. Every shard answers every command once, also one that is sent when its leader was killed a moment
    ago."""
    given: dict[str, Any] = {
        "outbox_database": rig.outbox.url,
        "outbox_harvest": "true",
        "outbox_name": rig.name,
        "outbox_table": rig.outbox.table,
        "outbox_shards": SHARDS,
        "outbox_heartbeat_timeout_s": "2",
    }
    settings = rig.settings(shards=SHARDS)
    told = 0

    def tell_all(verb: Verb) -> list[CommandReply]:
        nonlocal told
        answers, told = tell(settings, verb, DEADLINE_S), told + 1
        assert [answer.shard for answer in answers] == list(range(SHARDS)), f"{answers}\n{app.tails()}"
        return answers

    def spread() -> list[CommandReply] | None:
        answers = tell_all(Verb.STATUS)
        return answers if len({answer.leader for answer in answers}) == SHARDS else None

    with (
        running(Application(rig.broker, tmp_path, partitions=1, **given).create_topics()) as app,
        ExitStack() as stack,
    ):
        workers = [app.worker().start() for _ in range(2)]
        alone = stack.enter_context(rig.harvester(shards=SHARDS, instance="alone"))
        rig.fill(100)
        rig.wait_empty()
        wait_for("a shard for each", spread, DEADLINE_S, app.tails)
        paused = tell_all(Verb.PAUSE)
        assert all(answer.paused and not answer.in_flight for answer in paused)
        rig.fill(100)
        assert all(answer.paused for answer in tell_all(Verb.FLUSH))
        assert rig.left() == 100
        wait_for(
            "one of them to be idle",
            lambda: sorted(map(serves, workers)) == [False, True],
            DEADLINE_S,
            app.tails,
        )
        workers[0].kill()
        leaders = {answer.leader for answer in tell_all(Verb.STATUS)}
        assert len(leaders) <= 2, "nobody is waited for who cannot answer"
        assert rig.left() == 100, "the pause holds for whoever leads next"
        alone.stop()
        resumed = tell_all(Verb.RESUME)
        assert not any(answer.paused for answer in resumed)
        assert {answer.leader for answer in resumed}.isdisjoint({"alone"})
        rig.fill(50)
        rig.wait_empty()
        workers[1].stop()
    answers = [json.loads(record.value or b"") for record in rig.read(topic=settings.answers_topic)]
    assert Counter((answer["id"], answer["shard"]) for answer in answers).most_common(1)[0][1] == 1
    assert len(answers) == told * SHARDS
    rig.prove()


def test_settings_say_which_outbox_is_harvested(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="outbox_database"):
        harvest_settings(Settings())
    found = harvest_settings(
        Settings(app="shop", outbox_database="sqlite:///x.db", outbox_shards=3), table="mine"
    )
    assert (found.name, found.shards, found.table) == ("shop-outbox", 3, "mine")
    assert found.election().leader_topic == "shop-outbox.neli"
    for wrong in (
        {"strategy": "fast"},
        {"poison": "drop"},
        {"name": "a b"},
        {"layout": "debezium", "shards": 2},
        {"retry_s": 0.0},
    ):
        with pytest.raises(ConfigError):
            harvest_settings(Settings(outbox_database="sqlite:///x.db"), **wrong)
