"""Topics of one file of tests on the run's brokers, which are deleted when the file ends.

All files of a run share a broker, and every topic costs it time: in each metadata request that names none, in
each look of its cleaner, in each tick of its meters.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping

from confluent_kafka.admin import AdminClient

from holdfast.clock import system_clock
from holdfast.dev.broker.cluster import Cluster
from holdfast.dev.fixtures import SessionBroker
from tests.support.patience import DEADLINE_S

AT_ONCE, POLL_S = 10, 0.02
_endings: set[str] = set()


def ending() -> str:
    """Return a unique suffix: each topic with it in its name is deleted when the file ends."""
    made = uuid.uuid4().hex[:8]
    _endings.add(made)
    return made


class RunBroker(SessionBroker):
    """The run's broker: topics that a test creates on it go when its file ends."""

    def create_topic(
        self,
        name: str = "topic",
        *,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        replication_factor: int = -1,
        exact: bool = False,
    ) -> str:
        """Create a topic as `SessionBroker` does."""
        topic = super().create_topic(
            name, partitions=partitions, config=config, replication_factor=replication_factor, exact=exact
        )
        _endings.add(topic)
        return topic


brokers: list[RunBroker] = []
"""The brokers of the run that a test of this process has asked for."""


def kept(config: Mapping[str, str], cluster: Cluster | None = None) -> RunBroker:
    """Return a broker of the run, whose topics `delete_all` deletes."""
    brokers.append(RunBroker(config=config, cluster=cluster))
    return brokers[-1]


def delete_all() -> None:
    """Delete the topics of the file that has ended, a few at a time: the broker announces no new topic during
    a deletion.
    """
    for broker in brokers if _endings else ():
        admin = AdminClient(broker.client_config())
        made = [each for each in _topics(admin) if any(ending in each for ending in _endings)]
        for few in (made[at : at + AT_ONCE] for at in range(0, len(made), AT_ONCE)):
            broker.delete_topics(few)
            until_s = system_clock.monotonic_s() + DEADLINE_S
            while left := set(few) & _topics(admin):
                assert system_clock.monotonic_s() < until_s, f"{left} were deleted and are still there"
                time.sleep(POLL_S)
    forget()


def _topics(admin: AdminClient) -> set[str]:
    return set(admin.list_topics(timeout=DEADLINE_S).topics)


def forget() -> None:
    """Leave the topics of all names so far where they are."""
    _endings.clear()
