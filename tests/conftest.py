"""Fixtures of all tests. `broker` is the one real Kafka of the session; `fresh_topic` makes topics on it."""

from __future__ import annotations

import pytest

from holdfast.dev.fixtures import SessionBroker, fresh_topic, holdfast_broker

__all__ = ["broker", "fresh_topic", "holdfast_broker"]


@pytest.fixture(scope="session")
def broker(holdfast_broker: SessionBroker) -> SessionBroker:
    """Give the session's Kafka: set ``KAFKA_BOOTSTRAP_SERVERS`` to test against another one."""
    return holdfast_broker
