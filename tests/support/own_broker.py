"""A broker that the tests of one file may freeze, kill and damage:

    holdfast_broker, broker = own_broker.holdfast_broker, own_broker.broker

at the top of the file puts it in the place of the run's broker, for `fresh_topic` too.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.dev.broker.cluster import Cluster
from holdfast.dev.fixtures import SessionBroker
from tests.support.parts import part


@pytest.fixture(scope="module")
@part("broker")
def holdfast_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SessionBroker]:
    """Give a node of this file's own."""
    with Cluster(tmp_path_factory.mktemp("own"), short_lived=True) as cluster:
        yield SessionBroker(config=cluster.client_config(), cluster=cluster)


@pytest.fixture(scope="module")
def broker(holdfast_broker: SessionBroker) -> SessionBroker:
    """Give the same by its usual name."""
    return holdfast_broker
