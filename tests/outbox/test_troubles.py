"""What a harvester says by itself: one line when a trouble begins and one when it is over, also without
-v.
"""

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
from holdfast.clients.topics.types import AlterConfig, CreateTopic, TopicRole, TopicSpec
from holdfast.config import Settings
from holdfast.dev.databases.servers import Postgres
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from holdfast.errors import BrokerError, TopicError
from holdfast.kafka.clients import CRITICAL
from holdfast.outbox.schema.migrate import downgrade, upgrade
from holdfast.outbox.settings import HarvestSettings
from holdfast.outbox.topics import ensure_topics, wanted
from holdfast.outbox.troubles import FORGOTTEN_S, Trouble
from tests.outbox.databases import FreshOutbox, killed
from tests.outbox.electors import CALM_S
from tests.outbox.harvesting import PARTITIONS, Alone, Rig
from tests.support.harness import wait_for
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT


@pytest.fixture
def rig(broker: SessionBroker, fresh_topic: FreshTopic, postgres_outbox: FreshOutbox) -> Rig:
    return Rig(broker, postgres_outbox, fresh_topic("events", partitions=PARTITIONS))


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


def test_the_command_says_that_its_tables_are_missing(rig: Rig, tmp_path: Path) -> None:
    rig.fill(1)
    with command(rig, tmp_path) as said:
        rig.wait_empty()
        downgrade(rig.outbox.url, table=rig.outbox.table)
        wait_for("a word", lambda: lines(said, f'"{rig.outbox.table}'), DEADLINE_S, said.read_text)
        upgrade(rig.outbox.url, table=rig.outbox.table)
        wait_for("the end", lambda: lines(said, "the trouble is over"), DEADLINE_S, said.read_text)
    assert len(lines(said, "nothing is published until")) == 1, said.read_text()


def test_a_topic_that_is_missing_is_told_once_and_again_when_it_is_there(
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
def test_a_harvester_begins_once_the_broker_tells_of_its_topics(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, named: bool
) -> None:
    """A broker learns of a topic a moment after it is made: the first leader took it for missing, and said
    so.
    """
    looks = list[set[str]]()

    class Late(AdminClient):
        """Tells of the harvester's topics at the fourth look; until then not at all, or of no partition."""

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


@pytest.mark.parametrize("which", ["progress_topic", "commands_topic"])
def test_a_topic_that_would_forget_is_refused_with_its_cure(rig: Rig, which: str) -> None:
    """Retention deleted the last progress of a quiet topic: its sequences began again at 0, and every reader
    that drops duplicates dropped what came.
    """
    settings = rig.settings()
    topic = getattr(settings, which)
    admin = Admin(settings.kafka, timeout_s=DEADLINE_S)
    partitions = settings.shards if which == "progress_topic" else 1
    spec = TopicSpec(
        name=topic,
        partitions=partitions,
        config={"cleanup.policy": "compact,delete"},
        replication_factor=1,
        role=TopicRole.BESIDE,
    )
    admin.apply([CreateTopic(spec=spec, partitions=partitions)])
    cure = rf"{topic} has cleanup.policy=compact,delete: .*--add-config cleanup.policy=compact"
    with pytest.raises(TopicError, match=cure):
        ensure_topics(settings)
    admin.apply([AlterConfig(topic=topic, config={"cleanup.policy": "compact"})])
    assert ensure_topics(settings) == []


def test_no_client_of_an_outbox_tells_of_its_connections_unless_asked() -> None:
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


def test_a_trouble_is_told_once_for_each_kind_and_once_when_it_is_over(
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
    """The broker tells of such a topic as of any other, and then refuses the whole transaction without
    saying which row it was.
    """
    numbers = range(20)
    rig.write(
        [rig.record(number, topic="__consumer_offsets" if number == 7 else rig.topic) for number in numbers]
    )
    with Alone(rig.settings(attempts=2, retry_s=0.05, retry_limit_s=0.1)):
        rig.wait_empty()
    with rig.outbox.rows() as rows:
        assert [each.row.topic for each in rows.quarantined(10)] == ["__consumer_offsets"]
