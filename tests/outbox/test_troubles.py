"""A harvester's own log lines: one when a trouble begins and one when it is over, also without -v."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.types import AlterConfig
from holdfast.config import Settings
from holdfast.core.kafka.grants import Operation
from holdfast.dev.databases.servers import Postgres
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.errors import BrokerError, TopicError
from holdfast.kafka.clients import CRITICAL
from holdfast.outbox.grants import harvester_grants
from holdfast.outbox.schema.migrate import downgrade, upgrade
from holdfast.outbox.settings import HarvestSettings
from holdfast.outbox.topics import PROGRESS_CONFIG, ensure_topics, wanted
from holdfast.outbox.troubles import FORGOTTEN_S, Trouble
from tests.outbox.databases import FreshOutbox, killed
from tests.outbox.electors import CALM_S
from tests.outbox.harvesting import PARTITIONS, Alone, Rig
from tests.support.harness import wait_for
from tests.support.limits import at_most
from tests.support.own_topics import ending
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT
from tests.support.secured import Guarded


@pytest.fixture
def rig(broker: SessionBroker, fresh_topic: FreshTopic, run_outbox: FreshOutbox) -> Rig:
    return Rig(broker, run_outbox, fresh_topic("events", partitions=PARTITIONS))


@contextmanager
def command(rig: Rig, folder: Path) -> Iterator[Path]:
    """Run `holdfast outbox harvest`, and give the file with what it says on stderr."""
    said = folder / "stderr"
    options = ["--bootstrap", rig.broker.bootstrap, "--set", f"outbox_heartbeat_timeout_s={CALM_S:.0f}"]
    wanted = ["--database", rig.outbox.url, "--table", rig.outbox.table, "--name", rig.name]
    with said.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "holdfast.cli", *options, "outbox", "harvest", *wanted],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stderr=out,
        )
        try:
            yield said
        finally:
            process.terminate()
            process.wait(DEADLINE_S)


def lines(said: Path, part: str) -> list[str]:
    return [
        line for line in said.read_text(errors="replace").splitlines() if part in line and "WARNING" in line
    ]


def test_the_command_says_when_its_database_is_away_and_when_it_is_back(
    rig: Rig, postgres: Postgres, tmp_path: Path
) -> None:
    rig.fill(10)
    with command(rig, tmp_path) as said:
        rig.wait_empty(deadline_s=DEADLINE_S)
        assert not lines(said, "outbox")
        with killed(postgres):
            wait_for(
                "a word",
                lambda: lines(said, "nothing is published until this is over"),
                DEADLINE_S,
                said.read_text,
            )
            wait_for("another attempt", lambda: "harvesting" in said.read_text(), DEADLINE_S)
        rig.fill(10)
        rig.wait_empty(deadline_s=DEADLINE_S)
        wait_for("the end", lambda: lines(said, "the trouble is over"), DEADLINE_S, said.read_text)
    assert len(lines(said, "nothing is published until")) == 1, said.read_text()
    assert len(lines(said, "the trouble is over")) == 1
    assert rig.outbox.url.rpartition("/")[2] in lines(said, "nothing is published until")[0], (
        "it names the database"
    )


@pytest.mark.database
def test_the_command_says_that_its_tables_are_missing(rig: Rig, tmp_path: Path) -> None:
    rig.fill(1)
    with command(rig, tmp_path) as said:
        rig.wait_empty()
        downgrade(rig.outbox.url, table=rig.outbox.table)
        wait_for("a word", lambda: lines(said, f'"{rig.outbox.table}'), DEADLINE_S, said.read_text)
        upgrade(rig.outbox.url, table=rig.outbox.table)
        wait_for("the end", lambda: lines(said, "the trouble is over"), DEADLINE_S, said.read_text)
    assert len(lines(said, "nothing is published until")) == 1, said.read_text()


def test_a_topic_that_is_missing_is_reported_once_and_again_when_it_is_there(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    topic = f"{rig.topic}-later"
    rig.write([rig.record(number, topic=topic) for number in range(5)])
    with Alone(rig.settings(attempts=1000, retry_limit_s=0.2)) as leader:
        wait_for("some refusals", lambda: leader.stats.refused > 3, DEADLINE_S)
        rig.broker.create_topic(topic, partitions=PARTITIONS, exact=True)
        rig.wait_empty()
    told = [
        record.message
        for record in caplog.records
        if topic in record.message and record.levelname == "WARNING"
    ]
    assert [each.partition(": ")[2][:40] for each in told] == [
        f"rows for topic {topic} are held back: "[:40],
        f"topic {topic} can be written to again"[:40],
    ]
    rig.broker.delete_topics([topic])


def test_a_broker_that_is_not_there_is_one_error_and_nothing_of_kafkas_client(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its lines were 20 a second, and more than a thousand in a minute without a broker."""
    monkeypatch.setattr("holdfast.outbox.topics.TIMEOUT_S", 0.3)
    nowhere = Settings(app="nobody-there", kafka={"bootstrap.servers": "127.0.0.1:1"})
    with pytest.raises(
        BrokerError, match=r"outbox\.progress at 127\.0\.0\.1:1: .*; check bootstrap\.servers"
    ):
        ensure_topics(HarvestSettings(database="sqlite:///never-opened.db", kafka=nowhere))
    assert "nobody-there#" not in capfd.readouterr().err


