"""A broker that the tests of some files may freeze, kill and damage:

    holdfast_broker, broker = own_broker.holdfast_broker, own_broker.broker

at the top of a file replaces the run's broker, for `fresh_topic` too. One process runs all such files
(`tests.support.schedule`), one after the other, with one such broker; each leaves it awake.

Where the run's broker is the embedded Kafka, the files get that one. A test that freezes, kills or damages
its broker bears the mark ``kafka``, so that it runs on Apache Kafka only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast.dev.broker.cluster import Cluster
from holdfast.dev.fixtures import SessionBroker
from tests.support.parts import IS_EMBEDDED, part


@pytest.fixture(scope="session")
@part("broker")
def disturbed_broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SessionBroker]:
    """Give the node of all such files of this process."""
    if IS_EMBEDDED:
        yield request.getfixturevalue("run_broker")
        return
    with Cluster(tmp_path_factory.mktemp("own"), short_lived=True) as cluster:
        yield SessionBroker(config=cluster.client_config(), cluster=cluster)


@pytest.fixture(scope="module")
def holdfast_broker(disturbed_broker: SessionBroker) -> Iterator[SessionBroker]:
    """Give it to a file, which leaves it as it found it."""
    yield disturbed_broker
    if IS_EMBEDDED:
        return
    assert disturbed_broker.cluster is not None
    left = [each for each in disturbed_broker.cluster.status() if each.condition != "running"]
    assert not left, f"the last file to use its broker left it {left}"


@pytest.fixture(scope="module")
def broker(holdfast_broker: SessionBroker) -> SessionBroker:
    """Give the same by its usual name."""
    return holdfast_broker


@contextmanager
def frozen(broker: SessionBroker) -> Iterator[None]:
    """Freeze the node during the block.

    It may have been away for longer than its own session, and lead no partition then: later tests find it
    leading again.
    """
    assert broker.cluster is not None, "mark the test `kafka`: the embedded Kafka cannot be frozen"
    broker.cluster.pause(1)
    try:
        yield
    finally:
        broker.cluster.resume(1)
        broker.cluster.wait_ready()
