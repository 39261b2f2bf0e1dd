"""One embedded Kafka for all tests of this folder that change nothing about it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.embedded.kafka import EmbeddedKafka


@pytest.fixture(scope="session")
def embedded() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(seed=1) as kafka:
        yield kafka
