"""The pytest plugin of holdfast, found by its entry point: fixtures for tests of processors.

- ``topology``: `topology([totals], partitions=3)` returns a `Topology` and checks it at the end of the test.
  A test that fails
  shows the records that were refused.
- ``embedded_kafka``: an `EmbeddedKafka` for the session, without a JDK;
  `embedded_kafka.create_topic("orders")` makes topics.
  With ``--embedded-kafka-folder F`` it keeps what it holds in F (below it, one folder for each process of
  pytest-xdist).
- ``holdfast_broker`` and ``fresh_topic``: a real broker for the session, and topics of it; see
  `holdfast.dev.fixtures`.

Tests that made a `Topology`, by the fixture or themselves, run again under another hash seed: see
`holdfast.testing.hash_seeds`; ``--fold-hash-seeds 0`` leaves that out.

No Kafka client is imported until a test asks for a broker.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.testing import hash_seeds
from holdfast.testing.topology import Topology

if TYPE_CHECKING:
    from holdfast.dev.fixtures import FreshTopic, SessionBroker
    from holdfast.embedded.kafka import EmbeddedKafka

MakeTopology = Callable[..., Topology]
_MADE = pytest.StashKey[list[Topology]]()
"""The topologies that a test has made by the fixture."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of ``embedded_kafka`` and of the tests of topologies."""
    group = parser.getgroup("holdfast")
    hash_seeds.add_options(group)
    group.addoption(
        "--embedded-kafka-folder",
        type=Path,
        metavar="F",
        help="keep what the embedded Kafka of the fixture embedded_kafka holds in this folder",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Have tests of topologies run again under another hash seed."""
    hash_seeds.register(config)


@pytest.fixture
def topology(request: pytest.FixtureRequest) -> Iterator[MakeTopology]:
    """Give a maker of topologies; each is replayed at the end of the test, as a `with` block would."""
    made: list[Topology] = []
    request.node.stash[_MADE] = made

    def make(app: Any, **options: Any) -> Topology:
        made.append(Topology(app, **options))
        return made[-1]

    yield make
    try:
        for each in made:
            each.check()
    finally:
        for each in made:
            each.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Note at the error of a test which records the topologies of its fixture have refused."""
    if call.when == "call" and call.excinfo is not None:
        for each in item.stash.get(_MADE, []):
            each.note_refused(call.excinfo.value)
    return (yield)


@pytest.fixture(scope="session")
def embedded_kafka(request: pytest.FixtureRequest) -> Iterator[EmbeddedKafka]:
    """Give one embedded Kafka for the whole session."""
    from holdfast.embedded.kafka import EmbeddedKafka

    folder: Path | None = request.config.getoption("--embedded-kafka-folder")
    if folder is not None:
        folder /= os.environ.get("PYTEST_XDIST_WORKER", "")
    with EmbeddedKafka(folder=folder) as kafka:
        yield kafka


@pytest.fixture(scope="session")
def holdfast_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SessionBroker]:
    """Give one real Kafka for the whole session."""
    from holdfast.dev.fixtures import session_broker

    yield from session_broker(lambda: tmp_path_factory.mktemp("kafka"))


@pytest.fixture
def fresh_topic(holdfast_broker: SessionBroker) -> Iterator[FreshTopic]:
    """Give a maker of topics that no other test has."""
    from holdfast.dev.fixtures import FreshTopic

    topics = FreshTopic(holdfast_broker)
    yield topics
    topics.delete_all()
