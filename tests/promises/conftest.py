"""Apache Kafka as the broker of this folder's tests, whatever the run's broker is.

The body of each test is in another folder, where it bears the mark ``promise``. There it runs on the run's
broker and database in `make test`, and `make test-all` does not repeat it.
"""

from __future__ import annotations

import pytest

from holdfast.dev.fixtures import SessionBroker


@pytest.fixture(scope="session")
def holdfast_broker(apache_broker: SessionBroker) -> SessionBroker:
    """Give Apache Kafka."""
    return apache_broker


@pytest.fixture(scope="session")
def broker(holdfast_broker: SessionBroker) -> SessionBroker:
    """Give Apache Kafka by its usual name."""
    return holdfast_broker