@pytest.mark.parametrize("named", [False, True])
def test_a_harvester_begins_once_the_broker_lists_its_topics(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, named: bool
) -> None:
    """A broker learns of a topic a moment after it is made: the first leader took it for missing, and said
    so.
    """
    looks = list[set[str]]()

    class Late(AdminClient):
        """Lists the harvester's topics at the fourth look; until then not at all, or without partitions."""

        def list_topics(self, *args: Any, **options: Any) -> Any:
            metadata = super().list_topics(*args, **options)
            own = {name for name in metadata.topics if name.startswith(rig.name)}
            looks.append(own)
            for name in own if len(looks) < 4 else ():
                if named:
                    metadata.topics[name].partitions.clear()
                else:
                    del metadata.topics[name]
            return metadata

    monkeypatch.setattr("holdfast.outbox.topics.make_admin", Late)
    settings = rig.settings()
    made = ensure_topics(settings)
    assert len(looks) >= 4
    assert set(made) == looks[-1] == set(wanted(settings))
    assert ensure_topics(settings) == [], "they are there"
    rig.fill(10)
    with Alone(settings) as leader:
        rig.wait_empty()
    assert (leader.stats.restarts, caplog.messages) == (0, [])


@pytest.mark.parametrize(
    ("which", "policy", "why"),
    [
        ("progress_topic", "compact,delete", "it would forget"),
        ("commands_topic", "delete", "it would forget"),
        ("leader_topic", "compact", "brokers refuse records without keys"),
    ],
)
def test_a_topic_with_another_policy_is_refused_with_its_cure(
    rig: Rig, which: str, policy: str, why: str
) -> None:
    """Retention deleted the last progress of a quiet topic: its sequences began again at 0, and every reader
    that drops duplicates dropped the new records. And a compacted topic takes no heartbeat: no harvester ever
    led.
    """
    settings = rig.settings()
    topic = settings.election().leader_topic if which == "leader_topic" else getattr(settings, which)
    fit = wanted(settings)[topic]["cleanup.policy"]
    rig.broker.create_topic(topic, config={"cleanup.policy": policy}, exact=True)
    with pytest.raises(TopicError, match=f"{topic} has cleanup.policy={policy}: {why}.*cleanup.policy={fit}"):
        ensure_topics(settings)
    Admin(settings.kafka, timeout_s=DEADLINE_S).apply(
        [AlterConfig(topic=topic, config={"cleanup.policy": fit})]
    )
    assert topic not in ensure_topics(settings)


def test_another_number_of_partitions_is_refused_with_a_cure_that_helps(rig: Rig) -> None:
    rig.broker.create_topic(rig.settings().progress_topic, partitions=2, config=PROGRESS_CONFIG, exact=True)
    with pytest.raises(TopicError, match=r"2 partition\(s\) for 1 shard\(s\).*start each with --shards 2"):
        ensure_topics(rig.settings())
    with pytest.raises(TopicError, match=r"1 partition\(s\) for 3 shard\(s\).*add partitions to the topic"):
        ensure_topics(rig.settings(shards=3))


