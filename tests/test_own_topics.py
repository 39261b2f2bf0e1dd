"""The topics that a file of tests makes on the run's broker go when the file ends, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from holdfast.dev.fixtures import SessionBroker
from tests.support import own_topics
from tests.support.patience import DEADLINE_S

FOREIGN = "of-another-file"


@pytest.fixture
def foreign(broker: SessionBroker) -> Iterator[str]:
    """Give a topic that no test here has made."""
    admin, name = AdminClient(broker.client_config()), f"{FOREIGN}-{own_topics.ending()}"
    own_topics.forget()
    admin.create_topics([NewTopic(name, 1)])[name].result(DEADLINE_S)
    yield name
    broker.delete_topics([name])


def test_topics_of_a_file_end_with_it(broker: SessionBroker, foreign: str) -> None:
    created = broker.create_topic("orders")
    exact = broker.create_topic(f"shop-{own_topics.ending()}-orders", exact=True)

    own_topics.delete_all()

    there = AdminClient(broker.client_config()).list_topics(timeout=DEADLINE_S).topics
    assert foreign in there
    assert not {created, exact} & set(there)
