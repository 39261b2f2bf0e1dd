"""Fixtures of all tests. `broker` is the run's Kafka, the embedded one in `make test`; `fresh_topic` makes
topics on it. `guarded_broker` authenticates its clients.

`postgres`, `mariadb` and `mysql` are the session's databases, and `schema_registry` its schema registry, each
started by the first test that asks.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from holdfast.dev.broker.cluster import Cluster
from holdfast.dev.databases.schema_registry import SchemaRegistryServer
from holdfast.dev.databases.server import DatabaseServer
from holdfast.dev.databases.servers import MariaDB, MySQL, Postgres
from holdfast.dev.embedded_process import EmbeddedProcess
from holdfast.dev.fixtures import SessionBroker, fresh_topic, session_broker
from holdfast.pipeline.spark import session
from tests.support import collecting, own_topics, schedule, shared_broker, tiers, variants
from tests.support.installations import Installations
from tests.support.own_broker import disturbed_broker
from tests.support.parts import IS_EMBEDDED, PARTS, part, parts_of, times
from tests.support.scale import scaled
from tests.support.secured import Guarded

__all__ = ["broker", "disturbed_broker", "fresh_topic", "holdfast_broker"]

WITHOUT_PARTS = bool(os.environ.get("TESTS_WITHOUT_PARTS"))
DESK = pytest.StashKey[shared_broker.Desk]()
IDS = pytest.StashKey[Path]()
REFUSED = pytest.StashKey[str]()
SCOUT = "gw0"
"""The process that collects everything."""

# Hypothesis gives each example 200 ms by itself, which a loaded machine needs for nothing: the test's own
# timeout limits the time of an example.
hypothesis.settings.register_profile("holdfast", deadline=None, max_examples=scaled(100))
hypothesis.settings.load_profile("holdfast")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with the parts it needs, and put what runs long first."""
    mark(items)
    if config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        try:
            variants.check(items)
            tiers.check(items)
        except pytest.UsageError as error:
            config.stash[REFUSED] = str(error)
            raise
    schedule.order(items)


def mark(items: list[pytest.Item]) -> None:
    """Mark each test with the parts it needs and its tiers, and those that show a promise once more."""
    for item in items:
        variants.mark(item)
        for name in set(parts_of(item)):
            item.add_marker(name)
        if needed := [name for name in PARTS if item.get_closest_marker(name)]:
            item.user_properties.append(("parts", "+".join(needed)))
        tiers.mark(item)


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """Collect no garbage while thousands of tests are made: all of them stay."""
    gc.disable()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Of several processes let one collect everything."""
    given = getattr(session.config, "workerinput", {})
    if (ids := given.get("ids")) is not None and given["workerid"] != SCOUT:
        collecting.collect_later(session, Path(ids), mark)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave the objects that exist now out of each later search for garbage."""
    gc.freeze()
    gc.enable()
    given = getattr(session.config, "workerinput", {})
    if (ids := given.get("ids")) is not None and given["workerid"] == SCOUT:
        collecting.share(session, Path(ids), session.config.stash.get(REFUSED, None))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give a worker process the file with the ids of all tests, and the address of their broker."""
    if node.config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        if IDS not in node.config.stash:
            node.config.stash[IDS] = node.config._tmp_path_factory.mktemp("collected") / "ids.json"
        node.workerinput["ids"] = str(node.config.stash[IDS])
    if not WITHOUT_PARTS:
        if DESK not in node.config.stash:
            folder = node.config._tmp_path_factory.mktemp("desk")
            node.config.stash[DESK] = shared_broker.Desk(folder)
        node.workerinput["broker_desk"] = node.config.stash[DESK].where


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> schedule.Groups | None:
    """Hand out tests as `Groups` does where files are to stay together."""
    together = config.getoption("dist") == "loadfile" and not WITHOUT_PARTS  # then no session is started
    return schedule.Groups(config, log) if together else None


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the broker of several processes, and say why they collected nothing."""
    if (desk := config.stash.get(DESK, None)) is not None:
        desk.close()
    if (ids := config.stash.get(IDS, None)) is not None and (why := collecting.refused(ids)):
        print(f"ERROR: {why}", file=sys.stderr)


@pytest.fixture(scope="session")
def run_broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SessionBroker]:
    """Give the Kafka of the run: an embedded one for each process, or the Apache Kafka of all of them."""
    if IS_EMBEDDED:
        embedded = EmbeddedProcess.start(tmp_path_factory.mktemp("embedded"), nodes=1, port=None, bound=True)
        try:
            yield own_topics.kept(embedded.client_config)
        finally:
            embedded.stop()
    elif os.environ.get("KAFKA_BOOTSTRAP_SERVERS"):
        for broker in session_broker(lambda: tmp_path_factory.mktemp("kafka")):
            yield own_topics.kept(broker.config)
    else:
        yield request.getfixturevalue("apache_broker")