def test_a_harvester_without_a_right_names_the_topic_and_how_to_get_it(
    guarded_broker: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    kafka, name = Settings(kafka=guarded_broker.principal("gatherer")), f"gathered-{ending()}"
    settings = HarvestSettings(database="sqlite:///never-opened.db", kafka=kafka, name=name)
    grants = harvester_grants(settings, [])
    lacking = [each for each in grants if (each.name, each.operation) == (f"{name}.progress", "Create")]
    guarded_broker.grant("gatherer", [each for each in grants if each not in lacking])
    with pytest.raises(TopicError, match=rf"topic {name}\.progress is not there.*grant it Create"):
        ensure_topics(settings)
    guarded_broker.grant("gatherer", grants)
    assert ensure_topics(settings) == [f"{name}.progress"]
    assert caplog.messages == []
    blind = [each for each in grants if each.operation != Operation.DESCRIBE_CONFIGS]
    guarded_broker.grant("gatherer", blind)
    ensure_topics(settings)
    assert len(caplog.messages) == 4
    assert all("grant this principal DescribeConfigs" in each for each in caplog.messages)


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[tuple[EmbeddedKafka, HarvestSettings]]:
    """Give a broker that may be silent, and an outbox without a harvester."""
    outbox = FreshOutbox.make(f"sqlite:///{tmp_path / 'service.db'}")
    with EmbeddedKafka() as kafka:
        known = Settings(kafka={"bootstrap.servers": kafka.bootstrap})
        yield kafka, HarvestSettings(database=outbox.url, table=outbox.table, kafka=known, name="silent")


@pytest.mark.long
def test_topics_that_are_not_made_in_time_are_reported(
    silent: tuple[EmbeddedKafka, HarvestSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line was `holdfast: ` and nothing else."""
    monkeypatch.setattr("holdfast.outbox.topics.TIMEOUT_S", 1.0)
    kafka, settings = silent
    kafka.fault("drop", "CreateTopics", times=1_000)
    with pytest.raises(BrokerError, match=r"topics silent\.neli.*: .*imed out.*; check bootstrap\.servers"):
        ensure_topics(settings)


@pytest.mark.long
def test_a_harvester_that_starts_at_a_silent_broker_can_be_stopped(
    silent: tuple[EmbeddedKafka, HarvestSettings], tmp_path: Path
) -> None:
    """The stop had no effect before the start had failed, a quarter of a minute later."""
    kafka, settings = silent
    kafka.fault("drop", "CreateTopics", times=1_000)
    options = ["--bootstrap", kafka.bootstrap, "outbox", "harvest", "--database", settings.database]
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "holdfast.cli", *options, "--table", settings.table],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for("the question", lambda: kafka.faults.hits, DEADLINE_S)
    with at_most(5.0, "the end"):
        process.terminate()
        _, said = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, said) == (0, "stopped: 0 row(s) published\n")


def test_no_client_of_an_outbox_logs_its_connections_unless_asked() -> None:
    def levels(**kafka: str) -> set[object]:
        made = HarvestSettings(database="sqlite:///never-opened.db", kafka=Settings(kafka=kafka))
        election = made.election()
        configs = (
            made.producer(),
            made.kafka.client(),
            made.kafka.consumer(),
            election.consumer,
            election.producer,
        )
        return {config.get("log_level") for config in configs}

    assert levels() == {str(CRITICAL)}
    assert levels(log_level="6") == {"6"}


def test_a_trouble_is_reported_once_for_each_kind_and_once_when_it_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_s = [0.0]

    class Clock:
        def monotonic_s(self) -> float:
            return now_s[0]

    made: Any = Clock()
    trouble = Trouble("shop", made)
    trouble.ends()
    for kind in ("database", "database", "broker", "database", "broker"):
        trouble.strikes(kind, f"the {kind}\nis away")
        now_s[0] += 10
    trouble.ends()
    trouble.ends()
    trouble.strikes("database", "again")
    now_s[0] += FORGOTTEN_S + 1
    trouble.strikes("database", "much later")
    told = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert [each.partition(";")[0] for each in told] == [
        "outbox shop: the database is away",
        "outbox shop: the broker is away",
        "outbox shop: the trouble is over after 50 s",
        "outbox shop: again",
        "outbox shop: much later",
    ]


def test_a_row_for_a_topic_of_the_brokers_own_holds_up_no_others(rig: Rig) -> None:
    """The broker lists such a topic as any other, and then refuses the whole transaction without saying which
    row it was.
    """
    numbers = range(20)
    rig.write(
        [rig.record(number, topic="__consumer_offsets" if number == 7 else rig.topic) for number in numbers]
    )
    with Alone(rig.settings(attempts=2, retry_s=0.05, retry_limit_s=0.1)):
        rig.wait_empty()
    with rig.outbox.rows() as rows:
        assert [each.row.topic for each in rows.quarantined(10)] == ["__consumer_offsets"]
