"""An outbox in PostgreSQL is published in order and once, although SIGKILL ends its leaders at every step."""

from __future__ import annotations

import pytest

from holdfast.dev.databases.servers import Postgres
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from tests.outbox.databases import FreshOutbox
from tests.outbox.harvest.test_fenced import test_a_kill_at_any_step_costs_nothing
from tests.outbox.harvesting import PARTITIONS, Rig

__all__ = ["test_a_kill_at_any_step_costs_nothing"]


@pytest.fixture
def rig(broker: SessionBroker, fresh_topic: FreshTopic, postgres: Postgres) -> Rig:
    """Give an outbox on PostgreSQL."""
    return Rig(broker, FreshOutbox.make(postgres.url), fresh_topic("events", partitions=PARTITIONS))