@pytest.fixture(scope="session")
def apache_broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SessionBroker]:
    """Give the Apache Kafka that all processes of the run share: no test may freeze or kill it."""
    desk = getattr(request.config, "workerinput", {}).get("broker_desk")
    if desk is not None:
        shared = shared_broker.ask(desk)
        yield own_topics.kept(shared.config, shared.cluster)
        return
    with Cluster(tmp_path_factory.mktemp("kafka"), short_lived=True) as cluster:
        yield own_topics.kept(cluster.client_config(), cluster)


@pytest.fixture(scope="session")
def holdfast_broker(run_broker: SessionBroker) -> SessionBroker:
    """Give the Kafka of the run."""
    return run_broker


@pytest.fixture(scope="module", autouse=True)
def topics_end_with_their_file() -> Iterator[None]:
    """Delete the topics that a file of tests has left on the run's brokers."""
    yield
    own_topics.delete_all()


@pytest.fixture(scope="session")
@part("broker")
def guarded_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Give the session's Kafka with SCRAM, TLS and ACLs: a test makes users, topics and groups of its own."""
    guarded = Guarded.on_embedded() if IS_EMBEDDED else Guarded.on_kafka(tmp_path_factory.mktemp("guarded"))
    with guarded as broker:
        yield broker


@pytest.fixture(scope="session")
@part("process")
def installations(tmp_path_factory: pytest.TempPathFactory) -> Installations:
    """Give the environments of the run, each with what one install line brings."""
    return Installations(tmp_path_factory.mktemp("installations"))


@pytest.fixture(scope="session")
def broker(holdfast_broker: SessionBroker) -> SessionBroker:
    """Give the run's Kafka: set ``KAFKA_BOOTSTRAP_SERVERS`` to test against another one."""
    return holdfast_broker


@pytest.fixture(scope="session")
@part("database")
def postgres() -> Iterator[Postgres]:
    """Give the session's PostgreSQL; a test that freezes or kills it brings it back."""
    with Postgres() as server:
        yield server


@pytest.fixture(scope="session")
@part("database")
def mariadb() -> Iterator[MariaDB]:
    """Give the session's MariaDB; a test that freezes or kills it brings it back."""
    with MariaDB() as server:
        yield server


@pytest.fixture(scope="session")
@part("database")
def mysql() -> Iterator[MySQL]:
    """Give the session's MySQL; a test that freezes or kills it brings it back."""
    with MySQL() as server:
        yield server


@pytest.fixture(scope="session")
@part("database")
def schema_registry() -> Iterator[SchemaRegistryServer]:
    """Give the session's schema registry; a test that freezes or kills it brings it back."""
    with SchemaRegistryServer() as server:
        yield server


@pytest.fixture(scope="session", autouse=True)
def nothing_but_what_is_marked() -> Iterator[None]:
    """In `make fast` and `make test`, fail a test outside of tests/promises that starts Apache Kafka, a
    database server or Spark: it lacks a mark that says so.
    """
    if not (WITHOUT_PARTS or IS_EMBEDDED):
        yield
        return

    def refusing(start: Any) -> Any:
        def start_for_a_promise(*given: Any, **named: Any) -> Any:
            running = os.environ.get("PYTEST_CURRENT_TEST", "")
            assert running.startswith(tiers.PROMISES), (
                "this test starts a real part: see tests/support/parts.py"
            )
            return start(*given, **named)

        return start_for_a_promise

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Cluster, "start", refusing(Cluster.start))
        patched.setattr(DatabaseServer, "start", refusing(DatabaseServer.start))
        patched.setattr(session, "_start", refusing(session._start))
        yield


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Name a failed test at once: the end of a long run, with the cause, may never come."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print(f"\n{report.nodeid} failed in its {report.when} after {report.duration:.0f} s", flush=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the time of the run by room and by the parts that its tests need."""
    reports = [
        report
        for found in terminalreporter.stats.values()
        for report in found
        if isinstance(report, pytest.TestReport)
    ]
    for title, seconds in times(reports):
        shares = [
            f"{name} {spent_s:.0f} s"
            for name, spent_s in sorted(seconds.items(), key=itemgetter(1), reverse=True)
            if spent_s >= 1
        ]
        if shares:
            terminalreporter.write_line(f"time by {title}: {', '.join(shares)}")
