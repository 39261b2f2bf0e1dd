"""`holdfast doctor`: what it finds of a machine and of a cluster, and that it finds it where something is
wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast import Processor, Rows, by_key
from holdfast.cli.doctor import machine
from holdfast.cli.doctor.cluster import brokers, clocks, cluster, missing
from holdfast.cli.doctor.diagnosis import Diagnosis, Fitness
from holdfast.cli.doctor.doctor import diagnoses
from holdfast.cli.options.application import Application
from holdfast.cli.options.context import Globals
from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.application import create_topics
from holdfast.clients.topics.types import ClusterTopics
from holdfast.clock import ManualClock
from holdfast.config import Settings
from holdfast.core.kafka.grants import Operation, topic_grants
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.errors import JavaMissingError
from holdfast.extras import EXTRAS
from tests.support.patience import DEADLINE_S


def count(rows: Rows[int], word: str, at_ms: int) -> None:
    rows[word] = (rows.get(word) or 0) + 1


counts: Processor[str, int] = Processor(
    name="counts", source="words", decode=bytes.decode, fold=count, row=int, route=by_key
)


def unwell(found: Iterator[Diagnosis]) -> dict[str, str]:
    return {each.check: each.found for each in found if each.fitness in (Fitness.WARNING, Fitness.ERROR)}


# The machine


def test_every_extra_that_brings_packages_is_looked_for() -> None:
    assert {*machine.PURPOSES} == {*EXTRAS.values()}


def test_a_machine_that_lacks_something_is_reported_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Path:
        raise JavaMissingError("no java in PATH; install a JDK 17 or newer")

    monkeypatch.setattr(machine, "find_java", none)
    assert machine.java().fitness is Fitness.ABSENT
    assert machine.java().cure.endswith("without --embedded: install a JDK 17 or newer")
    monkeypatch.setitem(EXTRAS, "nosuch.package", "extra")
    (lacking,) = machine.packages({"extra": "something"})
    assert (lacking.fitness, lacking.cure) == (
        Fitness.ABSENT,
        "only for something: pip install 'holdfast[extra]'",
    )
    assert machine.python((3, 99)).cure == "holdfast is tested up to Python 3.13"
    few = machine.open_files(300, 64, 1_000)
    assert (few.fitness, few.cure) == (Fitness.WARNING, "raise ulimit -n, or LimitNOFILE of the service")


def test_the_folder_of_the_stores_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    assert machine.data_folder(tmp_path / "file" / "data").found == f"{tmp_path / 'file'} is a file"
    assert machine.data_folder(tmp_path / "new" / "data").fitness is Fitness.OK
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert machine.data_folder(tmp_path).found == f"this account may not write to {tmp_path}"
    monkeypatch.undo()
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1 << 20))
    assert machine.data_folder(tmp_path).cure == "make room: a full disk stops the worker's stores"


# The cluster


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka() as embedded:
        yield embedded


def application(kafka: EmbeddedKafka, name: str) -> Application:
    settings = Settings(app=name, kafka={"bootstrap.servers": kafka.bootstrap}, replication_factor=1)
    return Application(settings=settings, processors=(counts,))


def test_missing_topics_are_named_until_they_are_made(kafka: EmbeddedKafka) -> None:
    shop = application(kafka, "missing")
    assert unwell(cluster(shop.settings, shop))["topic words"] == "does not exist (source)"
    create_topics(shop.settings, shop.processors, partitions=2)
    assert unwell(cluster(shop.settings, shop)) == {}


def test_a_broker_that_is_away_ends_the_questions() -> None:
    settings = Settings(kafka={"bootstrap.servers": "127.0.0.1:1"})
    admin = Admin(settings, timeout_s=0.5)
    (found,) = cluster(settings, Application(settings=settings, processors=(counts,)), admin=admin)
    assert (found.check, found.fitness) == ("broker", Fitness.ERROR)
    assert found.cure.startswith("check bootstrap.servers and security.protocol")


def test_more_copies_than_brokers_are_reported() -> None:
    seen = ClusterTopics(brokers=(1,), topics={})
    assert unwell(brokers(Settings(replication_factor=3), seen)) == {
        "replication": "replication_factor is 3, and there are 1 broker(s)"
    }


def test_rights_that_a_worker_lacks_are_found_on_topics_that_may_be_seen() -> None:
    needed = topic_grants("orders", "", Operation.READ, Operation.WRITE) + topic_grants(
        "hidden", "", Operation.READ
    )
    assert [grant.operation for grant in missing(needed, {"orders": {Operation.READ}})] == [Operation.WRITE]


@pytest.mark.parametrize(
    ("behind_ms", "fitness"), [(0, Fitness.OK), (900, Fitness.OK), (5_000, Fitness.WARNING)]
)
def test_a_clock_that_is_late_against_the_brokers_is_reported(
    behind_ms: int, fitness: Fitness, kafka: EmbeddedKafka
) -> None:
    settings = application(kafka, f"clocks{behind_ms}").settings
    admin = Admin(settings)
    (unknown,) = clocks(settings, admin, ManualClock(now_ms=0))
    assert unknown.fitness is Fitness.ABSENT
    kafka.create_topic(settings.workers_topic, config={"message.timestamp.type": "LogAppendTime"})
    announce(settings)
    newest_ms = admin.newest_ms(settings.workers_topic, 0)
    assert newest_ms
    (found,) = clocks(settings, admin, ManualClock(now_ms=newest_ms - behind_ms))
    assert found.fitness is fitness


def announce(settings: Settings) -> None:
    from confluent_kafka import Producer

    producer = Producer(settings.producer())
    producer.produce(settings.workers_topic, b"here", b"here")
    assert producer.flush(DEADLINE_S) == 0


# The command


def test_wrong_settings_are_reported_and_the_machine_is_checked_all_the_same() -> None:
    found = [*diagnoses(Globals(flags={"web_port": "abc", "nosuch": 1}), offline=False)]
    told = [each for each in found if each.check == "settings"]
    assert len(told) == 2
    assert {each.fitness for each in told} == {Fitness.ERROR}
    assert "python" in {each.check for each in found}


def test_an_application_that_cannot_be_loaded_is_reported() -> None:
    found = [*diagnoses(Globals(application="no_such_module"), offline=True)]
    assert "there is no module no_such_module" in unwell(iter(found))["application"]
